//! Asks for a permit before an activity runs.

use crate::acquire::Acquire;
use crate::error::AcquireError;
use crate::gate::Gate;
use crate::permit::{CurrentPermit, Outcome, Permit};
use crate::rule::{CostError, Input, Profile, Rule};
use futures_util::FutureExt;
use std::any::Any;
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
/// The type of the failure of an activity whose cost its rule's function doesn't tell.
pub const COST_UNKNOWN: &str = "CostUnknown";
/// The type of the failure of an activity whose permit was lost while it ran.
pub const PERMIT_LOST: &str = "PermitLost";
/// The longest wait, unless [`ActivityGate::max_wait`] says otherwise: the activity holds one of its worker's slots
/// meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The part of an activity's timeouts that it may wait for: what is left must do for the work.
const WAIT_PART: u32 = 3;

/// Holds every activity of a Temporal worker until it may start, by its type.
///
/// ```no_run
/// # fn example(gate: tollgate_worker::Gate) {
/// use tollgate_worker::{ActivityGate, Rule};
/// let interceptor = ActivityGate::new(&gate)
///     .rule("classify", "openai", 1)
///     .with("summarize", Rule::new("openai").charge_by("tokens", |text: &String| {
///         u64::try_from(text.len() / 4 + 500)
///     }))
///     .with("download", Rule::of("files", "in_flight"))
///     .default_rule("misc", 1);
/// // WorkerOptions::new("tasks").activity_inbound_interceptor(interceptor)
/// # }
/// ```
///
/// It waits for ten seconds or a third of the activity's timeouts (start-to-close, schedule-to-close, heartbeat), whichever
/// is least. An activity without a permit by then fails with type [`QUOTA_EXHAUSTED`], benign, details
/// `{"limit", "meter", "reason", "retry_after_ms"}`, and its next attempt is set to when there will be quota.
///
/// **Such failures count as attempts:** leave `maximum_attempts` unset, or far above what is wanted for real errors, and
/// bound the whole by the schedule-to-close timeout.
///
/// An activity whose workflow took a permit for it beforehand (`tollgate_workflows::permits`) runs on that in its first
/// attempt, if it is for the rule's limit and at least its cost, and surely still holds; else it asks here as all do. Such a
/// permit stands for meter `requests`; what the rule charges to others is asked for here.
///
/// The permit is charged with the rule's costs; it ends with the activity. Just before it sends, an activity can ask
/// [`CurrentPermit::get`](crate::CurrentPermit::get) whether the permit still holds, in case the process was paused.
///
/// # What is in flight
///
/// A permit of a meter that limits what is in flight is held while the activity runs. When its lease is lost (the coordinator was
/// not heard for the length of one) the fleet counts on the work ending, so the activity is cancelled: its future is
/// dropped where it awaits something, and it fails with type [`PERMIT_LOST`], benign and to be tried again. An interceptor doesn't see
/// the activity's context, so the token that a server's cancellation fires stays silent; code that blocks a thread isn't
/// stopped, and must be within the limit's `drain`.
#[derive(Debug)]
pub struct ActivityGate {
    gate: Gate,
    rules: HashMap<String, Profile>,
    default: Option<Profile>,
    max_wait: Option<Duration>,
}

impl ActivityGate {
    /// Lets all activities through, until rules are added.
    pub fn new(gate: &Gate) -> ActivityGate {
        ActivityGate { gate: gate.clone(), rules: HashMap::new(), default: None, max_wait: None }
    }

    /// Activities of this type cost `cost` of `limit`.
    #[must_use]
    pub fn rule(self, activity_type: impl Into<String>, limit: &str, cost: u64) -> ActivityGate {
        self.with(activity_type, Rule::new(limit).cost(cost))
    }

    /// Activities of this type are charged as the rule says.
    #[must_use]
    pub fn with(mut self, activity_type: impl Into<String>, rule: Rule) -> ActivityGate {
        self.rules.insert(activity_type.into(), rule.at(&self.gate));
        self
    }

    /// Activities without a rule of their own cost `cost` of `limit`; without this they run freely.
    #[must_use]
    pub fn default_rule(self, limit: &str, cost: u64) -> ActivityGate {
        self.with_default(Rule::new(limit).cost(cost))
    }

    /// Activities without a rule of their own are charged as this one says. A function of such a rule has to take the inputs of all
    /// of them.
    #[must_use]
    pub fn with_default(mut self, rule: Rule) -> ActivityGate {
        self.default = Some(rule.at(&self.gate));
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
    /// That of `work`; without a permit an application failure of type [`QUOTA_EXHAUSTED`], and `work` is not polled. Of type
    /// [`COST_UNKNOWN`] where a function says the cost: see [`ActivityGate::run_with`]. Of type [`PERMIT_LOST`] when what is in flight
    /// was lost.
    pub async fn run<T>(
        &self,
        activity_type: &str,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        self.run_as(activity_type, Input::Nowhere, work).await
    }

    /// The same for an activity with this input, from which its rule computes the cost.
    ///
    /// # Errors
    /// As [`ActivityGate::run`].
    pub async fn run_with<I: Any + Sync, T>(
        &self,
        activity_type: &str,
        input: &I,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        self.run_as(activity_type, Input::Value(input), work).await
    }

    async fn run_as<T>(
        &self,
        activity_type: &str,
        input: Input<'_>,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        let Some(profile) = self.profile_of(activity_type) else { return work.await };
        let costs = profile.costs(input);
        let costs = costs.map_err(|error| cost_unknown(activity_type, profile.limit(), error))?;
        let job = Job { activity_type, profile, costs, wait: self.max_wait.unwrap_or(WAIT_MAX) };
        job.run(&self.gate, work).await
    }

    /// The permit that the activity brings with it, if it may run on that.
    fn brought(&self, input: &ExecuteActivityInput, job: &Job<'_>) -> Option<Admitted> {
        let header = input.headers().get(PERMIT_HEADER)?;
        // The first attempt may have begun its work.
        let is_first = input.activity_info().attempt <= 1 && job.profile.is_by_requests();
        let permit = PermitJson::of(header)
            .inspect_err(|error| tracing::warn!(%error, "an activity's permit can't be read"))
            .ok()
            .filter(|permit| is_first && permit.is_for(self.gate.group(), job.profile.limit()))
            .filter(|permit| job.costs.first().is_some_and(|cost| permit.cost >= *cost))?;
        self.gate.limit(job.profile.limit()).brought(LedgerTime(permit.valid_until_us), permit.cost)
    }

    fn profile_of(&self, activity_type: &str) -> Option<&Profile> {
        self.rules.get(activity_type).or(self.default.as_ref())
    }
}

/// One activity, under its rule.
struct Job<'a> {
    activity_type: &'a str,
    profile: &'a Profile,
    /// In the order in which the rule names the meters.
    costs: Vec<u64>,
    wait: Duration,
}

impl Job<'_> {
    /// Runs `work` when there is a permit for it.
    async fn run<T>(
        &self,
        gate: &Gate,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        let permit = self.permit(gate).await?;
        let result = tokio::select! {
            biased;
            result = permit.scope(work) => result,
            () = permit.lost() => Err(permit_lost(self.profile.limit())),
        };
        permit.finish(outcome(&result));
        result
    }

    /// Runs `work` on a permit that came from elsewhere, and one for what that doesn't stand for.
    async fn run_on<T>(
        mut self,
        gate: &Gate,
        admitted: Admitted,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        let limit = gate.limit(self.profile.limit());
        if let Some(first) = self.costs.first_mut() {
            *first = 0;
        }
        let work = CurrentPermit::scope(&limit.cell.core, admitted.valid_until, work);
        let result = if self.costs.iter().any(|cost| *cost > 0) {
            self.run_within(gate, work).await
        } else {
            work.await
        };
        limit.cell.note(outcome(&result));
        result
    }

    /// Runs `work`, which has its own permit, while there is one for what else it needs.
    async fn run_within<T>(
        &self,
        gate: &Gate,
        work: impl Future<Output = Result<T, ActivityError>>,
    ) -> Result<T, ActivityError> {
        let permit = self.permit(gate).await?;
        let result = tokio::select! {
            biased;
            result = work => result,
            () = permit.lost() => Err(permit_lost(self.profile.limit())),
        };
        permit.finish(outcome(&result));
        result
    }

    async fn permit(&self, gate: &Gate) -> Result<Permit, ActivityError> {
        let set = &self.profile.set;
        let charges = set.charges(set.in_order(&self.costs));
        let acquire = Acquire::of(charges, gate.inner().clone()).timeout(self.wait);
        acquire.await.map_err(|error| match &error {
            // The same input would cost as much again.
            AcquireError::CostAboveBurst { meter, .. } if self.profile.is_computed(meter) => {
                let error = CostError { meter: meter.to_string(), problem: error.to_string() };
                cost_unknown(self.activity_type, self.profile.limit(), error)
            }
            _ => quota_exhausted(self.profile.limit(), &error),
        })
    }
}

impl ActivityInboundInterceptor for ActivityGate {
    fn execute_activity<'a>(
        &'a self,
        input: ExecuteActivityInput,
        next: Next<'a, ExecuteActivityInput, ExecuteActivityOutput<'a>>,
    ) -> ExecuteActivityOutput<'a> {
        let info = input.activity_info();
        let activity_type = info.activity_type.clone();
        let Some(profile) = self.profile_of(&activity_type) else { return next.run(input) };
        let wait = self.max_wait.unwrap_or_else(|| wait_for(info));
        async move {
            let costs = profile.costs(Input::Task(&input));
            let costs = costs.map_err(|error| cost_unknown(&activity_type, profile.limit(), error))?;
            let job = Job { activity_type: &activity_type, profile, costs, wait };
            let brought = self.brought(&input, &job);
            // Not before there is a permit: what the next one does at once is work, too.
            let work = async move { next.run(input).await };
            match brought {
                Some(admitted) => job.run_on(&self.gate, admitted, work).await,
                None => job.run(&self.gate, work).await,
            }
        }
        .boxed()
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
        "meter": error.meter(),
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

/// Fails for good: another attempt would have the same input.
fn cost_unknown(activity_type: &str, limit: &str, error: CostError) -> ActivityError {
    let CostError { meter, problem } = error;
    let details = serde_json::json!({
        "activity_type": activity_type,
        "limit": limit,
        "meter": meter,
        "problem": problem,
    });
    let said = format!(
        "rule of activity {activity_type:?}: no cost for meter {meter:?} of limit {limit:?}: {problem}"
    );
    ActivityError::application(
        ApplicationFailure::builder(said)
            .type_name(COST_UNKNOWN.to_owned())
            .non_retryable(true)
            .details(wire::write(&details))
            .build(),
    )
}

fn permit_lost(limit: &str) -> ActivityError {
    let details = serde_json::json!({ "limit": limit });
    let said = format!(
        "limit {limit:?}: the permit was lost while the work was in flight, since the coordinator was not heard for a lease; \
         it is tried again"
    );
    ActivityError::application(
        ApplicationFailure::builder(said)
            .type_name(PERMIT_LOST.to_owned())
            .category(ApplicationErrorCategory::Benign)
            .details(wire::write(&details))
            .build(),
    )
}
