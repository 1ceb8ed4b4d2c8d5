//! The judges of limits whose tokens are conserved: windows and what is in flight. They know who used how much when, and how
//! much was allowed, and nothing of ledgers, leases or workers.

use super::{Admission, PICO, Polyline, Verdict, ppm};

/// Tokens in use for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// From when on, in ticks.
    pub from: u64,
    /// Up to when, excluded.
    pub until: u64,
    /// Whole tokens.
    pub tokens: u64,
}

/// Judges every interval as long as `window`: tokens used in `[t, t + window)` must be within the most that was allowed at any
/// time of it. Returns the worst.
pub fn judge_window(log: &[Admission], window: u64, allowed: &Polyline) -> Option<Verdict> {
    let log = sorted(log);
    let mut worst = None;
    let (mut begin, mut sum) = (0, 0u64);
    for end in 0..log.len() {
        sum += log[end].tokens;
        while log[begin].at.saturating_add(window) <= log[end].at {
            sum -= log[begin].tokens;
            begin += 1;
        }
        let (from, to) = (log[begin].at, log[end].at);
        keep_worst(&mut worst, from, to, sum, most(allowed, from, from.saturating_add(window)));
    }
    worst
}

/// Judges the stretches between boundaries, each widened by `margin` on both sides.
pub fn judge_stretches(
    log: &[Admission],
    boundaries: &[u64],
    margin: u64,
    allowed: &Polyline,
) -> Option<Verdict> {
    let log = sorted(log);
    let mut worst = None;
    let begins = [0].into_iter().chain(boundaries.iter().copied());
    for (index, begin) in begins.enumerate() {
        let end = boundaries.get(index).copied().unwrap_or(u64::MAX);
        let (from, to) = (begin.saturating_sub(margin), end.saturating_add(margin));
        let sum = log.iter().filter(|one| from <= one.at && one.at <= to).map(|one| one.tokens).sum();
        keep_worst(&mut worst, from, to, sum, most(allowed, from, to));
    }
    worst
}

/// Judges each moment at which something begins: what is in use then must be within what was allowed.
pub fn judge_in_flight(uses: &[Use], allowed: &Polyline) -> Option<Verdict> {
    let mut moments: Vec<(u64, bool, u64)> = Vec::new();
    for one in uses.iter().filter(|one| one.tokens > 0) {
        moments.push((one.from, true, one.tokens));
        moments.push((one.until.max(one.from), false, one.tokens));
    }
    // What ends at a moment makes room for what begins then.
    moments.sort_unstable();
    let (mut sum, mut worst) = (0u64, None);
    for (at, begins, tokens) in moments {
        if begins {
            sum += tokens;
            keep_worst(&mut worst, at, at, sum, allowed.before(at).max(allowed.after(at)));
        } else {
            sum -= tokens;
        }
    }
    worst
}

fn sorted(log: &[Admission]) -> Vec<Admission> {
    let mut log: Vec<Admission> = log.iter().copied().filter(|one| one.tokens > 0).collect();
    log.sort_unstable();
    log
}

/// The largest value of a line over `[from, to]`.
fn most(line: &Polyline, from: u64, to: u64) -> i128 {
    let bends = line.breaks().filter(|bend| from <= *bend && *bend <= to);
    let values = bends.flat_map(|bend| [line.before(bend), line.after(bend)]);
    values.chain([line.after(from), line.before(to)]).max().unwrap_or(0)
}

fn keep_worst(worst: &mut Option<Verdict>, from: u64, to: u64, admitted: u64, allowed: i128) {
    let tokens = i128::from(admitted) * PICO;
    let peak = ppm(tokens, allowed);
    if worst.is_some_and(|worst| worst.peak_over_bound_ppm >= peak) {
        return;
    }
    let micro = PICO / 1_000_000;
    *worst = Some(Verdict {
        from,
        to,
        admitted,
        burst_micro: u64::try_from(allowed / micro).unwrap_or(u64::MAX),
        minted_micro: 0,
        excess_micro: (tokens - allowed).div_euclid(micro),
        exceeded: tokens > allowed,
        peak_over_bound_ppm: peak,
        peak_over_burst_ppm: peak,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64, tokens: u64) -> Admission {
        Admission { at, tokens }
    }
    fn ten() -> Polyline {
        Polyline::constant(10 * PICO)
    }

    #[test]
    fn every_window_counts_and_not_only_those_that_begin_at_whole_ones() {
        assert!(!judge_window(&[at(5, 10), at(105, 10)], 100, &ten()).unwrap().exceeded);
        let over = judge_window(&[at(5, 4), at(50, 6), at(104, 1)], 100, &ten()).unwrap();
        assert!(over.exceeded);
        assert_eq!((over.from, over.to, over.admitted), (5, 104, 11));
    }

    #[test]
    fn a_stretch_is_as_wide_as_clocks_may_disagree() {
        assert!(!judge_stretches(&[at(5, 10), at(120, 10)], &[100], 10, &ten()).unwrap().exceeded);
        assert!(judge_stretches(&[at(95, 10), at(120, 1)], &[100], 10, &ten()).unwrap().exceeded);
        assert!(judge_stretches(&[at(5, 10), at(109, 1)], &[100], 10, &ten()).unwrap().exceeded);
    }

    #[test]
    fn what_ends_makes_room_at_once() {
        let one = |from, until, tokens| Use { from, until, tokens };
        assert!(!judge_in_flight(&[one(0, 50, 10), one(50, 60, 10)], &ten()).unwrap().exceeded);
        let over = judge_in_flight(&[one(0, 50, 6), one(10, 90, 4), one(49, 60, 1)], &ten()).unwrap();
        assert!(over.exceeded);
        assert_eq!((over.from, over.admitted), (49, 11));
    }

    #[test]
    fn work_that_runs_on_after_a_cut_is_no_fault_but_more_of_it_is() {
        let one = |from, until, tokens| Use { from, until, tokens };
        let mut allowed = ten();
        allowed.step(20, 5 * PICO);
        assert!(!judge_in_flight(&[one(0, 90, 10)], &allowed).unwrap().exceeded);
        assert!(judge_in_flight(&[one(0, 90, 8), one(30, 40, 1)], &allowed).unwrap().exceeded);
    }
}
