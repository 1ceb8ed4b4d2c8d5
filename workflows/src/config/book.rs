//! The limits of one group, with their versions, ramps and history: a pure model that takes `now`.
//!
//! A change is checked as a whole before any of it happens: either all of it is in force under a new version, or nothing
//! is and every problem has been named. A value that changes goes linearly from what is in force now to its target.

mod conduct;
pub mod overrides;
pub(super) mod ramps;
pub mod schedules;
pub mod snapshots;
pub(super) mod tiers;

use self::overrides::Layers;
use self::snapshots::Undo;
use super::text;
use crate::wire::Unreadable;
use crate::wire::config::{ApplyJson, LimitJson, LimitPolicyJson, RateJson, WindowJson, check_target_rate};
use ramps::Paused;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tollgate_core::curve::{BurstCurve, RateCurve};
use tollgate_core::ledger::{CELLS_MAX, Configure, Settings};
use tollgate_core::limit::{
    CellConfig, CellKey, Initial, Version, check_burst, check_label, check_lease, check_name, check_policy,
    check_queue,
};
use tollgate_core::policy::{BOUNDARIES_AHEAD, Calendar, Policy};
use tollgate_core::tier::Priority;
use tollgate_core::units::{Amount, LedgerTime, Span};

/// How many changes are remembered: weeks of an operator's work.
pub const HISTORY_ENTRIES_MAX: usize = 200;
/// How many changes that nobody made are remembered: they push out none that somebody made.
pub const SCHEDULED_ENTRIES_MAX: usize = 50;
/// How many bytes of text the remembered changes may have: a quarter of what the state may have.
pub const HISTORY_BYTES_MAX: usize = 256 * 1024;
/// How many refused signals are remembered, apart from the changes: a sender that repeats a mistake pushes nothing out.
pub const REFUSED_ENTRIES_MAX: usize = 20;
/// How many lines of one change are remembered: a change of a thousand limits doesn't fill the history.
pub const ENTRY_LINES_MAX: usize = 30;
/// How many problems of one change are named.
pub const PROBLEMS_MAX: usize = 50;
/// The longest name of who makes a change.
pub const ACTOR_BYTES_MAX: usize = 200;
/// The longest reason of a change.
pub const REASON_BYTES_MAX: usize = 1_000;
/// Who makes a change that doesn't say.
const ACTOR_UNKNOWN: &str = "unknown";
/// Who makes changes that nobody asked for.
const ACTOR_SELF: &str = "tollgate";
/// How much of a name is repeated in a problem.
const QUOTED_CHARS_MAX: usize = 40;

/// The limits of one group. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Book {
    /// The newest version that was given out. Only ever grows.
    pub version: Version,
    /// The latest time that was seen. Never runs back.
    pub now: LedgerTime,
    /// What the group keeps to.
    pub settings: Settings,
    /// Every limit. Bursts are whole thousandths of a token.
    pub cells: BTreeMap<CellKey, CellConfig>,
    /// Ramps that stand still, at most one entry for each limit.
    pub paused: BTreeMap<CellKey, Paused>,
    /// Changes, oldest first: at most [`HISTORY_ENTRIES_MAX`].
    pub history: VecDeque<Entry>,
    /// Refused signals, oldest first: at most [`REFUSED_ENTRIES_MAX`].
    pub refused: VecDeque<Entry>,
    /// Refused signals, also those that are no longer remembered.
    pub refused_count: u64,
    /// What may be on top of what is set: only of limits that have any of it.
    pub layers: BTreeMap<CellKey, Layers>,
    /// What changes replaced, oldest first: at most [`snapshots::UNDOS_MAX`].
    pub undos: VecDeque<Undo>,
    /// From this version on it is known what was set.
    pub kept_from: Version,
}

/// One change, or one signal that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The version in force afterwards.
    pub version: Version,
    /// The version in force before.
    pub replaced: Version,
    /// When.
    pub at: LedgerTime,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// One line per change, each with what it replaced; problems of a refused signal.
    pub lines: Vec<String>,
    /// Lines beyond [`ENTRY_LINES_MAX`].
    pub lines_left_out: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In force.
    Applied,
    /// Taken over from the coordinator by a config workflow that was created anew.
    Adopted,
    /// Nothing was changed.
    Refused,
    /// Nobody made it: it was time.
    Scheduled,
}

/// What a change did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The version in force afterwards.
    pub version: Version,
    /// One line per change; empty when nothing changes.
    pub changes: Vec<String>,
}

/// A checked change: what would be in force, and the difference.
struct Plan {
    cells: BTreeMap<CellKey, CellConfig>,
    paused: BTreeMap<CellKey, Paused>,
    settings: Settings,
    lines: Vec<String>,
    layers: BTreeMap<CellKey, Layers>,
}

impl Book {
    /// An empty book. Versions are numbered by when it began.
    pub fn new(began: LedgerTime) -> Book {
        Book {
            version: Version { run: began.0, n: 0 },
            now: began,
            settings: Settings::default(),
            cells: BTreeMap::new(),
            paused: BTreeMap::new(),
            history: VecDeque::new(),
            refused: VecDeque::new(),
            refused_count: 0,
            layers: BTreeMap::new(),
            undos: VecDeque::new(),
            kept_from: Version { run: began.0, n: 0 },
        }
    }

    /// Makes a change, or says what it would do with `dry_run`. A change that changes nothing gets no version.
    ///
    /// # Errors
    /// Every problem, up to [`PROBLEMS_MAX`], each naming field, value and range. Nothing was changed then.
    pub fn apply(&mut self, now: LedgerTime, change: &ApplyJson) -> Result<Applied, Vec<String>> {
        self.advance(now);
        let now = now.max(self.now);
        let plan = self.plan(now, change)?;
        if !change.dry_run {
            self.now = now;
            if !plan.lines.is_empty() {
                let before = self.snapshot();
                let replaced = self.commit(plan.cells, plan.settings);
                self.layers = plan.layers;
                self.keep(before);
                self.paused = plan.paused;
                let entry =
                    self.entry(&plan.lines, &change.actor, &change.reason, Outcome::Applied, replaced);
                self.remember(entry);
            }
        }
        Ok(Applied { version: self.version, changes: plan.lines })
    }

    /// The same for a signal: since nobody can be answered, a refusal is counted and remembered.
    ///
    /// # Errors
    /// As [`Book::apply`].
    pub fn apply_signal(&mut self, now: LedgerTime, change: &ApplyJson) -> Result<Applied, Vec<String>> {
        let result = self.apply(now, change);
        if let Err(problems) = &result {
            self.refuse(now, change, problems);
        }
        result
    }

    /// Remembers a signal that was refused.
    pub fn refuse(&mut self, now: LedgerTime, change: &ApplyJson, problems: &[String]) {
        self.advance(now);
        self.now = self.now.max(now);
        self.refused_count = self.refused_count.saturating_add(1);
        let (actor, reason) = (cut(&change.actor, ACTOR_BYTES_MAX), cut(&change.reason, REASON_BYTES_MAX));
        let entry = self.entry(problems, actor, reason, Outcome::Refused, self.version);
        self.refused.push_back(entry);
        while self.refused.len() > REFUSED_ENTRIES_MAX {
            self.refused.pop_front();
        }
    }

    /// Takes over what a coordinator keeps to, under a version above all of its own. Only for an empty book.
    pub fn adopt(&mut self, now: LedgerTime, configure: Configure) {
        self.now = self.now.max(now);
        self.version.run = self.version.run.max(configure.version.run.saturating_add(1));
        if configure.cells.is_empty() && configure.settings == self.settings {
            return;
        }
        let lines: Vec<String> = configure.cells.iter().map(|cell| described("taken over", cell)).collect();
        let cells = configure.cells.into_iter().map(|cell| (cell.key.clone(), rounded(cell)));
        self.commit(cells.collect(), configure.settings);
        self.kept_from = self.version;
        let reason = "this workflow began without memory, and the coordinator had limits";
        let entry = self.entry(&lines, ACTOR_SELF, reason, Outcome::Adopted, configure.version);
        self.remember(entry);
    }

    /// Gives what is in force a version above `other`, which somebody holds although it isn't ours: after a reset of this
    /// workflow, for example. Without this the coordinator would ignore every change up to that number.
    pub fn overtake(&mut self, now: LedgerTime, other: Version) {
        self.advance(now);
        self.now = self.now.max(now);
        if other < self.version {
            return;
        }
        let replaced = self.version;
        self.version = if other.run == replaced.run {
            Version { run: replaced.run, n: other.n.saturating_add(1) }
        } else {
            Version { run: other.run.saturating_add(1), n: replaced.n.saturating_add(1) }
        };
        let lines = [format!("numbered anew: the coordinator had {other}")];
        let reason = "what is in force here is newer than its number said";
        let entry = self.entry(&lines, ACTOR_SELF, reason, Outcome::Applied, replaced);
        self.remember(entry);
    }

    /// When later boundaries have to be named: half of those that are named at a time are over.
    pub fn renewal_due(&self) -> Option<LedgerTime> {
        self.cells.values().filter_map(|cell| renewal(cell).map(|(due, _)| due)).min()
    }

    /// The windows whose later boundaries are due at `now`, each kind once.
    pub fn renewals(&self, now: LedgerTime) -> Vec<Calendar> {
        let mut all: Vec<Calendar> = Vec::new();
        for (_, calendar) in self.cells.values().filter_map(renewal).filter(|(due, _)| *due <= now) {
            if !all.iter().any(|other| is_one(other, calendar)) {
                all.push(calendar.clone());
            }
        }
        all
    }

    /// Names the boundaries of all windows that follow `calendar`: a new version, which is remembered only when another release
    /// of the time zone database says so.
    ///
    /// # Errors
    /// What is wrong with them; nothing was changed then.
    pub fn renew(
        &mut self,
        now: LedgerTime,
        calendar: &Calendar,
        boundaries: &[LedgerTime],
    ) -> Result<(), String> {
        self.advance(now);
        self.now = self.now.max(now);
        let (mut cells, mut lines) = (self.cells.clone(), Vec::new());
        let new = Policy::FixedWindow {
            boundaries: boundaries.to_vec(),
            calendar: Some(calendar.clone()),
            escrow: true,
        };
        if new.terms(self.now).next().is_none() {
            return Err("no boundary is to come".to_owned());
        }
        for cell in cells.values_mut() {
            let Some((_, before)) = renewal(cell) else { continue };
            if !is_one(before, calendar) {
                continue;
            }
            check_policy(&new, cell.lease).map_err(|error| format!("limit {}: {error}", cell.key))?;
            if before.tz_version != calendar.tz_version {
                let (from, to) = (&before.tz_version, &calendar.tz_version);
                lines.push(format!("{}: time zones {from} -> {to}", cell.key));
            }
            cell.policy = new.clone();
        }
        if cells == self.cells {
            return Ok(());
        }
        let replaced = self.commit(cells, self.settings);
        if !lines.is_empty() {
            let reason = "boundaries of windows were computed anew";
            let entry = self.entry(&lines, ACTOR_SELF, reason, Outcome::Applied, replaced);
            self.remember(entry);
        }
        Ok(())
    }

    /// Everything that the coordinator is to keep to.
    pub fn configure(&self) -> Configure {
        Configure {
            version: self.version,
            settings: self.settings,
            cells: self.cells.values().cloned().collect(),
        }
    }

    /// Puts something in force under a new version, and gives the one that it replaces.
    fn commit(&mut self, cells: BTreeMap<CellKey, CellConfig>, settings: Settings) -> Version {
        let replaced = self.version;
        self.cells = cells;
        self.settings = settings;
        self.version.n = replaced.n.saturating_add(1);
        replaced
    }

    fn entry(
        &self,
        lines: &[String],
        actor: &str,
        reason: &str,
        outcome: Outcome,
        replaced: Version,
    ) -> Entry {
        let actor = if actor.is_empty() { ACTOR_UNKNOWN } else { actor };
        Entry {
            version: self.version,
            replaced,
            at: self.now,
            actor: actor.to_owned(),
            reason: reason.to_owned(),
            lines: lines.iter().take(ENTRY_LINES_MAX).cloned().collect(),
            lines_left_out: lines.len().saturating_sub(ENTRY_LINES_MAX) as u64,
            outcome,
        }
    }

    fn remember(&mut self, entry: Entry) {
        self.history.push_back(entry);
        let by_time = |entry: &Entry| entry.outcome == Outcome::Scheduled;
        if self.history.iter().filter(|entry| by_time(entry)).count() > SCHEDULED_ENTRIES_MAX
            && let Some(oldest) = self.history.iter().position(by_time)
        {
            self.history.remove(oldest);
        }
        let mut bytes: usize = self.history.iter().map(Entry::bytes).sum();
        while self.history.len() > HISTORY_ENTRIES_MAX
            || (bytes > HISTORY_BYTES_MAX && self.history.len() > 1)
        {
            bytes -= self.history.pop_front().map_or(0, |entry| entry.bytes());
        }
    }

    /// Checks everything, and works out what would be in force.
    fn plan(&self, now: LedgerTime, change: &ApplyJson) -> Result<Plan, Vec<String>> {
        let mut problems = Problems::default();
        self.check_header(change, &mut problems);
        let ramp = change.ramp().unwrap_or_else(|error| {
            problems.add(error);
            Span::ZERO
        });
        self.check_names(change, &mut problems);
        let mut plan = Plan {
            cells: self.cells.clone(),
            paused: self.paused.clone(),
            settings: self.settings,
            lines: Vec::new(),
            layers: self.layers.clone(),
        };
        if let Some(rate) = change.target_rate_milli
            && rate != self.settings.target_rate_milli
        {
            let was = text::milli(self.settings.target_rate_milli);
            plan.lines.push(format!("target rate: {was} -> {} messages a second", text::milli(rate)));
            plan.settings.target_rate_milli = rate;
        }
        for name in &change.remove {
            plan.remove(|key| key.limit == *name);
        }
        for one in &change.remove_meters {
            plan.remove(|key| key.limit == one.name && key.meter == one.meter && key.tier == one.tier);
        }
        for name in &change.abort_ramps {
            plan.abort(name, now, &mut problems);
        }
        for name in &change.pause {
            plan.pause(name, true);
        }
        for name in &change.resume {
            plan.pause(name, false);
        }
        for name in &change.pause_ramps {
            plan.pause_ramps(name, now, &mut problems);
        }
        for name in &change.resume_ramps {
            plan.resume_ramps(name, now, &mut problems);
        }
        let in_force = plan.uncover();
        for limit in &change.set {
            if check_limit(limit, &mut problems) {
                let ramp = Ramp { now, over: ramp, is_given: change.ramp_ms.is_some() };
                plan.set(limit, ramp, &mut problems);
            }
        }
        plan.check_tiers(&change.set, &mut problems);
        if let Some(version) = &change.rollback {
            let alone = ApplyJson {
                actor: change.actor.clone(),
                reason: change.reason.clone(),
                ramp_ms: change.ramp_ms,
                if_version: change.if_version.clone(),
                rollback: change.rollback.clone(),
                dry_run: change.dry_run,
                ..ApplyJson::default()
            };
            if *change != alone {
                problems.add("rollback: other changes beside it, allowed: none");
            }
            self.roll_back(&mut plan, version, (now, ramp), &mut problems);
        }
        for one in &change.end_overrides {
            plan.end_override(one, now, &mut problems);
        }
        for one in &change.overrides {
            plan.override_with(one, (now, ramp), (&change.actor, &change.reason), &mut problems);
        }
        for one in &change.remove_schedules {
            plan.unschedule(one, &mut problems);
        }
        for one in &change.schedules {
            plan.schedule(one, &mut problems);
        }
        plan.cover(in_force, &self.layers, now, ramp, &mut problems);
        plan.end_pauses(&self.cells, &self.paused);
        let count = plan.cells.len();
        if count > CELLS_MAX {
            problems.add(format!("limits: {count} after this change, allowed: up to {CELLS_MAX}"));
        }
        problems.none().map(|()| plan)
    }

    fn check_header(&self, change: &ApplyJson, problems: &mut Problems) {
        for (field, text, max) in
            [("actor", &change.actor, ACTOR_BYTES_MAX), ("reason", &change.reason, REASON_BYTES_MAX)]
        {
            if text.len() > max {
                problems.add(format!("{field} has {} bytes, allowed: up to {max}", text.len()));
            }
        }
        if let Some(milli) = change.target_rate_milli
            && let Err(error) = check_target_rate(milli)
        {
            problems.add(error);
        }
        if let Some(wanted) = &change.if_version
            && *wanted != self.version.to_string()
        {
            problems.add(format!(
                "if_version is {}, the version in force is {}",
                quoted(wanted),
                self.version
            ));
        }
    }

    /// One name means one thing: no meter twice, no limit in two lists, none that isn't there.
    fn check_names(&self, change: &ApplyJson, problems: &mut Problems) {
        let mut cells = BTreeSet::new();
        for key in change.set.iter().map(LimitJson::key) {
            if !cells.insert(key.clone()) {
                let meter = if key.meter == CellKey::METER && key.tier == CellKey::TIER {
                    String::new()
                } else {
                    format!(" ({} {})", key.meter, key.tier)
                };
                problems.add(format!("set: limit {}{meter} is given twice", quoted(&key.limit)));
            }
        }
        for one in &change.remove_meters {
            let key = CellKey { limit: one.name.clone(), meter: one.meter.clone(), tier: one.tier.clone() };
            if cells.contains(&key) {
                problems.add(format!("set and remove_meters: both name {}", quoted(&key.to_string())));
            }
            if !self.cells.contains_key(&key) {
                problems.add(format!("remove_meters: there is no {}", quoted(&key.to_string())));
            }
        }
        let over = change.overrides.iter().map(|one| ("overrides", one.key(), ""));
        let schedules = change.schedules.iter().map(|one| ("schedules", one.key(), one.name.as_str()));
        let mut seen = BTreeSet::new();
        for (list, key, name) in over.chain(schedules) {
            if !seen.insert((list, key.clone(), name)) {
                let named =
                    if name.is_empty() { String::new() } else { format!(", schedule {}", quoted(name)) };
                problems.add(format!("{list}: {}{named} is given twice", quoted(&key.to_string())));
            }
        }
        let set: BTreeSet<&String> = change.set.iter().map(|limit| &limit.name).collect();
        let lists = [
            ("set", set.into_iter().collect::<Vec<_>>()),
            ("remove", change.remove.iter().collect()),
            ("abort_ramps", change.abort_ramps.iter().collect()),
            ("pause", change.pause.iter().collect()),
            ("resume", change.resume.iter().collect()),
            ("pause_ramps", change.pause_ramps.iter().collect()),
            ("resume_ramps", change.resume_ramps.iter().collect()),
        ];
        let mut seen: BTreeMap<&String, &str> = BTreeMap::new();
        for (list, names) in lists {
            for name in names {
                match seen.insert(name, list) {
                    Some(other) if other == list => {
                        problems.add(format!("{list}: limit {} is given twice", quoted(name)));
                    }
                    Some(other) => {
                        problems.add(format!("{other} and {list}: both name limit {}", quoted(name)))
                    }
                    None if list != "set" && !self.cells.keys().any(|key| key.limit == *name) => {
                        problems.add(format!("{list}: there is no limit {}", quoted(name)));
                    }
                    None => {}
                }
            }
        }
    }
}

impl Entry {
    /// How much text it holds.
    fn bytes(&self) -> usize {
        self.actor.len() + self.reason.len() + self.lines.iter().map(String::len).sum::<usize>()
    }

    /// Whether it says something about this limit.
    pub fn concerns(&self, limit: &str) -> bool {
        self.lines.iter().any(|line| {
            line.strip_prefix(limit).is_some_and(|rest| rest.starts_with(": ") || rest.starts_with(" ["))
        })
    }
}

/// The calendar that a limit's boundaries follow, and when later ones have to be named.
fn renewal(cell: &CellConfig) -> Option<(LedgerTime, &Calendar)> {
    let Policy::FixedWindow { boundaries, calendar: Some(calendar), .. } = &cell.policy else { return None };
    let half = boundaries.len().saturating_sub(1 + BOUNDARIES_AHEAD / 2);
    Some((boundaries.get(half).copied()?, calendar))
}

/// Whether two calendars mean the same windows, by whatever release of the time zone database.
fn is_one(one: &Calendar, other: &Calendar) -> bool {
    one.unit == other.unit && one.time_zone == other.time_zone
}

/// When and how fast a change comes into force.
#[derive(Clone, Copy)]
struct Ramp {
    now: LedgerTime,
    over: Span,
    /// Whether the change asks for this ramp, or says nothing about it.
    is_given: bool,
}

impl Ramp {
    /// Whether a ramp that already goes to the same target should go faster. A repeated message never wants that, so
    /// repeating one changes nothing.
    fn hurries(self, end: LedgerTime) -> bool {
        self.is_given && self.now + self.over < end
    }
}

impl Plan {
    fn remove(&mut self, goes: impl Fn(&CellKey) -> bool) {
        let lines = &mut self.lines;
        self.cells.retain(|key, cell| {
            let stays = !goes(key);
            if !stays {
                let (rate, burst) =
                    (text::rate(cell.rate.target), text::milli(cell.burst.target.milli_floor()));
                lines.push(format!("{key}: removed, was rate {rate}, burst {burst}"));
            }
            stays
        });
    }

    fn set(&mut self, limit: &LimitJson, ramp: Ramp, problems: &mut Problems) {
        let key = limit.key();
        let wanted = match Wanted::of(limit, self.cells.get(&key), ramp.now) {
            Ok(wanted) => wanted,
            Err(these) => {
                for problem in these {
                    problems.add(format!("limit {}: {problem}", quoted(&limit.name)));
                }
                return;
            }
        };
        let Wanted { limit, policy } = wanted;
        let limit = &limit;
        let Some(cell) = self.cells.get_mut(&key) else {
            let Some(given) = limit.rate else {
                let named = format!("limit {}", quoted(&limit.name));
                problems.add(format!("{named}: rate is missing, a new limit needs one"));
                return;
            };
            let Ok(rate) = given.check() else { return };
            let mut cell =
                CellConfig::constant(&limit.name, rate, limit.burst_or_default(given), limit.lease());
            cell.key = key.clone();
            cell.policy = policy.unwrap_or(Policy::TokenBucket);
            cell.fresh = !limit.moved;
            cell.initial = limit.initial.unwrap_or_default().initial();
            cell.queue = limit.queue;
            cell.conduct = conduct::changed(limit, self.conduct_of_new(&limit.name));
            let lowest = Priority { rank: self.lowest_rank(&key), ..Priority::default() };
            cell.priority = tiers::changed(limit, &cell, lowest, problems);
            if let Err(error) = cell.check() {
                problems.add(format!("limit {}: {error}", quoted(&limit.name)));
            }
            self.lines.push(described("created", &cell));
            self.cells.insert(key, cell);
            return;
        };
        if let Some(policy) = policy.filter(|policy| cell.policy != *policy) {
            let (from, to) = (text::policy(&cell.policy), text::policy(&policy));
            self.lines.push(format!("{key}: {from} -> {to}"));
            cell.policy = policy;
        }
        let over = text::over(ramp.over);
        let under_way = |end: LedgerTime| ramp.now < end;
        let was_closed = cell.rate.target.micro_tokens == 0 && cell.burst.target == Amount::ZERO;
        if let Some(Ok(rate)) = limit.rate.map(RateJson::check)
            && (cell.rate.target.cmp_value(rate).is_ne()
                || (under_way(cell.rate.end) && ramp.hurries(cell.rate.end)))
        {
            let from = text::rate(cell.rate.at(ramp.now));
            let instead = match under_way(cell.rate.end) {
                true => format!(", instead of {}", text::rate(cell.rate.target)),
                false => String::new(),
            };
            self.lines.push(format!("{key}: rate {from} -> {} {over}{instead}", text::rate(rate)));
            cell.rate = match ramp.over {
                Span::ZERO => RateCurve::constant(rate),
                over => cell.rate.ramp_to(rate, ramp.now, over),
            };
        }
        // A burst of zero that came with a rate of zero admits nothing under any other rate.
        let opened = limit.rate.filter(|rate| was_closed && rate.count > 0);
        if let Some(burst) = limit.burst.or_else(|| opened.map(|rate| limit.burst_or_default(rate))) {
            let target = BurstCurve::constant(burst).target;
            if cell.burst.target != target || (under_way(cell.burst.end) && ramp.hurries(cell.burst.end)) {
                let from = text::milli(cell.burst.at(ramp.now).milli_floor());
                let instead = match under_way(cell.burst.end) {
                    true => format!(", instead of {}", text::milli(cell.burst.target.milli_floor())),
                    false => String::new(),
                };
                self.lines.push(format!("{key}: burst {from} -> {burst} {over}{instead}"));
                cell.burst = match ramp.over {
                    Span::ZERO => BurstCurve::constant(burst),
                    over => cell.burst.ramp_to(burst, ramp.now, over),
                };
                cell.burst.source = cell.burst.source.floor_to_milli();
            }
        }
        if limit.lease_ms.is_some() && cell.lease != limit.lease() {
            self.lines.push(format!(
                "{key}: lease {} -> {}",
                text::span(cell.lease),
                text::span(limit.lease())
            ));
            cell.lease = limit.lease();
        }
        if let Some(queue) = limit.queue.filter(|queue| cell.queue != Some(*queue)) {
            let from = cell.queue.map_or_else(|| "as the process says".to_owned(), |queue| queue.to_string());
            self.lines.push(format!("{key}: queue {from} -> {queue}"));
            cell.queue = Some(queue);
        }
        let before = cell.clone();
        cell.priority = tiers::changed(limit, cell, cell.priority, problems);
        self.lines.extend(tiers::lines(cell, &before));
        cell.conduct = conduct::changed(limit, before.conduct);
        self.lines.extend(conduct::lines(cell, before.conduct));
        check_result(cell, problems);
    }
}

/// A ramp from a huge rate per millisecond to one per day has values between that no rate can state: it can only be left
/// alone, or ended at once.
fn check_result(cell: &CellConfig, problems: &mut Problems) {
    if let Err(error) = cell.check() {
        let named = format!("limit {}, as it is in mid-ramp", quoted(&cell.key.limit));
        problems.add(Unreadable::of(&named, error));
    }
}

/// A limit as it is stated, and what that means to the ledger: which tokens there are under its policy.
struct Wanted {
    limit: LimitJson,
    policy: Option<Policy>,
}

impl Wanted {
    /// `cell` is the limit so far.
    fn of(limit: &LimitJson, cell: Option<&CellConfig>, now: LedgerTime) -> Result<Wanted, Vec<String>> {
        let old = cell.map(|cell| &cell.policy);
        if matches!(limit.policy, Some(LimitPolicyJson::FixedWindow { .. }))
            || (limit.policy.is_none() && matches!(old, Some(Policy::FixedWindow { .. })))
        {
            return Wanted::of_fixed(limit, cell, now);
        }
        let mut limit = limit.clone();
        let policy = match (limit.policy.clone(), old) {
            (Some(LimitPolicyJson::TokenBucket), _) => Some(Policy::TokenBucket),
            (Some(LimitPolicyJson::LeakyBucket), _) => {
                limit.burst = limit.burst.or(Some(1));
                Some(Policy::TokenBucket)
            }
            (Some(LimitPolicyJson::InFlight { drain_ms }), _) => {
                Some(Policy::InFlight { drain: Span::from_millis(drain_ms) })
            }
            (Some(LimitPolicyJson::SlidingWindow), _) | (None, Some(Policy::SlidingWindow { .. })) => {
                if limit.burst.is_some() {
                    let problem = "burst is given, allowed: none with a sliding window; its rate says it all";
                    return Err(vec![problem.to_owned()]);
                }
                let Some(rate) = limit.rate else {
                    let missing = "rate is missing: so many in any window as long as its period";
                    return if old.is_some_and(|old| matches!(old, Policy::SlidingWindow { .. })) {
                        Ok(Wanted { limit, policy: None })
                    } else {
                        Err(vec![missing.to_owned()])
                    };
                };
                limit.burst = Some(rate.count);
                if old.is_none() {
                    limit.lease_ms = Some(limit.lease_or_default().millis());
                }
                Some(Policy::SlidingWindow { window: Span::from_millis(rate.period_ms) })
            }
            // Fixed windows have been dealt with.
            (Some(LimitPolicyJson::FixedWindow { .. }) | None, _) => None,
        };
        let in_flight =
            policy.as_ref().or(old).is_some_and(|policy| matches!(policy, Policy::InFlight { .. }));
        if in_flight {
            if limit.rate.is_some() {
                let problem = "rate is given, allowed: none with in_flight; `burst` says how many at once";
                return Err(vec![problem.to_owned()]);
            }
            if limit.burst.is_none() && old.is_none_or(|old| !matches!(old, Policy::InFlight { .. })) {
                return Err(vec!["burst is missing: how many may be in flight at once".to_owned()]);
            }
            // For display and for the order of magnitude of waiting times.
            limit.rate = limit.burst.map(|count| RateJson { count, period_ms: 1_000 });
        }
        Ok(Wanted { limit, policy })
    }

    /// A fixed window, with every problem that it has.
    fn of_fixed(
        limit: &LimitJson,
        cell: Option<&CellConfig>,
        now: LedgerTime,
    ) -> Result<Wanted, Vec<String>> {
        let (mut limit, mut problems) = (limit.clone(), Vec::new());
        let known = cell.and_then(|cell| match &cell.policy {
            Policy::FixedWindow { calendar: Some(calendar), .. } => Some(WindowJson::of(calendar.unit)),
            _ => None,
        });
        let is_fixed = cell.is_some_and(|cell| matches!(cell.policy, Policy::FixedWindow { .. }));
        if limit.burst.is_some() {
            problems
                .push("burst is given, allowed: none with a fixed window; its rate says it all".to_owned());
        }
        if limit.rate.is_none() && !is_fixed {
            problems.push("rate is missing: so many in any window of its period".to_owned());
        }
        // A window of another length needs a rate that says so.
        let before = cell.filter(|_| is_fixed).map(|cell| cell.rate.target.period.millis());
        let period_ms = limit.rate.map(|rate| rate.period_ms).or(before);
        let given = match limit.policy.take() {
            Some(LimitPolicyJson::FixedWindow { window, time_zone, boundaries_us, tz_version }) => {
                let unit = window.or_else(|| period_ms.and_then(WindowJson::of_period)).or(known);
                if unit.is_none() {
                    problems.push("window is missing, allowed: hour, day, week, month".to_owned());
                }
                Some((unit.unwrap_or(WindowJson::Day), time_zone, boundaries_us, tz_version))
            }
            _ => None,
        };
        if let (Some(period), Some(window)) = (period_ms, given.as_ref().map(|given| given.0).or(known))
            && !window.fits(period)
        {
            let period = text::span(Span::from_millis(period));
            let month = if window == WindowJson::Month { " of 28 to 31 days" } else { "" };
            problems.push(format!(
                "rate is per {period}, allowed: per {}{month}, which is the window",
                window.as_str()
            ));
        }
        let policy = given.map(|(window, time_zone, boundaries_us, tz_version)| Policy::FixedWindow {
            boundaries: boundaries_us.into_iter().map(LedgerTime).collect(),
            calendar: Some(Calendar { unit: window.unit(), time_zone, tz_version }),
            escrow: true,
        });
        if let Some(policy) = &policy {
            let lease = match (limit.lease_ms, cell) {
                (None, Some(cell)) => cell.lease,
                _ => limit.lease(),
            };
            if let Err(error) = check_policy(policy, lease) {
                problems.push(error.to_string());
            } else if policy.terms(now).next().is_none() {
                problems.push("boundaries_us: none is to come, allowed: at least one".to_owned());
            }
        }
        limit.burst = limit.rate.map(|rate| rate.count);
        if problems.is_empty() { Ok(Wanted { limit, policy }) } else { Err(problems) }
    }
}

/// Checks every field, not just the first that is wrong.
fn check_limit(limit: &LimitJson, problems: &mut Problems) -> bool {
    let before = problems.count;
    let named = format!("limit {}", quoted(&limit.name));
    if let Err(error) = check_name("name", &limit.name) {
        problems.add(error);
    }
    for (field, label) in [("meter", &limit.meter), ("tier", &limit.tier)] {
        if let Err(error) = check_label(field, label) {
            problems.add(format!("{named}: {error}"));
        }
    }
    if let Some(Err(error)) = limit.rate.map(RateJson::check) {
        problems.add(format!("{named}: {error}"));
    }
    if let Some(Err(error)) = limit.floor.map(RateJson::check) {
        problems.add(format!("{named}: floor: {error}"));
    }
    if let Some(Err(error)) = limit.total_rate.map(RateJson::check) {
        problems.add(format!("{named}: total_rate: {error}"));
    }
    if let Some(Err(error)) = limit.burst.map(check_burst) {
        problems.add(format!("{named}: {error}"));
    }
    if let Err(error) = check_lease(limit.lease()) {
        problems.add(format!("{named}: {error}"));
    }
    if let Some(Err(error)) = limit.queue.map(check_queue) {
        problems.add(format!("{named}: {error}"));
    }
    conduct::check(&named, limit, problems);
    problems.count == before
}

/// The line of a limit that wasn't there before.
fn described(how: &str, cell: &CellConfig) -> String {
    let (rate, burst) = (text::rate(cell.rate.target), text::milli(cell.burst.target.milli_floor()));
    let moved = if cell.fresh { "" } else { ", moved here: waits for the leases of its old group" };
    let empty = if cell.initial == Initial::Empty { ", empty at first" } else { "" };
    let queue = cell.queue.map(|queue| format!(", queue {queue}")).unwrap_or_default();
    let what = match &cell.policy {
        Policy::TokenBucket => format!("rate {rate}, burst {burst}"),
        Policy::InFlight { .. } => format!("{burst} {}", text::policy(&cell.policy)),
        policy => format!("{burst} in a {}", text::policy(policy)),
    };
    let (tier, conduct) = (tiers::described(cell), conduct::described(cell));
    let lease = text::span(cell.lease);
    format!("{}: {how}, {what}, lease {lease}{queue}{empty}{tier}{conduct}{moved}", cell.key)
}

/// A cell whose burst the wire carries exactly.
fn rounded(mut cell: CellConfig) -> CellConfig {
    cell.burst.source = cell.burst.source.floor_to_milli();
    cell.burst.target = cell.burst.target.floor_to_milli();
    cell
}

/// A name in a problem, shortened, so that a huge one doesn't come back whole.
fn quoted(name: &str) -> String {
    let short: String = name.chars().take(QUOTED_CHARS_MAX).collect();
    if short.len() < name.len() {
        format!("{short:?}… ({} bytes)", name.len())
    } else {
        format!("{short:?}")
    }
}

/// The longest beginning of `text` that has at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

/// Collects problems, and counts those beyond [`PROBLEMS_MAX`].
#[derive(Default)]
struct Problems {
    list: Vec<String>,
    count: usize,
}

impl Problems {
    fn add(&mut self, problem: impl ToString) {
        self.count += 1;
        if self.list.len() < PROBLEMS_MAX {
            self.list.push(problem.to_string());
        }
    }

    fn none(mut self) -> Result<(), Vec<String>> {
        let more = self.count - self.list.len();
        if more > 0 {
            self.list.push(format!("and {more} more"));
        }
        if self.list.is_empty() { Ok(()) } else { Err(self.list) }
    }
}

#[cfg(test)]
mod conduct_tests;
#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tier_tests;
