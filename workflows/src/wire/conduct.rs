//! What an operator says of a limit beside how much it allows.

use super::Unreadable;
use crate::config::text;
use serde::{Deserialize, Serialize};
use tollgate_core::limit::{Conduct, WhenLost, check_reserve};
use tollgate_core::units::Share;

/// See the module's documentation. As the ledger and workers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConductJson {
    /// All work is refused until the limit is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Nothing is refused: it counts, and says what it would have refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// The part of the burst that is kept for newcomers while the rest suffices.
    #[serde(default = "reserve", skip_serializing_if = "is_default_reserve")]
    pub reserve_ppb: u32,
    /// What becomes of work in a process that has lost the coordinator.
    #[serde(default, skip_serializing_if = "WhenLostJson::is_closed")]
    pub when_lost: WhenLostJson,
}

/// What becomes of work in a process whose lease has ended and that doesn't reach the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WhenLostJson {
    /// It is refused.
    #[default]
    Closed,
    /// It goes on at this part of the share that the process had. The limit may be broken meanwhile.
    Hold {
        /// The part.
        part_ppb: u32,
    },
    /// It goes on without any limit.
    Open,
}

fn reserve() -> u32 {
    Conduct::RESERVE.ppb()
}
fn is_default_reserve(ppb: &u32) -> bool {
    *ppb == reserve()
}

impl Default for ConductJson {
    fn default() -> ConductJson {
        ConductJson::of(Conduct::default())
    }
}

impl ConductJson {
    /// As JSON carries it.
    pub fn of(conduct: Conduct) -> ConductJson {
        ConductJson {
            paused: conduct.paused,
            shadow: conduct.shadow,
            reserve_ppb: conduct.reserve.ppb(),
            when_lost: WhenLostJson::of(conduct.when_lost),
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Unreadable`] naming the field.
    pub fn check(self) -> Result<Conduct, Unreadable> {
        Ok(Conduct {
            paused: self.paused,
            shadow: self.shadow,
            reserve: reserve_of(self.reserve_ppb)?,
            when_lost: self.when_lost.check()?,
        })
    }

    /// Whether there is nothing to say of it.
    pub fn is_default(&self) -> bool {
        *self == ConductJson::default()
    }
}

impl std::fmt::Display for WhenLostJson {
    /// As `tollgate limit set --when-lost` takes it; a part that no limit can have, as it is.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.check() {
            Ok(when_lost) => f.write_str(&text::when_lost(when_lost)),
            Err(_) => write!(f, "{self:?}"),
        }
    }
}

/// A part of 10^9 as `10%` or `12.5%`.
pub fn percent_text(ppb: u32) -> String {
    text::percent(Share::from_ppb(ppb).unwrap_or(Share::ONE))
}

/// Checks a reserve.
///
/// # Errors
/// [`Unreadable`] naming `reserve_ppb`.
pub fn reserve_of(ppb: u32) -> Result<Share, Unreadable> {
    let reserve = share_of("reserve_ppb", ppb)?;
    check_reserve(reserve)?;
    Ok(reserve)
}

fn share_of(field: &str, ppb: u32) -> Result<Share, Unreadable> {
    let range = || Unreadable::of(field, format!("is {ppb}, allowed: 0 to 1000000000"));
    Share::from_ppb(ppb).ok_or_else(range)
}

impl WhenLostJson {
    /// As JSON carries it.
    pub fn of(when_lost: WhenLost) -> WhenLostJson {
        match when_lost {
            WhenLost::Closed => WhenLostJson::Closed,
            WhenLost::Hold(part) => WhenLostJson::Hold { part_ppb: part.ppb() },
            WhenLost::Open => WhenLostJson::Open,
        }
    }

    /// Checks the range.
    ///
    /// # Errors
    /// [`Unreadable`] naming `part_ppb`.
    pub fn check(self) -> Result<WhenLost, Unreadable> {
        Ok(match self {
            WhenLostJson::Closed => WhenLost::Closed,
            WhenLostJson::Hold { part_ppb } => WhenLost::Hold(share_of("part_ppb", part_ppb)?),
            WhenLostJson::Open => WhenLost::Open,
        })
    }

    fn is_closed(&self) -> bool {
        *self == WhenLostJson::Closed
    }
}
