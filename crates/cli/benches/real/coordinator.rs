//! Heartbeats a second through the coordinator, against a workflow whose update does nothing.
//!
//! Ten workers lease all limits of a group; so many of them have a heartbeat under way at a time. Three kinds of workflow
//! take turns:
//! - the coordinator, through its continue-as-news;
//! - `bare`: the same requests, and a fixed reply of the coordinator's own bytes. The client writes and reads the same
//!   JSON; what differs is what the workflow does;
//! - `empty`: nothing is sent and nothing comes back.

use crate::figures::{middle, percentile, short};
use crate::heartbeat::{Worker, bytes, configuration, update};
use crate::stage::Stage;
use crate::{Failure, bare};
use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use temporalio_client::{UntypedWorkflow, WorkflowTerminateOptions};
use temporalio_common::data_converters::RawValue;
use tollgate_workflows::contracts::coordinator_id;

const WORKERS: usize = 10;
const LIMITS: [usize; 3] = [1, 10, 100];
const IN_FLIGHT: [usize; 2] = [1, 8];
const KINDS: [&str; 3] = ["coordinator", "bare", "empty"];
/// A rate that leaves every worker a share worth having, at the coordinator's own pace.
const RATE: u64 = 1_000;
const BURST: u64 = 500;

/// What one kind of workflow did under one load.
#[derive(Default)]
struct Seen {
    rates: Vec<f64>,
    took: Vec<Duration>,
}

pub(crate) async fn run(quick: bool) -> Result<Value, Failure> {
    let stage = Stage::open().await?;
    let rounds = if quick { 3 } else { 9 };
    let mut rates: Map<String, Value> = Map::new();
    let mut ratios = [Map::new(), Map::new()];
    let mut spreads = Map::new();
    let mut medians: Map<String, Value> = Map::new();
    let mut sizes = Map::new();
    for limits in LIMITS {
        let group = format!("limits-{limits}");
        stage.coordinator(&group, configuration(limits, RATE, BURST)).await?;
        let mut fleet = fleet(&stage, &coordinator_id(&group), limits);
        let mut answer = RawValue::default();
        // Everybody holds what it will hold.
        for turn in 0..3 * WORKERS {
            answer = fleet[turn % WORKERS].beat().await?.1;
        }
        let request_bytes = fleet.front().map_or(0, Worker::request_bytes);
        sizes.insert(key("limits", limits), json!({ "request": request_bytes, "reply": bytes(&answer) }));
        let mut coordinator = Target::Fleet(fleet);
        for in_flight in IN_FLIGHT {
            let beats = match (quick, in_flight) {
                (true, 1) => 60,
                (true, _) => 200,
                (false, 1) => 150,
                (false, _) => 500,
            };
            let mut seen = [Seen::default(), Seen::default(), Seen::default()];
            for round in 0..rounds {
                for turn in 0..KINDS.len() {
                    // Nobody always comes first.
                    let kind = (turn + round) % KINDS.len();
                    let into = &mut seen[kind];
                    match kind {
                        0 => measure(&mut coordinator, in_flight, beats, into).await?,
                        1 => round_of_bare(&stage, Some((&answer, limits)), in_flight, beats, into).await?,
                        _ => round_of_bare(&stage, None, in_flight, beats, into).await?,
                    }
                }
            }
            let per_round = |kind: usize| -> Vec<f64> {
                seen[0].rates.iter().zip(&seen[kind].rates).map(|(ours, theirs)| ours / theirs).collect()
            };
            let (to_bare, spread) = middle(per_round(1));
            let (to_empty, _) = middle(per_round(2));
            put(&mut ratios[0], in_flight, limits, json!(short(to_bare)));
            put(&mut ratios[1], in_flight, limits, json!(short(to_empty)));
            put(&mut spreads, in_flight, limits, json!(short(spread)));
            let mut line = String::new();
            for (name, seen) in KINDS.into_iter().zip(&mut seen) {
                let rate = middle(seen.rates.clone()).0;
                line.push_str(&format!("  {name} {rate:.0}/s"));
                let nested = rates.entry(name).or_insert_with(|| json!({}));
                if let Value::Object(nested) = nested {
                    put(nested, in_flight, limits, json!(short(rate)));
                }
                let nested = medians.entry(name).or_insert_with(|| json!({}));
                if let Value::Object(nested) = nested {
                    put(nested, in_flight, limits, json!(short(percentile(&mut seen.took, 50) * 1e3)));
                }
            }
            eprintln!(
                "  {limits:3} limits, {in_flight} in flight:{line}  ratio to bare {to_bare:.3}, to empty {to_empty:.3}"
            );
        }
    }
    stage.close().await?;
    let [to_bare, to_empty] = ratios;
    Ok(json!({
        "ratio_to_bare": to_bare,
        "ratio_to_empty": to_empty,
        "ratio_to_bare_spread": spreads,
        "heartbeats_per_second": rates,
        "milliseconds_p50": medians,
        "bytes": sizes,
        "workers": WORKERS,
        "rounds": rounds,
    }))
}

fn key(name: &str, count: usize) -> String {
    format!("{name}_{count}")
}

fn put(into: &mut Map<String, Value>, in_flight: usize, limits: usize, value: Value) {
    let row = into.entry(key("in_flight", in_flight)).or_insert_with(|| json!({}));
    if let Value::Object(row) = row {
        row.insert(key("limits", limits), value);
    }
}

fn fleet(stage: &Stage, id: &str, limits: usize) -> VecDeque<Worker> {
    (0..WORKERS).map(|number| Worker::new(&stage.client, id, number, limits)).collect()
}

/// Where messages go.
enum Target {
    /// Workers with their requests.
    Fleet(VecDeque<Worker>),
    /// Empty updates of this workflow.
    Empty(String, temporalio_client::Client),
}

/// A workflow of its own for each round: a run takes 2,000 updates, and this one doesn't continue as new.
async fn round_of_bare(
    stage: &Stage,
    answer: Option<(&RawValue, usize)>,
    in_flight: usize,
    beats: usize,
    into: &mut Seen,
) -> Result<(), Failure> {
    let id = format!("bare-{}-{in_flight}-{}", answer.map_or(0, |(_, limits)| limits), into.rates.len());
    let input = answer.map_or_else(|| tollgate_workflows::wire::write(&()), |(answer, _)| answer.clone());
    stage.start(bare::KIND, bare::QUEUE, &id, input).await?;
    let mut target = match answer {
        Some((_, limits)) => Target::Fleet(fleet(stage, &id, limits)),
        None => Target::Empty(id.clone(), stage.client.clone()),
    };
    // The host takes the workflow up.
    measure(&mut target, in_flight, 2 * WORKERS, &mut Seen::default()).await?;
    measure(&mut target, in_flight, beats, into).await?;
    let handle = stage.client.get_workflow_handle::<UntypedWorkflow>(id);
    handle.terminate(WorkflowTerminateOptions::default()).await?;
    Ok(())
}

/// Sends so many messages, so many at a time.
async fn measure(
    target: &mut Target,
    in_flight: usize,
    beats: usize,
    into: &mut Seen,
) -> Result<(), Failure> {
    let began = Instant::now();
    match target {
        Target::Fleet(workers) => {
            let idle = Arc::new(Mutex::new(std::mem::take(workers)));
            let lanes = (0..in_flight).map(|lane| {
                let idle = Arc::clone(&idle);
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    for _ in (lane..beats).step_by(in_flight) {
                        let next = idle.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                        let mut worker = next.ok_or("fewer workers than lanes")?;
                        took.push(worker.beat().await?.0);
                        idle.lock().unwrap_or_else(PoisonError::into_inner).push_back(worker);
                    }
                    Ok::<_, Failure>(took)
                })
            });
            for took in try_join_all(lanes).await? {
                into.took.extend(took?);
            }
            *workers = std::mem::take(&mut *idle.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Target::Empty(id, client) => {
            let lanes = (0..in_flight).map(|lane| {
                let handle = client.get_workflow_handle::<UntypedWorkflow>(id.clone());
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    for _ in (lane..beats).step_by(in_flight) {
                        let began = Instant::now();
                        update(&handle, "heartbeat", tollgate_workflows::wire::write(&())).await?;
                        took.push(began.elapsed());
                    }
                    Ok::<_, Failure>(took)
                })
            });
            for took in try_join_all(lanes).await? {
                into.took.extend(took?);
            }
        }
    }
    into.rates.push(beats as f64 / began.elapsed().as_secs_f64());
    Ok(())
}
