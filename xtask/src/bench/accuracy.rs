//! The same batch under Temporal's own limit of a task queue and under tollgate, with the demo's fleet and downstream.
//!
//! One task queue, five worker processes, and more calls under way than the limit lets through. Under Temporal's limit the
//! workers ask nobody, and write down when each activity starts. Both are held against the same bound, in all intervals, by
//! the simulator's judge.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use tollgate_sim::checker::Admission;

use crate::downstream::Allowance;
use crate::fleet::batch::{Batch, Call};
use crate::fleet::metrics;
use crate::fleet::notes::WorkerNotes;
use crate::fleet::stage::{self, FleetSettings, Stage, StageSettings};
use crate::process::{Process, Supervisor};
use crate::temporal_cli;
use crate::workspace::Workspace;

const RATES: [u32; 3] = [5, 50, 150];
const WORKERS: u32 = 5;
const QUEUE: &str = "bench";
const LOOK_EVERY: Duration = Duration::from_millis(50);
const STOP_WITHIN: Duration = Duration::from_secs(15);
/// A run that takes this many times as long as the limit would have it is broken off.
const STUCK_FACTOR: u32 = 3;
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Who keeps the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// `temporal task-queue config set --queue-rps-limit`.
    Temporal,
    /// A limit in tollgate.
    Tollgate,
    /// Nobody: what this machine gets through without a limit.
    Nobody,
}

impl Keeper {
    fn name(self) -> &'static str {
        match self {
            Keeper::Temporal => "temporal",
            Keeper::Tollgate => "tollgate",
            Keeper::Nobody => "nobody",
        }
    }
}

/// What is run, at which rate and for how long.
#[derive(Debug, Clone, Copy)]
struct Load {
    rate: u32,
    burst: u32,
    calls: u64,
    seconds: u32,
}

impl Load {
    fn new(rate: u32, quick: bool) -> Load {
        let seconds = if quick { 8 } else { 25 };
        // A third of a second's worth, as the demo has it.
        let burst = (rate * 16).div_ceil(50);
        Load { rate, burst, calls: u64::from(rate) * u64::from(seconds), seconds }
    }

    /// A little more than the limit at once: calls that leave evenly may arrive bunched.
    fn allowance(self, keeper: Keeper) -> Allowance {
        if keeper == Keeper::Nobody {
            return Allowance { rate: Allowance::MAX, burst: Allowance::MAX };
        }
        Allowance { rate: self.rate, burst: (self.burst * 5 / 4).max(self.burst + 1) }
    }

    fn settings(self, downstream: String, keeper: Keeper) -> FleetSettings {
        // Room for two seconds of calls, so that work waits at every gate; never so much that a call waits out its attempt.
        let slots = (2 * self.rate).div_ceil(WORKERS).clamp(2, 200);
        FleetSettings {
            workers: WORKERS,
            queues: vec![QUEUE.to_owned()],
            downstream,
            slots,
            // A million at once: this limits nothing, and writes down what Temporal lets through.
            local_only: (keeper != Keeper::Tollgate).then_some((1_000_000, 1_000_000)),
        }
    }
}

/// Runs it.
///
/// # Errors
/// When a process can't be started, or a run doesn't come to its end.
pub fn run(workspace: &Workspace, quick: bool) -> Result<Value> {
    let programs = stage::build(workspace)?;
    let cli = temporal_cli::find_or_fetch(workspace.root())?;
    let folder =
        workspace.root().join("target").join("bench").join(format!("accuracy-{}", std::process::id()));
    let supervisor = Supervisor::new(&folder)?;
    supervisor.kill_on_interrupt()?;
    let stage = Stage::open(supervisor, programs, &cli, StageSettings::default())?;
    let mut figures = Map::new();
    let free = one(&stage, &cli.path, Load::new(RATES[RATES.len() - 1], true), Keeper::Nobody)?;
    let unlimited = free.get("admitted_per_second").cloned().unwrap_or_default();
    eprintln!("  without a limit: {unlimited} a second");
    figures.insert("unlimited_per_second".to_owned(), unlimited);
    for rate in RATES {
        let load = Load::new(rate, quick);
        let mut row = Map::new();
        for keeper in [Keeper::Temporal, Keeper::Tollgate] {
            let seen = one(&stage, &cli.path, load, keeper)?;
            eprintln!("  {rate:4}/s under {:8}: {}", keeper.name(), in_words(&seen));
            row.insert(keeper.name().to_owned(), seen);
        }
        row.insert("burst".to_owned(), json!(load.burst));
        row.insert("calls".to_owned(), json!(load.calls));
        figures.insert(format!("rate_{rate}"), row.into());
    }
    figures.insert("partitions".to_owned(), json!(partitions(&stage, &cli.path)?));
    figures.insert("workers".to_owned(), json!(WORKERS));
    Ok(figures.into())
}

fn in_words(seen: &Value) -> String {
    let figure = |name: &str| seen.get(name).map(Value::to_string).unwrap_or_default();
    format!(
        "peak over bound {}, utilization {}, {} rejected by the downstream",
        figure("peak_over_bound"),
        figure("utilization"),
        figure("rejected_by_downstream"),
    )
}

fn one(stage: &Stage, cli: &Path, load: Load, keeper: Keeper) -> Result<Value> {
    let run = format!("{}-{}", keeper.name(), load.rate);
    match keeper {
        Keeper::Temporal => {
            let rate = load.rate.to_string();
            let limit =
                ["--queue-rps-limit", &rate, "--queue-rps-limit-reason", "what the downstream allows"];
            task_queue(stage, cli, &["config", "set"], &run, &limit)?;
        }
        Keeper::Tollgate => stage.set_limit(
            load.rate,
            &["--burst", &load.burst.to_string(), "--lease", "8s", "--ramp", "0s", "--reason", "benchmark"],
        )?,
        Keeper::Nobody => {}
    }
    let (downstream, control, _log) = stage.downstream(&run, load.allowance(keeper))?;
    let settings = load.settings(control.url(), keeper);
    let fleet = stage.fleet(&run, &settings)?;
    let batch = start_batch(stage, &run, load, &settings)?;
    let longest = Duration::from_secs(load.seconds.into()) * STUCK_FACTOR + STUCK_AFTER;
    let began = Instant::now();
    while batch.is_running() && began.elapsed() < longest {
        thread::sleep(LOOK_EVERY);
        stage.check()?;
        fleet.check()?;
    }
    if batch.is_running() {
        batch.kill()?;
        stage.end_workflows(&run)?;
    } else if !batch.exit_status().is_some_and(|status| status.success()) {
        bail!("the batch failed{}", batch.output_end());
    }
    for worker in &fleet.workers {
        worker.terminate(STOP_WITHIN)?;
    }
    let rejected = control.stats()?.rejected;
    downstream.terminate(STOP_WITHIN)?;

    let names = fleet.names(settings.workers);
    let notes: Vec<WorkerNotes> =
        names.iter().map(|name| WorkerNotes::read(&fleet.notes, name)).collect::<Result<_>>()?;
    let mut admissions: Vec<Admission> =
        notes.iter().flat_map(|notes| notes.admissions.iter().copied()).collect();
    admissions.sort_unstable();
    let answers = notes.iter().flat_map(|notes| &notes.calls);
    let answered = answers.filter(|call| (200..300).contains(&call.status)).count();
    let bound = metrics::bound(load.rate, load.burst, None);
    // The most that one could mean by a limit of so many a second.
    let generous = metrics::bound(load.rate, load.rate.max(load.burst), None);
    let admitted: u64 = admissions.iter().map(|admission| admission.tokens).sum();
    let length = metrics::minted(&metrics::bound(1, 1, None).rate, first(&admissions), last(&admissions));
    let rounded = |figure: Option<f64>| figure.map(|figure| (figure * 1e4).round() / 1e4);
    Ok(json!({
        "peak_over_bound": rounded(metrics::peak_over_bound(&admissions, &bound)),
        "peak_over_bound_of_one_second": rounded(metrics::peak_over_bound(&admissions, &generous)),
        "utilization": rounded(metrics::utilization(&admissions, &bound.rate)),
        "rejected_by_downstream": rejected,
        "answered": answered,
        "admitted": admitted,
        "admitted_per_second": rounded(u32::try_from(admitted).ok().map(|count| f64::from(count) / length)),
    }))
}

fn first(sorted: &[Admission]) -> u64 {
    sorted.first().map_or(0, |admission| admission.at)
}

fn last(sorted: &[Admission]) -> u64 {
    sorted.last().map_or(0, |admission| admission.at)
}

/// The demo's calls, all on one queue.
fn start_batch(stage: &Stage, run: &str, load: Load, settings: &FleetSettings) -> Result<Process> {
    let folder = stage.supervisor().run_dir();
    let path = folder.join(format!("{run}.calls.jsonl"));
    let call = |id: u64| Call {
        id,
        kind: "fetch".to_owned(),
        queue: QUEUE.to_owned(),
        path: format!("/items/{id}"),
    };
    let lines = (1..=load.calls).map(|id| serde_json::to_string(&call(id)));
    let text = lines.collect::<Result<Vec<_>, _>>()?.join("\n");
    fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    stage.batch(run, &Batch::read(&path)?, load.calls, settings)
}

/// How many partitions the queue has: each gets an equal part of Temporal's limit.
fn partitions(stage: &Stage, cli: &Path) -> Result<usize> {
    let run = format!("{}-{}", Keeper::Temporal.name(), RATES[0]);
    let listed = task_queue(stage, cli, &["list-partition"], &run, &["--output", "json"])?;
    let listed: Value = serde_json::from_str(&listed).context("`temporal task-queue list-partition`")?;
    let all = listed.get("activityTaskQueuePartitions").and_then(Value::as_array);
    Ok(all.context("`temporal task-queue list-partition` lists no activity partitions")?.len())
}

fn task_queue(stage: &Stage, cli: &Path, what: &[&str], run: &str, rest: &[&str]) -> Result<String> {
    let mut command = Command::new(cli);
    // Nothing of a person's own settings.
    command.env_clear().env("HOME", stage.supervisor().run_dir());
    command.arg("task-queue").args(what).args(["--address", stage.address(), "--task-queue"]);
    command.arg(format!("{QUEUE}-{run}"));
    if what == ["config", "set"] {
        command.args(["--task-queue-type", "activity"]);
    }
    let output = command.args(rest).output().context("the Temporal CLI does not run")?;
    if !output.status.success() {
        bail!(
            "temporal task-queue {} failed: {}",
            what.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
