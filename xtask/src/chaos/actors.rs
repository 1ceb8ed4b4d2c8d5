//! The processes that are broken on purpose.

use anyhow::Result;

use super::hands::Journal;
use super::schedule::{Doing, Step};
use crate::fleet::stage::{Fleet, FleetSettings, Stage};
use crate::process::Process;

/// What a process that is broken on purpose should be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// At work.
    Runs,
    /// Stopped where it is.
    Paused,
    /// Killed, or asked to end.
    Away,
}

/// The fleet and what was done to it.
#[derive(Debug)]
pub struct Actors {
    /// The workers that were started last.
    pub fleet: Fleet,
    /// How more of them are started.
    pub settings: FleetSettings,
    /// By the worker's number less one.
    pub workers: Vec<State>,
    /// By the host's number.
    pub hosts: Vec<State>,
    /// The Temporal server.
    pub server: State,
    /// Workers that ended without being told to.
    pub workers_ended_by_themselves: u64,
    /// Hosts that did.
    pub hosts_ended_by_themselves: u64,
}

impl Actors {
    /// Processes that ended without being told to, with the steps that start them again.
    pub fn ended(&mut self, stage: &Stage, journal: &Journal) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, state) in self.workers.iter_mut().enumerate() {
            let Some(process) = self.fleet.workers.get(index).filter(|_| *state == State::Runs) else {
                continue;
            };
            if let Some(status) = process.exit_status() {
                *state = State::Away;
                steps.push(Step::Worker(u32::try_from(index + 1).unwrap_or(u32::MAX), Doing::Start));
                let is_ready = process.output().is_ok_and(|text| text.lines().any(|line| line == "ready"));
                // A worker that finds no server at its start says so and ends.
                self.workers_ended_by_themselves += u64::from(is_ready);
                journal.note(format!("{} ended by itself ({status}), ready: {is_ready}", process.name()));
            }
        }
        for (number, state) in self.hosts.iter_mut().enumerate().filter(|(_, state)| **state == State::Runs) {
            let process = stage.host(number);
            if let Some(status) = process.exit_status() {
                *state = State::Away;
                steps.push(Step::Host(number, Doing::Start));
                self.hosts_ended_by_themselves += 1;
                journal.note(format!("{} ended by itself ({status})", process.name()));
            }
        }
        steps
    }
}

/// Sends the signal, and says what the process is doing then. Starting it is left to others.
///
/// # Errors
/// When the signal can't be sent.
pub fn done_to(process: &Process, doing: Doing) -> Result<State> {
    match doing {
        Doing::Kill => process.kill().map(|()| State::Away),
        Doing::Pause => process.pause().map(|()| State::Paused),
        Doing::Resume => process.resume().map(|()| State::Runs),
        Doing::Stop => process.ask_to_end().map(|()| State::Away),
        Doing::Start => Ok(State::Runs),
    }
}
