//! The local bucket: what one worker may use of one cell without asking.
//!
//! It has two halves. The *level* is a count of whole tokens that any thread takes from without a lock; the hot path is
//! [`admit`] and touches nothing else. The *mint* ([`Mint`]) puts tokens into the level, from leases and from time, and
//! has one owner at a time. Because takers leave no timestamps, the mint assumes the worst: that nothing was taken until
//! just now. It may therefore mint a little less than its share after an idle spell, never more.

use crate::curve::RateCurve;
use crate::limit::MARGIN;
use crate::message::{Acting, LeaseName, LeaseTerms};
use crate::policy::Terms;
use crate::rules::{Rule, Rules};
use crate::stock::Stock;
use crate::units::{Amount, BootTime, LedgerTime, Share, Span, WallTime};
use core::cell::Cell;

/// A count of whole tokens and the time at which all of them are void. Negative counts are debt.
///
/// Implementations decide how threads share it; the order of the operations in [`admit`] is what safety rests on.
pub trait Level {
    /// The count.
    fn level(&self) -> i64;
    /// Takes `cost` tokens if [`after_taking`] allows it, all or nothing.
    fn take(&self, cost: u64) -> bool;
    /// Adds tokens; a negative number takes them even into debt.
    fn add(&self, tokens: i64);
    /// Names those whose tokens are counted together, and says by its lowest bit whether they are put back after use. Read it
    /// before taking: what is taken while a generation ends is then never put back.
    fn generation(&self) -> u32;
    /// Ends the generation: what its takers still have in use is counted elsewhere. In the next one tokens are put back after
    /// use, or not.
    fn begin_generation(&self, puts_back: bool);
    /// Puts tokens of this generation back that are no longer in use, and counts them.
    fn release(&self, tokens: u64, generation: u32);
    /// Tokens put back so since the beginning. Never more than were taken, seen from whoever reads the level after it.
    fn released(&self) -> u64;
    /// From this time on, tokens are void.
    fn expiry(&self) -> BootTime;
    /// Sets the time from which on tokens are void.
    fn set_expiry(&self, expiry: BootTime);
    /// Another number whenever a [`Mint`] has looked at the count: see [`Mark`].
    fn looks(&self) -> u64;
    /// Says that a mint has looked, after its last look.
    fn note_look(&self);
}

/// Where in a level's history something is taken: read before taking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// See [`Level::generation`].
    pub generation: u32,
    /// See [`Level::looks`]. No mint has missed yet what was taken since.
    pub looks: u64,
}

impl Mark {
    /// As a level is now.
    #[inline]
    pub fn of<L: Level + ?Sized>(level: &L) -> Mark {
        Mark { generation: level.generation(), looks: level.looks() }
    }

    /// Whether what is taken here is put back when the work is done.
    pub const fn puts_back(self) -> bool {
        self.generation & 1 == 1
    }
}

/// A level for one thread: for tests, simulations and benchmarks.
#[derive(Clone, Debug, Default)]
pub struct PlainLevel {
    tokens: Cell<i64>,
    released: Cell<u64>,
    generation: Cell<u32>,
    expiry: Cell<BootTime>,
    looks: Cell<u64>,
}

impl Level for PlainLevel {
    fn level(&self) -> i64 {
        self.tokens.get()
    }
    fn take(&self, cost: u64) -> bool {
        let rest = after_taking(self.tokens.get(), cost);
        rest.inspect(|rest| self.tokens.set(*rest)).is_some()
    }
    fn add(&self, tokens: i64) {
        self.tokens.set(self.tokens.get().saturating_add(tokens));
    }
    fn generation(&self) -> u32 {
        self.generation.get()
    }
    fn begin_generation(&self, puts_back: bool) {
        self.generation.set(next_generation(self.generation.get(), puts_back));
    }
    fn release(&self, tokens: u64, generation: u32) {
        if generation == self.generation.get() {
            self.released.set(self.released.get().saturating_add(tokens));
            self.add(i64::try_from(tokens).unwrap_or(i64::MAX));
        }
    }
    fn released(&self) -> u64 {
        self.released.get()
    }
    fn expiry(&self) -> BootTime {
        self.expiry.get()
    }
    fn set_expiry(&self, expiry: BootTime) {
        self.expiry.set(expiry);
    }
    fn looks(&self) -> u64 {
        self.looks.get()
    }
    fn note_look(&self) {
        self.looks.set(self.looks.get().wrapping_add(1));
    }
}

/// The generation after this one.
pub const fn next_generation(generation: u32, puts_back: bool) -> u32 {
    (generation | 1).wrapping_add(1) | puts_back as u32
}

/// The level after taking `cost`, or `None` when it doesn't hold that much.
pub fn after_taking(level: i64, cost: u64) -> Option<i64> {
    let cost = i64::try_from(cost).ok()?;
    if level < cost || level < 0 { None } else { Some(level - cost) }
}

/// Why a bucket refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not enough tokens right now.
    Empty,
    /// The lease has ended.
    Expired,
}

/// A piece of work may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// When it was admitted.
    pub at: BootTime,
    /// It must have started by then: a paused process checks again before it calls.
    pub valid_until: BootTime,
    /// Where in the history of the level it was taken.
    pub mark: Mark,
}

impl Admitted {
    /// Whether its tokens are put back when the work is done.
    pub const fn puts_back(self) -> bool {
        self.mark.puts_back()
    }
}

/// Takes `cost` tokens, *then* reads the clock: a process that was paused in between finds its lease ended.
///
/// # Errors
/// [`Refusal`]; nothing usable is taken (tokens of an ended lease are void anyway).
pub fn admit<L: Level + ?Sized>(
    level: &L,
    cost: u64,
    clock: impl FnOnce() -> BootTime,
) -> Result<Admitted, Refusal> {
    admit_by(level, cost, |level| level.take(cost), clock)
}

/// [`admit`] with another way of taking `cost` tokens from the level.
///
/// # Errors
/// [`Refusal`], as [`admit`].
#[inline]
pub fn admit_by<L: Level + ?Sized>(
    level: &L,
    cost: u64,
    take: impl FnOnce(&L) -> bool,
    clock: impl FnOnce() -> BootTime,
) -> Result<Admitted, Refusal> {
    // The expiry is read before the tokens are taken: a lease that is renewed meanwhile can't lend its time to tokens of
    // the lease before.
    let (valid_until, mark) = (level.expiry(), Mark::of(level));
    if !take(level) {
        return Err(Refusal::Empty);
    }
    let at = clock();
    if at < valid_until {
        return Ok(Admitted { at, valid_until, mark });
    }
    // Nobody will put it back: it would be in flight for ever.
    if mark.puts_back() {
        level.release(cost, mark.generation);
    }
    Err(Refusal::Expired)
}

/// A worker's clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Elapsed time, suspend included.
    pub boot: BootTime,
    /// Wall time.
    pub wall: WallTime,
}

/// A lease that is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name, for the next request.
    pub name: LeaseName,
    /// The share that is minted: as granted, or what is left after giving some back.
    pub share: Share,
    /// The most that the bucket holds: as granted, or what is left after giving some back.
    pub cap: Amount,
    /// The rate that the share is a share of.
    pub rate: RateCurve,
    /// How used tokens become usable again.
    pub policy: Terms,
    /// Whether others want what is not used here.
    pub scarce: bool,
    /// When the ledger granted it, by the ledger's clock.
    pub granted: LedgerTime,
    /// When its request was sent.
    pub sent: Now,
    /// When its reply came.
    pub received: BootTime,
    /// From here on it is void.
    pub expires: BootTime,
}

/// The circumstances of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it came.
    pub now: Now,
    /// When its request was sent.
    pub sent: Now,
    /// What had been [`spent`](Mint::spent) when its request was sent.
    pub spent_at_sending: u64,
    /// The name of the lease that it brings.
    pub name: LeaseName,
    /// When the ledger granted it, by the ledger's clock.
    pub granted: LedgerTime,
}

/// Clocks may be off by one part in a thousand; in thousandths of elapsed time.
const DRIFT_PERMILLE: u64 = 1;
/// How many stretches of time the smallest headroom is remembered for: two leases, in sixteenths of one.
const HEADROOM_SLOTS: usize = 32;
/// Into how many stretches a lease is divided.
const HEADROOM_STRETCHES: u64 = 16;

/// Puts tokens into a level. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Mint {
    /// The lease acted on.
    held: Option<Held>,
    /// Whether nobody granted it: see [`Mint::hold`].
    alone: bool,
    /// Up to where tokens were minted.
    minted_to: BootTime,
    /// The part of a token that is not in the level yet.
    fraction: Amount,
    /// The most that level and fraction can be: what they were after the last inflow.
    high: Amount,
    /// Tokens that came in, less those that left without being used. `inflow - level` is what was used.
    inflow: i128,
    /// Tokens given back.
    returned: Amount,
    /// Tokens put back that takers had taken.
    put_back: u64,
    /// The look since which leases have followed each other without a gap.
    unbroken_since: u64,
    /// The smallest headroom, by stretch of time, newest last.
    headroom: [Slot; HEADROOM_SLOTS],
    /// What the newest lease said.
    policy: Terms,
    /// Conserved tokens. The level is always `capacity` less those that are out, negative while more are out than may be.
    stock: Stock,
    rules: Rules,
}

/// The smallest headroom that any inflow in a stretch of time left.
#[derive(Clone, Copy, Debug)]
struct Slot {
    from: BootTime,
    /// By [`Level::looks`], as they were before.
    first_look: u64,
    last_look: u64,
    least: Amount,
}

impl Slot {
    fn at(time: BootTime, look: u64, least: Amount) -> Slot {
        Slot { from: time, first_look: look, last_look: look, least }
    }
}

impl Mint {
    /// An empty mint for an empty level.
    pub fn new(rules: Rules) -> Mint {
        Mint {
            held: None,
            alone: false,
            minted_to: BootTime(0),
            fraction: Amount::ZERO,
            high: Amount::ZERO,
            inflow: 0,
            returned: Amount::ZERO,
            put_back: 0,
            unbroken_since: 0,
            headroom: [Slot::at(BootTime(0), 0, Amount::ZERO); HEADROOM_SLOTS],
            policy: Terms::Minted,
            stock: Stock::default(),
            rules,
        }
    }

    /// The lease acted on; it may have ended.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Tokens used so far, debt included.
    pub fn used<L: Level + ?Sized>(&self, level: &L) -> u64 {
        // Released first: what is released in between counts as still in use, and never as used twice.
        let released = level.released();
        self.used_at(level.level()).saturating_add(released)
    }

    /// Tokens taken so far, those included that were put back: what this has grown by since some time was held then.
    pub fn spent<L: Level + ?Sized>(&self, level: &L) -> u64 {
        self.used(level).saturating_add(self.put_back)
    }

    /// Conserved tokens that are out: in use, or used and not yet usable again. Of tokens that are minted there are none.
    pub fn out<L: Level + ?Sized>(&self, level: &L) -> u64 {
        if !self.policy.conserves() {
            return 0;
        }
        u64::try_from(i128::from(self.stock.capacity) - i128::from(level.level())).unwrap_or(0)
    }

    /// Whether tokens are conserved, by the newest lease.
    pub fn conserves(&self) -> bool {
        self.policy.conserves()
    }

    /// What the worker acts on, as its next request says it.
    pub fn claim<L: Level + ?Sized>(&self, level: &L) -> Option<Acting> {
        // What nobody granted is nothing to be claimed.
        let held = self.held.as_ref().filter(|_| !self.alone)?;
        let out = if self.rules.keeps(Rule::OutCounts) { self.out(level) } else { 0 };
        Some(Acting { name: held.name, share: held.share, cap: held.cap.max(Amount::tokens(out)) })
    }

    /// When [`Mint::refill`] can find something, where that doesn't follow from a rate.
    pub fn next_look(&self, now: BootTime) -> Option<BootTime> {
        self.held.as_ref().and_then(|held| self.stock.next_look(held, now))
    }

    fn used_at(&self, level: i64) -> u64 {
        u64::try_from(self.inflow - i128::from(level)).unwrap_or(0)
    }

    /// Tokens given back so far.
    pub fn returned(&self) -> Amount {
        self.returned
    }

    /// What the bucket holds, fractions included; negative for debt.
    pub fn holds<L: Level + ?Sized>(&self, level: &L) -> Amount {
        tokens_of(level.level()) + self.fraction
    }

    /// Whether there is a lease that may be acted on. Looks at wall time too: a machine that slept on a clock that
    /// stands still finds its lease ended.
    pub fn is_alive(&self, now: Now) -> bool {
        let Some(held) = &self.held else { return false };
        if now.boot >= held.expires {
            return false;
        }
        let slept = now.wall.since(held.sent.wall).saturating_sub(now.boot.since(held.sent.boot));
        slept <= MARGIN || !self.rules.keeps(Rule::SuspendEndsLease)
    }

    /// Mints what is due. Void when the lease has ended.
    pub fn refill<L: Level + ?Sized>(&mut self, level: &L, now: Now) {
        if self.held.is_none() {
            return;
        }
        if !self.is_alive(now) {
            self.end(level);
            return;
        }
        let Some(held) = &self.held else { return };
        if held.policy.conserves() {
            let (held, out) = (*held, self.out(level));
            let back = self.stock.look(out, &held, now.boot, level.looks());
            if back > 0 {
                let back = i64::try_from(back).unwrap_or(i64::MAX);
                level.add(back);
                self.inflow += i128::from(back);
            }
            level.note_look();
            return;
        }
        if held.share == Share::ZERO {
            // Nothing comes in, so nothing has to be known of what is there.
            self.minted_to = self.minted_to.max(now.boot);
            return;
        }
        let minted = self.minted(held, self.minted_to, now.boot);
        let cap = held.cap;
        self.minted_to = self.minted_to.max(now.boot);
        // Nothing may have been taken since the last inflow, until just now.
        let room = (cap - self.high).at_least_zero();
        self.put(level, minted.min(room));
        self.note_headroom(level, cap, now.boot);
        level.note_look();
    }

    /// Tokens minted from one time to another, on the slow side of every clock.
    fn minted(&self, held: &Held, from: BootTime, to: BootTime) -> Amount {
        if to <= from {
            return Amount::ZERO;
        }
        let (from, to) = (self.slow_time(held, from), self.slow_time(held, to));
        let nano = held.rate.integral_nano(from, to);
        let minted =
            Amount(i128::try_from(nano).unwrap_or(i128::MAX).saturating_mul(i128::from(held.share.ppb())));
        // On a falling curve ledger time is taken to run fast; what is minted must still run slow.
        if held.rate.is_falling() && self.rules.keeps(Rule::MintSlowly) {
            minted.scale_floor(1_000 - 2 * DRIFT_PERMILLE, 1_000)
        } else {
            minted
        }
    }

    /// The ledger time at which the curve is read: of all those that it may be, the one with the smallest rate. It is
    /// at least the grant plus the time since receipt and at most the grant plus the time since sending.
    fn slow_time(&self, held: &Held, at: BootTime) -> LedgerTime {
        let drift = if self.rules.keeps(Rule::MintSlowly) { DRIFT_PERMILLE } else { 0 };
        let early = held.granted + at.since(held.received).scale_floor(1_000 - drift, 1_000);
        let late = held.granted + at.since(held.sent.boot).scale_ceil(1_000 + drift, 1_000);
        if held.rate.is_falling() == self.rules.keeps(Rule::MintOnSlowSide) { late } else { early }
    }

    /// Takes on the lease that a reply brought. Returns whether a lease is in force afterwards.
    pub fn apply<L: Level + ?Sized>(&mut self, level: &L, arrival: &Arrival, terms: &LeaseTerms) -> bool {
        let Arrival { now, sent, spent_at_sending, name, granted } = *arrival;
        if self.alone {
            // The ledger knows nothing of it, and may have lent the same to others.
            self.end(level);
        }
        self.refill(level, now);
        let alive = self.held.is_some();
        let counted_from = if self.rules.keeps(Rule::WorkerStopsFirst) { sent.boot } else { now.boot };
        let expires = counted_from + terms.duration;
        if now.boot >= expires {
            return alive;
        }
        if terms.confirm && !alive && self.rules.keeps(Rule::ConfirmOnlyWhileAlive) {
            return false;
        }
        let held = Held {
            name,
            share: terms.share,
            cap: terms.cap,
            rate: terms.rate,
            policy: terms.policy,
            scarce: terms.scarce,
            granted,
            sent,
            received: now.boot,
            expires,
        };
        if !self.policy.is_like(terms.policy) {
            self.end(level);
            self.forget_out(level);
            // Debt is paid by what is minted. Where nothing is, it would be out for ever.
            let debt = level.level().min(0);
            level.add(-debt);
            self.inflow -= i128::from(debt);
            level.begin_generation(terms.policy == Terms::OnRelease);
        }
        self.policy = terms.policy;
        if terms.policy.conserves() {
            self.set_capacity(level, u64::try_from(terms.cap.whole()).unwrap_or(0));
            self.held = Some(Held { cap: Amount::tokens(self.stock.capacity), ..held });
            level.set_expiry(expires);
            level.note_look();
            return true;
        }
        if !self.rules.keeps(Rule::DebtStays) && level.level() < 0 {
            level.add(-level.level());
        }
        let excess = self.holds(level) - terms.cap;
        if excess > Amount::ZERO {
            // The lease before counts until this one is acknowledged, so the excess can go back with that.
            self.give_up(level, excess, alive);
        }
        // What the reply brings was granted while the worker held up to what it has spent since: rule 3. One reading for
        // both, or what is taken between two readings would count in neither.
        let there = level.level();
        let spent = if self.rules.keeps(Rule::CapFromSending) {
            let spent = self.used_at(there).saturating_add(self.put_back);
            Amount::tokens(spent.saturating_sub(spent_at_sending))
        } else {
            Amount::ZERO
        };
        let room = (terms.cap - tokens_of(there) - self.fraction - spent).at_least_zero();
        self.put(level, terms.tokens.min(room));
        if !alive {
            self.unbroken_since = level.looks();
            self.headroom = [Slot::at(now.boot, level.looks(), terms.cap); HEADROOM_SLOTS];
        }
        // Another thread may have refilled after `now` was read.
        self.minted_to = self.minted_to.max(now.boot);
        self.held = Some(held);
        self.high = self.holds(level);
        self.note_headroom(level, terms.cap, now.boot);
        level.set_expiry(expires);
        level.note_look();
        true
    }

    /// Goes on without a lease that anybody granted, for as long as `last` was for, with `part` of its share and of its cap: an
    /// operator's choice for when the ledger can't be reached. It is never claimed, and void as soon as the ledger answers. Called
    /// again, it lasts longer. Returns whether there is anything to go on with; while there is a lease, there is not.
    ///
    /// The ledger lends anew what ended. So as long as a process goes on alone, the fleet may use up to `part` of what that process
    /// had beyond the limit.
    pub fn hold<L: Level + ?Sized>(&mut self, level: &L, now: Now, last: &Held, part: Share) -> bool {
        self.refill(level, now);
        let expires = now.boot + last.expires.since(last.sent.boot);
        if let Some(held) = self.held.as_mut().filter(|_| self.alone) {
            held.granted = held.granted + now.boot.since(held.received);
            (held.sent, held.received, held.expires) = (now, now.boot, expires);
            level.set_expiry(expires);
            return true;
        }
        let (ppb, one) = (u64::from(part.ppb()), u64::from(Share::ONE.ppb()));
        let cap = last.cap.scale_floor(ppb, one);
        let share = Share::ratio_floor(part.of(u64::from(last.share.ppb())), one);
        let mints = share > Share::ZERO || last.policy.conserves();
        if self.held.is_some() || cap < Amount::ONE || !mints || !self.policy.is_like(last.policy) {
            return false;
        }
        let granted = last.granted + now.boot.since(last.received);
        let held = Held { share, cap, granted, sent: now, received: now.boot, expires, ..*last };
        self.alone = true;
        if self.policy.conserves() {
            self.set_capacity(level, u64::try_from(cap.whole()).unwrap_or(0));
            self.held = Some(Held { cap: Amount::tokens(self.stock.capacity), ..held });
        } else {
            self.unbroken_since = level.looks();
            self.headroom = [Slot::at(now.boot, level.looks(), cap); HEADROOM_SLOTS];
            self.minted_to = self.minted_to.max(now.boot);
            self.held = Some(held);
            self.high = self.holds(level);
            self.note_headroom(level, cap, now.boot);
        }
        level.set_expiry(expires);
        level.note_look();
        true
    }

    /// Whether it goes on without a lease that anybody granted: see [`Mint::hold`].
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Ends the lease: its tokens are void; debt stays, and so does what is out.
    pub fn end<L: Level + ?Sized>(&mut self, level: &L) {
        level.set_expiry(BootTime(0));
        self.held = None;
        self.alone = false;
        if self.policy.conserves() {
            self.set_capacity(level, 0);
            level.note_look();
            return;
        }
        self.take_out(level, u64::MAX);
        self.fraction = Amount::ZERO;
        self.high = Amount::ZERO;
        if !self.rules.keeps(Rule::DebtStays) && level.level() < 0 {
            level.add(-level.level());
        }
        level.note_look();
    }

    /// Nothing is out any more: it belongs to somebody else, or is counted in another way.
    pub fn forget_out<L: Level + ?Sized>(&mut self, level: &L) {
        level.begin_generation(self.policy == Terms::OnRelease);
        if self.policy.conserves() {
            let out = i64::try_from(self.out(level)).unwrap_or(i64::MAX);
            level.add(out);
            self.inflow += i128::from(out);
            let capacity = self.stock.capacity;
            self.stock.forget();
            self.stock.capacity = capacity;
        }
        level.note_look();
    }

    fn set_capacity<L: Level + ?Sized>(&mut self, level: &L, capacity: u64) {
        let whole = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let change = whole(capacity) - whole(self.stock.capacity);
        level.add(change);
        self.inflow += i128::from(change);
        self.stock.capacity = capacity;
    }

    /// Gives `tokens` whole tokens back, as far as they are there. They count here, by a lower cap, until the ledger has
    /// settled the next request. Returns how many.
    pub fn give_back<L: Level + ?Sized>(&mut self, level: &L, tokens: u64) -> u64 {
        if self.held.is_none() || self.alone {
            return 0;
        }
        let taken = self.take_out(level, tokens);
        self.note_returned(Amount::tokens(taken));
        if self.policy.conserves() {
            self.stock.capacity -= taken;
        } else {
            self.high = self.holds(level);
        }
        level.note_look();
        taken
    }

    /// Gives everything back that is there, parts of a token included, likewise.
    pub fn give_back_all<L: Level + ?Sized>(&mut self, level: &L) {
        self.give_back(level, u64::MAX);
        if self.held.is_some() && !self.alone && !self.policy.conserves() {
            let part = core::mem::replace(&mut self.fraction, Amount::ZERO);
            self.note_returned(part.floor_to_milli());
            self.high = self.holds(level);
        }
        level.note_look();
    }

    fn note_returned(&mut self, amount: Amount) {
        self.returned += amount;
        if let Some(held) = &mut self.held
            && self.rules.keeps(Rule::GivenBackCounts)
        {
            held.cap = (held.cap - amount).at_least_zero();
        }
    }

    /// Keeps to a cap of what is held, where nothing is minted: room above it is of no use here, and counts at the ledger
    /// until the next request says so.
    pub fn lower_cap<L: Level + ?Sized>(&mut self, level: &L) {
        let holds = self.holds(level).at_least_zero();
        let granted = !self.alone;
        let counted = |held: &&mut Held| granted && held.share == Share::ZERO && !held.policy.conserves();
        if let Some(held) = self.held.as_mut().filter(counted) {
            held.cap = held.cap.min(holds.ceil_to_milli());
        }
        level.note_look();
    }

    /// Mints no more than `share` from now on; the next request says so.
    pub fn lower_share<L: Level + ?Sized>(&mut self, level: &L, share: Share, now: Now) {
        self.refill(level, now);
        if let Some(held) = self.held.as_mut().filter(|_| !self.alone) {
            held.share = held.share.min(share);
        }
    }

    /// Puts back up to `tokens` of a charge that was made at `mark` and not used; the caller knows. Returns how many.
    ///
    /// As long as no mint has looked at the count since, all of them: then it is as if they had never been taken. Else never more
    /// than the smallest headroom since, since the source has refilled meanwhile; of conserved tokens, those that can't have
    /// come back by themselves.
    pub fn refund<L: Level + ?Sized>(&mut self, level: &L, tokens: u64, mark: Mark, now: Now) -> u64 {
        if mark.generation != level.generation() {
            // Counted in another way by now.
            return 0;
        }
        if level.looks() == mark.looks {
            level.add(i64::try_from(tokens).unwrap_or(i64::MAX));
            self.put_back = self.put_back.saturating_add(tokens);
            return tokens;
        }
        if self.policy.conserves() {
            let back = tokens.min(self.out(level));
            if self.policy != Terms::OnRelease && !self.stock.unuse(back, mark.looks) {
                return 0;
            }
            level.release(back, mark.generation);
            level.note_look();
            return back;
        }
        self.refill(level, now);
        if self.held.is_none() {
            return 0;
        }
        let back = if self.rules.keeps(Rule::RefundWithinHeadroom) {
            tokens.min(u64::try_from(self.least_headroom_since(mark.looks).whole()).unwrap_or(0))
        } else {
            tokens
        };
        level.add(i64::try_from(back).unwrap_or(i64::MAX));
        self.put_back = self.put_back.saturating_add(back);
        self.high += Amount::tokens(back);
        // They count as held all the time since: for another refund there was so much less room.
        for slot in self.headroom.iter_mut().filter(|slot| mark.looks <= slot.last_look) {
            slot.least = (slot.least - Amount::tokens(back)).at_least_zero();
        }
        back
    }

    /// Charges `tokens` that were used beyond an estimate, even into debt, as long as that is at most `debt_max`. Returns how
    /// many: what is beyond is not charged.
    pub fn overdraw<L: Level + ?Sized>(&mut self, level: &L, tokens: u64, debt_max: u64) -> u64 {
        // While there are tokens, others may take them: they are left out, so that the debt stays within its bound.
        let debt = u64::try_from(-i128::from(level.level())).unwrap_or(0);
        let charged = tokens.min(debt_max.saturating_sub(debt)).min(i64::MAX.unsigned_abs() / 2);
        level.add(-i64::try_from(charged).unwrap_or(i64::MAX));
        charged
    }

    fn put<L: Level + ?Sized>(&mut self, level: &L, amount: Amount) {
        let before = level.level();
        let sum = self.fraction + amount;
        let whole = i64::try_from(sum.whole()).unwrap_or(i64::MAX);
        self.fraction = sum.fraction();
        if whole != 0 {
            level.add(whole);
        }
        self.inflow += i128::from(whole);
        self.high = tokens_of(before) + sum;
    }

    /// Takes out at least `excess`, or all there is; gives whole tokens back when a lease still counts them.
    fn give_up<L: Level + ?Sized>(&mut self, level: &L, excess: Amount, counted: bool) {
        let tokens = u64::try_from((excess + Amount::ONE - Amount(1)).whole()).unwrap_or(u64::MAX);
        let taken = self.take_out(level, tokens);
        if counted {
            self.returned += Amount::tokens(taken);
        }
        if taken < tokens {
            self.fraction = Amount::ZERO;
        }
    }

    /// Takes up to `tokens` out of the level, against others who take at the same time.
    fn take_out<L: Level + ?Sized>(&mut self, level: &L, tokens: u64) -> u64 {
        loop {
            let there = u64::try_from(level.level()).unwrap_or(0).min(tokens);
            if there == 0 {
                return 0;
            }
            if level.take(there) {
                self.inflow -= i128::from(there);
                return there;
            }
        }
    }

    fn note_headroom<L: Level + ?Sized>(&mut self, level: &L, cap: Amount, now: BootTime) {
        let Some(held) = &self.held else { return };
        let (look, headroom) = (level.looks(), (cap - self.high).at_least_zero());
        let stretch = held.expires.since(held.sent.boot).scale_floor(1, HEADROOM_STRETCHES);
        let newest = &mut self.headroom[HEADROOM_SLOTS - 1];
        if now.since(newest.from) > stretch {
            self.headroom.rotate_left(1);
            self.headroom[HEADROOM_SLOTS - 1] = Slot::at(now, look, headroom);
        } else {
            newest.last_look = look;
            newest.least = newest.least.min(headroom);
        }
    }

    /// The smallest headroom that any inflow after a charge left, which was made when the mint had looked so often.
    fn least_headroom_since(&self, looks: u64) -> Amount {
        if looks <= self.unbroken_since || looks < self.headroom[0].first_look {
            return Amount::ZERO;
        }
        let after = self.headroom.iter().filter(|slot| looks <= slot.last_look);
        after.map(|slot| slot.least).min().unwrap_or(Amount::ZERO)
    }
}

fn tokens_of(level: i64) -> Amount {
    let magnitude = Amount::tokens(level.unsigned_abs());
    if level < 0 { -magnitude } else { magnitude }
}

/// How long until a bucket with this lease has minted `amount`, by its rate at `now`; `None` when it never does.
pub fn time_to_mint(held: &Held, amount: Amount, now: BootTime) -> Option<Span> {
    let rate = held.rate.at(held.granted + now.since(held.received));
    let time = rate.time_for(amount)?;
    if held.share == Share::ZERO {
        return None;
    }
    Some(time.scale_ceil(u64::from(Share::ONE.ppb()), u64::from(held.share.ppb())))
}

#[cfg(test)]
mod tests;
