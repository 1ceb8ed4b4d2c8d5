//! How long a host takes to replay a full run of a coordinator that it has never seen, against a workflow whose updates did
//! nothing, over as many updates with the same bytes.

use crate::figures::{middle, short};
use crate::heartbeat::{Worker, configuration};
use crate::stage::Stage;
use crate::{Failure, bare};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use temporalio_client::{
    UntypedWorkflow, WorkflowDescribeOptions, WorkflowExecutionInfo, WorkflowFetchHistoryOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::history::v1::{History, HistoryEvent};
use temporalio_sdk::workflow_replayer::{WorkflowReplayer, WorkflowReplayerOptions};
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::coordinator::Coordinator;

const WORKERS: usize = 10;
const LIMITS: usize = 10;
const GROUP: &str = "replay";
/// Far more than a run takes.
const BEATS_MAX: usize = 5_000;
/// A host that takes over must be done well within the time that a workflow task may take.
const TASK_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn run(quick: bool) -> Result<Value, Failure> {
    let stage = Stage::open().await?;
    let id = coordinator_id(GROUP);
    stage.coordinator(GROUP, configuration(LIMITS, 1_000, 500)).await?;
    let first = current_run(&stage, &id).await?;
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|number| Worker::new(&stage.client, &id, number, LIMITS)).collect();
    let (mut beats, mut answer) = (0, RawValue::default());
    // One at a time, so that every heartbeat has events of its own: the longest replay there is.
    while beats < BEATS_MAX && current_run(&stage, &id).await? == first {
        for worker in &mut workers {
            answer = worker.beat().await?.1;
            beats += 1;
        }
    }
    let ours = history(&stage, &id, &first).await?;
    let bare_id = "bare-replay";
    stage.start(bare::KIND, bare::QUEUE, bare_id, answer).await?;
    let run = current_run(&stage, bare_id).await?;
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|number| Worker::new(&stage.client, bare_id, number, LIMITS)).collect();
    for beat in 0..beats {
        workers[beat % WORKERS].beat().await?;
    }
    let mut theirs = history(&stage, bare_id, &run).await?;
    theirs.truncate(ours.len());
    stage.close().await?;

    let rounds = if quick { 3 } else { 15 };
    let (mut our_times, mut their_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let options = WorkflowReplayerOptions::new().register_workflow::<Coordinator>()?.build();
        let our_time = replay(options, &ours).await?;
        let options = WorkflowReplayerOptions::new().register_workflow::<bare::Bare>()?.build();
        let their_time = replay(options, &theirs).await?;
        our_times.push(our_time);
        their_times.push(their_time);
        ratios.push(our_time / their_time);
    }
    let (ours_middle, spread) = middle(our_times);
    let (theirs_middle, _) = middle(their_times);
    let ratio = middle(ratios).0;
    eprintln!(
        "  {} events: {:.1} ms, a workflow that does nothing {:.1} ms",
        ours.len(),
        ours_middle * 1e3,
        theirs_middle * 1e3
    );
    Ok(json!({
        "events": ours.len(),
        "bytes": bytes(&ours),
        "limits": LIMITS,
        "milliseconds": short(ours_middle * 1e3),
        "milliseconds_spread": short(spread),
        "events_per_second": short(ours.len() as f64 / ours_middle),
        "bare": { "events": theirs.len(), "bytes": bytes(&theirs), "milliseconds": short(theirs_middle * 1e3) },
        "ratio_to_bare": short(ratio),
        "part_of_task_timeout": short(ours_middle / TASK_TIMEOUT.as_secs_f64()),
        "rounds": rounds,
    }))
}

async fn current_run(stage: &Stage, id: &str) -> Result<String, Failure> {
    let handle = stage.client.get_workflow_handle::<UntypedWorkflow>(id);
    Ok(handle.describe(WorkflowDescribeOptions::default()).await?.run_id().to_owned())
}

async fn history(stage: &Stage, id: &str, run: &str) -> Result<Vec<HistoryEvent>, Failure> {
    let info = WorkflowExecutionInfo::builder()
        .namespace(stage.client.options().namespace.clone())
        .workflow_id(id)
        .run_id(run)
        .build();
    let history =
        info.bind_untyped(stage.client.clone()).fetch_history(WorkflowFetchHistoryOptions::default());
    Ok(history.into_events().await?)
}

fn bytes(events: &[HistoryEvent]) -> usize {
    use prost::Message as _;
    events.iter().map(HistoryEvent::encoded_len).sum()
}

/// Seconds.
async fn replay(options: WorkflowReplayerOptions, events: &[HistoryEvent]) -> Result<f64, Failure> {
    let replayer = WorkflowReplayer::new(options)?;
    let history = History { events: events.to_vec() }.into();
    let began = Instant::now();
    replayer.replay_workflow(history).await?;
    Ok(began.elapsed().as_secs_f64())
}
