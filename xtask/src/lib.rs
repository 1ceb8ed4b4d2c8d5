//! What `cargo xtask` is made of.
//!
//! - [`checks`]: `cargo xtask test`, an ordered list of steps.
//! - [`rules`]: the rules on who may depend on whom, and the checker that holds them.
//! - [`temporal_cli`], [`python_sdk`]: find the Temporal CLI and Temporal's Python SDK, or download pinned ones.
//! - [`prometheus`]: finds a Prometheus, or unpacks Debian's.
//! - [`process`]: starts child processes, waits for them, breaks them, and leaves none behind.
//! - [`downstream`]: an HTTP server with an allowance of its own, which knows nothing of tollgate.
//! - [`fleet`]: a Temporal server, hosts, workers and a batch as real processes, and what is read from them.
//! - [`demo`]: `cargo xtask demo`. [`chaos`]: `cargo xtask chaos`. [`mod@bench`]: `cargo xtask bench`.
//! - [`record_history`]: `cargo xtask record-history`, the histories that tests of the workflows replay.
//!
//! Nothing here depends on the Temporal SDK, so that a task starts within seconds on a fresh checkout.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tasks talk to the person at the terminal; there is no log to write to"
)]

pub mod bench;
pub mod chaos;
pub mod checks;
pub mod debian;
pub mod demo;
pub mod downstream;
pub mod fleet;
pub mod process;
pub mod prometheus;
pub mod python_sdk;
pub mod record_history;
pub mod rules;
pub mod temporal_cli;
pub mod workspace;

/// Prints an error and what led to it, one cause a line, to standard error.
pub fn report(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}
