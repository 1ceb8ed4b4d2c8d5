//! What takes a worker's quota away: signal and update `evict`.

use super::{Coordinator, NOTICES_MAX};
use crate::wire::lease::{incarnation_of, incarnation_text};
use crate::wire::status::standing_text;
use crate::wire::{Unreadable, read};
use serde::{Deserialize, Serialize};
use temporalio_common::data_converters::RawValue;
use tollgate_core::ledger::Input;
use tollgate_core::message::Incarnation;
use tollgate_core::units::LedgerTime;

/// From so many characters on, the beginning of an incarnation means it.
const PREFIX_MIN: usize = 4;
/// Of several workers that a beginning may mean, so many are named.
const NAMED_MAX: usize = 5;

/// Input of signal and update `evict`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictJson {
    /// The worker, by name or incarnation. A name means every worker that has it; the beginning of an incarnation, from
    /// four digits on, must mean one alone.
    pub worker: String,
    /// Who evicts it; kept in the workflow's history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actor: String,
    /// Why; kept in the workflow's history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Result of update `evict`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum EvictedJson {
    /// They get nothing more.
    Ok {
        /// The time of the eviction.
        now_us: u64,
        /// Every worker that was meant.
        workers: Vec<EvictedWorkerJson>,
    },
    /// Nothing was done.
    Refused {
        /// Why.
        message: String,
    },
    /// It recovers from a reset: ask again.
    Busy,
}

/// A worker that was evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictedWorkerJson {
    /// The process.
    pub incarnation: String,
    /// Its name for people.
    pub worker: String,
    /// Its standing before: `live`, `evicted`, `revoked`, `burned`.
    pub was: String,
    /// Until when what it holds counts, unless it answers before; missing when it holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds_until_us: Option<u64>,
}

impl Coordinator {
    pub(super) fn evict_signal(&mut self, now: LedgerTime, input: &RawValue) -> Result<(), Unreadable> {
        let wanted = read::<EvictJson>(input)?.worker;
        let found = self.meant(&wanted)?;
        self.evict_all(now, &found);
        Ok(())
    }

    pub(super) fn evict_by_update(&mut self, now: LedgerTime, wanted: &EvictJson) -> EvictedJson {
        let found = match self.meant(&wanted.worker) {
            Ok(found) => found,
            Err(error) => return EvictedJson::Refused { message: error.to_string() },
        };
        let views = self.ledger.view();
        let holders = || views.iter().flat_map(|view| &view.holders);
        let workers = found.iter().filter_map(|id| {
            let worker = self.ledger.state().workers.get(id)?;
            let held = holders().filter(|holder| holder.incarnation == *id && holder.cap.0 > 0);
            Some(EvictedWorkerJson {
                incarnation: incarnation_text(*id),
                worker: worker.name.clone(),
                was: standing_text(worker.standing).to_owned(),
                holds_until_us: held.filter_map(|holder| holder.expires).max().map(|until| until.0),
            })
        });
        let workers = workers.collect();
        self.evict_all(now, &found);
        EvictedJson::Ok { now_us: now.0, workers }
    }

    /// The workers of a name, or the one whose incarnation begins so.
    fn meant(&self, wanted: &str) -> Result<Vec<Incarnation>, Unreadable> {
        let workers = &self.ledger.state().workers;
        let by_id = incarnation_of(wanted).ok();
        let named = workers.iter().filter(|(id, worker)| Some(**id) == by_id || worker.name == wanted);
        let mut found: Vec<Incarnation> = named.map(|(id, _)| *id).collect();
        if found.is_empty() && wanted.len() >= PREFIX_MIN {
            let prefix = wanted.to_ascii_lowercase();
            found = workers.keys().copied().filter(|id| incarnation_text(*id).starts_with(&prefix)).collect();
            if found.len() > 1 {
                let some = found.iter().take(NAMED_MAX).map(|id| incarnation_text(*id)).collect::<Vec<_>>();
                let problem = format!(
                    "is {}, with which {} incarnations begin ({}), allowed: what means one",
                    short(wanted),
                    found.len(),
                    some.join(", ")
                );
                return Err(Unreadable::of("worker", problem));
            }
        }
        if found.is_empty() {
            let allowed = "allowed: name or incarnation of a worker that is known";
            return Err(Unreadable::of("worker", format!("is {}, {allowed}", short(wanted))));
        }
        Ok(found)
    }

    fn evict_all(&mut self, now: LedgerTime, found: &[Incarnation]) {
        for incarnation in found {
            self.ledger.apply(now, Input::Evict(*incarnation));
            if self.notices.len() < NOTICES_MAX {
                self.notices.push_back(*incarnation);
            }
        }
    }
}

/// The beginning of a text that somebody sent.
fn short(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}
