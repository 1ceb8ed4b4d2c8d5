//! Names and their document, text, and the endpoint.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may end at the first surprise, its helpers too"
)]

mod document;
mod names;
#[cfg(feature = "otlp")]
mod pushing;
mod serving;
