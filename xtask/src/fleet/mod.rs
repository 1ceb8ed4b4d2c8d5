//! What runs with real processes share: a Temporal server, coordinator hosts, workers, a batch and a downstream.
//!
//! - [`batch`]: the calls.
//! - [`stage`]: the processes. The workers' program is the example `fleet` of `tollgate-worker`.
//! - [`notes`]: what the workers write down. [`metrics`]: figures from that. [`checklist`]: what they must reach.
//! - [`live`]: what is shown meanwhile.

pub mod batch;
pub mod checklist;
pub mod live;
pub mod metrics;
pub mod notes;
pub mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tollgate_sim::checker::Admission;

use self::notes::WorkerNotes;
use self::stage::Fleet;
use crate::downstream::arrivals::{self, Entry};
use crate::process::Process;
use crate::workspace::Workspace;

/// How long a worker may act on one answer, in these runs.
pub const LEASE: Duration = Duration::from_secs(8);
/// The batch that is run unless another one is named, relative to the repository.
pub const BATCH_DEFAULT: &str = "examples/batch.jsonl";
/// Folders of earlier runs that are kept.
const RUNS_KEPT: usize = 4;

/// A folder for this run of a task; the oldest ones of earlier runs go.
///
/// # Errors
/// When the folder of all runs can't be created.
pub fn run_dir(workspace: &Workspace, task: &str) -> Result<PathBuf> {
    let runs = workspace.root().join("target").join(task);
    fs::create_dir_all(&runs).with_context(|| format!("can't create {}", runs.display()))?;
    let mut old: Vec<PathBuf> = fs::read_dir(&runs)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // Those that were given another name are kept.
    old.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-")));
    old.sort();
    for path in old.iter().rev().skip(RUNS_KEPT) {
        // Not worth ending for.
        fs::remove_dir_all(path).ok();
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(runs.join(format!("run-{seconds}-{}", std::process::id())))
}

/// What all workers of a fleet wrote down, by their names.
///
/// # Errors
/// As [`WorkerNotes::read`].
pub fn read_notes(fleet: &Fleet, names: &[String]) -> Result<BTreeMap<String, WorkerNotes>> {
    let read = |name: &String| Ok((name.clone(), WorkerNotes::read(&fleet.notes, name)?));
    names.iter().map(read).collect()
}

/// All admissions of a fleet, in order.
pub fn admissions(notes: &BTreeMap<String, WorkerNotes>) -> Vec<Admission> {
    let mut all: Vec<_> = notes.values().flat_map(|notes| notes.admissions.iter().copied()).collect();
    all.sort_unstable();
    all
}

/// Calls that the downstream's log says got a 429.
///
/// # Errors
/// As [`arrivals::read`].
pub fn count_rejected(log: &Path) -> Result<u64> {
    let entries = arrivals::read(log)?;
    Ok(entries.iter().filter(|entry| matches!(entry, Entry::Arrival { status: 429, .. })).count() as u64)
}

/// Calls that were answered, by the workers' notes and by the workflows, which must agree.
///
/// # Errors
/// When the batch did not say how many it has done.
pub fn completed(batch: &Process, notes: &BTreeMap<String, WorkerNotes>) -> Result<u64> {
    let line = batch.wait_for_line("completed ", Duration::from_secs(1))?;
    let by_workflows: u64 = line
        .split(' ')
        .nth(1)
        .and_then(|count| count.parse().ok())
        .with_context(|| format!("no count in {line:?}"))?;
    let answers = notes.values().flat_map(|notes| &notes.calls);
    let answered: BTreeSet<u64> =
        answers.filter(|call| (200..300).contains(&call.status)).map(|call| call.id).collect();
    Ok(by_workflows.min(answered.len() as u64))
}
