//! What is done to the fleet and when: drawn from a seed, so that the same seed does the same.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tollgate_sim::rng::Rng;

use crate::fleet::LEASE;

/// The fleet runs undisturbed for this long at first.
const QUIET_FIRST_MS: u64 = 8_000;
/// Nothing new begins this close to the end, so that everything that was begun is also healed in time.
const QUIET_LAST_MS: u64 = 3_000;
/// A coordinator that lost its memory grants nothing new for the longest lease that there can be and its allowances.
const RECOVERY_MS: u64 = 125_000;
/// Between the end of one recovery and the next loss of memory.
const BETWEEN_LOSSES_MS: u64 = 135_000;

/// What happens to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// SIGTERM.
    Stop,
    /// It is started again; a process that is still ending is waited for.
    Start,
}

/// What an operator changes about the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A new rate.
    Set {
        /// Calls a second.
        rate: u32,
        /// How long it takes.
        ramp_ms: u64,
    },
    /// The ramp stops where it is.
    Abort,
}

/// What happens to a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The coordinator is reset to the beginning of its run.
    ResetFirst,
    /// The coordinator is reset to its last workflow task.
    ResetLast,
    /// The coordinator is terminated.
    TerminateCoordinator,
    /// The config workflow is terminated.
    TerminateConfig,
    /// A worker is evicted.
    Evict(u32),
}

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// To a worker, by its number from one.
    Worker(u32, Doing),
    /// To a coordinator host, by its number from zero.
    Host(usize, Doing),
    /// To the Temporal server.
    Server(Doing),
    /// To the limit.
    Limit(Change),
    /// To a workflow, from outside.
    Workflow(Blow),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = |doing: Doing| match doing {
            Doing::Kill => "is killed (-9)",
            Doing::Pause => "is paused (SIGSTOP)",
            Doing::Resume => "goes on (SIGCONT)",
            Doing::Stop => "is asked to end (SIGTERM)",
            Doing::Start => "is started again",
        };
        match *self {
            Step::Worker(number, what) => write!(f, "worker {number} {}", doing(what)),
            Step::Host(number, what) => write!(f, "coordinator host {} {}", number + 1, doing(what)),
            Step::Server(what) => write!(f, "the Temporal server {}", doing(what)),
            Step::Limit(Change::Set { rate: 0, ramp_ms: 0 }) => write!(f, "the limit is paused"),
            Step::Limit(Change::Set { rate, ramp_ms: 0 }) => write!(f, "the limit goes to {rate}/s at once"),
            Step::Limit(Change::Set { rate, ramp_ms }) => {
                write!(
                    f,
                    "the limit goes to {rate}/s over {:.1} s",
                    Duration::from_millis(ramp_ms).as_secs_f64()
                )
            }
            Step::Limit(Change::Abort) => write!(f, "the ramp is aborted"),
            Step::Workflow(Blow::ResetFirst) => {
                write!(f, "the coordinator is reset to the beginning of its run")
            }
            Step::Workflow(Blow::ResetLast) => write!(f, "the coordinator is reset to its last task"),
            Step::Workflow(Blow::TerminateCoordinator) => write!(f, "the coordinator is terminated"),
            Step::Workflow(Blow::TerminateConfig) => write!(f, "the config workflow is terminated"),
            Step::Workflow(Blow::Evict(number)) => write!(f, "worker {number} is evicted"),
        }
    }
}

/// A step with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Since the start of the batch.
    pub at: Duration,
    /// The fault that it is; nothing for what heals one.
    pub fault: Option<&'static str>,
    /// What is done.
    pub step: Step,
}

/// What a schedule is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cast {
    /// Worker processes.
    pub workers: u32,
    /// Coordinator hosts.
    pub hosts: usize,
    /// Calls a second at the beginning and at the end.
    pub rate: u32,
}

/// Everything that is done in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of time.
    pub events: Vec<Event>,
    /// When the last fault is healed.
    pub length: Duration,
    cast: Cast,
}

impl Schedule {
    /// A schedule of this length that is determined by the seed.
    pub fn random(seed: u64, length: Duration, cast: Cast) -> Schedule {
        let end_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX).saturating_sub(QUIET_LAST_MS);
        // One source of chance for each kind: more of one changes nothing about the others.
        let draft =
            |salt: u64| Draft { rng: Rng::new(seed.wrapping_mul(31) + salt), events: Vec::new(), end_ms };
        let (mut workers, mut platform, mut limit, mut blows) = (draft(1), draft(2), draft(3), draft(4));
        blows.blows();
        workers.workers(cast, &blows.recoveries());
        platform.platform(cast);
        limit.limit(cast);
        let mut events = workers.events;
        events.extend(platform.events);
        events.extend(limit.events);
        events.extend(blows.events);
        Schedule::new(events, length, cast)
    }

    /// A fixed one in about a minute: one of each kind that costs no recovery.
    pub fn short(cast: Cast) -> Schedule {
        let mut draft = Draft { rng: Rng::new(0), events: Vec::new(), end_ms: u64::MAX };
        let (half, more) = (cast.rate / 2, cast.rate * 3 / 2);
        let lease = ms(LEASE);
        let set = |rate, ramp_ms| Step::Limit(Change::Set { rate, ramp_ms });
        draft.both("worker_kill", Step::Worker(1, Doing::Kill), 8_000, Step::Worker(1, Doing::Start), 3_000);
        draft.both(
            "worker_pause",
            Step::Worker(2, Doing::Pause),
            12_000,
            Step::Worker(2, Doing::Resume),
            lease + 3_000,
        );
        draft.one("ramp_up", set(more, 5_000), 15_000);
        draft.both("host_kill", Step::Host(0, Doing::Kill), 23_000, Step::Host(0, Doing::Start), 2_000);
        draft.both("server_kill", Step::Server(Doing::Kill), 30_000, Step::Server(Doing::Start), 1_000);
        draft.one("cut", set(half, 0), 40_000);
        draft.evict(3, 43_000);
        draft.one("config_terminate", Step::Workflow(Blow::TerminateConfig), 47_000);
        draft.both("limit_pause", set(0, 0), 52_000, set(cast.rate, 3_000), 4_000);
        draft.both("worker_stop", Step::Worker(4, Doing::Stop), 57_000, Step::Worker(4, Doing::Start), 3_000);
        Schedule::new(draft.events, Duration::from_secs(64), cast)
    }

    fn new(mut events: Vec<Event>, length: Duration, cast: Cast) -> Schedule {
        events.sort_by_key(|event| event.at);
        Schedule { events, length, cast }
    }

    /// How many faults of each kind there are.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for kind in self.events.iter().filter_map(|event| event.fault) {
            *counts.entry(kind).or_default() += 1;
        }
        counts
    }

    /// The highest rate that is set.
    pub fn rate_max(&self) -> u32 {
        let set = self.events.iter().filter_map(|event| match event.step {
            Step::Limit(Change::Set { rate, .. }) => Some(rate),
            _ => None,
        });
        set.fold(self.cast.rate, u32::max)
    }

    /// Calls that the limit allows in the run if every change is in force when it is planned, without the burst.
    pub fn calls(&self) -> u64 {
        let mut line = vec![(0_u64, u64::from(self.cast.rate) * 1_000)];
        for event in &self.events {
            let Step::Limit(change) = event.step else { continue };
            let at = ms(event.at);
            let now = value(&line, at);
            line.retain(|(time, _)| *time <= at);
            line.push((at, now));
            if let Change::Set { rate, ramp_ms } = change {
                line.push((at + ramp_ms, u64::from(rate) * 1_000));
            }
        }
        let end = ms(self.length);
        let last = value(&line, end);
        line.retain(|(time, _)| *time <= end);
        line.push((end, last));
        let area: u64 =
            line.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2).sum();
        area / 1_000_000
    }
}

/// The value of a line in thousandths at a time in milliseconds.
fn value(line: &[(u64, u64)], at: u64) -> u64 {
    let next = line.partition_point(|(time, _)| *time <= at);
    let (from, low) = next.checked_sub(1).and_then(|last| line.get(last)).copied().unwrap_or_default();
    let Some((to, high)) = line.get(next).copied() else { return low };
    (low * (to - at) + high * (at - from)) / (to - from).max(1)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Draft {
    rng: Rng,
    events: Vec<Event>,
    /// Everything is healed by then.
    end_ms: u64,
}

impl Draft {
    fn one(&mut self, fault: &'static str, step: Step, at_ms: u64) {
        self.events.push(Event { at: Duration::from_millis(at_ms), fault: Some(fault), step });
    }

    /// A fault and what heals it.
    fn both(&mut self, fault: &'static str, step: Step, at_ms: u64, heal: Step, after_ms: u64) {
        self.one(fault, step, at_ms);
        self.heal(heal, at_ms + after_ms);
    }

    fn heal(&mut self, step: Step, at_ms: u64) {
        self.events.push(Event { at: Duration::from_millis(at_ms), fault: None, step });
    }

    fn evict(&mut self, number: u32, at_ms: u64) {
        self.one("worker_evict", Step::Workflow(Blow::Evict(number)), at_ms);
        self.heal(Step::Worker(number, Doing::Stop), at_ms + 4_000);
        self.heal(Step::Worker(number, Doing::Start), at_ms + 6_000);
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.rng.below(to - from + 1)
    }

    /// One of several with their weights.
    fn pick<T: Copy>(&mut self, of: &[(u64, T)]) -> Option<T> {
        let mut drawn = self.rng.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, what) in of {
            if drawn < *weight {
                return Some(*what);
            }
            drawn -= weight;
        }
        None
    }

    /// When the coordinator recovers.
    fn recoveries(&self) -> Vec<(u64, u64)> {
        let losses = self
            .events
            .iter()
            .filter(|event| matches!(event.fault, Some("coordinator_reset" | "coordinator_terminate")));
        losses.map(|event| (ms(event.at), ms(event.at) + RECOVERY_MS)).collect()
    }

    /// Kills, pauses, stops and evictions of workers: up to two of five at a time. What a dead worker holds is lost for one
    /// lease, so they are rare enough for the fleet to be used, and frequent in recoveries, where only the bound matters.
    fn workers(&mut self, cast: Cast, recoveries: &[(u64, u64)]) {
        let lease = ms(LEASE);
        let together = usize::try_from((cast.workers * 2 / 5).max(1)).unwrap_or(1);
        let mut busy: BTreeMap<u32, u64> = BTreeMap::new();
        let mut at = QUIET_FIRST_MS;
        loop {
            let recovers = recoveries.iter().any(|(from, to)| (*from..*to).contains(&at));
            at += if recovers { self.between(5_000, 12_000) } else { self.between(16_000, 30_000) };
            busy.retain(|_, until| *until > at);
            let kinds = [
                (4, "worker_kill"),
                (3, "worker_pause"),
                (2, "worker_pause_short"),
                (2, "worker_stop"),
                (1, "worker_evict"),
            ];
            let number = u32::try_from(self.between(1, cast.workers.into())).unwrap_or(1);
            let Some(kind) = self.pick(&kinds) else { return };
            let length = match kind {
                "worker_kill" => self.between(200, 8_000),
                "worker_pause" => self.between(lease + 2_000, lease + 8_000),
                "worker_pause_short" => self.between(1_000, 5_000),
                "worker_stop" => self.between(3_000, 8_000),
                _ => 6_000,
            };
            if at + length > self.end_ms {
                return;
            }
            if busy.len() >= together || busy.contains_key(&number) {
                continue;
            }
            // What was started again needs a moment until it works.
            busy.insert(number, at + length + 4_000);
            let (begin, end) = match kind {
                "worker_kill" => (Doing::Kill, Doing::Start),
                "worker_stop" => (Doing::Stop, Doing::Start),
                "worker_evict" => {
                    self.evict(number, at);
                    continue;
                }
                _ => (Doing::Pause, Doing::Resume),
            };
            self.both(kind, Step::Worker(number, begin), at, Step::Worker(number, end), length);
        }
    }

    /// Faults of coordinator hosts and the server, one after the other.
    fn platform(&mut self, cast: Cast) {
        let mut at = QUIET_FIRST_MS;
        loop {
            at += self.between(9_000, 16_000);
            let host = usize::try_from(self.rng.below(cast.hosts as u64)).unwrap_or(0);
            let kinds = [
                (4, "host_kill"),
                (2, "host_pause"),
                (2, "host_stop"),
                (1, "all_hosts_kill"),
                (2, "server_kill"),
                (1, "server_pause"),
            ];
            let Some(kind) = self.pick(&kinds) else { return };
            let length = match kind {
                "host_kill" => self.between(200, 6_000),
                "host_pause" => self.between(3_000, 12_000),
                "host_stop" => self.between(2_500, 6_000),
                "all_hosts_kill" => self.between(1_000, 14_000),
                "server_kill" => self.between(300, 4_000),
                _ => self.between(2_000, 8_000),
            };
            if at + length > self.end_ms {
                return;
            }
            match kind {
                "host_kill" => {
                    self.both(kind, Step::Host(host, Doing::Kill), at, Step::Host(host, Doing::Start), length)
                }
                "host_pause" => self.both(
                    kind,
                    Step::Host(host, Doing::Pause),
                    at,
                    Step::Host(host, Doing::Resume),
                    length,
                ),
                "host_stop" => {
                    self.both(kind, Step::Host(host, Doing::Stop), at, Step::Host(host, Doing::Start), length)
                }
                "all_hosts_kill" => {
                    self.one(kind, Step::Host(0, Doing::Kill), at);
                    (1..cast.hosts).for_each(|host| self.heal(Step::Host(host, Doing::Kill), at));
                    (0..cast.hosts).for_each(|host| self.heal(Step::Host(host, Doing::Start), at + length));
                }
                "server_kill" => {
                    self.both(kind, Step::Server(Doing::Kill), at, Step::Server(Doing::Start), length)
                }
                _ => self.both(kind, Step::Server(Doing::Pause), at, Step::Server(Doing::Resume), length),
            }
            at += length;
        }
    }

    /// Changes of the limit, one after the other.
    fn limit(&mut self, cast: Cast) {
        let levels = [cast.rate / 2, cast.rate * 3 / 4, cast.rate, cast.rate * 3 / 2].map(|rate| rate.max(1));
        let mut rate = cast.rate;
        let mut at = QUIET_FIRST_MS;
        loop {
            at += self.between(7_000, 14_000);
            let other = |me: &mut Draft, than: u32| loop {
                let level = levels[usize::try_from(me.rng.below(4)).unwrap_or(0)];
                if level != than {
                    return level;
                }
            };
            let to = other(self, rate);
            let last = other(self, to);
            let Some(kind) = self.pick(&[
                (4, "ramp"),
                (3, "at_once"),
                (2, "limit_pause"),
                (1, "ramp_replaced"),
                (1, "ramp_aborted"),
            ]) else {
                return;
            };
            let length = match kind {
                "ramp" => self.between(3_000, 8_000),
                "at_once" => 0,
                "limit_pause" => self.between(3_000, 8_000) + 2_000,
                _ => 10_000,
            };
            if at + length > self.end_ms {
                return;
            }
            let set = |rate, ramp_ms| Step::Limit(Change::Set { rate, ramp_ms });
            match kind {
                "ramp" => {
                    self.one(if to > rate { "ramp_up" } else { "ramp_down" }, set(to, length), at);
                    rate = to;
                }
                "at_once" => {
                    self.one(if to > rate { "raise" } else { "cut" }, set(to, 0), at);
                    rate = to;
                }
                "limit_pause" => self.both(kind, set(0, 0), at, set(rate, 2_000), length - 2_000),
                "ramp_replaced" => {
                    self.one(kind, set(to, 8_000), at);
                    self.heal(set(last, 5_000), at + 4_000);
                    rate = last;
                }
                _ => {
                    self.one(kind, set(to, 8_000), at);
                    self.heal(Step::Limit(Change::Abort), at + 4_000);
                    self.heal(set(rate, 2_000), at + 8_000);
                }
            }
            at += length;
        }
    }

    /// What happens to the workflows. A loss of memory is followed by a recovery, so they are far apart.
    fn blows(&mut self) {
        let mut at = self.between(20_000, 30_000);
        while at <= self.end_ms {
            self.one("config_terminate", Step::Workflow(Blow::TerminateConfig), at);
            at += self.between(110_000, 150_000);
        }
        let resets = [Blow::ResetFirst, Blow::ResetLast];
        let mut is_reset = self.rng.chance(1, 2);
        let mut at = self.between(38_000, 48_000);
        while at + RECOVERY_MS <= self.end_ms {
            if is_reset {
                let reset = resets[usize::from(self.rng.chance(1, 2))];
                self.one("coordinator_reset", Step::Workflow(reset), at);
            } else {
                self.one("coordinator_terminate", Step::Workflow(Blow::TerminateCoordinator), at);
            }
            is_reset = !is_reset;
            at += RECOVERY_MS + BETWEEN_LOSSES_MS + self.between(0, 10_000);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAST: Cast = Cast { workers: 5, hosts: 2, rate: 40 };

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    #[test]
    fn the_same_seed_does_the_same_and_another_one_something_else() {
        let one = Schedule::random(7, minutes(3), CAST);
        assert_eq!(one, Schedule::random(7, minutes(3), CAST));
        assert_ne!(one, Schedule::random(8, minutes(3), CAST));
    }

    #[test]
    fn what_is_paused_goes_on_and_what_is_killed_is_started_before_the_end() {
        for seed in 0..200 {
            let schedule = Schedule::random(seed, minutes(5), CAST);
            let mut open: BTreeMap<String, Doing> = BTreeMap::new();
            for event in &schedule.events {
                assert!(event.at <= schedule.length, "seed {seed}: {event:?}");
                let (who, doing) = match event.step {
                    Step::Worker(number, doing) => (format!("worker {number}"), doing),
                    Step::Host(number, doing) => (format!("host {number}"), doing),
                    Step::Server(doing) => ("server".to_owned(), doing),
                    Step::Limit(_) | Step::Workflow(_) => continue,
                };
                let was = open.remove(&who);
                match doing {
                    Doing::Kill | Doing::Pause | Doing::Stop => {
                        assert_eq!(was, None, "seed {seed}: {event:?}");
                        open.insert(who, doing);
                    }
                    Doing::Resume => assert_eq!(was, Some(Doing::Pause), "seed {seed}: {event:?}"),
                    Doing::Start => {
                        assert!(matches!(was, Some(Doing::Kill | Doing::Stop)), "seed {seed}: {event:?}")
                    }
                }
            }
            assert!(open.is_empty(), "seed {seed}: {open:?}");
        }
    }

    #[test]
    fn ten_minutes_have_every_kind_of_fault() {
        let mut kinds = BTreeMap::new();
        for seed in 0..3 {
            kinds.extend(Schedule::random(seed, minutes(10), CAST).faults());
        }
        assert_eq!(kinds.len(), 21, "{kinds:?}");
    }

    #[test]
    fn the_short_one_has_what_a_test_needs() {
        let faults = Schedule::short(CAST).faults();
        for kind in ["worker_kill", "worker_pause", "host_kill", "server_kill", "ramp_up", "cut"] {
            assert_eq!(faults.get(kind), Some(&1), "{kind}");
        }
    }

    #[test]
    fn calls_are_the_area_under_the_planned_rates() {
        let step = |at, change| Event { at: Duration::from_secs(at), fault: None, step: Step::Limit(change) };
        let events = vec![
            step(10, Change::Set { rate: 0, ramp_ms: 0 }),
            step(15, Change::Set { rate: 40, ramp_ms: 10_000 }),
            step(20, Change::Abort),
        ];
        let schedule = Schedule::new(events, Duration::from_secs(30), CAST);
        assert_eq!(schedule.calls(), 400 + 50 + 200);
    }
}
