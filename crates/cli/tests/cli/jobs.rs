//! Workflows as a user writes them, which take permits before they schedule an activity, and a worker that runs them.

#![allow(
    unreachable_pub,
    dead_code,
    reason = "the macros make public names, and some for callers that there aren't"
)]

use crate::world::{World, read};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::thread::JoinHandle;
use std::time::Duration;
use temporalio_client::errors::WorkflowGetResultError;
use temporalio_client::{
    Client, UntypedWorkflow, WorkflowCancelOptions, WorkflowGetResultOptions, WorkflowStartOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::{RetryPolicy, UntypedActivity};
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::activities::{ActivityContext, ActivityError, activities};
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::{
    ActivityOptions, ContinueAsNewOptions, Runtime, SyncWorkflowContext, Worker, WorkerOptions,
    WorkflowContext, WorkflowContextView, WorkflowResult,
};
use temporalio_workflow::workflows::select;
use temporalio_workflow::{TimerOptions, WaitConditionOptions, WorkflowCancellationToken};
use tokio::sync::oneshot;
use tollgate_worker::{ActivityGate, CurrentPermit, Gate};
use tollgate_workflows::permits::{Ask, CarriedPermits, Permits, carrier};
use tollgate_workflows::wire;

/// The task queue of jobs.
const QUEUE: &str = "jobs";
/// The limit of all jobs.
pub(crate) const LIMIT: &str = "api";

/// What a job is to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobJson {
    pub(crate) group: String,
    /// Its request has this id, so that it goes on in the next run.
    pub(crate) id: Option<String>,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) wait_ms: Option<u64>,
    /// Nobody waits any more after this; the job then ends at a signal.
    pub(crate) drop_after_ms: Option<u64>,
    /// So long it does something else before it schedules the activity.
    pub(crate) delay_ms: u64,
    /// The activity's first attempt fails.
    pub(crate) fails_first: bool,
    /// From the run before.
    pub(crate) carried: CarriedPermits,
    pub(crate) runs: u64,
}

/// Takes a permit, does one piece of work on it, and says so.
#[workflow]
pub struct Job {
    job: JobJson,
    permits: Permits,
    /// Signals `again` that came: each begins a new run.
    again: bool,
    end: bool,
}

#[workflow_methods]
impl Job {
    #[init]
    pub fn new(_ctx: &WorkflowContextView, input: RawValue) -> Self {
        let mut job: JobJson = read(&input);
        let permits = Permits::resume(std::mem::take(&mut job.carried));
        Job { job, permits, again: false, end: false }
    }

    #[signal(name = "granted")]
    pub fn granted(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        self.permits.granted(ctx, &input);
    }

    #[signal(name = "again")]
    pub fn again(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _input: RawValue) {
        self.again = true;
    }

    #[signal(name = "end")]
    pub fn end(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _input: RawValue) {
        self.end = true;
    }

    #[run(name = "job")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<RawValue> {
        let (job, permits) = ctx.state(|me| (me.job.clone(), me.permits.clone()));
        let mut ask = Ask::new(LIMIT).group(job.group.clone());
        if let Some(id) = &job.id {
            ask = ask.id(id.clone());
        }
        if let Some(lease) = job.lease_ms {
            ask = ask.lease(Duration::from_millis(lease));
        }
        if let Some(wait) = job.wait_ms {
            ask = ask.wait(Duration::from_millis(wait));
        }
        let permit = {
            let asked = permits.acquire(ctx, ask).fuse();
            let mut asked = std::pin::pin!(asked);
            // A cancellation is for the first of them alone: it gives the place back.
            let detached = WorkflowCancellationToken::new();
            let options = WaitConditionOptions::builder().cancellation_token(detached.clone()).build();
            let mut again = std::pin::pin!(ctx.wait_condition_with_options(|me| me.again, options));
            // Longer than any test if nothing is said.
            let patience = Duration::from_millis(job.drop_after_ms.unwrap_or(3_600_000));
            let mut patience =
                ctx.timer(TimerOptions::builder(patience).cancellation_token(detached).build());
            select! {
                permit = asked => Some(Some(permit?)),
                _ = again => Some(None),
                _ = patience => None,
            }
        };
        let permit = match permit {
            Some(Some(permit)) => permit,
            Some(None) => {
                let next = JobJson { carried: permits.carry(), runs: job.runs + 1, ..job };
                ctx.continue_as_new(wire::write(&next), ContinueAsNewOptions::default())?;
                return Ok(RawValue::default());
            }
            None => {
                ctx.wait_condition(|me| me.end).await?;
                return Ok(wire::write(&json!({"dropped": true})));
            }
        };
        if job.delay_ms > 0 {
            ctx.timer(Duration::from_millis(job.delay_ms)).await;
        }
        let retry = RetryPolicy::builder().initial_interval(Duration::from_millis(50)).build();
        let options =
            ActivityOptions::with_start_to_close_timeout(Duration::from_secs(60)).retry_policy(retry);
        let input = wire::write(&job.fails_first);
        let work = UntypedActivity::new("work");
        let done = permit.attach(ctx, || ctx.execute_activity(work, input, options.build())).await?;
        permit.used(ctx, 1).await;
        let mut done: Value = read(&done);
        done["runs"] = job.runs.into();
        Ok(wire::write(&done))
    }
}

/// The activities of jobs.
pub struct Works;

#[activities]
impl Works {
    #[activity(name = "work")]
    pub async fn work(ctx: ActivityContext, input: RawValue) -> Result<RawValue, ActivityError> {
        let fails_first: bool = read(&input);
        if fails_first && ctx.info().attempt == 1 {
            return Err(std::io::Error::other("the first attempt fails").into());
        }
        let valid = CurrentPermit::get().is_some_and(|permit| permit.is_valid());
        Ok(wire::write(&json!({"attempt": ctx.info().attempt, "valid": valid})))
    }
}

/// A worker on a thread of its own: the SDK's worker can't move between threads.
pub(crate) struct JobWorker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl JobWorker {
    /// Starts one whose activities ask `gate`.
    pub(crate) fn start(client: Client, gate: &Gate) -> JobWorker {
        let limits = ActivityGate::new(gate).rule("work", LIMIT, 1);
        let (stop, stopped) = oneshot::channel();
        let run = move || async move {
            let runtime = RuntimeOptions::builder().heartbeat_interval(None).build().unwrap();
            let runtime = Runtime::from_current_tokio(runtime).unwrap();
            let options = WorkerOptions::new(QUEUE)
                .sticky_queue_schedule_to_start_timeout(Duration::from_secs(1))
                .activity_inbound_interceptor(limits)
                .workflow_interceptor(carrier())
                .register_workflow::<Job>()
                .unwrap()
                .register_activities(Works)
                .build();
            let mut worker = Worker::new(&runtime, client, options).unwrap();
            let shut_down = worker.shutdown_handle();
            let mut run = std::pin::pin!(worker.run());
            tokio::select! {
                ended = &mut run => ended.unwrap(),
                _ = stopped => {
                    shut_down();
                    run.await.unwrap();
                }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::spawn(move || runtime.block_on(run()));
        JobWorker { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for JobWorker {
    fn drop(&mut self) {
        // Whoever doesn't listen has ended.
        let _gone = self.stop.take().map(|stop| stop.send(()));
        // A thread that panicked has said so.
        let _ended = self.thread.take().map(|thread| tokio::task::block_in_place(|| thread.join()));
    }
}

impl World {
    /// Starts a job.
    pub(crate) async fn start_job(&self, id: &str, job: JobJson) {
        let job = JobJson { group: self.group.clone(), ..job };
        self.start(QUEUE, "job", id, &serde_json::to_value(job).unwrap()).await;
    }

    /// Starts a workflow.
    pub(crate) async fn start(&self, queue: &str, kind: &str, id: &str, input: &Value) {
        let options = WorkflowStartOptions::new(queue, id).task_timeout(Duration::from_secs(2)).build();
        self.client.start_workflow(UntypedWorkflow::new(kind), wire::write(input), options).await.unwrap();
    }

    /// A workflow's result, or how it ended otherwise.
    pub(crate) async fn result(&self, id: &str) -> Result<Value, String> {
        let handle = self.handle(id);
        let result = handle.get_result(WorkflowGetResultOptions::default());
        let result = tokio::time::timeout(Duration::from_secs(60), result).await;
        match result.unwrap_or_else(|_| panic!("{id} has not ended within 60 s")) {
            Ok(value) => Ok(read(&value)),
            Err(WorkflowGetResultError::Failed(failure)) => Err(failure.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Asks a workflow to cancel itself.
    pub(crate) async fn cancel(&self, id: &str) {
        self.handle(id).cancel(WorkflowCancelOptions::default()).await.unwrap();
    }
}
