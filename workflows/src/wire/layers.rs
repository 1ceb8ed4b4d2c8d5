//! What changes a limit for a time: overrides, and schedules that come back.

use super::Unreadable;
use super::config::RateJson;
use serde::{Deserialize, Serialize};
use tollgate_core::limit::CellKey;

fn meter() -> String {
    CellKey::METER.to_owned()
}
fn tier() -> String {
    CellKey::TIER.to_owned()
}
fn utc() -> String {
    "UTC".to_owned()
}
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a limit is changed to for a time: a multiple of what is set, or a rate, a burst, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueJson {
    /// Thousandths of what is set, of the rate and of the burst: 2000 is twice as much, 0 closes the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_milli: Option<u64>,
    /// Tokens per time; if missing, what is set stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateJson>,
    /// The most tokens used at once; if missing, what is set stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

/// A temporary change, in update `apply`: it falls back by itself, with the ramp that it came with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideJson {
    /// The limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// What it has meanwhile.
    pub value: ValueJson,
    /// For how long, counted from when it is taken.
    pub for_ms: u64,
}

/// An override, as query `config` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverridingJson {
    /// What the limit has meanwhile.
    pub value: ValueJson,
    /// The same as people write it.
    pub value_text: String,
    /// Since when.
    pub since_us: u64,
    /// Until when.
    pub until_us: u64,
    /// How long it takes to fall back.
    pub ramp_ms: u64,
    /// Who.
    pub actor: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DayJson {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl DayJson {
    /// All of them, from Monday on.
    pub const ALL: [DayJson; 7] =
        [DayJson::Mon, DayJson::Tue, DayJson::Wed, DayJson::Thu, DayJson::Fri, DayJson::Sat, DayJson::Sun];

    /// `mon`, `tue` ...
    pub fn as_str(self) -> &'static str {
        match self {
            DayJson::Mon => "mon",
            DayJson::Tue => "tue",
            DayJson::Wed => "wed",
            DayJson::Thu => "thu",
            DayJson::Fri => "fri",
            DayJson::Sat => "sat",
            DayJson::Sun => "sun",
        }
    }
}

/// When a schedule is in force, by the clocks of a time zone.
///
/// A time that clocks skip is the moment when they skip it; a time that comes twice is the first of the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleJson {
    /// From this time of day on: `22:00`.
    pub from: String,
    /// Up to this time of day: `06:00`, `24:00`. On the next day unless it is later than `from`.
    pub to: String,
    /// The days on which it begins; all of them if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<DayJson>,
    /// The IANA name of the time zone; `UTC` if missing.
    #[serde(default = "utc")]
    pub time_zone: String,
}

/// A change that comes back, in update `apply` and query `config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleJson {
    /// The limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// The schedule's name, its own among those of the limit.
    pub name: String,
    /// When it is in force.
    pub rule: RuleJson,
    /// What the limit has then.
    pub value: ValueJson,
    /// How long the change takes, at the beginning and at the end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ramp_ms: u64,
    /// When it begins and ends: the time that is under way, and those to come. If missing, the workflow has them computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows_us: Vec<[u64; 2]>,
    /// The release of the time zone database that they were computed by: `2026f`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tz_version: String,
}

/// Names one schedule of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleNameJson {
    /// The limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// The schedule.
    pub name: String,
}

/// Minutes since midnight of a time of day: `00:00` to `24:00`.
///
/// # Errors
/// [`Unreadable`] with `field`, the value and what is allowed.
pub fn minutes(field: &str, text: &str) -> Result<u16, Unreadable> {
    let two = |part: &str| match part.as_bytes() {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u16::from(*tens - b'0') * 10 + u16::from(*ones - b'0'))
        }
        _ => None,
    };
    let read = || {
        let (hours, minutes) = text.split_once(':')?;
        let (hours, minutes) = (two(hours)?, two(minutes)?);
        let all = hours * 60 + minutes;
        (minutes < 60 && all <= 24 * 60).then_some(all)
    };
    read().ok_or_else(|| {
        let short: String = text.chars().take(40).collect();
        Unreadable::of(field, format!("is {short:?}, allowed: a time of day from 00:00 to 24:00"))
    })
}

/// `06:30`.
pub fn time_of_day(minutes: u16) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

impl OverrideJson {
    /// Which cell it is for.
    pub fn key(&self) -> CellKey {
        CellKey { limit: self.limit.clone(), meter: self.meter.clone(), tier: self.tier.clone() }
    }
}

impl ScheduleJson {
    /// Which cell it is for.
    pub fn key(&self) -> CellKey {
        CellKey { limit: self.limit.clone(), meter: self.meter.clone(), tier: self.tier.clone() }
    }
}

impl ScheduleNameJson {
    /// Which cell it is for.
    pub fn key(&self) -> CellKey {
        CellKey { limit: self.limit.clone(), meter: self.meter.clone(), tier: self.tier.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_read_exactly() {
        for (text, wanted) in [("00:00", 0), ("06:30", 390), ("23:59", 1_439), ("24:00", 1_440)] {
            assert_eq!(minutes("from", text).unwrap(), wanted);
            assert_eq!(time_of_day(wanted), text);
        }
        for text in ["", "6:30", "24:01", "12:60", "12", "-1:00", "12:00:00", "１2:00", &"1".repeat(10_000)]
        {
            let error = minutes("from", text).unwrap_err().to_string();
            assert!(error.starts_with("from: is ") && error.len() < 150, "{error}");
        }
    }
}
