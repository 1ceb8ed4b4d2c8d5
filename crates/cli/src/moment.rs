//! Points in time, absolute and as seen from now.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch, by this machine's clock.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// `2026-11-30 13:04:57Z`.
pub fn absolute(us: u64) -> String {
    let moment = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    moment.map_or_else(|| format!("{us} us"), |moment| moment.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// The time of day of something near: `13:04:57Z`, with the date when it is more than half a day away.
pub fn clock(us: u64, now_us: u64) -> String {
    let text = absolute(us);
    if us.abs_diff(now_us) > 43_200_000_000 {
        return text;
    }
    text.split_once(' ').map_or(text.clone(), |(_, time)| time.to_owned())
}

/// `12s ago`, `in 58s`, `now`.
pub fn relative(us: u64, now_us: u64) -> String {
    let distance = length(us.abs_diff(now_us));
    match us.cmp(&now_us) {
        _ if us.abs_diff(now_us) < 500_000 => "now".to_owned(),
        std::cmp::Ordering::Greater => format!("in {distance}"),
        _ => format!("{distance} ago"),
    }
}

/// What is left until then; `0s` when it is over.
pub fn left(us: u64, now_us: u64) -> String {
    length(us.saturating_sub(now_us))
}

/// A length of time with the two units that matter: `850ms`, `12s`, `3m05s`, `2h10m`, `4d07h`. Rounded down, below ten
/// seconds to tenths.
pub fn length(us: u64) -> String {
    let ms = us / 1_000;
    let secs = ms / 1_000;
    match secs {
        0 if ms > 0 => format!("{ms}ms"),
        0 => "0s".to_owned(),
        1..10 => format!("{secs}.{}s", ms % 1_000 / 100),
        10..60 => format!("{secs}s"),
        60..3_600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3_600..86_400 => format!("{}h{:02}m", secs / 3_600, secs / 60 % 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_796_043_897_000_000;

    #[test]
    fn near_times_show_no_date() {
        assert_eq!(absolute(NOW), "2026-11-30 13:04:57Z");
        assert_eq!(clock(NOW + 1_000_000, NOW), "13:04:58Z");
        assert_eq!(clock(NOW - 86_400_000_000, NOW), "2026-11-29 13:04:57Z");
        assert_eq!(absolute(u64::MAX), "18446744073709551615 us");
    }

    #[test]
    fn distances_keep_the_units_that_matter() {
        for (us, text) in [
            (0, "0s"),
            (999, "0s"),
            (850_000, "850ms"),
            (1_990_000, "1.9s"),
            (59_999_999, "59s"),
            (185_000_000, "3m05s"),
            (7_800_000_000, "2h10m"),
            (370_800_000_000, "4d07h"),
        ] {
            assert_eq!(length(us), text);
        }
        assert_eq!(relative(NOW - 12_000_000, NOW), "12s ago");
        assert_eq!(relative(NOW + 58_000_000, NOW), "in 58s");
        assert_eq!(relative(NOW + 10, NOW), "now");
        assert_eq!(left(NOW - 1, NOW), "0s");
    }
}
