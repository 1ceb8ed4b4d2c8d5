//! How much a worker wants: the rate at which work arrives, smoothed over a third of a second, and what waits.

use crate::units::{BootTime, Span, clamp_u64};

/// The time over which arrivals are smoothed. A third of a second follows a moving load; a second lags behind it.
const SMOOTHING: Span = Span::from_millis(300);
/// Arrivals are looked at in steps of at least this.
const STEP: Span = Span::from_millis(50);

/// Estimates demand in millionths of a token a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    at: BootTime,
    requested: u64,
    rate_micro: u64,
    started: bool,
}

impl Demand {
    /// Takes in that `requested` tokens have been asked for since the beginning.
    pub fn observe(&mut self, now: BootTime, requested: u64) {
        if !self.started {
            *self = Demand { at: now, requested, rate_micro: 0, started: true };
            return;
        }
        let elapsed = now.since(self.at);
        if elapsed < STEP {
            return;
        }
        let arrived = u128::from(requested.saturating_sub(self.requested));
        let latest = clamp_u64(arrived * 1_000_000_000_000 / u128::from(elapsed.0));
        let weight = elapsed.0.min(SMOOTHING.0);
        let kept = u128::from(self.rate_micro) * u128::from(SMOOTHING.0 - weight);
        let added = u128::from(latest) * u128::from(weight);
        self.rate_micro = clamp_u64((kept + added) / u128::from(SMOOTHING.0));
        self.at = now;
        self.requested = requested;
    }

    /// Wanted tokens a second, in millionths: arrivals, and what waits as if it should be gone within a second.
    pub fn wanted_micro(&self, waiting: u64) -> u64 {
        self.rate_micro.saturating_add(waiting.saturating_mul(1_000_000))
    }
}
