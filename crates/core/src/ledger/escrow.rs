//! How much may have been drawn, kept in mind by somebody who outlives the ledger's memory.
//!
//! A ledger that lost its memory must take all conserved tokens that nobody claims to have been used, which closes a daily quota
//! for the day. So a keeper is told *before* tokens are lent how many may be out or away at once, and what is away was used in the
//! present window or was about to be. At all times
//!
//! ```text
//! sum of caps that may be acted on + away <= what the keeper last said that it keeps in mind
//! ```
//!
//! Since what counts once in a window counts until its end, a ledger that begins without memory takes that many tokens to have been used,
//! and the rest not. While the keeper can't be reached nothing more is lent: that is safe.
//!
//! Statements are numbered, and one is under way at a time. The keeper takes a newer one in place of an older one, so that what
//! was given back unused is forgotten; of two with the same number, one of which must be from a ledger that is gone,
//! the larger; and older ones not at all.

use super::Ledger;
use super::alloc_share::waiting;
use super::cell::Cell;
use crate::curve::BURST_MAX;
use crate::limit::{CellKey, whole_tokens};
use crate::policy::Policy;
use crate::rules::{Rule, Rules};
use crate::units::{Amount, LedgerTime, Span};
use alloc::vec::Vec;

/// So many parts of all tokens may be lent before the keeper is told again: at most this is lost with the ledger's memory, 2%.
const ROOM_PARTS: u64 = 50;
/// Less is kept in mind again after this at the earliest: what comes back often goes out again.
const LOWER_AFTER: Span = Span::from_secs(10);

/// A statement of how many tokens may be out or away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Escrow {
    /// Newer statements have greater numbers. Zero only asks.
    pub seq: u64,
    /// Whole tokens.
    pub tokens: u64,
}

impl Escrow {
    /// What a keeper says that was never told of a cell: all of it may have been drawn.
    pub const ALL: Escrow = Escrow { seq: 0, tokens: BURST_MAX };

    /// What a keeper that keeps `self` in mind keeps after it was told `new`.
    pub fn told(self, new: Escrow) -> Escrow {
        match new.seq.cmp(&self.seq) {
            core::cmp::Ordering::Greater => new,
            core::cmp::Ordering::Equal => Escrow { tokens: self.tokens.max(new.tokens), ..self },
            core::cmp::Ordering::Less => self,
        }
    }
}

/// What a cell knows of its keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// What the keeper said. `None`: it has not been heard since the ledger began.
    pub known: Option<Escrow>,
    /// What it is being told.
    pub told: Option<Escrow>,
    /// Since when.
    pub told_at: LedgerTime,
}

impl Ledger {
    /// Whether [`Ledger::escrow_asks`] has any.
    pub fn has_escrow_asks(&self) -> bool {
        self.state().cells.values().any(|cell| cell.kept.told.is_some())
    }

    /// What keepers have to be told: until the answer comes back as [`super::Input::Escrowed`], no more is lent than both the
    /// last answer and this allow. The same until then, whatever is lost on the way.
    pub fn escrow_asks(&self) -> Vec<(CellKey, Escrow)> {
        let cells = self.state().cells.iter();
        cells.filter_map(|(key, cell)| Some((key.clone(), cell.kept.told?))).collect()
    }
}

impl Cell {
    fn escrows(&self) -> bool {
        matches!(self.config.policy, Policy::FixedWindow { escrow: true, .. })
    }

    /// The most tokens that may have been used when a ledger without memory stops to wait for leases.
    pub(super) fn may_have_been_used(&self) -> Amount {
        let all = self.config.burst.at(self.at);
        let kept = self.kept.known.filter(|_| self.escrows());
        kept.map_or(all, |kept| all.min(Amount::tokens(kept.tokens)))
    }

    /// What may be lent as far as the keeper is concerned.
    pub(super) fn escrow_room(&self, now: LedgerTime, rules: Rules) -> Amount {
        if !self.escrows() || !rules.keeps(Rule::EscrowedFirst) {
            return self.free;
        }
        let known = self.kept.known.map_or(0, |kept| kept.tokens);
        let most = self.kept.told.map_or(known, |told| told.tokens.min(known));
        self.free.min(Amount::tokens(most) - self.drawn(now))
    }

    fn drawn(&self, now: LedgerTime) -> Amount {
        self.outstanding(now).1 + self.away.total()
    }

    /// The keeper has answered with what it keeps in mind.
    pub(super) fn escrowed(&mut self, kept: Escrow) {
        // An older answer says less than is known.
        if self.kept.known.is_none_or(|known| known.seq <= kept.seq) {
            self.kept.known = Some(kept);
        }
        if self.kept.told.is_some_and(|told| told.seq <= kept.seq) {
            self.kept.told = None;
        }
    }

    /// Decides what the keeper has to be told next: more ahead of need, less when much has come back.
    pub(super) fn plan_escrow(&mut self, now: LedgerTime) {
        if !self.escrows() || self.removed {
            self.kept = Kept::default();
            return;
        }
        if self.kept.told.is_some() {
            return;
        }
        let Some(known) = self.kept.known else {
            self.kept = Kept { told: Some(Escrow::default()), told_at: now, ..self.kept };
            return;
        };
        if self.is_recovering(now) {
            // What is out isn't known yet.
            return;
        }
        let all = whole_tokens(self.config.burst.at(now));
        let room = all.div_ceil(ROOM_PARTS);
        let drawn = whole_tokens(self.drawn(now));
        let there = known.tokens.saturating_sub(drawn);
        let is_short = there < room.div_ceil(2) && known.tokens < all;
        let is_much = there > room.saturating_mul(2) && self.kept.told_at + LOWER_AFTER <= now;
        if !is_short && !is_much {
            return;
        }
        // Whoever waits takes at once what it gets: that is in use and not room.
        let more = waiting(self, now).min(whole_tokens(self.free.at_least_zero()));
        let tokens = drawn.saturating_add(more).saturating_add(room).min(all.max(drawn));
        if is_short || tokens.saturating_add(room) < known.tokens {
            let told = Escrow { seq: known.seq.saturating_add(1), tokens };
            self.kept = Kept { told: Some(told), told_at: now, ..self.kept };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_takes_newer_statements_and_of_two_with_one_number_the_larger() {
        let told = |seq, tokens| Escrow { seq, tokens };
        let kept = Escrow::ALL.told(told(1, 20)).told(told(2, 40)).told(told(1, 90));
        assert_eq!(kept, told(2, 40));
        assert_eq!(kept.told(Escrow::default()), kept, "a question changes nothing");
        assert_eq!(kept.told(told(3, 10)), told(3, 10), "what came back unused is forgotten");
        // The last words of a ledger that is gone, and the first ones of the next.
        assert_eq!(kept.told(told(3, 10)).told(told(3, 45)), told(3, 45));
        assert_eq!(kept.told(told(3, 45)).told(told(3, 10)), told(3, 45));
    }
}
