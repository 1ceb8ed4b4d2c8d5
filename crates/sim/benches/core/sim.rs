//! Steps a second of the simulator's swarm: each step is a message, an admission, a fault or a look at the books, and is
//! checked by the model.

use crate::middle;
use serde_json::{Value, json};
use std::time::Instant;
use tollgate_core::rules::Rules;
use tollgate_sim::swarm;

/// The same fleets in every round.
const SEEDS: u64 = 60;

pub(crate) fn run(quick: bool) -> Value {
    let rounds = if quick { 2 } else { 7 };
    let seeds = if quick { SEEDS / 6 } else { SEEDS };
    let mut steps = 0;
    let rates = (0..rounds).map(|_| {
        let began = Instant::now();
        steps = (0..seeds).map(|seed| swarm::run(seed, Rules::ALL).steps.len()).sum();
        steps as f64 / began.elapsed().as_secs_f64()
    });
    let (rate, spread) = middle(rates.collect());
    eprintln!("  {rate:.0} steps a second on one thread");
    json!({ "steps_per_second": rate.round(), "spread": spread, "rounds": rounds, "seeds": seeds, "steps_per_round": steps })
}
