//! A gate against a real ledger behind the wire, in virtual time.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may end at the first surprise, its helpers too"
)]

mod asking;
#[cfg(unix)]
mod forking;
mod in_flight;
mod kit;
mod leases;
mod logs;
mod metrics;
mod strict;
mod waiting;
mod world;
