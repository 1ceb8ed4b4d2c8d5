//! Permits that are charged nothing: of limits in shadow mode, and of those that open when the coordinator is lost.
//!
//! Such a limit is charged as ever for what is there. Only where it would refuse, or have somebody wait, is the work let through: what
//! is admitted beyond it takes no tokens, gives none back, and is counted apart. The coordinator hears that it was wanted, so that
//! shares are what they would be.

use crate::charges::{Charges, Found};
use crate::error::Reason;
use crate::limit::Cell;
use crate::local;
use crate::permit::Permit;
use crate::queue::Verdict;
use crate::set::{Costs, Holding, Partial, Set};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::bucket::{Admitted, Mark};
use tollgate_core::limit::CellKey;
use tollgate_core::units::{BootTime, Span};

/// Where nothing was taken: no level comes to this generation, and nothing is put back after use.
pub(crate) const UNCHARGED: Mark = Mark { generation: u32::MAX - 1, looks: u64::MAX };
/// For how long such a permit says that the work may start: about a lease.
const VALID_FOR: Span = Span::from_secs(15);
/// What a limit may say beside refusals with a reason.
const OTHERS: [&str; 2] = ["cost_above_burst", "unknown_limit"];

/// Whose work is never refused, by the process's own choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    pub all: bool,
    pub limits: BTreeSet<String>,
}

impl Shadow {
    pub(crate) fn covers(&self, key: &CellKey) -> bool {
        self.all || self.limits.contains(&key.limit)
    }
}

/// What was let through, for nothing.
#[derive(Debug, Default)]
pub(crate) struct Uncharged {
    refused: [AtomicU64; Reason::ALL.len() + OTHERS.len()],
    pub shadow_tokens: AtomicU64,
    pub opened: AtomicU64,
    pub opened_tokens: AtomicU64,
}

impl Uncharged {
    /// What a limit in shadow mode would have said.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        Reason::ALL.iter().map(|reason| reason.as_str()).chain(OTHERS)
    }

    /// How often it would have said so, without what did not occur.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        let counts = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        Uncharged::names().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}

impl Charges {
    /// Lets work through that some meters lack tokens for, when all of those do that; the others are charged. `raced`: all seemed to be
    /// there, and somebody else took it; then nothing is charged, where all let it through. The caller holds all queues, and has not been served.
    pub(crate) fn let_through(
        &self,
        found: &[Found<'_>],
        holding: &Holding,
        number: Option<u64>,
        now: BootTime,
        raced: bool,
    ) -> Result<Permit, Option<Box<Partial>>> {
        let mut each = found.iter().map(|found| found.facts.lets_through());
        if !(if raced { each.all(|lets| lets) } else { each.any(|lets| lets) }) {
            return Err(None);
        }
        let lacks = |found: &&Found<'_>| {
            let verdict = found.facts.verdict(found.cost, found.level, number, now);
            verdict.is_some() || found.ahead > 0 || found.is_short() || raced
        };
        let lacking: Vec<&Found<'_>> = found.iter().filter(lacks).collect();
        if lacking.is_empty() || !lacking.iter().all(|found| found.facts.lets_through()) {
            return Err(None);
        }
        let permit = match self {
            Charges::One(cell, _) => {
                let admitted = Admitted { at: now, valid_until: now + VALID_FOR, mark: UNCHARGED };
                Permit::new(local::handle(cell), 0, admitted)
            }
            Charges::Several(set, costs) => set.without(costs, &lacking, holding)?,
        };
        for found in lacking {
            found.cell.count_through(found, number, now);
        }
        Ok(permit)
    }
}

impl Set {
    /// A permit that is charged to all meters but these.
    fn without(
        self: &Arc<Set>,
        costs: &Costs,
        lacking: &[&Found<'_>],
        holding: &Holding,
    ) -> Result<Permit, Option<Box<Partial>>> {
        let is_lacking = |cell: &Arc<Cell>| lacking.iter().any(|found| Arc::ptr_eq(found.cell, cell));
        let (mut rest, mut held) = (*costs, *holding);
        let slots = rest.iter_mut().zip(&mut held).zip(self.cells());
        for ((cost, held), _) in slots.filter(|(_, cell)| is_lacking(cell)) {
            (*cost, *held) = (0, None);
        }
        let mut taken = self.take(&rest, &held)?;
        taken.valid_until = taken.valid_until.min(taken.at + VALID_FOR);
        taken.note_free(is_lacking, UNCHARGED);
        Ok(Permit::of_several(taken))
    }
}

impl Cell {
    /// Counts work that was let through for nothing.
    fn count_through(&self, found: &Found<'_>, number: Option<u64>, now: BootTime) {
        let (facts, cost) = (&found.facts, found.cost);
        let verdict = facts.verdict(cost, found.level, number, now);
        let verdict = verdict.unwrap_or_else(|| Verdict::Refused(found.reason_now(now)));
        let counts = &self.counts;
        let add = |count: &AtomicU64, more: u64| count.fetch_add(more, Ordering::Relaxed);
        let place = match verdict {
            Verdict::Refused(reason) => {
                // It was wanted, and not granted.
                add(&counts.refused_tokens, cost);
                reason as usize
            }
            Verdict::CostAboveBurst { .. } => Reason::ALL.len(),
            Verdict::UnknownLimit => Reason::ALL.len() + 1,
        };
        if facts.shadow {
            counts.uncharged.refused.get(place).map(|count| add(count, 1));
            add(&counts.uncharged.shadow_tokens, cost);
        } else {
            add(&counts.uncharged.opened, 1);
            add(&counts.uncharged.opened_tokens, cost);
        }
        self.level.count_grant();
        if let Some(log) = &self.core.log {
            log.admitted(now, &self.name, cost);
        }
        self.kick_gently(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_charged_nothing_is_never_put_back() {
        assert!(!UNCHARGED.puts_back());
        // A level's generations are as many as its policy has changed; one that wraps around is in its four-billionth.
        assert_ne!(UNCHARGED, Mark::default());
    }

    #[test]
    fn every_reason_has_its_place() {
        assert_eq!(Uncharged::names().count(), Uncharged::default().refused.len());
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
    }
}
