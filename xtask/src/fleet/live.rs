//! What is shown while a run goes on: a line that is redrawn on a terminal, or a line every second.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate_sim::checker::{Admission, Polyline};

use super::metrics::{SECOND_NS, minted};
use super::notes::{Follow, admission, answered};
use crate::downstream::arrivals::boot_ns;

/// How often a terminal is redrawn.
const REDRAW_EVERY: Duration = Duration::from_millis(200);
/// How often a line is printed where nothing can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Characters of the bar, for twice the limit.
const BAR_CHARS: f64 = 30.0;

/// Figures so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Permits handed out.
    pub admitted: u64,
    /// Calls that were answered well.
    pub completed: u64,
    /// Calls that got a 429.
    pub rejected: u64,
}

/// Follows the workers' notes and shows how the run goes.
#[derive(Debug)]
pub struct Live {
    admissions: Vec<Follow>,
    calls: Vec<Follow>,
    last_second: VecDeque<Admission>,
    counts: Counts,
    calls_wanted: Option<u64>,
    begin: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Live {
    /// A view of the workers with these names.
    pub fn new(folder: &Path, workers: &[String], calls_wanted: Option<u64>) -> Self {
        let follow = |kind| workers.iter().map(|name| Follow::new(folder, name, kind)).collect();
        Self {
            admissions: follow("admissions"),
            calls: follow("calls"),
            last_second: VecDeque::new(),
            counts: Counts::default(),
            calls_wanted,
            begin: Instant::now(),
            drawn: None,
            terminal: std::io::stdout().is_terminal(),
        }
    }

    /// Time since the beginning of the run.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Figures so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Reads what is new, and shows it when it is time to.
    ///
    /// # Errors
    /// When notes can't be read.
    pub fn look(&mut self, rate: &Polyline) -> Result<()> {
        let (counts, last_second) = (&mut self.counts, &mut self.last_second);
        for follow in &mut self.admissions {
            follow.read(|fields| {
                if let Some(admission) = admission(fields) {
                    counts.admitted += admission.tokens;
                    last_second.push_back(admission);
                }
            })?;
        }
        for follow in &mut self.calls {
            follow.read(|fields| match answered(fields).map(|call| call.status) {
                Some(200..300) => counts.completed += 1,
                Some(429) => counts.rejected += 1,
                _ => {}
            })?;
        }
        let now = boot_ns();
        self.last_second.retain(|admission| admission.at + SECOND_NS > now);
        let every = if self.terminal { REDRAW_EVERY } else { LINE_EVERY };
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= every) {
            self.drawn = Some(Instant::now());
            let admitted = self.last_second.iter().map(|admission| admission.tokens).sum();
            let limit = minted(rate, now.saturating_sub(SECOND_NS), now);
            let line = line(self.elapsed(), admitted, limit, self.counts, self.calls_wanted);
            if self.terminal {
                print!("\r\x1b[2K{line}");
                std::io::stdout().flush().ok();
            } else {
                println!("{line}");
            }
        }
        Ok(())
    }

    /// Shows something that happened.
    pub fn event(&mut self, text: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        println!("{clear}{:>5.1} s  > {text}", self.elapsed().as_secs_f64());
        self.drawn = None;
    }

    /// Leaves the line as it is.
    pub fn end(&self) {
        if self.terminal {
            println!();
        }
    }
}

fn line(elapsed: Duration, admitted: u64, limit: f64, counts: Counts, wanted: Option<u64>) -> String {
    let of = wanted.map(|wanted| format!("/{wanted}")).unwrap_or_default();
    format!(
        "{:>5.1} s  {admitted:>4}/s of {limit:>4.0} {} done {}{of}  429s {}",
        elapsed.as_secs_f64(),
        bar(admitted, limit),
        counts.completed,
        counts.rejected,
    )
}

/// A bar of what was admitted, with a mark where the limit is.
fn bar(admitted: u64, limit: f64) -> String {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a picture"
    )]
    let (filled, mark, width) = (
        (admitted as f64 / limit.max(1.0) * BAR_CHARS / 2.0).round() as usize,
        (BAR_CHARS / 2.0) as usize,
        BAR_CHARS as usize,
    );
    let cell = |index: usize| match (index == mark, index < filled) {
        (true, _) => '|',
        (false, true) => {
            if index < mark {
                '='
            } else {
                '!'
            }
        }
        (false, false) => ' ',
    };
    let more = if filled > width { '>' } else { ' ' };
    (0..width).map(cell).chain([more]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_marks_the_limit_and_what_goes_beyond_it() {
        assert_eq!(bar(50, 50.0).trim_end(), "===============|");
        assert_eq!(bar(0, 50.0).trim(), "|");
        assert!(bar(75, 50.0).contains("|!!!"));
        assert!(bar(500, 50.0).ends_with('>'));
        let counts = Counts { admitted: 9, completed: 7, rejected: 2 };
        let line = line(Duration::from_millis(1_500), 25, 50.0, counts, Some(100));
        assert!(
            line.starts_with("  1.5 s    25/s of   50 ====") && line.ends_with("done 7/100  429s 2"),
            "{line}"
        );
    }
}
