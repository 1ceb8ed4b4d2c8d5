//! `tollgate replay`, `tollgate bench-limit`.

use crate::quantity;
use clap::Args;
use std::path::PathBuf;
use tollgate_core::units::Span;
use tollgate_workflows::wire::config::RateJson;

/// `tollgate replay`.
#[derive(Clone, Debug, Args)]
pub struct Replay {
    /// A workflow [default: the coordinator and the config workflow of the group]
    #[arg(long, value_name = "ID")]
    pub workflow_id: Option<String>,
    /// Its run; the newest if not given
    #[arg(long, value_name = "RUN", requires = "workflow_id")]
    pub run_id: Option<String>,
    /// A file that holds a history, as `tollgate history-export` writes it; may be given several times
    #[arg(long = "history", value_name = "FILE", conflicts_with = "workflow_id")]
    pub histories: Vec<PathBuf>,
}

/// `tollgate bench-limit`.
#[derive(Clone, Debug, Args)]
pub struct BenchLimit {
    /// The limit's rate: 50, 50/s, 600/min
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_hyphen_values = true)]
    pub rate: RateJson,
    /// Its burst [default: what the rate brings in a second, the whole count from a minute on]
    #[arg(long, value_name = "TOKENS", value_parser = quantity::burst, allow_hyphen_values = true)]
    pub burst: Option<u64>,
    /// How long a lease lasts
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = quantity::lease,
          allow_hyphen_values = true)]
    pub lease: Span,
    /// How many workers there are
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub workers: u64,
    /// What all of them together want
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_hyphen_values = true)]
    pub demand: RateJson,
    /// How much of that one worker alone wants [default: the same as each other]
    #[arg(long, value_name = "PERCENT", value_parser = quantity::percent, allow_hyphen_values = true)]
    pub skew: Option<u32>,
    /// How long, in virtual time
    #[arg(long = "for", value_name = "DURATION", default_value = "2m", value_parser = quantity::span,
          allow_hyphen_values = true)]
    pub length: Span,
    /// Work that has waited for so long is given up
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = quantity::span,
          allow_hyphen_values = true)]
    pub patience: Span,
    /// The same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}
