//! What the level is built from: atomics, a mutex, and two barriers of unequal cost that go together.
//!
//! Two threads that each write a word and then read the other's need a full barrier between writing and reading, or each may
//! miss what the other wrote. Where one side does this millions of times and the other hardly ever, the seldom one can pay for
//! both: `membarrier(2)` makes every running thread of the process pass a full barrier, and the frequent side only
//! has to keep the compiler from reordering.
//!
//! The model in `crates/worker/model` builds the level against its own version of this module, with loom's types.

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, TryLockError};

use std::sync::OnceLock;
use std::sync::atomic::{compiler_fence, fence};
use std::time::Duration;

/// Without `membarrier`, a store is visible to others after this long at the latest, and a thread that was preempted has passed
/// a barrier: both take microseconds.
const SETTLED: Duration = Duration::from_millis(10);
/// So many looks, then the processor is left to others between looks.
const LOOKS: u32 = 100;
/// Between looks at somebody who doesn't get a processor.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// The frequent side's barrier: free. Only together with [`heavy_barrier`], and only where [`has_heavy_barrier`].
#[inline(always)]
pub(crate) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Whether the operating system can make other threads pass a barrier.
pub(crate) fn has_heavy_barrier() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| machine::register() && machine::barrier())
}

/// The seldom side's barrier: a full one here and in every thread that runs meanwhile.
pub(crate) fn heavy_barrier() {
    if !machine::barrier() {
        // It worked at the start, so somebody has forbidden it since.
        fence(Ordering::SeqCst);
        std::thread::sleep(SETTLED);
        fence(Ordering::SeqCst);
    }
}

/// Between looks at what another thread is about to do: it needs nanoseconds, unless it doesn't get a processor.
pub(crate) fn pause(looks: u32) {
    if looks < LOOKS {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(target_os = "linux")]
mod machine {
    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

    pub(super) fn register() -> bool {
        membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }
    pub(super) fn barrier() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod machine {
    pub(super) fn register() -> bool {
        false
    }
    pub(super) fn barrier() -> bool {
        false
    }
}
