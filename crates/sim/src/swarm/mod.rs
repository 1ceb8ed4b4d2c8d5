//! The swarm: whole fleets in virtual time under a random part of all faults, one run per seed.
//!
//! A run drives the production core through a [`crate::world::World`]. Its workers are as greedy as a limit's worst
//! enemy: they admit whatever they can as soon as they can, with idle spells in which everything fills up. The judge
//! looks at every interval; a model of its own looks at what workers really act on after every step.
//!
//! The same seed gives the same run, byte for byte. A run is a list of [`Step`]s, and [`shortest`] leaves out those that a
//! violation doesn't need.

mod fleet;
mod plan;

use crate::machine::{Kind, Machine, Violation};
use crate::step::Step;
use tollgate_core::rules::Rules;

/// What a seed's run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is wrong with it, if anything.
    pub violation: Option<Violation>,
    /// The largest share of its bound that any interval used, in millionths.
    pub peak_over_bound_ppm: u64,
    /// How much of what it could admit a calm and busy fleet admitted, in millionths.
    pub utilization_ppm: Option<u64>,
    /// Everything that was done.
    pub steps: Vec<Step>,
    /// The fleet and its faults, for people.
    pub plan: String,
    /// The ledger's books at the end.
    pub books: Vec<String>,
}

/// A busy fleet without faults uses at least so much, in millionths.
const UTILIZATION_LEAST: u64 = 900_000;

/// Plays a seed under `rules`.
pub fn run(seed: u64, rules: Rules) -> Outcome {
    outcome(seed, fleet::play(seed, rules, false))
}

/// The same with an operator who pauses and resumes limits, and keeps other parts of their bursts for newcomers.
pub fn run_operated(seed: u64, rules: Rules) -> Outcome {
    outcome(seed, fleet::play(seed, rules, true))
}

fn outcome(seed: u64, mut run: fleet::Run) -> Outcome {
    if let Some(ppm) = run.utilization_ppm.filter(|ppm| *ppm < UTILIZATION_LEAST) {
        run.machine.note(Kind::Unused, format!("a calm fleet used {ppm} millionths of its limit"));
    }
    // What the assumptions allow beyond the bound would hide what they don't.
    let worst = run.machine.judge().filter(|_| run.machine.allowance_micro() == 0);
    Outcome {
        seed,
        violation: run.machine.found,
        peak_over_bound_ppm: worst.map_or(0, |verdict| verdict.peak_over_bound_ppm),
        utilization_ppm: run.utilization_ppm,
        steps: run.steps,
        plan: format!("{:?}", run.plan),
        books: crate::script::show::status(run.machine.world.ledger()),
    }
}

/// Does steps again under `rules`, and says what is wrong.
pub fn replay(seed: u64, steps: &[Step], rules: Rules) -> Option<Violation> {
    let mut machine = Machine::new(rules, seed);
    for step in steps {
        machine.step(step);
        if machine.found.is_some() {
            break;
        }
    }
    machine.judge();
    machine.found
}

/// The steps without those that `kind` doesn't need. Tries at most `tries` shorter lists.
pub fn shortest(seed: u64, steps: &[Step], rules: Rules, kind: Kind, tries: usize) -> Vec<Step> {
    let shows = |steps: &[Step]| replay(seed, steps, rules).is_some_and(|found| found.kind == kind);
    let mut steps = steps.to_vec();
    if !shows(&steps) {
        return steps;
    }
    let (mut size, mut tried) = (steps.len() / 2, 0);
    while size > 0 && tried < tries {
        let mut start = 0;
        while start < steps.len() && tried < tries {
            let end = (start + size).min(steps.len());
            let shorter: Vec<Step> = steps[..start].iter().chain(&steps[end..]).cloned().collect();
            tried += 1;
            if shows(&shorter) {
                steps = shorter;
            } else {
                start = end;
            }
        }
        size /= 2;
    }
    steps
}

/// Plays `seeds` on all processors. `each` hears of every outcome, in any order; it returns whether to go on.
pub fn run_all(seeds: std::ops::Range<u64>, rules: Rules, each: impl Fn(Outcome) -> bool + Sync) {
    crate::on_all_processors(seeds, |seed| each(run(seed, rules)));
}
