//! What the queries of the config workflow answer.

use super::book::overrides::Source;
use super::book::ramps::Paused;
use super::book::tiers::floor_text;
use super::book::{Book, Entry, Outcome};
use super::{Config, text};
use crate::wire::conduct::ConductJson;
use crate::wire::config::{ExactRateJson, InitialJson, PolicyJson};
use crate::wire::layers::{OverridingJson, ScheduleJson};
use crate::wire::status::UnreadableJson;
use serde::{Deserialize, Serialize};
use tollgate_core::curve::Rate;
use tollgate_core::limit::CellConfig;
use tollgate_core::units::{Amount, LedgerTime, Share, Span};

/// Result of query `config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigJson {
    /// The group.
    pub group: String,
    /// The time of the last message: what is in force is as of then.
    pub now_us: u64,
    /// The version in force, `run.n`; for `if_version`.
    pub version: String,
    /// Messages a second that the coordinator aims at, in thousandths.
    pub target_rate_milli: u64,
    /// Every limit.
    pub limits: Vec<ConfiguredLimitJson>,
    /// Why later boundaries of windows couldn't be computed; empty if they could.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub calendar_error: String,
    /// Whether the workflow still asks the coordinator which limits there are.
    #[serde(default)]
    pub starting: bool,
    /// How far the coordinator knows.
    pub coordinator: CoordinatorKnowsJson,
    /// Messages that couldn't be read.
    #[serde(default)]
    pub unreadable: UnreadableJson,
    /// `update_config` signals that were refused: a signal can't be answered.
    #[serde(default)]
    pub refused: UnreadableJson,
    /// Times that this workflow continued as new.
    #[serde(default)]
    pub runs: u64,
}

/// How far the coordinator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorKnowsJson {
    /// Whether it has the version in force.
    pub is_current: bool,
    /// The newest version that it is known to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
    /// Why it doesn't take the version in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredLimitJson {
    /// Its name.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// The rate that was set: where a ramp ends.
    pub rate: ExactRateJson,
    /// The same as people write it: `100/s`.
    pub rate_text: String,
    /// The burst that was set, in whole tokens.
    pub burst: u64,
    /// How used tokens become usable again.
    #[serde(default)]
    pub policy: PolicyJson,
    /// How long a worker may act on one answer.
    pub lease_ms: u64,
    /// What there was when it began.
    #[serde(default)]
    pub initial: InitialJson,
    /// How many may wait for it in one process; if missing, the process decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// What an operator says of it beside how much it allows.
    #[serde(default, skip_serializing_if = "ConductJson::is_default")]
    pub conduct: ConductJson,
    /// How many tokens the coordinator said may have been drawn: what a coordinator that loses its memory takes to have been
    /// used. Missing: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escrowed: Option<u64>,
    /// Whether it was used in another group before.
    #[serde(default)]
    pub moved: bool,
    /// Its tier's place among those of the limit: lower numbers are higher tiers.
    #[serde(default, skip_serializing_if = "is_highest")]
    pub rank: u32,
    /// What higher tiers leave it in any case, as its rate is stated; missing when they borrow only what is unused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// Whether lower tiers may use what it leaves idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lends: bool,
    /// What is in force.
    pub effective: EffectiveLimitJson,
    /// The ramp of the rate, while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_ramp: Option<RampJson>,
    /// The ramp of the burst, while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ramp: Option<RampJson>,
    /// What is in force instead of what was set: `override`, or `schedule night`. Ramps lead there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The temporary change, if there is one.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub overriding: Option<OverridingJson>,
    /// Changes that come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleJson>,
    /// The ramp of the rate, while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_paused: Option<PausedRampJson>,
    /// The ramp of the burst, while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_paused: Option<PausedRampJson>,
}

/// A linear change that stands still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedRampJson {
    /// Where it goes when it is resumed, as people write it.
    pub to: String,
    /// How long that takes then.
    pub left_us: u64,
}

/// A linear change that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RampJson {
    /// Where it came from, as people write it.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// When it began.
    pub start_us: u64,
    /// When it ends.
    pub end_us: u64,
}

/// Input of query `effective`. Without input, the time of the last message is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "a JSON object")]
pub struct AtJson {
    /// Milliseconds since the Unix epoch.
    #[serde(default)]
    pub at_ms: Option<u64>,
}

/// Result of query `effective`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveJson {
    /// The time that is asked for. What was replaced before the last change is not known any more: see `history`.
    pub at_us: u64,
    /// The version in force now.
    pub version: String,
    /// Every limit.
    pub limits: Vec<EffectiveLimitJson>,
}

/// The values of one limit at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveLimitJson {
    /// Its name.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// The rate, rounded down to millionths of a token per period.
    pub rate: ExactRateJson,
    /// The same as people write it: `73.333/s`.
    pub rate_text: String,
    /// The same in millionths of a token a second, rounded down.
    pub rate_micro: u64,
    /// The burst, in thousandths of a token.
    pub burst_milli: u64,
}

/// Input of query `history`. Without input, all of it is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "a JSON object")]
pub struct HistoryFilterJson {
    /// Only changes of this limit.
    #[serde(default)]
    pub limit: String,
    /// Only the newest so many.
    #[serde(default)]
    pub count: Option<u64>,
}

/// Result of query `history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryJson {
    /// The version in force.
    pub version: String,
    /// The oldest version of which it is known what was set: for rollback and differences.
    #[serde(default)]
    pub kept_from: String,
    /// Newest first.
    pub entries: Vec<EntryJson>,
}

/// Input of query `diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "a JSON object")]
pub struct DiffAskJson {
    /// A version, `run.n`, or the number `n` alone.
    pub from: String,
    /// Another one; the one in force if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Result of query `diff`: what was set, without temporary changes and ramps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffJson {
    /// The version that was named.
    pub from: String,
    /// The other one.
    pub to: String,
    /// One line for each difference.
    pub changes: Vec<String>,
}

/// One change, or one signal that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryJson {
    /// When.
    pub at_us: u64,
    /// The version in force afterwards.
    pub version: String,
    /// The version in force before.
    pub replaced: String,
    /// Who.
    pub actor: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// `applied`, `adopted` (taken over from the coordinator), `refused` (a signal; nothing was changed) or `scheduled` (nobody
    /// made it: it was time).
    pub outcome: String,
    /// One line per change; problems of a refused one.
    pub lines: Vec<String>,
    /// Lines that weren't kept.
    #[serde(default)]
    pub lines_left_out: u64,
}

impl ConfigJson {
    /// The whole configuration.
    pub fn of(config: &Config) -> ConfigJson {
        let (book, push) = (&config.book, &config.push);
        let last = book.refused.back();
        ConfigJson {
            group: config.group.clone(),
            now_us: book.now.0,
            version: book.version.to_string(),
            target_rate_milli: book.settings.target_rate_milli,
            limits: book
                .cells
                .iter()
                .map(|(key, cell)| ConfiguredLimitJson {
                    escrowed: config.escrows.get(key).map(|kept| kept.tokens),
                    ..ConfiguredLimitJson::of(book, cell).with_paused(book.paused.get(key))
                })
                .collect(),
            calendar_error: config.calendar_error.clone(),
            starting: config.adopting,
            coordinator: CoordinatorKnowsJson {
                is_current: push.acknowledged == Some(book.version),
                version: push.acknowledged.map(|version| version.to_string()),
                since_us: push.acknowledged.map(|_| push.acknowledged_at.0),
                error: push.error.clone(),
            },
            unreadable: config.unreadable.clone(),
            refused: UnreadableJson {
                count: book.refused_count,
                last_name: last.map(|_| "update_config".to_owned()).unwrap_or_default(),
                last_us: last.map_or(0, |entry| entry.at.0),
                last_error: last.map(|entry| entry.lines.join("; ")).unwrap_or_default(),
            },
            runs: config.runs,
        }
    }
}

impl ConfiguredLimitJson {
    /// A limit as it was set, and as it is now; `cell` is one of the book's.
    pub fn of(book: &Book, cell: &CellConfig) -> ConfiguredLimitJson {
        let (now, set, layers) = (book.now, book.underneath(cell), book.layers.get(&cell.key));
        let ramp = |from: String, to: String, start: LedgerTime, end: LedgerTime| {
            (now < end).then_some(RampJson { from, to, start_us: start.0, end_us: end.0 })
        };
        let (rate, burst) = (cell.rate, cell.burst);
        let tokens = |amount: Amount| text::milli(amount.milli_floor());
        ConfiguredLimitJson {
            limit: cell.key.limit.clone(),
            meter: cell.key.meter.clone(),
            tier: cell.key.tier.clone(),
            rate: exact(set.rate.target),
            rate_text: text::rate(set.rate.target),
            burst: u64::try_from(set.burst.target.whole()).unwrap_or(0),
            policy: PolicyJson::of(&cell.policy),
            lease_ms: cell.lease.millis(),
            initial: InitialJson::of(cell.initial),
            queue: cell.queue,
            conduct: ConductJson::of(cell.conduct),
            escrowed: None,
            moved: !cell.fresh,
            rank: cell.priority.rank,
            floor: (set.priority.floor < Share::ONE).then(|| floor_text(&set)),
            lends: cell.priority.lends,
            effective: EffectiveLimitJson::of(cell, now),
            rate_ramp: ramp(text::rate(rate.source), text::rate(rate.target), rate.start, rate.end),
            burst_ramp: ramp(tokens(burst.source), tokens(burst.target), burst.start, burst.end),
            by: layers.and_then(|layers| layers.on_top.as_ref()).map(|top| match &top.source {
                Source::Override => "override".to_owned(),
                Source::Schedule(_) => top.source.text(),
            }),
            overriding: layers.and_then(|layers| layers.over.as_ref()).map(|over| OverridingJson {
                value: over.value.json(),
                value_text: over.value.text(),
                since_us: over.since.0,
                until_us: over.until.0,
                ramp_ms: over.ramp.millis(),
                actor: over.actor.clone(),
                reason: over.reason.clone(),
            }),
            schedules: layers
                .into_iter()
                .flat_map(|layers| &layers.schedules)
                .map(|(name, schedule)| schedule.json(&cell.key, name))
                .collect(),
            rate_paused: None,
            burst_paused: None,
        }
    }

    /// The same with its ramps that stand still.
    pub fn with_paused(mut self, paused: Option<&Paused>) -> ConfiguredLimitJson {
        let paused = paused.copied().unwrap_or_default();
        let shown = |to, left: Span| PausedRampJson { to, left_us: left.0 };
        self.rate_paused = paused.rate.map(|(to, left)| shown(text::rate(to), left));
        self.burst_paused = paused.burst.map(|(to, left)| shown(to.to_string(), left));
        self
    }
}

impl EffectiveJson {
    /// The values in force at `at`, by all that is known to come.
    pub fn of(book: &Book, at: LedgerTime) -> EffectiveJson {
        let version = book.version.to_string();
        let mut book = book.clone();
        book.advance(at);
        EffectiveJson {
            at_us: at.0,
            version,
            limits: book.cells.values().map(|cell| EffectiveLimitJson::of(cell, at)).collect(),
        }
    }
}

impl EffectiveLimitJson {
    fn of(cell: &CellConfig, at: LedgerTime) -> EffectiveLimitJson {
        let rate = cell.rate.at(at);
        EffectiveLimitJson {
            limit: cell.key.limit.clone(),
            meter: cell.key.meter.clone(),
            tier: cell.key.tier.clone(),
            rate: exact(rate),
            rate_text: text::rate(rate),
            rate_micro: rate.micro_per_second(),
            burst_milli: cell.burst.at(at).milli_floor(),
        }
    }
}

impl HistoryJson {
    /// What was changed, newest first.
    pub fn of(book: &Book, filter: &HistoryFilterJson) -> HistoryJson {
        let mut entries: Vec<&Entry> = book.history.iter().chain(&book.refused).collect();
        // Stable, so that entries of one moment stay in their order.
        entries.sort_by_key(|entry| entry.at);
        let fits = |entry: &&&Entry| filter.limit.is_empty() || entry.concerns(&filter.limit);
        let count = filter.count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        let newest = entries.iter().rev().filter(fits).take(count);
        HistoryJson {
            version: book.version.to_string(),
            kept_from: book.kept_from.to_string(),
            entries: newest.map(|entry| EntryJson::of(entry)).collect(),
        }
    }
}

impl EntryJson {
    fn of(entry: &Entry) -> EntryJson {
        let outcome = match entry.outcome {
            Outcome::Applied => "applied",
            Outcome::Adopted => "adopted",
            Outcome::Refused => "refused",
            Outcome::Scheduled => "scheduled",
        };
        EntryJson {
            at_us: entry.at.0,
            version: entry.version.to_string(),
            replaced: entry.replaced.to_string(),
            actor: entry.actor.clone(),
            reason: entry.reason.clone(),
            outcome: outcome.to_owned(),
            lines: entry.lines.clone(),
            lines_left_out: entry.lines_left_out,
        }
    }
}

fn is_highest(rank: &u32) -> bool {
    *rank == 0
}

fn exact(rate: Rate) -> ExactRateJson {
    ExactRateJson { micro_tokens: rate.micro_tokens, period_us: rate.period.0 }
}
