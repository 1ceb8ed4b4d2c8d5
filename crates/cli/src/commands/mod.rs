//! The commands.

pub mod apply;
pub mod audit;
pub mod bench_limit;
pub mod config;
pub mod dev;
pub mod explain;
pub mod history;
pub mod limit;
pub mod overriding;
pub mod ramp;
pub mod replay;
pub mod schedule;
pub mod serve;
pub mod status;
pub mod tail;
pub mod top;
pub mod watch;
pub mod worker;

use crate::failure::Failure;
use std::io::Write as _;

/// Writes to standard output.
///
/// # Errors
/// [`Failure::Failed`] when it can't be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Who reads has seen enough: `tollgate status | head -1`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| Failure::Failed(format!("can't write the output: {error}"))),
    }
}

/// Writes one line to standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_line(line: &str) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}
