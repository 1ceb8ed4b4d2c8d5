//! Strict permits: taken one by one from the ledger by whoever can't hold a lease.
//!
//! A granted permit is a small lease: it counts in the sum of caps until its use is reported or it has surely expired.
//! One that can't be granted at once gets a place in the queue, and nothing else: it is granted when its turn has come
//! and its owner (or, for those who can't come back, the ledger's own timer) asks again.

use super::alloc_share::{line, strict_time, waiting_before};
use super::cell::{Cell, Place};
use super::conserved::counted_under;
use crate::limit::{CellKey, LEASE_MAX, whole_tokens};
use crate::policy::Policy;
use crate::rules::{Rule, Rules};
use crate::tier::Class;
use crate::units::{Amount, LedgerTime, Span};
use alloc::string::String;
use alloc::vec::Vec;

/// The most strict permits that one cell remembers: waiting, granted, and ended ones that a repeated request may ask for.
pub const STRICT_MAX: usize = 1_000;
/// How long a place is kept for somebody who should come back for it.
const PLACE_GRACE: Span = Span::from_secs(10);
/// How long a place is kept for somebody whom the ledger serves by itself.
const AUTO_WAIT_MAX: Span = Span::from_secs(24 * 3600);
/// The ledger's own timer never fires more often than this.
const TICK_MIN: Span = Span::from_millis(200);
/// The ledger's own timer looks again after this when it can't say when tokens will be there.
const TICK_UNSURE: Span = Span::from_secs(1);
/// What ends by itself is ended at whole multiples of this, so that many permits cost few timers.
const TICK_ENDS: Span = Span::from_secs(1);

/// Somebody wants one strict permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Names the request: the same id gets the same permit again, never a second one.
    pub id: String,
    /// Who asks, for people.
    pub client: String,
    /// From which cell.
    pub key: CellKey,
    /// How many tokens, at least one.
    pub cost: u64,
    /// How long the permit may be used.
    pub lease: Span,
    /// Whether the ledger grants it by itself when its turn has come, for those who can't ask again.
    pub auto: bool,
}

/// What became of a strict permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The permit.
    pub id: String,
    /// Its cell.
    pub key: CellKey,
    /// Tokens used of it, at most its cost. What is left goes back. Nothing used of one that still waits gives its place
    /// up.
    pub used: u64,
}

/// The answer to an [`Acquire`] or a [`Settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Granted: may be used for `lease`, counted from before the request was sent.
    Granted {
        /// How long.
        lease: Span,
    },
    /// A place in the queue. Come back with the same id after `due`, or lose it.
    Queued {
        /// Tokens wanted by those who are served earlier.
        ahead: u64,
        /// When to come back; `None` when nothing is minted at present.
        due: Option<Span>,
    },
    /// The permit has ended: it was used, given back, or expired.
    Ended(Ended),
    /// No permit, and no waiting helps: the cost is above the burst.
    CostAboveBurst {
        /// The burst now.
        burst: u64,
    },
    /// The id is taken by a request for another cost.
    IdTaken {
        /// The cost under this id.
        cost: u64,
    },
    /// No such limit, meter or tier.
    UnknownLimit,
    /// No such permit.
    UnknownId,
    /// The permit still waits: nothing can have been used of it. It keeps its place.
    NotGranted,
    /// The queue is full.
    QueueFull,
    /// An operator has paused the limit. A place in the queue is lost.
    Paused,
}

/// How a strict permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its use was reported.
    Used,
    /// All of it came back.
    Released,
    /// Nothing was said in time; it counts as used.
    Expired,
    /// Nobody came back for its place.
    Abandoned,
    /// The burst was cut below its cost while it waited: it can never be granted.
    CostAboveBurst,
}

/// One strict permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strict {
    /// Who asked.
    pub client: String,
    /// Tokens.
    pub cost: u64,
    /// How long it may be used once granted.
    pub lease: Span,
    /// Whether the ledger serves it by itself.
    pub auto: bool,
    /// When it was first asked for.
    pub since: LedgerTime,
    /// Where it stands.
    pub stage: Stage,
}

/// Where a strict permit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Has a place.
    Waiting(Place),
    /// May be used, and counts, until `expires`.
    Granted {
        /// When it was granted.
        at: LedgerTime,
        /// From here on it can't be used.
        expires: LedgerTime,
    },
    /// Is remembered, so that a repeated request isn't a new one.
    Over {
        /// How it ended.
        how: Ended,
        /// When it is forgotten.
        forget: LedgerTime,
    },
}

/// A strict permit that was granted or has ended, for the `grants` query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRecord {
    /// The permit.
    pub id: String,
    /// Who asked.
    pub client: String,
    /// Its cell.
    pub key: CellKey,
    /// Tokens.
    pub cost: u64,
    /// How it ended.
    pub how: Ended,
    /// When.
    pub at: LedgerTime,
}

impl Strict {
    pub(super) fn expires(&self) -> Option<LedgerTime> {
        match self.stage {
            Stage::Granted { expires, .. } => Some(expires),
            Stage::Waiting(_) | Stage::Over { .. } => None,
        }
    }

    /// It counts for longer.
    pub(super) fn extend(&mut self, more: Span) {
        if let Stage::Granted { expires, .. } = &mut self.stage {
            *expires = *expires + more;
        }
    }

    /// When it ends if nothing is said.
    fn ends(&self) -> Option<LedgerTime> {
        match self.stage {
            Stage::Granted { expires, .. } => Some(expires),
            // The place is kept up to and including that time.
            Stage::Waiting(place) => Some(place.until + Span(1)),
            Stage::Over { .. } => None,
        }
    }

    pub(super) fn outstanding(&self, at: LedgerTime) -> Amount {
        match self.stage {
            Stage::Granted { at: from, expires } if from <= at && at < expires => Amount::tokens(self.cost),
            _ => Amount::ZERO,
        }
    }

    /// Its place, while it waits.
    pub fn place(&self) -> Option<&Place> {
        match &self.stage {
            Stage::Waiting(place) => Some(place),
            Stage::Granted { .. } | Stage::Over { .. } => None,
        }
    }

    pub(super) fn is_forgotten(&self, now: LedgerTime) -> bool {
        matches!(self.stage, Stage::Over { forget, .. } if forget <= now)
    }
}

impl Cell {
    pub(super) fn acquire(&mut self, now: LedgerTime, acquire: Acquire, rules: Rules) -> AcquireOutcome {
        let known = self.strict.get(&acquire.id);
        if let Some(strict) = known.filter(|strict| strict.cost != acquire.cost) {
            return AcquireOutcome::IdTaken { cost: strict.cost };
        }
        let place = match known.map(|strict| (strict.stage, strict.lease)) {
            // Only a careless ledger promises tokens: see `promised` below.
            Some((Stage::Granted { at, .. }, _)) if now < at => {
                return AcquireOutcome::Queued { ahead: 0, due: Some(at.since(now)) };
            }
            Some((Stage::Granted { at, .. }, lease)) if now < at + lease => {
                // Its owner counts from before it asked this time: what is left, not all of it again.
                return AcquireOutcome::Granted { lease: lease.saturating_sub(now.since(at)) };
            }
            Some((Stage::Granted { .. }, _)) => return AcquireOutcome::Ended(Ended::Expired),
            Some((Stage::Over { how, .. }, _)) => return AcquireOutcome::Ended(how),
            Some((Stage::Waiting(place), _)) => Some(place),
            None if self.strict.len() >= STRICT_MAX && !self.forget_oldest() => {
                return AcquireOutcome::QueueFull;
            }
            None => None,
        };
        if self.config.conduct.paused && !acquire.auto {
            self.strict.remove(&acquire.id);
            return AcquireOutcome::Paused;
        }
        let burst = whole_tokens(self.burst_for(now, acquire.lease, rules));
        if acquire.cost > burst {
            self.strict.remove(&acquire.id);
            return AcquireOutcome::CostAboveBurst { burst };
        }
        let cost = Amount::tokens(acquire.cost);
        let own = line(self, Class::Own, place.map_or(u64::MAX, |place| place.number));
        let ahead = waiting_before(self, Some(own), now);
        let usable = self.usable(now, acquire.lease, ahead, rules);
        // Whoever can't come back waits as long as it takes.
        let paused = self.config.conduct.paused;
        let grantable = usable >= cost && !self.is_recovering(now) && !paused;
        let due = if paused {
            None
        } else if self.is_recovering(now) {
            self.recovering_until.map(|until| until.since(now))
        } else {
            strict_time(self, now, cost - usable)
        };
        let promised = !rules.keeps(Rule::ReservationsConfirm);
        let stage = if grantable || promised {
            self.free -= cost;
            let from = if grantable { now } else { now + due.unwrap_or_default() };
            Stage::Granted { at: from, expires: from + self.counted(acquire.lease) }
        } else {
            let number = self.number_in_line(place);
            let kept = if acquire.auto { AUTO_WAIT_MAX } else { due.unwrap_or(TICK_UNSURE) + PLACE_GRACE };
            Stage::Waiting(Place { number, wants: acquire.cost, until: now + kept })
        };
        let lease = acquire.lease;
        let since = self.strict.get(&acquire.id).map_or(now, |strict| strict.since);
        let strict =
            Strict { client: acquire.client, cost: acquire.cost, lease, auto: acquire.auto, since, stage };
        self.strict.insert(acquire.id, strict);
        if grantable { AcquireOutcome::Granted { lease } } else { AcquireOutcome::Queued { ahead, due } }
    }

    pub(super) fn settle(
        &mut self,
        now: LedgerTime,
        settle: &Settle,
        records: &mut Vec<GrantRecord>,
    ) -> AcquireOutcome {
        let Some(strict) = self.strict.get_mut(&settle.id) else { return AcquireOutcome::UnknownId };
        let used = settle.used.min(strict.cost);
        let how = match strict.stage {
            Stage::Granted { expires, .. } if now >= expires => Ended::Expired,
            Stage::Granted { .. } if used > 0 => Ended::Used,
            Stage::Granted { .. } => Ended::Released,
            Stage::Waiting(_) if used > 0 => return AcquireOutcome::NotGranted,
            Stage::Waiting(_) => Ended::Abandoned,
            Stage::Over { how, .. } => return AcquireOutcome::Ended(how),
        };
        let back = if how == Ended::Used || how == Ended::Released { strict.cost - used } else { 0 };
        strict.stage = Stage::Over { how, forget: now + LEASE_MAX };
        let record = GrantRecord {
            id: settle.id.clone(),
            client: strict.client.clone(),
            key: settle.key.clone(),
            cost: strict.cost,
            how,
            at: now,
        };
        records.push(record);
        self.used = self.used.saturating_add(used);
        // What was in flight is over; what was used within a window was used by now.
        if !matches!(self.config.policy, Policy::InFlight { .. }) && matches!(how, Ended::Used) {
            self.put_away(self.config.policy.returns_at(now), Amount::tokens(used));
        }
        if !self.is_recovering(now) {
            self.refund(Amount::tokens(back), now, Rules::ALL);
        }
        AcquireOutcome::Ended(how)
    }

    fn counted(&self, lease: Span) -> Span {
        counted_under(&self.config.policy, lease, Rules::ALL)
    }

    /// Makes room by forgetting the permit that ended first. Returns whether there was one: a late repetition of its request
    /// would be a new one.
    fn forget_oldest(&mut self) -> bool {
        let over = self.strict.iter().filter_map(|(id, strict)| match strict.stage {
            Stage::Over { forget, .. } => Some((forget, id)),
            Stage::Waiting(_) | Stage::Granted { .. } => None,
        });
        let oldest = over.min().map(|(_, id)| id.clone());
        oldest.is_some_and(|id| self.strict.remove(&id).is_some())
    }

    /// The burst that a permit for `lease` must fit into: it may be used at any time until its end.
    fn burst_for(&self, now: LedgerTime, lease: Span, rules: Rules) -> Amount {
        let end = if rules.keeps(Rule::CapsFollowBurst) { now + self.counted(lease) } else { now };
        self.config.burst.min_over(now, end)
    }

    /// What such a permit may take behind `ahead` tokens.
    fn usable(&self, now: LedgerTime, lease: Span, ahead: u64, rules: Rules) -> Amount {
        let (_, out) = self.outstanding(now);
        let burst = self.burst_for(now, lease, rules);
        let falls = burst < self.config.burst.at(now);
        let out = out + self.away.total();
        let usable = if falls { self.free.min(burst - out) } else { self.free };
        usable.min(self.escrow_room(now, rules)) - Amount::tokens(ahead)
    }

    /// Ends what has run out, and grants to those whom the ledger serves by itself, in their order.
    pub(super) fn serve(&mut self, now: LedgerTime, records: &mut Vec<GrantRecord>, rules: Rules) {
        if self.strict.is_empty() {
            return;
        }
        let burst = whole_tokens(self.config.burst.at(now).max(self.config.burst.target));
        for (id, strict) in &mut self.strict {
            let how = match strict.stage {
                Stage::Granted { expires, .. } if expires <= now => Ended::Expired,
                Stage::Waiting(place) if place.until < now => Ended::Abandoned,
                Stage::Waiting(_) if strict.cost > burst => Ended::CostAboveBurst,
                _ => continue,
            };
            if how == Ended::Expired {
                self.used = self.used.saturating_add(strict.cost);
            }
            strict.stage = Stage::Over { how, forget: now + LEASE_MAX };
            let (id, client, key) = (id.clone(), strict.client.clone(), self.config.key.clone());
            records.push(GrantRecord { id, client, key, cost: strict.cost, how, at: now });
        }
        while !self.is_recovering(now)
            && !self.removed
            && !self.config.conduct.paused
            && let Some((id, cost, lease, number)) = self.first_auto()
        {
            let own = line(self, Class::Own, number);
            let usable = self.usable(now, lease, waiting_before(self, Some(own), now), rules);
            if usable < Amount::tokens(cost) {
                break;
            }
            self.free -= Amount::tokens(cost);
            let counted = self.counted(lease);
            if let Some(strict) = self.strict.get_mut(&id) {
                strict.stage = Stage::Granted { at: now, expires: now + counted };
            }
        }
    }

    fn first_auto(&self) -> Option<(String, u64, Span, u64)> {
        let waiting = self.strict.iter().filter(|(_, strict)| strict.auto);
        let placed =
            waiting.filter_map(|(id, strict)| strict.place().map(|place| (id, strict, place.number)));
        let first = placed.min_by_key(|(_, _, number)| *number)?;
        Some((first.0.clone(), first.1.cost, first.1.lease, first.2))
    }

    /// When the ledger must look at this cell by itself.
    pub(super) fn next_due(&self, now: LedgerTime) -> Option<LedgerTime> {
        let whole = |end: LedgerTime| LedgerTime(end.0.div_ceil(TICK_ENDS.0).saturating_mul(TICK_ENDS.0));
        let ends = self.strict.values().filter_map(Strict::ends).min().map(whole);
        self.next_auto(now).into_iter().chain(ends).min()
    }

    /// When the first of those whom the ledger serves by itself may be served.
    fn next_auto(&self, now: LedgerTime) -> Option<LedgerTime> {
        let (_, cost, _, number) =
            self.first_auto().filter(|_| !self.removed && !self.config.conduct.paused)?;
        if let Some(until) = self.recovering_until {
            return Some(until);
        }
        let room = self.escrow_room(now, Rules::ALL);
        let own = line(self, Class::Own, number);
        let usable = self.free.min(room) - Amount::tokens(waiting_before(self, Some(own), now));
        let missing = Amount::tokens(cost) - usable;
        let minted = strict_time(self, now, missing).filter(|_| !self.config.policy.conserves());
        let due = minted.map(|due| now + due).or_else(|| self.next_by_itself(now))?;
        Some(due.max(now + TICK_MIN))
    }

    /// When something may come without a message, although no rate brings it: tokens that are away, those of a lease that ends,
    /// or the turn of those behind a place that is lost. Else none does, and a message that brings some serves who waits.
    fn next_by_itself(&self, now: LedgerTime) -> Option<LedgerTime> {
        let lease = self.out(now, Rules::ALL).next_expiry;
        let places =
            self.holders.values().filter_map(|holding| holding.place).map(|place| place.until + Span(1));
        // While rate or burst change there may be more at any time.
        let ramp_ends = self.config.rate.end.max(self.config.burst.end);
        let ramp = Some(now + TICK_UNSURE).filter(|_| now < ramp_ends);
        let ends = self.next_return(now).into_iter().chain(lease).chain(places).chain(ramp);
        ends.filter(|at| *at > now).min()
    }
}
