//! Named scenarios: fleets with a known load and a few things that happen to them, measured against an ideal limiter.
//!
//! A run drives the production core through the same [`crate::machine`] as the swarm, so that the bound, the sums and the
//! replies are judged as there. The same name and seed give the same run, byte for byte.

mod bench;
mod load;
mod measure;
mod named;
mod stage;
mod tiers;

pub use bench::{Bench, OutOfRange, percentile};
pub use measure::Figures;
use measure::How;
pub use tiers::p99;

use crate::machine::{Kind, Violation};
use crate::step::Step;
use crate::world::LEDGER_ZERO;
use load::Load;
use stage::Stage;
use tollgate_core::curve::Rate;
use tollgate_core::limit::CellConfig;
use tollgate_core::policy::Policy;
use tollgate_core::rules::Rules;
use tollgate_core::units::{LedgerTime, Span};

/// Something that happens at a time.
#[derive(Clone, Debug)]
enum Happening {
    /// A process starts, for the first time or again.
    Join(usize),
    /// It stops in good order.
    Leave(usize),
    Crash(usize),
    Pause(usize),
    Resume(usize),
    /// A worker's work is another from now on.
    Load(usize, Load),
    LedgerUp(bool),
    Amnesia,
    Snapshot,
    Reset,
    Rate {
        rate: Rate,
        over: Span,
    },
    /// Another number of conserved tokens.
    Capacity {
        tokens: u64,
        over: Span,
    },
    /// Another policy, for the same limit.
    Policy(Policy),
    /// Other cells: tiers that come and go, or stand in another order.
    Cells(Vec<CellConfig>),
}

/// One run's fleet. Times are in true microseconds.
#[derive(Clone, Debug)]
struct Scenario {
    config: CellConfig,
    /// What a piece of work costs of it; loads, queues and figures are in pieces of work.
    cost: u64,
    /// Further meters that each piece of work is charged to, all or nothing, with its cost of each.
    more: Vec<(CellConfig, u64)>,
    /// So often, what some of the meters gave is put back, since somebody else was quicker at another one.
    rolled_back_ppm: u64,
    length: u64,
    /// How often a worker with work looks at its bucket; what it admits in between counts as admitted then.
    tick: u64,
    /// One way of a message: at least, at most.
    delay: (u64, u64),
    loss_ppm: u64,
    /// Work that has waited for so long is given up. Zero: it doesn't wait at all.
    patience: u64,
    /// Fairness is looked at over so long.
    window: u64,
    /// Nobody who wants something waits for longer than this, or three leases.
    served_within: u64,
    /// Clocks are off.
    drift: bool,
    /// How long a piece of work takes, at least and at most; what is in flight counts for so long.
    work: (u64, u64),
    /// Messages come twice, or late and out of order, this often.
    odd_ppm: u64,
    loads: Vec<Load>,
    /// Lower tiers of the same limit, the next lower one first.
    lower: Vec<Lower>,
    happenings: Vec<(u64, Happening)>,
}

/// A lower tier.
#[derive(Clone, Debug)]
struct Lower {
    config: CellConfig,
    /// By worker.
    loads: Vec<Load>,
}

impl Scenario {
    /// What a worker wants of the lower tiers, in their order.
    fn loads_below(&self, worker: usize) -> impl Iterator<Item = &Load> {
        self.lower.iter().filter_map(move |lower| lower.loads.get(worker))
    }

    /// All cells, the highest tier first.
    fn cells(&self) -> Vec<CellConfig> {
        let lower = self.lower.iter().map(|lower| lower.config.clone());
        [self.config.clone()].into_iter().chain(lower).collect()
    }

    /// How an ideal limiter's tokens come back.
    fn how(&self) -> How {
        match &self.config.policy {
            Policy::TokenBucket => How::Minted,
            Policy::SlidingWindow { window } => How::After(window.0),
            Policy::FixedWindow { boundaries, .. } => {
                let at = |boundary: &LedgerTime| i128::from(boundary.0) - LEDGER_ZERO;
                How::At(boundaries.iter().filter_map(|boundary| u64::try_from(at(boundary)).ok()).collect())
            }
            Policy::InFlight { .. } => How::After(u64::midpoint(self.work.0, self.work.1)),
        }
    }

    /// In pieces of work.
    fn burst(&self) -> u64 {
        let bursts = self.cells().into_iter().map(|cell| cell.burst.target.whole());
        u64::try_from(bursts.sum::<i128>()).unwrap_or(0) / self.cost
    }

    /// All meters, with what a piece of work costs of each.
    fn meters(&self) -> impl Iterator<Item = (&CellConfig, u64)> {
        let more = self.more.iter().map(|(config, cost)| (config, *cost));
        std::iter::once((&self.config, self.cost)).chain(more)
    }

    /// All cells: every meter, and every tier from the highest on.
    fn all_cells(&self) -> Vec<CellConfig> {
        self.cells().into_iter().chain(self.more.iter().map(|(config, _)| config.clone())).collect()
    }
}

/// What is seen once a second, for plots.
#[derive(Clone, Debug)]
pub struct Sample {
    /// True microseconds.
    pub at: u64,
    /// The limit, in millionths of a token a second.
    pub rate_micro: u64,
    /// Tokens admitted since the sample before.
    pub admitted: u64,
    /// Every worker's share, in parts of 10^9.
    pub shares: Vec<u32>,
}

/// What a seed's run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is wrong with it, if anything.
    pub violation: Option<Violation>,
    /// How much of its bound the interval used that came nearest to it in tokens, in millionths.
    pub peak_over_bound_ppm: u64,
    /// Against the ideal.
    pub figures: Figures,
    /// Requests sent by all workers.
    pub messages: u64,
    /// Requests sent per worker and minute, in thousandths.
    pub messages_per_worker_minute_milli: u64,
    /// Events that the run was made of.
    pub events: u64,
    /// Everything that was done, if that was to be kept.
    pub steps: Vec<Step>,
    /// What was seen once a second, likewise.
    pub samples: Vec<Sample>,
}

/// All names, in the order in which they are run.
pub fn names() -> impl Iterator<Item = &'static str> {
    named::ALL.iter().map(|(name, _)| *name)
}

/// Plays a scenario; `None` for a name that there isn't. With `record`, steps and samples are kept.
pub fn run(name: &str, seed: u64, rules: Rules, record: bool) -> Option<Outcome> {
    let scenario = named::draw(name, seed)?;
    let mut stage = Stage::new(&scenario, seed, rules, record);
    stage.play();
    Some(outcome(&mut stage, seed))
}

/// What was played, judged.
fn outcome(stage: &mut Stage<'_>, seed: u64) -> Outcome {
    let verdict = stage.machine.judge();
    let minutes = stage.worker_time / 60_000;
    Outcome {
        seed,
        violation: stage.machine.found.clone(),
        peak_over_bound_ppm: verdict.map_or(0, |verdict| verdict.peak_over_bound_ppm),
        figures: stage.figures(),
        messages: stage.messages,
        messages_per_worker_minute_milli: stage.messages * 1_000_000 / minutes.max(1),
        events: stage.events,
        steps: std::mem::take(&mut stage.steps),
        samples: std::mem::take(&mut stage.samples),
    }
}

/// Plays `seeds` of a scenario on all processors. `each` hears of every outcome, in any order; it returns whether to go on.
pub fn run_all(name: &str, seeds: std::ops::Range<u64>, rules: Rules, each: impl Fn(Outcome) -> bool + Sync) {
    crate::on_all_processors(seeds, |seed| run(name, seed, rules, false).is_some_and(&each));
}

/// Whether a violation is the scenario's own idea of wrong, rather than a promise broken.
pub fn is_liveness(kind: Kind) -> bool {
    matches!(kind, Kind::Starved | Kind::Unused | Kind::Slow | Kind::Floor)
}
