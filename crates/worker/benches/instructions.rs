//! One acquire and one heartbeat, for an instrument that counts instructions. `cargo xtask bench --check` runs it.
//!
//! `instructions NAME` does [`TIMES`] times what [`counted`] then holds, in a function whose name the instrument looks for.
//! Clocks stand still, so that every run does the same.

#![allow(clippy::panic, clippy::print_stderr, clippy::unwrap_used, reason = "a program for a terminal")]

use futures_util::future::BoxFuture;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use tollgate_core::bucket::{Now, PlainLevel};
use tollgate_core::client::{Action, Client};
use tollgate_core::curve::Rate;
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::message::Incarnation;
use tollgate_core::units::{BootTime, LedgerTime, Span, WallTime};
use tollgate_worker::clock::Clock;
use tollgate_worker::transport::Transport;
use tollgate_worker::{Gate, Options, TransportError};
use tollgate_workflows::wire::lease::{HeartbeatJson, HeartbeatReplyJson};

/// How often the counted function does its work in one run.
const TIMES: u64 = 1_000;
const LIMITS: usize = 10;

/// What the instrument counts.
#[inline(never)]
fn counted(mut work: impl FnMut()) {
    for _ in 0..TIMES {
        work();
    }
}

fn ledger(limits: usize) -> Ledger {
    let mut ledger = Ledger::new(Start::First, 7, at(0));
    let lease = Span::from_secs(60);
    let rate = Rate::per_second(1_000_000);
    let cells = (0..limits).map(|limit| CellConfig::constant(&name(limit), rate, 1_000_000, lease)).collect();
    let version = Version { run: 1, n: 1 };
    let configure = Configure { version, settings: Settings::default(), cells };
    assert_eq!(ledger.apply(at(0), Input::Configure(configure)), Output::Configured);
    ledger
}

fn name(limit: usize) -> String {
    format!("limit-{limit}")
}

fn at(us: u64) -> LedgerTime {
    LedgerTime(1_000_000 + us)
}

fn now(us: u64) -> Now {
    Now { boot: BootTime(1_000_000 + us), wall: WallTime(1_000_000 + us) }
}

struct Still;

impl Clock for Still {
    fn boot(&self) -> BootTime {
        now(0).boot
    }
    fn now(&self) -> Now {
        now(0)
    }
}

struct Memory(Mutex<Ledger>);

impl Transport for Memory {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            match self.0.lock().unwrap().apply(at(0), Input::Heartbeat(request.check().unwrap())) {
                Output::Reply(answer) => Ok(HeartbeatReplyJson::of(&answer)),
                other => Err(TransportError::Rejected(format!("{other:?}"))),
            }
        })
    }
    fn revoke(&self, _: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A permit that is there, taken and dropped.
fn acquire() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_gate, limit) = runtime.block_on(async {
        let options = Options::new().clock(Arc::new(Still)).limit(name(0));
        let gate = Gate::with_transport(Arc::new(Memory(Mutex::new(ledger(1)))), options).unwrap();
        let limit = gate.limit(&name(0));
        drop(limit.acquire().await.unwrap());
        (gate, limit)
    });
    assert!(limit.try_acquire(1).is_ok());
    counted(|| assert!(black_box(limit.try_acquire(1)).is_ok()));
}

/// A worker asks for ten limits, the ledger answers, the worker takes the answer in.
fn heartbeat() {
    let mut ledger = ledger(LIMITS);
    let mut client = Client::new(Incarnation(7), "w", 7);
    for limit in 0..LIMITS {
        client.add_cell(CellKey::of(&name(limit)), false, PlainLevel::default());
    }
    let mut us = 0;
    let mut round = || {
        loop {
            match client.poll(now(us), us) {
                Action::Idle { until } => us = until.since(now(0).boot).0.max(us + 1),
                Action::Send(request) => {
                    match ledger.apply(at(us), Input::Heartbeat(request)) {
                        Output::Reply(Ok(reply)) => assert!(client.on_reply(now(us), &reply)),
                        other => panic!("{other:?}"),
                    }
                    return;
                }
            }
        }
    };
    // The first ones make the worker known.
    (0..10).for_each(|_| round());
    counted(round);
}

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    match std::env::args().nth(1).as_deref() {
        Some("acquire") => acquire(),
        Some("heartbeat") => heartbeat(),
        _ => {
            eprintln!("instructions acquire | heartbeat");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
