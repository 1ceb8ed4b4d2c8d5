//! The figures of groups, for Prometheus: asked of the coordinators when somebody scrapes, and not more often than needed.

use futures_util::future::{BoxFuture, join_all};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use temporalio_client::{
    Client, QueryRejectCondition, RpcOptions, UntypedQuery, UntypedWorkflow, WorkflowQueryOptions,
};
use temporalio_common::data_converters::RawValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tollgate_core::ledger::CELLS_MAX;
use tollgate_metrics::Snapshot;
use tollgate_metrics::catalogue as names;
use tollgate_metrics::snapshot::{real, seconds};
use tollgate_workflows::config::view::{HistoryFilterJson, HistoryJson};
use tollgate_workflows::contracts::{config_id, coordinator_id};
use tollgate_workflows::wire;
use tollgate_workflows::wire::config::VersionJson;
use tollgate_workflows::wire::status::{LimitRowJson, StatusJson};

/// A coordinator is asked this often at most: an answer costs its host a look at all limits.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// A scrape may come this much early: scrapers with the same period would else get every second one answered anew.
const EARLY_MAX: Duration = Duration::from_secs(1);
/// A coordinator that hasn't answered by then is not up. Scrapers give up after ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Figures that are older than this are not shown any more: who looks at them would think that they are in force.
const FIGURES_MAX_AGE: Duration = Duration::from_secs(60);
/// The most limits of a group that are shown: as many as it can have.
const LIMITS_SHOWN_MAX: usize = CELLS_MAX;

/// What a group answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The coordinator.
    pub status: StatusJson,
    /// The version that the config workflow has in force, `run.n`; nothing when it didn't answer.
    pub version: Option<String>,
}

/// Asks a group.
pub trait Ask: Send + Sync + 'static {
    /// One try; nothing when the coordinator doesn't answer, or with something else. How long it may take is up to the
    /// caller.
    fn ask<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Option<Answer>>;
}

/// Asks over Temporal, as soon as there is a connection.
#[derive(Default)]
pub struct Temporal {
    client: OnceLock<Client>,
}

impl Temporal {
    /// From now on it can ask.
    pub fn connected(&self, client: &Client) {
        self.client.get_or_init(|| client.clone());
    }
}

impl std::fmt::Debug for Temporal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Temporal").field("connected", &self.client.get().is_some()).finish()
    }
}

impl Ask for Temporal {
    fn ask<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Option<Answer>> {
        Box::pin(async move {
            let client = self.client.get()?;
            let newest = wire::write(&HistoryFilterJson { count: Some(1), ..HistoryFilterJson::default() });
            let (status, history) = tokio::join!(
                query(client, coordinator_id(group), "status", RawValue::default()),
                query(client, config_id(group), "history", newest),
            );
            let status = wire::read(&status?).ok()?;
            let history = history.and_then(|answer| wire::read::<HistoryJson>(&answer).ok());
            Some(Answer { status, version: history.map(|history| history.version) })
        })
    }
}

async fn query(client: &Client, id: String, name: &str, input: RawValue) -> Option<RawValue> {
    let options = WorkflowQueryOptions::builder()
        .reject_condition(QueryRejectCondition::NotOpen)
        .rpc_options(RpcOptions::builder().timeout(ANSWER_TIMEOUT).build())
        .build();
    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    let answer = timeout(ANSWER_TIMEOUT, handle.query(UntypedQuery::new(name), input, options)).await;
    answer.ok()?.ok()
}

/// The figures of some groups.
pub struct Groups {
    ask: Arc<dyn Ask>,
    groups: Vec<(String, Mutex<Seen>)>,
}

/// What is known of a group.
#[derive(Debug, Default)]
struct Seen {
    is_up: bool,
    last: Option<(Instant, Answer)>,
    /// When it may be asked again.
    due: Option<Instant>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl Groups {
    /// Of these groups, each named once.
    pub fn new(groups: &[String], ask: Arc<dyn Ask>) -> Groups {
        let groups = groups.iter().map(|group| (group.clone(), Mutex::default())).collect();
        Groups { ask, groups }
    }

    /// The figures now: asks whoever is due, all at once, and waits two seconds at most.
    pub async fn snapshot(&self) -> Snapshot {
        let mut out = Snapshot::default();
        out.level(&names::HOST_INFO, [env!("CARGO_PKG_VERSION")], 1.0);
        for group in join_all(self.groups.iter().map(|(group, seen)| self.group(group, seen))).await {
            out.merge(group);
        }
        out
    }

    /// Scrapes that come together share one answer.
    async fn group(&self, group: &str, seen: &Mutex<Seen>) -> Snapshot {
        let mut seen = seen.lock().await;
        let now = Instant::now();
        if seen.due.is_none_or(|due| now + EARLY_MAX >= due) {
            seen.due = Some(seen.due.map_or(now, |due| due.max(now)) + ASK_EVERY);
            // Whoever breaks off leaves this behind.
            seen.is_up = false;
            if let Ok(Some(answer)) = timeout(ANSWER_TIMEOUT, self.ask.ask(group)).await {
                seen.is_up = true;
                seen.last = Some((Instant::now(), answer));
            }
        }
        seen.show(group)
    }
}

impl Seen {
    fn show(&self, group: &str) -> Snapshot {
        let mut out = Snapshot::default();
        out.flag(&names::COORDINATOR_UP, [group], self.is_up);
        let Some((at, answer)) = &self.last else { return out };
        let age = at.elapsed();
        out.level(&names::COORDINATOR_ANSWER_AGE, [group], age.as_secs_f64());
        if age <= FIGURES_MAX_AGE {
            show(&mut out, group, answer);
        }
        out
    }
}

/// The figures of an answer. Times are as of its ledger's last message.
fn show(out: &mut Snapshot, group: &str, answer: &Answer) {
    let Answer { status, version } = answer;
    let is_recovering = |until: Option<u64>| until.is_some_and(|until| until > status.now_us);
    let rows = || status.limits.iter().filter(|row| !row.removed);
    out.level(&names::COORDINATOR_WORKERS, [group], real(status.workers));
    out.level(&names::COORDINATOR_LIMITS, [group], real(rows().count() as u64));
    out.flag(&names::COORDINATOR_RECOVERING, [group], is_recovering(status.recovering_until_us));
    out.count(&names::COORDINATOR_RUNS, [group], status.runs);
    out.count(&names::COORDINATOR_RESETS, [group], status.resets);
    if let Some(bytes) = status.state_bytes {
        out.level(&names::COORDINATOR_STATE, [group], real(bytes));
    }
    out.count(&names::COORDINATOR_UNREADABLE, [group], status.unreadable.count);
    out.count(&names::COORDINATOR_IGNORED, [group], status.ignored_configs);
    if let Some(lag) = version.as_ref().and_then(|version| lag(version, status.version)) {
        out.level(&names::COORDINATOR_LAG, [group], real(lag));
    }
    for row in rows().take(LIMITS_SHOWN_MAX) {
        let labels = [group, &*row.limit, &*row.meter, &*row.tier];
        show_limit(out, labels, row, status.now_us);
        out.flag(&names::LIMIT_RECOVERING, labels, is_recovering(row.recovering_until_us));
    }
}

fn show_limit(out: &mut Snapshot, labels: [&str; 4], row: &LimitRowJson, now_us: u64) {
    let milli = |milli: u64| real(milli) / 1e3;
    out.level(&names::LIMIT_RATE, labels, seconds(row.rate_micro));
    out.level(&names::LIMIT_TARGET, labels, seconds(row.target_micro));
    let (position, left_us) = ramp(row, now_us);
    out.level(&names::LIMIT_RAMP, labels, position);
    out.level(&names::LIMIT_RAMP_LEFT, labels, seconds(left_us));
    out.level(&names::LIMIT_BURST, labels, real(row.burst));
    out.level(&names::LIMIT_FREE, labels, milli(row.free_milli) - milli(row.debt_milli));
    out.level(&names::LIMIT_SHARE, labels, f64::from(row.share_ppb) / 1e9);
    out.level(&names::LIMIT_CAPS, labels, milli(row.cap_milli));
    out.level(&names::LIMIT_OUT, labels, real(row.out));
    out.level(&names::LIMIT_WAITING, labels, real(row.waiting));
    out.flag(&names::LIMIT_STARVING, labels, row.starving.is_some());
    out.flag(&names::LIMIT_PAUSED, labels, row.conduct.paused);
    out.flag(&names::LIMIT_SHADOW, labels, row.conduct.shadow);
    out.count(&names::LIMIT_USED, labels, row.used);
    out.level(&names::LIMIT_HOLDERS, labels, real(row.holders));
}

/// How much of a ramp's time is over, and how much is left.
fn ramp(row: &LimitRowJson, now_us: u64) -> (f64, u64) {
    let Some(ends) = row.ramp_ends_us.filter(|ends| *ends > now_us) else { return (1.0, 0) };
    let begins = row.ramp_begins_us.unwrap_or(now_us).min(now_us);
    (real(now_us - begins) / real(ends - begins), ends - now_us)
}

/// How far the coordinator is behind a version; nothing if that isn't one.
fn lag(newest: &str, of: VersionJson) -> Option<u64> {
    let (run, n) = newest.split_once('.')?;
    let (run, n): (u64, u64) = (run.parse().ok()?, n.parse().ok()?);
    Some(match run.cmp(&of.run_us) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => n.saturating_sub(of.n),
        // Numbers begin anew with a run.
        std::cmp::Ordering::Greater => n.max(1),
    })
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
