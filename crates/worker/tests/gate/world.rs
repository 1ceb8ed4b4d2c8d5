//! What these tests share beyond the test kit: messages that are written down, and clocks that go wrong.

use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate_core::bucket::Now;
use tollgate_core::units::{BootTime, WallTime};
use tollgate_worker::clock::Clock;
use tollgate_worker::testing::{self, TestGroup, TestLimit};
use tollgate_worker::transport::{StrictTransport, Transport};
use tollgate_worker::{Gate, Strict, TransportError};
use tollgate_workflows::wire::lease::{
    AcquireJson, AcquireReplyJson, HeartbeatJson, HeartbeatReplyJson, ReportJson,
};

/// A limit of `rate` a second.
pub(crate) fn limit(name: &str, rate: u64, burst: u64) -> TestLimit {
    TestLimit::per_second(name, rate).burst(burst).lease(Duration::from_secs(8))
}

pub(crate) async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Takes all that is there.
pub(crate) fn drain(limit: &tollgate_worker::Limit) -> u64 {
    (0..).take_while(|_| limit.try_acquire(1).is_ok()).count() as u64
}

/// Writes down what a gate sends.
pub(crate) struct Recorder<T: ?Sized> {
    to: Arc<T>,
    pub(crate) sent: Mutex<Vec<HeartbeatJson>>,
    pub(crate) revoked: Mutex<Vec<HeartbeatJson>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl<T: ?Sized> Recorder<T> {
    fn new(to: Arc<T>) -> Arc<Recorder<T>> {
        Arc::new(Recorder {
            to,
            sent: Mutex::default(),
            revoked: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
        })
    }

    pub(crate) fn sent(&self) -> Vec<HeartbeatJson> {
        self.sent.lock().unwrap().clone()
    }

    /// The most messages about strict permits that were under way at once.
    pub(crate) fn most_under_way(&self) -> usize {
        self.most_under_way.load(Ordering::Relaxed)
    }

    fn start(&self) -> UnderWay<'_> {
        let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_under_way.fetch_max(now, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A gate of the group whose messages are written down.
pub(crate) fn recorded(group: &TestGroup) -> (Gate, Arc<Recorder<dyn Transport>>) {
    let recorder = Recorder::new(group.transport());
    (Gate::with_transport(recorder.clone(), group.options()).unwrap(), recorder)
}

/// Strict permits of the group whose messages are counted.
pub(crate) fn recorded_strict(group: &TestGroup) -> (Strict, Arc<Recorder<dyn StrictTransport>>) {
    let recorder = Recorder::new(group.strict_transport());
    (Strict::with_transport(recorder.clone(), group.clock()).unwrap(), recorder)
}

impl Transport for Recorder<dyn Transport> {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        self.sent.lock().unwrap().push(request.clone());
        self.to.heartbeat(request)
    }
    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        self.revoked.lock().unwrap().push(request.clone());
        self.to.revoke(request)
    }
}

impl StrictTransport for Recorder<dyn StrictTransport> {
    fn acquire(
        &self,
        name: String,
        request: AcquireJson,
    ) -> BoxFuture<'_, Result<AcquireReplyJson, TransportError>> {
        let under_way = self.start();
        Box::pin(async move {
            let _under_way = under_way;
            self.to.acquire(name, request).await
        })
    }
    fn report(&self, report: ReportJson) -> BoxFuture<'_, Result<(), TransportError>> {
        let under_way = self.start();
        Box::pin(async move {
            let _under_way = under_way;
            self.to.report(report).await
        })
    }
}

/// Loses every second heartbeat.
pub(crate) struct Flaky {
    to: Arc<dyn Transport>,
    heartbeats: AtomicUsize,
}

impl Flaky {
    pub(crate) fn new(group: &TestGroup) -> Arc<Flaky> {
        Arc::new(Flaky { to: group.transport(), heartbeats: AtomicUsize::new(0) })
    }
}

impl Transport for Flaky {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        if self.heartbeats.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return Box::pin(async { Err(TransportError::Unreachable("lost".to_owned())) });
        }
        self.to.heartbeat(request)
    }
    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        self.to.revoke(request)
    }
}

/// Clocks that go wrong.
pub(crate) struct BadClock {
    clock: Arc<dyn Clock>,
    /// By how much longer this machine has run than others.
    pub(crate) boot_ahead_us: AtomicU64,
    /// Wall time that elapsed time knows nothing of.
    pub(crate) wall_ahead_us: AtomicU64,
    /// Whether it says, when asked next, that it has not run true.
    pub(crate) jumped: AtomicBool,
}

impl BadClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<BadClock> {
        Arc::new(BadClock {
            clock,
            boot_ahead_us: AtomicU64::new(0),
            wall_ahead_us: AtomicU64::new(0),
            jumped: AtomicBool::new(false),
        })
    }
}

impl Clock for BadClock {
    fn boot(&self) -> BootTime {
        BootTime(self.clock.boot().0 + self.boot_ahead_us.load(Ordering::Relaxed))
    }
    fn now(&self) -> Now {
        let wall = self.clock.now().wall;
        Now { boot: self.boot(), wall: WallTime(wall.0 + self.wall_ahead_us.load(Ordering::Relaxed)) }
    }
    fn is_steady(&self) -> bool {
        !self.jumped.swap(false, Ordering::Relaxed)
    }
}

/// Each seed in a runtime of its own; a failure names the seed.
pub(crate) fn for_all_seeds<T: Future<Output = ()>>(seeds: u64, test: impl Fn(u64) -> T) {
    for seed in 0..seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| testing::run(test(seed))));
        if let Err(panic) = result {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            panic!(
                "seed {seed}: {}",
                said.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panicked")
            );
        }
    }
}
