//! One permit for a fleet, end to end, where there is enough for everybody: what does asking cost?
//!
//! Four clients, each with connections of its own as four processes would have them, ask one after the other:
//! - `tollgate`: `acquire` on a gate that leases from the coordinator over Temporal;
//! - `redis`: a token-bucket script in a Redis server, by EVALSHA over loopback TCP, a blocking client each;
//! - `strict`: update `acquire` of the coordinator, and signal `report` once it is used;
//! - `bare`: the same messages to a workflow that answers with the coordinator's bytes and does nothing.

use crate::figures::{middle, percentile, short};
use crate::heartbeat::{configuration, limit, update};
use crate::redis_server::{Bucket, RedisServer};
use crate::stage::Stage;
use crate::{Failure, bare};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use temporalio_client::{
    Client, UntypedSignal, UntypedWorkflow, UntypedWorkflowHandle, WorkflowSignalOptions,
    WorkflowTerminateOptions,
};
use temporalio_common::data_converters::RawValue;
use tokio::runtime::Runtime;
use tollgate_worker::{Gate, Limit, Options};
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::wire;
use tollgate_workflows::wire::lease::AcquireReplyJson;

const CLIENTS: usize = 4;
const GROUP: &str = "decision";
/// More than can be asked for: nobody waits for tokens.
const RATE: u64 = 1_000_000_000;
const BURST: u64 = 1_000_000_000;

/// What one way did, a figure per round.
#[derive(Default)]
struct Seen {
    permits_per_second: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

pub(crate) fn run(runtime: &Runtime, quick: bool) -> Result<Value, Failure> {
    let redis = RedisServer::start()?;
    let stage = runtime.block_on(Stage::open())?;
    let id = coordinator_id(GROUP);
    runtime.block_on(stage.coordinator(GROUP, configuration(1, RATE, BURST)))?;
    let mut gates = Vec::new();
    let mut buckets = Vec::new();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = runtime.block_on(stage.connect())?;
        clients.push(client.clone());
        let options = Options::new().group(GROUP).worker(format!("client-{number}")).limit(limit(0));
        gates.push(runtime.block_on(Gate::connect(client, options))?);
        buckets.push(redis.connect()?);
    }
    let rounds = if quick { 3 } else { 9 };
    let (local, remote, strict) = if quick { (50_000, 1_000, 30) } else { (500_000, 5_000, 100) };
    let [mut ours, mut theirs, mut strictly, mut barely] = [(); 4].map(|()| Seen::default());
    let first = clients.first().ok_or("no clients")?.get_workflow_handle::<UntypedWorkflow>(id.clone());
    let (_, answer) = runtime.block_on(strict_permit(&first, "acquire", "first"))?;
    for round in 0..rounds {
        let limits: Vec<Limit> = gates.iter().map(|gate| gate.limit(&limit(0))).collect();
        ours.round(local, limits, |limit, each| {
            runtime.block_on(async {
                for _ in 0..local {
                    let began = Instant::now();
                    let permit = limit.acquire().await?;
                    each.push(began.elapsed());
                    drop(permit);
                }
                Ok(())
            })
        })?;
        theirs.round(remote, buckets.iter_mut().collect(), |bucket: &mut Bucket, each| {
            for _ in 0..remote {
                let began = Instant::now();
                if !bucket.take(RATE, BURST)? {
                    return Err("Redis refused where there is plenty".into());
                }
                each.push(began.elapsed());
            }
            Ok(())
        })?;
        // A workflow of its own for each round: it doesn't continue as new.
        let idle = format!("bare-{round}");
        runtime.block_on(stage.start(bare::KIND, bare::QUEUE, &idle, answer.clone()))?;
        let mut ways = [(&mut strictly, "acquire", &id), (&mut barely, "heartbeat", &idle)];
        // Neither always comes first.
        ways.rotate_left(round % 2);
        for (seen, name, workflow) in ways {
            let handle = |client: &Client| client.get_workflow_handle::<UntypedWorkflow>(workflow.clone());
            let handles: Vec<_> = clients.iter().map(handle).enumerate().collect();
            seen.round(strict, handles, |(client, handle), each| {
                runtime.block_on(async {
                    for number in 0..strict {
                        let id = format!("{round}-{client}-{number}");
                        each.push(strict_permit(&handle, name, &id).await?.0);
                    }
                    Ok(())
                })
            })?;
        }
        let handle = stage.client.get_workflow_handle::<UntypedWorkflow>(idle);
        runtime.block_on(handle.terminate(WorkflowTerminateOptions::default()))?;
    }
    runtime.block_on(async {
        for gate in &gates {
            gate.shutdown().await?;
        }
        stage.close().await
    })?;
    let mut figures = Map::new();
    for (name, seen) in [("tollgate", &ours), ("redis", &theirs), ("strict", &strictly), ("bare", &barely)] {
        let rate = middle(seen.permits_per_second.clone());
        let (p50, p99) = (middle(seen.p50.clone()).0, middle(seen.p99.clone()).0);
        eprintln!(
            "  {name:8} {:10.0} permits a second, {:10.2} us at the median, {:10.2} us at the 99th percentile",
            rate.0,
            p50 * 1e6,
            p99 * 1e6
        );
        figures.insert(
            name.to_owned(),
            json!({
                "permits_per_second": short(rate.0),
                "permits_per_second_spread": short(rate.1),
                "microseconds_p50": short(p50 * 1e6),
                "microseconds_p99": short(p99 * 1e6),
            }),
        );
    }
    let ratio = |of: fn(&Seen) -> &Vec<f64>, ours: &Seen, theirs: &Seen| {
        short(middle(of(ours).iter().zip(of(theirs)).map(|(ours, theirs)| ours / theirs).collect()).0)
    };
    figures.insert(
        "ratio_to_redis".to_owned(),
        json!({
            "permits_per_second": ratio(|seen| &seen.permits_per_second, &ours, &theirs),
            "latency_p50": ratio(|seen| &seen.p50, &ours, &theirs),
            "latency_p99": ratio(|seen| &seen.p99, &ours, &theirs),
            "strict_permits_per_second": ratio(|seen| &seen.permits_per_second, &strictly, &theirs),
            "strict_latency_p50": ratio(|seen| &seen.p50, &strictly, &theirs),
        }),
    );
    figures.insert(
        "ratio_to_bare".to_owned(),
        json!({ "strict_latency_p50": ratio(|seen| &seen.p50, &strictly, &barely) }),
    );
    figures.insert("clients".to_owned(), json!(CLIENTS));
    figures.insert("rounds".to_owned(), json!(rounds));
    Ok(figures.into())
}

impl Seen {
    /// Lets all clients ask at the same time, each on a thread of its own.
    fn round<T: Send>(
        &mut self,
        permits: usize,
        clients: Vec<T>,
        ask: impl Fn(T, &mut Vec<Duration>) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let count = clients.len();
        let began = Instant::now();
        let all = std::thread::scope(|scope| {
            let ask = &ask;
            let threads: Vec<_> = clients
                .into_iter()
                .map(|client| {
                    scope.spawn(move || {
                        let mut each = Vec::with_capacity(permits);
                        ask(client, &mut each).map(|()| each)
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| Failure::from("a client panicked"))?)
                .collect::<Result<Vec<_>, Failure>>()
        })?;
        let elapsed = began.elapsed().as_secs_f64();
        let mut times: Vec<Duration> = all.into_iter().flatten().collect();
        self.permits_per_second.push((permits * count) as f64 / elapsed);
        self.p50.push(percentile(&mut times, 50));
        self.p99.push(percentile(&mut times, 99));
        Ok(())
    }
}

/// One strict permit: how long until it was there, and the answer. Its use is reported after that, or it would count for its
/// whole lease.
async fn strict_permit(
    handle: &UntypedWorkflowHandle<Client>,
    name: &str,
    id: &str,
) -> Result<(Duration, RawValue), Failure> {
    let wanted = json!({ "id": id, "client": "bench", "limit": limit(0) });
    let began = Instant::now();
    let answer = update(handle, name, wire::write(&wanted)).await?;
    let took = began.elapsed();
    match wire::read::<AcquireReplyJson>(&answer)? {
        AcquireReplyJson::Granted { .. } => {}
        other => return Err(format!("no permit where there is plenty: {other:?}").into()),
    }
    let report = json!({ "id": id, "limit": limit(0), "used": 1 });
    let signal = UntypedSignal::new("report");
    handle.signal(signal, wire::write(&report), WorkflowSignalOptions::default()).await?;
    Ok((took, answer))
}
