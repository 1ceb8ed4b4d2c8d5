//! What a run must reach, as a list of figures with their marks.

/// One figure and what it must reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The figure's name.
    pub name: &'static str,
    /// What was measured.
    pub measured: String,
    /// What it must be.
    pub wanted: String,
    /// Whether it is.
    pub reached: bool,
}

/// A number that must be exactly this.
pub fn count(name: &'static str, measured: u64, wanted: u64) -> Check {
    Check { name, measured: measured.to_string(), wanted: wanted.to_string(), reached: measured == wanted }
}

/// A figure that must not be above `most`; one that wasn't seen fails.
pub fn at_most(name: &'static str, value: Option<f64>, most: f64, digits: usize, unit: &str) -> Check {
    let measured = shown(value, digits, unit);
    let wanted = if most == 0.0 { format!("0{unit}") } else { format!("at most {most:.2}{unit}") };
    Check { name, measured, wanted, reached: value.is_some_and(|value| value <= most) }
}

/// A figure that must not be below `least`; one that wasn't seen fails.
pub fn at_least(name: &'static str, value: Option<f64>, least: f64) -> Check {
    let wanted = format!("at least {least:.2}");
    Check { name, measured: shown(value, 3, ""), wanted, reached: value.is_some_and(|value| value >= least) }
}

/// A figure that must be above `least`, to show the problem.
pub fn above(name: &'static str, value: Option<f64>, least: f64) -> Check {
    let wanted = format!("above {least:.0}, the problem");
    Check { name, measured: shown(value, 2, ""), wanted, reached: value.is_some_and(|value| value > least) }
}

fn shown(value: Option<f64>, digits: usize, unit: &str) -> String {
    value.map_or_else(|| "not seen".to_owned(), |value| format!("{value:.digits$}{unit}"))
}

/// The checks as a table.
pub fn table(checks: &[Check]) -> String {
    let width = |of: fn(&Check) -> &str, title: &str| {
        checks.iter().map(|check| of(check).chars().count()).max().unwrap_or(0).max(title.len())
    };
    let (name, measured) = (width(|check| check.name, ""), width(|check| &check.measured, "measured"));
    let wanted = width(|check| &check.wanted, "must be");
    let mut text = format!("  {:name$}  {:>measured$}  {:wanted$}\n", "", "measured", "must be");
    for check in checks {
        let mark = if check.reached { "ok" } else { "FAILED" };
        text.push_str(&format!(
            "  {:name$}  {:>measured$}  {:wanted$}  {mark}\n",
            check.name, check.measured, check.wanted
        ));
    }
    text
}
