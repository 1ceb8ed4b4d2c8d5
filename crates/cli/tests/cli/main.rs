//! The program: its command line, and its hosts and their workflows on a real Temporal dev server, with real crashes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print what they measure")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod child;
mod command_line;
mod conduct;
mod config_changes;
mod deploy;
mod explain;
mod files;
mod fleet;
mod guide;
mod hostile;
mod inworkflow;
mod jobs;
mod life;
mod limits;
mod load;
mod metrics;
mod operate;
mod past;
mod python;
mod record;
mod secure;
mod signals;
mod stopping;
mod strict;
mod windows;
mod world;
