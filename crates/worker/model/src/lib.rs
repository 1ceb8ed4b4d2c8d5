//! The worker's level under loom: every interleaving of a few threads, and every value that a load may see.
//!
//! The level is the worker's own file, built against `sync`, which has loom's types; leases are put in and ended by the
//! core's own mint. Each test ends by running into its bound of preemptions, which is stated where it is set.
#![cfg(test)]

#[path = "../../src/level.rs"]
#[expect(dead_code, reason = "statistics and waiters are not modelled")]
mod level;
mod sync;

mod tests;
