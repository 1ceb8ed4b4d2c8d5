//! What a worker writes down, one line each, with nanoseconds of the boot clock in front:
//!
//! | file | line | when |
//! |---|---|---|
//! | `NAME.admissions` | `TIME LIMIT COST` | a permit was handed out |
//! | `NAME.calls` | `TIME STATUS ID` | the downstream answered; status 0: it didn't |
//! | `NAME.leases` | `TIME SHARE_PPB` | the coordinator answered a heartbeat |
//!
//! One write per line: what was written stays when the process is killed.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tollgate_worker::clock::{Clock as _, SystemClock};

/// The file of one kind of notes.
pub(crate) fn path(folder: &Path, name: &str, kind: &str) -> PathBuf {
    folder.join(format!("{name}.{kind}"))
}

/// Nanoseconds of the boot clock.
pub(crate) fn now_ns() -> u64 {
    SystemClock.boot().0.saturating_mul(1_000)
}

/// A file that lines are added to.
#[derive(Debug)]
pub(crate) struct Notes(File);

impl Notes {
    pub(crate) fn open(path: &Path) -> std::io::Result<Notes> {
        Ok(Notes(OpenOptions::new().create(true).append(true).open(path)?))
    }

    /// Adds a line. One that can't be written is reported, and missing.
    pub(crate) fn add(&self, boot_ns: u64, rest: std::fmt::Arguments<'_>) {
        let line = format!("{boot_ns} {rest}\n");
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            tracing::error!(%error, "a note is missing");
        }
    }
}
