//! A look at what a limit could give: takes nothing, and promises nothing.

use super::Ledger;
use super::alloc_share::waiting;
use super::cell::Cell;
use super::total;
use crate::limit::{CellKey, whole_tokens};
use crate::rules::Rules;
use crate::units::{Amount, LedgerTime, Span};

/// What a look at a cell found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// As of when.
    pub at: LedgerTime,
    /// Tokens that nobody has used and nobody waits for: free ones, and those that lay unused with workers when they last asked.
    pub available: Amount,
    /// The burst then, in whole tokens: a larger cost can never be admitted.
    pub burst: u64,
    /// What stands against it; `None` when nothing does.
    pub obstacle: Option<Obstacle>,
    /// When it may be admitted at the earliest, as far as is known, if not at once.
    pub after: Option<Span>,
}

/// Why something would not be admitted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// One piece of the work costs more than the burst.
    CostAboveBurst,
    /// An operator has paused it.
    Paused,
    /// Leases that the ledger doesn't know have to end first.
    Recovering,
    /// There is less than that.
    TooLittle,
}

impl Ledger {
    /// Whether `count` pieces of work that cost `cost` each could all begin at `now`, or at the ledger's latest time if that is later.
    /// Changes nothing. `None`: there is no such cell.
    pub fn would_admit(&self, key: &CellKey, cost: u64, count: u64, now: LedgerTime) -> Option<Outlook> {
        let cell = self.state().cells.get(key).filter(|cell| !cell.removed)?;
        let mut cell = cell.clone();
        let at = now.max(self.state().now);
        cell.advance(at, Rules::ALL);
        let available = cell.unused(at) - Amount::tokens(waiting(&cell, at));
        let wanted = Amount::tokens(cost.saturating_mul(count));
        let burst = cell.config.burst_tokens(at);
        let (obstacle, after) = if cost > burst {
            (Some(Obstacle::CostAboveBurst), None)
        } else if cell.config.conduct.paused {
            (Some(Obstacle::Paused), None)
        } else if cell.is_recovering(at) {
            (Some(Obstacle::Recovering), cell.recovering_until.map(|until| until.since(at)))
        } else if wanted > available {
            (Some(Obstacle::TooLittle), cell.earliest(at, wanted - available))
        } else {
            (None, None)
        };
        Some(Outlook { at, available: available.at_least_zero(), burst, obstacle, after })
    }
}

impl Cell {
    fn unused(&self, at: LedgerTime) -> Amount {
        let held = self.holders.values().map(|holding| holding.held.min(holding.counts(at).1));
        (self.free + total(held)).min(Amount::tokens(whole_tokens(self.config.burst.at(at))))
    }

    /// How long until `missing` tokens more may be there.
    fn earliest(&self, at: LedgerTime, missing: Amount) -> Option<Span> {
        if self.config.policy.conserves() {
            return self.next_return(at).map(|back| back.since(at));
        }
        self.config.rate.at(at).time_for(missing)
    }
}
