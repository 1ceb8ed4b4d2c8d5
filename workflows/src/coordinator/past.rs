//! What a coordinator held at a time in the past: its run's history, taken in again by a ledger.
//!
//! The messages of a workflow task are handled at the task's time: signals in their order, then updates, then timers and
//! answers of activities. What updates answer is compared with what they answered then, the ledger's digest with it, so that it is
//! known whether the ledger is the one that was.

use super::Coordinator;
use crate::twin;
use crate::wire::config::{ConfigureJson, ConfiguredJson, ConfiguredStatus};
use crate::wire::escrow::EscrowReplyJson;
use crate::wire::lease::{AcquireJson, AcquireReplyJson, HeartbeatJson, HeartbeatReplyJson, RefusedJson};
use crate::wire::{Unreadable, read, write};
use std::collections::BTreeMap;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payloads;
use temporalio_common::protos::temporal::api::enums::v1::WorkflowTaskFailedCause;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;
use temporalio_common::protos::temporal::api::update::v1::outcome;
use tollgate_core::ledger::strict::AcquireOutcome;
use tollgate_core::ledger::{Input, Ledger, Output};
use tollgate_core::units::LedgerTime;

/// The activity that brings what is kept in mind of windows; see [`crate::contracts::Activities`].
const ESCROW_ACTIVITY: &str = "tollgate.escrow";

/// What a coordinator held. See the module's documentation.
#[derive(Debug)]
pub struct Past {
    me: Coordinator,
    /// Updates whose answers are the recorded ones.
    pub alike: u64,
    /// Updates whose answers are others: the ledger is not exactly the one that was.
    pub different: u64,
    /// The time up to which messages were taken in.
    pub at: LedgerTime,
}

/// One thing that a workflow task brought.
enum Job<'a> {
    Signal(&'a str, RawValue),
    Update(&'a str, RawValue, &'a str),
    Timer,
    Escrowed(RawValue),
    Gone(&'a str),
}

impl Past {
    /// Takes in the history of a run of coordinator `id` up to `until`, both as Temporal gives them.
    ///
    /// # Errors
    /// [`Unreadable`] when it doesn't begin as a run does.
    pub fn of(id: &str, events: &[HistoryEvent], until: LedgerTime) -> Result<Past, Unreadable> {
        let first = events.first().and_then(|event| event.attributes.as_ref().zip(Some(event)));
        let Some((Attributes::WorkflowExecutionStartedEventAttributes(started), event)) = first else {
            return Err(Unreadable::new("the history doesn't begin with the start of a run"));
        };
        let seed = twin::seed_of_run(&started.original_execution_run_id);
        let me = Coordinator::begin_at(id, seed, time(event), &raw(started.input.as_ref()));
        let mut past = Past { me, alike: 0, different: 0, at: time(event) };
        past.take_in(events, until);
        past.at = past.at.max(until);
        past.me.ledger.apply(past.at, Input::Tick);
        Ok(past)
    }

    /// The ledger as it was.
    pub fn ledger(&self) -> &Ledger {
        &self.me.ledger
    }

    fn take_in(&mut self, events: &[HistoryEvent], until: LedgerTime) {
        let answers = answers(events);
        let kinds = activities(events);
        let mut waiting: Vec<Job<'_>> = Vec::new();
        let mut task: Option<LedgerTime> = None;
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for event in events {
            let Some(attributes) = &event.attributes else { continue };
            match attributes {
                Attributes::WorkflowTaskStartedEventAttributes(_) => {
                    self.carry_out(task.take(), &mut jobs);
                    if time(event) > until {
                        return;
                    }
                    task = Some(time(event));
                    jobs.append(&mut waiting);
                }
                // What it brought comes again with the next one.
                Attributes::WorkflowTaskFailedEventAttributes(failed) => {
                    jobs.append(&mut waiting);
                    (waiting, task) = (std::mem::take(&mut jobs), None);
                    if failed.cause() == WorkflowTaskFailedCause::ResetWorkflow {
                        self.me.renewing = true;
                        let epoch = super::number(twin::seed_of_run(&failed.new_run_id));
                        self.me.ledger.apply(time(event), Input::Forget { epoch });
                    }
                }
                Attributes::WorkflowTaskTimedOutEventAttributes(_) => {
                    jobs.append(&mut waiting);
                    (waiting, task) = (std::mem::take(&mut jobs), None);
                }
                Attributes::WorkflowExecutionSignaledEventAttributes(signal) => {
                    waiting.push(Job::Signal(&signal.signal_name, raw(signal.input.as_ref())));
                }
                // Accepted in the task that is on: its end comes before.
                Attributes::WorkflowExecutionUpdateAcceptedEventAttributes(accepted) => {
                    let input = accepted.accepted_request.as_ref().and_then(|request| request.input.as_ref());
                    if let Some(input) = input {
                        let id = accepted.protocol_instance_id.as_str();
                        jobs.push(Job::Update(
                            &input.name,
                            raw(input.args.as_ref()),
                            answers.get(id).map_or("", |text| text),
                        ));
                    }
                }
                Attributes::TimerFiredEventAttributes(_) => waiting.push(Job::Timer),
                Attributes::ActivityTaskCompletedEventAttributes(done)
                    if kinds.get(&done.scheduled_event_id).is_some_and(|kind| *kind == ESCROW_ACTIVITY) =>
                {
                    waiting.push(Job::Escrowed(raw(done.result.as_ref())));
                }
                Attributes::SignalExternalWorkflowExecutionFailedEventAttributes(failed) => {
                    if let Some(to) = &failed.workflow_execution {
                        waiting.push(Job::Gone(&to.workflow_id));
                    }
                }
                _ => {}
            }
        }
        self.carry_out(task, &mut jobs);
    }

    /// Does what a task did: messages first, each kind in its order, then the rest.
    fn carry_out(&mut self, task: Option<LedgerTime>, jobs: &mut Vec<Job<'_>>) {
        let Some(now) = task else { return };
        self.at = self.at.max(now);
        let order = |job: &Job<'_>| match job {
            Job::Signal(..) => 0,
            Job::Update(..) => 1,
            Job::Timer | Job::Escrowed(_) | Job::Gone(_) => 2,
        };
        jobs.sort_by_key(order);
        for job in jobs.drain(..) {
            match job {
                Job::Signal(name, input) => {
                    self.arrive(now);
                    self.signal(now, name, &input);
                }
                Job::Update(name, input, answered) => {
                    self.arrive(now);
                    let answer = self.update(now, name, &input);
                    let is_same = answer.as_ref().is_some_and(|answer| text(answer) == answered);
                    // What wasn't answered in this run can't be compared.
                    if !answered.is_empty() {
                        self.alike += u64::from(is_same);
                        self.different += u64::from(!is_same);
                    }
                }
                Job::Timer => {
                    self.arrive(now);
                    self.me.ledger.apply(now, Input::Tick);
                }
                Job::Escrowed(answer) => {
                    if let Ok(EscrowReplyJson::Ok { cells }) = read(&answer) {
                        for (key, escrow) in cells.into_iter().filter_map(|cell| cell.check().ok()) {
                            self.me.ledger.apply(now, Input::Escrowed { key, escrow });
                        }
                    }
                }
                Job::Gone(id) => {
                    let places = self.me.replies.forget(id);
                    self.me.give_up(now, places);
                }
            }
            let me = &mut self.me;
            me.replies.collect(&me.group, &me.ledger);
            // They were sent.
            while me.replies.take_next().is_some() {}
            me.notices.clear();
            me.answers.clear();
        }
    }

    fn arrive(&mut self, now: LedgerTime) {
        let places = self.me.replies.stale(now);
        self.me.give_up(now, places);
    }

    fn signal(&mut self, now: LedgerTime, name: &str, input: &RawValue) {
        let me = &mut self.me;
        // What couldn't be read changed nothing then either.
        let _ = match name {
            "lease" => me.lease_signal(now, input),
            "report" => me.report_signal(now, input),
            "revoke" => me.revoke_signal(now, input),
            "evict" => me.evict_signal(now, input),
            "configure" => read::<ConfigureJson>(input).and_then(ConfigureJson::check).map(|configure| {
                me.configure(now, configure);
            }),
            _ => Ok(()),
        };
    }

    fn update(&mut self, now: LedgerTime, name: &str, input: &RawValue) -> Option<RawValue> {
        let me = &mut self.me;
        match name {
            "heartbeat" if me.renewing => Some(write(&HeartbeatReplyJson::Refused(RefusedJson::busy()))),
            "heartbeat" => {
                let request = read::<HeartbeatJson>(input).and_then(HeartbeatJson::check).ok()?;
                match me.ledger.apply(now, Input::Heartbeat(request)) {
                    Output::Reply(answer) => Some(write(&HeartbeatReplyJson::of(&answer))),
                    _ => None,
                }
            }
            "acquire" if me.renewing => {
                Some(write(&AcquireReplyJson::Queued { ahead: 0, due_ms: Some(200) }))
            }
            "acquire" => {
                let acquire = read::<AcquireJson>(input).and_then(|acquire| acquire.check(false)).ok()?;
                let (cost, key) = (acquire.cost, acquire.key.clone());
                let outcome = match me.ledger.apply(now, Input::Acquire(acquire)) {
                    Output::Acquired(outcome) => outcome,
                    _ => AcquireOutcome::QueueFull,
                };
                Some(write(&AcquireReplyJson::of(outcome, cost, &key)))
            }
            "configure" if !me.renewing => {
                let configure = read::<ConfigureJson>(input).and_then(ConfigureJson::check).ok()?;
                let answer = |status, message| Some(write(&ConfiguredJson { status, message }));
                match me.configure(now, configure) {
                    Output::Configured => answer(ConfiguredStatus::Configured, String::new()),
                    Output::Ignored => {
                        let in_force = format!("version in force: {}", me.ledger.state().version);
                        answer(ConfiguredStatus::Ignored, in_force)
                    }
                    Output::Refused(error) => answer(ConfiguredStatus::Refused, error.to_string()),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// What updates answered, as text, by their ids.
fn answers(events: &[HistoryEvent]) -> BTreeMap<&str, String> {
    let answer = |event| -> Option<(&str, String)> {
        let event: &HistoryEvent = event;
        let Some(Attributes::WorkflowExecutionUpdateCompletedEventAttributes(completed)) = &event.attributes
        else {
            return None;
        };
        match completed.outcome.as_ref()?.value.as_ref()? {
            outcome::Value::Success(payloads) => {
                Some((&completed.meta.as_ref()?.update_id, text(&raw(Some(payloads)))))
            }
            outcome::Value::Failure(_) => None,
        }
    };
    events.iter().filter_map(answer).collect()
}

/// The kinds of activities by the numbers of the events that scheduled them.
fn activities(events: &[HistoryEvent]) -> BTreeMap<i64, &str> {
    events
        .iter()
        .filter_map(|event| match event.attributes.as_ref()? {
            Attributes::ActivityTaskScheduledEventAttributes(scheduled) => {
                Some((event.event_id, scheduled.activity_type.as_ref()?.name.as_str()))
            }
            _ => None,
        })
        .collect()
}

fn raw(payloads: Option<&Payloads>) -> RawValue {
    RawValue::new(payloads.map(|payloads| payloads.payloads.clone()).unwrap_or_default())
}

fn text(value: &RawValue) -> String {
    let data = value.payloads.first().map(|payload| payload.data.as_slice()).unwrap_or_default();
    String::from_utf8_lossy(data).into_owned()
}

fn time(event: &HistoryEvent) -> LedgerTime {
    let time = event.event_time.as_ref();
    LedgerTime(time.map_or(0, |time| {
        let secs = u64::try_from(time.seconds).unwrap_or(0);
        secs.saturating_mul(1_000_000).saturating_add(u64::try_from(time.nanos).unwrap_or(0) / 1_000)
    }))
}
