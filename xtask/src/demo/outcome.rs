//! The outcome of a demo: its figures, and what they must reach.

use serde::Serialize;

use crate::fleet::LEASE;
use crate::fleet::checklist::{Check, above, at_least, at_most, count};

/// A lease counts for this much longer than it lasts, so that a fast clock can't outlive it, plus the margin.
const LEASE_DRIFT: f64 = 1.01;
const MARGIN_SECONDS: f64 = 1.0;
const HEARTBEAT_SECONDS: f64 = 1.0;
const UTILIZATION_MIN: f64 = 0.90;
const BASELINE_PEAK_MIN: f64 = 2.0;
const RAMP_ERROR_MAX: f64 = 0.10;
const HEARTBEAT_GAP_MAX: f64 = 3.0;

/// The figures. What wasn't measured, since an option or the length of the run leaves it out, is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Worker processes.
    pub workers: u32,
    /// Calls a second at the beginning.
    pub rate: u32,
    /// Calls a second at the end.
    pub rate_max: u32,
    /// Calls at once.
    pub burst: u32,
    /// Calls of the batch.
    pub calls: u64,
    /// Calls that were answered.
    pub completed: u64,
    /// Calls that got a 429.
    pub rejected_by_downstream: u64,
    /// See [`crate::fleet::metrics::peak_over_bound`].
    pub peak_over_bound: Option<f64>,
    /// See [`crate::fleet::metrics::utilization`].
    pub utilization: Option<f64>,
    /// Each worker on its own.
    pub baseline: Baseline,
    /// How the ramp was followed.
    pub ramp: RampFigures,
    /// After the kill of a worker.
    pub killed_worker: KilledWorker,
    /// After the kill of the coordinator host.
    pub coordinator_kill: CoordinatorKill,
}

/// The run without tollgate.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Baseline {
    /// Calls that got a 429.
    pub rejected_by_downstream: Option<u64>,
    /// By the same judge.
    pub peak_over_bound: Option<f64>,
}

/// The ramp.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RampFigures {
    /// See [`crate::fleet::metrics::ramp_max_error`].
    pub max_error: Option<f64>,
}

/// The kill of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KilledWorker {
    /// See [`crate::fleet::metrics::reclaim_seconds`].
    pub reclaim_seconds: Option<f64>,
}

/// The kill of the coordinator host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CoordinatorKill {
    /// See [`crate::fleet::metrics::zero_grant_seconds`].
    pub zero_grant_seconds: Option<f64>,
    /// See [`crate::fleet::metrics::heartbeat_gap_seconds`].
    pub heartbeat_gap_seconds: Option<f64>,
}

/// What was part of the run, so that a missing figure is a failure and not an omission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// The run without tollgate.
    pub baseline: bool,
    /// The ramp, long enough for a window.
    pub ramp: bool,
    /// The kill of a worker.
    pub kill_worker: bool,
    /// The kill of the coordinator host.
    pub kill_host: bool,
}

impl Outcome {
    /// What must hold on any machine, however slow or busy.
    pub fn promises(&self) -> Vec<Check> {
        vec![
            count("calls completed", self.completed, self.calls),
            count("rejected by the downstream (429)", self.rejected_by_downstream, 0),
            at_most("peak over bound, all intervals", self.peak_over_bound, 1.0, 4, ""),
        ]
    }

    /// Everything that must be reached: the promises, and times on a machine that is not busy with other things.
    pub fn checks(&self, parts: Parts) -> Vec<Check> {
        let baseline = &self.baseline;
        let reclaim_max = LEASE.as_secs_f64() * LEASE_DRIFT + MARGIN_SECONDS + HEARTBEAT_SECONDS;
        let mut checks = self.promises();
        checks.push(at_least("utilization, kills included", self.utilization, UTILIZATION_MIN));
        if parts.baseline {
            checks.push(above(
                "without tollgate: peak over bound",
                baseline.peak_over_bound,
                BASELINE_PEAK_MIN,
            ));
        }
        if parts.ramp {
            checks.push(at_most(
                "ramp: largest error, 3 s windows",
                self.ramp.max_error,
                RAMP_ERROR_MAX,
                3,
                "",
            ));
        }
        if parts.kill_worker {
            let reclaim = self.killed_worker.reclaim_seconds;
            checks.push(at_most("worker killed: share back after", reclaim, reclaim_max, 2, " s"));
        }
        if parts.kill_host {
            let kill = &self.coordinator_kill;
            checks.push(at_most("host killed: time without grants", kill.zero_grant_seconds, 0.0, 2, " s"));
            let gap = kill.heartbeat_gap_seconds;
            checks.push(at_most("host killed: time without heartbeats", gap, HEARTBEAT_GAP_MAX, 2, " s"));
        }
        checks
    }

    /// The figures with four digits after the point.
    pub fn rounded(mut self) -> Self {
        let figures = [
            &mut self.peak_over_bound,
            &mut self.utilization,
            &mut self.baseline.peak_over_bound,
            &mut self.ramp.max_error,
            &mut self.killed_worker.reclaim_seconds,
            &mut self.coordinator_kill.zero_grant_seconds,
            &mut self.coordinator_kill.heartbeat_gap_seconds,
        ];
        for figure in figures.into_iter().flatten() {
            // Never rounded to the good side of one.
            let exceeded = *figure > 1.0;
            *figure = (*figure * 1e4).round() / 1e4;
            if exceeded && *figure <= 1.0 {
                *figure = 1.0001;
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::checklist::table;

    const ALL: Parts = Parts { baseline: true, ramp: true, kill_worker: true, kill_host: true };

    fn good() -> Outcome {
        Outcome {
            workers: 5,
            rate: 50,
            rate_max: 100,
            burst: 16,
            calls: 6_000,
            completed: 6_000,
            rejected_by_downstream: 0,
            peak_over_bound: Some(0.98),
            utilization: Some(0.95),
            baseline: Baseline { rejected_by_downstream: Some(700), peak_over_bound: Some(4.0) },
            ramp: RampFigures { max_error: Some(0.05) },
            killed_worker: KilledWorker { reclaim_seconds: Some(9.5) },
            coordinator_kill: CoordinatorKill {
                zero_grant_seconds: Some(0.0),
                heartbeat_gap_seconds: Some(1.4),
            },
        }
    }

    fn failed(outcome: &Outcome) -> Vec<&'static str> {
        outcome.checks(ALL).into_iter().filter(|check| !check.reached).map(|check| check.name).collect()
    }

    #[test]
    fn each_figure_that_is_not_reached_or_not_seen_fails_by_itself() {
        assert_eq!(failed(&good()), [""; 0]);
        assert_eq!(failed(&Outcome { completed: 5_999, ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { rejected_by_downstream: 1, ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { peak_over_bound: Some(1.000_001), ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { peak_over_bound: Some(1.000_001), ..good() }.rounded()).len(), 1);
        assert_eq!(failed(&Outcome { utilization: Some(0.89), ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { baseline: Baseline::default(), ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { ramp: RampFigures { max_error: Some(0.11) }, ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { killed_worker: KilledWorker::default(), ..good() }).len(), 1);
        assert_eq!(failed(&Outcome { coordinator_kill: CoordinatorKill::default(), ..good() }).len(), 2);
    }

    #[test]
    fn the_json_has_the_promised_names_in_the_promised_order() {
        let json = serde_json::to_string(&good()).unwrap();
        let names = "workers rate rate_max burst calls completed rejected_by_downstream peak_over_bound utilization \
                     baseline rejected_by_downstream peak_over_bound ramp max_error killed_worker reclaim_seconds \
                     coordinator_kill zero_grant_seconds heartbeat_gap_seconds";
        let mut found = json.split('"').skip(1).step_by(2);
        for name in names.split_whitespace() {
            assert_eq!(found.next(), Some(name));
        }
        assert_eq!(found.next(), None);
    }

    #[test]
    fn the_table_shows_measured_and_wanted_side_by_side() {
        let text = table(&Outcome { completed: 5_999, ..good() }.checks(ALL));
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap().to_owned();
        assert!(
            line("calls completed").ends_with("FAILED") && line("calls completed").contains("5999  6000")
        );
        assert!(line("share back").contains("9.50 s  at most 10.08 s") && line("share back").ends_with("ok"));
    }
}
