//! The count that threads take from without a lock.
//!
//! Tokens lie in a shared count and in *pockets*, one for each of the first threads that ask. A pocket is filled from the
//! shared count, a large part at a time and only while there is plenty; only its thread takes from it, with plain loads and
//! stores: no other processor's cache line is touched, and no locked instruction is needed. Whoever misses tokens takes from the
//! shared count by compare-and-swap, and when that doesn't hold enough, collects all pockets first: no token is out of reach.
//!
//! Filling and collecting pockets happens under a mutex that takers never wait for while there are tokens. Collecting has to
//! stop a pocket's thread, which announces itself in the pocket (`busy`) and then looks whether it is barred, while the
//! collector bars it and then looks whether it is busy: see [`crate::sync`] for the barriers between.
//!
//! Invariants:
//! - Only under the mutex does a token move between the places; so under the mutex the sum over all of them only falls by
//!   what is taken, and rises by what [`Level::add`] adds.
//! - A token is in nobody's hands between moves, so what is left of a lease that has ended is all collected, and nothing
//!   of it can come back.
//! - While the shared count is negative all pockets are empty: debt is taken after collecting, and pockets are filled from
//!   what is there.

use crate::sync::{
    AtomicI64, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError, heavy_barrier, light_barrier,
    pause,
};
use std::sync::Arc;
use tollgate_core::bucket::{Level, after_taking, next_generation};
use tollgate_core::units::{BootTime, Span};

/// A pocket gets this part of what is there: one in so many.
const POCKET_PART: i64 = 4;
/// A pocket is filled only when it then serves this many requests; else the shared count does.
const POCKET_SERVES_MIN: u64 = 16;
/// Pockets are marked in one word.
pub(crate) const POCKETS_MAX: usize = 64;

/// All that the hot path touches, on cache lines of its own (two, since processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct AtomicLevel {
    /// Published this much early: what the clock that takers read may be off by.
    early: Span,
    expiry: AtomicU64,
    /// The largest cost seen lately.
    largest: AtomicU64,
    /// Waiters whose turn comes before any newcomer's.
    waiting: AtomicU32,
    /// See [`Level::generation`]. Written under the mutex.
    generation: AtomicU32,
    /// See [`Level::looks`]. Written by the mint alone.
    looks: AtomicU64,
    pockets: Box<[Pocket]>,
    shared: Shared,
    /// Pockets that were filled since they were last collected, one bit each.
    filled: Mutex<u64>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shared {
    tokens: AtomicI64,
    /// Permits handed out, other than from pockets.
    granted: AtomicU64,
    /// Tokens put back that are no longer in use.
    released: AtomicU64,
}

/// Tokens of one thread.
#[derive(Debug)]
#[repr(align(128))]
struct Pocket {
    /// Written by the thread: it is about to take.
    busy: AtomicU32,
    /// Written by collectors: the thread must keep out.
    barred: AtomicU32,
    /// Written by the thread while it is busy and not barred, or fills it; by a collector while the thread is barred and not busy.
    tokens: AtomicU64,
    /// Permits handed out from here. Written by the thread.
    granted: AtomicU64,
}

impl Pocket {
    fn new() -> Pocket {
        Pocket {
            busy: AtomicU32::new(0),
            barred: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            granted: AtomicU64::new(0),
        }
    }

    /// Takes all or nothing, and counts a permit. Only for the pocket's thread.
    #[inline]
    fn take(&self, cost: u64) -> bool {
        self.busy.store(1, Ordering::Relaxed);
        // Pairs with the heavy barrier in `collect`: either the bar shows here, or `busy` there.
        light_barrier();
        let mut taken = false;
        // Acquire, paired with the release in `collect`: who finds no bar finds the pocket as the last collector left it.
        if self.barred.load(Ordering::Acquire) == 0
            && let Some(rest) = self.tokens.load(Ordering::Relaxed).checked_sub(cost)
        {
            self.tokens.store(rest, Ordering::Relaxed);
            self.granted.store(self.granted.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            taken = true;
        }
        // Release, paired with the acquire in `collect`: the collector sees what is left.
        self.busy.store(0, Ordering::Release);
        taken
    }
}

impl AtomicLevel {
    /// An empty level with pockets for threads numbered below `pockets`; its expiry is published `early`.
    pub(crate) fn new(pockets: usize, early: Span) -> AtomicLevel {
        AtomicLevel {
            early,
            expiry: AtomicU64::new(0),
            largest: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            looks: AtomicU64::new(0),
            pockets: (0..pockets.min(POCKETS_MAX)).map(|_| Pocket::new()).collect(),
            shared: Shared {
                tokens: AtomicI64::new(0),
                granted: AtomicU64::new(0),
                released: AtomicU64::new(0),
            },
            filled: Mutex::new(0),
        }
    }

    /// Takes `cost` tokens for a permit, and counts it, when that needs no waiting for anybody. `thread` is the caller's
    /// number, which no other thread uses meanwhile; any number without a pocket stands for nobody in particular.
    ///
    /// `false` doesn't mean that the tokens aren't there: [`Level::take`] tells.
    #[inline]
    pub(crate) fn take_quickly(&self, thread: usize, cost: u64) -> bool {
        self.pockets.get(thread).is_some_and(|pocket| pocket.take(cost)) || self.take_plainly(thread, cost)
    }

    /// The same, from the caller's pocket only.
    #[inline]
    pub(crate) fn take_from_pocket(&self, thread: usize, cost: u64) -> bool {
        if cost > 1 {
            self.note_cost(cost);
        }
        self.pockets.get(thread).is_some_and(|pocket| pocket.take(cost))
    }

    #[inline(never)]
    fn take_plainly(&self, thread: usize, cost: u64) -> bool {
        if let Some(pocket) = self.pockets.get(thread)
            && self.fill(thread, pocket, cost)
            && pocket.take(cost)
        {
            return true;
        }
        let taken = self.take_shared(cost);
        if taken {
            self.count_grant();
        }
        taken
    }

    /// Fills the caller's pocket, if there is plenty and nobody else is moving tokens.
    fn fill(&self, thread: usize, pocket: &Pocket, cost: u64) -> bool {
        let part = |level: i64| {
            let part = u64::try_from(level / POCKET_PART).ok()?;
            (part / POCKET_SERVES_MIN >= cost).then_some(part)
        };
        let mut level = self.shared.tokens.load(Ordering::Relaxed);
        if part(level).is_none() {
            return false;
        }
        let mut filled = match self.filled.try_lock() {
            Ok(filled) => filled,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        while let Some((part, rest)) = part(level).and_then(|part| Some((part, after_taking(level, part)?))) {
            match self.shared.tokens.compare_exchange_weak(level, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    // No collector is at work, and the thread that takes from here is this one.
                    let there = pocket.tokens.load(Ordering::Relaxed);
                    pocket.tokens.store(there.saturating_add(part), Ordering::Relaxed);
                    *filled |= 1 << thread;
                    return true;
                }
                Err(newer) => level = newer,
            }
        }
        false
    }

    /// A compare-and-swap loop: all or nothing, and never below zero by taking.
    ///
    /// Acquire and release: who takes tokens of a lease also sees the end of the lease before it (see [`Level::expiry`]),
    /// and the clock, which is read after this returns, can't be read before by reordering.
    fn take_shared(&self, cost: u64) -> bool {
        let mut level = self.shared.tokens.load(Ordering::Relaxed);
        while let Some(rest) = after_taking(level, cost) {
            match self.shared.tokens.compare_exchange_weak(level, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => level = newer,
            }
        }
        false
    }

    fn add_shared(&self, tokens: i64) {
        let mut level = self.shared.tokens.load(Ordering::Relaxed);
        loop {
            let sum = level.saturating_add(tokens);
            match self.shared.tokens.compare_exchange_weak(level, sum, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => level = newer,
            }
        }
    }

    fn moving(&self) -> MutexGuard<'_, u64> {
        // Nothing panics while it is held.
        self.filled.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether [`Self::take_quickly`] would find `cost` tokens where it looks first. A look that touches what taking touches, so
    /// that who takes from several levels seldom has to put anything back.
    #[inline]
    pub(crate) fn seems_to_hold(&self, thread: usize, cost: u64) -> bool {
        let in_pocket =
            self.pockets.get(thread).is_some_and(|pocket| pocket.tokens.load(Ordering::Relaxed) >= cost);
        in_pocket || after_taking(self.shared.tokens.load(Ordering::Relaxed), cost).is_some()
    }

    /// Empties all pockets into the shared count.
    fn collect(&self, filled: &mut u64) {
        if *filled == 0 {
            return;
        }
        let mask = *filled;
        let marked = || self.pockets.iter().enumerate().filter(move |(i, _)| mask >> i & 1 == 1);
        for (_, pocket) in marked() {
            pocket.barred.store(1, Ordering::Relaxed);
        }
        heavy_barrier();
        for (_, pocket) in marked() {
            let mut looks = 0;
            while pocket.busy.load(Ordering::Acquire) != 0 {
                pause(looks);
                looks += 1;
            }
            let tokens = pocket.tokens.load(Ordering::Relaxed);
            pocket.tokens.store(0, Ordering::Relaxed);
            self.add_shared(i64::try_from(tokens).unwrap_or(i64::MAX));
            pocket.barred.store(0, Ordering::Release);
        }
        *filled = 0;
    }

    /// Whether no thread is in the middle of anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        let moving = matches!(self.filled.try_lock(), Err(TryLockError::WouldBlock));
        !moving && self.pockets.iter().all(|pocket| pocket.busy.load(Ordering::Acquire) == 0)
    }

    /// Counts one permit. Only statistics: no order is needed.
    pub(crate) fn count_grant(&self) {
        self.shared.granted.fetch_add(1, Ordering::Relaxed);
    }
    /// Takes back the count of one that [`Self::take_quickly`] took tokens for, and that wasn't handed out.
    #[inline]
    pub(crate) fn uncount_grant(&self) {
        self.shared.granted.fetch_sub(1, Ordering::Relaxed);
    }
    pub(crate) fn granted(&self) -> u64 {
        let pockets = self.pockets.iter().map(|pocket| pocket.granted.load(Ordering::Relaxed));
        pockets.fold(self.shared.granted.load(Ordering::Relaxed), u64::wrapping_add)
    }
    /// Remembers the largest cost; writes only when it grows, so that the usual case is one load.
    #[inline]
    pub(crate) fn note_cost(&self, cost: u64) {
        if self.largest.load(Ordering::Relaxed) < cost {
            self.largest.fetch_max(cost, Ordering::Relaxed);
        }
    }
    /// The largest cost since the last call.
    pub(crate) fn take_largest(&self) -> u64 {
        self.largest.swap(0, Ordering::Relaxed)
    }
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }
    /// Whether somebody waits. Pairs with [`Self::set_waiting`]: who sees a waiter gone also sees its tokens gone.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
    /// Set under the queue's lock only.
    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Release);
    }
}

/// A level shared by the lease's keeper and everybody who takes.
#[derive(Clone, Debug)]
pub(crate) struct SharedLevel(pub(crate) Arc<AtomicLevel>);

impl Level for SharedLevel {
    fn level(&self) -> i64 {
        self.0.level()
    }
    fn take(&self, cost: u64) -> bool {
        self.0.take(cost)
    }
    fn add(&self, tokens: i64) {
        self.0.add(tokens);
    }
    fn generation(&self) -> u32 {
        self.0.generation()
    }
    fn begin_generation(&self, puts_back: bool) {
        self.0.begin_generation(puts_back);
    }
    fn release(&self, tokens: u64, generation: u32) {
        self.0.release(tokens, generation);
    }
    fn released(&self) -> u64 {
        self.0.released()
    }
    fn expiry(&self) -> BootTime {
        self.0.expiry()
    }
    fn set_expiry(&self, expiry: BootTime) {
        self.0.set_expiry(expiry);
    }
    fn looks(&self) -> u64 {
        self.0.looks()
    }
    fn note_look(&self) {
        self.0.note_look();
    }
}

impl Level for AtomicLevel {
    fn level(&self) -> i64 {
        let _nothing_moves = self.moving();
        let pockets = self.pockets.iter().map(|pocket| pocket.tokens.load(Ordering::Acquire));
        pockets.fold(self.shared.tokens.load(Ordering::Acquire), |sum, tokens| {
            sum.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX))
        })
    }

    /// Finds tokens wherever they are.
    fn take(&self, cost: u64) -> bool {
        if self.take_shared(cost) {
            return true;
        }
        let mut filled = self.moving();
        self.collect(&mut filled);
        // All there is lies in one place, until the mutex is free again.
        self.take_shared(cost)
    }

    fn add(&self, tokens: i64) {
        if tokens >= 0 {
            return self.add_shared(tokens);
        }
        let mut filled = self.moving();
        self.collect(&mut filled);
        self.add_shared(tokens);
    }

    #[inline]
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn begin_generation(&self, puts_back: bool) {
        let _nothing_moves = self.moving();
        let next = next_generation(self.generation(), puts_back);
        self.generation.store(next, Ordering::Release);
    }

    /// Under the mutex, so that no generation begins between the look and the count.
    fn release(&self, tokens: u64, generation: u32) {
        let _nothing_moves = self.moving();
        if generation != self.generation() {
            return;
        }
        self.add_shared(i64::try_from(tokens).unwrap_or(i64::MAX));
        // Release, paired with the acquire in `released`: whoever sees the count also sees the tokens.
        self.shared.released.fetch_add(tokens, Ordering::Release);
    }

    fn released(&self) -> u64 {
        self.shared.released.load(Ordering::Acquire)
    }

    /// Acquire, paired with the release in [`Self::set_expiry`]: a lease's end is published after the tokens of the lease
    /// before it were taken out, so that whoever reads the new end can't find the old tokens.
    #[inline]
    fn expiry(&self) -> BootTime {
        BootTime(self.expiry.load(Ordering::Acquire))
    }

    fn set_expiry(&self, expiry: BootTime) {
        self.expiry.store(expiry.0.saturating_sub(self.early.0), Ordering::Release);
    }

    /// Acquire, paired with the release in [`Self::note_look`]: what is taken after this was read, no look before it can have
    /// missed.
    #[inline]
    fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Not read-modify-write: there is one mint, and one at a time has it.
    fn note_look(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}
