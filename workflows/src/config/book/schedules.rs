//! Changes that come back by the clocks of a time zone.
//!
//! A book knows the times as UTC data alone, with the release of the time zone database that they were computed by: another
//! release must not change a replay. Later ones are asked for before they run out.

use super::overrides::{Layers, Value};
use super::{ACTOR_SELF, Book, Outcome, Plan, Problems, quoted, text};
use crate::wire::layers::{DayJson, RuleJson, ScheduleJson, ScheduleNameJson, minutes, time_of_day};
use tollgate_core::limit::{CellKey, check_label, check_ramp};
use tollgate_core::policy::CALENDAR_BYTES_MAX;
use tollgate_core::units::{LedgerTime, Span};

/// How many schedules a group may have: with their times they are a tenth of what the state may have.
pub const SCHEDULES_MAX: usize = 100;
/// How many times to come are asked for: two weeks of nights, of which one may pass while no host can compute more.
pub const WINDOWS_AHEAD: usize = 16;
/// How many times a schedule may have: those to come, the one under way, and room for whoever sends more.
pub const WINDOWS_MAX: usize = 2 * WINDOWS_AHEAD;

/// When a schedule is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The days on which it begins; bit 0 is Monday.
    pub days: u8,
    /// Minutes since midnight.
    pub from: u16,
    /// Minutes since midnight, up to 1,440; on the next day unless later than `from`.
    pub to: u16,
    /// IANA name.
    pub time_zone: String,
}

/// One time at which a schedule is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From then on.
    pub begin: LedgerTime,
    /// Up to then: later.
    pub end: LedgerTime,
}

/// A change that comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What the limit has meanwhile.
    pub value: Value,
    /// How long the change takes, at the beginning and at the end.
    pub ramp: Span,
    /// When it is in force.
    pub rule: Rule,
    /// The same as times, in order: at most [`WINDOWS_MAX`], none before the other has ended.
    pub windows: Vec<Window>,
    /// The release of the time zone database that they were computed by.
    pub tz_version: String,
}

impl Rule {
    /// Checks what can be checked without a time zone database.
    ///
    /// # Errors
    /// Every problem.
    pub fn read(rule: &RuleJson) -> Result<Rule, Vec<String>> {
        let mut problems = Vec::new();
        let mut time = |field: &str, text: &str| {
            minutes(field, text).map_err(|error| problems.push(error.to_string())).unwrap_or(0)
        };
        let (from, to) = (time("from", &rule.from), time("to", &rule.to));
        if from == 24 * 60 {
            problems.push("from is \"24:00\", allowed: 00:00 to 23:59".to_owned());
        }
        if rule.time_zone.is_empty() || rule.time_zone.len() > CALENDAR_BYTES_MAX {
            let bytes = rule.time_zone.len();
            problems.push(format!("time_zone has {bytes} bytes, allowed: 1 to {CALENDAR_BYTES_MAX}"));
        }
        let bit = |day: &DayJson| DayJson::ALL.iter().position(|other| other == day).map_or(0, |n| 1_u8 << n);
        let days = rule.days.iter().map(bit).fold(0, |all, bit| all | bit);
        let rule =
            Rule { days: if days == 0 { 0x7f } else { days }, from, to, time_zone: rule.time_zone.clone() };
        if problems.is_empty() { Ok(rule) } else { Err(problems) }
    }

    /// As JSON carries it.
    pub fn json(&self) -> RuleJson {
        let is_in = |n: usize| self.days & (1 << n) != 0;
        let days = DayJson::ALL.iter().enumerate().filter(|(n, _)| is_in(*n)).map(|(_, day)| *day);
        RuleJson {
            from: time_of_day(self.from),
            to: time_of_day(self.to),
            days: if self.days == 0x7f { Vec::new() } else { days.collect() },
            time_zone: self.time_zone.clone(),
        }
    }

    /// `00:00-06:00 Asia/Shanghai`, `22:00-06:00 UTC on fri, sat`.
    pub fn text(&self) -> String {
        let rule = self.json();
        let days: Vec<&str> = rule.days.iter().map(|day| day.as_str()).collect();
        let days = if days.is_empty() { String::new() } else { format!(" on {}", days.join(", ")) };
        format!("{}-{} {}{days}", rule.from, rule.to, rule.time_zone)
    }
}

impl Schedule {
    /// The time that is under way.
    pub(super) fn window_at(&self, at: LedgerTime) -> Option<Window> {
        self.windows.iter().copied().find(|window| window.begin <= at && at < window.end)
    }

    /// The next time at which it begins or ends.
    pub(super) fn next_edge(&self, after: LedgerTime) -> Option<LedgerTime> {
        self.windows.iter().flat_map(|window| [window.begin, window.end]).find(|edge| *edge > after)
    }

    /// When later times are to be asked for: half of those that are asked for at a time are over.
    fn renewal_due(&self) -> LedgerTime {
        let half = self.windows.len().checked_sub(WINDOWS_AHEAD / 2);
        half.and_then(|half| self.windows.get(half)).map_or(LedgerTime(0), |window| window.begin)
    }

    /// As people read it.
    pub(in crate::config) fn text(&self) -> String {
        format!("{} at {}, ramp {}", self.value.text(), self.rule.text(), text::span(self.ramp))
    }

    /// As JSON carries it.
    pub(in crate::config) fn json(&self, key: &CellKey, name: &str) -> ScheduleJson {
        ScheduleJson {
            limit: key.limit.clone(),
            meter: key.meter.clone(),
            tier: key.tier.clone(),
            name: name.to_owned(),
            rule: self.rule.json(),
            value: self.value.json(),
            ramp_ms: self.ramp.millis(),
            windows_us: self.windows.iter().map(|window| [window.begin.0, window.end.0]).collect(),
            tz_version: self.tz_version.clone(),
        }
    }

    /// The same without times: what an operator says of it.
    pub(super) fn stated(&self) -> Schedule {
        Schedule { windows: Vec::new(), tz_version: String::new(), ..self.clone() }
    }

    fn read(wanted: &ScheduleJson) -> Result<Schedule, Vec<String>> {
        let mut problems = Vec::new();
        if let Err(error) = check_label("name", &wanted.name) {
            problems.push(error.to_string());
        }
        let rule = Rule::read(&wanted.rule).map_err(|mut these| problems.append(&mut these)).ok();
        let value = Value::read(&wanted.value).map_err(|problem| problems.push(problem)).ok();
        let ramp = Span(wanted.ramp_ms.saturating_mul(1_000));
        if let Err(error) = check_ramp(ramp) {
            problems.push(error.to_string());
        }
        let windows: Vec<Window> = wanted
            .windows_us
            .iter()
            .map(|[begin, end]| Window { begin: LedgerTime(*begin), end: LedgerTime(*end) })
            .collect();
        problems.extend(check_windows(&windows, &wanted.tz_version).err());
        match (rule, value) {
            (Some(rule), Some(value)) if problems.is_empty() => {
                Ok(Schedule { value, ramp, rule, windows, tz_version: wanted.tz_version.clone() })
            }
            _ => Err(problems),
        }
    }
}

fn check_windows(windows: &[Window], tz_version: &str) -> Result<(), String> {
    let rise = windows.windows(2).all(|pair| matches!(pair, [one, next] if one.end <= next.begin));
    if windows.len() > WINDOWS_MAX || !rise || windows.iter().any(|window| window.end <= window.begin) {
        let count = windows.len();
        return Err(format!(
            "windows_us is {count} of them, allowed: up to {WINDOWS_MAX} that follow each other"
        ));
    }
    if tz_version.len() > CALENDAR_BYTES_MAX {
        return Err(format!(
            "tz_version has {} bytes, allowed: up to {CALENDAR_BYTES_MAX}",
            tz_version.len()
        ));
    }
    Ok(())
}

impl Book {
    /// When later times of a schedule have to be asked for.
    pub fn schedules_due(&self) -> Option<LedgerTime> {
        self.schedules().map(|(_, _, schedule)| schedule.renewal_due()).min()
    }

    /// The rules whose later times are due at `now`, each once.
    pub fn due_rules(&self, now: LedgerTime) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        for (_, _, schedule) in self.schedules().filter(|(_, _, schedule)| schedule.renewal_due() <= now) {
            if !rules.contains(&schedule.rule) {
                rules.push(schedule.rule.clone());
            }
        }
        rules
    }

    /// Every schedule, with its limit and name.
    pub(in crate::config) fn schedules(&self) -> impl Iterator<Item = (&CellKey, &String, &Schedule)> {
        self.layers.iter().flat_map(|(key, layers)| {
            layers.schedules.iter().map(move |(name, schedule)| (key, name, schedule))
        })
    }

    /// Takes the times of all schedules that follow `rule`. What is under way by them counts from when it began. A line in the
    /// history tells of another release of the time zone database.
    ///
    /// # Errors
    /// What is wrong with them; nothing was changed then.
    pub fn renew_schedules(
        &mut self,
        now: LedgerTime,
        rule: &Rule,
        windows: &[Window],
        tz_version: &str,
    ) -> Result<(), String> {
        self.advance(now);
        self.now = self.now.max(now);
        check_windows(windows, tz_version)?;
        if windows.len() < WINDOWS_AHEAD {
            return Err(format!("{} times are known, wanted: {WINDOWS_AHEAD}", windows.len()));
        }
        let mut lines = Vec::new();
        for (key, layers) in &mut self.layers {
            for (name, schedule) in layers.schedules.iter_mut().filter(|(_, other)| other.rule == *rule) {
                let from = &schedule.tz_version;
                if !from.is_empty() && from != tz_version {
                    lines.push(format!("{key}: schedule {name}: time zones {from} -> {tz_version}"));
                }
                schedule.windows = windows.to_vec();
                schedule.tz_version = tz_version.to_owned();
            }
        }
        if !lines.is_empty() {
            let reason = "times of schedules were computed anew";
            let entry = self.entry(&lines, ACTOR_SELF, reason, Outcome::Scheduled, self.version);
            self.remember(entry);
        }
        let now = self.now;
        self.turn(|layers| layers.begun(now));
        Ok(())
    }
}

impl Layers {
    /// When what should be on top began.
    fn begun(&self, now: LedgerTime) -> LedgerTime {
        let windows = self.schedules.values().filter_map(|schedule| schedule.window_at(now));
        match self.winner(now) {
            Some(super::overrides::Source::Schedule(_)) => {
                windows.map(|window| window.begin).max().unwrap_or(now)
            }
            _ => now,
        }
    }
}

impl Plan {
    /// Notes a schedule; it comes on top with [`Plan::cover`] when it is time.
    pub(super) fn schedule(&mut self, wanted: &ScheduleJson, problems: &mut Problems) {
        let key = wanted.key();
        let named = format!("schedule {} of {}", quoted(&wanted.name), quoted(&key.to_string()));
        let schedule = match Schedule::read(wanted) {
            Ok(schedule) => schedule,
            Err(these) => {
                for problem in these {
                    problems.add(format!("{named}: {problem}"));
                }
                return;
            }
        };
        if !self.cells.contains_key(&key) {
            return problems.add(format!("{named}: there is no such limit"));
        }
        let layers = self.layers.entry(key.clone()).or_default();
        match layers.schedules.get(&wanted.name) {
            Some(old) if old.stated() == schedule.stated() => {}
            Some(old) => self.lines.push(format!(
                "{key}: schedule {}: {} -> {}",
                wanted.name,
                old.text(),
                schedule.text()
            )),
            None => self.lines.push(format!("{key}: schedule {} added: {}", wanted.name, schedule.text())),
        }
        layers.put(&wanted.name, schedule);
        let count: usize = self.layers.values().map(|layers| layers.schedules.len()).sum();
        if count > SCHEDULES_MAX {
            problems.add(format!("schedules: {count} after this change, allowed: up to {SCHEDULES_MAX}"));
        }
    }

    /// Removes a schedule; what is in force by it ends with [`Plan::cover`].
    pub(super) fn unschedule(&mut self, wanted: &ScheduleNameJson, problems: &mut Problems) {
        let key = wanted.key();
        let removed = self.layers.get_mut(&key).and_then(|layers| layers.schedules.remove(&wanted.name));
        match removed {
            Some(old) => {
                self.lines.push(format!("{key}: schedule {} removed, was {}", wanted.name, old.text()));
            }
            None => problems.add(format!(
                "remove_schedules: {} has no schedule {}",
                quoted(&key.to_string()),
                quoted(&wanted.name)
            )),
        }
    }
}

impl Layers {
    /// Puts a schedule in its place. Times that are known already stay, unless it brings some.
    pub(super) fn put(&mut self, name: &str, mut schedule: Schedule) {
        if schedule.windows.is_empty()
            && let Some(old) = self.schedules.get(name).filter(|old| old.rule == schedule.rule)
        {
            (schedule.windows, schedule.tz_version) = (old.windows.clone(), old.tz_version.clone());
        }
        self.schedules.insert(name.to_owned(), schedule);
    }
}
