//! The right to do one piece of work.

use crate::limit::{Cell, Core};
use crate::local;
use crate::set::Several;
use crate::uncharged::UNCHARGED;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_core::bucket::{Admitted, Level, Mark};
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
///
/// # Estimates
///
/// Where the cost is known only afterwards, charge an estimate and settle it: a meter at a time, as often as figures come
/// ([`Permit::settle_meter`]), or at the end ([`Permit::settle`]).
///
/// - *It cost less:* the rest goes back at once as long as nothing was minted since the charge; later, as far as the bucket had room
///   all the time. What didn't fit was minted anew meanwhile. Of a window, what has not come back by itself.
/// - *It cost more:* the difference is charged now, into debt if need be. In debt, nothing more is granted here until the debt is
///   paid off by what this process's share brings. So the fleet goes over a meter's bound by no more than what the permits cost,
///   that are out at one time, beyond their estimates.
/// - *It cost far more:* a process's debt on one meter is at most ten bursts
///   ([`DEBT_BURSTS_MAX`](tollgate_core::limit::DEBT_BURSTS_MAX)), so that a wrong figure doesn't stop a meter for good. What is
///   beyond is not charged: [`Settled::beyond`] says so, the log warns, and `gate.state()` counts it.
#[must_use = "a permit is charged when it is handed out: do the work, or give it back"]
#[derive(Debug)]
pub struct Permit {
    held: Held,
}

#[derive(Debug)]
enum Held {
    One {
        /// Taken out only while it is dropped. (Moving all of it out would read it in wider pieces than it was just written
        /// in, for which a processor waits.)
        cell: Option<Arc<Cell>>,
        cost: u64,
        admitted: Admitted,
    },
    /// Taken out only while it is dropped.
    Several(Option<Box<Several>>),
}

/// What became of the difference between a charge and the actual cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Tokens that went back.
    pub returned: u64,
    /// Tokens that were charged in addition.
    pub charged: u64,
    /// Tokens that were used and are not charged, since the debt is at its bound.
    pub beyond: u64,
}

/// A permit was not charged to this meter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the permit was not charged to meter {meter:?}, but to {}", charged.join(", "))]
pub struct NotCharged {
    /// Which meter.
    pub meter: String,
    /// Those that it was charged to.
    pub charged: Vec<String>,
}

tokio::task_local! {
    /// The permit of the activity that runs in this task.
    static CURRENT: CurrentPermit;
}

/// A look at the permit that the running activity was started with.
#[derive(Clone)]
pub struct CurrentPermit {
    core: Arc<Core>,
    valid_until: BootTime,
}

impl std::fmt::Debug for CurrentPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CurrentPermit").field("valid_until", &self.valid_until).finish_non_exhaustive()
    }
}

impl CurrentPermit {
    /// The permit that [`ActivityGate`](crate::ActivityGate) got for the activity that runs here; `None` outside of such an
    /// activity, or in a task that it spawned.
    pub fn get() -> Option<CurrentPermit> {
        CURRENT.try_with(CurrentPermit::clone).ok()
    }

    /// Runs `work` with a permit that came from elsewhere as the current one.
    pub(crate) async fn scope<F: Future>(core: &Arc<Core>, valid_until: BootTime, work: F) -> F::Output {
        CURRENT.scope(CurrentPermit { core: Arc::clone(core), valid_until }, work).await
    }

    /// Whether the work may start now: ask just before sending, in case the process was paused since.
    pub fn is_valid(&self) -> bool {
        is_valid(&self.core, self.valid_until)
    }

    /// For how much longer the work may start.
    pub fn valid_for(&self) -> Duration {
        valid_for(&self.core, self.valid_until)
    }
}

/// Not in a forked child: the permit is its parent's.
fn is_valid(core: &Core, valid_until: BootTime) -> bool {
    core.home.is_here() && core.clock.boot() < valid_until
}

fn valid_for(core: &Core, valid_until: BootTime) -> Duration {
    if !core.home.is_here() {
        return Duration::ZERO;
    }
    Duration::from_micros(valid_until.since(core.clock.boot()).0)
}

impl Permit {
    /// Runs `work` with this permit as the current one.
    pub(crate) async fn scope<F: Future>(&self, work: F) -> F::Output {
        match self.core() {
            Some(core) => CurrentPermit::scope(core, self.valid_until(), work).await,
            None => work.await,
        }
    }

    #[inline]
    pub(crate) fn new(cell: Arc<Cell>, cost: u64, admitted: Admitted) -> Permit {
        Permit { held: Held::One { cell: Some(cell), cost, admitted } }
    }

    #[inline]
    pub(crate) fn of_several(several: Box<Several>) -> Permit {
        Permit { held: Held::Several(Some(several)) }
    }

    /// All meters that it is charged to, with what that is as settled.
    fn parts(&self) -> impl Iterator<Item = (&Arc<Cell>, u64, Admitted)> {
        let (one, several) = match &self.held {
            Held::One { cell, cost, admitted } => (cell.as_ref().map(|cell| (cell, *cost, *admitted)), None),
            Held::Several(several) => (None, several.as_ref()),
        };
        let several = several.into_iter().flat_map(|several| {
            let (at, valid_until) = (several.at, several.valid_until);
            several.charged().map(move |(cell, part)| {
                let admitted = Admitted { at, valid_until, mark: part.mark };
                (cell, part.cost, admitted)
            })
        });
        one.into_iter().chain(several)
    }

    /// The meter that was named first.
    fn first(&self) -> Option<&Arc<Cell>> {
        match &self.held {
            Held::One { cell, .. } => cell.as_ref(),
            Held::Several(several) => several.as_ref()?.set.named(0),
        }
    }

    fn core(&self) -> Option<&Arc<Core>> {
        self.first().map(|cell| &cell.core)
    }

    /// What is charged to the meter that was named first: the cost, as settled.
    pub fn cost(&self) -> u64 {
        self.first().map_or(0, |cell| self.charged_to(&cell.meter))
    }

    /// What is charged to one of the meters, as settled; 0 for a meter that it isn't charged to.
    pub fn charged_to(&self, meter: &str) -> u64 {
        self.parts().find(|(cell, ..)| *cell.meter == *meter).map_or(0, |(_, cost, _)| cost)
    }

    /// The limit that it was charged to.
    pub fn limit(&self) -> &str {
        self.first().map_or("", |cell| &cell.limit)
    }

    /// When it was handed out, by the gate's clock.
    pub fn admitted_at(&self) -> BootTime {
        match &self.held {
            Held::One { admitted, .. } => admitted.at,
            Held::Several(several) => several.as_ref().map_or(BootTime(0), |several| several.at),
        }
    }

    /// The work must have started before this, by the gate's clock.
    pub fn valid_until(&self) -> BootTime {
        match &self.held {
            Held::One { admitted, .. } => admitted.valid_until,
            Held::Several(several) => several.as_ref().map_or(BootTime(0), |several| several.valid_until),
        }
    }

    /// For how much longer the work may start.
    pub fn valid_for(&self) -> Duration {
        self.core().map_or(Duration::ZERO, |core| valid_for(core, self.valid_until()))
    }

    /// Whether the work may start now: ask just before sending, in case the process was paused since.
    pub fn is_valid(&self) -> bool {
        self.core().is_some_and(|core| is_valid(core, self.valid_until()))
    }

    /// Ends when the lease that this permit lives by has ended: its work must stop, since the fleet counts on that from then on,
    /// and whatever the downstream does longer must be within the limit's `drain`. Only for permits that are held while work is
    /// in flight; for all others it never ends.
    ///
    /// Leases are renewed as long as the coordinator is heard, so this is for `select!` beside the work.
    pub async fn lost(&self) {
        let held: Vec<(&Arc<Cell>, Mark)> = self
            .parts()
            .filter(|(.., admitted)| admitted.puts_back())
            .map(|(cell, _, admitted)| (cell, admitted.mark))
            .collect();
        if held.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let mut wait = u64::MAX;
            for (cell, mark) in &held {
                let (now, ends) = (cell.core.clock.boot(), cell.level.expiry());
                let is_same = cell.level.generation() == mark.generation;
                if !is_same || now >= ends || !cell.core.home.is_here() {
                    return;
                }
                wait = wait.min(ends.since(now).0);
            }
            tokio::time::sleep(Duration::from_micros(wait)).await;
        }
    }

    /// Says what it really cost, by the meter that was named first, and how it went. The other meters stay as they are: see
    /// [`Permit::settle_meter`]. What was charged beyond `actual` goes back as far as that is safe; what was used beyond the
    /// charge is charged now, into debt if need be: see [above](Permit#estimates).
    pub fn settle(mut self, actual: u64, outcome: Outcome) -> Settled {
        let settled = self.first().cloned().map(|cell| self.adjust(&cell, actual));
        self.note(outcome);
        settled.unwrap_or_default()
    }

    /// Says what it really cost by one of its meters, or has cost so far; the permit goes on. Of a meter that limits what is in
    /// flight: how much is held from now on.
    ///
    /// ```no_run
    /// # use tollgate_worker::{Gate, Outcome};
    /// # async fn example(gate: Gate) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut permit = gate.acquire("openai").charge("tokens", 1_200).await?;
    /// // The answer says how many it was.
    /// permit.settle_meter("tokens", 840)?;
    /// permit.finish(Outcome::Success);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NotCharged`] when the permit was not charged to that meter.
    pub fn settle_meter(&mut self, meter: &str, actual: u64) -> Result<Settled, NotCharged> {
        let cell = self.parts().find(|(cell, ..)| *cell.meter == *meter).map(|(cell, ..)| cell.clone());
        match cell {
            Some(cell) => Ok(self.adjust(&cell, actual)),
            None => {
                let charged = self.parts().map(|(cell, ..)| cell.meter.to_string());
                Err(NotCharged { meter: meter.to_owned(), charged: charged.collect() })
            }
        }
    }

    /// Says how it went. It cost what was charged, or what was settled.
    pub fn finish(self, outcome: Outcome) {
        self.note(outcome);
    }

    /// Gives it back unused, all meters of it: all that was charged as long as nothing was minted since, later as much as a
    /// settlement to zero.
    pub fn give_back(mut self) {
        let cells: Vec<Arc<Cell>> = self.parts().map(|(cell, ..)| cell.clone()).collect();
        for cell in cells {
            self.adjust(&cell, 0);
        }
    }

    fn note(&self, outcome: Outcome) {
        if self.core().is_some_and(|core| core.home.is_here()) {
            self.parts().for_each(|(cell, ..)| cell.note(outcome));
        }
    }

    /// Makes one part of it cost `actual`.
    fn adjust(&mut self, cell: &Arc<Cell>, actual: u64) -> Settled {
        let (cost, mark) = match &mut self.held {
            Held::One { cost, admitted, .. } => (cost, admitted.mark),
            Held::Several(several) => match several.as_mut().and_then(|several| several.part_mut(cell)) {
                Some(part) => (&mut part.cost, part.mark),
                None => return Settled::default(),
            },
        };
        let settled = cell.adjust(*cost, actual, mark);
        *cost = (*cost - settled.returned).saturating_add(settled.charged);
        settled
    }
}

impl Cell {
    /// Makes a charge of `cost` one of `actual`, as far as the rules allow.
    fn adjust(&self, cost: u64, actual: u64, mark: Mark) -> Settled {
        if actual == cost || mark == UNCHARGED || !self.core.home.is_here() {
            return Settled::default();
        }
        let mut settled = Settled::default();
        {
            let mut client = self.core.client();
            let Some(leased) = self.index.and_then(|index| client.cell_mut(index)) else { return settled };
            if actual < cost {
                let now = self.core.clock.now();
                let (mint, level) = leased.bucket();
                settled.returned = mint.refund(level, cost - actual, mark, now);
                self.counts.meter.refunded(if mint.conserves() { 0 } else { settled.returned });
            } else {
                settled.charged = leased.overdraw(actual - cost);
                settled.beyond = actual - cost - settled.charged;
            }
        }
        if settled.beyond > 0 {
            let before = self.counts.beyond.fetch_add(settled.beyond, Ordering::Relaxed);
            // Once: who settles wrongly does so often, and the count goes on.
            if before == 0 {
                tracing::warn!(limit = %self.name, tokens = settled.beyond, "more was used than can be owed: the rest is not charged; \
                                correct the estimates");
            }
        }
        if self.level.has_waiters() && self.level.level() > 0 {
            self.core.kick.notify_one();
        }
        settled
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        match &mut self.held {
            Held::One { cell, cost, admitted } => {
                if let Some(cell) = cell.take() {
                    if admitted.puts_back() {
                        cell.release(*cost, admitted.mark);
                    }
                    local::keep(cell);
                }
            }
            Held::Several(several) => {
                if let Some(several) = several.take() {
                    if several.is_held {
                        several.release();
                    }
                    local::keep_room(several);
                }
            }
        }
    }
}
