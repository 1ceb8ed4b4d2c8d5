//! The worker that runs the workflows and activities of all groups.

use crate::Hosted;
use std::time::Duration;
use temporalio_client::Client;
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::{Runtime, Worker, WorkerOptions};
use tollgate_workflows::config::Config;
use tollgate_workflows::contracts::TASK_QUEUE;
use tollgate_workflows::coordinator::Coordinator;
use tollgate_workflows::preload::Preload;

/// How long a message waits for the host that knows its workflow before any host may take it: what a host that was killed
/// costs the messages after it.
const STICKY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long running activities may take once the host is told to stop; none takes longer by itself.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Why a host can't go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is no tokio runtime, or it doesn't suit.
    #[error("setting up the host: {0}")]
    Runtime(String),
    /// A workflow can't be registered.
    #[error("registering the workflows: {0}")]
    Register(String),
    /// Temporal doesn't accept the worker: does the namespace exist?
    #[error("connecting the host: {0}")]
    Create(#[from] temporalio_sdk::WorkerCreateError),
    /// The worker ended by itself.
    #[error("the host ended: {0}")]
    Run(#[from] temporalio_sdk::WorkerRunError),
}

/// Options of a worker that runs the workflows and activities of all groups.
///
/// # Errors
/// [`HostError::Register`], which would be a mistake in this crate.
pub fn host_worker_options() -> Result<WorkerOptions, HostError> {
    let register = |error: &dyn std::fmt::Display| HostError::Register(error.to_string());
    Ok(WorkerOptions::new(TASK_QUEUE)
        .sticky_queue_schedule_to_start_timeout(STICKY_TIMEOUT)
        .graceful_shutdown_period(SHUTDOWN_GRACE)
        .register_workflow::<Coordinator>()
        .map_err(|error| register(&error))?
        .register_workflow::<Config>()
        .map_err(|error| register(&error))?
        .register_workflow::<Preload>()
        .map_err(|error| register(&error))?
        .register_activities(Hosted)
        .build())
}

/// Runs a host until `stop` is done, then lets it finish what it has begun. A server that goes away is waited for. The
/// future isn't `Send`: await it in `main` or on a `LocalSet`.
///
/// # Errors
/// [`HostError`] when the host can't begin or go on.
pub async fn run_host(client: Client, stop: impl Future<Output = ()>) -> Result<(), HostError> {
    let runtime = |error: &dyn std::fmt::Display| HostError::Runtime(error.to_string());
    let options =
        RuntimeOptions::builder().heartbeat_interval(None).build().map_err(|error| runtime(&error))?;
    let runtime = Runtime::from_current_tokio(options).map_err(|error| runtime(&error))?;
    let mut worker = Worker::new(&runtime, client, host_worker_options()?)?;
    let shut_down = worker.shutdown_handle();
    let mut run = std::pin::pin!(worker.run());
    tokio::select! {
        ended = &mut run => return Ok(ended?),
        () = stop => {}
    }
    tracing::info!("the host stops");
    shut_down();
    Ok(run.await?)
}
