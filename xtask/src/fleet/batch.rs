//! The batch: a file with one JSON object a line, which is checked before anything starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Most calls of a batch: an hour at a thousand a second, all of which is read into memory.
const CALLS_MAX: usize = 3_600_000;
/// Most task queues: each costs every worker process a few connections.
const QUEUES_MAX: usize = 8;
/// The activity types that the workers have.
const TYPES: [&str; 2] = ["fetch", "summarize"];

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its number, different from all others'.
    pub id: u64,
    /// The activity type: `fetch` or `summarize`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The task queue: letters, digits and dashes.
    pub queue: String,
    /// What to ask the downstream for; starts with a slash.
    pub path: String,
}

/// A batch in the order of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch(Vec<Call>);

impl Batch {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// When it can't be read or isn't a batch; the error names line, field, value and what is allowed.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| {
            format!("--input {}: give a file with one JSON object a line", path.display())
        })?;
        Self::parse(&text).with_context(|| format!("--input {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut calls = Vec::new();
        let mut ids = BTreeSet::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = index + 1;
            ensure!(calls.len() < CALLS_MAX, "line {number}: more than {CALLS_MAX} calls");
            let call: Call = serde_json::from_str(line).with_context(|| {
                format!("line {number}: want {{\"id\":1,\"type\":\"fetch\",\"queue\":\"demo-a\",\"path\":\"/items/1\"}}")
            })?;
            check(&call).with_context(|| format!("line {number}"))?;
            ensure!(ids.insert(call.id), "line {number}: id {} is there twice", call.id);
            calls.push(call);
        }
        ensure!(!calls.is_empty(), "no calls in it");
        let batch = Self(calls);
        let queues = batch.queues().len();
        ensure!(queues <= QUEUES_MAX, "{queues} different queues, allowed: up to {QUEUES_MAX}");
        Ok(batch)
    }

    /// How many calls there are.
    pub fn calls(&self) -> u64 {
        self.0.len() as u64
    }

    /// The task queues, each once.
    pub fn queues(&self) -> Vec<String> {
        self.0.iter().map(|call| call.queue.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The first `count` calls, from the beginning again when they don't suffice, numbered anew.
    pub fn take(&self, count: u64) -> impl Iterator<Item = Call> + '_ {
        (1..=count).zip(self.0.iter().cycle()).map(|(id, call)| Call { id, ..call.clone() })
    }

    /// Writes the first `count` calls to a file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, count: u64, path: &Path) -> Result<()> {
        let mut text = String::new();
        for call in self.take(count) {
            text.push_str(&serde_json::to_string(&call)?);
            text.push('\n');
        }
        fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
    }
}

fn check(call: &Call) -> Result<()> {
    if !TYPES.contains(&call.kind.as_str()) {
        bail!("type is {:?}, allowed: {}", call.kind, TYPES.join(", "));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if call.queue.is_empty() || call.queue.len() > 64 || !call.queue.chars().all(fits) {
        bail!("queue is {:?}, allowed: 1 to 64 letters, digits and dashes", call.queue);
    }
    let printable = |c: char| c.is_ascii_graphic();
    if !call.path.starts_with('/') || call.path.len() > 1_024 || !call.path.chars().all(printable) {
        bail!("path is {:?}, allowed: up to 1024 characters of ASCII that start with a slash", call.path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_call_is_refused_with_line_field_value_and_range() {
        let good = r#"{"id":1,"type":"fetch","queue":"demo-a","path":"/1"}"#;
        for (bad, parts) in [
            ("{", vec!["line 2"]),
            (r#"{"id":2,"type":"fetch","queue":"demo-a"}"#, vec!["line 2", "path"]),
            (r#"{"id":2,"type":"steal","queue":"demo-a","path":"/"}"#, vec!["line 2", "steal", "summarize"]),
            (r#"{"id":2,"type":"fetch","queue":"a b","path":"/"}"#, vec!["line 2", "a b", "dashes"]),
            (r#"{"id":2,"type":"fetch","queue":"a","path":"x"}"#, vec!["line 2", "slash"]),
            (good, vec!["line 2", "twice"]),
        ] {
            let error = format!("{:#}", Batch::parse(&format!("{good}\n{bad}\n")).unwrap_err());
            for part in parts {
                assert!(error.contains(part), "{error} names {part}");
            }
        }
        assert!(Batch::parse("\n").is_err());
    }

    #[test]
    fn a_longer_run_goes_through_the_batch_again_with_new_numbers() {
        let batch = Batch::parse(
            "{\"id\":7,\"type\":\"fetch\",\"queue\":\"a\",\"path\":\"/7\"}\n{\"id\":9,\"type\":\"summarize\",\"queue\":\"b\",\"path\":\"/9\"}",
        )
        .unwrap();
        let taken: Vec<_> = batch.take(3).map(|call| (call.id, call.path)).collect();
        assert_eq!(taken, [(1, "/7".to_owned()), (2, "/9".to_owned()), (3, "/7".to_owned())]);
        assert_eq!(batch.queues(), ["a", "b"]);
    }
}
