//! The test's time: Tokio's paused clock, and what a machine's clocks make of it.

use crate::clock::Clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::bucket::Now;
use tollgate_core::units::{BootTime, LedgerTime, Span, WallTime};

/// What the three kinds of clocks show when a group begins. All differ, so that code which mixes them up shows it.
const BOOT: BootTime = BootTime(5_000_000);
const LEDGER: LedgerTime = LedgerTime(1_000_000_000);
const WALL: WallTime = WallTime(1_000_000_000_000);

/// All clocks of one group. They stand still unless the test's time goes on.
pub(super) struct Time {
    start: Instant,
    /// Time in which the machine slept: Tokio's clock doesn't count it.
    slept_us: AtomicU64,
}

impl Time {
    pub(super) fn new() -> Time {
        Time { start: Instant::now(), slept_us: AtomicU64::new(0) }
    }

    fn passed(&self) -> Span {
        let awake = micros(self.start.elapsed());
        Span(awake.saturating_add(self.slept_us.load(Ordering::Relaxed)))
    }

    pub(super) fn ledger(&self) -> LedgerTime {
        LEDGER + self.passed()
    }

    pub(super) fn sleep(&self, time: Duration) {
        self.slept_us.fetch_add(micros(time), Ordering::Relaxed);
    }
}

impl Clock for Time {
    fn boot(&self) -> BootTime {
        BOOT + self.passed()
    }

    fn now(&self) -> Now {
        let passed = self.passed();
        Now { boot: BOOT + passed, wall: WALL + passed }
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whether Tokio's clock stands still while the machine's goes on.
pub(super) fn is_paused() -> bool {
    let (frozen, real) = (Instant::now(), std::time::Instant::now());
    while real.elapsed() < Duration::from_micros(1) {
        std::hint::spin_loop();
    }
    Instant::now() == frozen
}
