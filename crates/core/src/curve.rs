//! Rates and bursts that change linearly, with exact integrals.
//!
//! A curve is constant before `start`, linear between `start` and `end`, constant after. Its integral is computed from
//! one fixed origin, so that the sum over many small intervals equals the integral over their union: polling often
//! loses nothing, and years of idling overflow nothing.

use crate::units::{Amount, LedgerTime, Span, clamp_i128, clamp_u64, mul_div_floor};
use core::cmp::Ordering;

/// The most tokens per period that a rate may state: 10^12.
pub const RATE_COUNT_MAX: u64 = 1_000_000_000_000;
/// The shortest period of a rate: one millisecond.
pub const PERIOD_MIN: Span = Span::from_millis(1);
/// The longest period of a rate: 366 days.
pub const PERIOD_MAX: Span = Span::from_secs(366 * 24 * 3600);
/// The longest ramp: one day.
pub const RAMP_MAX: Span = Span::from_secs(24 * 3600);
/// The largest burst: 10^15 tokens, enough for a petabyte counted in bytes.
pub const BURST_MAX: u64 = 1_000_000_000_000_000;

/// The most tokens that one integral returns. More than any burst, so that a saturated integral fills every bucket.
const INTEGRAL_TOKENS_MAX: u128 = 10_000_000_000_000_000;
const NANO_PER_TOKEN: u128 = 1_000_000_000;
const MICRO_PER_TOKEN: u64 = 1_000_000;

/// A number of tokens per period. Millionths of a token keep the value of a ramp that is replaced half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Millionths of a token per period: at most [`RATE_COUNT_MAX`] tokens.
    pub micro_tokens: u64,
    /// From [`PERIOD_MIN`] to [`PERIOD_MAX`].
    pub period: Span,
}

impl Rate {
    /// No tokens, ever.
    pub const ZERO: Rate = Rate { micro_tokens: 0, period: Span::from_secs(1) };

    /// `count` tokens per `period`.
    pub const fn new(count: u64, period: Span) -> Rate {
        Rate { micro_tokens: count.saturating_mul(MICRO_PER_TOKEN), period }
    }
    /// `count` tokens a second.
    pub const fn per_second(count: u64) -> Rate {
        Rate::new(count, Span::from_secs(1))
    }
    /// Millionths of a token per second, rounded down. For display, demand and allocation, never for minting.
    pub fn micro_per_second(self) -> u64 {
        clamp_u64(u128::from(self.micro_tokens) * 1_000_000 / u128::from(self.period.0.max(1)))
    }
    /// Time until `amount` has come together at this rate, rounded up; `None` when it never does.
    pub fn time_for(self, amount: Amount) -> Option<Span> {
        if amount.0 <= 0 {
            return Some(Span::ZERO);
        }
        if self.micro_tokens == 0 {
            return None;
        }
        let per_micro = Amount::ONE.0.unsigned_abs() / u128::from(MICRO_PER_TOKEN);
        let micro = amount.0.unsigned_abs().div_ceil(per_micro);
        let time = mul_div_floor(micro, u128::from(self.period.0), u128::from(self.micro_tokens));
        Some(Span(clamp_u64(time.saturating_add(1))))
    }
    /// Compares by tokens per time, whatever the periods.
    pub fn cmp_value(self, other: Rate) -> Ordering {
        let left = u128::from(self.micro_tokens) * u128::from(other.period.0);
        let right = u128::from(other.micro_tokens) * u128::from(self.period.0);
        left.cmp(&right)
    }
    /// Nanotokens minted by this rate in `units / unit_den` microseconds, rounded down.
    fn nano_for(self, units: u128, unit_den: u128) -> u128 {
        let den = u128::from(self.period.0.max(1)) * unit_den;
        let nano_per_micro = NANO_PER_TOKEN / u128::from(MICRO_PER_TOKEN);
        mul_div_floor(u128::from(self.micro_tokens) * nano_per_micro, units, den)
    }
}

/// A rate that goes linearly from `source` at `start` to `target` at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateCurve {
    /// In force up to `start`.
    pub source: Rate,
    /// In force from `end` on.
    pub target: Rate,
    /// Where the ramp begins.
    pub start: LedgerTime,
    /// Where it ends: never before `start`, at most [`RAMP_MAX`] later.
    pub end: LedgerTime,
}

impl RateCurve {
    /// The same rate for ever.
    pub const fn constant(rate: Rate) -> RateCurve {
        RateCurve { source: rate, target: rate, start: LedgerTime(0), end: LedgerTime(0) }
    }

    /// This curve up to `now`, then linearly to `target` within `over`. A ramp that is under way ends where it is.
    pub fn ramp_to(self, target: Rate, now: LedgerTime, over: Span) -> RateCurve {
        let over = Span(over.0.min(RAMP_MAX.0));
        RateCurve { source: self.at(now), target, start: now, end: now + over }
    }

    /// The value at `t`, rounded down to millionths of a token in the longer of both periods.
    pub fn at(self, t: LedgerTime) -> Rate {
        if t >= self.end {
            return self.target;
        }
        if t <= self.start {
            return self.source;
        }
        let period = self.source.period.max(self.target.period);
        let length = u128::from(self.end.since(self.start).0.max(1));
        let done = u128::from(t.since(self.start).0);
        let part = |rate: Rate, weight: u128| {
            let per_period = u128::from(rate.micro_tokens) * u128::from(period.0);
            mul_div_floor(per_period, weight, u128::from(rate.period.0.max(1)) * length)
        };
        let micro = part(self.source, length - done) + part(self.target, done);
        Rate { micro_tokens: clamp_u64(micro), period }
    }

    /// Whether the rate falls anywhere.
    pub fn is_falling(self) -> bool {
        self.start < self.end && self.target.cmp_value(self.source) == Ordering::Less
    }

    /// Nanotokens minted from `from` to `to`, exact to less than one; zero when `to` is not later.
    pub fn integral_nano(self, from: LedgerTime, to: LedgerTime) -> u128 {
        if to <= from {
            return 0;
        }
        let minted = self.since_start(to).saturating_sub(self.since_start(from));
        u128::try_from(minted).unwrap_or(0).min(INTEGRAL_TOKENS_MAX * NANO_PER_TOKEN)
    }

    /// The integral from `start` to `t`, negative for earlier times. Telescopes by construction.
    fn since_start(self, t: LedgerTime) -> i128 {
        if t <= self.start {
            let before = u128::from(self.start.since(t).0);
            return clamp_i128(self.source.nano_for(before, 1)).saturating_neg();
        }
        let length = u128::from(self.end.since(self.start).0);
        let inside = u128::from(t.min(self.end).since(self.start).0);
        let mut minted = 0u128;
        if length > 0 {
            // With x of L gone, the source has weighed x - x^2/2L microseconds and the target x^2/2L.
            let den = 2 * length;
            minted = self.source.nano_for(inside * (den - inside), den)
                + self.target.nano_for(inside * inside, den);
        }
        if t > self.end {
            minted = minted.saturating_add(self.target.nano_for(u128::from(t.since(self.end).0), 1));
        }
        clamp_i128(minted)
    }
}

/// A burst that goes linearly from `source` at `start` to `target` at `end`, in whole tokens at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BurstCurve {
    /// In force up to `start`, at most [`BURST_MAX`] tokens.
    pub source: Amount,
    /// In force from `end` on, at most [`BURST_MAX`] tokens.
    pub target: Amount,
    /// Where the ramp begins.
    pub start: LedgerTime,
    /// Where it ends.
    pub end: LedgerTime,
}

impl BurstCurve {
    /// The same burst for ever.
    pub const fn constant(burst: u64) -> BurstCurve {
        let burst = Amount::tokens(burst);
        BurstCurve { source: burst, target: burst, start: LedgerTime(0), end: LedgerTime(0) }
    }

    /// This curve up to `now`, then linearly to `target` tokens within `over`. The value of a ramp that is under way is
    /// rounded down to thousandths of a token, so that messages carry it exactly.
    pub fn ramp_to(self, target: u64, now: LedgerTime, over: Span) -> BurstCurve {
        let over = Span(over.0.min(RAMP_MAX.0));
        BurstCurve {
            source: self.at(now).floor_to_milli(),
            target: Amount::tokens(target),
            start: now,
            end: now + over,
        }
    }

    /// The burst at `t`, rounded down.
    pub fn at(self, t: LedgerTime) -> Amount {
        if t >= self.end {
            return self.target;
        }
        if t <= self.start {
            return self.source;
        }
        let (length, done) = (self.end.since(self.start).0, t.since(self.start).0);
        self.source.scale_floor(length - done, length) + self.target.scale_floor(done, length)
    }

    /// The smallest burst anywhere from `from` to `to`: a single ramp is monotonic, so one of the ends has it.
    pub fn min_over(self, from: LedgerTime, to: LedgerTime) -> Amount {
        self.at(from).min(self.at(to))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    fn at_secs(secs: u64) -> LedgerTime {
        LedgerTime(secs * 1_000_000)
    }

    #[test]
    fn a_ramp_has_the_area_under_its_line() {
        let curve = RateCurve::constant(Rate::per_second(1)).ramp_to(
            Rate::per_second(100),
            at_secs(10),
            Span::from_secs(100),
        );
        // The mean of 1 and 100 over 100 s, and the constant ends.
        assert_eq!(curve.integral_nano(at_secs(10), at_secs(110)), 5_050 * 1_000_000_000);
        assert_eq!(curve.integral_nano(at_secs(0), at_secs(10)), 10 * 1_000_000_000);
        assert_eq!(curve.integral_nano(at_secs(110), at_secs(111)), 100 * 1_000_000_000);
        assert_eq!(curve.at(at_secs(60)).micro_per_second(), 50_500_000);
    }

    #[test]
    fn idling_for_years_neither_overflows_nor_goes_negative() {
        let curve = RateCurve::constant(Rate::per_second(1_000_000));
        for secs in [43_200, 30 * 86_400, 3_650 * 86_400] {
            let minted = curve.integral_nano(at_secs(5), at_secs(5 + secs));
            assert_eq!(
                minted,
                (u128::from(secs) * 1_000_000 * 1_000_000_000).min(INTEGRAL_TOKENS_MAX * NANO_PER_TOKEN)
            );
        }
        let fastest = RateCurve::constant(Rate::new(RATE_COUNT_MAX, PERIOD_MIN));
        assert_eq!(
            fastest.integral_nano(LedgerTime(0), LedgerTime(u64::MAX)),
            INTEGRAL_TOKENS_MAX * NANO_PER_TOKEN
        );
    }

    #[test]
    fn a_rate_of_one_a_day_mints_one_in_a_day() {
        let curve = RateCurve::constant(Rate::new(1, Span::from_secs(86_400)));
        assert_eq!(curve.integral_nano(at_secs(0), at_secs(86_400)), 1_000_000_000);
        assert_eq!(curve.integral_nano(at_secs(0), at_secs(43_200)), 500_000_000);
    }

    #[test]
    fn the_hint_for_a_rate_of_zero_is_never() {
        assert_eq!(Rate::per_second(0).time_for(Amount::ONE), None);
        assert_eq!(Rate::per_second(2).time_for(Amount::tokens(1)), Some(Span(500_001)));
    }

    proptest! {
        #[test]
        fn small_steps_add_up_to_the_whole(
            source in 0u64..1_000_000, target in 0u64..1_000_000, period_ms in 1u64..10_000_000,
            start in 0u64..1_000_000, length in 0u64..1_000_000, steps in proptest::collection::vec(0u64..100_000, 1..40),
        ) {
            let curve = RateCurve {
                source: Rate::new(source, Span::from_millis(period_ms)), target: Rate::per_second(target),
                start: LedgerTime(start), end: LedgerTime(start + length),
            };
            let (mut t, mut sum) = (LedgerTime(0), 0u128);
            for step in steps {
                sum += curve.integral_nano(t, t + Span(step));
                t = t + Span(step);
            }
            prop_assert_eq!(sum, curve.integral_nano(LedgerTime(0), t));
        }

        #[test]
        fn a_ramp_stays_between_its_ends(
            source in 0u64..1_000_000, target in 0u64..1_000_000, length in 1u64..1_000_000, t in 0u64..2_000_000,
        ) {
            let curve = RateCurve {
                source: Rate::per_second(source), target: Rate::per_second(target),
                start: LedgerTime(500_000), end: LedgerTime(500_000 + length),
            };
            let value = curve.at(LedgerTime(t)).micro_per_second();
            let (low, high) = (source.min(target) * 1_000_000, source.max(target) * 1_000_000);
            prop_assert!(value + 2 >= low && value <= high);
        }
    }
}
