//! How messages reach the coordinator.

use crate::error::TransportError;
use futures_util::future::BoxFuture;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use temporalio_client::errors::{WorkflowInteractionError, WorkflowUpdateError};
use temporalio_client::tonic::{Code, Status};
use temporalio_client::{
    Client, RetryOptions, RpcOptions, UntypedSignal, UntypedUpdate, UntypedWorkflow, UntypedWorkflowHandle,
    WorkflowExecuteUpdateOptions, WorkflowSignalOptions,
};
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::wire;
use tollgate_workflows::wire::lease::{HeartbeatJson, HeartbeatReplyJson};

/// Carries a worker's messages to the coordinator of its group.
///
/// The keeper has one heartbeat under way at a time, bounds how long it may take, and drops the future when it gives up:
/// an implementation needs no time limit of its own, and must not try again by itself.
pub trait Transport: Send + Sync + 'static {
    /// Reports, acknowledges and asks; brings the answer.
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>>;
    /// Says that the worker has stopped for good.
    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>>;
}

/// Over Temporal: update `heartbeat` and signal `revoke` of workflow `tollgate/<group>`.
pub struct TemporalTransport {
    workflow: UntypedWorkflowHandle<Client>,
    rpc: RpcOptions,
    asked: Mutex<Asked>,
}

/// What was asked last, and how often it was answered. Part of the update's id, so that the same request sent again joins
/// the update that is still under way instead of adding another one: a workflow takes ten at a time.
#[derive(Default)]
struct Asked {
    incarnation: String,
    seq: u64,
    answers: u32,
}

impl Asked {
    fn update_id(&mut self, request: &HeartbeatJson) -> String {
        if self.seq != request.seq || self.incarnation != request.incarnation {
            *self = Asked { incarnation: request.incarnation.clone(), seq: request.seq, answers: 0 };
        }
        format!("{}-{}-{}", self.incarnation, self.seq, self.answers)
    }
}

impl TemporalTransport {
    /// For the coordinator of `group`. `timeout` bounds each call to the server.
    pub fn new(client: &Client, group: &str, timeout: Duration) -> TemporalTransport {
        // The keeper tries again with the same bytes and knows when that still makes sense.
        let rpc = RpcOptions::builder().timeout(timeout).retry_options(RetryOptions::no_retries()).build();
        let workflow = client.get_workflow_handle::<UntypedWorkflow>(coordinator_id(group));
        TemporalTransport { workflow, rpc, asked: Mutex::default() }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for TemporalTransport {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            let id = self.asked().update_id(&request);
            let options =
                WorkflowExecuteUpdateOptions::builder().update_id(id).rpc_options(self.rpc.clone()).build();
            let update = UntypedUpdate::new("heartbeat");
            let reply = self.workflow.execute_update(update, wire::write(&request), options).await;
            let reply = reply.map_err(|error| match error {
                WorkflowUpdateError::NotFound(_) => TransportError::NotFound,
                WorkflowUpdateError::Failed(failure) => TransportError::Rejected(failure.message.clone()),
                WorkflowUpdateError::Rpc(status) => of_status(&status),
                other => TransportError::Unreadable(other.to_string()),
            })?;
            self.asked().answers += 1;
            wire::read(&reply).map_err(|error| TransportError::Unreadable(error.to_string()))
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let options = WorkflowSignalOptions::builder().rpc_options(self.rpc.clone()).build();
            let sent =
                self.workflow.signal(UntypedSignal::new("revoke"), wire::write(&request), options).await;
            sent.map_err(|error| match error {
                WorkflowInteractionError::NotFound(_) => TransportError::NotFound,
                WorkflowInteractionError::Rpc(status) => of_status(&status),
                other => TransportError::Rejected(other.to_string()),
            })
        })
    }
}

fn of_status(status: &Status) -> TransportError {
    let message = status.message().to_owned();
    match status.code() {
        // The client reports its own deadline as a cancellation.
        Code::Cancelled | Code::DeadlineExceeded => TransportError::Timeout,
        Code::NotFound => TransportError::NotFound,
        // A workflow task failed under the update, as happens when the coordinator continues as new.
        Code::FailedPrecondition | Code::ResourceExhausted | Code::Aborted => TransportError::Busy(message),
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => {
            TransportError::Rejected(message)
        }
        _ => TransportError::Unreachable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sent_again_joins_its_update_until_that_is_answered() {
        let request = |seq: u64| HeartbeatJson {
            incarnation: "ab".to_owned(),
            seq,
            nonce: 0,
            worker: String::new(),
            cells: Vec::new(),
        };
        let mut asked = Asked::default();
        assert_eq!(asked.update_id(&request(1)), "ab-1-0");
        assert_eq!(asked.update_id(&request(1)), "ab-1-0");
        asked.answers += 1;
        assert_eq!(asked.update_id(&request(1)), "ab-1-1");
        assert_eq!(asked.update_id(&request(2)), "ab-2-0");
    }
}
