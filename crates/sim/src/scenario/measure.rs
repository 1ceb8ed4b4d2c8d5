//! What a run came to: against an ideal limiter that sees all work at once and has no messages to wait for.
//!
//! Both models in here are plain limiters of their own; they know the limit, arrivals and admissions, and nothing of ledgers
//! and leases.

use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000;
/// A token, in millionths of a microsecond's worth at one millionth a second.
const TOKEN: i128 = 1_000_000_000_000;

/// A limit as its operator means it: rate and burst, each changing in lines.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    points: Vec<(u64, u64)>,
}

impl Line {
    /// The same value all the time.
    pub(crate) fn new(value: u64) -> Line {
        Line { points: vec![(0, value)] }
    }

    /// From its value at `from` in a line to `value` at `to`. What was planned for later is dropped.
    pub(crate) fn change(&mut self, from: u64, to: u64, value: u64) {
        let start = self.at(from);
        self.points.retain(|(at, _)| *at < from);
        self.points.extend([(from, start), (to, value)]);
    }

    /// The value at a time.
    pub(crate) fn at(&self, at: u64) -> u64 {
        let after = self.points.iter().position(|point| point.0 > at).unwrap_or(self.points.len());
        let Some(before) = after.checked_sub(1).and_then(|index| self.points.get(index)) else { return 0 };
        let Some(next) = self.points.get(after) else { return before.1 };
        let (span, into) = (u128::from(next.0 - before.0), u128::from(at - before.0));
        let both = u128::from(before.1) * (span - into) + u128::from(next.1) * into;
        u64::try_from(both / span.max(1)).unwrap_or(u64::MAX)
    }
}

/// A limiter that sees everything at once.
#[derive(Clone, Debug)]
pub(super) struct Ideal {
    /// Tokens there, in [`TOKEN`]s.
    level: i128,
    at: u64,
    /// Since when it has held at least one token.
    room_since: Option<u64>,
    how: How,
    /// Tokens that come back, by when.
    back: VecDeque<(u64, u64)>,
}

/// How tokens come (back).
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// By the rate.
    Minted,
    /// So long after they were used: a window, or the mean length of work.
    After(u64),
    /// At these times.
    At(Vec<u64>),
}

impl Ideal {
    pub(super) fn full(burst: u64, how: How) -> Ideal {
        let level = i128::from(burst) * TOKEN;
        Ideal { level, at: 0, room_since: Some(0), how, back: VecDeque::new() }
    }

    pub(super) fn fill(&mut self, now: u64, limit: &Limit) {
        if matches!(self.how, How::Minted) {
            let (before, after) = (i128::from(limit.rate.at(self.at)), i128::from(limit.rate.at(now)));
            self.level += (before + after) * i128::from(now.saturating_sub(self.at)) / 2;
            self.level = self.level.min(i128::from(limit.burst.at(now)) * TOKEN);
        } else {
            let (before, after) = (i128::from(limit.burst.at(self.at)), i128::from(limit.burst.at(now)));
            self.level += (after - before) * TOKEN;
            while let Some((_, tokens)) = self.back.front().copied().filter(|(at, _)| *at <= now) {
                self.back.pop_front();
                self.level += i128::from(tokens) * TOKEN;
            }
        }
        self.at = now;
        self.note(now);
    }

    pub(super) fn take(&mut self, tokens: u64, now: u64) {
        self.level -= i128::from(tokens) * TOKEN;
        let back = match &self.how {
            How::Minted => None,
            How::After(span) => Some(now + span),
            How::At(times) => times.iter().copied().find(|at| *at > now),
        };
        self.back.extend(back.map(|at| (at, tokens)));
        self.note(now);
    }

    fn note(&mut self, now: u64) {
        self.room_since = (self.level >= TOKEN).then(|| self.room_since.unwrap_or(now));
    }

    pub(super) fn whole(&self) -> u64 {
        u64::try_from(self.level / TOKEN).unwrap_or(0)
    }
}

/// The limit of a run.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// In millionths of a token a second.
    pub(crate) rate: Line,
    /// In tokens.
    pub(crate) burst: Line,
}

/// What one worker had and got in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    wanted: u64,
    got: u64,
    /// Whether it was there all the time.
    whole: bool,
}

/// Counts a run. Times come in order.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) limit: Limit,
    patience: u64,
    ideal: Ideal,
    ideal_queue: VecDeque<(u64, u64)>,
    /// When something waited last at the ideal limiter.
    ideal_queued_until: u64,
    ideal_admitted: u64,
    real: Ideal,
    admitted: u64,
    wanted: u64,
    /// Tokens by how many milliseconds they waited: as many entries as the patience has milliseconds, and ticks.
    waits: BTreeMap<u64, u64>,
    wrongly_refused: u64,
    refused: u64,
    second: u64,
    second_admitted: u64,
    second_waited: bool,
    zero_run: u64,
    zero_max: u64,
    window: u64,
    window_ends: u64,
    parts: Vec<Part>,
    /// Windows that end before then are disturbed.
    disturbed_until: u64,
    /// Summed deviations and what was fair, of whole windows.
    unfair: (u64, u64),
}

/// A run's figures; ratios in millionths.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Tokens admitted.
    pub admitted: u64,
    /// Tokens that were wanted, where a limit has one tier.
    pub wanted: u64,
    /// Tokens admitted by how many milliseconds they waited, where a limit has one meter and one tier.
    pub waits: BTreeMap<u64, u64>,
    /// Admitted, of what the ideal limiter admitted from the same work.
    pub utilization_ppm: u64,
    /// Tokens refused, or given up after the patience of the scenario, while the ideal limiter served everything at once.
    pub wrongly_refused: u64,
    /// Tokens refused or given up.
    pub refused: u64,
    /// The most seconds in a row in which work waited, the limit had room, and nothing was admitted.
    pub zero_grant_seconds: u64,
    /// How far workers were from the max-min fair part of what was admitted, in undisturbed windows, less the one token that
    /// can't be divided.
    pub fairness_error_ppm: Option<u64>,
    /// Tokens of the highest of several tiers, by how many milliseconds they waited while nothing was wrong.
    pub high_waits: BTreeMap<u64, u64>,
    /// [`Figures::utilization_ppm`] where tiers are looked at and nothing went wrong.
    pub calm_utilization_ppm: Option<u64>,
}

impl Measure {
    pub(crate) fn new(limit: Limit, how: How, patience: u64, window: u64, workers: usize) -> Measure {
        let burst = limit.burst.at(0);
        Measure {
            limit,
            patience,
            ideal: Ideal::full(burst, how.clone()),
            ideal_queue: VecDeque::new(),
            ideal_queued_until: 0,
            ideal_admitted: 0,
            real: Ideal::full(burst, how),
            admitted: 0,
            wanted: 0,
            waits: BTreeMap::new(),
            wrongly_refused: 0,
            refused: 0,
            second: 0,
            second_admitted: 0,
            second_waited: false,
            zero_run: 0,
            zero_max: 0,
            window,
            window_ends: window,
            parts: vec![Part::default(); workers],
            disturbed_until: 0,
            unfair: (0, 0),
        }
    }

    /// Time has come to `now`; `waiting` are the tokens that each worker's queue holds, `None` where there is no worker.
    pub(crate) fn pass(&mut self, now: u64, waiting: impl Fn(usize) -> Option<u64>) {
        while self.second + SECOND <= now {
            let had_room = self.real.room_since.is_some_and(|since| since <= self.second);
            if self.second_waited && had_room && self.second_admitted == 0 {
                self.zero_run += 1;
                self.zero_max = self.zero_max.max(self.zero_run);
            } else {
                self.zero_run = 0;
            }
            self.second += SECOND;
            self.second_admitted = 0;
            self.second_waited = (0..self.parts.len()).any(|worker| waiting(worker).is_some_and(|n| n > 0));
            self.real.fill(self.second.min(now), &self.limit);
        }
        if self.window_ends <= now {
            self.close_window();
            self.window_ends = now + self.window;
            for (worker, part) in self.parts.iter_mut().enumerate() {
                let there = waiting(worker);
                *part = Part { wanted: there.unwrap_or(0), got: 0, whole: there.is_some() };
            }
        }
    }

    /// Something happens that no limiter can be fair through: until `until` fairness isn't measured.
    pub(crate) fn disturb(&mut self, until: u64) {
        self.disturbed_until = self.disturbed_until.max(until);
    }

    /// A worker came or went: what it gets in this window says nothing.
    pub(crate) fn interrupt(&mut self, worker: usize) {
        self.parts[worker].whole = false;
    }

    pub(crate) fn arrive(&mut self, worker: usize, tokens: u64, now: u64) {
        self.parts[worker].wanted += tokens;
        self.wanted += tokens;
        self.ideal.fill(now, &self.limit);
        if tokens > 0 {
            self.ideal_queue.push_back((now, tokens));
        }
        while let Some((since, waiting)) = self.ideal_queue.front_mut() {
            if now > *since + self.patience {
                self.ideal_queue.pop_front();
                continue;
            }
            let part = self.ideal.whole().min(*waiting);
            if part == 0 {
                self.ideal_queued_until = now;
                break;
            }
            *waiting -= part;
            let done = *waiting == 0;
            self.ideal.take(part, now);
            self.ideal_admitted += part;
            if done {
                self.ideal_queue.pop_front();
            }
        }
    }

    pub(crate) fn admit(&mut self, worker: usize, tokens: u64, now: u64) {
        self.real.fill(now, &self.limit);
        self.real.take(tokens, now);
        self.admitted += tokens;
        self.second_admitted += tokens;
        self.parts[worker].got += tokens;
    }

    /// Tokens that were admitted had waited for so many microseconds.
    pub(crate) fn waited(&mut self, tokens: u64, us: u64) {
        *self.waits.entry(us / 1_000).or_default() += tokens;
    }

    /// Tokens that have waited since `since` are given up.
    pub(crate) fn give_up(&mut self, tokens: u64, since: u64, now: u64) {
        self.ideal.fill(now, &self.limit);
        self.refused += tokens;
        // Whatever came since then, the ideal limiter has served at once.
        let kept_up = self.ideal_queue.is_empty() && self.ideal_queued_until < since;
        self.wrongly_refused += if kept_up { tokens } else { 0 };
    }

    fn close_window(&mut self) {
        if self.disturbed_until + self.window > self.window_ends {
            return;
        }
        let parts: Vec<Part> =
            self.parts.iter().copied().filter(|part| part.whole && part.wanted > 0).collect();
        let got: u64 = parts.iter().map(|part| part.got).sum();
        // The level to which everybody is filled.
        let mut wanted: Vec<u64> = parts.iter().map(|part| part.wanted).collect();
        wanted.sort_unstable();
        let (mut left, mut count, mut level) = (got, wanted.len() as u64, u64::MAX);
        for want in &wanted {
            let even = left / count.max(1);
            if *want >= even {
                level = even;
                break;
            }
            left -= want;
            count -= 1;
        }
        if parts.len() > 1 && level < u64::MAX {
            for part in &parts {
                let fair = part.wanted.min(level);
                self.unfair.0 += part.got.abs_diff(fair).saturating_sub(1);
                self.unfair.1 += fair;
            }
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        let ratio = |part: u64, whole: u64| {
            u64::try_from(u128::from(part) * 1_000_000 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
        };
        Figures {
            admitted: self.admitted,
            wanted: self.wanted,
            waits: self.waits.clone(),
            utilization_ppm: ratio(self.admitted, self.ideal_admitted),
            wrongly_refused: self.wrongly_refused,
            refused: self.refused,
            zero_grant_seconds: self.zero_max,
            fairness_error_ppm: (self.unfair.1 > 0).then(|| ratio(self.unfair.0, self.unfair.1)),
            high_waits: BTreeMap::new(),
            calm_utilization_ppm: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure() -> Measure {
        let limit = Limit { rate: Line::new(10_000_000), burst: Line::new(5) };
        Measure::new(limit, How::Minted, SECOND, 10 * SECOND, 2)
    }

    #[test]
    fn a_line_goes_from_where_it_is_to_where_it_should_be() {
        let mut line = Line::new(100);
        line.change(10, 20, 200);
        line.change(15, 25, 50);
        assert_eq!(
            [line.at(0), line.at(12), line.at(15), line.at(20), line.at(30)],
            [100, 120, 150, 100, 50]
        );
        line.change(40, 40, 7);
        assert_eq!([line.at(39), line.at(40)], [50, 7]);
    }

    #[test]
    fn half_of_what_could_be_admitted_is_a_half() {
        let mut measure = measure();
        for tenth in 1..=1_000u64 {
            let now = tenth * SECOND / 10;
            measure.arrive(0, 2, now);
            if tenth % 2 == 0 {
                measure.admit(0, 1, now);
            }
        }
        let half = measure.figures().utilization_ppm;
        assert!((490_000..=500_000).contains(&half), "{half}");
    }

    #[test]
    fn seconds_without_grants_count_while_there_is_room_and_work() {
        let mut measure = measure();
        let mut at = 0;
        for second in 0..20u64 {
            at = second * SECOND;
            let waits = u64::from(second < 12);
            measure.pass(at, |_| Some(waits));
            // Nothing waits in the second gap.
            if !(5..9).contains(&second) && !(13..19).contains(&second) {
                measure.admit(0, 10, at + 1);
            }
        }
        measure.pass(at, |_| Some(1));
        assert_eq!(measure.figures().zero_grant_seconds, 4);
    }

    #[test]
    fn who_gets_twice_its_part_is_seen() {
        let mut measure = measure();
        measure.pass(10 * SECOND, |_| Some(1_000));
        for step in 1..=100 {
            measure.admit(0, 2, 10 * SECOND + step);
            measure.admit(1, 1, 10 * SECOND + step);
        }
        measure.pass(20 * SECOND, |_| Some(1_000));
        let error = measure.figures().fairness_error_ppm.unwrap();
        assert!((320_000..340_000).contains(&error), "{error}");
    }

    #[test]
    fn giving_up_is_wrong_only_where_the_ideal_limiter_keeps_up() {
        let mut measure = measure();
        measure.arrive(0, 6, SECOND);
        measure.give_up(1, SECOND, SECOND);
        assert_eq!(measure.figures().wrongly_refused, 0, "five fit into the burst");
        measure.arrive(0, 4, 2 * SECOND);
        measure.give_up(4, 2 * SECOND, 2 * SECOND);
        assert_eq!(measure.figures().wrongly_refused, 4);
    }
}
