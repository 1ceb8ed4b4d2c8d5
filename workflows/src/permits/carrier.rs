//! Permits on their way to activities.

use crate::wire::granted::{PERMIT_HEADER, PermitJson};
use crate::wire::write;
use std::cell::Cell;
use temporalio_common::protos::temporal::api::common::v1::Payload;
use temporalio_workflow::WorkflowContextKey;
use temporalio_workflow::workflow_interceptors::{
    CancellableWorkflowOutboundFuture, ScheduleActivityInput, ScheduleActivityResult,
    ScheduleLocalActivityInput, WorkflowInterceptor, WorkflowInterceptorConstructor,
    WorkflowInterceptorContext, WorkflowNext,
};

/// Lets the activities of a worker's workflows carry their permits: for `WorkerOptions::workflow_interceptor`.
pub fn carrier() -> WorkflowInterceptorConstructor {
    WorkflowInterceptorConstructor::new(|_| Carrier)
}

struct Carrier;

/// The permit that the next activity carries.
pub(super) struct Attached;

impl WorkflowContextKey for Attached {
    type Value = Cell<Option<PermitJson>>;
}

/// The header, once.
fn header(ctx: &WorkflowInterceptorContext) -> Option<(String, Payload)> {
    let permit = ctx.context_value::<Attached>()?.take()?;
    let payload = write(&permit).payloads.into_iter().next()?;
    Some((PERMIT_HEADER.to_owned(), payload))
}

impl WorkflowInterceptor for Carrier {
    fn schedule_activity(
        &self,
        ctx: WorkflowInterceptorContext,
        mut input: ScheduleActivityInput,
        next: WorkflowNext<
            'static,
            ScheduleActivityInput,
            CancellableWorkflowOutboundFuture<ScheduleActivityResult>,
        >,
    ) -> CancellableWorkflowOutboundFuture<ScheduleActivityResult> {
        input.headers_mut().extend(header(&ctx));
        next.run(input)
    }

    fn schedule_local_activity(
        &self,
        ctx: WorkflowInterceptorContext,
        mut input: ScheduleLocalActivityInput,
        next: WorkflowNext<
            'static,
            ScheduleLocalActivityInput,
            CancellableWorkflowOutboundFuture<ScheduleActivityResult>,
        >,
    ) -> CancellableWorkflowOutboundFuture<ScheduleActivityResult> {
        input.headers_mut().extend(header(&ctx));
        next.run(input)
    }
}
