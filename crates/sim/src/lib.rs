//! tollgate's simulator: the core in virtual time, and a judge that knows nothing of it.
//!
//! - [`checker`] decides from a log of admissions whether a limit was kept. It uses nothing of the core, so that it
//!   can also judge logs of real fleets.
//! - [`world`] holds a ledger, workers with clocks of their own, and the messages between them. Nothing happens by
//!   itself: whoever drives it decides which message arrives when, and who is paused.
//! - [`script`] drives a world by a small command language, as golden files, with all rules or with one switched off.
//! - [`explore`] makes such scripts at random and shortens those that exceed the bound.
//! - [`swarm`] plays whole fleets under a random part of all faults, one run per seed.
//!
//! Runs are reproducible byte by byte: the only source of chance is [`rng::Rng`].

pub mod checker;
pub mod explore;
pub mod rng;
pub mod script;
pub mod swarm;
pub mod world;
