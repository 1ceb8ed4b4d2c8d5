//! The outcome of a chaos run: its figures, and what they must reach.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Judged;
use crate::fleet::checklist::{Check, at_least, at_most, count};

/// Outside of announced outages.
const UTILIZATION_MIN: f64 = 0.90;
/// A recovery is as long as the longest lease and its allowances, and a fault of a host may come on top.
const RECOVERY_SECONDS_MAX: f64 = 150.0;

/// The figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// What the faults were drawn from; nothing for the fixed run.
    pub seed: Option<u64>,
    /// How long faults went on, in minutes.
    pub minutes: f64,
    /// Worker processes.
    pub workers: u32,
    /// Calls a second at the beginning.
    pub rate: u32,
    /// Calls at once.
    pub burst: u32,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Logs that exceed their bound in some interval: the workers' admissions, the downstream's arrivals.
    pub violations: u64,
    /// Admissions against the largest curve that a live lease may carry, all intervals.
    pub peak_over_bound: Option<f64>,
    /// Arrivals against the same curve with the downstream's burst.
    pub downstream_peak_over_bound: Option<f64>,
    /// Calls that got a 429.
    pub rejected_by_downstream: u64,
    /// Calls of the batch.
    pub calls: u64,
    /// Calls that were answered, by the workers' notes and the workflows.
    pub completed: u64,
    /// Calls that weren't.
    pub lost: u64,
    /// Calls that were answered again, since a worker or server died before that was known.
    pub answered_again: u64,
    /// Admitted against configured while faults went on, outside of announced outages.
    pub utilization: Option<f64>,
    /// The same with outages.
    pub utilization_with_outages: Option<f64>,
    /// Announced outages together, in seconds.
    pub outage_seconds: f64,
    /// The longest one, from the fault until the ledger granted again.
    pub recovery_seconds_max: f64,
    /// Every outage with its length.
    pub outages: Vec<OutageFigures>,
    /// Permits that dead workers held after their leases, or that were out beyond the burst, at the end.
    pub leaked_permits: u64,
    /// Looks at the coordinator by which the limit was gone, or not as it was created.
    pub limit_forgotten: u64,
    /// Workers that ended without being told to.
    pub workers_ended_by_themselves: u64,
    /// Coordinator hosts that did.
    pub hosts_ended_by_themselves: u64,
    /// Commands that never worked.
    pub given_up: u64,
}

/// One outage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutageFigures {
    /// Why.
    pub cause: &'static str,
    /// Seconds since the start of the batch.
    pub at_seconds: f64,
    /// How long.
    pub seconds: f64,
}

impl Outcome {
    /// What must be reached.
    pub fn checks(&self, judged: Judged) -> Vec<Check> {
        let mut checks = vec![
            count("logs over their bound", self.violations, 0),
            at_most("peak over bound, all intervals", self.peak_over_bound, 1.0, 4, ""),
            at_most("the same by the downstream's log", self.downstream_peak_over_bound, 1.0, 4, ""),
            count("rejected by the downstream (429)", self.rejected_by_downstream, 0),
            count("calls completed", self.completed, self.calls),
            count("calls lost", self.lost, 0),
            count("permits leaked at the end", self.leaked_permits, 0),
            count("looks that found the limit forgotten", self.limit_forgotten, 0),
            count("workers that ended by themselves", self.workers_ended_by_themselves, 0),
            count("commands given up", self.given_up, 0),
        ];
        if judged == Judged::Everything {
            // Not a promise: a debug build of the SDK ends the process at assertions that a release build logs.
            checks.push(count("hosts that ended by themselves", self.hosts_ended_by_themselves, 0));
            checks.push(at_least("utilization outside of outages", self.utilization, UTILIZATION_MIN));
            let longest = Some(self.recovery_seconds_max);
            checks.push(at_most("longest outage", longest, RECOVERY_SECONDS_MAX, 1, " s"));
        }
        checks
    }

    /// The figures with four digits after the point.
    pub fn rounded(mut self) -> Self {
        let four = |figure: &mut f64| *figure = (*figure * 1e4).round() / 1e4;
        for peak in [&mut self.peak_over_bound, &mut self.downstream_peak_over_bound].into_iter().flatten() {
            // Never rounded to the good side of one.
            let exceeded = *peak > 1.0;
            four(peak);
            if exceeded && *peak <= 1.0 {
                *peak = 1.0001;
            }
        }
        [&mut self.utilization, &mut self.utilization_with_outages].into_iter().flatten().for_each(four);
        [&mut self.outage_seconds, &mut self.recovery_seconds_max, &mut self.minutes]
            .into_iter()
            .for_each(four);
        for outage in &mut self.outages {
            four(&mut outage.at_seconds);
            four(&mut outage.seconds);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Outcome {
        Outcome {
            peak_over_bound: Some(0.99),
            downstream_peak_over_bound: Some(0.9),
            calls: 10,
            completed: 10,
            utilization: Some(0.95),
            ..Outcome::default()
        }
    }

    fn failed(outcome: &Outcome, judged: Judged) -> usize {
        outcome.checks(judged).iter().filter(|check| !check.reached).count()
    }

    #[test]
    fn each_broken_promise_fails_by_itself() {
        assert_eq!(failed(&good(), Judged::Everything), 0);
        let broken = [
            Outcome { violations: 1, ..good() },
            Outcome { peak_over_bound: None, ..good() },
            Outcome { peak_over_bound: Some(1.000_001), ..good() }.rounded(),
            Outcome { downstream_peak_over_bound: Some(1.1), ..good() },
            Outcome { rejected_by_downstream: 1, ..good() },
            Outcome { completed: 9, ..good() },
            Outcome { lost: 1, ..good() },
            Outcome { leaked_permits: 1, ..good() },
            Outcome { limit_forgotten: 1, ..good() },
            Outcome { workers_ended_by_themselves: 1, ..good() },
            Outcome { given_up: 1, ..good() },
        ];
        for outcome in broken {
            assert_eq!(failed(&outcome, Judged::Promises), 1, "{outcome:?}");
        }
        let slow = Outcome {
            utilization: Some(0.8),
            recovery_seconds_max: 200.0,
            hosts_ended_by_themselves: 1,
            ..good()
        };
        assert_eq!((failed(&slow, Judged::Promises), failed(&slow, Judged::Everything)), (0, 3));
    }
}
