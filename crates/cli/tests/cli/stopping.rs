//! Processes that are told to stop, and a host that starts before its namespace.

use crate::child::Child;
use crate::fleet::{Log, Worker};
use crate::world::{World, run};
use futures_util::future::join_all;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::{Client, ClientOptions, Connection};
use tollgate_worker::{AcquireError, Gate, Options, Reason};

/// Makes a test the worker process of its own: names the group.
const WORKER_VARIABLE: &str = "TOLLGATE_TEST_WORKER_OF";
/// What the worker process runs.
const WORKER_TEST: &str = "stopping::a_worker_told_to_stop_gives_its_quota_back_at_once";
/// Much longer than a revoke takes, and much shorter than the lease.
const BACK_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_worker_told_to_stop_gives_its_quota_back_at_once() {
    if let Ok(group) = std::env::var(WORKER_VARIABLE) {
        return run(work_until_told_to_stop(group));
    }
    run(async {
        let world = World::new("stopping").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20", "--lease", "2m"]);
        world.tollgate_ok(&["limit", "set", "slow", "--rate", "1/day", "--burst", "1", "--lease", "2m"]);
        world.status_when("both limits arrive", |status| status.limits.len() == 2).await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", WORKER_TEST, "--nocapture"]);
        world.environment(&mut command);
        command.env(WORKER_VARIABLE, &world.group);
        let worker = Child::start("worker", &command);
        worker.wait_ready(Duration::from_secs(60));
        let holds = |share: bool| {
            move |status: &tollgate_workflows::wire::status::StatusJson| {
                status.workers == u64::from(share)
                    && status.limits.iter().all(|row| row.limit != "api" || (row.share_ppb > 0) == share)
            }
        };
        world.status_when("the worker holds a share", holds(true)).await;
        let began = Instant::now();
        let ended = tokio::task::block_in_place(|| worker.terminate(BACK_WITHIN));
        let ended_after = began.elapsed();
        // It checks for itself what its waiter was told.
        assert_eq!(ended.code(), Some(0), "SIGTERM is a clean end");
        let status = world.status_when("its share is free", holds(false)).await;
        println!("worker: ended {ended_after:?} after SIGTERM, quota free after {:?}", began.elapsed());
        assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
        assert!(status.limits.iter().all(|row| row.holders == 0 && row.cap_milli == 0), "{status:?}");
    });
}

/// The worker process: holds a share of one limit, waits for another one, and ends when it is told to.
async fn work_until_told_to_stop(group: String) {
    let settings = LoadClientConfigProfileOptions::default();
    let (connection, client) = ClientOptions::load_from_config(settings).unwrap();
    let client = Client::new(Connection::connect(connection).await.unwrap(), client).unwrap();
    let gate = Gate::connect(client, Options::new().group(group).limits(["api", "slow"])).await.unwrap();
    let stopped = gate.shutdown_on_sigterm().unwrap();
    let _permits = (gate.acquire("api").await.unwrap(), gate.acquire("slow").await.unwrap());
    let waiter = tokio::spawn(gate.acquire("slow").into_future());
    // Its place in the queue shows in the gate's state.
    while gate.state().limits.iter().all(|limit| limit.waiting.0 == 0) {
        tokio::task::yield_now().await;
    }
    println!("\nready: holds and waits");
    stopped.await.unwrap().unwrap();
    let refused = waiter.await.unwrap().unwrap_err();
    let AcquireError::Refused { refused: reason, .. } = &refused else { panic!("{refused}") };
    assert_eq!(reason.reason, Reason::ShuttingDown);
    assert_eq!(refused.to_string(), "limit \"slow\": the gate was shut down; ask another process");
    assert!(gate.limit("api").try_acquire(1).is_err(), "nothing is granted any more");
}

#[test]
fn no_heartbeat_fails_when_one_of_two_hosts_is_told_to_stop() {
    run(async {
        let world = Arc::new(World::new("stopping-hosts").await);
        let mut hosts = vec![world.host(), world.host()];
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let over = Arc::new(AtomicBool::new(false));
        let beats = (0..4).map(|number| {
            let (world, over) = (Arc::clone(&world), Arc::clone(&over));
            tokio::spawn(async move {
                let mut worker = Worker::new(&world, number, "api");
                while !over.load(Ordering::Relaxed) {
                    worker.beat().await;
                }
                worker.log
            })
        });
        let beats = join_all(beats.collect::<Vec<_>>());
        let stops = async {
            // Whichever it is that has the workflow in its memory: each is stopped once, and the first replaced.
            for round in 0..2 {
                let before = world.status().await.limits[0].used;
                world.status_when("heartbeats go on", |status| status.limits[0].used > before + 20).await;
                let host = hosts.remove(0);
                let ended = tokio::task::block_in_place(|| host.terminate(Duration::from_secs(15)));
                assert_eq!(ended.code(), Some(0), "SIGTERM {round} is a clean end");
                if round == 0 {
                    hosts.push(tokio::task::block_in_place(|| world.host()));
                }
            }
            let before = world.status().await.limits[0].used;
            world.status_when("heartbeats go on", |status| status.limits[0].used > before + 20).await;
            over.store(true, Ordering::Relaxed);
        };
        let (beats, ()) = tokio::join!(beats, stops);
        let mut log = Log::default();
        beats.into_iter().for_each(|beat| log.add(beat.unwrap()));
        let (p50, p99, slowest) = log.percentiles();
        println!(
            "two hosts told to stop: {} heartbeats, p50 {p50:?}, p99 {p99:?}, slowest {slowest:?}",
            log.took.len()
        );
        assert!(log.tries.is_empty(), "heartbeats that failed: {:?}", log.tries);
        world.healthy_runs(&world.coordinator()).await;
    });
}

#[test]
fn a_namespace_that_is_not_there_is_named_by_every_command_and_waited_for_by_a_host() {
    run(async {
        let world = World::new("stopping").await;
        let late = [("TEMPORAL_NAMESPACE", "late")];
        for arguments in
            [&["status"][..], &["limit", "set", "api", "--rate", "5"], &["serve", "--timeout", "2s"]]
        {
            let output = world.command(arguments).envs(late).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
            let last = said.lines().last().unwrap_or_default();
            assert!(last.starts_with("error: namespace \"late\": there is none of this name on "), "{said}");
            assert!(last.contains("--namespace"), "it says what to do: {said}");
        }
        let mut command = world.command(&["serve", "--timeout", "60s"]);
        command.envs(late);
        let host = Child::start("host", &command);
        world.temporal_ok(&["operator", "namespace", "create", "--namespace", "late"]);
        host.wait_ready(Duration::from_secs(90));
        let ended = tokio::task::block_in_place(|| host.terminate(Duration::from_secs(15)));
        assert_eq!(ended.code(), Some(0));
    });
}
