//! An exact token bucket in integers.

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second, and nano-tokens in a token: a rate of one a second is one nano-token per
/// nanosecond, so that no division and no remainder comes in.
const NANOS: u64 = 1_000_000_000;

/// What a downstream allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// Calls a second, from 1 to [`Allowance::MAX`].
    pub rate: u32,
    /// Calls at once after a quiet time, from 1 to [`Allowance::MAX`].
    pub burst: u32,
}

impl Allowance {
    /// Largest rate and largest burst. A full bucket of nano-tokens stays far below `u64::MAX`.
    pub const MAX: u32 = 1_000_000;
}

/// A bucket that starts full and is filled continuously.
#[derive(Debug)]
pub struct Bucket {
    allowance: Allowance,
    /// At most `allowance.burst * NANOS`.
    level_nano_tokens: u64,
    /// The level is exact for this time; it never runs back.
    level_at_ns: u64,
}

impl Bucket {
    /// A full bucket at `now_ns`. Figures outside of 1 to [`Allowance::MAX`] are moved to the nearest bound.
    pub fn new(allowance: Allowance, now_ns: u64) -> Self {
        let allowance = clamped(allowance);
        Self { allowance, level_nano_tokens: capacity(allowance), level_at_ns: now_ns }
    }

    /// What is allowed now.
    pub fn allowance(&self) -> Allowance {
        self.allowance
    }

    /// Takes one token.
    ///
    /// # Errors
    /// When there is none: the nanoseconds, rounded up, until there will be one if nobody else takes it.
    pub fn take(&mut self, now_ns: u64) -> Result<(), u64> {
        self.fill(now_ns);
        match self.level_nano_tokens.checked_sub(NANOS) {
            Some(rest) => {
                self.level_nano_tokens = rest;
                Ok(())
            }
            None => Err((NANOS - self.level_nano_tokens).div_ceil(u64::from(self.allowance.rate))),
        }
    }

    /// Changes the allowance from `now_ns` on. What was minted before is kept, up to the new burst.
    pub fn set_allowance(&mut self, allowance: Allowance, now_ns: u64) {
        self.fill(now_ns);
        self.allowance = clamped(allowance);
        self.level_nano_tokens = self.level_nano_tokens.min(capacity(self.allowance));
    }

    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.level_at_ns);
        // A product that saturates is beyond any capacity, so the minimum is exact all the same.
        let minted = elapsed_ns.saturating_mul(u64::from(self.allowance.rate));
        self.level_nano_tokens = self.level_nano_tokens.saturating_add(minted).min(capacity(self.allowance));
        self.level_at_ns = self.level_at_ns.max(now_ns);
    }
}

fn clamped(allowance: Allowance) -> Allowance {
    Allowance {
        rate: allowance.rate.clamp(1, Allowance::MAX),
        burst: allowance.burst.clamp(1, Allowance::MAX),
    }
}

fn capacity(allowance: Allowance) -> u64 {
    u64::from(allowance.burst) * NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now_ns: u64) -> u32 {
        (0..).take_while(|_| bucket.take(now_ns).is_ok()).count().try_into().unwrap()
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_not_one_more() {
        let mut bucket = Bucket::new(Allowance { rate: 50, burst: 20 }, 7);
        assert_eq!(taken(&mut bucket, 7), 20);
        assert_eq!(bucket.take(7), Err(20_000_000));
    }

    #[test]
    fn a_token_is_there_at_the_promised_nanosecond_and_not_one_before() {
        let mut bucket = Bucket::new(Allowance { rate: 3, burst: 1 }, 0);
        assert_eq!(bucket.take(0), Ok(()));
        let Err(wait_ns) = bucket.take(0) else { panic!("the burst is one") };
        assert_eq!(wait_ns, 333_333_334);
        assert_eq!(bucket.take(wait_ns - 1), Err(1));
        assert_eq!(bucket.take(wait_ns), Ok(()));
    }

    #[test]
    fn many_small_steps_mint_exactly_as_much_as_one_large_step() {
        let allowance = Allowance { rate: 7, burst: 10 };
        let (mut small, mut large) = (Bucket::new(allowance, 0), Bucket::new(allowance, 0));
        assert_eq!((taken(&mut small, 0), taken(&mut large, 0)), (10, 10));
        for now_ns in (0..=1_000_000_000).step_by(999_983) {
            small.fill(now_ns);
        }
        assert_eq!(taken(&mut small, 1_000_000_000), 7);
        assert_eq!(taken(&mut large, 1_000_000_000), 7);
    }

    #[test]
    fn a_clock_that_runs_back_mints_nothing_twice() {
        let mut bucket = Bucket::new(Allowance { rate: 1, burst: 5 }, 10 * NANOS);
        assert_eq!(taken(&mut bucket, 10 * NANOS), 5);
        assert_eq!(taken(&mut bucket, 12 * NANOS), 2);
        assert_eq!(taken(&mut bucket, 11 * NANOS), 0);
        assert_eq!(taken(&mut bucket, 12 * NANOS), 0);
    }

    #[test]
    fn a_change_mints_the_past_at_the_old_rate_and_gives_no_new_burst() {
        let mut bucket = Bucket::new(Allowance { rate: 10, burst: 20 }, 0);
        assert_eq!(taken(&mut bucket, 0), 20);
        bucket.set_allowance(Allowance { rate: 100, burst: 20 }, NANOS);
        assert_eq!(taken(&mut bucket, NANOS), 10);
        assert_eq!(taken(&mut bucket, NANOS + NANOS / 10), 10);
        bucket.set_allowance(Allowance { rate: 100, burst: 3 }, 100 * NANOS);
        assert_eq!(taken(&mut bucket, 100 * NANOS), 3);
    }

    #[test]
    fn the_longest_time_at_the_highest_rate_overflows_nothing() {
        let mut bucket = Bucket::new(Allowance { rate: u32::MAX, burst: u32::MAX }, 0);
        assert_eq!(bucket.allowance(), Allowance { rate: Allowance::MAX, burst: Allowance::MAX });
        bucket.fill(u64::MAX);
        assert_eq!(bucket.level_nano_tokens, capacity(bucket.allowance));
    }
}
