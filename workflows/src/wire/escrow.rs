//! Update `escrow` of the config workflow: the coordinator says how much of a window may have been drawn, before it lends it.

use super::Unreadable;
use serde::{Deserialize, Serialize};
use tollgate_core::ledger::escrow::Escrow;
use tollgate_core::limit::{CellKey, check_label, check_name};

/// Input of update `escrow`, and of activity `tollgate.escrow`, which brings it to the config workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscrowJson {
    /// The group.
    pub group: String,
    /// One entry per limit.
    pub cells: Vec<EscrowCellJson>,
}

/// What may have been drawn of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscrowCellJson {
    /// The limit.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// Newer statements have greater numbers; 0 only asks.
    pub seq: u64,
    /// Whole tokens.
    pub tokens: u64,
}

/// Result of update `escrow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum EscrowReplyJson {
    /// What is kept in mind now, for the same limits.
    Ok {
        /// One entry per limit.
        cells: Vec<EscrowCellJson>,
    },
    /// Nothing was changed: ask again.
    Busy,
}

impl EscrowCellJson {
    /// As JSON carries it.
    pub fn of(key: &CellKey, escrow: Escrow) -> EscrowCellJson {
        EscrowCellJson {
            limit: key.limit.clone(),
            meter: key.meter.clone(),
            tier: key.tier.clone(),
            seq: escrow.seq,
            tokens: escrow.tokens,
        }
    }

    /// As the ledger takes it.
    ///
    /// # Errors
    /// [`Unreadable`] naming the field that is wrong.
    pub fn check(self) -> Result<(CellKey, Escrow), Unreadable> {
        check_name("limit", &self.limit)?;
        check_label("meter", &self.meter)?;
        check_label("tier", &self.tier)?;
        let key = CellKey { limit: self.limit, meter: self.meter, tier: self.tier };
        Ok((key, Escrow { seq: self.seq, tokens: self.tokens }))
    }
}
