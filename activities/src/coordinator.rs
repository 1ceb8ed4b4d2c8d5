//! What the config workflow asks of a coordinator.

use crate::ensure::{Started, start};
use std::time::Duration;
use temporalio_client::errors::{WorkflowQueryError, WorkflowStartError, WorkflowUpdateError};
use temporalio_client::{
    Client, QueryRejectCondition, UntypedQuery, UntypedUpdate, UntypedWorkflow, WorkflowExecuteUpdateOptions,
    WorkflowQueryOptions,
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
/// How often a coordinator that has ended is asked before it counts as gone: it can only answer as long as its history
/// can be replayed.
const ENDED_ATTEMPTS_MAX: u32 = 5;

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
                Err(error) if attempt >= ENDED_ATTEMPTS_MAX => {
                    tracing::warn!(group, %error, "a coordinator that has ended can't be read: starting without limits");
                    None
                }
                asked => asked?,
            }
        }
        asked => asked?,
    };
    Ok(ConfigurationReadJson { configuration })
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
