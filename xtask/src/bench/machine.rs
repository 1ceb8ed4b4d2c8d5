//! Where and on what a benchmark ran.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::workspace::Workspace;

/// Machine, commit and date, as far as they can be told.
pub fn facts(workspace: &Workspace) -> Value {
    let processor = field("/proc/cpuinfo", "model name");
    let memory = field("/proc/meminfo", "MemTotal");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "machine": {
            "processor": processor,
            "processors": processors,
            "memory": memory,
            "kernel": kernel.trim(),
            "load_at_begin": load(),
        },
        "rust": said(Command::new("rustc").arg("--version").current_dir(workspace.root())),
        "commit": commit(workspace),
        "date": said(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"])),
    })
}

/// The load over the last minute: figures of a machine that does other things too are worth less.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The commit, and whether there are changes that it doesn't have. What this command writes itself doesn't count.
fn commit(workspace: &Workspace) -> String {
    let git = |arguments: &[&str]| said(Command::new("git").args(arguments).current_dir(workspace.root()));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changes = git(&["status", "--porcelain", "--", ".", ":!BENCHMARKS.md", ":!docs/bench"]);
    if changes.is_empty() { commit } else { format!("{commit} with changes") }
}

fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
    line.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

fn said(command: &mut Command) -> String {
    let output = command.output().ok().filter(|output| output.status.success());
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
