//! The pure heart of tollgate.
//!
//! Everything that decides whether work may start lives here, as state machines that take the time as an argument and
//! return what follows from it. There is no I/O, no clock, no randomness, no float and no hash map: the same state and
//! the same inputs give the same outputs in a workflow, in a worker, in the simulator and in a test.
//!
//! Two machines talk to each other by messages:
//!
//! - [`ledger::Ledger`] accounts for all limits of one group. It runs inside the coordinator workflow.
//! - [`client::Client`] holds what one worker process has leased. It runs inside the worker library and drives one
//!   [`bucket::Mint`] per cell, which fills the level that the hot path takes from.
//!
//! The guarantee that both of them keep, for a rate `R(t)` and a burst `B`, is that the fleet admits in every interval
//! `[s, t]` at most `B + integral of R over [s, t]`. [`rules::Rule`] names each rule that this rests on.

#![no_std]
#![deny(clippy::float_arithmetic)]

extern crate alloc;

pub mod bucket;
pub mod client;
pub mod curve;
pub mod demand;
pub mod digest;
pub mod ledger;
pub mod limit;
pub mod message;
pub mod policy;
pub mod rules;
mod stock;
pub mod tier;
pub mod units;
