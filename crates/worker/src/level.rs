//! The count that threads take from without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use tollgate_core::bucket::{Level, after_taking};
use tollgate_core::units::BootTime;

/// All that the hot path touches, on cache lines of its own (two, since processors fetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct AtomicLevel {
    tokens: AtomicI64,
    expiry: AtomicU64,
    /// Permits handed out.
    granted: AtomicU64,
    /// The largest cost seen lately.
    largest: AtomicU64,
    /// Waiters whose turn comes before any newcomer's.
    waiting: AtomicU32,
}

impl AtomicLevel {
    /// Counts one permit. Only statistics: no order is needed.
    pub(crate) fn count_grant(&self) {
        self.granted.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }
    /// Remembers the largest cost; writes only when it grows, so that the usual case is one load.
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
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
    /// Set under the queue's lock only.
    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Release);
    }
}

/// A level shared by the lease's keeper and everybody who takes.
#[derive(Clone, Debug, Default)]
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
    fn expiry(&self) -> BootTime {
        self.0.expiry()
    }
    fn set_expiry(&self, expiry: BootTime) {
        self.0.set_expiry(expiry);
    }
}

impl Level for AtomicLevel {
    fn level(&self) -> i64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// A compare-and-swap loop: all or nothing, and never below zero by taking.
    ///
    /// Acquire and release: who takes tokens of a lease also sees the end of the lease before it (see [`Self::expiry`]),
    /// and the clock, which is read after this returns, can't be read before by reordering.
    fn take(&self, cost: u64) -> bool {
        let mut level = self.tokens.load(Ordering::Relaxed);
        while let Some(rest) = after_taking(level, cost) {
            match self.tokens.compare_exchange_weak(level, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => level = newer,
            }
        }
        false
    }

    fn add(&self, tokens: i64) {
        let sum = |level: i64| Some(level.saturating_add(tokens));
        // The closure never returns `None`, so this can't fail.
        let _always = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Relaxed, sum);
    }

    /// Acquire, paired with the release in [`Self::set_expiry`]: a lease's end is published after the tokens of the lease
    /// before it were taken out, so that whoever reads the new end can't find the old tokens.
    fn expiry(&self) -> BootTime {
        BootTime(self.expiry.load(Ordering::Acquire))
    }

    fn set_expiry(&self, expiry: BootTime) {
        self.expiry.store(expiry.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::bucket::{Refusal, admit};

    #[test]
    fn threads_never_take_more_than_there_is() {
        let level = SharedLevel::default();
        level.set_expiry(BootTime(10));
        level.add(10_000);
        let taken: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4)
                .map(|cost| {
                    let level = level.clone();
                    scope.spawn(move || (0..).take_while(|_| level.take(cost)).count() as u64 * cost)
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken + u64::try_from(level.level()).unwrap(), 10_000);
    }

    #[test]
    fn tokens_are_void_from_the_expiry_on() {
        let level = SharedLevel::default();
        level.set_expiry(BootTime(10));
        level.add(2);
        assert!(admit(&level, 1, || BootTime(9)).is_ok());
        assert_eq!(admit(&level, 1, || BootTime(10)), Err(Refusal::Expired));
        assert_eq!(admit(&level, 1, || BootTime(9)), Err(Refusal::Empty));
    }

    #[test]
    fn huge_debts_stay_debts() {
        let level = SharedLevel::default();
        level.add(-i64::MAX);
        level.add(-i64::MAX);
        assert_eq!(level.level(), i64::MIN);
        assert!(!level.take(1));
    }
}
