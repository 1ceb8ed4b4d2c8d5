//! What a gate looks like from outside.

use crate::error::{Reason, TransportError};
use crate::limit::Cell;
use crate::permit::Outcome;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_core::bucket::{Level, Now};
use tollgate_core::client::ClientCell;
use tollgate_core::units::{Amount, Share};

/// A gate at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GateState {
    /// The group.
    pub group: String,
    /// The worker's name for people.
    pub worker: String,
    /// This start of the process, as 32 hexadecimal digits.
    pub incarnation: String,
    /// Whether the coordinator answers.
    pub coordinator: Coordinator,
    /// For how long that has been so.
    pub coordinator_since: Duration,
    /// How long the last answer of the coordinator took, from when its request was first sent.
    pub round_trip: Option<Duration>,
    /// All limits, in the order of their first use.
    pub limits: Vec<LimitState>,
}

/// Whether the coordinator answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Coordinator {
    /// It has not answered yet.
    #[default]
    Starting,
    /// It answered the last message.
    Reachable,
    /// It has not answered the last messages; leases run on until they end.
    Unreachable(TransportError),
    /// It answers, but has no room for this worker.
    GroupFull,
    /// The gate was shut down.
    Stopped,
}

/// One limit of a gate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitState {
    /// Its name.
    pub limit: String,
    /// Which of its meters this is.
    pub meter: String,
    /// What the lease allows.
    pub condition: Condition,
    /// For how long work has gone on without the coordinator although the lease has ended; only while it is [`Condition::Held`] or
    /// [`Condition::Opened`].
    pub alone_for: Option<Duration>,
    /// Whether it refuses nothing, and counts what it would refuse.
    pub shadow: bool,
    /// The part of the limit's rate that this process mints.
    pub share: Share,
    /// The most that this process may hold.
    pub cap: Amount,
    /// Tokens that are there now; negative for debt.
    pub level: i64,
    /// The limit's burst when the coordinator last answered.
    pub burst: Option<u64>,
    /// Since the lease was asked for.
    pub lease_age: Option<Duration>,
    /// Until the lease ends.
    pub expires_in: Option<Duration>,
    /// Callers that wait, and their tokens.
    pub waiting: (usize, u64),
    /// What happened so far.
    pub counters: Counters,
}

/// What a lease allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// No answer yet.
    #[default]
    Starting,
    /// There is a lease.
    Open,
    /// The coordinator only confirms what is held.
    Recovering,
    /// An operator has paused the limit: everything is refused.
    Paused,
    /// The lease has ended and the coordinator is lost: work goes on at a part of the last share, as the operator has said. The
    /// limit may be broken.
    Held,
    /// The lease has ended and the coordinator is lost: everything is let through, as the operator has said.
    Opened,
    /// The lease has ended: everything is refused.
    Closed,
    /// The coordinator knows no such limit.
    Unknown,
}

impl std::fmt::Display for Condition {
    /// In words for people, with what to do about it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Condition::Starting => {
                "no answer yet; if it stays so, is `tollgate serve` running and Temporal reachable from here?"
            }
            Condition::Open => "open; `tollgate explain` says who holds how much",
            Condition::Recovering => {
                "the coordinator is recovering: what is held goes on; wait, `tollgate status` says until when"
            }
            Condition::Held => {
                "the coordinator is lost: goes on at a part of its last share; see that `tollgate serve` runs and that Temporal is \
                 reachable from here"
            }
            Condition::Opened => {
                "the coordinator is lost: lets everything through; see that `tollgate serve` runs and that Temporal is reachable \
                 from here"
            }
            Condition::Paused => "paused by an operator; `tollgate limit resume` ends that",
            Condition::Closed => {
                "the lease has ended: see that `tollgate serve` runs and that Temporal is reachable from here"
            }
            Condition::Unknown => {
                "the group has no such limit; set it with `tollgate limit set`, or correct the name"
            }
        })
    }
}

/// Counts since the gate was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Permits handed out.
    pub granted: u64,
    /// Tokens charged, refunds deducted and overdrafts included.
    pub charged: u64,
    /// Tokens that were used and not charged, since the debt was at its bound.
    pub beyond: u64,
    /// Refusals, by reason; reasons that did not occur are left out.
    pub refused: Vec<(Reason, u64)>,
    /// Permits without a charge that a limit in shadow mode handed out instead of refusing them or having them wait, by what it would
    /// have said: [`Reason::as_str`], `cost_above_burst` or `unknown_limit`; what did not occur is left out.
    pub shadow_refused: Vec<(&'static str, u64)>,
    /// The tokens that those would have cost.
    pub shadow_tokens: u64,
    /// Permits without a charge that were handed out since the coordinator was lost and the limit opens then.
    pub opened: u64,
    /// The tokens that those would have cost.
    pub opened_tokens: u64,
    /// Permits that were waited for.
    pub waited: u64,
    /// How long for, in total.
    pub waited_for: Duration,
    /// Callers that waited and went without: refused, out of time, or gone.
    pub gave_up: u64,
    /// Settled permits, by outcome; outcomes that did not occur are left out.
    pub settled: Vec<(Outcome, u64)>,
}

/// How a cell is, given its part of the client.
pub(crate) fn condition<L: Level>(cell: &ClientCell<L>, now: Now) -> Condition {
    let alive = cell.mint().is_alive(now);
    if cell.is_unknown() {
        Condition::Unknown
    } else if cell.conduct().paused {
        Condition::Paused
    } else if cell.mint().is_alone() {
        Condition::Held
    } else if cell.is_recovering() {
        Condition::Recovering
    } else if alive {
        Condition::Open
    } else if cell.burst().is_some() {
        Condition::Closed
    } else {
        Condition::Starting
    }
}

pub(crate) fn limit_state<L: Level>(cell: &Cell, leased: &ClientCell<L>, now: Now) -> LimitState {
    let held = leased.mint().held().filter(|_| leased.mint().is_alive(now));
    let micros = |span: tollgate_core::units::Span| Duration::from_micros(span.0);
    let (waiting, facts) = {
        let queue = cell.queue();
        ((queue.len(), queue.cost()), queue.facts)
    };
    let condition = if facts.opened { Condition::Opened } else { condition(leased, now) };
    LimitState {
        limit: cell.limit.to_string(),
        meter: cell.meter.to_string(),
        condition,
        alone_for: facts.alone_since.map(|since| micros(now.boot.since(since))),
        shadow: facts.shadow,
        share: held.map_or(Share::ZERO, |held| held.share),
        cap: held.map_or(Amount::ZERO, |held| held.cap),
        level: cell.level.level(),
        burst: leased.burst(),
        lease_age: held.map(|held| micros(now.boot.since(held.sent.boot))),
        expires_in: held.map(|held| micros(held.expires.since(now.boot))),
        waiting,
        counters: counters(cell, leased.mint().used(&*cell.level)),
    }
}

fn counters(cell: &Cell, charged: u64) -> Counters {
    let counts = &cell.counts;
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let refused = Reason::ALL.iter().zip(&counts.refused).map(|(reason, count)| (*reason, load(count)));
    let settled = Outcome::ALL.iter().zip(&counts.outcomes).map(|(outcome, count)| (*outcome, load(count)));
    Counters {
        granted: cell.level.granted(),
        charged: charged.saturating_sub(load(&counts.void)),
        beyond: load(&counts.beyond),
        refused: refused.filter(|(_, count)| *count > 0).collect(),
        shadow_refused: counts.uncharged.refused(),
        shadow_tokens: load(&counts.uncharged.shadow_tokens),
        opened: load(&counts.uncharged.opened),
        opened_tokens: load(&counts.uncharged.opened_tokens),
        waited: load(&counts.waited),
        waited_for: Duration::from_micros(load(&counts.waited_us)),
        gave_up: load(&counts.gave_up),
        settled: settled.filter(|(_, count)| *count > 0).collect(),
    }
}
