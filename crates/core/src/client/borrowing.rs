//! What a process wants of other tiers' cells for work whose own cell has run dry.
//!
//! The owner of a [`Client`] adds one borrowed cell for each tier that [`ClientCell::lenders`] names, and takes from
//! [`Client::sources`] in order. What to ask of a borrowed cell follows from what its users want and have.

use super::{Client, ClientCell, kept};
use crate::bucket::{Level, Now};
use crate::message::{CellOutcome, CellReply, Lender};
use crate::units::{Amount, Share};
use alloc::string::String;
use alloc::vec::Vec;

/// A cell that work of a tier may take from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Its index.
    index: usize,
    /// Whether it is a higher tier's.
    above: bool,
}

/// What tiers want of a cell that they borrow from, beyond what they have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassedOn {
    /// Wanted tokens a second, in millionths.
    pub demand: u64,
    /// Tokens that waiters want.
    pub waiting: u64,
    /// Their largest cost.
    pub largest: u64,
    /// For whom.
    pub user: Option<User>,
    /// Whether the ledger knows that nothing is wanted and nothing is held.
    pub quiet: bool,
}

/// The highest tier that wants something of a borrowed cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    /// The index of its own cell.
    pub index: usize,
    /// Whether it is a lower tier than the lender.
    pub below: bool,
}

impl<L: Level> ClientCell<L> {
    /// Whether there is nothing to say of it.
    pub(super) fn is_quiet(&self) -> bool {
        self.passed_on.is_some_and(|passed_on| passed_on.quiet && passed_on.user.is_none())
    }

    /// What the lease brings a second, in millionths of a token; of conserved tokens, `demand` while they suffice for it.
    pub(super) fn brings(&self, now: Now, demand: u64) -> u64 {
        let Some(held) = self.mint.held().filter(|_| self.mint.is_alive(now)) else { return 0 };
        if held.policy.conserves() {
            let there = u64::try_from(self.level.level()).unwrap_or(0);
            return if there >= kept(demand).saturating_add(self.wants.waiting) { demand } else { 0 };
        }
        held.share.of(held.rate.at(held.granted + now.boot.since(held.received)).micro_per_second())
    }

    /// After this answer nothing need be said of it for as long as nothing is wanted.
    pub(super) fn note_quiet(&mut self, answer: &CellReply) {
        if let Some(passed_on) = &mut self.passed_on {
            let holds = match &answer.outcome {
                CellOutcome::Lease(terms) => terms.share > Share::ZERO || terms.cap > Amount::ZERO,
                CellOutcome::Unknown => false,
            };
            passed_on.quiet = self.told.nothing && !holds && self.level.level() >= 0;
        }
    }
}

impl<L: Level> Client<L> {
    /// The cells that work of this one may take from, in order: its own, and what is borrowed for it.
    pub fn sources(&self, index: usize) -> impl Iterator<Item = usize> {
        // What was asked for in the name of higher tiers is not for lower ones.
        let may_take = |source: &&Source| {
            !source.above || self.cells.get(source.index).is_some_and(|cell| cell.told.for_lower)
        };
        let own = self.cells.get(index);
        let borrowed = own.map_or([].as_slice(), |own| &own.sources).iter().filter(may_take);
        own.map(|_| index).into_iter().chain(borrowed.map(|source| source.index))
    }

    /// The tier in whose name a borrowed cell is asked for.
    pub(super) fn user_of(&self, cell: &ClientCell<L>) -> Option<String> {
        let user = cell.passed_on?.user?;
        Some(self.cells.get(user.index)?.key.tier.clone())
    }

    /// Finds for each tier's cell the cells that are borrowed for it.
    pub(super) fn link(&mut self) {
        let sources = |own: &ClientCell<L>| -> Vec<Source> {
            let of = |lender: &Lender| {
                let is_it = |other: &ClientCell<L>| {
                    let (key, own) = (&other.key, &own.key);
                    other.borrowed
                        && (&key.limit, &key.meter, &key.tier) == (&own.limit, &own.meter, &lender.tier)
                };
                let index = self.cells.iter().position(is_it)?;
                Some(Source { index, above: lender.above })
            };
            own.lenders.iter().filter_map(of).collect()
        };
        let all: Vec<Vec<Source>> = self.cells.iter().map(sources).collect();
        for (index, cell) in self.cells.iter_mut().enumerate() {
            if cell.passed_on.is_none() && all.iter().flatten().any(|source| source.index == index) {
                let quiet = cell.mint.held().is_none();
                cell.passed_on = Some(PassedOn { quiet, ..PassedOn::default() });
            }
        }
        for (cell, sources) in self.cells.iter_mut().zip(all) {
            cell.sources = sources;
        }
    }

    /// Works out what borrowed cells are to bring: what tiers want beyond what their own cells and nearer lenders bring, the
    /// highest tier first.
    pub(super) fn pass_on(&mut self, now: Now) {
        if self.cells.iter().all(|cell| cell.passed_on.is_none()) {
            return;
        }
        let mut passed = alloc::vec![PassedOn::default(); self.cells.len()];
        let wanted = |cell: &ClientCell<L>| cell.brings(now, cell.wanted().0);
        let mut brings: Vec<u64> = self.cells.iter().map(wanted).collect();
        let mut users: Vec<(usize, &ClientCell<L>)> = self.cells.iter().enumerate().collect();
        users.sort_by_key(|(_, user)| user.rank);
        for (index, user) in users {
            let (demand, waiting) = user.wanted();
            let mut left = demand.saturating_sub(user.brings(now, demand));
            for source in &user.sources {
                let below = source.above;
                let (Some(passed), Some(brings)) =
                    (passed.get_mut(source.index), brings.get_mut(source.index))
                else {
                    continue;
                };
                // Lower tiers are lent to only while no higher one borrows.
                let others_first = below && passed.user.is_some_and(|first| !first.below);
                if left == 0 || others_first {
                    continue;
                }
                passed.user.get_or_insert(User { index, below });
                passed.demand = passed.demand.saturating_add(left);
                passed.waiting = passed.waiting.saturating_add(waiting);
                passed.largest = passed.largest.max(user.wants.largest);
                let part = left.min(*brings);
                left -= part;
                *brings -= part;
            }
        }
        for (cell, passed) in self.cells.iter_mut().zip(passed) {
            if let Some(before) = &mut cell.passed_on {
                *before = PassedOn { quiet: before.quiet && passed.user.is_none(), ..passed };
            }
        }
    }
}
