//! Which rates were in force when, from what the coordinator was seen to keep to.
//!
//! The bound that admissions are judged by is the largest curve that a live lease may carry. A curve counts from its own
//! start. It stops counting one lease after the coordinator was seen to keep to a newer one: a lease is granted before
//! that, and its worker counts it from before it asked. After a reset an older one may be granted again.

use tollgate_sim::checker::{Bound, Live, PICO, Polyline, largest};

use crate::fleet::LEASE;
use crate::fleet::metrics::SECOND_NS;

/// The version of a configuration: greater is newer.
pub type Version = (u64, u64);

/// A rate that goes linearly from one value to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Curve {
    /// 10^-12 of a call a second, up to the start.
    pub source: i128,
    /// The same from the end on.
    pub target: i128,
    /// Nanoseconds of the boot clock.
    pub start_ns: u64,
    /// The same; not before the start.
    pub end_ns: u64,
}

impl Curve {
    fn line(&self) -> Polyline {
        let mut line = Polyline::constant(self.source);
        line.push(self.start_ns, self.source);
        line.push(self.end_ns, self.target);
        line
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    version: Version,
    curve: Curve,
    from_ns: u64,
    until_ns: Option<u64>,
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub struct Book {
    entries: Vec<Entry>,
    /// What was in force: a version with its curve, and since when.
    history: Vec<Entry>,
    /// The newest version that was seen, and when it was asked for last.
    seen: Option<(Version, u64)>,
    /// The version that was seen last: an older one after a reset.
    last: Option<Version>,
}

impl Book {
    /// The coordinator was asked at one time and answered at another that it keeps to this.
    pub fn observe(&mut self, asked_ns: u64, answered_ns: u64, version: Version, curve: Curve) {
        let lease = u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        let is_known = |entry: &Entry| entry.version == version && entry.until_ns.is_none();
        if !self.entries.iter().any(is_known) {
            // It wasn't in force yet when an older one was asked for.
            let after = self.seen.map_or(0, |(seen, asked_ns)| if seen < version { asked_ns } else { 0 });
            let entry = Entry { version, curve, from_ns: curve.start_ns.max(after), until_ns: None };
            self.entries.push(entry);
            match self.history.last() {
                Some(last) if last.version >= version || last.curve == curve => {}
                // One without a start of its own came at some time between two looks: the larger one counts there.
                Some(last)
                    if curve.start_ns < after && curve.target < last.curve.line().after(answered_ns) =>
                {
                    self.history.push(Entry { from_ns: answered_ns, ..entry });
                }
                _ => self.history.push(entry),
            }
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.version < version) {
            entry.until_ns.get_or_insert(answered_ns.saturating_add(lease));
        }
        self.last = Some(version);
        if self.seen.is_none_or(|(seen, _)| seen <= version) {
            self.seen = Some((version, asked_ns));
        }
    }

    /// The coordinator was asked once more and keeps to the same version as before.
    pub fn observe_again(&mut self, asked_ns: u64) {
        if let Some((version, asked)) = &mut self.seen
            && self.last == Some(*version)
        {
            *asked = asked_ns;
        }
    }

    /// The coordinator is about to be reset to a point after `since_ns`: what was in force since then may be again.
    pub fn reset(&mut self, now_ns: u64, since_ns: u64) {
        let again = |entry: &&Entry| entry.until_ns.is_some_and(|until| until >= since_ns);
        let reopened: Vec<Entry> = self.entries.iter().filter(again).copied().collect();
        // Whatever is seen next is news.
        self.last = None;
        self.entries.extend(reopened.into_iter().map(|entry| Entry {
            from_ns: now_ns,
            until_ns: None,
            ..entry
        }));
    }

    /// The version that was seen last.
    pub fn last(&self) -> Option<Version> {
        self.last
    }

    /// Whether the coordinator was seen to keep to this version or a newer one.
    pub fn has_seen(&self, version: Version) -> bool {
        self.seen.is_some_and(|(seen, _)| seen >= version)
    }

    /// The largest rate that a lease may carry from `from_ns` to `to_ns`, rounded up to whole calls a second.
    pub fn rate_max(&self, from_ns: u64, to_ns: u64) -> u32 {
        let live = |entry: &&Entry| entry.until_ns.is_none_or(|until| until >= from_ns);
        let values = self.entries.iter().filter(live).flat_map(|entry| {
            let line = entry.curve.line();
            [line.before(from_ns).max(line.after(from_ns)), line.before(to_ns).max(line.after(to_ns))]
        });
        let pico = values.max().unwrap_or(0);
        u32::try_from((pico + PICO - 1) / PICO).unwrap_or(u32::MAX)
    }

    /// What bounds the admissions, with a burst of `burst`.
    pub fn bound(&self, burst: u32) -> Bound {
        let lives: Vec<Live> = self
            .entries
            .iter()
            .map(|entry| Live { from: entry.from_ns, until: entry.until_ns, line: entry.curve.line() })
            .collect();
        let burst = Polyline::constant(i128::from(burst) * PICO);
        Bound { ticks_per_second: SECOND_NS, rate: largest(&lives), burst }
    }

    /// What was configured at each time: the measure of utilisation.
    pub fn configured(&self) -> Polyline {
        let mut line = Polyline::default();
        for (index, entry) in self.history.iter().enumerate() {
            let next_ns = self.history.get(index + 1).map(|next| next.from_ns);
            let curve = entry.curve.line();
            line.step(entry.from_ns, curve.after(entry.from_ns));
            for at in [curve_end(entry), next_ns].into_iter().flatten() {
                if at > entry.from_ns && next_ns.is_none_or(|next| at <= next) {
                    line.push(at, curve.before(at));
                }
            }
        }
        line
    }
}

fn curve_end(entry: &Entry) -> Option<u64> {
    (entry.curve.end_ns > entry.curve.start_ns).then_some(entry.curve.end_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = SECOND_NS;

    fn constant(rate: i128) -> Curve {
        Curve { source: rate * PICO, target: rate * PICO, start_ns: 0, end_ns: 0 }
    }

    fn ramp(from: i128, to: i128, start_s: u64, end_s: u64) -> Curve {
        Curve { source: from * PICO, target: to * PICO, start_ns: start_s * S, end_ns: end_s * S }
    }

    fn at(line: &Polyline, second: u64) -> i128 {
        line.after(second * S) / PICO
    }

    #[test]
    fn a_cut_counts_for_all_one_lease_after_it_was_seen() {
        let mut book = Book::default();
        book.observe(S, 2 * S, (1, 1), constant(40));
        book.observe(11 * S, 12 * S, (1, 2), ramp(40, 20, 10, 10));
        let rate = book.bound(16).rate;
        assert_eq!([at(&rate, 9), at(&rate, 19), at(&rate, 20), at(&rate, 21)], [40, 40, 20, 20]);
        let configured = book.configured();
        assert_eq!([at(&configured, 9), at(&configured, 10), at(&configured, 30)], [40, 20, 20]);
        assert_eq!((book.rate_max(19 * S, 20 * S), book.rate_max(21 * S, 22 * S)), (40, 20));
    }

    #[test]
    fn a_ramp_that_is_replaced_on_its_way_counts_for_a_lease_longer() {
        let mut book = Book::default();
        book.observe(S, S, (1, 1), constant(10));
        book.observe(11 * S, 11 * S, (1, 2), ramp(10, 110, 10, 20));
        book.observe(16 * S, 16 * S, (1, 3), ramp(60, 10, 15, 20));
        let rate = book.bound(16).rate;
        assert_eq!([at(&rate, 12), at(&rate, 15), at(&rate, 20), at(&rate, 25)], [30, 60, 110, 10]);
        let configured = book.configured();
        assert_eq!([at(&configured, 12), at(&configured, 15), at(&configured, 25)], [30, 60, 10]);
    }

    #[test]
    fn a_ramp_that_was_aborted_has_no_start_of_its_own_and_counts_since_the_last_look() {
        let mut book = Book::default();
        book.observe(S, S, (1, 1), constant(10));
        book.observe(14 * S, 14 * S, (1, 2), ramp(10, 110, 10, 20));
        book.observe(16 * S, 16 * S, (1, 3), constant(60));
        assert_eq!(at(&book.bound(16).rate, 5), 10);
        assert_eq!(at(&book.configured(), 18), 60);
    }

    #[test]
    fn after_a_reset_older_ones_count_until_the_newest_is_seen_again() {
        let mut book = Book::default();
        book.observe(S, S, (1, 1), constant(40));
        book.observe(11 * S, 11 * S, (1, 2), ramp(40, 20, 10, 10));
        book.reset(50 * S, 5 * S);
        book.observe(52 * S, 52 * S, (1, 1), constant(40));
        book.observe(54 * S, 54 * S, (1, 2), ramp(40, 20, 10, 10));
        let rate = book.bound(16).rate;
        assert_eq!([at(&rate, 49), at(&rate, 50), at(&rate, 61), at(&rate, 62)], [20, 40, 40, 20]);
        assert_eq!(at(&book.configured(), 55), 20);
    }

    #[test]
    fn between_two_looks_the_larger_rate_is_the_measure() {
        let mut book = Book::default();
        book.observe(S, S, (1, 1), constant(40));
        book.observe_again(10 * S);
        book.observe(12 * S, 13 * S, (1, 2), constant(20));
        book.observe_again(20 * S);
        book.observe(22 * S, 23 * S, (1, 3), constant(60));
        let configured = book.configured();
        assert_eq!(
            [at(&configured, 12), at(&configured, 13), at(&configured, 19), at(&configured, 20)],
            [40, 20, 20, 60]
        );
    }

    #[test]
    fn a_configuration_that_is_adopted_under_a_new_name_changes_nothing() {
        let mut book = Book::default();
        book.observe(S, S, (1, 1), constant(40));
        book.observe(20 * S, 20 * S, (2, 1), constant(40));
        assert_eq!(at(&book.bound(16).rate, 40), 40);
        assert!(book.has_seen((1, 9)) && !book.has_seen((2, 2)));
    }
}
