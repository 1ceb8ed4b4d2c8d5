//! `cargo xtask test`: everything that must hold, as an ordered list of steps.
//!
//! To add a step, write a function that takes a [`Session`] and add a line to [`STEPS`].

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::workspace::Workspace;
use crate::{chaos, demo, prometheus, python_sdk, report, rules, temporal_cli};

/// What `cargo xtask test` takes.
#[derive(Debug, Clone, Default, Args)]
pub struct TestOptions {
    /// List the steps and do nothing.
    #[arg(long)]
    pub list: bool,

    /// Do only this step; may be given several times.
    #[arg(long, value_name = "STEP")]
    pub only: Vec<String>,

    /// Go on after a step has failed.
    #[arg(long)]
    pub keep_going: bool,
}

/// A step of the test run.
pub struct Step {
    /// One word, for `--only` and the summary.
    pub name: &'static str,
    /// What it makes sure of.
    pub purpose: &'static str,
    /// Does it. An error says what to do.
    pub run: fn(&Session<'_>) -> Result<()>,
}

/// All steps, in their order: the quick ones first, and each after what it needs.
pub const STEPS: &[Step] = &[
    Step { name: "fmt", purpose: "the code is formatted", run: fmt },
    Step { name: "clippy", purpose: "no lint complains about any target", run: clippy },
    Step {
        name: "rules",
        purpose: "dependencies point one way and pure crates are pure",
        run: dependency_rules,
    },
    Step { name: "build", purpose: "every target builds", run: build },
    Step { name: "temporal", purpose: "there is a Temporal CLI for end-to-end tests", run: temporal },
    Step { name: "python", purpose: "there is Temporal's Python SDK for the same", run: python },
    Step { name: "prometheus", purpose: "there is a Prometheus for the same", run: find_prometheus },
    Step { name: "test", purpose: "all tests pass, those on a real Temporal server too", run: test },
    Step {
        name: "demo",
        purpose: "a short demo keeps its promises, with real processes and kills",
        run: short_demo,
    },
    Step {
        name: "chaos",
        purpose: "a minute of kills, pauses and cuts breaks no promise, with the server in a file",
        run: short_chaos,
    },
    Step { name: "doc", purpose: "the documentation builds and its links work", run: doc },
];

/// What steps share.
#[derive(Debug)]
pub struct Session<'a> {
    workspace: &'a Workspace,
    temporal_cli: OnceCell<PathBuf>,
    python_sdk: OnceCell<PathBuf>,
    prometheus: OnceCell<PathBuf>,
}

impl<'a> Session<'a> {
    fn new(workspace: &'a Workspace) -> Self {
        Self {
            workspace,
            temporal_cli: OnceCell::new(),
            python_sdk: OnceCell::new(),
            prometheus: OnceCell::new(),
        }
    }

    /// The path of the Temporal CLI, found or downloaded at the first call.
    ///
    /// # Errors
    /// When none works.
    pub fn temporal_cli(&self) -> Result<&Path> {
        if let Some(path) = self.temporal_cli.get() {
            return Ok(path);
        }
        let found = temporal_cli::find_or_fetch(self.workspace.root())?;
        eprintln!("Temporal CLI {} at {}", found.version, found.path.display());
        Ok(self.temporal_cli.get_or_init(|| found.path))
    }

    /// The folder of Temporal's Python SDK, found or downloaded at the first call.
    ///
    /// # Errors
    /// When there is none that works.
    pub fn python_sdk(&self) -> Result<&Path> {
        if let Some(path) = self.python_sdk.get() {
            return Ok(path);
        }
        let found = python_sdk::find_or_fetch(self.workspace.root())?;
        eprintln!("Python SDK of Temporal at {}", found.display());
        Ok(self.python_sdk.get_or_init(|| found))
    }

    /// The path of a Prometheus, found or unpacked at the first call.
    ///
    /// # Errors
    /// When none works.
    pub fn prometheus(&self) -> Result<&Path> {
        if let Some(path) = self.prometheus.get() {
            return Ok(path);
        }
        let found = prometheus::find_or_fetch(self.workspace.root())?;
        eprintln!("Prometheus at {}", found.display());
        Ok(self.prometheus.get_or_init(|| found))
    }

    /// A cargo command in the workspace.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.workspace.cargo();
        command.args(arguments);
        command
    }
}

/// Runs the steps and prints a summary, whose last line is `steps: N passed, N failed`.
///
/// # Errors
/// When the options name a step that there isn't. A failed step is part of the result.
pub fn run(workspace: &Workspace, options: &TestOptions) -> Result<ExitCode> {
    let steps = chosen(options)?;
    if options.list {
        for step in steps {
            println!("{:10} {}", step.name, step.purpose);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let session = Session::new(workspace);
    let outcomes = run_steps(&steps, &session, options.keep_going);
    println!("\n{}", summary(&steps, &outcomes));
    let success = outcomes.iter().all(|outcome| outcome.passed);
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Clone, Copy)]
struct Outcome {
    passed: bool,
    took: Duration,
}

fn chosen(options: &TestOptions) -> Result<Vec<&'static Step>> {
    for name in &options.only {
        if !STEPS.iter().any(|step| step.name == name.as_str()) {
            let names = STEPS.iter().map(|step| step.name).collect::<Vec<_>>();
            bail!("--only {name}: no such step; there are {}", names.join(", "));
        }
    }
    let wanted = |step: &&Step| options.only.is_empty() || options.only.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(wanted).collect())
}

/// Runs the steps in order, up to the first that fails unless told to go on.
fn run_steps(steps: &[&Step], session: &Session<'_>, keep_going: bool) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        println!("\n==> step {} of {}: {} ({})", index + 1, steps.len(), step.name, step.purpose);
        let begin = Instant::now();
        let result = (step.run)(session);
        let outcome = Outcome { passed: result.is_ok(), took: begin.elapsed() };
        outcomes.push(outcome);
        match result {
            Ok(()) => println!("<== {}: passed in {:.1} s", step.name, outcome.took.as_secs_f64()),
            Err(error) => {
                report(&error);
                println!("<== {}: FAILED after {:.1} s", step.name, outcome.took.as_secs_f64());
                if !keep_going {
                    break;
                }
            }
        }
    }
    outcomes
}

fn summary(steps: &[&Step], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for (index, step) in steps.iter().enumerate() {
        let line = match outcomes.get(index) {
            Some(Outcome { passed: true, took }) => format!("passed {:9.1} s", took.as_secs_f64()),
            Some(Outcome { passed: false, took }) => format!("FAILED {:9.1} s", took.as_secs_f64()),
            None => "not run".to_owned(),
        };
        text.push_str(&format!("  {:10} {line}\n", step.name));
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    let total = outcomes.iter().map(|outcome| outcome.took).sum::<Duration>();
    text.push_str(&format!("  {:10} {:16.1} s\n", "together", total.as_secs_f64()));
    text.push_str(&format!("steps: {passed} passed, {} failed", outcomes.len() - passed));
    text
}

fn fmt(session: &Session<'_>) -> Result<()> {
    succeed(session.cargo(&["fmt", "--all", "--check"]), "run `cargo fmt --all`")
}

fn clippy(session: &Session<'_>) -> Result<()> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    succeed(session.cargo(&arguments), "see the lints above")
}

fn dependency_rules(session: &Session<'_>) -> Result<()> {
    let facts = rules::gather(session.workspace)?;
    let complaints = rules::check(&facts);
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} dependency rules are broken; they are explained in xtask/src/rules", complaints.len());
    }
    let names = facts.packages.iter().map(|package| package.name.as_str()).collect::<Vec<_>>();
    println!("checked {}", names.join(", "));
    Ok(())
}

fn build(session: &Session<'_>) -> Result<()> {
    succeed(session.cargo(&["build", "--workspace", "--all-targets"]), "see the errors above")
}

fn temporal(session: &Session<'_>) -> Result<()> {
    session.temporal_cli().map(drop)
}

fn python(session: &Session<'_>) -> Result<()> {
    session.python_sdk().map(drop)
}

fn find_prometheus(session: &Session<'_>) -> Result<()> {
    session.prometheus().map(drop)
}

fn test(session: &Session<'_>) -> Result<()> {
    let mut command = session.cargo(&["test", "--workspace"]);
    command.env(temporal_cli::OVERRIDE_VARIABLE, session.temporal_cli()?);
    command.env(python_sdk::OVERRIDE_VARIABLE, session.python_sdk()?);
    command.env(prometheus::OVERRIDE_VARIABLE, session.prometheus()?);
    succeed(command, "see the failed tests above")
}

fn short_demo(session: &Session<'_>) -> Result<()> {
    demo::run(session.workspace, &demo::DemoOptions::short(), demo::Judged::Promises)
}

fn short_chaos(session: &Session<'_>) -> Result<()> {
    chaos::run(session.workspace, &chaos::ChaosOptions::short(), chaos::Judged::Promises)
}

fn doc(session: &Session<'_>) -> Result<()> {
    let mut command = session.cargo(&["doc", "--workspace", "--all-features", "--no-deps", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    succeed(command, "see the warnings above")
}

/// Runs a command with our own output and turns its failure into an error.
fn succeed(mut command: Command, advice: &str) -> Result<()> {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    let shown = format!("cargo {}", arguments.collect::<Vec<_>>().join(" "));
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("can't start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}): {advice}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
