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
use temporalio_common::data_converters::RawValue;
use tokio::sync::oneshot;
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::wire;
use tollgate_workflows::wire::lease::{
    AcquireJson, AcquireReplyJson, AnswerJson, HeartbeatJson, HeartbeatReplyJson, ReportJson,
};

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

/// Carries the messages of strict permits to the coordinator of a group.
///
/// As with [`Transport`], whoever calls bounds how long it takes, and tries again.
pub trait StrictTransport: Send + Sync + 'static {
    /// Asks for one permit. A message of the same `name` is the same message sent again, and joins the earlier one where
    /// that is still under way.
    fn acquire(
        &self,
        name: String,
        request: AcquireJson,
    ) -> BoxFuture<'_, Result<AcquireReplyJson, TransportError>>;
    /// Says what was used of a permit.
    fn report(&self, report: ReportJson) -> BoxFuture<'_, Result<(), TransportError>>;
}

/// Over Temporal: the updates and signals of workflow `tollgate/<group>`.
///
/// Has one message under way at a time, in the order in which they come: a workflow takes ten updates at a time, and the
/// server answers the eleventh by forgetting all of them. A process that uses a [`Gate`](crate::Gate) and a
/// [`Strict`](crate::Strict) shares one transport between them.
pub struct TemporalTransport {
    workflow: UntypedWorkflowHandle<Client>,
    rpc: RpcOptions,
    asked: Mutex<Asked>,
    /// Whose turn it is to have a message under way.
    lane: tokio::sync::Mutex<()>,
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
        TemporalTransport { workflow, rpc, asked: Mutex::default(), lane: tokio::sync::Mutex::default() }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an update when it is its turn, and brings the answer.
    async fn update(&self, name: &str, id: String, input: RawValue) -> Result<RawValue, TransportError> {
        let _turn = self.lane.lock().await;
        let options =
            WorkflowExecuteUpdateOptions::builder().update_id(id).rpc_options(self.rpc.clone()).build();
        let reply = self.workflow.execute_update(UntypedUpdate::new(name), input, options).await;
        reply.map_err(|error| match error {
            WorkflowUpdateError::NotFound(_) => TransportError::NotFound,
            WorkflowUpdateError::Failed(failure) => TransportError::Rejected(failure.message.clone()),
            WorkflowUpdateError::Rpc(status) => of_status(&status),
            other => TransportError::Unreadable(other.to_string()),
        })
    }

    /// Sends a signal when it is its turn.
    async fn signal(&self, name: &str, input: RawValue) -> Result<(), TransportError> {
        let _turn = self.lane.lock().await;
        let options = WorkflowSignalOptions::builder().rpc_options(self.rpc.clone()).build();
        let sent = self.workflow.signal(UntypedSignal::new(name), input, options).await;
        sent.map_err(|error| match error {
            WorkflowInteractionError::NotFound(_) => TransportError::NotFound,
            WorkflowInteractionError::Rpc(status) => of_status(&status),
            other => TransportError::Rejected(other.to_string()),
        })
    }
}

impl Transport for TemporalTransport {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            let id = self.asked().update_id(&request);
            let answer = self.update("heartbeat", id, wire::write(&request)).await?;
            self.asked().answers += 1;
            wire::read(&answer).map_err(|error| TransportError::Unreadable(error.to_string()))
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move { self.signal("revoke", wire::write(&request)).await })
    }
}

impl StrictTransport for TemporalTransport {
    fn acquire(
        &self,
        name: String,
        request: AcquireJson,
    ) -> BoxFuture<'_, Result<AcquireReplyJson, TransportError>> {
        Box::pin(async move {
            let answer = self.update("acquire", name, wire::write(&request)).await?;
            wire::read(&answer).map_err(|error| TransportError::Unreadable(error.to_string()))
        })
    }

    fn report(&self, report: ReportJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move { self.signal("report", wire::write(&report)).await })
    }
}

/// Over Temporal by signals alone, for services without updates: heartbeats are signal `lease`, and their answers come by
/// activity `tollgate.notice` on the process's private task queue.
///
/// The same rules hold: whoever hears nothing sends the same bytes again, and gets the same answer. An answer costs the
/// coordinator an activity, and a heartbeat about twice the time and the history of one by update.
pub(crate) struct SignalTransport {
    temporal: TemporalTransport,
    awaited: Mutex<Option<Awaited>>,
}

/// The heartbeat that is under way.
struct Awaited {
    incarnation: String,
    seq: u64,
    answer: oneshot::Sender<HeartbeatReplyJson>,
}

impl Awaited {
    /// Awaits the answer to `request`; given up for that is whatever was awaited before.
    fn begin(
        awaited: &Mutex<Option<Awaited>>,
        request: &HeartbeatJson,
    ) -> oneshot::Receiver<HeartbeatReplyJson> {
        let (answer, answered) = oneshot::channel();
        let (incarnation, seq) = (request.incarnation.clone(), request.seq);
        *Awaited::lock(awaited) = Some(Awaited { incarnation, seq, answer });
        answered
    }

    /// Takes an answer. One that nobody waits for is dropped.
    fn end(awaited: &Mutex<Option<Awaited>>, answer: AnswerJson) {
        let is_it =
            |awaited: &mut Awaited| awaited.seq == answer.seq && awaited.incarnation == answer.incarnation;
        if let Some(awaited) = Awaited::lock(awaited).take_if(is_it) {
            // Whoever waited may just have given up.
            let _late = awaited.answer.send(answer.reply);
        }
    }

    fn lock(awaited: &Mutex<Option<Awaited>>) -> MutexGuard<'_, Option<Awaited>> {
        awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SignalTransport {
    /// As [`TemporalTransport::new`].
    pub(crate) fn new(client: &Client, group: &str, timeout: Duration) -> SignalTransport {
        SignalTransport {
            temporal: TemporalTransport::new(client, group, timeout),
            awaited: Mutex::default(),
        }
    }

    /// An answer has come.
    pub(crate) fn answered(&self, answer: AnswerJson) {
        Awaited::end(&self.awaited, answer);
    }
}

impl Transport for SignalTransport {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            let answered = Awaited::begin(&self.awaited, &request);
            self.temporal.signal("lease", wire::write(&request)).await?;
            // Given up for a newer one: nobody is interested in this.
            answered.await.map_err(|_| TransportError::Timeout)
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        self.temporal.revoke(request)
    }
}

fn of_status(status: &Status) -> TransportError {
    let message = status.message().to_owned();
    match status.code() {
        // The client reports its own deadline as a cancellation.
        Code::Cancelled | Code::DeadlineExceeded => TransportError::Timeout,
        Code::NotFound => TransportError::NotFound,
        // The server forgets the updates that are under way when it refuses one more.
        Code::Unavailable if message.contains("aborted") => TransportError::Busy(message),
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
    use tollgate_workflows::wire::lease::RefusedJson;

    fn request(incarnation: &str, seq: u64) -> HeartbeatJson {
        let incarnation = incarnation.to_owned();
        HeartbeatJson { incarnation, seq, nonce: 0, worker: String::new(), cells: Vec::new() }
    }

    #[test]
    fn a_request_sent_again_joins_its_update_until_that_is_answered() {
        let request = |seq: u64| request("ab", seq);
        let mut asked = Asked::default();
        assert_eq!(asked.update_id(&request(1)), "ab-1-0");
        assert_eq!(asked.update_id(&request(1)), "ab-1-0");
        asked.answers += 1;
        assert_eq!(asked.update_id(&request(1)), "ab-1-1");
        assert_eq!(asked.update_id(&request(2)), "ab-2-0");
    }

    #[test]
    fn by_signals_only_the_answer_to_the_newest_request_counts_and_only_once() {
        let busy = |incarnation: &str, seq: u64| {
            let refused = RefusedJson { reason: "busy".to_owned(), message: seq.to_string(), newest: None };
            let reply = HeartbeatReplyJson::Refused(refused);
            AnswerJson { incarnation: incarnation.to_owned(), seq, reply }
        };
        let awaited = Mutex::default();
        Awaited::end(&awaited, busy("ab", 1));
        let mut first = Awaited::begin(&awaited, &request("ab", 1));
        Awaited::end(&awaited, busy("ab", 0));
        Awaited::end(&awaited, busy("cd", 1));
        assert!(first.try_recv().is_err(), "the answer to another request");

        let mut second = Awaited::begin(&awaited, &request("ab", 2));
        assert!(matches!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed)), "given up");
        Awaited::end(&awaited, busy("ab", 1));
        assert!(second.try_recv().is_err(), "a late answer");
        let answer = busy("ab", 2);
        Awaited::end(&awaited, answer.clone());
        Awaited::end(&awaited, answer.clone());
        assert_eq!(second.try_recv(), Ok(answer.reply));

        // Sent again after a timeout: the answer to either sending counts.
        drop(Awaited::begin(&awaited, &request("ab", 3)));
        let mut again = Awaited::begin(&awaited, &request("ab", 3));
        Awaited::end(&awaited, busy("ab", 3));
        assert!(again.try_recv().is_ok());
    }
}
