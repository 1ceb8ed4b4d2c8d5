//! Who does what is planned: operators at their commands, each with a lane of their own, since a command may have to wait
//! for what was just broken.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::book::Version;
use super::schedule::{Blow, Change, Event, Step};
use super::watch::{CONFIG, COORDINATOR, Watch, query};
use crate::downstream::Allowance;
use crate::downstream::arrivals::boot_ns;
use crate::downstream::control::Control;
use crate::fleet::stage::{LIMIT, Stage};

/// How often the coordinator is asked how it is.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// How long after a command failed it is given again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long a command is given again for: longer than the server and all hosts are ever away.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// How long a change may take until the coordinator keeps to it.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);
/// The downstream's allowance follows what may be in force from this long ago until ...
const ALLOWANCE_BACK_NS: u64 = 1_500_000_000;
/// ... this far ahead, since it is changed in steps while the limit ramps.
const ALLOWANCE_AHEAD_NS: u64 = 2_500_000_000;

/// Something that was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// When it began, by the boot clock.
    pub at_ns: u64,
    /// When it was done.
    pub done_ns: u64,
    /// What it was; nothing for what wasn't planned.
    pub event: Option<Event>,
    /// How it is shown.
    pub text: String,
}

/// Everything that was done, in the order in which it was done.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Vec<Done>>);

impl Journal {
    /// Adds what was planned.
    pub fn done(&self, at_ns: u64, event: Event) {
        self.add(Done { at_ns, done_ns: boot_ns(), event: Some(event), text: event.step.to_string() });
    }

    /// Adds what wasn't planned.
    pub fn note(&self, text: String) {
        let now_ns = boot_ns();
        self.add(Done { at_ns: now_ns, done_ns: now_ns, event: None, text });
    }

    fn add(&self, done: Done) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    /// What was added after the first `count` entries.
    pub fn since(&self, count: usize) -> Vec<Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(count..).unwrap_or_default().to_vec()
    }
}

/// What the lanes share.
#[derive(Debug)]
pub struct Hands<'a> {
    /// The processes.
    pub stage: &'a Stage,
    /// What the coordinator says.
    pub watch: &'a Watch,
    /// What was done.
    pub journal: &'a Journal,
    /// The downstream's owner.
    pub control: Control,
    /// Calls at once that the downstream allows.
    pub downstream_burst: u32,
    /// The workers' names.
    pub names: &'a [String],
    /// Commands that aren't done yet.
    pub open: AtomicUsize,
    /// A rate that is about to be set, and may already be in force.
    pub rate_to_come: AtomicU32,
    /// Held while the downstream's allowance is changed.
    pub following: Mutex<()>,
    /// Set when it is over.
    pub stop: AtomicBool,
}

impl Hands<'_> {
    /// Carries out commands, one after the other, until their sender is gone.
    pub fn lane(&self, commands: &Receiver<Event>) {
        while let Ok(event) = commands.recv() {
            let at_ns = boot_ns();
            let outcome = match event.step {
                Step::Limit(change) => self.change(change),
                Step::Workflow(blow) => self.strike(blow),
                Step::Worker(..) | Step::Host(..) | Step::Server(_) => Ok(()),
            };
            match outcome {
                Ok(()) => self.journal.done(at_ns, event),
                Err(error) => self.journal.note(format!("given up: {}: {error:#}", event.step)),
            }
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Asks the coordinator again and again, and has the downstream follow.
    pub fn look(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            // It doesn't answer while it is broken.
            self.watch.look(self.stage).ok();
            if let Err(error) = self.follow() {
                self.journal.note(format!("the downstream: {error:#}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// The downstream allows what any lease may carry now.
    fn follow(&self) -> Result<()> {
        // Otherwise what was found earlier might be set later.
        let _one_at_a_time = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = boot_ns();
        let known = self.watch.book().rate_max(now_ns - ALLOWANCE_BACK_NS, now_ns + ALLOWANCE_AHEAD_NS);
        let rate = known.max(self.rate_to_come.load(Ordering::SeqCst)).clamp(1, Allowance::MAX);
        self.control.set_allowance(Allowance { rate, burst: self.downstream_burst }).map(drop)
    }

    fn change(&self, change: Change) -> Result<()> {
        #[derive(Deserialize)]
        struct Applied {
            version: String,
        }
        let (rate, ramp) = match change {
            Change::Set { rate, ramp_ms } => (format!("{rate}/s"), format!("{ramp_ms}ms")),
            Change::Abort => Default::default(),
        };
        let arguments = match change {
            Change::Set { rate, .. } => {
                self.rate_to_come.fetch_max(rate, Ordering::SeqCst);
                self.follow()?;
                vec!["limit", "set", LIMIT, "--rate", &*format!("{rate}/s"), "--ramp", &ramp]
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            }
            Change::Abort => ["limit", "abort-ramp", LIMIT].map(str::to_owned).to_vec(),
        };
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["--reason", "chaos", "--json", "--timeout", "8s"]);
        let text = self.until_done(|| match self.stage.operate("limit", &arguments) {
            // Whoever aborts a ramp that has ended is told so.
            Err(error) if change == Change::Abort && format!("{error:#}").contains("no ramp") => {
                Ok(String::new())
            }
            other => other,
        });
        let done = text.and_then(|text| {
            if text.is_empty() {
                return Ok(());
            }
            let applied: Applied =
                serde_json::from_str(&text).with_context(|| format!("the answer {text}"))?;
            self.in_force(version(&applied.version)?)
                .with_context(|| format!("version {} with rate {rate}", applied.version))
        });
        self.rate_to_come.store(0, Ordering::SeqCst);
        done
    }

    fn in_force(&self, version: Version) -> Result<()> {
        let deadline = Instant::now() + IN_FORCE_WITHIN;
        while !self.watch.has_seen(version) {
            if Instant::now() > deadline || self.stop.load(Ordering::SeqCst) {
                bail!("not in force after {IN_FORCE_WITHIN:?}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn strike(&self, blow: Blow) -> Result<()> {
        let reason = ["--reason", "chaos"];
        let reset = |kind: &str| {
            self.watch.around_reset(|| {
                let arguments =
                    [&["workflow", "reset", "-w", COORDINATOR, "--type", kind], &reason[..]].concat();
                self.stage.temporal_command("reset", &arguments).map(drop)
            })
        };
        let terminate = |id: &str| {
            let arguments = [&["workflow", "terminate", "-w", id], &reason[..]].concat();
            self.stage.temporal_command("terminate", &arguments).map(drop)
        };
        self.until_done(|| match blow {
            Blow::ResetFirst => reset("FirstWorkflowTask"),
            Blow::ResetLast => reset("LastWorkflowTask"),
            Blow::TerminateCoordinator => terminate(COORDINATOR),
            Blow::TerminateConfig => terminate(CONFIG),
            Blow::Evict(number) => self.evict(number),
        })
    }

    /// By its incarnation: the process that is started after it under the same name is another one.
    fn evict(&self, number: u32) -> Result<()> {
        #[derive(Deserialize)]
        struct Workers {
            workers: Vec<Worker>,
        }
        #[derive(Deserialize)]
        struct Worker {
            incarnation: String,
            standing: String,
        }
        let name = self.names.get(number as usize - 1).context("no such worker")?;
        let known: Workers = query(self.stage, "worker", &format!("{{\"worker\":\"{name}\"}}"))?;
        for worker in known.workers.iter().filter(|worker| worker.standing == "live") {
            let input = format!("{{\"worker\":\"{}\"}}", worker.incarnation);
            let arguments = ["workflow", "signal", "-w", COORDINATOR, "--name", "evict", "--input", &input];
            self.stage.temporal_command("evict", &arguments)?;
        }
        Ok(())
    }

    /// Gives a command again until it works: it may be given to a server that is away.
    fn until_done<T>(&self, command: impl Fn() -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + GIVE_UP_AFTER;
        loop {
            match command() {
                Err(error) if Instant::now() < deadline && !self.stop.load(Ordering::SeqCst) => {
                    drop(error);
                    thread::sleep(AGAIN_AFTER);
                }
                other => return other,
            }
        }
    }
}

fn version(text: &str) -> Result<Version> {
    let parts = text.split_once('.').and_then(|(run, n)| Some((run.parse().ok()?, n.parse().ok()?)));
    parts.with_context(|| format!("{text:?} is no version"))
}
