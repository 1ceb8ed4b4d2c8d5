//! The figures of a run, as pure functions of what was written down. All times are nanoseconds of the boot clock.

use std::collections::BTreeMap;

use tollgate_sim::checker::{Admission, Bound, PICO, Polyline, judge};

use super::notes::Leased;

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;
/// Length of the windows in which a ramp is compared with its ideal line.
const RAMP_WINDOW_NS: u64 = 3 * SECOND_NS;
/// By how much these windows are moved on.
const RAMP_STEP_NS: u64 = SECOND_NS / 100;
/// A dead worker's share counts as back when the others hold this much of what the fleet held before, in percent, ...
const RECLAIMED_SHARE_PERCENT: u64 = 98;
/// ... and admit, over the two seconds from then on, this much of what the curve allows.
const RECLAIMED_USE: f64 = 0.9;
const RECLAIMED_WINDOW_NS: u64 = 2 * SECOND_NS;
/// Times without a grant are counted from this length on: at 50 calls a second, 50 times the usual gap.
const ZERO_GRANT_NS: u64 = SECOND_NS;

/// A change of the limit's rate along a straight line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RampLine {
    /// Its beginning.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Calls a second at its end.
    pub to: u32,
}

/// What the limit allows: a rate, along a ramp to another one, and a burst.
pub fn bound(rate: u32, burst: u32, ramp: Option<RampLine>) -> Bound {
    let pico = |count: u32| i128::from(count) * PICO;
    let mut line = Polyline::constant(pico(rate));
    if let Some(ramp) = ramp {
        line.push(ramp.start_ns, pico(rate));
        line.push(ramp.end_ns, pico(ramp.to));
    }
    Bound { ticks_per_second: SECOND_NS, rate: line, burst: Polyline::constant(pico(burst)) }
}

/// What a rate brings from one time to another.
pub fn minted(rate: &Polyline, from_ns: u64, to_ns: u64) -> f64 {
    let double_area = rate.double_area(to_ns) - rate.double_area(from_ns);
    // Far more digits than needed are left.
    #[allow(clippy::cast_precision_loss, reason = "a figure to show")]
    let tokens = (double_area / (2 * i128::from(SECOND_NS))) as f64 / PICO as f64;
    tokens
}

/// The largest `admitted(s, t) / bound(s, t)` over all intervals; above 1 exactly when the bound was exceeded. `None` when
/// nothing was admitted.
///
/// The judge finds the interval with the largest *excess*. With the bound multiplied by the best ratio so far, the interval
/// of largest excess has a ratio that is no smaller, and the same one only when it is the largest (Dinkelbach's method).
pub fn peak_over_bound(admissions: &[Admission], bound: &Bound) -> Option<f64> {
    let plain = judge(admissions, bound)?;
    let ratio = |from: u64, to: u64, admitted: u64| {
        let burst = tokens(bound.burst.after(from));
        real(admitted) / (burst + minted(&bound.rate, from, to)).max(f64::MIN_POSITIVE)
    };
    let mut peak = ratio(plain.from, plain.to, plain.admitted);
    for _ in 0..50 {
        let worst = judge(admissions, &scaled(bound, peak))?;
        let next = ratio(worst.from, worst.to, worst.admitted);
        if next <= peak {
            break;
        }
        peak = next;
    }
    // Whether the bound was exceeded is decided in exact numbers.
    Some(if plain.exceeded { peak.max(1.0 + 1e-6) } else { peak.min(1.0) })
}

fn tokens(pico: i128) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a figure to show")]
    let tokens = pico as f64 / PICO as f64;
    tokens
}

/// A count as a figure.
pub fn real(count: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "counts of calls are far below 2^52")]
    let real = count as f64;
    real
}

fn scaled(bound: &Bound, factor: f64) -> Bound {
    #[allow(clippy::cast_possible_truncation, reason = "a factor of a few, in millionths")]
    let micro = (factor * 1e6) as i128;
    let line = |line: &Polyline| {
        let scale = |value: i128| value * micro / 1_000_000;
        let points = line.breaks().flat_map(|at| [(at, scale(line.before(at))), (at, scale(line.after(at)))]);
        Polyline::new(points.collect())
    };
    Bound { ticks_per_second: bound.ticks_per_second, rate: line(&bound.rate), burst: line(&bound.burst) }
}

/// Admitted calls as a part of what the curve allowed from the first admission to the last one: as long as one call of the
/// batch was still to be admitted, work was waiting. The burst is not counted as allowed.
pub fn utilization(admissions: &[Admission], rate: &Polyline) -> Option<f64> {
    let first = admissions.iter().map(|admission| admission.at).min()?;
    let last = admissions.iter().map(|admission| admission.at).max()?;
    let allowed = minted(rate, first, last);
    (allowed > 0.0).then(|| real(total(admissions)) / allowed)
}

fn total(admissions: &[Admission]) -> u64 {
    admissions.iter().map(|admission| admission.tokens).sum()
}

/// What was admitted from one time up to another. `sorted` is in order.
pub fn admitted(sorted: &[Admission], from_ns: u64, to_ns: u64) -> f64 {
    let begin = sorted.partition_point(|admission| admission.at < from_ns);
    let end = sorted.partition_point(|admission| admission.at < to_ns);
    real(total(&sorted[begin..end.max(begin)]))
}

/// The largest `|admitted - ideal| / ideal` over windows of three seconds inside the ramp. `admissions` are in order.
pub fn ramp_max_error(admissions: &[Admission], rate: &Polyline, ramp: RampLine) -> Option<f64> {
    let mut worst: Option<f64> = None;
    let mut from = ramp.start_ns;
    while from + RAMP_WINDOW_NS <= ramp.end_ns {
        let to = from + RAMP_WINDOW_NS;
        let ideal = minted(rate, from, to);
        let error = (admitted(admissions, from, to) - ideal).abs() / ideal;
        worst = Some(worst.map_or(error, |worst| worst.max(error)));
        from += RAMP_STEP_NS;
    }
    worst
}

/// How long after its kill a worker's share was in use again, in seconds: until the survivors' leases hold what all leases
/// held before (98% of it), and the survivors admit what the curve allows (90% of it, over the two seconds from then on).
/// `None` when that didn't come about. `admissions` are in order.
pub fn reclaim_seconds(
    leases: &BTreeMap<String, Vec<Leased>>,
    dead: &str,
    kill_ns: u64,
    admissions: &[Admission],
    rate: &Polyline,
) -> Option<f64> {
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut events: Vec<(u64, &str, u64)> = leases
        .iter()
        .flat_map(|(worker, leases)| {
            leases.iter().map(|lease| (lease.at_ns, worker.as_str(), lease.share_ppb))
        })
        .collect();
    events.sort_unstable();
    let (before, after) = events.split_at(events.partition_point(|(at, ..)| *at <= kill_ns));
    for (_, worker, share) in before {
        held.insert(worker, *share);
    }
    let wanted = held.values().sum::<u64>() * RECLAIMED_SHARE_PERCENT / 100;
    held.remove(dead);
    let last = admissions.last()?.at;
    for (at, worker, share) in after.iter().filter(|(_, worker, _)| *worker != dead) {
        held.insert(worker, *share);
        let to = at + RECLAIMED_WINDOW_NS;
        let in_use = to <= last && admitted(admissions, *at, to) >= RECLAIMED_USE * minted(rate, *at, to);
        if held.values().sum::<u64>() >= wanted && in_use {
            return Some(seconds(at - kill_ns));
        }
    }
    None
}

/// The longest time without any admission in the fleet from `from_ns` to `to_ns`, in seconds. Times below one second are
/// the usual gaps between admissions and count as zero.
pub fn zero_grant_seconds(admissions: &[Admission], from_ns: u64, to_ns: u64) -> f64 {
    let gap = longest_gap(admissions.iter().map(|admission| admission.at), from_ns, to_ns);
    if gap < ZERO_GRANT_NS { 0.0 } else { seconds(gap) }
}

/// The longest time from `from_ns` to `to_ns` in which no heartbeat of any worker was answered, in seconds.
pub fn heartbeat_gap_seconds(leases: &BTreeMap<String, Vec<Leased>>, from_ns: u64, to_ns: u64) -> f64 {
    let mut answers: Vec<u64> = leases.values().flatten().map(|lease| lease.at_ns).collect();
    answers.sort_unstable();
    seconds(longest_gap(answers, from_ns, to_ns))
}

/// The longest gap between events that are in order, with both ends of the interval as events.
fn longest_gap(events: impl IntoIterator<Item = u64>, from: u64, to: u64) -> u64 {
    let inside = events.into_iter().filter(|at| (from..=to).contains(at)).chain([to.max(from)]);
    let mut last = from;
    let mut longest = 0;
    for at in inside {
        longest = longest.max(at.saturating_sub(last));
        last = at;
    }
    longest
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    real(ns) / real(SECOND_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One call every `every_ms` from `from_ms` on, up to and without `to_ms`.
    fn steady(from_ms: u64, to_ms: u64, every_ms: u64) -> Vec<Admission> {
        let step = usize::try_from(every_ms).unwrap();
        (from_ms..to_ms).step_by(step).map(|at| Admission { at: at * 1_000_000, tokens: 1 }).collect()
    }

    fn leases(workers: &[(&str, &[(u64, u64)])]) -> BTreeMap<String, Vec<Leased>> {
        let of = |list: &[(u64, u64)]| {
            list.iter()
                .map(|(ms, percent)| Leased { at_ns: ms * 1_000_000, share_ppb: percent * 10_000_000 })
                .collect()
        };
        workers.iter().map(|(name, list)| ((*name).to_owned(), of(list))).collect()
    }

    #[test]
    fn five_bursts_at_once_peak_at_five_and_an_even_stream_below_one() {
        let bound = bound(50, 16, None);
        let burst = vec![Admission { at: SECOND_NS, tokens: 1 }; 80];
        assert!((peak_over_bound(&burst, &bound).unwrap() - 5.0).abs() < 1e-6);
        let even = peak_over_bound(&steady(0, 60_000, 20), &bound).unwrap();
        assert!(even < 1.0 && even > 0.99, "{even}");
        assert_eq!(peak_over_bound(&[], &bound), None);
    }

    #[test]
    fn the_peak_is_the_largest_ratio_even_where_another_interval_has_a_larger_excess() {
        // 40 at once: 40 / 16. Then a long time at twice the rate: more excess, a smaller ratio.
        let mut log = vec![Admission { at: 0, tokens: 40 }];
        log.extend(steady(100_000, 160_000, 10));
        let peak = peak_over_bound(&log, &bound(50, 16, None)).unwrap();
        assert!((peak - 2.5).abs() < 1e-6, "{peak}");
    }

    #[test]
    fn one_call_too_many_is_above_one_however_long_the_run() {
        let ramp = RampLine { start_ns: 10 * SECOND_NS, end_ns: 25 * SECOND_NS, to: 100 };
        let bound = bound(50, 16, Some(ramp));
        let mut log = vec![Admission { at: 0, tokens: 16 }];
        log.extend(steady(20, 10_000, 20));
        assert!(peak_over_bound(&log, &bound).unwrap() <= 1.0);
        log.push(Admission { at: 9_990_000_000, tokens: 1 });
        assert!(peak_over_bound(&log, &bound).unwrap() > 1.0);
    }

    #[test]
    fn utilization_counts_a_pause_as_lost() {
        let rate = bound(50, 16, None).rate;
        let mut log = steady(0, 8_000, 20);
        log.extend(steady(10_000, 20_000, 20));
        let used = utilization(&log, &rate).unwrap();
        assert!((used - 0.9).abs() < 0.005, "{used}");
    }

    #[test]
    fn a_ramp_that_is_followed_late_has_the_error_of_its_worst_window() {
        let ramp = RampLine { start_ns: 0, end_ns: 15 * SECOND_NS, to: 100 };
        let rate = bound(50, 16, Some(ramp)).rate;
        // Constant 50 a second: at the end 90 to 100 were wanted.
        let error = ramp_max_error(&steady(0, 15_000, 20), &rate, ramp).unwrap();
        assert!((error - (1.0 - 150.0 / 285.0)).abs() < 0.01, "{error}");
        let short = RampLine { end_ns: 2 * SECOND_NS, ..ramp };
        assert_eq!(ramp_max_error(&steady(0, 15_000, 20), &rate, short), None);
    }

    #[test]
    fn a_share_is_back_when_the_survivors_hold_it_and_use_it() {
        let rate = bound(50, 16, None).rate;
        let log = leases(&[
            ("a", &[(1_000, 50), (5_500, 50), (9_000, 100)]),
            ("b", &[(1_000, 50), (4_900, 50), (5_100, 50)]),
        ]);
        let mut admissions = steady(0, 5_000, 20);
        admissions.extend(steady(5_000, 9_000, 40));
        admissions.extend(steady(9_000, 20_000, 20));
        let kill = 5 * SECOND_NS;
        assert_eq!(reclaim_seconds(&log, "b", kill, &admissions, &rate), Some(4.0));
        let unused = steady(0, 20_000, 40);
        assert_eq!(reclaim_seconds(&log, "b", kill, &unused, &rate), None);
    }

    #[test]
    fn gaps_count_from_the_kill_and_up_to_the_end() {
        let mut admissions = steady(0, 5_100, 20);
        admissions.extend(steady(6_200, 9_000, 20));
        let (kill, end) = (5 * SECOND_NS, 9 * SECOND_NS);
        assert!((zero_grant_seconds(&admissions, kill, end) - 1.12).abs() < 1e-9);
        assert!(zero_grant_seconds(&steady(0, 9_000, 900), kill, end) < f64::EPSILON);
        let log =
            leases(&[("a", &[(4_900, 20), (6_500, 20)]), ("b", &[(4_800, 20), (7_000, 20), (8_800, 20)])]);
        assert!((heartbeat_gap_seconds(&log, kill, end) - 1.8).abs() < 1e-9);
        assert!((heartbeat_gap_seconds(&leases(&[]), kill, end) - 4.0).abs() < 1e-9);
    }
}
