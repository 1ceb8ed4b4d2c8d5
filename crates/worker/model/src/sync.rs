//! The level's building blocks, by loom; and faults to plant in them.

use std::cell::Cell;

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use std::sync::TryLockError;

/// A fault to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Taking from the shared count is a load and a store.
    TakeInTwoSteps,
    /// A thread looks whether it is barred before others can see that it is busy.
    NoLightBarrier,
    /// A collector looks whether threads are busy before they can see that they are barred.
    NoHeavyBarrier,
}

thread_local! {
    // Loom runs all threads of a model on one thread of the machine.
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

pub(crate) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

fn has(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

pub(crate) fn light_barrier() {
    if !has(Fault::NoLightBarrier) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

pub(crate) fn heavy_barrier() {
    if !has(Fault::NoHeavyBarrier) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

pub(crate) fn pause(_looks: u32) {
    loom::thread::yield_now();
}

#[derive(Debug)]
pub(crate) struct AtomicI64(loom::sync::atomic::AtomicI64);

impl AtomicI64 {
    pub(crate) fn new(value: i64) -> AtomicI64 {
        AtomicI64(loom::sync::atomic::AtomicI64::new(value))
    }
    pub(crate) fn load(&self, order: Ordering) -> i64 {
        self.0.load(order)
    }
    pub(crate) fn compare_exchange_weak(
        &self,
        old: i64,
        new: i64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<i64, i64> {
        if has(Fault::TakeInTwoSteps) {
            let now = self.0.load(Ordering::Acquire);
            if now == old {
                self.0.store(new, Ordering::Release);
            }
            return if now == old { Ok(now) } else { Err(now) };
        }
        self.0.compare_exchange_weak(old, new, success, failure)
    }
}
