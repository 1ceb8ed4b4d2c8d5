//! What becomes of ramps that are under way: they are ended where they are, or paused and resumed.

use super::{Plan, Problems, check_result, quoted, text};
use std::collections::BTreeMap;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::limit::{CellConfig, CellKey};
use tollgate_core::units::{LedgerTime, Span};

/// The ramps of a limit's values that stand still: where each goes when it is resumed, and how long that takes then. A
/// change of the value ends its pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// That of the rate.
    pub rate: Option<(Rate, Span)>,
    /// That of the burst, in tokens.
    pub burst: Option<(u64, Span)>,
}

impl Paused {
    pub(super) fn is_none(&self) -> bool {
        self.rate.is_none() && self.burst.is_none()
    }
}

impl Plan {
    /// Ends the ramps of a limit where they are, paused ones too.
    pub(super) fn abort(&mut self, name: &str, now: LedgerTime, problems: &mut Problems) {
        for (key, cell) in self.cells.iter_mut().filter(|(key, _)| key.limit == name) {
            let paused = self.paused.remove(key).unwrap_or_default();
            if let Some(to) = stop_rate(cell, now).or(paused.rate.map(|(to, _)| to)) {
                let (at, to) = (text::rate(cell.rate.target), text::rate(to));
                self.lines.push(format!("{key}: rate stays at {at}, was on its way to {to}"));
            }
            if let Some(to) = stop_burst(cell, now).or(paused.burst.map(|(to, _)| to)) {
                let at = cell.burst.target.whole();
                self.lines.push(format!("{key}: burst stays at {at}, was on its way to {to}"));
            }
            check_result(cell, problems);
        }
    }

    /// Holds the ramps of a limit where they are, and remembers the rest of them.
    pub(super) fn pause_ramps(&mut self, name: &str, now: LedgerTime, problems: &mut Problems) {
        for (key, cell) in self.cells.iter_mut().filter(|(key, _)| key.limit == name) {
            let mut paused = self.paused.get(key).copied().unwrap_or_default();
            let rest = cell.rate.end.since(now);
            if let Some(to) = stop_rate(cell, now) {
                paused.rate = Some((to, rest));
                let (at, to, left) = (text::rate(cell.rate.target), text::rate(to), about(rest));
                self.lines.push(format!("{key}: rate paused at {at}, {left} before {to}"));
            }
            let rest = cell.burst.end.since(now);
            if let Some(to) = stop_burst(cell, now) {
                paused.burst = Some((to, rest));
                let (at, left) = (cell.burst.target.whole(), about(rest));
                self.lines.push(format!("{key}: burst paused at {at}, {left} before {to}"));
            }
            if !paused.is_none() {
                self.paused.insert(key.clone(), paused);
            }
            check_result(cell, problems);
        }
        if !self.paused.keys().any(|key| key.limit == name) {
            problems.add(format!("pause_ramps: no ramp of limit {} is under way", quoted(name)));
        }
    }

    /// Lets the paused ramps of a limit go on, for the time that was left of them.
    pub(super) fn resume_ramps(&mut self, name: &str, now: LedgerTime, problems: &mut Problems) {
        let mut found = false;
        for (key, cell) in self.cells.iter_mut().filter(|(key, _)| key.limit == name) {
            // Who says it twice means it once.
            found |= now < cell.rate.end || now < cell.burst.end;
            let Some(paused) = self.paused.remove(key) else { continue };
            found = true;
            if let Some((to, over)) = paused.rate {
                let from = text::rate(cell.rate.at(now));
                self.lines.push(format!(
                    "{key}: rate {from} -> {} {}, resumed",
                    text::rate(to),
                    text::over(rounded(over))
                ));
                cell.rate = cell.rate.ramp_to(to, now, over);
            }
            if let Some((to, over)) = paused.burst {
                let from = text::milli(cell.burst.at(now).milli_floor());
                self.lines
                    .push(format!("{key}: burst {from} -> {to} {}, resumed", text::over(rounded(over))));
                cell.burst = cell.burst.ramp_to(to, now, over);
            }
            check_result(cell, problems);
        }
        if !found {
            problems.add(format!("resume_ramps: no ramp of limit {} is paused", quoted(name)));
        }
    }

    /// Forgets the rest of ramps whose value has been changed by something else than pausing and resuming.
    pub(super) fn end_pauses(
        &mut self,
        before: &BTreeMap<CellKey, CellConfig>,
        paused_before: &BTreeMap<CellKey, Paused>,
    ) {
        let cells = &self.cells;
        self.paused.retain(|key, paused| {
            let (Some(cell), Some(was)) = (cells.get(key), before.get(key)) else { return false };
            let known = paused_before.get(key).copied().unwrap_or_default();
            if known.rate.is_some() && cell.rate != was.rate {
                paused.rate = None;
            }
            if known.burst.is_some() && cell.burst != was.burst {
                paused.burst = None;
            }
            !paused.is_none()
        });
    }
}

/// How long something takes, as people want to know it: below ten seconds to the millisecond, else to the second.
pub(in crate::config) fn about(span: Span) -> String {
    text::span(rounded(span))
}

fn rounded(span: Span) -> Span {
    let unit = if span < Span::from_secs(10) { 1_000 } else { 1_000_000 };
    Span(span.0 - span.0 % unit)
}

/// Holds the rate where it is; gives where it was going.
fn stop_rate(cell: &mut CellConfig, now: LedgerTime) -> Option<Rate> {
    let to = cell.rate.target;
    (now < cell.rate.end).then(|| {
        cell.rate = RateCurve::constant(cell.rate.at(now));
        to
    })
}

/// Holds the burst where it is, rounded down to whole tokens, at which ramps end; gives where it was going.
fn stop_burst(cell: &mut CellConfig, now: LedgerTime) -> Option<u64> {
    let to = u64::try_from(cell.burst.target.whole()).unwrap_or(0);
    (now < cell.burst.end).then(|| {
        cell.burst = BurstCurve::constant(u64::try_from(cell.burst.at(now).whole()).unwrap_or(0));
        to
    })
}

#[cfg(test)]
#[path = "ramp_tests.rs"]
mod tests;
