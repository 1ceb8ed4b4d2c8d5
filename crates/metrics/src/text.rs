//! Snapshots as OpenMetrics text.

use crate::catalogue::Kind;
use crate::snapshot::{Histogram, Sample, Snapshot, Value, seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// The content type of [`Snapshot::into_text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Snapshot {
    /// The whole of it as OpenMetrics text, which Prometheus reads.
    pub fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a string doesn't fail.
        let _written = text::encode(&mut out, &registry);
        out
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for family in self.families() {
            let about = family.about;
            let unit = (!about.unit.is_empty()).then(|| Unit::Other(about.unit.to_owned()));
            let kind = match about.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(about.stem(), about.help, unit.as_ref(), kind)?;
            for Sample { labels, value } in &family.samples {
                let pairs = about.labels.iter().copied().zip(labels.iter().map(|value| &**value));
                let pairs: Vec<(&str, &str)> = pairs.collect();
                let mut sample = metric.encode_family(&pairs)?;
                match value {
                    Value::Count(count) => sample.encode_counter::<NoLabelSet, u64, f64>(count, None)?,
                    Value::Level(level) => sample.encode_gauge(level)?,
                    Value::Histogram(histogram) => encode_buckets(&mut sample, histogram)?,
                }
            }
        }
        Ok(())
    }
}

fn encode_buckets(sample: &mut MetricEncoder<'_>, histogram: &Histogram) -> std::fmt::Result {
    let bounds = histogram.bounds_us.iter().map(|us| seconds(*us)).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts.iter().copied()).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    sample.encode_histogram::<NoLabelSet>(seconds(histogram.sum_us), count, &buckets, None)
}
