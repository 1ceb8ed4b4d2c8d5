//! The production ledger behind the worker's own messages, and what can go wrong between the two.

use super::limit::TestLimit;
use super::time::Time;
use crate::error::TransportError;
use crate::transport::{StrictTransport, Transport};
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate_core::ledger::cell::Cell;
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome, Settle, Stage};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellKey, LEASE_MIN, Version};
use tollgate_core::message::{Request, RequestError};
use tollgate_workflows::wire::lease::{
    AcquireJson, AcquireReplyJson, HeartbeatJson, HeartbeatReplyJson, ReportJson,
};
use tollgate_workflows::wire::{Unreadable, read, write};

/// A message and its answer take this long together, unless set otherwise.
const ROUND_TRIP: Duration = Duration::from_millis(10);

/// What goes wrong with a message to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// It does not arrive, and the sender is told so.
    Unreachable,
    /// It arrives and counts; the answer is lost, and the sender is told that there is none.
    AnswerLost,
    /// Nothing is heard of it: the sender gives up by itself.
    Silent,
    /// The coordinator answers that the group has as many workers as it may have.
    GroupFull,
    /// The coordinator answers that two processes claimed to be this one. A gate goes on as a new worker.
    Burned,
}

/// A coordinator in this process.
pub(super) struct TestCoordinator {
    ledger: Mutex<Ledger>,
    time: Arc<Time>,
    conduct: Mutex<Conduct>,
}

/// What the test wants of it.
struct Conduct {
    limits: BTreeMap<CellKey, TestLimit>,
    /// Configurations so far.
    version: u64,
    /// What others have used of limits that began empty.
    others: BTreeMap<String, u64>,
    epoch: u64,
    round_trip: Duration,
    /// What goes wrong with the next messages.
    next: VecDeque<Fault>,
    /// What goes wrong with those after them.
    all: Option<Fault>,
}

impl TestCoordinator {
    pub(super) fn new(time: Arc<Time>) -> TestCoordinator {
        let epoch = 7;
        TestCoordinator {
            ledger: Mutex::new(Ledger::new(Start::First, epoch, time.ledger())),
            time,
            conduct: Mutex::new(Conduct {
                limits: BTreeMap::new(),
                version: 0,
                others: BTreeMap::new(),
                epoch,
                round_trip: ROUND_TRIP,
                next: VecDeque::new(),
                all: None,
            }),
        }
    }

    fn conduct(&self) -> MutexGuard<'_, Conduct> {
        self.conduct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, input: Input) -> Output {
        self.ledger().apply(self.time.ledger(), input)
    }

    /// Adds and changes limits, and removes those that `keep` doesn't name.
    ///
    /// # Errors
    /// What is wrong with them; then none is changed.
    pub(super) fn configure(&self, set: Vec<TestLimit>, keep: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut conduct = self.conduct();
        let mut limits = conduct.limits.clone();
        limits.retain(|key, _| keep(&key.limit));
        let used_up: Vec<CellKey> =
            set.iter().filter(|limit| limit.used_up).map(|limit| limit.config.key.clone()).collect();
        limits.extend(set.into_iter().map(|limit| (limit.key().clone(), limit)));
        let cells = limits.values().map(|limit| limit.config.clone()).collect::<Vec<_>>();
        for cell in &cells {
            cell.check().map_err(|error| format!("limit {}: {error}", cell.key))?;
        }
        conduct.version += 1;
        let version = Version { run: 1, n: conduct.version };
        let output =
            self.apply(Input::Configure(Configure { version, settings: Settings::default(), cells }));
        if let Output::Refused(error) = output {
            return Err(error.to_string());
        }
        conduct.limits = limits;
        for key in used_up {
            let id = format!("others-{}", conduct.version);
            let limit = key.limit.clone();
            *conduct.others.entry(limit).or_default() += self.use_up(key, id);
        }
        Ok(())
    }

    /// Takes all that is free, as a strict permit of somebody else. Returns how much that was.
    fn use_up(&self, key: CellKey, id: String) -> u64 {
        let free = self.ledger().state().cells.get(&key).map_or(0, |cell| cell.free.whole());
        let Some(cost) = u64::try_from(free).ok().filter(|cost| *cost > 0) else { return 0 };
        let client = "others".to_owned();
        let acquire =
            Acquire { id: id.clone(), client, key: key.clone(), cost, lease: LEASE_MIN, auto: false };
        let granted =
            matches!(self.apply(Input::Acquire(acquire)), Output::Acquired(AcquireOutcome::Granted { .. }));
        // One that was not granted gives its place up.
        let used = if granted { cost } else { 0 };
        self.apply(Input::Settle(Settle { id, key, used }));
        used
    }

    /// The coordinator comes back without memory.
    pub(super) fn forget(&self) {
        let mut conduct = self.conduct();
        conduct.epoch += 1;
        self.apply(Input::Forget { epoch: conduct.epoch });
    }

    pub(super) fn set_round_trip(&self, time: Duration) {
        self.conduct().round_trip = time;
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.conduct().all = Some(fault);
    }

    pub(super) fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.conduct().next.extend(faults);
    }

    pub(super) fn heal(&self) {
        let mut conduct = self.conduct();
        conduct.next.clear();
        conduct.all = None;
    }

    /// The names of all limits.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.conduct().limits.keys().map(|key| key.limit.clone()).collect();
        names.dedup();
        names
    }

    /// What the ledger knows of all limits.
    pub(super) fn cells(&self) -> BTreeMap<CellKey, Cell> {
        self.ledger().state().cells.clone()
    }

    /// What is known of a limit's use: tokens, and strict permits that wait or are out.
    pub(super) fn used(&self, limit: &str) -> (u64, usize) {
        let others = self.conduct().others.get(limit).copied().unwrap_or(0);
        let ledger = self.ledger();
        let cells = ledger.state().cells.iter().filter(|(key, _)| key.limit == limit);
        let (used, open) = cells.fold((0, 0), |(used, open), (_, cell)| {
            let over = |stage: &Stage| matches!(stage, Stage::Over { .. });
            (used + cell.used, open + cell.strict.values().filter(|strict| !over(&strict.stage)).count())
        });
        (used.saturating_sub(others), open)
    }

    /// Carries a message there, and the answer back.
    async fn carry(&self, input: Input) -> Result<Output, TransportError> {
        let (fault, round_trip) = {
            let mut conduct = self.conduct();
            let next = conduct.next.pop_front();
            (next.or(conduct.all), conduct.round_trip)
        };
        let lost = || Err(TransportError::Unreachable("a scripted fault".to_owned()));
        tokio::time::sleep(round_trip / 2).await;
        let output = match (fault, &input) {
            (Some(Fault::Unreachable), _) => return lost(),
            (Some(Fault::Silent), _) => std::future::pending().await,
            (Some(Fault::GroupFull), Input::Heartbeat(_)) => Output::Reply(Err(RequestError::TooManyWorkers)),
            (Some(Fault::Burned), Input::Heartbeat(_)) => Output::Reply(Err(RequestError::Burned)),
            (Some(Fault::GroupFull | Fault::Burned), _) => {
                return Err(TransportError::Busy("a scripted fault".to_owned()));
            }
            (Some(Fault::AnswerLost) | None, _) => self.apply(input),
        };
        tokio::time::sleep(round_trip / 2).await;
        if fault == Some(Fault::AnswerLost) { lost() } else { Ok(output) }
    }

    async fn carry_strict(&self, input: Input) -> Result<AcquireOutcome, TransportError> {
        match self.carry(input).await? {
            Output::Acquired(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }
}

/// Through JSON and back, as messages really go.
fn carried(request: &HeartbeatJson) -> Result<Request, TransportError> {
    read::<HeartbeatJson>(&write(request)).and_then(HeartbeatJson::check).map_err(rejected)
}

fn rejected(error: Unreadable) -> TransportError {
    TransportError::Rejected(error.to_string())
}

fn unreadable(error: Unreadable) -> TransportError {
    TransportError::Unreadable(error.to_string())
}

fn unexpected(output: &Output) -> TransportError {
    TransportError::Unreadable(format!("{output:?}"))
}

impl Transport for TestCoordinator {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            match self.carry(Input::Heartbeat(carried(&request)?)).await? {
                Output::Reply(answer) => read(&write(&HeartbeatReplyJson::of(&answer))).map_err(unreadable),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move { self.carry(Input::Revoke(carried(&request)?)).await.map(drop) })
    }
}

impl StrictTransport for TestCoordinator {
    fn acquire(
        &self,
        _name: String,
        request: AcquireJson,
    ) -> BoxFuture<'_, Result<AcquireReplyJson, TransportError>> {
        Box::pin(async move {
            let acquire = request.check(false).map_err(rejected)?;
            let (cost, key) = (acquire.cost, acquire.key.clone());
            let outcome = self.carry_strict(Input::Acquire(acquire)).await?;
            read(&write(&AcquireReplyJson::of(outcome, cost, &key))).map_err(unreadable)
        })
    }

    fn report(&self, report: ReportJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let key = CellKey { limit: report.limit, meter: report.meter, tier: report.tier };
            let settle = Settle { id: report.id, key, used: report.used };
            self.carry_strict(Input::Settle(settle)).await.map(drop)
        })
    }
}
