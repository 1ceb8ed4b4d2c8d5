//! For tests of code that asks for permits: a gate without a Temporal server, in time that the test controls.
//!
//! Needs the feature `testing`, which belongs under `dev-dependencies`:
//!
//! ```toml
//! [dev-dependencies]
//! tollgate-worker = { version = "0.1", features = ["testing"] }
//! ```
//!
//! A [`TestGroup`] is a group of limits with its coordinator. Gate, keeper, leases and ledger are those of production; only
//! the messages between them don't leave the process, and can be lost or late at will. So a test shows what the code would
//! meet, also in an outage:
//!
//! ```
//! use std::time::Duration;
//! use tollgate_worker::testing::{self, Fault, TestGroup, TestLimit};
//! use tollgate_worker::{Gate, Outcome, Reason};
//!
//! /// The code to be tested: calls when there is quota within a second, and says so.
//! async fn call(gate: &Gate, tokens: u64) -> Result<(), Option<Reason>> {
//!     let permit = gate.acquire("openai").cost(tokens).timeout(Duration::from_secs(1)).await;
//!     let permit = permit.map_err(|error| error.reason())?;
//!     permit.settle(tokens, Outcome::Success);
//!     Ok(())
//! }
//!
//! testing::run(async {
//!     let group = TestGroup::new([TestLimit::per_second("openai", 10).burst(20)]);
//!     let gate = group.gate().await;
//!
//!     // What there is can be used at once; then it is refused, since 15 tokens take longer than a second.
//!     assert_eq!(call(&gate, 15).await, Ok(()));
//!     assert_eq!(call(&gate, 15).await, Err(Some(Reason::Deadline)));
//!
//!     // Two seconds later they are there. This takes no time.
//!     group.advance(Duration::from_secs(2)).await;
//!     assert_eq!(call(&gate, 15).await, Ok(()));
//!
//!     let usage = group.usage("openai");
//!     assert_eq!((usage.granted, usage.charged), (2, 30));
//!     assert_eq!(usage.refused_for(Reason::Deadline), 1);
//!     assert_eq!(usage.settled_as(Outcome::Success), 2);
//!
//!     // A coordinator that is away is not noticed until the lease ends, after 15 s.
//!     group.fail(Fault::Unreachable);
//!     group.advance(Duration::from_secs(10)).await;
//!     assert_eq!(call(&gate, 1).await, Ok(()));
//!     group.advance(Duration::from_secs(10)).await;
//!     assert_eq!(call(&gate, 1).await, Err(Some(Reason::CoordinatorLost)));
//! });
//! ```
//!
//! # Time
//!
//! Time is Tokio's paused clock: it stands still while there is something to do, and when all tasks wait it jumps to the next
//! thing that somebody waits for. So waiting for a permit takes as long as it would, but only by the clock:
//!
//! ```
//! # use std::time::Duration;
//! # use tollgate_worker::testing::{self, TestGroup, TestLimit};
//! use tokio::time::Instant;
//!
//! testing::run(async {
//!     let group = TestGroup::new([TestLimit::per_second("transfers", 2).burst(1).used_up()]);
//!     let gate = group.gate().await;
//!     let began = Instant::now();
//!     let waiting = tokio::spawn(async move { gate.acquire("transfers").await });
//!
//!     group.advance(Duration::from_millis(200)).await;
//!     assert_eq!(group.usage("transfers").waiting, 1);
//!
//!     assert!(waiting.await.unwrap().is_ok());
//!     assert!(began.elapsed() >= Duration::from_millis(400));
//!     assert_eq!(group.usage("transfers").waiting, 0);
//! });
//! ```
//!
//! [`run`] and `#[tokio::test(start_paused = true)]` are the same; elsewhere [`TestGroup::new`] panics. All that happens is a
//! function of the test: nothing is drawn at random, and no test depends on another one.
//!
//! - Let time pass by [`TestGroup::advance`] or `tokio::time::sleep`. `tokio::time::advance` jumps over what should have
//!   happened meanwhile: after a jump of a minute all leases have ended, since no heartbeat was sent.
//! - While the test waits for something that is no timer (a socket, another thread), all tasks seem to wait, and time
//!   runs ahead. For such tests there is [`TestGroup::in_real_time`].
//!
//! # Refusals
//!
//! | to see | do |
//! |---|---|
//! | [`UnknownLimit`](crate::AcquireError::UnknownLimit) | ask for a limit that isn't set, or [`TestGroup::remove`] it |
//! | [`CostAboveBurst`](crate::AcquireError::CostAboveBurst) | ask for more than its burst, or lower that by [`TestGroup::set`] |
//! | [`Empty`](crate::Reason::Empty) | [`TestLimit::used_up`], and `try_acquire` |
//! | [`Deadline`](crate::Reason::Deadline) | [`TestLimit::used_up`], and a timeout that is too short |
//! | [`NoQuota`](crate::Reason::NoQuota) | [`TestLimit::closed`] |
//! | [`CoordinatorLost`](crate::Reason::CoordinatorLost) | [`TestGroup::fail`], then [`TestGroup::advance`] beyond the lease, or [`TestGroup::end_leases`] |
//! | [`Recovering`](crate::Reason::Recovering) | [`TestGroup::forget`], then [`TestGroup::end_leases`] |
//! | [`Evicted`](crate::Reason::Evicted) | [`TestGroup::evict`] |
//! | [`Paused`](crate::Reason::Paused) | [`TestLimit::paused`], at the beginning or by [`TestGroup::set`] |
//! | [`GroupFull`](crate::Reason::GroupFull) | [`TestGroup::fail`] with [`Fault::GroupFull`] before the gate is made |
//! | [`ShuttingDown`](crate::Reason::ShuttingDown) | [`Gate::shutdown`] |
//!
//! # Activities
//!
//! [`ActivityGate::run`](crate::ActivityGate::run) treats an activity as a Temporal worker does that has the interceptor:
//!
//! ```
//! # use std::time::Duration;
//! # use tollgate_worker::testing::{self, TestGroup, TestLimit};
//! use temporalio_sdk::activities::ActivityError;
//! use tollgate_worker::interceptor::QUOTA_EXHAUSTED;
//! use tollgate_worker::{ActivityGate, CurrentPermit, Outcome};
//!
//! async fn summarize(text: &str) -> Result<usize, ActivityError> {
//!     assert!(CurrentPermit::get().is_some_and(|permit| permit.is_valid()));
//!     Ok(text.len())
//! }
//!
//! testing::run(async {
//!     let group = TestGroup::new([TestLimit::per(Duration::from_secs(3600), "openai", 3)]);
//!     let limits = ActivityGate::new(&group.gate().await).rule("summarize", "openai", 3);
//!
//!     assert_eq!(limits.run("summarize", summarize("a long text")).await.unwrap(), 11);
//!     // The next one has to wait for an hour: it fails, and is tried again then.
//!     let ActivityError::Application(failure) = limits.run("summarize", summarize("")).await.unwrap_err() else {
//!         panic!("without a permit an activity fails");
//!     };
//!     assert_eq!(failure.type_name(), Some(QUOTA_EXHAUSTED));
//!     assert!(failure.next_retry_delay().unwrap() > Duration::from_secs(1800));
//!
//!     let usage = group.usage("openai");
//!     assert_eq!((usage.charged, usage.settled_as(Outcome::Success), usage.refusals()), (3, 1, 1));
//! });
//! ```

#![allow(clippy::panic, reason = "a test that can't be set up ends, and says what to do")]

mod coordinator;
mod limit;
mod time;
mod usage;

pub use coordinator::Fault;
pub use limit::TestLimit;
pub use usage::Usage;

use crate::clock::Clock;
use crate::gate::{Gate, Shared};
use crate::options::Options;
use crate::random::Identities;
use crate::strict::Strict;
use crate::transport::{StrictTransport, Transport};
use coordinator::TestCoordinator;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use time::Time;
use tollgate_core::ledger::{Input, WORKERS_MAX};
use tollgate_core::limit::CellKey;

/// So often everybody may run who is awake before a moment counts as over. A permit passes through three tasks.
const TURNS: usize = 16;

/// Runs a test to its end, in a runtime of its own whose clock is paused. The same as `#[tokio::test(start_paused = true)]`.
///
/// # Panics
/// When the test does, or without a runtime to be had.
#[track_caller]
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    match builder.enable_all().start_paused(true).build() {
        Ok(runtime) => runtime.block_on(test),
        Err(error) => panic!("no runtime: {error}"),
    }
}

/// A group of limits with its coordinator, in this process. Cheap to clone; all clones are one group.
#[derive(Clone)]
pub struct TestGroup(Arc<World>);

struct World {
    time: Arc<Time>,
    coordinator: Arc<TestCoordinator>,
    made: Mutex<Made>,
}

/// What came of a group.
#[derive(Default)]
struct Made {
    /// All gates. Each counts as long as the group exists, also when it has ended.
    gates: Vec<Arc<Shared>>,
    /// Seeds drawn so far.
    seeds: u64,
}

impl std::fmt::Debug for TestGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestGroup").field("limits", &self.0.coordinator.cells()).finish_non_exhaustive()
    }
}

impl TestGroup {
    /// A group with these limits and nobody who uses them yet.
    ///
    /// # Panics
    /// Outside of paused time, and when a limit is not possible.
    #[track_caller]
    pub fn new<L: Into<TestLimit>>(limits: impl IntoIterator<Item = L>) -> TestGroup {
        assert!(
            time::is_paused(),
            "a TestGroup lives in paused time: write #[tokio::test(start_paused = true)], or use testing::run"
        );
        TestGroup::in_real_time(limits)
    }

    /// The same in time as it goes, for tests that wait for sockets or threads. They take as long as they take, and no two
    /// runs are the same.
    ///
    /// # Panics
    /// When a limit is not possible.
    #[track_caller]
    pub fn in_real_time<L: Into<TestLimit>>(limits: impl IntoIterator<Item = L>) -> TestGroup {
        let time = Arc::new(Time::new());
        let coordinator = Arc::new(TestCoordinator::new(time.clone()));
        let group = TestGroup(Arc::new(World { time, coordinator, made: Mutex::default() }));
        group.configure(limits.into_iter().map(Into::into).collect(), |_| true);
        group
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seed(&self) -> u64 {
        let mut made = self.made();
        made.seeds += 1;
        made.seeds
    }

    // Who asks.

    /// A gate that has leases of all limits. Several gates are several workers that share the limits.
    #[track_caller]
    pub fn gate(&self) -> impl Future<Output = Gate> + use<> {
        self.gate_with(self.options())
    }

    /// The options of [`TestGroup::gate`]: all limits are leased from the start, by the group's clock.
    pub fn options(&self) -> Options {
        let seed = self.seed();
        let options = Options { seed: Some(seed), ..Options::new() };
        let options = options.worker(format!("test-{seed}")).clock(self.clock());
        let keys = self.0.coordinator.keys();
        keys.into_iter().fold(options, |options, key| options.meter(key.limit, key.meter))
    }

    /// A gate with other options. Returns it when the coordinator has answered once, or not: see [`Gate::connect`].
    ///
    /// # Panics
    /// When an option is out of its range.
    #[track_caller]
    pub fn gate_with(&self, options: Options) -> impl Future<Output = Gate> + use<> {
        let gate = match Gate::with_transport(self.transport(), self.with_clock(options)) {
            Ok(gate) => gate,
            Err(error) => panic!("no gate: {error}"),
        };
        let mut made = self.made();
        assert!(made.gates.len() < WORKERS_MAX, "a group has at most {WORKERS_MAX} workers");
        made.gates.push(gate.shared().clone());
        drop(made);
        async move {
            gate.first_answer().await;
            gate
        }
    }

    fn with_clock(&self, options: Options) -> Options {
        if options.clock.is_some() { options } else { options.clock(self.clock()) }
    }

    /// Strict permits of the group.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[track_caller]
    pub fn strict(&self) -> Strict {
        let identities = Identities::new(Some(self.seed()));
        match Strict::with_identities(self.0.coordinator.clone(), self.clock(), &identities) {
            Ok(strict) => strict,
            Err(error) => panic!("no strict permits: {error}"),
        }
    }

    /// The way to the coordinator, for code that makes its gate by [`Gate::with_transport`]. Such a gate counts in
    /// [`Usage::reported`] only.
    pub fn transport(&self) -> Arc<dyn Transport> {
        self.0.coordinator.clone()
    }

    /// The same for strict permits.
    pub fn strict_transport(&self) -> Arc<dyn StrictTransport> {
        self.0.coordinator.clone()
    }

    /// What time it is for gates, in paused time and in suspends too.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.0.time.clone()
    }

    // Time.

    /// Lets time pass, and all that happens in it: heartbeats are sent, tokens minted, waiters served.
    pub async fn advance(&self, time: Duration) {
        tokio::time::sleep(time).await;
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }

    /// The machine sleeps: nothing of this process happens, and when it wakes up so much time has passed. Leases that
    /// have ended meanwhile are over.
    pub fn suspend(&self, time: Duration) {
        self.0.time.sleep(time);
    }

    // Limits.

    /// Adds a limit, or changes one at once, without a ramp. Gates hear of it by a notice.
    ///
    /// # Panics
    /// When the limit is not possible.
    #[track_caller]
    pub fn set(&self, limit: impl Into<TestLimit>) {
        self.configure(vec![limit.into()], |_| true);
    }

    /// Removes a limit with all its meters. Gates hear of it by a notice.
    #[track_caller]
    pub fn remove(&self, limit: &str) {
        self.configure(Vec::new(), |key| key.limit != limit);
    }

    /// Removes one meter of a limit. Gates hear of it by a notice.
    #[track_caller]
    pub fn remove_meter(&self, limit: &str, meter: &str) {
        self.configure(Vec::new(), |key| key.limit != limit || key.meter != meter);
    }

    #[track_caller]
    fn configure(&self, set: Vec<TestLimit>, keep: impl Fn(&CellKey) -> bool) {
        if let Err(error) = self.0.coordinator.configure(set, keep) {
            panic!("{error}");
        }
        self.notice();
    }

    fn notice(&self) {
        self.made().gates.iter().for_each(|gate| gate.notice());
    }

    // What goes wrong.

    /// How long a message and its answer take together; 10 ms unless set.
    pub fn set_round_trip(&self, time: Duration) {
        self.0.coordinator.set_round_trip(time);
    }

    /// From now on this happens to all messages, until [`TestGroup::heal`].
    pub fn fail(&self, fault: Fault) {
        self.0.coordinator.fail(fault);
    }

    /// This happens to the next messages, one after the other; those after them arrive, or [`fail`](TestGroup::fail).
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.coordinator.fail_next(faults);
    }

    /// From now on messages arrive.
    pub fn heal(&self) {
        self.0.coordinator.heal();
    }

    /// All leases of a gate end, as when its clock can't be relied on. Work that waits goes on waiting, for a new lease or
    /// until it shows that there won't be one.
    pub fn end_leases(&self, gate: &Gate) {
        gate.shared().core.client().end_leases();
        gate.shared().core.kick.notify_one();
    }

    /// An operator takes a gate's quota away. It hears of it by a notice.
    pub fn evict(&self, gate: &Gate) {
        let incarnation = gate.shared().core.client().incarnation();
        self.0.coordinator.apply(Input::Evict(incarnation));
        gate.notice();
    }

    /// The coordinator loses its memory: it confirms what is held, and grants nothing new until all leases that there may be
    /// have ended, two minutes at least.
    pub fn forget(&self) {
        self.0.coordinator.forget();
        self.notice();
    }

    // What came of it.

    /// What was charged to a limit until now: to its meter `requests`, or to the first it has if it has no such meter.
    ///
    /// # Panics
    /// When there is no such limit and nobody asked for it: a wrong name would look like a limit that isn't used.
    #[track_caller]
    pub fn usage(&self, limit: &str) -> Usage {
        let keys = self.0.coordinator.keys();
        let mut meters = keys.iter().filter(|key| key.limit == limit).map(|key| key.meter.as_str());
        let first = meters.clone().find(|meter| *meter == CellKey::METER).or(meters.next());
        self.meter_usage(limit, first.unwrap_or(CellKey::METER))
    }

    /// What was charged to one meter of a limit until now.
    ///
    /// # Panics
    /// As [`TestGroup::usage`].
    #[track_caller]
    pub fn meter_usage(&self, limit: &str, meter: &str) -> Usage {
        let keys = self.0.coordinator.keys();
        let mut known = keys.iter().any(|key| key.limit == limit && key.meter == meter);
        let mut usage = Usage::default();
        let gates = self.made().gates.clone();
        let states = gates.iter().flat_map(|gate| gate.state().limits);
        for state in states.filter(|state| state.limit == limit && state.meter == meter) {
            known = true;
            usage.add(state);
        }
        let there: Vec<String> = keys.iter().map(ToString::to_string).collect();
        assert!(known, "limit {limit:?} is not set, and nobody asked for it; there are {there:?}");
        (usage.reported, usage.strict_open) = self.0.coordinator.used(limit, meter);
        usage
    }
}
