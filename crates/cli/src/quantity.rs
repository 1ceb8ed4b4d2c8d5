//! Rates, durations and whole numbers as people type them.

use crate::args::Tier;
use tollgate_core::curve::BURST_MAX;
use tollgate_core::limit::{QUEUE_MAX, check_label, check_lease, check_name, check_queue, check_ramp};
use tollgate_core::units::Span;
use tollgate_workflows::wire::conduct::{WhenLostJson, reserve_of};
use tollgate_workflows::wire::config::RateJson;

/// What a rate may look like.
const RATE_FORMS: &str = "COUNT or COUNT/PERIOD, such as 50, 50/s, 600/min, 100/h, 5/day, 10/250ms; \
     a count from 0 to 1000000000000, a period from 1ms to 366d";
/// What a tier may look like.
const TIER_FORMS: &str =
    "NAME[=RATE][:burst=N][:floor=RATE][:lend][:no-lend][:rank=N], such as high=600/min:burst=20";
/// What a duration may look like.
const SPAN_FORMS: &str = "a number with a unit (ms, s, m, h, d), such as 500ms, 8s, 2m, 1h30m";

/// What becomes of work that has lost the coordinator may look like.
const WHEN_LOST_FORMS: &str = "closed, hold:PERCENT with more than 0% and up to 100%, open";

/// Units of time by their names, in milliseconds. Months and years have no fixed length.
const UNITS: &[(&[&str], u64)] = &[
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];
/// Days have names of their own where they are many.
const WEEK: (&str, u64) = ("week", 7 * 86_400_000);

/// Reads a rate: a count, and after a slash the period, which is a second if missing.
///
/// # Errors
/// What is allowed.
pub fn rate(text: &str) -> Result<RateJson, String> {
    let allowed = || format!("allowed: {RATE_FORMS}");
    let (count, period) = text.split_once('/').unwrap_or((text, "s"));
    let count = digits(count.trim()).ok_or_else(allowed)?;
    let period = period.trim();
    let period_ms = match unit_ms(period) {
        Some(unit) => unit,
        None => millis(period).ok_or_else(allowed)?,
    };
    let rate = RateJson { count, period_ms };
    rate.check().map_err(|_| allowed())?;
    Ok(rate)
}

/// Reads a part in percent, in parts of 10^9.
fn part(text: &str) -> Option<u32> {
    let ppb = times(text.trim().strip_suffix('%')?.trim_end(), 10_000_000)?;
    u32::try_from(ppb).ok().filter(|ppb| *ppb <= 1_000_000_000)
}

/// Reads the part of a burst that is kept for newcomers, in parts of 10^9.
///
/// # Errors
/// What is allowed.
pub fn reserve(text: &str) -> Result<u32, String> {
    let read = part(text).filter(|ppb| reserve_of(*ppb).is_ok());
    read.ok_or_else(|| "allowed: 0% to 50%".to_owned())
}

/// Reads what becomes of work that has lost the coordinator.
///
/// # Errors
/// What is allowed.
pub fn when_lost(text: &str) -> Result<WhenLostJson, String> {
    let allowed = || format!("allowed: {WHEN_LOST_FORMS}");
    match text.split_once(':') {
        None if text == "closed" => Ok(WhenLostJson::Closed),
        None if text == "open" => Ok(WhenLostJson::Open),
        Some(("hold", part)) => {
            let part = self::part(part).filter(|ppb| *ppb > 0);
            part.map(|part_ppb| WhenLostJson::Hold { part_ppb }).ok_or_else(allowed)
        }
        _ => Err(allowed()),
    }
}

/// Reads a duration.
///
/// # Errors
/// What is allowed.
pub fn span(text: &str) -> Result<Span, String> {
    // Microseconds are counted from here on.
    let in_range = |ms: &u64| ms.checked_mul(1_000).is_some();
    millis(text).filter(in_range).map(Span::from_millis).ok_or_else(|| format!("allowed: {SPAN_FORMS}"))
}

/// Reads the duration of a lease.
///
/// # Errors
/// What is allowed.
pub fn lease(text: &str) -> Result<Span, String> {
    let lease = span(text)?;
    check_lease(lease).map_err(|error| format!("allowed: {}", error.allowed))?;
    Ok(lease)
}

/// Reads the duration of a ramp; `0` needs no unit.
///
/// # Errors
/// What is allowed.
pub fn ramp(text: &str) -> Result<Span, String> {
    let ramp = if text == "0" { Span::ZERO } else { span(text)? };
    check_ramp(ramp).map_err(|error| format!("allowed: {}", error.allowed))?;
    Ok(ramp)
}

/// Reads how long a command may wait: 100 ms to 10 minutes.
///
/// # Errors
/// What is allowed.
pub fn timeout(text: &str) -> Result<std::time::Duration, String> {
    let ms = span(text)?.millis();
    if !(100..=600_000).contains(&ms) {
        return Err("allowed: 100ms to 10m".to_owned());
    }
    Ok(std::time::Duration::from_millis(ms))
}

/// Reads how often something is asked for: 200 ms to a minute.
///
/// # Errors
/// What is allowed.
pub fn every(text: &str) -> Result<std::time::Duration, String> {
    let ms = span(text)?.millis();
    if !(200..=60_000).contains(&ms) {
        return Err("allowed: 200ms to 1m".to_owned());
    }
    Ok(std::time::Duration::from_millis(ms))
}

/// Reads a part of a whole, in millionths: `80%`, `0.5%`.
///
/// # Errors
/// What is allowed.
pub fn percent(text: &str) -> Result<u32, String> {
    let allowed = || "allowed: 0% to 100%, such as 80% or 0.5%".to_owned();
    let ppb = part(text).filter(|ppb| ppb % 1_000 == 0).ok_or_else(allowed)?;
    Ok(ppb / 1_000)
}

/// Reads where to listen.
///
/// # Errors
/// What is allowed.
pub fn socket(text: &str) -> Result<std::net::SocketAddr, String> {
    let allowed = "allowed: an IP address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::]:9464";
    text.parse().map_err(|_| allowed.to_owned())
}

/// Reads a burst.
///
/// # Errors
/// What is allowed.
pub fn burst(text: &str) -> Result<u64, String> {
    digits(text)
        .filter(|burst| *burst <= BURST_MAX)
        .ok_or_else(|| format!("allowed: 0 to {BURST_MAX} tokens"))
}

/// Reads how many may wait.
///
/// # Errors
/// What is allowed.
pub fn queue(text: &str) -> Result<u64, String> {
    digits(text)
        .filter(|queue| check_queue(*queue).is_ok())
        .ok_or_else(|| format!("allowed: 0 to {QUEUE_MAX}"))
}

/// Reads what is said of one tier, in the form of the help text.
///
/// # Errors
/// The part that is wrong, and what is allowed.
pub fn tier(text: &str) -> Result<Tier, String> {
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    let (name, given) = first.split_once('=').map_or((first, None), |(name, given)| (name, Some(given)));
    let named = |part: &str, problem: String| format!("{part}: {problem}");
    let mut tier = Tier { name: label(name).map_err(|error| named("name", error))?, ..Tier::default() };
    tier.rate = given.map(|given| rate(given).map_err(|error| named(name, error))).transpose()?;
    let mut seen = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "burst" => tier.burst = Some(burst(value).map_err(|error| named(key, error))?),
            "floor" => tier.floor = Some(rate(value).map_err(|error| named(key, error))?),
            "lend" if value.is_empty() => tier.lend = Some(true),
            "no-lend" if value.is_empty() => tier.lend = Some(false),
            "rank" => {
                let rank = digits(value).and_then(|rank| u32::try_from(rank).ok());
                tier.rank = Some(rank.ok_or_else(|| named(key, "allowed: 0 to 4294967295".to_owned()))?);
            }
            _ => return Err(format!("{part:?} is not known, allowed: {TIER_FORMS}")),
        }
        let what = key.trim_start_matches("no-");
        if seen.contains(&what) {
            return Err(format!("{what} is given twice, allowed: {TIER_FORMS}"));
        }
        seen.push(what);
    }
    Ok(tier)
}

/// Takes the name of a limit or group as it is.
///
/// # Errors
/// What is allowed.
pub fn name(text: &str) -> Result<String, String> {
    check_name("name", text).map_err(|error| format!("allowed: {}", error.allowed))?;
    Ok(text.to_owned())
}

/// The name of a meter or tier.
///
/// # Errors
/// What is allowed.
pub fn label(text: &str) -> Result<String, String> {
    check_label("name", text).map_err(|error| format!("allowed: {}", error.allowed))?;
    Ok(text.to_owned())
}

/// A rate in the form in which [`rate`] reads it.
pub fn rate_text(rate: RateJson) -> String {
    format!("{}/{}", rate.count, period_text(rate.period_ms))
}

/// A duration in the form in which [`span`] reads it.
pub fn span_text(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    let mut rest = ms;
    for (names, unit) in UNITS.iter().rev() {
        let count = rest / unit;
        rest %= unit;
        if count > 0 {
            text.push_str(&format!("{count}{}", names.first().unwrap_or(&"")));
        }
    }
    text
}

/// A period: a bare unit where there is one.
fn period_text(ms: u64) -> String {
    match ms {
        60_000 => "min".to_owned(),
        86_400_000 => "day".to_owned(),
        _ => {
            let text = span_text(ms);
            match text.strip_prefix('1') {
                Some(unit) if unit_ms(unit).is_some() => unit.to_owned(),
                _ => text,
            }
        }
    }
}

/// Only digits: no sign, no blanks, no separators.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn unit_ms(name: &str) -> Option<u64> {
    if name == WEEK.0 {
        return Some(WEEK.1);
    }
    UNITS.iter().find(|(names, _)| names.contains(&name)).map(|(_, ms)| *ms)
}

/// Numbers with units, one after the other: `1h30m`. Decimals are taken where they come out as whole milliseconds.
fn millis(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum = 0_u64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number_end);
        let after = after.trim_start();
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        sum = sum.checked_add(times(number, unit_ms(unit)?)?)?;
        rest = after.trim_start();
    }
    Some(sum)
}

/// A decimal number times `unit`, if that is whole.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // More places than any unit has milliseconds in can't come out whole.
    if fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = digits(fraction)?.checked_mul(unit)?;
    if part % scale != 0 {
        return None;
    }
    digits(whole)?.checked_mul(unit)?.checked_add(part / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_in_every_form_of_the_help_text() {
        for (text, count, period_ms) in [
            ("50", 50, 1_000),
            ("50/s", 50, 1_000),
            ("600/min", 600, 60_000),
            ("600/m", 600, 60_000),
            ("100/h", 100, 3_600_000),
            ("5/day", 5, 86_400_000),
            ("5/d", 5, 86_400_000),
            ("10/250ms", 10, 250),
            ("10 / 15 min", 10, 900_000),
            ("1/1.5s", 1, 1_500),
            ("0", 0, 1_000),
            ("1000000000000", 1_000_000_000_000, 1_000),
        ] {
            assert_eq!(rate(text), Ok(RateJson { count, period_ms }), "{text}");
        }
    }

    #[test]
    fn rates_out_of_range_or_form_are_refused_with_what_is_allowed() {
        let bad = [
            "",
            "-1",
            "abc",
            "50/",
            "/s",
            "50/0s",
            "50/0",
            "50/s/s",
            "1.5/s",
            "1e3",
            "50/fortnight",
            "50/367d",
            "99999999999999999999",
            "1000000000001",
            "50/99999999999999999999d",
            "+5",
            "5 0",
            "１/s",
            "50/-1s",
        ];
        for text in bad {
            let error = rate(text).expect_err(text);
            assert!(error.starts_with("allowed: COUNT or COUNT/PERIOD, such as 50, 50/s"), "{text}: {error}");
        }
    }

    #[test]
    fn parts_are_read_exactly_and_within_their_range() {
        assert_eq!(
            (reserve("10%"), reserve("12.5 %"), reserve("0%")),
            (Ok(100_000_000), Ok(125_000_000), Ok(0))
        );
        for text in ["", "10", "-1%", "51%", "0.1", "1e1%", "0.00000001%"] {
            assert_eq!(reserve(text), Err("allowed: 0% to 50%".to_owned()), "{text}");
        }
        assert_eq!(when_lost("hold:50%"), Ok(WhenLostJson::Hold { part_ppb: 500_000_000 }));
        assert_eq!(
            (when_lost("closed"), when_lost("open")),
            (Ok(WhenLostJson::Closed), Ok(WhenLostJson::Open))
        );
        for text in ["", "hold", "hold:", "hold:0%", "hold:101%", "open:1%", "Closed"] {
            assert!(when_lost(text).is_err(), "{text}");
        }
        assert_eq!(when_lost("hold:12.5%").unwrap().to_string(), "hold:12.5%");
    }

    #[test]
    fn durations_are_read_exactly() {
        for (text, ms) in [
            ("8s", 8_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("0.25s", 250),
        ] {
            assert_eq!(span(text), Ok(Span::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "8",
            "s",
            "-8s",
            "8 parsecs",
            "0.0001s",
            "1..5s",
            ".5s",
            "99999999999999999999s",
            "300000000d",
        ] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn leases_ramps_bursts_and_timeouts_have_ranges() {
        assert_eq!(lease("1s"), Err("allowed: 2 s to 120 s".to_owned()));
        assert_eq!(lease("8s"), Ok(Span::from_secs(8)));
        assert_eq!(ramp("25h"), Err("allowed: 0 to 24 h".to_owned()));
        assert_eq!(ramp("0"), Ok(Span::ZERO));
        assert_eq!(burst("99999999999999999999"), Err("allowed: 0 to 1000000000000000 tokens".to_owned()));
        assert!(burst("-1").is_err());
        assert_eq!(timeout("0s"), Err("allowed: 100ms to 10m".to_owned()));
    }

    #[test]
    fn tiers_are_read_part_by_part() {
        let per_minute = |count| Some(RateJson { count, period_ms: 60_000 });
        let high = Tier { rate: per_minute(600), burst: Some(20), ..named_tier("high") };
        assert_eq!(tier("high=600/min:burst=20"), Ok(high));
        let low = Tier { floor: per_minute(100), lend: Some(true), rank: Some(3), ..named_tier("low") };
        assert_eq!(tier("low:floor=100/min:lend:rank=3"), Ok(low));
        for (text, problem) in [
            ("", "name: allowed"),
            ("High=1/s", "name: allowed"),
            ("a=x", "a: allowed: COUNT"),
            ("a=1/s:burst=-1", "burst: allowed"),
            ("a=1/s:floor=", "floor: allowed: COUNT"),
            ("a:lend:no-lend", "lend is given twice"),
            ("a:rank=4294967296", "rank: allowed"),
            ("a:lend=yes", "\"lend=yes\" is not known"),
            ("a=1/s:", "\"\" is not known"),
        ] {
            let error = tier(text).expect_err(text);
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }

    fn named_tier(name: &str) -> Tier {
        Tier { name: name.to_owned(), ..Tier::default() }
    }

    #[test]
    fn what_is_written_is_read_back_as_the_same() {
        for text in ["50/s", "600/min", "100/h", "5/day", "10/250ms", "7/1m30s", "1/15m", "3/2d"] {
            assert_eq!(rate_text(rate(text).unwrap()), text);
        }
        for ms in [0, 1, 999, 1_000, 61_001, 86_400_000, 90_061_001] {
            assert_eq!(span(&span_text(ms)).map(Span::millis), Ok(ms));
        }
    }
}
