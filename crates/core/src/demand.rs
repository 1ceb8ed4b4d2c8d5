//! How much a worker wants: the rate at which work arrives, smoothed, and what waits.

use crate::units::{BootTime, Span, clamp_u64};

/// The least time over which arrivals are smoothed. A third of a second follows a moving load; a second lags behind it.
const SMOOTHING_MIN: Span = Span::from_millis(300);
/// The longest such time.
const SMOOTHING_MAX: Span = Span::from_secs(4);
/// Where so many tokens take longer to arrive, they are what is smoothed over: with fewer, chance is all that is seen.
const SMOOTHING_TOKENS: u64 = 16;
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
        let tokens_take = SMOOTHING_TOKENS * 1_000_000_000_000 / self.rate_micro.max(1);
        let smoothing = tokens_take.clamp(SMOOTHING_MIN.0, SMOOTHING_MAX.0);
        let weight = elapsed.0.min(smoothing);
        let kept = u128::from(self.rate_micro) * u128::from(smoothing - weight);
        let added = u128::from(latest) * u128::from(weight);
        self.rate_micro = clamp_u64((kept + added) / u128::from(smoothing));
        self.at = now;
        self.requested = requested;
    }

    /// Wanted tokens a second, in millionths: arrivals, and what waits as if it should be gone within a second.
    pub fn wanted_micro(&self, waiting: u64) -> u64 {
        self.rate_micro.saturating_add(waiting.saturating_mul(1_000_000))
    }
}
