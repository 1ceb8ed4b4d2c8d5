//! `cargo xtask`: the tasks of this repository.

#![allow(
    clippy::print_stdout,
    reason = "a program for a terminal; `temporal-cli`, `python-sdk` and `prometheus` print their results"
)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{
    bench, chaos, checks, demo, downstream, prometheus, python_sdk, record_history, temporal_cli,
    workspace::Workspace,
};

/// Tasks of the tollgate repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check everything, from formatting to end-to-end tests on a real Temporal dev server.
    Test(checks::TestOptions),
    /// Run a batch on several worker processes that share one limit, through faults and a ramp.
    Demo(demo::DemoOptions),
    /// Break workers, coordinator hosts, the Temporal server and the workflows at random, and judge what comes of it.
    Chaos(chaos::ChaosOptions),
    /// Measure, with every figure beside its peer's; a full run writes BENCHMARKS.md.
    Bench(bench::BenchOptions),
    /// Serve HTTP with an allowance of its own and log every arrival: what the demo's workers call.
    Downstream(downstream::DownstreamOptions),
    /// Record the histories that tests of the workflows replay: all of them, or one from a running server.
    RecordHistory(record_history::RecordOptions),
    /// Print the path of a Temporal CLI that works here; download it when there is none.
    TemporalCli,
    /// Print the folder of Temporal's Python SDK, which tests use; download it when there is none.
    PythonSdk,
    /// Print the path of a Prometheus, which tests use; unpack Debian's when there is none.
    Prometheus,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.task) {
        Ok(code) => code,
        Err(error) => {
            // `{:#}` would put a chain of several lines on one line.
            xtask::report(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Test(options) => checks::run(&Workspace::find()?, &options),
        Task::Demo(options) => {
            demo::run(&Workspace::find()?, &options, demo::Judged::Everything).map(|()| ExitCode::SUCCESS)
        }
        Task::Chaos(options) => {
            chaos::run(&Workspace::find()?, &options, chaos::Judged::Everything).map(|()| ExitCode::SUCCESS)
        }
        Task::Bench(options) => bench::run(&Workspace::find()?, &options).map(|()| ExitCode::SUCCESS),
        Task::Downstream(options) => downstream::run(&options).map(|()| ExitCode::SUCCESS),
        Task::RecordHistory(options) => {
            record_history::run(&Workspace::find()?, &options).map(|()| ExitCode::SUCCESS)
        }
        Task::TemporalCli => {
            let found = temporal_cli::find_or_fetch(Workspace::find()?.root())?;
            println!("{}", found.path.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Prometheus => {
            println!("{}", prometheus::find_or_fetch(Workspace::find()?.root())?.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::PythonSdk => {
            println!("{}", python_sdk::find_or_fetch(Workspace::find()?.root())?.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}
