//! `tollgate schedule`: changes that come back.

use super::limit::{base, send};
use super::{print, print_line};
use crate::args::{Global, Schedule, ScheduleSet};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::layers::{self, value_text};
use crate::moment::{self, absolute, relative};
use crate::quantity::span_text;
use crate::table::{Cell, Paint, Side, Table};
use serde::Serialize;
use tollgate_activities::schedule;
use tollgate_core::limit::CellKey;
use tollgate_core::units::{LedgerTime, Span};
use tollgate_workflows::config::book::schedules::Rule;
use tollgate_workflows::config::view::{ConfigJson, ConfiguredLimitJson};
use tollgate_workflows::wire::config::ApplyJson;
use tollgate_workflows::wire::layers::{DayJson, RuleJson, ScheduleJson, ScheduleNameJson, ValueJson};

/// Shows and changes schedules.
///
/// # Errors
/// As [`Session::query`] and [`Session::update`]; [`Failure::Refused`] when the change is refused.
pub async fn run(global: &Global, command: &Schedule) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
    match command {
        Schedule::Set(wanted) => {
            let apply = change(&config, wanted, moment::now_us())?;
            send(&session, &apply, global.json).await
        }
        Schedule::Rm { name, limit, meter, change } => {
            let keys = layers::cells(&config.limits, limit, meter).map_err(Failure::Failed)?;
            let has_it = |key: &&CellKey| {
                let is_it = |one: &&ConfiguredLimitJson| key_of(one) == **key;
                let found = config.limits.iter().find(is_it);
                found.is_some_and(|one| one.schedules.iter().any(|schedule| schedule.name == *name))
            };
            let having: Vec<&CellKey> = keys.iter().filter(has_it).collect();
            // The server says that there is none.
            let having = if having.is_empty() { keys.iter().take(1).collect() } else { having };
            let mut apply = base(change);
            apply.if_version.get_or_insert(config.version.clone());
            let named = |key: &CellKey| ScheduleNameJson {
                limit: key.limit.clone(),
                meter: key.meter.clone(),
                tier: key.tier.clone(),
                name: name.clone(),
            };
            apply.remove_schedules = having.into_iter().map(named).collect();
            send(&session, &apply, global.json).await
        }
        Schedule::Ls { limit, next } => {
            let is_wanted = |one: &&ConfiguredLimitJson| limit.as_ref().is_none_or(|name| one.limit == *name);
            let wanted: Vec<&ConfiguredLimitJson> = config.limits.iter().filter(is_wanted).collect();
            if let Some(name) = limit.as_ref().filter(|_| wanted.is_empty()) {
                let group = session.group();
                let problem = format!("no limit {name:?} in group {group:?}: see `tollgate limit list`");
                return Err(Failure::Failed(problem));
            }
            let now_us = moment::now_us();
            let listed = Listed::of(&wanted, now_us, *next);
            if global.json {
                let json =
                    serde_json::to_string(&listed).map_err(|error| Failure::Failed(error.to_string()))?;
                return print_line(&json);
            }
            print(&listed.render(now_us, Paint::of_stdout()))
        }
    }
}

/// The change that creates or replaces a schedule, with its first times.
fn change(config: &ConfigJson, wanted: &ScheduleSet, now_us: u64) -> Result<ApplyJson, Failure> {
    let keys = layers::cells(&config.limits, &wanted.limit, &wanted.meter).map_err(Failure::Failed)?;
    let rate = wanted.rate.unwrap_or_default();
    let value = ValueJson { burst: wanted.burst.or(wanted.concurrency), ..rate };
    if value == ValueJson::default() {
        return Err(Failure::Usage("one of --rate, --burst, --concurrency is needed".to_owned()));
    }
    let mut problems = Vec::new();
    if value.times_milli.is_none() && keys.len() > 1 {
        let tiers: Vec<&str> = keys.iter().map(|key| key.tier.as_str()).collect();
        problems.push(format!(
            "limit {:?}: it has tiers: name one with --tier ({}), or give a multiple",
            wanted.limit,
            tiers.join(", ")
        ));
    }
    let mut days: Vec<DayJson> = wanted.days.iter().flat_map(|days| days.0.iter().copied()).collect();
    days.sort_unstable();
    days.dedup();
    let (from, to) = wanted.between.clone();
    let rule = RuleJson { from, to, days, time_zone: wanted.zone.clone() };
    let computed = Rule::read(&rule).map_err(|these| problems.extend(these)).ok().and_then(|rule| {
        let windows = schedule::windows(&rule, LedgerTime(now_us));
        windows.map_err(|error| problems.push(error.to_string())).ok()
    });
    let Some((windows, rule, tz_version)) = computed.filter(|_| problems.is_empty()) else {
        return Err(Failure::Refused(problems));
    };
    let of = |key: CellKey| ScheduleJson {
        limit: key.limit,
        meter: key.meter,
        tier: key.tier,
        name: wanted.name.clone(),
        rule: rule.json(),
        value,
        ramp_ms: wanted.ramp.map_or(60_000, Span::millis),
        windows_us: windows.iter().map(|window| [window.begin.0, window.end.0]).collect(),
        tz_version: tz_version.clone(),
    };
    let mut apply = ApplyJson { schedules: keys.into_iter().map(of).collect(), ..base(&wanted.change) };
    // Which tiers there are was read from this version.
    apply.if_version.get_or_insert(config.version.clone());
    Ok(apply)
}

fn key_of(limit: &ConfiguredLimitJson) -> CellKey {
    CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() }
}

/// Schedules, and when they begin and end next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Listed {
    schedules: Vec<ScheduleJson>,
    /// In order of time.
    next: Vec<Edge>,
    /// Up to this time all of them are known.
    known_until_us: Option<u64>,
}

/// Something begins or ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Edge {
    at_us: u64,
    limit: String,
    meter: String,
    tier: String,
    name: String,
    /// `begins` or `ends`.
    what: &'static str,
    value: String,
}

impl Listed {
    fn of(limits: &[&ConfiguredLimitJson], now_us: u64, next: Span) -> Listed {
        let schedules: Vec<ScheduleJson> =
            limits.iter().flat_map(|limit| limit.schedules.iter().cloned()).collect();
        let until = now_us.saturating_add(next.0);
        let known = schedules.iter().map(|one| one.windows_us.last().map_or(now_us, |[_, end]| *end)).min();
        let edge = |one: &ScheduleJson, at_us: u64, what: &'static str| Edge {
            at_us,
            limit: one.limit.clone(),
            meter: one.meter.clone(),
            tier: one.tier.clone(),
            name: one.name.clone(),
            what,
            value: value_text(&one.value),
        };
        let edges = schedules.iter().flat_map(|one| {
            let both = |[begin, end]: &[u64; 2]| [edge(one, *begin, "begins"), edge(one, *end, "ends")];
            one.windows_us.iter().flat_map(both).collect::<Vec<_>>()
        });
        let mut next: Vec<Edge> = edges.filter(|edge| now_us < edge.at_us && edge.at_us <= until).collect();
        next.sort_by(|one, other| {
            (one.at_us, &one.limit, &one.name).cmp(&(other.at_us, &other.limit, &other.name))
        });
        Listed { schedules, next, known_until_us: known.filter(|known| *known < until) }
    }

    fn render(&self, now_us: u64, paint: Paint) -> String {
        if self.schedules.is_empty() {
            return "no schedules: `tollgate schedule set LIMIT --help` says how to make one\n".to_owned();
        }
        let mut table = Table::new(&[
            ("LIMIT", Side::Left),
            ("SCHEDULE", Side::Left),
            ("CHANGE", Side::Left),
            ("BETWEEN", Side::Left),
            ("DAYS", Side::Left),
            ("ZONE", Side::Left),
            ("RAMP", Side::Right),
            ("NOW", Side::Left),
        ]);
        for one in &self.schedules {
            let days: Vec<&str> = one.rule.days.iter().map(|day| day.as_str()).collect();
            let now = one.windows_us.iter().find(|[begin, end]| (*begin..*end).contains(&now_us));
            let now = now.map(|[_, end]| format!("up to {}", moment::clock(*end, now_us)));
            table.row(vec![
                Cell::new(one.key()),
                Cell::new(&one.name),
                Cell::new(value_text(&one.value)),
                Cell::new(format!("{}-{}", one.rule.from, one.rule.to)),
                Cell::new(if days.is_empty() { "all".to_owned() } else { days.join(",") }),
                Cell::new(&one.rule.time_zone),
                Cell::new(span_text(one.ramp_ms)),
                Cell::warn_if(now.clone().unwrap_or_default(), now.is_some()),
            ]);
        }
        let mut text = table.render(paint);
        if !self.next.is_empty() {
            text.push('\n');
            let mut table = Table::new(&[
                ("AT", Side::Left),
                ("IN", Side::Left),
                ("LIMIT", Side::Left),
                ("SCHEDULE", Side::Left),
                ("CHANGE", Side::Left),
            ]);
            for edge in &self.next {
                let key =
                    CellKey { limit: edge.limit.clone(), meter: edge.meter.clone(), tier: edge.tier.clone() };
                let change = if edge.what == "begins" {
                    format!("begins: {}", edge.value)
                } else {
                    edge.what.to_owned()
                };
                table.row(vec![
                    Cell::new(absolute(edge.at_us)),
                    Cell::dim(relative(edge.at_us, now_us)),
                    Cell::new(key),
                    Cell::new(&edge.name),
                    Cell::new(change),
                ]);
            }
            text.push_str(&table.render(paint));
        }
        if let Some(known) = self.known_until_us {
            let line = format!("known up to {}; later ones are computed in time", absolute(known));
            text.push_str(&format!("{}\n", paint.dim(&line)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_796_043_897_000_000;

    fn night(windows_us: Vec<[u64; 2]>) -> ScheduleJson {
        ScheduleJson {
            limit: "api".to_owned(),
            meter: CellKey::METER.to_owned(),
            tier: CellKey::TIER.to_owned(),
            name: "night".to_owned(),
            rule: RuleJson {
                from: "00:00".to_owned(),
                to: "06:00".to_owned(),
                days: vec![DayJson::Sat, DayJson::Sun],
                time_zone: "Asia/Shanghai".to_owned(),
            },
            value: ValueJson { times_milli: Some(2_000), ..ValueJson::default() },
            ramp_ms: 120_000,
            windows_us,
            tz_version: "2026f".to_owned(),
        }
    }

    #[test]
    fn schedules_are_listed_with_what_is_under_way_and_what_comes() {
        let hour = 3_600_000_000;
        let windows = vec![[NOW - hour, NOW + hour], [NOW + 24 * hour, NOW + 26 * hour]];
        let limit = super::super::limit::tests::limit("api", 50_000_000);
        let limit = ConfiguredLimitJson { schedules: vec![night(windows)], ..limit };
        let listed = Listed::of(&[&limit], NOW, Span::from_secs(86_400));
        assert_eq!(
            listed.render(NOW, Paint::OFF),
            "LIMIT  SCHEDULE  CHANGE  BETWEEN      DAYS     ZONE           RAMP  NOW\n\
             api    night     x2      00:00-06:00  sat,sun  Asia/Shanghai    2m  up to 14:04:57Z\n\
             \n\
             AT                    IN        LIMIT  SCHEDULE  CHANGE\n\
             2026-11-30 14:04:57Z  in 1h00m  api    night     ends\n\
             2026-12-01 13:04:57Z  in 1d00h  api    night     begins: x2\n"
        );
        let week = Listed::of(&[&limit], NOW, Span::from_secs(7 * 86_400));
        assert_eq!((week.next.len(), week.known_until_us), (3, Some(NOW + 26 * hour)));
        assert!(
            week.render(NOW, Paint::OFF)
                .ends_with("known up to 2026-12-01 15:04:57Z; later ones are computed in time\n")
        );
        assert!(Listed::of(&[], NOW, Span::ZERO).render(NOW, Paint::OFF).starts_with("no schedules"));
    }
}
