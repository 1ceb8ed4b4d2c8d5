//! One worker process: a core client, its clocks, and whether any code of it runs.

use super::clock::Clock;
use std::rc::Rc;
use tollgate_core::bucket::{Now, PlainLevel};
use tollgate_core::client::{Client, Wants};
use tollgate_core::limit::CellKey;
use tollgate_core::units::WallTime;

/// Workers' wall clocks show this at true time zero, in microseconds.
const WALL_ZERO: u64 = 2_000_000_000_000;

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

    /// The index of a cell.
    pub fn index_of(&self, key: &CellKey) -> Option<usize> {
        self.client.cells().iter().position(|cell| cell.key() == key)
    }
}
