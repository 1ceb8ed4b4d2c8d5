//! `cargo xtask bench`: every figure beside its peer's, from the same run.
//!
//! - [`BENCHES`] lists what is measured; most of it by two programs, `real` of `tollgate-cli` (a Temporal server) and `core`
//!   of `tollgate-sim` (none), which print one JSON object each.
//! - `acquire` of `tollgate-worker` measures the hot path; [`instructions`] counts what times don't show on a busy machine.
//! - [`accuracy`] is measured here, with the demo's processes. [`redis`] finds the peer of `decision`.
//! - [`report`] writes BENCHMARKS.md and its pictures ([`plot`]); [`machine`] says where they come from.
//!
//! To add a benchmark, add a line to [`BENCHES`] and a section to [`report`].

pub mod accuracy;
pub mod instructions;
pub mod machine;
pub mod plot;
pub mod redis;
pub mod report;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::temporal_cli;
use crate::workspace::Workspace;

/// What `cargo xtask bench` takes.
#[derive(Debug, Clone, Default, Args)]
pub struct BenchOptions {
    /// Only these benchmarks; all if none is named.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// List the benchmarks and do nothing.
    #[arg(long)]
    pub list: bool,

    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Fewer and shorter rounds, to look at: the figures mean little.
    #[arg(long)]
    pub quick: bool,

    /// Count the instructions of one acquire and one heartbeat instead, and fail if they grew by more than a tenth.
    #[arg(long, conflicts_with_all = ["names", "quick", "json"])]
    pub check: bool,

    /// Count them, and keep the counts for later checks.
    #[arg(long, conflicts_with_all = ["names", "quick", "json", "check"])]
    pub bless: bool,

    /// Take the figures from this file instead of measuring, and write BENCHMARKS.md from them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "quick", "json"])]
    pub from: Option<PathBuf>,
}

/// One benchmark.
#[derive(Debug)]
pub struct Bench {
    /// Its name, also that of its part of the JSON.
    pub name: &'static str,
    /// What it measures.
    pub purpose: &'static str,
    /// Where it is.
    pub by: By,
}

/// What measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A bench target of the workspace, called with the benchmark's name.
    Program(&'static str),
    /// [`accuracy`].
    Fleet,
}

/// All benchmarks, in their order: those that need a quiet machine most come first.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "acquire",
        purpose: "one permit from the local bucket against governor, on one thread and on two",
        by: By::Program("acquire"),
    },
    Bench {
        name: "growth",
        purpose: "cost of a heartbeat in the ledger as workers and limits grow",
        by: By::Program("core"),
    },
    Bench { name: "sim", purpose: "steps a second of the simulator", by: By::Program("core") },
    Bench {
        name: "state",
        purpose: "size and time of what is carried through continue-as-new",
        by: By::Program("real"),
    },
    Bench { name: "replay", purpose: "cold replay of a full run of a coordinator", by: By::Program("real") },
    Bench {
        name: "coordinator",
        purpose: "heartbeats a second against a workflow that does nothing",
        by: By::Program("real"),
    },
    Bench {
        name: "decision",
        purpose: "one permit for a fleet: tollgate, a script in Redis, and strict permits",
        by: By::Program("real"),
    },
    Bench {
        name: "looks",
        purpose: "how long `status` and `explain` take on a fleet of 200 workers with 20 limits",
        by: By::Program("real"),
    },
    Bench {
        name: "transport",
        purpose: "heartbeats by update and by signals alone, at 10, 50 and 200 workers",
        by: By::Program("real"),
    },
    Bench {
        name: "accuracy",
        purpose: "the same batch under Temporal's own task-queue limit and under tollgate",
        by: By::Fleet,
    },
];

/// Measures, shows what was reached, and after a full run writes BENCHMARKS.md.
///
/// # Errors
/// When a benchmark doesn't build or run. A figure that misses what is wanted is shown, and is no error: times depend on
/// the machine.
pub fn run(workspace: &Workspace, options: &BenchOptions) -> Result<()> {
    if options.list {
        for bench in BENCHES {
            println!("{:12} {}", bench.name, bench.purpose);
        }
        return Ok(());
    }
    if options.check || options.bless {
        let mode = if options.bless { instructions::Mode::Bless } else { instructions::Mode::Check };
        for (name, count) in instructions::run(workspace, mode)? {
            println!("{name:12} {count:>9} instructions");
        }
        return Ok(());
    }
    if let Some(file) = &options.from {
        let text = fs::read_to_string(file).with_context(|| format!("--from {}", file.display()))?;
        let figures: Value =
            serde_json::from_str(&text).with_context(|| format!("--from {}", file.display()))?;
        return finish(workspace, &figures, true);
    }
    let benches = chosen(&options.names)?;
    if let Some(path) = &options.json {
        fs::write(path, "").with_context(|| format!("--json {}: can't write this file", path.display()))?;
    }
    let programs = build(workspace, &benches)?;
    let Value::Object(mut figures) = machine::facts(workspace) else { bail!("no facts about this machine") };
    figures.insert("quick".to_owned(), json!(options.quick));
    for (index, bench) in benches.iter().enumerate() {
        eprintln!("\n==> benchmark {} of {}: {} ({})", index + 1, benches.len(), bench.name, bench.purpose);
        let began = Instant::now();
        let seen = match bench.by {
            By::Program(program) => {
                let path = programs.get(program).with_context(|| format!("cargo built no {program}"))?;
                program_says(workspace, path, bench, options.quick)?
            }
            By::Fleet => accuracy::run(workspace, options.quick)?,
        };
        figures.insert(bench.name.to_owned(), seen);
        eprintln!("<== {}: {:.0} s", bench.name, began.elapsed().as_secs_f64());
        // What was measured isn't lost when a later benchmark fails.
        write_json(options, &figures)?;
    }
    let full = benches.len() == BENCHES.len() && !options.quick;
    finish(workspace, &figures.into(), full)
}

fn finish(workspace: &Workspace, figures: &Value, write: bool) -> Result<()> {
    if let Some(reached) = report::reached(figures) {
        println!("\n{reached}");
    }
    if write {
        for path in report::write(workspace, figures)? {
            println!("wrote {}", path.display());
        }
    }
    Ok(())
}

fn write_json(options: &BenchOptions, figures: &Map<String, Value>) -> Result<()> {
    let Some(path) = &options.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(figures)? + "\n";
    fs::write(path, text).with_context(|| format!("--json {}: can't write this file", path.display()))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Bench>> {
    for name in names {
        if !BENCHES.iter().any(|bench| bench.name == name.as_str()) {
            let all = BENCHES.iter().map(|bench| bench.name).collect::<Vec<_>>();
            bail!("{name}: no such benchmark; there are {}", all.join(", "));
        }
    }
    let wanted = |bench: &&Bench| names.is_empty() || names.iter().any(|name| name == bench.name);
    Ok(BENCHES.iter().filter(wanted).collect())
}

/// Builds the programs that are needed, with cargo's own progress, and says where they are.
fn build(workspace: &Workspace, benches: &[&Bench]) -> Result<BTreeMap<&'static str, PathBuf>> {
    let mut programs: Vec<&'static str> = benches
        .iter()
        .filter_map(|bench| match bench.by {
            By::Program(program) => Some(program),
            By::Fleet => None,
        })
        .collect();
    programs.sort_unstable();
    programs.dedup();
    if programs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut command = workspace.cargo();
    // Of the whole workspace, so that each choice of benchmarks has the same features and nothing is built twice.
    command.args(["bench", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    for program in &programs {
        command.args(["--bench", program]);
    }
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cargo does not run")?;
    if !output.status.success() {
        bail!("the benchmarks do not build ({}); see the errors above", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let path = |name| Ok((name, executable(&text, name).with_context(|| format!("cargo built no {name}"))?));
    programs.into_iter().map(path).collect()
}

fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        target: Target,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let mut ours = messages.filter(|message| {
        message.target.name == name && message.target.kind.iter().any(|kind| kind == "bench")
    });
    ours.find_map(|message| message.executable)
}

/// Runs a program; its part of the figures is what it prints under the benchmark's name.
fn program_says(workspace: &Workspace, path: &PathBuf, bench: &Bench, quick: bool) -> Result<Value> {
    let mut command = Command::new(path);
    command.current_dir(workspace.root());
    if bench.name == "acquire" {
        command.arg("--json").args(quick.then_some(["--rounds", "21"]).into_iter().flatten());
    } else {
        command.arg(bench.name).args(quick.then_some("--quick"));
    }
    if bench.by == By::Program("real") {
        command.env(temporal_cli::OVERRIDE_VARIABLE, temporal_cli::find_or_fetch(workspace.root())?.path);
    }
    if bench.name == "decision" {
        let server = redis::find_or_fetch(workspace.root())?;
        eprintln!("  Redis {}", server.version);
        server.tell(&mut command);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("{} does not run", path.display()))?;
    if !output.status.success() {
        bail!("benchmark {} failed ({}); see above", bench.name, output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Value = serde_json::from_str(text.trim())
        .with_context(|| format!("benchmark {} prints no JSON object: {text:?}", bench.name))?;
    figures.get(bench.name).cloned().with_context(|| format!("no {:?} in {text:?}", bench.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_that_there_is_not_is_refused_with_those_that_there_are() {
        let error = chosen(&["growth".to_owned(), "spped".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("spped") && error.contains("coordinator, decision"), "{error}");
        let names: Vec<_> = chosen(&["sim".to_owned()]).unwrap().iter().map(|bench| bench.name).collect();
        assert_eq!(names, ["sim"]);
        assert_eq!(chosen(&[]).unwrap().len(), BENCHES.len());
    }

    #[test]
    fn a_bench_program_is_not_taken_for_a_library_of_the_same_name() {
        let messages = concat!(
            "{\"target\":{\"name\":\"core\",\"kind\":[\"lib\"]},\"executable\":\"/t/lib\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\nno json\n",
            "{\"target\":{\"name\":\"core\",\"kind\":[\"bench\"]},\"executable\":\"/t/core\"}\n",
        );
        assert_eq!(executable(messages, "core"), Some(PathBuf::from("/t/core")));
        assert_eq!(executable(messages, "real"), None);
    }
}
