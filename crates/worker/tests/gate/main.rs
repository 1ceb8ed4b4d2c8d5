//! A gate against a real ledger behind the wire, in virtual time.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may end at the first surprise, its helpers too"
)]

mod activities;
mod asking;
mod bounded;
mod conduct;
#[cfg(unix)]
mod forking;
mod hints;
mod in_flight;
mod kit;
mod leases;
mod logs;
mod lost;
mod metrics;
mod names;
mod rules;
mod settling;
mod several;
mod shadow;
mod sharing;
mod strict;
mod tiers;
mod waiting;
mod world;
