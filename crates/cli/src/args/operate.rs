//! `tollgate worker`, `tollgate ramp`.

use super::Change;
use crate::quantity;
use clap::{Args, Subcommand};

/// `tollgate worker`.
#[derive(Clone, Debug, Subcommand)]
pub enum Worker {
    /// Show the workers: when each was last heard, and what it holds
    #[command(
        visible_alias = "list",
        after_help = "\
Examples:
  tollgate worker ls
  tollgate worker ls host-7/1234
  tollgate worker ls --limit openai
  tollgate worker ls --json | jq -r '.workers[] | select(.standing != \"live\") | .worker'

HOLDS is what counts for it of each limit: a share of the rate, or tokens. `tollgate explain WORKER` says more of one."
    )]
    Ls {
        /// Only the workers of this name, or the one of this incarnation
        #[arg(value_parser = quantity::name)]
        name: Option<String>,
        /// Only what they hold of this limit, and only those that hold any of it
        #[arg(long, value_name = "NAME", value_parser = quantity::name)]
        limit: Option<String>,
    },
    /// Take a worker's quota away
    #[command(after_help = "\
Examples:
  tollgate worker evict host-7/1234 --reason \"stuck, and holds half of openai\"
  tollgate worker evict 3f9a01c2

An eviction is a target of zero: a worker that is there learns it at once and gives back what it holds; what one holds that
doesn't answer ends with its lease. A process that is started anew is another worker, and isn't evicted.")]
    Evict(Evict),
}

/// `tollgate worker evict`.
#[derive(Clone, Debug, Args)]
pub struct Evict {
    /// The worker: its name, its incarnation, or the beginning of that. A name means every worker that has it
    #[arg(value_parser = quantity::name)]
    pub worker: String,
    /// Why, for the workflow's history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the workflow's history; the login name and the host unless given
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

/// `tollgate ramp`.
#[derive(Clone, Debug, Subcommand)]
pub enum Ramp {
    /// Show the ramps that are under way, and those that are paused
    #[command(after_help = "\
Examples:
  tollgate ramp show
  tollgate ramp show openai
  tollgate ramp show --json | jq -r '.[].rate_ramp.to'")]
    Show {
        /// Only this limit's
        #[arg(value_parser = quantity::name)]
        limit: Option<String>,
    },
    /// Stop the ramps of a limit where they are, for good
    #[command(after_help = "Examples:\n  tollgate ramp abort openai --reason \"429s at 80/s\"")]
    Abort(OfLimit),
    /// Hold the ramps of a limit where they are, until they are resumed
    #[command(after_help = "\
Examples:
  tollgate ramp pause openai --reason \"429s at 80/s: looking\"

Whatever sets the rate or the burst anew ends its pause, as does `tollgate ramp abort`.")]
    Pause(OfLimit),
    /// Let the ramps of a limit go on, for the time that was left of them
    #[command(after_help = "Examples:\n  tollgate ramp resume openai")]
    Resume(OfLimit),
}

/// A change of one limit that says no more than that.
#[derive(Clone, Debug, Args)]
pub struct OfLimit {
    /// The limit
    #[arg(value_parser = quantity::name)]
    pub limit: String,
    /// How it is changed.
    #[command(flatten)]
    pub change: Change,
}
