//! Benchmarks on a real Temporal server: `coordinator`, `decision`, `looks`, `replay`, `transport`, and `state`, which needs none but what the
//! coordinator carries.
//!
//! `real NAME [--quick]` prints one JSON object; what it is doing meanwhile goes to standard error. `cargo xtask bench` runs
//! it and names the programs that it needs: the Temporal CLI by TOLLGATE_TEMPORAL_CLI, redis-server by
//! TOLLGATE_REDIS_SERVER.
//!
//! The server, the hosts of the workflows and this client share one machine; the hosts are processes of their own.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints measured figures"
)]

mod bare;
mod coordinator;
mod decision;
mod figures;
mod heartbeat;
mod looks;
mod redis_server;
mod replay;
mod stage;
mod state;
mod transport;

use serde_json::json;
use std::process::ExitCode;

/// What a benchmark may fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    // `cargo bench` adds `--bench`.
    let named = arguments.iter().find(|argument| !argument.starts_with("--")).map(String::as_str);
    // As the coordinator's host has it.
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: can't start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = match named {
        Some("coordinator") => {
            runtime.block_on(coordinator::run(quick)).map(|figures| Some(json!({ "coordinator": figures })))
        }
        Some("decision") => {
            decision::run(&runtime, quick).map(|figures| Some(json!({ "decision": figures })))
        }
        Some("replay") => {
            runtime.block_on(replay::run(quick)).map(|figures| Some(json!({ "replay": figures })))
        }
        Some("looks") => runtime.block_on(looks::run(quick)).map(|figures| Some(json!({ "looks": figures }))),
        Some("transport") => {
            runtime.block_on(transport::run(quick)).map(|figures| Some(json!({ "transport": figures })))
        }
        Some("state") => state::run(quick).map(|figures| Some(json!({ "state": figures }))),
        // Started by the stage.
        Some("bare-host") => runtime.block_on(bare::host()).map(|()| None),
        other => Err(format!(
            "{other:?} is no benchmark: give coordinator, decision, looks, replay, state or transport"
        )
        .into()),
    };
    runtime.shutdown_background();
    match done {
        Ok(figures) => {
            if let Some(figures) = figures {
                println!("{figures}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
