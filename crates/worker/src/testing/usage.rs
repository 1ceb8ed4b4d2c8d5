//! What was charged.

use crate::error::Reason;
use crate::permit::Outcome;
use crate::state::{Counters, LimitState};
use std::time::Duration;

/// What became of one limit, over all gates of a [`TestGroup`](super::TestGroup) since it began.
///
/// A limit that doesn't exist, and a cost that is above the burst, are errors of the question and count as nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Permits handed out by gates.
    pub granted: u64,
    /// Tokens charged for them, what was settled included.
    pub charged: u64,
    /// Tokens that were used and not charged, since the debt was at its bound.
    pub beyond: u64,
    /// Refusals, by reason; reasons that did not occur are left out.
    pub refused: Vec<(Reason, u64)>,
    /// Permits without a charge that shadow mode handed out, by what it would have said: see
    /// [`Counters::shadow_refused`](crate::state::Counters::shadow_refused).
    pub shadow_refused: Vec<(&'static str, u64)>,
    /// The tokens that those would have cost.
    pub shadow_tokens: u64,
    /// Permits without a charge since the coordinator was lost and the limit opens then.
    pub opened: u64,
    /// The tokens that those would have cost.
    pub opened_tokens: u64,
    /// Settled permits, by outcome; outcomes that did not occur are left out.
    pub settled: Vec<(Outcome, u64)>,
    /// Callers that wait now.
    pub waiting: usize,
    /// Tokens that they wait for.
    pub waiting_tokens: u64,
    /// Permits that were waited for.
    pub waited: u64,
    /// How long for, in total.
    pub waited_for: Duration,
    /// Callers that waited and went without: refused, out of time, or gone.
    pub gave_up: u64,
    /// Tokens that the coordinator knows to be used: those of gates from the next heartbeat on, those of strict permits when
    /// they are reported.
    pub reported: u64,
    /// Strict permits that wait or are out.
    pub strict_open: usize,
}

impl Usage {
    /// How often there was no permit for this reason.
    pub fn refused_for(&self, reason: Reason) -> u64 {
        self.refused.iter().filter(|(other, _)| *other == reason).map(|(_, count)| count).sum()
    }

    /// How often there was no permit, for whatever reason.
    pub fn refusals(&self) -> u64 {
        self.refused.iter().map(|(_, count)| count).sum()
    }

    /// How many permits were settled with this outcome.
    pub fn settled_as(&self, outcome: Outcome) -> u64 {
        self.settled.iter().filter(|(other, _)| *other == outcome).map(|(_, count)| count).sum()
    }

    pub(super) fn add(&mut self, limit: LimitState) {
        let Counters {
            granted,
            charged,
            beyond,
            refused,
            shadow_refused,
            shadow_tokens,
            opened,
            opened_tokens,
            waited,
            waited_for,
            gave_up,
            settled,
        } = limit.counters;
        self.shadow_tokens += shadow_tokens;
        self.opened += opened;
        self.opened_tokens += opened_tokens;
        add(&mut self.shadow_refused, shadow_refused);
        self.beyond += beyond;
        self.granted += granted;
        self.charged += charged;
        self.waited += waited;
        self.waited_for += waited_for;
        self.gave_up += gave_up;
        add(&mut self.refused, refused);
        add(&mut self.settled, settled);
        self.waiting += limit.waiting.0;
        self.waiting_tokens += limit.waiting.1;
    }
}

/// Adds counts to counts, in the order of their first occurrence.
fn add<K: PartialEq>(sums: &mut Vec<(K, u64)>, counts: Vec<(K, u64)>) {
    for (key, count) in counts {
        match sums.iter_mut().find(|(other, _)| *other == key) {
            Some((_, sum)) => *sum += count,
            None => sums.push((key, count)),
        }
    }
}
