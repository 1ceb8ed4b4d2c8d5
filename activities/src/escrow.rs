//! What a coordinator asks of its config workflow.

use std::time::Duration;
use temporalio_client::errors::WorkflowUpdateError;
use temporalio_client::{Client, UntypedUpdate, UntypedWorkflow, WorkflowExecuteUpdateOptions};
use tollgate_workflows::contracts::config_id;
use tollgate_workflows::wire::escrow::{EscrowJson, EscrowReplyJson};
use tollgate_workflows::wire::{Unreadable, read, write};

/// How long an update may wait for the config workflow's host: less than an attempt of the activity may take.
const UPDATE_TIMEOUT: Duration = Duration::from_millis(4_500);

/// Why a config workflow couldn't be told. Trying again is safe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EscrowError {
    #[error("update escrow: {0}")]
    Update(#[source] Box<WorkflowUpdateError>),
    #[error("update escrow: no answer within {} ms", UPDATE_TIMEOUT.as_millis())]
    Timeout,
    #[error("the config workflow's answer: {0}")]
    Unreadable(#[from] Unreadable),
    #[error("the config workflow is not ready")]
    Busy,
}

/// Tells the config workflow how much may have been drawn, and returns what it keeps in mind.
pub(crate) async fn tell(client: &Client, told: &EscrowJson) -> Result<EscrowReplyJson, EscrowError> {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(config_id(&told.group));
    let options = WorkflowExecuteUpdateOptions::default();
    let update = handle.execute_update(UntypedUpdate::new("escrow"), write(told), options);
    let result = match tokio::time::timeout(UPDATE_TIMEOUT, update).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => return Err(EscrowError::Update(Box::new(error))),
        Err(_) => return Err(EscrowError::Timeout),
    };
    match read(&result)? {
        EscrowReplyJson::Busy => Err(EscrowError::Busy),
        reply @ EscrowReplyJson::Ok { .. } => Ok(reply),
    }
}
