//! How long an operator waits: `status`, `explain` and the like of a fleet of 200 workers with 20 limits each, from the start of the
//! program to its end.

use crate::Failure;
use crate::figures::{percentile, short};
use crate::heartbeat::{Worker, configuration, limit};
use crate::stage::Stage;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use tokio::process::Command;
use tollgate_workflows::contracts::coordinator_id;

const WORKERS: usize = 200;
const LIMITS: usize = 20;
const GROUP: &str = "looks";
/// So that an answer is a new one, and not that of a leisurely fleet.
const BEATS_BETWEEN: usize = 2;

pub(crate) async fn run(quick: bool) -> Result<Value, Failure> {
    let stage = Stage::open().await?;
    let id = coordinator_id(GROUP);
    stage.coordinator(GROUP, configuration(LIMITS, 100_000, 10_000)).await?;
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|number| Worker::new(&stage.client, &id, number, LIMITS)).collect();
    for worker in &mut workers {
        worker.beat().await?;
    }
    let one = limit(0);
    let commands: [(&str, &[&str]); 5] = [
        ("status", &["status"]),
        ("status_limit", &["status", &one]),
        ("explain_limit", &["explain", &one]),
        ("explain_worker", &["explain", "host-7/4711"]),
        ("worker_ls", &["worker", "ls"]),
    ];
    let rounds = if quick { 5 } else { 40 };
    let mut times = vec![Vec::<Duration>::new(); commands.len()];
    let mut next = 0;
    for _ in 0..rounds {
        for ((_, arguments), times) in commands.iter().zip(&mut times) {
            for _ in 0..BEATS_BETWEEN {
                workers[next % WORKERS].beat().await?;
                next += 1;
            }
            times.push(time(&stage, arguments).await?);
        }
    }
    let mut figures = Map::new();
    for ((name, _), mut times) in commands.iter().zip(times) {
        let at = |times: &mut Vec<Duration>, percent| short(percentile(times, percent) * 1e3);
        let (middle, high) = (at(&mut times, 50), at(&mut times, 95));
        eprintln!("  {name}: {middle} ms at the median, {high} ms in 95 of 100");
        figures.insert((*name).to_owned(), json!({ "milliseconds": middle, "milliseconds_p95": high }));
    }
    stage.close().await?;
    figures.insert("workers".to_owned(), json!(WORKERS));
    figures.insert("limits".to_owned(), json!(LIMITS));
    figures.insert("rounds".to_owned(), json!(rounds));
    Ok(Value::Object(figures))
}

/// A command from its start to its end.
async fn time(stage: &Stage, arguments: &[&str]) -> Result<Duration, Failure> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).args(["--group", GROUP, "--address", stage.address()]);
    let began = Instant::now();
    let output = command.output().await?;
    let took = began.elapsed();
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(took)
}
