//! Cells whose tokens are conserved: sliding and fixed windows, and what is in flight.
//!
//! There are as many tokens as the burst says, and each is in one place:
//!
//! ```text
//! free + sum of caps that may be acted on + away = N
//! ```
//!
//! `free` is what the other two leave, so nothing can be counted twice. A worker that lives accounts for its own tokens: what it
//! claims no more, nobody uses and nobody has used within the window. What nobody accounts for any more, since a lease
//! ended or a last word says that it is still out, is *away* until it is usable again even if it was used at the last
//! possible moment.

use super::alloc_share::{Kind, Wish, line, waiting_before, water_level};
use super::cell::{Cell, Holder, Holding, Place, Turn};
use crate::client::kept;
use crate::limit::{MARGIN, counted, whole_tokens};
use crate::message::{CellReport, LeaseTerms};
use crate::policy::Policy;
use crate::rules::{Rule, Rules};
use crate::tier::{Claims, Class};
use crate::units::{Amount, LedgerTime, Span};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Into how many groups the tokens are put that are away for one window.
const GROUPS: u64 = 128;
/// Tokens are not grouped more finely than this.
const GRAIN_MIN: Span = Span::from_millis(10);
/// The most groups, twice those of one window; beyond it tokens join the last one, and are away for longer.
pub const AWAY_MAX: usize = 256;
/// Of fewer tokens than this nothing is kept for newcomers: each one counts.
const RESERVE_OF: u64 = 10;
/// How long a place is kept beyond the time at which its holder was told to come back.
const PLACE_GRACE: Span = Span::from_secs(2);

/// Tokens that are away, by when they are usable again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Away {
    groups: BTreeMap<LedgerTime, Amount>,
    total: Amount,
}

impl FromIterator<(LedgerTime, Amount)> for Away {
    fn from_iter<T: IntoIterator<Item = (LedgerTime, Amount)>>(groups: T) -> Away {
        let groups: BTreeMap<LedgerTime, Amount> = groups.into_iter().collect();
        let total = super::total(groups.values().copied());
        Away { groups, total }
    }
}

impl Away {
    /// All groups, the earliest first.
    pub fn groups(&self) -> impl Iterator<Item = (LedgerTime, Amount)> {
        self.groups.iter().map(|(until, tokens)| (*until, *tokens))
    }

    /// How many tokens are away.
    pub fn total(&self) -> Amount {
        self.total
    }

    /// Tokens are away until `until`, or up to `grain` longer.
    pub fn put(&mut self, until: LedgerTime, tokens: Amount, grain: Span) {
        if tokens <= Amount::ZERO {
            return;
        }
        let until = away_until(until, grain);
        let last = self.groups.last_key_value().map(|(last, _)| *last);
        let full = self.groups.len() >= AWAY_MAX;
        let until = if full { last.map_or(until, |last| last.max(until)) } else { until };
        if full
            && let Some(last) = last
            && last < until
            && let Some(before) = self.groups.remove(&last)
        {
            self.groups.insert(until, before);
        }
        let group = self.groups.entry(until).or_insert(Amount::ZERO);
        *group += tokens;
        self.total += tokens;
    }

    /// When at least `tokens` of them have come back; `None` when fewer are away, or nobody knows until when.
    pub(super) fn back_by(&self, tokens: Amount) -> Option<LedgerTime> {
        let mut sum = Amount::ZERO;
        let enough = self.groups().find(|(_, group)| {
            sum += *group;
            sum >= tokens
        });
        enough.map(|(until, _)| until).filter(|until| until.0 < u64::MAX)
    }

    /// Forgets the groups that are usable again at `now`.
    fn come_back(&mut self, now: LedgerTime) {
        while let Some(entry) = self.groups.first_entry().filter(|entry| *entry.key() <= now) {
            self.total -= entry.remove();
        }
    }

    /// Moves all groups by as much as the window became longer or shorter.
    fn shift(&mut self, before: Span, after: Span) {
        let moved = |until: LedgerTime| LedgerTime(until.0.saturating_sub(before.0)) + after;
        self.groups = core::mem::take(&mut self.groups).into_iter().map(|(at, n)| (moved(at), n)).collect();
    }

    /// Moves the groups that are away until a time that `is_known` doesn't know to `until`.
    fn rename(&mut self, is_known: impl Fn(LedgerTime) -> bool, until: LedgerTime) {
        for at in self.groups.keys().copied().filter(|at| !is_known(*at)).collect::<Vec<_>>() {
            let tokens = self.groups.remove(&at).unwrap_or_default();
            *self.groups.entry(until).or_default() += tokens;
        }
    }
}

/// The end of the group whose tokens are usable again at `until`.
fn away_until(until: LedgerTime, grain: Span) -> LedgerTime {
    let grain = grain.max(GRAIN_MIN).0;
    until.0.div_ceil(grain).checked_mul(grain).map_or(until, LedgerTime)
}

impl Cell {
    /// As [`Cell::advance`], where tokens are conserved.
    pub(super) fn advance_conserved(&mut self, now: LedgerTime, rules: Rules) {
        while self.at < now {
            self.holders.settle(self.at, self.config.lease);
            let out = self.out(self.at, rules);
            let recovery = self.recovering_until.filter(|until| self.at < *until);
            let stop = now.min(out.next_expiry.unwrap_or(now)).min(recovery.unwrap_or(now));
            // Up to `stop` nothing ended; what ends there no longer counts.
            self.holders.settle(stop, self.config.lease);
            let left = self.out(stop, rules).cap;
            if rules.keeps(Rule::EndedCountsAsUsed) {
                self.put_away(self.lost_at(stop), out.cap - left);
            }
            if recovery == Some(stop) && rules.keeps(Rule::UnclaimedCountsAsUsed) {
                let unclaimed = self.may_have_been_used() - left - self.away.total();
                self.put_away(self.config.policy.returns_at(stop), unclaimed);
            }
            self.at = stop;
        }
        self.holders.settle(self.at, self.config.lease);
        self.away.come_back(now);
        self.end_recovery(now);
        self.clip(now, rules);
    }

    /// When tokens are usable again of a lease that the ledger stops to count at `end`: the drain is in that already.
    fn lost_at(&self, end: LedgerTime) -> LedgerTime {
        if let Policy::InFlight { .. } = self.config.policy {
            end
        } else {
            self.config.policy.returns_at(end)
        }
    }

    pub(super) fn put_away(&mut self, until: LedgerTime, tokens: Amount) {
        let grain = match self.config.policy {
            Policy::SlidingWindow { window } => window.scale_floor(1, GROUPS),
            _ => GRAIN_MIN,
        };
        if until > self.at {
            self.away.put(until, tokens, grain);
        }
    }

    /// Tokens that nobody holds and that are usable now, within the smallest burst of a lease's time.
    fn lendable(&self, turn: &Turn) -> Amount {
        let fallen = self.config.burst.at(turn.now) - self.burst_for_lease(turn);
        (self.free - fallen.at_least_zero()).min(self.escrow_room(turn.now, turn.rules))
    }

    /// A request has settled what counted `before`. Whoever says what it acts on has given up what it doesn't claim, or has
    /// never acted on it; whoever acts on nothing may have used all of it.
    pub(super) fn account(&mut self, holder: Holder, before: Amount, claimed: bool, turn: &Turn) {
        let after = self.holders.get(&holder).map_or(Amount::ZERO, |holding| holding.counts(turn.now).1);
        if !claimed && turn.rules.keeps(Rule::EndedCountsAsUsed) {
            self.put_away(self.config.policy.returns_at(turn.now), before - after);
        }
        self.clip(turn.now, turn.rules);
    }

    /// A holder has stopped and says that `out` of its tokens are out.
    pub(super) fn account_last(&mut self, holding: &Holding, out: Option<u64>, rules: Rules) {
        let counted = holding.counts(self.at).1;
        let out = out.map_or(counted, |out| Amount::tokens(out).min(counted));
        let ends = [holding.acked, holding.pending].into_iter().flatten().map(|lease| lease.expires).max();
        let until = match (&self.config.policy, ends) {
            // Its permits stay valid until its lease ends.
            (Policy::InFlight { .. }, Some(ends)) => ends,
            (policy, _) => policy.returns_at(self.at),
        };
        if rules.keeps(Rule::EndedCountsAsUsed) {
            self.put_away(until, out);
        }
    }

    /// Takes on another policy. What is out under one of another kind can't be accounted for: nothing is granted until it has
    /// ended.
    pub(super) fn change_policy(&mut self, now: LedgerTime, policy: Policy) {
        match (&self.config.policy, &policy) {
            (Policy::SlidingWindow { window: before }, Policy::SlidingWindow { window: after }) => {
                let (before, after) = (*before, *after);
                self.away.shift(before, after);
            }
            (Policy::InFlight { drain: before }, Policy::InFlight { drain: after }) if before < after => {
                // Work that is out now may go on for the longer time, too.
                let more = after.saturating_sub(*before);
                self.holders.update_all(|holding| {
                    for lease in [&mut holding.acked, &mut holding.pending].into_iter().flatten() {
                        lease.expires = lease.expires + more;
                    }
                });
                self.strict.values_mut().for_each(|strict| strict.extend(more));
                self.away.shift(Span::ZERO, more);
            }
            (Policy::FixedWindow { .. }, Policy::FixedWindow { boundaries, .. }) => {
                // What was to come back at a boundary that isn't one any more, or at none that was known, was used by now.
                let at = |boundary: LedgerTime| away_until(boundary + MARGIN, GRAIN_MIN);
                let is_known = |until| boundaries.iter().any(|boundary| at(*boundary) == until);
                self.away.rename(is_known, away_until(policy.returns_at(now), GRAIN_MIN));
            }
            (before, after) if core::mem::discriminant(before) == core::mem::discriminant(after) => {}
            _ => {
                let leases = self.holders.values().flat_map(|holding| [holding.acked, holding.pending]);
                let leases = leases.flatten().map(|lease| lease.expires);
                let strict = self.strict.values().filter_map(super::strict::Strict::expires);
                let ends = leases.chain(strict).max().unwrap_or(now).max(now + Span(1));
                self.recovering_until = self.recovering_until.max(Some(ends));
                self.closed = true;
                self.kind = if policy.conserves() { Kind::Permits } else { Kind::Shares };
                self.away = Away::default();
                self.free = Amount::ZERO;
            }
        }
        self.config.policy = policy;
    }

    /// Answers a request outside of recovery.
    pub(super) fn grant_conserved(&mut self, holder: Holder, report: &CellReport, turn: &Turn) -> LeaseTerms {
        let own = self.holders.get(&holder).map_or(Amount::ZERO, |holding| holding.counts(turn.now).1);
        let (wish, scarce) = self.wish_conserved(holder, report, own, turn);
        let own_place = self.holders.get(&holder).and_then(|holding| holding.place);
        let own_place = own_place.filter(|place| turn.now <= place.until);
        // Whoever is in line comes first, also when there will be enough for everybody soon.
        let in_line = line(self, self.class_of(holder), own_place.map_or(u64::MAX, |place| place.number));
        let before = waiting_before(self, Some(in_line), turn.now);
        let lendable = self.lendable(turn);
        let free = (lendable - Amount::tokens(before)).max(lendable.min(Amount::ZERO));
        // After a cut more may be out than there is. Whoever then got its part of the cut before all of that has come back would
        // begin new work on top of it.
        let cap = wish.cap.min((own + free).at_least_zero());
        self.holders.update_known(holder, |holding| {
            holding.place = wish.place;
            holding.turn_until = None;
        });
        LeaseTerms { cap: Amount::tokens(whole_tokens(cap)), due: wish.due, scarce, ..self.terms(turn) }
    }

    /// What is wanted of all tokens.
    pub(super) fn conserved_claims(&self, class: Class, now: LedgerTime) -> Claims {
        let current = self.holders.values().filter(|holding| holding.is_current(now, self.config.lease));
        Claims::of(class, current.map(|holding| (holding.class, holding.wants())))
    }

    /// Max-min fair parts of all tokens; where a part is smaller than a piece of work, one piece each in the order of a queue.
    fn wish_conserved(
        &mut self,
        holder: Holder,
        report: &CellReport,
        own: Amount,
        turn: &Turn,
    ) -> (Wish, bool) {
        let now = turn.now;
        let mine = self.holders.get(&holder).map_or(0, Holding::wants);
        let others = self.holders.iter().filter(|(other, _)| **other != holder);
        let (current, gone): (Vec<&Holding>, Vec<&Holding>) = others
            .map(|(_, holding)| holding)
            .partition(|holding| holding.is_current(now, self.config.lease));
        let lost = super::total(gone.iter().map(|holding| holding.counts(now).1));
        let strict = super::total(self.strict.values().map(|strict| strict.outstanding(now)));
        let places = self.strict.values().filter_map(super::strict::Strict::place);
        let queued = super::total(places.map(|place| Amount::tokens(place.wants)));
        let all = whole_tokens(
            (self.burst_for_lease(turn) - self.away.total() - lost - strict - queued).at_least_zero(),
        );
        let class = self.class_of(holder);
        if class != Class::Own && report.waiting == 0 && report.demand == 0 && report.out == 0 {
            return (Wish::keep(Amount::ZERO), false);
        }
        let wants = current.iter().map(|holding| (holding.class, holding.wants())).chain([(class, mine)]);
        let claims = Claims::of(class, wants.clone());
        let wanted = claims.all();
        let left = claims.left_for(class, all, self.config.priority.floor);
        let mut wants: Vec<u64> = wants.filter(|(other, _)| *other == class).map(|(_, want)| want).collect();
        let alike = current.iter().filter(|holding| holding.class == class);
        let needs = alike.map(|holding| holding.waits_for()).max().unwrap_or(0);
        let need = report.largest.max(1);
        let level = water_level(&mut wants, left);
        if left == 0 && class != Class::Own {
            return (Wish { cap: Amount::tokens(report.out), ..Wish::keep(Amount::ZERO) }, wanted > all);
        }
        if level < need.max(needs) && wanted > all {
            return (self.one_by_one(holder, report, own, turn), true);
        }
        let target = if wanted <= all && class != Class::Own {
            mine
        } else if wanted <= all {
            // Nobody is short: keep what is used to be needed, as far as a reserve for newcomers stays.
            let reserve = self.config.conduct.reserve.of(all - all % RESERVE_OF);
            let spare = (all - wanted).saturating_sub(reserve);
            mine.saturating_add(spare / (2 * wants.len() as u64))
        } else {
            mine.min(level)
        };
        (Wish { cap: Amount::tokens(target), ..Wish::keep(Amount::ZERO) }, wanted > all)
    }

    /// Too few tokens for everybody to hold a piece of work's: whoever is first in line gets its own, and gives it back after
    /// use.
    fn one_by_one(&mut self, holder: Holder, report: &CellReport, own: Amount, turn: &Turn) -> Wish {
        let now = turn.now;
        let out = Amount::tokens(report.out);
        if report.waiting == 0 {
            return Wish::keep(Amount::ZERO);
        }
        let need = Amount::tokens(report.largest.max(1));
        let place =
            self.holders.get(&holder).and_then(|holding| holding.place).filter(|place| now <= place.until);
        let class = self.class_of(holder);
        let in_line = line(self, class, place.map_or(u64::MAX, |place| place.number));
        let ahead = Amount::tokens(waiting_before(self, Some(in_line), now));
        let unused = (own - out).at_least_zero();
        let usable = self.lendable(turn) + unused - ahead;
        if usable >= need {
            return Wish { cap: out + need, ..Wish::keep(Amount::ZERO) };
        }
        let number = self.number_in_line(place);
        let due = self.next_return(now).map(|at| Span(at.since(now).0.max(turn.gap.0)));
        let kept = due.unwrap_or(turn.heartbeat).min(self.config.lease);
        let place =
            Place { number, wants: report.largest.max(1), until: now + kept + turn.heartbeat + PLACE_GRACE };
        Wish { cap: Amount::ZERO, due, place: Some(place), ..Wish::keep(Amount::ZERO) }
    }

    /// When tokens come back that are away, where that is known.
    pub(super) fn next_return(&self, now: LedgerTime) -> Option<LedgerTime> {
        self.away.groups().map(|(at, _)| at).find(|at| *at > now && at.0 < u64::MAX)
    }
}

impl Holding {
    /// Conserved tokens that it has a use for.
    fn wants(&self) -> u64 {
        self.out.saturating_add(self.waiting.max(kept(self.demand)))
    }

    /// Tokens that it must get at once for its work to go on.
    fn waits_for(&self) -> u64 {
        if self.waiting > 0 { self.largest.max(1) } else { 0 }
    }
}

/// How long the ledger counts a lease of a policy.
pub(super) fn counted_under(policy: &Policy, duration: Span, rules: Rules) -> Span {
    let counted = if rules.keeps(Rule::WorkerStopsFirst) { counted(duration) } else { duration };
    counted + policy.drain()
}
