//! `cargo xtask bench`.

pub mod instructions;
