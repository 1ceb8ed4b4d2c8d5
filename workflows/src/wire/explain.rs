//! What queries `explain` and `starving` answer: who holds what, who waits and why, and what would help.

mod answer;
mod sentences;

pub use answer::{explain, starving};
pub use sentences::{code, starving_text};

use super::lease::incarnation_text;
use super::status::LimitRowJson;
use sentences::Names;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tollgate_core::ledger::explain::{Explanation, PermitView, Reason, Waiter, Who};
use tollgate_core::ledger::view::{CellView, HolderView};

/// The most limits in one answer, in the order of their names; of one worker, those that it waits for first. With
/// [`ENTRIES_MAX`] this keeps the answer within what is read (1 MiB) also where all names are as long as they may be; the
/// server takes 2 MiB.
pub const EXPLAINED_MAX: usize = 50;
/// The most holders, permits, waiters and candidates in one answer, each kind for itself: a whole fleet of 200 workers.
pub const ENTRIES_MAX: usize = 250;
/// The most limits in the answer to `starving`.
pub const STARVING_MAX: usize = 50;

/// Result of query `explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainJson {
    /// The time of the last message: figures are as of then.
    pub now_us: u64,
    /// How often a worker should be heard.
    pub heartbeat_ms: u64,
    /// The limits asked for, or all.
    #[serde(default)]
    pub limits: Vec<ExplainLimitJson>,
    /// More limits, not in the list.
    #[serde(default)]
    pub limits_left_out: u64,
    /// The workers asked for.
    #[serde(default)]
    pub workers: Vec<ExplainWorkerJson>,
    /// More workers of that name, not in the list.
    #[serde(default)]
    pub workers_left_out: u64,
    /// A limit that was asked for, isn't there, and is wanted by workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<WhyJson>,
    /// When nothing is explained: what there is, the most similar first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<CandidatesJson>,
}

/// One limit explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainLimitJson {
    /// As in `status`.
    pub row: LimitRowJson,
    /// Who holds, the largest parts first.
    pub holders: Vec<HoldJson>,
    /// More holders, not in the list.
    #[serde(default)]
    pub holders_left_out: u64,
    /// Strict permits that are out, the oldest first.
    #[serde(default)]
    pub permits: Vec<PermitJson>,
    /// More permits, not in the list.
    #[serde(default)]
    pub permits_left_out: u64,
    /// Who waits, whoever has waited longest first.
    pub waiters: Vec<WaiterJson>,
    /// More waiters, not in the list.
    #[serde(default)]
    pub waiters_left_out: u64,
    /// Why they wait: each reason once, over all waiters.
    pub reasons: Vec<WhyJson>,
}

/// A part of a limit that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldJson {
    /// The process.
    pub incarnation: String,
    /// Its name for people.
    pub worker: String,
    /// Whether it borrows.
    #[serde(default)]
    pub borrowed: bool,
    /// Since when it has held a part without a break, if it does; in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
    /// The share that counts for it.
    pub share_ppb: u32,
    /// The cap that counts for it.
    pub cap_milli: u64,
    /// Unused: tokens in its bucket when it last asked.
    pub held_milli: u64,
    /// Unused: what its share brings a second beyond what it wants, in millionths of a token.
    pub idle_micro: u64,
    /// Wanted tokens a second, in millionths.
    pub demand_micro: u64,
    /// When the last of its leases surely ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<u64>,
    /// When it last asked.
    pub seen_us: u64,
    /// Whether it missed so many heartbeats that it must be gone or cut off.
    #[serde(default)]
    pub silent: bool,
}

/// A strict permit that may be used, and counts until its use is reported or it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitJson {
    /// The permit.
    pub permit: String,
    /// Who asked for it.
    pub client: String,
    /// Its tokens.
    pub tokens: u64,
    /// When it was granted.
    pub since_us: u64,
    /// When it surely ends.
    pub expires_us: u64,
}

/// Somebody who waits: a worker, or a strict permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterJson {
    /// A worker's name, or the client of a strict permit.
    pub who: String,
    /// The worker's incarnation; missing for a permit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The strict permit; missing for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<String>,
    /// For how many tokens.
    pub tokens: u64,
    /// Since when the first of them has waited, at least.
    pub since_us: u64,
    /// One of [`WhyJson::reason`].
    pub reason: String,
}

/// Why somebody waits, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyJson {
    /// `limit_reached`, `queued`, `ramp`, `reserve`, `crowded_burst`, `cost_above_burst`, `no_rate`, `recovering`,
    /// `held_by_silent`, `not_heard`, `evicted`, `unknown_limit`, `next_message`; more may come.
    pub reason: String,
    /// Workers and strict permits that wait for this reason.
    pub waiters: u64,
    /// Tokens that they wait for.
    pub tokens: u64,
    /// Since when the first has waited, at least; missing where that isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
    /// The reason in words, as of whoever has waited longest.
    pub text: String,
    /// What would help, in words.
    pub help: String,
    /// The command to run, where there is one; words in capitals are to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// One worker explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainWorkerJson {
    /// The process.
    pub incarnation: String,
    /// Its name for people.
    pub worker: String,
    /// `live`, `evicted`, `revoked`, `burned`.
    pub standing: String,
    /// When it was last heard.
    pub seen_us: u64,
    /// Whether it missed so many heartbeats that it must be gone or cut off.
    #[serde(default)]
    pub silent: bool,
    /// What it uses, and what it waits for.
    pub limits: Vec<WorkerLimitJson>,
    /// More limits, not in the list.
    #[serde(default)]
    pub limits_left_out: u64,
    /// What is wrong with the worker as a whole, and limits that it asks for and that aren't there.
    #[serde(default)]
    pub reasons: Vec<WhyJson>,
}

/// One limit as one worker uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLimitJson {
    /// The limit's name.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// What the worker holds of it.
    pub hold: HoldJson,
    /// Tokens that its waiters want.
    pub waiting: u64,
    /// Why, if it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<WhyJson>,
}

/// What there is instead of what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidatesJson {
    /// Whether several workers fit, and not none.
    #[serde(default)]
    pub ambiguous: bool,
    /// Limits.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Workers: name and incarnation.
    #[serde(default)]
    pub workers: Vec<CandidateJson>,
    /// More of both, not in the lists.
    #[serde(default)]
    pub left_out: u64,
}

/// A worker that may be meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateJson {
    /// Its name for people.
    pub worker: String,
    /// The process.
    pub incarnation: String,
    /// `live`, `evicted`, `revoked`, `burned`.
    pub standing: String,
    /// When it was last heard.
    pub seen_us: u64,
}

/// Somebody waits for too long although the limit has room: in `status`, and in the answer to `starving`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StarvingJson {
    /// A worker's name, or the client of a strict permit.
    pub who: String,
    /// For how many tokens.
    pub tokens: u64,
    /// Since when the first of them has waited, at least.
    pub since_us: u64,
    /// One of [`WhyJson::reason`].
    pub reason: String,
    /// The reason in words.
    pub text: String,
    /// What would help, in words.
    pub help: String,
}

/// Result of query `starving`: limits with room beside which somebody waits for too long. Hosts ask, and log it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StarvingLimitsJson {
    /// The time of the last message.
    pub now_us: u64,
    /// The limits, at most 50 of them.
    pub limits: Vec<StarvingLimitJson>,
}

/// One limit in the answer to `starving`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StarvingLimitJson {
    /// The limit's name, with meter and tier where they aren't the only ones.
    pub limit: String,
    /// Tokens used a second, in millionths, in the last window.
    pub used_micro: u64,
    /// The rate, likewise.
    pub rate_micro: u64,
    /// Who, and why.
    pub starving: StarvingJson,
}

impl ExplainLimitJson {
    fn of(explanation: Explanation, group: &str, entries: usize) -> ExplainLimitJson {
        let Explanation { cell: view, permits, waiters } = explanation;
        let names = Names { group, limit: &view.key.limit, rate: Some((view.rate_micro, view.target_micro)) };
        // In the order of their first waiter, which is the one that has waited longest.
        let mut reasons: Vec<WhyJson> = Vec::new();
        let mut places: BTreeMap<&'static str, usize> = BTreeMap::new();
        for waiter in &waiters {
            let place = *places.entry(code(&waiter.reason)).or_insert_with(|| {
                reasons
                    .push(WhyJson { since_us: Some(waiter.since.0), ..WhyJson::of(&waiter.reason, &names) });
                reasons.len() - 1
            });
            if let Some(why) = reasons.get_mut(place) {
                why.waiters += 1;
                why.tokens = why.tokens.saturating_add(waiter.tokens);
            }
        }
        // Whoever asks is refused and doesn't wait.
        if view.conduct.paused && !view.removed && reasons.is_empty() {
            reasons.push(WhyJson::of(&Reason::Paused, &names));
        }
        let mut holders: Vec<&HolderView> = view.holders.iter().collect();
        holders.sort_by_key(|holder| std::cmp::Reverse((holder.share, holder.cap)));
        let left_out = |count: usize| count.saturating_sub(entries) as u64;
        ExplainLimitJson {
            row: LimitRowJson::of(&view),
            holders: holders.iter().take(entries).map(|holder| HoldJson::of(holder)).collect(),
            holders_left_out: left_out(holders.len()),
            permits_left_out: left_out(permits.len()),
            permits: permits.into_iter().take(entries).map(PermitJson::of).collect(),
            waiters: waiters.iter().take(entries).map(WaiterJson::of).collect(),
            waiters_left_out: left_out(waiters.len()),
            reasons,
        }
    }
}

impl HoldJson {
    fn of(holder: &HolderView) -> HoldJson {
        HoldJson {
            incarnation: incarnation_text(holder.incarnation),
            worker: holder.worker.clone(),
            borrowed: holder.borrowed,
            since_us: holder.held_since.map(|since| since.0),
            share_ppb: holder.share.ppb(),
            cap_milli: holder.cap.milli_floor(),
            held_milli: holder.held.milli_floor(),
            idle_micro: holder.idle_micro,
            demand_micro: holder.demand,
            expires_us: holder.expires.map(|expires| expires.0),
            seen_us: holder.seen.0,
            silent: holder.silent,
        }
    }
}

impl PermitJson {
    fn of(permit: PermitView) -> PermitJson {
        PermitJson {
            permit: permit.id,
            client: permit.client,
            tokens: permit.tokens,
            since_us: permit.since.0,
            expires_us: permit.expires.0,
        }
    }
}

impl WaiterJson {
    fn of(waiter: &Waiter) -> WaiterJson {
        let (incarnation, permit) = match &waiter.who {
            Who::Worker { incarnation, .. } => (Some(incarnation_text(*incarnation)), None),
            Who::Permit { id, .. } => (None, Some(id.clone())),
        };
        WaiterJson {
            who: who_text(&waiter.who),
            incarnation,
            permit,
            tokens: waiter.tokens,
            since_us: waiter.since.0,
            reason: code(&waiter.reason).to_owned(),
        }
    }
}

impl StarvingJson {
    /// Who starves for a cell.
    pub fn of(view: &CellView, waiter: &Waiter) -> StarvingJson {
        let rate = Some((view.rate_micro, view.target_micro));
        let why = WhyJson::of(&waiter.reason, &Names { group: "", limit: &view.key.limit, rate });
        StarvingJson {
            who: who_text(&waiter.who),
            tokens: waiter.tokens,
            since_us: waiter.since.0,
            reason: why.reason,
            text: why.text,
            help: why.help,
        }
    }
}

fn who_text(who: &Who) -> String {
    match who {
        Who::Worker { incarnation, name } if name.is_empty() => incarnation_text(*incarnation),
        Who::Worker { name, .. } => name.clone(),
        Who::Permit { client, .. } => client.clone(),
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
