//! Keeps the leases of one gate: the only task that talks to the coordinator.
//!
//! It runs in rounds. A round tells the client what is wanted, polls it, sends what it says, mints, wakes who can be
//! served, and sleeps until the earliest of: the client's next poll, the next token that the first in line misses, the end
//! of a lease that somebody waits on. An answer, a new waiter, a refusal or a notice begins a round at once.

use crate::error::{Reason, TransportError};
use crate::gate::{Ending, Heard, Shared};
use crate::level::SharedLevel;
use crate::limit::Cell;
use crate::metered::Unanswered;
use crate::queue::{Facts, Together, duration};
use crate::state::{Condition, Coordinator, condition};
use crate::transport::Transport;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tollgate_core::bucket::{Held, Level, Now, time_to_mint};
use tollgate_core::client::{Action, AfterRefusal, Client, ClientCell, Wants};
use tollgate_core::curve::RateCurve;
use tollgate_core::limit::{Conduct, WhenLost};
use tollgate_core::message::{Lender, Reply, Request, RequestError};
use tollgate_core::units::{Amount, BootTime, Span};
use tollgate_workflows::wire::lease::{HeartbeatJson, HeartbeatReplyJson, incarnation_text};

/// Answers that may wait for the keeper: one call is under way at a time, and one more may just have been given up.
const INBOX: usize = 4;
/// A coordinator that hasn't answered for this long is lost; shorter than that it may just be replacing itself.
const LOST_AFTER: Span = Span::from_secs(2);
/// A coordinator that is lost for this long is told of: a host that was killed is replaced sooner.
const TELL_LOST_AFTER: Span = Span::from_secs(5);
/// A limit that isn't there for this long is missing, not just being made anew.
const MISSING_AFTER: Span = Span::from_secs(10);
/// Without anything to do, look again after this.
const IDLE_MAX: Span = Span::from_secs(60);
/// A meter whose first waiter waits for another meter for so long is told as not waited for. Shorter than that, all of them may just
/// be on their way.
const HELD_UP_AFTER: Span = Span::from_millis(500);
/// How long a large cost is remembered: twice this at most.
const LARGEST_FOR: Span = Span::from_secs(10);
/// Minted a little slowly, tokens are there a little later than the rate says: in thousandths.
const MINT_LATE_PERMILLE: u64 = 1_002;
/// After the first incarnation that was refused in a row the next one waits this long; doubled each time.
const REBIRTH_MIN: Span = Span::from_millis(100);
/// The longest such wait.
const REBIRTH_MAX: Span = Span::from_secs(30);
/// A last message is tried this often.
const REVOKE_TRIES: u32 = 3;
/// One try of a last message takes at most this long, so that a shutdown is bounded.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(3);

/// What came of a call.
struct Answer {
    seq: u64,
    result: Result<HeartbeatReplyJson, TransportError>,
}

/// One limit, as the keeper sees it.
struct Kept {
    cell: Arc<Cell>,
    /// Waiters with smaller numbers are in the request that is out.
    asked: u64,
    /// Waiters with smaller numbers were in a request that was answered.
    heard: u64,
    /// Tokens that waiters wanted in the request that is out.
    asked_waiting: u64,
    /// Refused tokens that requests have told of.
    told_refused: u64,
    dry: bool,
    largest_before: u64,
    largest_since: BootTime,
    /// Since when the first in line waits for another meter that comes before this one.
    held_up_since: Option<BootTime>,
    condition: Condition,
    /// Since when it goes on without the coordinator, although the lease has ended.
    alone_since: Option<BootTime>,
    /// Since when the limit isn't there, until that was told.
    missing_since: Option<BootTime>,
    /// What the waiters' fate was last judged by.
    judged: Option<Judged>,
    /// Whom the coordinator lets it borrow from.
    lenders: Vec<Lender>,
}

/// What a verdict depends on beside level and cost.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Judged {
    lets_through: bool,
    unknown: bool,
    paused: bool,
    burst: Option<u64>,
    rate: Option<RateCurve>,
    open: bool,
    lost: bool,
    barred: Option<Reason>,
    dry: bool,
    heard: u64,
}

/// See the module's documentation.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    timeout: Duration,
    inbox: mpsc::Receiver<Answer>,
    outbox: mpsc::Sender<Answer>,
    cells: Vec<Kept>,
    call: Option<AbortHandle>,
    /// The seq of the request that was sent last, in this incarnation.
    sent: u64,
    /// When that was first sent.
    sent_at: BootTime,
    /// When the first message was sent that no answer has followed.
    unanswered_since: Option<BootTime>,
    /// Whether the log says that the coordinator is lost.
    told_lost: bool,
    barred: Option<Reason>,
    recovering_until: Option<BootTime>,
    /// Incarnations refused in a row.
    rebirths: u32,
    silent_until: BootTime,
    pid: u32,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, transport: Arc<dyn Transport>, timeout: Duration) -> Keeper {
        let (outbox, inbox) = mpsc::channel(INBOX);
        Keeper {
            shared,
            transport,
            timeout,
            inbox,
            outbox,
            cells: Vec::new(),
            call: None,
            sent: 0,
            sent_at: BootTime(0),
            unanswered_since: None,
            told_lost: false,
            barred: None,
            recovering_until: None,
            rebirths: 0,
            silent_until: BootTime(0),
            pid: std::process::id(),
        }
    }

    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            // Before all else: what is said from here on is not said in the parent's name.
            if self.is_forked() && !self.move_here() {
                return;
            }
            match shared.ending() {
                Ending::No => {}
                Ending::Abandon => return,
                Ending::Revoke => {
                    let result = self.revoke().await;
                    shared.ended.send_replace(Some(result));
                    return;
                }
            }
            let sleep = self.round();
            tokio::select! {
                biased;
                answer = self.inbox.recv() => if let Some(answer) = answer { self.take(answer) },
                () = shared.core.kick.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.pid || !self.shared.core.home.is_here()
    }

    /// Goes on in a forked child, as a new worker. Only the thread that forked is left there: when another one was in the middle
    /// of something, what it held is never let go of, and this gate is over. Returns whether it goes on.
    fn move_here(&mut self) -> bool {
        let shared = self.shared.clone();
        let borrowed = shared.all_borrowed();
        let cells = self.cells.iter().map(|kept| &kept.cell).chain(&borrowed);
        if !shared.is_at_rest(cells) {
            tracing::error!(
                "this process was forked while other threads used the gate: it grants nothing here"
            );
            return false;
        }
        self.pid = std::process::id();
        tracing::warn!("this process was forked: going on as a new worker");
        // Those who wait here have come to be by copying; they find out when they are woken.
        let waiting = self.cells.iter().flat_map(|kept| {
            let mut queue = kept.cell.queue();
            let waiting = queue.clear();
            kept.cell.level.set_waiting(0);
            waiting
        });
        let waiting: Vec<Waker> = waiting.collect();
        self.rebirth(&mut shared.core.client());
        waiting.into_iter().for_each(Waker::wake);
        true
    }

    /// Says what is wanted, sends what is due, serves who waits. Returns for how long there is nothing more to do.
    fn round(&mut self) -> Duration {
        let new = self.shared.cells_after(self.cells.len());
        self.cells.extend(new.into_iter().map(Kept::new));
        let shared = self.shared.clone();
        self.note_lenders();
        let mut client = shared.core.client();
        if !shared.core.clock.is_steady() {
            client.end_leases();
        }
        let now = shared.core.clock.now();
        for kept in &mut self.cells {
            if let Some(leased) = kept.cell.index.and_then(|index| client.cell_mut(index)) {
                let borrowed = kept.cell.borrowed.load(Ordering::Relaxed);
                let used = leased.mint().used(&*kept.cell.level).saturating_add(borrowed);
                let wants = kept.wants(used, leased.burst(), now.boot);
                leased.set_wants(wants);
            }
        }
        let mut until = (now.boot + IDLE_MAX).min(self.poll(&mut client, now));
        let (mut wake, mut together) = (Vec::new(), Vec::new());
        for index in 0..self.cells.len() {
            if let Some(look) = self.serve(&mut client, index, now, &mut wake, &mut together) {
                until = until.min(look);
            }
        }
        drop(client);
        // After all of their meters.
        for look in together.iter().filter_map(|waiter| waiter.serve(now.boot, &mut wake)) {
            until = until.min(look);
        }
        if let Some(look) = self.note_held_up(&together, now.boot) {
            until = until.min(look);
        }
        if let Some(since) = self.unanswered_since {
            let next = [since + LOST_AFTER, since + TELL_LOST_AFTER].into_iter().find(|at| now.boot < *at);
            match next {
                Some(next) => until = until.min(next),
                None => self.tell_lost(),
            }
        }
        wake.into_iter().for_each(Waker::wake);
        duration(until.since(now.boot))
    }

    /// Lets tiers borrow from whom the coordinator says that they may.
    fn note_lenders(&mut self) {
        let client = self.shared.core.client();
        let news = |(place, kept): (usize, &Kept)| {
            let leased = kept.cell.index.and_then(|index| client.cells().get(index))?;
            (kept.lenders != leased.lenders()).then(|| (place, leased.lenders().to_vec()))
        };
        let news: Vec<(usize, Vec<Lender>)> = self.cells.iter().enumerate().filter_map(news).collect();
        // The list of cells is locked before the client, here as elsewhere.
        drop(client);
        for (place, lenders) in news {
            if let Some(kept) = self.cells.get_mut(place) {
                kept.cell.lenders.set(&self.shared.borrowed(&kept.cell.key, &lenders));
                kept.lenders = lenders;
            }
        }
    }

    /// Polls the client and sends what it says. Returns when to poll again.
    fn poll(&mut self, client: &mut Client<SharedLevel>, now: Now) -> BootTime {
        if now.boot < self.silent_until {
            return self.silent_until;
        }
        // After sending, the second poll says how long to wait for the answer.
        for _ in 0..2 {
            let Ok(nonce) = self.shared.core.identities.nonce() else {
                tracing::error!("the operating system gives no random bits: nothing can be sent");
                return now.boot + REBIRTH_MAX;
            };
            match client.poll(now, nonce) {
                Action::Send(request) => self.send(request, now),
                Action::Idle { until } => return until,
            }
        }
        now.boot
    }

    fn send(&mut self, request: Request, now: Now) {
        if request.seq != self.sent {
            self.sent_at = now.boot;
            let own = request.cells.iter().filter(|report| !report.borrowed);
            for (kept, report) in self.cells.iter_mut().zip(own) {
                kept.asked = kept.cell.queue().next();
                kept.asked_waiting = report.waiting;
                kept.told_refused = kept.cell.counts.refused_tokens.load(Ordering::Relaxed);
            }
        }
        self.sent = request.seq;
        self.unanswered_since.get_or_insert(now.boot);
        if let Some(call) = self.call.take()
            && !call.is_finished()
        {
            // Given up: its answer would be ignored.
            call.abort();
            self.fail(TransportError::Timeout, now);
        }
        let message = HeartbeatJson::of(&request);
        let (transport, outbox, timeout) = (self.transport.clone(), self.outbox.clone(), self.timeout);
        let call = tokio::spawn(async move {
            let answer = tokio::time::timeout(timeout, transport.heartbeat(message)).await;
            let result = answer.unwrap_or(Err(TransportError::Timeout));
            // A keeper that has ended wants no answer.
            let _wanted = outbox.send(Answer { seq: request.seq, result }).await;
        });
        self.call = Some(call.abort_handle());
    }

    fn take(&mut self, answer: Answer) {
        if answer.seq != self.sent {
            return;
        }
        let shared = self.shared.clone();
        let checked = answer
            .result
            .and_then(|json| json.check().map_err(|error| TransportError::Unreadable(error.to_string())));
        let mut client = shared.core.client();
        let now = shared.core.clock.now();
        match checked {
            Ok(Ok(reply)) => {
                if client.on_reply(now, &reply) {
                    self.learn(&client, &reply, now);
                }
            }
            Ok(Err(refusal)) => self.refused(&mut client, refusal, now),
            Err(error) => {
                client.on_failure(now);
                self.fail(error, now);
            }
        }
        drop(client);
        self.shared.heard.send_replace(true);
    }

    fn learn(&mut self, client: &Client<SharedLevel>, reply: &Reply, now: Now) {
        self.unanswered_since = None;
        self.rebirths = 0;
        let took = now.boot.since(self.sent_at);
        self.shared.meter.answered(took);
        *self.shared.ledger() = Some(Heard { sent: self.sent_at, at: reply.at, took });
        self.recovering_until = reply.recovering_until.map(|until| now.boot + until.since(reply.at));
        let barred = reply.evicted.then_some(Reason::Evicted);
        if barred.is_some() && self.barred != barred {
            tracing::warn!("evicted by an operator: this worker gets nothing more");
        }
        self.barred = barred;
        let answered = reply.cells.iter().filter(|answer| !answer.borrowed).count();
        for kept in self.cells.iter_mut().take(answered) {
            let Some(leased) = kept.cell.index.and_then(|index| client.cells().get(index)) else { continue };
            kept.heard = kept.asked;
            kept.dry = kept.is_dry(leased, now);
        }
        self.reach(Coordinator::Reachable, now);
    }

    fn fail(&mut self, error: TransportError, now: Now) {
        self.shared.meter.unanswered(Unanswered::error(&error));
        self.reach(Coordinator::Unreachable(error), now);
    }

    fn refused(&mut self, client: &mut Client<SharedLevel>, refusal: RequestError, now: Now) {
        self.shared.meter.unanswered(Unanswered::refusal(refusal));
        match client.on_refusal(now, refusal) {
            AfterRefusal::GoOn => {}
            AfterRefusal::Reincarnate => {
                tracing::warn!(reason = ?refusal, "the coordinator refuses this incarnation: going on as a new one");
                self.rebirth(client);
                let pause = Span((REBIRTH_MIN.0 << self.rebirths.min(10)).min(REBIRTH_MAX.0));
                self.silent_until = now.boot + pause;
                self.rebirths = self.rebirths.saturating_add(1);
            }
        }
        match refusal {
            RequestError::TooManyWorkers => {
                self.unanswered_since = None;
                self.barred = Some(Reason::GroupFull);
                self.reach(Coordinator::GroupFull, now);
            }
            RequestError::Stale { .. } | RequestError::Burned | RequestError::Revoked => {
                self.unanswered_since = None;
            }
            // It will answer the same bytes later.
            _ => self.reach(Coordinator::Unreachable(TransportError::Busy(format!("{refusal:?}"))), now),
        }
    }

    fn rebirth(&mut self, client: &mut Client<SharedLevel>) {
        match self.shared.core.identities.incarnation() {
            Ok(incarnation) => {
                client.reincarnate(incarnation);
                if let Err(error) = self.shared.core.home.move_here() {
                    tracing::error!(%error, "no random bits to mark this process: it goes on being refused");
                }
                self.sent = 0;
                self.shared.incarnation.send_replace(Some(incarnation));
                tracing::info!(incarnation = incarnation_text(incarnation), "new incarnation");
            }
            Err(error) => {
                // Goes on being refused, and tries again at the next refusal.
                tracing::error!(%error, "no random bits for a new incarnation");
            }
        }
    }

    /// Logs once that the coordinator has been away for long.
    fn tell_lost(&mut self) {
        if std::mem::replace(&mut self.told_lost, true) {
            return;
        }
        let error = match &self.shared.status().coordinator {
            Coordinator::Unreachable(error) => error.to_string(),
            _ => "no answer yet".to_owned(),
        };
        let group = &self.shared.group;
        tracing::warn!(%group, %error, "the coordinator does not answer; leases run on until they end");
    }

    /// Notes how the coordinator is; logs only when that changes.
    fn reach(&mut self, coordinator: Coordinator, now: Now) {
        if coordinator == Coordinator::Reachable && std::mem::take(&mut self.told_lost) {
            tracing::info!(group = %self.shared.group, "the coordinator answers again");
        }
        let mut status = self.shared.status();
        let kind = std::mem::discriminant(&coordinator);
        if kind == std::mem::discriminant(&status.coordinator) {
            status.coordinator = coordinator;
            return;
        }
        let group = &self.shared.group;
        match &coordinator {
            Coordinator::Reachable if status.coordinator == Coordinator::Starting => {
                tracing::info!(%group, "the coordinator answers");
            }
            Coordinator::Reachable => tracing::debug!(%group, "a message was answered again"),
            Coordinator::Unreachable(error) => tracing::debug!(%group, %error, "no answer to a message"),
            Coordinator::GroupFull => tracing::error!(%group, "the group is full: this worker gets nothing"),
            Coordinator::Starting | Coordinator::Stopped => {}
        }
        status.coordinator = coordinator;
        status.since = now.boot;
    }

    /// Notes which meters are held up by others. Returns when to look again.
    fn note_held_up(&mut self, together: &[Together], now: BootTime) -> Option<BootTime> {
        let held_up: BTreeSet<usize> = together.iter().flat_map(Together::holds_up).collect();
        let mut look = None;
        for (index, kept) in self.cells.iter_mut().enumerate() {
            let since = held_up.contains(&index).then(|| kept.held_up_since.unwrap_or(now));
            kept.held_up_since = since;
            let due = since.map(|since| since + HELD_UP_AFTER).filter(|due| now < *due);
            look = look.into_iter().chain(due).min();
        }
        look
    }

    /// Tells one limit's waiters what is new, and wakes who can be served. Returns when to look again.
    fn serve(
        &mut self,
        client: &mut Client<SharedLevel>,
        index: usize,
        now: Now,
        wake: &mut Vec<Waker>,
        together: &mut Vec<Together>,
    ) -> Option<BootTime> {
        let lost = self.unanswered_since.is_some_and(|since| now.boot.since(since) >= LOST_AFTER);
        let kept = self.cells.get_mut(index)?;
        for lender in kept.cell.lenders.iter() {
            if let Some(leased) = lender.index.and_then(|index| client.cell_mut(index)) {
                leased.refill(now);
            }
        }
        let leased = client.cell_mut(kept.cell.index?)?;
        leased.refill(now);
        let (opened, look_alone) = kept.go_on(leased, lost && self.barred.is_none(), now);
        let how = if opened { Condition::Opened } else { condition(leased, now) };
        kept.note_condition(how, lost, now.boot);
        let held = leased.mint().held().copied();
        kept.cell.there.store(leased.burst().is_some() && !leased.is_unknown(), Ordering::Relaxed);
        let facts = Facts {
            stopped: false,
            unknown: leased.is_unknown(),
            paused: leased.conduct().paused,
            burst: leased.burst(),
            queue: leased.queue(),
            held,
            due: leased.due(),
            dry: kept.dry,
            recovering_until: self.recovering_until.filter(|_| leased.is_recovering()),
            barred: self.barred,
            lost,
            alone_since: kept.alone_since,
            opened,
            shadow: kept.cell.core.shadow.covers(&kept.cell.key)
                || (leased.conduct().shadow && !leased.is_unknown()),
            heard: kept.heard,
        };
        let holds = leased.mint().holds(&*kept.cell.level);
        let mut queue = kept.cell.queue();
        queue.others_let_go().into_iter().for_each(|(cost, mark)| kept.cell.let_go(cost, mark));
        let level = kept.cell.level_at_most();
        queue.facts = facts;
        if queue.len() == 0 {
            return look_alone;
        }
        let judged = Judged {
            lets_through: facts.lets_through(),
            unknown: facts.unknown,
            paused: facts.paused,
            burst: facts.burst,
            rate: held.map(|held| held.rate),
            open: facts.is_open(now.boot),
            lost,
            barred: facts.barred,
            dry: facts.dry,
            heard: facts.heard,
        };
        if kept.judged != Some(judged) {
            kept.judged = Some(judged);
            wake.extend(queue.doomed(level, now.boot));
        }
        let served = queue.serve(level, now.boot);
        kept.cell.level.set_waiting(queue.present());
        drop(queue);
        wake.extend(served.wake);
        for waiter in served.together {
            if !together.iter().any(|other| waiter.is(other)) {
                together.push(waiter);
            }
        }
        let minted = served.short.zip(held).and_then(|(cost, held)| minted_at(&held, cost, holds, now.boot));
        // When the lease ends, so may the hope of those who wait.
        let borrowed = served.short.and_then(|cost| kept.borrowed_at(client, cost, now.boot));
        let ends = held.map(|held| held.expires);
        [served.look, minted, borrowed, ends, look_alone].into_iter().flatten().min()
    }

    /// The last message: gives everything back.
    async fn revoke(&mut self) -> Result<(), TransportError> {
        if let Some(call) = self.call.take() {
            call.abort();
        }
        let shared = self.shared.clone();
        let nonce = self.shared.core.identities.nonce().unwrap_or(0);
        let request = shared.core.client().revoke(shared.core.clock.now(), nonce);
        shared.close();
        let message = HeartbeatJson::of(&request);
        let mut result = Ok(());
        for _ in 0..REVOKE_TRIES {
            let sent = tokio::time::timeout(REVOKE_TIMEOUT, self.transport.revoke(message.clone())).await;
            result = sent.unwrap_or(Err(TransportError::Timeout));
            match &result {
                Ok(()) => {
                    tracing::info!(group = %shared.group, "gave quota back");
                    return Ok(());
                }
                // Nobody holds a count of what this process holds.
                Err(TransportError::NotFound) => break,
                Err(_) => tokio::time::sleep(duration(REBIRTH_MIN)).await,
            }
        }
        if let Err(error) = &result {
            tracing::warn!(group = %shared.group, %error, "quota was not given back; it is free when the leases end");
        }
        result
    }
}

impl Drop for Keeper {
    /// However it ends, also with its runtime: nobody waits for what doesn't come.
    fn drop(&mut self) {
        if self.is_forked() {
            // Nothing is granted here, and whoever held a lock may be gone.
            return;
        }
        if let Some(call) = self.call.take() {
            call.abort();
        }
        self.shared.close();
        self.shared.ended.send_if_modified(|ended| ended.is_none() && ended.replace(Ok(())).is_none());
    }
}

impl Kept {
    fn new(cell: Arc<Cell>) -> Kept {
        Kept {
            cell,
            asked: 0,
            heard: 0,
            asked_waiting: 0,
            told_refused: 0,
            dry: false,
            largest_before: 0,
            largest_since: BootTime(0),
            held_up_since: None,
            condition: Condition::Starting,
            alone_since: None,
            missing_since: None,
            judged: None,
            lenders: Vec::new(),
        }
    }

    /// While the coordinator is lost, work goes on as the operator has said it shall when the lease has ended: never while it answers,
    /// also when that is a refusal. Returns whether everything is let through, and when to look again.
    fn go_on(
        &mut self,
        leased: &mut ClientCell<SharedLevel>,
        lost: bool,
        now: Now,
    ) -> (bool, Option<BootTime>) {
        let Conduct { paused, when_lost, .. } = leased.conduct();
        let may = lost && !paused && !leased.is_unknown() && leased.burst().is_some();
        if !may || when_lost == WhenLost::Closed {
            leased.stop_holding();
            self.alone_since = None;
            return (false, None);
        }
        if let Some(held) = leased.mint().held().filter(|_| !leased.mint().is_alone()) {
            return (false, Some(held.expires));
        }
        let (goes_on, opened) = match when_lost {
            WhenLost::Hold(part) => (leased.hold(now, part), false),
            WhenLost::Open => (true, true),
            WhenLost::Closed => (false, false),
        };
        self.alone_since = self.alone_since.filter(|_| goes_on).or(goes_on.then_some(now.boot));
        // Renewed in time: half of it is left then.
        let half = |held: &Held| now.boot + held.expires.since(now.boot).scale_floor(1, 2);
        (opened, leased.mint().held().map(half))
    }

    /// When a lease that it borrows has minted `cost`.
    fn borrowed_at(&self, client: &Client<SharedLevel>, cost: u64, now: BootTime) -> Option<BootTime> {
        let at = |lender: &Arc<Cell>| {
            let mint = client.cells().get(lender.index?)?.mint();
            minted_at(mint.held()?, cost, mint.holds(&*lender.level), now)
        };
        self.cell.lenders.iter().filter_map(at).min()
    }

    fn wants(&mut self, used: u64, burst: Option<u64>, now: BootTime) -> Wants {
        if now.since(self.largest_since) >= LARGEST_FOR {
            self.largest_before = self.cell.level.take_largest();
            self.largest_since = now;
        }
        let refused = self.cell.counts.refused_tokens.load(Ordering::Relaxed);
        let untold = refused.saturating_sub(self.told_refused);
        let queue = self.cell.queue();
        // A cost that can never be granted is no reason to hold more.
        let possible = burst.unwrap_or(u64::MAX);
        // What waits for something else first can't use it yet, and others can.
        let is_held_up = self.held_up_since.is_some_and(|since| now.since(since) >= HELD_UP_AFTER);
        let (waiting, first) = if is_held_up { (0, 0) } else { (queue.cost(), queue.first()) };
        Wants {
            requested: used.saturating_add(refused).saturating_add(queue.unserved()),
            waiting: waiting.saturating_add(untold.min(possible)),
            largest: self.cell.level.largest().max(self.largest_before).max(first).min(possible),
        }
    }

    /// Whether the limit mints nothing and the coordinator had nothing left when asked. Stays so until something comes.
    fn is_dry(&self, leased: &ClientCell<SharedLevel>, now: Now) -> bool {
        let Some(held) = leased.mint().held() else { return false };
        let rate = held.rate.at(held.granted + now.boot.since(held.received));
        let mints = rate.micro_tokens > 0 || held.rate.target.micro_tokens > 0;
        // Others may lend.
        if mints || !leased.lenders().is_empty() || leased.due().is_some() || self.cell.level.level() > 0 {
            return false;
        }
        self.dry || self.asked_waiting > 0
    }

    /// Logs a change that an operator acts on, once; a limit that isn't there only after a while.
    fn note_condition(&mut self, condition: Condition, lost: bool, now: BootTime) {
        let limit = &self.cell.name;
        if condition == self.condition {
            if self.missing_since.is_some_and(|since| now.since(since) >= MISSING_AFTER) {
                self.missing_since = None;
                tracing::error!(%limit, "no such limit in this group: what asks for it is refused");
            }
            return;
        }
        self.missing_since = None;
        let was_alone = matches!(self.condition, Condition::Held | Condition::Opened);
        if was_alone {
            tracing::warn!(%limit, "goes on without the coordinator no more: it answers, or says no");
        }
        match condition {
            Condition::Open => tracing::info!(%limit, "open"),
            Condition::Held => tracing::warn!(
                %limit,
                "held: the lease has ended and the coordinator is lost; goes on at a part of its last share, and the limit may be broken"
            ),
            Condition::Opened => tracing::warn!(
                %limit,
                "opened: the lease has ended and the coordinator is lost; everything is let through, and the limit doesn't hold"
            ),
            Condition::Paused => tracing::warn!(%limit, "paused by an operator: what asks for it is refused"),
            Condition::Recovering => {
                tracing::warn!(%limit, "the coordinator recovers: only what is held is confirmed")
            }
            // Until the next answer: the first one was to a request from before.
            Condition::Closed if was_alone && !lost => {}
            Condition::Closed => {
                tracing::warn!(%limit, coordinator_lost = lost, "closed: the lease has ended")
            }
            Condition::Unknown => {
                self.missing_since = Some(now);
                tracing::info!(%limit, "the group doesn't have this limit now");
            }
            Condition::Starting => {}
        }
        self.condition = condition;
    }
}

/// When the first in line has its tokens, by this lease alone; `None` when it takes another one.
fn minted_at(held: &Held, cost: u64, holds: Amount, now: BootTime) -> Option<BootTime> {
    let cost = Amount::tokens(cost);
    if cost > held.cap {
        return None;
    }
    let time = time_to_mint(held, (cost - holds).at_least_zero(), now)?;
    Some(now + time.scale_ceil(MINT_LATE_PERMILLE, 1_000).max(Span::from_millis(1)))
}
