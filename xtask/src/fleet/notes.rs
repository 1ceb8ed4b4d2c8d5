//! Reads what the workers write down: see `crates/worker/examples/fleet/notes.rs`.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tollgate_sim::checker::Admission;

/// What one worker wrote down in a run, by the boot clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerNotes {
    /// Permits that were handed out.
    pub admissions: Vec<Admission>,
    /// Answers of the downstream.
    pub calls: Vec<Answered>,
    /// Answers of the coordinator.
    pub leases: Vec<Leased>,
}

/// An answer of the downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// The HTTP status; 0 when there was no answer.
    pub status: u16,
    /// Which call.
    pub id: u64,
}

/// An answer of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// The share of the rate that it brought, in parts of 10^9.
    pub share_ppb: u64,
}

impl WorkerNotes {
    /// Reads what a worker wrote into `folder`. Files that aren't there have nothing in them, and a line without its end
    /// is one that a kill has cut.
    ///
    /// # Errors
    /// When a file can't be read or a line makes no sense.
    pub fn read(folder: &Path, worker: &str) -> Result<Self> {
        let mut notes = Self::default();
        let mut admissions = Follow::new(folder, worker, "admissions");
        let mut calls = Follow::new(folder, worker, "calls");
        let mut leases = Follow::new(folder, worker, "leases");
        admissions.read(|fields| notes.admissions.extend(admission(fields)))?;
        calls.read(|fields| notes.calls.extend(answered(fields)))?;
        leases.read(|fields| notes.leases.extend(leased(fields)))?;
        Ok(notes)
    }
}

/// `TIME LIMIT COST`.
pub fn admission(fields: &[&str]) -> Option<Admission> {
    let [at, _, cost] = fields else { return None };
    Some(Admission { at: at.parse().ok()?, tokens: cost.parse().ok()? })
}

/// `TIME STATUS ID`.
pub fn answered(fields: &[&str]) -> Option<Answered> {
    let [at, status, id] = fields else { return None };
    Some(Answered { at_ns: at.parse().ok()?, status: status.parse().ok()?, id: id.parse().ok()? })
}

fn leased(fields: &[&str]) -> Option<Leased> {
    let [at, share] = fields else { return None };
    Some(Leased { at_ns: at.parse().ok()?, share_ppb: share.parse().ok()? })
}

/// Reads a file that grows, from where it was read last.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    read_to: u64,
}

impl Follow {
    /// Follows one kind of a worker's notes.
    pub fn new(folder: &Path, worker: &str, kind: &str) -> Self {
        Self { path: folder.join(format!("{worker}.{kind}")), read_to: 0 }
    }

    /// Hands over the fields of every complete line that came since the last time.
    ///
    /// # Errors
    /// When the file is there and can't be read.
    pub fn read(&mut self, mut line: impl FnMut(&[&str])) -> Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("can't read {}", self.path.display())),
        };
        let mut text = String::new();
        file.seek(SeekFrom::Start(self.read_to))
            .and_then(|_| file.read_to_string(&mut text))
            .with_context(|| format!("can't read {}", self.path.display()))?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        self.read_to += complete as u64;
        for entry in text[..complete].lines() {
            line(&entry.split(' ').collect::<Vec<_>>());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_that_a_kill_has_cut_is_left_out_and_missing_files_are_empty() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("w.admissions"), "1000 demo 2\n2000 demo 1\n3000 de").unwrap();
        fs::write(folder.path().join("w.leases"), "5 200000000\n").unwrap();
        let notes = WorkerNotes::read(folder.path(), "w").unwrap();
        let wanted = [Admission { at: 1_000, tokens: 2 }, Admission { at: 2_000, tokens: 1 }];
        assert_eq!(notes.admissions, wanted);
        assert_eq!(notes.leases, [Leased { at_ns: 5, share_ppb: 200_000_000 }]);
        assert_eq!(notes.calls, []);
    }

    #[test]
    fn what_was_read_once_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.calls");
        fs::write(&path, "1 200 7\n2 4").unwrap();
        let mut follow = Follow::new(folder.path(), "w", "calls");
        let mut seen = Vec::new();
        follow.read(|fields| seen.extend(answered(fields))).unwrap();
        fs::write(&path, "1 200 7\n2 429 8\n").unwrap();
        follow.read(|fields| seen.extend(answered(fields))).unwrap();
        assert_eq!(seen.iter().map(|call| (call.status, call.id)).collect::<Vec<_>>(), [(200, 7), (429, 8)]);
    }
}
