//! Time, tokens and shares as integers that can't be mixed up.
//!
//! Tokens are counted in units of 10^-18. With shares in units of 10^-9 and minted amounts in units of 10^-9 tokens the
//! product of both is exact, so that nothing is ever rounded when a rate is split between holders.

use core::fmt;
use core::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs.saturating_mul(1_000_000))
    }
    /// A span of milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(ms.saturating_mul(1_000))
    }
    /// Milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000
    }
    /// Milliseconds, rounded up, for "not before" answers.
    pub const fn millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }
    /// The part `num / den` of this span, rounded down. Saturates.
    pub fn scale_floor(self, num: u64, den: u64) -> Span {
        Span(clamp_u64(u128::from(self.0) * u128::from(num) / u128::from(den.max(1))))
    }
    /// The part `num / den` of this span, rounded up. Saturates.
    pub fn scale_ceil(self, num: u64, den: u64) -> Span {
        Span(clamp_u64((u128::from(self.0) * u128::from(num)).div_ceil(u128::from(den.max(1)))))
    }
    /// The difference, zero where it would be negative.
    pub const fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Time since `earlier`, zero where this is the earlier one.
            pub const fn since(self, earlier: $name) -> Span {
                Span(self.0.saturating_sub(earlier.0))
            }
        }

        impl Add<Span> for $name {
            type Output = $name;
            fn add(self, span: Span) -> $name {
                $name(self.0.saturating_add(span.0))
            }
        }
    };
}

instant! {
    /// Workflow time: microseconds since the Unix epoch, never running back. Only the ledger's side reads it.
    LedgerTime
}
instant! {
    /// A worker's elapsed-time clock in microseconds (CLOCK_BOOTTIME, which counts suspend). Means nothing elsewhere.
    BootTime
}
instant! {
    /// A worker's wall clock in microseconds. Used for one check only: that elapsed time was not asleep.
    WallTime
}

/// An amount of tokens, in units of 10^-18 token. Negative amounts are debt.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub i128);

/// One token in units of [`Amount`].
const ONE: i128 = 1_000_000_000_000_000_000;
/// One thousandth of a token, the resolution of leases on the wire.
const MILLI: i128 = ONE / 1_000;

impl Amount {
    /// No tokens.
    pub const ZERO: Amount = Amount(0);
    /// One token.
    pub const ONE: Amount = Amount(ONE);
    /// Whole tokens.
    pub const fn tokens(n: u64) -> Amount {
        Amount(n as i128 * ONE)
    }
    /// Thousandths of a token.
    pub const fn from_milli(n: u64) -> Amount {
        Amount(n as i128 * MILLI)
    }
    /// Whole tokens, rounded down (towards more debt when negative).
    pub const fn whole(self) -> i128 {
        self.0.div_euclid(ONE)
    }
    /// What is left after [`Amount::whole`]: always from 0 to less than one token.
    pub const fn fraction(self) -> Amount {
        Amount(self.0.rem_euclid(ONE))
    }
    /// Thousandths of a token, rounded down; zero for debt.
    pub fn milli_floor(self) -> u64 {
        clamp_u64(self.0.max(0).unsigned_abs() / MILLI.unsigned_abs())
    }
    /// Rounded down to thousandths of a token, so that the wire carries it exactly.
    pub fn floor_to_milli(self) -> Amount {
        Amount(self.0 - self.0.rem_euclid(MILLI))
    }
    /// Rounded up to thousandths of a token.
    pub fn ceil_to_milli(self) -> Amount {
        -(-self).floor_to_milli()
    }
    /// The larger of this and zero.
    pub fn at_least_zero(self) -> Amount {
        Amount(self.0.max(0))
    }
    /// The part `num / den`, rounded down. `den` of zero counts as one.
    pub fn scale_floor(self, num: u64, den: u64) -> Amount {
        let den = u128::from(den.max(1));
        let magnitude = mul_div_floor(self.0.unsigned_abs(), u128::from(num), den);
        let magnitude = clamp_i128(magnitude);
        Amount(if self.0 < 0 { magnitude.saturating_neg().saturating_sub(1) } else { magnitude })
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Amount {
    /// Decimal tokens, with up to three digits behind the point, rounded towards zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = self.0.unsigned_abs();
        let (one, milli) = (ONE.unsigned_abs(), MILLI.unsigned_abs());
        let (whole, rest) = (magnitude / one, magnitude % one / milli);
        if rest == 0 {
            write!(f, "{sign}{whole}")
        } else {
            let mut digits = rest;
            let mut width = 3;
            while digits % 10 == 0 {
                digits /= 10;
                width -= 1;
            }
            write!(f, "{sign}{whole}.{digits:0width$}")
        }
    }
}

impl Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }
}
impl Sub for Amount {
    type Output = Amount;
    fn sub(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }
}
impl AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        *self = *self + other;
    }
}
impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Amount) {
        *self = *self - other;
    }
}
impl Neg for Amount {
    type Output = Amount;
    fn neg(self) -> Amount {
        Amount(self.0.saturating_neg())
    }
}

/// A fraction of a rate, in units of 10^-9; at most one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    /// Nothing of the rate.
    pub const ZERO: Share = Share(0);
    /// All of the rate.
    pub const ONE: Share = Share(1_000_000_000);

    /// A share of `ppb` parts in 10^9; `None` above one.
    pub const fn from_ppb(ppb: u32) -> Option<Share> {
        if ppb <= Self::ONE.0 { Some(Share(ppb)) } else { None }
    }
    /// The share `part / whole`, rounded down, at most one; zero when `whole` is zero.
    pub fn ratio_floor(part: u64, whole: u64) -> Share {
        if whole == 0 {
            return Share::ZERO;
        }
        let ppb = u128::from(part.min(whole)) * u128::from(Self::ONE.0) / u128::from(whole);
        Share(u32::try_from(ppb).unwrap_or(Self::ONE.0))
    }
    /// Parts in 10^9.
    pub const fn ppb(self) -> u32 {
        self.0
    }
    /// What is left of one whole.
    pub const fn rest(self) -> Share {
        Share(Self::ONE.0 - self.0)
    }
    /// The difference, zero where it would be negative.
    pub const fn saturating_sub(self, other: Share) -> Share {
        Share(self.0.saturating_sub(other.0))
    }
    /// The sum, at most one.
    pub fn saturating_add(self, other: Share) -> Share {
        Share(self.0.saturating_add(other.0).min(Self::ONE.0))
    }
    /// Half of it, rounded down.
    pub const fn half(self) -> Share {
        Share(self.0 / 2)
    }
    /// `amount` (per second, say) times this share, rounded down.
    pub fn of(self, amount: u64) -> u64 {
        clamp_u64(u128::from(amount) * u128::from(self.0) / u128::from(Self::ONE.0))
    }
}

impl fmt::Display for Share {
    /// Two to four digits behind the point, rounded down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths_of_permille = self.0 / 100_000;
        let (whole, rest) = (tenths_of_permille / 10_000, tenths_of_permille % 10_000);
        if rest % 100 == 0 { write!(f, "{whole}.{:02}", rest / 100) } else { write!(f, "{whole}.{rest:04}") }
    }
}

/// `a * b / d`, rounded down, with a 256-bit product. Saturates where the quotient does not fit; `d` of zero saturates.
pub fn mul_div_floor(a: u128, b: u128, d: u128) -> u128 {
    if d == 0 {
        return u128::MAX;
    }
    if let Some(product) = a.checked_mul(b) {
        return product / d;
    }
    let (high, low) = widening_mul(a, b);
    if high >= d {
        return u128::MAX;
    }
    // Long division, a bit at a time: `rest` stays below `d`, so that one extra bit is all that a shift can need.
    let (mut rest, mut quotient) = (high, 0u128);
    for bit in (0..128).rev() {
        let carry = rest >> 127;
        rest = (rest << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if carry == 1 || rest >= d {
            rest = rest.wrapping_sub(d);
            quotient |= 1;
        }
    }
    quotient
}

fn widening_mul(a: u128, b: u128) -> (u128, u128) {
    const MASK: u128 = u64::MAX as u128;
    let (a_high, a_low) = (a >> 64, a & MASK);
    let (b_high, b_low) = (b >> 64, b & MASK);
    let low = a_low * b_low;
    let middle = a_low * b_high + (low >> 64);
    let middle_low = (middle & MASK) + a_high * b_low;
    (a_high * b_high + (middle >> 64) + (middle_low >> 64), (middle_low << 64) | (low & MASK))
}

pub(crate) fn clamp_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

pub(crate) fn clamp_i128(value: u128) -> i128 {
    i128::try_from(value).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    proptest! {
        #[test]
        fn wide_division_agrees_with_its_inverse(a: u128, b: u128, d in 1u128..) {
            let quotient = mul_div_floor(a, b, d);
            prop_assume!(quotient != u128::MAX);
            let (high, low) = widening_mul(a, b);
            // quotient * d <= a * b < (quotient + 1) * d, compared as 256-bit numbers.
            prop_assert!(widening_mul(quotient, d) <= (high, low));
            prop_assert!(widening_mul(quotient + 1, d) > (high, low));
        }
    }

    #[test]
    fn amounts_print_as_tokens() {
        assert_eq!(Amount::from_milli(2_560).to_string(), "2.56");
        assert_eq!(Amount::tokens(7).to_string(), "7");
        assert_eq!((-Amount::from_milli(1_005)).to_string(), "-1.005");
        assert_eq!(Share::ratio_floor(1, 5).to_string(), "0.20");
        assert_eq!(Share::ratio_floor(1, 3).to_string(), "0.3333");
    }

    #[test]
    fn debt_rounds_towards_more_debt() {
        let debt = -Amount::from_milli(1_500);
        assert_eq!(debt.whole(), -2);
        assert_eq!(debt.fraction(), Amount::from_milli(500));
    }
}
