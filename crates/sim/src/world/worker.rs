//! One worker process: a core client, its clocks, and whether any code of it runs.

use super::clock::Clock;
use std::collections::VecDeque;
use std::rc::Rc;
use tollgate_core::bucket::{Level as _, Mark, Now, PlainLevel};
use tollgate_core::client::{Client, ClientCell, Wants};
use tollgate_core::limit::CellKey;
use tollgate_core::units::WallTime;

/// Workers' wall clocks show this at true time zero, in microseconds.
const WALL_ZERO: u64 = 2_000_000_000_000;

/// Charges that are remembered, so that they can be settled: what is older gets nothing back.
const CHARGES_MAX: usize = 64;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its code runs.
    Running,
    /// Stopped (SIGSTOP, a long collection): no code runs, all clocks go on.
    Paused,
    /// The machine sleeps: no code runs, and the elapsed-time clock may stand still.
    Suspended,
    /// Gone for good.
    Crashed,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its name, for people and scripts.
    pub name: Rc<str>,
    /// The lease protocol.
    pub client: Client<PlainLevel>,
    /// Its elapsed-time clock.
    pub boot: Clock,
    /// How far its wall clock is off, in microseconds.
    pub wall_offset: i64,
    /// What it does.
    pub state: State,
    /// Paused until then by an admission that was interrupted, in true time.
    pub paused_until: u64,
    /// What it wants, by cell.
    pub wants: Vec<Wants>,
    /// The newest seq that it sent.
    pub last_seq: u64,
    /// Where it charged lately, oldest first: in true time, by cell. At most [`CHARGES_MAX`].
    pub charges: VecDeque<(u64, usize, Mark)>,
    /// Tokens whose work has ended while its code didn't run, by cell.
    pub ended: Vec<(usize, u64, u32)>,
}

impl Worker {
    /// Both clocks at true time `t`.
    pub fn now(&self, t: u64) -> Now {
        let wall = WALL_ZERO.saturating_add(t).saturating_add_signed(self.wall_offset);
        Now { boot: self.boot.at(t), wall: WallTime(wall) }
    }

    /// Whether its code runs at true time `t`.
    pub fn runs(&self, t: u64) -> bool {
        self.state == State::Running && self.paused_until <= t
    }

    /// Remembers that it charges from a cell at true time `t`, before it does.
    pub(super) fn note_charge(&mut self, t: u64, cell: usize) {
        let Some(mark) = self.client.cells().get(cell).map(|cell| Mark::of(cell.level())) else { return };
        if self.charges.len() == CHARGES_MAX {
            self.charges.pop_front();
        }
        self.charges.push_back((t, cell, mark));
    }

    /// Where the cell was charged at true time `t`, or last before; at its beginning when that isn't known any more.
    pub(crate) fn charged(&self, t: u64, cell: usize) -> Mark {
        let before = |(at, other, _): &&(u64, usize, Mark)| *other == cell && *at <= t;
        let now = self.client.cells().get(cell).map_or(0, |cell| cell.level().generation());
        let unknown = Mark { generation: now, looks: 0 };
        self.charges.iter().rev().find(before).map_or(unknown, |(.., mark)| *mark)
    }

    /// Borrows from whom the ledger says that its tiers may.
    pub fn add_lenders(&mut self) {
        let mut missing: Vec<CellKey> = Vec::new();
        for cell in self.client.cells() {
            for lender in cell.lenders() {
                let key = CellKey { tier: lender.tier.clone(), ..cell.key().clone() };
                let known = |other: &ClientCell<PlainLevel>| other.is_borrowed() && *other.key() == key;
                if !self.client.cells().iter().any(known) && !missing.contains(&key) {
                    missing.push(key);
                }
            }
        }
        for key in missing {
            self.client.add_cell(key, true, PlainLevel::default());
            self.wants.push(Wants::default());
        }
    }

    /// The index of the cell that a tier's work has for itself.
    pub fn own_of(&self, tier: &str) -> Option<usize> {
        self.client.cells().iter().position(|cell| !cell.is_borrowed() && cell.key().tier == tier)
    }

    /// The index of a cell.
    pub fn index_of(&self, key: &CellKey) -> Option<usize> {
        self.client.cells().iter().position(|cell| cell.key() == key)
    }
}
