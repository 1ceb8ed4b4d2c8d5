//! Query `would_admit`: a look at a limit that takes nothing.

use super::Unreadable;
use serde::{Deserialize, Serialize};
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::outlook::{Obstacle, Outlook};
use tollgate_core::limit::{CellKey, check_label, check_name};
use tollgate_core::units::{LedgerTime, Span};

/// Input of query `would_admit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldAdmitJson {
    /// The limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// What one piece of work costs; one token if missing.
    #[serde(default = "one")]
    pub cost: u64,
    /// How many pieces are to begin at once; one if missing.
    #[serde(default = "one")]
    pub count: u64,
    /// The time of whoever asks: what would be there by then is counted. The time of the last message if missing or earlier.
    #[serde(default)]
    pub at_us: u64,
}

fn meter() -> String {
    CellKey::METER.to_owned()
}
fn tier() -> String {
    CellKey::TIER.to_owned()
}
fn one() -> u64 {
    1
}

/// Result of query `would_admit`: true when it was asked, and no promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutlookJson {
    /// Whether all of it could begin at once.
    pub would_admit: bool,
    /// Why not: `cost_above_burst`, `paused`, `recovering`, `too_little` or `unknown_limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in words.
    pub message: String,
    /// Tokens that are wanted.
    pub wanted: u64,
    /// Tokens that nobody has used and nobody waits for, as workers last said.
    #[serde(default)]
    pub available_milli: u64,
    /// The burst.
    #[serde(default)]
    pub burst: u64,
    /// When it may be admitted at the earliest, as far as is known, if not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// The time of the coordinator's last message: what workers said is from before.
    pub now_us: u64,
}

impl WouldAdmitJson {
    /// Looks.
    ///
    /// # Errors
    /// [`Unreadable`] naming the field that is wrong.
    pub fn answer(&self, ledger: &Ledger) -> Result<OutlookJson, Unreadable> {
        check_name("limit", &self.limit)?;
        check_label("meter", &self.meter)?;
        check_label("tier", &self.tier)?;
        for (field, value) in [("cost", self.cost), ("count", self.count)] {
            if value == 0 {
                return Err(Unreadable::of(field, "is 0, allowed: one or more"));
            }
        }
        let key = CellKey { limit: self.limit.clone(), meter: self.meter.clone(), tier: self.tier.clone() };
        let found = ledger.would_admit(&key, self.cost, self.count, LedgerTime(self.at_us));
        let wanted = self.cost.saturating_mul(self.count);
        let now_us = ledger.state().now.0;
        let Some(outlook) = found else {
            return Ok(OutlookJson {
                would_admit: false,
                reason: Some("unknown_limit".to_owned()),
                message: format!("there is no limit {key}"),
                wanted,
                available_milli: 0,
                burst: 0,
                after_ms: None,
                now_us,
            });
        };
        let Outlook { available, burst, obstacle, after, .. } = outlook;
        let available_milli = available.milli_floor();
        let whole = available_milli / 1_000;
        let (reason, message) = match obstacle {
            None => (None, format!("{wanted} wanted, {whole} there")),
            Some(Obstacle::CostAboveBurst) => (
                Some("cost_above_burst"),
                format!("a cost of {} is above the burst of {burst}: it can never be admitted", self.cost),
            ),
            Some(Obstacle::Paused) => (Some("paused"), "an operator has paused the limit".to_owned()),
            Some(Obstacle::Recovering) => {
                (Some("recovering"), "the coordinator waits for leases that it doesn't know".to_owned())
            }
            Some(Obstacle::TooLittle) => (Some("too_little"), format!("{wanted} wanted, only {whole} there")),
        };
        Ok(OutlookJson {
            would_admit: obstacle.is_none(),
            reason: reason.map(str::to_owned),
            message,
            wanted,
            available_milli,
            burst,
            after_ms: after.map(Span::millis_ceil),
            now_us,
        })
    }
}
