//! How the tiers of a limit do: what they use against ideal limiters of their own, how long the highest one waits, and
//! whether lower ones keep to what is theirs.

use super::Scenario;
use super::measure::{Figures, Ideal, Limit, Line};
use crate::machine::Kind;
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::limit::{CellConfig, counted};
use tollgate_core::tier::Class;

const SECOND: u64 = 1_000_000;
/// Waits are looked at from then on: before, the fleet is on its way up.
const CALM_FROM: u64 = 5 * SECOND;
/// Over how long a floor is looked at.
const FLOOR_WINDOW: u64 = 10 * SECOND;
/// So much of its floor a tier must get in each such time, in percent: it is shared out by demand, which is an estimate.
const FLOOR_PERCENT: u64 = 95;
/// Work of the highest tier waits no longer than this in 99 of 100 cases: two heartbeats of a fleet of at most ten.
const HIGH_WAIT_MAX: u64 = 2 * SECOND;
/// A calm fleet uses this much of what ideal limiters would, in millionths, however often quota moves; fleets use more than 97%
/// on average.
const USED_MIN_PPM: u64 = 950_000;

/// What may make waiting longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A process died with what it held.
    Death,
    /// The configuration is another one.
    Change,
    Other,
}

/// See the module's documentation. Tiers are numbered from the highest one.
#[derive(Debug)]
pub(super) struct Tiers {
    cells: Vec<CellConfig>,
    limits: Vec<Limit>,
    ideal: Vec<Ideal>,
    queues: Vec<VecDeque<(u64, u64)>>,
    patience: u64,
    ideal_admitted: u64,
    admitted: u64,
    refused: u64,
    /// From when to when something is wrong, and what.
    troubles: Vec<(u64, u64, Trouble)>,
    /// Tokens of the highest tier by how many milliseconds they waited while nothing was wrong.
    waits: BTreeMap<u64, u64>,
    /// The longest wait at a time at which a process had died, and nothing else was wrong.
    longest_after_death: u64,
    /// When the window of floors began, and what each tier's own work has got in it.
    window: (u64, Vec<u64>),
    /// The least part of its floor that a tier got in a window, in percent.
    least_of_floor: u64,
    /// What a tier took that isn't its to take.
    stolen: Option<String>,
}

impl Tiers {
    /// `None` where there is but one.
    pub(super) fn of(scenario: &Scenario) -> Option<Tiers> {
        let cells = scenario.cells();
        let burst = |cell: &CellConfig| u64::try_from(cell.burst.target.whole()).unwrap_or(0);
        let limit = |cell: &CellConfig| Limit {
            rate: Line::new(cell.rate.target.micro_per_second()),
            burst: Line::new(burst(cell)),
        };
        (cells.len() > 1).then(|| Tiers {
            limits: cells.iter().map(limit).collect(),
            ideal: cells.iter().map(|cell| Ideal::full(burst(cell), scenario.how())).collect(),
            queues: vec![VecDeque::new(); cells.len()],
            patience: scenario.patience,
            ideal_admitted: 0,
            admitted: 0,
            refused: 0,
            // A message that is lost is missed for two seconds.
            troubles: if scenario.loss_ppm > 0 { vec![(0, u64::MAX, Trouble::Other)] } else { Vec::new() },
            waits: BTreeMap::new(),
            longest_after_death: 0,
            window: (CALM_FROM, vec![0; cells.len()]),
            least_of_floor: u64::MAX,
            stolen: None,
            cells,
        })
    }

    pub(super) fn disturb(&mut self, from: u64, until: u64, trouble: Trouble) {
        self.troubles.push((from, until, trouble));
    }

    /// The tiers stand to each other in another way. For those that are gone nothing can be wrong.
    pub(super) fn reconfigure(&mut self, cells: &[CellConfig]) {
        for cell in &mut self.cells {
            if let Some(new) = cells.iter().find(|new| new.key == cell.key) {
                cell.priority = new.priority;
            }
        }
    }

    /// Whether and how something was wrong between two times.
    fn trouble(&self, from: u64, to: u64) -> Option<Trouble> {
        let during = |(begin, end, _): &&(u64, u64, Trouble)| *begin <= to && from <= *end;
        let mut troubles = self.troubles.iter().filter(during).map(|(_, _, trouble)| *trouble);
        let first = troubles.next()?;
        Some(if troubles.all(|other| other == first) { first } else { Trouble::Other })
    }

    pub(super) fn arrive(&mut self, tier: usize, tokens: u64, now: u64) {
        if tokens > 0 {
            self.queues[tier].push_back((now, tokens));
        }
        for (ideal, limit) in self.ideal.iter_mut().zip(&self.limits) {
            ideal.fill(now, limit);
        }
        // The highest one first; each takes from itself, then from those below.
        for (index, queue) in self.queues.iter_mut().enumerate() {
            while let Some((since, waiting)) = queue.front_mut() {
                if now > *since + self.patience {
                    queue.pop_front();
                    continue;
                }
                let Some(source) = self.ideal[index..].iter_mut().find(|ideal| ideal.whole() > 0) else {
                    break;
                };
                let part = source.whole().min(*waiting);
                source.take(part, now);
                self.ideal_admitted += part;
                *waiting -= part;
                if *waiting == 0 {
                    queue.pop_front();
                }
            }
        }
        self.pass(now);
    }

    /// Whether work of `tier` may have nothing of the cell of tier `from`.
    fn is_barred(&self, tier: usize, from: &str) -> bool {
        let own = &self.cells[tier];
        let source = self.cells.iter().find(|cell| cell.key.tier == from && cell.key != own.key);
        source.is_some_and(|source| source.priority.class_for(own.priority.rank) == Class::Barred)
    }

    /// Work of `tier` that has waited since `since` takes tokens of the cell of tier `from`.
    pub(super) fn admit(&mut self, tier: usize, from: &str, tokens: u64, since: u64, now: u64) {
        self.pass(now);
        self.admitted += tokens;
        self.window.1[tier] += tokens;
        // After a change leases of before may go on for a while.
        let changed = self
            .troubles
            .iter()
            .any(|(begin, end, what)| *what == Trouble::Change && *begin <= now && now <= *end);
        if !changed && self.is_barred(tier, from) {
            let own = &self.cells[tier].key.tier;
            self.stolen.get_or_insert(format!("{own} takes {tokens} of {from} at {} s", now / SECOND));
        }
        if tier == 0 && tokens > 0 {
            self.note_wait(tokens, since, now);
        }
    }

    pub(super) fn give_up(&mut self, tier: usize, tokens: u64, since: u64, now: u64) {
        self.refused += tokens;
        if tier == 0 {
            self.note_wait(tokens, since, now);
        }
    }

    fn note_wait(&mut self, tokens: u64, since: u64, now: u64) {
        if since < CALM_FROM {
            return;
        }
        match self.trouble(since, now) {
            None => *self.waits.entry((now - since) / 1_000).or_default() += tokens,
            Some(Trouble::Death) => self.longest_after_death = self.longest_after_death.max(now - since),
            Some(Trouble::Change | Trouble::Other) => {}
        }
    }

    /// Lower tiers always have work here, so that each window shows whether they got their floor.
    fn pass(&mut self, now: u64) {
        let begin = self.window.0;
        if now < begin + FLOOR_WINDOW {
            return;
        }
        if self.trouble(begin, now).is_none() {
            for (cell, got) in self.cells.iter().zip(&self.window.1).skip(1) {
                let rate = cell.priority.floor.of(cell.rate.target.micro_per_second());
                let floor = u128::from(rate) * u128::from(now - begin) / u128::from(SECOND * SECOND);
                let part = u128::from(*got) * 100 / floor.max(1);
                self.least_of_floor = self.least_of_floor.min(u64::try_from(part).unwrap_or(u64::MAX));
            }
        }
        self.window = (now, vec![0; self.cells.len()]);
    }

    /// What a tier did that it must not, or didn't get.
    pub(super) fn wrong(&self) -> Option<(Kind, String)> {
        if let Some(stolen) = &self.stolen {
            return Some((Kind::Order, stolen.clone()));
        }
        let wait = p99(&self.waits).unwrap_or(0);
        if wait * 1_000 > HIGH_WAIT_MAX {
            return Some((Kind::Slow, format!("the highest tier waits for {wait} ms, p99")));
        }
        let lease = self.cells.iter().map(|cell| counted(cell.lease).0).max().unwrap_or(0);
        if self.longest_after_death > lease + HIGH_WAIT_MAX {
            let wait = self.longest_after_death / 1_000;
            return Some((Kind::Slow, format!("the highest tier waits for {wait} ms after a death")));
        }
        if self.least_of_floor < FLOOR_PERCENT {
            return Some((Kind::Floor, format!("a tier gets {}% of its floor", self.least_of_floor)));
        }
        let used = self.used_ppm();
        if self.troubles.is_empty() && used < USED_MIN_PPM {
            return Some((Kind::Unused, format!("{used} millionths are used")));
        }
        None
    }

    fn used_ppm(&self) -> u64 {
        let whole = u128::from(self.ideal_admitted.max(1));
        u64::try_from(u128::from(self.admitted) * 1_000_000 / whole).unwrap_or(u64::MAX)
    }

    /// A run's figures, of which `all` are those of the whole limit.
    pub(super) fn figures(&self, all: Figures) -> Figures {
        Figures {
            utilization_ppm: self.used_ppm(),
            refused: self.refused,
            wrongly_refused: 0,
            fairness_error_ppm: None,
            high_waits: self.waits.clone(),
            calm_utilization_ppm: self.troubles.is_empty().then(|| self.used_ppm()),
            ..all
        }
    }
}

/// Of how many milliseconds 99 of 100 waits are at most.
pub fn p99(waits: &BTreeMap<u64, u64>) -> Option<u64> {
    let all: u64 = waits.values().sum();
    let mut longer = all;
    waits.iter().find_map(|(wait, tokens)| {
        longer -= tokens;
        (longer <= all / 100).then_some(*wait)
    })
}
