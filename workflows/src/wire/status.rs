//! What queries answer.

use super::bound;
use super::conduct::ConductJson;
use super::config::{PolicyJson, VersionJson};
use super::explain::StarvingJson;
use super::lease::{ended_text, incarnation_text};
use serde::{Deserialize, Serialize};
use tollgate_core::ledger::alloc_share::Kind;
use tollgate_core::ledger::strict::{GrantRecord, Stage, Strict};
use tollgate_core::ledger::view::{CellView, HolderView};
use tollgate_core::ledger::{Ledger, Standing};
use tollgate_core::limit::CellKey;

/// With `brief`, so much is shown of what each worker holds.
const BRIEF_EACH: usize = 4;
/// With `brief`, so much is shown of what all workers hold: some 400 KB of the megabyte that an answer may have.
const BRIEF_ALL: usize = 1_200;

/// Result of query `status`: small, also with a large fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusJson {
    /// The group.
    pub group: String,
    /// The time of the last message: figures are as of then.
    pub now_us: u64,
    /// The ledger's epoch.
    pub epoch: u64,
    /// Until when it recovers, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_until_us: Option<u64>,
    /// The configuration in force.
    pub version: VersionJson,
    /// The behaviour that this run pins.
    pub rules_version: u32,
    /// Workers that hold or ask.
    pub workers: u64,
    /// How often a worker should be heard.
    pub heartbeat_ms: u64,
    /// One row per cell.
    pub limits: Vec<LimitRowJson>,
    /// Messages that couldn't be read, and signals that were refused.
    pub unreadable: UnreadableJson,
    /// Configurations ignored since they were older than the one in force.
    #[serde(default)]
    pub ignored_configs: u64,
    /// The last of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_version: Option<VersionJson>,
    /// Resets that were noticed.
    #[serde(default)]
    pub resets: u64,
    /// Times that this coordinator continued as new.
    #[serde(default)]
    pub runs: u64,
    /// Bytes of the state that goes through continue-as-new; only query `status` counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Fingerprint of the ledger.
    pub digest: String,
}

/// Messages that couldn't be read, and signals that were refused: nobody can be told. Counted, and the last one shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableJson {
    /// How many since the coordinator began.
    pub count: u64,
    /// Which signal or update the last one was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_name: String,
    /// When.
    #[serde(default)]
    pub last_us: u64,
    /// What was wrong with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// One cell in a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRowJson {
    /// The limit's name.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// The rate now, in millionths of a token a second.
    pub rate_micro: u64,
    /// The rate that a ramp goes to.
    pub target_micro: u64,
    /// When the ramp began, while one is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_begins_us: Option<u64>,
    /// When the ramp ends, while one is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_ends_us: Option<u64>,
    /// The burst now.
    pub burst: u64,
    /// What an operator says of it beside how much it allows.
    #[serde(default, skip_serializing_if = "ConductJson::is_default")]
    pub conduct: ConductJson,
    /// Tokens that nobody holds.
    pub free_milli: u64,
    /// Debt of holders that are gone.
    #[serde(default)]
    pub debt_milli: u64,
    /// Shares that are out.
    pub share_ppb: u32,
    /// Caps that are out.
    pub cap_milli: u64,
    /// How used tokens become usable again.
    #[serde(default)]
    pub policy: PolicyJson,
    /// Conserved tokens that are in use, or used and not yet usable again, as holders last said.
    #[serde(default)]
    pub out: u64,
    /// Conserved tokens that nobody accounts for and that are not usable yet.
    #[serde(default)]
    pub away_milli: u64,
    /// `shares`, `tokens`, `turns` or `permits`.
    pub kind: String,
    /// Why.
    pub kind_reason: String,
    /// Tokens used since the limit began.
    pub used: u64,
    /// Tokens wanted and not there.
    pub waiting: u64,
    /// Holders.
    pub holders: u64,
    /// Tokens used a second, in millionths, in the last window that was long enough to tell; missing until there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_micro: Option<u64>,
    /// Whoever waits for too long although the limit has room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starving: Option<StarvingJson>,
    /// Until when it recovers, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_until_us: Option<u64>,
    /// What is promised: `at most 16 + 50/s * t in any interval t`.
    #[serde(default)]
    pub bound: String,
    /// How much use keeping to that costs.
    #[serde(default)]
    pub bound_costs: String,
    /// Whether it was removed and is only remembered until its leases have ended.
    #[serde(default)]
    pub removed: bool,
}

/// Result of query `limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDetailJson {
    /// The time of the last message.
    pub now_us: u64,
    /// The limit's cells.
    pub cells: Vec<LimitCellJson>,
}

/// One cell with its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitCellJson {
    /// As in the table.
    pub row: LimitRowJson,
    /// Who holds.
    pub holders: Vec<HolderJson>,
}

/// One holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderJson {
    /// The process.
    pub incarnation: String,
    /// Its name for people.
    pub worker: String,
    /// Of which limit.
    pub limit: String,
    /// Of which of its meters.
    #[serde(default)]
    pub meter: String,
    /// Of which of its tiers.
    #[serde(default)]
    pub tier: String,
    /// Whether it borrows.
    #[serde(default)]
    pub borrowed: bool,
    /// The share that counts for it.
    pub share_ppb: u32,
    /// The cap that counts for it.
    pub cap_milli: u64,
    /// When the last of its leases surely ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<u64>,
    /// Whether it has said which lease it acts on.
    pub acknowledged: bool,
    /// Wanted tokens a second, in millionths.
    pub demand_micro: u64,
    /// Tokens that its waiters want.
    pub waiting: u64,
    /// Since when without a break; those who wait may be others by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since_us: Option<u64>,
    /// When it last asked.
    pub seen_us: u64,
}

/// Result of query `worker`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersJson {
    /// The time of the last message.
    pub now_us: u64,
    /// The workers asked for, or all.
    pub workers: Vec<WorkerJson>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerJson {
    /// The process.
    pub incarnation: String,
    /// Its name for people.
    pub worker: String,
    /// `live`, `evicted`, `revoked`, `burned`.
    pub standing: String,
    /// Its newest request.
    pub seq: u64,
    /// When it was last heard.
    pub seen_us: u64,
    /// Tokens that its waiters want, of all limits that were asked for.
    #[serde(default)]
    pub waiting: u64,
    /// What it holds.
    pub holds: Vec<HolderJson>,
    /// With `brief`: so many more, smaller ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub holds_left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Result of query `grants`: strict permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantsJson {
    /// The time of the last message.
    pub now_us: u64,
    /// Oldest first: those that have ended, then those that are out or wait.
    pub grants: Vec<GrantJson>,
}

/// One strict permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantJson {
    /// The permit.
    pub id: String,
    /// Who asked.
    pub client: String,
    /// Its limit.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// Tokens.
    pub cost: u64,
    /// `waiting`, `granted`, `used`, `released`, `expired`, `abandoned`.
    pub status: String,
    /// When that came about.
    pub at_us: u64,
    /// With `granted`: until when the work may start, by the clock of the Temporal server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until_us: Option<u64>,
    /// With `granted`: until when it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<u64>,
}

/// Input of queries `limit`, `worker`, `grants` and `explain`. All fields may be missing: then everything is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterJson {
    /// Only this limit.
    #[serde(default)]
    pub limit: String,
    /// Only this worker, by name or incarnation.
    #[serde(default)]
    pub worker: String,
    /// Only this client's permits.
    #[serde(default)]
    pub client: String,
    /// Only this permit.
    #[serde(default)]
    pub id: String,
    /// For `worker`: only the largest of what each holds, so that the answer of a large fleet fits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
    /// For `explain`: a limit or a worker, whichever has this name or incarnation.
    #[serde(default)]
    pub name: String,
}

impl LimitRowJson {
    /// A row of figures.
    pub fn of(view: &CellView) -> LimitRowJson {
        let reason = view.reason;
        LimitRowJson {
            limit: view.key.limit.clone(),
            meter: view.key.meter.clone(),
            tier: view.key.tier.clone(),
            rate_micro: view.rate_micro,
            target_micro: view.target_micro,
            ramp_begins_us: view.ramp_begins.map(|begin| begin.0),
            ramp_ends_us: view.ramp_ends.map(|end| end.0),
            burst: view.burst,
            conduct: ConductJson::of(view.conduct),
            free_milli: view.free.milli_floor(),
            debt_milli: (-view.free).milli_floor(),
            share_ppb: view.share.ppb(),
            cap_milli: view.cap.milli_floor(),
            policy: PolicyJson::of(&view.policy),
            out: view.holders.iter().fold(0, |sum: u64, holder| sum.saturating_add(holder.out)),
            away_milli: view.away.milli_floor(),
            kind: match view.kind {
                Kind::Shares => "shares".to_owned(),
                Kind::Tokens => "tokens".to_owned(),
                Kind::Turns => "turns".to_owned(),
                Kind::Permits => "permits".to_owned(),
            },
            kind_reason: match view.kind {
                Kind::Permits if view.keeper_silent => {
                    "no more is lent until the config workflow has been told how much".to_owned()
                }
                Kind::Permits => "used tokens come back: each worker holds a part of them".to_owned(),
                _ => format!(
                    "{}.{:03} tokens per worker and heartbeat, {} of burst {} needed at once, {} tokens per round trip",
                    reason.per_heartbeat_milli / 1_000,
                    reason.per_heartbeat_milli % 1_000,
                    reason.needed,
                    reason.burst,
                    reason.per_round
                ),
            },
            used: view.used,
            waiting: view.waiting,
            holders: view.holders.len() as u64,
            used_micro: view.used_micro,
            starving: view.starving.as_ref().map(|waiter| StarvingJson::of(view, waiter)),
            recovering_until_us: view.recovering_until.map(|until| until.0),
            bound: bound::bound(view),
            bound_costs: bound::costs(&view.policy).to_owned(),
            removed: view.removed,
        }
    }
}

impl HolderJson {
    /// One holder of a cell.
    pub fn of(key: &CellKey, holder: &HolderView) -> HolderJson {
        HolderJson {
            incarnation: incarnation_text(holder.incarnation),
            worker: holder.worker.clone(),
            limit: key.limit.clone(),
            meter: key.meter.clone(),
            tier: key.tier.clone(),
            borrowed: holder.borrowed,
            share_ppb: holder.share.ppb(),
            cap_milli: holder.cap.milli_floor(),
            expires_us: holder.expires.map(|expires| expires.0),
            acknowledged: holder.acknowledged,
            demand_micro: holder.demand,
            waiting: holder.waiting,
            waiting_since_us: holder.waiting_since.map(|since| since.0),
            seen_us: holder.seen.0,
        }
    }
}

/// The cells of one limit, or of all, with their holders.
pub fn limit_detail(ledger: &Ledger, filter: &FilterJson) -> LimitDetailJson {
    let wanted = |view: &&CellView| filter.limit.is_empty() || view.key.limit == filter.limit;
    let views = ledger.view();
    let cells = views.iter().filter(wanted).map(|view| LimitCellJson {
        row: LimitRowJson::of(view),
        holders: view.holders.iter().map(|holder| HolderJson::of(&view.key, holder)).collect(),
    });
    LimitDetailJson { now_us: ledger.state().now.0, cells: cells.collect() }
}

/// The workers of a name or incarnation, or all, with what they hold: of one limit, or of all.
pub fn workers(ledger: &Ledger, filter: &FilterJson) -> WorkersJson {
    let views = ledger.view();
    let mut workers = Vec::new();
    for (incarnation, worker) in &ledger.state().workers {
        let text = incarnation_text(*incarnation);
        if !filter.worker.is_empty() && filter.worker != worker.name && filter.worker != text {
            continue;
        }
        let mut holds = Vec::new();
        for view in &views {
            let is_meant = filter.limit.is_empty() || filter.limit == view.key.limit;
            let mine = view.holders.iter().filter(|holder| is_meant && holder.incarnation == *incarnation);
            holds.extend(mine.map(|holder| HolderJson::of(&view.key, holder)));
        }
        let waiting = holds.iter().fold(0, |sum: u64, held| sum.saturating_add(held.waiting));
        let mut holds_left_out = 0;
        if filter.brief {
            holds.sort_by_key(|held| std::cmp::Reverse((held.share_ppb, held.cap_milli)));
            let shown = BRIEF_EACH.min(BRIEF_ALL / ledger.state().workers.len().max(1));
            holds_left_out = holds.len().saturating_sub(shown) as u64;
            holds.truncate(shown);
        }
        workers.push(WorkerJson {
            waiting,
            holds_left_out,
            incarnation: text,
            worker: worker.name.clone(),
            standing: standing_text(worker.standing).to_owned(),
            seq: worker.seq,
            seen_us: worker.seen.0,
            holds,
        });
    }
    WorkersJson { now_us: ledger.state().now.0, workers }
}

/// A standing as JSON names it.
pub(crate) fn standing_text(standing: Standing) -> &'static str {
    match standing {
        Standing::Live => "live",
        Standing::Evicted => "evicted",
        Standing::Revoked => "revoked",
        Standing::Burned => "burned",
    }
}

/// Strict permits of a client, of an id, of a limit, or all.
pub fn grants(ledger: &Ledger, filter: &FilterJson) -> GrantsJson {
    let state = ledger.state();
    let mut grants: Vec<GrantJson> = state.records.iter().map(GrantJson::ended).collect();
    for cell in state.cells.values() {
        grants.extend(
            cell.strict.iter().filter_map(|(id, strict)| GrantJson::current(id, &cell.config.key, strict)),
        );
    }
    let fits = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    grants.retain(|grant| {
        fits(&filter.client, &grant.client)
            && fits(&filter.id, &grant.id)
            && fits(&filter.limit, &grant.limit)
    });
    GrantsJson { now_us: state.now.0, grants }
}

impl GrantJson {
    fn ended(record: &GrantRecord) -> GrantJson {
        GrantJson {
            id: record.id.clone(),
            client: record.client.clone(),
            limit: record.key.limit.clone(),
            meter: record.key.meter.clone(),
            tier: record.key.tier.clone(),
            cost: record.cost,
            status: ended_text(record.how).to_owned(),
            at_us: record.at.0,
            valid_until_us: None,
            expires_us: None,
        }
    }

    fn current(id: &str, key: &CellKey, strict: &Strict) -> Option<GrantJson> {
        let (status, at, until) = match strict.stage {
            Stage::Waiting(_) => ("waiting", strict.since, None),
            Stage::Granted { at, expires } => ("granted", at, Some((at + strict.lease, expires))),
            Stage::Over { .. } => return None,
        };
        Some(GrantJson {
            id: id.to_owned(),
            client: strict.client.clone(),
            limit: key.limit.clone(),
            meter: key.meter.clone(),
            tier: key.tier.clone(),
            cost: strict.cost,
            status: status.to_owned(),
            at_us: at.0,
            valid_until_us: until.map(|(valid, _)| valid.0),
            expires_us: until.map(|(_, expires)| expires.0),
        })
    }
}
