//! The question for a permit, and why there may be none.

use super::{ASKS_MAX, millis};
use crate::contracts::{GROUP_DEFAULT, check_group};
use crate::wire::Unreadable;
use crate::wire::lease::AcquireJson;
use std::time::Duration;
use temporalio_common::error::{ApplicationErrorCategory, ApplicationFailure};
use temporalio_workflow::{WorkflowCancellationToken, WorkflowTermination};
use tollgate_core::limit::{CellKey, NAME_BYTES_MAX, check_name};

/// How long a permit may be used unless set otherwise.
const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// The type of the failure of a workflow that ends by an [`AskError`].
pub const QUOTA_EXHAUSTED: &str = "QuotaExhausted";

/// Room for `~` and a number behind an id of the workflow's own.
const NUMBER_BYTES: usize = 10;

/// A question for a permit.
#[derive(Clone, Debug)]
pub struct Ask {
    pub(super) group: String,
    pub(super) limit: String,
    pub(super) meter: String,
    pub(super) tier: String,
    pub(super) cost: u64,
    pub(super) lease: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) id: Option<String>,
    pub(super) client: Option<String>,
    pub(super) token: Option<WorkflowCancellationToken>,
}

impl Ask {
    /// For one token of a limit.
    pub fn new(limit: impl Into<String>) -> Ask {
        Ask {
            group: GROUP_DEFAULT.to_owned(),
            limit: limit.into(),
            meter: CellKey::METER.to_owned(),
            tier: CellKey::TIER.to_owned(),
            cost: 1,
            lease: LEASE_DEFAULT,
            wait: None,
            id: None,
            client: None,
            token: None,
        }
    }

    /// The group whose coordinator is asked. Default: `default`.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Ask {
        self.group = group.into();
        self
    }

    /// The limit's meter. Default: `requests`.
    #[must_use]
    pub fn meter(mut self, meter: impl Into<String>) -> Ask {
        self.meter = meter.into();
        self
    }

    /// The limit's tier. Default: `default`.
    #[must_use]
    pub fn tier(mut self, tier: impl Into<String>) -> Ask {
        self.tier = tier.into();
        self
    }

    /// How many tokens the work costs, at most the limit's burst. Default: 1.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Ask {
        self.cost = cost;
        self
    }

    /// For how long after it was granted the work may start: 2 s to 120 s. Default: 15 s. Long enough for the activity to
    /// be picked up; until its use is reported the permit counts against the burst for as long.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Ask {
        self.lease = lease;
        self
    }

    /// How long to wait. One that the coordinator can't serve in time is refused at once. Default: as long as it takes.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Ask {
        self.wait = Some(wait);
        self
    }

    /// Names the request, in up to 190 bytes: it then goes on when its future is dropped, and in the next run; asking with
    /// the same id joins it. Name no other request like that for some minutes after. Default: drawn anew.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Ask {
        self.id = Some(id.into());
        self
    }

    /// Who asks, for people. Default: the workflow's id.
    #[must_use]
    pub fn client(mut self, client: impl Into<String>) -> Ask {
        self.client = Some(client.into());
        self
    }

    /// What cancels the wait. Default: the workflow's own cancellation.
    #[must_use]
    pub fn cancellation_token(mut self, token: WorkflowCancellationToken) -> Ask {
        self.token = Some(token);
        self
    }

    /// The message, but for its id, which is short here.
    pub(super) fn message(&self, workflow_id: &str) -> Result<AcquireJson, Unreadable> {
        check_group(&self.group)?;
        let id = self.id.clone().unwrap_or_else(|| "-".to_owned());
        if id.len() > NAME_BYTES_MAX - NUMBER_BYTES {
            return Err(Unreadable::of("id", format!("has {} bytes, allowed: 1 to 190", id.len())));
        }
        let default = if check_name("client", workflow_id).is_ok() { workflow_id } else { "workflow" };
        let message = AcquireJson {
            id,
            client: self.client.clone().unwrap_or_else(|| default.to_owned()),
            limit: self.limit.clone(),
            meter: self.meter.clone(),
            tier: self.tier.clone(),
            cost: self.cost,
            lease_ms: millis(self.lease),
        };
        message.clone().check(true)?;
        Ok(message)
    }
}

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The question can't be asked.
    #[error(transparent)]
    Invalid(#[from] Unreadable),
    /// More waits than [`ASKS_MAX`] at a time.
    #[error("more than {ASKS_MAX} permits are waited for; wait for some before asking for more")]
    TooMany,
    /// The coordinator refuses, and waiting would not help.
    #[error("{message}")]
    Refused {
        /// As in the reply to update `acquire`: `cost_above_burst`, `unknown_limit`, ..
        reason: String,
        /// What to do.
        message: String,
        /// With `cost_above_burst`: the burst now.
        burst: Option<u64>,
    },
    /// Not within [`Ask::wait`].
    #[error("not granted within the time to wait")]
    Deadline {
        /// When asking again makes sense, where that is known.
        retry_after: Option<Duration>,
    },
    /// Not within [`Ask::wait`], and no coordinator took the question: does the group have one?
    #[error("the coordinator of group {group} does not answer")]
    CoordinatorLost {
        /// The group.
        group: String,
    },
    /// The wait was cancelled, and the place given back.
    #[error("cancelled")]
    Cancelled,
}

impl From<AskError> for WorkflowTermination {
    fn from(error: AskError) -> WorkflowTermination {
        let (retry_after, benign) = match &error {
            AskError::Cancelled => return WorkflowTermination::cancelled(),
            AskError::Deadline { retry_after } => (*retry_after, true),
            AskError::CoordinatorLost { .. } => (None, true),
            AskError::Invalid(_) | AskError::TooMany | AskError::Refused { .. } => (None, false),
        };
        let category =
            if benign { ApplicationErrorCategory::Benign } else { ApplicationErrorCategory::Unspecified };
        let failure = ApplicationFailure::builder(error)
            .type_name(QUOTA_EXHAUSTED.to_owned())
            .maybe_next_retry_delay(retry_after)
            .category(category);
        WorkflowTermination::failed_application(failure.build())
    }
}
