//! Asks for a permit before an activity runs.

use crate::error::AcquireError;
use crate::gate::Gate;
use crate::limit::Limit;
use crate::permit::{CurrentPermit, Outcome};
use futures_util::FutureExt;
use std::collections::HashMap;
use std::time::Duration;
use temporalio_common::error::{ApplicationErrorCategory, ApplicationFailure};
use temporalio_sdk::activities::{ActivityError, ActivityInfo};
use temporalio_sdk::interceptors::{
    ActivityInboundInterceptor, ExecuteActivityInput, ExecuteActivityOutput, Next,
};
use tollgate_core::bucket::Admitted;
use tollgate_core::units::LedgerTime;
use tollgate_workflows::wire;
use tollgate_workflows::wire::granted::{PERMIT_HEADER, PermitJson};

/// The type of the failure of an activity that got no permit.
pub const QUOTA_EXHAUSTED: &str = "QuotaExhausted";
/// The longest wait, unless [`ActivityGate::max_wait`] says otherwise: the activity holds one of its worker's slots
/// meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The part of an activity's timeouts that it may wait for: what is left must do for the work.
const WAIT_PART: u32 = 3;

/// Holds every activity of a Temporal worker until it may start, by its type.
///
/// ```no_run
/// # fn example(gate: tollgate_worker::Gate) {
/// use tollgate_worker::ActivityGate;
/// let interceptor = ActivityGate::new(&gate).rule("summarize", "openai", 3).default_rule("downloads", 1);
/// // WorkerOptions::new("tasks").activity_inbound_interceptor(interceptor)
/// # }
/// ```
///
/// It waits for ten seconds or a third of the activity's timeouts (start-to-close, schedule-to-close, heartbeat), whichever
/// is least. An activity without a permit by then fails with type [`QUOTA_EXHAUSTED`], benign, details
/// `{"limit", "reason", "retry_after_ms"}`, and its next attempt is set to when there will be quota.
///
/// **Such failures count as attempts:** leave `maximum_attempts` unset, or far above what is wanted for real errors, and
/// bound the whole by the schedule-to-close timeout.
///
/// An activity whose workflow took a permit for it beforehand (`tollgate_workflows::permits`) runs on that in its first
/// attempt, if it is for the rule's limit and at least its cost, and surely still holds; else it asks here as all do.
///
/// The permit is charged with the rule's cost; it ends with the activity. Just before it sends, an activity can ask
/// [`CurrentPermit::get`](crate::CurrentPermit::get) whether the permit still holds, in case the process was paused.
#[derive(Debug)]
pub struct ActivityGate {
    gate: Gate,
    rules: HashMap<String, Rule>,
    default: Option<Rule>,
    max_wait: Option<Duration>,
}

#[derive(Debug)]
struct Rule {
    limit: Limit,
    cost: u64,
}

impl ActivityGate {
    /// Lets all activities through, until rules are added.
    pub fn new(gate: &Gate) -> ActivityGate {
        ActivityGate { gate: gate.clone(), rules: HashMap::new(), default: None, max_wait: None }
    }

    /// Activities of this type cost `cost` of `limit`.
    #[must_use]
    pub fn rule(mut self, activity_type: impl Into<String>, limit: &str, cost: u64) -> ActivityGate {
        let rule = Rule { limit: self.gate.limit(limit), cost };
        self.rules.insert(activity_type.into(), rule);
        self
    }

    /// Activities without a rule of their own cost `cost` of `limit`; without this they run freely.
    #[must_use]
    pub fn default_rule(mut self, limit: &str, cost: u64) -> ActivityGate {
        self.default = Some(Rule { limit: self.gate.limit(limit), cost });
        self
    }

    /// The longest wait for a permit. Keep it well below the activities' timeouts: it is not cut to them.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> ActivityGate {
        self.max_wait = Some(wait);
        self
    }

    /// Runs `work` as a Temporal worker would run an activity of this type: under the same rule, with the same permit, and failing
    /// in the same way without one. For activities that are called directly, as tests do. There are no timeouts to keep
    /// to, so it waits for ten seconds unless [`ActivityGate::max_wait`] says otherwise.
    ///
    /// # Errors
    /// That of `work`; without a permit an application failure of type [`QUOTA_EXHAUSTED`], and `work` is not polled.
    pub async fn run<T>(
        &self,
        activity_type: &str,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        match self.rule_of(activity_type) {
            Some(rule) => rule.run(self.max_wait.unwrap_or(WAIT_MAX), work).await,
            None => work.await,
        }
    }

    /// The permit that the activity brings with it, if it may run on that.
    fn brought(&self, input: &ExecuteActivityInput, rule: &Rule) -> Option<Admitted> {
        let header = input.headers().get(PERMIT_HEADER)?;
        // The first attempt may have begun its work.
        let is_first = input.activity_info().attempt <= 1;
        let permit = PermitJson::of(header)
            .inspect_err(|error| tracing::warn!(%error, "an activity's permit can't be read"))
            .ok()
            .filter(|permit| is_first && permit.is_for(self.gate.group(), rule.limit.name()))
            .filter(|permit| permit.cost >= rule.cost)?;
        rule.limit.brought(LedgerTime(permit.valid_until_us), permit.cost)
    }

    fn rule_of(&self, activity_type: &str) -> Option<&Rule> {
        self.rules.get(activity_type).or(self.default.as_ref())
    }
}

impl Rule {
    /// Runs `work` when there is a permit for it.
    async fn run<T>(
        &self,
        wait: Duration,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        match self.limit.acquire().cost(self.cost).timeout(wait).await {
            Ok(permit) => {
                let result = permit.scope(work).await;
                permit.settle(self.cost, outcome(&result));
                result
            }
            Err(error) => Err(quota_exhausted(self.limit.name(), &error)),
        }
    }
}

impl ActivityInboundInterceptor for ActivityGate {
    fn execute_activity<'a>(
        &'a self,
        input: ExecuteActivityInput,
        next: Next<'a, ExecuteActivityInput, ExecuteActivityOutput<'a>>,
    ) -> ExecuteActivityOutput<'a> {
        let info = input.activity_info();
        let Some(rule) = self.rule_of(&info.activity_type) else { return next.run(input) };
        let wait = self.max_wait.unwrap_or_else(|| wait_for(info));
        if let Some(admitted) = self.brought(&input, rule) {
            return async move {
                let result = CurrentPermit::scope(&rule.limit.cell, admitted, next.run(input)).await;
                rule.limit.cell.note(outcome(&result));
                result
            }
            .boxed();
        }
        // Not before there is a permit: what the next one does at once is work, too.
        rule.run(wait, async move { next.run(input).await }).boxed()
    }
}

/// How long an activity may wait: a part of the time that the server gives it, by the server's own times.
fn wait_for(info: &ActivityInfo) -> Duration {
    let whole = info.deadline.zip(info.started_time).and_then(|(end, start)| end.duration_since(start).ok());
    // The interceptor can't heartbeat, so waiting must end well before a heartbeat is missed.
    [whole, info.heartbeat_timeout]
        .into_iter()
        .flatten()
        .filter(|timeout| !timeout.is_zero())
        .map(|timeout| timeout / WAIT_PART)
        .fold(WAIT_MAX, Duration::min)
}

fn outcome<T>(result: &Result<T, ActivityError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(ActivityError::Application(_)) => Outcome::Failure,
        Err(_) => Outcome::Ignored,
    }
}

fn quota_exhausted(limit: &str, error: &AcquireError) -> ActivityError {
    let retry_after = error.retry_after();
    let retry_after_ms = retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let details = serde_json::json!({
        "limit": limit,
        "reason": error.as_str(),
        "retry_after_ms": retry_after_ms,
    });
    // A refusal is part of the plan; a wrong limit or cost is not.
    let category =
        error.reason().map_or(ApplicationErrorCategory::Unspecified, |_| ApplicationErrorCategory::Benign);
    ActivityError::application(
        ApplicationFailure::builder(error.to_string())
            .type_name(QUOTA_EXHAUSTED.to_owned())
            .maybe_next_retry_delay(retry_after)
            .category(category)
            .details(wire::write(&details))
            .build(),
    )
}
