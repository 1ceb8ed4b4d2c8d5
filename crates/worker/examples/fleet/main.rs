//! The demo's processes: `fleet worker` runs activities that call a downstream, `fleet batch` runs a batch of them.
//!
//! A worker shares one limit with all others through a [`tollgate_worker::Gate`]. With `--local-only` it keeps to the same
//! figures on its own instead, as a process does that doesn't know of the others. Connection settings come from Temporal's
//! own variables. `cargo xtask demo` starts these processes, and reads what they write; see [`notes`].

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "programs of a demonstration talk to who started them"
)]

mod batch;
mod calls;
mod local;
mod notes;
mod worker;

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::{Client, ClientOptions, Connection};

/// What these programs may fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about = "Processes of tollgate's demo")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run activities that call the downstream, each only with a permit
    Worker(WorkerOptions),
    /// Run a batch of calls as workflows, and say how far they are
    Batch(BatchOptions),
}

#[derive(Debug, Args)]
struct WorkerOptions {
    /// Its name in status and logs
    #[arg(long)]
    name: String,
    /// A task queue to take activities from; may be given several times
    #[arg(long = "queue", required = true)]
    queues: Vec<String>,
    /// Base address of the downstream
    #[arg(long)]
    downstream: String,
    /// The limit that every call costs one of
    #[arg(long)]
    limit: String,
    /// Activities that may run at a time, for each task queue
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    slots: u16,
    /// Ask nobody: keep to RATE:BURST in this process alone
    #[arg(long, value_name = "RATE:BURST")]
    local_only: Option<local::Figures>,
    /// Folder for what it writes down
    #[arg(long)]
    notes: PathBuf,
    /// Serve its metrics there, over HTTP at /metrics; port 0 is any that is free
    #[arg(long, value_name = "IP:PORT", conflicts_with = "local_only")]
    metrics: Option<SocketAddr>,
}

#[derive(Debug, Args)]
struct BatchOptions {
    /// File with one call a line
    #[arg(long)]
    input: PathBuf,
    /// Workflows that share the batch
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
    workflows: u16,
    /// Calls that one workflow has under way
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
    lanes: u16,
    /// Name of this run: part of the workflows' ids, and the end of the task queues' names
    #[arg(long)]
    run: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: can't start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match &cli.role {
            Role::Worker(options) => worker::run(options).await,
            Role::Batch(options) => batch::run(options).await,
        }
    });
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A client by Temporal's own variables.
async fn connect(identity: String) -> Result<Client, Failure> {
    let options = LoadClientConfigProfileOptions::default();
    let (mut connection, client) =
        ClientOptions::load_from_config(options).map_err(|error| error.to_string())?;
    connection.identity = identity;
    connection.connect_timeout = Some(Duration::from_secs(5));
    Ok(Client::new(Connection::connect(connection).await?, client)?)
}
