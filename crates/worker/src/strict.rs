//! Strict permits: each one is asked of the coordinator, and counted there, before it is used.
//!
//! For rare work under a hard limit, where a [`Gate`](crate::Gate)'s lease would hold more than there is. A permit costs a
//! round trip; in return nothing is held in advance. Callers are served one after another, and each waits for its place in
//! the coordinator's queue.
//!
//! ```no_run
//! # async fn example(client: temporalio_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tollgate_worker::Strict;
//!
//! let strict = Strict::new(&client, "default")?;
//! let permit = strict.acquire("transfers").cost(2).lease(Duration::from_secs(30)).await?;
//! if permit.is_valid() {
//!     // Work now. Until this is said the permit counts, at the longest until its lease has ended.
//!     permit.used(1);
//! }
//! strict.flush().await;
//! # Ok(())
//! # }
//! ```
//!
//! A crowd of callers is no danger to the coordinator: a process has one message under way at a time, and after one that
//! did not get through it pauses, longer each time and at random, until the crowd has thinned out. The pauses shrink slowly
//! again while answers come, so that processes which are busy all the time stay spread out.

use crate::clock::{Clock, SystemClock};
use crate::error::{AcquireError, ConnectError, Reason, Refused, TransportError};
use crate::fork::Home;
use crate::random::{Identities, Spread};
use crate::transport::{StrictTransport, TemporalTransport};
use futures_util::future::BoxFuture;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use temporalio_client::Client;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use tollgate_core::limit::{CellKey, check_lease, check_name};
use tollgate_core::units::{BootTime, Span};
use tollgate_workflows::contracts::check_group;
use tollgate_workflows::wire::lease::{AcquireJson, AcquireReplyJson, ReportJson, incarnation_text};

/// Callers that may wait in one process: as many permits as the coordinator remembers for one limit.
const WAITERS_MAX: usize = tollgate_core::ledger::strict::STRICT_MAX;
/// How long one call may take before the same is sent again. Long: a call that was given up is still under way at the
/// server, and counts among the ten of a workflow, while the next one of this process is sent.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a permit may be used unless set otherwise.
const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// The bound of the first pause after a call that did not get through; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest such bound.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// A pause that is shorter than this is none.
const PAUSE_NONE: Duration = Duration::from_millis(2);
/// When nothing has got through for so long, callers are told: a coordinator host that is replaced is back by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// A place in the queue is kept for ten seconds after it was promised: nobody comes later than this.
const LATE_MAX: Duration = Duration::from_secs(2);
/// Somebody who has a place looks again after this, since those ahead may have given up.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Somebody who has a place looks again after this when nothing is minted.
const LOOK_AGAIN_UNSURE: Duration = Duration::from_secs(5);

/// One process's way to strict permits of one group. Cheap to clone; all clones are one.
///
/// In a forked child it refuses everything, since the permits are its parent's: make another one there.
#[derive(Clone)]
pub struct Strict(Arc<Inner>);

struct Inner {
    transport: Arc<dyn StrictTransport>,
    clock: Arc<dyn Clock>,
    /// The process whose permits these are.
    home: Home,
    runtime: Handle,
    /// Who asks, and the beginning of all its permits' ids.
    name: String,
    permits: AtomicU64,
    places: Arc<Semaphore>,
    lane: Mutex<Lane>,
    /// Reports that aren't with the coordinator yet.
    unsaid: watch::Sender<usize>,
    spread: Spread,
}

/// How it goes with the messages.
#[derive(Default)]
struct Lane {
    /// The bound of the pause before the next message.
    pause: Duration,
    /// Since when nothing gets through, and when that was last tried.
    failing: Option<(Instant, Instant)>,
}

impl std::fmt::Debug for Strict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Strict").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Strict {
    /// Over Temporal, from the coordinator of `group`.
    ///
    /// # Errors
    /// [`ConnectError`]: no group can have that name, no runtime, no random bits.
    pub fn new(client: &Client, group: &str) -> Result<Strict, ConnectError> {
        check_group(group)?;
        let transport = TemporalTransport::new(client, group, CALL_TIMEOUT);
        Strict::with_transport(Arc::new(transport), Arc::new(SystemClock))
    }

    /// Over any other transport, also one that a [`Gate`](crate::Gate) uses.
    ///
    /// # Errors
    /// As [`Strict::new`].
    pub fn with_transport(
        transport: Arc<dyn StrictTransport>,
        clock: Arc<dyn Clock>,
    ) -> Result<Strict, ConnectError> {
        Strict::with_identities(transport, clock, &Identities::default())
    }

    pub(crate) fn with_identities(
        transport: Arc<dyn StrictTransport>,
        clock: Arc<dyn Clock>,
        identities: &Identities,
    ) -> Result<Strict, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let no_randomness = |error: getrandom::Error| ConnectError::NoRandomness(error.to_string());
        let name = incarnation_text(identities.incarnation().map_err(no_randomness)?);
        let seed = identities.nonce().map_err(no_randomness)?;
        Ok(Strict(Arc::new(Inner {
            transport,
            clock,
            home: Home::here().map_err(no_randomness)?,
            runtime,
            name,
            permits: AtomicU64::new(0),
            places: Arc::new(Semaphore::new(WAITERS_MAX)),
            lane: Mutex::default(),
            unsaid: watch::Sender::new(0),
            spread: Spread::new(seed),
        })))
    }

    /// Asks for a permit and waits for it: see [`StrictAcquire`].
    pub fn acquire(&self, limit: &str) -> StrictAcquire {
        StrictAcquire {
            strict: self.clone(),
            limit: limit.into(),
            cost: 1,
            lease: LEASE_DEFAULT,
            deadline: None,
            timeout: None,
        }
    }

    /// Waits until the coordinator has heard of every permit that was used, released or dropped, or no longer waits for
    /// that. Before the process ends: what isn't reported counts until its lease has ended.
    pub async fn flush(&self) {
        let mut unsaid = self.0.unsaid.subscribe();
        // Fails only without a sender, which lives in `self`.
        let _none = unsaid.wait_for(|unsaid| *unsaid == 0).await;
    }
}

/// A question for a strict permit: await it.
///
/// Without a deadline it waits for its turn however long that takes. Dropping it gives its place up.
#[must_use = "nothing is asked before it is awaited"]
#[derive(Clone, Debug)]
pub struct StrictAcquire {
    strict: Strict,
    limit: Arc<str>,
    cost: u64,
    lease: Duration,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
}

impl StrictAcquire {
    /// How many tokens the work costs, at most the limit's burst. Default: 1.
    pub fn cost(mut self, cost: u64) -> StrictAcquire {
        self.cost = cost;
        self
    }

    /// How long the permit may be used, counted from the asking: 2 s to 120 s. Default: 15 s.
    pub fn lease(mut self, lease: Duration) -> StrictAcquire {
        self.lease = lease;
        self
    }

    /// Until when to wait. With [`StrictAcquire::timeout`], the earlier counts.
    pub fn deadline(mut self, deadline: impl Into<Instant>) -> StrictAcquire {
        self.deadline = Some(deadline.into());
        self
    }

    /// How long to wait, from the first poll on.
    pub fn timeout(mut self, timeout: Duration) -> StrictAcquire {
        self.timeout = Some(timeout);
        self
    }

    async fn ask(self) -> Result<StrictPermit, AcquireError> {
        let limit = self.limit;
        let inner = self.strict.0;
        check_name("limit", &limit)?;
        if self.cost == 0 {
            return Err(AcquireError::ZeroCost { limit, meter: CellKey::METER.into() });
        }
        let lease = Span::from_millis(u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX / 1_000));
        check_lease(lease).map_err(|error| AcquireError::InvalidLease { limit: limit.clone(), error })?;
        if !inner.home.is_here() {
            return Err(inner.refused(&limit, Reason::ShuttingDown));
        }
        let Ok(place) = inner.places.clone().try_acquire_owned() else {
            return Err(inner.refused(&limit, Reason::QueueFull));
        };
        let ends = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let ends = ends.into_iter().chain(self.deadline).min();
        let (answer, answered) = oneshot::channel();
        let ask =
            Ask { inner: inner.clone(), limit: limit.clone(), cost: self.cost, lease, since: Instant::now() };
        // A task of its own, so that a caller who goes away leaves no call half-done.
        inner.runtime.spawn(ask.serve(answer, place));
        let answered = match ends {
            None => Ok(answered.await),
            Some(ends) => tokio::time::timeout_at(ends, answered).await,
        };
        match answered {
            Ok(Ok(result)) => result.map(|mut permit| {
                permit.taken = true;
                permit
            }),
            Ok(Err(_)) => Err(inner.refused(&limit, Reason::ShuttingDown)),
            Err(_) => Err(inner.refused(&limit, Reason::Deadline)),
        }
    }
}

impl IntoFuture for StrictAcquire {
    type Output = Result<StrictPermit, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// A caller's question, while it is pursued.
struct Ask {
    inner: Arc<Inner>,
    limit: Arc<str>,
    cost: u64,
    lease: Span,
    since: Instant,
}

type Answer = oneshot::Sender<Result<StrictPermit, AcquireError>>;

impl Ask {
    async fn serve(self, mut answer: Answer, place: OwnedSemaphorePermit) {
        let Some(result) = self.pursue(&mut answer).await else { return };
        drop(place);
        // A permit that nobody hears of goes back by being dropped.
        let _unheard = answer.send(result);
    }

    /// Asks until there is an answer, or nobody waits for it any more.
    async fn pursue(&self, answer: &mut Answer) -> Option<Result<StrictPermit, AcquireError>> {
        let inner = &self.inner;
        let mut request = self.request();
        let mut answers = 0u32;
        loop {
            let message = format!("{}-{answers}", request.id);
            answers += 1;
            let mut sent = None;
            let call = || {
                // The first time counts: the answer may be to that.
                sent.get_or_insert(inner.clock.boot());
                inner.transport.acquire(message.clone(), request.clone())
            };
            let outcome = inner.send(self.since, call, || !answer.is_closed()).await;
            // What it was granted, or its place, must not be lost with an answer that nobody hears.
            let give_up = |id: String| {
                if answers > 1 || sent.is_some() {
                    self.permit(id, inner.clock.boot()).release();
                }
            };
            let reply = match outcome {
                None => {
                    give_up(request.id);
                    return None;
                }
                Some(Ok(reply)) => reply,
                Some(Err(error)) if error.is_passing() => {
                    give_up(request.id);
                    tracing::warn!(limit = %self.limit, %error, "no strict permit: the coordinator does not answer");
                    return Some(Err(inner.refused(&self.limit, Reason::CoordinatorLost)));
                }
                Some(Err(error)) => return Some(Err(self.not_taken(error))),
            };
            match reply {
                AcquireReplyJson::Granted { lease_ms } => {
                    let valid_until = sent.unwrap_or_default() + Span::from_millis(lease_ms);
                    let permit = self.permit(request.id, valid_until);
                    if permit.is_valid() {
                        return Some(Ok(permit));
                    }
                    // The answer was too long on its way.
                    permit.release();
                    (request, answers) = (self.request(), 0);
                }
                AcquireReplyJson::Queued { due_ms, .. } => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(inner.back_in(due_ms)) => {}
                        () = answer.closed() => {
                            self.permit(request.id, inner.clock.boot()).release();
                            return None;
                        }
                    }
                }
                AcquireReplyJson::Refused { reason, message, burst } => match reason.as_str() {
                    // The place was lost while the coordinator could not be reached.
                    "abandoned" | "expired" => (request, answers) = (self.request(), 0),
                    other => return Some(Err(self.refused(other, message, burst))),
                },
            }
        }
    }

    fn request(&self) -> AcquireJson {
        let number = self.inner.permits.fetch_add(1, Ordering::Relaxed);
        let CellKey { limit, meter, tier } = CellKey::of(&self.limit);
        AcquireJson {
            id: format!("{}-{number}", self.inner.name),
            client: self.inner.name.clone(),
            limit,
            meter,
            tier,
            cost: self.cost,
            lease_ms: self.lease.millis(),
        }
    }

    fn permit(&self, id: String, valid_until: BootTime) -> StrictPermit {
        let (inner, limit) = (self.inner.clone(), self.limit.clone());
        StrictPermit { inner, id, limit, cost: self.cost, valid_until, taken: false, unsaid: true }
    }

    fn refused(&self, reason: &str, message: String, burst: Option<u64>) -> AcquireError {
        let limit = self.limit.clone();
        match (reason, burst) {
            ("cost_above_burst", Some(burst)) => {
                let meter = CellKey::METER.into();
                AcquireError::CostAboveBurst { limit, meter, cost: self.cost, burst }
            }
            ("unknown_limit", _) => AcquireError::UnknownLimit { limit },
            ("queue_full", _) => self.inner.refused(&limit, Reason::QueueFull),
            ("paused", _) => self.inner.refused(&limit, Reason::Paused),
            _ => self.not_taken(TransportError::Rejected(message)),
        }
    }

    fn not_taken(&self, error: TransportError) -> AcquireError {
        AcquireError::NotTaken { limit: self.limit.clone(), error }
    }
}

impl Inner {
    /// Sends a message when it is its turn, and again while it does not get through. `None` when it isn't `wanted` any
    /// more; the error of a message that did not get through when none has for too long.
    async fn send<'a, T>(
        &'a self,
        since: Instant,
        mut call: impl FnMut() -> BoxFuture<'a, Result<T, TransportError>>,
        wanted: impl Fn() -> bool,
    ) -> Option<Result<T, TransportError>> {
        let mut lane = self.lane.lock().await;
        // In a forked child the same ids would be asked for as in its parent.
        while wanted() && self.home.is_here() {
            if lane.is_lost(since) {
                return Some(Err(TransportError::Timeout));
            }
            if lane.pause >= PAUSE_NONE {
                tokio::time::sleep(self.spread.within(lane.pause)).await;
            }
            let result = tokio::time::timeout(CALL_TIMEOUT, call()).await;
            let result = result.unwrap_or(Err(TransportError::Timeout));
            lane.note(result.as_ref().err().filter(|error| error.is_passing()).is_none());
            match result {
                Err(error) if error.is_passing() && !lane.is_lost(since) => {
                    tracing::debug!(%error, "a message about strict permits did not get through");
                }
                result => return Some(result),
            }
        }
        None
    }

    /// When to come back for a place in the queue.
    fn back_in(&self, due_ms: Option<u64>) -> Duration {
        let due = due_ms.map_or(LOOK_AGAIN_UNSURE, Duration::from_millis).min(LOOK_AGAIN);
        due + self.spread.within((due / 4).clamp(Duration::from_millis(20), LATE_MAX))
    }

    fn refused(&self, limit: &Arc<str>, reason: Reason) -> AcquireError {
        let retry_after = Some(self.spread.stretch(PAUSE_MAX));
        let meter = CellKey::METER.into();
        AcquireError::Refused { limit: limit.clone(), meter, refused: Refused { reason, retry_after } }
    }

    /// Tells the coordinator what was used, for as long as that makes a difference.
    async fn report(self: Arc<Self>, report: ReportJson, until: BootTime) {
        let call = || self.transport.report(report.clone());
        let sent = self.send(Instant::now(), call, || self.clock.boot() < until).await;
        if let Some(Err(error)) = sent {
            tracing::warn!(permit = %report.id, %error, "a strict permit's use is not reported; it counts until its lease ends");
        }
        self.unsaid.send_modify(|unsaid| *unsaid = unsaid.saturating_sub(1));
    }
}

impl Lane {
    fn note(&mut self, got_through: bool) {
        if got_through {
            self.failing = None;
            // Slowly, so that those who are busy all the time stay spread out.
            self.pause = self.pause * 15 / 16;
        } else {
            let now = Instant::now();
            self.failing = Some((self.failing.map_or(now, |(since, _)| since), now));
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
    }

    /// Whether nothing gets through for so long that who has waited `since` need not try.
    fn is_lost(&self, since: Instant) -> bool {
        self.failing.is_some_and(|(began, tried)| tried - began >= PATIENCE && tried >= since)
    }
}

/// The right to do one piece of work, counted by the coordinator until its use is reported or its lease has ended.
///
/// Dropped without a word it counts as used in full; the coordinator is told in the background.
#[must_use = "a permit is charged when it is granted: do the work and say so, or release it"]
pub struct StrictPermit {
    inner: Arc<Inner>,
    id: String,
    limit: Arc<str>,
    cost: u64,
    valid_until: BootTime,
    /// Whether its caller has it. Until then nothing can have been used of it.
    taken: bool,
    unsaid: bool,
}

impl std::fmt::Debug for StrictPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StrictPermit")
            .field("id", &self.id)
            .field("limit", &self.limit)
            .field("cost", &self.cost)
            .field("valid_until", &self.valid_until)
            .finish_non_exhaustive()
    }
}

impl StrictPermit {
    /// Its id: query `grants` shows it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The limit that it was charged to.
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The work must have started before this, by the process's clock.
    pub fn valid_until(&self) -> BootTime {
        self.valid_until
    }

    /// For how much longer the work may start.
    pub fn valid_for(&self) -> Duration {
        if !self.inner.home.is_here() {
            return Duration::ZERO;
        }
        Duration::from_micros(self.valid_until.since(self.inner.clock.boot()).0)
    }

    /// Whether the work may start now: ask just before sending, in case the process was paused since.
    pub fn is_valid(&self) -> bool {
        self.inner.home.is_here() && self.inner.clock.boot() < self.valid_until
    }

    /// Says what was used, at most its cost. The rest goes back. The coordinator is told in the background.
    pub fn used(mut self, tokens: u64) {
        self.say(tokens);
    }

    /// Gives all of it back.
    pub fn release(mut self) {
        self.say(0);
    }

    fn say(&mut self, used: u64) {
        if !std::mem::take(&mut self.unsaid) || !self.inner.home.is_here() {
            return;
        }
        let inner = self.inner.clone();
        inner.unsaid.send_modify(|unsaid| *unsaid += 1);
        let CellKey { limit, meter, tier } = CellKey::of(&self.limit);
        let report = ReportJson { id: std::mem::take(&mut self.id), limit, meter, tier, used };
        // The coordinator counts a lease a little longer than its owner.
        let until = self.valid_until + Span::from_secs(CALL_TIMEOUT.as_secs());
        self.inner.runtime.spawn(inner.report(report, until));
    }
}

impl Drop for StrictPermit {
    fn drop(&mut self) {
        self.say(if self.taken { self.cost } else { 0 });
    }
}
