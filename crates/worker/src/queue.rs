//! Who waits for one limit, in order of arrival, and what the keeper last learned that matters to them.
//!
//! A waiter stays in line until it takes its tokens itself, in the very poll that returns the permit: a waiter that goes
//! away has taken nothing, and nothing is admitted before somebody uses it. Only the first in line may take; a newcomer
//! never passes it, also when its cost is smaller. A waiter that is woken and doesn't come (its future is not polled) is
//! passed over until it does, so that it doesn't block the others.

use crate::error::Reason;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tollgate_core::bucket::{Held, time_to_mint};
use tollgate_core::units::{Amount, BootTime, Share, Span};

/// A waiter that doesn't come within this time after it was woken is passed over.
const PASS_OVER_AFTER: Span = Span::from_millis(100);
/// Come back after this when the coordinator doesn't answer: about a heartbeat.
const RETRY_UNSURE: Span = Span::from_secs(1);
/// An answer of the coordinator takes at least about this long.
const ROUND_TRIP: Span = Span::from_millis(50);
/// Come back after this when the first answer is on its way.
pub(crate) const RETRY_STARTING: Span = Span::from_millis(250);

/// What is known of a limit, as of the keeper's last round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// The gate was shut down.
    pub stopped: bool,
    /// The coordinator says that there is no such limit.
    pub unknown: bool,
    /// The burst when it last answered.
    pub burst: Option<u64>,
    /// The lease.
    pub held: Option<Held>,
    /// When to ask again for counted tokens.
    pub due: Option<BootTime>,
    /// The rate is zero, and the coordinator had nothing left when it was asked.
    pub dry: bool,
    /// Until when the coordinator recovers.
    pub recovering_until: Option<BootTime>,
    /// The coordinator gives nothing more to this worker, and why.
    pub barred: Option<Reason>,
    /// The coordinator hasn't answered for a while.
    pub lost: bool,
    /// Waiters with smaller numbers were reported in a request that has been answered.
    pub heard: u64,
}

/// Why waiting is over without a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Refused(Reason),
    CostAboveBurst { burst: u64 },
    UnknownLimit,
}

impl Facts {
    pub(crate) fn is_open(&self, now: BootTime) -> bool {
        self.held.is_some_and(|held| now < held.expires)
    }

    /// Whether waiting for `cost` can't end with a permit as things stand. `number` is the waiter's, `None` for one that
    /// has not been heard yet.
    pub(crate) fn verdict(
        &self,
        cost: u64,
        level: i64,
        number: Option<u64>,
        now: BootTime,
    ) -> Option<Verdict> {
        if self.stopped {
            return Some(Verdict::Refused(Reason::ShuttingDown));
        }
        if self.unknown {
            return Some(Verdict::UnknownLimit);
        }
        if let Some(burst) = self.burst
            && cost > burst
        {
            return Some(Verdict::CostAboveBurst { burst });
        }
        let short = u64::try_from(level).unwrap_or(0) < cost;
        let open = self.is_open(now);
        if let Some(reason) = self.barred
            && (short || !open)
        {
            return Some(Verdict::Refused(reason));
        }
        if !open && self.lost {
            return Some(Verdict::Refused(Reason::CoordinatorLost));
        }
        let heard = number.is_none_or(|number| number < self.heard);
        (open && self.dry && short && heard).then_some(Verdict::Refused(Reason::NoQuota))
    }

    /// Why there is nothing right now, when no verdict says that there won't be.
    pub(crate) fn reason_now(&self, queued: bool, now: BootTime) -> Reason {
        if !self.is_open(now) && self.recovering_until.is_some() {
            Reason::Recovering
        } else if !self.is_open(now) {
            Reason::Starting
        } else if queued {
            Reason::Queued
        } else if self.recovering_until.is_some() {
            Reason::Recovering
        } else {
            Reason::Empty
        }
    }

    /// When `tokens` more than `level` may be there; `None` when never.
    pub(crate) fn hint(&self, reason: Reason, tokens: u64, level: i64, now: BootTime) -> Option<Span> {
        match reason {
            Reason::NoQuota | Reason::Evicted | Reason::ShuttingDown => return None,
            Reason::CoordinatorLost | Reason::GroupFull => return Some(RETRY_UNSURE),
            Reason::Starting => return Some(RETRY_STARTING),
            _ => {}
        }
        if let Some(until) = self.recovering_until {
            return Some(until.since(now));
        }
        if let Some(due) = self.due {
            return Some(due.since(now).max(ROUND_TRIP));
        }
        let Some(held) = self.held.filter(|held| now < held.expires) else { return Some(RETRY_UNSURE) };
        let missing = missing(tokens, level);
        if held.share > Share::ZERO {
            return time_to_mint(&held, missing, now).or(Some(RETRY_UNSURE));
        }
        // No share yet: what the whole rate would take, but at least a round trip.
        let rate = held.rate.at(held.granted + now.since(held.received));
        Some(rate.time_for(missing).unwrap_or(RETRY_UNSURE).max(RETRY_STARTING))
    }

    /// The least time before `tokens` can have been admitted, whatever the coordinator does: beyond the burst they must
    /// be minted, at most at the whole rate.
    pub(crate) fn soonest(&self, tokens: u64, now: BootTime) -> Span {
        let (Some(held), Some(burst)) = (self.held, self.burst) else { return Span::ZERO };
        let minted = Amount::tokens(tokens.saturating_sub(burst));
        if minted == Amount::ZERO || now >= held.expires {
            return Span::ZERO;
        }
        let fastest = [held.rate.source, held.rate.target].into_iter().max_by(|a, b| a.cmp_value(*b));
        fastest.and_then(|rate| rate.time_for(minted)).unwrap_or(Span(u64::MAX))
    }
}

/// `tokens` less what is there; all of them and the debt when it is negative.
pub(crate) fn missing(tokens: u64, level: i64) -> Amount {
    let there = Amount(i128::from(level).saturating_mul(Amount::ONE.0));
    (Amount::tokens(tokens) - there).at_least_zero()
}

pub(crate) fn duration(span: Span) -> Duration {
    Duration::from_micros(span.0)
}

#[derive(Debug)]
struct Waiter {
    cost: u64,
    waker: Option<Waker>,
    /// When it was woken, if it hasn't come since.
    woken: Option<BootTime>,
    /// Passed over: its turn doesn't hold up others.
    away: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By number; numbers only grow, so this is the order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    next: u64,
    /// Waiters that are not away: their number and the sum of their costs.
    present: usize,
    cost: u64,
    /// The sum of all waiters' costs.
    cost_of_all: u64,
    /// Tokens that waiters wanted and went away without.
    pub abandoned: u64,
    pub facts: Facts,
}

/// What the keeper must do about a queue.
#[derive(Debug, Default)]
pub(crate) struct Serve {
    /// To be woken, outside of the lock.
    pub wake: Vec<Waker>,
    /// The cost of the first in line, when it isn't there yet.
    pub short: Option<u64>,
    /// Look again then: a woken waiter may not have come.
    pub look: Option<BootTime>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }
    pub(crate) fn present(&self) -> usize {
        self.present
    }
    /// Tokens that waiters want who are there to take them.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }
    /// The cost of the first in line, 0 when nobody waits.
    pub(crate) fn first(&self) -> u64 {
        self.waiters.values().find(|waiter| !waiter.away).map_or(0, |waiter| waiter.cost)
    }
    /// Tokens that were asked for in here and not granted: of those who wait and of those who went away.
    pub(crate) fn unserved(&self) -> u64 {
        self.cost_of_all.saturating_add(self.abandoned)
    }
    /// The number that the next waiter gets.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Gets in line.
    pub(crate) fn enter(&mut self, cost: u64, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiters.insert(number, Waiter { cost, waker: Some(waker), woken: None, away: false });
        self.present += 1;
        self.cost = self.cost.saturating_add(cost);
        self.cost_of_all = self.cost_of_all.saturating_add(cost);
        number
    }

    /// Gets out of line. The caller drops what comes back outside of the lock.
    pub(crate) fn leave(&mut self, number: u64) -> Option<Waker> {
        let waiter = self.waiters.remove(&number)?;
        self.cost_of_all = self.cost_of_all.saturating_sub(waiter.cost);
        if !waiter.away {
            self.present -= 1;
            self.cost = self.cost.saturating_sub(waiter.cost);
        }
        waiter.waker
    }

    /// A waiter has come: it is there again, wherever it stands.
    pub(crate) fn come(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let waiter = self.waiters.get_mut(&number)?;
        waiter.woken = None;
        if waiter.away {
            waiter.away = false;
            self.present += 1;
            self.cost = self.cost.saturating_add(waiter.cost);
        }
        match &waiter.waker {
            Some(old) if old.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        }
    }

    /// Whether everybody before `number` is away.
    pub(crate) fn is_turn(&self, number: u64) -> bool {
        self.waiters.range(..number).all(|(_, waiter)| waiter.away)
    }

    /// Tokens wanted by those who are there and come before `number`.
    pub(crate) fn ahead_of(&self, number: u64) -> u64 {
        if number >= self.next {
            return self.cost;
        }
        let before = self.waiters.range(..number).filter(|(_, waiter)| !waiter.away);
        before.fold(0, |sum: u64, (_, waiter)| sum.saturating_add(waiter.cost))
    }

    /// Wakes the first in line when its tokens are there, and passes over who was woken long ago.
    pub(crate) fn serve(&mut self, level: i64, now: BootTime) -> Serve {
        let mut serve = Serve::default();
        let tokens = u64::try_from(level).unwrap_or(0);
        for waiter in self.waiters.values_mut().filter(|waiter| !waiter.away) {
            if waiter.cost > tokens {
                waiter.woken = None;
                serve.short = Some(waiter.cost);
                return serve;
            }
            match waiter.woken {
                None => {
                    waiter.woken = Some(now);
                    serve.wake.extend(waiter.waker.clone());
                    serve.look = Some(now + PASS_OVER_AFTER);
                    return serve;
                }
                Some(woken) if now < woken + PASS_OVER_AFTER => {
                    serve.look = Some(woken + PASS_OVER_AFTER);
                    return serve;
                }
                Some(_) => {
                    waiter.away = true;
                    self.present -= 1;
                    self.cost = self.cost.saturating_sub(waiter.cost);
                }
            }
        }
        serve
    }

    /// All for whom waiting is over without a permit.
    pub(crate) fn doomed(&self, level: i64, now: BootTime) -> Vec<Waker> {
        let over = |(number, waiter): (&u64, &Waiter)| {
            self.facts.verdict(waiter.cost, level, Some(*number), now).and(waiter.waker.clone())
        };
        self.waiters.iter().filter_map(over).collect()
    }
}

/// A name for metrics, logs and people that is cheap to clone.
pub(crate) type Name = Arc<str>;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime(ms * 1_000)
    }

    #[test]
    fn a_large_cost_at_the_head_is_not_passed_by_small_ones() {
        let mut queue = Queue::default();
        let large = queue.enter(10, Waker::noop().clone());
        let small = queue.enter(1, Waker::noop().clone());
        let serve = queue.serve(9, at(0));
        assert!(serve.wake.is_empty() && serve.short == Some(10));
        assert!(queue.is_turn(large) && !queue.is_turn(small));
        assert_eq!((queue.cost(), queue.ahead_of(small)), (11, 10));
    }

    #[test]
    fn a_waiter_that_does_not_come_holds_nobody_up() {
        let mut queue = Queue::default();
        let first = queue.enter(1, Waker::noop().clone());
        let second = queue.enter(1, Waker::noop().clone());
        assert_eq!(queue.serve(1, at(0)).wake.len(), 1);
        assert!(queue.serve(1, at(99)).wake.is_empty());
        assert_eq!(queue.serve(1, at(100)).wake.len(), 1);
        assert!(queue.is_turn(second));
        assert_eq!((queue.present(), queue.cost()), (1, 1));
        // When it comes after all, it has its place again.
        queue.come(first, Waker::noop());
        assert!(queue.is_turn(first) && !queue.is_turn(second));
        assert_eq!((queue.present(), queue.cost()), (2, 2));
    }

    #[test]
    fn verdicts_come_before_waiting() {
        let facts = Facts { burst: Some(5), ..Facts::default() };
        assert_eq!(facts.verdict(6, 0, None, at(0)), Some(Verdict::CostAboveBurst { burst: 5 }));
        assert_eq!(facts.verdict(5, 0, None, at(0)), None);
        let facts = Facts { lost: true, ..facts };
        assert_eq!(facts.verdict(5, 0, None, at(0)), Some(Verdict::Refused(Reason::CoordinatorLost)));
        let facts = Facts { unknown: true, ..facts };
        assert_eq!(facts.verdict(6, 0, None, at(0)), Some(Verdict::UnknownLimit));
    }
}
