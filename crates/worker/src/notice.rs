//! Takes urgent notices, and answers to heartbeats that went by signal: a Temporal worker for activity `tollgate.notice` on
//! this incarnation's own task queue.

use crate::gate::Shared;
use crate::transport::SignalTransport;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use temporalio_client::Client;
use temporalio_common::data_converters::RawValue;
use temporalio_sdk::activities::{ActivityContext, ActivityError, activities};
use temporalio_sdk::runtime::{PollerBehavior, RuntimeOptions};
use temporalio_sdk::{Runtime, Worker, WorkerOptions};
use tokio::sync::watch;
use tollgate_core::message::Incarnation;
use tollgate_workflows::contracts::notice_queue;
use tollgate_workflows::wire;
use tollgate_workflows::wire::lease::{AnswerJson, incarnation_text};

/// A worker that ended is started again after this.
const RESTART_AFTER: Duration = Duration::from_secs(5);
/// Calls that wait for a notice: one is being answered while the other waits.
const POLLERS: usize = 2;
/// A notice that is being taken when the gate ends has this long.
const GRACE: Duration = Duration::from_millis(200);

use activity::Notices;

mod activity {
    #![allow(
        dead_code,
        reason = "the macro also makes constants for callers, of which there are none in here"
    )]

    use super::{
        ActivityContext, ActivityError, AnswerJson, Arc, RawValue, Shared, SignalTransport, activities, wire,
    };

    pub(super) struct Notices(pub(super) Arc<Shared>, pub(super) Option<Arc<SignalTransport>>);

    #[activities]
    impl Notices {
        /// Without an answer in it, it is news: whatever that is, the next heartbeat brings it.
        #[activity(name = "tollgate.notice")]
        async fn notice(
            self: Arc<Self>,
            _ctx: ActivityContext,
            input: RawValue,
        ) -> Result<RawValue, ActivityError> {
            if let (Some(transport), Ok(answer)) = (&self.1, wire::read::<AnswerJson>(&input)) {
                transport.answered(answer);
                return Ok(wire::write(&()));
            }
            tracing::debug!("notice from the coordinator");
            self.0.notice();
            Ok(wire::write(&()))
        }
    }
}

/// Listens on a thread of its own until the gate ends: the SDK's worker can't move between threads.
pub(crate) fn listen(
    client: Client,
    shared: Arc<Shared>,
    answers: Option<Arc<SignalTransport>>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("tollgate-notices".to_owned());
    thread.spawn(move || runtime.block_on(keep_listening(client, shared, answers))).map(drop)
}

async fn keep_listening(client: Client, shared: Arc<Shared>, answers: Option<Arc<SignalTransport>>) {
    let mut incarnation = shared.incarnation.subscribe();
    loop {
        let Some(own) = *incarnation.borrow_and_update() else { return };
        if let Err(error) = take_notices(&client, &shared, &answers, own, &mut incarnation).await {
            tracing::warn!(%error, "notices are not taken; heartbeats bring the news instead");
        }
        // A new incarnation listens at once, the same one after a pause.
        let _changed =
            tokio::time::timeout(RESTART_AFTER, incarnation.wait_for(|now| *now != Some(own))).await;
    }
}

/// Runs a worker until the incarnation changes.
async fn take_notices(
    client: &Client,
    shared: &Arc<Shared>,
    answers: &Option<Arc<SignalTransport>>,
    own: Incarnation,
    incarnation: &mut watch::Receiver<Option<Incarnation>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::from_current_tokio(RuntimeOptions::builder().heartbeat_interval(None).build()?)?;
    let options = WorkerOptions::new(notice_queue(&incarnation_text(own)))
        .graceful_shutdown_period(GRACE)
        .activity_task_poller_behavior(PollerBehavior::SimpleMaximum(POLLERS))
        .register_activities(Notices(shared.clone(), answers.clone()))
        .build();
    let mut worker = Worker::new(&runtime, client.clone(), options)?;
    let stop = worker.shutdown_handle();
    let run = worker.run();
    tokio::pin!(run);
    tokio::select! {
        result = &mut run => return Ok(result?),
        _changed = incarnation.wait_for(|now| *now != Some(own)) => {}
    }
    stop();
    run.await?;
    Ok(())
}
