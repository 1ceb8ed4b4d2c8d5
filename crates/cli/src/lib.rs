//! The program `tollgate`: a dev server, the coordinator host, and commands for operators.
//!
//! - [`args`] is the command line, [`commands`] what it does;
//! - [`file`](mod@file) reads and writes files of limits;
//! - [`layers`] reads temporary changes and schedules as people type them;
//! - [`settings`] is where Temporal is, [`connection`] the one way to the workflows: it puts every error into words;
//! - [`host`] runs the coordinators' code, [`alarm`] tells its log of limits that starve somebody, [`metrics`] what it
//!   shows to Prometheus, [`temporal_server`] a Temporal dev server beneath it.
//!
//! It decides nothing about limits: that is up to the workflows.

pub mod actor;
pub mod alarm;
pub mod args;
pub mod commands;
pub mod connection;
pub mod failure;
pub mod file;
pub mod host;
pub mod layers;
pub mod logging;
pub mod metrics;
pub mod moment;
pub mod quantity;
pub mod settings;
pub mod signals;
pub mod table;
pub mod temporal_server;

use args::{Cli, Command};
use clap::CommandFactory as _;
use failure::Failure;

/// Does what the command line says, and gives the exit code.
///
/// # Errors
/// [`Failure`], with the exit code that goes with it.
pub async fn run(cli: Cli) -> Result<u8, Failure> {
    let global = &cli.global;
    let done = match &cli.command {
        // A script must be able to tell changes from wrong usage, which has the same exit code elsewhere.
        Command::Plan(options) => {
            return commands::apply::plan(global, options).await.map_err(Failure::not_usage);
        }
        Command::Apply(options) => commands::apply::apply(global, options).await,
        Command::Validate(files) => commands::apply::validate(global, files),
        Command::Export(options) => commands::apply::export(global, options).await,
        Command::Schema => commands::print(file::SCHEMA),
        Command::Dev(options) => commands::dev::run(global, options).await,
        Command::Serve(options) => commands::serve::run(global, options).await,
        Command::Limit(command) => commands::limit::run(global, command).await,
        Command::Schedule(command) => commands::schedule::run(global, command).await,
        Command::Config(command) => commands::config::run(global, command).await,
        Command::Audit(options) => commands::audit::run(global, options).await,
        Command::Status(options) => commands::status::run(global, options).await,
        Command::Tail(options) => commands::tail::run(global, options).await,
        Command::Top(options) => commands::top::run(global, options).await,
        Command::Explain(options) => commands::explain::run(global, options).await,
        Command::Worker(command) => commands::worker::run(global, command).await,
        Command::Ramp(command) => commands::ramp::run(global, command).await,
        Command::BenchLimit(options) => commands::bench_limit::run(global, options),
        Command::Replay(options) => commands::replay::run(global, options).await,
        Command::HistoryExport(options) => commands::history::run(global, options).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tollgate", &mut script);
            commands::print(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => clap_mangen::generate_to(Cli::command(), directory)
            .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display()))),
    };
    done.map(|()| failure::EXIT_OK)
}
