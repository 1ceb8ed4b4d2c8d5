//! One cell: the tokens of one meter of one limit in one tier, and everybody who holds some.
//!
//! The two sums, kept at all times outside of recovery and of unannounced cuts:
//!
//! ```text
//! sum of shares that may be acted on <= 1          free + sum of caps that may be acted on <= B
//! ```
//!
//! A holder counts with the larger of its acknowledged and its pending lease, each until its own expiry. The ledger mints
//! only what is left of the rate. Together nobody ever mints faster than the rate or holds more than the burst.

use super::alloc_share::{self, Kind};
use super::conserved::{Away, counted_under};
use super::escrow::Kept;
use super::explain::{Room, Unserved};
use super::holders::{Holders, share_of};
use super::strict::Strict;
use super::total;
use crate::digest::Digest;
use crate::limit::{CellConfig, DEBT_BURSTS_MAX, Initial, LEASE_MAX, counted};
use crate::message::{Acting, CellOutcome, CellReport, Incarnation, LeaseName, LeaseTerms};
use crate::rules::{Rule, Rules};
use crate::tier::Class;
use crate::units::{Amount, LedgerTime, Share, Span};
use alloc::collections::BTreeMap;
use alloc::string::String;

/// Somebody who got too little is remembered until it asks again, and once more.
const SHORT_HEARTBEATS: u64 = 2;

/// Who holds: one incarnation, for its own tier or borrowed for a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The process.
    pub incarnation: Incarnation,
    /// Whether it borrows from this tier.
    pub borrowed: bool,
}

/// What a holder may be acting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The seq of the reply.
    pub seq: u64,
    /// The share that it may mint.
    pub share: Share,
    /// The cap of its bucket.
    pub cap: Amount,
    /// Tokens that came with the reply; read only to show what rule 7 forbids.
    pub tokens: Amount,
    /// From here on it surely acts on it no more.
    pub expires: LedgerTime,
}

/// One holder's part of the cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The lease that it last said it acts on.
    pub acked: Option<Lease>,
    /// The lease of the last reply, as long as nothing newer settled it.
    pub pending: Option<Lease>,
    /// Wanted tokens a second, in millionths.
    pub demand: u64,
    /// Whose work it holds for.
    pub class: Class,
    /// Tokens that its waiters want.
    pub waiting: u64,
    /// Its largest cost, at least one.
    pub largest: u64,
    /// Tokens in its bucket when it last asked.
    pub held: Amount,
    /// Conserved tokens that were out when it last asked.
    pub out: u64,
    /// Its debt when it last asked.
    pub debt: Amount,
    /// The last value of its cumulative counter of used tokens.
    pub used: u64,
    /// The last value of its cumulative counter of returned tokens.
    pub returned: Amount,
    /// When it last asked.
    pub seen: LedgerTime,
    /// Since when it has waited without a break.
    pub waiting_since: Option<LedgerTime>,
    /// What waits there, and since when.
    pub unserved: Option<Unserved>,
    /// Since when it has held a part without a break, in whole seconds; read only while it does.
    pub held_since: Option<LedgerTime>,
    /// Its place among those who wait for counted tokens or for their turn.
    pub place: Option<Place>,
    /// When its turn ends, where workers take turns.
    pub turn_until: Option<LedgerTime>,
}

/// A place in the queue for counted tokens or for a turn. Never a promise: it is confirmed when its holder comes back for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Lower numbers are served first.
    pub number: u64,
    /// Tokens set aside for it before those behind are served.
    pub wants: u64,
    /// Lost when its holder has not come back by then.
    pub until: LedgerTime,
}

/// What one heartbeat's cells have in common.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The time of the answer.
    pub now: LedgerTime,
    /// The ledger's epoch.
    pub epoch: u64,
    /// The request's seq.
    pub seq: u64,
    /// The pace that the reply sets.
    pub heartbeat: Span,
    /// Requests that nobody asked for are not closer than this.
    pub gap: Span,
    /// Whether the whole ledger recovers.
    pub recovering: bool,
    /// Whether the worker's target is zero.
    pub evicted: bool,
    /// The rules in force.
    pub rules: Rules,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The configuration in force.
    pub config: CellConfig,
    /// Tokens that nobody holds. Negative only by debt of holders that are gone.
    pub free: Amount,
    /// Up to where `free` has been minted.
    pub at: LedgerTime,
    /// Until when nothing is minted or granted anew.
    pub recovering_until: Option<LedgerTime>,
    /// Whether nothing is confirmed until then either: what is out was granted under another policy.
    pub closed: bool,
    /// Conserved tokens that nobody accounts for and that may have been used.
    pub away: Away,
    /// Whether the configuration has dropped it; remembered until as good as new.
    pub removed: bool,
    /// How tokens are handed out.
    pub kind: Kind,
    /// All holders.
    pub holders: Holders,
    /// Strict grants and who waits for one, by id.
    pub strict: BTreeMap<String, Strict>,
    /// The number that the next place in the queue gets.
    pub next_place: u64,
    /// Tokens that holders and strict grants said they used, since the cell began.
    pub used: u64,
    /// Up to then somebody waits who got less than half of its share, since others still hold it.
    pub short_until: LedgerTime,
    /// How much is missing.
    pub short: Share,
    /// How much of the rate was used lately.
    pub room: Room,
    /// What is known of a keeper of what may have been drawn.
    pub kept: Kept,
    /// Where counted tokens or turns are handed out: tokens by which its own work is behind its floor, from work of higher
    /// tiers that waits beside it; negative: ahead of it. At most a burst and what a second brings.
    pub behind: Amount,
}

impl Holding {
    /// The lease that counts at `at`: the larger of both in each part; of each only while it lives.
    fn counted_at(&self, at: LedgerTime, rules: Rules) -> (Share, Amount) {
        let alive = |lease: &Option<Lease>| lease.filter(|lease| at < lease.expires);
        let (acked, pending) = (alive(&self.acked), alive(&self.pending));
        let acked =
            if pending.is_some() && !rules.keeps(Rule::LowerOnAcknowledgement) { None } else { acked };
        let share = acked
            .map_or(Share::ZERO, |lease| lease.share)
            .max(pending.map_or(Share::ZERO, |lease| lease.share));
        let cap = acked
            .map_or(Amount::ZERO, |lease| lease.cap)
            .max(pending.map_or(Amount::ZERO, |lease| lease.cap));
        (share, cap)
    }

    /// The part that counts in the sums at `at`.
    pub fn counts(&self, at: LedgerTime) -> (Share, Amount) {
        self.counted_at(at, Rules::ALL)
    }

    /// Whether any lease lives at `at`.
    pub fn lives(&self, at: LedgerTime) -> bool {
        [self.acked, self.pending].iter().flatten().any(|lease| at < lease.expires)
    }

    /// Whether it asked so lately that its demand means something.
    pub fn is_current(&self, now: LedgerTime, lease: Span) -> bool {
        now < self.seen + lease
    }
}

/// What is out, and when the next part of it ends.
pub(super) struct Out {
    pub share: Share,
    pub cap: Amount,
    pub next_expiry: Option<LedgerTime>,
}

impl Cell {
    /// A cell that nobody holds anything of. It starts full, unless it shall not, or something may be out that it doesn't know.
    pub fn new(
        now: LedgerTime,
        config: CellConfig,
        recovering_until: Option<LedgerTime>,
        rules: Rules,
    ) -> Cell {
        let alone =
            (!config.fresh && rules.keeps(Rule::RecoverWithoutMemory)).then(|| now + counted(LEASE_MAX));
        let recovering_until = recovering_until.max(alone);
        let all = config.burst.at(now);
        let is_empty = config.initial == Initial::Empty;
        let free = if recovering_until.is_some() || is_empty { Amount::ZERO } else { all };
        let kind = if config.policy.conserves() { Kind::Permits } else { Kind::Shares };
        let mut cell = Cell {
            config,
            free,
            at: now,
            recovering_until,
            closed: false,
            away: Away::default(),
            removed: false,
            kind,
            holders: Holders::default(),
            strict: BTreeMap::new(),
            next_place: 0,
            used: 0,
            short_until: now,
            short: Share::ZERO,
            room: Room::begin(now, 0),
            kept: Kept::default(),
            behind: Amount::ZERO,
        };
        if is_empty && cell.config.policy.conserves() {
            cell.put_away(cell.config.policy.returns_at(now), all);
        }
        cell
    }

    /// The cell is new beside other tiers of its limit, whose tokens may be in use until then: it begins empty, and where
    /// tokens are conserved, grants nothing until that is over.
    pub(super) fn begin_beside(&mut self, until: LedgerTime) {
        self.free = Amount::ZERO;
        if self.config.policy.conserves() && self.at < until {
            self.recovering_until = self.recovering_until.max(Some(until));
            self.closed = true;
        }
    }

    /// Takes on a new configuration. What is out stays counted.
    pub fn reconfigure(&mut self, now: LedgerTime, config: CellConfig) {
        if self.config.rate != config.rate {
            self.room = Room::begin(now, self.used);
        }
        let policy = config.policy.clone();
        self.config = CellConfig { policy: self.config.policy.clone(), ..config };
        self.change_policy(now, policy);
        self.removed = false;
        self.clip(now, Rules::ALL);
    }

    /// Drops all memory; grants nothing new before `until`.
    pub fn forget(&mut self, now: LedgerTime, until: LedgerTime) {
        self.free = Amount::ZERO;
        self.at = self.at.max(now);
        self.recovering_until = Some(until);
        self.closed = false;
        self.away = Away::default();
        self.holders.clear();
        self.strict.clear();
        self.kept = Kept::default();
        self.room = Room::begin(now, self.used);
    }

    /// The number of somebody's place in the queue, or the next one.
    pub(super) fn number_in_line(&mut self, place: Option<Place>) -> u64 {
        if let Some(place) = place {
            return place.number;
        }
        self.next_place += 1;
        self.next_place
    }

    /// Whether the cell still waits for leases that it doesn't know.
    pub fn is_recovering(&self, now: LedgerTime) -> bool {
        self.recovering_until.is_some_and(|until| now < until)
    }

    /// Makes up for the time since the last message: leases end one by one, and tokens are minted between their ends.
    pub fn advance(&mut self, now: LedgerTime, rules: Rules) {
        if self.config.policy.conserves() {
            return self.advance_conserved(now, rules);
        }
        while self.at < now {
            self.holders.settle(self.at, self.config.lease);
            let out = if rules.keeps(Rule::PiecewiseTime) {
                self.out(self.at, rules)
            } else {
                self.out(now, rules)
            };
            let recovery = self.recovering_until.filter(|until| self.at < *until);
            let mut stop = now;
            if rules.keeps(Rule::PiecewiseTime) {
                stop = stop.min(out.next_expiry.unwrap_or(now));
            }
            stop = stop.min(recovery.unwrap_or(now));
            // Where the burst begins or ends to change, a piece ends: room that comes later was not there before.
            for bend in [self.config.burst.start, self.config.burst.end] {
                if self.at < bend {
                    stop = stop.min(bend);
                }
            }
            if recovery.is_none() {
                let minted = self.config.rate.integral_nano(self.at, stop);
                let part = i128::from(out.share.rest().ppb());
                self.free += Amount(i128::try_from(minted).unwrap_or(i128::MAX).saturating_mul(part));
            }
            self.at = stop;
            // What was out during this piece leaves no room in it: a lease that ends at `stop` makes room from then on.
            let room = (self.config.burst.at(stop) - out.cap).at_least_zero();
            self.free = self.free.min(room);
        }
        self.holders.settle(self.at, self.config.lease);
        self.end_recovery(now);
    }

    pub(super) fn end_recovery(&mut self, now: LedgerTime) {
        if !self.is_recovering(now) {
            self.recovering_until = None;
            self.closed = false;
        }
    }

    /// All that may be acted on at `at`.
    pub(super) fn out(&self, at: LedgerTime, rules: Rules) -> Out {
        // A ledger with a rule switched off counts in its own way.
        if rules.is_complete() {
            let (sums, until) = self.holders.sums(at, self.config.lease);
            let strict = self.strict.values().filter_map(Strict::expires).filter(|expires| at < *expires);
            let cap = sums.cap + total(self.strict.values().map(|strict| strict.outstanding(at)));
            return Out {
                share: share_of(sums.share_ppb),
                cap,
                next_expiry: strict.chain(Some(until).filter(|until| until.0 < u64::MAX)).min(),
            };
        }
        let mut out = Out { share: Share::ZERO, cap: Amount::ZERO, next_expiry: None };
        let mut expiry = |expires: LedgerTime| {
            if at < expires {
                out.next_expiry = Some(out.next_expiry.map_or(expires, |next| next.min(expires)));
            }
        };
        for holding in self.holders.values() {
            for lease in [holding.acked, holding.pending].iter().flatten() {
                expiry(lease.expires);
            }
        }
        for strict in self.strict.values() {
            if let Some(expires) = strict.expires() {
                expiry(expires);
            }
        }
        for (holder, holding) in self.holders.iter() {
            if holder.borrowed && !rules.keeps(Rule::BorrowedCountsAtLender) {
                continue;
            }
            let (share, cap) = holding.counted_at(at, rules);
            out.share = out.share.saturating_add(share);
            out.cap += cap;
        }
        if rules.keeps(Rule::StrictGrantsCount) {
            out.cap += total(self.strict.values().map(|strict| strict.outstanding(at)));
        }
        out
    }

    /// All shares and caps that may be acted on at `at`, strict grants included.
    pub fn outstanding(&self, at: LedgerTime) -> (Share, Amount) {
        let out = self.out(at, Rules::ALL);
        (out.share, out.cap)
    }

    /// Keeps `free` within the burst less what is out.
    pub(super) fn clip(&mut self, at: LedgerTime, rules: Rules) {
        let room = self.config.burst.at(at) - self.out(at, rules).cap;
        if self.config.policy.conserves() {
            let left = room - self.away.total();
            self.free = if self.is_recovering(at) { left.min(Amount::ZERO) } else { left };
            return;
        }
        self.free = self.free.min(room.at_least_zero());
    }

    /// Puts tokens back as far as there is room.
    pub(crate) fn refund(&mut self, amount: Amount, at: LedgerTime, rules: Rules) {
        self.free += amount.at_least_zero();
        self.clip(at, rules);
    }

    /// Answers one report of a heartbeat. The cell must have been advanced to the turn's time.
    /// `class` says whose work it is for.
    pub fn heartbeat(
        &mut self,
        holder: Holder,
        class: Class,
        report: &CellReport,
        turn: &Turn,
    ) -> CellOutcome {
        if class == Class::Barred && report.acting.is_none() && !self.holders.contains_key(&holder) {
            // Nothing of it need be remembered.
            let terms = self.terms(turn);
            return if self.removed { CellOutcome::Unknown } else { CellOutcome::Lease(terms) };
        }
        let before = self.holders.get(&holder).map(|holding| holding.counts(turn.now));
        self.take_in(holder, class, report, turn);
        if self.removed {
            return CellOutcome::Unknown;
        }
        let none = LeaseTerms { share: Share::ZERO, cap: Amount::ZERO, ..self.terms(turn) };
        let terms = if self.is_recovering(turn.now) && self.closed {
            let due = self.recovering_until.map(|until| until.since(turn.now));
            LeaseTerms { due, ..none }
        } else if self.config.conduct.paused {
            // What is in flight goes on, and while memory is lost it counts as it is claimed.
            LeaseTerms { confirm: self.is_recovering(turn.now), ..none }
        } else if self.is_recovering(turn.now) {
            self.confirm(holder, report, turn, before.unwrap_or_default())
        } else if turn.evicted || class == Class::Barred {
            none
        } else if self.config.policy.conserves() {
            self.grant_conserved(holder, report, turn)
        } else {
            self.grant(holder, report, turn)
        };
        let ends = turn.now + counted_under(&self.config.policy, terms.duration, turn.rules);
        let (share, cap, tokens) = (terms.share, terms.cap, terms.tokens);
        let out = Amount::tokens(report.out);
        let is_confirmed = terms.confirm && self.config.policy.conserves();
        self.holders.update_known(holder, |holding| {
            holding.pending = Some(Lease { seq: turn.seq, share, cap, tokens, expires: ends });
            // There may be no room for all that it has out; it is out all the same.
            if is_confirmed && holding.acked.is_none() && cap < out {
                holding.acked = Some(Lease { seq: 0, share: Share::ZERO, cap: out, tokens, expires: ends });
            }
            holding.note_held(before, turn.now);
        });
        self.clip(turn.now, turn.rules);
        CellOutcome::Lease(terms)
    }

    /// Settles what the request acknowledges and takes its figures in.
    fn take_in(&mut self, holder: Holder, class: Class, report: &CellReport, turn: &Turn) {
        let now = turn.now;
        let recovering = self.is_recovering(now);
        let first_sight = !self.holders.contains_key(&holder);
        let rules = turn.rules;
        let conserves = self.config.policy.conserves();
        let (used, lease) = (&mut self.used, self.config.lease);
        let (before, refund) = self.holders.update(holder, |holding| {
            let paid = holding.pays_for(report.acting, turn.epoch, now, rules);
            let before = holding.counts(now).1;
            let skipped = holding.settle(report, turn, conserves.then_some(before));
            let mut refund = Amount::ZERO;
            if !rules.keeps(Rule::SkippedTokensAreGone) {
                refund += skipped;
            }
            if first_sight && rules.keeps(Rule::BaselineAtFirstSight) {
                holding.used = report.used;
                holding.returned = report.returned;
            } else {
                *used = used.saturating_add(report.used.saturating_sub(holding.used));
                let given_back = (report.returned - holding.returned).at_least_zero();
                holding.used = holding.used.max(report.used);
                holding.returned = holding.returned.max(report.returned);
                let trusted = !rules.keeps(Rule::GivenBackCounts) || !rules.keeps(Rule::BaselineAtFirstSight);
                if !rules.keeps(Rule::GivenBackCounts)
                    && let Some(acked) = &mut holding.acked
                {
                    // The hole: the ledger takes the cap to be lower by what came, and the worker keeps to the old one.
                    acked.cap = (acked.cap - given_back).at_least_zero();
                }
                refund += if trusted { given_back } else { given_back.min(paid) };
            }
            holding.class = class;
            let waiting = if class == Class::Barred { 0 } else { report.waiting };
            holding.note_waiting(waiting, now, lease);
            holding.take_figures(report, now);
            (before, refund)
        });
        if conserves {
            self.account(holder, before, report.acting.is_some(), turn);
        } else if !recovering {
            self.refund(refund, now, rules);
        }
    }

    /// Usage without a heartbeat. The lease stays as it is.
    pub fn report(&mut self, holder: Holder, report: &CellReport, epoch: u64, rules: Rules) {
        let used = &mut self.used;
        let skipped = self.holders.update_known(holder, |holding| {
            *used = used.saturating_add(report.used.saturating_sub(holding.used));
            holding.used = holding.used.max(report.used);
            if rules.keeps(Rule::SettleByNewerSeq) {
                return None;
            }
            let names = |lease: &Option<Lease>| {
                report.acting.is_some_and(|acting| {
                    lease.is_some_and(|lease| acting.name == LeaseName { epoch, seq: lease.seq })
                })
            };
            if names(&holding.acked) {
                return holding.pending.take().map(|lease| lease.tokens);
            }
            if names(&holding.pending) {
                holding.acked = holding.pending.take();
            }
            None
        });
        if let Some(skipped) = skipped.flatten() {
            self.refund(skipped, self.at, rules);
        }
    }

    /// The holder has stopped: nothing of it counts any more. `report` carries its last counters.
    pub fn release(
        &mut self,
        holder: Holder,
        report: Option<&CellReport>,
        epoch: u64,
        recovering: bool,
        rules: Rules,
    ) {
        let at = self.at;
        let Some(holding) = self.holders.remove(&holder) else { return };
        if self.config.policy.conserves() {
            let used = report.map_or(0, |report| report.used.saturating_sub(holding.used));
            self.used = self.used.saturating_add(used);
            self.account_last(&holding, report.map(|report| report.out), rules);
            return self.clip(at, rules);
        }
        let (mut refund, mut debt) = (Amount::ZERO, holding.debt);
        if let Some(report) = report {
            self.used = self.used.saturating_add(report.used.saturating_sub(holding.used));
            // Without the tombstone, a careless ledger pays from whatever the dead was granted anew.
            let paid = if rules.keeps(Rule::RevokedStaysRevoked) {
                holding.pays_for(report.acting, epoch, at, rules)
            } else {
                holding.counted_at(at, rules).1
            };
            let given_back = (report.returned - holding.returned).at_least_zero();
            refund = given_back.min(paid);
            debt = report.debt.at_least_zero();
        }
        if !recovering && !self.is_recovering(at) {
            self.free += refund;
            self.take_over(debt);
        }
        self.clip(at, Rules::ALL);
    }

    /// Drops holders that are gone, and puts their debt on everybody.
    pub fn sweep(&mut self, now: LedgerTime, known: impl Fn(&Holder) -> bool) {
        let (mut debt, lease) = (Amount::ZERO, counted(self.config.lease));
        self.holders.retain(|holder, holding| {
            // Whoever doesn't borrow any more says no more of it.
            let is_over = holder.borrowed && !holding.is_current(now, lease) && holding.debt == Amount::ZERO;
            let keep = holding.lives(now) || (known(holder) && !is_over);
            if !keep {
                debt += holding.debt;
            }
            keep
        });
        self.take_over(debt);
        self.strict.retain(|_, strict| !strict.is_forgotten(now));
    }

    /// Takes over the debt of somebody who is gone, up to a stated bound: a wrong figure must not close a limit for good.
    fn take_over(&mut self, debt: Amount) {
        if debt > Amount::ZERO {
            let burst = self.config.burst.source.max(self.config.burst.target);
            let bound = Amount(burst.0.saturating_mul(i128::from(DEBT_BURSTS_MAX)));
            self.free = (self.free - debt).max(-bound).min(self.free);
        }
    }

    /// Whether creating the cell anew would make no difference: nothing is out and the burst has refilled.
    pub fn is_as_new(&self) -> bool {
        let out = self.out(self.at, Rules::ALL);
        out.cap == Amount::ZERO
            && out.share == Share::ZERO
            && self.free >= self.config.burst.at(self.at)
            && self.away.total() == Amount::ZERO
            && self.recovering_until.is_none()
    }

    pub(super) fn terms(&self, turn: &Turn) -> LeaseTerms {
        LeaseTerms {
            share: Share::ZERO,
            cap: Amount::ZERO,
            tokens: Amount::ZERO,
            duration: self.config.lease,
            rate: self.config.rate,
            burst: self.config.burst_tokens(turn.now),
            policy: self.config.policy.terms(turn.now),
            scarce: false,
            confirm: false,
            due: None,
            queue: self.config.queue,
            conduct: self.config.conduct,
        }
    }

    /// In recovery: at most what this very request claims, so that work goes on without anything new being lent.
    /// `before` is what counted until then, by earlier claims.
    fn confirm(
        &self,
        holder: Holder,
        report: &CellReport,
        turn: &Turn,
        before: (Share, Amount),
    ) -> LeaseTerms {
        let mut share = report.acting.map_or(Share::ZERO, |acting| acting.share);
        let mut cap = report.acting.map_or(Amount::ZERO, |acting| acting.cap).at_least_zero();
        if !turn.rules.keeps(Rule::ConfirmOnlyClaim) {
            share = share.max(before.0);
            cap = cap.max(before.1);
        }
        // Claims made before the burst was cut add up to more than it: whoever comes first keeps what there is room for.
        let burst = self.burst_for_lease(turn);
        let own =
            self.holders.get(&holder).map(|own| own.counted_at(turn.now, turn.rules)).unwrap_or_default();
        let room = burst - (self.out(turn.now, turn.rules).cap - own.1);
        let cap = cap.min(room.at_least_zero()).floor_to_milli();
        let due = self.recovering_until.map(|until| until.since(turn.now));
        LeaseTerms { share, cap, confirm: true, due, ..self.terms(turn) }
    }

    /// Gives what allocation wants, as far as the two sums allow.
    fn grant(&mut self, holder: Holder, report: &CellReport, turn: &Turn) -> LeaseTerms {
        let now = turn.now;
        let wish = alloc_share::wish(self, holder, report, turn);
        let (own_share, own_cap) = match self.holders.get(&holder) {
            Some(holding) if !holder.borrowed || turn.rules.keeps(Rule::BorrowedCountsAtLender) => {
                holding.counted_at(now, turn.rules)
            }
            _ => (Share::ZERO, Amount::ZERO),
        };
        let out = self.out(now, turn.rules);
        let share = wish.share.min(out.share.saturating_sub(own_share).rest());
        if report.waiting > 0 && share < wish.share.half() {
            self.short_until = now + turn.heartbeat.scale_ceil(SHORT_HEARTBEATS, 1);
            self.short = wish.share.saturating_sub(share);
        }
        let tokens = wish.tokens.min(self.free).at_least_zero().floor_to_milli();
        self.free -= tokens;
        // The cap may take up whatever neither others nor `free` count, within the smallest burst of the lease's time.
        let burst = self.burst_for_lease(turn);
        let others = out.cap - own_cap;
        let room = |free: Amount| (burst.min(self.config.burst.at(now) - free) - others).at_least_zero();
        // A rest that is too small to be lent would keep the cap below the whole burst for good, which a cost may need.
        let is_rest = self.free > Amount::ZERO && self.free.milli_floor() == 0;
        if is_rest && room(self.free) < wish.cap && wish.cap <= room(Amount::ZERO) {
            self.free = Amount::ZERO;
        }
        let room = room(self.free.at_least_zero());
        let cap = wish.cap.min(room).max(tokens.min(room)).floor_to_milli();
        // Under a burst that falls the cap may have no room for all of them.
        self.free += tokens - tokens.min(cap);
        // A share of which no whole token can be held would be minted by nobody.
        let share = if cap < Amount::ONE { Share::ZERO } else { share };
        self.holders.update_known(holder, |holding| {
            holding.place = wish.place;
            holding.turn_until = wish.turn_until;
        });
        LeaseTerms { share, cap, tokens: tokens.min(cap), due: wish.due, ..self.terms(turn) }
    }

    /// The smallest burst of a lease's time, for as long as the ledger counts it.
    pub(super) fn burst_for_lease(&self, turn: &Turn) -> Amount {
        if !turn.rules.keeps(Rule::CapsFollowBurst) {
            return self.config.burst.at(turn.now);
        }
        let end = turn.now + counted_under(&self.config.policy, self.config.lease, turn.rules);
        self.config.burst.min_over(turn.now, end)
    }

    /// Mixes the sums into a fingerprint.
    pub fn fingerprint(&self, digest: &mut Digest) {
        digest.wide(self.free.0);
        digest.number(self.at.0);
        digest.number(self.holders.len() as u64);
        digest.wide(self.away.total().0);
    }
}

impl Holding {
    /// How many tokens may come back with a message that acts on `acting`: as far as the cap of what was acted on, which
    /// counted them up to now, falls with it. A lease that has ended counts nothing, nor does one that was never
    /// acted on: tokens paid for by those would come on top of what has refilled since.
    fn pays_for(&self, acting: Option<Acting>, epoch: u64, now: LedgerTime, rules: Rules) -> Amount {
        let Some(acting) = acting else { return Amount::ZERO };
        let cap = |lease: Option<Lease>| {
            lease.filter(|lease| now < lease.expires).map_or(Amount::ZERO, |lease| lease.cap)
        };
        let named =
            |lease: Option<Lease>| lease.is_some_and(|lease| is_named(&lease, acting.name, epoch, rules));
        let counted = if named(self.pending) {
            cap(self.pending).max(cap(self.acked))
        } else if named(self.acked) {
            cap(self.acked)
        } else {
            Amount::ZERO
        };
        (counted - acting.cap.at_least_zero()).at_least_zero()
    }

    /// Settles by what a newer request acts on, and returns the tokens of a reply that was skipped.
    /// `conserved` is what counted for it until then, where tokens are conserved: of that it may hold on to more than a lease
    /// says, until what it has out comes back.
    fn settle(&mut self, report: &CellReport, turn: &Turn, conserved: Option<Amount>) -> Amount {
        let matches = |lease: &Lease, name: LeaseName| is_named(lease, name, turn.epoch, turn.rules);
        let Some(acting) = report.acting else {
            // It acts on nothing, and applies nothing but the reply to this request.
            let skipped = self.pending.take().map_or(Amount::ZERO, |lease| lease.tokens);
            self.acked = None;
            return skipped;
        };
        let mut skipped = Amount::ZERO;
        match (self.acked, self.pending) {
            (_, Some(pending)) if matches(&pending, acting.name) => {
                // What came with it is in use by now.
                self.acked = self.pending.take().map(|lease| Lease { tokens: Amount::ZERO, ..lease });
            }
            (Some(acked), pending) if matches(&acked, acting.name) => {
                self.pending = None;
                skipped = pending.map_or(Amount::ZERO, |lease| lease.tokens);
            }
            _ if acting.name.epoch != turn.epoch => {
                // A lease of another ledger has ended, or recovery confirms it; ours were not applied.
                self.acked = None;
                self.pending = None;
            }
            (acked, pending) => self.acked = merged(acked, pending.or(acked)),
        }
        if let Some(acked) = &mut self.acked {
            acked.share = acked.share.min(acting.share);
            acked.cap = acting.cap.at_least_zero().min(conserved.unwrap_or(acked.cap));
        }
        skipped
    }

    fn take_figures(&mut self, report: &CellReport, now: LedgerTime) {
        let barred = self.class == Class::Barred;
        self.demand = if barred { 0 } else { report.demand };
        self.waiting = if barred { 0 } else { report.waiting };
        self.largest = report.largest.max(1);
        self.held = report.held.at_least_zero();
        self.out = report.out;
        self.debt = report.debt.at_least_zero();
        self.seen = now;
        self.waiting_since = match (self.waiting, self.waiting_since) {
            (0, _) => None,
            (_, since) => since.or(Some(now)),
        };
    }
}

fn is_named(lease: &Lease, name: LeaseName, epoch: u64, rules: Rules) -> bool {
    lease.seq == name.seq && (name.epoch == epoch || !rules.keeps(Rule::EpochInName))
}

/// Neither lease is named by a request that should name one of them: count the larger in each part, to the later end.
fn merged(a: Option<Lease>, b: Option<Lease>) -> Option<Lease> {
    match (a, b) {
        (Some(a), Some(b)) => Some(Lease {
            seq: a.seq.max(b.seq),
            share: a.share.max(b.share),
            cap: a.cap.max(b.cap),
            tokens: Amount::ZERO,
            expires: a.expires.max(b.expires),
        }),
        (a, b) => a.or(b),
    }
}
