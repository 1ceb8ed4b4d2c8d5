//! Benchmarks without a server: `growth` (what a heartbeat costs the ledger) and `sim` (how fast the simulator is).
//!
//! `core growth|sim [--quick]` prints one JSON object; what it is doing meanwhile goes to standard error. All times are of
//! one thread. `cargo xtask bench` runs it.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints measured figures"
)]

mod growth;
mod sim;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    // `cargo bench` adds `--bench`.
    let named = arguments.iter().find(|argument| !argument.starts_with("--"));
    let figures = match named.map(String::as_str) {
        Some("growth") => serde_json::json!({ "growth": growth::run(quick)? }),
        Some("sim") => serde_json::json!({ "sim": sim::run(quick) }),
        None => serde_json::json!({ "growth": growth::run(quick)?, "sim": sim::run(quick) }),
        Some(other) => bail!("{other:?} is no benchmark of this program: give growth or sim"),
    };
    println!("{figures}");
    Ok(())
}

/// The middle one, and the spread: half the distance between the quartiles, as a part of the middle.
fn middle(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values.get(values.len() * part / 4).copied().unwrap_or(f64::NAN);
    (at(2), (at(3) - at(1)) / 2.0 / at(2))
}
