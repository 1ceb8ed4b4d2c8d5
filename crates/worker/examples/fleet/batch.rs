//! `fleet batch`: runs a batch as workflows, each with a bounded number of calls under way.

#![allow(unreachable_pub, reason = "the macros make public names")]

use crate::calls::{Call, Calls};
use crate::{BatchOptions, Failure, connect};
use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, pin_mut, select};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use temporalio_client::errors::WorkflowGetResultError;
use temporalio_client::{WorkflowGetResultOptions, WorkflowStartOptions};
use temporalio_common::RetryPolicy;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::workflows::join_all;
use temporalio_sdk::{ActivityOptions, Runtime, Worker, WorkflowContext, WorkflowResult};

/// One attempt of a call, waiting for a permit included: what a worker's death costs its calls.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// A call that failed comes again after this. It never gives up.
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// A part of the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    calls: VecDeque<Call>,
    lanes: u16,
}

/// Runs its part of the batch and returns how many calls were answered.
#[workflow]
#[derive(Default)]
pub struct Batch {
    calls: VecDeque<Call>,
    done: u64,
}

#[workflow_methods]
impl Batch {
    #[run(name = "demo.batch")]
    pub async fn run(ctx: &mut WorkflowContext<Self>, part: Part) -> WorkflowResult<u64> {
        ctx.state_mut(|me| me.calls = part.calls);
        let lanes: Vec<_> = (0..part.lanes).map(|_| lane(ctx.clone())).collect();
        for lane in join_all(lanes).await {
            lane?;
        }
        Ok(ctx.state(|me| me.done))
    }
}

async fn lane(ctx: WorkflowContext<Batch>) -> WorkflowResult<()> {
    while let Some(call) = ctx.state_mut(|me| me.calls.pop_front()) {
        let retries = RetryPolicy::builder().initial_interval(RETRY_EVERY).backoff_coefficient(1.0).build();
        let options = ActivityOptions::with_start_to_close_timeout(ATTEMPT_TIMEOUT)
            .task_queue(call.queue.clone())
            .retry_policy(retries)
            .build();
        if call.kind == "summarize" {
            ctx.execute_activity(Calls::summarize, call, options).await?;
        } else {
            ctx.execute_activity(Calls::fetch, call, options).await?;
        }
        ctx.state_mut(|me| me.done += 1);
    }
    Ok(())
}

pub(crate) async fn run(options: &BatchOptions) -> Result<(), Failure> {
    let text = std::fs::read_to_string(&options.input)?;
    let mut calls: Vec<Call> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for call in &mut calls {
        call.queue = format!("{}-{}", call.queue, options.run);
    }
    let total = calls.len();
    let mut parts = vec![VecDeque::new(); usize::from(options.workflows)];
    let count = parts.len();
    for (index, call) in calls.into_iter().enumerate() {
        if let Some(part) = parts.get_mut(index % count) {
            part.push_back(call);
        }
    }
    parts.retain(|part| !part.is_empty());

    let client = connect(format!("demo/batch-{}", options.run)).await?;
    let runtime = Runtime::from_current_tokio(RuntimeOptions::builder().heartbeat_interval(None).build()?)?;
    let queue = format!("demo-batch-{}", options.run);
    let settings = temporalio_sdk::WorkerOptions::new(queue.clone()).register_workflow::<Batch>()?.build();
    let mut worker = Worker::new(&runtime, client.clone(), settings)?;
    let stop = worker.shutdown_handle();
    let drive = async {
        println!("ready");
        let runs = parts.into_iter().enumerate().map(|(index, calls)| {
            let (client, queue, run, lanes) =
                (client.clone(), queue.clone(), options.run.clone(), options.lanes);
            async move {
                let id = format!("demo-{run}-{index:03}");
                let part = Part { calls, lanes };
                let handle = client
                    .start_workflow(Batch::run, part, WorkflowStartOptions::new(queue, id).build())
                    .await?;
                loop {
                    match handle.get_result(WorkflowGetResultOptions::default()).await {
                        // The server is away, and the workflow is in its file.
                        Err(WorkflowGetResultError::Rpc(status)) => {
                            tracing::warn!(%status, "asking for the result again");
                            tokio::time::sleep(RETRY_EVERY).await;
                        }
                        done => return Ok::<u64, Failure>(done?),
                    }
                }
            }
        });
        let done: u64 = try_join_all(runs).await?.into_iter().sum();
        println!("completed {done} of {total}");
        Ok::<(), Failure>(())
    };
    let drive = drive.fuse();
    let work = worker.run().fuse();
    pin_mut!(drive, work);
    select! {
        done = drive => {
            done?;
            stop();
            work.await?;
            Ok(())
        }
        ended = work => {
            ended?;
            Err("the workflows' worker ended by itself".into())
        }
    }
}
