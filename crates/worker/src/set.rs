//! Several meters of one limit that are charged together: all or nothing.
//!
//! Everybody takes from them in the same order and locks their queues in the same order. First all levels are looked at, and only
//! then is anything taken, so that something has to be put back only when somebody else took in between. What is put back
//! follows the rule of refunds: as long as no mint has looked at a level since, it is as if nothing had been taken; else only
//! what had room all the time goes back (`Mint::refund`).

use crate::charges::Charges;
use crate::error::AcquireError;
use crate::gate::Inner;
use crate::level::{AtomicLevel, SharedLevel};
use crate::limit::{Cell, Core};
use crate::local;
use crate::permit::Permit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_core::bucket::{Level, Mark};
use tollgate_core::client::Client;
use tollgate_core::limit::OutOfRange;
use tollgate_core::units::BootTime;

/// The most meters that one piece of work is charged to: a permit has room for so many, since it is made without allocating.
pub const METERS_MAX: usize = 8;

/// What a piece of work costs, by the order of a [`Set`]; 0 where it isn't charged.
pub(crate) type Costs = [u64; METERS_MAX];

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Set {
    /// By their places at the client: the order in which everybody takes and locks.
    cells: Box<[Arc<Cell>]>,
    /// Where each meter is in there, in the order in which they were named.
    places: Box<[usize]>,
    /// Why nothing can be asked of it.
    fault: Option<AcquireError>,
}

/// A charge that was made, by the order of its set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub cost: u64,
    pub mark: Mark,
    /// The end of the lease that it was taken by; zero for a meter that isn't charged.
    expiry: BootTime,
}

impl Part {
    /// Whether it holds tokens that are put back when the work is done.
    pub(crate) fn is_held(&self) -> bool {
        self.cost > 0 && self.mark.puts_back()
    }

    /// Whether the meter is among those that are charged, also when it cost nothing in the end.
    fn is_charged(&self) -> bool {
        self.expiry > BootTime(0)
    }
}

/// What a permit of several meters is charged. Too large to be moved around with each permit: threads keep what is no longer needed
/// for the next one, so that nothing is allocated while no more permits live than did before.
#[derive(Debug)]
pub(crate) struct Several {
    pub set: Arc<Set>,
    pub at: BootTime,
    /// The end of the lease that ends first.
    pub valid_until: BootTime,
    /// Those beyond the set's cells say nothing.
    parts: [Part; METERS_MAX],
    /// Whether some of it is put back when the work is done.
    pub is_held: bool,
    /// The next spare one, and how many follow.
    next: Option<Box<Several>>,
    behind: usize,
}

/// A thread keeps at most so many spare ones: 20 KiB.
const SPARE_MAX: usize = 64;

impl Several {
    /// Of nothing yet.
    pub(crate) fn of(set: &Arc<Set>) -> Several {
        let parts = [Part::default(); METERS_MAX];
        let (at, valid_until) = Default::default();
        Several { set: set.clone(), at, valid_until, parts, is_held: false, next: None, behind: 0 }
    }

    /// Makes it one of another set.
    #[inline]
    pub(crate) fn make_of(&mut self, set: &Arc<Set>) {
        if !Arc::ptr_eq(&self.set, set) {
            self.set = set.clone();
        }
    }

    #[inline]
    pub(crate) fn take_next(&mut self) -> Option<Box<Several>> {
        self.next.take()
    }

    /// Puts it before other spare ones. Comes with what is too much.
    #[inline]
    pub(crate) fn before(
        mut self: Box<Several>,
        mut next: Option<Box<Several>>,
    ) -> (Box<Several>, Option<Box<Several>>) {
        self.behind = next.as_ref().map_or(0, |next| next.behind + 1);
        let over = if self.behind < SPARE_MAX {
            None
        } else {
            self.behind = 0;
            next.take()
        };
        self.next = next;
        (self, over)
    }

    /// All cells that it is charged to.
    pub(crate) fn charged(&self) -> impl Iterator<Item = (&Arc<Cell>, &Part)> {
        self.set.cells.iter().zip(&self.parts).filter(|(_, part)| part.is_charged())
    }

    /// The work is done.
    #[inline(never)]
    pub(crate) fn release(&self) {
        for (cell, part) in self.charged().filter(|(_, part)| part.is_held()) {
            cell.release(part.cost, part.mark);
        }
    }

    /// Some of its cells are charged, at no cost.
    pub(crate) fn note_free(&mut self, which: impl Fn(&Arc<Cell>) -> bool, mark: Mark) {
        for (_, part) in self.set.cells.iter().zip(&mut self.parts).filter(|(cell, _)| which(cell)) {
            *part = Part { cost: 0, mark, expiry: BootTime(1) };
        }
    }

    /// What it is charged of a cell.
    pub(crate) fn part_mut(&mut self, cell: &Arc<Cell>) -> Option<&mut Part> {
        let mut parts = self.set.cells.iter().zip(&mut self.parts);
        parts.find(|(other, part)| Arc::ptr_eq(other, cell) && part.is_charged()).map(|(_, part)| part)
    }
}

/// What somebody who waits has taken already, by the order of the set. Only of meters whose tokens count until they are put back: of
/// others, what is taken and not used while the source refills would come on top.
pub(crate) type Holding = [Option<Mark>; METERS_MAX];

/// Nothing.
const NOT_HOLDING: &Holding = &[None; METERS_MAX];

/// Not all of it could be taken: what was taken must go back.
#[must_use = "what was taken must be put back"]
#[derive(Debug)]
pub(crate) struct Partial {
    /// What was taken.
    taken: Box<Several>,
}

impl Set {
    /// Of different meters of one limit, at least one of them.
    pub(crate) fn new(named: Vec<Arc<Cell>>) -> Set {
        let mut cells = named.clone();
        cells.sort_by_key(|cell| cell.index);
        let place = |cell: &Arc<Cell>| cells.iter().position(|other| Arc::ptr_eq(other, cell));
        let places: Box<[usize]> = named.iter().filter_map(place).collect();
        let fault = fault(&named);
        cells.truncate(METERS_MAX);
        Set { cells: cells.into(), places, fault }
    }

    pub(crate) fn cells(&self) -> &[Arc<Cell>] {
        &self.cells
    }

    /// Where the meter is that was named at this place.
    pub(crate) fn place(&self, index: usize) -> Option<usize> {
        self.places.get(index).copied()
    }

    /// All meters in the order in which they were named, each with its place in the set's own.
    pub(crate) fn in_named_order(&self) -> impl Iterator<Item = (usize, &Arc<Cell>)> {
        self.places.iter().filter_map(|place| Some((*place, self.cells.get(*place)?)))
    }

    /// The cell of the meter that was named at this place.
    pub(crate) fn named(&self, index: usize) -> Option<&Arc<Cell>> {
        self.cells.get(*self.places.get(index)?)
    }

    /// What a piece of work of these costs is charged.
    pub(crate) fn charges(self: &Arc<Set>, costs: Costs) -> Charges {
        match (&*self.cells, &self.fault) {
            ([cell], None) => Charges::One(cell.clone(), costs.first().copied().unwrap_or(0)),
            _ => Charges::Several(self.clone(), costs),
        }
    }

    /// Costs that are given in the order in which the meters were named, in the set's own.
    #[inline]
    pub(crate) fn in_order(&self, costs: &[u64]) -> Costs {
        let mut ordered = Costs::default();
        for (place, cost) in self.places.iter().zip(costs) {
            if let Some(slot) = ordered.get_mut(*place) {
                *slot = *cost;
            }
        }
        ordered
    }

    /// The cells that are charged, with their costs.
    #[inline]
    pub(crate) fn charged<'a>(&'a self, costs: &'a Costs) -> impl Iterator<Item = (&'a Arc<Cell>, u64)> {
        self.cells.iter().zip(costs).filter(|(_, cost)| **cost > 0).map(|(cell, cost)| (cell, *cost))
    }

    pub(crate) fn core(&self) -> Option<&Arc<Core>> {
        self.cells.first().map(|cell| &cell.core)
    }

    /// The error of a question that can't be answered.
    #[inline]
    pub(crate) fn wrong(&self, costs: &Costs) -> Option<AcquireError> {
        if self.fault.is_none() && costs.iter().any(|cost| *cost > 0) {
            return None;
        }
        Some(self.why_wrong())
    }

    #[cold]
    fn why_wrong(&self) -> AcquireError {
        let (limit, meter) = match self.named(0) {
            Some(cell) => (cell.limit.clone(), cell.meter.clone()),
            None => ("".into(), "".into()),
        };
        self.fault.clone().unwrap_or(AcquireError::ZeroCost { limit, meter })
    }

    /// The same meters of another tier, and the costs in the order of those.
    pub(crate) fn of_tier(&self, tier: &str, gate: &Inner, costs: &Costs) -> (Arc<Set>, Costs) {
        let named = self.in_named_order().map(|(_, cell)| cell.of_tier(tier, gate));
        let set = Set::new(named.collect());
        let named_costs: Vec<u64> =
            self.places.iter().map(|place| costs.get(*place).copied().unwrap_or(0)).collect();
        let costs = set.in_order(&named_costs);
        (Arc::new(set), costs)
    }

    /// The same meters, where what a cell lacks is borrowed from another tier; `None` when nothing is lacking, or can't be borrowed
    /// whole.
    #[cold]
    fn with_lenders(&self, costs: &Costs, holding: &Holding) -> Option<(Set, Costs, Holding)> {
        let (mut named, mut named_costs, mut named_held, mut borrows) =
            (Vec::new(), Vec::new(), Vec::new(), false);
        for (place, cell) in self.in_named_order() {
            let cost = costs.get(place).copied().unwrap_or(0);
            let held = holding.get(place).copied().flatten();
            let source = if cost > 0 && held.is_none() { cell.source(cost)? } else { cell };
            borrows |= !Arc::ptr_eq(source, cell);
            named.push(source.clone());
            named_costs.push(cost);
            named_held.push(held);
        }
        let set = borrows.then(|| Set::new(named))?;
        let costs = set.in_order(&named_costs);
        let mut holding = Holding::default();
        for (place, held) in set.places.iter().zip(named_held) {
            if let Some(slot) = holding.get_mut(*place) {
                *slot = held;
            }
        }
        Some((set, costs, holding))
    }

    /// A permit of its own cells, or of those that they borrow from, when that needs no waiting for anybody.
    pub(crate) fn get_quickly(self: &Arc<Set>, costs: &Costs) -> Option<Permit> {
        if let Some(taken) = self.take_quickly(costs) {
            return Some(Permit::of_several(taken));
        }
        self.borrow_quickly(costs)
    }

    #[cold]
    fn borrow_quickly(self: &Arc<Set>, costs: &Costs) -> Option<Permit> {
        // Whoever waits comes first, whatever there is to borrow.
        let waits = self.charged(costs).any(|(cell, _)| cell.level.has_waiters());
        if waits || self.charged(costs).all(|(cell, _)| cell.lenders.is_empty()) {
            return None;
        }
        let (set, other, _) = self.with_lenders(costs, NOT_HOLDING)?;
        let taken = Arc::new(set).take_quickly(&other)?;
        Some(self.borrowed(taken))
    }

    /// The same for whoever's turn it is: see [`Set::take`].
    pub(crate) fn get(
        self: &Arc<Set>,
        costs: &Costs,
        holding: &Holding,
    ) -> Result<Permit, Option<Box<Partial>>> {
        match self.take(costs, holding) {
            Ok(taken) => return Ok(Permit::of_several(taken)),
            Err(Some(partial)) => return Err(Some(partial)),
            Err(None) => {}
        }
        let Some((set, other, holding)) = self.with_lenders(costs, holding) else { return Err(None) };
        Arc::new(set).take(&other, &holding).map(|taken| self.borrowed(taken))
    }

    /// A permit of other cells than its own, counted as borrowed.
    fn borrowed(&self, taken: Box<Several>) -> Permit {
        let sources = taken.set.in_named_order();
        for (own, (place, source)) in self.in_named_order().map(|(_, cell)| cell).zip(sources) {
            if !Arc::ptr_eq(own, source) {
                let cost = taken.parts.get(place).map_or(0, |part| part.cost);
                own.borrowed.fetch_add(cost, Ordering::Relaxed);
            }
        }
        Permit::of_several(taken)
    }

    /// The hot path: takes when everything is there, nobody waits, and nobody has to be waited for.
    #[inline]
    fn take_quickly(self: &Arc<Set>, costs: &Costs) -> Option<Box<Several>> {
        let thread = local::number();
        for (cell, cost) in self.charged(costs) {
            if cost > 1 {
                cell.level.note_cost(cost);
            }
            if cell.level.has_waiters() || !cell.level.seems_to_hold(thread, cost) {
                return None;
            }
        }
        let core = self.core().filter(|core| core.home.is_here())?;
        let take = |level: &AtomicLevel, cost| level.take_quickly(thread, cost);
        match self.take_all(core, costs, NOT_HOLDING, take) {
            Ok(taken) => Some(taken),
            Err(partial) => {
                Set::put_back(&partial, &mut core.client());
                None
            }
        }
    }

    /// Takes all or nothing, minting what is due if nobody else is at it. The caller holds the queues' locks: what it gets back it
    /// hands to [`Set::put_back`] when it has let them go.
    pub(crate) fn take(
        self: &Arc<Set>,
        costs: &Costs,
        holding: &Holding,
    ) -> Result<Box<Several>, Option<Box<Partial>>> {
        let Some(core) = self.core().filter(|core| core.home.is_here()) else { return Err(None) };
        let mut client = core.try_client();
        if let Some(client) = &mut client {
            let now = core.clock.now();
            for (cell, _) in self.charged(costs) {
                if let Some(leased) = cell.index.and_then(|index| client.cell_mut(index)) {
                    leased.refill(now);
                }
            }
        }
        let lacks = |((cell, cost), held): ((&Arc<Cell>, &u64), &Option<Mark>)| match held {
            Some(mark) => mark.generation != cell.level.generation(),
            None => u64::try_from(cell.level.level()).unwrap_or(0) < *cost,
        };
        if self.cells.iter().zip(costs).zip(holding).any(lacks) {
            return Err(None);
        }
        let take = |level: &AtomicLevel, cost| {
            let taken = level.take(cost);
            if taken {
                level.count_grant();
            }
            taken
        };
        self.take_all(core, costs, holding, take).map_err(|partial| match client {
            Some(mut client) => {
                Set::put_back(&partial, &mut client);
                None
            }
            None => Some(partial),
        })
    }

    /// Takes from one after the other, and *then* reads the clock: see `tollgate_core::bucket::admit`.
    #[inline]
    fn take_all(
        self: &Arc<Set>,
        core: &Core,
        costs: &Costs,
        holding: &Holding,
        take: impl Fn(&AtomicLevel, u64) -> bool,
    ) -> Result<Box<Several>, Box<Partial>> {
        let mut room = local::room(self);
        let several = &mut *room;
        let mut is_whole = true;
        let (mut valid_until, mut is_held) = (BootTime(u64::MAX), false);
        for (((cell, cost), held), part) in self.cells.iter().zip(costs).zip(holding).zip(&mut several.parts)
        {
            *part = Part::default();
            if *cost == 0 || !is_whole {
                continue;
            }
            let expiry = cell.level.expiry();
            let mark = held.unwrap_or_else(|| Mark::of(&*cell.level));
            if held.is_some() || take(&cell.level, *cost) {
                *part = Part { cost: *cost, mark, expiry: expiry.max(BootTime(1)) };
                valid_until = valid_until.min(expiry);
                is_held |= mark.puts_back();
            } else {
                is_whole = false;
            }
        }
        let at = core.boot();
        (several.at, several.valid_until, several.is_held) = (at, valid_until, is_held);
        if is_whole && at < valid_until {
            let held = self.cells.iter().zip(holding).filter(|(_, held)| held.is_some());
            held.for_each(|(cell, _)| cell.level.count_grant());
            if let Some(log) = &core.log {
                several.charged().for_each(|(cell, part)| log.admitted(at, &cell.name, part.cost));
            }
            return Ok(room);
        }
        // What was held before is held on.
        for (part, _) in several.parts.iter_mut().zip(holding).filter(|(_, held)| held.is_some()) {
            *part = Part::default();
        }
        Err(Box::new(Partial { taken: room }))
    }

    /// Puts back what was taken in vain, as far as that is safe; what isn't put back is void.
    #[cold]
    pub(crate) fn put_back(partial: &Partial, client: &mut Client<SharedLevel>) {
        let taken = &partial.taken;
        for (cell, Part { cost, mark, expiry }) in taken.charged() {
            cell.level.uncount_grant();
            let is_over = *expiry <= taken.at;
            if is_over && mark.puts_back() {
                // As what is held is released after its lease, too: it would else be in flight for ever.
                cell.level.release(*cost, mark.generation);
            }
            let leased = cell.index.and_then(|index| client.cell_mut(index));
            let back = leased.filter(|_| !is_over).map_or(0, |leased| {
                let (mint, level) = leased.bucket();
                mint.refund(level, *cost, *mark, cell.core.clock.now())
            });
            cell.counts.void.fetch_add(cost - back, Ordering::Relaxed);
        }
    }
}

/// What is wrong with a choice of meters.
fn fault(named: &[Arc<Cell>]) -> Option<AcquireError> {
    let cell = named.first()?;
    let wrong = |given: String, allowed| {
        let error = OutOfRange { field: "meters", given, allowed };
        Some(AcquireError::InvalidMeters { limit: cell.limit.clone(), error })
    };
    if named.len() > METERS_MAX {
        return wrong(named.len().to_string(), "1 to 8 of them");
    }
    let twice = |(index, cell): (usize, &Arc<Cell>)| {
        named.iter().take(index).any(|other| other.meter == cell.meter).then(|| cell.meter.clone())
    };
    if let Some(meter) = named.iter().enumerate().find_map(twice) {
        return wrong(format!("{meter:?} twice"), "each meter once");
    }
    named.iter().find_map(|cell| cell.fault.clone())
}
