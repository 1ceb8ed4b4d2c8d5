//! tollgate's workflows: Temporal messages in, inputs of the pure core out.
//!
//! - [`coordinator`]: runs the ledger of one group; workflow id `tollgate/<group>`.
//! - [`config`]: holds the limits of one group, ramps and audits their changes; workflow id `tollgate-config/<group>`.
//! - [`preload`]: takes one permit and gives it as its result, for those who can only start workflows and signal them.
//! - [`permits`]: takes permits in workflows of one's own, before an activity is scheduled.
//! - [`wire`]: all messages as JSON.
//! - [`state`]: what goes through continue-as-new, as protobuf.
//! - [`contracts`]: the activities that the workflows call; `tollgate-activities` implements them.
//!
//! This crate knows no runtime, no socket and no clock.

#![deny(clippy::float_arithmetic)]

#[allow(missing_docs, reason = "the macros make public names of the activities and give them no docs")]
pub mod config;
pub mod contracts;
#[allow(missing_docs, reason = "the macros make public names of the handlers and give them no docs")]
pub mod coordinator;
pub mod details;
mod limits;
pub mod permits;
#[allow(missing_docs, reason = "the macros make public names of the handlers and give them no docs")]
pub mod preload;
pub mod proto;
pub mod replies;
pub mod state;
pub mod twin;
pub mod wire;
