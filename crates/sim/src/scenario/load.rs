//! What one worker's work is like: tokens that arrive at a rate that changes, and bursts.

/// See the module's documentation. Times are true microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// From when on, how many millionths of a token a second; in order of time.
    steps: Vec<(u64, u64)>,
    /// When, and how many tokens at once; in order of time.
    bursts: Vec<(u64, u64)>,
    /// Millionths of a millionth of a token that have not become a whole one.
    carry: u128,
    seen: u64,
    /// The step in force when it was looked at last.
    current: usize,
}

const SECOND: u64 = 1_000_000;
const WHOLE: u128 = 1_000_000_000_000;

impl Load {
    /// The same number of tokens a second all the time, in thousandths.
    pub(crate) fn steady(milli_per_second: u64) -> Load {
        Load { steps: vec![(0, milli_per_second * 1_000)], ..Load::default() }
    }

    /// Nothing but bursts.
    pub(crate) fn bursts(bursts: Vec<(u64, u64)>) -> Load {
        Load { bursts, ..Load::default() }
    }

    /// From `at` on another rate, in thousandths of a token a second. Later than all that were given before.
    pub(crate) fn then(mut self, at: u64, milli_per_second: u64) -> Load {
        self.steps.push((at, milli_per_second * 1_000));
        self
    }

    /// Tokens that have arrived since the last look.
    pub(crate) fn arrived(&mut self, now: u64) -> u64 {
        let from = self.seen;
        self.seen = now;
        let mut sum = self.carry;
        while let Some((at, rate)) = self.steps.get(self.current) {
            let until = self.steps.get(self.current + 1).map_or(u64::MAX, |next| next.0);
            let (from, to) = (from.max(*at), now.min(until));
            sum += u128::from(*rate) * u128::from(to.saturating_sub(from));
            if now < until {
                break;
            }
            self.current += 1;
        }
        self.carry = sum % WHOLE;
        let burst: u64 = self.bursts.iter().filter(|(at, _)| from < *at && *at <= now).map(|(_, n)| n).sum();
        u64::try_from(sum / WHOLE).unwrap_or(u64::MAX).saturating_add(burst)
    }

    /// Nothing arrives before this; `None`: nothing ever.
    pub(crate) fn next(&self, now: u64) -> Option<u64> {
        let ahead = self.steps.get(self.current..).unwrap_or_default();
        let rate = ahead.first().filter(|(at, _)| *at <= now).map_or(0, |(_, rate)| *rate);
        if rate > 0 {
            // Up to when the next whole token is there, within a second: the rate may change.
            let left = u128::from(rate).max(1);
            let whole = (WHOLE - self.carry).div_ceil(left);
            return Some(now + u64::try_from(whole).unwrap_or(SECOND).clamp(1, SECOND));
        }
        let step = ahead.iter().find(|(at, rate)| *at > now && *rate > 0).map(|(at, _)| *at);
        let burst = self.bursts.iter().find(|(at, _)| *at > now).map(|(at, _)| *at);
        step.into_iter().chain(burst).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_looks_see_what_one_sees() {
        let load = Load::steady(1_300).then(2_500_000, 0).then(3_000_000, 7_000);
        let (mut often, mut once) = (load.clone(), load);
        let sum: u64 = (1..=1_000).map(|look| often.arrived(look * 4_003)).sum();
        assert_eq!(sum, once.arrived(4_003_000));
        assert_eq!(sum, (1_300 * 2_500 + 7_000 * 1_003) / 1_000_000);
    }

    #[test]
    fn a_burst_comes_once() {
        let mut load = Load::bursts(vec![(10, 5), (20, 6)]);
        assert_eq!(load.next(0), Some(10));
        assert_eq!([load.arrived(10), load.arrived(19), load.arrived(30)], [5, 0, 6]);
        assert_eq!(load.next(30), None);
    }
}
