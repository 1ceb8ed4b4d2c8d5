//! The configuration as a file.

use super::limits::{POLICIES, Policy};
use super::tree::Language;
use crate::quantity::{rate_text, span_text};
use serde_json::{Map, Value};
use tollgate_core::limit::{CellKey, check_rate};
use tollgate_core::units::Span;
use tollgate_workflows::config::view::ConfiguredLimitJson;
use tollgate_workflows::wire::conduct::{ConductJson, percent_text};
use tollgate_workflows::wire::config::{ExactRateJson, InitialJson, PolicyJson, RateJson};

/// The file that says what is configured, and what it can't say.
pub fn export(configured: &[ConfiguredLimitJson], language: Language) -> (String, Vec<String>) {
    let mut notes = Vec::new();
    let mut limits = Value::Object(Map::new());
    for limit in configured {
        let key =
            CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() };
        let Some(mut fields) = fields(limit, &mut |note| notes.push(format!("{key}: {note}"))) else {
            continue;
        };
        // Tables are made where there are none.
        let mut place = &mut limits[limit.limit.as_str()];
        if limit.meter != CellKey::METER {
            place = &mut place["meters"][limit.meter.as_str()];
        }
        let is_tiered = |other: &&ConfiguredLimitJson| {
            other.limit == limit.limit && other.meter == limit.meter && other.tier != limit.tier
        };
        if limit.tier != CellKey::TIER || configured.iter().any(|other| is_tiered(&other)) {
            fields.insert("rank".to_owned(), limit.rank.into());
            fields.insert("lend".to_owned(), limit.lends.into());
            if let Some(floor) = &limit.floor {
                fields.insert("floor".to_owned(), floor.as_str().into());
            }
            place = &mut place["tiers"][limit.tier.as_str()];
        }
        for (name, value) in fields {
            place[name] = value;
        }
    }
    let mut file = Map::from_iter([("limits".to_owned(), limits)]);
    let schedules: Vec<Value> =
        configured.iter().flat_map(|limit| &limit.schedules).map(super::schedules::exported).collect();
    if !schedules.is_empty() {
        file.insert("schedules".to_owned(), schedules.into());
    }
    let file = Value::Object(file);
    let text = match language {
        // Strings and tables of strings: nothing that either couldn't write.
        Language::Toml => toml::to_string(&file).unwrap_or_default(),
        Language::Json => format!("{file:#}\n"),
        Language::Yaml => {
            let mut text = String::new();
            yaml(&file, 0, &mut text);
            text
        }
    };
    (text, notes)
}

/// What a file says of one meter; `None` when it has no words for it.
fn fields(limit: &ConfiguredLimitJson, note: &mut dyn FnMut(String)) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    let policy = match &limit.policy {
        PolicyJson::InFlight { drain_ms } => {
            put("concurrency", limit.burst.into());
            put("drain", span_text(*drain_ms).into());
            None
        }
        PolicyJson::TokenBucket => {
            put("burst", limit.burst.into());
            None
        }
        PolicyJson::SlidingWindow { .. } => Some(Policy::SlidingWindow),
        PolicyJson::FixedWindow { calendar: Some(calendar), .. } => {
            put("window", calendar.window.as_str().into());
            put("time_zone", calendar.time_zone.as_str().into());
            Some(Policy::FixedWindow)
        }
        PolicyJson::FixedWindow { calendar: None, .. } => {
            note("left out, a file can't state boundaries".to_owned());
            return None;
        }
    };
    if let Some((name, _)) = POLICIES.iter().find(|(_, other)| Some(*other) == policy) {
        put("policy", (*name).into());
    }
    if !matches!(limit.policy, PolicyJson::InFlight { .. }) {
        let (rate, is_exact) = stated(limit.rate);
        if !is_exact {
            note(format!("rate {} is written as {}", limit.rate_text, rate_text(rate)));
        }
        put("rate", rate_text(rate).into());
    }
    put("lease", span_text(limit.lease_ms).into());
    if limit.initial == InitialJson::Empty {
        put("initial", "empty".into());
    }
    if let Some(queue) = limit.queue {
        put("queue", queue.into());
    }
    let (conduct, usual) = (limit.conduct, ConductJson::default());
    if conduct.reserve_ppb != usual.reserve_ppb {
        put("reserve", percent_text(conduct.reserve_ppb).into());
    }
    if conduct.shadow {
        put("shadow", true.into());
    }
    if conduct.when_lost != usual.when_lost {
        put("when_lost", conduct.when_lost.to_string().into());
    }
    if conduct.paused {
        note("paused, which a file doesn't say: see `tollgate limit resume`".to_owned());
    }
    Some(fields)
}

/// A rate as a whole count, and whether that is exact: one that a ramp was stopped at may need a long period.
fn stated(rate: ExactRateJson) -> (RateJson, bool) {
    let period_ms = rate.period_us / 1_000;
    let common = gcd(rate.micro_tokens, 1_000_000);
    let (count, times) = (rate.micro_tokens / common, 1_000_000 / common);
    let exact = period_ms.checked_mul(times).filter(|ms| check_rate(count, Span::from_millis(*ms)).is_ok());
    match exact {
        Some(period_ms) => (RateJson { count, period_ms }, true),
        None => (RateJson { count: rate.micro_tokens / 1_000_000, period_ms }, false),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// Tables and what stands in them, as JSON writes that: it is YAML, too.
fn yaml(value: &Value, depth: usize, text: &mut String) {
    let Value::Object(entries) = value else { return };
    for (name, value) in entries {
        let (indent, name) = ("  ".repeat(depth), Value::from(name.as_str()));
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push_str(&format!("{indent}{name}:\n"));
                yaml(value, depth + 1, text);
            }
            value => text.push_str(&format!("{indent}{name}: {value}\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::decode;
    use super::super::tree::read;
    use super::*;
    use tollgate_core::units::LedgerTime;
    use tollgate_workflows::config::book::Book;
    use tollgate_workflows::wire::config::ApplyJson;

    const NOW: LedgerTime = LedgerTime(1_796_043_897_000_000);

    fn applied(book: &mut Book, text: &str) -> Vec<String> {
        let file = decode(&read(Language::Toml, text).unwrap(), NOW);
        assert!(file.problems.is_empty(), "{:?}", file.problems);
        let set = file.limits.into_iter().map(|stated| stated.limit).collect();
        book.apply(NOW, &ApplyJson { set, ..ApplyJson::default() }).unwrap().changes
    }

    #[test]
    fn what_is_exported_changes_nothing_when_it_is_applied() {
        let text = "
            [limits.\"openai/gpt 4o\"]
            rate = \"1000/min\"
            burst = 50
            concurrency = 20
            drain = \"5s\"
            meters.tokens.rate = \"100000/90s\"
            [limits.\"ключ \\\\ \\\"x\\\"\"]
            rate = \"7/day\"
            policy = \"sliding-window\"
            [limits.closed]
            rate = 0
            queue = 5
            reserve = \"12.5%\"
            shadow = true
            when_lost = \"hold:0.5%\"
            [limits.tiered.tiers.z]
            rate = \"6/s\"
            [limits.tiered.tiers.a]
            rate = \"4/s\"
            floor = \"1/s\"
            lend = true
        ";
        let mut book = Book::new(NOW);
        assert_eq!(applied(&mut book, text).len(), 7);
        let configured: Vec<_> =
            book.cells.values().map(|cell| ConfiguredLimitJson::of(&book, cell)).collect();
        for language in [Language::Toml, Language::Yaml, Language::Json] {
            let (text, notes) = export(&configured, language);
            assert!(notes.is_empty(), "{notes:?}");
            let file = decode(&read(language, &text).unwrap(), NOW);
            assert!(file.problems.is_empty(), "{language:?} {:?}\n{text}", file.problems);
            let set = file.limits.into_iter().map(|stated| stated.limit).collect();
            let again = book.apply(NOW, &ApplyJson { set, ..ApplyJson::default() }).unwrap();
            assert_eq!(again.changes, Vec::<String>::new(), "{language:?}\n{text}");
        }
    }

    #[test]
    fn a_rate_between_whole_ones_is_exact_or_said_not_to_be() {
        let rate = |micro_tokens, period_ms: u64| {
            stated(ExactRateJson { micro_tokens, period_us: period_ms * 1_000 })
        };
        assert_eq!(rate(50_000_000, 1_000), (RateJson { count: 50, period_ms: 1_000 }, true));
        assert_eq!(rate(1_500_000, 1_000), (RateJson { count: 3, period_ms: 2_000 }, true));
        assert_eq!(rate(0, 1_000), (RateJson { count: 0, period_ms: 1_000 }, true));
        assert_eq!(rate(7_300_001, 86_400_000), (RateJson { count: 7, period_ms: 86_400_000 }, false));
    }
}
