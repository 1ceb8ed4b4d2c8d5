//! Waiting for a permit.

use crate::charges::{Charges, Found, Queues, doom, longest};
use crate::error::{AcquireError, Reason};
use crate::gate::Inner;
use crate::permit::Permit;
use crate::queue::{At, RETRY_STARTING, Verdict};
use crate::set::{Holding, Set};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tollgate_core::limit::CellKey;
use tollgate_core::units::{BootTime, Span};

/// A question for a permit: await it.
///
/// Callers are served in the order in which they first asked, whatever their costs: who asks for several meters is in line for each
/// of them, and takes all at once when it is first in all of these lines. Without a deadline it waits as long as waiting can help.
/// Dropping it leaves nothing behind.
#[must_use = "nothing is asked before it is awaited"]
#[derive(Clone, Debug)]
pub struct Acquire {
    charges: Charges,
    /// Further meters, with their costs.
    more: Vec<(String, u64)>,
    gate: Arc<Inner>,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn of(charges: Charges, gate: Arc<Inner>) -> Acquire {
        Acquire { charges, more: Vec::new(), gate, deadline: None, timeout: None }
    }

    /// Of which tier the work is; `default` unless set. It takes from that tier's part of the limit, and from those that the tier
    /// may borrow from when its own is dry.
    pub fn tier(mut self, tier: &str) -> Acquire {
        self.charges = self.charges.tier(tier, &self.gate);
        self
    }

    /// How many tokens the work costs, at most the limit's burst. Default: 1. Of several meters, the one that was named first.
    pub fn cost(mut self, cost: u64) -> Acquire {
        match &mut self.charges {
            Charges::One(_, one) => *one = cost,
            Charges::Several(set, costs) => {
                if let Some(slot) = set.place(0).and_then(|place| costs.get_mut(place)) {
                    *slot = cost;
                }
            }
        }
        self
    }

    /// What it costs of another meter of the limit: all are charged, or nothing is. A cost of 0 isn't charged; also
    /// [`Acquire::cost`] may be 0 then. Up to [`METERS_MAX`](crate::meters::METERS_MAX) meters, each once. For hot paths
    /// there is [`Gate::meters`](crate::Gate::meters).
    ///
    /// ```no_run
    /// # async fn example(gate: tollgate_worker::Gate) -> Result<(), Box<dyn std::error::Error>> {
    /// let permit = gate.acquire("openai").cost(1).charge("tokens", 1_200).charge("in_flight", 1).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn charge(mut self, meter: impl Into<String>, cost: u64) -> Acquire {
        self.more.push((meter.into(), cost));
        self
    }

    /// Until when to wait. Refused at once when that can't be met for sure. With [`Acquire::timeout`], the earlier counts.
    pub fn deadline(mut self, deadline: impl Into<Instant>) -> Acquire {
        self.deadline = Some(deadline.into());
        self
    }

    /// How long to wait, from the first poll on.
    pub fn timeout(mut self, timeout: Duration) -> Acquire {
        self.timeout = Some(timeout);
        self
    }

    /// All that is charged.
    fn charges(self) -> Charges {
        if self.more.is_empty() {
            return self.charges;
        }
        let (mut cells, mut costs) = (Vec::new(), Vec::new());
        match &self.charges {
            Charges::One(cell, cost) => {
                cells.push(cell.clone());
                costs.push(*cost);
            }
            Charges::Several(set, ordered) => {
                for (place, cell) in set.in_named_order() {
                    cells.push(cell.clone());
                    costs.push(ordered.get(place).copied().unwrap_or(0));
                }
            }
        }
        let Some(CellKey { limit, tier, .. }) = cells.first().map(|cell| cell.key.clone()) else {
            return self.charges;
        };
        for (meter, cost) in &self.more {
            cells.push(self.gate.shared.cell(&limit, meter, &tier));
            costs.push(*cost);
        }
        let set = Arc::new(Set::new(cells));
        let costs = set.in_order(&costs);
        Charges::Several(set, costs)
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        let (deadline, timeout, gate) = (self.deadline, self.timeout, self.gate.clone());
        Acquiring { charges: self.charges(), deadline, timeout, place: None, sleep: None, _gate: gate }
    }
}

/// Waits for a permit.
#[must_use = "nothing is asked before it is awaited"]
#[derive(Debug)]
pub struct Acquiring {
    charges: Charges,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
    place: Option<Place>,
    /// Allocated only when there is something to wait for and a deadline.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Keeps the gate going.
    _gate: Arc<Inner>,
}

impl Future for Acquiring {
    type Output = Result<Permit, AcquireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let result = match &mut this.place {
            Some(place) => place.poll(cx),
            None => this.start(cx),
        };
        if result.is_ready() {
            this.place = None;
            return result;
        }
        if let Some(sleep) = &mut this.sleep
            && sleep.as_mut().poll(cx).is_ready()
        {
            let error = this.place.take().and_then(|place| place.give_up(Reason::Deadline));
            return error.map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
        }
        Poll::Pending
    }
}

impl Acquiring {
    fn ends(&self) -> Option<Instant> {
        // A timeout beyond what the clock can hold is none.
        let timeout = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        match (self.deadline, timeout) {
            (Some(deadline), Some(timeout)) => Some(deadline.min(timeout)),
            (deadline, timeout) => deadline.or(timeout),
        }
    }

    /// The first poll: takes at once, finds that waiting is pointless, or gets in line.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let charges = &self.charges;
        if let Some(error) = charges.wrong() {
            return Poll::Ready(Err(error));
        }
        if let Some(permit) = charges.take_quickly() {
            return Poll::Ready(Ok(permit));
        }
        if let Some(refusal) = charges.refusal_elsewhere() {
            return Poll::Ready(Err(refusal));
        }
        let mut queues = charges.lock();
        let mut partial = None;
        if queues.iter().all(|queue| queue.present() == 0) {
            match charges.take(&Holding::default()) {
                Ok(permit) => return Poll::Ready(Ok(permit)),
                Err(left) => partial = left,
            }
        }
        let Some(core) = charges.core() else { return Poll::Pending };
        let now = core.clock.boot();
        let found = charges.found(&queues, None);
        match charges.let_through(&found, &Holding::default(), None, now, partial.is_some()) {
            Ok(permit) => {
                drop(queues);
                charges.put_back(partial);
                return Poll::Ready(Ok(permit));
            }
            // One of both at most.
            Err(left) => partial = partial.or(left),
        }
        let deadline = self.ends();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Span(u64::try_from(left.as_micros()).unwrap_or(u64::MAX)));
        let verdict = doom(&found, None, now)
            .or_else(|| {
                let full =
                    queues.iter().position(|queue| queue.facts.is_full(queue.len(), core.waiters_max))?;
                Some((found.get(full)?, Verdict::Refused(Reason::QueueFull)))
            })
            .or_else(|| {
                let late = |found: &&Found<'_>| left.is_some_and(|left| found.is_late(left, now));
                let late = found.iter().find(late);
                let late = late.or_else(|| longest(&found, now).filter(|_| left == Some(Span::ZERO)))?;
                Some((late, Verdict::Refused(Reason::Deadline)))
            });
        if let Some((found, verdict)) = verdict {
            drop(queues);
            charges.put_back(partial);
            return Poll::Ready(Err(found.refusal(verdict, now)));
        }
        // By the gate's clock; one that is too far away for it is none.
        let until = left.filter(|left| left.0 < u64::MAX).map(|left| now + left);
        // A number that is larger than all in the lines that it stands in: so all lines have the same order.
        let number = queues.iter().map(|queue| queue.next()).max().unwrap_or(0);
        let all = Arc::new(charges.clone());
        for ((cell, cost), queue) in charges.each().zip(&mut queues) {
            let joint = matches!(charges, Charges::Several(..)).then(|| all.clone());
            queue.enter(number, cost, cx.waker().clone(), until, joint);
            cell.level.set_waiting(queue.present());
        }
        drop(queues);
        charges.put_back(partial);
        core.kick.notify_one();
        self.place = Some(Place { charges: all, number, since: now });
        self.sleep = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Poll::Pending
    }
}

/// A place in line, or one in each of several. Dropping it gives it up.
#[derive(Debug)]
struct Place {
    charges: Arc<Charges>,
    number: u64,
    since: BootTime,
}

impl Place {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let charges = self.charges.clone();
        let charges = &*charges;
        if let Some(refusal) = charges.refusal_elsewhere() {
            return Poll::Ready(Err(refusal));
        }
        let Some(core) = charges.core() else { return Poll::Pending };
        let mut queues = charges.lock();
        let mut places = Vec::with_capacity(queues.len());
        let mut old_wakers = Vec::new();
        for queue in &mut queues {
            let (place, old) = queue.come(self.number, cx.waker());
            places.push(place);
            old_wakers.extend(old);
        }
        for ((cell, _), queue) in charges.each().zip(&mut queues) {
            queue.others_let_go().into_iter().for_each(|(cost, mark)| cell.let_go(cost, mark));
        }
        let mut partial = None;
        let is_first = places.iter().all(|place| *place == At::Front);
        if is_first {
            match charges.take(&charges.held(&queues, self.number)) {
                Ok(permit) => {
                    // It is the permit's now.
                    queues.iter_mut().for_each(|queue| queue.set_held(self.number, None));
                    let at = permit.admitted_at();
                    self.leave(charges, queues, at);
                    for (cell, _) in charges.each() {
                        cell.counts.waited.fetch_add(1, Ordering::Relaxed);
                        cell.counts.waited_us.fetch_add(at.since(self.since).0, Ordering::Relaxed);
                        cell.counts.meter.waited(at.since(self.since));
                    }
                    return Poll::Ready(Ok(permit));
                }
                Err(left) => partial = left,
            }
        }
        if let Charges::Several(..) = charges {
            for (((cell, cost), queue), place) in charges.each().zip(&mut queues).zip(&places) {
                let held = cell.hold(cost, queue.held(self.number), *place == At::Front);
                queue.set_held(self.number, held);
            }
        }
        for ((cell, _), queue) in charges.each().zip(&queues) {
            cell.level.set_waiting(queue.present());
        }
        let now = core.clock.boot();
        let found = charges.found(&queues, Some(self.number));
        if !places.contains(&At::Nowhere) {
            let holding = charges.held(&queues, self.number);
            match charges.let_through(&found, &holding, Some(self.number), now, partial.is_some()) {
                Ok(permit) => {
                    // What it held of those that are charged is the permit's now.
                    for ((cell, _), queue) in charges.each().zip(&mut queues) {
                        if permit.charged_to(&cell.meter) > 0 {
                            queue.set_held(self.number, None);
                        }
                    }
                    self.leave(charges, queues, now);
                    charges.put_back(partial);
                    return Poll::Ready(Ok(permit));
                }
                Err(left) => partial = partial.or(left),
            }
        }
        let at = |wanted: At| places.iter().position(|place| *place == wanted).and_then(|at| found.get(at));
        let verdict = if let Some(found) = at(At::Nowhere) {
            // Its place is in another process: this one was forked.
            Some((found, Verdict::Refused(Reason::Starting)))
        } else if let Some(found) = at(At::TooFarBack) {
            Some((found, Verdict::Refused(Reason::Deadline)))
        } else {
            doom(&found, Some(self.number), now)
        };
        let Some((lacking, verdict)) = verdict else {
            drop(queues);
            charges.put_back(partial);
            if is_first {
                // Somebody else may have been minting just now: the keeper looks again.
                core.kick.notify_one();
            }
            return Poll::Pending;
        };
        if verdict == Verdict::Refused(Reason::Deadline) {
            // Other refusals are told to the coordinator as what they are.
            for ((_, cost), queue) in charges.each().zip(&mut queues) {
                queue.abandoned = queue.abandoned.saturating_add(cost);
            }
        }
        self.leave(charges, queues, now);
        charges.put_back(partial);
        self.count_as_given_up();
        let is_nowhere = places.contains(&At::Nowhere);
        Poll::Ready(Err(if is_nowhere {
            lacking.cell.refusal(verdict, lacking.cost, Some(RETRY_STARTING))
        } else {
            lacking.refusal(verdict, now)
        }))
    }

    /// Gets out of line. Whoever comes next is woken at once when its tokens are there; else, and when it waits for several meters,
    /// the keeper finds out.
    fn leave(&self, charges: &Charges, mut queues: Queues<'_>, now: BootTime) {
        let mut wakers = Vec::new();
        for ((cell, cost), queue) in charges.each().zip(&mut queues) {
            if let Some(mark) = queue.take_held(self.number) {
                cell.let_go(cost, mark);
            }
            wakers.extend(queue.leave(self.number).map(|own| (own, false)));
            cell.level.set_waiting(queue.present());
            let next = queue.serve(cell.level_at_most(), now);
            wakers.extend(next.wake.into_iter().map(|waker| (waker, true)));
        }
        drop(queues);
        wakers.into_iter().filter(|(_, wakes)| *wakes).for_each(|(waker, _)| waker.wake());
        if let Some(core) = charges.core() {
            core.kick.notify_one();
        }
    }

    fn count_as_given_up(&self) {
        self.charges.each().for_each(|(cell, _)| {
            cell.counts.gave_up.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn give_up(self, reason: Reason) -> Option<AcquireError> {
        let charges = self.charges.clone();
        let now = charges.core()?.clock.boot();
        let queues = charges.lock();
        let found = charges.found(&queues, Some(self.number));
        drop(queues);
        Some(longest(&found, now)?.refusal(Verdict::Refused(reason), now))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let charges = self.charges.clone();
        // In a forked child somebody who is gone may hold the lock, and the place is the parent's.
        let Some(core) = charges.core().filter(|core| core.home.is_here()) else { return };
        let mut queues = charges.lock();
        if !queues.iter().any(|queue| queue.has(self.number)) {
            return;
        }
        for ((_, cost), queue) in charges.each().zip(&mut queues) {
            queue.abandoned = queue.abandoned.saturating_add(cost);
        }
        self.leave(&charges, queues, core.clock.boot());
        self.count_as_given_up();
    }
}
