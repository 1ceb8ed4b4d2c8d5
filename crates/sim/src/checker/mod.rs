//! The judge: did a fleet keep its limit in **every** interval?
//!
//! It knows a log of admissions and the curves that bound them, and nothing of ledgers, leases or workers. Times are
//! ticks of any length ([`Bound::ticks_per_second`] says which), so that the logs of a simulator in microseconds and
//! those of real processes in nanoseconds are judged by the same code.
//!
//! For a rate `R` and a burst `B` the rule is `admitted(s, t) <= B(s) + integral of R over [s, t]` for every `s <= t`,
//! admissions at both ends included. [`judge`] finds the interval that comes nearest to that or exceeds it most, in one
//! pass; [`judge_slowly`] looks at all of them and exists to check `judge`.
//!
//! Arithmetic is exact up to the rounding of a curve's values to 10^-12, which favours the limited. Where `B` rises
//! while `R` falls, intervals that begin between two admissions or bends are not looked at.

pub mod conserved;
pub mod curve;

pub use curve::{Live, PICO, Polyline, largest};

/// Tokens that somebody was allowed to use, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Admission {
    /// True time, in ticks.
    pub at: u64,
    /// Whole tokens.
    pub tokens: u64,
}

/// What bounds the admissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The unit of all times: 1,000,000 for microseconds.
    pub ticks_per_second: u64,
    /// Tokens per second, in units of 10^-12.
    pub rate: Polyline,
    /// Tokens, in units of 10^-12.
    pub burst: Polyline,
}

impl Bound {
    /// `count` tokens per `period_ticks` (rounded up to 10^-12 a second), and `burst` tokens, for ever.
    pub fn constant(ticks_per_second: u64, count: u64, period_ticks: u64, burst: u64) -> Bound {
        let rate = pico_per_second(ticks_per_second, i128::from(count).saturating_mul(PICO), period_ticks);
        Bound {
            ticks_per_second,
            rate: Polyline::constant(rate),
            burst: Polyline::constant(i128::from(burst) * PICO),
        }
    }

    /// From `at` on `count` tokens per `period_ticks`, and `burst` tokens.
    pub fn set(&mut self, at: u64, count: u64, period_ticks: u64, burst: u64) {
        let rate =
            pico_per_second(self.ticks_per_second, i128::from(count).saturating_mul(PICO), period_ticks);
        self.rate.step(at, rate);
        self.burst.step(at, i128::from(burst) * PICO);
    }

    /// Amounts are compared in units in which a token is this large.
    fn token(&self) -> i128 {
        PICO * 2 * i128::from(self.ticks_per_second.max(1))
    }
    fn scaled(&self, pico: i128) -> i128 {
        pico.saturating_mul(2 * i128::from(self.ticks_per_second.max(1)))
    }
    fn tokens(&self, tokens: u64) -> i128 {
        i128::from(tokens).saturating_mul(self.token())
    }
}

/// A rate in tokens x 10^-12 per second from `pico` per `period_ticks`, rounded up.
pub fn pico_per_second(ticks_per_second: u64, pico: i128, period_ticks: u64) -> i128 {
    let period = i128::from(period_ticks.max(1));
    let product = pico.saturating_mul(i128::from(ticks_per_second));
    product.div_euclid(period) + i128::from(product.rem_euclid(period) != 0)
}

/// The interval that exceeds the bound most, or comes nearest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Where it begins, in ticks.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
    /// Tokens admitted in it.
    pub admitted: u64,
    /// The burst at its beginning, in 10^-6 token, rounded down.
    pub burst_micro: u64,
    /// What the rate brought in it, likewise.
    pub minted_micro: u64,
    /// Admitted beyond the bound, likewise; zero or less when the bound was kept.
    pub excess_micro: i128,
    /// Whether the bound was exceeded, by however little.
    pub exceeded: bool,
    /// `admitted / (burst + minted)` in millionths, rounded up.
    pub peak_over_bound_ppm: u64,
    /// `(admitted - minted) / burst` in millionths, rounded up: how many bursts were admitted at once, as it were.
    pub peak_over_burst_ppm: u64,
}

/// Judges a log in one pass: a token bucket of its own, which starts full, refills by `R`, is cut to `B`, and drains by
/// admissions. How far it runs below zero is how far the bound was exceeded. `None` for an empty log.
pub fn judge(admissions: &[Admission], bound: &Bound) -> Option<Verdict> {
    let mut log: Vec<Admission> =
        admissions.iter().copied().filter(|admission| admission.tokens > 0).collect();
    log.sort_unstable();
    let mut breaks: Vec<u64> = bound.burst.breaks().chain(bound.rate.breaks()).collect();
    breaks.sort_unstable();
    breaks.dedup();
    let mut breaks = breaks.into_iter().peekable();

    let first = log.first()?.at;
    while breaks.next_if(|at| *at < first).is_some() {}
    let mut bucket = Bucket { level: i128::MAX, filled_to: bound.rate.double_area(first), since: (first, 0) };
    let mut worst: Option<(i128, Interval)> = None;
    for (index, admission) in log.iter().enumerate() {
        let at = admission.at;
        // Bends before this admission: at each of them an interval may begin, before and after a step.
        while let Some(bend) = breaks.next_if(|bend| *bend < at) {
            bucket.fill(bound, bend);
            bucket.cut(bound.scaled(bound.burst.before(bend)), bend, index);
            bucket.cut(bound.scaled(bound.burst.after(bend)), bend, index);
        }
        bucket.fill(bound, at);
        bucket.cut(bound.scaled(bound.burst.before(at)), at, index);
        bucket.level -= bound.tokens(admission.tokens);
        let (from, begin) = bucket.since;
        if worst.is_none_or(|(level, _)| bucket.level < level) {
            worst = Some((bucket.level, Interval { from, begin, to: at, end: index }));
        }
        let last_here = log.get(index + 1).is_none_or(|next| next.at > at);
        if last_here {
            breaks.next_if_eq(&at);
            bucket.cut(bound.scaled(bound.burst.after(at)), at, index + 1);
        }
    }
    worst.map(|(level, interval)| verdict(&log, bound, level, interval))
}

struct Bucket {
    level: i128,
    filled_to: i128,
    /// Where it was cut last, and the first admission after that.
    since: (u64, usize),
}

impl Bucket {
    fn fill(&mut self, bound: &Bound, at: u64) {
        let area = bound.rate.double_area(at);
        self.level = self.level.saturating_add(area.saturating_sub(self.filled_to));
        self.filled_to = area;
    }
    fn cut(&mut self, burst: i128, at: u64, index: usize) {
        if self.level >= burst {
            self.level = burst;
            self.since = (at, index);
        }
    }
}

#[derive(Clone, Copy)]
struct Interval {
    from: u64,
    begin: usize,
    to: u64,
    end: usize,
}

fn verdict(log: &[Admission], bound: &Bound, level: i128, interval: Interval) -> Verdict {
    let admitted: u64 = log[interval.begin..=interval.end].iter().map(|admission| admission.tokens).sum();
    let minted = bound.rate.double_area(interval.to) - bound.rate.double_area(interval.from);
    let burst = level + bound.tokens(admitted) - minted;
    let micro = bound.token() / 1_000_000;
    Verdict {
        from: interval.from,
        to: interval.to,
        admitted,
        burst_micro: u64::try_from(burst / micro).unwrap_or(u64::MAX),
        minted_micro: u64::try_from(minted / micro).unwrap_or(u64::MAX),
        excess_micro: (-level).div_euclid(micro),
        exceeded: level < 0,
        peak_over_bound_ppm: ppm(bound.tokens(admitted), burst.saturating_add(minted)),
        peak_over_burst_ppm: ppm(bound.tokens(admitted) - minted, burst),
    }
}

/// `part / whole` in millionths, rounded up; zero for a negative part.
fn ppm(part: i128, whole: i128) -> u64 {
    if part <= 0 {
        return 0;
    }
    // Both are shortened alike where the product would not fit.
    let shift = 22u32.saturating_sub(part.leading_zeros());
    let (part, whole) = (part >> shift, (whole >> shift).max(0));
    if whole == 0 {
        return u64::MAX;
    }
    let product = part * 1_000_000;
    u64::try_from(product / whole + i128::from(product % whole != 0)).unwrap_or(u64::MAX)
}

/// The excess of the worst interval in units of 10^-6 token, rounded down, by looking at every interval. For tests.
pub fn judge_slowly(admissions: &[Admission], bound: &Bound) -> Option<i128> {
    let mut log = admissions.to_vec();
    log.retain(|admission| admission.tokens > 0);
    log.sort_unstable();
    let first = log.first()?.at;
    let mut begins: Vec<(u64, i128, bool)> =
        log.iter().map(|one| (one.at, bound.burst.before(one.at), true)).collect();
    for bend in bound.burst.breaks().chain(bound.rate.breaks()).filter(|bend| *bend >= first) {
        begins.push((bend, bound.burst.before(bend), true));
        begins.push((bend, bound.burst.after(bend), false));
    }
    let mut worst = None;
    for (from, burst, including) in begins {
        let mut admitted = 0i128;
        for one in log.iter().filter(|one| if including { one.at >= from } else { one.at > from }) {
            admitted += bound.tokens(one.tokens);
            let minted = bound.rate.double_area(one.at) - bound.rate.double_area(from);
            worst = worst.max(Some(admitted - minted - bound.scaled(burst)));
        }
    }
    worst.map(|excess| excess.div_euclid(bound.token() / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(at: u64, tokens: u64) -> Admission {
        Admission { at, tokens }
    }

    #[test]
    fn one_token_too_many_is_found_and_named() {
        let bound = Bound::constant(1_000_000, 100, 1_000_000, 20);
        let kept = judge(&[at(0, 20), at(1_000_000, 20), at(1_010_000, 1)], &bound).unwrap();
        assert!(!kept.exceeded, "{kept:?}");
        let over = judge(&[at(0, 20), at(1_000_000, 20), at(1_009_999, 1)], &bound).unwrap();
        assert!(over.exceeded);
        assert_eq!((over.from, over.to, over.admitted, over.excess_micro), (1_000_000, 1_009_999, 21, 100));
        let much = judge(&[at(5, 60)], &bound).unwrap();
        assert_eq!((much.peak_over_bound_ppm, much.peak_over_burst_ppm), (3_000_000, 3_000_000));
    }

    #[test]
    fn nanoseconds_are_judged_like_microseconds() {
        let bound = Bound::constant(1_000_000_000, 1, 1_000_000_000, 1);
        assert!(!judge(&[at(0, 1), at(1_000_000_000, 1)], &bound).unwrap().exceeded);
        assert!(judge(&[at(0, 1), at(999_999_999, 1)], &bound).unwrap().exceeded);
    }

    #[test]
    fn a_burst_that_falls_or_rises_binds_from_then_on() {
        let mut bound = Bound::constant(1_000_000, 0, 1_000_000, 20);
        bound.set(100, 0, 1_000_000, 5);
        assert!(!judge(&[at(99, 15), at(101, 5)], &bound).unwrap().exceeded);
        assert!(judge(&[at(99, 15), at(101, 6)], &bound).unwrap().exceeded);
        bound.set(200, 0, 1_000_000, 50);
        let over = judge(&[at(150, 1), at(201, 5)], &bound).unwrap();
        assert!(over.exceeded, "a larger burst does not fill the bucket: {over:?}");
    }

    #[test]
    fn one_pass_finds_what_looking_at_every_interval_finds() {
        let mut exceeded = 0;
        for seed in 0..2_000 {
            let mut rng = Rng::new(seed);
            let mut bound = Bound::constant(1_000, rng.below(50), 1_000, 1 + rng.below(20));
            for _ in 0..rng.below(5) {
                let from = rng.below(4_000);
                if rng.chance(1, 2) {
                    bound.rate.push(from, i128::from(rng.below(50)) * PICO);
                } else {
                    bound.set(from, rng.below(50), 1_000, rng.below(20));
                }
            }
            let log: Vec<Admission> =
                (0..rng.below(40)).map(|_| at(rng.below(5_000), rng.below(6))).collect();
            let fast = judge(&log, &bound);
            assert_eq!(fast.map(|verdict| verdict.excess_micro), judge_slowly(&log, &bound), "seed {seed}");
            if let Some(verdict) = fast {
                exceeded += u32::from(verdict.exceeded);
                assert_eq!(
                    verdict.exceeded,
                    verdict.peak_over_bound_ppm > 1_000_000,
                    "seed {seed}: {verdict:?}"
                );
            }
        }
        assert!((100..1_900).contains(&exceeded), "both outcomes must be common: {exceeded}");
    }
}
