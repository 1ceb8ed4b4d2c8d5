//! The figures of a gate, for Prometheus. Needs the feature `metrics`.
//!
//! ```no_run
//! # async fn example(gate: tollgate_worker::Gate) -> Result<(), Box<dyn std::error::Error>> {
//! // Serves http://127.0.0.1:9464/metrics as long as it is kept.
//! let _metrics = gate.serve_metrics("127.0.0.1:9464".parse()?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `Gate::push_metrics`, with the feature `otlp`, sends them to an OpenTelemetry collector instead.
//!
//! A process with an endpoint of its own takes them from [`Gate::metrics`]: as text, or as a [`Collector`] for a registry of
//! the crate `prometheus-client`. What each figure means says [`tollgate_metrics::catalogue`].
//!
//! A limit that is used has some sixty series, and a gate leases at most 1,000 limits, whatever names it is asked for.

use crate::error::Reason;
use crate::gate::{Gate, Shared};
use crate::permit::Outcome;
use crate::state::{Condition, Coordinator, LimitState, limit_state};
use crate::uncharged::Uncharged;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::limit::CellKey;
use tollgate_metrics::catalogue::{
    CONDITIONS, LOST_MODES, WORKER_ALONE, WORKER_CAP, WORKER_CHARGED, WORKER_CONDITION,
    WORKER_COORDINATOR_SINCE, WORKER_COORDINATOR_UP, WORKER_GAVE_UP, WORKER_GRANTED, WORKER_HEARTBEAT,
    WORKER_HEARTBEAT_ERRORS, WORKER_INFO, WORKER_LEASE_AGE, WORKER_LEASE_LEFT, WORKER_LEFT, WORKER_LOST_MODE,
    WORKER_OPENED, WORKER_OPENED_TOKENS, WORKER_REFUNDED, WORKER_REFUSED, WORKER_SETTLED, WORKER_SHADOW,
    WORKER_SHADOW_REFUSED, WORKER_SHADOW_TOKENS, WORKER_SHARE, WORKER_WAIT, WORKER_WAITING,
    WORKER_WAITING_TOKENS,
};
use tollgate_metrics::snapshot::real;
use tollgate_metrics::{DescriptorEncoder, figures};

pub use std::net::SocketAddr;
#[cfg(feature = "otlp")]
pub use tollgate_metrics::otlp::{Push, PushError};
pub use tollgate_metrics::{Collector, Endpoint, EndpointError, Histogram, Snapshot};

/// The figures of one gate. It doesn't keep the gate going, and goes on after the gate has ended.
#[derive(Clone, Debug)]
pub struct GateMetrics(Arc<Shared>);

impl Gate {
    /// Its figures, to be looked at as often as one likes.
    pub fn metrics(&self) -> GateMetrics {
        GateMetrics(self.shared().clone())
    }

    /// Serves its figures at `/metrics`, and `/healthz`, as long as the returned [`Endpoint`] lives, also while the gate is
    /// shut down and after that. Port 0 is any that is free: see [`Endpoint::address`].
    ///
    /// # Errors
    /// [`EndpointError`] when it can't listen there.
    pub async fn serve_metrics(&self, address: SocketAddr) -> Result<Endpoint, EndpointError> {
        let metrics = self.metrics();
        Endpoint::bind(address, figures(move || ready(metrics.snapshot()))).await
    }
}

#[cfg(feature = "otlp")]
impl Gate {
    /// Pushes its figures by OTLP over gRPC to the collector at `address`, such as `http://localhost:4317`, in the name of
    /// `service`, as long as the returned [`Push`] lives. Needs the feature `otlp`.
    ///
    /// # Errors
    /// [`PushError`] when that can't be; a collector that is away is none.
    pub fn push_metrics(&self, address: &str, service: &str, every: Duration) -> Result<Push, PushError> {
        let metrics = self.metrics();
        Push::start(address, service, every, figures(move || ready(metrics.snapshot())))
    }
}

impl GateMetrics {
    /// The figures now. Locks briefly, as [`Gate::state`] does: not for hot paths.
    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.0;
        let mut out = Snapshot::default();
        let group = shared.group.as_str();
        out.level(&WORKER_INFO, [group, &shared.worker, env!("CARGO_PKG_VERSION")], 1.0);
        for limit in limits(shared) {
            limit.show(&mut out, group);
        }
        out.buckets(&WORKER_HEARTBEAT, [group], shared.meter.heartbeats());
        for (why, count) in shared.meter.errors() {
            out.count(&WORKER_HEARTBEAT_ERRORS, [group, why.as_str()], count);
        }
        let now = shared.core.clock.now().boot;
        let status = shared.status();
        out.flag(&WORKER_COORDINATOR_UP, [group], status.coordinator == Coordinator::Reachable);
        let since = Duration::from_micros(now.since(status.since).0);
        out.level(&WORKER_COORDINATOR_SINCE, [group], since.as_secs_f64());
        out
    }

    /// The figures now, as OpenMetrics text.
    pub fn text(&self) -> String {
        self.snapshot().into_text()
    }
}

impl Collector for GateMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        self.snapshot().encode(encoder)
    }
}

/// One limit's figures.
struct Limit {
    key: CellKey,
    state: LimitState,
    totals: (u64, u64, u64),
    waits: Histogram,
}

/// Those of all limits. What belongs together is read under one lock, and made into text outside of it.
fn limits(shared: &Shared) -> Vec<Limit> {
    let cells = shared.in_order();
    let client = shared.core.client();
    let now = shared.core.clock.now();
    let limits = cells.iter().filter_map(|cell| {
        let leased = client.cells().get(cell.index?)?;
        let state = limit_state(cell, leased, now);
        let totals = cell.counts.meter.totals(state.counters.granted, state.counters.charged);
        Some(Limit { key: leased.key().clone(), state, totals, waits: cell.counts.meter.waits() })
    });
    limits.collect()
}

impl Limit {
    fn show(self, out: &mut Snapshot, group: &str) {
        let Limit { key, state, totals: (granted, charged, refunded), waits } = self;
        let counters = &state.counters;
        let labels = [group, &*key.limit, &*key.meter, &*key.tier];
        let [group, limit, meter, tier] = labels;
        out.count(&WORKER_GRANTED, labels, granted);
        out.count(&WORKER_CHARGED, labels, charged);
        out.count(&WORKER_REFUNDED, labels, refunded);
        // What hasn't occurred is there as zero, so that its first time is seen as a rise.
        for reason in Reason::ALL {
            let count = counters.refused.iter().find(|(other, _)| *other == reason);
            let count = count.map_or(0, |(_, count)| *count);
            out.count(&WORKER_REFUSED, [group, limit, meter, tier, reason.as_str()], count);
        }
        for outcome in Outcome::ALL {
            let count = counters.settled.iter().find(|(other, _)| *other == outcome);
            let count = count.map_or(0, |(_, count)| *count);
            out.count(&WORKER_SETTLED, [group, limit, meter, tier, outcome_text(outcome)], count);
        }
        let (callers, tokens) = state.waiting;
        out.level(&WORKER_WAITING, labels, real(callers as u64));
        out.level(&WORKER_WAITING_TOKENS, labels, real(tokens));
        out.buckets(&WORKER_WAIT, labels, waits);
        out.count(&WORKER_GAVE_UP, labels, counters.gave_up);
        // Of limits that were never in shadow mode there are none.
        let is_shadow = state.shadow || !counters.shadow_refused.is_empty();
        for reason in Uncharged::names().filter(|_| is_shadow) {
            let count = counters.shadow_refused.iter().find(|(other, _)| *other == reason);
            let count = count.map_or(0, |(_, count)| *count);
            out.count(&WORKER_SHADOW_REFUSED, [group, limit, meter, tier, reason], count);
        }
        out.count(&WORKER_SHADOW_TOKENS, labels, counters.shadow_tokens);
        out.flag(&WORKER_SHADOW, labels, state.shadow);
        out.count(&WORKER_OPENED, labels, counters.opened);
        out.count(&WORKER_OPENED_TOKENS, labels, counters.opened_tokens);
        out.level(&WORKER_ALONE, labels, state.alone_for.unwrap_or_default().as_secs_f64());
        let mode = condition_text(state.condition);
        for other in LOST_MODES {
            out.flag(&WORKER_LOST_MODE, [group, limit, meter, tier, other], other == mode);
        }
        out.level(&WORKER_SHARE, labels, f64::from(state.share.ppb()) / 1e9);
        out.level(&WORKER_CAP, labels, real(state.cap.milli_floor()) / 1e3);
        let left = real(state.level.unsigned_abs());
        out.level(&WORKER_LEFT, labels, if state.level < 0 { -left } else { left });
        if let Some(age) = state.lease_age {
            out.level(&WORKER_LEASE_AGE, labels, age.as_secs_f64());
        }
        out.level(&WORKER_LEASE_LEFT, labels, state.expires_in.unwrap_or_default().as_secs_f64());
        let condition = condition_text(state.condition);
        for other in CONDITIONS {
            out.flag(&WORKER_CONDITION, [group, limit, meter, tier, other], other == condition);
        }
    }
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failure => "failure",
        Outcome::Slow => "slow",
        Outcome::Ignored => "ignored",
        Outcome::Throttled => "throttled",
    }
}

fn condition_text(condition: Condition) -> &'static str {
    match condition {
        Condition::Starting => "starting",
        Condition::Open => "open",
        Condition::Recovering => "recovering",
        Condition::Paused => "paused",
        Condition::Held => "held",
        Condition::Opened => "opened",
        Condition::Closed => "closed",
        Condition::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metered::Unanswered;
    use tollgate_metrics::catalogue::LABELS;

    #[test]
    fn every_value_of_a_label_is_documented_and_has_its_place() {
        let values_of = |label: &str| {
            let (_, help) = LABELS.iter().find(|(name, _)| *name == label).unwrap();
            help.split('`').skip(1).step_by(2).collect::<Vec<_>>()
        };
        let refusals = Reason::ALL.map(Reason::as_str);
        let reasons = Unanswered::ALL.map(Unanswered::as_str);
        assert!(refusals.iter().chain(&reasons).all(|value| values_of("reason").contains(value)));
        assert_eq!(values_of("outcome"), Outcome::ALL.map(outcome_text));
        assert_eq!(values_of("condition"), CONDITIONS);
        for (place, why) in Unanswered::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, place);
        }
        use Condition::{Closed, Held, Open, Opened, Paused, Recovering, Starting, Unknown};
        let all = [Starting, Open, Recovering, Paused, Held, Opened, Closed, Unknown];
        assert_eq!(all.map(condition_text), CONDITIONS);
    }
}
