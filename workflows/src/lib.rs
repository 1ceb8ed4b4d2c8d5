//! tollgate's workflows: Temporal messages in, inputs of the pure core out.
//!
//! - [`coordinator`]: runs the ledger of one group; workflow id `tollgate/<group>`.
//! - [`config`]: holds the limits of one group, ramps and audits their changes; workflow id `tollgate-config/<group>`.
//! - [`wire`]: all messages as JSON.
//! - [`state`]: what goes through continue-as-new, as protobuf.
//! - [`contracts`]: the activities that the workflows call; `tollgate-activities` implements them.
//!
//! This crate knows no runtime, no socket and no clock.

pub mod wire;
