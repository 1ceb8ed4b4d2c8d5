//! One limit of a gate.

use crate::acquire::Acquire;
use crate::audit::AdmissionLog;
use crate::charges::Charges;
use crate::clock::Clock;
use crate::counter;
use crate::error::{AcquireError, Reason, Refused};
use crate::fork::Home;
use crate::gate::Inner;
use crate::lenders::Lenders;
use crate::level::{AtomicLevel, POCKETS_MAX, SharedLevel};
use crate::local;
use crate::metered::CellMeter;
use crate::permit::{Outcome, Permit};
use crate::queue::{Name, Queue, RETRY_STARTING, Verdict, duration};
use crate::random::{Identities, Spread};
use crate::sync::has_heavy_barrier;
use crate::uncharged::{Shadow, Uncharged};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError, Weak};
use tokio::sync::Notify;
use tollgate_core::bucket::{Admitted, Level, Mark, Refusal, admit, admit_by};
use tollgate_core::client::Client;
use tollgate_core::limit::CellKey;
use tollgate_core::units::{BootTime, LedgerTime, Span};

/// A burst of refusals wakes the keeper at most this often.
const KICK_EVERY: Span = Span::from_millis(5);

/// A limit to take from: a handle to keep, cheap to clone, that saves looking the name up.
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) cell: Arc<Cell>,
    /// Keeps the gate going.
    pub(crate) gate: Arc<Inner>,
}

impl Limit {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.cell.key.limit
    }

    /// What is counted: `requests` unless it is another of the limit's meters.
    pub fn meter(&self) -> &str {
        &self.cell.meter
    }

    /// Takes `cost` tokens if they are there and nobody waits for them; never waits.
    ///
    /// # Errors
    /// [`AcquireError::Refused`] says when to come back; the other errors say what is wrong with the question.
    #[inline]
    pub fn try_acquire(&self, cost: u64) -> Result<Permit, AcquireError> {
        // All that isn't usual is left to functions that don't come back here: so this one needs no room on the stack.
        let cell = &self.cell;
        if !cell.is_plain {
            return self.try_by_clock(cost);
        }
        if cost > 0
            && !cell.level.has_waiters()
            && cell.core.home.is_here()
            && let Some(handle) = local::spare(cell)
        {
            // In the order that `tollgate_core::bucket::admit` gives reasons for.
            let (valid_until, mark) = (cell.level.expiry(), Mark::of(&*cell.level));
            if !cell.level.take_from_pocket(local::number_if_drawn(), cost) {
                return self.keep_and_try_slowly(handle, cost);
            }
            return match counter::read_quickly() {
                Some(at) if at < valid_until => {
                    Ok(Permit::new(handle, cost, Admitted { at, valid_until, mark }))
                }
                _ => self.finish(handle, cost, valid_until, mark),
            };
        }
        self.try_slowly(cost)
    }

    /// The same by whatever clock there is, and with a log if there is one.
    #[inline(never)]
    fn try_by_clock(&self, cost: u64) -> Result<Permit, AcquireError> {
        if cost > 0
            && let Some(admitted) = self.cell.take_quickly(cost)
        {
            return Ok(self.cell.permit(cost, admitted));
        }
        self.try_slowly(cost)
    }

    /// The tokens are taken: reads the clock by all means.
    #[cold]
    #[inline(never)]
    fn finish(
        &self,
        handle: Arc<Cell>,
        cost: u64,
        valid_until: BootTime,
        mark: Mark,
    ) -> Result<Permit, AcquireError> {
        local::keep(handle);
        let at = self.cell.core.boot();
        if at < valid_until {
            return Ok(self.cell.permit(cost, Admitted { at, valid_until, mark }));
        }
        self.cell.note_void(cost);
        if mark.puts_back() {
            self.cell.level.release(cost, mark.generation);
        }
        self.try_slowly(cost)
    }

    #[cold]
    #[inline(never)]
    fn keep_and_try_slowly(&self, handle: Arc<Cell>, cost: u64) -> Result<Permit, AcquireError> {
        local::keep(handle);
        self.try_slowly(cost)
    }

    #[inline(never)]
    fn try_slowly(&self, cost: u64) -> Result<Permit, AcquireError> {
        let cell = &self.cell;
        if cost == 0 || cell.index.is_none() {
            return Err(cell.wrong(cost));
        }
        match cell.get_quickly(cost) {
            Some(permit) => Ok(permit),
            None => Charges::One(cell.clone(), cost).try_slowly(),
        }
    }

    /// The same limit for work of another tier: its own cell, and those of the tiers that it may borrow from.
    pub fn tier(&self, tier: &str) -> Limit {
        Limit { cell: self.cell.of_tier(tier, &self.gate), gate: self.gate.clone() }
    }

    /// Asks for a permit and waits for it. The cost is 1 unless set.
    pub fn acquire(&self) -> Acquire {
        Acquire::of(Charges::One(self.cell.clone(), 1), self.gate.clone())
    }

    /// Admits work on a permit that the coordinator granted elsewhere, for `cost` until `until` of the ledger's time; `None`
    /// when it may not hold any more.
    pub(crate) fn brought(&self, until: LedgerTime, cost: u64) -> Option<Admitted> {
        let core = &self.cell.core;
        let valid_until = self.gate.shared.surely_before(until).filter(|_| core.home.is_here())?;
        let admitted = Admitted { at: core.clock.now().boot, valid_until, mark: Mark::default() };
        if let Some(log) = &core.log {
            log.admitted(admitted.at, &self.cell.name, cost);
        }
        Some(admitted)
    }
}

/// What slow paths and the keeper share.
pub(crate) struct Core {
    /// Held for microseconds, never across an await. Acquirers only try.
    pub client: Mutex<Client<SharedLevel>>,
    pub clock: Arc<dyn Clock>,
    /// Whether `clock` is the counter's, which the hot path reads without a detour.
    pub counter: bool,
    /// The process that may take.
    pub home: Home,
    /// Wakes the keeper.
    pub kick: Notify,
    pub spread: Spread,
    pub identities: Identities,
    pub log: Option<AdmissionLog>,
    pub waiters_max: usize,
    /// Whose work is never refused, by the process's own choice.
    pub shadow: Shadow,
}

impl Core {
    #[inline]
    pub(crate) fn boot(&self) -> BootTime {
        if self.counter { counter::read() } else { self.clock.boot() }
    }

    /// The client, unless somebody has it just now.
    pub(crate) fn try_client(&self) -> Option<MutexGuard<'_, Client<SharedLevel>>> {
        match self.client.try_lock() {
            Ok(client) => Some(client),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// An empty level, for a cell that can be leased or for one that can't.
    pub(crate) fn level(&self, leased: bool) -> AtomicLevel {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Twice the processors: some threads have numbers and don't take.
        let pockets =
            if leased && has_heavy_barrier() { threads.saturating_mul(2).min(POCKETS_MAX) } else { 0 };
        AtomicLevel::new(pockets, self.clock.error())
    }

    /// A panic elsewhere leaves the client usable: each of its methods keeps its invariants or doesn't return.
    pub(crate) fn client(&self) -> MutexGuard<'_, Client<SharedLevel>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody has it just now.
pub(crate) fn is_locked<T>(mutex: &Mutex<T>) -> bool {
    matches!(mutex.try_lock(), Err(TryLockError::WouldBlock))
}

/// All meters of one limit that a gate was asked for: as many as it has cells for.
#[derive(Debug, Default)]
pub(crate) struct Family(RwLock<Vec<Weak<Cell>>>);

impl Family {
    pub(crate) fn join(&self, cell: &Arc<Cell>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(cell));
    }

    /// The meters that the limit has, as far as the coordinator has said so.
    fn there(&self) -> Vec<Name> {
        let cells = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let there = cells.iter().filter_map(Weak::upgrade).filter(|cell| cell.there.load(Ordering::Relaxed));
        there.map(|cell| cell.meter.clone()).collect()
    }
}

/// One meter of one limit: a limit's part of a gate.
pub(crate) struct Cell {
    /// Limit, meter and tier in one, for logs.
    pub name: Name,
    pub key: CellKey,
    pub limit: Name,
    pub meter: Name,
    family: Arc<Family>,
    /// Whether the coordinator has it.
    pub there: AtomicBool,
    /// The cells that its work takes from when its own is dry.
    pub lenders: Lenders,
    /// Tokens that its work has taken from those.
    pub borrowed: AtomicU64,
    /// Its place among the client's cells; `None` when it can't be leased.
    pub index: Option<usize>,
    /// Why it can't be leased.
    pub fault: Option<AcquireError>,
    pub level: Arc<AtomicLevel>,
    pub core: Arc<Core>,
    /// Whether permits are timed by the processor's counter and not logged.
    is_plain: bool,
    queue: Mutex<Queue>,
    pub counts: Counts,
    /// When a refusal last woke the keeper.
    kicked: AtomicU64,
}

/// Statistics off the hot path. No order between them is promised.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub refused: [AtomicU64; Reason::ALL.len()],
    pub refused_tokens: AtomicU64,
    pub waited: AtomicU64,
    pub waited_us: AtomicU64,
    pub gave_up: AtomicU64,
    /// Tokens that were taken for nothing, since their lease had ended. They can't be put back: a newer lease may have begun.
    pub void: AtomicU64,
    pub outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Tokens that were used and not charged, since the debt was at its bound.
    pub beyond: AtomicU64,
    pub meter: CellMeter,
    pub uncharged: Uncharged,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("name", &self.name).field("level", &self.level).finish_non_exhaustive()
    }
}

impl Cell {
    pub(crate) fn new(
        name: Name,
        key: CellKey,
        family: Arc<Family>,
        index: Option<usize>,
        fault: Option<AcquireError>,
        level: Arc<AtomicLevel>,
        core: Arc<Core>,
    ) -> Cell {
        Cell {
            name,
            limit: key.limit.as_str().into(),
            meter: key.meter.as_str().into(),
            key,
            family,
            there: AtomicBool::new(false),
            lenders: Lenders::default(),
            borrowed: AtomicU64::new(0),
            index,
            fault,
            level,
            is_plain: core.counter && core.log.is_none(),
            core,
            queue: Mutex::default(),
            counts: Counts::default(),
            kicked: AtomicU64::new(0),
        }
    }

    /// The same meter of another tier.
    pub(crate) fn of_tier(&self, tier: &str, gate: &Inner) -> Arc<Cell> {
        gate.shared.cell(&self.key.limit, &self.key.meter, tier)
    }

    /// Whether no thread is in the middle of anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        !is_locked(&self.queue) && self.level.is_at_rest()
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts how a piece of work ended.
    pub(crate) fn note(&self, outcome: Outcome) {
        if let Some(count) = self.counts.outcomes.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The error of a question that can't be answered.
    #[cold]
    pub(crate) fn wrong(&self, cost: u64) -> AcquireError {
        match &self.fault {
            Some(fault) if cost > 0 => fault.clone(),
            _ => AcquireError::ZeroCost { limit: self.limit.clone(), meter: self.meter.clone() },
        }
    }

    /// The hot path: takes when nobody waits and nobody has to be waited for, and counts the permit.
    #[inline]
    pub(crate) fn take_quickly(&self, cost: u64) -> Option<Admitted> {
        if cost > 1 {
            self.level.note_cost(cost);
        }
        if self.level.has_waiters() || !self.core.home.is_here() {
            return None;
        }
        let take = |level: &AtomicLevel| level.take_quickly(local::number(), cost);
        match admit_by(&*self.level, cost, take, || self.core.boot()) {
            Ok(admitted) => Some(admitted),
            Err(Refusal::Empty) => None,
            Err(Refusal::Expired) => {
                self.note_void(cost);
                None
            }
        }
    }

    #[cold]
    fn note_void(&self, cost: u64) {
        self.level.uncount_grant();
        self.counts.void.fetch_add(cost, Ordering::Relaxed);
    }

    /// A permit of its own cell or of one that it borrows from, when that needs no waiting for anybody.
    #[inline]
    pub(crate) fn get_quickly(self: &Arc<Cell>, cost: u64) -> Option<Permit> {
        match self.take_quickly(cost) {
            Some(admitted) => Some(self.permit(cost, admitted)),
            None => self.borrow_quickly(cost),
        }
    }

    /// A permit of a cell that it borrows from. Whoever waits comes first, whatever there is to borrow.
    fn borrow_quickly(&self, cost: u64) -> Option<Permit> {
        if self.level.has_waiters() { None } else { self.borrow(cost, |lender| lender.take_quickly(cost)) }
    }

    /// The same for whoever's turn it is.
    pub(crate) fn get(self: &Arc<Cell>, cost: u64) -> Option<Permit> {
        match self.take(cost) {
            Some(admitted) => Some(self.permit(cost, admitted)),
            None => self.borrow(cost, |lender| lender.take(cost)),
        }
    }

    /// Itself when it holds as much, or the first that it borrows from that does.
    pub(crate) fn source(self: &Arc<Cell>, cost: u64) -> Option<&Arc<Cell>> {
        let holds = |cell: &&Arc<Cell>| u64::try_from(cell.level.level()).unwrap_or(0) >= cost;
        std::iter::once(self).chain(self.lenders.iter()).find(holds)
    }

    fn borrow(&self, cost: u64, take: impl Fn(&Cell) -> Option<Admitted>) -> Option<Permit> {
        let (lender, admitted) = self.lenders.iter().find_map(|lender| Some((lender, take(lender)?)))?;
        self.borrowed.fetch_add(cost, Ordering::Relaxed);
        Some(lender.permit(cost, admitted))
    }

    /// The most that is there at one place.
    pub(crate) fn level_at_most(&self) -> i64 {
        let borrowed = self.lenders.iter().map(|lender| lender.level.level());
        borrowed.fold(self.level.level(), i64::max)
    }

    /// A permit for tokens that were taken and counted.
    #[inline]
    pub(crate) fn permit(self: &Arc<Cell>, cost: u64, admitted: Admitted) -> Permit {
        if let Some(log) = &self.core.log {
            self.write_down(log, cost, admitted);
        }
        Permit::new(local::handle(self), cost, admitted)
    }

    #[cold]
    fn write_down(&self, log: &AdmissionLog, cost: u64, admitted: Admitted) {
        log.admitted(admitted.at, &self.name, cost);
    }

    /// Takes, mints what is due if nobody else is at it, and takes again; counts the permit.
    pub(crate) fn take(&self, cost: u64) -> Option<Admitted> {
        if !self.core.home.is_here() {
            return None;
        }
        let admitted = self.take_or_mint(cost);
        if admitted.is_some() {
            self.level.count_grant();
        }
        admitted
    }

    fn take_or_mint(&self, cost: u64) -> Option<Admitted> {
        let clock = || self.core.clock.boot();
        let admit = || match admit(&*self.level, cost, clock) {
            Ok(admitted) => Some(admitted),
            Err(Refusal::Empty) => None,
            Err(Refusal::Expired) => {
                self.counts.void.fetch_add(cost, Ordering::Relaxed);
                None
            }
        };
        if let Some(admitted) = admit() {
            return Some(admitted);
        }
        if let Some(mut client) = self.core.try_client()
            && let Some(cell) = self.index.and_then(|index| client.cell_mut(index))
        {
            cell.refill(self.core.clock.now());
        }
        admit()
    }

    /// The refusal of all requests in a forked child: what is held belongs to its parent, and so do the locks.
    pub(crate) fn refusal_elsewhere(&self, cost: u64) -> Option<AcquireError> {
        let here = self.core.home.is_here();
        (!here).then(|| self.refusal(Verdict::Refused(Reason::Starting), cost, Some(RETRY_STARTING)))
    }

    /// Makes and counts an error. `hint` is spread.
    pub(crate) fn refusal(&self, verdict: Verdict, cost: u64, hint: Option<Span>) -> AcquireError {
        let (limit, meter) = (self.limit.clone(), self.meter.clone());
        match verdict {
            Verdict::UnknownLimit => {
                let there = self.family.there();
                if there.is_empty() {
                    let is_plain = self.key.tier == CellKey::TIER;
                    return AcquireError::UnknownLimit {
                        limit: if is_plain { limit } else { self.name.clone() },
                    };
                }
                AcquireError::UnknownMeter { limit, meter, there }
            }
            Verdict::CostAboveBurst { burst } => AcquireError::CostAboveBurst { limit, meter, cost, burst },
            Verdict::Refused(reason) => {
                if let Some(count) = self.counts.refused.get(reason as usize) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                // Who is refused without having waited still wants tokens: the next request says so.
                if !matches!(reason, Reason::Deadline | Reason::ShuttingDown | Reason::Paused) {
                    self.counts.refused_tokens.fetch_add(cost, Ordering::Relaxed);
                }
                let retry_after = hint.map(|hint| self.core.spread.stretch(duration(hint)));
                AcquireError::Refused { limit, meter, refused: Refused { reason, retry_after } }
            }
        }
    }

    /// Takes what counts until it is put back, for the first in line: what it has of it from now on. So that it isn't lent to others while
    /// the rest is on its way.
    pub(crate) fn hold(&self, cost: u64, held: Option<Mark>, is_first: bool) -> Option<Mark> {
        let mark = Mark::of(&*self.level);
        // What was taken under another policy is counted elsewhere by now.
        let held = held.filter(|held| held.generation == mark.generation);
        held.or_else(|| (mark.puts_back() && is_first && self.level.take(cost)).then_some(mark))
    }

    /// Lets go of what was held without a permit.
    pub(crate) fn let_go(&self, cost: u64, mark: Mark) {
        self.counts.void.fetch_add(cost, Ordering::Relaxed);
        self.release(cost, mark);
    }

    /// Work is done whose tokens are put back. In a forked child they are its parent's.
    #[inline(never)]
    pub(crate) fn release(&self, cost: u64, mark: Mark) {
        if self.core.home.is_here() {
            self.level.release(cost, mark.generation);
            // Somebody here waits for them, or somebody elsewhere.
            self.kick_gently(self.core.clock.boot());
        }
    }

    /// Wakes the keeper, unless that was done just now: who asks in a tight loop shall not keep it busy.
    pub(crate) fn kick_gently(&self, now: BootTime) {
        let last = self.kicked.load(Ordering::Relaxed);
        let due = now.since(BootTime(last)) >= KICK_EVERY || last == 0;
        if due && self.kicked.compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.core.kick.notify_one();
        }
    }
}

impl crate::queue::Facts {
    /// The hint that belongs to a verdict.
    pub(crate) fn hint_of(&self, verdict: Verdict, tokens: u64, level: i64, now: BootTime) -> Option<Span> {
        match verdict {
            Verdict::Refused(reason) => self.hint(reason, tokens, level, now),
            Verdict::UnknownLimit | Verdict::CostAboveBurst { .. } => None,
        }
    }
}
