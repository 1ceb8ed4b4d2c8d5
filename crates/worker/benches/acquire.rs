//! What it costs to ask before a piece of work: `Limit::try_acquire` against the crate governor, in the same run.
//!
//! `cargo bench --workspace --bench acquire [-- --json] [--rounds N]`. Both sides are called as their users call them, in short rounds
//! that alternate, so that whatever else happens on the machine happens to both; the medians of the rounds are compared.
//!
//! The gate's transport is in memory and grants plenty. `granted`: every request gets its permit, which is dropped. `refused`: the limit is
//! used up, and every request is told when to come back. `meters`: three meters of one limit at once against one of them, and
//! permits that are held in flight and released, which takes a lock, alone and with two rate meters. Nanoseconds are per request of one thread, while it is the only
//! one or while another one asks the same limit. Rounds in which a thread had to leave the processor don't count: they would show
//! two threads that don't meet.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a program for a terminal"
)]
#![allow(clippy::cast_precision_loss, reason = "times of a benchmark")]

use clap::Parser;
use futures_util::future::BoxFuture;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde_json::{Value, json};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tollgate_core::curve::Rate;
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::policy::Policy;
use tollgate_core::units::{LedgerTime, Span};
use tollgate_worker::clock::{Clock, CounterClock, SystemClock};
use tollgate_worker::transport::Transport;
use tollgate_worker::{Gate, Limit, Meters, Options, TransportError};
use tollgate_workflows::wire::lease::{HeartbeatJson, HeartbeatReplyJson};

/// Requests of one thread in one round: half a millisecond, so that most rounds are not interrupted.
const GRANTED: u32 = 20_000;
const REFUSED: u32 = 2_000;
/// More than all rounds together take.
const PLENTY: u64 = 4_000_000_000;
const LEASE: Span = Span::from_secs(60);
/// Further meters of the limit with plenty.
const MORE: [(&str, Policy); 3] = [
    ("tokens", Policy::TokenBucket),
    ("bytes", Policy::TokenBucket),
    (CellKey::IN_FLIGHT, Policy::InFlight { drain: Span::ZERO }),
];
/// A thread that had less of its time on a processor was interrupted.
const UNDISTURBED_PERCENT: u128 = 97;
/// Threads whose rounds overlap less than this didn't meet.
const TOGETHER_PERCENT: u128 = 80;
/// So many undisturbed rounds make a median; on a busy machine there are more rounds.
const ROUNDS_MIN: usize = 25;
/// But not for longer than this.
const COMPARE_FOR_MAX: Duration = Duration::from_secs(12);

/// A ledger in this process.
struct Memory {
    ledger: Mutex<Ledger>,
    start: Instant,
}

impl Memory {
    fn new(limits: &[(&str, Rate, u64)]) -> Memory {
        let start = Instant::now();
        let mut ledger = Ledger::new(Start::First, 7, LedgerTime(1));
        let cells = limits.iter().map(|(name, rate, burst)| CellConfig::constant(name, *rate, *burst, LEASE));
        let plenty = Rate::per_second(PLENTY);
        let more = MORE.map(|(meter, policy)| {
            let one = CellConfig::constant("plenty", plenty, PLENTY, LEASE);
            CellConfig { key: CellKey { meter: meter.to_owned(), ..one.key }, policy, ..one }
        });
        let version = Version { run: 1, n: 1 };
        let cells = cells.chain(more).collect();
        let configure = Configure { version, settings: Settings::default(), cells };
        assert_eq!(ledger.apply(LedgerTime(1), Input::Configure(configure)), Output::Configured);
        Memory { ledger: Mutex::new(ledger), start }
    }

    fn apply(&self, input: Input) -> Output {
        let now = LedgerTime(1) + Span(u64::try_from(self.start.elapsed().as_micros()).unwrap());
        self.ledger.lock().unwrap().apply(now, input)
    }
}

impl Transport for Memory {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        Box::pin(async move {
            match self.apply(Input::Heartbeat(request.check().unwrap())) {
                Output::Reply(answer) => Ok(HeartbeatReplyJson::of(&answer)),
                other => Err(TransportError::Rejected(format!("{other:?}"))),
            }
        })
    }

    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        self.apply(Input::Revoke(request.check().unwrap()));
        Box::pin(async { Ok(()) })
    }
}

#[derive(Parser)]
struct Arguments {
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 201)]
    rounds: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Makes so many requests.
type Subject<'a> = &'a (dyn Fn(u32) + Sync);

/// Nanoseconds per request in one round, `None` when a thread was interrupted, or when two didn't meet.
fn round(subject: Subject<'_>, threads: usize, requests: u32) -> Option<f64> {
    let ready = AtomicUsize::new(0);
    let begin = Mutex::new(Vec::new());
    let run = || {
        // All are on a processor when the last one comes.
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        let (wall, cpu) = (Instant::now(), cpu_time());
        subject(requests);
        let (begun, wall, cpu) = (wall, wall.elapsed(), cpu_time() - cpu);
        begin.lock().unwrap().push((begun, begun + wall));
        let undisturbed = cpu.as_nanos() * 100 >= wall.as_nanos() * UNDISTURBED_PERCENT;
        undisturbed.then(|| wall.as_nanos() as f64 / f64::from(requests))
    };
    let times: Vec<Option<f64>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        others.into_iter().map(|other| other.join().unwrap()).chain([own]).collect()
    });
    let spans = begin.into_inner().unwrap();
    let last_begin = spans.iter().map(|(begin, _)| *begin).max()?;
    let together = spans.iter().map(|(_, end)| *end).min()?.checked_duration_since(last_begin)?;
    let longest = spans.iter().map(|(begin, end)| *end - *begin).max()?;
    if together.as_nanos() * 100 < longest.as_nanos() * TOGETHER_PERCENT {
        return None;
    }
    let sum: Option<f64> = times.iter().copied().sum();
    sum.map(|sum| sum / threads as f64)
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// The medians of all subjects' undisturbed rounds, which alternate.
fn compare<const N: usize>(
    subjects: [Subject<'_>; N],
    threads: usize,
    requests: u32,
    rounds: usize,
) -> [Median; N] {
    let begin = Instant::now();
    let mut times = [const { Vec::new() }; N];
    for done in 0.. {
        let enough = done >= rounds && times.iter().all(|times| times.len() >= ROUNDS_MIN);
        if enough || begin.elapsed() > COMPARE_FOR_MAX {
            break;
        }
        for (subject, times) in subjects.iter().zip(&mut times) {
            times.extend(round(*subject, threads, requests));
        }
    }
    times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        Median { nanoseconds: times.get(times.len() / 2).copied().unwrap_or(f64::NAN), rounds: times.len() }
    })
}

#[derive(Clone, Copy)]
struct Median {
    nanoseconds: f64,
    rounds: usize,
}

impl Median {
    fn ratio(self, peer: Median) -> Value {
        json!((self.nanoseconds / peer.nanoseconds * 1_000.0).round() / 1_000.0)
    }
    fn json(self) -> Value {
        json!((self.nanoseconds * 10.0).round() / 10.0)
    }
}

fn grants(limit: &Limit) -> impl Fn(u32) + Sync + '_ {
    |requests| {
        for _ in 0..requests {
            let answer = limit.try_acquire(1);
            assert!(black_box(&answer).is_ok());
        }
    }
}

fn grants_all<const N: usize>(meters: &Meters<N>) -> impl Fn(u32) + Sync + '_ {
    |requests| {
        for _ in 0..requests {
            let answer = meters.try_acquire([1; N]);
            assert!(black_box(&answer).is_ok());
        }
    }
}

fn refuses(limit: &Limit) -> impl Fn(u32) + Sync + '_ {
    |requests| {
        for _ in 0..requests {
            let answer = limit.try_acquire(1);
            assert!(black_box(&answer).is_err());
        }
    }
}

fn governor(quota: Quota) -> DefaultDirectRateLimiter {
    RateLimiter::direct(quota)
}

/// A gate that has leases of both limits, and its limits: one with plenty, one that is used up.
async fn gate(clock: Option<Arc<dyn Clock>>) -> (Gate, Limit, Limit) {
    let memory = Memory::new(&[
        ("plenty", Rate::per_second(PLENTY), PLENTY),
        ("nothing", Rate::new(1, Span::from_secs(3_600)), 1),
    ]);
    let options = Options::new().limit("plenty").limit("nothing");
    let options = MORE.iter().fold(options, |options, (meter, _)| options.meter("plenty", *meter));
    let options = if let Some(clock) = clock { options.clock(clock) } else { options };
    let gate = Gate::with_transport(Arc::new(memory), options).unwrap();
    let (plenty, nothing) = (gate.limit("plenty"), gate.limit("nothing"));
    drop(nothing.acquire().await.unwrap());
    // Asking for much brings much.
    for meter in [CellKey::METER, "tokens", "bytes", CellKey::IN_FLIGHT] {
        let meter = gate.meter("plenty", meter);
        while meter.acquire().cost(PLENTY / 4).timeout(Duration::from_secs(10)).await.is_err() {}
    }
    let there = |gate: &Gate| {
        let plenty = gate.state().limits.into_iter().filter(|limit| limit.limit == "plenty");
        plenty.map(|limit| limit.level).min().unwrap_or(0)
    };
    let begin = Instant::now();
    while there(&gate) < i64::try_from(PLENTY / 2).unwrap() && begin.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (gate, plenty, nothing)
}

fn main() {
    let options = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let counter = CounterClock::new();
    let (fast_gate, plenty, nothing) = runtime.block_on(gate(None));
    let (slow_gate, slow_plenty, slow_nothing) = runtime.block_on(gate(Some(Arc::new(SystemClock))));
    let begin = Instant::now();
    while !counter.uses_counter() && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let clock = if counter.uses_counter() { "time-stamp counter" } else { "system" };

    let most = NonZeroU32::new(u32::try_from(PLENTY).unwrap()).unwrap();
    let peer_plenty = governor(Quota::per_second(most).allow_burst(most));
    let peer_nothing = governor(Quota::per_hour(NonZeroU32::MIN));
    assert!(peer_nothing.check().is_ok());
    let peer_grants = |requests| (0..requests).for_each(|_| assert!(black_box(peer_plenty.check()).is_ok()));
    let peer_refuses =
        |requests| (0..requests).for_each(|_| assert!(black_box(peer_nothing.check()).is_err()));

    let mut ratios = json!({});
    let mut refused_ratios = json!({});
    let mut nanoseconds = json!({"tollgate": {}, "tollgate_fallback": {}, "governor": {}});
    let mut rounds = json!({});
    for (kind, requests, subjects) in [
        ("granted", GRANTED, [&grants(&plenty) as Subject<'_>, &grants(&slow_plenty), &peer_grants]),
        ("refused", REFUSED, [&refuses(&nothing), &refuses(&slow_nothing), &peer_refuses]),
    ] {
        for threads in [1, 2] {
            let [ours, fallback, peer] = compare(subjects, threads, requests, options.rounds);
            let name = format!("{kind}_threads_{threads}");
            nanoseconds["tollgate"][&name] = ours.json();
            nanoseconds["tollgate_fallback"][&name] = fallback.json();
            nanoseconds["governor"][&name] = peer.json();
            rounds[&name] = json!(ours.rounds.min(fallback.rounds).min(peer.rounds));
            let into = if kind == "granted" { &mut ratios } else { &mut refused_ratios };
            into[format!("threads_{threads}")] = ours.ratio(peer);
            into[format!("fallback_threads_{threads}")] = fallback.ratio(peer);
            if !options.json {
                println!(
                    "{name}: {:.1} ns, with the system's clock {:.1} ns, governor {:.1} ns ({} rounds)",
                    ours.nanoseconds, fallback.nanoseconds, peer.nanoseconds, rounds[&name]
                );
            }
        }
    }
    let one = grants(&plenty);
    let three = fast_gate.meters("plenty", [CellKey::METER, "tokens", "bytes"]);
    let held = fast_gate.meter("plenty", CellKey::IN_FLIGHT);
    let three_held = fast_gate.meters("plenty", [CellKey::METER, "tokens", CellKey::IN_FLIGHT]);
    let subjects: [Subject<'_>; 4] = [&one, &grants_all(&three), &grants(&held), &grants_all(&three_held)];
    let mut meters = json!({});
    for threads in [1, 2] {
        let [one, three, held, three_held] = compare(subjects, threads, GRANTED, options.rounds);
        let figures = json!({
            "one": one.json(),
            "meters_3": three.json(),
            "in_flight": held.json(),
            "meters_3_in_flight": three_held.json(),
            "ratio_3_to_1": three.ratio(one),
            "ratio_in_flight_to_1": held.ratio(one),
            "ratio_3_in_flight_to_in_flight": three_held.ratio(held),
            "undisturbed_rounds": one.rounds.min(three.rounds).min(held.rounds).min(three_held.rounds),
        });
        if !options.json {
            println!("meters, threads {threads}: {figures}");
        }
        meters[format!("threads_{threads}")] = figures;
    }
    let result = json!({ "acquire": {
        "clock": clock,
        "nanoseconds": nanoseconds,
        "ratio_to_governor": ratios,
        "ratio_to_governor_refused": refused_ratios,
        "undisturbed_rounds": rounds,
        "meters": meters,
    }});
    if options.json {
        println!("{result:#}");
    } else {
        println!("clock: {clock}; ratios to governor: {ratios}, refused {refused_ratios}");
    }
    runtime.block_on(async {
        fast_gate.shutdown().await.unwrap();
        slow_gate.shutdown().await.unwrap();
    });
}
