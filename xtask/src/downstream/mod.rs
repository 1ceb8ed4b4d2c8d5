//! The demo's downstream: a real HTTP/1.1 server with an allowance of its own.
//!
//! It stands for a third party's API, so it shares no code and no figures with tollgate: what its log says
//! about a run is independent evidence. It answers
//!
//! | request | answer |
//! |---|---|
//! | `GET /stats` | [`Stats`] as JSON |
//! | `PUT /allowance?rate=100&burst=20` | changes the allowance at once; [`Allowance`] as JSON |
//! | anything else | an *arrival*: 200 after `--latency-ms`, or at once 429 with `Retry-After` beyond the allowance |
//!
//! and writes every arrival to its log: see [`arrivals`].

pub mod arrivals;
mod bucket;
pub mod control;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

pub use bucket::{Allowance, Bucket};
pub use server::Stats;

/// Longest answer time, in milliseconds.
pub const LATENCY_MS_MAX: i64 = 60_000;

/// What `cargo xtask downstream` takes.
#[derive(Debug, Clone, Args)]
pub struct DownstreamOptions {
    /// Address to listen on; port 0 takes a free one, which the first line of output names.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Calls a second that are allowed [1 to 1000000].
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(Allowance::MAX)))]
    pub rate: u32,

    /// Calls that are allowed at once after a quiet time [1 to 1000000].
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(Allowance::MAX)))]
    pub burst: u32,

    /// How long an accepted call takes, in milliseconds [0 to 60000].
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=LATENCY_MS_MAX))]
    pub latency_ms: u32,

    /// File for the arrivals, one JSON object a line. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,
}

/// Serves until SIGTERM or SIGINT, then finishes the answers that are under way.
///
/// Prints `listening on http://ADDRESS` as its only line on standard output once it takes connections.
///
/// # Errors
/// When the address or the log can't be opened, or the log can't be written to any more.
pub fn run(options: &DownstreamOptions) -> Result<()> {
    // One thread is enough for thousands of calls a second and keeps the order of arrivals plain.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the server's runtime")?
        .block_on(server::serve(options))
}
