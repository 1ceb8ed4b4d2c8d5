//! A file with every admission.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_core::units::BootTime;

/// Appends lines. One write per line: what was written stays when the process is killed, and lines of several processes
/// don't mix.
#[derive(Debug)]
pub(crate) struct AdmissionLog {
    file: File,
    failed: AtomicBool,
}

impl AdmissionLog {
    pub(crate) fn open(path: &Path) -> std::io::Result<AdmissionLog> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(AdmissionLog { file, failed: AtomicBool::new(false) })
    }

    /// A failed write is logged once and stops nothing.
    pub(crate) fn admitted(&self, at: BootTime, limit: &str, cost: u64) {
        let line = format!("{} {limit} {cost}\n", at.0.saturating_mul(1_000));
        if let Err(error) = (&self.file).write_all(line.as_bytes())
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the admission log can't be written; admissions are missing in it");
        }
    }
}
