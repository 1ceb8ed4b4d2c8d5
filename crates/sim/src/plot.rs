//! Curves over time as an SVG picture that needs nothing else to be looked at.
//!
//! ```
//! use tollgate_sim::plot::{Line, Mark, Plot};
//! let mut plot = Plot::new("a ramp", "seconds", "calls a second");
//! plot.lines.push(Line { name: "limit".into(), color: "#c0392b", points: vec![(0.0, 50.0), (10.0, 100.0)] });
//! plot.marks.push(Mark { at: 4.0, text: "a worker was killed".into() });
//! assert!(plot.svg().starts_with("<svg"));
//! ```

use std::fmt::Write as _;

/// Size of the picture, in pixels.
const WIDTH: f64 = 1_200.0;
const HEIGHT: f64 = 480.0;
/// Room beside the axes, in pixels: left, right, top, bottom.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 50.0;
/// Most numbers on an axis.
const TICKS_MAX: f64 = 12.0;

/// A picture with time to the right.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What is counted to the right.
    pub x_label: String,
    /// What is counted upwards, from zero.
    pub y_label: String,
    /// The curves, the first one below the others.
    pub lines: Vec<Line>,
    /// Events.
    pub marks: Vec<Mark>,
    /// Shaded times.
    pub bands: Vec<Band>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its colour, as CSS writes it.
    pub color: &'static str,
    /// Where it goes, in the order of time. Points that aren't finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// An event: a thin line with a number that the legend below explains when the pointer is on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// When.
    pub at: f64,
    /// What.
    pub text: String,
}

/// A shaded time.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Its beginning.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// What it means.
    pub text: String,
}

impl Plot {
    /// An empty picture.
    pub fn new(title: &str, x_label: &str, y_label: &str) -> Plot {
        let (title, x_label, y_label) = (title.to_owned(), x_label.to_owned(), y_label.to_owned());
        Plot { title, x_label, y_label, ..Plot::default() }
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let frame = self.frame();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"16\">{}</text>\n",
            escaped(&self.title)
        );
        for band in &self.bands {
            let (from, to) = (frame.x(band.from), frame.x(band.to));
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#f3e5c8\">\
                 <title>{}</title></rect>",
                (to - from).max(1.0),
                HEIGHT - TOP - BOTTOM,
                escaped(&band.text)
            );
        }
        self.axes(&frame, &mut svg);
        for line in &self.lines {
            let points = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let points: Vec<String> =
                points.map(|(x, y)| format!("{:.1},{:.1}", frame.x(*x), frame.y(*y))).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>",
                line.color,
                points.join(" ")
            );
        }
        for (index, mark) in self.marks.iter().enumerate() {
            // In three rows, so that neighbours can be told apart.
            let (x, y) =
                (frame.x(mark.at), TOP - 4.0 - 11.0 * f64::from(u8::try_from(index % 3).unwrap_or(0)));
            let text = escaped(&mark.text);
            let _ = writeln!(
                svg,
                "<g><title>{text}</title><line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"#888\" \
                 stroke-dasharray=\"2 3\"/><text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"9\" text-anchor=\"middle\">{}</text></g>",
                HEIGHT - BOTTOM,
                index + 1
            );
        }
        self.legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn frame(&self) -> Frame {
        let points = self.lines.iter().flat_map(|line| line.points.iter().copied());
        let points = points.filter(|(x, y)| x.is_finite() && y.is_finite());
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
        for (x, y) in points {
            (left, right, top) = (left.min(x), right.max(x), top.max(y));
        }
        if left >= right {
            let only = if left.is_finite() { left } else { 0.0 };
            (left, right) = (only, only + 1.0);
        }
        Frame { left, right, top: if top > 0.0 { top * 1.05 } else { 1.0 } }
    }

    fn axes(&self, frame: &Frame, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for x in ticks(frame.left, frame.right) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>",
                frame.x(x),
                bottom + 16.0
            );
        }
        for y in ticks(0.0, frame.top) {
            let at = frame.y(y);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{y}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 12.0,
            escaped(&self.x_label),
            HEIGHT / 2.0,
            HEIGHT / 2.0,
            escaped(&self.y_label)
        );
    }

    fn legend(&self, svg: &mut String) {
        let mut x = LEFT;
        for line in &self.lines {
            let y = HEIGHT - 12.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                y - 6.0,
                line.color,
                x + 20.0,
                escaped(&line.name)
            );
            x += 40.0 + 7.0 * f64::from(u16::try_from(line.name.chars().count()).unwrap_or(u16::MAX));
        }
    }
}

/// What the picture spans.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        let part = (value.clamp(self.left, self.right) - self.left) / (self.right - self.left);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value.clamp(0.0, self.top) / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

/// Round numbers from one to the other.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let mut step = 10_f64.powf(((to - from) / TICKS_MAX).log10().floor());
    for factor in [2.0, 2.5, 2.0] {
        if (to - from) / step > TICKS_MAX {
            step *= factor;
        }
    }
    let first = (from / step).ceil();
    let values = (0..=20_u8).map(|index| (first + f64::from(index)) * step);
    // Steps like 0.1 add up to something like 0.30000000000000004.
    values.take_while(|value| *value <= to).map(|value| (value * 1e6).round() / 1e6).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_corner_to_corner_and_names_are_escaped() {
        let mut plot = Plot::new("a < b", "s", "n");
        let points = vec![(5.0, 0.0), (f64::NAN, 3.0), (15.0, 100.0)];
        plot.lines.push(Line { name: "\"x\"".to_owned(), color: "red", points });
        let svg = plot.svg();
        assert!(svg.contains("points=\"60.0,430.0 1180.0,77.6\""), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("&quot;x&quot;") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_few_whatever_the_span() {
        assert_eq!(ticks(0.0, 100.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0]);
        assert_eq!(ticks(3.0, 3.5).first(), Some(&3.0));
        for (from, to) in [(0.0, 1.0), (0.0, 0.003), (1e6, 1.7e6), (12.0, 613.0)] {
            let ticks = ticks(from, to);
            assert!((4..=13).contains(&ticks.len()), "{from} to {to}: {ticks:?}");
        }
    }

    #[test]
    fn an_empty_picture_is_still_one() {
        assert!(Plot::default().svg().ends_with("</svg>\n"));
    }
}
