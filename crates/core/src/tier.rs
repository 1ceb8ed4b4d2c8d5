//! Tiers: a limit may have several, each a cell of its own with its own rate and burst, so that what all of them admit is
//! bounded by the sum of their bounds.
//!
//! A high tier that wants more than its own cell has *borrows* from the cells of lower tiers: its workers hold leases there
//! that count in the lender's sums. A low tier never borrows from a high one, unless that one *lends* what it leaves idle.
//! Who comes first in a cell is a matter of allocation alone: see [`Class`].

use crate::units::Share;

/// The most tiers of one limit. A process may hold one cell of each for itself and one for higher tiers, so that with
/// eight of them it holds fifteen; more priorities than that are told apart by nobody.
pub const TIERS_MAX: usize = 8;

/// How a tier stands to the others of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Its place in the order: zero is the highest tier. No two tiers of one limit and meter should have the same; of
    /// such two neither borrows from the other.
    pub rank: u32,
    /// The part of the cell that its own work gets before higher tiers borrow. All of it: they borrow only what is left.
    /// None: they come first.
    pub floor: Share,
    /// Whether lower tiers may use what neither its own work nor higher tiers want.
    pub lends: bool,
}

impl Default for Priority {
    /// The highest tier, which keeps all that it wants of its cell and lends nothing.
    fn default() -> Priority {
        Priority { rank: 0, floor: Share::ONE, lends: false }
    }
}

/// Whose work a part of a cell is held for. The order is the one in which they are served, but that the cell's own work
/// comes first up to its floor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A higher tier's, of this rank.
    Borrowed(u32),
    /// The tier's own.
    #[default]
    Own,
    /// A lower tier's, of this rank.
    Lent(u32),
    /// Nobody's: it may not have any of it, or needs none.
    Barred,
}

impl Priority {
    /// For whom a cell of this priority can be used by work of a tier with `rank`.
    pub fn class_for(self, rank: u32) -> Class {
        if rank < self.rank {
            Class::Borrowed(rank)
        } else if rank > self.rank && self.lends {
            Class::Lent(rank)
        } else {
            Class::Barred
        }
    }
}

/// What is wanted of a cell, summed by whose work wants it: rates or conserved tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// By its own work.
    pub own: u64,
    /// By higher tiers.
    pub borrowed: u64,
    /// By lower tiers.
    pub lent: u64,
    /// By those of the same kind that come before the class that asks.
    pub before: u64,
}

impl Claims {
    /// Sums demands up, as `class` sees them.
    pub(crate) fn of(class: Class, demands: impl Iterator<Item = (Class, u64)>) -> Claims {
        let mut claims = Claims::default();
        for (other, demand) in demands {
            let sum = match other {
                Class::Own => &mut claims.own,
                Class::Borrowed(_) => &mut claims.borrowed,
                Class::Lent(_) => &mut claims.lent,
                Class::Barred => continue,
            };
            *sum = sum.saturating_add(demand);
            let alike = core::mem::discriminant(&other) == core::mem::discriminant(&class);
            if alike && other < class {
                claims.before = claims.before.saturating_add(demand);
            }
        }
        claims
    }

    /// All that is wanted.
    pub(crate) fn all(&self) -> u64 {
        self.own.saturating_add(self.borrowed).saturating_add(self.lent)
    }

    /// What `class` may share out among itself, of `capacity`.
    pub(crate) fn left_for(&self, class: Class, capacity: u64, floor: Share) -> u64 {
        // Rounded up: the floor is kept.
        let floor = capacity - floor.rest().of(capacity);
        let open = capacity - self.own.min(floor);
        let own = capacity - self.borrowed.min(open);
        match class {
            Class::Borrowed(_) => open.saturating_sub(self.before),
            Class::Own => own,
            Class::Lent(_) => own.saturating_sub(self.own).saturating_sub(self.before),
            Class::Barred => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::curve::Rate;
    use crate::ledger::{Configure, Input, Ledger, Output, Settings, Start};
    use crate::limit::{CellConfig, CellKey, Version};
    use crate::message::{CellReply, CellReport, Incarnation, Lender, Request};
    use crate::units::{Amount, LedgerTime, Span};
    use proptest::prelude::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn share(percent: u32) -> Share {
        Share::from_ppb(percent * 10_000_000).unwrap()
    }

    #[test]
    fn a_higher_tier_takes_what_is_left_or_what_is_above_the_floor() {
        let claims = Claims { own: 80, borrowed: 50, ..Claims::default() };
        let left = |class, floor| claims.left_for(class, 100, share(floor));
        assert_eq!((left(Class::Borrowed(0), 100), left(Class::Own, 100)), (20, 80));
        assert_eq!((left(Class::Borrowed(0), 60), left(Class::Own, 60)), (40, 60));
        assert_eq!((left(Class::Borrowed(0), 0), left(Class::Own, 0)), (100, 50));
    }

    #[test]
    fn what_is_lent_to_below_is_what_nobody_else_wants() {
        let claims = Claims { own: 40, borrowed: 30, lent: 90, before: 10 };
        assert_eq!(claims.left_for(Class::Lent(3), 100, Share::ONE), 20);
        assert_eq!(Claims { own: 90, ..claims }.left_for(Class::Lent(3), 100, Share::ONE), 0);
    }

    #[test]
    fn a_low_tier_has_nothing_of_a_high_one_that_does_not_lend() {
        let high = Priority::default();
        let low = Priority { rank: 1, ..high };
        assert_eq!(high.class_for(1), Class::Barred);
        assert_eq!(Priority { lends: true, ..high }.class_for(1), Class::Lent(1));
        assert_eq!(low.class_for(0), Class::Borrowed(0));
        assert_eq!(low.class_for(1), Class::Barred, "neither of two with one rank borrows");
    }

    fn cells(tiers: &[(&str, u32, bool)]) -> Vec<CellConfig> {
        let cell = |(tier, rank, lends): &(&str, u32, bool)| CellConfig {
            key: CellKey { tier: (*tier).into(), ..CellKey::of("api") },
            priority: Priority { rank: *rank, lends: *lends, ..Priority::default() },
            ..CellConfig::constant("api", Rate::per_second(10), 10, Span::from_secs(15))
        };
        tiers.iter().map(cell).collect()
    }

    fn configured(ledger: &mut Ledger, n: u64, cells: Vec<CellConfig>) -> Output {
        let version = Version { run: 1, n };
        ledger.apply(
            LedgerTime(n),
            Input::Configure(Configure { version, settings: Settings::default(), cells }),
        )
    }

    #[test]
    fn a_worker_is_told_whom_a_tier_may_borrow_from_in_order() {
        let mut ledger = Ledger::new(Start::First, 1, LedgerTime(0));
        let tiers = [("batch", 9, false), ("low", 5, false), ("mid", 3, true), ("high", 1, true)];
        assert_eq!(configured(&mut ledger, 1, cells(&tiers)), Output::Configured);
        let report = |tier: &str| CellReport {
            key: CellKey { tier: tier.into(), ..CellKey::of("api") },
            borrowed: false,
            for_tier: None,
            acting: None,
            held: Amount::ZERO,
            used: 0,
            returned: Amount::ZERO,
            debt: Amount::ZERO,
            out: 0,
            demand: 0,
            waiting: 0,
            largest: 1,
        };
        let request = Request {
            incarnation: Incarnation(1),
            seq: 1,
            nonce: 0,
            worker: "w".into(),
            cells: ["high", "mid", "low", "batch"].map(report).to_vec(),
        };
        let told = |ledger: &mut Ledger| {
            let output = ledger.apply(LedgerTime(9), Input::Heartbeat(request.clone()));
            let Output::Reply(Ok(reply)) = output else { panic!("{output:?}") };
            let names = |reply: &CellReply| -> Vec<String> {
                let mark = |lender: &Lender| if lender.above { "^" } else { "" };
                reply.lenders.iter().map(|lender| std::format!("{}{}", mark(lender), lender.tier)).collect()
            };
            reply.cells.iter().map(|cell| (cell.rank, names(cell).join(" "))).collect::<Vec<_>>()
        };
        let expected =
            [(1, "mid low batch"), (3, "low batch ^high"), (5, "batch ^mid ^high"), (9, "^mid ^high")];
        let expected = expected.map(|(rank, names)| (rank, names.into()));
        assert_eq!(told(&mut ledger), expected);
        // The same again, from the stored answer and from a state that was carried on.
        assert_eq!(told(&mut ledger), expected);
        assert_eq!(told(&mut Ledger::resume(ledger.state().clone())), expected);
    }

    #[test]
    fn more_tiers_than_there_may_be_are_refused() {
        let mut ledger = Ledger::new(Start::First, 1, LedgerTime(0));
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|name| (name, 0, false));
        let refused = configured(&mut ledger, 1, cells(&names));
        let Output::Refused(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.to_string(), "limit api [requests i]: is one tier too many, allowed: up to 8");
        assert_eq!(configured(&mut ledger, 2, cells(&names[..TIERS_MAX])), Output::Configured);
    }

    fn class() -> impl Strategy<Value = Class> {
        prop_oneof![
            (0..3u32).prop_map(Class::Borrowed),
            Just(Class::Own),
            (5..8u32).prop_map(Class::Lent),
            Just(Class::Barred),
        ]
    }

    proptest! {
        /// What all classes use together is within the cell, all of it is used when more is wanted, and the floor is kept.
        #[test]
        fn parts_add_up_to_the_whole(
            demands in prop::collection::vec((class(), 0..1_000u64), 0..12),
            capacity in 0..2_000u64,
            percent in 0..=100u32,
        ) {
            let mut classes: Vec<Class> = demands.iter().map(|(class, _)| *class).collect();
            classes.sort_unstable();
            classes.dedup();
            let wanted = |class| demands.iter().filter(|(other, _)| *other == class).map(|(_, n)| *n).sum::<u64>();
            let (mut used, mut own) = (0, 0);
            for class in classes.into_iter().filter(|class| *class != Class::Barred) {
                let left = Claims::of(class, demands.iter().copied()).left_for(class, capacity, share(percent));
                let part = left.min(wanted(class));
                used += part;
                own += if class == Class::Own { part } else { 0 };
            }
            let all = Claims::of(Class::Own, demands.iter().copied());
            prop_assert_eq!(used, all.all().min(capacity));
            prop_assert!(own >= all.own.min(capacity * u64::from(percent) / 100));
        }
    }
}
