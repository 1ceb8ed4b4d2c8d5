//! A ledger behind the wire, in the time of Tokio's paused clock.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may end at the first surprise, its helpers too"
)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::bucket::Now;
use tollgate_core::curve::Rate;
use tollgate_core::ledger::strict::{AcquireOutcome, Settle, Stage};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::message::RequestError;
use tollgate_core::units::{BootTime, LedgerTime, Span, WallTime};
use tollgate_worker::clock::Clock;
use tollgate_worker::transport::{StrictTransport, Transport};
use tollgate_worker::{Gate, Options, Strict, TransportError};
use tollgate_workflows::wire::lease::{
    AcquireJson, AcquireReplyJson, HeartbeatJson, HeartbeatReplyJson, ReportJson,
};
use tollgate_workflows::wire::{read, write};

type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Clocks that stand still unless the test's time goes on.
pub(crate) struct TestClock {
    start: Instant,
    /// Wall time that elapsed time knows nothing of.
    pub(crate) slept_us: AtomicU64,
    /// Whether it says, when asked next, that it has not run true.
    pub(crate) jumped: AtomicBool,
}

impl Clock for TestClock {
    fn boot(&self) -> BootTime {
        BootTime(5_000_000 + u64::try_from(self.start.elapsed().as_micros()).unwrap())
    }
    fn now(&self) -> Now {
        let boot = self.boot();
        Now { boot, wall: WallTime(1_000_000_000_000 + boot.0 + self.slept_us.load(Ordering::Relaxed)) }
    }
    fn is_steady(&self) -> bool {
        !self.jumped.swap(false, Ordering::Relaxed)
    }
}

/// What becomes of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Does not arrive, and that shows.
    Lost,
    /// Arrives, the answer doesn't, and that shows.
    ReplyLost,
    /// Never ends.
    Silent,
    /// Answered as if two processes had claimed to be one.
    Burned,
}

pub(crate) struct World {
    ledger: Mutex<Ledger>,
    start: Instant,
    /// Fates of the next heartbeats; then they arrive.
    pub(crate) fates: Mutex<VecDeque<Fate>>,
    /// The fate of all, when set.
    pub(crate) always: Mutex<Option<Fate>>,
    pub(crate) sent: Mutex<Vec<HeartbeatJson>>,
    pub(crate) revoked: Mutex<Vec<HeartbeatJson>>,
    pub(crate) each_way: Duration,
    /// Messages about strict permits that are under way, and the most that were.
    under_way: Mutex<(usize, usize)>,
    configured: AtomicU64,
}

impl World {
    pub(crate) fn new(cells: Vec<CellConfig>) -> Arc<World> {
        let world = World {
            ledger: Mutex::new(Ledger::new(Start::First, 7, LedgerTime(1_000_000_000))),
            start: Instant::now(),
            fates: Mutex::default(),
            always: Mutex::default(),
            sent: Mutex::default(),
            revoked: Mutex::default(),
            each_way: Duration::from_millis(5),
            under_way: Mutex::default(),
            configured: AtomicU64::new(0),
        };
        world.configure(cells);
        Arc::new(world)
    }

    pub(crate) fn configure(&self, cells: Vec<CellConfig>) {
        let version = Version { run: 1, n: self.configured.fetch_add(1, Ordering::Relaxed) + 1 };
        let settings = Settings::default();
        let output = self.apply(Input::Configure(Configure { version, settings, cells }));
        assert_eq!(output, Output::Configured);
    }

    pub(crate) fn apply(&self, input: Input) -> Output {
        let now = LedgerTime(1_000_000_000) + Span(u64::try_from(self.start.elapsed().as_micros()).unwrap());
        self.ledger.lock().unwrap().apply(now, input)
    }

    pub(crate) fn used(&self, limit: &str) -> u64 {
        let ledger = self.ledger.lock().unwrap();
        ledger.state().cells.iter().filter(|(key, _)| key.limit == limit).map(|(_, cell)| cell.used).sum()
    }

    /// Strict permits that wait and that are out.
    pub(crate) fn strict_open(&self) -> usize {
        let ledger = self.ledger.lock().unwrap();
        let all = ledger.state().cells.values().flat_map(|cell| cell.strict.values());
        all.filter(|strict| !matches!(strict.stage, Stage::Over { .. })).count()
    }

    /// The most messages about strict permits that were under way at once.
    pub(crate) fn most_under_way(&self) -> usize {
        self.under_way.lock().unwrap().1
    }

    pub(crate) fn strict(self: &Arc<World>) -> Strict {
        let clock = Arc::new(TestClock {
            start: self.start,
            slept_us: AtomicU64::new(0),
            jumped: AtomicBool::new(false),
        });
        Strict::with_transport(Arc::new(Wire(self.clone())), clock).unwrap()
    }

    /// What becomes of the next message.
    fn fate(&self) -> Option<Fate> {
        let next = self.fates.lock().unwrap().pop_front();
        next.or(*self.always.lock().unwrap())
    }

    pub(crate) fn gate(self: &Arc<World>, options: Options) -> Gate {
        self.gate_with_clock(options).0
    }

    pub(crate) fn gate_with_clock(self: &Arc<World>, options: Options) -> (Gate, Arc<TestClock>) {
        let clock = Arc::new(TestClock {
            start: self.start,
            slept_us: AtomicU64::new(0),
            jumped: AtomicBool::new(false),
        });
        let options = options.clock(clock.clone());
        (Gate::with_transport(Arc::new(Wire(self.clone())), options).unwrap(), clock)
    }
}

pub(crate) struct Wire(Arc<World>);

impl Transport for Wire {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        let world = &self.0;
        Box::pin(async move {
            world.sent.lock().unwrap().push(request.clone());
            let fate = world.fate();
            tokio::time::sleep(world.each_way).await;
            let lost = Err(TransportError::Unreachable("lost".to_owned()));
            match fate {
                Some(Fate::Lost) => return lost,
                Some(Fate::Silent) => std::future::pending().await,
                Some(Fate::Burned) => return Ok(HeartbeatReplyJson::of(&Err(RequestError::Burned))),
                Some(Fate::ReplyLost) | None => {}
            }
            let request: HeartbeatJson = read(&write(&request)).unwrap();
            let Output::Reply(answer) = world.apply(Input::Heartbeat(request.check().unwrap())) else {
                panic!()
            };
            tokio::time::sleep(world.each_way).await;
            if fate == Some(Fate::ReplyLost) {
                return lost;
            }
            Ok(read(&write(&HeartbeatReplyJson::of(&answer))).unwrap())
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        let world = &self.0;
        Box::pin(async move {
            world.revoked.lock().unwrap().push(request.clone());
            world.apply(Input::Revoke(request.check().unwrap()));
            Ok(())
        })
    }
}

impl Wire {
    /// Carries a message about a strict permit, and the answer back.
    async fn carry(&self, input: Input) -> Result<AcquireOutcome, TransportError> {
        let world = &self.0;
        let fate = world.fate();
        let _under_way = UnderWay::new(world);
        tokio::time::sleep(world.each_way).await;
        let busy = Err(TransportError::Busy("ten are under way".to_owned()));
        match fate {
            Some(Fate::Lost | Fate::Burned) => return busy,
            Some(Fate::Silent) => std::future::pending().await,
            Some(Fate::ReplyLost) | None => {}
        }
        let Output::Acquired(outcome) = world.apply(input) else { panic!() };
        tokio::time::sleep(world.each_way).await;
        if fate == Some(Fate::ReplyLost) { busy } else { Ok(outcome) }
    }
}

/// Counts one message while it is under way.
struct UnderWay<'a>(&'a World);

impl UnderWay<'_> {
    fn new(world: &World) -> UnderWay<'_> {
        let mut under_way = world.under_way.lock().unwrap();
        under_way.0 += 1;
        under_way.1 = under_way.1.max(under_way.0);
        UnderWay(world)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().unwrap().0 -= 1;
    }
}

impl StrictTransport for Wire {
    fn acquire(
        &self,
        _name: String,
        request: AcquireJson,
    ) -> BoxFuture<'_, Result<AcquireReplyJson, TransportError>> {
        Box::pin(async move {
            let acquire = request.check(false).unwrap();
            let (cost, key) = (acquire.cost, acquire.key.clone());
            let outcome = self.carry(Input::Acquire(acquire)).await?;
            Ok(read(&write(&AcquireReplyJson::of(outcome, cost, &key))).unwrap())
        })
    }

    fn report(&self, report: ReportJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let key = CellKey { limit: report.limit, meter: report.meter, tier: report.tier };
            self.carry(Input::Settle(Settle { id: report.id, key, used: report.used })).await.map(drop)
        })
    }
}

/// A limit of `rate` a second.
pub(crate) fn limit(name: &str, rate: u64, burst: u64) -> CellConfig {
    CellConfig::constant(name, Rate::per_second(rate), burst, Span::from_secs(8))
}

pub(crate) async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
