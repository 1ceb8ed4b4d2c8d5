//! Heartbeats by update and by signals alone, side by side: how long an answer takes, and what it costs the coordinator.
//!
//! So many real gates keep their leases over each of the two at the pace that the ledger asks for, with some work in each,
//! one kind after the other, in rounds.

use crate::Failure;
use crate::figures::{percentile, short};
use crate::heartbeat::{configuration, limit};
use crate::stage::Stage;
use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use temporalio_client::{
    UntypedQuery, UntypedWorkflow, WorkflowDescribeOptions, WorkflowExecutionInfo,
    WorkflowFetchHistoryOptions, WorkflowQueryOptions, WorkflowTerminateOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;
use tollgate_worker::state::Coordinator;
use tollgate_worker::{Gate, Messages, Options};
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::wire;
use tollgate_workflows::wire::status::WorkersJson;

const WORKERS: [usize; 3] = [10, 50, 200];
const KINDS: [(&str, Messages); 2] = [("updates", Messages::Updates), ("signals", Messages::Signals)];
/// Enough for a share worth having for each of the most workers.
const RATE: u64 = 2_000;
const BURST: u64 = 1_000;
/// Clients of one connection: as many processes on one machine have it.
const GATES_PER_CLIENT: usize = 10;

pub(crate) async fn run(quick: bool) -> Result<Value, Failure> {
    let stage = Stage::open().await?;
    let seconds = if quick { 15 } else { 60 };
    let mut figures = Map::new();
    for workers in WORKERS {
        let mut of_size = Map::new();
        for (name, messages) in KINDS {
            let group = format!("{name}-{workers}");
            let seen = fleet(&stage, &group, messages, workers, Duration::from_secs(seconds)).await?;
            eprintln!("  {workers:3} workers by {name}: {seen}");
            of_size.insert(name.to_owned(), seen);
        }
        figures.insert(format!("workers_{workers}"), of_size.into());
    }
    stage.close().await?;
    figures.insert("seconds".to_owned(), json!(seconds));
    Ok(figures.into())
}

async fn fleet(
    stage: &Stage,
    group: &str,
    messages: Messages,
    workers: usize,
    time: Duration,
) -> Result<Value, Failure> {
    stage.coordinator(group, configuration(1, RATE, BURST)).await?;
    let began = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..workers.div_ceil(GATES_PER_CLIENT) {
        clients.push(stage.connect().await?);
    }
    let connect = (0..workers).map(|number| {
        let client = clients[number / GATES_PER_CLIENT].clone();
        let options =
            Options::new().group(group).worker(format!("w{number}")).limit(limit(0)).messages(messages);
        async move { Gate::connect(client, options).await }
    });
    let gates = try_join_all(connect).await?;
    // Until all have a lease for the first time, as after a deployment.
    while !gates.iter().all(|gate| gate.state().coordinator == Coordinator::Reachable) {
        if began.elapsed() > Duration::from_secs(120) {
            return Err(format!("{group}: not all workers are answered within two minutes").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all_leased = began.elapsed();
    let before = counts(stage, group).await?;
    let measured = Instant::now();
    // Each admits a few a second, and notes how long each answer took.
    let work = gates.iter().enumerate().map(|(number, gate)| async move {
        let limit = gate.limit(&limit(0));
        let (mut granted, mut refused, mut trips) = (0u64, 0u64, Vec::new());
        tokio::time::sleep(Duration::from_millis(number as u64 % 200)).await;
        while measured.elapsed() < time {
            match limit.try_acquire(1) {
                Ok(permit) => {
                    granted += 1;
                    drop(permit);
                }
                Err(_) => refused += 1,
            }
            let trip = gate.state().round_trip;
            if trips.last().copied() != trip {
                trips.extend(trip);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok::<_, Failure>((granted, refused, trips))
    });
    let seen = try_join_all(work).await?;
    let elapsed = measured.elapsed().as_secs_f64();
    let after = counts(stage, group).await?;
    try_join_all(gates.iter().map(Gate::shutdown)).await?;
    let id = coordinator_id(group);
    let handle = stage.client.get_workflow_handle::<UntypedWorkflow>(id);
    handle.terminate(WorkflowTerminateOptions::default()).await?;
    let (granted, refused) =
        seen.iter().fold((0, 0), |(g, r), (granted, refused, _)| (g + granted, r + refused));
    let mut trips: Vec<Duration> = seen.into_iter().flat_map(|(_, _, trips)| trips).collect();
    let beats = (after.0 - before.0) as f64;
    let events = after.1.saturating_sub(before.1) as f64;
    Ok(json!({
        "all_leased_seconds": short(all_leased.as_secs_f64()),
        "answers_per_second": short(beats / elapsed),
        "events_per_answer": short(events / beats.max(1.0)),
        "milliseconds_p50": short(percentile(&mut trips, 50) * 1e3),
        "milliseconds_p99": short(percentile(&mut trips, 99) * 1e3),
        "admitted": granted,
        "refused": refused,
    }))
}

/// Requests that the ledger has answered, and events of all runs.
async fn counts(stage: &Stage, group: &str) -> Result<(u64, u64), Failure> {
    let handle = stage.client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(group));
    let ask = async |name: &str| {
        handle.query(UntypedQuery::new(name), RawValue::default(), WorkflowQueryOptions::default()).await
    };
    let workers: WorkersJson = wire::read(&ask("worker").await?)?;
    let mut events = 0;
    let mut next = Some(handle.describe(WorkflowDescribeOptions::default()).await?.run_id().to_owned());
    while let Some(run) = next {
        let info = WorkflowExecutionInfo::builder()
            .namespace(stage.client.options().namespace.clone())
            .workflow_id(coordinator_id(group))
            .run_id(run)
            .build();
        let history = info.bind_untyped(stage.client.clone());
        let history = history.fetch_history(WorkflowFetchHistoryOptions::default()).into_events().await?;
        events += history.len() as u64;
        next = history.first().and_then(continues);
    }
    Ok((workers.workers.iter().map(|worker| worker.seq).sum(), events))
}

/// The run that one with this first event continues.
fn continues(event: &HistoryEvent) -> Option<String> {
    match event.attributes.as_ref()? {
        Attributes::WorkflowExecutionStartedEventAttributes(started) => {
            Some(started.continued_execution_run_id.clone()).filter(|id| !id.is_empty())
        }
        _ => None,
    }
}
