//! The coordinator workflow: runs the ledger of one group. Workflow id `tollgate/<group>`.
//!
//! | message | kind | what it does |
//! |---|---|---|
//! | `heartbeat` | update | report, acknowledge, lease: all cells of a worker in one message |
//! | `acquire` | update | one strict permit: granted, refused, or a place in the queue |
//! | `configure` | update, signal | the full configuration; older versions are ignored |
//! | `lease` | signal | one strict permit; see query `grants`, or say who gets the outcome (`reply_to`) |
//! | `lease` | signal, with `incarnation` | a heartbeat; its answer comes by activity `tollgate.notice` |
//! | `report` | signal | usage of a strict permit, or of a worker |
//! | `revoke` | signal | a worker or client has stopped |
//! | `evict` | update, signal | an operator's target of zero for a worker |
//! | `status`, `limit`, `worker`, `grants`, `configuration` | query | what the ledger shows |
//! | `explain` | query | who holds, who waits, why, and what would help |
//! | `starving` | query | who waits for too long although there is room; hosts ask, and log it |
//!
//! Handlers never block and never fail: a message that can't be read, and a signal that is refused, is counted and shown in
//! `status`.

mod answers;
mod evict;
mod lanes;
pub mod past;
mod signals;

pub use self::evict::{EvictJson, EvictedJson, EvictedWorkerJson};

use self::answers::Answer;
use crate::contracts::CoordinatorStart;
use crate::details;
use crate::proto as pb;
use crate::replies::{PermitKey, Replies};
use crate::state;
use crate::twin::{self, Twin};
use crate::wire::config::{ConfigureJson, ConfiguredJson, ConfiguredStatus, VersionJson};
use crate::wire::explain;
use crate::wire::lease::{
    AcquireJson, AcquireReplyJson, HeartbeatJson, HeartbeatReplyJson, NUMBER_BITS, RefusedJson,
};
use crate::wire::outlook::WouldAdmitJson;
use crate::wire::status::{self, FilterJson, LimitRowJson, StatusJson, UnreadableJson};
use crate::wire::{Unreadable, payload, read, write};
use prost::Message as _;
use std::collections::VecDeque;
use temporalio_common::data_converters::RawValue;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::{
    ContinueAsNewOptions, SyncWorkflowContext, WorkflowCancellationToken, WorkflowContext,
    WorkflowContextView, WorkflowResult,
};
use tollgate_core::ledger::strict::{AcquireOutcome, Settle};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Standing, Start, WORKERS_MAX};
use tollgate_core::message::Incarnation;
use tollgate_core::rules::RULES_VERSION;
use tollgate_core::units::{LedgerTime, Span};

/// The state's encoding in the input of a continued run.
pub const STATE_ENCODING: &str = "binary/protobuf";
/// Continue as new above this many events. A host that takes over after a kill replays all of them before it answers
/// anybody, and must be done well within the workflow task timeout of 2 s: 1,250 events take half a second in a debug
/// build on a busy machine. The server suggests it at 4,096.
/// Each run keeps to the number in its input, so that a history replays also where this has been changed since.
const HISTORY_EVENTS_MAX: u32 = 1_500;
/// What runs keep to whose input names no number. Never changes.
const HISTORY_EVENTS_UNNAMED: u32 = 1_500;
/// Notices that may wait. More workers than this learn urgent news from their next heartbeat.
const NOTICES_MAX: usize = 200;
/// Answers to heartbeats that may be on their way: one for each worker that a group can have.
const ANSWERS_MAX: usize = WORKERS_MAX;
/// The table in the Temporal UI is made anew at most this often.
const DETAILS_EVERY: Span = Span::from_secs(1);
/// A table of so many limits times workers takes microseconds to make.
const DETAILS_CHEAP: usize = 100;

/// See the module's documentation.
#[workflow]
#[derive(Debug)]
pub struct Coordinator {
    group: String,
    rules_version: u32,
    ledger: Ledger,
    unreadable: UnreadableJson,
    resets: u64,
    runs: u64,
    next_grant: u64,
    twin: Twin,
    /// A reset was noticed: updates are put off until the recovered state has been carried into a new run. Temporal
    /// hands updates in before the signals of the same task when it happens and after them on replay, so that what they
    /// change would differ.
    renewing: bool,
    /// After a reset the configuration may be an old one: the config workflow is asked to push its own again.
    ask_config: bool,
    /// Above this many events it continues as new.
    events_max: u32,
    updates: u32,
    notices: VecDeque<Incarnation>,
    notices_in_flight: usize,
    /// Answers to heartbeats that came by signal, at most one for each worker and [`ANSWERS_MAX`].
    answers: VecDeque<Answer>,
    answers_in_flight: usize,
    replies: Replies,
    replies_in_flight: usize,
    lanes_stop: bool,
    details_at: LedgerTime,
    /// The task that brought the newest signal, by its time.
    signalled_at: Option<LedgerTime>,
    token: WorkflowCancellationToken,
}

#[workflow_methods]
impl Coordinator {
    /// Reads the start input: JSON from whoever starts it, protobuf from the run before.
    #[init]
    pub fn new(ctx: &WorkflowContextView, input: RawValue) -> Self {
        Coordinator::begin(ctx, &input)
    }

    /// Runs until it continues as new. A cancel request is not obeyed: leases are out, and only time ends them.
    #[run(name = "tollgate.coordinator")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<RawValue> {
        ctx.state_mut(|me| me.details_at = LedgerTime(0));
        ctx.set_current_details(ctx.state(|me| me.details()));
        Self::drive(ctx).await?;
        // Nothing below awaits, so no message can slip in between.
        let bytes = ctx.state(|me| state::encode(&me.to_proto()));
        ctx.continue_as_new(payload(STATE_ENCODING, bytes), ContinueAsNewOptions::default())?;
        Ok(write(&()))
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(heartbeat)]
    fn validate_heartbeat(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<HeartbeatJson>(input)?.check()?;
        Ok(())
    }

    /// Report, acknowledge and lease for all cells of a worker.
    #[update(name = "heartbeat")]
    pub fn heartbeat(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) -> RawValue {
        let now = self.arrive(ctx);
        self.updates += 1;
        if self.renewing {
            return write(&HeartbeatReplyJson::Refused(RefusedJson::busy()));
        }
        let reply = match read::<HeartbeatJson>(&input).and_then(HeartbeatJson::check) {
            Ok(request) => match self.ledger.apply(now, Input::Heartbeat(request)) {
                Output::Reply(answer) => HeartbeatReplyJson::of(&answer),
                _ => HeartbeatReplyJson::Refused(RefusedJson::busy()),
            },
            Err(error) => {
                self.note("heartbeat", now, &error);
                HeartbeatReplyJson::Refused(RefusedJson::unreadable(&error))
            }
        };
        self.show(ctx, now);
        write(&reply)
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(acquire)]
    fn validate_acquire(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<AcquireJson>(input)?.check(false)?;
        Ok(())
    }

    /// One strict permit.
    #[update(name = "acquire")]
    pub fn acquire(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) -> RawValue {
        let now = self.arrive(ctx);
        self.updates += 1;
        if self.renewing {
            return write(&AcquireReplyJson::Queued { ahead: 0, due_ms: Some(200) });
        }
        let reply = match read::<AcquireJson>(&input).and_then(|acquire| acquire.check(false)) {
            Ok(acquire) => {
                let (cost, key) = (acquire.cost, acquire.key.clone());
                let outcome = match self.ledger.apply(now, Input::Acquire(acquire)) {
                    Output::Acquired(outcome) => outcome,
                    _ => AcquireOutcome::QueueFull,
                };
                AcquireReplyJson::of(outcome, cost, &key)
            }
            Err(error) => {
                self.note("acquire", now, &error);
                let message = error.to_string();
                AcquireReplyJson::Refused { reason: "unreadable".to_owned(), message, burst: None }
            }
        };
        self.show(ctx, now);
        write(&reply)
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(configure_update)]
    fn validate_configure(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<ConfigureJson>(input)?.check()?;
        Ok(())
    }

    /// The full configuration, with an answer.
    #[update(name = "configure")]
    pub fn configure_update(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) -> RawValue {
        let now = self.arrive(ctx);
        self.updates += 1;
        let answer = |status, message| ConfiguredJson { status, message };
        if self.renewing {
            return write(&answer(ConfiguredStatus::Busy, "recovering from a reset; ask again".to_owned()));
        }
        let reply = match read::<ConfigureJson>(&input).and_then(ConfigureJson::check) {
            Ok(configure) => match self.configure(now, configure) {
                Output::Configured => answer(ConfiguredStatus::Configured, String::new()),
                Output::Ignored => answer(
                    ConfiguredStatus::Ignored,
                    format!("version in force: {}", self.ledger.state().version),
                ),
                Output::Refused(error) => answer(ConfiguredStatus::Refused, error.to_string()),
                _ => answer(ConfiguredStatus::Busy, String::new()),
            },
            Err(error) => {
                self.note("configure", now, &error);
                answer(ConfiguredStatus::Refused, error.to_string())
            }
        };
        self.details_at = LedgerTime(0);
        self.show(ctx, now);
        write(&reply)
    }

    /// The full configuration.
    #[signal(name = "configure")]
    pub fn configure_signal(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = self.arrive_by_signal(ctx);
        match read::<ConfigureJson>(&input).and_then(ConfigureJson::check) {
            Ok(configure) => {
                if let Output::Refused(error) = self.configure(now, configure) {
                    self.note("configure", now, &Unreadable::new(error));
                }
            }
            Err(error) => self.note("configure", now, &error),
        }
        self.details_at = LedgerTime(0);
        self.show(ctx, now);
    }

    /// One strict permit, shown by query `grants` and told to whom `reply_to` names.
    #[signal(name = "lease")]
    pub fn lease(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = self.arrive_by_signal(ctx);
        if let Err(error) = self.lease_signal(now, &input) {
            self.note("lease", now, &error);
        }
        self.show(ctx, now);
    }

    /// Usage of a strict permit, or of a worker.
    #[signal(name = "report")]
    pub fn report(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = self.arrive_by_signal(ctx);
        if let Err(error) = self.report_signal(now, &input) {
            self.note("report", now, &error);
        }
        self.show(ctx, now);
    }

    /// A worker or a client of strict permits has stopped for good.
    #[signal(name = "revoke")]
    pub fn revoke(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = self.arrive_by_signal(ctx);
        if let Err(error) = self.revoke_signal(now, &input) {
            self.note("revoke", now, &error);
        }
        self.show(ctx, now);
    }

    /// An operator wants a worker to get nothing more.
    #[signal(name = "evict")]
    pub fn evict(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = self.arrive_by_signal(ctx);
        if let Err(error) = self.evict_signal(now, &input) {
            self.note("evict", now, &error);
        }
        self.show(ctx, now);
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(evict_update)]
    fn validate_evict(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<EvictJson>(input)?;
        Ok(())
    }

    /// The same, with an answer.
    #[update(name = "evict")]
    pub fn evict_update(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) -> RawValue {
        let now = self.arrive(ctx);
        self.updates += 1;
        if self.renewing {
            return write(&EvictedJson::Busy);
        }
        let reply = match read::<EvictJson>(&input) {
            Ok(wanted) => self.evict_by_update(now, &wanted),
            Err(error) => {
                self.note("evict", now, &error);
                EvictedJson::Refused { message: error.to_string() }
            }
        };
        self.show(ctx, now);
        write(&reply)
    }

    /// A small overview.
    #[query(name = "status")]
    pub fn status(&self, _ctx: &WorkflowContextView, _input: RawValue) -> RawValue {
        let state_bytes = Some(self.to_proto().encoded_len() as u64);
        write(&StatusJson { state_bytes, ..self.overview() })
    }

    /// Limits with their holders.
    #[query(name = "limit")]
    pub fn limit(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |filter| write(&status::limit_detail(&self.ledger, filter)))
    }

    /// Workers with what they hold.
    #[query(name = "worker")]
    pub fn worker(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |filter| write(&status::workers(&self.ledger, filter)))
    }

    /// Strict permits: what waits, what is out, what became of the last ones.
    #[query(name = "grants")]
    pub fn grants(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |filter| write(&status::grants(&self.ledger, filter)))
    }

    /// Who holds what, who waits and why, and what would help.
    #[query(name = "explain")]
    pub fn explain(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |filter| write(&explain::explain(&self.ledger, &self.group, filter)))
    }

    /// Who waits for too long although there is room.
    #[query(name = "starving")]
    pub fn starving(&self, _ctx: &WorkflowContextView, _input: RawValue) -> RawValue {
        write(&explain::starving(&self.ledger))
    }

    /// Whether work could begin at once; takes nothing.
    #[query(name = "would_admit")]
    pub fn would_admit(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        match read::<WouldAdmitJson>(&input).and_then(|ask| ask.answer(&self.ledger)) {
            Ok(outlook) => write(&outlook),
            Err(error) => write(&serde_json::json!({ "error": error.to_string() })),
        }
    }

    /// The configuration in force.
    #[query(name = "configuration")]
    pub fn configuration(&self, _ctx: &WorkflowContextView, _input: RawValue) -> RawValue {
        let state = self.ledger.state();
        let cells = state.cells.values().filter(|cell| !cell.removed).map(|cell| cell.config.clone());
        let configure =
            Configure { version: state.version, settings: state.settings, cells: cells.collect() };
        write(&ConfigureJson::of(&configure))
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Answers a query that takes a filter; a filter that can't be read is answered with what is wrong.
fn answer(input: &RawValue, with: impl FnOnce(&FilterJson) -> RawValue) -> RawValue {
    if input.payloads.is_empty() {
        return with(&FilterJson::default());
    }
    match read::<FilterJson>(input) {
        Ok(filter) => with(&filter),
        Err(error) => write(&serde_json::json!({ "error": error.to_string() })),
    }
}

impl Coordinator {
    fn begin(ctx: &WorkflowContextView, input: &RawValue) -> Coordinator {
        let raw = ctx.raw();
        let started = raw.start_time.as_ref().map_or(0, |time| {
            let secs = u64::try_from(time.seconds).unwrap_or(0);
            secs.saturating_mul(1_000_000).saturating_add(u64::try_from(time.nanos).unwrap_or(0) / 1_000)
        });
        Coordinator::begin_at(ctx.workflow_id(), raw.randomness_seed, LedgerTime(started), input)
    }

    /// The same without a context. From the seed follow the epoch of a ledger without memory, and what tells of a reset.
    fn begin_at(id: &str, seed: u64, now: LedgerTime, input: &RawValue) -> Coordinator {
        let group = id.strip_prefix("tollgate/").unwrap_or(id).to_owned();
        let fresh = |start: Start| Coordinator {
            group,
            rules_version: RULES_VERSION,
            ledger: Ledger::new(start, number(seed), now),
            unreadable: UnreadableJson::default(),
            resets: 0,
            runs: 0,
            next_grant: 0,
            twin: Twin::new(seed),
            renewing: false,
            ask_config: false,
            events_max: HISTORY_EVENTS_UNNAMED,
            updates: 0,
            notices: VecDeque::new(),
            notices_in_flight: 0,
            answers: VecDeque::new(),
            answers_in_flight: 0,
            replies: Replies::default(),
            replies_in_flight: 0,
            lanes_stop: false,
            details_at: LedgerTime(0),
            signalled_at: None,
            token: WorkflowCancellationToken::new(),
        };
        let carried = input.payloads.first().filter(|payload| {
            payload
                .metadata
                .get("encoding")
                .is_some_and(|encoding| encoding.as_slice() == STATE_ENCODING.as_bytes())
        });
        if let Some(payload) = carried {
            let mut me = fresh(Start::WithoutMemory);
            if let Err(error) = me.take_up(&payload.data) {
                me.note("start", now, &Unreadable::new(error));
            }
            return me;
        }
        match read::<CoordinatorStart>(input) {
            Ok(start) => {
                let mut me = fresh(if start.first { Start::First } else { Start::WithoutMemory });
                match start.configure.check() {
                    Ok(configure) => {
                        if let Output::Refused(error) = me.configure(now, configure) {
                            me.note("start", now, &Unreadable::new(error));
                        }
                    }
                    Err(error) => me.note("start", now, &error),
                }
                me
            }
            Err(error) => {
                // Started by hand: nothing proves that it is the first, so it recovers, and waits for a configuration.
                let mut me = fresh(Start::WithoutMemory);
                if !input.payloads.is_empty() {
                    me.note("start", now, &error);
                }
                me
            }
        }
    }

    fn take_up(&mut self, bytes: &[u8]) -> Result<(), state::StateError> {
        let carried = state::decode(bytes)?;
        let ledger = state::ledger_of(carried.ledger.ok_or(state::StateError::Broken("the ledger"))?)?;
        self.ledger = Ledger::resume(ledger);
        let unreadable = carried.unreadable.unwrap_or_default();
        self.unreadable = UnreadableJson {
            count: unreadable.count,
            last_name: unreadable.last_name,
            last_us: unreadable.last_us,
            last_error: unreadable.last_error,
        };
        self.resets = carried.resets;
        self.runs = carried.runs + 1;
        self.next_grant = carried.next_grant;
        self.ask_config = carried.ask_config;
        self.replies = Replies::of_proto(carried.replies.unwrap_or_default());
        self.answers = carried.answers.into_iter().filter_map(Answer::of_proto).take(ANSWERS_MAX).collect();
        if carried.history_events_max > 0 {
            self.events_max = carried.history_events_max;
        }
        Ok(())
    }

    fn to_proto(&self) -> pb::Coordinator {
        pb::Coordinator {
            group: self.group.clone(),
            rules_version: self.rules_version,
            ledger: Some(state::ledger(self.ledger.state())),
            unreadable: Some(pb::Unreadable {
                count: self.unreadable.count,
                last_name: self.unreadable.last_name.clone(),
                last_us: self.unreadable.last_us,
                last_error: self.unreadable.last_error.clone(),
            }),
            resets: self.resets,
            runs: self.runs,
            next_grant: self.next_grant,
            ask_config: self.ask_config,
            history_events_max: HISTORY_EVENTS_MAX,
            replies: Some(self.replies.to_proto()),
            answers: self.answers.iter().map(Answer::to_proto).collect(),
        }
    }

    /// What every message begins with: the time, and a look at whether the history was reset.
    fn arrive(&mut self, ctx: &SyncWorkflowContext<Self>) -> LedgerTime {
        let now = ledger_time(ctx.workflow_time()).unwrap_or(self.ledger.state().now);
        let drawn: u64 = ctx.random_stream(twin::STREAM).random();
        if self.twin.reset_since_last(drawn, ctx.run_id()) {
            self.resets += 1;
            self.renewing = true;
            self.ask_config = true;
            self.notices.clear();
            let epoch: u64 = ctx.random_stream("tollgate.epoch").random();
            self.ledger.apply(now, Input::Forget { epoch: number(epoch) });
        }
        self.give_up(now, self.replies.stale(now));
        now
    }

    /// Gives places up whose owners are gone.
    fn give_up(&mut self, now: LedgerTime, places: Vec<PermitKey>) {
        for (key, id) in places {
            self.ledger.apply(now, Input::Settle(Settle { id, key, used: 0 }));
        }
    }

    fn arrive_by_signal(&mut self, ctx: &SyncWorkflowContext<Self>) -> LedgerTime {
        self.signalled_at = ledger_time(ctx.workflow_time());
        self.arrive(ctx)
    }

    fn note(&mut self, name: &str, now: LedgerTime, error: &Unreadable) {
        self.unreadable = UnreadableJson {
            count: self.unreadable.count.saturating_add(1),
            last_name: name.to_owned(),
            last_us: now.0,
            last_error: error.to_string(),
        };
    }

    /// Takes a configuration on, and tells everybody when something got smaller at once, was paused or is resumed.
    fn configure(&mut self, now: LedgerTime, configure: Configure) -> Output {
        let state = self.ledger.state();
        let smaller = state.cells.iter().any(|(key, cell)| {
            let new = configure.cells.iter().find(|config| config.key == *key);
            new.is_none_or(|new| {
                new.rate.at(now).cmp_value(cell.config.rate.at(now)).is_lt()
                    || new.burst.at(now) < cell.config.burst.at(now)
                    || new.rate.target.cmp_value(cell.config.rate.target).is_lt()
                    || new.conduct.paused != cell.config.conduct.paused
            })
        });
        let output = self.ledger.apply(now, Input::Configure(configure));
        if smaller && output == Output::Configured {
            let live =
                self.ledger.state().workers.iter().filter(|(_, worker)| worker.standing == Standing::Live);
            self.notices = live.map(|(incarnation, _)| *incarnation).take(NOTICES_MAX).collect();
        }
        output
    }

    fn overview(&self) -> StatusJson {
        let state = self.ledger.state();
        let views = self.ledger.view();
        StatusJson {
            group: self.group.clone(),
            now_us: state.now.0,
            epoch: state.epoch,
            recovering_until_us: state.recovering_until.map(|until| until.0),
            version: VersionJson::of(state.version),
            rules_version: self.rules_version,
            workers: state.workers.values().filter(|worker| worker.standing == Standing::Live).count() as u64,
            heartbeat_ms: self.ledger.heartbeat().millis(),
            limits: views.iter().map(LimitRowJson::of).collect(),
            unreadable: self.unreadable.clone(),
            ignored_configs: state.ignored_configs,
            ignored_version: state.ignored_version.map(VersionJson::of),
            resets: self.resets,
            runs: self.runs,
            state_bytes: None,
            digest: format!("{:016x}", state.digest.0),
        }
    }

    fn details(&self) -> String {
        details::coordinator(&self.overview())
    }

    /// What every message ends with: outcomes are sent, and the table in the UI is made anew: each time while that is cheap, so that the last message before a quiet time is
    /// in it, else now and then.
    fn show(&mut self, ctx: &SyncWorkflowContext<Self>, now: LedgerTime) {
        self.replies.collect(&self.group, &self.ledger);
        let state = self.ledger.state();
        let size = state.cells.len().saturating_mul(state.workers.len().saturating_add(1));
        if now < self.details_at && size > DETAILS_CHEAP {
            return;
        }
        self.details_at = now + DETAILS_EVERY;
        ctx.set_current_details(self.details());
    }
}

/// 53 bits of a random number, so that JSON carries it everywhere.
fn number(random: u64) -> u64 {
    random >> (u64::BITS - NUMBER_BITS)
}

/// The time of the workflow task: the same for all of its messages, live and on replay.
#[allow(clippy::disallowed_types, reason = "the SDK gives workflow time as a SystemTime; no clock is read")]
pub(crate) fn ledger_time(time: Option<std::time::SystemTime>) -> Option<LedgerTime> {
    let since = time?.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
    Some(LedgerTime(u64::try_from(since.as_micros()).unwrap_or(u64::MAX)))
}
