//! Clocks that run a little fast or slow, and may stand still.

use tollgate_core::units::BootTime;

const MILLION: i128 = 1_000_000;

/// A worker's elapsed-time clock as a function of true time, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    base_true: u64,
    base: u64,
    ppm: i64,
    stopped: bool,
}

impl Clock {
    /// A clock that shows `shows` at true time `at` and gains `ppm` microseconds a second.
    pub const fn new(at: u64, shows: u64, ppm: i64) -> Clock {
        Clock { base_true: at, base: shows, ppm, stopped: false }
    }

    /// What it shows at true time `t`; earlier than its start it shows what it began with.
    pub fn at(&self, t: u64) -> BootTime {
        if self.stopped {
            return BootTime(self.base);
        }
        let elapsed = i128::from(t.saturating_sub(self.base_true));
        let gained = elapsed * (MILLION + i128::from(self.ppm)) / MILLION;
        BootTime(self.base.saturating_add(u64::try_from(gained).unwrap_or(0)))
    }

    /// The earliest true time at which it shows `boot`; `None` while it stands still.
    pub fn when(&self, boot: BootTime) -> Option<u64> {
        if self.stopped {
            return None;
        }
        let gained = i128::from(boot.0.saturating_sub(self.base));
        let speed = (MILLION + i128::from(self.ppm)).max(1);
        let elapsed = (gained * MILLION + speed - 1) / speed;
        Some(self.base_true.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }

    /// Stands still from `t` on.
    pub fn stop(&mut self, t: u64) {
        self.base = self.at(t).0;
        self.stopped = true;
    }

    /// Runs again from `t` on.
    pub fn start(&mut self, t: u64) {
        self.base = self.at(t).0;
        self.base_true = t;
        self.stopped = false;
    }
}
