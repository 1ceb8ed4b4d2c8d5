//! What a file says of schedules, and the way back.

use super::limits::File;
use super::tree::{Entry, Node, Place, Value};
use crate::layers::{self, value_text};
use crate::quantity::{self, span_text};
use serde_json::{Map, Value as Json};
use tollgate_activities::schedule;
use tollgate_core::limit::{CellKey, check_label, check_name};
use tollgate_core::units::Span;
use tollgate_workflows::config::book::schedules::Rule;
use tollgate_workflows::wire::layers::{DayJson, RuleJson, ScheduleJson, ValueJson};

/// What a schedule may have.
pub const SCHEDULE_FIELDS: &[&str] = &[
    "limit",
    "name",
    "meter",
    "tier",
    "between",
    "days",
    "time_zone",
    "rate",
    "burst",
    "concurrency",
    "ramp",
];

/// What one schedule says, before it is put together.
#[derive(Default)]
struct Fields {
    limit: Option<String>,
    name: Option<String>,
    meter: Option<String>,
    tier: Option<String>,
    between: Option<(String, String)>,
    days: Vec<DayJson>,
    time_zone: Option<String>,
    value: ValueJson,
    ramp: Option<Span>,
}

impl File {
    /// A list of schedules.
    pub(super) fn schedules(&mut self, node: &Node) -> Vec<(Place, ScheduleJson)> {
        let Value::List(items) = &node.value else {
            self.wrong("schedules", node, "a list of tables, each with limit, name, between and rate");
            return Vec::new();
        };
        items.iter().filter_map(|item| Some((item.place, self.one_schedule(item)?))).collect()
    }

    fn one_schedule(&mut self, node: &Node) -> Option<ScheduleJson> {
        let before = self.problems.len();
        let entries = self.table("a schedule", node, &[SCHEDULE_FIELDS])?;
        let mut fields = Fields::default();
        for entry in entries {
            self.schedule_field(entry, &mut fields);
        }
        let value = fields.value;
        for (field, is_missing) in [
            ("limit", fields.limit.is_none()),
            ("name", fields.name.is_none()),
            ("between", fields.between.is_none()),
            ("rate", value == ValueJson::default()),
        ] {
            if is_missing && self.problems.len() == before {
                self.problem(node.place, format!("{field} is missing, a schedule needs one"));
            }
        }
        let (from, to) = fields.between?;
        let rule = RuleJson {
            from,
            to,
            days: fields.days,
            time_zone: fields.time_zone.unwrap_or_else(|| "UTC".to_owned()),
        };
        let computed = Rule::read(&rule)
            .map_err(|problems| problems.join("; "))
            .and_then(|rule| schedule::windows(&rule, self.now).map_err(|error| error.to_string()));
        let (windows, rule, tz_version) = computed.map_err(|why| self.problem(node.place, why)).ok()?;
        if self.problems.len() > before {
            return None;
        }
        Some(ScheduleJson {
            limit: fields.limit?,
            name: fields.name?,
            meter: fields.meter.unwrap_or_else(|| CellKey::METER.to_owned()),
            tier: fields.tier.unwrap_or_else(|| CellKey::TIER.to_owned()),
            rule: rule.json(),
            value,
            ramp_ms: fields.ramp.map_or(60_000, Span::millis),
            windows_us: windows.iter().map(|window| [window.begin.0, window.end.0]).collect(),
            tz_version,
        })
    }

    fn schedule_field(&mut self, Entry { name, node, .. }: &Entry, fields: &mut Fields) {
        let label = |text: &str| {
            check_label(name_of(name), text).map_err(|error| format!("allowed: {}", error.allowed))
        };
        let named =
            |text: &str| check_name("limit", text).map_err(|error| format!("allowed: {}", error.allowed));
        match name.as_str() {
            "limit" => fields.limit = self.text(name, node, |text| named(text).map(|()| text.to_owned())),
            "name" => fields.name = self.text(name, node, |text| label(text).map(|()| text.to_owned())),
            "meter" => fields.meter = self.text(name, node, |text| label(text).map(|()| text.to_owned())),
            "tier" => fields.tier = self.text(name, node, |text| label(text).map(|()| text.to_owned())),
            "between" => fields.between = self.text(name, node, layers::between),
            "time_zone" => fields.time_zone = self.text(name, node, |text| Ok(text.to_owned())),
            "days" => fields.days = self.days(node),
            "rate" => {
                let value = self.text(name, node, layers::value).unwrap_or_default();
                fields.value = ValueJson { burst: fields.value.burst, ..value };
            }
            "burst" | "concurrency" => fields.value.burst = self.whole(name, node),
            "ramp" => fields.ramp = self.duration(name, node, quantity::ramp),
            _ => {}
        }
    }

    /// One text, or a list of them.
    fn days(&mut self, node: &Node) -> Vec<DayJson> {
        let items = match &node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut days: Vec<DayJson> = items
            .iter()
            .filter_map(|item| self.text("days", item, layers::days))
            .flat_map(|days| days.0)
            .collect();
        days.sort_unstable();
        days.dedup();
        days
    }
}

/// As errors name it.
fn name_of(field: &str) -> &'static str {
    match field {
        "meter" => "meter",
        "tier" => "tier",
        _ => "name",
    }
}

/// A schedule as a file says it.
pub(super) fn exported(schedule: &ScheduleJson) -> Json {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Json| drop(fields.insert(name.to_owned(), value));
    put("limit", schedule.limit.as_str().into());
    put("name", schedule.name.as_str().into());
    if schedule.meter != CellKey::METER {
        put("meter", schedule.meter.as_str().into());
    }
    if schedule.tier != CellKey::TIER {
        put("tier", schedule.tier.as_str().into());
    }
    put("between", format!("{}-{}", schedule.rule.from, schedule.rule.to).into());
    if !schedule.rule.days.is_empty() {
        put("days", schedule.rule.days.iter().map(|day| Json::from(day.as_str())).collect());
    }
    put("time_zone", schedule.rule.time_zone.as_str().into());
    let (value, burst) = (schedule.value, schedule.value.burst);
    if value.times_milli.is_some() || value.rate.is_some() {
        put("rate", value_text(&ValueJson { burst: None, ..value }).into());
    }
    if let Some(burst) = burst {
        put("burst", burst.into());
    }
    put("ramp", span_text(schedule.ramp_ms).into());
    Json::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::super::export::export;
    use super::super::limits::decode;
    use super::super::tree::{Language, read};
    use tollgate_core::units::LedgerTime;
    use tollgate_workflows::config::book::Book;
    use tollgate_workflows::config::view::ConfiguredLimitJson;
    use tollgate_workflows::wire::config::ApplyJson;

    const NOW: LedgerTime = LedgerTime(1_796_043_897_000_000);

    #[test]
    fn what_is_exported_changes_nothing_when_it_is_applied() {
        let text = "
            [limits.api]
            rate = \"50/s\"
            concurrency = 5
            [[schedules]]
            limit = \"api\"
            name = \"night\"
            between = \"00:00-06:00\"
            time_zone = \"Asia/Shanghai\"
            rate = \"2x\"
            ramp = \"2m\"
            [[schedules]]
            limit = \"api\"
            name = \"slots\"
            meter = \"in_flight\"
            between = \"22:00-06:00\"
            days = [\"mon-fri\", \"sun\"]
            concurrency = 9
            [[schedules]]
            limit = \"api\"
            name = \"weekend\"
            between = \"00:00-24:00\"
            days = \"weekends\"
            rate = \"3000/min\"
            burst = 70
        ";
        let mut book = Book::new(NOW);
        let mut apply = |text: &str, language| {
            let file = decode(&read(language, text).unwrap(), NOW);
            assert!(file.problems.is_empty(), "{:?}\n{text}", file.problems);
            let set = file.limits.into_iter().map(|stated| stated.limit).collect();
            let schedules = file.schedules.unwrap().into_iter().map(|(_, schedule)| schedule).collect();
            let change = ApplyJson { set, schedules, ..ApplyJson::default() };
            let changes = book.apply(NOW, &change).unwrap().changes;
            let limits: Vec<_> =
                book.cells.values().map(|cell| ConfiguredLimitJson::of(&book, cell)).collect();
            (changes, limits)
        };
        let (changes, limits) = apply(text, Language::Toml);
        assert!(changes.len() >= 5, "{changes:?}");
        for language in [Language::Toml, Language::Yaml, Language::Json] {
            let (text, notes) = export(&limits, language);
            assert!(notes.is_empty(), "{notes:?}");
            assert_eq!(apply(&text, language).0, Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn every_problem_of_schedules_is_named_with_its_place() {
        let text = "\
schedules = [
  { limit = \"api\", name = \"No\", between = \"0-6\", rate = \"2y\", days = [\"funday\"], ramp = 5, zone = \"UTC\" },
  { limit = \"api\", name = \"a\", between = \"00:00-06:00\" },
  { limit = \"api\", name = \"a\", between = \"00:00-06:00\", rate = \"2x\", time_zone = \"Nowhere\" },
  7,
]
";
        let file = decode(&read(Language::Toml, text).unwrap(), NOW);
        let problems: Vec<String> =
            file.problems.iter().map(|(place, why)| format!("{place} {why}")).collect();
        let text = problems.join("\n");
        for part in [
            "2:27 name is \"No\", allowed: ",
            "between is \"0-6\", allowed: two times of day",
            "rate is \"2y\", allowed: ",
            "days is \"funday\", allowed: mon, tue",
            "ramp is \"5\", allowed: ",
            "a schedule has no \"zone\"",
            "3:3 rate is missing, a schedule needs one",
            "4:3 time_zone is \"Nowhere\"",
            "5:3 a schedule is 7, allowed: a table",
        ] {
            assert!(text.contains(part), "{part}\n--\n{text}");
        }
        assert_eq!(problems.len(), 9, "{text}");
    }
}
