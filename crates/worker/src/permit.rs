//! The right to do one piece of work.

use crate::limit::Cell;
use crate::local;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::bucket::{Admitted, Level};
use tollgate_core::units::BootTime;

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It worked.
    Success,
    /// The downstream failed.
    Failure,
    /// It worked, but took too long.
    Slow,
    /// It says nothing about the downstream: a bad input, a cancellation.
    Ignored,
    /// The downstream asked for less: 429, RESOURCE_EXHAUSTED.
    Throttled,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Outcome; 5] =
        [Outcome::Success, Outcome::Failure, Outcome::Slow, Outcome::Ignored, Outcome::Throttled];
}

/// The right to do one piece of work, now. Dropped without [`Permit::settle`] it counts as what was charged.
///
/// Of a meter that limits what is in flight, it is held for as long as it lives: keep it until the work is done.
#[must_use = "a permit is charged when it is handed out: do the work, or settle it with 0"]
#[derive(Debug)]
pub struct Permit {
    /// `None` only while it is dropped.
    cell: Option<Arc<Cell>>,
    cost: u64,
    admitted: Admitted,
}

tokio::task_local! {
    /// The permit of the activity that runs in this task.
    static CURRENT: CurrentPermit;
}

/// A look at the permit that the running activity was started with.
#[derive(Clone, Debug)]
pub struct CurrentPermit {
    cell: Arc<Cell>,
    admitted: Admitted,
}

impl CurrentPermit {
    /// The permit that [`ActivityGate`](crate::ActivityGate) got for the activity that runs here; `None` outside of such an
    /// activity, or in a task that it spawned.
    pub fn get() -> Option<CurrentPermit> {
        CURRENT.try_with(CurrentPermit::clone).ok()
    }

    /// Runs `work` with a permit that came from elsewhere as the current one.
    pub(crate) async fn scope<F: Future>(cell: &Arc<Cell>, admitted: Admitted, work: F) -> F::Output {
        CURRENT.scope(CurrentPermit { cell: Arc::clone(cell), admitted }, work).await
    }

    /// Whether the work may start now: ask just before sending, in case the process was paused since.
    pub fn is_valid(&self) -> bool {
        is_valid(&self.cell, self.admitted)
    }

    /// For how much longer the work may start.
    pub fn valid_for(&self) -> Duration {
        valid_for(&self.cell, self.admitted)
    }
}

/// Not in a forked child: the permit is its parent's.
fn is_valid(cell: &Cell, admitted: Admitted) -> bool {
    cell.core.home.is_here() && cell.core.clock.boot() < admitted.valid_until
}

fn valid_for(cell: &Cell, admitted: Admitted) -> Duration {
    if !cell.core.home.is_here() {
        return Duration::ZERO;
    }
    Duration::from_micros(admitted.valid_until.since(cell.core.clock.boot()).0)
}

impl Permit {
    /// Runs `work` with this permit as the current one.
    pub(crate) async fn scope<F: Future>(&self, work: F) -> F::Output {
        match &self.cell {
            Some(cell) => CurrentPermit::scope(cell, self.admitted, work).await,
            None => work.await,
        }
    }

    pub(crate) fn new(cell: Arc<Cell>, cost: u64, admitted: Admitted) -> Permit {
        Permit { cell: Some(cell), cost, admitted }
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The limit that it was charged to.
    pub fn limit(&self) -> &str {
        self.cell.as_ref().map_or("", |cell| &cell.name)
    }

    /// When it was handed out, by the gate's clock.
    pub fn admitted_at(&self) -> BootTime {
        self.admitted.at
    }

    /// The work must have started before this, by the gate's clock.
    pub fn valid_until(&self) -> BootTime {
        self.admitted.valid_until
    }

    /// For how much longer the work may start.
    pub fn valid_for(&self) -> Duration {
        self.cell.as_ref().map_or(Duration::ZERO, |cell| valid_for(cell, self.admitted))
    }

    /// Whether the work may start now: ask just before sending, in case the process was paused since.
    pub fn is_valid(&self) -> bool {
        self.cell.as_ref().is_some_and(|cell| is_valid(cell, self.admitted))
    }

    /// Ends when the lease that this permit lives by has ended: its work must stop, since the fleet counts on that from then on,
    /// and whatever the downstream does longer must be within the limit's `drain`. Only for permits that are held while work is
    /// in flight; for all others it never ends.
    ///
    /// Leases are renewed as long as the coordinator is heard, so this is for `select!` beside the work.
    pub async fn lost(&self) {
        let Some(cell) = self.cell.as_ref().filter(|_| self.admitted.puts_back()) else {
            return std::future::pending().await;
        };
        loop {
            let (now, ends) = (cell.core.clock.boot(), cell.level.expiry());
            let is_same = cell.level.generation() == self.admitted.generation;
            if !is_same || now >= ends || !cell.core.home.is_here() {
                return;
            }
            tokio::time::sleep(Duration::from_micros(ends.since(now).0)).await;
        }
    }

    /// Says what it really cost and how it went. What was charged beyond `actual` goes back as far as that is safe (the
    /// source has refilled meanwhile); what was used beyond the charge is charged now, into debt if need be.
    pub fn settle(self, actual: u64, outcome: Outcome) {
        let Some(cell) = self.cell.as_ref().filter(|cell| cell.core.home.is_here()) else { return };
        cell.note(outcome);
        if actual == self.cost || self.admitted.puts_back() {
            return;
        }
        {
            let mut client = cell.core.client();
            let Some(client_cell) = cell.index.and_then(|index| client.cell_mut(index)) else { return };
            let now = cell.core.clock.now();
            let level = &*cell.level;
            let (mint, _) = client_cell.bucket();
            if actual < self.cost {
                // The earliest time at which it can have been charged: what has come in since lessens the refund.
                let charged = BootTime(self.admitted.at.0.saturating_sub(cell.core.clock.error().0));
                let back = mint.refund(level, self.cost - actual, charged, now);
                cell.counts.meter.refunded(if mint.conserves() { 0 } else { back });
            } else {
                mint.overdraw(level, actual - self.cost);
            }
        }
        if cell.level.has_waiters() && cell.level.level() > 0 {
            cell.core.kick.notify_one();
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            if self.admitted.puts_back() {
                cell.release(self.cost, self.admitted);
            }
            local::keep(cell);
        }
    }
}
