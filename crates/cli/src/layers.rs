//! Temporary changes and schedules as people type them.

use crate::args::Meter;
use crate::quantity;
use tollgate_core::limit::{CellKey, check_label};
use tollgate_core::units::Span;
use tollgate_workflows::config::book::overrides::{OVERRIDE_MAX, OVERRIDE_MIN, TIMES_MILLI_MAX};
use tollgate_workflows::config::view::ConfiguredLimitJson;
use tollgate_workflows::wire::layers::{DayJson, ValueJson, minutes};

/// Reads what a limit is changed to for a time: a rate, or a multiple of what is set.
///
/// # Errors
/// What is allowed.
pub fn value(text: &str) -> Result<ValueJson, String> {
    let factor = text.strip_prefix('x').or_else(|| text.strip_suffix('x'));
    let Some(factor) = factor else {
        let rate = quantity::rate(text);
        let rate = rate.map_err(|why| format!("{why}; or a multiple of what is set, such as 2x or 0.5x"))?;
        return Ok(ValueJson { rate: Some(rate), ..ValueJson::default() });
    };
    let milli = milli(factor.trim()).filter(|milli| *milli <= TIMES_MILLI_MAX);
    let milli =
        milli.ok_or("allowed: a multiple from 0x to 1000x with up to three decimals, such as 2x or 0.5x")?;
    Ok(ValueJson { times_milli: Some(milli), ..ValueJson::default() })
}

/// Thousandths of a decimal number.
fn milli(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| {
        let plain = !text.is_empty() && text.len() <= 9 && text.bytes().all(|c| c.is_ascii_digit());
        plain.then(|| text.parse::<u64>().ok()).flatten()
    };
    if part.len() > 3 {
        return None;
    }
    digits(whole)?.checked_mul(1_000)?.checked_add(digits(&format!("{part:0<3}"))?)
}

/// The value in the form in which [`value`] reads it.
pub fn value_text(value: &ValueJson) -> String {
    let times = value.times_milli.map(|milli| {
        let part = format!("{:03}", milli % 1_000);
        let part = part.trim_end_matches('0');
        if part.is_empty() { format!("x{}", milli / 1_000) } else { format!("x{}.{part}", milli / 1_000) }
    });
    let burst = value.burst.map(|burst| format!("burst {burst}"));
    let parts = [times, value.rate.map(quantity::rate_text), burst];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Reads how far ahead to look.
///
/// # Errors
/// What is allowed.
pub fn ahead(text: &str) -> Result<Span, String> {
    let span = quantity::span(text)?;
    if span > OVERRIDE_MAX {
        return Err("allowed: up to 31d".to_owned());
    }
    Ok(span)
}

/// Reads how long a temporary change lasts.
///
/// # Errors
/// What is allowed.
pub fn lasting(text: &str) -> Result<Span, String> {
    let span = quantity::span(text)?;
    if !(OVERRIDE_MIN..=OVERRIDE_MAX).contains(&span) {
        return Err("allowed: 1s to 31d".to_owned());
    }
    Ok(span)
}

/// Reads two times of day: `00:00-06:00`.
///
/// # Errors
/// What is allowed.
pub fn between(text: &str) -> Result<(String, String), String> {
    let allowed = || "allowed: two times of day, such as 00:00-06:00 or 22:00-06:00".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(allowed)?;
    let (from, to) = (from.trim(), to.trim());
    let from_min = minutes("from", from).map_err(|_| allowed())?;
    minutes("to", to).map_err(|_| allowed())?;
    if from_min == 24 * 60 {
        return Err(allowed());
    }
    Ok((from.to_owned(), to.to_owned()))
}

/// Reads days of the week: `mon-fri`, `sat`, `weekends`.
///
/// # Errors
/// What is allowed.
pub fn days(text: &str) -> Result<Days, String> {
    let allowed = || {
        "allowed: mon, tue, wed, thu, fri, sat, sun, from one to another as mon-fri, weekdays, weekends"
            .to_owned()
    };
    let text = text.trim().to_ascii_lowercase();
    let text = match text.as_str() {
        "weekdays" => "mon-fri",
        "weekends" => "sat-sun",
        other => other,
    };
    let place =
        |name: &str| DayJson::ALL.iter().position(|day| day.as_str() == name.trim()).ok_or_else(allowed);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (place(first)?, place(last)?);
    // From friday to monday goes over the weekend.
    let count = (last + 7 - first) % 7 + 1;
    Ok(Days(DayJson::ALL.iter().cycle().skip(first).take(count).copied().collect()))
}

/// Some days of the week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Days(pub Vec<DayJson>);

/// Which meters of a limit are meant: all tiers of the meter, unless one is named.
///
/// # Errors
/// That there is none.
pub fn cells(
    configured: &[ConfiguredLimitJson],
    limit: &str,
    wanted: &Meter,
) -> Result<Vec<CellKey>, String> {
    let named = wanted.meter.as_deref();
    let of_limit = || configured.iter().filter(|one| one.limit == limit);
    let meters: std::collections::BTreeSet<&str> = of_limit().map(|one| one.meter.as_str()).collect();
    let meter = match (named, meters.len()) {
        (Some(meter), _) => meter,
        // What has one meter needs no name for it.
        (None, 1) => meters.first().copied().unwrap_or(CellKey::METER),
        (None, _) => CellKey::METER,
    };
    let key = |one: &ConfiguredLimitJson| CellKey {
        limit: one.limit.clone(),
        meter: one.meter.clone(),
        tier: one.tier.clone(),
    };
    let is_tier = |one: &ConfiguredLimitJson| wanted.tier.as_ref().is_none_or(|tier| one.tier == *tier);
    let cells: Vec<CellKey> = of_limit().filter(|one| one.meter == meter && is_tier(one)).map(key).collect();
    if cells.is_empty() {
        let tier = wanted.tier.as_ref().map(|tier| format!(", tier {tier}")).unwrap_or_default();
        return Err(format!("no limit {limit:?} with meter {meter}{tier}: see `tollgate limit list`"));
    }
    Ok(cells)
}

/// The name of a schedule.
///
/// # Errors
/// What is allowed.
pub fn name(text: &str) -> Result<String, String> {
    check_label("name", text).map_err(|error| format!("allowed: {}", error.allowed))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::wire::config::RateJson;

    #[test]
    fn a_value_is_a_rate_or_a_multiple() {
        let times = |milli| Ok(ValueJson { times_milli: Some(milli), ..ValueJson::default() });
        for (text, milli) in
            [("2x", 2_000), ("x2", 2_000), ("0.5x", 500), ("x1.125", 1_125), ("0x", 0), ("1000x", 1_000_000)]
        {
            assert_eq!(value(text), times(milli), "{text}");
            assert_eq!(value(&value_text(&value(text).unwrap())), times(milli), "{text}");
        }
        let rate = Some(RateJson { count: 2_000, period_ms: 60_000 });
        assert_eq!(value("2000/min"), Ok(ValueJson { rate, ..ValueJson::default() }));
        for text in
            ["", "x", "-1x", "1001x", "2.0001x", "2xx", "twice", "1e3x", ".5x", "99999999999999999999x"]
        {
            assert!(value(text).is_err(), "{text}");
        }
    }

    #[test]
    fn days_and_times_of_day_are_read_in_the_forms_of_the_help_text() {
        use DayJson::{Fri, Mon, Sat, Sun};
        assert_eq!(days("sat"), Ok(Days(vec![Sat])));
        assert_eq!(days("Fri-Mon"), Ok(Days(vec![Fri, Sat, Sun, Mon])));
        assert_eq!(days("weekends"), Ok(Days(vec![Sat, Sun])));
        assert_eq!(days("mon-sun").map(|days| days.0.len()), Ok(7));
        assert!(days("funday").is_err() && days("").is_err() && days("mon-").is_err());
        assert_eq!(between("22:00-06:00"), Ok(("22:00".to_owned(), "06:00".to_owned())));
        assert!(between("24:00-06:00").is_err() && between("6-7").is_err() && between("06:00").is_err());
    }
}
