//! What Temporal costs by itself: a workflow whose update does nothing but answer, on a worker with the settings of the
//! coordinator's host.

#![allow(unreachable_pub, reason = "the macros make public names")]

use crate::Failure;
use std::time::Duration;
use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::{Client, ClientOptions, Connection};
use temporalio_common::data_converters::RawValue;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::{
    Runtime, SyncWorkflowContext, Worker, WorkerOptions, WorkflowContext, WorkflowContextView, WorkflowResult,
};

/// Its task queue.
pub(crate) const QUEUE: &str = "bench-bare";
/// Its type.
pub(crate) const KIND: &str = "bench.bare";

/// Answers every update with what it was started with.
#[workflow]
pub struct Bare {
    answer: RawValue,
}

#[workflow_methods]
impl Bare {
    #[init]
    pub fn new(_ctx: &WorkflowContextView, answer: RawValue) -> Self {
        Bare { answer }
    }

    #[run(name = "bench.bare")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<RawValue> {
        ctx.wait_condition(|_| false).await?;
        Ok(RawValue::default())
    }

    #[update(name = "heartbeat")]
    pub fn heartbeat(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _input: RawValue) -> RawValue {
        self.answer.clone()
    }

    /// Does nothing, as little as the update does.
    #[signal(name = "report")]
    pub fn report(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _input: RawValue) {}
}

/// Runs it until it is killed.
pub(crate) async fn host() -> Result<(), Failure> {
    let (connection, options) = ClientOptions::load_from_config(LoadClientConfigProfileOptions::default())
        .map_err(|error| error.to_string())?;
    let client = Client::new(Connection::connect(connection).await?, options)?;
    let runtime = Runtime::from_current_tokio(RuntimeOptions::builder().heartbeat_interval(None).build()?)?;
    let options = WorkerOptions::new(QUEUE)
        .sticky_queue_schedule_to_start_timeout(Duration::from_secs(1))
        .graceful_shutdown_period(Duration::from_secs(5))
        .register_workflow::<Bare>()?
        .build();
    Worker::new(&runtime, client, options)?.run().await?;
    Ok(())
}
