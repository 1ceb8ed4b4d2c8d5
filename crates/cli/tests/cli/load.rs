//! Many messages: none lost, none twice, no run too long, and no error reaches a worker.

use crate::fleet::{Log, Worker};
use crate::past::Run;
use crate::world::{World, eventually, run};
use futures_util::future::join_all;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use tollgate_worker::state::Coordinator;
use tollgate_worker::{Gate, Options, Strict};
use tollgate_workflows::wire;

/// Workers of a load.
const WORKERS: u32 = 10;

/// Lets ten workers send so many heartbeats each, evenly spread, and returns what they have seen.
async fn heartbeats(world: &Arc<World>, per_second: u64, seconds: u64) -> (Vec<Worker>, Duration) {
    let began = Instant::now();
    let each = per_second * seconds / u64::from(WORKERS);
    let period = Duration::from_secs(seconds) / u32::try_from(each).unwrap();
    let tasks = (0..WORKERS).map(|number| {
        let world = Arc::clone(world);
        tokio::spawn(async move {
            let mut worker = Worker::new(&world, number, "api");
            tokio::time::sleep(period * number / WORKERS).await;
            let mut tick = interval(period);
            tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for _ in 0..each {
                tick.tick().await;
                worker.beat().await;
            }
            worker
        })
    });
    let workers = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    (workers, began.elapsed())
}

/// That the coordinator knows every heartbeat of every worker, and has counted every token once.
async fn nothing_is_lost(world: &World, workers: &mut [Worker]) {
    let mut used = 0;
    for worker in workers.iter_mut() {
        // The first report is the baseline that usage counts from.
        let reported = worker.request();
        worker.send(&reported).await;
        used += reported.cells[0].used;
        let seen =
            world.query(&world.coordinator(), "worker", &json!({"worker": worker.incarnation()})).await;
        assert_eq!(seen["workers"][0]["seq"], reported.seq, "{seen}");
    }
    let status = world.status().await;
    assert_eq!(status.workers, u64::from(WORKERS));
    assert_eq!(status.limits[0].used, used, "every token is counted once");
    assert_eq!((status.resets, status.unreadable.count), (0, 0));
}

fn report(what: &str, workers: Vec<Worker>, took: Duration, runs: usize, longest: usize) {
    let mut log = Log::default();
    workers.into_iter().for_each(|worker| log.add(worker.log));
    let (p50, p99, slowest) = log.percentiles();
    println!(
        "{what}: {} answers in {:.1} s, p50 {p50:?}, p99 {p99:?}, slowest {slowest:?}; {runs} runs, the longest has \
         {longest} events; tries again: {:?}",
        log.took.len(),
        took.as_secs_f64(),
        log.tries
    );
}

/// Seconds of load: what the variable says, for longer runs by hand.
fn seconds(default: u64) -> u64 {
    std::env::var("TOLLGATE_LOAD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Heartbeats a second.
fn per_second(default: u64) -> u64 {
    std::env::var("TOLLGATE_LOAD_RATE").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn heartbeats_cross_continue_as_new_without_error_or_loss() {
    run(async {
        let world = Arc::new(World::new("load").await);
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "200/s", "--burst", "40"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let (mut workers, took) = heartbeats(&world, per_second(60), seconds(50)).await;
        nothing_is_lost(&world, &mut workers).await;
        let runs = world.healthy_runs(&world.coordinator()).await;
        let longest = runs.iter().map(|run| run.events.len()).max().unwrap_or(0);
        for run in &runs {
            assert_eq!(run.failures(), [], "heartbeats alone fail no task");
        }
        if let Some(folder) = std::env::var_os("TOLLGATE_KEEP_HISTORIES") {
            for (index, run) in runs.iter().enumerate() {
                let file = std::path::Path::new(&folder).join(format!("coordinator-load-{index}.json"));
                std::fs::write(file, world.history_json(&world.coordinator(), &run.id).await).unwrap();
            }
        }
        report("heartbeats", workers, took, runs.len(), longest);
        assert!(runs.len() > 3, "only {} runs: the load was too light to show anything", runs.len());
        assert_eq!(world.status().await.runs + 1, runs.len() as u64);
    });
}

#[test]
fn signals_among_heartbeats_are_all_handled_once_across_continue_as_new() {
    run(async {
        let world = Arc::new(World::new("mixed").await);
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "200/s", "--burst", "40"]);
        // Nothing is minted, so that what is left tells how many were granted.
        world.tollgate_ok(&["limit", "set", "once", "--rate", "0/s", "--burst", "100000"]);
        world.status_when("both limits arrive", |status| status.limits.len() == 2).await;
        let id = world.coordinator();
        let kept = json!({"id": "kept", "client": "c", "limit": "once", "lease_ms": 120_000});
        let granted = world.update(&id, "acquire", &kept).await.unwrap();
        assert_eq!(granted["status"], "granted", "{granted}");
        let seconds = 25;
        let sent = AtomicU64::new(0);
        let signals = (0..4u64).map(async |lane| {
            let mut tick = interval(Duration::from_millis(200));
            for n in 0..seconds * 5 {
                tick.tick().await;
                let name = format!("{lane}-{n}");
                let permit = json!({"id": name, "client": "c", "limit": "once", "lease_ms": 60_000});
                world.signal(&id, "lease", wire::write(&permit)).await;
                let used = json!({"id": name, "limit": "once", "used": 1});
                world.signal(&id, "report", wire::write(&used)).await;
                world.signal(&id, "lease", wire::payload("json/plain", b"{nope".to_vec())).await;
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (_, (workers, took)) = tokio::join!(join_all(signals), heartbeats(&world, 30, seconds));
        let sent = sent.load(Ordering::Relaxed);
        let status =
            world.status_when("every signal is handled", |status| status.unreadable.count >= sent).await;
        assert_eq!(status.unreadable.count, sent, "every signal is counted once");
        let once = status.limits.iter().find(|row| row.limit == "once").unwrap();
        assert_eq!((once.used, once.free_milli), (sent, (100_000 - 1 - sent) * 1_000), "{once:?}");
        // The same id is the same permit, runs later.
        let again = world.update(&id, "acquire", &kept).await.unwrap();
        assert_eq!(again["status"], "granted", "{again}");
        let after = world.status().await;
        let once = after.limits.iter().find(|row| row.limit == "once").unwrap();
        assert_eq!((once.free_milli, once.cap_milli), ((100_000 - 1 - sent) * 1_000, 1_000), "{once:?}");
        assert!(after.runs > 0);
        for worker in &workers {
            let seen = world.query(&id, "worker", &json!({"worker": worker.incarnation()})).await;
            assert_eq!(seen["workers"][0]["seq"], 30 * seconds / u64::from(WORKERS), "{seen}");
        }
        let runs = world.healthy_runs(&id).await;
        let longest = runs.iter().map(|run| run.events.len()).max().unwrap_or(0);
        let failed: usize = runs.iter().map(|run| run.failures().len()).sum();
        report(
            &format!("heartbeats among {} signals ({failed} tasks done again)", sent * 3),
            workers,
            took,
            runs.len(),
            longest,
        );
        assert!(runs.len() > 1, "no continue-as-new: the load was too light to show anything");
    });
}

/// Lets as many workers, each a process with a connection of its own, have as many callers each that acquire permits one
/// after another. Every one is granted, and no error of the server reaches a caller.
async fn crowd(namespace: &str, workers: u64, callers: u64, each: u64) {
    let world = World::new(namespace).await;
    let _host = world.host();
    world.tollgate_ok(&["limit", "set", "once", "--rate", "0/s", "--burst", "100000"]);
    world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
    let began = Instant::now();
    let mut tasks = Vec::new();
    let mut processes = Vec::new();
    for _ in 0..workers {
        let strict = Strict::new(&world.connect().await, &world.group).unwrap();
        for _ in 0..callers {
            let strict = strict.clone();
            tasks.push(tokio::spawn(async move {
                let mut took = Vec::new();
                for _ in 0..each {
                    let began = Instant::now();
                    let permit = strict.acquire("once").lease(Duration::from_secs(60)).await;
                    let permit = permit.unwrap_or_else(|error| panic!("an error reached a caller: {error}"));
                    took.push(began.elapsed());
                    assert!(permit.is_valid());
                    permit.used(1);
                }
                took
            }));
        }
        processes.push(strict);
    }
    let mut log = Log::default();
    for took in join_all(tasks).await {
        log.took.extend(took.unwrap());
    }
    let took = began.elapsed();
    join_all(processes.iter().map(Strict::flush)).await;
    let count = workers * callers * each;
    assert_eq!(log.took.len() as u64, count);
    let status = world.status_when("all is reported", |status| status.limits[0].cap_milli == 0).await;
    assert_eq!(
        status.limits[0].free_milli,
        (100_000 - count) * 1_000,
        "one token for each: {:?}",
        status.limits[0]
    );
    assert_eq!((status.limits[0].used, status.unreadable.count), (count, 0), "{status:?}");
    let runs = world.healthy_runs(&world.coordinator()).await;
    let updates = runs.iter().map(Run::updates).max().unwrap_or(0);
    let failed: usize = runs.iter().map(|run| run.failures().len()).sum();
    let (p50, p99, slowest) = log.percentiles();
    println!(
        "{count} acquires by {workers} workers with {callers} callers each: {:.1} s, p50 {p50:?}, p99 {p99:?}, slowest \
         {slowest:?}; {} runs, at most {updates} updates in one, {failed} tasks done again",
        took.as_secs_f64(),
        runs.len()
    );
    assert!(updates < 2_000, "a run took {updates} updates");
}

#[test]
fn a_crowd_of_acquires_gets_no_limit_error_and_each_id_one_permit() {
    run(crowd("crowd", 10, 5, 100));
}

#[test]
fn thirty_processes_at_once_do_not_abort_each_other() {
    run(crowd("thirty", 30, 1, 30));
}

#[test]
fn a_flood_of_signals_is_handled_once_and_makes_no_run_too_long() {
    run(async {
        let world = World::new("flood").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "once", "--rate", "0/s", "--burst", "100000"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let id = world.coordinator();
        let (senders, each, permits) = (64, 63, 15);
        let began = Instant::now();
        let sent = (0..senders).map(async |sender| {
            for n in 0..each {
                let name = format!("{sender}-{n}");
                let permit = json!({"id": name, "client": "c", "limit": "once", "lease_ms": 120_000});
                let input = if n % 4 == 0 && n / 4 < permits {
                    wire::write(&permit)
                } else {
                    wire::payload("json/plain", b"{nope".to_vec())
                };
                world.signal(&id, "lease", input).await;
            }
        });
        join_all(sent).await;
        let took = began.elapsed();
        let (granted, refused) = (senders * permits, senders * (each - permits));
        let status =
            world.status_when("every signal is handled", |status| status.unreadable.count >= refused).await;
        assert_eq!(status.unreadable.count, refused, "every signal is counted once");
        assert_eq!(status.limits[0].free_milli, (100_000 - granted) * 1_000, "{:?}", status.limits[0]);
        let runs = world.healthy_runs(&id).await;
        let lengths: Vec<usize> = runs.iter().map(|run| run.events.len()).collect();
        let failed: Vec<_> = runs.iter().map(Run::failed_at).collect();
        println!(
            "{} signals by {senders} senders: {:.1} s; runs of {lengths:?} events, tasks done again: {failed:?}",
            senders * each,
            took.as_secs_f64()
        );
        assert!(runs.len() > 1, "no continue-as-new: the load was too light to show anything");
    });
}

#[test]
fn forty_gates_come_back_after_an_outage_of_the_coordinator_host() {
    run(async {
        let world = World::new("herd").await;
        let host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "400/s", "--burst", "80", "--lease", "30s"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut gates = Vec::new();
        for _ in 0..40 {
            let options = Options::new().group(&*world.group).limit("api").notices(false);
            gates.push(Gate::connect(world.connect().await, options).await.unwrap());
        }
        let answered = |gate: &&Gate| gate.state().coordinator == Coordinator::Reachable;
        let all = async |what: &str, wanted: bool| {
            let began = Instant::now();
            eventually(what, Duration::from_secs(90), async || {
                let count = gates.iter().filter(|gate| answered(gate) == wanted).count();
                if count == gates.len() {
                    Ok(began.elapsed())
                } else {
                    Err(format!("{count} of {}", gates.len()))
                }
            })
            .await
        };
        let took = all("all gates are answered", true).await;
        println!("{} gates: all answered within {took:?} of the last one's start", gates.len());
        tokio::task::block_in_place(|| host.kill());
        let took = all("all gates notice", false).await;
        let _host = world.host();
        let back = all("all gates are answered again", true).await;
        println!(
            "{} gates: all noticed an outage within {took:?}, and were answered {back:?} after it",
            gates.len()
        );
        assert!(back < Duration::from_secs(30), "the herd took {back:?}");
        world.healthy_runs(&world.coordinator()).await;
    });
}

#[test]
fn heartbeats_go_on_within_three_seconds_when_one_of_two_hosts_is_killed() {
    run(async {
        let world = World::new("two-hosts").await;
        let (one, two) = (world.host(), world.host());
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut worker = Worker::new(&world, 1, "api");
        let mut hosts = vec![one, two];
        // Whichever it is that has the workflow in its memory: each is killed once, and replaced.
        for round in 0..2 {
            for _ in 0..10 {
                worker.beat().await;
            }
            let killed = hosts.remove(0);
            tokio::task::block_in_place(|| killed.kill());
            let gap = eventually("heartbeats go on", Duration::from_secs(20), async || {
                let began = Instant::now();
                worker.beat().await;
                Ok(began.elapsed())
            })
            .await;
            println!("kill {round} of one of two hosts: the next heartbeat took {gap:?}");
            assert!(gap < Duration::from_secs(3), "the heartbeat after kill {round} took {gap:?}");
            if round == 0 {
                hosts.push(world.host());
            }
        }
        world.healthy_runs(&world.coordinator()).await;
    });
}
