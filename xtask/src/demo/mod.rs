//! `cargo xtask demo`: one rate limit, several worker processes, a downstream that counts for itself.
//!
//! - [`plan`]: what happens when.
//! - [`outcome`]: the figures and what they must reach.
//!
//! The processes and what is read from them are in [`crate::fleet`].

mod options;
pub mod outcome;
pub mod plan;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::outcome::{Baseline, CoordinatorKill, KilledWorker, Outcome, Parts, RampFigures};
use self::plan::{Plan, RAMP_FACTOR, Wanted};
use crate::downstream::Allowance;
use crate::downstream::arrivals;
use crate::downstream::control::Control;
use crate::fleet::batch::Batch;
use crate::fleet::checklist;
use crate::fleet::live::Live;
use crate::fleet::metrics::{self, RampLine, bound};
use crate::fleet::notes::WorkerNotes;
use crate::fleet::stage::{self, Fleet, FleetSettings, Stage, StageSettings, check};
use crate::fleet::{admissions, completed, count_rejected, read_notes, run_dir};
use crate::process::{Process, Supervisor};
use crate::temporal_cli;
use crate::workspace::Workspace;

pub use options::{DemoOptions, DownstreamUrl};

/// How long the run without tollgate takes.
const BASELINE_LENGTH: Duration = Duration::from_secs(8);
/// How often the run is looked at. Events are late by at most this.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a worker may take to give back what it holds and to end.
const STOP_WITHIN: Duration = Duration::from_secs(15);
/// A run that takes this many times as long as planned is stuck.
const STUCK_FACTOR: u32 = 3;
/// What is added to that, so that a short run may have its retries.
const STUCK_AFTER: Duration = Duration::from_secs(90);
/// After this the downstream's log is on disk.
const FLUSHED_AFTER: Duration = Duration::from_millis(500);

/// Which figures decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// All of them.
    Everything,
    /// Those that hold on a busy machine too: for tests, which don't measure times.
    Promises,
}

/// Runs the demo.
///
/// # Errors
/// When a part of it can't be started, or its outcome breaks what tollgate promises.
pub fn run(workspace: &Workspace, options: &DemoOptions, judged: Judged) -> Result<()> {
    let batch = Batch::read(&options.input_path(workspace))?;
    if let Some(path) = &options.json {
        fs::write(path, "").with_context(|| format!("--json {}: can't write this file", path.display()))?;
    }
    let wanted = Wanted { rate: options.rate, workers: options.workers, ramp: !options.no_ramp };
    let plan = match options.seconds {
        Some(seconds) => Plan::of_length(Duration::from_secs(seconds.into()), wanted),
        None => Plan::of_calls(batch.calls(), wanted),
    };
    let demo = Demo { options, batch, plan, wanted };
    demo.announce();

    let programs = stage::build(workspace)?;
    let cli = temporal_cli::find_or_fetch(workspace.root())?;
    let supervisor = Supervisor::new(run_dir(workspace, "demo")?)?;
    supervisor.kill_on_interrupt()?;
    println!("starting a Temporal dev server ({}) and a coordinator host", cli.version);
    let stage = Stage::open(supervisor, programs, &cli, StageSettings::default())?;
    println!("Temporal UI: {}", stage.ui());

    let baseline = if options.no_baseline { Baseline::default() } else { demo.baseline(&stage)? };
    let (outcome, parts) = demo.main_run(&stage, baseline)?;
    let outcome = outcome.rounded();
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&outcome)? + "\n";
        fs::write(path, json).with_context(|| format!("--json {}: can't write this file", path.display()))?;
    }
    let checks = match judged {
        Judged::Everything => outcome.checks(parts),
        Judged::Promises => outcome.promises(),
    };
    println!("\n{}", checklist::table(&checks));
    println!("  notes and logs: {}", stage.supervisor().run_dir().display());
    if options.keep {
        keep(&stage);
    }
    let failed: Vec<_> = checks.iter().filter(|check| !check.reached).map(|check| check.name).collect();
    if !failed.is_empty() {
        bail!("not reached: {}", failed.join("; "));
    }
    Ok(())
}

fn keep(stage: &Stage) {
    let processes = stage.supervisor().release();
    let ids: Vec<String> = processes.iter().map(|process| process.pid().to_string()).collect();
    println!("\n  Everything is left running:");
    println!("    Temporal UI   {}", stage.ui());
    println!("    limits        {} status --address {} --watch", stage.tollgate().display(), stage.address());
    println!("    to stop it    kill {}", ids.join(" "));
}

struct Demo<'a> {
    options: &'a DemoOptions,
    batch: Batch,
    plan: Plan,
    wanted: Wanted,
}

/// What happened when, by the boot clock.
#[derive(Debug, Default)]
struct Events {
    killed_worker: Option<(String, u64)>,
    ramp: Option<RampLine>,
    killed_host: Option<u64>,
}

/// A downstream of ours, or one that was there.
struct Downstream {
    ours: Option<(Process, Control, PathBuf)>,
    url: String,
}

impl Demo<'_> {
    fn announce(&self) {
        let Plan { calls, length, .. } = self.plan;
        println!(
            "{calls} calls on {} worker processes, {} a second with a burst of {}; about {} s",
            self.options.workers,
            self.options.rate,
            self.options.burst,
            length.as_secs(),
        );
        let left_out = self.plan.left_out(self.wanted);
        if !left_out.is_empty() {
            println!("the run is too short for: {}", left_out.join(", "));
        }
    }

    /// The downstream allows a little more at once than the limit: calls that leave evenly may arrive bunched.
    fn allowance(&self, rate: u32) -> Allowance {
        let burst = u64::from(self.options.burst) * 5 / 4;
        let fits = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).min(Allowance::MAX);
        Allowance { rate: fits(rate.into()), burst: fits(burst.max(u64::from(self.options.burst) + 1)) }
    }

    fn rate_max(&self) -> u32 {
        if self.plan.ramp.is_some() {
            self.options.rate.saturating_mul(RAMP_FACTOR)
        } else {
            self.options.rate
        }
    }

    fn downstream(&self, stage: &Stage, run: &str) -> Result<Downstream> {
        if let Some(url) = &self.options.downstream {
            return Ok(Downstream { ours: None, url: url.as_str().to_owned() });
        }
        let ours = stage.downstream(run, self.allowance(self.options.rate))?;
        Ok(Downstream { url: ours.1.url(), ours: Some(ours) })
    }

    fn fleet_settings(&self, downstream: &Downstream) -> FleetSettings {
        let queues = self.batch.queues();
        FleetSettings::of_rate(self.options.workers, queues, &downstream.url, self.rate_max())
    }

    /// Every worker keeps to the limit by itself.
    fn baseline(&self, stage: &Stage) -> Result<Baseline> {
        let run = "baseline";
        let (rate, burst) = (self.options.rate, self.options.burst);
        println!(
            "\nwithout tollgate, for {} s: each worker keeps to {rate}/s by itself",
            BASELINE_LENGTH.as_secs()
        );
        let downstream = self.downstream(stage, run)?;
        let own = self.fleet_settings(&downstream);
        let settings = FleetSettings { local_only: Some((rate, burst)), ..own };
        let fleet = stage.fleet(run, &settings)?;
        let calls = u64::from(settings.workers)
            * (u64::from(rate) * (BASELINE_LENGTH.as_secs() + 2) + u64::from(burst));
        let batch = stage.batch(run, &self.batch, calls, &settings)?;
        let names = fleet.names(settings.workers);
        let mut live = Live::new(&fleet.notes, &names, None);
        let limit = bound(rate, burst, None);
        while live.elapsed() < BASELINE_LENGTH && batch.is_running() {
            thread::sleep(LOOK_EVERY);
            live.look(&limit.rate)?;
            stage.check()?;
            fleet.check()?;
        }
        live.end();
        fleet.workers.iter().try_for_each(Process::kill)?;
        batch.kill()?;
        stage.end_workflows(run)?;
        let notes = read_notes(&fleet, &names)?;
        Ok(Baseline {
            rejected_by_downstream: Some(rejected(&downstream, &notes, false)?),
            peak_over_bound: metrics::peak_over_bound(&admissions(&notes), &limit),
        })
    }

    /// The run with tollgate.
    fn main_run(&self, stage: &Stage, baseline: Baseline) -> Result<(Outcome, Parts)> {
        let run = "main";
        let (rate, burst) = (self.options.rate, self.options.burst);
        println!("\nwith tollgate: all workers share {rate}/s");
        stage.create_limit(rate, burst)?;
        let downstream = self.downstream(stage, run)?;
        let settings = self.fleet_settings(&downstream);
        let mut fleet = stage.fleet(run, &settings)?;
        let names = fleet.names(settings.workers);
        let batch = stage.batch(run, &self.batch, self.plan.calls, &settings)?;
        let mut live = Live::new(&fleet.notes, &names, Some(self.plan.calls));
        let mut events = Events::default();
        let stuck = self.plan.length * STUCK_FACTOR + STUCK_AFTER;
        while batch.is_running() {
            thread::sleep(LOOK_EVERY);
            self.step(stage, &mut fleet, &downstream, &mut live, &mut events)?;
            live.look(&bound(rate, burst, events.ramp).rate)?;
            stage.check()?;
            fleet.check()?;
            if let Some((process, ..)) = &downstream.ours {
                check(process)?;
            }
            if live.elapsed() > stuck {
                bail!("the batch isn't done after {stuck:?}{}", batch.output_end());
            }
        }
        let status = batch.exit_status().context("the batch runs again")?;
        if !status.success() {
            bail!("the batch failed ({status}){}", batch.output_end());
        }
        live.event("the batch is done");
        live.end();
        if !self.options.keep {
            for worker in &fleet.workers {
                worker.terminate(STOP_WITHIN)?;
            }
        }
        let notes = read_notes(&fleet, &names)?;
        let completed = completed(&batch, &notes)?;
        let parts = Parts {
            baseline: !self.options.no_baseline,
            ramp: self.plan.ramp.is_some(),
            kill_worker: self.plan.kill_worker.is_some(),
            kill_host: self.plan.kill_host.is_some(),
        };
        let rejected = rejected(&downstream, &notes, self.options.keep)?;
        let outcome = self.figures(&notes, &events, completed, rejected, baseline);
        Ok((outcome, parts))
    }

    /// Does what is due.
    fn step(
        &self,
        stage: &Stage,
        fleet: &mut Fleet,
        downstream: &Downstream,
        live: &mut Live,
        events: &mut Events,
    ) -> Result<()> {
        let elapsed = live.elapsed();
        let is_due = |at: Option<Duration>| at.is_some_and(|at| elapsed >= at);
        if events.killed_worker.is_none()
            && is_due(self.plan.kill_worker)
            && let Some(worker) = fleet.workers.pop()
        {
            let at = arrivals::boot_ns();
            worker.kill()?;
            live.event(&format!("{} was killed (-9)", worker.name()));
            events.killed_worker = Some((worker.name().to_owned(), at));
        }
        if let Some(ramp) = self.plan.ramp.filter(|ramp| events.ramp.is_none() && elapsed >= ramp.at) {
            let to = self.rate_max();
            if let Some((_, control, _)) = &downstream.ours {
                let allowed = control.set_allowance(self.allowance(to))?;
                live.event(&format!("the downstream's owner allows {}/s from now on", allowed.rate));
            }
            let length = format!("{}ms", ramp.length.as_millis());
            stage.set_limit(to, &["--ramp", &length, "--reason", "the downstream allows more"])?;
            events.ramp = Some(stage.ramp(to)?);
            live.event(&format!("the limit goes to {to}/s over {:.0} s", ramp.length.as_secs_f64()));
        }
        if events.killed_host.is_none() && is_due(self.plan.kill_host) {
            events.killed_host = Some(stage.restart_host()?);
            live.event("the coordinator host was killed (-9) and restarted");
        }
        Ok(())
    }

    fn figures(
        &self,
        notes: &BTreeMap<String, WorkerNotes>,
        events: &Events,
        completed: u64,
        rejected_by_downstream: u64,
        baseline: Baseline,
    ) -> Outcome {
        let admissions = admissions(notes);
        let end_ns = admissions.last().map_or(0, |admission| admission.at);
        let limit = bound(self.options.rate, self.options.burst, events.ramp);
        let leases = notes.iter().map(|(name, notes)| (name.clone(), notes.leases.clone())).collect();
        Outcome {
            workers: self.options.workers,
            rate: self.options.rate,
            rate_max: self.rate_max(),
            burst: self.options.burst,
            calls: self.plan.calls,
            completed,
            rejected_by_downstream,
            peak_over_bound: metrics::peak_over_bound(&admissions, &limit),
            utilization: metrics::utilization(&admissions, &limit.rate),
            baseline,
            ramp: RampFigures {
                max_error: events
                    .ramp
                    .and_then(|ramp| metrics::ramp_max_error(&admissions, &limit.rate, ramp)),
            },
            killed_worker: KilledWorker {
                reclaim_seconds: events.killed_worker.as_ref().and_then(|(worker, at)| {
                    metrics::reclaim_seconds(&leases, worker, *at, &admissions, &limit.rate)
                }),
            },
            coordinator_kill: CoordinatorKill {
                zero_grant_seconds: events
                    .killed_host
                    .map(|at| metrics::zero_grant_seconds(&admissions, at, end_ns)),
                heartbeat_gap_seconds: events
                    .killed_host
                    .map(|at| metrics::heartbeat_gap_seconds(&leases, at, end_ns)),
            },
        }
    }
}

/// Calls that got a 429: by the downstream's own log, or by the answers where the downstream isn't ours.
fn rejected(downstream: &Downstream, notes: &BTreeMap<String, WorkerNotes>, keep: bool) -> Result<u64> {
    let Some((process, control, log)) = &downstream.ours else {
        let answers = notes.values().flat_map(|notes| &notes.calls);
        return Ok(answers.filter(|call| call.status == 429).count() as u64);
    };
    let stats = control.stats()?;
    if keep {
        thread::sleep(FLUSHED_AFTER);
    } else {
        process.terminate(STOP_WITHIN)?;
    }
    let rejected = count_rejected(log)?;
    if rejected != stats.rejected {
        bail!("the downstream counts {} rejected calls and its log has {rejected}", stats.rejected);
    }
    Ok(rejected)
}
