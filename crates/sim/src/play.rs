//! The commands `run` and `hunt`: what the swarm found, for people and as JSON.

use crate::rules_without;
use anyhow::{Context as _, bail};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tollgate_core::rules::{Rule, Rules};
use tollgate_sim::swarm::{self, Outcome};

/// Shorter lists of steps that are tried before the shortest so far is good enough.
const SHRINK_TRIES: usize = 4_000;

pub(crate) struct Options {
    pub(crate) verbose: bool,
    pub(crate) shrink: bool,
    pub(crate) first: bool,
}

#[derive(Serialize)]
struct Summary {
    scenario: &'static str,
    seeds: u64,
    broken: Option<String>,
    violations: u64,
    violating_seeds: Vec<u64>,
    peak_over_bound_max: f64,
    utilization_mean: Option<f64>,
    utilization_min: Option<f64>,
    wrongly_refused: Option<u64>,
    zero_grant_seconds_max: Option<u64>,
    fairness_error_mean: Option<f64>,
    messages_per_worker_minute: Option<f64>,
    steps: u64,
    seconds: f64,
}

/// What a range of seeds came to.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) seeds: u64,
    pub(crate) steps: u64,
    pub(crate) peak_ppm: u64,
    pub(crate) utilization: Vec<u64>,
    pub(crate) violating: Vec<Outcome>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.steps += outcome.steps.len() as u64;
        self.peak_ppm = self.peak_ppm.max(outcome.peak_over_bound_ppm);
        self.utilization.extend(outcome.utilization_ppm);
        if outcome.violation.is_some() {
            self.violating.push(outcome);
        }
    }
}

/// Millionths as a number.
pub(crate) fn ratio(ppm: u64) -> f64 {
    f64::from(u32::try_from(ppm).unwrap_or(u32::MAX)) / 1e6
}

/// Plays seeds, up to the first that is wrong if `first`.
pub(crate) fn tally(seeds: Range<u64>, rules: Rules, first: bool) -> Tally {
    let tally = Mutex::new(Tally::default());
    swarm::run_all(seeds, rules, |outcome| {
        let ends = first && outcome.violation.is_some();
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
        !ends
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn run(
    seeds: Range<u64>,
    broken: Option<String>,
    options: &Options,
    json: Option<&Path>,
) -> anyhow::Result<()> {
    let rules = rules_without(broken.clone())?;
    let started = Instant::now();
    let mut tally = if options.verbose {
        let tally = Mutex::new(Tally::default());
        swarm::run_all(seeds, rules, |outcome| {
            println!("# seed {}: {}", outcome.seed, outcome.plan);
            outcome.steps.iter().for_each(|step| println!("{step}"));
            outcome.books.iter().for_each(|line| println!("# {line}"));
            tally.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
            true
        });
        tally.into_inner().unwrap_or_else(PoisonError::into_inner)
    } else {
        tally(seeds, rules, options.first)
    };
    let seconds = started.elapsed().as_secs_f64();
    tally.violating.sort_by_key(|outcome| outcome.seed);
    let switch = broken.as_ref().map(|rule| format!(" --break {rule}")).unwrap_or_default();
    for outcome in &tally.violating {
        let Some(violation) = &outcome.violation else { continue };
        println!("seed {} at {} us, {:?}: {}", outcome.seed, violation.at, violation.kind, violation.what);
        println!("  tollgate-sim run --seed {}{switch} --verbose", outcome.seed);
        if options.shrink {
            let steps = swarm::shortest(outcome.seed, &outcome.steps, rules, violation.kind, SHRINK_TRIES);
            steps.iter().for_each(|step| println!("    {step}"));
        }
    }
    let used = &tally.utilization;
    let mean = used.iter().sum::<u64>().checked_div(used.len() as u64);
    let summary = Summary {
        scenario: crate::scenarios::CHAOS,
        seeds: tally.seeds,
        broken,
        violations: tally.violating.len() as u64,
        violating_seeds: tally.violating.iter().map(|outcome| outcome.seed).collect(),
        peak_over_bound_max: ratio(tally.peak_ppm),
        utilization_mean: mean.map(ratio),
        utilization_min: used.iter().min().copied().map(ratio),
        // A random fleet has no ideal one to be held against.
        wrongly_refused: None,
        zero_grant_seconds_max: None,
        fairness_error_mean: None,
        messages_per_worker_minute: None,
        steps: tally.steps,
        seconds,
    };
    let text = serde_json::to_string(&summary)?;
    println!("{text}");
    if let Some(path) = json {
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    if summary.violations > 0 && rules.is_complete() {
        bail!("{} of {} seeds are wrong", summary.violations, summary.seeds);
    }
    Ok(())
}

pub(crate) fn hunt(seeds: u64) {
    for rule in Rule::ALL {
        let (started, found) = (Instant::now(), Mutex::new(None::<Outcome>));
        swarm::run_all(0..seeds, Rules::without(*rule), |outcome| {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            let hit = outcome.violation.is_some();
            if hit && found.as_ref().is_none_or(|other| outcome.seed < other.seed) {
                *found = Some(outcome);
            }
            !hit
        });
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (name, seconds) = (rule.name(), started.elapsed().as_secs_f32());
        match found.and_then(|outcome| Some((outcome.seed, outcome.violation?))) {
            Some((seed, violation)) => {
                println!(
                    "{:2} {name:26} seed {seed:5} {seconds:6.1} s  {:?}: {}",
                    rule.number(),
                    violation.kind,
                    violation.what
                );
            }
            None => println!("{:2} {name:26} not in {seeds} seeds, {seconds:.1} s", rule.number()),
        }
    }
}
