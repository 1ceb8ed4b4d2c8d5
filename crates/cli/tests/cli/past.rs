//! What a workflow's history says about it.

use crate::world::World;
use serde::de::DeserializeOwned;
use temporalio_client::{WorkflowDescribeOptions, WorkflowExecutionInfo, WorkflowFetchHistoryOptions};
use temporalio_common::protos::temporal::api::enums::v1::WorkflowTaskFailedCause;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;

/// The most events that a run may have.
const EVENTS_MAX: usize = 4_500;

/// One run of a workflow.
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) events: Vec<HistoryEvent>,
}

impl Run {
    /// The run that this one continues.
    fn continues(&self) -> Option<String> {
        match self.events.first()?.attributes.as_ref()? {
            Attributes::WorkflowExecutionStartedEventAttributes(started) => {
                Some(started.continued_execution_run_id.clone()).filter(|id| !id.is_empty())
            }
            _ => None,
        }
    }

    /// The events that end workflow tasks: where a reset may lead to.
    pub(crate) fn task_ends(&self) -> Vec<i64> {
        let is_end = |event: &&HistoryEvent| {
            matches!(event.attributes, Some(Attributes::WorkflowTaskCompletedEventAttributes(_)))
        };
        self.events.iter().filter(is_end).map(|event| event.event_id).collect()
    }

    /// Whether a timer has fired, and the workflow has gone on after it.
    pub(crate) fn timer_fired(&self) -> bool {
        let is_fired =
            |event: &HistoryEvent| matches!(event.attributes, Some(Attributes::TimerFiredEventAttributes(_)));
        let fired = self.events.iter().find(|event| is_fired(event)).map(|event| event.event_id);
        fired.is_some_and(|fired| self.task_ends().into_iter().any(|end| end > fired))
    }

    /// How many timers it has set.
    pub(crate) fn timers(&self) -> usize {
        let is_timer = |event: &&HistoryEvent| {
            matches!(event.attributes, Some(Attributes::TimerStartedEventAttributes(_)))
        };
        self.events.iter().filter(is_timer).count()
    }

    /// The inputs of all signals of a name, in the order in which they came.
    pub(crate) fn signals<T: DeserializeOwned>(&self, name: &str) -> Vec<T> {
        let of = |event: &HistoryEvent| match event.attributes.as_ref()? {
            Attributes::WorkflowExecutionSignaledEventAttributes(signal) if signal.signal_name == name => {
                serde_json::from_slice(&signal.input.as_ref()?.payloads.first()?.data).ok()
            }
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// How many updates it took.
    pub(crate) fn updates(&self) -> usize {
        let is_accepted = |event: &&HistoryEvent| {
            matches!(event.attributes, Some(Attributes::WorkflowExecutionUpdateAcceptedEventAttributes(_)))
        };
        self.events.iter().filter(is_accepted).count()
    }

    /// Where tasks failed, and why.
    pub(crate) fn failed_at(&self) -> Vec<(i64, WorkflowTaskFailedCause)> {
        let of = |event: &HistoryEvent| match event.attributes.as_ref()? {
            Attributes::WorkflowTaskFailedEventAttributes(failed) => Some((event.event_id, failed.cause())),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// Causes and texts of failed workflow tasks.
    pub(crate) fn failures(&self) -> Vec<(WorkflowTaskFailedCause, String)> {
        let of = |event: &HistoryEvent| match event.attributes.as_ref()? {
            Attributes::WorkflowTaskFailedEventAttributes(failed) => {
                let text = failed.failure.as_ref().map(|failure| failure.message.clone());
                Some((failed.cause(), text.unwrap_or_default()))
            }
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

impl World {
    /// One run as JSON, as the SDK reads it.
    pub(crate) async fn history_json(&self, id: &str, run: &str) -> Vec<u8> {
        self.history(id, run).to_json().await.unwrap()
    }

    fn history(&self, id: &str, run: &str) -> temporalio_client::WorkflowHistory {
        let info = WorkflowExecutionInfo::builder()
            .namespace(self.client.options().namespace.clone())
            .workflow_id(id)
            .run_id(run)
            .build();
        info.bind_untyped(self.client.clone()).fetch_history(WorkflowFetchHistoryOptions::default())
    }

    /// All runs of the chain that the newest one continues, oldest first.
    pub(crate) async fn runs(&self, id: &str) -> Vec<Run> {
        let newest = self.handle(id).describe(WorkflowDescribeOptions::default()).await.unwrap();
        let mut next = Some(newest.run_id().to_owned());
        let mut runs = Vec::new();
        while let Some(run_id) = next {
            let events = self.history(id, &run_id).into_events().await.unwrap();
            let run = Run { id: run_id, events };
            next = run.continues();
            runs.push(run);
        }
        runs.reverse();
        runs
    }

    /// The chain of runs, none of which is too long or had a task that failed, but for what the server does by itself:
    /// a signal that comes during a task that continues as new has it done again, and a hundred that come during one
    /// task end it.
    pub(crate) async fn healthy_runs(&self, id: &str) -> Vec<Run> {
        let runs = self.runs(id).await;
        for run in &runs {
            assert!(run.events.len() <= EVENTS_MAX, "{id}: a run has {} events", run.events.len());
            for (cause, text) in run.failures() {
                let by_server =
                    [WorkflowTaskFailedCause::UnhandledCommand, WorkflowTaskFailedCause::ForceCloseCommand];
                assert!(by_server.contains(&cause), "{id}: {cause:?}: {text}");
            }
        }
        runs
    }
}
