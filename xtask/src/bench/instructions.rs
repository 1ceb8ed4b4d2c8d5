//! How many instructions one acquire and one heartbeat take, counted by valgrind's callgrind.
//!
//! Unlike times, counts are the same on a busy machine, so that a small regression shows. They are kept in
//! [`BASELINE`]; a compiler or a processor of another kind may move them a little.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// Where the counts are kept, from the repository's root.
pub const BASELINE: &str = "crates/worker/benches/instructions.json";

/// A count may be larger than the kept one by this many percent.
const GROWTH_PERCENT_MAX: u64 = 10;

/// What is counted: arguments of the bench program.
const SUBJECTS: &[&str] = &["acquire", "heartbeat"];

/// How often the program does it in one run.
const TIMES: u64 = 1_000;

/// The function whose instructions count, with all that it calls.
const COUNTED: &str = "instructions::counted*";

/// What to do with the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Return them.
    Count,
    /// Fail when one is more than 10% above the kept one.
    Check,
    /// Keep them from now on.
    Bless,
}

/// Instructions by name.
pub type Counts = BTreeMap<String, u64>;

/// Counts, and compares with the kept counts or replaces them.
///
/// # Errors
/// Without valgrind, when the program can't be built or run, and in [`Mode::Check`] when a count has grown too much.
pub fn run(workspace: &Workspace, mode: Mode) -> Result<Counts> {
    let program = build(workspace)?;
    let mut counts = Counts::new();
    for subject in SUBJECTS {
        counts.insert((*subject).to_owned(), count(&program, subject)?);
    }
    let path = workspace.root().join(BASELINE);
    match mode {
        Mode::Count => {}
        Mode::Check => {
            let kept = fs::read_to_string(&path)
                .with_context(|| format!("can't read {BASELINE}; --bless writes it"))?;
            let kept: Counts =
                serde_json::from_str(&kept).with_context(|| format!("{BASELINE} is no map"))?;
            let complaints = compare(&counts, &kept);
            if !complaints.is_empty() {
                bail!("{}; --bless keeps the new counts, if there is a reason", complaints.join("; "));
            }
        }
        Mode::Bless => {
            let text = serde_json::to_string_pretty(&counts)?;
            fs::write(&path, text + "\n").with_context(|| format!("can't write {BASELINE}"))?;
        }
    }
    Ok(counts)
}

/// What has grown too much, and what was never kept.
fn compare(counts: &Counts, kept: &Counts) -> Vec<String> {
    let complaint = |(name, now): (&String, &u64)| match kept.get(name) {
        None => Some(format!("{name} is not in {BASELINE}")),
        Some(before) if now.saturating_mul(100) > before.saturating_mul(100 + GROWTH_PERCENT_MAX) => {
            Some(format!("{name} takes {now} instructions, was {before}"))
        }
        Some(_) => None,
    };
    counts.iter().filter_map(complaint).collect()
}

/// Builds the bench program and returns its path.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["bench", "--workspace", "--bench", "instructions", "--no-run", "--message-format", "json"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("can't start cargo")?;
    if !output.status.success() {
        bail!("the program to count can't be built: see above");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages).context("cargo names no executable for the bench `instructions`")
}

/// The executable of the bench, by cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let mut messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.find_map(|message| {
        let ours = message["reason"] == "compiler-artifact" && message["target"]["name"] == "instructions";
        message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    })
}

/// Instructions that one of `subject` takes.
fn count(program: &Path, subject: &str) -> Result<u64> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let profile = folder.path().join("callgrind");
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(&profile);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", &format!("--toggle-collect={COUNTED}")])
        .args([out.as_os_str(), program.as_os_str(), OsStr::new(subject)])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "instructions are counted by valgrind, which is not installed: install the package `valgrind`"
            )
        }
        other => other.context("can't start valgrind")?,
    };
    if !output.status.success() {
        bail!("`{subject}` failed under valgrind: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let profile = fs::read_to_string(&profile).context("valgrind has written no profile")?;
    let total = total(&profile).context("valgrind's profile has no total")?;
    if total < TIMES {
        bail!("`{subject}`: nothing was counted; is there no function {COUNTED} in {}?", program.display());
    }
    Ok(total / TIMES)
}

/// The sum in a profile of callgrind.
fn total(profile: &str) -> Option<u64> {
    let line =
        profile.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")));
    line?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_a_tenth_is_a_complaint() {
        let counts = |acquire| Counts::from([("acquire".to_owned(), acquire)]);
        assert!(compare(&counts(110), &counts(100)).is_empty());
        assert!(compare(&counts(50), &counts(100)).is_empty());
        assert_eq!(compare(&counts(111), &counts(100)), ["acquire takes 111 instructions, was 100"]);
        assert_eq!(compare(&counts(1), &Counts::new()).len(), 1);
    }

    #[test]
    fn totals_and_executables_are_found_in_what_programs_say() {
        assert_eq!(total("events: Ir\nsummary: 1234\n\nfn=x\n"), Some(1_234));
        assert_eq!(total("events: Ir\n"), None);
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"tollgate_core"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"instructions"},"executable":"/x/instructions-1"}"#,
        );
        assert_eq!(executable(messages), Some(PathBuf::from("/x/instructions-1")));
        assert_eq!(executable("no json"), None);
    }
}
