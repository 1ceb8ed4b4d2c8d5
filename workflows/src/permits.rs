//! Permits in workflows of one's own: asked for **before** an activity is scheduled, so that no activity's timeout runs and no
//! worker's slot is held while the work waits, for minutes or for days.
//!
//! The workflow signals the coordinator (`lease` with `reply_to`) and waits durably; the coordinator signals `granted` back.
//! A workflow keeps a [`Permits`], and hands it that signal:
//!
//! ```
//! use std::time::Duration;
//! use temporalio_common::UntypedActivity;
//! use temporalio_common::data_converters::RawValue;
//! use temporalio_macros::{workflow, workflow_methods};
//! use temporalio_workflow::{ActivityOptions, SyncWorkflowContext, WorkflowContext, WorkflowResult};
//! use tollgate_workflows::permits::{Ask, Permits};
//!
//! #[workflow]
//! #[derive(Default)]
//! pub struct Summaries {
//!     permits: Permits,
//! }
//!
//! #[workflow_methods]
//! impl Summaries {
//!     #[signal(name = "granted")]
//!     pub fn granted(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
//!         self.permits.granted(ctx, &input);
//!     }
//!
//!     #[run]
//!     pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<()> {
//!         let permits = ctx.state(|me| me.permits.clone());
//!         let permit = permits.acquire(ctx, Ask::new("openai").cost(3)).await?;
//!         let options = ActivityOptions::start_to_close_timeout(Duration::from_secs(60));
//!         let summarize = UntypedActivity::new("summarize");
//!         let work = permit.attach(ctx, || ctx.execute_activity(summarize, RawValue::empty(), options));
//!         work.await?;
//!         permit.used(ctx, 2).await;
//!         Ok(())
//!     }
//! }
//! ```
//!
//! The permit travels to the activity in a header, which [`carrier`] writes: register it with the worker that runs the
//! workflow (`WorkerOptions::workflow_interceptor`). An `ActivityGate` of tollgate-worker lets the activity's first attempt
//! through on it; a permit that is stale by then, and a later attempt, take anew from the process's own bucket.
//!
//! **Giving up.** Cancelling the workflow (or the token of [`Ask::cancellation_token`]) gives the place back, and the permit too
//! if it was granted meanwhile: await the future, it takes a moment to say so. So does dropping the future: then the permit is
//! given back as it arrives, if the workflow still runs then.
//!
//! **Continue-as-new.** A wait that shall go on in the next run has an id of its own ([`Ask::id`]). Pass
//! [`Permits::carry`] to the next run, begin there with [`Permits::resume`] and ask with the same id: it is the same place.
//!
//! **A coordinator without memory** (it was terminated and started anew) is asked again, with the same id: see [`AGAIN_MIN`].

mod ask;
mod carrier;

pub use self::ask::{Ask, AskError, QUOTA_EXHAUSTED};
pub use self::carrier::carrier;

use self::carrier::Attached;
use crate::contracts::coordinator_id;
use crate::coordinator::ledger_time;
use crate::wire::granted::{GrantedJson, OutcomeJson, PermitJson, ReplyToJson};
use crate::wire::lease::{AcquireJson, ReportJson};
use crate::wire::{read, write};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use temporalio_common::SignalDefinition;
use temporalio_common::data_converters::RawValue;
use temporalio_workflow::workflows::select;
use temporalio_workflow::{
    CancellableFuture, SignalWorkflowOptions, SyncWorkflowContext, TimerOptions, WaitConditionOptions,
    WorkflowCancellationToken, WorkflowContext, WorkflowSignalError,
};
use tollgate_core::units::{LedgerTime, Span};

/// Waits that one workflow may have at a time: they go through continue-as-new with it.
pub const ASKS_MAX: usize = 2_000;
/// A coordinator that hasn't answered is asked again after this, the first time: it may have been terminated, or not be there
/// yet. Each pause is twice the one before. Asking again changes nothing where the place is known.
pub const AGAIN_MIN: Duration = Duration::from_secs(10);
/// The longest such pause: ten events of history each, for a wait of days.
pub const AGAIN_MAX: Duration = Duration::from_secs(3_600);
/// A place is kept for so many pauses: when the workflow was terminated, it holds nobody up for longer.
const KEPT_FOR_PAUSES: u32 = 3;
/// What a workflow waits for: kept in its state. Cheap to clone; all clones are one. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Permits(Rc<RefCell<BTreeMap<String, Asked>>>);

/// A request that may be answered. Its key is the id that it was sent with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    /// What the workflow calls it; nothing if the id was drawn.
    name: Option<String>,
    group: String,
    limit: String,
    meter: String,
    tier: String,
    /// What came of it, until somebody takes that.
    answer: Option<GrantedJson>,
    /// Whether somebody waits in this run.
    #[serde(skip)]
    is_awaited: bool,
}

/// What goes on in the next run: for its input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CarriedPermits(BTreeMap<String, Asked>);

impl Permits {
    /// Waits for nothing.
    pub fn new() -> Permits {
        Permits::default()
    }

    /// Goes on with what the run before waited for.
    pub fn resume(carried: CarriedPermits) -> Permits {
        Permits(Rc::new(RefCell::new(carried.0)))
    }

    /// What the next run goes on with: requests with ids of their own.
    pub fn carry(&self) -> CarriedPermits {
        let asks = self.0.borrow();
        let named = asks.iter().filter(|(_, asked)| asked.name.is_some());
        CarriedPermits(named.map(|(id, asked)| (id.clone(), asked.clone())).collect())
    }

    /// Takes the input of signal `granted`. What nobody waits for any more is given back.
    pub fn granted<W>(&self, ctx: &SyncWorkflowContext<W>, input: &RawValue) {
        let Ok(granted) = read::<GrantedJson>(input) else { return };
        let mut asks = self.0.borrow_mut();
        if let Some(asked) =
            asks.get_mut(&granted.id).filter(|asked| asked.is_awaited || asked.name.is_some())
        {
            // A grant is not undone by the answer to the same request sent again.
            if !asked.answer.as_ref().is_some_and(|answer| is_granted(&answer.outcome)) {
                asked.answer = Some(granted);
            }
            return;
        }
        asks.remove(&granted.id);
        if let OutcomeJson::Granted { repeated: false, .. } = granted.outcome {
            let GrantedJson { id, group, limit, meter, tier, .. } = granted;
            let report = ReportJson { id, limit, meter, tier, used: 0 };
            let coordinator = ctx.external_workflow(coordinator_id(&group), None);
            // Sent by the call; that it is not waited for costs a permit's lease at worst.
            drop(coordinator.signal(To("report"), write(&report), unstoppable()));
        }
    }

    /// Asks for a permit and waits for it.
    ///
    /// # Errors
    /// [`AskError`]; the place, if there was one, is given up then.
    pub async fn acquire<W: 'static>(
        &self,
        ctx: &WorkflowContext<W>,
        ask: Ask,
    ) -> Result<WorkflowPermit, AskError> {
        let (permit, _) = self.obtain(ctx, ask).await?;
        Ok(permit)
    }

    /// The same, with all that the coordinator said.
    pub(crate) async fn obtain<W: 'static>(
        &self,
        ctx: &WorkflowContext<W>,
        ask: Ask,
    ) -> Result<(WorkflowPermit, GrantedJson), AskError> {
        let mut message = ask.message(ctx.workflow_id())?;
        let token = ask.token.clone().unwrap_or_else(|| ctx.cancellation_token());
        let ends = ask.wait.map(|wait| now(ctx) + Span::from_millis(millis(wait)));
        loop {
            if token.is_cancelled() {
                if let Some(name) = &ask.id {
                    self.give_up(ctx, name).await;
                }
                return Err(AskError::Cancelled);
            }
            let waiting = self.begin(ctx, &ask)?;
            message.id.clone_from(&waiting.id);
            let answer = waiting.wait(ctx, &ask.group, &message, &token, ends).await;
            let permit = waiting.end(&ask);
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    permit.release(ctx).await;
                    return Err(error);
                }
            };
            match &answer.outcome {
                OutcomeJson::Granted { valid_until_us, .. } => {
                    let json = PermitJson { valid_until_us: *valid_until_us, ..permit.0 };
                    let permit = WorkflowPermit(json);
                    if permit.is_valid(ctx) {
                        return Ok((permit, answer));
                    }
                    // It was too long on its way here.
                    permit.release(ctx).await;
                }
                OutcomeJson::Refused { reason, message, burst, retry_after_ms } => match reason.as_str() {
                    // The place was lost while the coordinator could not be asked.
                    "abandoned" | "expired" | "released" => {}
                    "deadline" => {
                        let retry_after = retry_after_ms.map(Duration::from_millis);
                        return Err(AskError::Deadline { retry_after });
                    }
                    _ => {
                        let (reason, message) = (reason.clone(), message.clone());
                        return Err(AskError::Refused { reason, message, burst: *burst });
                    }
                },
                // Somebody else has reported it: it is not there to be used.
                OutcomeJson::Ended { .. } => {}
            }
            if let Some(name) = &ask.id {
                self.renew(name, &message.id, &ask);
            }
        }
    }

    /// Gives up what is waited for under an id of the workflow's own, or was granted and not taken.
    pub async fn give_up<W: 'static>(&self, ctx: &WorkflowContext<W>, id: &str) {
        let found = self.find(id);
        let Some((id, asked)) = found.and_then(|id| self.0.borrow_mut().remove_entry(&id)) else { return };
        let Asked { group, limit, meter, tier, .. } = asked;
        let (cost, valid_until_us) = (0, 0);
        WorkflowPermit(PermitJson { id, group, limit, meter, tier, cost, valid_until_us }).release(ctx).await;
    }

    /// The id under which the newest request with this name was sent.
    fn find(&self, name: &str) -> Option<String> {
        let asks = self.0.borrow();
        let found = asks.iter().find(|(_, asked)| asked.name.as_deref() == Some(name));
        found.map(|(id, _)| id.clone())
    }

    /// A request that somebody waits for from now on.
    fn begin<W>(&self, ctx: &WorkflowContext<W>, ask: &Ask) -> Result<Waiting, AskError> {
        let known = ask.id.as_deref().and_then(|name| self.find(name));
        let is_known = known.is_some();
        let id = known
            .or_else(|| ask.id.clone())
            .unwrap_or_else(|| format!("{:032x}", ctx.random_stream("tollgate.permits").random::<u128>()));
        let mut asks = self.0.borrow_mut();
        if !is_known {
            // Those that nobody waits for are kept so that the answer finds them.
            if asks.len() >= ASKS_MAX {
                return Err(AskError::TooMany);
            }
            asks.insert(id.clone(), Asked::of(ask));
        }
        if let Some(asked) = asks.get_mut(&id) {
            asked.is_awaited = true;
        }
        drop(asks);
        Ok(Waiting { permits: self.clone(), id })
    }

    /// After one request with a name has ended without a permit, the next one has another id.
    fn renew(&self, name: &str, ended: &str, ask: &Ask) {
        let number = ended.strip_prefix(name).and_then(|rest| rest.strip_prefix('~'));
        let number = number.and_then(|number| number.parse::<u32>().ok()).unwrap_or(0).wrapping_add(1);
        let id = format!("{name}~{}", number % 100_000_000);
        self.0.borrow_mut().insert(id, Asked::of(ask));
    }
}

impl Asked {
    fn of(ask: &Ask) -> Asked {
        Asked {
            name: ask.id.clone(),
            group: ask.group.clone(),
            limit: ask.limit.clone(),
            meter: ask.meter.clone(),
            tier: ask.tier.clone(),
            answer: None,
            is_awaited: false,
        }
    }
}

/// Somebody who waits; when it is dropped, nobody does.
struct Waiting {
    permits: Permits,
    id: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Only notes it: a workflow that leaves a host's cache drops everything, and must not act by that.
        if let Ok(mut asks) = self.permits.0.try_borrow_mut()
            && let Some(asked) = asks.get_mut(&self.id)
        {
            asked.is_awaited = false;
        }
    }
}

impl Waiting {
    /// The request is over; whatever it was granted is this.
    fn end(self, ask: &Ask) -> WorkflowPermit {
        self.permits.0.borrow_mut().remove(&self.id);
        WorkflowPermit(PermitJson {
            id: self.id.clone(),
            group: ask.group.clone(),
            limit: ask.limit.clone(),
            meter: ask.meter.clone(),
            tier: ask.tier.clone(),
            cost: ask.cost,
            valid_until_us: 0,
        })
    }

    /// Asks, again and again, until there is an answer that more asking doesn't change.
    async fn wait<W: 'static>(
        &self,
        ctx: &WorkflowContext<W>,
        group: &str,
        message: &AcquireJson,
        token: &WorkflowCancellationToken,
        ends: Option<LedgerTime>,
    ) -> Result<GrantedJson, AskError> {
        let mut pause = AGAIN_MIN;
        let mut reached = true;
        loop {
            let left = ends.map(|ends| ends.since(now(ctx)));
            let answer = self.permits.0.borrow_mut().get_mut(&self.id).and_then(|asked| asked.answer.take());
            match answer {
                Some(answer) if is_for_want_of_room(&answer.outcome) => {
                    // Nobody knows of this request: it is made again later.
                    let pause =
                        left.map_or(pause, |left| pause.min(Duration::from_millis(left.millis_ceil())));
                    let timer = TimerOptions::builder(pause).cancellation_token(token.clone()).build();
                    ctx.timer(timer).await;
                }
                Some(answer) => return Ok(answer),
                None if left == Some(Span::default()) => {
                    let group = group.to_owned();
                    let late = AskError::Deadline { retry_after: None };
                    return Err(if reached { late } else { AskError::CoordinatorLost { group } });
                }
                None => {
                    reached = self.ask(ctx, group, message, left, pause, token).await;
                    pause = (pause * 2).min(AGAIN_MAX);
                }
            }
            if token.is_cancelled() {
                return Err(AskError::Cancelled);
            }
        }
    }

    /// Sends the request and waits for its answer, for `pause` at most. Returns whether a coordinator took it.
    async fn ask<W: 'static>(
        &self,
        ctx: &WorkflowContext<W>,
        group: &str,
        message: &AcquireJson,
        left: Option<Span>,
        pause: Duration,
        token: &WorkflowCancellationToken,
    ) -> bool {
        let address = ReplyToJson {
            reply_to: Some(ctx.workflow_id().to_owned()),
            wait_ms: left.map(Span::millis_ceil),
            keep_ms: Some(millis(pause).saturating_mul(KEPT_FOR_PAUSES.into())),
        };
        let coordinator = ctx.external_workflow(coordinator_id(group), None);
        let mut sent = coordinator.signal(To("lease"), write(&AskJson { message, address }), unstoppable());
        let pause = left.map_or(pause, |left| pause.min(Duration::from_millis(left.millis_ceil())));
        let timer = TimerOptions::builder(pause).cancellation_token(WorkflowCancellationToken::new());
        let mut timer = ctx.timer(timer.summary("asks again for a permit".to_owned()).build());
        let options = WaitConditionOptions::builder().cancellation_token(token.clone()).build();
        let mut answered = std::pin::pin!(ctx.wait_condition_with_options(|_| self.is_answered(), options));
        let mut reached = true;
        loop {
            select! {
                _ = answered => {
                    timer.cancel();
                    return reached;
                }
                delivered = sent => reached = delivered.is_ok(),
                _ = timer => return reached,
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.permits.0.borrow().get(&self.id).is_some_and(|asked| asked.answer.is_some())
    }
}

fn is_granted(outcome: &OutcomeJson) -> bool {
    matches!(outcome, OutcomeJson::Granted { .. })
}

fn is_for_want_of_room(outcome: &OutcomeJson) -> bool {
    matches!(outcome, OutcomeJson::Refused { reason, .. } if reason == "queue_full")
}

/// A permit that a workflow holds. Dropped without a word it counts as used in full, until its lease has ended.
///
/// Serializable, so that it can go on to the next run or to a child workflow.
#[must_use = "a permit is charged when it is granted: say what was used, or release it"]
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkflowPermit(PermitJson);

impl WorkflowPermit {
    /// Its id: query `grants` of the coordinator shows it.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The limit that it was charged to.
    pub fn limit(&self) -> &str {
        &self.0.limit
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.0.cost
    }

    /// Until when the work may start: microseconds since the Unix epoch, by the Temporal server's clock.
    pub fn valid_until_us(&self) -> u64 {
        self.0.valid_until_us
    }

    /// Whether the work may start at the time of this workflow task.
    pub fn is_valid<W>(&self, ctx: &WorkflowContext<W>) -> bool {
        now(ctx).0 < self.0.valid_until_us
    }

    /// Lets the first activity (also a local one) that `schedule` schedules carry this permit.
    pub fn attach<W, T>(&self, ctx: &WorkflowContext<W>, schedule: impl FnOnce() -> T) -> T {
        ctx.with_context_value_sync::<Attached, T>(Cell::new(Some(self.0.clone())), schedule)
    }

    /// Says what was used, at most its cost; the rest goes back. Returns when the coordinator has it.
    pub async fn used<W: 'static>(self, ctx: &WorkflowContext<W>, tokens: u64) {
        let PermitJson { id, group, limit, meter, tier, .. } = self.0;
        let report = ReportJson { id, limit, meter, tier, used: tokens };
        let coordinator = ctx.external_workflow(coordinator_id(&group), None);
        // A coordinator that isn't there has forgotten the permit.
        let _sent: Result<(), WorkflowSignalError> =
            coordinator.signal(To("report"), write(&report), unstoppable()).await;
    }

    /// Gives all of it back. Returns when the coordinator has it.
    pub async fn release<W: 'static>(self, ctx: &WorkflowContext<W>) {
        self.used(ctx, 0).await;
    }
}

/// Input of signal `lease`.
#[derive(Serialize)]
struct AskJson<'a> {
    #[serde(flatten)]
    message: &'a AcquireJson,
    #[serde(flatten)]
    address: ReplyToJson,
}

/// A signal of the coordinator, for the SDK.
struct To(&'static str);

impl SignalDefinition for To {
    type Workflow = crate::coordinator::Coordinator;
    type Input = RawValue;
    fn name(&self) -> &str {
        self.0
    }
}

/// A cancelled workflow still says what it has to say.
fn unstoppable() -> SignalWorkflowOptions {
    SignalWorkflowOptions::builder().cancellation_token(WorkflowCancellationToken::new()).build()
}

fn now<W>(ctx: &WorkflowContext<W>) -> LedgerTime {
    ledger_time(ctx.workflow_time()).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    // Times in microseconds must still fit.
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(u64::MAX / 1_000_000)
}
