//! The program, its hosts and their workflows on a real Temporal dev server, with real crashes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print what they measure")]

mod child;
mod fleet;
mod hostile;
mod life;
mod load;
mod past;
mod record;
mod strict;
mod world;
