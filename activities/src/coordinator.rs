//! What the config workflow asks of a coordinator.

use crate::ensure::{Started, start};
use std::time::{Duration, SystemTime};
use temporalio_client::errors::{
    WorkflowInteractionError, WorkflowQueryError, WorkflowStartError, WorkflowUpdateError,
};
use temporalio_client::{
    Client, QueryRejectCondition, UntypedQuery, UntypedUpdate, UntypedWorkflow, WorkflowDescribeOptions,
    WorkflowExecuteUpdateOptions, WorkflowQueryOptions,
};
use temporalio_common::data_converters::RawValue;
use tollgate_workflows::contracts::{
    COORDINATOR_TYPE, ConfigurationReadJson, CoordinatorStart, PushJson, PushedJson, coordinator_id,
};
use tollgate_workflows::wire::config::{ConfigureJson, ConfiguredJson, ConfiguredStatus};
use tollgate_workflows::wire::{Unreadable, read, write};

/// How long an update may wait for the coordinator's host: less than an attempt of the activity may take, so that the
/// attempt ends with a reason. An update that nobody handles would wait for ever.
const UPDATE_TIMEOUT: Duration = Duration::from_millis(4_500);
/// How often a coordinator that has ended is asked at least before it counts as gone: it can only answer as long as its
/// history can be replayed. At one attempt in ten seconds that takes ten minutes, however long ago it ended and however
/// quickly attempts fail.
const ENDED_ATTEMPTS_MIN: u32 = 66;
/// For how long after its end it is asked at least. Without an answer all limits are lost, and an answer needs a host, which
/// may be away, or slow, for minutes; nobody gets quota meanwhile, as without limits.
const ENDED_PATIENCE: Duration = Duration::from_secs(600);

/// Why a coordinator couldn't be spoken to. Trying again is safe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoordinatorError {
    #[error("starting the coordinator: {0}")]
    Start(#[source] Box<WorkflowStartError>),
    #[error("update configure: {0}")]
    Update(#[source] Box<WorkflowUpdateError>),
    #[error("update configure: no answer within {} ms; is a host running on task queue tollgate?", UPDATE_TIMEOUT.as_millis())]
    Timeout,
    #[error("query configuration: {0}")]
    Query(#[source] Box<WorkflowQueryError>),
    #[error("describing the coordinator: {0}")]
    Describe(#[source] Box<WorkflowInteractionError>),
    #[error("the coordinator's answer: {0}")]
    Unreadable(#[from] Unreadable),
    #[error("the coordinator is not ready: {0}")]
    Busy(String),
    #[error("the coordinator still can't take the configuration: {0}")]
    StillRefused(String),
    #[error("the coordinator came and went")]
    Gone,
}

/// Brings a configuration to the coordinator, and starts it when it isn't there.
pub(crate) async fn configure(client: &Client, push: PushJson) -> Result<PushedJson, CoordinatorError> {
    if let Some(pushed) = update(client, &push).await? {
        return Ok(pushed);
    }
    let id = coordinator_id(&push.group);
    let input = |first| {
        write(&CoordinatorStart {
            group: push.group.clone(),
            first,
            rules_version: tollgate_workflows::contracts::rules_version(),
            configure: push.configure.clone(),
        })
    };
    let summary = format!("tollgate: ledger of group {}", push.group);
    let started = start(client, COORDINATOR_TYPE, &id, &summary, input)
        .await
        .map_err(|error| CoordinatorError::Start(Box::new(error)))?;
    match started {
        Started::First | Started::Anew => Ok(PushedJson::Configured { started: true }),
        // Another attempt, or somebody else, was faster.
        Started::Running => update(client, &push).await?.ok_or(CoordinatorError::Gone),
    }
}

/// Configures a coordinator that runs; nothing when none does.
async fn update(client: &Client, push: &PushJson) -> Result<Option<PushedJson>, CoordinatorError> {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(&push.group));
    let options = WorkflowExecuteUpdateOptions::default();
    let update = handle.execute_update(UntypedUpdate::new("configure"), write(&push.configure), options);
    let result = match tokio::time::timeout(UPDATE_TIMEOUT, update).await {
        Ok(Ok(result)) => result,
        Ok(Err(WorkflowUpdateError::NotFound(_))) => return Ok(None),
        // The coordinator's validator, with the same words as the handler: the workflow shall know them.
        Ok(Err(WorkflowUpdateError::Failed(failure))) => {
            return refused(push, failure.message.clone()).map(Some);
        }
        Ok(Err(error)) => return Err(CoordinatorError::Update(Box::new(error))),
        Err(_) => return Err(CoordinatorError::Timeout),
    };
    let answer: ConfiguredJson = read(&result)?;
    match answer.status {
        ConfiguredStatus::Configured => Ok(Some(PushedJson::Configured { started: false })),
        ConfiguredStatus::Refused => refused(push, answer.message).map(Some),
        ConfiguredStatus::Busy => Err(CoordinatorError::Busy(answer.message)),
        ConfiguredStatus::Ignored => {
            // An attempt whose answer was lost had the same effect: then what is in force is what was to be.
            let Some(in_force) = ask(client, &push.group, Some(QueryRejectCondition::NotOpen)).await? else {
                return Err(CoordinatorError::Gone);
            };
            if in_force == push.configure {
                return Ok(Some(PushedJson::Configured { started: false }));
            }
            Ok(Some(PushedJson::Ignored { in_force: in_force.version }))
        }
    }
}

/// A refusal that the workflow doesn't know yet is a result; one that it knows is tried again later.
fn refused(push: &PushJson, message: String) -> Result<PushedJson, CoordinatorError> {
    if message == push.known_refusal {
        return Err(CoordinatorError::StillRefused(message));
    }
    tracing::warn!(group = push.group, message, "the coordinator refuses its configuration");
    Ok(PushedJson::Refused { message })
}

/// Reads what the coordinator keeps to, or kept to when it ended; nothing when there never was one.
pub(crate) async fn read_configuration(
    client: &Client,
    group: &str,
    attempt: u32,
) -> Result<ConfigurationReadJson, CoordinatorError> {
    let configuration = match ask(client, group, Some(QueryRejectCondition::NotOpen)).await {
        Err(CoordinatorError::Query(error)) if matches!(*error, WorkflowQueryError::Rejected { .. }) => {
            match ask(client, group, None).await {
                Err(error) if is_given_up(attempt, ended_for(client, group).await?) => {
                    tracing::error!(group, %error, "a coordinator that has ended can't be read: starting without limits");
                    None
                }
                asked => asked?,
            }
        }
        asked => asked?,
    };
    Ok(ConfigurationReadJson { configuration })
}

/// Whether a coordinator that has ended and doesn't answer is asked no more. Earlier attempts may have been made while it
/// still ran, so that their number alone says nothing.
fn is_given_up(attempt: u32, ended_for: Duration) -> bool {
    attempt >= ENDED_ATTEMPTS_MIN && ended_for >= ENDED_PATIENCE
}

/// How long ago the coordinator ended; nothing if it runs.
async fn ended_for(client: &Client, group: &str) -> Result<Duration, CoordinatorError> {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(group));
    let description = handle.describe(WorkflowDescribeOptions::default()).await;
    let description = description.map_err(|error| CoordinatorError::Describe(Box::new(error)))?;
    let elapsed = description.close_time().and_then(|closed| SystemTime::now().duration_since(closed).ok());
    Ok(elapsed.unwrap_or_default())
}

async fn ask(
    client: &Client,
    group: &str,
    reject: Option<QueryRejectCondition>,
) -> Result<Option<ConfigureJson>, CoordinatorError> {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(group));
    let options = WorkflowQueryOptions::builder().maybe_reject_condition(reject).build();
    match handle.query(UntypedQuery::new("configuration"), RawValue::default(), options).await {
        Ok(result) => Ok(read(&result)?),
        Err(WorkflowQueryError::NotFound(_)) => Ok(None),
        Err(error) => Err(CoordinatorError::Query(Box::new(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_not_given_up_for_attempts_that_were_made_while_the_coordinator_ran() {
        assert!(!is_given_up(1_000, Duration::from_secs(3)));
        assert!(!is_given_up(1, Duration::from_secs(86_400)));
        assert!(is_given_up(ENDED_ATTEMPTS_MIN, ENDED_PATIENCE));
    }
}
