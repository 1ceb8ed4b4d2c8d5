//! Medians and the like.

use std::time::Duration;

/// The middle one, and the spread: half the distance between the quartiles, as a part of the middle.
pub(crate) fn middle(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values.get(values.len() * quarter / 4).copied().unwrap_or(f64::NAN);
    (at(2), (at(3) - at(1)) / 2.0 / at(2))
}

/// Seconds at a percentile. Sorts.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get((times.len() * percent / 100).min(last)).map_or(f64::NAN, Duration::as_secs_f64)
}

/// Three digits that count, so that figures can be read.
pub(crate) fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}
