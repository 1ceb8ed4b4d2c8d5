//! The command `run --scenario`: figures of named scenarios, for people and as JSON.

use crate::play::{self, ratio};
use crate::rules_without;
use anyhow::{Context as _, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tollgate_core::rules::Rules;
use tollgate_sim::plot::{Line, Plot};
use tollgate_sim::scenario::{self, Outcome, Sample};
use tollgate_sim::swarm;

/// The swarm's name among the scenarios.
pub(crate) const CHAOS: &str = "chaos";
/// Shorter lists of steps that are tried before the shortest so far is good enough.
const SHRINK_TRIES: usize = 400;

/// The most workers whose shares are drawn.
const SHARES_DRAWN: usize = 12;
/// Their colours, in turn.
const COLORS: [&str; 6] = ["#9ecae1", "#a1d99b", "#fdae6b", "#bcbddc", "#d9d9d9", "#e7cb94"];

/// One scenario's figures over all seeds; `null` for what isn't measured in it.
#[derive(Debug, Serialize)]
struct Row {
    scenario: String,
    seeds: u64,
    violations: u64,
    violating_seeds: Vec<u64>,
    peak_over_bound_max: f64,
    utilization_mean: Option<f64>,
    utilization_min: Option<f64>,
    wrongly_refused: Option<u64>,
    zero_grant_seconds_max: Option<u64>,
    fairness_error_mean: Option<f64>,
    messages_per_worker_minute: Option<f64>,
    high_wait_p99_ms: Option<u64>,
    utilization_calm_mean: Option<f64>,
    utilization_calm_min: Option<f64>,
    events: u64,
    seconds: f64,
}

#[derive(Default)]
struct Tally {
    seeds: u64,
    events: u64,
    peak_ppm: u64,
    utilization: (u64, Option<u64>),
    wrongly_refused: u64,
    zero_grant_seconds: u64,
    unfair: (u64, u64),
    messages_milli: u64,
    high_waits: BTreeMap<u64, u64>,
    calm: Vec<u64>,
    violating: Vec<Outcome>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        let figures = &outcome.figures;
        self.seeds += 1;
        self.events += outcome.events;
        self.peak_ppm = self.peak_ppm.max(outcome.peak_over_bound_ppm);
        let used = figures.utilization_ppm;
        self.utilization =
            (self.utilization.0 + used, Some(self.utilization.1.map_or(used, |least| least.min(used))));
        self.wrongly_refused += figures.wrongly_refused;
        self.zero_grant_seconds = self.zero_grant_seconds.max(figures.zero_grant_seconds);
        if let Some(error) = figures.fairness_error_ppm {
            self.unfair = (self.unfair.0 + error, self.unfair.1 + 1);
        }
        self.calm.extend(figures.calm_utilization_ppm);
        for (wait, tokens) in &figures.high_waits {
            *self.high_waits.entry(*wait).or_default() += tokens;
        }
        self.messages_milli += outcome.messages_per_worker_minute_milli;
        if outcome.violation.is_some() {
            self.violating.push(outcome);
        }
    }

    fn row(&self, scenario: &str, seconds: f64) -> Row {
        let mean = |sum: u64, count: u64| sum.checked_div(count).map(ratio);
        Row {
            scenario: scenario.to_owned(),
            seeds: self.seeds,
            violations: self.violating.len() as u64,
            violating_seeds: self.violating.iter().map(|outcome| outcome.seed).collect(),
            peak_over_bound_max: ratio(self.peak_ppm),
            utilization_mean: mean(self.utilization.0, self.seeds),
            utilization_min: self.utilization.1.map(ratio),
            wrongly_refused: Some(self.wrongly_refused),
            zero_grant_seconds_max: Some(self.zero_grant_seconds),
            fairness_error_mean: mean(self.unfair.0, self.unfair.1),
            messages_per_worker_minute: mean(self.messages_milli * 1_000, self.seeds),
            high_wait_p99_ms: scenario::p99(&self.high_waits),
            utilization_calm_mean: mean(self.calm.iter().sum(), self.calm.len() as u64),
            utilization_calm_min: self.calm.iter().min().copied().map(ratio),
            events: self.events,
            seconds,
        }
    }
}

/// What `run --scenario` was asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) seeds: Range<u64>,
    pub(crate) broken: Option<String>,
    pub(crate) options: play::Options,
    pub(crate) json: Option<&'a Path>,
    pub(crate) plot: Option<&'a Path>,
}

/// Names that `--scenario` takes.
pub(crate) fn names() -> Vec<&'static str> {
    scenario::names().chain([CHAOS, "all"]).collect()
}

pub(crate) fn run(wanted: &Wanted<'_>) -> anyhow::Result<()> {
    let rules = rules_without(wanted.broken.clone())?;
    let names: Vec<&str> = match wanted.name {
        "all" => scenario::names().chain([CHAOS]).collect(),
        name => vec![name],
    };
    if let Some(path) = wanted.plot {
        let name = names.first().filter(|name| names.len() == 1 && **name != CHAOS);
        draw(name.context("--plot draws one named scenario")?, wanted.seeds.start, rules, path)?;
    }
    println!("{}", header());
    let (mut rows, mut wrong) = (Vec::new(), 0);
    for name in names {
        let row = if name == CHAOS {
            chaos(wanted.seeds.clone(), rules)
        } else {
            one(name, wanted.seeds.clone(), rules, wanted)
        };
        println!("{}", line(&row));
        std::io::stdout().flush()?;
        wrong += row.violations;
        rows.push(row);
    }
    if let Some(path) = wanted.json {
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    if wrong > 0 && rules.is_complete() {
        bail!("{wrong} runs are wrong");
    }
    Ok(())
}

fn one(name: &str, seeds: Range<u64>, rules: Rules, wanted: &Wanted<'_>) -> Row {
    let (started, tally) = (Instant::now(), Mutex::new(Tally::default()));
    scenario::run_all(name, seeds, rules, |outcome| {
        let ends = wanted.options.first && outcome.violation.is_some();
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
        !ends
    });
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.violating.sort_by_key(|outcome| outcome.seed);
    for outcome in &tally.violating {
        let Some(violation) = &outcome.violation else { continue };
        let switch = wanted.broken.as_ref().map(|rule| format!(" --break {rule}")).unwrap_or_default();
        println!("seed {} at {} us, {:?}: {}", outcome.seed, violation.at, violation.kind, violation.what);
        println!("  tollgate-sim run --scenario {name} --seed {}{switch} --shrink", outcome.seed);
        if wanted.options.shrink || wanted.options.verbose {
            show(name, outcome, rules, &wanted.options);
        }
    }
    tally.row(name, started.elapsed().as_secs_f64())
}

/// Prints a run as commands of a script: all of them, or the fewest that show the same.
fn show(name: &str, outcome: &Outcome, rules: Rules, options: &play::Options) {
    let Some(again) = scenario::run(name, outcome.seed, rules, true) else { return };
    let Some(violation) = &again.violation else { return };
    let steps = if options.shrink {
        swarm::shortest(outcome.seed, &again.steps, rules, violation.kind, SHRINK_TRIES)
    } else {
        again.steps
    };
    steps.iter().for_each(|step| println!("    {step}"));
}

fn chaos(seeds: Range<u64>, rules: Rules) -> Row {
    let started = Instant::now();
    let tally = play::tally(seeds, rules, false);
    let used = &tally.utilization;
    Row {
        scenario: CHAOS.to_owned(),
        seeds: tally.seeds,
        violations: tally.violating.len() as u64,
        violating_seeds: tally.violating.iter().map(|outcome| outcome.seed).collect(),
        peak_over_bound_max: ratio(tally.peak_ppm),
        utilization_mean: used.iter().sum::<u64>().checked_div(used.len() as u64).map(ratio),
        utilization_min: used.iter().min().copied().map(ratio),
        wrongly_refused: None,
        zero_grant_seconds_max: None,
        fairness_error_mean: None,
        messages_per_worker_minute: None,
        high_wait_p99_ms: None,
        utilization_calm_mean: None,
        utilization_calm_min: None,
        events: tally.steps,
        seconds: started.elapsed().as_secs_f64(),
    }
}

fn draw(name: &str, seed: u64, rules: Rules, path: &Path) -> anyhow::Result<()> {
    let outcome = scenario::run(name, seed, rules, true).with_context(|| format!("no scenario {name}"))?;
    let seconds = |sample: &Sample| ratio(sample.at);
    let curve = |name: &str, color, value: &dyn Fn(&Sample) -> f64| Line {
        name: name.to_owned(),
        color,
        points: outcome.samples.iter().map(|sample| (seconds(sample), value(sample))).collect(),
    };
    let mut plot = Plot::new(&format!("{name}, seed {seed}"), "seconds", "tokens a second");
    let workers = outcome.samples.first().map_or(0, |sample| sample.shares.len());
    for (worker, color) in (0..workers.min(SHARES_DRAWN)).zip(COLORS.into_iter().cycle()) {
        let share = |sample: &Sample| {
            f64::from(sample.shares.get(worker).copied().unwrap_or(0)) / 1e9 * ratio(sample.rate_micro)
        };
        plot.lines.push(curve(&format!("share of w{}", worker + 1), color, &share));
    }
    plot.lines.push(curve("admitted", "#1f77b4", &|sample| ratio(sample.admitted * 1_000_000)));
    plot.lines.push(curve("limit", "#c0392b", &|sample| ratio(sample.rate_micro)));
    std::fs::write(path, plot.svg()).with_context(|| path.display().to_string())
}

fn header() -> String {
    format!(
        "{:16} {:>6} {:>10} {:>8} {:>8} {:>8} {:>7} {:>6} {:>8} {:>9} {:>7}",
        "scenario",
        "seeds",
        "violations",
        "peak",
        "used",
        "least",
        "refused",
        "zero s",
        "unfair",
        "msg/w/min",
        "seconds"
    )
}

fn line(row: &Row) -> String {
    let whole = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let some =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let mut text = format!(
        "{:16} {:>6} {:>10} {:>8.4}",
        row.scenario, row.seeds, row.violations, row.peak_over_bound_max
    );
    // Writing to a string can't fail.
    let _ok = write!(
        text,
        " {:>8} {:>8} {:>7} {:>6} {:>8} {:>9} {:>7.1}",
        some(row.utilization_mean, 4),
        some(row.utilization_min, 4),
        some(row.wrongly_refused.map(whole), 0),
        some(row.zero_grant_seconds_max.map(whole), 0),
        some(row.fairness_error_mean, 4),
        some(row.messages_per_worker_minute, 1),
        row.seconds
    );
    if let Some(wait) = row.high_wait_p99_ms {
        let _ok = write!(
            text,
            "  highest tier waits {wait} ms, p99; calm: used {}",
            some(row.utilization_calm_mean, 4)
        );
    }
    text
}
