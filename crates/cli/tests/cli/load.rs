//! Many messages: none lost, none twice, no run too long, and no error reaches a worker.

use crate::fleet::{Log, Worker, back_off};
use crate::world::{Sent, World, eventually, run, update_once};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
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

#[test]
fn a_crowd_of_acquires_gets_no_limit_error_and_each_id_one_permit() {
    run(async {
        let world = Arc::new(World::new("crowd").await);
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "once", "--rate", "0/s", "--burst", "100000"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let (callers, each) = (20, 30);
        let began = Instant::now();
        let tasks = (0..callers).map(|caller| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let handle = world.handle(&world.coordinator());
                let (mut took, mut tries) = (Vec::new(), 0u64);
                for n in 0..each {
                    let input =
                        json!({"id": format!("{caller}-{n}"), "client": "c", "limit": "once", "lease_ms": 120_000});
                    let began = Instant::now();
                    let mut attempt = 0;
                    let granted: Value = loop {
                        let id = Some(format!("{caller}-{n}"));
                        match update_once(&handle, "acquire", wire::write(&input), id).await {
                            Ok(value) => break crate::world::read(&value),
                            Err(Sent::Refused(problem)) => panic!("an error reached the caller: {problem}"),
                            Err(Sent::Again(problem)) => {
                                assert!(began.elapsed() < Duration::from_secs(60), "{problem}");
                                tries += 1;
                                back_off(attempt, caller * 1_000_003 + n).await;
                                attempt += 1;
                            }
                        }
                    };
                    assert_eq!(granted["status"], "granted", "{granted}");
                    took.push(began.elapsed());
                }
                (took, tries)
            })
        });
        let done: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        let mut log = Log::default();
        let tries: u64 = done.iter().map(|(_, tries)| tries).sum();
        done.into_iter().for_each(|(took, _)| log.took.extend(took));
        let (p50, p99, slowest) = log.percentiles();
        let count = log.took.len();
        println!(
            "{count} acquires, {callers} at once: {:.1} s, p50 {p50:?}, p99 {p99:?}, slowest {slowest:?}, {tries} tries again",
            began.elapsed().as_secs_f64()
        );
        let status = world.status().await;
        let left = (100_000 - count as u64) * 1_000;
        assert_eq!(status.limits[0].free_milli, left, "one token for each id: {:?}", status.limits[0]);
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
