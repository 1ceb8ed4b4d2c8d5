//! Rates, spans and times as people write them.

use crate::wire::config::WindowJson;
use tollgate_core::curve::Rate;
use tollgate_core::limit::WhenLost;
use tollgate_core::policy::Policy;
use tollgate_core::units::{LedgerTime, Share, Span};

const MICRO: u64 = 1_000_000;
const NAMED: [(Span, &str); 4] = [
    (Span::from_secs(1), "s"),
    (Span::from_secs(60), "min"),
    (Span::from_secs(3_600), "h"),
    (Span::from_secs(86_400), "day"),
];

/// `50/s`, `600/min`, `100/h`, `5/day`, else `7 per 250 ms`. Rounded down to thousandths, as far as that is not zero.
pub(super) fn rate(rate: Rate) -> String {
    let count = decimal(rate.micro_tokens);
    match NAMED.iter().find(|(period, _)| *period == rate.period) {
        Some((_, name)) => format!("{count}/{name}"),
        None => format!("{count} per {}", span(rate.period)),
    }
}

/// Millionths as a decimal number.
fn decimal(micro: u64) -> String {
    let shown = if micro >= 1_000 { micro - micro % 1_000 } else { micro };
    let (whole, rest) = (shown / MICRO, shown % MICRO);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = format!("{rest:06}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

/// `15 s`, `250 ms`, `7 us`: the longest unit that is exact.
pub(crate) fn span(span: Span) -> String {
    match span.0 {
        us if us % 1_000_000 == 0 => format!("{} s", us / 1_000_000),
        us if us % 1_000 == 0 => format!("{} ms", us / 1_000),
        us => format!("{us} us"),
    }
}

/// A part as `10%` or `12.5%`.
pub(crate) fn percent(part: Share) -> String {
    const WHOLE: u32 = 10_000_000;
    let (whole, rest) = (part.ppb() / WHOLE, part.ppb() % WHOLE);
    let digits = format!("{whole}.{rest:07}");
    format!("{}%", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// What becomes of work that has lost the coordinator, as `tollgate limit set` takes it.
pub(crate) fn when_lost(when_lost: WhenLost) -> String {
    match when_lost {
        WhenLost::Closed => "closed".to_owned(),
        WhenLost::Hold(part) => format!("hold:{}", percent(part)),
        WhenLost::Open => "open".to_owned(),
    }
}

/// What a policy is called, with its figures.
pub(super) fn policy(policy: &Policy) -> String {
    match policy {
        Policy::TokenBucket => "token bucket".to_owned(),
        Policy::SlidingWindow { window } => format!("sliding window of {}", span(*window)),
        Policy::FixedWindow { boundaries, calendar: None, .. } => {
            format!("fixed window, {} boundaries known", boundaries.len())
        }
        Policy::FixedWindow { boundaries, calendar: Some(calendar), .. } => {
            let (unit, zone) = (WindowJson::of(calendar.unit).as_str(), &calendar.time_zone);
            let last = boundaries.last().map(|last| time(*last)).unwrap_or_default();
            format!("fixed window of a {unit} in {zone}, by time zones {}, up to {last}", calendar.tz_version)
        }
        Policy::InFlight { drain } => format!("in flight, drain {}", span(*drain)),
    }
}

/// `over 15 s`, or `at once`.
pub(super) fn over(ramp: Span) -> String {
    if ramp == Span::ZERO { "at once".to_owned() } else { format!("over {}", span(ramp)) }
}

/// Thousandths as a decimal number.
pub(super) fn milli(value: u64) -> String {
    decimal(value.saturating_mul(1_000))
}

/// `2026-11-30 13:04:57Z`.
pub(super) fn time(time: LedgerTime) -> String {
    let secs = time.0 / MICRO;
    let (days, second) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// Year, month and day of a number of days since 1970-01-01. Years are counted from March, so that the day that comes
/// and goes is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    // Days from 0000-03-01 to 1970-01-01, and the lengths of 400, 100, 4 and 1 years.
    let mut rest = days + 719_468;
    let era = rest / 146_097;
    rest %= 146_097;
    let year_of_era = (rest - rest / 1_460 + rest / 36_524 - rest / 146_096) / 365;
    let day_of_year = rest - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March, in a pattern of 153 days in five months.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_printed_as_people_write_them() {
        for (value, text) in [
            (Rate::per_second(50), "50/s"),
            (Rate::new(600, Span::from_secs(60)), "600/min"),
            (Rate::new(100, Span::from_secs(3_600)), "100/h"),
            (Rate::new(5, Span::from_secs(86_400)), "5/day"),
            (Rate::new(7, Span::from_millis(250)), "7 per 250 ms"),
            (Rate::new(3, Span::from_secs(20)), "3 per 20 s"),
            (Rate { micro_tokens: 73_333_333, period: Span::from_secs(1) }, "73.333/s"),
            (Rate { micro_tokens: 7, period: Span::from_secs(1) }, "0.000007/s"),
            (Rate::ZERO, "0/s"),
        ] {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn times_are_dates_in_leap_years_too() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_199, "2024-02-29 23:59:59Z"),
            (1_709_251_200, "2024-03-01 00:00:00Z"),
            (1_796_043_897, "2026-11-30 13:04:57Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(LedgerTime(secs * MICRO)), text);
        }
    }
}
