//! Replays recorded histories against this build's workflows: whether a host of this version could take a workflow over.

use std::sync::{Arc, Mutex, PoisonError};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;
use temporalio_common::protos::temporal::api::history::v1::{History, HistoryEvent};
use temporalio_common::protos::temporal::api::update::v1::outcome;
use temporalio_sdk::workflow_interceptors::{
    HandleUpdateInput, HandleUpdateResult, WorkflowInterceptor, WorkflowInterceptorConstructor,
    WorkflowInterceptorContext, WorkflowInterceptorFuture, WorkflowNext,
};
use temporalio_sdk::workflow_replayer::{WorkflowReplayer, WorkflowReplayerOptions};
use tollgate_workflows::config::Config;
use tollgate_workflows::contracts::{CONFIG_TYPE, COORDINATOR_TYPE, PRELOAD_TYPE};
use tollgate_workflows::coordinator::Coordinator;
use tollgate_workflows::preload::Preload;

/// How much of an answer is shown.
const SHOWN_CHARS_MAX: usize = 400;

/// What updates answered, as JSON text; nothing for those that failed.
type Answers = Vec<Option<String>>;

/// A history that replays to what is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The type of its workflow.
    pub workflow_type: String,
    /// Its events.
    pub events: usize,
    /// Answers of updates that are the same, digests of the ledger in them included.
    pub answers: usize,
}

/// Why a history doesn't replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It has no beginning.
    #[error("the history is empty, or its first event isn't the start of a workflow")]
    NoStart,
    /// It is of somebody else's workflow.
    #[error(
        "the workflow is of type {0:?}; this program has {COORDINATOR_TYPE}, {CONFIG_TYPE} and {PRELOAD_TYPE}"
    )]
    OtherType(String),
    /// A mistake in this crate, or no runtime that suits.
    #[error("setting up the replay: {0}")]
    SetUp(String),
    /// The workflow does something else than what is recorded.
    #[error("{0}")]
    Differs(String),
    /// Temporal doesn't compare what updates answer, but workers act on it.
    #[error("answer {number} differs: recorded {recorded}, replayed {replayed}")]
    AnswerDiffers {
        /// Which answer, counted from 1.
        number: usize,
        /// What is in the history.
        recorded: String,
        /// What this build answers.
        replayed: String,
    },
}

/// Notes what the update handlers answer.
struct Notes(Arc<Mutex<Answers>>);

impl WorkflowInterceptor for Notes {
    fn handle_update<'a>(
        &'a self,
        _ctx: WorkflowInterceptorContext,
        input: HandleUpdateInput,
        next: WorkflowNext<'a, HandleUpdateInput, WorkflowInterceptorFuture<'a, HandleUpdateResult>>,
    ) -> WorkflowInterceptorFuture<'a, HandleUpdateResult> {
        let notes = Arc::clone(&self.0);
        WorkflowInterceptorFuture::new(async move {
            let result = next.run(input).await;
            let value = result.as_ref().ok().and_then(|value| value.downcast_ref::<RawValue>());
            let answer = value.and_then(|value| value.payloads.first()).map(|payload| text(&payload.data));
            notes.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
            result
        })
    }
}

/// Replays one run. The history may be of a run that goes on.
///
/// # Errors
/// [`ReplayError`]: a host of this build would fail the workflow's tasks, or go on with another ledger than workers were told of.
pub async fn replay(events: Vec<HistoryEvent>) -> Result<Replayed, ReplayError> {
    let workflow_type = type_of(&events)?;
    let (count, was) = (events.len(), recorded(&events));
    let notes = Arc::<Mutex<Answers>>::default();
    let into = Arc::clone(&notes);
    let set_up = |error: &dyn std::fmt::Display| ReplayError::SetUp(error.to_string());
    let options = WorkflowReplayerOptions::new()
        .register_workflow::<Coordinator>()
        .map_err(|error| set_up(&error))?
        .register_workflow::<Config>()
        .map_err(|error| set_up(&error))?
        .register_workflow::<Preload>()
        .map_err(|error| set_up(&error))?
        .workflow_interceptor(WorkflowInterceptorConstructor::new(move |_| Notes(Arc::clone(&into))))
        .build();
    let replayer = WorkflowReplayer::new(options).map_err(|error| set_up(&error))?;
    let replayed = replayer.replay_workflow(History { events }.into()).await;
    replayed.map_err(|error| ReplayError::Differs(error.to_string()))?;
    let is = std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
    compare(&was, &is)?;
    Ok(Replayed { workflow_type, events: count, answers: was.len() })
}

fn type_of(events: &[HistoryEvent]) -> Result<String, ReplayError> {
    let Some(Attributes::WorkflowExecutionStartedEventAttributes(started)) =
        events.first().and_then(|event| event.attributes.as_ref())
    else {
        return Err(ReplayError::NoStart);
    };
    let name = started.workflow_type.as_ref().map(|kind| kind.name.clone()).unwrap_or_default();
    if [COORDINATOR_TYPE, CONFIG_TYPE, PRELOAD_TYPE].contains(&name.as_str()) {
        return Ok(name);
    }
    Err(ReplayError::OtherType(name))
}

/// What the updates answered when it was recorded.
fn recorded(events: &[HistoryEvent]) -> Answers {
    let answer = |event: &HistoryEvent| match event.attributes.as_ref()? {
        Attributes::WorkflowExecutionUpdateCompletedEventAttributes(completed) => {
            let outcome = completed.outcome.as_ref().and_then(|outcome| outcome.value.as_ref());
            Some(match outcome {
                Some(outcome::Value::Success(payloads)) => {
                    payloads.payloads.first().map(|payload| text(&payload.data))
                }
                _ => None,
            })
        }
        _ => None,
    };
    events.iter().filter_map(answer).collect()
}

/// Where a run goes on, there may be more answers than recorded.
fn compare(was: &Answers, is: &Answers) -> Result<(), ReplayError> {
    let Some(at) = (0..was.len()).find(|at| was.get(*at) != is.get(*at)) else { return Ok(()) };
    let shown = |answers: &Answers| match answers.get(at) {
        Some(Some(answer)) => answer.chars().take(SHOWN_CHARS_MAX).collect(),
        Some(None) => "a failure".to_owned(),
        None => "nothing".to_owned(),
    };
    Err(ReplayError::AnswerDiffers { number: at + 1, recorded: shown(was), replayed: shown(is) })
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use temporalio_common::protos::temporal::api::common::v1::WorkflowType;
    use temporalio_common::protos::temporal::api::history::v1::WorkflowExecutionStartedEventAttributes;

    fn started(name: &str) -> HistoryEvent {
        let workflow_type = Some(WorkflowType { name: name.to_owned() });
        let started = WorkflowExecutionStartedEventAttributes { workflow_type, ..Default::default() };
        HistoryEvent {
            attributes: Some(Attributes::WorkflowExecutionStartedEventAttributes(started)),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn what_is_no_history_of_ours_is_named_as_such() {
        let error = replay(Vec::new()).await.unwrap_err();
        assert!(matches!(error, ReplayError::NoStart), "{error}");
        let error = replay(vec![started("orders")]).await.unwrap_err().to_string();
        assert!(error.contains("\"orders\"") && error.contains("tollgate.coordinator"), "{error}");
    }

    #[test]
    fn another_answer_is_found_and_one_that_is_still_to_come_is_none() {
        let answers = |list: &[&str]| list.iter().map(|it| Some((*it).to_owned())).collect::<Answers>();
        assert!(compare(&answers(&["a"]), &answers(&["a", "b"])).is_ok());
        let error = compare(&answers(&["a", "b"]), &answers(&["a", "c"])).unwrap_err().to_string();
        assert_eq!(error, "answer 2 differs: recorded b, replayed c");
        let error = compare(&answers(&["a"]), &Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "answer 1 differs: recorded a, replayed nothing");
    }
}
