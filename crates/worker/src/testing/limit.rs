//! Limits as a test states them.

use super::time::micros;
use serde_json::json;
use std::time::Duration;
use tollgate_core::curve::Rate;
use tollgate_core::limit::{CellConfig, CellKey, WhenLost};
use tollgate_core::policy::Policy;
use tollgate_core::units::{Share, Span};
use tollgate_workflows::wire::config::LimitJson;

/// A limit of a [`TestGroup`](super::TestGroup). What isn't stated is as `tollgate limit set` makes it.
#[derive(Clone, Debug)]
pub struct TestLimit {
    pub(super) config: CellConfig,
    pub(super) used_up: bool,
}

impl TestLimit {
    /// `tokens` a second, and that many at once.
    pub fn per_second(name: &str, tokens: u64) -> TestLimit {
        TestLimit::per(Duration::from_secs(1), name, tokens)
    }

    /// `tokens` a `period`. Its burst is what a second brings, at least one token; for periods of a minute and more all of
    /// `tokens`.
    pub fn per(period: Duration, name: &str, tokens: u64) -> TestLimit {
        let period = Span(micros(period));
        // By its JSON: what is left out has the defaults of the real thing.
        let rate = json!({ "count": tokens, "period_ms": period.millis() });
        let limit = serde_json::from_value::<LimitJson>(json!({ "name": name, "rate": rate })).ok();
        let burst = limit.as_ref().and_then(|limit| Some(limit.burst_or_default(limit.rate?)));
        let lease = limit.map_or(Span::ZERO, |limit| limit.lease());
        CellConfig::constant(name, Rate::new(tokens, period), burst.unwrap_or(tokens), lease).into()
    }

    /// Gives nothing: its rate is zero, and what there was has been used. Whoever waits for it is refused with
    /// [`Reason::NoQuota`](crate::Reason::NoQuota).
    pub fn closed(name: &str) -> TestLimit {
        TestLimit::per_second(name, 0).burst(1).used_up()
    }

    /// At most `permits` in flight at once: meter `in_flight` of the limit.
    pub fn in_flight(name: &str, permits: u64) -> TestLimit {
        let mut limit = TestLimit::per_second(name, permits).burst(permits);
        limit.config.key.meter = CellKey::IN_FLIGHT.to_owned();
        limit.config.policy = Policy::InFlight { drain: Span::ZERO };
        limit
    }

    /// Another meter than `requests`: `tokens`, `bytes`, or a name of one's own. A limit has as many meters as are set.
    ///
    /// ```
    /// # use tollgate_worker::testing::{self, TestGroup, TestLimit};
    /// testing::run(async {
    ///     let tokens = TestLimit::per_second("openai", 1_000).meter("tokens");
    ///     let group = TestGroup::new([TestLimit::per_second("openai", 10), tokens]);
    ///     let gate = group.gate().await;
    ///     drop(gate.acquire("openai").charge("tokens", 300).await.unwrap());
    ///     assert_eq!(group.usage("openai").charged, 1);
    ///     assert_eq!(group.meter_usage("openai", "tokens").charged, 300);
    /// });
    /// ```
    #[must_use]
    pub fn meter(mut self, meter: &str) -> TestLimit {
        self.config.key.meter = meter.to_owned();
        self
    }

    /// How long work in flight goes on downstream after its client is gone. Turns the limit into one of what is in flight.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> TestLimit {
        self.config.policy = Policy::InFlight { drain: Span(micros(drain)) };
        self
    }

    /// The most tokens that may be used at once. A larger cost is refused as
    /// [`CostAboveBurst`](crate::AcquireError::CostAboveBurst).
    #[must_use]
    pub fn burst(mut self, tokens: u64) -> TestLimit {
        self.config = CellConfig { burst: tollgate_core::curve::BurstCurve::constant(tokens), ..self.config };
        self
    }

    /// How long a gate may go on without an answer of the coordinator: 2 s to 120 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> TestLimit {
        self.config.lease = Span(micros(lease));
        self
    }

    /// How many may wait for it in one gate; others are refused at once with
    /// [`QueueFull`](crate::Reason::QueueFull).
    #[must_use]
    pub fn queue(mut self, waiting: u64) -> TestLimit {
        self.config.queue = Some(waiting);
        self
    }

    /// An operator has paused it: everything is refused with [`Reason::Paused`](crate::Reason::Paused).
    #[must_use]
    pub fn paused(mut self) -> TestLimit {
        self.config.conduct.paused = true;
        self
    }

    /// It refuses nothing, and counts what it would refuse.
    #[must_use]
    pub fn shadow(mut self) -> TestLimit {
        self.config.conduct.shadow = true;
        self
    }

    /// When the lease has ended and the coordinator is lost, work goes on at so much of the last share, in percent.
    #[must_use]
    pub fn hold_when_lost(mut self, percent: u32) -> TestLimit {
        self.config.conduct.when_lost = WhenLost::Hold(share_of(percent));
        self
    }

    /// When the lease has ended and the coordinator is lost, everything is let through.
    #[must_use]
    pub fn open_when_lost(mut self) -> TestLimit {
        self.config.conduct.when_lost = WhenLost::Open;
        self
    }

    /// The part of its burst that is kept for gates that are new, in percent: 0 to 50, 20 unless set.
    #[must_use]
    pub fn reserve(mut self, percent: u32) -> TestLimit {
        self.config.conduct.reserve = share_of(percent);
        self
    }

    /// Makes it one of several tiers of its limit, with a rate and a burst of its own; `rank` is its place, 0 the highest. It keeps
    /// all that it wants, and higher tiers borrow what it leaves.
    #[must_use]
    pub fn tier(mut self, tier: &str, rank: u32) -> TestLimit {
        self.config.key.tier = tier.to_owned();
        self.config.priority.rank = rank;
        self
    }

    /// Higher tiers come before its own work, whatever that wants: it is filled from the top.
    #[must_use]
    pub fn gives_way(mut self) -> TestLimit {
        self.config.priority.floor = Share::ZERO;
        self
    }

    /// Lower tiers may use what it leaves idle.
    #[must_use]
    pub fn lends(mut self) -> TestLimit {
        self.config.priority.lends = true;
        self
    }

    /// Begins empty, as if others had just used all of it. What gates hold already stays with them.
    #[must_use]
    pub fn used_up(mut self) -> TestLimit {
        self.used_up = true;
        self
    }

    pub(super) fn key(&self) -> &CellKey {
        &self.config.key
    }
}

/// Percent as a part; what is above 100 is all.
fn share_of(percent: u32) -> Share {
    Share::from_ppb(percent.saturating_mul(10_000_000)).unwrap_or(Share::ONE)
}

/// As the coordinator knows it: with ramps.
impl From<CellConfig> for TestLimit {
    fn from(config: CellConfig) -> TestLimit {
        TestLimit { config, used_up: false }
    }
}
