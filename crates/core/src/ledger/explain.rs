//! Why somebody waits: read from the one state, and the little that the state keeps for it alone. Nothing in here decides
//! anything: leases and grants are the same without it.

use super::alloc_share::{Kind, kind_reason, reserve};
use super::cell::{Cell, Holder, Holding};
use super::strict::Stage;
use super::view::{CellView, HolderView};
use super::{Ledger, Standing, Worker, total};
use crate::limit::{CellKey, whole_tokens};
use crate::message::{CellOutcome, Incarnation};
use crate::units::{Amount, LedgerTime, Share, Span, clamp_u64};
use alloc::string::String;
use alloc::vec::Vec;

/// Somebody starves who has waited for this many leases beside room: within one lease all that a dead worker held is free
/// again, and within another one it has come round to whoever asks.
pub const STARVED_LEASES: u64 = 2;
/// A window in which less than this of the rate was used left room, in percent. Fleets that want all of a limit use 95%.
const ROOM_BELOW_PERCENT: u128 = 75;
/// A window lasts until the rate has brought this many times the largest cost: one grant more or less is then no sign of
/// room.
const ROOM_GRANTS: u128 = 8;
/// A window lasts at least this many heartbeats: what was used in it is known but for what the last one would tell.
const ROOM_HEARTBEATS: u64 = 4;
/// A worker that wasn't heard for this many heartbeats is silent: it is gone, or cut off.
const SILENT_HEARTBEATS: u64 = 4;
/// But not sooner than this: a coordinator that moves to another host answers nobody for as long.
const SILENT_MIN: Span = Span::from_secs(5);

/// How much of a cell's rate was used lately, in windows that are long enough to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// When the window under way began.
    pub from: LedgerTime,
    /// [`Cell::used`] then.
    pub used: u64,
    /// The window before it.
    pub last: Option<Window>,
}

/// A window that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it began. It ended where the one under way began.
    pub from: LedgerTime,
    /// Tokens used in it a second, in millionths, as reported by its end.
    pub used_micro: u64,
    /// Whether clearly less than the rate was used, and nothing was owed.
    pub left_room: bool,
}

/// Tokens that wait at a worker, and when they will have been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Since when they have waited, at least.
    pub since: LedgerTime,
    /// A worker serves in order: when its counter of used tokens has come this far, none of them waits any more.
    pub until_used: u64,
}

/// Why somebody waits. Variants may be added: a reason that can't be told apart yet is told as the nearest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The group has no such limit, or has it no more.
    UnknownLimit,
    /// An operator's target of zero for this worker.
    Evicted,
    /// An operator has paused the limit.
    Paused,
    /// Memory was lost: nothing new is granted before all leases that may be out have ended.
    Recovering {
        /// When that is.
        until: LedgerTime,
    },
    /// The worker itself was not heard lately, so that it can't be given anything.
    NotHeard {
        /// When it was heard last.
        since: LedgerTime,
    },
    /// The cost is above the burst: no amount of waiting helps.
    CostAboveBurst {
        /// The largest cost.
        cost: u64,
        /// The burst that a lease may count on.
        burst: u64,
    },
    /// The rate is zero and stays so.
    NoRate,
    /// Too little now, but a ramp is on its way to what is wanted.
    Ramp {
        /// When it ends.
        ends: LedgerTime,
    },
    /// Others come first.
    Queued {
        /// Tokens that they want.
        ahead: u64,
    },
    /// More is wanted than the rate brings.
    LimitReached {
        /// All that is wanted a second, in millionths of a token.
        wanted_micro: u64,
    },
    /// All conserved tokens are in use, or were used within the window.
    AllOut {
        /// Those that holders have out, as they last said.
        out: u64,
        /// Those that nobody accounts for and that are not usable yet.
        away: u64,
        /// All there are.
        all: u64,
    },
    /// The rate would do, but workers that are not heard any more still hold a part.
    HeldBySilent {
        /// How many.
        workers: u64,
        /// When the last of their leases ends.
        until: LedgerTime,
    },
    /// The burst is smaller than what must be held at once: leases are too small to keep everybody at work.
    CrowdedBurst {
        /// Tokens that must be held at once.
        needed: u64,
        /// The burst.
        burst: u64,
    },
    /// Enough tokens are there, but they are kept for newcomers.
    Reserve {
        /// How many are kept.
        kept: u64,
    },
    /// Nothing is in the way: more comes with the next message.
    NextMessage,
}

/// Who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Callers in a worker process.
    Worker {
        /// The process.
        incarnation: Incarnation,
        /// Its name for people.
        name: String,
    },
    /// A strict permit.
    Permit {
        /// The permit.
        id: String,
        /// Who asked for it.
        client: String,
    },
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who.
    pub who: Who,
    /// For how many tokens.
    pub tokens: u64,
    /// Since when the first of them has waited, at least.
    pub since: LedgerTime,
    /// Why.
    pub reason: Reason,
}

/// A strict permit that may be used, and counts until its use is reported or it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitView {
    /// The permit.
    pub id: String,
    /// Who asked for it.
    pub client: String,
    /// Its tokens.
    pub tokens: u64,
    /// When it was granted.
    pub since: LedgerTime,
    /// When it surely ends.
    pub expires: LedgerTime,
}

/// One cell explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Its figures, and who holds.
    pub cell: CellView,
    /// Strict permits that are out, the oldest first.
    pub permits: Vec<PermitView>,
    /// Who waits, whoever has waited longest first.
    pub waiters: Vec<Waiter>,
}

/// One worker explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerExplanation {
    /// What it holds and waits for, by cell.
    pub cells: Vec<(CellKey, HolderView, Option<Waiter>)>,
    /// What its last message asked for and the group doesn't have.
    pub unknown: Vec<CellKey>,
}

impl Ledger {
    /// One cell, with who holds and who waits. `None` when there is none.
    pub fn explain(&self, key: &CellKey) -> Option<Explanation> {
        let cell = self.state().cells.get(key)?;
        let heartbeat = self.heartbeat();
        Some(Explanation {
            cell: self.view_cell(cell, heartbeat),
            permits: self.permits(cell),
            waiters: self.waiters(cell, heartbeat),
        })
    }

    /// What a worker holds and waits for. Empty for one that isn't known.
    pub fn explain_worker(&self, incarnation: Incarnation) -> WorkerExplanation {
        let (mut cells, heartbeat) = (Vec::new(), self.heartbeat());
        for cell in self.state().cells.values() {
            for borrowed in [false, true] {
                let holder = Holder { incarnation, borrowed };
                let Some(holding) = cell.holders.get(&holder) else { continue };
                let waits = holding.waits(cell, self.state().now);
                let waiter = waits.then(|| Facts::of(self, cell, heartbeat).worker(&holder, holding));
                let view = self.view_holder(cell, &holder, holding, heartbeat);
                cells.push((cell.config.key.clone(), view, waiter));
            }
        }
        let worker = self.state().workers.get(&incarnation);
        WorkerExplanation { cells, unknown: worker.into_iter().flat_map(unknown_to).cloned().collect() }
    }

    /// How many workers asked in their last message for a limit of this name that the group doesn't have.
    pub fn asked_in_vain(&self, limit: &str) -> u64 {
        let asks = |worker: &&Worker| unknown_to(worker).any(|key| key.limit == limit);
        self.state().workers.values().filter(asks).count() as u64
    }

    fn permits(&self, cell: &Cell) -> Vec<PermitView> {
        let now = self.state().now;
        let permits = cell.strict.iter().filter_map(|(id, strict)| match strict.stage {
            Stage::Granted { at, expires } if now < expires => Some(PermitView {
                id: id.clone(),
                client: strict.client.clone(),
                tokens: strict.cost,
                since: at,
                expires,
            }),
            _ => None,
        });
        let mut permits: Vec<PermitView> = permits.collect();
        permits.sort_by_key(|permit| permit.since);
        permits
    }

    fn waiters(&self, cell: &Cell, heartbeat: Span) -> Vec<Waiter> {
        let now = self.state().now;
        let facts = Facts::of(self, cell, heartbeat);
        let workers = cell.holders.iter().filter(|(_, holding)| holding.waits(cell, now));
        let workers = workers.map(|(holder, holding)| facts.worker(holder, holding));
        let permits = cell.strict.iter().filter_map(|(id, strict)| {
            let place = strict.place()?;
            let who = Who::Permit { id: id.clone(), client: strict.client.clone() };
            let reason = facts.permit(strict.cost, place.number);
            Some(Waiter { who, tokens: strict.cost, since: strict.since, reason })
        });
        let mut waiters: Vec<Waiter> = workers.chain(permits).collect();
        waiters.sort_by_key(|waiter| waiter.since);
        waiters
    }

    /// Whoever has waited longest for too long, beside room that the last window left. Somebody starves then, and the rate
    /// is not to blame.
    pub(super) fn starving(&self, cell: &Cell, heartbeat: Span) -> Option<Waiter> {
        let now = self.state().now;
        let window = cell.room.last.filter(|window| window.left_room)?;
        let long = cell.config.lease.scale_ceil(STARVED_LEASES, 1);
        if cell.removed || cell.config.conduct.paused || self.recovering(cell).is_some() {
            return None;
        }
        let starves = |since: LedgerTime| since <= window.from && since + long <= now;
        // Reasons take another walk over all holders: only where somebody has waited for long.
        let worker = |holding: &Holding| {
            holding.waits(cell, now) && holding.unserved.is_some_and(|unserved| starves(unserved.since))
        };
        let is_suspect = cell.holders.values().any(worker)
            || cell.strict.values().any(|strict| strict.place().is_some() && starves(strict.since));
        let waiters = if is_suspect { self.waiters(cell, heartbeat) } else { Vec::new() };
        let is_meant = |reason| matches!(reason, Reason::Evicted | Reason::NotHeard { .. });
        waiters.into_iter().find(|waiter| starves(waiter.since) && !is_meant(waiter.reason))
    }

    fn recovering(&self, cell: &Cell) -> Option<LedgerTime> {
        let now = self.state().now;
        self.state().recovering_until.max(cell.recovering_until).filter(|until| now < *until)
    }

    fn is_evicted(&self, incarnation: Incarnation) -> bool {
        let worker = self.state().workers.get(&incarnation);
        worker.is_some_and(|worker| worker.standing == Standing::Evicted)
    }
}

/// Whether somebody who was heard then must be taken to be gone or cut off.
pub fn is_silent(seen: LedgerTime, now: LedgerTime, heartbeat: Span) -> bool {
    now > seen + heartbeat.scale_ceil(SILENT_HEARTBEATS, 1).max(SILENT_MIN)
}

/// What a worker's last message asked for and didn't exist.
fn unknown_to(worker: &Worker) -> impl Iterator<Item = &CellKey> {
    let cells = worker.reply.iter().flat_map(|reply| &reply.cells);
    cells.filter(|cell| cell.outcome == CellOutcome::Unknown).map(|cell| &cell.key)
}

/// What the reasons of all who wait for one cell have in common.
struct Facts<'a> {
    ledger: &'a Ledger,
    cell: &'a Cell,
    now: LedgerTime,
    heartbeat: Span,
    rate_micro: u64,
    target_micro: u64,
    burst: u64,
    needed: u64,
    wanted_micro: u64,
    /// What strict permits hold.
    permits: Amount,
    /// What those hold who are not heard any more.
    silent: Silent,
    /// The places in their order, each with the tokens that those before it want.
    places: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Default)]
struct Silent {
    workers: u64,
    share: Share,
    cap: Amount,
    until: LedgerTime,
}

impl<'a> Facts<'a> {
    fn of(ledger: &'a Ledger, cell: &'a Cell, heartbeat: Span) -> Facts<'a> {
        let now = ledger.state().now;
        let config = &cell.config;
        let mut silent = Silent::default();
        let mut wanted = 0u64;
        let mut places: Vec<(u64, u64)> = Vec::new();
        for holding in cell.holders.values() {
            let (share, cap) = holding.counts(now);
            if !is_silent(holding.seen, now, heartbeat) {
                wanted = wanted.saturating_add(holding.demand);
            } else if share > Share::ZERO || cap > Amount::ZERO {
                silent.workers += 1;
                silent.share = silent.share.saturating_add(share);
                silent.cap += cap;
                silent.until = silent.until.max(holding.ends(now).unwrap_or(now));
            }
            let place = holding.place.filter(|place| now <= place.until);
            places.extend(place.map(|place| (place.number, place.wants)));
        }
        for place in cell.strict.values().filter_map(|strict| strict.place()) {
            wanted = wanted.saturating_add(place.wants.saturating_mul(1_000_000));
            places.push((place.number, place.wants));
        }
        places.sort_unstable();
        let mut sum = 0u64;
        for (_, wants) in &mut places {
            let before = sum;
            sum = sum.saturating_add(*wants);
            *wants = before;
        }
        Facts {
            ledger,
            cell,
            now,
            heartbeat,
            rate_micro: config.rate.at(now).micro_per_second(),
            target_micro: config.rate.target.micro_per_second(),
            burst: whole_tokens(config.burst.min_over(now, now + config.lease)),
            needed: kind_reason(cell, now, heartbeat).needed,
            wanted_micro: wanted,
            permits: total(cell.strict.values().map(|strict| strict.outstanding(now))),
            silent,
            places,
        }
    }

    fn ahead(&self, number: Option<u64>) -> u64 {
        let Some(number) = number else { return 0 };
        let found = self.places.binary_search_by_key(&number, |(number, _)| *number);
        found.ok().and_then(|index| self.places.get(index)).map_or(0, |(_, before)| *before)
    }

    fn worker(&self, holder: &Holder, holding: &Holding) -> Waiter {
        let worker = self.ledger.state().workers.get(&holder.incarnation);
        let name = worker.map(|worker| worker.name.clone()).unwrap_or_default();
        let reason = if self.ledger.is_evicted(holder.incarnation) && !self.cell.removed {
            Reason::Evicted
        } else if is_silent(holding.seen, self.now, self.heartbeat)
            && self.ledger.recovering(self.cell).is_none()
        {
            Reason::NotHeard { since: holding.seen }
        } else {
            let cost = holding.largest.max(1);
            let number = holding.place.filter(|place| self.now <= place.until).map(|place| place.number);
            self.in_general(cost, holding.held).unwrap_or_else(|| self.for_worker(cost, holding, number))
        };
        Waiter {
            who: Who::Worker { incarnation: holder.incarnation, name },
            tokens: holding.waiting,
            since: holding.unserved.map_or(self.now, |unserved| unserved.since),
            reason,
        }
    }

    fn permit(&self, cost: u64, number: u64) -> Reason {
        if let Some(reason) = self.in_general(cost, Amount::ZERO) {
            return reason;
        }
        if self.cell.config.policy.conserves() {
            return self.by_tokens(cost, Some(number));
        }
        let ahead = self.ahead(Some(number));
        if ahead > 0 {
            return Reason::Queued { ahead };
        }
        // Workers give way as they renew their leases; other permits don't.
        let needed = whole_tokens(self.permits).saturating_add(cost);
        if needed > self.burst {
            return Reason::CrowdedBurst { needed, burst: self.burst };
        }
        self.by_rate().unwrap_or_else(|| {
            let (_, out) = self.cell.outstanding(self.now);
            let needed = whole_tokens(out).saturating_add(cost);
            self.by_holders(needed).unwrap_or(Reason::NextMessage)
        })
    }

    /// Where tokens are conserved.
    fn by_tokens(&self, cost: u64, number: Option<u64>) -> Reason {
        let ahead = self.ahead(number);
        if ahead > 0 {
            return Reason::Queued { ahead };
        }
        if self.cell.free >= Amount::tokens(cost) {
            return Reason::NextMessage;
        }
        let out = self.cell.holders.values().fold(0, |sum: u64, holding| sum.saturating_add(holding.out));
        let away = whole_tokens(self.cell.away.total());
        let out = out.saturating_add(whole_tokens(self.permits));
        if out.saturating_add(away).saturating_add(cost) > self.burst {
            return Reason::AllOut { out, away, all: self.burst };
        }
        let (workers, until) = (self.silent.workers, self.silent.until);
        if workers > 0 { Reason::HeldBySilent { workers, until } } else { Reason::NextMessage }
    }

    fn for_worker(&self, cost: u64, holding: &Holding, number: Option<u64>) -> Reason {
        if self.cell.config.policy.conserves() {
            return self.by_tokens(cost, number);
        }
        let by_rate = self.by_rate();
        if let Some(reason @ Reason::Ramp { .. }) = by_rate {
            return reason;
        }
        let ahead = if self.cell.kind == Kind::Tokens { self.ahead(number) } else { 0 };
        if ahead > 0 {
            return Reason::Queued { ahead };
        }
        if let Some(reason) = by_rate.or_else(|| self.by_holders(self.needed)) {
            return reason;
        }
        let kept = reserve(self.cell, Amount::tokens(self.burst), self.needed);
        let cost = Amount::tokens(cost);
        let is_kept = self.cell.free >= cost && self.cell.free - kept < cost && holding.held < cost;
        if self.cell.kind == Kind::Shares && is_kept {
            return Reason::Reserve { kept: whole_tokens(kept) };
        }
        Reason::NextMessage
    }

    /// What keeps everybody from getting anything, whatever others do.
    fn in_general(&self, cost: u64, held: Amount) -> Option<Reason> {
        let config = &self.cell.config;
        if self.cell.removed {
            return Some(Reason::UnknownLimit);
        }
        if config.conduct.paused {
            return Some(Reason::Paused);
        }
        if let Some(until) = self.ledger.recovering(self.cell) {
            return Some(Reason::Recovering { until });
        }
        let target = whole_tokens(config.burst.target);
        if cost > self.burst && cost <= target && self.now < config.burst.end {
            return Some(Reason::Ramp { ends: config.burst.end });
        }
        if cost > self.burst {
            return Some(Reason::CostAboveBurst { cost, burst: self.burst });
        }
        let is_zero = config.rate.at(self.now).micro_tokens == 0 && config.rate.target.micro_tokens == 0;
        let is_dry = self.cell.free.max(held) < Amount::tokens(cost);
        (is_zero && is_dry).then_some(Reason::NoRate)
    }

    /// More is wanted than the rate brings.
    fn by_rate(&self) -> Option<Reason> {
        if self.wanted_micro <= self.rate_micro {
            return None;
        }
        let ends = self.cell.config.rate.end;
        let rises = self.now < ends && self.target_micro > self.rate_micro;
        if rises && self.wanted_micro <= self.target_micro {
            return Some(Reason::Ramp { ends });
        }
        Some(Reason::LimitReached { wanted_micro: self.wanted_micro })
    }

    /// What others hold is in the way.
    fn by_holders(&self, needed: u64) -> Option<Reason> {
        let Silent { workers, share, cap, until } = self.silent;
        let left = share.rest().of(self.rate_micro);
        let room = whole_tokens(Amount::tokens(self.burst) - cap);
        if workers > 0 && (self.wanted_micro > left || needed > room && needed <= self.burst) {
            return Some(Reason::HeldBySilent { workers, until });
        }
        (needed > self.burst).then_some(Reason::CrowdedBurst { needed, burst: self.burst })
    }
}

impl Room {
    /// Nothing is known yet.
    pub fn begin(now: LedgerTime, used: u64) -> Room {
        Room { from: now, used, last: None }
    }
}

impl Cell {
    /// Ends the window under way when it is long enough. The cell must have been advanced to `now`.
    pub(super) fn watch(&mut self, now: LedgerTime, heartbeat: Span) {
        if self.is_recovering(now) || self.removed || self.config.conduct.paused {
            self.room = Room::begin(now, self.used);
            return;
        }
        let length = now.since(self.room.from);
        if length < self.config.lease.max(heartbeat.scale_ceil(ROOM_HEARTBEATS, 1)) {
            return;
        }
        let minted = self.config.rate.integral_nano(self.room.from, now);
        let current = self.holders.values().filter(|holding| holding.waits(self, now));
        let strict = self.strict.values().filter(|strict| strict.place().is_some());
        let costs = current.map(|holding| holding.largest).chain(strict.map(|strict| strict.cost));
        let largest = u128::from(costs.max().unwrap_or(1).max(1));
        let conserves = self.config.policy.conserves();
        if !conserves && minted < largest.saturating_mul(ROOM_GRANTS * NANO) {
            return;
        }
        let used = self.used.saturating_sub(self.room.used);
        let owed =
            self.free < Amount::ZERO || self.holders.values().any(|holding| holding.debt > Amount::ZERO);
        let is_low = if conserves {
            self.free >= Amount::tokens(clamp_u64(largest))
        } else {
            u128::from(used) * (NANO * 100) < minted.saturating_mul(ROOM_BELOW_PERCENT)
        };
        let used_micro = clamp_u64(u128::from(used) * 1_000_000_000_000 / u128::from(length.0.max(1)));
        let last = Window { from: self.room.from, used_micro, left_room: is_low && !owed };
        self.room = Room { from: now, used: self.used, last: Some(last) };
    }
}

/// A token in the unit in which curves are integrated.
const NANO: u128 = 1_000_000_000;

impl Holding {
    /// Whether it waits, as far as that is still known.
    fn waits(&self, cell: &Cell, now: LedgerTime) -> bool {
        self.waiting > 0 && self.is_current(now, cell.config.lease)
    }

    /// When the last of its leases ends.
    pub(super) fn ends(&self, now: LedgerTime) -> Option<LedgerTime> {
        let leases = [self.acked, self.pending];
        leases.iter().flatten().map(|lease| lease.expires).filter(|expires| now < *expires).max()
    }

    /// Notes since when it has held a part. `before` is what counted until now.
    pub(super) fn note_held(&mut self, before: Option<(Share, Amount)>, now: LedgerTime) {
        let nothing = (Share::ZERO, Amount::ZERO);
        let held = before.is_some_and(|before| before != nothing);
        self.held_since = match self.held_since.filter(|_| held) {
            _ if self.counts(now) == nothing => None,
            Some(since) => Some(since),
            // Whole seconds take little room in what is carried through continue-as-new.
            None => Some(LedgerTime(now.0 - now.0 % 1_000_000)),
        };
    }

    /// Notes since when what waits has waited. Its counter must have been taken in, and its other figures not yet. Whoever
    /// wasn't heard for a lease begins anew: what happened meanwhile is not the limit's fault.
    pub(super) fn note_waiting(&mut self, waiting: u64, now: LedgerTime, lease: Span) {
        self.unserved = match self.unserved.filter(|_| self.is_current(now, lease)) {
            _ if waiting == 0 => None,
            Some(unserved) if self.used < unserved.until_used => Some(unserved),
            _ => Some(Unserved { since: now, until_used: self.used.saturating_add(waiting) }),
        };
    }
}
