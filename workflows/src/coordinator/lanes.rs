//! What the coordinator does between messages: serves who falls due, tells workers and workflows, and continues as new.

use super::{Coordinator, ledger_time};
use crate::contracts::{Activities, NOTICE_ACTIVITY, config_id, notice_queue};
use crate::preload::Preload;
use crate::wire::escrow::{EscrowCellJson, EscrowJson, EscrowReplyJson};
use crate::wire::granted::GRANTED;
use crate::wire::lease::incarnation_text;
use crate::wire::{read, write};
use std::time::Duration;
use temporalio_common::data_converters::RawValue;
use temporalio_common::{RetryPolicy, SignalDefinition, UntypedActivity};
use temporalio_workflow::workflows::{join, join_all, select};
use temporalio_workflow::{
    ActivityOptions, CancellableFuture, SignalWorkflowOptions, TimerOptions, WaitConditionOptions,
    WorkflowCancellationToken, WorkflowContext, WorkflowResult, WorkflowSignalError,
};
use tollgate_core::ledger::Input;
use tollgate_core::units::Span;

/// Continue as new after this many updates: the server takes 2,000 in one run.
const UPDATES_MAX: u32 = 1_700;
/// How often a task without signals is waited for before continuing as new all the same.
const CALM_TRIES_MAX: u32 = 20;
/// Answers to heartbeats that are sent at the same time. One to a worker that is gone takes a second or two.
const ANSWER_LANES: usize = 8;
/// Notices that are sent at the same time.
const NOTICE_LANES: usize = 4;
/// A worker that doesn't take its notice within this has other trouble, or a heartbeat on its way.
const NOTICE_SCHEDULE_TO_START: Duration = Duration::from_secs(1);
/// How long handing over a notice may take.
const NOTICE_START_TO_CLOSE: Duration = Duration::from_secs(2);
/// Outcomes that are sent to workflows at the same time: enough for a few hundred a second.
const REPLY_LANES: usize = 4;
/// How long one attempt to tell the config workflow what may be drawn may take.
const ESCROW_ATTEMPT: Duration = Duration::from_secs(5);
/// The first pause between attempts; each is twice the one before.
const ESCROW_PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest pause between attempts: until one gets through, no more of a window is lent.
const ESCROW_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A timer is set anew only for a due time that is earlier by more than this: each costs two events.
const TIMER_SLACK: Span = Span::from_millis(20);

impl Coordinator {
    /// Does all of it until it is time to continue as new and nothing is half-done.
    pub(super) async fn drive(ctx: &WorkflowContext<Self>) -> WorkflowResult<()> {
        let notices = join_all((0..NOTICE_LANES).map(|_| Self::notice_lane(ctx.clone())).collect::<Vec<_>>());
        let replies = join_all((0..REPLY_LANES).map(|_| Self::reply_lane(ctx.clone())).collect::<Vec<_>>());
        let answers = join_all((0..ANSWER_LANES).map(|_| Self::answer_lane(ctx.clone())).collect::<Vec<_>>());
        let (due, _, _, _, (), ()) = join!(
            Self::until_over(ctx.clone()),
            notices,
            replies,
            answers,
            Self::ask_config(ctx.clone()),
            Self::escrow_lane(ctx.clone())
        );
        due
    }

    /// Whether nothing is under way that the next run would not know of.
    fn is_quiet(&self) -> bool {
        let in_flight = self.notices_in_flight + self.answers_in_flight + self.replies_in_flight;
        self.notices.is_empty() && in_flight == 0
    }

    /// Whether the run must end, whatever else waits.
    fn is_too_long(&self, ctx: &WorkflowContext<Self>) -> bool {
        self.renewing || ctx.history_length() >= self.events_max.saturating_add(self.events_max / 3)
    }

    fn is_over(&self, ctx: &WorkflowContext<Self>) -> bool {
        self.renewing
            || self.updates >= UPDATES_MAX
            || ctx.history_length() >= self.events_max
            || ctx.continue_as_new_suggested()
    }

    /// Asks the config workflow to push its configuration again, if a reset was carried into this run.
    async fn ask_config(ctx: WorkflowContext<Self>) {
        if !ctx.state(|me| me.ask_config && !me.renewing) {
            return;
        }
        let (token, id) = ctx.state(|me| (me.token.clone(), config_id(&me.group)));
        let options = SignalWorkflowOptions::builder().cancellation_token(token).build();
        // A config workflow that isn't there pushes when it is started.
        let _ = ctx.external_workflow(id, None).signal(Ensure, write(&()), options).await;
        ctx.state_mut(|me| me.ask_config = false);
    }

    /// Serves strict permits that fall due, until it is time to continue as new and nothing is half-done.
    async fn until_over(ctx: WorkflowContext<Self>) -> WorkflowResult<()> {
        let token = ctx.state(|me| me.token.clone());
        let mut tries = 0;
        loop {
            let ready = |me: &Self| me.is_over(&ctx) && me.is_quiet() && ctx.all_handlers_finished();
            // A signal that comes during the task that continues as new makes the server have the task done again, by
            // a host that first replays the whole run, during which more signals come. So this waits for a task that
            // brought none, which is short; after a reset, or when the history has grown by a third, it doesn't: then the
            // first attempt makes the server hold signals back for the second, whose replay takes as long as the history
            // is long, while more signals come in before it starts.
            let is_last_try = tries >= CALM_TRIES_MAX;
            let calm = |me: &Self| {
                is_last_try || me.is_too_long(&ctx) || me.signalled_at != ledger_time(ctx.workflow_time())
            };
            let over = |me: &Self| ready(me) && calm(me);
            if ctx.state(over) {
                ctx.state_mut(|me| me.lanes_stop = true);
                return Ok(());
            }
            let now = ledger_time(ctx.workflow_time()).unwrap_or_default();
            let tries_again = ctx.state(ready);
            let due = if tries_again { Some(now) } else { ctx.state(|me| me.ledger.next_due()) };
            let earlier = |me: &Self| match (me.ledger.next_due(), due) {
                (Some(next), Some(due)) => next.0.saturating_add(TIMER_SLACK.0) < due.0,
                (next, None) => next.is_some(),
                (None, Some(_)) => false,
            };
            let options = WaitConditionOptions::builder().cancellation_token(token.clone()).build();
            let woken = ctx.wait_condition_with_options(
                |me| over(me) || earlier(me) || (ready(me) && !tries_again),
                options,
            );
            let Some(due) = due else {
                woken.await?;
                continue;
            };
            let wait = Duration::from_micros(due.since(now).0.max(1_000));
            let mut timer = ctx.timer(TimerOptions::builder(wait).cancellation_token(token.clone()).build());
            let mut woken = std::pin::pin!(woken);
            let fired = select! {
                _ = woken => {
                    timer.cancel();
                    false
                }
                _ = timer => true,
            };
            if fired {
                tries += u32::from(tries_again);
                let now = ledger_time(ctx.workflow_time()).unwrap_or_default();
                ctx.state_mut(|me| {
                    me.give_up(now, me.replies.stale(now));
                    me.ledger.apply(now, Input::Tick);
                    me.replies.collect(&me.group, &me.ledger);
                });
            }
        }
    }

    /// One of the few at a time that hand urgent news to workers, on their private task queues.
    async fn notice_lane(ctx: WorkflowContext<Self>) {
        let token = ctx.state(|me| me.token.clone());
        loop {
            let options = WaitConditionOptions::builder().cancellation_token(token.clone()).build();
            let woken =
                ctx.wait_condition_with_options(|me| me.lanes_stop || !me.notices.is_empty(), options).await;
            let next = ctx.state_mut(|me| {
                let next = me.notices.pop_front();
                me.notices_in_flight += usize::from(next.is_some());
                next
            });
            let Some(incarnation) = next else {
                if woken.is_err() || ctx.state(|me| me.lanes_stop) {
                    return;
                }
                continue;
            };
            Self::tell(&ctx, &incarnation_text(incarnation), "notice", write(&())).await;
            ctx.state_mut(|me| me.notices_in_flight -= 1);
        }
    }

    /// One of the few at a time that answer heartbeats which came by signal. None begins when the run must end: what is left
    /// goes on in the next one. Until then the end of one is a good moment to continue as new, a task without a signal.
    async fn answer_lane(ctx: WorkflowContext<Self>) {
        let token = ctx.state(|me| me.token.clone());
        loop {
            let options = WaitConditionOptions::builder().cancellation_token(token.clone()).build();
            let has_work = |me: &Self| !me.answers.is_empty() && !me.is_too_long(&ctx);
            let woken = ctx.wait_condition_with_options(|me| me.lanes_stop || has_work(me), options).await;
            if woken.is_err() || ctx.state(|me| me.lanes_stop) {
                return;
            }
            let next = ctx.state_mut(|me| {
                let next = me.answers.pop_front().and_then(|answer| answer.json(&me.ledger));
                me.answers_in_flight += usize::from(next.is_some());
                next
            });
            let Some(answer) = next else { continue };
            Self::tell(&ctx, &answer.incarnation, "answer", write(&answer)).await;
            ctx.state_mut(|me| me.answers_in_flight -= 1);
        }
    }

    /// Tells a worker something, once. Whether it arrives or not: the next heartbeat says the same.
    async fn tell(ctx: &WorkflowContext<Self>, incarnation: &str, what: &str, input: RawValue) {
        let options = ActivityOptions::with_start_to_close_timeout(NOTICE_START_TO_CLOSE)
            .task_queue(notice_queue(incarnation))
            .schedule_to_start_timeout(NOTICE_SCHEDULE_TO_START)
            .retry_policy(RetryPolicy::builder().maximum_attempts(1).build())
            .do_not_eagerly_execute(true)
            .cancellation_token(ctx.state(|me| me.token.clone()))
            .summary(what)
            .build();
        let _ = ctx.execute_activity(UntypedActivity::new(NOTICE_ACTIVITY), input, options).await;
    }

    /// Tells the config workflow how much of windows may be drawn, before it is. What is under way when the run ends is told again
    /// by the next one.
    async fn escrow_lane(ctx: WorkflowContext<Self>) {
        let token = ctx.state(|me| me.token.clone());
        let options = || WaitConditionOptions::builder().cancellation_token(token.clone()).build();
        loop {
            let has_work = |me: &Self| me.ledger.has_escrow_asks() && !me.is_too_long(&ctx);
            let woken = ctx.wait_condition_with_options(|me| me.lanes_stop || has_work(me), options()).await;
            if woken.is_err() || ctx.state(|me| me.lanes_stop) {
                return;
            }
            let input = ctx.state(|me| {
                let asks = me.ledger.escrow_asks();
                let cells = asks.iter().map(|(key, told)| EscrowCellJson::of(key, *told)).collect();
                write(&EscrowJson { group: me.group.clone(), cells })
            });
            let cancelled = WorkflowCancellationToken::new();
            let retry = RetryPolicy::builder()
                .initial_interval(ESCROW_PAUSE_MIN)
                .backoff_coefficient(2.0)
                .maximum_interval(ESCROW_PAUSE_MAX);
            let activity = ActivityOptions::with_start_to_close_timeout(ESCROW_ATTEMPT)
                .retry_policy(retry.build())
                .cancellation_token(cancelled.clone())
                .summary("say how much of windows may be drawn")
                .build();
            let mut told = std::pin::pin!(ctx.execute_activity(Activities::escrow, input, activity));
            let over = |me: &Self| me.lanes_stop || me.is_too_long(&ctx);
            let mut over = std::pin::pin!(ctx.wait_condition_with_options(over, options()));
            let answer = select! {
                answer = told => Some(answer),
                _ = over => None,
            };
            let Some(answer) = answer else {
                cancelled.cancel();
                continue;
            };
            let now = ledger_time(ctx.workflow_time()).unwrap_or_default();
            let answer = answer.ok().and_then(|answer| read::<EscrowReplyJson>(&answer).ok());
            if let Some(EscrowReplyJson::Ok { cells }) = answer {
                ctx.state_mut(|me| {
                    for (key, escrow) in cells.into_iter().filter_map(|cell| cell.check().ok()) {
                        me.ledger.apply(now, Input::Escrowed { key, escrow });
                    }
                    me.replies.collect(&me.group, &me.ledger);
                });
            } else {
                // Never so, unless the activity is another one than this code's; the timer keeps it from asking in a loop.
                ctx.timer(TimerOptions::builder(ESCROW_PAUSE_MAX).cancellation_token(token.clone()).build())
                    .await;
            }
        }
    }

    /// One of the few at a time that tell workflows what became of their permits. None begins when the run must end:
    /// what is left goes on in the next one.
    async fn reply_lane(ctx: WorkflowContext<Self>) {
        let token = ctx.state(|me| me.token.clone());
        loop {
            let options = WaitConditionOptions::builder().cancellation_token(token.clone()).build();
            let has_work = |me: &Self| !me.replies.is_empty() && !me.is_too_long(&ctx);
            let woken = ctx.wait_condition_with_options(|me| me.lanes_stop || has_work(me), options).await;
            if woken.is_err() || ctx.state(|me| me.lanes_stop) {
                return;
            }
            let next = ctx.state_mut(|me| {
                let next = me.replies.take_next();
                me.replies_in_flight += usize::from(next.is_some());
                next
            });
            let Some(reply) = next else { continue };
            let options = SignalWorkflowOptions::builder().cancellation_token(token.clone()).build();
            let to = ctx.external_workflow(reply.to.clone(), None);
            let sent = to.signal(Granted, write(&reply.granted), options).await;
            let now = ledger_time(ctx.workflow_time());
            ctx.state_mut(|me| {
                me.replies_in_flight -= 1;
                // Its other places would be granted to nobody. What it was granted counts until its lease ends: that this
                // message has not arrived is no proof that no earlier attempt of the server's did.
                if let (Err(WorkflowSignalError::NotFound(_)), Some(now)) = (sent, now) {
                    let places = me.replies.forget(&reply.to);
                    me.give_up(now, places);
                }
            });
        }
    }
}

/// Signal `granted` of a workflow that asked, for the SDK, which wants to know some workflow that has it.
struct Granted;

impl SignalDefinition for Granted {
    type Workflow = Preload;
    type Input = RawValue;
    fn name(&self) -> &str {
        GRANTED
    }
}

/// The config workflow's signal `ensure`, for the SDK.
struct Ensure;

impl SignalDefinition for Ensure {
    type Workflow = crate::config::Config;
    type Input = RawValue;
    fn name(&self) -> &str {
        "ensure"
    }
}
