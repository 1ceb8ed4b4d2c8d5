//! What time it is.

use tollgate_core::bucket::Now;
use tollgate_core::units::{BootTime, Span, WallTime};

pub use crate::counter::CounterClock;

/// A process's clocks. The hot path reads [`Clock::boot`] once per permit, so it must be cheap.
pub trait Clock: Send + Sync + 'static {
    /// Elapsed time, suspend included, in microseconds from any origin. Never runs back by more than [`Clock::error`].
    fn boot(&self) -> BootTime;
    /// Elapsed and wall time, read together. The elapsed time is exact and never runs back.
    fn now(&self) -> Now;
    /// The most that [`Clock::boot`] may be off by, compared with [`Clock::now`]. Leases end this much early for takers.
    fn error(&self) -> Span {
        Span::ZERO
    }
    /// Asked by a gate's keeper in each of its rounds: whether the clock has run true since it was last asked. When not, all
    /// leases are ended.
    fn is_steady(&self) -> bool {
        true
    }
}

/// The machine's clocks: `CLOCK_BOOTTIME`, read through the vDSO without a system call, and the wall clock.
///
/// Where there is no boot-time clock, the monotonic one takes its place; a suspend then shows in wall time and ends the
/// lease by that.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const ELAPSED: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const ELAPSED: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

fn micros(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000;
    secs.saturating_mul(1_000_000).saturating_add(micros)
}

impl Clock for SystemClock {
    fn boot(&self) -> BootTime {
        BootTime(micros(ELAPSED))
    }
    fn now(&self) -> Now {
        Now { boot: self.boot(), wall: WallTime(micros(rustix::time::ClockId::Realtime)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_run_forward_in_microseconds() {
        let before = SystemClock.now();
        std::thread::yield_now();
        let after = SystemClock.now();
        assert!(before.boot <= after.boot && before.boot.0 > 0);
        // Later than 2020: microseconds, not milliseconds.
        assert!(after.wall.0 > 1_577_836_800_000_000);
    }
}
