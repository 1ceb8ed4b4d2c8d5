//! Who gets how much: demand-driven and max-min fair. Nothing in here can break a safety rule: a wish is only a wish,
//! and [`super::cell::Cell`] grants no more of it than the two sums allow.

use super::cell::{Cell, Holder, Holding, Place, Turn};
use super::holders::{Sums, share_of};
use super::total;
use crate::limit::whole_tokens;
use crate::message::CellReport;
use crate::tier::Class;
use crate::units::{Amount, LedgerTime, Share, Span, clamp_u64};
use alloc::vec::Vec;

/// How tokens of a cell are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Workers mint their shares of the rate: for rates that are large against fleet and heartbeat.
    Shares,
    /// The ledger hands out counted tokens in the order of the queue: for small rates.
    Tokens,
    /// A few workers at a time mint shares, for a while, in the order of the queue: for bursts that are smaller than what
    /// the fleet's workers need to hold at once, at rates for which counted tokens can't go round quickly enough.
    Turns,
    /// Workers hold counted tokens that come back to them: where tokens are conserved.
    Permits,
}

/// Why a kind was chosen; shown in `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindReason {
    /// Tokens that one active worker would mint in one heartbeat, in thousandths.
    pub per_heartbeat_milli: u64,
    /// Tokens that the whole rate brings in half a heartbeat, which is how long a counted token takes to come round.
    pub per_round: u64,
    /// Tokens that active workers must hold at once.
    pub needed: u64,
    /// Tokens that may be held at once.
    pub burst: u64,
}

/// What allocation would give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub share: Share,
    pub cap: Amount,
    pub tokens: Amount,
    pub due: Option<Span>,
    pub place: Option<Place>,
    /// When its turn ends.
    pub turn_until: Option<LedgerTime>,
}

/// Shares need this many tokens per worker and heartbeat, in thousandths; below it counted tokens are fairer.
const SHARES_MILLI_MIN: u64 = 2_000;
/// A share that would change by less than this is left as it is, so that noise costs no messages: 0.5% of the rate, and
/// an eighth of the share.
const FLUTTER_PPB: u32 = 5_000_000;
/// Tokens that a worker can hold during its turn, where there is room: what is minted while it looks elsewhere.
const TURN_TOKENS: u64 = 2;
/// A turn that has not been given up by this much after its end will not be soon.
const TURN_LATE: Span = Span::from_millis(500);
/// A turn takes this, where messages are no concern.
const TURN: Span = Span::from_millis(600);
/// A turn takes this, however little its worker wants.
const TURN_MIN: Span = Span::from_millis(200);
/// Of the fleet's messages, turns take at most half, and each takes two: in gaps, which are half of what a worker has for each
/// of its messages, a turn is at least as long as this times the part of the fleet that is on turn.
const TURN_GAPS: u64 = 8;
/// Whoever comes next is told to come this much later than the turn before ends: the worker that ends it says so then.
const HANDOVER: Span = Span::from_millis(20);
/// A holder that is not short gets a quarter more than it asks for, so that it can grow without asking.
const HEADROOM: (u64, u64) = (5, 4);
/// How long a place is kept beyond the time at which its holder was told to come back.
const PLACE_GRACE: Span = Span::from_secs(2);
/// Over how long `free` is filled up to the reserve.
const REFILL_SECS: u64 = 5;
/// The most of the rate that refilling may take: 2%.
const REFILL_MAX: Share = match Share::from_ppb(20_000_000) {
    Some(share) => share,
    None => Share::ZERO,
};
/// Over how long strict permits that wait are minted for.
const STRICT_SECS: u64 = 2;
/// The most of the rate that strict permits may take: a half.
const STRICT_PART_MAX: Share = match Share::from_ppb(500_000_000) {
    Some(share) => share,
    None => Share::ZERO,
};

fn fleet(cell: &Cell, now: LedgerTime) -> Sums {
    cell.holders.sums(now, cell.config.lease).0
}

impl Cell {
    /// Whose work a holder holds for.
    pub(super) fn class_of(&self, holder: Holder) -> Class {
        self.holders.get(&holder).map_or(Class::default(), |holding| holding.class)
    }
}

impl Holding {
    pub(super) fn is_active(&self) -> bool {
        self.demand > 0 || self.waiting > 0
    }
    fn room(&self) -> Amount {
        Amount::tokens(self.largest.max(1))
    }
    /// Tokens that it must be able to hold for its work to start at all.
    pub(super) fn need(&self) -> u64 {
        if self.is_active() { self.largest.max(1) } else { 0 }
    }
}

/// The figures that the choice of a kind rests on.
pub fn kind_reason(cell: &Cell, now: LedgerTime, heartbeat: Span) -> KindReason {
    let fleet = fleet(cell, now);
    let per_second = u128::from(cell.config.rate.at(now).micro_per_second());
    let all_milli = per_second * u128::from(heartbeat.0) / 1_000_000_000;
    KindReason {
        per_heartbeat_milli: clamp_u64(all_milli / u128::from(fleet.active.max(1))),
        per_round: clamp_u64(all_milli / 2_000),
        needed: fleet.needed,
        burst: cell.config.burst_tokens(now),
    }
}

/// Chooses the kind, with a factor of two (and a quarter for the burst) before it changes back.
fn choose(cell: &Cell, reason: KindReason) -> Kind {
    let KindReason { per_heartbeat_milli, per_round, needed, burst } = reason;
    let is_shares = cell.kind == Kind::Shares;
    // Where the burst is gone within a round trip, a worker that can hold one piece of work only mints in vain between two.
    let held = if per_round > burst { needed.saturating_mul(3) / 2 } else { needed };
    let fits = if is_shares { held <= burst } else { held.saturating_mul(5) / 4 <= burst };
    let factor = if is_shares { 1 } else { 2 };
    if fits {
        return if per_heartbeat_milli >= factor * SHARES_MILLI_MIN { Kind::Shares } else { Kind::Tokens };
    }
    // Even where the whole burst could just go round in time, half of it waits for its turn to be asked for.
    let factor = if cell.kind == Kind::Turns { 4 } else { 2 };
    if per_round.saturating_mul(factor) > burst { Kind::Turns } else { Kind::Tokens }
}

/// What `holder` should get now.
pub(super) fn wish(cell: &mut Cell, holder: Holder, report: &CellReport, turn: &Turn) -> Wish {
    cell.kind = choose(cell, kind_reason(cell, turn.now, turn.heartbeat));
    match cell.kind {
        Kind::Shares | Kind::Permits => shares(cell, holder, report, turn),
        Kind::Tokens => tokens(cell, holder, report, turn),
        Kind::Turns => turns(cell, holder, report, turn),
    }
}

/// Where somebody stands in line: lower comes first.
type Line = (u8, u32, u64);

/// Where a place with this number is in line, whoever's work it is for.
pub(super) fn line(cell: &Cell, class: Class, number: u64) -> Line {
    match class {
        Class::Borrowed(rank) => (if comes_first(cell) { 0 } else { 2 }, rank, number),
        Class::Own => (1, 0, number),
        Class::Lent(rank) => (3, rank, number),
        Class::Barred => (4, 0, number),
    }
}

/// Whether work of higher tiers comes before the cell's own now.
fn comes_first(cell: &Cell) -> bool {
    let floor = cell.config.priority.floor;
    floor == Share::ZERO || (floor < Share::ONE && cell.behind <= Amount::ZERO)
}

/// Where tokens are counted, own work and that of higher tiers take turns so that the first gets its floor while both wait.
fn note_turn(cell: &mut Cell, class: Class, tokens: Amount, now: LedgerTime) {
    let floor = cell.config.priority.floor;
    if floor == Share::ZERO || floor == Share::ONE {
        return;
    }
    let waits = |own: bool| {
        let placed =
            cell.holders.values().filter(|holding| holding.place.is_some_and(|place| now <= place.until));
        placed.map(|holding| holding.class).any(|class| match class {
            Class::Own => own,
            Class::Borrowed(_) => !own,
            Class::Lent(_) | Class::Barred => false,
        })
    };
    let part = |share: Share| tokens.scale_floor(u64::from(share.ppb()), u64::from(Share::ONE.ppb()));
    let behind = match class {
        Class::Own if waits(false) => cell.behind - part(floor.rest()),
        Class::Borrowed(_) if waits(true) => cell.behind + part(floor),
        _ => return,
    };
    // A turn is worth more than a small burst.
    let per_second = Amount::from_milli(cell.config.rate.at(now).micro_per_second() / 1_000);
    let most = cell.config.burst.at(now) + per_second;
    cell.behind = behind.clamp(-most, most);
}

/// What work of another tier leaves of the burst: the reserve, unless it comes before the cell's own work.
fn left_alone(cell: &Cell, class: Class, reserve: Amount) -> Amount {
    match class {
        Class::Own => Amount::ZERO,
        Class::Borrowed(_) if cell.config.priority.floor < Share::ONE => Amount::ZERO,
        _ => reserve,
    }
}

/// Whether a tier's own work wants about all that its cell leaves for it, or more: an eighth less already counts, since what
/// workers want is a matter of the last moment.
pub(super) fn is_dry(cell: &Cell, now: LedgerTime) -> bool {
    let (lease, floor) = (cell.config.lease, cell.config.priority.floor);
    let (claims, capacity) = if cell.config.policy.conserves() {
        let all = whole_tokens((cell.config.burst.at(now) - cell.away.total()).at_least_zero());
        (cell.conserved_claims(Class::Own, now), all)
    } else {
        (cell.holders.claims(now, lease, Class::Own), cell.config.rate.at(now).micro_per_second())
    };
    let left = claims.left_for(Class::Own, capacity, floor);
    claims.own > 0 && claims.own >= left - left / 8
}

fn shares(cell: &Cell, holder: Holder, report: &CellReport, turn: &Turn) -> Wish {
    let now = turn.now;
    let class = cell.class_of(holder);
    if class != Class::Own && report.waiting == 0 && report.demand == 0 {
        return Wish::keep(Amount::ZERO);
    }
    let fleet = fleet(cell, now);
    let burst = cell.config.burst.min_over(now, now + cell.config.lease);
    let reserve = reserve(cell, burst, fleet.needed);
    let rate = cell.config.rate.at(now).micro_per_second();
    // What is lost for good, and be it a thousandth, would never be made up for while others mint the whole rate. Whoever lacks it for
    // its next piece of work would wait for ever. A part of the rate that is less than noise would stay with who has it.
    let lacks = |holding: &Holding| {
        holding.acked.map_or(Amount::ZERO, |lease| lease.cap) < Amount::tokens(holding.need())
    };
    let is_lost = cell.free + cell.outstanding(now).1 < burst;
    let aside = set_aside(cell, now, reserve, rate);
    let aside =
        if is_lost && cell.holders.get(&holder).is_some_and(lacks) { aside.max(REFILL_MAX) } else { aside };
    let share = fair_share(cell, holder, now, rate, aside);

    // Whoever is served next must find room for all that it wants at once, or it waits for ever.
    let kept = reserve.max(Amount::tokens(first_in_queue(cell, now)).min(burst));
    let crowded = kept + Amount::tokens(fleet.needed) > burst;
    let spare = (burst - kept - Amount::tokens(fleet.needed)).at_least_zero();
    let even = spare.scale_floor(1, 2 * fleet.current.max(1));
    let by_share = spare.scale_floor(u64::from(share.ppb()), 2 * u64::from(Share::ONE.ppb()));
    let need = if crowded { 0 } else { cell.holders.get(&holder).map_or(0, Holding::need) };
    let cap = Amount::tokens(need) + even + by_share;

    let newcomer = report.acting.is_none();
    // Nobody is in greater need than a higher tier that has run dry.
    let kept = if class == Class::Own && !newcomer { reserve } else { left_alone(cell, class, reserve) };
    let usable = cell.free - kept;
    let queued = Amount::tokens(waiting_before(cell, Some(line(cell, class, u64::MAX)), now));
    let tokens = (usable - queued).min(cap - report.held.at_least_zero()).at_least_zero();
    Wish { share, cap, tokens, due: None, place: None, turn_until: None }
}

/// The part of the burst that is kept for newcomers while `needed` tokens must be held at once.
pub(super) fn reserve(cell: &Cell, burst: Amount, needed: u64) -> Amount {
    let part = cell.config.conduct.reserve;
    let reserve = burst.scale_floor(u64::from(part.ppb()), u64::from(Share::ONE.ppb()));
    if burst - reserve >= Amount::tokens(needed) { reserve } else { Amount::ZERO }
}

/// The part of the rate that stays with the ledger: to fill the reserve, and for strict permits that wait.
fn set_aside(cell: &Cell, now: LedgerTime, reserve: Amount, rate: u64) -> Share {
    let per_second = Amount::from_milli(rate / 1_000);
    let queued = Amount::tokens(waiting_before(cell, None, now));
    let missing = (reserve - cell.free).at_least_zero();
    let refill = ratio(missing, per_second, REFILL_SECS).min(REFILL_MAX);
    // All that is wanted, and not only what is missing: a part that shrinks with it would never get there.
    let queued = if queued > cell.free { queued } else { Amount::ZERO };
    let strict = ratio(queued, per_second, STRICT_SECS).min(STRICT_PART_MAX);
    refill.saturating_add(strict)
}

/// `amount` as a part of what `per_second` brings in `secs`.
fn ratio(amount: Amount, per_second: Amount, secs: u64) -> Share {
    let whole = per_second.milli_floor().saturating_mul(secs);
    if whole == 0 && amount > Amount::ZERO {
        Share::ONE
    } else {
        Share::ratio_floor(amount.milli_floor(), whole)
    }
}

/// Max-min fair: everybody gets what it wants up to one common level, among those whose work comes in the same place.
fn fair_share(cell: &Cell, holder: Holder, now: LedgerTime, rate: u64, aside: Share) -> Share {
    let capacity = aside.rest().of(rate);
    let fleet = fleet(cell, now);
    let class = cell.class_of(holder);
    let (mine, waiting) =
        cell.holders.get(&holder).map_or((0, 0), |holding| (holding.demand, holding.waiting));
    let grown = clamp_u64(u128::from(mine) * u128::from(HEADROOM.0) / u128::from(HEADROOM.1));
    let claims = cell.holders.claims(now, cell.config.lease, class);
    let capacity = claims.left_for(class, capacity, cell.config.priority.floor);
    let wanted = claims.own;
    let target = if class == Class::Own && wanted <= capacity {
        let all = clamp_u64(u128::from(mine) * u128::from(capacity) / u128::from(wanted.max(1)));
        grown.min(all)
    } else {
        // Who asks for one thing after the other wants no more than it gets: it must be able to grow.
        let mine = if class != Class::Own && waiting > 0 { grown } else { mine };
        mine.min(cell.holders.water_level(now, cell.config.lease, class, capacity))
    };
    let share = Share::ratio_floor(target, rate).min(aside.rest());
    let current =
        cell.holders.get(&holder).and_then(|holding| holding.acked).map_or(Share::ZERO, |lease| lease.share);
    let change = share.ppb().abs_diff(current.ppb());
    // With many workers what each of them must give up for one more is less than noise.
    let is_short = now < cell.short_until && share_of(fleet.share_ppb).rest() < cell.short;
    // Half of what each must give for it.
    let part = u64::from(cell.short.ppb()) / (2 * fleet.current.max(1));
    let is_due = is_short && share < current && u64::from(change) >= part;
    // Among tiers shares move more often. Nobody need answer a raise.
    let is_raised = share > current && (is_short || fleet.wanted_elsewhere > 0);
    let flutters = change < FLUTTER_PPB.min(current.ppb() / 8) && !is_due && !is_raised;
    if flutters && share > Share::ZERO { current } else { share }
}

/// The level at which the demands, each cut to it, add up to `capacity`.
pub fn water_level(demands: &mut [u64], capacity: u64) -> u64 {
    demands.sort_unstable();
    let mut left = capacity;
    let mut count = demands.len() as u64;
    for demand in demands.iter() {
        let even = left / count.max(1);
        if *demand >= even {
            return even;
        }
        left -= demand;
        count -= 1;
    }
    u64::MAX
}

impl Wish {
    /// What is held may be used up; a part of a token never could.
    pub(super) fn keep(held: Amount) -> Wish {
        Wish {
            share: Share::ZERO,
            cap: Amount::tokens(u64::try_from(held.whole()).unwrap_or(0)),
            tokens: Amount::ZERO,
            due: None,
            place: None,
            turn_until: None,
        }
    }
}

fn tokens(cell: &mut Cell, holder: Holder, report: &CellReport, turn: &Turn) -> Wish {
    let now = turn.now;
    let held = report.held.at_least_zero();
    let keep = Wish::keep(held);
    let next = report.largest.max(1);
    let class = cell.class_of(holder);
    let wants = if report.waiting > 0 {
        report.waiting
    } else if report.demand > 0 && class == Class::Own {
        next
    } else {
        0
    };
    let wants = Amount::tokens(wants.max(if report.waiting > 0 { next } else { 0 }));
    let missing = (wants - held).at_least_zero();
    if wants == Amount::ZERO {
        return Wish::keep(Amount::ZERO);
    }
    let burst = cell.config.burst.min_over(now, now + cell.config.lease);
    if missing == Amount::ZERO {
        // Nobody waits here: what the first in line has no room beside is not kept for later.
        let (_, out_cap) = cell.outstanding(now);
        let first = Amount::tokens(first_in_queue(cell, now));
        let needed = report.waiting == 0 && first > Amount::ZERO && first + out_cap > burst;
        return if needed { Wish::keep(Amount::ZERO) } else { keep };
    }
    let first = (Amount::tokens(next) - held).at_least_zero();
    if Amount::tokens(next) > burst {
        return keep;
    }
    let place =
        cell.holders.get(&holder).and_then(|holding| holding.place).filter(|place| now <= place.until);
    let mine = line(cell, class, place.map_or(u64::MAX, |place| place.number));
    let ahead = Amount::tokens(waiting_before(cell, Some(mine), now));
    let kept = left_alone(cell, class, reserve(cell, burst, fleet(cell, now).needed));
    let usable = cell.free - ahead - kept;
    if usable >= first {
        // A fair part when many wait, but never less than its next piece of work needs.
        let active = fleet(cell, now).active.max(1);
        let part = cell.free.at_least_zero().scale_floor(1, active).max(first);
        let tokens = missing.min(usable).min(part);
        note_turn(cell, class, tokens, now);
        return Wish { cap: held + tokens, tokens, ..keep };
    }
    let number = cell.number_in_line(place);
    let (out, _) = cell.outstanding(now);
    let due = central_time(cell, now, first - usable, out).map(|due| Span(due.0.max(turn.gap.0)));
    // Its holder comes back with every heartbeat; were it kept for all of `due`, one that died would keep everybody waiting.
    let kept = due.unwrap_or(turn.heartbeat).min(cell.config.lease);
    let until = now + kept + turn.heartbeat + PLACE_GRACE;
    // Whoever comes first may need what those behind it hold and can't use yet: they give it back, and want all of it later.
    let (_, out_cap) = cell.outstanding(now);
    let in_the_way = ahead > Amount::ZERO && ahead + out_cap > burst;
    let wants = if in_the_way { next } else { whole_tokens(first + Amount::ONE - Amount(1)) };
    let rest = if in_the_way { Wish::keep(Amount::ZERO) } else { keep };
    Wish { due, place: Some(Place { number, wants, until }), ..rest }
}

fn turns(cell: &mut Cell, holder: Holder, report: &CellReport, turn: &Turn) -> Wish {
    let now = turn.now;
    let held = report.held.at_least_zero();
    let burst = cell.config.burst.min_over(now, now + cell.config.lease);
    let need = Amount::tokens(report.largest.max(1));
    // Without a waiter it would come back for its turn late, and not use it.
    if need > burst || report.waiting == 0 {
        return Wish::keep(Amount::ZERO);
    }
    // Something is left for the ledger to mint into while a turn changes hands.
    let room = Amount::tokens(report.largest.max(TURN_TOKENS)).min(burst);
    let spare = (burst - Amount::ONE).max(room);
    let at_once = u64::try_from(spare.0 / room.0.max(1)).unwrap_or(u64::MAX).max(1);
    let own = cell.holders.get(&holder);
    let place = own.and_then(|own| own.place).filter(|place| now <= place.until);
    let mine = own.and_then(|own| own.turn_until).filter(|until| now < *until);
    let others: Vec<&Holding> =
        cell.holders.iter().filter(|(other, _)| **other != holder).map(|(_, holding)| holding).collect();
    // A turn lasts as long as the share counts, also if its worker is gone.
    let on = others.iter().filter(|holding| holding.counts(now).0 > Share::ZERO);
    let ends: Vec<LedgerTime> = on.map(|holding| holding.turn_until.unwrap_or_default()).collect();
    let overdue = ends.iter().any(|end| *end + TURN_LATE <= now);
    let class = cell.class_of(holder);
    let in_line = line(cell, class, place.map_or(u64::MAX, |place| place.number));
    let mut ahead: Vec<(Line, &Holding)> = Vec::new();
    for holding in &others {
        let placed = holding.place.filter(|other| now <= other.until);
        let other = placed.map(|other| line(cell, holding.class, other.number));
        ahead.extend(other.filter(|other| *other < in_line).zip(Some(*holding)));
    }
    let free = at_once.saturating_sub(ends.len() as u64);
    let first = (ahead.len() as u64) < free;
    let length = turn_length(cell, at_once, turn);
    let until = mine.or_else(|| first.then(|| now + length(report.waiting)));
    let (out_share, out_cap) = cell.outstanding(now);
    let (own_share, own_cap) = own.map(|own| own.counts(now)).unwrap_or_default();
    // A turn that begins leaves room for those who come first, whose work may need more at once.
    let before =
        if mine.is_some() { Amount::ZERO } else { total(ahead.iter().map(|(_, other)| other.room())) };
    let fits = burst - (out_cap - own_cap) - before.min(burst) >= need
        && out_share.saturating_sub(own_share) < Share::ONE;
    if let Some(until) = until.filter(|_| free > 0 && fits) {
        let capacity = set_aside(cell, now, Amount::ZERO, cell.config.rate.at(now).micro_per_second()).rest();
        let share = Share::ratio_floor(u64::from(capacity.ppb()) / at_once, u64::from(Share::ONE.ppb()));
        let tokens = (room - held).at_least_zero();
        let due = Some(until.since(now));
        if mine.is_none() {
            let brings = share.of(cell.config.rate.at(now).micro_per_second());
            let length = until.since(now).millis();
            note_turn(cell, class, Amount::from_milli(brings / 1_000).scale_floor(length, 1_000), now);
        }
        return Wish { share, cap: room, tokens, due, place: None, turn_until: Some(until) };
    }
    // Scraps that others hold come back with their next messages; a turn whose worker is gone ends with its lease.
    let due = if first {
        HANDOVER.scale_ceil(8, 1)
    } else {
        ahead.sort_unstable_by_key(|(line, _)| *line);
        let turns = ahead.iter().map(|(_, holding)| length(holding.waiting));
        turn_begins(ends, turns, at_once, now) + HANDOVER
    };
    let due = if first || overdue { Span(due.0.max(turn.gap.scale_floor(1, 2).0)) } else { due };
    let number = cell.number_in_line(place);
    let kept = due.min(cell.config.lease) + PLACE_GRACE;
    // Tokens that don't suffice for its next piece of work may be in somebody's way.
    let scraps = if held >= need { held } else { Amount::ZERO };
    // Strict permits don't wait for those who have no turn: what they need is set aside from the rate.
    let place = Place { number, wants: 0, until: now + kept };
    Wish { due: Some(due), place: Some(place), ..Wish::keep(scraps) }
}

/// How long a turn takes whose worker wants so many tokens.
fn turn_length(cell: &Cell, at_once: u64, turn: &Turn) -> impl Fn(u64) -> Span + use<> {
    let current = fleet(cell, turn.now).current.max(1);
    let most = turn.gap.scale_ceil(TURN_GAPS.saturating_mul(at_once.min(current)), current).max(TURN);
    let rate = cell.config.rate.at(turn.now).micro_per_second().max(1);
    move |waiting| {
        let micros = u128::from(waiting) * 1_000_000_000_000 * u128::from(at_once) / u128::from(rate);
        Span(clamp_u64(micros)).clamp(TURN_MIN, most)
    }
}

/// In how long the next turn begins, when those that are on end at `ends` and others come first, in this order.
fn turn_begins(
    ends: Vec<LedgerTime>,
    turns: impl Iterator<Item = Span>,
    at_once: u64,
    now: LedgerTime,
) -> Span {
    let ends = ends.into_iter().map(|end| core::cmp::Reverse(end.max(now)));
    let mut ends: alloc::collections::BinaryHeap<_> = ends.collect();
    let free = at_once.saturating_sub(ends.len() as u64);
    // Whoever has no turn yet although there is one to be had is on its way.
    ends.extend((0..free).take(turns.size_hint().1.unwrap_or(0)).map(|_| core::cmp::Reverse(now)));
    for turn in turns {
        if let Some(mut first) = ends.peek_mut() {
            first.0 = first.0 + turn;
        }
    }
    ends.peek().map_or(Span::ZERO, |first| first.0.since(now))
}

/// Time until the ledger itself has minted `amount`; `None` when it never does.
pub(super) fn central_time(cell: &Cell, now: LedgerTime, amount: Amount, out: Share) -> Option<Span> {
    let time = cell.config.rate.at(now).time_for(amount)?;
    let rest = u64::from(out.rest().ppb());
    Some(time.scale_ceil(u64::from(Share::ONE.ppb()), rest.max(1_000_000)))
}

/// Time until `amount` has come together for strict permits: up to half of the rate is set aside for them as leases are
/// renewed, so what is lent beyond that comes back soon. What is away comes back when it is due, however large the rate.
pub(super) fn strict_time(cell: &Cell, now: LedgerTime, amount: Amount) -> Option<Span> {
    if let Some(at) = cell.away.back_by(amount) {
        return Some(at.since(now));
    }
    let (out, _) = cell.outstanding(now);
    central_time(cell, now, amount, out.min(STRICT_PART_MAX))
}

/// Tokens set aside for everybody who stands before `own` in line, or for everybody with a place.
pub(super) fn waiting_before(cell: &Cell, own: Option<Line>, now: LedgerTime) -> u64 {
    if fleet(cell, now).placed == 0 && cell.strict.is_empty() {
        return 0;
    }
    let before = |(line, _): &(Line, &Place)| own.is_none_or(|own| *line < own);
    placed(cell, now).filter(before).fold(0, |sum: u64, (_, place)| sum.saturating_add(place.wants))
}

/// Tokens that whoever has the first place wants.
fn first_in_queue(cell: &Cell, now: LedgerTime) -> u64 {
    if fleet(cell, now).placed == 0 && cell.strict.is_empty() {
        return 0;
    }
    placed(cell, now).min_by_key(|(line, _)| *line).map_or(0, |(_, place)| place.wants)
}

/// Everybody with a place, and where it is in line.
fn placed(cell: &Cell, now: LedgerTime) -> impl Iterator<Item = (Line, &Place)> {
    let workers = cell.holders.places(now, cell.config.lease);
    let strict = cell.strict.values().filter_map(|strict| Some((Class::Own, strict.place()?)));
    let placed = workers.chain(strict).filter(move |(_, place)| now <= place.until);
    placed.map(|(class, place)| (line(cell, class, place.number), place))
}

/// Everything that waits, for display.
pub fn waiting(cell: &Cell, now: LedgerTime) -> u64 {
    let current = cell.holders.values().filter(|holding| holding.is_current(now, cell.config.lease));
    let workers = total(current.map(|holding| Amount::tokens(holding.waiting)));
    whole_tokens(workers).saturating_add(
        cell.strict
            .values()
            .filter_map(|strict| strict.place())
            .fold(0, |sum: u64, place| sum.saturating_add(place.wants)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_it_wants_while_another_waits() {
        assert_eq!(water_level(&mut [10, 100, 100], 110), 50);
        assert_eq!(water_level(&mut [10, 20], 100), u64::MAX);
        assert_eq!(water_level(&mut [], 100), u64::MAX);
        assert_eq!(water_level(&mut [7, 7, 7], 20), 6);
    }
}
