//! `tollgate worker`.

use super::{print, print_line};
use crate::actor;
use crate::args::{Evict, Global, Worker};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, relative};
use crate::table::{Cell, Paint, Side, Table};
use tollgate_core::limit::CellKey;
use tollgate_workflows::coordinator::{EvictJson, EvictedJson, EvictedWorkerJson};
use tollgate_workflows::details::{percent, tenths};
use tollgate_workflows::wire::status::{FilterJson, HolderJson, WorkerJson, WorkersJson};

/// So many limits are shown of what a worker holds; the rest is counted.
const HOLDS_SHOWN: usize = 4;
/// So much of an incarnation is shown: enough to name it by.
const INCARNATION_SHOWN: usize = 8;
/// A worker that missed several heartbeats is either gone or cut off.
const QUIET_US: u64 = 10_000_000;

/// Shows and evicts workers.
///
/// # Errors
/// As [`Session::query`] and [`Session::update`].
pub async fn run(global: &Global, command: &Worker) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    match command {
        Worker::Ls { name, limit } => {
            let filter = FilterJson {
                worker: name.clone().unwrap_or_default(),
                limit: limit.clone().unwrap_or_default(),
                brief: name.is_none(),
                ..FilterJson::default()
            };
            let answer = session.query(Workflow::Coordinator, "worker", &filter).await?;
            let mut workers: WorkersJson = answer.read()?;
            if let (Some(name), true) = (name, workers.workers.is_empty()) {
                return Err(unknown(name, session.group()));
            }
            if limit.is_some() {
                workers.workers.retain(|worker| !worker.holds.is_empty() || worker.holds_left_out > 0);
            }
            if global.json {
                return print_line(&super::limit::json_line(&workers)?);
            }
            let (now_us, paint) = (moment::now_us(), Paint::of_stdout());
            print(&paint.fold(&render(&workers, now_us, paint)))
        }
        Worker::Evict(wanted) => evict(&session, wanted, global.json).await,
    }
}

fn unknown(name: &str, group: &str) -> Failure {
    Failure::Failed(format!("no worker {name:?} in group {group:?}: see `tollgate worker ls`"))
}

async fn evict(session: &Session, wanted: &Evict, json: bool) -> Result<(), Failure> {
    let evict = EvictJson {
        worker: wanted.worker.clone(),
        actor: wanted.actor.clone().unwrap_or_else(actor::default_actor),
        reason: wanted.reason.clone().unwrap_or_default(),
    };
    let answer = session.update(Workflow::Coordinator, "evict", &evict).await?;
    match answer.read()? {
        EvictedJson::Ok { .. } if json => print_line(&answer.text()),
        EvictedJson::Ok { now_us, workers } => {
            print(&workers.iter().map(|worker| evicted(worker, now_us)).collect::<String>())
        }
        EvictedJson::Refused { message } => {
            Err(Failure::Refused(vec![message, "see `tollgate worker ls`".to_owned()]))
        }
        EvictedJson::Busy => Err(Failure::Failed(
            "nothing was done: the coordinator was reset and is about to continue as new, try again"
                .to_owned(),
        )),
    }
}

/// What becomes of an evicted worker. Times are compared by the coordinator's clock alone.
fn evicted(worker: &EvictedWorkerJson, now_us: u64) -> String {
    let name = named(&worker.worker, &worker.incarnation);
    match (worker.was.as_str(), worker.holds_until_us.filter(|until| *until > now_us)) {
        ("live", Some(until)) => format!(
            "{name}: evicted; what it holds comes back when it answers, at the latest in {} ({})\n",
            moment::left(until, now_us),
            clock(until, now_us)
        ),
        ("live", None) => format!("{name}: evicted; it holds nothing\n"),
        ("evicted", _) => format!("{name}: was evicted before\n"),
        (was, _) => format!("{name}: nothing to do, it is {was}\n"),
    }
}

fn named(worker: &str, incarnation: &str) -> String {
    let short = incarnation.get(..INCARNATION_SHOWN).unwrap_or(incarnation);
    let text = if worker.is_empty() { short.to_owned() } else { format!("{worker} ({short})") };
    crate::table::printable(&text)
}

fn render(workers: &WorkersJson, now_us: u64, paint: Paint) -> String {
    if workers.workers.is_empty() {
        return "no workers\n".to_owned();
    }
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("STANDING", Side::Left),
        ("LAST HEARD", Side::Left),
        ("WAITING", Side::Right),
        ("HOLDS", Side::Left),
        ("INCARNATION", Side::Left),
    ]);
    for worker in &workers.workers {
        table.row(cells(worker, now_us));
    }
    let as_of = format!("as of {} ({})", clock(workers.now_us, now_us), relative(workers.now_us, now_us));
    format!("{}{}\n", table.render(paint), paint.dim(&as_of))
}

fn cells(worker: &WorkerJson, now_us: u64) -> Vec<Cell> {
    let name = if worker.worker.is_empty() { "-" } else { &worker.worker };
    let heard = format!("{} ({})", relative(worker.seen_us, now_us), clock(worker.seen_us, now_us));
    let is_live = worker.standing == "live";
    let quiet = is_live && now_us.saturating_sub(worker.seen_us) > QUIET_US;
    vec![
        Cell::new(name),
        Cell::warn_if(&worker.standing, !is_live),
        Cell::warn_if(heard, quiet),
        Cell::warn_if(worker.waiting, worker.waiting > 0),
        Cell::new(holds(&worker.holds, worker.holds_left_out)),
        Cell::dim(worker.incarnation.get(..INCARNATION_SHOWN).unwrap_or(&worker.incarnation)),
    ]
}

/// `openai 40%, reports 3.0`: the largest shares first.
fn holds(held: &[HolderJson], left_out: u64) -> String {
    let mut held: Vec<&HolderJson> =
        held.iter().filter(|held| held.share_ppb > 0 || held.cap_milli > 0).collect();
    if held.is_empty() {
        return if left_out > 0 { format!("{left_out} limits") } else { "nothing".to_owned() };
    }
    held.sort_by_key(|held| std::cmp::Reverse((held.share_ppb, held.cap_milli)));
    let shown = held.iter().take(HOLDS_SHOWN).map(|held| {
        let key =
            |part: &str, default: &str| if part.is_empty() { default.to_owned() } else { part.to_owned() };
        let key = CellKey {
            limit: held.limit.clone(),
            meter: key(&held.meter, CellKey::METER),
            tier: key(&held.tier, CellKey::TIER),
        };
        let what = if held.share_ppb > 0 { percent(held.share_ppb) } else { tenths(held.cap_milli) };
        let borrowed = if held.borrowed { " borrowed" } else { "" };
        format!("{key} {what}{borrowed}")
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    let more = held.len().saturating_sub(HOLDS_SHOWN) as u64 + left_out;
    if more > 0 {
        text.push_str(&format!(", {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_796_043_897_000_000;
    const SECOND: u64 = 1_000_000;

    fn held(limit: &str, share_ppb: u32, cap_milli: u64) -> HolderJson {
        HolderJson {
            incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
            worker: "host/1".to_owned(),
            limit: limit.to_owned(),
            meter: "requests".to_owned(),
            tier: "default".to_owned(),
            borrowed: false,
            share_ppb,
            cap_milli,
            expires_us: None,
            acknowledged: true,
            demand_micro: 0,
            waiting: 2,
            waiting_since_us: None,
            seen_us: NOW,
        }
    }

    fn worker(name: &str, standing: &str, ago: u64, holds: Vec<HolderJson>) -> WorkerJson {
        WorkerJson {
            incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
            worker: name.to_owned(),
            standing: standing.to_owned(),
            seq: 7,
            seen_us: NOW - ago,
            waiting: 2 * holds.len() as u64,
            holds,
            holds_left_out: 0,
        }
    }

    #[test]
    fn workers_are_shown_with_what_they_hold_the_most_first() {
        let many = (0..6).map(|n| held(&format!("l{n}"), n * 100_000_000, 1_000)).collect();
        let workers = WorkersJson {
            now_us: NOW - SECOND,
            workers: vec![
                worker("host/1", "live", SECOND, vec![held("tiny", 0, 3_000), held("api", 400_000_000, 9)]),
                worker("", "evicted", 90 * SECOND, vec![]),
                worker("\u{1b}[2J", "live", 0, many),
            ],
        };
        assert_eq!(
            render(&workers, NOW, Paint::OFF),
            "\
WORKER  STANDING  LAST HEARD             WAITING  HOLDS                                   INCARNATION
host/1  live      1.0s ago (13:04:56Z)         4  api 40%, tiny 3.0                       01234567
-       evicted   1m30s ago (13:03:27Z)        0  nothing                                 01234567
\u{fffd}[2J    live      now (13:04:57Z)             12  l5 50%, l4 40%, l3 30%, l2 20%, 2 more  01234567
as of 13:04:56Z (1.0s ago)
"
        );
        let none = WorkersJson { now_us: NOW, workers: vec![] };
        assert_eq!(render(&none, NOW, Paint::OFF), "no workers\n");
    }

    #[test]
    fn an_eviction_says_what_becomes_of_what_is_held() {
        let worker = |was: &str, holds_until_us| EvictedWorkerJson {
            incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
            worker: "host/1".to_owned(),
            was: was.to_owned(),
            holds_until_us,
        };
        for (worker, text) in [
            (
                worker("live", Some(NOW + 12 * SECOND)),
                "evicted; what it holds comes back when it answers, at the latest in 12s (13:05:09Z)",
            ),
            (worker("live", None), "evicted; it holds nothing"),
            (worker("evicted", Some(NOW + SECOND)), "was evicted before"),
            (worker("revoked", None), "nothing to do, it is revoked"),
        ] {
            assert_eq!(evicted(&worker, NOW), format!("host/1 (01234567): {text}\n"));
        }
    }
}
