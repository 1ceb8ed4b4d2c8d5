//! The preload workflow: asks for one permit and gives the outcome as its result, for clients that can start workflows and
//! signal them, and nothing else. Any workflow id; the type is [`PRELOAD_TYPE`](crate::contracts::PRELOAD_TYPE).
//!
//! ```text
//! temporal workflow execute --type tollgate.preload --task-queue tollgate -w my-call-7 \
//!     --input '{"limit":"openai", "cost":3, "lease_ms":30000, "wait_ms":5000}'
//! {"id":"..", "limit":"openai", "cost":3, "status":"granted", "valid_until_us":.., "expires_us":.., ..}
//! ```
//!
//! The result is a [`GrantedJson`]. Report the use by signal `report` to the coordinator. Cancelling the workflow gives the
//! place back.

use crate::contracts::GROUP_DEFAULT;
use crate::permits::{Ask, AskError, Permits};
use crate::wire::granted::{GrantedJson, OutcomeJson};
use crate::wire::lease::AcquireJson;
use crate::wire::{Unreadable, read, write};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use temporalio_common::data_converters::RawValue;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::{SyncWorkflowContext, WorkflowContext, WorkflowContextView, WorkflowResult};

/// How long it waits unless told otherwise: as long as an activity's interceptor.
const WAIT_DEFAULT_MS: u64 = 10_000;

/// Start input of the preload workflow, beside the fields of signal `lease`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadJson {
    /// The group whose coordinator is asked; `default` if missing.
    #[serde(default = "group")]
    pub group: String,
    /// How long to wait; 10 s if missing. Who can't have the permit within this is refused at once.
    #[serde(default = "wait_ms")]
    pub wait_ms: u64,
}

fn group() -> String {
    GROUP_DEFAULT.to_owned()
}
fn wait_ms() -> u64 {
    WAIT_DEFAULT_MS
}

/// See the module's documentation.
#[workflow]
#[derive(Debug)]
pub struct Preload {
    input: RawValue,
    permits: Permits,
}

#[workflow_methods]
impl Preload {
    /// Keeps the start input.
    #[init]
    pub fn new(_ctx: &WorkflowContextView, input: RawValue) -> Self {
        Preload { input, permits: Permits::new() }
    }

    /// The outcome.
    #[signal(name = "granted")]
    pub fn granted(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        self.permits.granted(ctx, &input);
    }

    /// Asks, waits, and ends with the outcome.
    #[run(name = "tollgate.preload")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<RawValue> {
        let (input, permits) = ctx.state(|me| (me.input.clone(), me.permits.clone()));
        let asked = read::<AcquireJson>(&input).and_then(|wanted| Ok((wanted, read::<PreloadJson>(&input)?)));
        let (wanted, preload) = match asked {
            Ok(asked) => asked,
            Err(error) => return Ok(write(&unreadable(&error))),
        };
        let mut ask = Ask::new(wanted.limit.clone())
            .group(preload.group.clone())
            .meter(wanted.meter.clone())
            .tier(wanted.tier.clone())
            .cost(wanted.cost)
            .lease(Duration::from_millis(wanted.lease_ms))
            .wait(Duration::from_millis(preload.wait_ms));
        if !wanted.client.is_empty() {
            ask = ask.client(wanted.client.clone());
        }
        if !wanted.id.is_empty() {
            ask = ask.id(wanted.id.clone());
        }
        let result = match permits.obtain(ctx, ask).await {
            // Whoever reads the result holds it now.
            Ok((_permit, granted)) => granted,
            Err(AskError::Cancelled) => return Err(AskError::Cancelled.into()),
            Err(error) => refused(wanted, preload.group, error),
        };
        Ok(write(&result))
    }
}

fn unreadable(error: &Unreadable) -> GrantedJson {
    let nothing = String::new;
    GrantedJson {
        id: nothing(),
        client: nothing(),
        group: nothing(),
        limit: nothing(),
        meter: nothing(),
        tier: nothing(),
        cost: 0,
        outcome: plain("unreadable", error.to_string()),
    }
}

fn plain(reason: &str, message: String) -> OutcomeJson {
    OutcomeJson::Refused { reason: reason.to_owned(), message, burst: None, retry_after_ms: None }
}

fn refused(wanted: AcquireJson, group: String, error: AskError) -> GrantedJson {
    let text = error.to_string();
    let outcome = match error {
        AskError::Refused { reason, message, burst } => {
            OutcomeJson::Refused { reason, message, burst, retry_after_ms: None }
        }
        AskError::Deadline { retry_after } => {
            let retry_after = retry_after.and_then(|wait| u64::try_from(wait.as_millis()).ok());
            let (reason, burst) = ("deadline".to_owned(), None);
            OutcomeJson::Refused { reason, message: text, burst, retry_after_ms: retry_after }
        }
        AskError::CoordinatorLost { .. } => plain("coordinator_lost", text),
        AskError::Invalid(_) | AskError::TooMany | AskError::Cancelled => plain("unreadable", text),
    };
    let AcquireJson { id, client, limit, meter, tier, cost, .. } = wanted;
    GrantedJson { id, client, group, limit, meter, tier, cost, outcome }
}
