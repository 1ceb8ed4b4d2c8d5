//! Piecewise linear curves in exact integers, on their own: nothing here is shared with the code that is judged.

/// Values are counted in 10^-12 of a token (or of a token per second).
pub const PICO: i128 = 1_000_000_000_000;

/// A curve that is linear between points, constant before the first and after the last. Two points at one time are a
/// step. Without points it is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polyline {
    points: Vec<(u64, i128)>,
    /// Twice the area up to each point, in value times ticks.
    area: Vec<i128>,
}

impl Polyline {
    /// A curve through `points`, which must be in the order of time; one that runs back is moved to its predecessor's.
    pub fn new(points: Vec<(u64, i128)>) -> Polyline {
        let mut line = Polyline::default();
        for (at, value) in points {
            line.push(at, value);
        }
        line
    }

    /// The same value for ever.
    pub fn constant(value: i128) -> Polyline {
        Polyline::new(vec![(0, value)])
    }

    /// Goes on linearly to `value` at `at`.
    pub fn push(&mut self, at: u64, value: i128) {
        let (last_at, last) = self.points.last().copied().unwrap_or((at, value));
        let at = at.max(last_at);
        let area = self.area.last().copied().unwrap_or(0);
        let more = (last.saturating_add(value)).saturating_mul(i128::from(at - last_at));
        self.points.push((at, value));
        self.area.push(area.saturating_add(more));
    }

    /// Stays as it is up to `at` and goes on with `value`.
    pub fn step(&mut self, at: u64, value: i128) {
        if let Some((_, last)) = self.points.last().copied() {
            self.push(at, last);
        }
        self.push(at, value);
    }

    /// The times at which it bends or steps.
    pub fn breaks(&self) -> impl Iterator<Item = u64> + '_ {
        self.points.iter().map(|(at, _)| *at)
    }

    /// The value just before `t`, rounded up.
    pub fn before(&self, t: u64) -> i128 {
        let next = self.points.partition_point(|(at, _)| *at < t);
        self.between(next, t)
    }

    /// The value just after `t`, rounded up.
    pub fn after(&self, t: u64) -> i128 {
        let next = self.points.partition_point(|(at, _)| *at <= t);
        self.between(next, t)
    }

    fn between(&self, next: usize, t: u64) -> i128 {
        let right = self.points.get(next);
        let left = next.checked_sub(1).and_then(|index| self.points.get(index));
        match (left, right) {
            (Some((from, low)), Some((to, high))) => low + mul_div_ceil(high - low, t - from, to - from),
            (Some((_, value)), None) | (None, Some((_, value))) => *value,
            (None, None) => 0,
        }
    }

    /// Twice the area from the first point to `t`, in value times ticks, rounded up; negative before the first point.
    pub fn double_area(&self, t: u64) -> i128 {
        let next = self.points.partition_point(|(at, _)| *at <= t);
        let Some(index) = next.checked_sub(1) else {
            let Some((first, value)) = self.points.first() else { return 0 };
            return -value.saturating_mul(2 * i128::from(first - t));
        };
        let (from, low) = self.points[index];
        let inside = t - from;
        let flat = low.saturating_mul(2 * i128::from(inside));
        let slope = match self.points.get(next) {
            Some((to, high)) => {
                mul_div_ceil((high - low).saturating_mul(i128::from(inside)), inside, to - from)
            }
            None => 0,
        };
        self.area[index].saturating_add(flat).saturating_add(slope)
    }
}

/// `value * part / whole`, rounded up, without overflow on the way as long as the result fits.
fn mul_div_ceil(value: i128, part: u64, whole: u64) -> i128 {
    let (part, whole) = (i128::from(part), i128::from(whole.max(1)));
    let (quotient, rest) = (value.div_euclid(whole), value.rem_euclid(whole));
    let tail = rest * part;
    let up = i128::from(tail.rem_euclid(whole) != 0);
    quotient.saturating_mul(part).saturating_add(tail.div_euclid(whole) + up)
}

/// A curve that counts from `from` on, up to `until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its first tick.
    pub from: u64,
    /// Its end; `None` for ever.
    pub until: Option<u64>,
    /// The curve.
    pub line: Polyline,
}

/// The largest of all curves that count at a time. Where two of them cross between two ticks, the result is larger than
/// both by less than what one tick changes.
pub fn largest(lives: &[Live]) -> Polyline {
    let end = |live: &Live| live.until.unwrap_or(u64::MAX);
    let mut times: Vec<u64> = lives.iter().flat_map(|live| live.line.breaks()).collect();
    times.extend(lives.iter().flat_map(|live| [Some(live.from), live.until]).flatten());
    times.sort_unstable();
    times.dedup();
    let mut all = times.clone();
    for pair in times.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let active: Vec<&Live> = lives.iter().filter(|live| live.from <= from && to <= end(live)).collect();
        for (index, one) in active.iter().enumerate() {
            for other in &active[index + 1..] {
                let first = one.line.after(from) - other.line.after(from);
                let last = one.line.before(to) - other.line.before(to);
                if first.signum() * last.signum() < 0 {
                    let ticks = mul_div_ceil(first.abs(), to - from, 1) / (first.abs() + last.abs());
                    let crossing = from.saturating_add(u64::try_from(ticks).unwrap_or(0));
                    all.extend([crossing, crossing.saturating_add(1).min(to)]);
                }
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    let mut line = Polyline::default();
    for t in all {
        let before =
            lives.iter().filter(|live| live.from < t && t <= end(live)).map(|live| live.line.before(t));
        let after =
            lives.iter().filter(|live| live.from <= t && t < end(live)).map(|live| live.line.after(t));
        let (before, after) = (before.max(), after.max());
        if let Some(value) = before.or(after) {
            line.push(t, value);
        }
        if let Some(value) = after.or(before) {
            line.push(t, value);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_has_the_area_under_its_line() {
        let mut line = Polyline::constant(0);
        line.push(10, 0);
        line.push(20, 100);
        assert_eq!(line.double_area(20), 1_000);
        assert_eq!(line.double_area(15), 250);
        assert_eq!(line.double_area(30), 1_000 + 2_000);
        line.step(40, 7);
        assert_eq!((line.before(40), line.after(40), line.before(50)), (100, 7, 7));
    }

    #[test]
    fn the_largest_of_two_ramps_bends_where_they_cross() {
        let live = |points: Vec<(u64, i128)>| Live { from: 0, until: None, line: Polyline::new(points) };
        let line = largest(&[live(vec![(0, 0), (100, 100)]), live(vec![(0, 100), (100, 0)])]);
        assert_eq!((line.before(25), line.before(50), line.before(75)), (75, 50, 75));
        let ended = Live { until: Some(30), ..live(vec![(0, 100)]) };
        let line = largest(&[live(vec![(0, 10)]), ended]);
        assert_eq!((line.before(30), line.after(30), line.after(500)), (100, 10, 10));
    }
}
