//! `tollgate`: rate limits for a fleet of workers, held by Temporal.

#![allow(clippy::print_stderr, reason = "a program for a terminal")]

use clap::Parser as _;
use std::process::ExitCode;
use tollgate_cli::args::Cli;
use tollgate_cli::failure::{EXIT_FAILED, EXIT_OK, EXIT_USAGE, Failure};

fn main() -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    let exit_usage = if Cli::names_plan(std::env::args_os()) { EXIT_FAILED } else { EXIT_USAGE };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && json => {
            let text = error.render().to_string();
            eprintln!("{}", Failure::Usage(text.trim_end().to_owned()).to_json());
            return ExitCode::from(exit_usage);
        }
        Err(error) => {
            // Help and version come this way too, and aren't errors. A closed standard output is nobody's fault.
            error.print().ok();
            return ExitCode::from(if error.use_stderr() { exit_usage } else { EXIT_OK });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: can't start: {error}");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let done = runtime.block_on(tollgate_cli::run(cli));
    // A name lookup that hangs, or a terminal that is read, keeps nobody waiting.
    runtime.shutdown_background();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if json {
                eprintln!("{}", failure.to_json());
            } else {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
