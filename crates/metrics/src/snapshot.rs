//! Values at one moment.

use crate::catalogue::{About, Buckets, Counter, Gauge};

/// Values of metrics at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    families: Vec<Family>,
}

/// A metric with its values.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) about: &'static About,
    pub(crate) samples: Vec<Sample>,
}

/// One value, with the values of its labels in the metric's order.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Box<[Box<str>]>,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Count(u64),
    Level(f64),
    Histogram(Histogram),
}

/// Times, counted by their length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The upper bounds of the buckets in microseconds, smallest first; a bound belongs to its bucket.
    pub bounds_us: &'static [u64],
    /// How many are in each bucket alone; one more than bounds, for what is above all of them.
    pub counts: Vec<u64>,
    /// The sum of all times in microseconds.
    pub sum_us: u64,
}

impl Snapshot {
    /// Adds the value of a counter.
    pub fn count<const LABELS: usize>(
        &mut self,
        metric: &'static Counter<LABELS>,
        labels: [&str; LABELS],
        value: u64,
    ) {
        self.add(&metric.0, &labels, Value::Count(value));
    }

    /// Adds the value of a gauge.
    pub fn level<const LABELS: usize>(
        &mut self,
        metric: &'static Gauge<LABELS>,
        labels: [&str; LABELS],
        value: f64,
    ) {
        self.add(&metric.0, &labels, Value::Level(value));
    }

    /// Adds the value of a gauge that is 1 when something is so, and else 0.
    pub fn flag<const LABELS: usize>(
        &mut self,
        metric: &'static Gauge<LABELS>,
        labels: [&str; LABELS],
        is_so: bool,
    ) {
        self.level(metric, labels, if is_so { 1.0 } else { 0.0 });
    }

    /// Adds the value of a metric in buckets.
    pub fn buckets<const LABELS: usize>(
        &mut self,
        metric: &'static Buckets<LABELS>,
        labels: [&str; LABELS],
        value: Histogram,
    ) {
        self.add(&metric.0, &labels, Value::Histogram(value));
    }

    /// Takes another snapshot's values in, such as those of a second gate.
    pub fn merge(&mut self, other: Snapshot) {
        for family in other.families {
            self.family(family.about).samples.extend(family.samples);
        }
    }

    /// How many series it has; the buckets of a histogram count as one.
    pub fn len(&self) -> usize {
        self.families.iter().map(|family| family.samples.len()).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    fn add(&mut self, about: &'static About, labels: &[&str], value: Value) {
        let labels = labels.iter().map(|label| Box::from(*label)).collect();
        self.family(about).samples.push(Sample { labels, value });
    }

    /// The metric's part; all values of a metric stand together.
    fn family(&mut self, about: &'static About) -> &mut Family {
        let place = self.families.iter().position(|family| family.about.name == about.name);
        let place = place.unwrap_or_else(|| {
            self.families.push(Family { about, samples: Vec::new() });
            self.families.len() - 1
        });
        &mut self.families[place]
    }
}

/// A count as the number of a gauge. Above 2^53 the last digits are lost.
pub fn real(count: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a figure to show")]
    let real = count as f64;
    real
}

/// Microseconds as seconds.
pub fn seconds(us: u64) -> f64 {
    real(us) / 1e6
}
