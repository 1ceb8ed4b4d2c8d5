//! What happens when in a run.

use std::time::Duration;

/// How long the ramp takes when there is time for it.
pub const RAMP_LONGEST: Duration = Duration::from_secs(15);
const RAMP_SHORTEST: Duration = Duration::from_secs(5);
/// After this, a process that was killed holds nothing any more: lease, clock drift, margin and a heartbeat. Nothing
/// else is done to the fleet meanwhile, so that each figure has one cause.
pub const SETTLED_AFTER: Duration = Duration::from_millis(10_100);
/// The fleet runs undisturbed for this long at first.
const QUIET_FIRST: Duration = Duration::from_secs(5);
/// What follows the kill of the coordinator host must be seen too.
const QUIET_LAST: Duration = Duration::from_secs(6);
/// By how much a ramp multiplies the rate.
pub const RAMP_FACTOR: u32 = 2;

/// A linear change of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ramp {
    /// When it begins.
    pub at: Duration,
    /// How long it takes.
    pub length: Duration,
}

/// The run, from the start of the batch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Calls of the batch.
    pub calls: u64,
    /// How long it takes if the limit is used up.
    pub length: Duration,
    /// When a worker is killed.
    pub kill_worker: Option<Duration>,
    /// When the limit is doubled.
    pub ramp: Option<Ramp>,
    /// When the coordinator host is killed and restarted.
    pub kill_host: Option<Duration>,
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Calls a second.
    pub rate: u32,
    /// Processes.
    pub workers: u32,
    /// Whether the limit is doubled.
    pub ramp: bool,
}

impl Plan {
    /// The plan for a batch of this many calls.
    pub fn of_calls(calls: u64, wanted: Wanted) -> Self {
        // What is done depends on the length, and the length on what is done: the shortest that has room for the batch.
        let (mut short, mut long) = (1, calls * 1_000 / u64::from(wanted.rate) + 1_000);
        while short < long {
            let middle = short.midpoint(long);
            if Self::of_length(Duration::from_millis(middle), wanted).calls >= calls {
                long = middle;
            } else {
                short = middle + 1;
            }
        }
        Self { calls, ..Self::of_length(Duration::from_millis(long), wanted) }
    }

    /// The plan for a run of this length, with as many calls as the limit allows in it. What there is no time for is left
    /// out.
    pub fn of_length(length: Duration, wanted: Wanted) -> Self {
        let kill_worker = (length / 4).max(QUIET_FIRST);
        let kill_worker =
            (wanted.workers > 1 && kill_worker + SETTLED_AFTER <= length).then_some(kill_worker);
        let settled = kill_worker.map_or(QUIET_FIRST, |at| at + SETTLED_AFTER);

        let ramp_at = (length * 7 / 16).max(settled);
        let ramp_length = (length * 3 / 16).clamp(RAMP_SHORTEST, RAMP_LONGEST);
        let fits = wanted.ramp && ramp_at + ramp_length <= length;
        let ramp = fits.then_some(Ramp { at: ramp_at, length: ramp_length });
        let settled = ramp.map_or(settled, |ramp| ramp.at + ramp.length + SETTLED_AFTER);

        let kill_host = (length * 3 / 4).max(settled);
        let kill_host = (kill_host + QUIET_LAST <= length).then_some(kill_host);
        let mut plan = Self { calls: 0, length, kill_worker, ramp, kill_host };
        plan.calls = plan.allowed(wanted.rate).max(1);
        plan
    }

    /// Calls that the limit allows during the run, without the burst.
    fn allowed(&self, rate: u32) -> u64 {
        let mut milliseconds = self.length.as_millis();
        if let Some(ramp) = self.ramp {
            let more = u128::from(RAMP_FACTOR - 1);
            let after = self.length.saturating_sub(ramp.at + ramp.length);
            milliseconds += more * (ramp.length.as_millis() / 2 + after.as_millis());
        }
        u64::try_from(milliseconds * u128::from(rate) / 1_000).unwrap_or(u64::MAX)
    }

    /// What a full run has and this one has no time for.
    pub fn left_out(&self, wanted: Wanted) -> Vec<&'static str> {
        let parts = [
            (self.kill_worker.is_none() && wanted.workers > 1, "the kill of a worker"),
            (self.ramp.is_none() && wanted.ramp, "the ramp"),
            (self.kill_host.is_none(), "the kill of the coordinator host"),
        ];
        parts.into_iter().filter_map(|(left_out, what)| left_out.then_some(what)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Wanted = Wanted { rate: 50, workers: 5, ramp: true };

    fn seconds(at: Option<Duration>) -> u64 {
        at.unwrap().as_secs()
    }

    #[test]
    fn the_documented_run_has_its_events_at_the_documented_times() {
        let plan = Plan::of_calls(6_000, FULL);
        let ramp = plan.ramp.unwrap();
        assert_eq!((seconds(plan.kill_worker), ramp.at.as_secs(), ramp.length.as_secs()), (20, 35, 15));
        assert_eq!((seconds(plan.kill_host), plan.length.as_secs()), (61, 81));
        assert_eq!(plan.left_out(FULL), [""; 0]);
    }

    #[test]
    fn no_kill_is_within_one_lease_of_the_ramp_whatever_the_length() {
        for length in (1..200).map(Duration::from_secs) {
            for ramp in [false, true] {
                let plan = Plan::of_length(length, Wanted { ramp, ..FULL });
                if let (Some(kill), Some(ramp)) = (plan.kill_worker, plan.ramp) {
                    assert!(kill + SETTLED_AFTER <= ramp.at);
                }
                if let (Some(ramp), Some(kill)) = (plan.ramp, plan.kill_host) {
                    assert!(ramp.at + ramp.length + SETTLED_AFTER <= kill);
                }
                if let (Some(worker), Some(host)) = (plan.kill_worker, plan.kill_host) {
                    assert!(worker + SETTLED_AFTER <= host && host + QUIET_LAST <= length);
                }
            }
        }
    }

    #[test]
    fn a_batch_that_is_too_short_for_an_event_goes_without_it() {
        let plan = Plan::of_calls(100, FULL);
        assert_eq!((plan.calls, plan.kill_worker, plan.ramp, plan.kill_host), (100, None, None, None));
        assert_eq!(plan.left_out(FULL).len(), 3);
        let alone = Wanted { workers: 1, ramp: false, ..FULL };
        assert_eq!(Plan::of_calls(6_000, alone).left_out(alone), [""; 0]);
    }
}
