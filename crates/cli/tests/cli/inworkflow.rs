//! Permits in workflows: asked for before an activity is scheduled, waited for across whatever happens, never twice.

use crate::child::Child;
use crate::jobs::{JobJson, JobWorker, LIMIT};
use crate::world::{Server, World, eventually, run};
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_worker::{Gate, Options, Outcome};
use tollgate_workflows::wire;

/// What the tests wait for at most.
const SOON: Duration = Duration::from_secs(40);

/// A group with one limit, its host, and a gate for the activities.
struct Stage {
    world: World,
    host: Option<Child>,
    gate: Gate,
}

impl Stage {
    async fn new(world: World, rate: &str, burst: &str) -> Stage {
        let host = Some(world.host());
        world.tollgate_ok(&["limit", "set", LIMIT, "--rate", rate, "--burst", burst]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let options = Options::new().group(world.group.clone()).limit(LIMIT).notices(false);
        let gate = Gate::connect(world.connect().await, options).await.unwrap();
        Stage { world, host, gate }
    }

    async fn worker(&self) -> JobWorker {
        JobWorker::start(self.world.connect().await, &self.gate)
    }

    /// What the gate handed out itself, and how the work ended that it let through.
    fn counted(&self) -> (u64, Vec<(Outcome, u64)>) {
        let state = self.gate.state();
        let counters = &state.limits[0].counters;
        (counters.granted, counters.settled.clone())
    }

    /// All permits of the coordinator, as (id, client, status).
    async fn grants(&self) -> Vec<(String, String, String)> {
        let seen = self.world.query(&self.world.coordinator(), "grants", &json!({})).await;
        let text = |grant: &Value, field: &str| grant[field].as_str().unwrap().to_owned();
        let grants = seen["grants"].as_array().unwrap().iter();
        grants.map(|grant| (text(grant, "id"), text(grant, "client"), text(grant, "status"))).collect()
    }

    /// Waits until the permits of a client are so many of each of these.
    async fn grants_when(&self, client: &str, wanted: &[(&str, usize)]) {
        eventually(&format!("{client}: {wanted:?}"), SOON, async || {
            let seen = self.grants().await;
            let count =
                |status: &str| seen.iter().filter(|(_, who, is)| who == client && is == status).count();
            let fits = wanted.iter().all(|(status, number)| count(status) == *number);
            if fits { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }

    /// Takes the whole burst of one by signal, so that everybody else waits.
    async fn occupy(&self) {
        let held = json!({"id": "held", "client": "holder", "limit": LIMIT, "lease_ms": 120_000});
        self.world.signal(&self.world.coordinator(), "lease", wire::write(&held)).await;
        self.grants_when("holder", &[("granted", 1)]).await;
    }

    /// Gives it back.
    async fn make_room(&self) {
        let released = json!({"id": "held", "limit": LIMIT, "used": 0});
        self.world.signal(&self.world.coordinator(), "report", wire::write(&released)).await;
    }

    async fn used(&self) -> u64 {
        self.world.status().await.limits[0].used
    }
}

#[test]
fn activities_run_on_the_permit_that_their_workflow_took_and_a_stale_one_is_taken_anew() {
    run(async {
        let stage = Stage::new(World::new("permits").await, "20/s", "6").await;
        let _worker = stage.worker().await;
        for n in 0..6 {
            stage.world.start_job(&format!("job-{n}"), JobJson::default()).await;
        }
        for n in 0..6 {
            let done = stage.world.result(&format!("job-{n}")).await.unwrap();
            assert_eq!(done, json!({"attempt": 1, "valid": true, "runs": 0}));
        }
        assert_eq!(stage.counted(), (0, vec![(Outcome::Success, 6)]), "nothing is charged twice");
        eventually("every use is reported", SOON, async || {
            let used = stage.used().await;
            if used == 6 { Ok(()) } else { Err(used.to_string()) }
        })
        .await;

        // The first attempt may have used it: the second one asks anew. And one that is too old isn't used.
        let failing = JobJson { fails_first: true, ..JobJson::default() };
        let late = JobJson { lease_ms: Some(2_000), delay_ms: 2_500, ..JobJson::default() };
        for (n, (id, job, attempt)) in [("failing", failing, 2), ("late", late, 1)].into_iter().enumerate() {
            stage.world.start_job(id, job).await;
            let done = stage.world.result(id).await.unwrap();
            assert_eq!((&done["attempt"], &done["valid"]), (&json!(attempt), &json!(true)), "{id}: {done}");
            assert_eq!(stage.counted().0, n as u64 + 1, "{id} took from the gate");
        }

        let hopeless = JobJson { wait_ms: Some(100), ..JobJson::default() };
        stage.world.tollgate_ok(&["limit", "set", LIMIT, "--rate", "0/s", "--ramp", "0s"]);
        let mut refused = None;
        for n in 0..8 {
            stage.world.start_job(&format!("hopeless-{n}"), hopeless.clone()).await;
            refused = stage.world.result(&format!("hopeless-{n}")).await.err();
        }
        let refused = refused.expect("the burst is gone by then");
        assert!(refused.contains("not granted within"), "{refused}");
        let status = stage.world.status().await;
        assert_eq!((status.unreadable.count, status.resets), (0, 0), "{status:?}");
        for id in ["job-0", "failing", "late", "hopeless-7", &stage.world.coordinator()] {
            for run in stage.world.healthy_runs(id).await {
                println!("{id}: {} events", run.events.len());
            }
        }
    });
}

#[test]
fn a_wait_that_is_cancelled_or_dropped_gives_back_the_place_and_what_was_granted_meanwhile() {
    run(async {
        let stage = Stage::new(World::new("giving-up").await, "0/s", "1").await;
        let worker = stage.worker().await;
        stage.occupy().await;
        let dropped = JobJson { drop_after_ms: Some(1), ..JobJson::default() };
        for (id, job) in
            [("cancelled", JobJson::default()), ("crossing", JobJson::default()), ("dropped", dropped)]
        {
            stage.world.start_job(id, job).await;
            stage.grants_when(id, &[("waiting", 1)]).await;
        }
        stage.world.cancel("cancelled").await;
        assert_eq!(stage.world.result("cancelled").await.unwrap_err(), "Workflow cancelled");
        stage.grants_when("cancelled", &[("waiting", 0), ("abandoned", 1)]).await;

        eventually("nobody waits in `dropped` any more", SOON, async || {
            let runs = stage.world.runs("dropped").await;
            if runs[0].timer_fired() { Ok(()) } else { Err(format!("{} events", runs[0].events.len())) }
        })
        .await;

        // The next one's permit and its cancellation meet in one task, since nobody works meanwhile.
        drop(worker);
        stage.make_room().await;
        stage.grants_when("crossing", &[("granted", 1)]).await;
        stage.world.cancel("crossing").await;
        let _worker = stage.worker().await;
        assert_eq!(stage.world.result("crossing").await.unwrap_err(), "Workflow cancelled");
        stage.grants_when("crossing", &[("released", 1)]).await;

        // Then the one that nobody waits for is granted, and comes back by itself.
        stage.grants_when("dropped", &[("released", 1)]).await;
        stage.world.signal("dropped", "end", wire::write(&())).await;
        assert_eq!(stage.world.result("dropped").await.unwrap(), json!({"dropped": true}));
        assert_eq!(stage.used().await, 0);
        stage.world.start_job("last", JobJson::default()).await;
        assert_eq!(stage.world.result("last").await.unwrap()["valid"], true, "the one token is still there");
        for id in ["cancelled", "crossing", "dropped", "last"] {
            stage.world.healthy_runs(id).await;
        }
        assert_eq!(stage.world.status().await.unreadable.count, 0);
    });
}

#[test]
fn waits_go_on_across_continue_as_new_of_both_sides_and_each_gets_one_permit() {
    const JOBS: u64 = 8;
    // Short runs of the coordinator.
    let server = Server::start(&[], &["limit.historyCount.suggestContinueAsNew=60"]);
    run(async {
        let world = World::with(server, "carried").await;
        let stage = Stage::new(world, "2/s", "1").await;
        let _worker = stage.worker().await;
        stage.occupy().await;
        let name = |n: u64| format!("job-{n}");
        for n in 0..JOBS {
            let job =
                JobJson { id: Some(format!("order-{n}")), lease_ms: Some(60_000), ..JobJson::default() };
            stage.world.start_job(&name(n), job).await;
            stage.grants_when(&name(n), &[("waiting", 1)]).await;
        }
        // Each begins anew while it waits, and some once more while permits are granted.
        for n in 0..JOBS {
            stage.world.signal(&name(n), "again", wire::write(&())).await;
        }
        for n in 0..JOBS {
            eventually("it begins anew", SOON, async || {
                let runs = stage.world.runs(&name(n)).await.len();
                if runs > 1 { Ok(()) } else { Err(runs.to_string()) }
            })
            .await;
        }
        stage.make_room().await;
        for n in (0..JOBS).step_by(2) {
            // It may have ended already.
            let again = temporalio_client::UntypedSignal::new("again");
            let _late =
                stage.world.handle(&name(n)).signal(again, wire::write(&()), Default::default()).await;
        }
        for n in 0..JOBS {
            let done = stage.world.result(&name(n)).await.unwrap();
            assert!(done["runs"].as_u64() >= Some(1) && done["valid"] == true, "{done}");
        }
        let status = stage.world.status_when("all is reported", |status| status.limits[0].used == JOBS).await;
        assert!(status.runs > 0, "the coordinator has continued as new too: {status:?}");
        assert_eq!(stage.counted(), (0, vec![(Outcome::Success, JOBS)]));
        let mut ids: Vec<String> = stage.grants().await.into_iter().map(|(id, ..)| id).collect();
        ids.retain(|id| id.starts_with("order-"));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len() as u64, JOBS, "one permit each: {ids:?}");
        stage.world.healthy_runs(&stage.world.coordinator()).await;
        for n in 0..JOBS {
            stage.world.healthy_runs(&name(n)).await;
        }
    });
}

#[test]
fn a_coordinator_without_memory_is_asked_again_and_a_place_that_is_not_asked_for_again_goes() {
    run(async {
        let mut stage = Stage::new(World::new("asking-again").await, "0/s", "1").await;
        let _worker = stage.worker().await;
        stage.occupy().await;
        stage.world.start_job("patient", JobJson::default()).await;
        stage.grants_when("patient", &[("waiting", 1)]).await;
        let id_of = |grants: Vec<(String, String, String)>| {
            grants.into_iter().find(|(_, client, _)| client == "patient").map(|(id, ..)| id)
        };
        let before = id_of(stage.grants().await).unwrap();
        let epoch = stage.world.status().await.epoch;

        // One that is asked for only once keeps its place for a while.
        let brief =
            json!({"id": "brief", "client": "brief", "limit": LIMIT, "reply_to": "patient", "keep_ms": 1});
        stage.world.signal(&stage.world.coordinator(), "lease", wire::write(&brief)).await;
        stage.grants_when("brief", &[("waiting", 1)]).await;
        stage.world.signal(&stage.world.coordinator(), "evict", wire::write(&json!({"worker": "x"}))).await;
        stage.grants_when("brief", &[("abandoned", 1)]).await;

        stage.world.temporal_ok(&[
            "workflow",
            "terminate",
            "-w",
            &stage.world.coordinator(),
            "--reason",
            "test",
        ]);
        eventually("the new coordinator knows the wait", SOON, async || {
            let status = stage.world.status().await;
            let after = id_of(stage.grants().await);
            let known = status.epoch != epoch && after.as_ref() == Some(&before);
            if known { Ok(()) } else { Err(format!("{after:?}, {status:?}")) }
        })
        .await;
        stage.world.cancel("patient").await;
        assert_eq!(stage.world.result("patient").await.unwrap_err(), "Workflow cancelled");
        stage.grants_when("patient", &[("waiting", 0)]).await;
        drop(stage.host.take());
    });
}

#[test]
fn fifty_workflows_that_wait_are_served_once_and_in_order_through_a_killed_host() {
    const JOBS: usize = 50;
    run(async {
        let mut stage = Stage::new(World::new("fifty").await, "10/s", "5").await;
        let _worker = stage.worker().await;
        // All there is, so that everybody waits.
        let held = json!({"id": "held", "client": "holder", "limit": LIMIT, "cost": 5, "lease_ms": 120_000});
        stage.world.signal(&stage.world.coordinator(), "lease", wire::write(&held)).await;
        stage.grants_when("holder", &[("granted", 1)]).await;
        let name = |n: usize| format!("job-{n}");
        for n in 0..JOBS {
            let job = JobJson { lease_ms: Some(60_000), ..JobJson::default() };
            stage.world.start_job(&name(n), job).await;
            stage.grants_when(&name(n), &[("waiting", 1)]).await;
        }
        stage.make_room().await;
        eventually("some are served", SOON, async || {
            let used = stage.used().await;
            if used >= 5 { Ok(()) } else { Err(used.to_string()) }
        })
        .await;
        let host = stage.host.take().unwrap();
        tokio::task::block_in_place(|| host.kill());
        let _host = stage.world.host();
        let mut granted_us = Vec::new();
        for n in 0..JOBS {
            let done = stage.world.result(&name(n)).await.unwrap();
            assert_eq!(done, json!({"attempt": 1, "valid": true, "runs": 0}), "{}", name(n));
            let runs = stage.world.healthy_runs(&name(n)).await;
            let told: Vec<Value> = runs.iter().flat_map(|run| run.signals("granted")).collect();
            assert!(told.iter().all(|told| told["status"] == "granted"), "{told:?}");
            assert!(
                told.iter().all(|other| other["granted_us"] == told[0]["granted_us"]),
                "one permit: {told:?}"
            );
            granted_us.push(told[0]["granted_us"].as_u64().unwrap());
        }
        assert!(granted_us.is_sorted(), "first come, first served: {granted_us:?}");
        // Five at once, and ten a second.
        let took = granted_us[JOBS - 1] - granted_us[0];
        assert!(took >= (JOBS as u64 - 5) * 100_000, "{JOBS} permits within {took} us");
        stage.world.status_when("each is counted once", |status| status.limits[0].used == JOBS as u64).await;
        assert_eq!(stage.counted(), (0, vec![(Outcome::Success, JOBS as u64)]), "nobody asked the gate");
        stage.world.healthy_runs(&stage.world.coordinator()).await;
    });
}

#[test]
fn places_of_a_workflow_that_is_gone_go_with_the_first_answer_that_finds_nobody() {
    run(async {
        let stage = Stage::new(World::new("ghosts").await, "0/s", "1").await;
        stage.occupy().await;
        for n in 1..4 {
            let ghost = json!({
                "id": format!("ghost-{n}"), "client": "ghost", "limit": LIMIT, "reply_to": "nobody", "lease_ms": 2_000
            });
            stage.world.signal(&stage.world.coordinator(), "lease", wire::write(&ghost)).await;
        }
        stage.grants_when("ghost", &[("waiting", 3)]).await;
        stage.make_room().await;
        // It is charged for its lease: that nobody was found is no proof that nobody ever heard.
        stage.grants_when("ghost", &[("expired", 1), ("abandoned", 2)]).await;
        assert_eq!(stage.used().await, 1);
        stage.world.healthy_runs(&stage.world.coordinator()).await;
    });
}

#[test]
fn the_preload_workflow_ends_with_the_outcome() {
    run(async {
        let stage = Stage::new(World::new("preload").await, "1/s", "2").await;
        let world = &stage.world;
        let preload = async |id: &str, input: Value| {
            let mut input = input;
            input["group"] = world.group.clone().into();
            world.start("tollgate", "tollgate.preload", id, &input).await;
        };
        preload("granted", json!({"limit": LIMIT, "cost": 2, "lease_ms": 60_000})).await;
        let granted = world.result("granted").await.unwrap();
        assert_eq!((&granted["status"], &granted["cost"]), (&json!("granted"), &json!(2)), "{granted}");
        let [from, until, expires] =
            ["granted_us", "valid_until_us", "expires_us"].map(|field| granted[field].as_u64().unwrap());
        assert!(until == from + 60_000_000 && expires > until, "{granted}");

        // Nobody gets two within three seconds now, and that is known at once.
        preload("refused", json!({"limit": LIMIT, "cost": 2, "wait_ms": 500})).await;
        let refused = world.result("refused").await.unwrap();
        assert_eq!(
            (&refused["status"], &refused["reason"]),
            (&json!("refused"), &json!("deadline")),
            "{refused}"
        );
        assert!(refused["retry_after_ms"].as_u64() > Some(0), "{refused}");

        let used = json!({"id": granted["id"], "limit": LIMIT, "used": 2});
        world.signal(&world.coordinator(), "report", wire::write(&used)).await;
        preload("waited", json!({"limit": LIMIT, "id": "mine", "wait_ms": 30_000})).await;
        let waited = world.result("waited").await.unwrap();
        assert_eq!((&waited["status"], &waited["id"]), (&json!("granted"), &json!("mine")), "{waited}");

        for (id, input, reason, text) in [
            ("unknown", json!({"limit": "paymnets"}), "unknown_limit", "paymnets"),
            ("above", json!({"limit": LIMIT, "cost": 3}), "cost_above_burst", "allowed: 1 to 2"),
            ("nothing", json!({"limit": LIMIT, "cost": 0}), "unreadable", "cost: is 0"),
            ("text", json!({"limit": 5}), "unreadable", "limit"),
        ] {
            preload(id, input).await;
            let refused = world.result(id).await.unwrap();
            assert_eq!(
                (&refused["status"], &refused["reason"]),
                (&json!("refused"), &json!(reason)),
                "{refused}"
            );
            assert!(refused["message"].as_str().unwrap().contains(text), "{refused}");
        }
        world
            .start(
                "tollgate",
                "tollgate.preload",
                "lost",
                &json!({"limit": "x", "group": "none", "wait_ms": 1}),
            )
            .await;
        assert_eq!(world.result("lost").await.unwrap()["reason"], "coordinator_lost");

        world.tollgate_ok(&["limit", "set", LIMIT, "--rate", "0/s", "--ramp", "0s"]);
        preload("rest", json!({"limit": LIMIT, "wait_ms": 3_600_000, "cost": 2})).await;
        stage.grants_when("rest", &[("waiting", 1)]).await;
        world.cancel("rest").await;
        assert_eq!(world.result("rest").await.unwrap_err(), "Workflow cancelled");
        stage.grants_when("rest", &[("waiting", 0), ("abandoned", 1)]).await;
        for id in ["granted", "refused", "waited", "lost", "rest"] {
            world.healthy_runs(id).await;
        }
        assert_eq!(world.status().await.unreadable.count, 0);
    });
}
