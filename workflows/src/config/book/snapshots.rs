//! What was set when: for rollback and for the difference of two versions.
//!
//! Kept is what each change replaced. Only what operators say counts: temporary changes, ramps and the times that a calendar
//! follows are none of it.

use super::overrides::Layers;
use super::schedules::Schedule;
use super::{Book, Plan, Problems, check_result, described, is_one, quoted, text, tiers};
use std::collections::{BTreeMap, BTreeSet};
use tollgate_core::curve::{BurstCurve, RateCurve};
use tollgate_core::ledger::Settings;
use tollgate_core::limit::{CellConfig, CellKey, Conduct, Version, WhenLost};
use tollgate_core::policy::Policy;
use tollgate_core::units::{LedgerTime, Share, Span};

/// How many changes can be undone: as many as are remembered.
pub const UNDOS_MAX: usize = super::HISTORY_ENTRIES_MAX;
/// How many bytes what they replaced may take: an eighth of what the state may have.
pub const UNDOS_BYTES_MAX: usize = 128 * 1024;
/// What a limit takes at most, without its names and times, in bytes.
const STATED_BYTES: usize = 160;
/// What a schedule takes at most, without its names, in bytes.
const SCHEDULE_BYTES: usize = 80;
/// What a time takes at most, in bytes.
const TIME_BYTES: usize = 10;

/// What was set for one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated {
    /// The limit, without ramps.
    pub cell: CellConfig,
    /// Its schedules, without times.
    pub schedules: BTreeMap<String, Schedule>,
}

/// What one change replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The version that it made.
    pub version: Version,
    /// What the group kept to; `None`: it stayed.
    pub settings: Option<Settings>,
    /// What was set; `None`: there was no such limit.
    pub cells: BTreeMap<CellKey, Option<Stated>>,
}

/// What is, was or would be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    settings: Settings,
    cells: BTreeMap<CellKey, Stated>,
}

impl Stated {
    fn of(cell: &CellConfig, layers: Option<&Layers>) -> Stated {
        let mut cell = layers.map_or_else(|| cell.clone(), |layers| layers.underneath(cell));
        cell.rate = RateCurve::constant(cell.rate.target);
        cell.burst = BurstCurve { source: cell.burst.target, ..cell.burst };
        (cell.burst.start, cell.burst.end) = (LedgerTime(0), LedgerTime(0));
        let schedules = layers.into_iter().flat_map(|layers| &layers.schedules);
        Stated { cell, schedules: schedules.map(|(name, one)| (name.clone(), one.stated())).collect() }
    }

    /// Whether an operator would say the same.
    fn is_like(&self, other: &Stated) -> bool {
        let policy = other.cell.policy.clone();
        is_alike(&self.cell.policy, &policy)
            && CellConfig { policy, ..self.cell.clone() } == other.cell
            && self.schedules == other.schedules
    }

    /// At most what it takes when it is carried over.
    fn bytes(&self) -> usize {
        let policy = match &self.cell.policy {
            Policy::FixedWindow { boundaries, calendar, .. } => {
                let names = calendar
                    .as_ref()
                    .map_or(0, |calendar| calendar.time_zone.len() + calendar.tz_version.len());
                boundaries.len() * TIME_BYTES + names
            }
            _ => 0,
        };
        let schedules = self.schedules.iter();
        let schedules = schedules.map(|(name, one)| SCHEDULE_BYTES + name.len() + one.rule.time_zone.len());
        STATED_BYTES + names(&self.cell.key) + policy + schedules.sum::<usize>()
    }
}

fn names(key: &CellKey) -> usize {
    key.limit.len() + key.meter.len() + key.tier.len()
}

/// Windows of one calendar are alike, whatever times are known.
fn is_alike(one: &Policy, other: &Policy) -> bool {
    match (one, other) {
        (
            Policy::FixedWindow { calendar: Some(one), .. },
            Policy::FixedWindow { calendar: Some(other), .. },
        ) => is_one(one, other),
        _ => one == other,
    }
}

impl Undo {
    /// At most what it takes when it is carried over. A limit names itself twice.
    pub(in crate::config) fn bytes(&self) -> usize {
        let cell = |(key, stated): (&CellKey, &Option<Stated>)| {
            TIME_BYTES * 2 + names(key) + stated.as_ref().map_or(0, Stated::bytes)
        };
        TIME_BYTES * 4 + self.cells.iter().map(cell).sum::<usize>()
    }
}

impl Snapshot {
    /// What the change from `self` to `new` replaced; `None` when nothing was.
    fn undo(mut self, new: &Snapshot, version: Version) -> Option<Undo> {
        let mut cells: BTreeMap<CellKey, Option<Stated>> = BTreeMap::new();
        for (key, stated) in &new.cells {
            match self.cells.remove(key) {
                None => drop(cells.insert(key.clone(), None)),
                Some(old) if !old.is_like(stated) => drop(cells.insert(key.clone(), Some(old))),
                Some(_) => {}
            }
        }
        cells.extend(self.cells.into_iter().map(|(key, old)| (key, Some(old))));
        let settings = (self.settings != new.settings).then_some(self.settings);
        (settings.is_some() || !cells.is_empty()).then_some(Undo { version, settings, cells })
    }

    /// One line for each difference to `new`; `over` says how long rates and bursts take.
    fn differences(&self, new: &Snapshot, over: &str) -> Vec<String> {
        let mut lines = Vec::new();
        if self.settings != new.settings {
            let rate = |settings: &Settings| text::milli(settings.target_rate_milli);
            let (was, is) = (rate(&self.settings), rate(&new.settings));
            lines.push(format!("target rate: {was} -> {is} messages a second"));
        }
        let keys: BTreeSet<&CellKey> = self.cells.keys().chain(new.cells.keys()).collect();
        for key in keys {
            match (self.cells.get(key), new.cells.get(key)) {
                (None, Some(new)) => {
                    lines.push(described("created", &new.cell));
                    lines.extend(schedules(key, &BTreeMap::new(), &new.schedules));
                }
                (Some(old), None) => {
                    let burst = text::milli(old.cell.burst.target.milli_floor());
                    let rate = text::rate(old.cell.rate.target);
                    lines.push(format!("{key}: removed, was rate {rate}, burst {burst}"));
                }
                (Some(old), Some(new)) => {
                    lines.extend(cell_differences(&old.cell, &new.cell, over));
                    lines.extend(schedules(key, &old.schedules, &new.schedules));
                }
                (None, None) => {}
            }
        }
        lines
    }
}

fn cell_differences(old: &CellConfig, new: &CellConfig, over: &str) -> Vec<String> {
    let (key, mut lines) = (&new.key, Vec::new());
    if !is_alike(&old.policy, &new.policy) {
        lines.push(format!("{key}: {} -> {}", text::policy(&old.policy), text::policy(&new.policy)));
    }
    if old.rate.target.cmp_value(new.rate.target).is_ne() {
        let (was, is) = (text::rate(old.rate.target), text::rate(new.rate.target));
        lines.push(format!("{key}: rate {was} -> {is}{over}"));
    }
    if old.burst.target != new.burst.target {
        let tokens = |burst: BurstCurve| text::milli(burst.target.milli_floor());
        lines.push(format!("{key}: burst {} -> {}{over}", tokens(old.burst), tokens(new.burst)));
    }
    if old.lease != new.lease {
        lines.push(format!("{key}: lease {} -> {}", text::span(old.lease), text::span(new.lease)));
    }
    if old.queue != new.queue {
        let shown = |queue: Option<u64>| {
            queue.map_or_else(|| "as the process says".to_owned(), |queue| queue.to_string())
        };
        lines.push(format!("{key}: queue {} -> {}", shown(old.queue), shown(new.queue)));
    }
    if old.conduct != new.conduct {
        lines.push(format!("{key}: {} -> {}", conduct(old.conduct), conduct(new.conduct)));
    }
    lines.extend(tiers::lines(new, old));
    lines
}

fn schedules(
    key: &CellKey,
    old: &BTreeMap<String, Schedule>,
    new: &BTreeMap<String, Schedule>,
) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |name: &String| match (old.get(name), new.get(name)) {
        (None, Some(new)) => Some(format!("{key}: schedule {name} added: {}", new.text())),
        (Some(old), None) => Some(format!("{key}: schedule {name} removed, was {}", old.text())),
        (Some(old), Some(new)) if old != new => {
            Some(format!("{key}: schedule {name}: {} -> {}", old.text(), new.text()))
        }
        _ => None,
    };
    names.into_iter().filter_map(line).collect()
}

/// `paused, shadow, reserve 20%, when lost closed`.
fn conduct(conduct: Conduct) -> String {
    let percent = |share: Share| format!("{}%", text::milli(u64::from(share.ppb()) / 10_000));
    let paused = if conduct.paused { "paused, " } else { "" };
    let shadow = if conduct.shadow { "shadow, " } else { "" };
    let lost = match conduct.when_lost {
        WhenLost::Closed => "closed".to_owned(),
        WhenLost::Hold(part) => format!("hold {}", percent(part)),
        WhenLost::Open => "open".to_owned(),
    };
    format!("{paused}{shadow}reserve {}, when lost {lost}", percent(conduct.reserve))
}

impl Book {
    /// What is set now.
    pub(super) fn snapshot(&self) -> Snapshot {
        let stated =
            |(key, cell): (&CellKey, &CellConfig)| (key.clone(), Stated::of(cell, self.layers.get(key)));
        Snapshot { settings: self.settings, cells: self.cells.iter().map(stated).collect() }
    }

    /// Keeps what a change replaced. `before` is what was set before it.
    pub(super) fn keep(&mut self, before: Snapshot) {
        let after = self.snapshot();
        if let Some(undo) = before.undo(&after, self.version) {
            self.undos.push_back(undo);
        }
        let mut bytes: usize = self.undos.iter().map(Undo::bytes).sum();
        while self.undos.len() > UNDOS_MAX || bytes > UNDOS_BYTES_MAX {
            let Some(dropped) = self.undos.pop_front() else { break };
            bytes -= dropped.bytes();
            self.kept_from = dropped.version;
        }
    }

    /// The version that a text names: `run.n`, or `n` of the run in force.
    ///
    /// # Errors
    /// What is wrong with it: no version, one that isn't there yet, or one of which nothing is kept any more.
    pub(super) fn version_of(&self, text: &str) -> Result<Version, String> {
        let number =
            |text: &str| text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let read = match text.split_once('.') {
            Some((run, n)) => number(run).zip(number(n)).map(|(run, n)| Version { run, n }),
            None => number(text).map(|n| Version { run: self.version.run, n }),
        };
        let version =
            read.ok_or_else(|| format!("version {} is none, allowed: 7.2, or 2 alone", quoted(text)))?;
        if version > self.version {
            return Err(format!("version {version} isn't there yet, the one in force is {}", self.version));
        }
        if version < self.kept_from {
            let since = self.history.iter().find(|entry| entry.version == self.kept_from);
            let since = since.map(|entry| format!(", made {}", text::time(entry.at))).unwrap_or_default();
            let from = self.kept_from;
            return Err(format!(
                "what version {version} set is not kept any more: it reaches back to version {from}{since}"
            ));
        }
        Ok(version)
    }

    /// What was set when `version` was in force: one that is kept.
    fn at_version(&self, version: Version) -> Snapshot {
        let mut snapshot = self.snapshot();
        for undo in self.undos.iter().rev().take_while(|undo| undo.version > version) {
            snapshot.settings = undo.settings.unwrap_or(snapshot.settings);
            for (key, stated) in &undo.cells {
                match stated {
                    Some(stated) => drop(snapshot.cells.insert(key.clone(), stated.clone())),
                    None => drop(snapshot.cells.remove(key)),
                }
            }
        }
        snapshot
    }

    /// What differs between what was set by two versions; the one in force if `to` isn't given. One line for each difference.
    ///
    /// # Errors
    /// Which version is none, or isn't kept.
    pub fn difference(
        &self,
        from: &str,
        to: Option<&str>,
    ) -> Result<(Version, Version, Vec<String>), String> {
        let from = self.version_of(from)?;
        let to = to.map_or(Ok(self.version), |to| self.version_of(to))?;
        let lines = self.at_version(from).differences(&self.at_version(to), "");
        Ok((from, to, lines))
    }

    /// What a rollback would do: what is set becomes what was set then.
    pub(super) fn roll_back(
        &self,
        plan: &mut Plan,
        version: &str,
        (now, ramp): (LedgerTime, Span),
        problems: &mut Problems,
    ) {
        let version = match self.version_of(version) {
            Ok(version) => version,
            Err(problem) => return problems.add(format!("rollback: {problem}")),
        };
        let (is, was) = (self.snapshot(), self.at_version(version));
        let over = format!(" {}", text::over(ramp));
        plan.lines.extend(is.differences(&was, &over));
        plan.settings = was.settings;
        plan.cells.retain(|key, _| was.cells.contains_key(key));
        for (key, stated) in was.cells {
            let then = stated.cell;
            let cell = match plan.cells.get(&key) {
                None => then,
                Some(cell) => {
                    let mut cell = cell.clone();
                    let burst = u64::try_from(then.burst.target.whole()).unwrap_or(0);
                    let is_same = cell.rate.target.cmp_value(then.rate.target).is_eq()
                        && cell.burst.target == then.burst.target;
                    if !is_same && ramp == Span::ZERO {
                        (cell.rate, cell.burst) = (then.rate, then.burst);
                    } else if !is_same {
                        cell.rate = cell.rate.ramp_to(then.rate.target, now, ramp);
                        cell.burst = cell.burst.ramp_to(burst, now, ramp);
                    }
                    let policy = if is_alike(&cell.policy, &then.policy) { cell.policy } else { then.policy };
                    CellConfig { rate: cell.rate, burst: cell.burst, policy, ..then }
                }
            };
            check_result(&cell, problems);
            plan.cells.insert(key.clone(), cell);
            let has_any = plan.layers.contains_key(&key) || !stated.schedules.is_empty();
            if has_any {
                let layers = plan.layers.entry(key).or_default();
                layers.schedules.retain(|name, _| stated.schedules.contains_key(name));
                for (name, schedule) in stated.schedules {
                    layers.put(&name, schedule);
                }
            }
        }
    }
}
