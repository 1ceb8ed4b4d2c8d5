//! The worker's side of the lease protocol: what to say to the ledger and when, and what to make of its answers.
//!
//! A [`Client`] is driven by [`Client::poll`]: it returns a request to send, or the time at which to poll again. Poll it
//! also whenever work starts to wait. Answers go into [`Client::on_reply`], refusals into [`Client::on_refusal`], and a
//! failed attempt to reach the ledger into [`Client::on_failure`]. At most one request is outstanding.

mod borrowing;

use crate::bucket::{Arrival, Held, Level, Mint, Now};
use crate::demand::Demand;
use crate::limit::{CellKey, Conduct, DEBT_BURSTS_MAX, NAME_BYTES_MAX};
use crate::message::{
    CellOutcome, CellReply, CellReport, Incarnation, LeaseName, Lender, Reply, Request, RequestError,
};
use crate::rules::{Rule, Rules};
use crate::units::{Amount, BootTime, LedgerTime, Share, Span, clamp_u64};
use alloc::string::String;
use alloc::vec::Vec;
use borrowing::{PassedOn, Source};

/// How long the first request waits for its answer before another one may be sent. Doubles with every timeout, so that
/// a round trip of any length comes to be waited for.
const TIMEOUT_MIN: Span = Span::from_secs(2);
/// The longest wait for an answer.
const TIMEOUT_MAX: Span = Span::from_secs(30);
/// After a failed attempt the same request is sent again after this, doubled with every failure. A fleet whose heartbeat is
/// longer than [`HEARTBEAT_FIRST`] has more than ten processes, and can refuse itself: it begins with half of its heartbeat.
const RETRY_MIN: Span = Span::from_millis(100);
/// The longest pause between attempts of a small fleet, before it is spread by a half. That of a large one is
/// [`RETRY_HEARTBEATS`].
const RETRY_MAX: Span = Span::from_secs(2);
/// The longest pause of a large fleet, in heartbeats; one heartbeat is as long as ten messages a second of the whole fleet
/// allow. The server takes ten updates of a workflow at a time. Refusing one more it forgets the ten, and the task that the
/// host is at with them; the host replays the whole run before the next one. So a fleet gets through only when fewer than
/// ten come in such a time, a second or two, whatever that costs in leases.
const RETRY_HEARTBEATS: u64 = 2;
/// The longest pause of any.
const RETRY_LARGE_MAX: Span = Span::from_secs(30);
/// The longest pause between attempts of a process that was never answered, and so doesn't know how large its fleet is.
const RETRY_FIRST_MAX: Span = Span::from_secs(8);
/// Before the first reply says otherwise.
const HEARTBEAT_FIRST: Span = Span::from_secs(1);
/// Before the first reply says otherwise.
const GAP_FIRST: Span = Span::from_millis(200);
/// A ledger that knows a seq further ahead than this has it from somebody else.
const SEQ_AHEAD_MAX: u64 = 1_000;
/// Even where the ledger asked to be asked again, requests are not closer than this.
const INVITED_GAP: Span = Span::from_millis(20);
/// Work that still waits is told again after this.
const HUNGRY_AGAIN: Span = Span::from_millis(1_000);
/// The same where it has just begun to wait for what other tiers have: they give it up within a heartbeat or two, and until it is
/// taken nobody uses it.
const HUNGRY_AGAIN_BORROWING: Span = Span::from_millis(300);
/// For so long.
const BEGINS_TO_BORROW: Span = Span::from_millis(2_500);
/// A change of the share by less than this much of the rate hurries nothing: 1%.
const HURRY_PPB: u32 = 10_000_000;
/// Where conserved tokens are scarce, they are kept for what may be wanted within this, about as long as it takes to get others.
const KEEP_FOR_MS: u64 = 200;
/// Conserved tokens that can be given up hurry a request when they are this part of what was last claimed.
const HURRY_PART: u64 = 16;

/// What a process wants of one cell, as counted by its gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Tokens asked for since the beginning, whether granted or not.
    pub requested: u64,
    /// Tokens that waiters want now.
    pub waiting: u64,
    /// The largest cost among the waiters, or seen lately.
    pub largest: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this, and hand the answer to the client.
    Send(Request),
    /// Nothing before this time.
    Idle {
        /// When to poll again, if nothing happens before.
        until: BootTime,
    },
}

/// What a process must do after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRefusal {
    /// Nothing: the client goes on by itself.
    GoOn,
    /// Draw a new incarnation and give it to [`Client::reincarnate`]: this one will never get anything again.
    Reincarnate,
}

/// One cell of a client.
#[derive(Clone, Debug)]
pub struct ClientCell<L> {
    key: CellKey,
    borrowed: bool,
    level: L,
    mint: Mint,
    demand: Demand,
    wants: Wants,
    told: Told,
    unknown: bool,
    burst: Option<u64>,
    queue: Option<u64>,
    conduct: Conduct,
    /// The last lease, as granted: what an operator may let it go on with when the ledger is lost.
    last: Option<Held>,
    recovering: bool,
    due: Option<BootTime>,
    /// When a turn ends: the share is given up then.
    turn_ends: Option<BootTime>,
    unacknowledged: bool,
    /// Its tier's place in the order, as the ledger said.
    rank: u32,
    /// Whom its tier may borrow from, as the ledger said.
    lenders: Vec<Lender>,
    /// The cells that are borrowed for its work, in order.
    sources: Vec<Source>,
    /// Of a borrowed cell: what those want that it is a source of.
    passed_on: Option<PassedOn>,
}

/// What the last request said of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    demand: u64,
    waiting: u64,
    spent: u64,
    /// Since when something has waited in each request.
    waiting_since: BootTime,
    /// Conserved tokens that it claimed.
    claim: u64,
    /// Whether it claimed and wanted nothing.
    nothing: bool,
    /// Whether what it wanted was for a lower tier.
    for_lower: bool,
}

#[derive(Clone, Debug)]
struct Outstanding {
    request: Request,
    sent: Now,
    deadline: BootTime,
    retry_at: Option<BootTime>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Client<L> {
    incarnation: Incarnation,
    worker: String,
    seq: u64,
    cells: Vec<ClientCell<L>>,
    outstanding: Option<Outstanding>,
    last_sent: Option<Now>,
    heartbeat: Span,
    gap: Span,
    timeouts: u32,
    failures: u32,
    /// Nothing is sent before this: the last attempt failed.
    rest_until: BootTime,
    answered: bool,
    evicted: bool,
    jitter: u64,
    rules: Rules,
}

impl<L: Level> ClientCell<L> {
    /// Which cell.
    pub fn key(&self) -> &CellKey {
        &self.key
    }
    /// Whether it is borrowed for a higher tier.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed
    }
    /// The count that the hot path takes from.
    pub fn level(&self) -> &L {
        &self.level
    }
    /// The other half of the bucket.
    pub fn mint(&self) -> &Mint {
        &self.mint
    }
    /// The other half of the bucket, for refunds and overdrafts.
    pub fn bucket(&mut self) -> (&mut Mint, &L) {
        (&mut self.mint, &self.level)
    }
    /// Whether the ledger said that there is no such limit.
    pub fn is_unknown(&self) -> bool {
        self.unknown
    }
    /// Whether the ledger only confirms what is held.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }
    /// How many may wait in this process, by the ledger's last answer; `None`: as many as the process lets wait for any limit.
    pub fn queue(&self) -> Option<u64> {
        self.queue
    }
    /// What an operator says of the limit, by the ledger's last answer.
    pub fn conduct(&self) -> Conduct {
        self.conduct
    }

    /// The burst when the ledger last answered: a larger cost is impossible.
    pub fn burst(&self) -> Option<u64> {
        self.burst
    }
    /// When counted tokens were promised to be asked for.
    pub fn due(&self) -> Option<BootTime> {
        self.due
    }
    /// Charges `tokens` that were used beyond an estimate, into a debt of at most [`DEBT_BURSTS_MAX`] bursts. Returns how many:
    /// what is beyond is not charged.
    pub fn overdraw(&mut self, tokens: u64) -> u64 {
        let debt_max = self.burst.unwrap_or(0).saturating_mul(DEBT_BURSTS_MAX);
        self.mint.overdraw(&self.level, tokens, debt_max)
    }
    /// Mints what is due.
    pub fn refill(&mut self, now: Now) {
        self.mint.refill(&self.level, now);
    }
    /// The ledger is lost and the lease has ended: goes on with `part` of the last one, for as long as that was for; again and
    /// again, as long as the ledger doesn't answer. Returns whether there is anything to go on with. See [`Mint::hold`].
    pub fn hold(&mut self, now: Now, part: Share) -> bool {
        self.last.is_some_and(|last| self.mint.hold(&self.level, now, &last, part))
    }
    /// The ledger answers, whatever it says: what nobody granted is over.
    pub fn stop_holding(&mut self) {
        if self.mint.is_alone() {
            self.mint.end(&self.level);
        }
    }
    /// Says what the process wants.
    pub fn set_wants(&mut self, wants: Wants) {
        self.wants = wants;
    }

    /// Its tier's place among those of the limit, as the ledger said: lower numbers are higher tiers.
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// The tiers from which work of this cell's may borrow, in order, as the ledger said: for each of them the process wants
    /// a borrowed cell. See [`Client::sources`].
    pub fn lenders(&self) -> &[Lender] {
        &self.lenders
    }

    /// Wanted tokens a second, in millionths, and tokens that waiters want.
    fn wanted(&self) -> (u64, u64) {
        match &self.passed_on {
            Some(passed_on) => (passed_on.demand, passed_on.waiting),
            None => (self.demand.wanted_micro(self.wants.waiting), self.wants.waiting),
        }
    }

    fn report(&mut self, now: Now, for_tier: Option<String>) -> CellReport {
        self.mint.refill(&self.level, now);
        if !self.mint.is_alive(now) {
            // Once said, it is so: a lease that is not claimed is never acted on again.
            self.mint.end(&self.level);
            self.turn_ends = None;
        }
        self.demand.observe(now.boot, self.wants.requested);
        let (demand, waiting) = self.wanted();
        if self.turn_ends.is_some_and(|ends| ends <= now.boot) {
            self.turn_ends = None;
            self.mint.lower_share(&self.level, Share::ZERO, now);
            self.mint.give_back_all(&self.level);
        }
        if self.passed_on.is_some_and(|passed_on| passed_on.user.is_none()) {
            // What is another tier's is no reserve of ours.
            self.mint.lower_share(&self.level, Share::ZERO, now);
            self.mint.give_back_all(&self.level);
        }
        self.give_back_unused(now, demand);
        self.mint.give_back(&self.level, self.idle(demand));
        self.mint.lower_cap(&self.level);
        let acting = self.mint.claim(&self.level);
        let (used, spent) = (self.mint.used(&self.level), self.mint.spent(&self.level));
        let claim = self.claimed();
        let largest = self.passed_on.map_or(self.wants.largest, |passed_on| passed_on.largest);
        let has = acting.is_some_and(|acting| acting.share > Share::ZERO || acting.cap > Amount::ZERO);
        let for_lower = self.passed_on.and_then(|passed_on| passed_on.user).is_some_and(|user| user.below);
        let nothing = demand == 0 && waiting == 0 && !has;
        let waiting_since = if self.told.waiting > 0 { self.told.waiting_since } else { now.boot };
        self.told = Told { demand, waiting, waiting_since, spent, claim, nothing, for_lower };
        self.unacknowledged = false;
        let out = self.mint.out(&self.level);
        let holds = self.mint.holds(&self.level);
        // What is out beyond a cap is no debt: it comes back by itself.
        let debt = if out > 0 { Amount::ZERO } else { -holds };
        CellReport {
            key: self.key.clone(),
            borrowed: self.borrowed,
            for_tier,
            acting,
            // Void when the answer comes.
            held: if self.mint.is_alone() { Amount::ZERO } else { holds.at_least_zero().floor_to_milli() },
            used,
            returned: self.mint.returned(),
            debt: debt.at_least_zero(),
            out,
            demand,
            waiting,
            largest: largest.max(1),
        }
    }

    /// Gives back at once what is not used: the next request says so, and the ledger can lend it on without waiting for
    /// another round.
    fn give_back_unused(&mut self, now: Now, demand: u64) {
        if self.wanted().1 > 0 {
            return;
        }
        if let Some(keep) = self.unused_share(now, demand) {
            self.mint.lower_share(&self.level, keep, now);
        }
    }

    /// Conserved tokens that nobody here is about to use.
    fn idle(&self, demand: u64) -> u64 {
        if !self.mint.held().is_some_and(|held| held.scarce) || self.wanted().1 > 0 {
            return 0;
        }
        let there = u64::try_from(self.level.level()).unwrap_or(0);
        there.saturating_sub(kept(demand))
    }

    /// Conserved tokens that the next request will claim.
    fn claimed(&self) -> u64 {
        let claim = self.mint.claim(&self.level).filter(|_| self.mint.conserves());
        claim.map_or(0, |claim| u64::try_from(claim.cap.whole()).unwrap_or(0))
    }

    /// The share to keep when more than 30% of the one held is unused and that is more than 2% of the rate.
    fn unused_share(&self, now: Now, demand: u64) -> Option<Share> {
        let held = self.mint.held()?;
        let rate = held.rate.at(held.granted + now.boot.since(held.received)).micro_per_second();
        let keep = Share::ratio_floor(clamp_u64(u128::from(demand) * 5 / 4), rate.max(1));
        let unused = held.share.saturating_sub(keep).ppb();
        (u64::from(unused) * 10 > u64::from(held.share.ppb()) * 3 && unused > 2 * HURRY_PPB).then_some(keep)
    }

    /// When the ledger wants to hear of it: then no pace is kept to.
    fn invited(&self) -> Option<BootTime> {
        let due = self.due.filter(|_| self.wanted().1 > 0 && !self.unknown && !self.recovering);
        self.turn_ends.into_iter().chain(due).min()
    }

    /// When this cell wants to be heard, if that is before the regular heartbeat.
    fn hurry(&self, now: Now, last_sent: BootTime) -> Option<BootTime> {
        if self.unknown {
            return None;
        }
        let (demand, waiting) = self.wanted();
        if self.is_quiet() {
            return None;
        }
        if self.unacknowledged || self.has_used_counted() {
            return Some(now.boot);
        }
        if self.turn_ends.is_some() && waiting > 0 {
            return self.turn_ends;
        }
        if waiting > 0 {
            if let Some(due) = self.due {
                return Some(due);
            }
            let news = self.told.waiting == 0
                || demand / 5 > self.told.demand / 4
                || !self.mint.is_alive(now)
                || self.can_give_up(demand);
            let begins = self.passed_on.is_some() && now.boot < self.told.waiting_since + BEGINS_TO_BORROW;
            let again = if begins { HUNGRY_AGAIN_BORROWING } else { HUNGRY_AGAIN };
            return Some(if news { now.boot } else { last_sent + again });
        }
        let lendable = self.unused_share(now, demand).is_some() || self.can_give_up(demand);
        (self.mint.is_alive(now) && !self.mint.is_alone() && lendable).then_some(now.boot)
    }

    /// Whether there are conserved tokens here that others could use, and enough of them for a request of their own.
    fn can_give_up(&self, demand: u64) -> bool {
        let given_up = (self.told.claim + self.idle(demand)).saturating_sub(self.claimed());
        given_up > self.told.claim / HURRY_PART
    }

    /// Whether a counted token has been used: its cap counts until the ledger hears of it, and where the burst is small
    /// nothing is minted meanwhile.
    fn has_used_counted(&self) -> bool {
        let counted = self.mint.held().filter(|held| held.share == Share::ZERO && !held.policy.conserves());
        counted.is_some_and(|held| held.cap - self.mint.holds(&self.level).at_least_zero() >= Amount::ONE)
    }

    fn take_on(&mut self, now: Now, sent: Now, reply: &Reply, answer: &CellReply) {
        self.unknown = false;
        self.rank = answer.rank;
        self.note_quiet(answer);
        match &answer.outcome {
            CellOutcome::Unknown => {
                self.unknown = true;
                self.last = None;
                self.turn_ends = None;
                self.mint.end(&self.level);
            }
            CellOutcome::Lease(terms) => {
                let before = self.mint.held().copied();
                self.burst = Some(terms.burst);
                self.queue = terms.queue;
                self.conduct = terms.conduct;
                self.recovering = terms.confirm;
                let due = terms.due.map(|due| now.boot + due);
                let has_turn = terms.share > Share::ZERO && !terms.confirm;
                (self.turn_ends, self.due) = if has_turn { (due, None) } else { (None, due) };
                let name = LeaseName { epoch: reply.epoch, seq: reply.seq };
                let spent_at_sending = self.told.spent;
                let arrival = Arrival { now, sent, spent_at_sending, name, granted: reply.at };
                self.mint.apply(&self.level, &arrival, terms);
                self.last = self.mint.held().filter(|held| held.name == name).copied().or(self.last);
                if let Some(before) = before {
                    let less = before.share.saturating_sub(terms.share).ppb() > HURRY_PPB;
                    let part = if terms.policy.conserves() { (31, 32) } else { (3, 4) };
                    let tighter = before.cap.scale_floor(part.0, part.1) > terms.cap;
                    self.unacknowledged = less || tighter;
                }
            }
        }
    }
}

impl<L: Level> Client<L> {
    /// A client that has asked for nothing yet. `seed` is random; it only spreads heartbeats.
    pub fn new(incarnation: Incarnation, worker: &str, seed: u64) -> Client<L> {
        Client::with_rules(incarnation, worker, seed, Rules::ALL)
    }

    /// A client for the simulator, which may have a rule switched off.
    pub fn with_rules(incarnation: Incarnation, worker: &str, seed: u64, rules: Rules) -> Client<L> {
        let mut end = worker.len().min(NAME_BYTES_MAX);
        while !worker.is_char_boundary(end) {
            end -= 1;
        }
        Client {
            incarnation,
            worker: worker[..end].into(),
            seq: 0,
            cells: Vec::new(),
            outstanding: None,
            last_sent: None,
            heartbeat: HEARTBEAT_FIRST,
            gap: GAP_FIRST,
            timeouts: 0,
            failures: 0,
            rest_until: BootTime(0),
            answered: false,
            evicted: false,
            jitter: seed | 1,
            rules,
        }
    }

    /// Who this is.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether an operator evicted this worker.
    pub fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// How long the ledger wants between heartbeats.
    pub fn heartbeat(&self) -> Span {
        self.heartbeat
    }

    /// Begins to lease a cell. Returns its index, which stays the same.
    pub fn add_cell(&mut self, key: CellKey, borrowed: bool, level: L) -> usize {
        self.cells.push(ClientCell {
            key,
            borrowed,
            level,
            mint: Mint::new(self.rules),
            demand: Demand::default(),
            wants: Wants::default(),
            told: Told::default(),
            unknown: false,
            burst: None,
            queue: None,
            conduct: Conduct::default(),
            last: None,
            recovering: false,
            due: None,
            turn_ends: None,
            unacknowledged: true,
            rank: 0,
            lenders: Vec::new(),
            sources: Vec::new(),
            passed_on: None,
        });
        self.link();
        self.cells.len() - 1
    }

    /// All cells, in the order in which they were added.
    pub fn cells(&self) -> &[ClientCell<L>] {
        &self.cells
    }

    /// One cell.
    pub fn cell_mut(&mut self, index: usize) -> Option<&mut ClientCell<L>> {
        self.cells.get_mut(index)
    }

    /// What to do at `now`. `nonce` is random, drawn for every call.
    pub fn poll(&mut self, now: Now, nonce: u64) -> Action {
        for cell in &mut self.cells {
            cell.refill(now);
            cell.demand.observe(now.boot, cell.wants.requested);
        }
        self.pass_on(now);
        if let Some(outstanding) = &mut self.outstanding {
            if now.boot < outstanding.deadline {
                return match outstanding.retry_at {
                    Some(retry_at) if retry_at <= now.boot => {
                        outstanding.retry_at = None;
                        Action::Send(outstanding.request.clone())
                    }
                    Some(retry_at) => Action::Idle { until: retry_at.min(outstanding.deadline) },
                    None => Action::Idle { until: outstanding.deadline },
                };
            }
            self.timeouts = self.timeouts.saturating_add(1);
            self.outstanding = None;
        }
        let at = self.next_request(now);
        if now.boot < at {
            let look = self.cells.iter().filter_map(|cell| cell.mint.next_look(now.boot)).min();
            return Action::Idle { until: at.min(look.unwrap_or(at)) };
        }
        Action::Send(self.request(now, nonce))
    }

    fn next_request(&mut self, now: Now) -> BootTime {
        let Some(last) = self.last_sent else { return now.boot };
        let earliest = (last.boot + self.gap).max(self.rest_until);
        let regular = last.boot + self.spread(self.regular());
        let invited = self.cells.iter().filter_map(ClientCell::invited).min();
        let regular = match invited {
            // Nothing is new until then.
            Some(invited) if self.cells.iter().all(|cell| cell.is_quiet() || cell.invited().is_some()) => {
                let renewal = self.lease_third().map_or(last.boot, |third| last.boot + third);
                regular.max(renewal.min(invited))
            }
            _ => regular,
        };
        let hurry = self.cells.iter().filter_map(|cell| cell.hurry(now, last.boot)).min();
        let next = regular.min(hurry.unwrap_or(regular)).max(earliest);
        let invited = invited.map(|invited| invited.max(last.boot + INVITED_GAP).max(self.rest_until));
        next.min(invited.unwrap_or(next))
    }

    /// How long between messages when nothing happens.
    fn regular(&self) -> Span {
        self.heartbeat.min(self.lease_third().unwrap_or(self.heartbeat))
    }

    /// A third of the shortest lease: it leaves two more tries before that ends.
    fn lease_third(&self) -> Option<Span> {
        let held = self.cells.iter().filter_map(|cell| cell.mint.held());
        held.map(|held| held.expires.since(held.sent.boot).scale_floor(1, 3)).min()
    }

    fn draw_jitter(&mut self) {
        self.jitter =
            self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }

    /// 100 to 120% of a span, the same until the next request, so that a fleet doesn't beat as one.
    fn spread(&self, span: Span) -> Span {
        span.scale_floor(1_000 + (self.jitter >> 33) % 201, 1_000)
    }

    fn request(&mut self, now: Now, nonce: u64) -> Request {
        self.seq = self.seq.saturating_add(1);
        self.draw_jitter();
        let request = Request {
            incarnation: self.incarnation,
            seq: self.seq,
            nonce,
            worker: self.worker.clone(),
            cells: self.reports(now),
        };
        let wait = Span((TIMEOUT_MIN.0 << self.timeouts.min(10)).min(TIMEOUT_MAX.0));
        self.outstanding = Some(Outstanding {
            request: request.clone(),
            sent: now,
            deadline: now.boot + wait,
            retry_at: None,
        });
        self.last_sent = Some(now);
        request
    }

    fn reports(&mut self, now: Now) -> Vec<CellReport> {
        let tiers: Vec<Option<String>> = self.cells.iter().map(|cell| self.user_of(cell)).collect();
        let cells = self.cells.iter_mut().zip(tiers).filter(|(cell, _)| !cell.is_quiet());
        cells.map(|(cell, tier)| cell.report(now, tier)).collect()
    }

    /// Takes on a reply. Only the one to the outstanding request counts; others are ignored. Returns whether it counted.
    pub fn on_reply(&mut self, now: Now, reply: &Reply) -> bool {
        let current = self.outstanding.as_ref().filter(|outstanding| outstanding.request.seq == reply.seq);
        let sent = match (current, self.last_sent) {
            (Some(outstanding), _) => outstanding.sent,
            (None, Some(last)) if !self.rules.keeps(Rule::CurrentReplyOnly) => last,
            _ => return false,
        };
        self.outstanding = None;
        self.timeouts = 0;
        self.failures = 0;
        self.rest_until = BootTime(0);
        self.answered = true;
        self.heartbeat = reply.heartbeat;
        self.gap = reply.gap;
        self.evicted = reply.evicted;
        let mut answers = reply.cells.iter().peekable();
        let mut news = false;
        for cell in &mut self.cells {
            // Those of which nothing was said are passed over.
            let is_its = |answer: &&CellReply| cell.key == answer.key && cell.borrowed == answer.borrowed;
            if let Some(answer) = answers.next_if(is_its) {
                cell.take_on(now, sent, reply, answer);
                news |= cell.lenders != answer.lenders;
                cell.lenders.clone_from(&answer.lenders);
            }
        }
        if news {
            self.link();
        }
        true
    }

    /// The outstanding request did not reach the ledger, or its answer did not come back: the same bytes go out again.
    pub fn on_failure(&mut self, now: Now) {
        let longest = if self.answered {
            self.heartbeat.scale_floor(RETRY_HEARTBEATS, 1).min(RETRY_LARGE_MAX).max(RETRY_MAX)
        } else {
            RETRY_FIRST_MAX
        };
        let is_large = self.heartbeat > HEARTBEAT_FIRST;
        let first = if is_large { RETRY_MIN.max(self.heartbeat.scale_floor(1, 2)) } else { RETRY_MIN };
        let pause = Span((first.0 << self.failures.min(10)).min(longest.0));
        // Half to one and a half of it: a fleet that was refused together must not come back together.
        self.draw_jitter();
        let pause = pause.scale_ceil(500 + (self.jitter >> 33) % 1_001, 1_000);
        self.failures = self.failures.saturating_add(1);
        // Also for the next request, should this one's time be up before: otherwise a fleet would come back as one then.
        self.rest_until = now.boot + pause;
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.retry_at = Some(self.rest_until);
        }
    }

    /// The ledger refused the outstanding request.
    pub fn on_refusal(&mut self, now: Now, error: RequestError) -> AfterRefusal {
        match error {
            // So far ahead is no lost answer of ours: somebody else speaks under this name.
            RequestError::Stale { newest } if newest > self.seq.saturating_add(SEQ_AHEAD_MAX) => {
                AfterRefusal::Reincarnate
            }
            RequestError::Stale { newest } => {
                self.seq = self.seq.max(newest);
                self.outstanding = None;
                AfterRefusal::GoOn
            }
            RequestError::Burned | RequestError::Revoked => AfterRefusal::Reincarnate,
            RequestError::TooManyWorkers | RequestError::TooManyCells | RequestError::Busy => {
                self.on_failure(now);
                AfterRefusal::GoOn
            }
        }
    }

    /// Goes on as a new incarnation: everything held ends, debt stays.
    pub fn reincarnate(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.seq = 0;
        self.outstanding = None;
        self.last_sent = None;
        self.evicted = false;
        self.end_leases();
        self.cells.iter_mut().for_each(|cell| cell.last = None);
    }

    /// Ends all leases, as when the clock that they were counted by can't be relied on.
    pub fn end_leases(&mut self) {
        for cell in &mut self.cells {
            cell.turn_ends = None;
            cell.mint.end(&cell.level);
        }
    }

    /// What is out belongs to somebody else: to the process that this one was forked from.
    pub fn forget_out(&mut self) {
        for cell in &mut self.cells {
            cell.mint.forget_out(&cell.level);
        }
    }

    /// Something urgent happened at the ledger: ask as soon as the gap allows.
    pub fn on_notice(&mut self) {
        for cell in &mut self.cells {
            cell.unacknowledged = true;
        }
    }

    /// Stops for good: gives everything back and says so. Nothing may be acquired afterwards.
    pub fn revoke(&mut self, now: Now, nonce: u64) -> Request {
        for cell in &mut self.cells {
            cell.mint.refill(&cell.level, now);
            cell.mint.give_back(&cell.level, u64::MAX);
        }
        let request = self.request(now, nonce);
        self.outstanding = None;
        for cell in &mut self.cells {
            cell.mint.end(&cell.level);
        }
        request
    }

    /// The most tokens that the cell can come to hold without asking, by its lease now.
    pub fn reach(&self, index: usize) -> Amount {
        self.cells.get(index).and_then(|cell| cell.mint.held()).map_or(Amount::ZERO, |held| held.cap)
    }

    /// Ledger time as it can be told from the newest lease; for display only.
    pub fn ledger_time(&self, now: BootTime) -> Option<LedgerTime> {
        let newest =
            self.cells.iter().filter_map(|cell| cell.mint.held()).max_by_key(|held| held.received)?;
        Some(newest.granted + now.since(newest.received))
    }
}

/// Conserved tokens to keep for `demand` where they are scarce.
pub(crate) fn kept(demand: u64) -> u64 {
    clamp_u64(u128::from(demand) * u128::from(KEEP_FOR_MS) / 1_000_000_000)
}
