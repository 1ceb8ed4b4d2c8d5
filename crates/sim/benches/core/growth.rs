//! What one heartbeat costs the ledger, as the fleet grows and as messages carry more limits.
//!
//! Every worker leases every limit of its message, acknowledges the reply before and asks again at the fleet's own pace;
//! only `Ledger::apply` is timed, with its sweeps, by the thread's own time, so that what else runs on the machine counts
//! little.

use crate::middle;
use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Initial, Version};
use tollgate_core::message::{Acting, CellOutcome, CellReport, Incarnation, LeaseName, Request};
use tollgate_core::policy::Policy;
use tollgate_core::tier::Priority;
use tollgate_core::units::{Amount, LedgerTime, Span};

const FLEETS: [u64; 5] = [10, 50, 200, 1_000, 2_000];
/// Limits of a message while the fleet grows.
const LIMITS_THEN: u64 = 5;
const LIMITS: [u64; 5] = [1, 3, 10, 30, 100];
/// Workers while messages grow.
const WORKERS_THEN: u64 = 10;
const LEASE: Span = Span::from_secs(15);
/// A worker comes three times per lease.
const EVERY: Span = Span::from_secs(5);

/// How a limit's tokens go out.
#[derive(Clone, Copy)]
enum Kind {
    /// A rate that all workers mint their shares of.
    Shares,
    /// A rate so small that the ledger counts out single tokens.
    Tokens,
}

pub(crate) fn run(quick: bool) -> Result<Value> {
    let mut figures = Map::new();
    for (name, kind) in [("shares", Kind::Shares), ("tokens", Kind::Tokens)] {
        eprintln!("  {name}");
        let by_workers =
            FLEETS.iter().map(|workers| Ok((*workers, measure(kind, *workers, LIMITS_THEN, quick)?)));
        let by_workers = by_workers.collect::<Result<Vec<_>>>()?;
        let by_limits =
            LIMITS.iter().map(|limits| Ok((*limits, measure(kind, WORKERS_THEN, *limits, quick)?)));
        let by_limits = by_limits.collect::<Result<Vec<_>>>()?;
        let ratio = |row: &[(u64, f64)]| match (row.first(), row.last()) {
            (Some(first), Some(last)) => last.1 / first.1,
            _ => f64::NAN,
        };
        let row = |row: &[(u64, f64)]| -> Map<String, Value> {
            row.iter().map(|(count, ns)| (count.to_string(), json!(ns.round()))).collect()
        };
        figures.insert(
            name.to_owned(),
            json!({
                "nanoseconds_by_workers": row(&by_workers),
                "nanoseconds_by_limits": row(&by_limits),
                "ratio_2000_to_10_workers": ratio(&by_workers),
                "ratio_100_to_1_limits": ratio(&by_limits),
            }),
        );
    }
    figures.insert("limits_per_message_while_workers_grow".to_owned(), json!(LIMITS_THEN));
    figures.insert("workers_while_limits_grow".to_owned(), json!(WORKERS_THEN));
    Ok(figures.into())
}

/// Nanoseconds per heartbeat.
fn measure(kind: Kind, workers: u64, limits: u64, quick: bool) -> Result<f64> {
    let mut fleet = Fleet::new(kind, workers, limits)?;
    // Three turns of the whole fleet: everybody holds what it will hold.
    for _ in 0..3 * workers {
        fleet.beat()?;
    }
    let rounds = if quick { 3 } else { 9 };
    let beats = workers.max(if quick { 200 } else { 1_000 });
    let clock = clock_cost_ns();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut sum = 0;
        for _ in 0..beats {
            sum += fleet.beat()?;
        }
        times.push(sum as f64 / beats as f64 - clock);
    }
    let (ns, spread) = middle(times);
    eprintln!(
        "  {workers:5} workers, {limits:3} limits a message: {:9.2} us a heartbeat, spread {:.0}%",
        ns / 1e3,
        spread * 100.0
    );
    Ok(ns)
}

/// Time that this thread has spent on a processor, in nanoseconds.
fn own_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// What reading that clock adds to each heartbeat, in nanoseconds.
fn clock_cost_ns() -> f64 {
    let reads = 2_000;
    let sum: u64 = (0..reads)
        .map(|_| {
            let began = own_time_ns();
            own_time_ns() - began
        })
        .sum();
    sum as f64 / f64::from(reads)
}

struct Fleet {
    ledger: Ledger,
    now: LedgerTime,
    step: Span,
    next: usize,
    workers: Vec<Request>,
}

impl Fleet {
    fn new(kind: Kind, workers: u64, limits: u64) -> Result<Fleet> {
        let now = LedgerTime(1_800_000_000_000_000);
        let keys: Vec<CellKey> =
            (0..limits).map(|n| CellKey::of(&format!("provider/model-{n:03}"))).collect();
        let (rate, burst) = match kind {
            Kind::Shares => (20 * workers.max(100), 40 * workers.max(100)),
            Kind::Tokens => (workers.div_ceil(20), workers.div_ceil(20)),
        };
        let config = |key: &CellKey| CellConfig {
            key: key.clone(),
            rate: RateCurve::constant(Rate::per_second(rate)),
            burst: BurstCurve::constant(burst),
            policy: Policy::TokenBucket,
            lease: LEASE,
            priority: Priority::default(),
            fresh: true,
            initial: Initial::Full,
            queue: None,
            conduct: Default::default(),
        };
        let mut ledger = Ledger::new(Start::First, 7, now);
        let configure = Configure {
            version: Version { run: now.0, n: 1 },
            settings: Settings::default(),
            cells: keys.iter().map(config).collect(),
        };
        match ledger.apply(now, Input::Configure(configure)) {
            Output::Configured => {}
            other => bail!("not configured: {other:?}"),
        }
        let worker = |number: u64| Request {
            incarnation: Incarnation(
                u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            ),
            seq: 0,
            nonce: number,
            worker: format!("host-{number}/4711"),
            cells: keys.iter().map(|key| report(key, number)).collect(),
        };
        let workers: Vec<Request> = (1..=workers).map(worker).collect();
        Ok(Fleet { ledger, now, step: Span(EVERY.0 / workers.len() as u64), next: 0, workers })
    }

    /// One heartbeat of the next worker, and how long the ledger took, in nanoseconds.
    fn beat(&mut self) -> Result<u64> {
        self.now = self.now + self.step;
        let index = self.next;
        self.next = (self.next + 1) % self.workers.len();
        let request = &mut self.workers[index];
        request.seq += 1;
        request.nonce = request.nonce.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let input = Input::Heartbeat(request.clone());
        let began = own_time_ns();
        let output = self.ledger.apply(self.now, input);
        let took = own_time_ns() - began;
        let Output::Reply(Ok(reply)) = output else { bail!("no reply: {output:?}") };
        for (report, cell) in request.cells.iter_mut().zip(&reply.cells) {
            let CellOutcome::Lease(terms) = &cell.outcome else { bail!("no lease of {}", cell.key) };
            let name = LeaseName { epoch: reply.epoch, seq: reply.seq };
            report.acting = Some(Acting { name, share: terms.share, cap: terms.cap });
            report.used += terms.tokens.milli_floor() / 1_000;
            // Demand moves a little, as real demand does.
            report.demand = report.demand / 2 + (request.nonce >> 44) * 5;
            report.waiting = u64::from(terms.tokens == Amount::ZERO);
        }
        Ok(took)
    }
}

fn report(key: &CellKey, number: u64) -> CellReport {
    CellReport {
        key: key.clone(),
        borrowed: false,
        for_tier: None,
        acting: None,
        held: Amount::ZERO,
        used: 0,
        returned: Amount::ZERO,
        debt: Amount::ZERO,
        out: 0,
        demand: 5_000_000 + number * 10_000,
        waiting: 1,
        largest: 1,
    }
}
