//! What work asks before it starts.
//!
//! A [`Gate`] leases quota from the coordinator of one group and hands it out as [`Permit`]s, without a round trip and,
//! when there is quota, without a lock, an allocation or a system call:
//!
//! ```no_run
//! # async fn example(client: temporalio_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tollgate_worker::{Gate, Options, Outcome};
//!
//! let gate = Gate::connect(client, Options::new().limit("openai")).await?;
//! // Waits for its turn, for ten seconds at most.
//! let permit = gate.acquire("openai").cost(3).timeout(Duration::from_secs(10)).await?;
//! if permit.is_valid() {
//!     // Call now, then say what it really cost.
//!     permit.settle(2, Outcome::Success);
//! }
//! // Or never waits.
//! match gate.limit("openai").try_acquire(1) {
//!     Ok(_permit) => { /* call now */ }
//!     Err(refused) => println!("{refused}, again in {:?}", refused.retry_after()),
//! }
//! gate.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The fleet's guarantee is about admission: the moment at which a permit is handed out. Use it at once; after a pause ask
//! [`Permit::is_valid`].
//!
//! - [`gate`]: connecting, shutting down, looking at the state.
//! - [`limit`], [`meters`], [`acquire`]: asking. [`permit`]: what one gets.
//! - [`strict`]: permits that are asked of the coordinator one by one.
//! - [`interceptor`]: asks before every activity of a Temporal worker; [`rule`] says what it costs.
//! - [`transport`]: how messages reach the coordinator.
//! - [`options`], [`error`], [`clock`].
//! - `metrics`, with the feature of that name: figures for Prometheus.
//! - `testing`, with the feature of that name: a gate without a server, for tests of code that asks.

pub mod acquire;
pub mod check;
pub mod clock;
pub mod error;
pub mod gate;
pub mod interceptor;
pub mod limit;
pub mod meters;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod options;
pub mod permit;
pub mod rule;
pub mod state;
pub mod strict;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;

mod audit;
mod charges;
mod counter;
mod fork;
mod keeper;
mod lenders;
mod level;
#[cfg(test)]
mod level_tests;
mod local;
mod metered;
mod notice;
mod queue;
mod random;
mod set;
mod sync;
mod uncharged;

pub use acquire::Acquire;
pub use check::Outlook;
pub use error::{AcquireError, ConnectError, Reason, Refused, TransportError};
pub use gate::Gate;
pub use interceptor::ActivityGate;
pub use limit::Limit;
pub use meters::Meters;
pub use options::{Messages, Options};
pub use permit::{CurrentPermit, NotCharged, Outcome, Permit, Settled};
pub use rule::Rule;
pub use strict::{Strict, StrictAcquire, StrictPermit};
