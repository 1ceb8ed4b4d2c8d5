//! Who waits for one limit, in order of arrival, and what the keeper last learned that matters to them.
//!
//! A waiter stays in line until it takes its tokens itself, in the very poll that returns the permit: a waiter that goes
//! away has taken nothing, and nothing is admitted before somebody uses it. Only the first in line may take; a newcomer
//! never passes it, also when its cost is smaller. A waiter that is woken and doesn't come (its future is not polled) is
//! passed over until it does, so that it doesn't block the others. As long as somebody is away others may be, too: then
//! several are woken at a time, so that a crowd of those who don't come is found out in a few steps.
//!
//! Who waits for several meters of a limit stands in all of their lines, under one number that is larger than all in there: so no
//! two stand in a different order in two lines, and whoever has the smallest number of all is first in each of its own. It takes
//! when it is first everywhere. What is told of a line can't say whether that is so: the keeper looks at all of them
//! together ([`Together`]), wakes it and passes it over in all of them at once.

use crate::charges::Charges;
use crate::error::Reason;
use crate::level::AtomicLevel;
use crate::limit::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Duration;
use tollgate_core::bucket::{Held, Level, Mark, time_to_mint};
use tollgate_core::units::{Amount, BootTime, Share, Span};

/// A waiter that doesn't come within this time after it was woken is passed over.
const PASS_OVER_AFTER: Span = Span::from_millis(100);
/// So many are woken at a time while somebody is away: all but one of them may have come in vain.
const ABREAST: usize = 32;
/// Come back after this when the coordinator doesn't answer: about a heartbeat.
const RETRY_UNSURE: Span = Span::from_secs(1);
/// An answer of the coordinator takes at least about this long.
const ROUND_TRIP: Span = Span::from_millis(50);
/// Come back after this when the limit is paused: people resume it, and gates know within a heartbeat or two.
pub(crate) const RETRY_PAUSED: Span = Span::from_secs(5);
/// Come back after this when the first answer is on its way.
pub(crate) const RETRY_STARTING: Span = Span::from_millis(250);

/// What is known of a limit, as of the keeper's last round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// The gate was shut down.
    pub stopped: bool,
    /// The coordinator says that there is no such limit.
    pub unknown: bool,
    /// An operator has paused it.
    pub paused: bool,
    /// The burst when it last answered.
    pub burst: Option<u64>,
    /// How many may wait, where the limit has a bound of its own.
    pub queue: Option<u64>,
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
    /// Since when it goes on without the coordinator, although the lease has ended.
    pub alone_since: Option<BootTime>,
    /// Whether it lets everything through then.
    pub opened: bool,
    /// It refuses nothing, and counts what it would refuse.
    pub shadow: bool,
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
    /// Whether what can't be charged is let through: by the operator's choice, also when that is above the burst. Not while it is
    /// paused, and not by a gate that was shut down.
    pub(crate) fn lets_through(&self) -> bool {
        (self.opened || self.shadow) && !self.paused && !self.stopped
    }

    pub(crate) fn is_open(&self, now: BootTime) -> bool {
        self.held.is_some_and(|held| now < held.expires)
    }

    /// Whether nobody more may wait where `waiting` do already, and up to `most` for any limit.
    pub(crate) fn is_full(&self, waiting: usize, most: usize) -> bool {
        let own = self.queue.map_or(most, |queue| usize::try_from(queue).unwrap_or(usize::MAX));
        waiting >= own.min(most) && !self.lets_through()
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
        if self.paused {
            return Some(Verdict::Refused(Reason::Paused));
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
            Reason::Paused => return Some(RETRY_PAUSED),
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
    waker: Waker,
    /// When it was woken, if it hasn't come since.
    woken: Option<BootTime>,
    /// Until when it waits.
    deadline: Option<BootTime>,
    /// It can't be served by then any more.
    late: bool,
    /// All that it waits for, when that is more than stands in this line.
    joint: Option<Arc<Charges>>,
    /// It has taken already what it wants here, and waits for the rest. Kept here so that it can be let go of for a waiter that
    /// doesn't come.
    holds: Option<Mark>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By number; numbers only grow, so this is the order of arrival.
    present: BTreeMap<u64, Waiter>,
    /// Those who were passed over: their turn doesn't hold up others.
    away: BTreeMap<u64, Waiter>,
    next: u64,
    /// The sums of costs.
    cost_present: u64,
    cost_away: u64,
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
    /// Waiters who may be next, and stand in other lines too.
    pub together: Vec<Together>,
}

/// Somebody who waits for several meters.
#[derive(Clone, Debug)]
pub(crate) struct Together {
    number: u64,
    charges: Arc<Charges>,
}

impl Together {
    /// Wakes it when it can be served, passes it over when it doesn't come. Returns when to look again.
    pub(crate) fn serve(&self, now: BootTime, wake: &mut Vec<Waker>) -> Option<BootTime> {
        let mut queues = self.charges.lock();
        let is_due = self.charges.each().zip(&queues).all(|((cell, _), queue)| {
            let tokens = u64::try_from(cell.level.level()).unwrap_or(0);
            queue.is_next(self.number, tokens) || queue.facts.lets_through()
        });
        let may_hold = |((cell, _), queue): ((&Arc<Cell>, u64), &MutexGuard<'_, Queue>)| {
            queue.may_hold(self.number, &cell.level)
        };
        if !is_due && self.charges.each().zip(&queues).any(may_hold) {
            wake.extend(queues.first().and_then(|queue| queue.waker(self.number)));
        }
        let woken = queues.first().and_then(|queue| queue.woken(self.number));
        let (woken, look) = match woken {
            _ if !is_due => (None, None),
            Some(woken) if woken + PASS_OVER_AFTER <= now => {
                for ((cell, _), queue) in self.charges.each().zip(&mut queues) {
                    queue.pass_over(self.number);
                    cell.level.set_waiting(queue.present());
                }
                // Somebody else is next.
                return Some(now);
            }
            Some(woken) => (Some(woken), Some(woken + PASS_OVER_AFTER)),
            None => {
                wake.extend(queues.first().and_then(|queue| queue.waker(self.number)));
                (Some(now), Some(now + PASS_OVER_AFTER))
            }
        };
        queues.iter_mut().for_each(|queue| queue.set_woken(self.number, woken));
        look
    }

    /// The cells of meters that it holds up: it is first in line there, and something that comes before them, by the meters'
    /// names, isn't there. Two processes would else hold for ever what each of them has, and wait for what the other one has; when
    /// all keep to one order, who waits for the last of what is wanted gets it.
    pub(crate) fn holds_up(&self) -> Vec<usize> {
        let queues = self.charges.lock();
        let mut lines: Vec<_> = self.charges.each().map(|(cell, _)| cell).zip(&queues).collect();
        lines.sort_by(|(one, _), (other, _)| one.meter.cmp(&other.meter));
        let is_there = |(cell, queue): &(&Arc<Cell>, &MutexGuard<'_, Queue>)| {
            queue.is_next(self.number, u64::try_from(cell.level.level()).unwrap_or(0))
                || queue.facts.lets_through()
        };
        let after = lines.iter().skip_while(|line| is_there(line)).skip(1);
        after.filter(|(_, queue)| queue.is_first(self.number)).filter_map(|(cell, _)| cell.index).collect()
    }

    /// Whether it is the same waiter.
    pub(crate) fn is(&self, other: &Together) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.charges, &other.charges)
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.present.len() + self.away.len()
    }
    /// Waiters that are there to take their tokens.
    pub(crate) fn present(&self) -> usize {
        self.present.len()
    }
    /// What they want.
    pub(crate) fn cost(&self) -> u64 {
        self.cost_present
    }
    /// The cost of the first in line, 0 when nobody waits.
    pub(crate) fn first(&self) -> u64 {
        self.present.first_key_value().map_or(0, |(_, waiter)| waiter.cost)
    }
    /// Tokens that were asked for in here and not granted: of those who wait and of those who went away.
    pub(crate) fn unserved(&self) -> u64 {
        self.cost_present.saturating_add(self.cost_away).saturating_add(self.abandoned)
    }
    /// The number that the next waiter gets.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Gets in line, under a number that is at least [`Queue::next`]. `joint` is what it waits for in this line and in others.
    pub(crate) fn enter(
        &mut self,
        number: u64,
        cost: u64,
        waker: Waker,
        deadline: Option<BootTime>,
        joint: Option<Arc<Charges>>,
    ) {
        self.next = number + 1;
        self.present
            .insert(number, Waiter { cost, waker, woken: None, deadline, late: false, joint, holds: None });
        self.cost_present = self.cost_present.saturating_add(cost);
    }

    /// Whether it is among those who may be served next, and its tokens are there.
    fn is_next(&self, number: u64, tokens: u64) -> bool {
        let mut next = self.present.iter().take(abreast(&self.away));
        next.any(|(other, waiter)| *other == number && (waiter.holds.is_some() || waiter.cost <= tokens))
    }

    /// Whether it should take now what it wants here, since it stands first and what it wants counts until it is put back.
    fn may_hold(&self, number: u64, level: &AtomicLevel) -> bool {
        let puts_back = Mark::of(level).puts_back();
        let tokens = u64::try_from(level.level()).unwrap_or(0);
        let first = self.present.first_key_value().filter(|(first, _)| puts_back && **first == number);
        first.is_some_and(|(_, waiter)| waiter.holds.is_none() && waiter.cost <= tokens)
    }

    /// What it has taken here already.
    pub(crate) fn held(&self, number: u64) -> Option<Mark> {
        self.present.get(&number).and_then(|waiter| waiter.holds)
    }

    pub(crate) fn set_held(&mut self, number: u64, holds: Option<Mark>) {
        if let Some(waiter) = self.present.get_mut(&number) {
            waiter.holds = holds;
        }
    }

    /// What it has taken here is to be let go of.
    pub(crate) fn take_held(&mut self, number: u64) -> Option<Mark> {
        let waiter = self.present.get_mut(&number).or_else(|| self.away.get_mut(&number));
        waiter.and_then(|waiter| waiter.holds.take())
    }

    /// What is held by others than the first in line is to be let go of, with its cost: they were first while somebody was away who is
    /// back, or don't come themselves.
    pub(crate) fn others_let_go(&mut self) -> Vec<(u64, Mark)> {
        let others = self.present.values_mut().skip(1).chain(self.away.values_mut());
        others.filter_map(|waiter| Some((waiter.cost, waiter.holds.take()?))).collect()
    }

    fn is_first(&self, number: u64) -> bool {
        self.present.first_key_value().is_some_and(|(first, _)| *first == number)
    }

    fn woken(&self, number: u64) -> Option<BootTime> {
        self.present.get(&number).and_then(|waiter| waiter.woken)
    }

    fn set_woken(&mut self, number: u64, woken: Option<BootTime>) {
        if let Some(waiter) = self.present.get_mut(&number) {
            waiter.woken = woken;
        }
    }

    fn waker(&self, number: u64) -> Option<Waker> {
        self.present.get(&number).map(|waiter| waiter.waker.clone())
    }

    /// It doesn't hold up others until it comes.
    fn pass_over(&mut self, number: u64) {
        if let Some(waiter) = self.present.remove(&number) {
            self.cost_present = self.cost_present.saturating_sub(waiter.cost);
            self.cost_away = self.cost_away.saturating_add(waiter.cost);
            self.away.insert(number, waiter);
        }
    }

    /// Gets out of line. The caller drops what comes back outside of the lock.
    pub(crate) fn leave(&mut self, number: u64) -> Option<Waker> {
        if let Some(waiter) = self.present.remove(&number) {
            self.cost_present = self.cost_present.saturating_sub(waiter.cost);
            return Some(waiter.waker);
        }
        let waiter = self.away.remove(&number)?;
        self.cost_away = self.cost_away.saturating_sub(waiter.cost);
        Some(waiter.waker)
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.present.contains_key(&number) || self.away.contains_key(&number)
    }

    /// Nobody waits any more: those who did find out when they come.
    pub(crate) fn clear(&mut self) -> Vec<Waker> {
        let all = std::mem::take(&mut self.present)
            .into_values()
            .chain(std::mem::take(&mut self.away).into_values());
        (self.cost_present, self.cost_away) = (0, 0);
        all.map(|waiter| waiter.waker).collect()
    }

    /// A waiter has come: it is there again, wherever it stands. The caller drops its old waker outside of the lock.
    pub(crate) fn come(&mut self, number: u64, waker: &Waker) -> (At, Option<Waker>) {
        if let Some(waiter) = self.away.remove(&number) {
            self.cost_away = self.cost_away.saturating_sub(waiter.cost);
            self.cost_present = self.cost_present.saturating_add(waiter.cost);
            self.present.insert(number, waiter);
        }
        let Some(waiter) = self.present.get_mut(&number) else {
            return (At::Nowhere, None);
        };
        waiter.woken = None;
        let late = waiter.late;
        let old =
            (!waiter.waker.will_wake(waker)).then(|| std::mem::replace(&mut waiter.waker, waker.clone()));
        let turn = self.present.first_key_value().is_some_and(|(first, _)| *first == number);
        let place = if turn {
            At::Front
        } else if late {
            At::TooFarBack
        } else {
            At::Back
        };
        (place, old)
    }

    /// Tokens wanted by those who are there and come before `number`.
    pub(crate) fn ahead_of(&self, number: u64) -> u64 {
        if number >= self.next {
            return self.cost_present;
        }
        self.present.range(..number).fold(0, |sum: u64, (_, waiter)| sum.saturating_add(waiter.cost))
    }

    /// Wakes the first in line when its tokens are there, and passes over who was woken long ago.
    pub(crate) fn serve(&mut self, level: i64, now: BootTime) -> Serve {
        let mut serve = Serve::default();
        let tokens = u64::try_from(level).unwrap_or(0);
        while let Some(number) = self.overdue(tokens, now) {
            self.pass_over(number);
        }
        for (place, (number, waiter)) in self.present.iter_mut().take(abreast(&self.away)).enumerate() {
            if let Some(charges) = &waiter.joint {
                serve.together.push(Together { number: *number, charges: charges.clone() });
                if waiter.holds.is_some() || waiter.cost <= tokens {
                    continue;
                }
                if place == 0 {
                    serve.short = Some(waiter.cost);
                }
                break;
            }
            if waiter.cost > tokens {
                waiter.woken = None;
                if place == 0 {
                    serve.short = Some(waiter.cost);
                }
                break;
            }
            if waiter.woken.is_none() {
                serve.wake.push(waiter.waker.clone());
            }
            let woken = *waiter.woken.get_or_insert(now);
            let look = woken + PASS_OVER_AFTER;
            serve.look = Some(serve.look.map_or(look, |earliest: BootTime| earliest.min(look)));
        }
        serve
    }

    /// Somebody at the front whose tokens are there and who was woken long ago.
    fn overdue(&self, tokens: u64, now: BootTime) -> Option<u64> {
        let front = self.present.iter().take(abreast(&self.away));
        let served = front.take_while(|(_, waiter)| waiter.cost <= tokens);
        let is_overdue = |waiter: &Waiter| {
            waiter.joint.is_none() && waiter.woken.is_some_and(|woken| woken + PASS_OVER_AFTER <= now)
        };
        served.filter(|(_, waiter)| is_overdue(waiter)).map(|(number, _)| *number).next()
    }

    /// All for whom waiting is over without a permit.
    pub(crate) fn doomed(&mut self, level: i64, now: BootTime) -> Vec<Waker> {
        let mut ahead: u64 = 0;
        let mut doomed = Vec::new();
        for (number, waiter) in &mut self.present {
            ahead = ahead.saturating_add(waiter.cost);
            let left = waiter.deadline.map(|deadline| deadline.since(now));
            waiter.late = left.is_some_and(|left| left < self.facts.soonest(ahead, now));
            let is_over = waiter.late || self.facts.lets_through();
            if is_over || self.facts.verdict(waiter.cost, level, Some(*number), now).is_some() {
                doomed.push(waiter.waker.clone());
            }
        }
        for (number, waiter) in &self.away {
            if self.facts.lets_through()
                || self.facts.verdict(waiter.cost, level, Some(*number), now).is_some()
            {
                doomed.push(waiter.waker.clone());
            }
        }
        doomed
    }
}

/// How many are woken at a time.
fn abreast(away: &BTreeMap<u64, Waiter>) -> usize {
    if away.is_empty() { 1 } else { ABREAST }
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// It is its turn.
    Front,
    /// Others come first.
    Back,
    /// So many come first that its deadline can't be met any more.
    TooFarBack,
    /// It isn't in line any more.
    Nowhere,
}

/// A name for metrics, logs and people that is cheap to clone.
pub(crate) type Name = Arc<str>;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime(ms * 1_000)
    }

    fn enter(queue: &mut Queue, cost: u64) -> u64 {
        let number = queue.next();
        queue.enter(number, cost, Waker::noop().clone(), None, None);
        number
    }

    #[test]
    fn a_large_cost_at_the_head_is_not_passed_by_small_ones() {
        let mut queue = Queue::default();
        let (large, small) = (enter(&mut queue, 10), enter(&mut queue, 1));
        let serve = queue.serve(9, at(0));
        assert!(serve.wake.is_empty() && serve.short == Some(10));
        assert_eq!((queue.cost(), queue.ahead_of(small)), (11, 10));
        let mut come = |number| queue.come(number, Waker::noop()).0;
        assert_eq!((come(large), come(small), come(7)), (At::Front, At::Back, At::Nowhere));
    }

    #[test]
    fn a_waiter_that_does_not_come_holds_nobody_up() {
        let mut queue = Queue::default();
        let (first, second) = (enter(&mut queue, 1), enter(&mut queue, 1));
        assert_eq!(queue.serve(1, at(0)).wake.len(), 1);
        assert!(queue.serve(1, at(99)).wake.is_empty());
        assert_eq!(queue.serve(1, at(100)).wake.len(), 1);
        assert_eq!(queue.come(second, Waker::noop()).0, At::Front);
        assert_eq!((queue.present(), queue.cost()), (1, 1));
        // When it comes after all, it has its place again.
        assert_eq!(queue.come(first, Waker::noop()).0, At::Front);
        assert_eq!(queue.come(second, Waker::noop()).0, At::Back);
        assert_eq!((queue.present(), queue.cost()), (2, 2));
    }

    #[test]
    fn a_crowd_that_does_not_come_is_passed_over_in_a_few_steps() {
        let mut queue = Queue::default();
        for _ in 0..1_000 {
            enter(&mut queue, 1);
        }
        let last = enter(&mut queue, 1);
        let steps = (0..).take_while(|step| {
            queue.serve(1, at(100 * step));
            queue.come(last, Waker::noop()).0 == At::Back
        });
        // The first one alone, then so many at a time.
        assert_eq!(steps.count(), 1 + 999usize.div_ceil(ABREAST));
        assert_eq!((queue.present(), queue.len()), (1, 1_001));
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
