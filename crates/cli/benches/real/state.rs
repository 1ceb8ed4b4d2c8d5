//! What a coordinator carries through continue-as-new, and how long writing and taking up take.

use crate::Failure;
use crate::figures::{middle, short};
use crate::heartbeat::limit;
use serde_json::{Map, Value, json};
use std::time::Instant;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::{Configure, HOLDINGS_MAX, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Initial, Version};
use tollgate_core::message::{Acting, CellOutcome, CellReport, Incarnation, LeaseName, Request};
use tollgate_core::policy::Policy;
use tollgate_core::tier::Priority;
use tollgate_core::units::{Amount, LedgerTime, Span};
use tollgate_workflows::{proto, state};

const FLEETS: [usize; 3] = [10, 200, 1_000];
const LIMITS: usize = 20;
/// The most that Temporal takes as the input of a workflow, by default.
const INPUT_BYTES_MAX: usize = 2 * 1024 * 1024;

pub(crate) fn run(quick: bool) -> Result<Value, Failure> {
    let rounds = if quick { 5 } else { 31 };
    let mut figures = Map::new();
    for workers in FLEETS {
        // A group holds so many pairs of worker and limit.
        let each = LIMITS.min(HOLDINGS_MAX / workers);
        let ledger = ledger(workers, each)?;
        let (mut encode, mut take_up, mut size) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let began = Instant::now();
            let carried =
                proto::Coordinator { ledger: Some(state::ledger(ledger.state())), ..Default::default() };
            let bytes = state::encode(&carried);
            encode.push(began.elapsed().as_secs_f64());
            size = bytes.len();
            let began = Instant::now();
            let carried = state::decode(&bytes)?.ledger.ok_or("no ledger in the state")?;
            let resumed = Ledger::resume(state::ledger_of(carried)?);
            take_up.push(began.elapsed().as_secs_f64());
            if resumed.state() != ledger.state() {
                return Err("the state that comes back is another one".into());
            }
        }
        let ((encode, _), (take_up, _)) = (middle(encode), middle(take_up));
        eprintln!(
            "  {workers:5} workers with {each} of {LIMITS} limits: {:.1} KiB, written in {:.2} ms, taken up in {:.2} ms",
            size as f64 / 1024.0,
            encode * 1e3,
            take_up * 1e3
        );
        figures.insert(
            format!("workers_{workers}"),
            json!({
                "limits_of_a_worker": each,
                "bytes": size,
                "bytes_per_holding": short(size as f64 / (workers * each) as f64),
                "part_of_input_limit": short(size as f64 / INPUT_BYTES_MAX as f64),
                "milliseconds_encode": short(encode * 1e3),
                "milliseconds_take_up": short(take_up * 1e3),
                "milliseconds": short((encode + take_up) * 1e3),
            }),
        );
    }
    figures.insert("limits".to_owned(), json!(LIMITS));
    figures.insert("rounds".to_owned(), json!(rounds));
    Ok(figures.into())
}

/// A ledger in full use: every worker has acknowledged one lease of each of its limits, and another one is on its way.
fn ledger(workers: usize, each: usize) -> Result<Ledger, Failure> {
    let mut now = LedgerTime(1_800_000_000_000_000);
    let keys: Vec<CellKey> = (0..LIMITS).map(|number| CellKey::of(&limit(number))).collect();
    let config = |key: &CellKey| CellConfig {
        key: key.clone(),
        rate: RateCurve::constant(Rate::per_second(50_000)),
        burst: BurstCurve::constant(100_000),
        policy: Policy::TokenBucket,
        lease: Span::from_secs(15),
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
    if ledger.apply(now, Input::Configure(configure)) != Output::Configured {
        return Err("the ledger takes no configuration".into());
    }
    let request = |number: usize| Request {
        incarnation: Incarnation(
            (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        ),
        seq: 0,
        nonce: 0,
        worker: format!("host-{number}/4711"),
        cells: (0..each).map(|offset| report(&keys[(number + offset) % LIMITS], number as u64)).collect(),
    };
    let mut requests: Vec<Request> = (0..workers).map(request).collect();
    for seq in 1..=3 {
        for request in &mut requests {
            now = now + Span::from_millis(1);
            request.seq = seq;
            let Output::Reply(Ok(reply)) = ledger.apply(now, Input::Heartbeat(request.clone())) else {
                return Err("the ledger answers no heartbeat".into());
            };
            for (report, cell) in request.cells.iter_mut().zip(&reply.cells) {
                let CellOutcome::Lease(terms) = &cell.outcome else {
                    return Err("the ledger gives no lease".into());
                };
                let name = LeaseName { epoch: reply.epoch, seq };
                report.acting = Some(Acting { name, share: terms.share, cap: terms.cap });
                report.used += 7;
            }
        }
    }
    Ok(ledger)
}

fn report(key: &CellKey, number: u64) -> CellReport {
    CellReport {
        key: key.clone(),
        borrowed: false,
        for_tier: None,
        acting: None,
        held: Amount::from_milli(1_234 + number),
        used: 0,
        returned: Amount::ZERO,
        debt: Amount::ZERO,
        out: 0,
        demand: 5_000_000 + number * 1_000,
        waiting: 0,
        largest: 1,
    }
}
