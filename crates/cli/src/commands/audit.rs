//! `tollgate audit`: who held what at a time in the past.

use super::{print, print_line, status};
use crate::args::{Audit, Global};
use crate::connection::{Settings, is_about_namespace, no_namespace};
use crate::failure::Failure;
use crate::moment::{self, absolute, length};
use crate::table::{Paint, printable};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use temporalio_client::tonic::{Code, Request, Status};
use temporalio_client::{Client, WorkflowExecutionInfo, WorkflowFetchHistoryOptions};
use temporalio_common::protos::temporal::api::workflow::v1::WorkflowExecutionInfo as Execution;
use temporalio_common::protos::temporal::api::workflowservice::v1::{
    DescribeNamespaceRequest, ListWorkflowExecutionsRequest,
};
use tokio::time::{Instant, timeout_at};
use tollgate_core::units::LedgerTime;
use tollgate_workflows::contracts::coordinator_id;
use tollgate_workflows::coordinator::past::Past;
use tollgate_workflows::wire::status::{FilterJson, LimitDetailJson, limit_detail};

/// How many pages of runs are looked through: a run lasts minutes at least, and a page has a thousand.
const PAGES_MAX: usize = 200;
/// How many runs a page has.
const PAGE_SIZE: i32 = 1_000;

/// What is known of a limit at a time in the past.
#[derive(Debug, Serialize)]
struct AuditJson {
    /// The time.
    at_us: u64,
    /// The run of the coordinator that held it.
    run: String,
    /// Updates of that run up to then whose answers come out as they were recorded.
    answers_alike: u64,
    /// Those that don't: the figures may then differ from what was.
    answers_different: u64,
    /// As query `limit` answers.
    #[serde(flatten)]
    detail: LimitDetailJson,
}

/// Says who held what of a limit at a time in the past.
///
/// # Errors
/// [`Failure::Failed`] when the time is beyond what the namespace keeps, no coordinator ran then, or there was no such limit.
pub async fn run(global: &Global, options: &Audit) -> Result<(), Failure> {
    let [group] = <[String; 1]>::try_from(global.groups()).map_err(|groups| {
        Failure::Usage(format!("--group: {} given, this command takes one", groups.len()))
    })?;
    let now_us = moment::now_us();
    let at_us = options.at.us(now_us);
    if at_us > now_us {
        return Err(Failure::Usage(format!("--at is {}, allowed: up to now", absolute(at_us))));
    }
    let settings = Settings::load(&global.temporal)?;
    let until = Instant::now() + global.timeout;
    let client = settings.connect(until).await?;
    let id = coordinator_id(&group);
    let late =
        || Failure::NoAnswer("Temporal did not send the history in time: try a longer --timeout".to_owned());
    let work = async {
        let run = run_at(&client, &id, at_us).await?;
        let info = WorkflowExecutionInfo::builder()
            .namespace(client.options().namespace.clone())
            .workflow_id(id.clone())
            .run_id(run.clone())
            .build();
        let history = info.bind_untyped(client.clone()).fetch_history(WorkflowFetchHistoryOptions::default());
        let events = history.into_events().await;
        let events = events.map_err(|error| Failure::Failed(format!("the history of {id}: {error}")))?;
        Ok((run, events))
    };
    let (run, events) = timeout_at(until, work).await.map_err(|_| late())??;
    let past = Past::of(&id, &events, LedgerTime(at_us))
        .map_err(|error| Failure::Failed(format!("the history of {id}, run {run}: {error}")))?;
    let filter = FilterJson { limit: options.limit.clone(), ..FilterJson::default() };
    let detail = limit_detail(past.ledger(), &filter);
    if detail.cells.is_empty() {
        let names: Vec<String> = past.ledger().view().iter().map(|view| view.key.to_string()).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Failure::Failed(format!(
            "no limit {:?} in group {group:?} at {}; there were: {}",
            options.limit,
            absolute(at_us),
            printable(&there)
        )));
    }
    let audit =
        AuditJson { at_us, run, answers_alike: past.alike, answers_different: past.different, detail };
    if global.json {
        let json = serde_json::to_string(&audit).map_err(|error| Failure::Failed(error.to_string()))?;
        return print_line(&json);
    }
    let paint = Paint::of_stdout();
    print(&paint.fold(&render(&audit, now_us, paint)))
}

fn render(audit: &AuditJson, now_us: u64, paint: Paint) -> String {
    let when = status::dated(audit.at_us, now_us);
    let mut text = format!("{} · run {}\n", paint.bold(&format!("as of {when}")), printable(&audit.run));
    if audit.answers_different > 0 {
        let all = audit.answers_alike + audit.answers_different;
        let line = format!(
            "not exact: {} of {all} answers come out otherwise than they were recorded (a reset, or another release)",
            audit.answers_different
        );
        text.push_str(&format!("{}\n", paint.alarm(&line)));
    }
    // What was left then, not now.
    format!("{text}{}", status::render_limit(&audit.detail, audit.at_us, paint))
}

/// The run that was there at a time.
async fn run_at(client: &Client, id: &str, at_us: u64) -> Result<String, Failure> {
    let namespace = client.options().namespace.clone();
    let mut service = client.connection().workflow_service();
    let (mut token, mut oldest_us): (Vec<u8>, Option<u64>) = (Vec::new(), None);
    let mut best: Option<Execution> = None;
    for _ in 0..PAGES_MAX {
        let request = ListWorkflowExecutionsRequest {
            namespace: namespace.clone(),
            page_size: PAGE_SIZE,
            next_page_token: std::mem::take(&mut token),
            query: format!("WorkflowId = '{id}'"),
        };
        let page = service.list_workflow_executions(Request::new(request)).await;
        let page = page.map_err(|status| refused(&status, &namespace))?.into_inner();
        for execution in page.executions {
            let Some(start_us) = execution.start_time.as_ref().map(us) else { continue };
            oldest_us = Some(oldest_us.map_or(start_us, |oldest| oldest.min(start_us)));
            let newer = best
                .as_ref()
                .and_then(|best| best.start_time.as_ref())
                .is_none_or(|best| us(best) < start_us);
            if start_us <= at_us && newer {
                best = Some(execution);
            }
        }
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let at = absolute(at_us);
    let Some(run) = best else {
        let keeps = retention(client, &namespace).await;
        let reach = oldest_us.map_or_else(
            || format!("there is no run of {id}"),
            |oldest| format!("the oldest run of {id} that is kept began {}", absolute(oldest)),
        );
        return Err(Failure::Failed(format!(
            "nothing is known of {at}: {reach}; namespace {namespace:?} keeps what has ended for {keeps}"
        )));
    };
    if let Some(closed) = run.close_time.as_ref().map(us).filter(|closed| *closed < at_us) {
        return Err(Failure::Failed(format!(
            "no coordinator ran at {at}: the one before ended {}",
            absolute(closed)
        )));
    }
    Ok(run.execution.map(|execution| execution.run_id).unwrap_or_default())
}

/// How long the namespace keeps workflows that have ended.
async fn retention(client: &Client, namespace: &str) -> String {
    let request = DescribeNamespaceRequest { namespace: namespace.to_owned(), ..Default::default() };
    let mut service = client.connection().workflow_service();
    let described = service.describe_namespace(Request::new(request)).await.ok();
    let keeps = described.and_then(|described| described.into_inner().config);
    let keeps = keeps.and_then(|config| config.workflow_execution_retention_ttl);
    let secs = keeps.and_then(|ttl| u64::try_from(ttl.seconds).ok());
    secs.map_or_else(
        || "a time that it doesn't tell".to_owned(),
        |secs| length(secs.saturating_mul(1_000_000)),
    )
}

/// Microseconds since the Unix epoch.
fn us<T: Clone>(time: &T) -> u64
where
    SystemTime: TryFrom<T>,
{
    let since = SystemTime::try_from(time.clone()).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

fn refused(status: &Status, namespace: &str) -> Failure {
    match status.code() {
        Code::NotFound if is_about_namespace(status) => no_namespace(namespace, "the server"),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
            Failure::NoAnswer(format!("Temporal does not list the coordinator's runs: {}", status.message()))
        }
        _ => Failure::Failed(format!("listing the coordinator's runs: {}", status.message())),
    }
}
