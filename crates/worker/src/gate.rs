//! The gate: connecting, shutting down, looking at the state.

use crate::acquire::Acquire;
use crate::audit::AdmissionLog;
use crate::clock::CounterClock;
use crate::error::{AcquireError, ConnectError, TransportError};
use crate::fork::Home;
use crate::keeper::Keeper;
use crate::level::SharedLevel;
use crate::limit::{Cell, Core, Family, Limit, is_locked};
use crate::metered::GateMeter;
use crate::meters::Meters;
use crate::notice;
use crate::options::{Messages, Options};
use crate::queue::Name;
use crate::random::{Identities, Spread};
use crate::set::Set;
use crate::state::{Coordinator, GateState, limit_state};
use crate::transport::{SignalTransport, TemporalTransport, Transport};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::Duration;
use temporalio_client::Client;
use tokio::sync::{Notify, watch};
use tollgate_core::client;
use tollgate_core::limit::{CellKey, check_label, check_name};
use tollgate_core::message::{CELLS_PER_REQUEST_MAX, Incarnation, Lender};
use tollgate_core::units::{BootTime, LedgerTime, Span};
use tollgate_workflows::wire::lease::incarnation_text;

/// [`Gate::connect`] waits this long for a first answer, so that what follows finds a lease; then it goes on without.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// One process's access to the limits of one group. Cheap to clone; all clones are one gate.
///
/// When the last clone and the last [`Limit`] are dropped without [`Gate::shutdown`], what the process holds is free for
/// others when its leases end.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

impl Gate {
    /// Leases from the coordinator of `options.group` over Temporal, and takes its urgent notices. Waits up to two seconds
    /// for the first answer; a coordinator that doesn't answer is no error, since it may come later.
    ///
    /// # Errors
    /// [`ConnectError`]: options out of range, or no runtime, randomness, log file or thread to be had.
    pub async fn connect(client: Client, options: Options) -> Result<Gate, ConnectError> {
        options.check()?;
        let (group, timeout) = (&options.group, options.request_timeout);
        let by_signals = (options.messages == Messages::Signals)
            .then(|| Arc::new(SignalTransport::new(&client, group, timeout)));
        let transport: Arc<dyn Transport> = match &by_signals {
            Some(transport) => transport.clone(),
            None => Arc::new(TemporalTransport::new(&client, group, timeout)),
        };
        let notices = options.notices;
        let gate = Gate::with_transport(transport, options)?;
        if notices {
            notice::listen(client, gate.0.shared.clone(), by_signals).map_err(ConnectError::Thread)?;
        }
        gate.first_answer().await;
        Ok(gate)
    }

    #[cfg(any(feature = "metrics", feature = "testing"))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Waits for the first answer, or for the lack of one.
    pub(crate) async fn first_answer(&self) {
        let mut heard = self.0.shared.heard.subscribe();
        // No answer is fine, and so is a keeper that has ended.
        let _outcome = tokio::time::timeout(FIRST_ANSWER, heard.wait_for(|heard| *heard)).await;
    }

    /// The same over any other transport, without notices, and without waiting.
    ///
    /// # Errors
    /// As [`Gate::connect`].
    pub fn with_transport(transport: Arc<dyn Transport>, options: Options) -> Result<Gate, ConnectError> {
        options.check()?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let no_randomness = |error: getrandom::Error| ConnectError::NoRandomness(error.to_string());
        let identities = Identities::new(options.seed);
        let incarnation = identities.incarnation().map_err(no_randomness)?;
        let seed = identities.nonce().map_err(no_randomness)?;
        let worker = options.worker_name();
        let log = options.admission_log.as_ref().map(|path| {
            AdmissionLog::open(path).map_err(|error| ConnectError::AdmissionLog { path: path.clone(), error })
        });
        let core = Core {
            client: Mutex::new(client::Client::new(incarnation, &worker, seed)),
            counter: options.clock.is_none(),
            clock: options.clock.clone().unwrap_or_else(|| Arc::new(CounterClock::new())),
            home: Home::here().map_err(no_randomness)?,
            kick: Notify::new(),
            spread: Spread::new(seed),
            identities,
            log: log.transpose()?,
            waiters_max: options.waiters_max,
            shadow: options.shadow.clone(),
        };
        let status = Status { coordinator: Coordinator::Starting, since: core.clock.boot() };
        let shared = Arc::new(Shared {
            group: options.group.clone(),
            worker,
            core: Arc::new(core),
            cells: RwLock::default(),
            status: Mutex::new(status),
            ledger: Mutex::new(None),
            meter: GateMeter::default(),
            ending: AtomicU8::new(Ending::No as u8),
            incarnation: watch::Sender::new(Some(incarnation)),
            heard: watch::Sender::new(false),
            ended: watch::Sender::new(None),
        });
        for limit in &options.limits {
            shared.cell(limit, CellKey::METER, CellKey::TIER);
        }
        for (limit, meter) in &options.meters {
            shared.cell(limit, meter, CellKey::TIER);
        }
        let keeper = runtime.spawn(Keeper::new(shared.clone(), transport, options.request_timeout).run());
        let watched = shared.clone();
        runtime.spawn(async move {
            if keeper.await.is_err() {
                // Better a closed gate that says so than waiters whom nobody serves.
                tracing::error!("the task that keeps the leases has ended unexpectedly: this gate is closed");
                watched.close();
            }
        });
        Ok(Gate(Arc::new(Inner { shared })))
    }

    /// A handle for one limit. It is leased from now on; asking for it the first time waits for one round trip.
    pub fn limit(&self, name: &str) -> Limit {
        self.meter(name, CellKey::METER)
    }

    /// The same for one of several meters of a limit, such as `in_flight`: each is asked for by itself.
    pub fn meter(&self, name: &str, meter: &str) -> Limit {
        Limit { cell: self.0.shared.cell(name, meter, CellKey::TIER), gate: self.0.clone() }
    }

    /// A handle for several meters of a limit that one piece of work is charged to, all or nothing: for hot paths. Up to
    /// [`METERS_MAX`](crate::meters::METERS_MAX) of them, each once. See [`Meters`].
    pub fn meters<const N: usize>(&self, name: &str, meters: [&str; N]) -> Meters<N> {
        Meters::new(self.set(name, meters), self.0.clone())
    }

    pub(crate) fn set<'a>(&self, name: &str, meters: impl IntoIterator<Item = &'a str>) -> Arc<Set> {
        let cells = meters.into_iter().map(|meter| self.0.shared.cell(name, meter, CellKey::TIER));
        Arc::new(Set::new(cells.collect()))
    }

    /// Asks for a permit and waits for it: see [`Acquire`]. Looks the limit up by name: keep a [`Gate::limit`] where
    /// that matters.
    pub fn acquire(&self, name: &str) -> Acquire {
        self.limit(name).acquire()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    pub(crate) fn group(&self) -> &str {
        &self.0.shared.group
    }

    /// Something urgent happened at the coordinator: asks it at once, whatever is planned. For those who take notices
    /// on their own.
    pub fn notice(&self) {
        self.0.shared.notice();
    }

    /// The state now. Locks briefly: not for hot paths.
    pub fn state(&self) -> GateState {
        self.0.shared.state()
    }

    /// Stops for good: grants nothing more, refuses who waits, and gives back what is held, so that others have it at
    /// once. Permits that are out stay valid. Takes a few seconds at most; a second call waits for the first.
    ///
    /// # Errors
    /// [`TransportError`] when the coordinator could not be told: what was held is then free when its leases end.
    pub async fn shutdown(&self) -> Result<(), TransportError> {
        let shared = &self.0.shared;
        shared.end(Ending::Revoke);
        if !shared.core.home.is_here() {
            // A forked child holds nothing, and may have nobody who would answer.
            return Ok(());
        }
        let mut ended = shared.ended.subscribe();
        let result = ended.wait_for(Option::is_some).await;
        result.map_or(Ok(()), |result| result.clone().unwrap_or(Ok(())))
    }

    /// Shuts down when the process gets SIGTERM. From the call on SIGTERM no longer ends the process by itself: the
    /// returned task ends when the quota is given back; end the process after it, when its work is done.
    ///
    /// # Errors
    /// When the signal handler can't be installed.
    #[cfg(unix)]
    pub fn shutdown_on_sigterm(
        &self,
    ) -> std::io::Result<tokio::task::JoinHandle<Result<(), TransportError>>> {
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let gate = self.clone();
        Ok(tokio::spawn(async move {
            signal.recv().await;
            tracing::info!("SIGTERM: giving quota back");
            gate.shutdown().await
        }))
    }
}

/// What keeps the keeper going: its drop ends it.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.end(Ending::Abandon);
    }
}

/// How a gate ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// Not yet.
    No,
    /// Without a word.
    Abandon,
    /// With a last message.
    Revoke,
}

/// Whether the coordinator answers, and since when that is so.
#[derive(Debug)]
pub(crate) struct Status {
    pub coordinator: Coordinator,
    pub since: BootTime,
}

/// What an answer told of the ledger's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// When its request was first sent: the ledger wrote `at` later than this.
    pub sent: BootTime,
    pub at: LedgerTime,
    /// From then until the answer was there.
    pub took: Span,
}

/// An answer that is older than this says nothing of the ledger's time any more: clocks may have drifted by 60 ms.
const HEARD_MAX: Span = Span::from_secs(60);

impl Heard {
    /// Until when, by the process's clock, it is surely before `until` at the ledger.
    fn until(self, until: LedgerTime, now: BootTime) -> Option<BootTime> {
        let age = now.since(self.sent);
        // At the latest, it is this late at the ledger: its clock may run faster by as much as clocks may disagree.
        let latest = self.at + age + age.scale_ceil(1, 1_000);
        let left = until.since(latest);
        let left = Span(left.0.saturating_sub(left.0 / 1_000));
        (age <= HEARD_MAX && left > Span::ZERO).then(|| now + left)
    }
}

/// What gate and keeper share.
pub(crate) struct Shared {
    pub group: String,
    pub worker: String,
    pub core: Arc<Core>,
    cells: RwLock<Cells>,
    status: Mutex<Status>,
    ledger: Mutex<Option<Heard>>,
    pub meter: GateMeter,
    ending: AtomicU8,
    /// Who this is; `None` when the keeper has ended.
    pub incarnation: watch::Sender<Option<Incarnation>>,
    /// Whether there was an answer, or the lack of one.
    pub heard: watch::Sender<bool>,
    /// How it ended.
    pub ended: watch::Sender<Option<Result<(), TransportError>>>,
}

/// All limits. Those that can't be leased are not kept: their number has no bound.
#[derive(Default)]
struct Cells {
    by_name: HashMap<Name, Arc<Cell>>,
    /// By tier and limit.
    families: HashMap<Name, Arc<Family>>,
    in_order: Vec<Arc<Cell>>,
    /// What is borrowed, by lender, in the order of the client's cells.
    borrowed: Vec<Arc<Cell>>,
}

/// A cell's name for people: that of the limit, with what else there is to say.
fn title(key: &CellKey) -> Name {
    match (key.meter.as_str(), key.tier.as_str()) {
        (CellKey::METER, CellKey::TIER) => key.limit.as_str().into(),
        (meter, CellKey::TIER) => format!("{} [{meter}]", key.limit).into(),
        (meter, tier) => format!("{} [{meter} {tier}]", key.limit).into(),
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("group", &self.group)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The cell of a limit, leased from now on.
    pub(crate) fn cell(&self, limit: &str, meter: &str, tier: &str) -> Arc<Cell> {
        let is_plain = meter == CellKey::METER && tier == CellKey::TIER;
        // No limit's name has a line break.
        let name: Cow<'_, str> =
            if is_plain { limit.into() } else { format!("{meter}\n{tier}\n{limit}").into() };
        let name = name.as_ref();
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.by_name.get(name) {
            return cell.clone();
        }
        drop(cells);
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.by_name.get(name) {
            return cell.clone();
        }
        let key = CellKey { limit: limit.to_owned(), meter: meter.to_owned(), tier: tier.to_owned() };
        let title = title(&key);
        let limit: Name = format!("{tier}\n{limit}").into();
        let checked =
            check_name("limit", &key.limit).and(check_label("meter", meter)).and(check_label("tier", tier));
        let fault = if let Err(error) = checked {
            Some(AcquireError::InvalidLimit(error))
        } else if cells.in_order.len() >= CELLS_PER_REQUEST_MAX {
            Some(AcquireError::TooManyLimits { limit: title.clone(), max: CELLS_PER_REQUEST_MAX })
        } else {
            None
        };
        if fault.is_some() {
            let level = Arc::new(self.core.level(false));
            return Arc::new(Cell::new(title, key, Arc::default(), None, fault, level, self.core.clone()));
        }
        let family = cells.families.entry(limit).or_default().clone();
        let level = SharedLevel(Arc::new(self.core.level(true)));
        let index = self.core.client().add_cell(key.clone(), false, level.clone());
        let cell = Cell::new(title, key, family.clone(), Some(index), None, level.0, self.core.clone());
        {
            let facts = &mut cell.queue().facts;
            facts.stopped = self.ending() != Ending::No;
            facts.shadow = self.core.shadow.covers(&cell.key);
        }
        let cell = Arc::new(cell);
        family.join(&cell);
        cells.by_name.insert(name.into(), cell.clone());
        cells.in_order.push(cell.clone());
        drop(cells);
        self.core.kick.notify_one();
        cell
    }

    /// The cells that `user` may borrow from, in the order of the tiers; new ones are leased from now on.
    pub(crate) fn borrowed(&self, user: &CellKey, lenders: &[Lender]) -> Vec<Arc<Cell>> {
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        let mut borrowed = Vec::new();
        for lender in lenders {
            let key = CellKey { tier: lender.tier.clone(), ..user.clone() };
            let known = cells.borrowed.iter().find(|cell| cell.key == key).cloned();
            borrowed.push(known.unwrap_or_else(|| {
                let level = SharedLevel(Arc::new(self.core.level(true)));
                let index = self.core.client().add_cell(key.clone(), true, level.clone());
                let name = format!("{} borrowed", title(&key)).into();
                let cell = Arc::new(Cell::new(
                    name,
                    key,
                    Arc::default(),
                    Some(index),
                    None,
                    level.0,
                    self.core.clone(),
                ));
                cells.borrowed.push(cell.clone());
                cell
            }));
        }
        borrowed
    }

    /// What is borrowed, whoever for.
    pub(crate) fn all_borrowed(&self) -> Vec<Arc<Cell>> {
        self.cells.read().unwrap_or_else(PoisonError::into_inner).borrowed.clone()
    }

    /// The state now.
    pub(crate) fn state(&self) -> GateState {
        let now = self.core.clock.now();
        let (cells, borrowed) = (self.in_order(), self.all_borrowed());
        let client = self.core.client();
        let limits = cells.iter().chain(&borrowed).filter_map(|cell| {
            let leased = client.cells().get(cell.index?)?;
            Some(limit_state(cell, leased, now))
        });
        let limits = limits.collect();
        let incarnation = incarnation_text(client.incarnation());
        drop(client);
        let status = self.status();
        GateState {
            group: self.group.clone(),
            worker: self.worker.clone(),
            incarnation,
            coordinator: status.coordinator.clone(),
            round_trip: self.ledger().map(|heard| Duration::from_micros(heard.took.0)),
            coordinator_since: Duration::from_micros(now.boot.since(status.since).0),
            limits,
        }
    }

    /// Whether no thread is in the middle of anything that a keeper needs.
    pub(crate) fn is_at_rest<'a>(&self, mut cells: impl Iterator<Item = &'a Arc<Cell>>) -> bool {
        let list = !matches!(self.cells.try_write(), Err(TryLockError::WouldBlock));
        let locked = is_locked(&self.core.client) || is_locked(&self.status);
        list && !locked && cells.all(|cell| cell.is_at_rest())
    }

    pub(crate) fn in_order(&self) -> Vec<Arc<Cell>> {
        self.cells.read().unwrap_or_else(PoisonError::into_inner).in_order.clone()
    }

    /// Cells beyond the first `known`.
    pub(crate) fn cells_after(&self, known: usize) -> Vec<Arc<Cell>> {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        cells.in_order.iter().skip(known).cloned().collect()
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Option<Heard>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when, by the process's clock, it is surely before `until` at the ledger; `None` if that can't be said.
    pub(crate) fn surely_before(&self, until: LedgerTime) -> Option<BootTime> {
        let heard = (*self.ledger())?;
        heard.until(until, self.core.clock.now().boot)
    }

    pub(crate) fn notice(&self) {
        self.core.client().on_notice();
        self.core.kick.notify_one();
    }

    pub(crate) fn ending(&self) -> Ending {
        match self.ending.load(Ordering::Acquire) {
            0 => Ending::No,
            1 => Ending::Abandon,
            _ => Ending::Revoke,
        }
    }

    fn end(&self, how: Ending) {
        self.ending.fetch_max(how as u8, Ordering::AcqRel);
        self.core.kick.notify_one();
    }

    /// Refuses everybody from now on, and voids what is held.
    pub(crate) fn close(&self) {
        // From here on new cells are made closed.
        self.ending.fetch_max(Ending::Abandon as u8, Ordering::AcqRel);
        let cells = self.in_order();
        {
            let borrowed = self.all_borrowed();
            let mut client = self.core.client();
            for cell in cells.iter().chain(&borrowed) {
                if let Some(leased) = cell.index.and_then(|index| client.cell_mut(index)) {
                    let (mint, _) = leased.bucket();
                    mint.end(&*cell.level);
                }
            }
        }
        for cell in &cells {
            let mut queue = cell.queue();
            queue.facts.stopped = true;
            let wake = queue.doomed(cell.level_at_most(), self.core.clock.boot());
            drop(queue);
            wake.into_iter().for_each(std::task::Waker::wake);
        }
        let mut status = self.status();
        *status = Status { coordinator: Coordinator::Stopped, since: self.core.clock.boot() };
        drop(status);
        self.incarnation.send_replace(None);
        self.heard.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_of_the_ledgers_time_ends_early_on_this_clock_and_not_by_hearsay() {
        let heard = Heard { sent: BootTime(1_000_000), at: LedgerTime(500_000_000), took: Span::ZERO };
        let until = |until: u64, now: u64| heard.until(LedgerTime(until), BootTime(now));
        // The answer took up to 10 ms, so at the ledger it may be that late already: of 5 s, 4.99 are sure.
        let end = until(505_000_000, 1_010_000).unwrap();
        assert!(end < BootTime(1_000_000 + 5_000_000) && end > BootTime(1_000_000 + 4_980_000), "{end:?}");
        assert_eq!(until(500_000_000, 1_010_000), None, "it is over");
        assert_eq!(until(u64::MAX / 2, 1_000_001 + HEARD_MAX.0), None, "nothing was heard for too long");
    }
}
