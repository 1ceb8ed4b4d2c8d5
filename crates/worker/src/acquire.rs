//! Waiting for a permit.

use crate::error::{AcquireError, Reason};
use crate::limit::{Cell, Limit};
use crate::permit::Permit;
use crate::queue::{At, Queue, RETRY_STARTING, Verdict, duration};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tollgate_core::bucket::Level;
use tollgate_core::units::{BootTime, Span};

/// A question for a permit: await it.
///
/// Callers are served in the order in which they first asked, whatever their costs. Without a deadline it waits as long
/// as waiting can help. Dropping it leaves nothing behind.
#[must_use = "nothing is asked before it is awaited"]
#[derive(Clone, Debug)]
pub struct Acquire {
    limit: Limit,
    cost: u64,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(limit: Limit) -> Acquire {
        Acquire { limit, cost: 1, deadline: None, timeout: None }
    }

    /// How many tokens the work costs, at most the limit's burst. Default: 1.
    pub fn cost(mut self, cost: u64) -> Acquire {
        self.cost = cost;
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
}

impl IntoFuture for Acquire {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        Acquiring { acquire: self, place: None, sleep: None }
    }
}

/// Waits for a permit.
#[must_use = "nothing is asked before it is awaited"]
#[derive(Debug)]
pub struct Acquiring {
    acquire: Acquire,
    place: Option<Place>,
    /// Allocated only when there is something to wait for and a deadline.
    sleep: Option<Pin<Box<Sleep>>>,
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
            let error = this.place.take().map(|place| place.give_up(Reason::Deadline));
            return error.map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
        }
        Poll::Pending
    }
}

impl Acquiring {
    /// The first poll: takes at once, finds that waiting is pointless, or gets in line.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let (cell, cost) = (&self.acquire.limit.cell, self.acquire.cost);
        if cost == 0 || cell.index.is_none() {
            return Poll::Ready(Err(cell.wrong(cost)));
        }
        if let Some(admitted) = cell.take_quickly(cost) {
            return Poll::Ready(Ok(cell.permit(cost, admitted)));
        }
        if let Some(refusal) = cell.refusal_elsewhere(cost) {
            return Poll::Ready(Err(refusal));
        }
        let mut queue = cell.queue();
        if queue.present() == 0
            && let Some(admitted) = cell.take(cost)
        {
            drop(queue);
            return Poll::Ready(Ok(cell.permit(cost, admitted)));
        }
        let now = cell.core.clock.boot();
        let (facts, ahead) = (queue.facts, queue.cost());
        let level = cell.level.level();
        let tokens = ahead.saturating_add(cost);
        let deadline = self.acquire.ends();
        let verdict = facts
            .verdict(cost, level, None, now)
            .or_else(|| {
                let full = queue.len() >= cell.core.waiters_max;
                full.then_some(Verdict::Refused(Reason::QueueFull))
            })
            .or_else(|| {
                let left = deadline?.saturating_duration_since(Instant::now());
                let late = left.is_zero() || left < duration(facts.soonest(tokens, now));
                late.then_some(Verdict::Refused(Reason::Deadline))
            });
        if let Some(verdict) = verdict {
            drop(queue);
            return Poll::Ready(Err(cell.refusal(verdict, cost, facts.hint_of(verdict, tokens, level, now))));
        }
        // By the gate's clock; one that is too far away for it is none.
        let until = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let until = until.and_then(|left| u64::try_from(left.as_micros()).ok()).map(|left| now + Span(left));
        let number = queue.enter(cost, cx.waker().clone(), until);
        cell.level.set_waiting(queue.present());
        drop(queue);
        cell.core.kick.notify_one();
        self.place = Some(Place { cell: cell.clone(), number, cost, since: now });
        self.sleep = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Poll::Pending
    }
}

impl Acquire {
    fn ends(&self) -> Option<Instant> {
        // A timeout beyond what the clock can hold is none.
        let timeout = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        match (self.deadline, timeout) {
            (Some(deadline), Some(timeout)) => Some(deadline.min(timeout)),
            (deadline, timeout) => deadline.or(timeout),
        }
    }
}

/// A place in line. Dropping it gives it up.
#[derive(Debug)]
struct Place {
    cell: Arc<Cell>,
    number: u64,
    cost: u64,
    since: BootTime,
}

impl Place {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let cell = &self.cell;
        if let Some(refusal) = cell.refusal_elsewhere(self.cost) {
            return Poll::Ready(Err(refusal));
        }
        let mut queue = cell.queue();
        let (place, _old_waker) = queue.come(self.number, cx.waker());
        if place == At::Front
            && let Some(admitted) = cell.take(self.cost)
        {
            self.leave(queue, admitted.at);
            cell.counts.waited.fetch_add(1, Ordering::Relaxed);
            cell.counts.waited_us.fetch_add(admitted.at.since(self.since).0, Ordering::Relaxed);
            cell.counts.meter.waited(admitted.at.since(self.since));
            return Poll::Ready(Ok(cell.permit(self.cost, admitted)));
        }
        cell.level.set_waiting(queue.present());
        let now = cell.core.clock.boot();
        let (facts, level) = (queue.facts, cell.level.level());
        let verdict = match place {
            // Its place is in another process: this one was forked.
            At::Nowhere => Some(Verdict::Refused(Reason::Starting)),
            At::TooFarBack => Some(Verdict::Refused(Reason::Deadline)),
            At::Front | At::Back => facts.verdict(self.cost, level, Some(self.number), now),
        };
        let Some(verdict) = verdict else {
            drop(queue);
            if place == At::Front {
                // Somebody else may have been minting just now: the keeper looks again.
                cell.core.kick.notify_one();
            }
            return Poll::Pending;
        };
        let tokens = queue.ahead_of(self.number).saturating_add(self.cost);
        if verdict == Verdict::Refused(Reason::Deadline) {
            // Other refusals are told to the coordinator as what they are.
            queue.abandoned = queue.abandoned.saturating_add(self.cost);
        }
        self.leave(queue, now);
        cell.counts.gave_up.fetch_add(1, Ordering::Relaxed);
        let hint = match place {
            At::Nowhere => Some(RETRY_STARTING),
            _ => facts.hint_of(verdict, tokens, level, now),
        };
        Poll::Ready(Err(cell.refusal(verdict, self.cost, hint)))
    }

    /// Gets out of line. Whoever comes next is woken at once when its tokens are there; else the keeper finds out when.
    fn leave(&self, mut queue: MutexGuard<'_, Queue>, now: BootTime) {
        let cell = &self.cell;
        let _own_waker = queue.leave(self.number);
        cell.level.set_waiting(queue.present());
        let next = queue.serve(cell.level.level(), now);
        drop(queue);
        next.wake.into_iter().for_each(std::task::Waker::wake);
        cell.core.kick.notify_one();
    }

    fn give_up(self, reason: Reason) -> AcquireError {
        let cell = self.cell.clone();
        let (facts, ahead) = {
            let queue = cell.queue();
            (queue.facts, queue.ahead_of(self.number))
        };
        let now = cell.core.clock.boot();
        let hint = facts.hint(reason, ahead.saturating_add(self.cost), cell.level.level(), now);
        cell.refusal(Verdict::Refused(reason), self.cost, hint)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let cell = &self.cell;
        // In a forked child somebody who is gone may hold the lock, and the place is the parent's.
        if !cell.core.home.is_here() {
            return;
        }
        let mut queue = cell.queue();
        if !queue.has(self.number) {
            return;
        }
        queue.abandoned = queue.abandoned.saturating_add(self.cost);
        self.leave(queue, cell.core.clock.boot());
        cell.counts.gave_up.fetch_add(1, Ordering::Relaxed);
    }
}
