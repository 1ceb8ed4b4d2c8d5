//! What a piece of work is charged: one meter, or several of one limit. Here are the ways that may take a lock.

use crate::error::{AcquireError, Reason};
use crate::gate::Inner;
use crate::limit::{Cell, Core};
use crate::permit::Permit;
use crate::queue::{Facts, Queue, Verdict};
use crate::set::{Costs, Holding, Partial, Set};
use std::sync::{Arc, MutexGuard};
use tollgate_core::units::{BootTime, Span};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) enum Charges {
    One(Arc<Cell>, u64),
    Several(Arc<Set>, Costs),
}

/// One meter, as somebody finds it who can't be served now.
pub(crate) struct Found<'a> {
    pub cell: &'a Arc<Cell>,
    pub cost: u64,
    pub facts: Facts,
    pub level: i64,
    /// Tokens that others wait for who come before.
    pub ahead: u64,
}

/// The queues of all meters, locked in the order that everybody keeps to.
pub(crate) type Queues<'a> = Vec<MutexGuard<'a, Queue>>;

impl Charges {
    /// The meters that are charged, in the order in which everybody takes and locks them.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Arc<Cell>, u64)> {
        let (one, several) = match self {
            Charges::One(cell, cost) => (Some((cell, *cost)), None),
            Charges::Several(set, costs) => (None, Some(set.charged(costs))),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The same of another tier.
    pub(crate) fn tier(&self, tier: &str, gate: &Inner) -> Charges {
        match self {
            Charges::One(cell, cost) => Charges::One(cell.of_tier(tier, gate), *cost),
            Charges::Several(set, costs) => {
                let (other, in_order) = set.of_tier(tier, gate, costs);
                Charges::Several(other, in_order)
            }
        }
    }

    pub(crate) fn core(&self) -> Option<&Arc<Core>> {
        match self {
            Charges::One(cell, _) => Some(&cell.core),
            Charges::Several(set, _) => set.core(),
        }
    }

    /// The error of a question that can't be answered.
    pub(crate) fn wrong(&self) -> Option<AcquireError> {
        match self {
            Charges::One(cell, cost) => (*cost == 0 || cell.index.is_none()).then(|| cell.wrong(*cost)),
            Charges::Several(set, costs) => set.wrong(costs),
        }
    }

    pub(crate) fn take_quickly(&self) -> Option<Permit> {
        match self {
            Charges::One(cell, cost) => cell.get_quickly(*cost),
            Charges::Several(set, costs) => set.get_quickly(costs),
        }
    }

    pub(crate) fn lock(&self) -> Queues<'_> {
        self.each().map(|(cell, _)| cell.queue()).collect()
    }

    /// Takes, minting what is due; the caller holds all queues. What can't be taken whole and can't be put back under their locks
    /// is to be handed to [`Charges::put_back`] after them.
    pub(crate) fn take(&self, holding: &Holding) -> Result<Permit, Option<Box<Partial>>> {
        match self {
            Charges::One(cell, cost) => cell.get(*cost).ok_or(None),
            Charges::Several(set, costs) => set.get(costs, holding),
        }
    }

    /// What somebody with this number holds already.
    pub(crate) fn held(&self, queues: &Queues<'_>, number: u64) -> Holding {
        let mut holding = Holding::default();
        if let Charges::Several(set, costs) = self {
            let charged = holding.iter_mut().zip(set.cells()).zip(costs).filter(|(_, cost)| **cost > 0);
            charged.zip(queues).for_each(|(((slot, _), _), queue)| *slot = queue.held(number));
        }
        holding
    }

    /// Without any lock of a queue.
    pub(crate) fn put_back(&self, partial: Option<Box<Partial>>) {
        if let (Some(partial), Some(core)) = (partial, self.core()) {
            Set::put_back(&partial, &mut core.client());
        }
    }

    /// The refusal of all requests in a forked child: what is held belongs to its parent, and so do the locks.
    pub(crate) fn refusal_elsewhere(&self) -> Option<AcquireError> {
        self.each().find_map(|(cell, cost)| cell.refusal_elsewhere(cost))
    }

    /// How the meters are for somebody with this number, `None` for a newcomer.
    pub(crate) fn found<'a>(&'a self, queues: &Queues<'_>, number: Option<u64>) -> Vec<Found<'a>> {
        let each = self.each().zip(queues);
        each.map(|((cell, cost), queue)| {
            let ahead = number.map_or(queue.cost(), |number| queue.ahead_of(number));
            // What is held already isn't missing.
            let held = number
                .filter(|number| queue.held(*number).is_some())
                .map_or(i64::MIN, |_| cost.cast_signed());
            Found { cell, cost, facts: queue.facts, level: cell.level_at_most().max(held), ahead }
        })
        .collect()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn try_slowly(&self) -> Result<Permit, AcquireError> {
        if let Some(refusal) = self.refusal_elsewhere() {
            return Err(refusal);
        }
        let queues = self.lock();
        let mut partial = None;
        if queues.iter().all(|queue| queue.present() == 0) {
            match self.take(&Holding::default()) {
                Ok(permit) => return Ok(permit),
                Err(left) => partial = left,
            }
        }
        let found = self.found(&queues, None);
        let Some(core) = self.core() else { return Err(nothing()) };
        let now = core.clock.boot();
        let through = self.let_through(&found, &Holding::default(), None, now, partial.is_some());
        drop(queues);
        self.put_back(partial);
        match through {
            Ok(permit) => return Ok(permit),
            Err(left) => self.put_back(left),
        }
        let (found, verdict) = match doom(&found, None, now) {
            Some(doom) => doom,
            None => match longest(&found, now) {
                Some(found) => (found, Verdict::Refused(found.reason_now(now))),
                None => return Err(nothing()),
            },
        };
        found.cell.kick_gently(now);
        Err(found.refusal(verdict, now))
    }
}

/// For what can't be: work that is charged to nothing is refused before.
fn nothing() -> AcquireError {
    AcquireError::ZeroCost { limit: "".into(), meter: "".into() }
}

/// The first meter by which waiting can't end with a permit as things stand.
pub(crate) fn doom<'a, 'b>(
    found: &'b [Found<'a>],
    number: Option<u64>,
    now: BootTime,
) -> Option<(&'b Found<'a>, Verdict)> {
    // What lets work through keeps nobody from it.
    let mut refusing = found.iter().filter(|found| !found.facts.lets_through());
    refusing.find_map(|found| Some((found, found.facts.verdict(found.cost, found.level, number, now)?)))
}

/// Of the meters that lack something, the one that takes longest; the first one when none lacks anything any more.
pub(crate) fn longest<'a, 'b>(found: &'b [Found<'a>], now: BootTime) -> Option<&'b Found<'a>> {
    let refusing = found.iter().filter(|found| !found.facts.lets_through());
    let lacking = refusing.filter(|found| found.ahead > 0 || found.is_short());
    lacking.max_by_key(|found| found.hint(Reason::Empty, now).unwrap_or(Span(u64::MAX))).or(found.first())
}

impl Found<'_> {
    pub(crate) fn is_short(&self) -> bool {
        u64::try_from(self.level).unwrap_or(0) < self.cost
    }

    fn tokens(&self) -> u64 {
        self.cost.saturating_add(self.ahead)
    }

    pub(crate) fn reason_now(&self, now: BootTime) -> Reason {
        self.facts.reason_now(self.ahead > 0, now)
    }

    fn hint(&self, reason: Reason, now: BootTime) -> Option<Span> {
        self.facts.hint(reason, self.tokens(), self.level, now)
    }

    /// Makes and counts the error.
    pub(crate) fn refusal(&self, verdict: Verdict, now: BootTime) -> AcquireError {
        let hint = self.facts.hint_of(verdict, self.tokens(), self.level, now);
        self.cell.refusal(verdict, self.cost, hint)
    }

    /// Whether a deadline in `left` can't be met for sure.
    pub(crate) fn is_late(&self, left: Span, now: BootTime) -> bool {
        left < self.facts.soonest(self.tokens(), now) && !self.facts.lets_through()
    }
}
