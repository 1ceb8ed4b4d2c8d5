//! Starting workflows so that each knows whether it can be the first of its kind.

use std::time::Duration;
use temporalio_client::errors::{WorkflowInteractionError, WorkflowStartError};
use temporalio_client::{
    Client, UntypedSignal, UntypedWorkflow, WorkflowIdConflictPolicy, WorkflowIdReusePolicy,
    WorkflowSignalOptions, WorkflowStartOptions,
};
use temporalio_common::data_converters::RawValue;
use tollgate_workflows::contracts::{CONFIG_TYPE, ConfigStart, TASK_QUEUE, check_group, config_id};
use tollgate_workflows::wire::{Unreadable, write};

/// How long a host may sit on a workflow task: what a host that was killed costs the messages after it. Kept over
/// continue-as-new.
const TASK_TIMEOUT: Duration = Duration::from_secs(2);

/// What was done so that the workflows of a group are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The group's config workflow was started, for the first time ever.
    First,
    /// The group's config workflow had ended and was started anew; it takes over what the coordinator keeps to.
    Anew,
    /// The group's config workflow was running; it was told to look after its coordinator.
    Running,
}

/// Why a group's workflows can't be made sure of.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureError {
    /// The group's name is none.
    #[error(transparent)]
    Group(#[from] Unreadable),
    /// Temporal didn't start the config workflow.
    #[error("starting the config workflow of group {group}: {source}")]
    Start {
        /// The group.
        group: String,
        /// What Temporal says.
        source: Box<WorkflowStartError>,
    },
    /// Temporal didn't take the signal to the config workflow.
    #[error("telling the config workflow of group {group} to look after its coordinator: {source}")]
    Signal {
        /// The group.
        group: String,
        /// What Temporal says.
        source: Box<WorkflowInteractionError>,
    },
}

/// Makes sure that the config workflow of `group` runs; it makes sure of the coordinator. May be called by many at a time.
/// Returns before a host has picked up anything.
///
/// # Errors
/// [`EnsureError`]; trying again is safe.
pub async fn ensure_group(client: &Client, group: &str) -> Result<Ensured, EnsureError> {
    check_group(group)?;
    let id = config_id(group);
    let input = |first| write(&ConfigStart { group: group.to_owned(), first });
    let summary = format!("tollgate: limits of group {group}");
    let started = start(client, CONFIG_TYPE, &id, &summary, input)
        .await
        .map_err(|source| EnsureError::Start { group: group.to_owned(), source: Box::new(source) })?;
    match started {
        Started::First => Ok(Ensured::First),
        Started::Anew => Ok(Ensured::Anew),
        Started::Running => {
            let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
            let signal = UntypedSignal::new("ensure");
            handle.signal(signal, RawValue::default(), WorkflowSignalOptions::default()).await.map_err(
                |source| EnsureError::Signal { group: group.to_owned(), source: Box::new(source) },
            )?;
            Ok(Ensured::Running)
        }
    }
}

/// How a workflow came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// Nothing with this id ever ran, as far as Temporal remembers; it forgets only what ended a day ago or more, far
    /// longer than any lease.
    First,
    /// Something with this id ran before.
    Anew,
    /// It is there already, and was left alone.
    Running,
}

/// Starts a workflow unless it runs, with an input that tells whether it is the first with its id.
pub(crate) async fn start(
    client: &Client,
    workflow_type: &str,
    id: &str,
    summary: &str,
    input: impl Fn(bool) -> RawValue,
) -> Result<Started, WorkflowStartError> {
    let attempts = [
        (WorkflowIdReusePolicy::RejectDuplicate, true, Started::First),
        (WorkflowIdReusePolicy::AllowDuplicate, false, Started::Anew),
    ];
    for (reuse, first, started) in attempts {
        let options = WorkflowStartOptions::new(TASK_QUEUE, id)
            .id_reuse_policy(reuse)
            .id_conflict_policy(WorkflowIdConflictPolicy::Fail)
            .task_timeout(TASK_TIMEOUT)
            .static_summary(summary)
            .build();
        match client.start_workflow(UntypedWorkflow::new(workflow_type), input(first), options).await {
            Ok(_) => {
                tracing::info!(workflow = id, first, "started");
                return Ok(started);
            }
            Err(WorkflowStartError::AlreadyStarted { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Started::Running)
}
