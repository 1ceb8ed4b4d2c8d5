//! One limit under a load of one's choice, measured as the named scenarios are.

use super::load::Load;
use super::stage::Stage;
use super::{Outcome, Scenario, named};
use crate::rng::Rng;
use std::collections::BTreeMap;
use tollgate_core::curve::Rate;
use tollgate_core::rules::Rules;
use tollgate_core::units::Span;

/// The most workers: each step looks at all of them.
const WORKERS_MAX: u64 = 500;
/// The longest time: an hour.
const LENGTH_MAX: Span = Span::from_secs(3_600);
/// The most seconds, times workers: more takes minutes.
const WORKER_SECONDS_MAX: u64 = 36_000;
/// The most tokens that may be wanted a second: what is admitted is kept until it is judged.
const DEMAND_MAX: u64 = 1_000_000;
/// The longest patience.
const PATIENCE_MAX: Span = Span::from_secs(600);
/// The work of a worker is another one after so long.
const STEP: u64 = 10_000_000;
const SECOND: u64 = 1_000_000;
const PPM: u64 = 1_000_000;

/// A limit and a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bench {
    /// Its rate.
    pub rate: Rate,
    /// Its burst.
    pub burst: u64,
    /// How long a lease lasts.
    pub lease: Span,
    /// From 1 to 500.
    pub workers: u64,
    /// What all workers together want, in thousandths of a token a second: at most a million tokens.
    pub demand_milli: u64,
    /// How much of that the first worker wants, in millionths; the others want the same. Nothing: all want the same.
    pub skew_ppm: Option<u64>,
    /// How long; a second to an hour, and at most 36,000 s, times workers.
    pub length: Span,
    /// Work that has waited for so long is given up: up to ten minutes.
    pub patience: Span,
    /// The same seed gives the same run.
    pub seed: u64,
}

/// A field that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The field.
    pub field: &'static str,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

impl Bench {
    /// Checks all ranges.
    ///
    /// # Errors
    /// Every field that is out of its range.
    pub fn check(&self) -> Result<(), Vec<OutOfRange>> {
        let mut problems = Vec::new();
        let mut add = |field, problem| problems.push(OutOfRange { field, problem });
        if self.workers == 0 || self.workers > WORKERS_MAX {
            add("workers", format!("is {}, allowed: 1 to {WORKERS_MAX}", self.workers));
        }
        if self.demand_milli > DEMAND_MAX * 1_000 {
            add("demand", format!("allowed: up to {DEMAND_MAX}/s"));
        }
        if self.rate.micro_per_second() > DEMAND_MAX * PPM {
            add("rate", format!("allowed: up to {DEMAND_MAX}/s"));
        }
        if self.skew_ppm.is_some_and(|skew| skew > PPM) {
            add("skew", "allowed: 0% to 100%".to_owned());
        }
        let seconds = self.length.0 / SECOND;
        if seconds == 0 || self.length > LENGTH_MAX {
            add("for", "allowed: 1s to 1h".to_owned());
        } else if seconds.saturating_mul(self.workers) > WORKER_SECONDS_MAX {
            let longest = WORKER_SECONDS_MAX / self.workers.max(1);
            add("for", format!("allowed: up to {longest}s with {} workers", self.workers));
        }
        if self.patience > PATIENCE_MAX {
            add("patience", "allowed: up to 10m".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Plays it; `told` hears how much is done, in percent.
    ///
    /// # Errors
    /// As [`Bench::check`].
    pub fn run(&self, told: &mut dyn FnMut(u64)) -> Result<Outcome, Vec<OutOfRange>> {
        self.check()?;
        let scenario = self.scenario();
        let mut stage = Stage::new(&scenario, self.seed, Rules::ALL, false);
        stage.play_and_tell(told);
        Ok(super::outcome(&mut stage, self.seed))
    }

    fn scenario(&self) -> Scenario {
        let mut rng = Rng::new(self.seed ^ 0xbe_0c4a);
        let even = PPM / self.workers;
        let first = self.skew_ppm.unwrap_or(even);
        let others = (PPM - first) / (self.workers - 1).max(1);
        let loads = (0..self.workers).map(|worker| {
            let part = if worker == 0 { first } else { others };
            // Thousandths of a token fit: ranges are checked.
            let milli = self.demand_milli * part / PPM;
            (0..self.length.0)
                .step_by(usize::try_from(STEP).unwrap_or(usize::MAX))
                .fold(Load::steady(0), |load, at| load.then(at, milli * (900 + rng.below(201)) / 1_000))
        });
        let loads: Vec<Load> = loads.collect();
        let lease = self.lease.0 / SECOND;
        let mut scenario = named::fleet(&mut rng, self.rate, self.burst, lease, self.length.0, loads);
        scenario.config.lease = self.lease;
        scenario.patience = self.patience.0;
        // Who gets little of a small limit isn't lost.
        scenario.served_within = u64::MAX / 2;
        scenario
    }
}

/// The wait that `percent` of 100 tokens don't exceed, in milliseconds; nothing where nothing was admitted.
pub fn percentile(waits: &BTreeMap<u64, u64>, percent: u64) -> Option<u64> {
    let all: u128 = waits.values().map(|tokens| u128::from(*tokens)).sum();
    let wanted = (all * u128::from(percent)).div_ceil(100).max(1);
    let mut seen = 0;
    waits.iter().find_map(|(wait, tokens)| {
        seen += u128::from(*tokens);
        (seen >= wanted).then_some(*wait)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> Bench {
        Bench {
            rate: Rate::per_second(100),
            burst: 20,
            lease: Span::from_secs(15),
            workers: 10,
            demand_milli: 120_000,
            skew_ppm: Some(800_000),
            length: Span::from_secs(60),
            patience: Span::from_secs(2),
            seed: 1,
        }
    }

    #[test]
    fn a_load_above_the_limit_uses_it_and_waits_and_one_below_doesnt_wait() {
        let mut heard = Vec::new();
        let over = bench().run(&mut |percent| heard.push(percent)).unwrap();
        assert!(over.violation.is_none(), "{:?}", over.violation);
        assert!(over.peak_over_bound_ppm <= 1_000_000, "{}", over.peak_over_bound_ppm);
        assert!(over.figures.utilization_ppm > 900_000, "{}", over.figures.utilization_ppm);
        assert!(over.figures.refused > 0 && percentile(&over.figures.waits, 50) > Some(0));
        assert!(heard.is_sorted() && heard.last() == Some(&100) && heard.len() <= 101, "{heard:?}");
        let under = Bench { demand_milli: 20_000, skew_ppm: None, ..bench() }.run(&mut |_| {}).unwrap();
        assert_eq!((under.figures.refused, percentile(&under.figures.waits, 50)), (0, Some(0)));
        let again = Bench { demand_milli: 20_000, skew_ppm: None, ..bench() }.run(&mut |_| {}).unwrap();
        assert_eq!(under.figures.waits, again.figures.waits, "the same seed gives the same run");
    }

    #[test]
    fn a_limit_that_grants_next_to_nothing_is_no_violation() {
        let day = Rate::new(5, Span::from_secs(86_400));
        let small = Bench { rate: day, burst: 5, length: Span::from_secs(300), ..bench() };
        let outcome = small.run(&mut |_| {}).unwrap();
        assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
        assert_eq!(outcome.figures.admitted, 5);
    }

    #[test]
    fn every_field_out_of_range_is_named() {
        let wrong = Bench {
            workers: 0,
            demand_milli: u64::MAX,
            skew_ppm: Some(PPM + 1),
            length: Span::ZERO,
            patience: Span::from_secs(601),
            ..bench()
        };
        let fields: Vec<_> =
            wrong.run(&mut |_| {}).unwrap_err().into_iter().map(|wrong| wrong.field).collect();
        assert_eq!(fields, ["workers", "demand", "skew", "for", "patience"]);
        let long = Bench { workers: 500, length: Span::from_secs(73), ..bench() };
        assert_eq!(long.check().unwrap_err()[0].problem, "allowed: up to 72s with 500 workers");
    }

    #[test]
    fn percentiles_are_those_of_tokens() {
        let waits = BTreeMap::from([(0, 98), (7, 1), (50, 1)]);
        assert_eq!([50, 98, 99, 100].map(|percent| percentile(&waits, percent)), [0, 0, 7, 50].map(Some));
        assert_eq!(percentile(&BTreeMap::new(), 50), None);
    }
}
