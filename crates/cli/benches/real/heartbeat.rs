//! Workers as the coordinator sees them: each acknowledges the last reply, reports, and asks again.

use crate::Failure;
use std::time::{Duration, Instant};
use temporalio_client::errors::WorkflowUpdateError;
use temporalio_client::tonic::Code;
use temporalio_client::{
    Client, UntypedUpdate, UntypedWorkflow, UntypedWorkflowHandle, WorkflowExecuteUpdateOptions,
};
use temporalio_common::data_converters::RawValue;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::{Configure, Settings};
use tollgate_core::limit::{CellConfig, CellKey, Initial, Version};
use tollgate_core::policy::Policy;
use tollgate_core::tier::Priority;
use tollgate_core::units::Span;
use tollgate_workflows::wire;
use tollgate_workflows::wire::config::ConfigureJson;
use tollgate_workflows::wire::lease::{ActingJson, CellReportJson, HeartbeatJson, HeartbeatReplyJson};

/// The first pause before the same is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// When a message counts as lost.
const GIVE_UP: Duration = Duration::from_secs(60);

/// So many limits of one rate and burst.
pub(crate) fn configuration(limits: usize, rate: u64, burst: u64) -> ConfigureJson {
    let cell = |name: String| CellConfig {
        key: CellKey::of(&name),
        rate: RateCurve::constant(Rate::per_second(rate)),
        burst: BurstCurve::constant(burst),
        policy: Policy::TokenBucket,
        lease: Span::from_secs(15),
        priority: Priority::default(),
        fresh: true,
        initial: Initial::Full,
        queue: None,
        conduct: Default::default(),
    };
    let cells = (0..limits).map(|number| cell(limit(number))).collect();
    ConfigureJson::of(&Configure { version: Version { run: 1, n: 1 }, settings: Settings::default(), cells })
}

/// The name of a limit.
pub(crate) fn limit(number: usize) -> String {
    format!("provider/model-{number:03}")
}

/// One worker process.
pub(crate) struct Worker {
    handle: UntypedWorkflowHandle<Client>,
    request: HeartbeatJson,
}

impl Worker {
    /// A worker that asks the workflow `id` for so many limits.
    pub(crate) fn new(client: &Client, id: &str, number: usize, limits: usize) -> Worker {
        let cell = |limit: String| CellReportJson {
            limit,
            meter: "requests".to_owned(),
            tier: "default".to_owned(),
            borrowed: false,
            for_tier: None,
            acting: None,
            held_milli: 2_000,
            used: 0,
            returned_milli: 0,
            debt_milli: 0,
            out: 0,
            demand_micro: 5_000_000,
            waiting: 0,
            largest: 1,
        };
        let request = HeartbeatJson {
            incarnation: format!("{:032x}", 0xabcd_0000_0000_u128 + number as u128),
            seq: 0,
            nonce: number as u64,
            worker: format!("host-{number}/4711"),
            cells: (0..limits).map(|number| cell(limit(number))).collect(),
        };
        Worker { handle: client.get_workflow_handle::<UntypedWorkflow>(id), request }
    }

    /// One heartbeat; how long it took, tries again included, and the reply's bytes.
    pub(crate) async fn beat(&mut self) -> Result<(Duration, RawValue), Failure> {
        self.request.seq += 1;
        self.request.nonce = self.request.nonce.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 11;
        let began = Instant::now();
        let answer = update(&self.handle, "heartbeat", wire::write(&self.request)).await?;
        let reply = match wire::read::<HeartbeatReplyJson>(&answer)? {
            HeartbeatReplyJson::Ok(reply) => reply,
            HeartbeatReplyJson::Refused(refused) => return Err(format!("refused: {refused:?}").into()),
        };
        for (report, cell) in self.request.cells.iter_mut().zip(&reply.cells) {
            let lease = cell.lease.as_ref().ok_or("the coordinator gave no lease")?;
            report.acting = Some(ActingJson {
                epoch: reply.epoch,
                // A reply that is always the same answers another request.
                seq: self.request.seq,
                share_ppb: lease.share_ppb,
                cap_milli: lease.cap_milli,
            });
            report.used += 3;
        }
        Ok((began.elapsed(), answer))
    }

    /// The size of its last request.
    pub(crate) fn request_bytes(&self) -> usize {
        bytes(&wire::write(&self.request))
    }
}

/// The size of a message.
pub(crate) fn bytes(value: &RawValue) -> usize {
    value.payloads.iter().map(|payload| payload.data.len()).sum()
}

/// Sends an update; the same again as long as the server asks for that, as happens when a workflow continues as new.
pub(crate) async fn update(
    handle: &UntypedWorkflowHandle<Client>,
    name: &str,
    input: RawValue,
) -> Result<RawValue, Failure> {
    let began = Instant::now();
    loop {
        let options = WorkflowExecuteUpdateOptions::default();
        let sent = handle.execute_update(UntypedUpdate::new(name), input.clone(), options);
        match tokio::time::timeout(GIVE_UP, sent).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(WorkflowUpdateError::Rpc(status)))
                if began.elapsed() < GIVE_UP
                    && matches!(
                        status.code(),
                        Code::FailedPrecondition
                            | Code::ResourceExhausted
                            | Code::Unavailable
                            | Code::Aborted
                            | Code::Cancelled
                            | Code::DeadlineExceeded
                    ) =>
            {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(format!("update {name}: no answer within {GIVE_UP:?}").into()),
        }
    }
}
