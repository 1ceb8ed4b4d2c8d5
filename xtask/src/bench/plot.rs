//! Bars as an SVG picture that needs nothing else to be looked at.

use std::fmt::Write as _;

/// Sizes in pixels.
const BAR: f64 = 34.0;
const BETWEEN_GROUPS: f64 = 30.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 46.0;
const WIDTH_MIN: f64 = 560.0;
/// Told apart by people who see fewer colours too.
const COLORS: [&str; 4] = ["#0072b2", "#d55e00", "#999999", "#009e73"];

/// Groups of bars that are compared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What is counted upwards.
    pub unit: String,
    /// Whether each step upwards is ten times the one before.
    pub logarithmic: bool,
    /// Names of the bars of each group, for the legend.
    pub series: Vec<String>,
    /// Name of a group, and one value for each of the series. What isn't finite is left out.
    pub groups: Vec<(String, Vec<f64>)>,
    /// A line to compare with, and what it is.
    pub line: Option<(f64, String)>,
}

impl Bars {
    /// The picture.
    pub fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|(_, values)| values.iter().copied());
        let values = values.chain(self.line.as_ref().map(|(at, _)| *at)).filter(|value| value.is_finite());
        let positive: Vec<f64> = values.filter(|value| *value > 0.0).collect();
        let largest = positive.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let scale = if self.logarithmic {
            let smallest = positive.iter().copied().fold(largest, f64::min);
            // A step below the smallest, so that it has a bar.
            Scale::Logarithmic(
                smallest.log10().floor() - 0.3,
                largest.log10().ceil().max(smallest.log10().floor() + 1.0),
            )
        } else {
            Scale::Linear(round_up(largest))
        };
        let count = self.series.len().max(1);
        let group_width = BAR * real(count) + BETWEEN_GROUPS;
        let width = (LEFT + group_width * real(self.groups.len()) + 20.0).max(WIDTH_MIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            TOP + HEIGHT + BOTTOM
        );
        text(&mut svg, LEFT, 20.0, "start", &self.title, 15);
        text(&mut svg, LEFT, 38.0, "start", &self.unit, 12);
        let mut legend = LEFT;
        for (name, color) in self.series.iter().zip(COLORS.iter().cycle()) {
            rect(&mut svg, legend, 46.0, 10.0, 10.0, color);
            text(&mut svg, legend + 14.0, 55.0, "start", name, 12);
            legend += 30.0 + 7.0 * real(name.chars().count());
        }
        for tick in scale.ticks() {
            let y = TOP + HEIGHT * (1.0 - scale.part(tick));
            line(&mut svg, LEFT, y, width - 10.0, "#dddddd", "");
            text(&mut svg, LEFT - 6.0, y + 4.0, "end", &short(tick), 12);
        }
        for (index, (name, values)) in self.groups.iter().enumerate() {
            let left = LEFT + BETWEEN_GROUPS / 2.0 + group_width * real(index);
            for (bar, (value, color)) in values.iter().zip(COLORS.iter().cycle()).enumerate() {
                if !value.is_finite() {
                    continue;
                }
                let x = left + BAR * real(bar);
                let height = HEIGHT * scale.part(*value);
                rect(&mut svg, x + 2.0, TOP + HEIGHT - height, BAR - 4.0, height, color);
                text(&mut svg, x + BAR / 2.0, TOP + HEIGHT - height - 4.0, "middle", &short(*value), 10);
            }
            let middle = left + BAR * real(values.len()) / 2.0;
            text(&mut svg, middle, TOP + HEIGHT + 18.0, "middle", name, 12);
        }
        if let Some((at, name)) = &self.line {
            let y = TOP + HEIGHT * (1.0 - scale.part(*at));
            line(&mut svg, LEFT, y, width - 10.0, "#cc0000", " stroke-dasharray=\"6 3\"");
            text(&mut svg, width - 12.0, y - 4.0, "end", name, 11);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Where a value comes to lie, from 0 at the bottom to 1 at the top.
enum Scale {
    Linear(f64),
    /// Of the logarithms to base ten.
    Logarithmic(f64, f64),
}

impl Scale {
    fn part(&self, value: f64) -> f64 {
        let part = match self {
            Scale::Linear(top) => value / top,
            Scale::Logarithmic(bottom, top) => {
                (value.max(f64::MIN_POSITIVE).log10() - bottom) / (top - bottom)
            }
        };
        part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self {
            Scale::Linear(top) => (0..=4).map(|quarter| top * f64::from(quarter) / 4.0).collect(),
            Scale::Logarithmic(bottom, top) => {
                // Not more than a dozen: the powers of ten from the smallest time to the largest count.
                std::iter::successors(Some(bottom.ceil()), |at| Some(at + 1.0))
                    .take_while(|at| at <= top)
                    .map(|at| 10f64.powf(at))
                    .take(20)
                    .collect()
            }
        }
    }
}

/// A round number that is at least this, with some room.
fn round_up(value: f64) -> f64 {
    let scale = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    let digit = value / scale * 1.05;
    steps.into_iter().find(|step| *step >= digit).unwrap_or(12.0) * scale
}

fn real(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// A number as a table or a picture shows it: three digits that count.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    for (from, unit) in [(1e9, "G"), (1e6, "M"), (1e4, "k")] {
        if size >= from {
            let divisor = if unit == "k" { 1e3 } else { from };
            return format!("{}{unit}", digits(value / divisor));
        }
    }
    digits(value)
}

fn digits(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 100.0 || size == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str, size: u32) {
    // Writing to a string can't fail.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(text)
    );
}

fn rect(svg: &mut String, x: f64, y: f64, width: f64, height: f64, color: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
    );
}

fn line(svg: &mut String, left: f64, y: f64, right: f64, color: &str, rest: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\" stroke=\"{color}\"{rest}/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(logarithmic: bool) -> Bars {
        Bars {
            title: "a < b".to_owned(),
            unit: "us".to_owned(),
            logarithmic,
            series: vec!["ours".to_owned(), "theirs".to_owned()],
            groups: vec![("x".to_owned(), vec![1.0, 1_000.0]), ("y".to_owned(), vec![f64::NAN, 10.0])],
            line: Some((10.0, "wanted".to_owned())),
        }
    }

    fn heights(svg: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect x") && line.contains("width=\"30.0\""));
        let height = |line: &str| line.split("height=\"").nth(1)?.split('"').next()?.parse().ok();
        bars.filter_map(height).collect()
    }

    #[test]
    fn bars_are_as_high_as_their_values_and_missing_ones_leave_a_gap() {
        let linear = heights(&bars(false).svg());
        assert_eq!(linear.len(), 3);
        assert!((linear[1] / linear[2] - 100.0).abs() < 2.0, "{linear:?}");
        let logarithmic = heights(&bars(true).svg());
        assert!((logarithmic[1] - logarithmic[0] - 3.0 * (logarithmic[2] - logarithmic[0])).abs() < 1.0);
    }

    #[test]
    fn text_can_not_break_the_picture() {
        let svg = bars(false).svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (1.0, "1"),
            (12.34, "12.3"),
            (999.6, "1000"),
            (12_345.0, "12.3k"),
            (2.5e9, "2.5G"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
