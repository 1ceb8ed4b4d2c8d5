//! What can be done to a world, one thing at a time. A run is a list of these, and can be done again without those that
//! a violation doesn't need.

use crate::world::LEDGER_ZERO;
use std::fmt;
use tollgate_core::curve::{BurstCurve, RateCurve};
use tollgate_core::ledger::strict::Acquire;
use tollgate_core::limit::{CellConfig, CellKey, Conduct, Version};
use tollgate_core::policy::Policy;
use tollgate_core::tier::Priority;
use tollgate_core::units::{Share, Span};

/// Something done at a time.
#[derive(Clone, Debug)]
pub struct Step {
    /// True time in microseconds.
    pub at: u64,
    /// What is done.
    pub op: Op,
}

/// What is done. Workers are named; `cell` is an index among a worker's cells.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the variants are the commands of scripts, see crate::script::command")]
pub enum Op {
    Configure {
        cells: Vec<CellConfig>,
        version: Option<Version>,
    },
    AddWorker {
        name: String,
        ppm: i64,
        wall: i64,
    },
    Borrow {
        name: String,
        key: CellKey,
    },
    Want {
        name: String,
        cell: usize,
        waiting: u64,
        largest: u64,
        asked: u64,
    },
    Ask {
        name: String,
    },
    Deliver {
        name: String,
        seq: u64,
        keep: bool,
        up: bool,
    },
    /// The worker's usage and lease as they are now, as a report under its newest seq.
    Report {
        name: String,
    },
    /// Everything there is when `tokens` is `None`.
    Spend {
        name: String,
        cell: usize,
        tokens: Option<u64>,
        pause: Span,
    },
    /// Work that began at true time `from` ends.
    Release {
        name: String,
        cell: usize,
        tokens: u64,
        from: u64,
        generation: u32,
    },
    Give {
        name: String,
        cell: usize,
        tokens: u64,
    },
    Refund {
        name: String,
        cell: usize,
        tokens: u64,
        charged: u64,
    },
    Overdraw {
        name: String,
        cell: usize,
        tokens: u64,
    },
    Pause {
        name: String,
    },
    Suspend {
        name: String,
        clock_stops: bool,
    },
    Resume {
        name: String,
    },
    Wall {
        name: String,
        by: i64,
    },
    Crash {
        name: String,
    },
    Restart {
        name: String,
    },
    Fork {
        name: String,
        copy: String,
    },
    Revoke {
        name: String,
    },
    Evict {
        name: String,
    },
    Acquire(Acquire),
    Use {
        id: String,
    },
    Settle {
        id: String,
        key: CellKey,
        used: u64,
    },
    LedgerUp(bool),
    Tick,
    Snapshot,
    Reset,
    Amnesia,
    StepClock {
        by: i64,
    },
}

impl Op {
    /// The workers whose leases it may change.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Op::AddWorker { name, .. }
            | Op::Borrow { name, .. }
            | Op::Want { name, .. }
            | Op::Ask { name }
            | Op::Deliver { name, .. }
            | Op::Report { name }
            | Op::Spend { name, .. }
            | Op::Release { name, .. }
            | Op::Give { name, .. }
            | Op::Refund { name, .. }
            | Op::Overdraw { name, .. }
            | Op::Pause { name }
            | Op::Suspend { name, .. }
            | Op::Resume { name }
            | Op::Wall { name, .. }
            | Op::Crash { name }
            | Op::Restart { name }
            | Op::Revoke { name }
            | Op::Evict { name } => (Some(name), None),
            Op::Fork { name, copy } => (Some(name), Some(copy)),
            Op::Configure { .. }
            | Op::Acquire(_)
            | Op::Use { .. }
            | Op::Settle { .. }
            | Op::LedgerUp(_)
            | Op::Tick
            | Op::Snapshot
            | Op::Reset
            | Op::Amnesia
            | Op::StepClock { .. } => (None, None),
        };
        one.into_iter().chain(other).map(String::as_str)
    }
}

impl fmt::Display for Step {
    /// The command of a script that does the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at={}us", self.op, self.at)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = |up: bool| if up { "request" } else { "reply" };
        match self {
            Op::Configure { cells, version } => {
                f.write_str("configure")?;
                for config in cells {
                    write!(f, " {}", short(&config.key))?;
                    write!(f, " rate={} burst={}", rate(config.rate), burst(config.burst))?;
                    write!(f, " lease={}us", config.lease.0)?;
                    policy(f, &config.policy)?;
                    priority(f, config.priority)?;
                    conduct(f, config.conduct)?;
                }
                version.map_or(Ok(()), |version| write!(f, " version={version}"))
            }
            Op::AddWorker { name, ppm, wall } => write!(f, "worker {name} drift={ppm:+}ppm wall={wall:+}us"),
            Op::Borrow { name, key } => write!(f, "borrow {name} {}", short(key)),
            Op::Want { name, cell, waiting, largest, asked } => {
                write!(f, "want {name} waiting={waiting} largest={largest} asked={asked} # cell {cell}")
            }
            Op::Ask { name } => write!(f, "ask {name} soft"),
            Op::Deliver { name, seq, keep, up } => {
                let keep = if *keep { " keep" } else { "" };
                write!(f, "deliver {name} {} seq={seq}{keep}", what(*up))
            }
            Op::Report { name } => write!(f, "report {name} # raw {name} .. report"),
            Op::Spend { name, cell, tokens, pause } => {
                let tokens = tokens.map_or("all".to_string(), |tokens| tokens.to_string());
                let cell = if *cell > 0 { format!(" # cell {cell}") } else { String::new() };
                let pause = if pause.0 > 0 { format!(" pause={}us", pause.0) } else { String::new() };
                write!(f, "spend {name} {tokens}{pause}{cell}")
            }
            Op::Release { name, tokens, from, .. } => write!(f, "release {name} {tokens} from={from}us"),
            Op::Give { name, tokens, .. } => write!(f, "give {name} {tokens}"),
            Op::Refund { name, tokens, charged, .. } => {
                write!(f, "refund {name} {tokens} charged={charged}us")
            }
            Op::Overdraw { name, tokens, .. } => write!(f, "overdraw {name} {tokens}"),
            Op::Pause { name } => write!(f, "pause {name}"),
            Op::Suspend { name, clock_stops } => {
                write!(f, "suspend {name}{}", if *clock_stops { " clock-stops" } else { "" })
            }
            Op::Resume { name } => write!(f, "resume {name}"),
            Op::Wall { name, by } => write!(f, "wall {name} by={by:+}us"),
            Op::Crash { name } => write!(f, "crash {name}"),
            Op::Restart { name } => write!(f, "restart {name}"),
            Op::Fork { name, copy } => write!(f, "fork {name} {copy}"),
            Op::Revoke { name } => write!(f, "revoke {name}"),
            Op::Evict { name } => write!(f, "evict {name}"),
            Op::Acquire(acquire) => {
                let (id, key, cost) = (&acquire.id, short(&acquire.key), acquire.cost);
                let auto = if acquire.auto { " auto" } else { "" };
                write!(f, "acquire {id} {key} cost={cost} lease={}us{auto}", acquire.lease.0)
            }
            Op::Use { id } => write!(f, "use {id}"),
            Op::Settle { id, key, used } => write!(f, "settle {id} {} used={used}", short(key)),
            Op::LedgerUp(up) => write!(f, "ledger {}", if *up { "up" } else { "down" }),
            Op::Tick => f.write_str("ledger tick"),
            Op::Snapshot => f.write_str("ledger snapshot"),
            Op::Reset => f.write_str("ledger reset"),
            Op::Amnesia => f.write_str("ledger amnesia"),
            Op::StepClock { by } => write!(f, "ledger step by={by:+}us"),
        }
    }
}

fn policy(f: &mut fmt::Formatter<'_>, policy: &Policy) -> fmt::Result {
    match policy {
        Policy::TokenBucket => Ok(()),
        Policy::SlidingWindow { window } => write!(f, " window={}us", window.0),
        Policy::FixedWindow { boundaries, escrow, .. } => {
            f.write_str(" boundaries=")?;
            for (index, boundary) in boundaries.iter().enumerate() {
                let at = i128::from(boundary.0) - LEDGER_ZERO;
                write!(f, "{}{at}us", if index > 0 { "," } else { "" })?;
            }
            f.write_str(if *escrow { " escrow" } else { "" })
        }
        Policy::InFlight { drain } => write!(f, " drain={}us", drain.0),
    }
}

fn conduct(f: &mut fmt::Formatter<'_>, conduct: Conduct) -> fmt::Result {
    if conduct.reserve != Conduct::RESERVE {
        write!(f, " reserve={}", conduct.reserve)?;
    }
    if conduct.paused { f.write_str(" paused") } else { Ok(()) }
}

fn priority(f: &mut fmt::Formatter<'_>, priority: Priority) -> fmt::Result {
    if priority.rank > 0 {
        write!(f, " rank={}", priority.rank)?;
    }
    if priority.floor < Share::ONE {
        write!(f, " floor={}", priority.floor)?;
    }
    if priority.lends { f.write_str(" lend") } else { Ok(()) }
}

fn short(key: &CellKey) -> String {
    match key.tier.as_str() {
        CellKey::TIER => key.limit.clone(),
        tier => format!("{}:{tier}", key.limit),
    }
}

fn rate(curve: RateCurve) -> String {
    let (from, to) = (curve.source.micro_per_second(), curve.target.micro_per_second());
    let over = curve.end.since(curve.start);
    if over == Span::ZERO { format!("{to}u/s") } else { format!("{from}u->{to}u/s over={}us", over.0) }
}

fn burst(curve: BurstCurve) -> String {
    let over = curve.end.since(curve.start);
    if over == Span::ZERO {
        curve.target.to_string()
    } else {
        format!("{}->{} over={}us", curve.source, curve.target, over.0)
    }
}

/// A sum of shares that may exceed one.
pub(crate) fn shares(sum: u64) -> String {
    let permille = sum / (u64::from(Share::ONE.ppb()) / 1_000);
    format!("{}.{:03}", permille / 1_000, permille % 1_000)
}
