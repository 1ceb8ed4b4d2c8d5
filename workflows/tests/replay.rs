//! Recorded histories replay to the same ledger: every update's result, with the ledger's digest in it, is the recorded one.
//!
//! `cargo xtask record-history` records them anew; `TOLLGATE_HISTORIES` names another folder to replay.

#![allow(clippy::print_stdout, reason = "tests print what they measure")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test measures time and takes a folder from its environment"
)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use temporalio_client::WorkflowHistory;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;
use temporalio_common::protos::temporal::api::history::v1::{History, HistoryEvent};
use temporalio_common::protos::temporal::api::update::v1::outcome;
use temporalio_sdk::workflow_interceptors::{
    HandleUpdateInput, HandleUpdateResult, WorkflowInterceptor, WorkflowInterceptorConstructor,
    WorkflowInterceptorContext, WorkflowInterceptorFuture, WorkflowNext,
};
use temporalio_sdk::workflow_replayer::{WorkflowReplayer, WorkflowReplayerOptions};
use tollgate_core::units::LedgerTime;
use tollgate_workflows::config::Config;
use tollgate_workflows::coordinator::Coordinator;
use tollgate_workflows::coordinator::past::Past;
use tollgate_workflows::preload::Preload;

/// What updates answered, as JSON text; nothing for those that failed.
type Answers = Vec<Option<String>>;

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
            let data = value.and_then(|value| value.payloads.first()).map(|payload| payload.data.clone());
            notes.lock().unwrap().push(data.map(|data| String::from_utf8(data).unwrap()));
            result
        })
    }
}

/// Replays a history and gives what the updates answer now.
async fn replay(events: Vec<HistoryEvent>) -> Answers {
    let notes = Arc::<Mutex<Answers>>::default();
    let into = Arc::clone(&notes);
    let options = WorkflowReplayerOptions::new()
        .register_workflow::<Coordinator>()
        .unwrap()
        .register_workflow::<Config>()
        .unwrap()
        .register_workflow::<Preload>()
        .unwrap()
        .workflow_interceptor(WorkflowInterceptorConstructor::new(move |_| Notes(Arc::clone(&into))))
        .build();
    let replayer = WorkflowReplayer::new(options).unwrap();
    replayer.replay_workflow(History { events }.into()).await.unwrap();
    std::mem::take(&mut notes.lock().unwrap())
}

/// What the updates answered when it was recorded.
fn recorded(events: &[HistoryEvent]) -> Answers {
    let answer = |event: &HistoryEvent| match event.attributes.as_ref()? {
        Attributes::WorkflowExecutionUpdateCompletedEventAttributes(completed) => {
            let outcome = completed.outcome.as_ref().and_then(|outcome| outcome.value.as_ref());
            Some(match outcome {
                Some(outcome::Value::Success(payloads)) => {
                    payloads.payloads.first().map(|payload| String::from_utf8(payload.data.clone()).unwrap())
                }
                _ => None,
            })
        }
        _ => None,
    };
    events.iter().filter_map(answer).collect()
}

async fn read(file: &Path) -> Vec<HistoryEvent> {
    let bytes = std::fs::read(file).unwrap();
    WorkflowHistory::from_json(&bytes).unwrap().into_events().await.unwrap()
}

fn files() -> Vec<PathBuf> {
    let folder = std::env::var_os("TOLLGATE_HISTORIES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories"), PathBuf::from);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

/// The first answer that differs, in words.
fn difference(was: &Answers, is: &Answers) -> Option<String> {
    let differs = was.iter().zip(is).position(|(was, is)| was != is);
    let differs = differs.or_else(|| (was.len() != is.len()).then_some(was.len().min(is.len())))?;
    Some(format!("update {differs}: recorded {:?}, replayed {:?}", was.get(differs), is.get(differs)))
}

#[tokio::test]
async fn recorded_histories_replay_to_the_recorded_answers_and_digests() {
    let files = files();
    let mut digests = 0;
    for file in &files {
        let events = read(file).await;
        let (count, was) = (events.len(), recorded(&events));
        let began = Instant::now();
        let is = replay(events).await;
        println!(
            "{}: {count} events, {} updates, replayed in {:?}",
            file.display(),
            was.len(),
            began.elapsed()
        );
        assert_eq!(difference(&was, &is), None, "{}", file.display());
        digests += was.iter().flatten().filter(|answer| answer.contains("\"digest\":\"")).count();
    }
    let has = |part: &str| files.iter().any(|file| file.to_string_lossy().contains(part));
    assert!(has("coordinator") && digests > 20, "{} files with {digests} digests show nothing", files.len());
}

#[tokio::test]
async fn the_past_is_the_one_that_was_by_all_that_was_answered() {
    let mut all = 0;
    for file in files().iter().filter(|file| file.to_string_lossy().contains("coordinator")) {
        let events = read(file).await;
        let past = Past::of("tollgate/default", &events, LedgerTime(u64::MAX / 2)).unwrap();
        let was = recorded(&events).iter().flatten().count();
        println!("{}: {} of {was} answers are alike", file.display(), past.alike);
        assert_eq!(past.different, 0, "{}", file.display());
        all += past.alike;
    }
    assert!(all > 20, "{all} answers show nothing");
    assert!(Past::of("tollgate/default", &[], LedgerTime(0)).is_err());
}

#[tokio::test]
async fn another_answer_in_the_record_is_noticed() {
    let file = files().into_iter().find(|file| file.to_string_lossy().contains("coordinator")).unwrap();
    let mut events = read(&file).await;
    let was = recorded(&events);
    let replaced = events.iter_mut().rev().find_map(|event| match event.attributes.as_mut()? {
        Attributes::WorkflowExecutionUpdateCompletedEventAttributes(completed) => {
            match completed.outcome.as_mut()?.value.as_mut()? {
                outcome::Value::Success(payloads) => payloads.payloads.first_mut(),
                outcome::Value::Failure(_) => None,
            }
        }
        _ => None,
    });
    replaced.unwrap().data = br#"{"status":"ok","digest":"0000000000000000"}"#.to_vec();
    let is = replay(events.clone()).await;
    assert_eq!(difference(&was, &is), None);
    assert!(difference(&recorded(&events), &is).is_some_and(|text| text.contains("0000000000000000")));
}
