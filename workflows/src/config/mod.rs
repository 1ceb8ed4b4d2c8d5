//! The config workflow: holds the limits of one group, changes them by ramps, and remembers who changed what. Workflow id
//! `tollgate-config/<group>`.
//!
//! | message | kind | what it does |
//! |---|---|---|
//! | `apply` | update | a change: the new version and what changed, or every problem |
//! | `update_config` | signal | the same, for those who can't be answered; see queries `config` and `history` |
//! | `escrow` | update | from the coordinator: how much of windows may have been drawn; what is kept in mind |
//! | `ensure` | signal | tells the coordinator again, and starts it when it isn't there |
//! | `config`, `effective`, `history` | query | limits, values in force at a time, changes |
//! | `diff` | query | what differs between what was set by two versions |
//!
//! Before the named boundaries of windows run out, it has later ones computed by activity `tollgate.calendar`, and the times
//! of schedules by activity `tollgate.schedule`. Temporary changes and schedules begin and end by workflow time: what fell due
//! while no host was there happens as of when it was due.
//!
//! After every change it brings the full configuration to the coordinator, for as long as it takes; only the newest
//! version matters. A workflow that begins without memory first takes over what a coordinator still keeps to; messages
//! wait for that.
//!
//! Handlers never fail: a message that can't be read is counted and shown.

pub mod book;
mod carried;
mod details;
pub(crate) mod text;
pub mod view;

use crate::contracts::{
    Activities, CalendarAnswerJson, CalendarAskJson, ConfigStart, ConfigurationReadJson, PushJson,
    PushedJson, ReadConfigurationJson, ScheduleAnswerJson, ScheduleAskJson,
};
use crate::contracts::{GROUP_DEFAULT, check_group, group_of_config};
use crate::coordinator::STATE_ENCODING;
use crate::twin::{self, Twin};
use crate::wire::config::{AppliedJson, ApplyJson, ConfigureJson, WindowJson};
use crate::wire::escrow::{EscrowCellJson, EscrowJson, EscrowReplyJson};
use crate::wire::status::UnreadableJson;
use crate::wire::{Unreadable, payload, read, write};
use book::Book;
use book::schedules::{Rule, Window};
use carried::Carried;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use temporalio_common::RetryPolicy;
use temporalio_common::data_converters::RawValue;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::workflows::select;
use temporalio_workflow::{
    ActivityOptions, CancellableFuture, ContinueAsNewOptions, SyncWorkflowContext, TimerOptions,
    WaitConditionOptions, WorkflowCancellationToken, WorkflowContext, WorkflowContextView, WorkflowResult,
};
use tollgate_core::ledger::escrow::Escrow;
use tollgate_core::limit::{CellKey, Version};
use tollgate_core::policy::Calendar;
use tollgate_core::units::{LedgerTime, Span};
use view::{AtJson, ConfigJson, DiffAskJson, DiffJson, EffectiveJson, HistoryFilterJson, HistoryJson};

/// Continue as new above this many events: an operator's workflow is replayed in no time, and far below all bounds.
const HISTORY_EVENTS_MAX: u32 = 2_000;
/// Above this many, continue as new even while the coordinator can't be reached: the next run goes on trying.
const HISTORY_EVENTS_URGENT: u32 = 2 * HISTORY_EVENTS_MAX;
/// Signals that wait while a workflow without memory asks for the limits.
const WAITING_MAX: usize = 100;
/// How long one attempt to reach the coordinator may take. A host that dies with it costs this much of a ramp.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long an attempt to read the coordinator's configuration may take: it may have to be replayed first.
const READ_ATTEMPT: Duration = Duration::from_secs(15);
/// The first pause between attempts; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Boundaries are asked for again after this at the earliest, also when that failed: half of the list is still to come.
const CALENDAR_PAUSE: Span = Span::from_secs(600);

/// See the module's documentation.
#[workflow]
#[derive(Debug)]
pub struct Config {
    group: String,
    book: Book,
    unreadable: UnreadableJson,
    runs: u64,
    push: Push,
    /// What the coordinator said may have been drawn, by limit: at most one entry for each in the book.
    escrows: BTreeMap<CellKey, Escrow>,
    /// Why later boundaries couldn't be computed.
    calendar_error: String,
    /// Before this they are not asked for again.
    calendar_retry: LedgerTime,
    /// The same for the times of schedules.
    schedule_retry: LedgerTime,
    /// Whether it is not known yet which limits a coordinator keeps to.
    adopting: bool,
    /// Signals that came meanwhile: at most [`WAITING_MAX`].
    waiting: VecDeque<ApplyJson>,
    twin: Twin,
    /// A reset was noticed: updates are put off until the state has been carried into a new run. Temporal hands updates
    /// in before the signals of the same task when it happens and after them on replay, so that what they change would
    /// differ.
    renewing: bool,
    /// Never cancelled: the workflow outlives a cancel request, since limits have to be kept somewhere.
    token: WorkflowCancellationToken,
}

/// How far the coordinator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Push {
    /// The newest version that it is known to have.
    pub acknowledged: Option<Version>,
    /// Since when.
    pub acknowledged_at: LedgerTime,
    /// Whether to tell it again, whatever it has.
    pub again: bool,
    /// Why it doesn't have the newest.
    pub error: String,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[workflow_methods]
impl Config {
    /// Reads the start input: JSON from whoever starts it, protobuf from the run before.
    #[init]
    pub fn new(ctx: &WorkflowContextView, input: RawValue) -> Self {
        Config::begin(ctx, &input)
    }

    /// Runs until it continues as new. A cancel request is not obeyed.
    #[run(name = "tollgate.config")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<RawValue> {
        Self::until_over(ctx).await?;
        // Nothing below awaits, so no message can slip in between.
        let bytes = ctx.state(|me| me.carry().encode());
        ctx.continue_as_new(payload(STATE_ENCODING, bytes), ContinueAsNewOptions::default())?;
        Ok(write(&()))
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(apply)]
    fn validate_apply(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<ApplyJson>(input)?;
        Ok(())
    }

    /// A change, with an answer.
    #[update(name = "apply")]
    pub async fn apply(ctx: &mut WorkflowContext<Self>, input: RawValue) -> RawValue {
        let drawn = ctx.random_stream(twin::STREAM).random();
        let now = ledger_time(ctx.workflow_time());
        ctx.state_mut(|me| me.arrive(now, drawn, ctx.run_id()));
        if ctx.state(|me| me.adopting) {
            let options = ctx.state(Config::uncancelled);
            // Can't be cancelled, so it only ends when the wait is over.
            let _ = ctx.wait_condition_with_options(|me| !me.adopting, options).await;
        }
        let now = ledger_time(ctx.workflow_time());
        let reply = ctx.state_mut(|me| me.answer_apply(now, &input));
        ctx.set_current_details(ctx.state(details::markdown));
        write(&reply)
    }

    /// A message that can't be read is refused before it enters history.
    #[update_validator(escrow)]
    fn validate_escrow(&self, _ctx: &WorkflowContextView, input: &RawValue) -> Result<(), BoxError> {
        read::<EscrowJson>(input)?;
        Ok(())
    }

    /// The coordinator says how much of windows may have been drawn, before it lends it.
    #[update(name = "escrow")]
    pub fn escrow(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) -> RawValue {
        let now = ledger_time(ctx.workflow_time());
        self.arrive(now, ctx.random_stream(twin::STREAM).random(), ctx.run_id());
        if self.renewing || self.adopting {
            return write(&EscrowReplyJson::Busy);
        }
        match read::<EscrowJson>(&input).and_then(|told| self.take_escrow(told)) {
            Ok(cells) => write(&EscrowReplyJson::Ok { cells }),
            Err(error) => {
                self.note("escrow", now, &error);
                write(&EscrowReplyJson::Busy)
            }
        }
    }

    /// A change, without an answer.
    #[signal(name = "update_config")]
    pub fn update_config(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        let now = ledger_time(ctx.workflow_time());
        self.arrive(now, ctx.random_stream(twin::STREAM).random(), ctx.run_id());
        match read::<ApplyJson>(&input) {
            Ok(change) if !self.adopting => {
                // What was refused is in the book: a signal can't be answered.
                let _ = self.book.apply_signal(now, &change);
            }
            Ok(change) if self.waiting.len() < WAITING_MAX => self.waiting.push_back(change),
            Ok(change) => {
                let problem = format!("starting, and {WAITING_MAX} signals wait already: send it again");
                self.book.refuse(now, &change, &[problem]);
            }
            Err(error) => self.note("update_config", now, &error),
        }
        ctx.set_current_details(details::markdown(self));
    }

    /// Tells the coordinator again, and starts it when it isn't there.
    #[signal(name = "ensure")]
    pub fn ensure(&mut self, ctx: &mut SyncWorkflowContext<Self>, _input: RawValue) {
        let now = ledger_time(ctx.workflow_time());
        self.arrive(now, ctx.random_stream(twin::STREAM).random(), ctx.run_id());
        self.push.again = true;
    }

    /// Limits, ramps, version, and what couldn't be taken.
    #[query(name = "config")]
    pub fn config(&self, _ctx: &WorkflowContextView, _input: RawValue) -> RawValue {
        write(&ConfigJson::of(self))
    }

    /// The values in force at a time.
    #[query(name = "effective")]
    pub fn effective(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |at: &AtJson| {
            let at = at.at_ms.map_or(self.book.now, |ms| LedgerTime(ms.saturating_mul(1_000)));
            write(&EffectiveJson::of(&self.book, at))
        })
    }

    /// What differs between what was set by two versions.
    #[query(name = "diff")]
    pub fn diff(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |ask: &DiffAskJson| match self.book.difference(&ask.from, ask.to.as_deref()) {
            Ok((from, to, changes)) => {
                write(&DiffJson { from: from.to_string(), to: to.to_string(), changes })
            }
            Err(error) => write(&serde_json::json!({ "error": error })),
        })
    }

    /// Who changed what, when and why.
    #[query(name = "history")]
    pub fn history(&self, _ctx: &WorkflowContextView, input: RawValue) -> RawValue {
        answer(&input, |filter: &HistoryFilterJson| write(&HistoryJson::of(&self.book, filter)))
    }
}

/// Answers a query whose input may be missing; an input that can't be read is answered with what is wrong.
fn answer<T>(input: &RawValue, with: impl FnOnce(&T) -> RawValue) -> RawValue
where
    T: Default + serde::de::DeserializeOwned,
{
    if input.payloads.iter().all(|payload| payload.data.is_empty()) {
        return with(&T::default());
    }
    match read::<Option<T>>(input) {
        Ok(input) => with(&input.unwrap_or_default()),
        Err(error) => write(&serde_json::json!({ "error": error.to_string() })),
    }
}

impl Config {
    fn begin(ctx: &WorkflowContextView, input: &RawValue) -> Config {
        let started = ledger_time(ctx.start_time());
        let id = ctx.workflow_id();
        let mut me = Config {
            group: group_of_config(id).unwrap_or(GROUP_DEFAULT).to_owned(),
            book: Book::new(started),
            unreadable: UnreadableJson::default(),
            runs: 0,
            push: Push::default(),
            escrows: BTreeMap::new(),
            calendar_error: String::new(),
            calendar_retry: LedgerTime(0),
            schedule_retry: LedgerTime(0),
            adopting: true,
            waiting: VecDeque::new(),
            twin: Twin::new(ctx.raw().randomness_seed),
            renewing: false,
            token: WorkflowCancellationToken::new(),
        };
        let carried = input.payloads.first().filter(|payload| {
            payload
                .metadata
                .get("encoding")
                .is_some_and(|encoding| encoding.as_slice() == STATE_ENCODING.as_bytes())
        });
        if let Some(payload) = carried {
            match Carried::decode(&payload.data) {
                Ok(carried) => me.take_up(carried),
                Err(error) => me.note("start", started, &Unreadable::new(error)),
            }
        } else if !input.payloads.is_empty() {
            match read::<ConfigStart>(input) {
                // The id has the last word, since the coordinator's id follows from it.
                Ok(start) if group_of_config(id).is_none() && check_group(&start.group).is_ok() => {
                    me.group = start.group
                }
                Ok(_) => {}
                Err(error) => me.note("start", started, &error),
            }
        }
        me
    }

    fn carry(&self) -> Carried {
        Carried {
            group: self.group.clone(),
            book: self.book.clone(),
            unreadable: self.unreadable.clone(),
            runs: self.runs,
            push: self.push.clone(),
            escrows: self.escrows.clone(),
        }
    }

    fn take_up(&mut self, carried: Carried) {
        self.group = carried.group;
        self.book = carried.book;
        self.unreadable = carried.unreadable;
        self.runs = carried.runs.saturating_add(1);
        self.push = carried.push;
        self.escrows = carried.escrows;
        self.adopting = false;
    }

    /// What every message begins with: the time, and a look at whether the history was reset.
    fn arrive(&mut self, now: LedgerTime, drawn: u64, run_id: &str) {
        self.book.advance(now);
        self.book.now = self.book.now.max(now);
        if self.twin.reset_since_last(drawn, run_id) {
            self.renewing = true;
            // The coordinator may have been told more than is remembered here, and may have told more.
            self.push.again = true;
            self.escrows.clear();
        }
    }

    fn note(&mut self, name: &str, now: LedgerTime, error: &Unreadable) {
        self.unreadable = UnreadableJson {
            count: self.unreadable.count.saturating_add(1),
            last_name: name.to_owned(),
            last_us: now.0,
            last_error: error.to_string(),
        };
    }

    /// Keeps in mind what may have been drawn of limits that are in the book. Of others, and of those that nobody told anything
    /// of, all may have been.
    fn take_escrow(&mut self, told: EscrowJson) -> Result<Vec<EscrowCellJson>, Unreadable> {
        let cells = &self.book.cells;
        self.escrows.retain(|key, _| cells.contains_key(key));
        let mut answers = Vec::with_capacity(told.cells.len());
        for cell in told.cells {
            let (key, told) = cell.check()?;
            let kept = self.escrows.get(&key).copied().unwrap_or(Escrow::ALL).told(told);
            answers.push(EscrowCellJson::of(&key, kept));
            if cells.contains_key(&key) && kept != Escrow::ALL {
                self.escrows.insert(key, kept);
            }
        }
        Ok(answers)
    }

    fn answer_apply(&mut self, now: LedgerTime, input: &RawValue) -> AppliedJson {
        if self.renewing {
            let problem = "this workflow was reset and is about to continue as new: ask again";
            return AppliedJson::Refused { problems: vec![problem.to_owned()] };
        }
        let change = match read::<ApplyJson>(input) {
            Ok(change) => change,
            Err(error) => {
                self.note("apply", now, &error);
                return AppliedJson::Refused { problems: vec![error.to_string()] };
            }
        };
        match self.book.apply(now, &change) {
            Ok(applied) => AppliedJson::Ok { version: applied.version.to_string(), changes: applied.changes },
            Err(problems) => AppliedJson::Refused { problems },
        }
    }

    fn uncancelled(&self) -> WaitConditionOptions {
        WaitConditionOptions::builder().cancellation_token(self.token.clone()).build()
    }

    fn wants_push(&self) -> bool {
        self.push.again || self.push.acknowledged != Some(self.book.version)
    }

    /// Whether to continue as new even with something undone, which the next run then does.
    fn must_go(&self, ctx: &WorkflowContext<Self>) -> bool {
        self.renewing || ctx.history_length() >= HISTORY_EVENTS_URGENT
    }

    /// Whether this is the moment to continue as new: nobody waits, and nothing is half-done.
    fn may_go(&self, ctx: &WorkflowContext<Self>) -> bool {
        let over = ctx.history_length() >= HISTORY_EVENTS_MAX || ctx.continue_as_new_suggested();
        let quiet = !self.adopting && ctx.all_handlers_finished();
        quiet && (self.must_go(ctx) || (over && !self.wants_push()))
    }

    /// Brings changes to the coordinator, until it is time to continue as new.
    async fn until_over(ctx: &WorkflowContext<Self>) -> WorkflowResult<()> {
        ctx.set_current_details(ctx.state(details::markdown));
        while ctx.state(|me| me.adopting) {
            Self::adopt(ctx).await;
        }
        loop {
            Self::advance(ctx);
            if ctx.state(|me| me.may_go(ctx)) {
                // In a task of its own: a message that comes during the task that continues as new has to wait for the
                // whole task to be done again.
                Self::pause(ctx, Duration::from_millis(1), |_| false).await;
                if ctx.state(|me| me.may_go(ctx)) {
                    return Ok(());
                }
            } else if ctx.state(Config::wants_push) && !ctx.state(|me| me.must_go(ctx)) {
                Self::push(ctx).await;
            } else {
                let due = |me: &Self| me.may_go(ctx) || (me.wants_push() && !me.must_go(ctx));
                let (wake, now) = (ctx.state(Config::wake), ledger_time(ctx.workflow_time()));
                match wake {
                    None => {
                        let options = ctx.state(Config::uncancelled);
                        let due = |me: &Self| due(me) || me.wake().is_some();
                        ctx.wait_condition_with_options(due, options).await?;
                    }
                    Some(at) if at <= now && !ctx.state(|me| me.must_go(ctx)) => Self::renew(ctx, now).await,
                    Some(at) => {
                        let wait = Duration::from_micros(at.since(now).0).max(PAUSE_MIN);
                        Self::pause(ctx, wait, |me| due(me) || me.wake() != Some(at)).await;
                    }
                }
            }
        }
    }

    /// When something is to be done although no message comes: the next begin or end, or a time to ask for later ones.
    fn wake(&self) -> Option<LedgerTime> {
        let change = self.book.next_change();
        self.renewal_due().into_iter().chain(change).min()
    }

    /// Makes what should have happened by now happen.
    fn advance(ctx: &WorkflowContext<Self>) {
        let now = ledger_time(ctx.workflow_time());
        if ctx.state(|me| me.book.next_change().is_some_and(|at| at <= now)) {
            ctx.state_mut(|me| me.book.advance(now));
            ctx.set_current_details(ctx.state(details::markdown));
        }
    }

    /// Takes over what the coordinator keeps to, and then makes the changes that waited for it.
    async fn adopt(ctx: &WorkflowContext<Self>) {
        let token = ctx.state(|me| me.token.clone());
        let input = ctx.state(|me| write(&ReadConfigurationJson { group: me.group.clone() }));
        let options = activity(READ_ATTEMPT, token, "read the coordinator's configuration");
        let configuration = match ctx.execute_activity(Activities::read_configuration, input, options).await {
            Ok(result) => read::<ConfigurationReadJson>(&result)
                .and_then(|read| read.configuration.map(ConfigureJson::check).transpose()),
            Err(error) => Err(Unreadable::new(error)),
        };
        let now = ledger_time(ctx.workflow_time());
        match configuration {
            Ok(configure) => ctx.state_mut(|me| {
                if let Some(configure) = configure {
                    me.book.adopt(now, configure);
                }
                me.push.error.clear();
                me.adopting = false;
                for change in std::mem::take(&mut me.waiting) {
                    let _ = me.book.apply_signal(now, &change);
                }
            }),
            Err(error) => {
                ctx.state_mut(|me| {
                    me.push.error = format!("reading the coordinator's configuration: {error}")
                });
                ctx.set_current_details(ctx.state(details::markdown));
                Self::pause(ctx, PAUSE_MAX, |_| false).await;
            }
        }
        ctx.set_current_details(ctx.state(details::markdown));
    }

    /// When later boundaries are to be asked for.
    fn renewal_due(&self) -> Option<LedgerTime> {
        let windows = self.book.renewal_due().map(|due| due.max(self.calendar_retry));
        let schedules = self.book.schedules_due().map(|due| due.max(self.schedule_retry));
        windows.into_iter().chain(schedules).min()
    }

    /// Has later boundaries of windows computed.
    async fn renew(ctx: &WorkflowContext<Self>, now: LedgerTime) {
        let due = ctx.state(|me| if me.calendar_retry <= now { me.book.renewals(now) } else { Vec::new() });
        for calendar in due {
            let window = WindowJson::of(calendar.unit);
            let time_zone = calendar.time_zone.clone();
            let input = write(&CalendarAskJson { window, time_zone, from_us: now.0 });
            let summary = format!("when each {} begins in {}", window.as_str(), calendar.time_zone);
            let token = ctx.state(|me| me.token.clone());
            let options = calendar_activity(token, &summary);
            let answer = ctx.execute_activity(Activities::calendar, input, options).await;
            let answer =
                answer.map_err(Unreadable::new).and_then(|answer| read::<CalendarAnswerJson>(&answer));
            let now = ledger_time(ctx.workflow_time());
            ctx.state_mut(|me| me.take_boundaries(now, calendar, answer));
        }
        let rules =
            ctx.state(|me| if me.schedule_retry <= now { me.book.due_rules(now) } else { Vec::new() });
        for rule in rules {
            let input = write(&ScheduleAskJson { rule: rule.json(), from_us: now.0 });
            let token = ctx.state(|me| me.token.clone());
            let options = calendar_activity(token, &format!("when it is {}", rule.text()));
            let answer = ctx.execute_activity(Activities::schedule, input, options).await;
            let answer =
                answer.map_err(Unreadable::new).and_then(|answer| read::<ScheduleAnswerJson>(&answer));
            let now = ledger_time(ctx.workflow_time());
            ctx.state_mut(|me| me.take_windows(now, &rule, answer));
        }
        ctx.set_current_details(ctx.state(details::markdown));
    }

    fn take_boundaries(
        &mut self,
        now: LedgerTime,
        calendar: Calendar,
        answer: Result<CalendarAnswerJson, Unreadable>,
    ) {
        let result = match answer {
            Ok(CalendarAnswerJson::Ok { boundaries_us, tz_version }) => {
                let boundaries: Vec<LedgerTime> = boundaries_us.into_iter().map(LedgerTime).collect();
                self.book.renew(now, &Calendar { tz_version, ..calendar.clone() }, &boundaries)
            }
            Ok(CalendarAnswerJson::Refused { message }) => Err(message),
            Err(error) => Err(error.to_string()),
        };
        self.calendar_retry = now + CALENDAR_PAUSE;
        self.calendar_error = match result {
            Ok(()) => String::new(),
            Err(error) => {
                format!("each {} in {}: {error}", WindowJson::of(calendar.unit).as_str(), calendar.time_zone)
            }
        };
    }

    fn take_windows(&mut self, now: LedgerTime, rule: &Rule, answer: Result<ScheduleAnswerJson, Unreadable>) {
        let result = match answer {
            Ok(ScheduleAnswerJson::Ok { windows_us, tz_version }) => {
                let window =
                    |[begin, end]: [u64; 2]| Window { begin: LedgerTime(begin), end: LedgerTime(end) };
                let windows: Vec<Window> = windows_us.into_iter().map(window).collect();
                self.book.renew_schedules(now, rule, &windows, &tz_version)
            }
            Ok(ScheduleAnswerJson::Refused { message }) => Err(message),
            Err(error) => Err(error.to_string()),
        };
        let failed = result.is_err();
        self.calendar_error = match result {
            Ok(()) => String::new(),
            Err(error) => format!("schedule {}: {error}", rule.text()),
        };
        if failed || self.book.schedules_due().is_some_and(|due| due <= now) {
            self.schedule_retry = now + CALENDAR_PAUSE;
        }
    }

    /// Brings the newest version to the coordinator, unless a newer one comes up meanwhile.
    async fn push(ctx: &WorkflowContext<Self>) {
        let (input, sent) = ctx.state_mut(|me| {
            me.push.again = false;
            let configure = ConfigureJson::of(&me.book.configure());
            let push = PushJson { group: me.group.clone(), configure, known_refusal: me.push.error.clone() };
            (write(&push), me.book.version)
        });
        let token = WorkflowCancellationToken::new();
        let options = activity(ATTEMPT, token.clone(), &format!("configure the coordinator: version {sent}"));
        let mut pushed = std::pin::pin!(ctx.execute_activity(Activities::configure, input, options));
        let superseded = |me: &Self| me.push.again || me.book.version != sent || me.must_go(ctx);
        let mut newer =
            std::pin::pin!(ctx.wait_condition_with_options(superseded, ctx.state(Config::uncancelled)));
        let result = match ctx.state(|me| me.book.next_change()) {
            None => select! {
                result = pushed => Some(result),
                _ = newer => None,
            },
            // What begins or ends meanwhile makes a newer one.
            Some(at) => {
                let wait = Duration::from_micros(at.since(ledger_time(ctx.workflow_time())).0);
                let (wait, over) = (wait.max(Duration::from_millis(1)), WorkflowCancellationToken::new());
                let mut change =
                    ctx.timer(TimerOptions::builder(wait).cancellation_token(over.clone()).build());
                let result = select! {
                    result = pushed => Some(result),
                    _ = newer => None,
                    _ = change => None,
                };
                over.cancel();
                result
            }
        };
        let Some(result) = result else {
            // An attempt that is under way may still arrive: the coordinator takes newer versions only.
            token.cancel();
            ctx.state_mut(|me| me.push.again = true);
            return;
        };
        let now = ledger_time(ctx.workflow_time());
        let result = result.map_err(Unreadable::new).and_then(|result| read::<PushedJson>(&result));
        let failed = result.is_err();
        ctx.state_mut(|me| me.take_push_result(now, sent, result));
        ctx.set_current_details(ctx.state(details::markdown));
        if failed {
            Self::pause(ctx, PAUSE_MAX, superseded).await;
        }
    }

    fn take_push_result(&mut self, now: LedgerTime, sent: Version, result: Result<PushedJson, Unreadable>) {
        match result {
            Ok(PushedJson::Configured { .. }) => {
                let push = Push { acknowledged: Some(sent), acknowledged_at: now, ..Push::default() };
                self.push = Push { again: self.push.again, ..push };
            }
            Ok(PushedJson::Ignored { in_force }) => {
                self.push.error = format!("the coordinator keeps to version {}", in_force.version());
                self.book.overtake(now, in_force.version());
            }
            Ok(PushedJson::Refused { message }) => self.push.error = message,
            Err(error) => self.push.error = error.to_string(),
        }
    }

    /// Waits, but not longer than until `enough`.
    async fn pause(ctx: &WorkflowContext<Self>, time: Duration, enough: impl Fn(&Self) -> bool) {
        let token = ctx.state(|me| me.token.clone());
        let mut timer = ctx.timer(TimerOptions::builder(time).cancellation_token(token).build());
        let mut enough =
            std::pin::pin!(ctx.wait_condition_with_options(|me| enough(me), ctx.state(Config::uncancelled)));
        select! {
            _ = enough => { timer.cancel(); }
            _ = timer => {}
        }
    }
}

/// Options of the activity that computes boundaries: limits of other kinds don't wait for it.
fn calendar_activity(token: WorkflowCancellationToken, summary: &str) -> ActivityOptions {
    ActivityOptions::with_start_to_close_timeout(ATTEMPT)
        .retry_policy(RetryPolicy::builder().initial_interval(PAUSE_MIN).maximum_attempts(3).build())
        .cancellation_token(token)
        .summary(summary.to_owned())
        .build()
}

/// Options of an activity that is tried until it works.
fn activity(attempt: Duration, token: WorkflowCancellationToken, summary: &str) -> ActivityOptions {
    let retry = RetryPolicy::builder()
        .initial_interval(PAUSE_MIN)
        .backoff_coefficient(2.0)
        .maximum_interval(PAUSE_MAX);
    ActivityOptions::with_start_to_close_timeout(attempt)
        .retry_policy(retry.build())
        .cancellation_token(token)
        .summary(summary.to_owned())
        .build()
}

/// The time of a workflow task, the same live and on replay; zero if it has none: the book never runs back.
#[allow(clippy::disallowed_types, reason = "the SDK gives workflow time as a SystemTime; no clock is read")]
fn ledger_time(time: Option<std::time::SystemTime>) -> LedgerTime {
    let since = time.and_then(|time| time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok());
    LedgerTime(u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX))
}
