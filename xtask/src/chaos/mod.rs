//! `cargo xtask chaos`: the demo's fleet on a Temporal server with its state in a file, while everything is broken.
//!
//! - [`schedule`]: what is broken when, from a seed.
//! - [`hands`]: operators at their commands. [`watch`]: what the coordinator says meanwhile.
//! - [`book`]: which rates were in force when: the bound. [`mod@outages`]: when the ledger could not grant.
//! - [`actors`]: the processes. [`figures`]: what is computed and drawn from their notes.
//! - [`leaks`]: who still holds what at the end. [`outcome`]: the figures, and what they must reach.
//!
//! The judge is the simulator's. It sees what the workers logged at admission and what the downstream logged at arrival, and
//! nothing of the ledger.

pub mod actors;
pub mod book;
pub mod figures;
pub mod hands;
pub mod leaks;
mod options;
pub mod outages;
pub mod outcome;
pub mod schedule;
pub mod watch;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use tollgate_sim::checker::{Admission, Bound, PICO, Polyline, judge};
use tollgate_sim::plot::Plot;

use self::actors::{Actors, State, done_to};
use self::figures::{Figures, arrival, grants, happened};
use self::hands::{Done, Hands, Journal};
use self::outages::{Outage, merged, outages};
use self::outcome::Outcome;
use self::schedule::{Cast, Change, Doing, Event, Schedule, Step};
use self::watch::Watch;
use crate::downstream::Allowance;
use crate::downstream::arrivals::{self, boot_ns};
use crate::fleet::batch::Batch;
use crate::fleet::live::Live;
use crate::fleet::metrics::{peak_over_bound, seconds};
use crate::fleet::stage::{self, FleetSettings, Stage, StageSettings, check};
use crate::fleet::{BATCH_DEFAULT, admissions, checklist, completed, count_rejected, read_notes, run_dir};
use crate::process::{Process, Supervisor};
use crate::temporal_cli;
use crate::workspace::Workspace;

pub use options::ChaosOptions;

/// The run's name: part of the names of queues and workflows.
const RUN: &str = "chaos";
/// Coordinator hosts.
const HOSTS: usize = 2;
/// How often the run is looked at. Steps are late by at most this.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a process may take to end when it is asked to.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How long a worker that ended by itself is left alone.
const RESPAWN_AFTER: Duration = Duration::from_secs(1);
/// Of the calls that the limit allows while faults go on, the batch has this many percent: the rest is for outages.
const BATCH_PERCENT: u64 = 95;
/// With all faults healed, calls must come to an end within this: longer than any recovery.
const STUCK_AFTER: Duration = Duration::from_secs(180);
/// Commands that may wait in one lane.
const LANE_COMMANDS_MAX: usize = 256;

/// Which figures decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// All of them.
    Everything,
    /// Those that hold on a busy machine too: for tests, which don't measure times.
    Promises,
}

/// Runs it.
///
/// # Errors
/// When a part of it can't be started, or its outcome breaks what tollgate promises.
pub fn run(workspace: &Workspace, options: &ChaosOptions, judged: Judged) -> Result<()> {
    let cast = Cast { workers: options.workers, hosts: HOSTS, rate: options.rate };
    let seed = options.seed.unwrap_or_else(drawn);
    let schedule = if options.short {
        Schedule::short(cast)
    } else {
        Schedule::random(seed, Duration::from_secs(u64::from(options.minutes) * 60), cast)
    };
    if let Some(path) = &options.json {
        fs::write(path, "").with_context(|| format!("--json {}: can't write this file", path.display()))?;
    }
    let batch = Batch::read(&workspace.root().join(BATCH_DEFAULT))?;
    let faults: Vec<String> =
        schedule.faults().iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    if options.short {
        println!("a fixed run of {} s: {}", schedule.length.as_secs(), faults.join(", "));
    } else {
        println!("--seed {seed} --minutes {}: {}", options.minutes, faults.join(", "));
    }
    let programs = stage::build(workspace)?;
    let cli = temporal_cli::find_or_fetch(workspace.root())?;
    let supervisor = Supervisor::new(run_dir(workspace, "chaos")?)?;
    supervisor.kill_on_interrupt()?;
    println!("starting a Temporal dev server ({}) and {HOSTS} coordinator hosts", cli.version);
    let stage = Stage::open(supervisor, programs, &cli, StageSettings { durable: true, hosts: HOSTS })?;
    println!("Temporal UI: {}", stage.ui());

    let chaos = Chaos { options, schedule, batch, stage: &stage };
    let (outcome, plot) = chaos.play()?;
    let outcome = Outcome { seed: (!options.short).then_some(seed), ..outcome }.rounded();
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&outcome)? + "\n";
        fs::write(path, json).with_context(|| format!("--json {}: can't write this file", path.display()))?;
        fs::write(path.with_extension("svg"), plot.svg()).context("can't write the plot beside --json")?;
    }
    let dir = stage.supervisor().run_dir();
    fs::write(dir.join("plot.svg"), plot.svg()).context("can't write the plot")?;
    show(&outcome);
    let checks = outcome.checks(judged);
    println!("\n{}", checklist::table(&checks));
    let failed: Vec<_> = checks.iter().filter(|check| !check.reached).map(|check| check.name).collect();
    if failed.is_empty() {
        println!("  notes, logs and plot: {}", dir.display());
        return Ok(());
    }
    let kept = keep(dir, seed)?;
    println!("  kept: {}", kept.display());
    println!("    chaos-notes/*.admissions   TIME LIMIT COST by the boot clock; also .leases, .calls");
    println!("    chaos.arrivals.jsonl       what the downstream saw");
    println!("    verdict.txt, plot.svg      the worst interval, and all of it");
    println!("    host*.stderr.log           what the coordinator hosts said");
    bail!("not reached: {}", failed.join("; "));
}

/// A seed that nobody chose.
fn drawn() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    u64::from(nanos) % 100_000
}

/// Names the folder so that no later run removes it.
fn keep(dir: &Path, seed: u64) -> Result<std::path::PathBuf> {
    let name = dir.file_name().context("the run's folder has no name")?.to_string_lossy().into_owned();
    let kept = dir.with_file_name(format!("broken-seed-{seed}-{name}"));
    fs::rename(dir, &kept).with_context(|| format!("can't rename {}", dir.display()))?;
    Ok(kept)
}

fn show(outcome: &Outcome) {
    println!();
    for outage in &outcome.outages {
        println!(
            "  outage: {:>6.1} s from {:>6.1} s on, {}",
            outage.seconds, outage.at_seconds, outage.cause
        );
    }
    let with = outcome.utilization_with_outages.unwrap_or_default();
    println!("  outages together {:.1} s; utilization with them {with:.3}", outcome.outage_seconds);
    println!("  answered again {}", outcome.answered_again);
}

/// A run that is about to begin.
struct Chaos<'a> {
    options: &'a ChaosOptions,
    schedule: Schedule,
    batch: Batch,
    stage: &'a Stage,
}

/// Where the steps go that take their time.
struct Lanes {
    limit: SyncSender<Event>,
    blows: SyncSender<Event>,
}

impl Chaos<'_> {
    fn play(&self) -> Result<(Outcome, Plot)> {
        let stage = self.stage;
        stage.create_limit(self.options.rate, self.options.burst)?;
        let downstream_burst = self.options.burst + self.options.burst / 2;
        let allowance = Allowance { rate: self.options.rate, burst: downstream_burst };
        let (downstream, control, arrivals_log) = stage.downstream(RUN, allowance)?;
        let queues = self.batch.queues();
        let settings =
            FleetSettings::of_rate(self.options.workers, queues, &control.url(), self.schedule.rate_max());
        let fleet = stage.fleet(RUN, &settings)?;
        let names = fleet.names(settings.workers);
        let watch = Watch::new(self.options.burst);
        watch.look(stage)?;
        let calls = (self.schedule.calls() * BATCH_PERCENT / 100).max(1);
        println!("\n{calls} calls on {} workers", settings.workers);
        let batch = stage.batch(RUN, &self.batch, calls, &settings)?;
        let journal = Journal::default();
        let hands = Hands {
            stage,
            watch: &watch,
            journal: &journal,
            control,
            downstream_burst,
            names: &names,
            open: AtomicUsize::new(0),
            rate_to_come: AtomicU32::new(0),
            following: Mutex::new(()),
            stop: AtomicBool::new(false),
        };
        let mut actors = Actors {
            workers: vec![State::Runs; names.len()],
            hosts: vec![State::Runs; HOSTS],
            server: State::Runs,
            fleet,
            settings,
            workers_ended_by_themselves: 0,
            hosts_ended_by_themselves: 0,
        };
        let begin_ns = boot_ns();
        let mut live = Live::new(&actors.fleet.notes, &names, Some(calls));
        let faults_end_ns = thread::scope(|scope| {
            let (limit, limit_commands) = sync_channel(LANE_COMMANDS_MAX);
            let (blows, blow_commands) = sync_channel(LANE_COMMANDS_MAX);
            let hands = &hands;
            scope.spawn(move || hands.lane(&limit_commands));
            scope.spawn(move || hands.lane(&blow_commands));
            scope.spawn(|| hands.look());
            let lanes = Lanes { limit, blows };
            let done = self.drive(hands, &mut actors, &lanes, &mut live, &batch, &downstream);
            drop(lanes);
            hands.stop.store(true, Ordering::SeqCst);
            done
        })?;
        live.end();

        let (leaked_permits, said) = self.leaks(&names, &actors)?;
        let notes = read_notes(&actors.fleet, &names)?;
        let stats = control.stats()?;
        downstream.terminate(STOP_WITHIN)?;
        let rejected_by_downstream = count_rejected(&arrivals_log)?;
        ensure!(rejected_by_downstream == stats.rejected, "the downstream's counts and its log differ");
        let answers =
            notes.values().flat_map(|notes| &notes.calls).filter(|call| (200..300).contains(&call.status));
        let answers: Vec<u64> = answers.map(|call| call.id).collect();
        let answered: BTreeSet<u64> = answers.iter().copied().collect();
        let done = if batch.is_running() { 0 } else { completed(&batch, &notes).unwrap_or(0) };

        let admissions = admissions(&notes);
        let arrived: Vec<Admission> = arrivals::read(&arrivals_log)?.iter().filter_map(arrival).collect();
        let book = watch.book();
        let bound = book.bound(self.options.burst);
        let room = Bound { burst: Polyline::constant(i128::from(downstream_burst) * PICO), ..bound.clone() };
        let verdicts = [judge(&admissions, &bound), judge(&arrived, &room)];
        let journal = journal.since(0);
        let to_ns = faults_end_ns.min(admissions.last().map_or(0, |last| last.at));
        let outages = outages(&journal, &watch.seen(), &grants(&notes), HOSTS, to_ns.max(faults_end_ns));
        self.write_verdict(&verdicts, &said, &book, &journal, begin_ns)?;
        let figures = Figures {
            admissions: &admissions,
            configured: &book.configured(),
            outages: &outages,
            begin_ns,
            to_ns,
        };
        let faults = happened(&journal);
        let outcome = Outcome {
            seed: None,
            minutes: seconds(faults_end_ns - begin_ns) / 60.0,
            workers: self.options.workers,
            rate: self.options.rate,
            burst: self.options.burst,
            faults,
            violations: verdicts.iter().flatten().filter(|verdict| verdict.exceeded).count() as u64,
            peak_over_bound: peak_over_bound(&admissions, &bound),
            downstream_peak_over_bound: peak_over_bound(&arrived, &room),
            rejected_by_downstream,
            calls,
            completed: done,
            lost: calls.saturating_sub(answered.len() as u64),
            answered_again: answers.len() as u64 - answered.len() as u64,
            utilization: figures.utilization(true),
            utilization_with_outages: figures.utilization(false),
            outage_seconds: merged(&outages, begin_ns, to_ns)
                .iter()
                .map(|(from, to)| seconds(to - from))
                .sum(),
            recovery_seconds_max: outages.iter().map(Outage::seconds).fold(0.0, f64::max),
            outages: outages.iter().map(|outage| outage.figures(begin_ns)).collect(),
            leaked_permits,
            limit_forgotten: watch.forgotten(),
            workers_ended_by_themselves: actors.workers_ended_by_themselves,
            hosts_ended_by_themselves: actors.hosts_ended_by_themselves,
            given_up: journal.iter().filter(|done| done.text.starts_with("given up")).count() as u64,
        };
        let title = match self.options.seed {
            Some(seed) => format!("chaos, seed {seed}: {} faults", outcome.faults.values().sum::<u64>()),
            None => format!("chaos: {} faults", outcome.faults.values().sum::<u64>()),
        };
        Ok((outcome, figures.plot(&title, &bound.rate, &journal)))
    }

    /// Does what is planned, heals everything, and waits for the batch. Returns when faults had come to an end.
    fn drive(
        &self,
        hands: &Hands<'_>,
        actors: &mut Actors,
        lanes: &Lanes,
        live: &mut Live,
        batch: &Process,
        downstream: &Process,
    ) -> Result<u64> {
        let mut events = self.schedule.events.clone();
        let mut shown = 0;
        let mut faults_end: Option<(u64, Instant)> = None;
        let mut progress = 0;
        while batch.is_running() || faults_end.is_none() {
            thread::sleep(LOOK_EVERY);
            let due = events.partition_point(|event| event.at <= live.elapsed());
            for event in events.drain(..due).collect::<Vec<_>>() {
                if let Some(again) = self.act(event, hands, actors, lanes)? {
                    let at = live.elapsed() + again;
                    let place = events.partition_point(|event| event.at <= at);
                    events.insert(place, Event { at, ..event });
                }
            }
            for lost in actors.ended(self.stage, hands.journal) {
                let at = live.elapsed() + RESPAWN_AFTER;
                let place = events.partition_point(|event| event.at <= at);
                events.insert(place, Event { at, fault: None, step: lost });
            }
            if actors.server == State::Runs {
                check(&self.stage.temporal())?;
            }
            check(downstream)?;
            for done in hands.journal.since(shown) {
                shown += 1;
                live.event(&done.text);
            }
            live.look(&hands.watch.book().configured())?;
            let is_over = events.is_empty() && live.elapsed() >= self.schedule.length;
            if faults_end.is_none() && is_over && hands.open.load(Ordering::SeqCst) == 0 {
                faults_end = Some((boot_ns(), Instant::now()));
                hands.journal.note("no more faults".to_owned());
                let rate = self.schedule.rate_max();
                let step = Step::Limit(Change::Set { rate, ramp_ms: 1_000 });
                self.act(Event { at: live.elapsed(), fault: None, step }, hands, actors, lanes)?;
            }
            if let Some((_, since)) = &mut faults_end {
                let completed = live.counts().completed;
                if completed > progress {
                    (progress, *since) = (completed, Instant::now());
                } else if since.elapsed() > STUCK_AFTER {
                    hands.journal.note(format!("stuck: no call was answered for {STUCK_AFTER:?}"));
                    live.event("stuck");
                    break;
                }
            }
        }
        if let Some(status) = batch.exit_status() {
            let text = if status.success() {
                "the batch is done".to_owned()
            } else {
                format!("the batch failed ({status})")
            };
            live.event(&text);
            hands.journal.note(text);
        }
        faults_end.map(|(at_ns, _)| at_ns).context("faults went on to the end")
    }

    /// Takes a step. Returns when it is to be tried again.
    fn act(
        &self,
        event: Event,
        hands: &Hands<'_>,
        actors: &mut Actors,
        lanes: &Lanes,
    ) -> Result<Option<Duration>> {
        let stage = self.stage;
        let at_ns = boot_ns();
        match event.step {
            Step::Limit(_) | Step::Workflow(_) => {
                let lane = if matches!(event.step, Step::Limit(_)) { &lanes.limit } else { &lanes.blows };
                hands.open.fetch_add(1, Ordering::SeqCst);
                lane.try_send(event).map_err(|error| anyhow::anyhow!("a lane is stuck: {error}"))?;
                return Ok(None);
            }
            Step::Worker(number, doing) => {
                let index = number as usize - 1;
                let process = actors.fleet.workers.get(index).context("no such worker")?.clone();
                if doing == Doing::Start {
                    if process.is_running() && !self.has_waited(hands, &process, event) {
                        return Ok(Some(RESPAWN_AFTER / 4));
                    }
                    // Whoever starts workers waits for what they need.
                    if actors.server != State::Runs || !stage.temporal_listens() {
                        return Ok(Some(RESPAWN_AFTER / 4));
                    }
                    actors.fleet.workers[index] =
                        stage.worker(&actors.fleet, process.name(), &actors.settings)?;
                }
                actors.workers[index] = done_to(&process, doing)?;
            }
            Step::Host(number, doing) => {
                let process = stage.host(number);
                if doing == Doing::Start {
                    if process.is_running() && !self.has_waited(hands, &process, event) {
                        return Ok(Some(RESPAWN_AFTER / 4));
                    }
                    stage.start_host(number)?;
                }
                actors.hosts[number] = done_to(&process, doing)?;
            }
            Step::Server(doing) => {
                let process = stage.temporal();
                if doing == Doing::Start {
                    stage.start_temporal()?;
                }
                actors.server = done_to(&process, doing)?;
            }
        }
        hands.journal.done(at_ns, event);
        Ok(None)
    }

    /// Whether a process that was asked to end has had enough time for it; it is killed then.
    fn has_waited(&self, hands: &Hands<'_>, process: &Process, event: Event) -> bool {
        let asked = hands.journal.since(0).into_iter().rev().find(|done| {
            done.event.is_some_and(|done| match (done.step, event.step) {
                (Step::Worker(one, Doing::Stop), Step::Worker(other, _)) => one == other,
                (Step::Host(one, Doing::Stop), Step::Host(other, _)) => one == other,
                _ => false,
            })
        });
        let waited_ns = asked.map_or(0, |done| boot_ns() - done.at_ns);
        if u128::from(waited_ns) < STOP_WITHIN.as_nanos() {
            return false;
        }
        hands.journal.note(format!("{} did not end in time and is killed", process.name()));
        process.kill().is_ok()
    }

    /// What nobody should hold: with all workers alive, and after they have ended.
    fn leaks(&self, names: &[String], actors: &Actors) -> Result<(u64, String)> {
        let (with_workers, said) = leaks::leaked(self.stage, names)?;
        for worker in &actors.fleet.workers {
            worker.ask_to_end()?;
        }
        for worker in &actors.fleet.workers {
            worker.terminate(STOP_WITHIN)?;
        }
        let (without, said_then) = leaks::leaked(self.stage, &[])?;
        Ok((with_workers.max(without), format!("with workers: {said}\nwithout: {said_then}")))
    }

    /// Writes down what the judge says, for people.
    fn write_verdict(
        &self,
        verdicts: &[Option<tollgate_sim::checker::Verdict>],
        leaks: &str,
        book: &book::Book,
        journal: &[Done],
        begin_ns: u64,
    ) -> Result<()> {
        let mut text = format!("admissions: {:#?}\narrivals: {:#?}\n", verdicts.first(), verdicts.get(1));
        text.push_str(&format!("\nleaks: {leaks}\n\n{book:#?}\n\n"));
        for done in journal {
            let at = seconds(done.at_ns.saturating_sub(begin_ns));
            text.push_str(&format!("{at:>8.3} s  {}  {}\n", done.at_ns, done.text));
        }
        let path = self.stage.supervisor().run_dir().join("verdict.txt");
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))
    }
}
