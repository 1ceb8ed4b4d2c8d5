//! Finds what is meant and explains it.

use super::sentences::Names;
use super::{
    CandidateJson, CandidatesJson, ENTRIES_MAX, EXPLAINED_MAX, ExplainJson, ExplainLimitJson,
    ExplainWorkerJson, HoldJson, STARVING_MAX, StarvingJson, StarvingLimitJson, StarvingLimitsJson, WhyJson,
    WorkerLimitJson,
};
use crate::wire::lease::incarnation_text;
use crate::wire::status::{FilterJson, standing_text};
use tollgate_core::ledger::explain::{Reason, is_silent};
use tollgate_core::ledger::{Ledger, Standing, Worker};
use tollgate_core::limit::CellKey;
use tollgate_core::message::Incarnation;

/// The shortest beginning of an incarnation that names a worker: eight digits are what tables show.
const PREFIX_MIN: usize = 4;

/// Answers `explain`: the limit, the worker, or whichever of both has the name; all limits without any.
pub fn explain(ledger: &Ledger, group: &str, filter: &FilterJson) -> ExplainJson {
    let state = ledger.state();
    let mut answer = ExplainJson {
        now_us: state.now.0,
        heartbeat_ms: ledger.heartbeat().millis(),
        ..ExplainJson::default()
    };
    let names = [&filter.limit, &filter.worker, &filter.name];
    let all = names.iter().all(|name| name.is_empty());
    let limit = if filter.limit.is_empty() { &filter.name } else { &filter.limit };
    let worker = if filter.worker.is_empty() { &filter.name } else { &filter.worker };
    let keys: Vec<&CellKey> =
        state.cells.keys().filter(|key| all || (!limit.is_empty() && key.limit == **limit)).collect();
    let shown = keys.len().min(EXPLAINED_MAX);
    answer.limits_left_out = (keys.len() - shown) as u64;
    let entries = ENTRIES_MAX / shown.max(1);
    let views = keys.iter().take(shown).filter_map(|key| ledger.explain(key));
    answer.limits = views.map(|view| ExplainLimitJson::of(view, group, entries)).collect();
    let found = find_workers(ledger, worker);
    let is_ambiguous = found.len() > 1;
    if let [incarnation] = found.as_slice()
        && let Some(worker) = state.workers.get(incarnation)
    {
        answer.workers.push(explain_worker(ledger, group, *incarnation, worker));
    }
    if answer.limits.is_empty() && !limit.is_empty() && answer.workers.is_empty() && !is_ambiguous {
        let workers = ledger.asked_in_vain(limit);
        answer.missing = (workers > 0).then(|| WhyJson {
            waiters: workers,
            ..WhyJson::of(&Reason::UnknownLimit, &Names { group, limit, rate: None })
        });
    }
    let is_explained = !answer.limits.is_empty() || !answer.workers.is_empty() || answer.missing.is_some();
    if is_ambiguous && !filter.worker.is_empty() || !is_explained && !all {
        let wanted = names.into_iter().find(|name| !name.is_empty()).map_or("", String::as_str);
        answer.candidates = Some(candidates(ledger, wanted, &found));
    } else if is_ambiguous {
        answer.workers_left_out = found.len() as u64;
    }
    answer
}

/// The workers that a name or the beginning of an incarnation means. Of several of one name the only live one is meant.
fn find_workers(ledger: &Ledger, wanted: &str) -> Vec<Incarnation> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let workers = &ledger.state().workers;
    let mut found: Vec<Incarnation> =
        workers.iter().filter(|(_, worker)| worker.name == wanted).map(|(id, _)| *id).collect();
    let is_prefix = wanted.len() >= PREFIX_MIN && wanted.bytes().all(|byte| byte.is_ascii_hexdigit());
    if found.is_empty() && is_prefix {
        let prefix = wanted.to_ascii_lowercase();
        found = workers.keys().copied().filter(|id| incarnation_text(*id).starts_with(&prefix)).collect();
    }
    let (now, heartbeat) = (ledger.state().now, ledger.heartbeat());
    let is_live = |id: &&Incarnation| {
        workers.get(id).is_some_and(|worker| {
            worker.standing == Standing::Live && !is_silent(worker.seen, now, heartbeat)
        })
    };
    if found.len() > 1 {
        let live: Vec<Incarnation> = found.iter().filter(is_live).copied().collect();
        if live.len() == 1 {
            return live;
        }
    }
    found
}

/// What there is, the names that begin most like `wanted` first.
fn candidates(ledger: &Ledger, wanted: &str, found: &[Incarnation]) -> CandidatesJson {
    let state = ledger.state();
    let likeness = |name: &str| {
        let common = name.bytes().zip(wanted.bytes()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
        std::cmp::Reverse(if name.contains(wanted) { name.len().max(common) } else { common })
    };
    let ambiguous = !found.is_empty();
    let mut limits: Vec<&String> = if ambiguous {
        Vec::new()
    } else {
        state.cells.values().filter(|cell| !cell.removed).map(|cell| &cell.config.key.limit).collect()
    };
    limits.dedup();
    limits.sort_by_key(|name| likeness(name));
    let fits = |id: &Incarnation, worker: &Worker| {
        if ambiguous { found.contains(id) } else { worker.standing == Standing::Live }
    };
    let mut workers: Vec<CandidateJson> = state
        .workers
        .iter()
        .filter(|(id, worker)| fits(id, worker))
        .map(|(id, worker)| CandidateJson {
            worker: worker.name.clone(),
            incarnation: incarnation_text(*id),
            standing: standing_text(worker.standing).to_owned(),
            seen_us: worker.seen.0,
        })
        .collect();
    workers.sort_by_key(|worker| likeness(&worker.worker));
    let count = limits.len() + workers.len();
    limits.truncate(ENTRIES_MAX);
    workers.truncate(ENTRIES_MAX);
    let left_out = (count - limits.len() - workers.len()) as u64;
    CandidatesJson { ambiguous, limits: limits.into_iter().cloned().collect(), workers, left_out }
}

fn explain_worker(ledger: &Ledger, group: &str, id: Incarnation, worker: &Worker) -> ExplainWorkerJson {
    let mut view = ledger.explain_worker(id);
    view.cells.sort_by_key(|(_, _, waiter)| waiter.is_none());
    let now = ledger.state().now;
    let silent = is_silent(worker.seen, now, ledger.heartbeat());
    let names = Names { group, limit: "", rate: None };
    let mut reasons = Vec::new();
    match worker.standing {
        Standing::Evicted => reasons.push(WhyJson::of(&Reason::Evicted, &names)),
        Standing::Live if silent => {
            reasons.push(WhyJson::of(&Reason::NotHeard { since: worker.seen }, &names));
        }
        Standing::Live => {}
        Standing::Revoked => reasons.push(WhyJson::told(
            "revoked",
            "it has stopped and gave everything back",
            "nothing is wrong: a new start of the process is a new incarnation",
        )),
        Standing::Burned => reasons.push(WhyJson::told(
            "burned",
            "two processes claimed to be this one, as copies of a machine or of a process do",
            "nothing more is granted to this incarnation, and both go on as new ones by themselves",
        )),
    }
    let unknown = view.unknown.iter().take(EXPLAINED_MAX);
    reasons.extend(unknown.map(|key| {
        let names = Names { group, limit: &key.limit, rate: None };
        WhyJson { waiters: 1, ..WhyJson::of(&Reason::UnknownLimit, &names) }
    }));
    let left_out = view.cells.len().saturating_sub(EXPLAINED_MAX) as u64;
    let limits = view.cells.into_iter().take(EXPLAINED_MAX).map(|(key, holder, waiter)| {
        let names = Names { group, limit: &key.limit, rate: None };
        let why = waiter.as_ref().map(|waiter| WhyJson {
            waiters: 1,
            tokens: waiter.tokens,
            since_us: Some(waiter.since.0),
            ..WhyJson::of(&waiter.reason, &names.with_rate(ledger, &key))
        });
        let hold = HoldJson::of(&holder);
        let CellKey { limit, meter, tier } = key.clone();
        WorkerLimitJson { limit, meter, tier, hold, waiting: holder.waiting, why }
    });
    ExplainWorkerJson {
        incarnation: incarnation_text(id),
        worker: worker.name.clone(),
        standing: standing_text(worker.standing).to_owned(),
        seen_us: worker.seen.0,
        silent,
        limits: limits.collect(),
        limits_left_out: left_out,
        reasons,
    }
}

/// Answers `starving`.
pub fn starving(ledger: &Ledger) -> StarvingLimitsJson {
    let views = ledger.view();
    let limits = views.iter().filter_map(|view| {
        Some(StarvingLimitJson {
            limit: view.key.to_string(),
            used_micro: view.used_micro.unwrap_or(0),
            rate_micro: view.rate_micro,
            starving: StarvingJson::of(view, view.starving.as_ref()?),
        })
    });
    StarvingLimitsJson { now_us: ledger.state().now.0, limits: limits.take(STARVING_MAX).collect() }
}
