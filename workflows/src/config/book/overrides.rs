//! What changes a limit for a time, on top of what is set: overrides, and schedules (see [`super::schedules`]).
//!
//! A limit's cell in the book is what is in force. While something is on top of it, what is set is kept beneath, with its
//! ramp, and a change of what is set goes there. An override is on top of schedules. Of two schedules the one whose time
//! began last is in force.

use super::schedules::Schedule;
use super::{ACTOR_SELF, Book, Outcome, Plan, Problems, quoted, text};
use crate::wire::config::MeterJson;
use crate::wire::layers::{OverrideJson, ValueJson};
use std::collections::BTreeMap;
use tollgate_core::curve::{BURST_MAX, BurstCurve, RATE_COUNT_MAX, Rate, RateCurve};
use tollgate_core::limit::{CellConfig, CellKey, check_burst};
use tollgate_core::policy::Policy;
use tollgate_core::units::{LedgerTime, Span};

/// How many limits of a group may be overridden at a time: more is a change of what is set.
pub const OVERRIDES_MAX: usize = 100;
/// The longest override: what lasts longer is set.
pub const OVERRIDE_MAX: Span = Span::from_secs(31 * 86_400);
/// The shortest override.
pub const OVERRIDE_MIN: Span = Span::from_secs(1);
/// The largest multiple, in thousandths: a thousand times what is set.
pub const TIMES_MILLI_MAX: u64 = 1_000_000;
/// How much of its reason an override shows; the history has all of it.
const REASON_BYTES_MAX: usize = 200;

const RATE_MICRO_MAX: u128 = RATE_COUNT_MAX as u128 * 1_000_000;

/// What a limit is changed to for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Thousandths of what is set: of the rate and of the burst.
    Times(u64),
    /// These; what isn't given stays as it is set.
    Of {
        /// Tokens per time.
        rate: Option<Rate>,
        /// Tokens at once.
        burst: Option<u64>,
    },
}

/// A temporary change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// What the limit has meanwhile.
    pub value: Value,
    /// How long it takes to fall back.
    pub ramp: Span,
    /// Since when.
    pub since: LedgerTime,
    /// Until when.
    pub until: LedgerTime,
    /// Who.
    pub actor: String,
    /// Why: the beginning of it.
    pub reason: String,
}

/// What may be on top of what is set for one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// The temporary change, if there is one.
    pub over: Option<Override>,
    /// Schedules by their names.
    pub schedules: BTreeMap<String, Schedule>,
    /// What is in force instead of what is set; `None`: nothing is.
    pub on_top: Option<OnTop>,
}

/// What is in force instead of what is set, and what is set: where its curves would be by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnTop {
    /// What is in force.
    pub source: Source,
    /// The rate that is set.
    pub rate: RateCurve,
    /// The burst that is set.
    pub burst: BurstCurve,
}

/// What can be on top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The override.
    Override,
    /// The schedule of this name.
    Schedule(String),
}

impl Value {
    /// Checks what can be checked without the limit.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn read(value: &ValueJson) -> Result<Value, String> {
        match (value.times_milli, value.rate, value.burst) {
            (Some(milli), None, None) if milli <= TIMES_MILLI_MAX => Ok(Value::Times(milli)),
            (Some(milli), None, None) => {
                Err(format!("times_milli is {milli}, allowed: 0 to {TIMES_MILLI_MAX} thousandths"))
            }
            (Some(_), ..) => Err("times_milli is given, allowed: alone, without rate and burst".to_owned()),
            (None, None, None) => {
                Err("value is empty, allowed: times_milli, or rate, burst or both".to_owned())
            }
            (None, rate, burst) => {
                let rate = rate.map(|rate| rate.check().map_err(|error| error.to_string())).transpose()?;
                if let Some(burst) = burst {
                    check_burst(burst).map_err(|error| error.to_string())?;
                }
                Ok(Value::Of { rate, burst })
            }
        }
    }

    /// As JSON carries it. Rates are whole where they come from JSON.
    pub(in crate::config) fn json(self) -> ValueJson {
        match self {
            Value::Times(milli) => ValueJson { times_milli: Some(milli), ..ValueJson::default() },
            Value::Of { rate, burst } => {
                let rate = rate.map(|rate| crate::wire::config::RateJson {
                    count: rate.micro_tokens / 1_000_000,
                    period_ms: rate.period.millis(),
                });
                ValueJson { times_milli: None, rate, burst }
            }
        }
    }

    /// As people write it: `x2`, `2000/min`, `2000/min, burst 50`, `20 at once`.
    pub(in crate::config) fn text(self) -> String {
        match self {
            Value::Times(milli) => format!("x{}", text::milli(milli)),
            Value::Of { rate: Some(rate), burst: None } => text::rate(rate),
            Value::Of { rate: Some(rate), burst: Some(burst) } => {
                format!("{}, burst {burst}", text::rate(rate))
            }
            Value::Of { rate: None, burst } => format!("burst {}", burst.unwrap_or(0)),
        }
    }

    /// What it makes of a limit as it is set.
    pub(super) fn on(self, set: &CellConfig) -> Result<(Rate, u64), String> {
        let (rate, burst) = (set.rate.target, whole(set.burst));
        match (self, &set.policy) {
            (Value::Times(milli), policy) => {
                let product = u128::from(burst) * u128::from(milli) / 1_000;
                // What is small and not closed stays open.
                let product = if milli > 0 && burst > 0 { product.max(1) } else { product };
                let burst = u64::try_from(product).ok().filter(|burst| *burst <= BURST_MAX);
                let micro = u128::from(rate.micro_tokens) * u128::from(milli) / 1_000;
                let (Some(burst), true) = (burst, micro <= RATE_MICRO_MAX) else {
                    return Err(format!("{} of what is set is beyond what a limit may have", self.text()));
                };
                if policy.conserves() {
                    return Ok((Rate::new(burst, rate.period), burst));
                }
                Ok((Rate { micro_tokens: u64::try_from(micro).unwrap_or(u64::MAX), ..rate }, burst))
            }
            (Value::Of { rate: new, burst: at_once }, Policy::TokenBucket) => {
                Ok((new.unwrap_or(rate), at_once.unwrap_or(burst)))
            }
            (Value::Of { rate: None, burst: Some(burst) }, Policy::InFlight { .. }) => {
                Ok((Rate::new(burst, rate.period), burst))
            }
            (Value::Of { .. }, Policy::InFlight { .. }) => {
                Err("rate is given, allowed: none with in_flight; `burst` says how many at once".to_owned())
            }
            (Value::Of { rate: Some(new), burst: None }, _) if new.period == rate.period => {
                Ok((new, new.micro_tokens / 1_000_000))
            }
            (Value::Of { rate: Some(_), burst: None }, _) => {
                Err(format!("rate is per another time, allowed: per {}, the window", text::span(rate.period)))
            }
            (Value::Of { .. }, _) => {
                Err("burst is given, allowed: none with a window; its rate says it all".to_owned())
            }
        }
    }
}

impl Layers {
    /// Whether there is nothing left to keep.
    fn is_empty(&self) -> bool {
        self.over.is_none() && self.schedules.is_empty() && self.on_top.is_none()
    }

    /// What should be on top at `at`.
    pub(super) fn winner(&self, at: LedgerTime) -> Option<Source> {
        if self.over.as_ref().is_some_and(|over| at < over.until) {
            return Some(Source::Override);
        }
        let under_way = self.schedules.iter().filter_map(|(name, schedule)| {
            let window = schedule.window_at(at)?;
            Some((window.begin, std::cmp::Reverse(window.end), std::cmp::Reverse(name)))
        });
        under_way.max().map(|(_, _, name)| Source::Schedule(name.0.clone()))
    }

    /// The next time at which something begins or ends.
    fn next_edge(&self, after: LedgerTime) -> Option<LedgerTime> {
        let over = self.over.as_ref().map(|over| over.until).filter(|until| *until > after);
        let schedules = self.schedules.values().filter_map(|schedule| schedule.next_edge(after));
        over.into_iter().chain(schedules).min()
    }

    fn value(&self, source: &Source) -> Option<Value> {
        match source {
            Source::Override => self.over.as_ref().map(|over| over.value),
            Source::Schedule(name) => self.schedules.get(name).map(|schedule| schedule.value),
        }
    }

    /// How long its changes take; `None` when it isn't there any more.
    fn ramp(&self, source: &Source) -> Option<Span> {
        match source {
            Source::Override => self.over.as_ref().map(|over| over.ramp),
            Source::Schedule(name) => self.schedules.get(name).map(|schedule| schedule.ramp),
        }
    }

    /// The cell as it is set, whatever is in force.
    pub(in crate::config) fn underneath(&self, cell: &CellConfig) -> CellConfig {
        match &self.on_top {
            None => cell.clone(),
            Some(top) => CellConfig { rate: top.rate, burst: top.burst, ..cell.clone() },
        }
    }

    /// Puts on top what should be there at `at`, and gives a line for each value that changes. `cell` is what is in force.
    /// An override falls back with the ramp that it came with; of what isn't there any more `gone` is the ramp.
    fn turn(&mut self, cell: &mut CellConfig, at: LedgerTime, gone: Span) -> Vec<String> {
        let winner = self.winner(at);
        let before = self.on_top.as_ref().map(|top| top.source.clone());
        if winner == before {
            return Vec::new();
        }
        let set = self.underneath(cell);
        let leads = match (&before, &winner) {
            (Some(Source::Override), _) | (_, None) => &before,
            _ => &winner,
        };
        let mut over = leads.as_ref().and_then(|source| self.ramp(source)).unwrap_or(gone);
        let (target, why) = match &winner {
            None => {
                // No faster than what is set is on its way to where it goes.
                over = Span(over.0.max(set.rate.end.since(at).0).max(set.burst.end.since(at).0));
                let what = before.as_ref().map_or_else(String::new, Source::text);
                ((set.rate.target, whole(set.burst)), format!("{what} is over"))
            }
            Some(source) => {
                let value = self.value(source).and_then(|value| value.on(&set).ok());
                let kept = (set.rate.target, whole(set.burst));
                (value.unwrap_or(kept), format!("{} begins", source.text()))
            }
        };
        self.on_top = winner.map(|source| OnTop { source, rate: set.rate, burst: set.burst });
        let mut lines = steer(cell, target, at, over);
        if lines.is_empty() {
            lines.push(format!("{}: stays as it is", cell.key));
        }
        for line in &mut lines {
            line.push_str(&format!(", {why}"));
        }
        lines
    }
}

impl Source {
    /// `the override`, `schedule night`.
    pub(in crate::config) fn text(&self) -> String {
        match self {
            Source::Override => "the override".to_owned(),
            Source::Schedule(name) => format!("schedule {name}"),
        }
    }
}

/// Sends what is in force to a target, and gives a line for each value that changes.
fn steer(cell: &mut CellConfig, (rate, burst): (Rate, u64), at: LedgerTime, ramp: Span) -> Vec<String> {
    let (mut lines, over, key) = (Vec::new(), text::over(ramp), cell.key.clone());
    let before = cell.clone();
    if cell.rate.at(at).cmp_value(rate).is_ne() || cell.rate.target.cmp_value(rate).is_ne() {
        lines.push(format!("{key}: rate {} -> {} {over}", text::rate(cell.rate.at(at)), text::rate(rate)));
    }
    let (was, target) = (cell.burst.at(at), BurstCurve::constant(burst).target);
    if was != target || cell.burst.target != target {
        lines.push(format!("{key}: burst {} -> {burst} {over}", text::milli(was.milli_floor())));
    }
    if lines.is_empty() {
        return lines;
    }
    (cell.rate, cell.burst) = match ramp {
        Span::ZERO => (RateCurve::constant(rate), BurstCurve::constant(burst)),
        ramp => (before.rate.ramp_to(rate, at, ramp), before.burst.ramp_to(burst, at, ramp)),
    };
    if cell.check().is_err() {
        // From a huge rate per millisecond to one per day there are values that no rate can state.
        (cell.rate, cell.burst) = (RateCurve::constant(rate), BurstCurve::constant(burst));
    }
    lines
}

fn whole(burst: BurstCurve) -> u64 {
    u64::try_from(burst.target.whole()).unwrap_or(0)
}

impl Book {
    /// When something begins or ends by itself: until then nothing changes without a message.
    pub fn next_change(&self) -> Option<LedgerTime> {
        self.layers.values().filter_map(|layers| layers.next_edge(self.now)).min()
    }

    /// Makes what should have happened up to `now` happen, each at its own time: also when nobody was there then.
    pub fn advance(&mut self, now: LedgerTime) {
        while let Some(at) = self.next_change().filter(|at| *at <= now) {
            self.now = at;
            self.turn(|_| at);
        }
    }

    /// Puts on top what should be there now, as if it had begun at the time that is given for it.
    pub(super) fn turn(&mut self, begins: impl Fn(&Layers) -> LedgerTime) {
        let (mut cells, mut lines) = (self.cells.clone(), Vec::new());
        for (key, layers) in &mut self.layers {
            if let Some(cell) = cells.get_mut(key) {
                let at = begins(layers);
                lines.append(&mut layers.turn(cell, at, Span::ZERO));
            }
            layers.over = layers.over.take().filter(|over| self.now < over.until);
        }
        self.layers.retain(|_, layers| !layers.is_empty());
        if lines.is_empty() {
            return;
        }
        let replaced = self.commit(cells, self.settings);
        let entry = self.entry(&lines, ACTOR_SELF, "it was time", Outcome::Scheduled, replaced);
        self.remember(entry);
    }

    /// What is set for a limit, whatever is in force.
    pub(in crate::config) fn underneath(&self, cell: &CellConfig) -> CellConfig {
        self.layers.get(&cell.key).map_or_else(|| cell.clone(), |layers| layers.underneath(cell))
    }
}

impl Plan {
    /// Takes what is on top away, so that a change finds what is set. Gives what was in force.
    pub(super) fn uncover(&mut self) -> BTreeMap<CellKey, CellConfig> {
        let mut in_force = BTreeMap::new();
        for (key, layers) in &self.layers {
            if layers.on_top.is_some()
                && let Some(cell) = self.cells.get_mut(key)
            {
                in_force.insert(key.clone(), cell.clone());
                *cell = layers.underneath(cell);
            }
        }
        in_force
    }

    /// Puts on top what should be there after a change of what is set or of what is on top.
    pub(super) fn cover(
        &mut self,
        in_force: BTreeMap<CellKey, CellConfig>,
        before: &BTreeMap<CellKey, Layers>,
        now: LedgerTime,
        ramp: Span,
        problems: &mut Problems,
    ) {
        self.layers.retain(|key, _| self.cells.contains_key(key));
        for (key, layers) in &mut self.layers {
            let Some(cell) = self.cells.get_mut(key) else { continue };
            for (name, value) in layers.values() {
                if let Err(why) = value.on(cell) {
                    problems.add(format!("limit {}, {name}: {why}", quoted(&key.limit)));
                }
            }
            let set = cell.clone();
            if let (Some(top), Some(was)) = (&mut layers.on_top, in_force.get(key)) {
                let old = CellConfig { rate: top.rate, burst: top.burst, ..was.clone() };
                (top.rate, top.burst) = (set.rate, set.burst);
                (cell.rate, cell.burst) = (was.rate, was.burst);
                let source = top.source.clone();
                if layers.winner(now).as_ref() == Some(&source) {
                    let before = before.get(key).and_then(|before| before.value(&source));
                    let after = layers.value(&source);
                    let makes = |value: Option<Value>, of| value.and_then(|value| value.on(of).ok());
                    let (was, is) = (makes(before, &old), makes(after, &set));
                    if let Some(is) = is.filter(|is| Some(*is) != was) {
                        let own = layers.ramp(&source).filter(|_| before != after);
                        let lines = steer(cell, is, now, own.unwrap_or(ramp));
                        self.lines.extend(lines.into_iter().map(|line| format!("{line}, {}", source.text())));
                    } else if (old.rate, old.burst) != (set.rate, set.burst) {
                        self.lines.push(format!("{key}: counts once {} is over", source.text()));
                    }
                }
            }
            self.lines.extend(layers.turn(cell, now, ramp));
        }
        self.layers.retain(|_, layers| !layers.is_empty());
        let count = self.layers.values().filter(|layers| layers.over.is_some()).count();
        if count > OVERRIDES_MAX {
            problems.add(format!("overrides: {count} after this change, allowed: up to {OVERRIDES_MAX}"));
        }
    }

    /// Notes a temporary change; it comes on top with [`Plan::cover`].
    pub(super) fn override_with(
        &mut self,
        wanted: &OverrideJson,
        (now, ramp): (LedgerTime, Span),
        (actor, reason): (&str, &str),
        problems: &mut Problems,
    ) {
        let key = wanted.key();
        let named = format!("override of {}", quoted(&key.to_string()));
        if !self.cells.contains_key(&key) {
            problems.add(format!("{named}: there is no such limit"));
            return;
        }
        let span = Span(wanted.for_ms.saturating_mul(1_000));
        if !(OVERRIDE_MIN..=OVERRIDE_MAX).contains(&span) {
            problems.add(format!("{named}: for_ms is {}, allowed: 1 s to 31 days", wanted.for_ms));
        }
        let value = match Value::read(&wanted.value) {
            Ok(value) => value,
            Err(why) => return problems.add(format!("{named}: {why}")),
        };
        let layers = self.layers.entry(key.clone()).or_default();
        let until = now + span;
        let instead = match &layers.over {
            Some(over) => format!(", instead of {} up to {}", over.value.text(), text::time(over.until)),
            None => String::new(),
        };
        self.lines.push(format!("{key}: override {} up to {}{instead}", value.text(), text::time(until)));
        layers.over = Some(Override {
            value,
            ramp,
            since: now,
            until,
            actor: actor.to_owned(),
            reason: super::cut(reason, REASON_BYTES_MAX).to_owned(),
        });
    }

    /// Notes that a temporary change is over; it falls back with [`Plan::cover`].
    pub(super) fn end_override(&mut self, wanted: &MeterJson, now: LedgerTime, problems: &mut Problems) {
        let key =
            CellKey { limit: wanted.name.clone(), meter: wanted.meter.clone(), tier: wanted.tier.clone() };
        let over = self.layers.get_mut(&key).and_then(|layers| layers.over.take());
        match over.filter(|over| now < over.until) {
            Some(over) => self.lines.push(format!(
                "{key}: override {} ends now, was up to {}",
                over.value.text(),
                text::time(over.until)
            )),
            None => {
                problems.add(format!("end_overrides: there is no override of {}", quoted(&key.to_string())))
            }
        }
    }
}

impl Layers {
    fn values(&self) -> Vec<(String, Value)> {
        let over = self.over.as_ref().map(|over| (Source::Override.text(), over.value));
        let schedules =
            self.schedules.iter().map(|(name, schedule)| (format!("schedule {name}"), schedule.value));
        over.into_iter().chain(schedules).collect()
    }
}
