//! Limits and coordinators through changes, crashes, ends and resets.

use crate::fleet::Worker;
use crate::world::{World, eventually, run};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tollgate_workflows::wire::status::StatusJson;

/// A host looks every five seconds whether its workflows are there.
const BACK_WITHIN: Duration = Duration::from_secs(40);

fn row<'a>(status: &'a StatusJson, limit: &str) -> &'a tollgate_workflows::wire::status::LimitRowJson {
    status.limits.iter().find(|row| row.limit == limit).unwrap_or_else(|| panic!("{status:?}"))
}

#[test]
fn limits_ramp_and_survive_crashes_of_their_host() {
    run(async {
        let world = World::new("limits").await;
        let host = world.host();
        let set = ["limit", "set", "api", "--rate", "100/s", "--burst", "20", "--reason", "tier 2"];
        let printed = world.tollgate_ok(&set);
        assert!(printed.contains("api: created, rate 100/s, burst 20"), "{printed}");
        let status = world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        assert_eq!((row(&status, "api").rate_micro, row(&status, "api").burst), (100_000_000, 20));
        assert!(world.tollgate_ok(&["status"]).contains("api"));

        world.tollgate_ok(&["limit", "set", "api", "--rate", "300/s", "--ramp", "20s", "--actor", "bob"]);
        world.status_when("the ramp arrives", |status| row(status, "api").target_micro == 300_000_000).await;
        // kill -9 in the middle: the next host goes on where the line is by then.
        host.kill();
        let host = world.host();
        let mut worker = Worker::new(&world, 1, "api");
        let seen = eventually("the middle of the ramp", Duration::from_secs(20), async || {
            let reply = worker.beat().await;
            let status = world.status().await;
            let ramp = reply.cells[0].lease.as_ref().unwrap().rate;
            let (from, to) = (ramp.start_us, ramp.end_us);
            assert_eq!(to - from, 20_000_000, "the ramp is the one that was asked for");
            let ideal =
                100_000_000 + 200_000_000 * status.now_us.clamp(from, to).saturating_sub(from) / (to - from);
            let rate = row(&status, "api").rate_micro;
            assert!(rate.abs_diff(ideal) < 10, "the rate is {rate}, the line is at {ideal}");
            if (150_000_000..290_000_000).contains(&rate) { Ok(rate) } else { Err(format!("{rate}")) }
        })
        .await;
        let printed = world.tollgate_ok(&["limit", "abort-ramp", "api", "--reason", "enough"]);
        assert!(printed.contains("api: rate stays at "), "{printed}");
        let status =
            world.status_when("the ramp ends", |status| row(status, "api").ramp_ends_us.is_none()).await;
        let stays = row(&status, "api").rate_micro;
        assert!(
            stays >= seen && stays < 300_000_000 && row(&status, "api").target_micro == stays,
            "{status:?}"
        );

        let epoch = status.epoch;
        let ended = host.terminate(Duration::from_secs(15));
        assert_eq!(ended.code(), Some(0), "SIGTERM is a clean end");
        let _host = world.host();
        let status = world.status().await;
        assert_eq!((row(&status, "api").rate_micro, status.epoch, status.resets), (stays, epoch, 0));
        assert_eq!(status.recovering_until_us, None, "a restart of the host is no loss of memory");
        let before = (worker.acting.unwrap(), worker.used);
        let reply = worker.beat().await;
        assert!(worker.lease(&reply).is_some_and(|lease| !lease.confirm && lease.share_ppb > 0), "{reply:?}");
        assert_eq!(before.0.epoch, reply.epoch);

        let history = world.query(&world.config(), "history", &Value::Null).await;
        let entries = history["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 3, "{history}");
        assert_eq!((&entries[2]["reason"], &entries[1]["actor"]), (&json!("tier 2"), &json!("bob")));
        assert!(entries.iter().all(|entry| entry["at_us"].as_u64() > Some(0)), "{history}");
        let shown = world.tollgate_ok(&["config", "history"]);
        assert!(shown.contains("by bob") && shown.contains("enough"), "{shown}");
        world.tollgate_ok(&["limit", "rm", "api"]);
        world.status_when("the limit goes", |status| status.limits.iter().all(|row| row.removed)).await;
        world.healthy_runs(&world.coordinator()).await;
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn a_coordinator_that_was_ended_comes_back_and_only_confirms() {
    run(async {
        let world = World::new("lost-coordinator").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20", "--lease", "60s"]);
        let first = world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        assert_eq!(first.recovering_until_us, None, "nothing can be out at the very first start");
        let mut holder = Worker::new(&world, 1, "api");
        for _ in 0..3 {
            holder.beat().await;
        }
        let claim = holder.acting.unwrap();
        assert!(claim.share_ppb > 0, "{claim:?}");

        let id = world.coordinator();
        world.temporal_ok(&["workflow", "terminate", "-w", &id, "--reason", "test"]);
        let status = eventually("the coordinator comes back", BACK_WITHIN, async || {
            let status = world.status().await;
            let back = status.epoch != first.epoch && !status.limits.is_empty();
            if back { Ok(status) } else { Err(format!("{status:?}")) }
        })
        .await;
        let until = status.recovering_until_us.unwrap();
        assert!(until > status.now_us + 60_000_000, "longer than any lease that may be out: {status:?}");
        assert_eq!((row(&status, "api").rate_micro, row(&status, "api").free_milli), (100_000_000, 0));

        let mut newcomer = Worker::new(&world, 2, "api");
        let reply = newcomer.beat().await;
        let lease = newcomer.lease(&reply).unwrap();
        assert_eq!((lease.share_ppb, lease.cap_milli, lease.tokens_milli), (0, 0, 0), "nothing is granted");
        assert_eq!(reply.recovering_until_us, Some(until));
        let reply = holder.beat().await;
        let lease = holder.lease(&reply).unwrap();
        assert!(lease.confirm, "what is held goes on: {lease:?}");
        assert_eq!(
            (lease.share_ppb, lease.cap_milli, lease.tokens_milli),
            (claim.share_ppb, claim.cap_milli, 0)
        );
        let acquire = json!({"id": "a", "client": "c", "limit": "api"});
        let reply = world.update(&id, "acquire", &acquire).await.unwrap();
        assert_eq!(reply["status"], "queued", "{reply}");
        let shown = world.tollgate_ok(&["status"]);
        assert!(shown.to_lowercase().contains("recovering"), "{shown}");
        world.healthy_runs(&id).await;
    });
}

#[test]
fn a_config_workflow_that_was_ended_takes_over_what_is_in_force_under_higher_versions() {
    run(async {
        let world = World::new("lost-config").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        world.tollgate_ok(&["limit", "set", "other", "--rate", "5/day"]);
        let before = world.status_when("both arrive", |status| status.limits.len() == 2).await;
        world.temporal_ok(&["workflow", "terminate", "-w", &world.config(), "--reason", "test"]);
        let config = eventually("the config workflow comes back", BACK_WITHIN, async || {
            let config = world.query(&world.config(), "config", &Value::Null).await;
            let back = config["coordinator"]["is_current"] == json!(true)
                && config["limits"].as_array().is_some_and(|limits| limits.len() == 2)
                && !config["version"].as_str().unwrap().starts_with(&before.version.run_us.to_string());
            if back { Ok(config) } else { Err(config.to_string()) }
        })
        .await;
        let after = world.status().await;
        assert!(after.version.run_us > before.version.run_us, "versions never restart: {after:?}");
        assert_eq!(after.ignored_configs, 0, "{after:?}");
        assert_eq!(config["limits"][1]["rate_text"], "5/day", "{config}");
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s", "--ramp", "0s"]);
        let after = world.status_when("a change", |status| row(status, "api").rate_micro == 50_000_000).await;
        assert_eq!((after.epoch, after.recovering_until_us), (before.epoch, None), "the ledger lost nothing");
        // A version of the old numbering, late: ignored, and shown.
        let mut old = world.query(&world.coordinator(), "configuration", &Value::Null).await;
        old["version"] = json!({"run_us": before.version.run_us, "n": before.version.n + 7});
        old["cells"] = json!([]);
        let told = world.update(&world.coordinator(), "configure", &old).await.unwrap();
        assert_eq!(told["status"], "ignored", "{told}");
        let after = world.status().await;
        assert_eq!((after.ignored_configs, after.limits.len()), (1, 2), "{after:?}");
        assert_eq!(after.ignored_version.unwrap().n, before.version.n + 7);
    });
}

#[test]
fn a_reset_under_load_is_noticed_and_nothing_is_granted_twice() {
    run(async {
        let world = World::new("reset").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20", "--lease", "60s"]);
        let first = world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut workers: Vec<Worker> = (0..3).map(|number| Worker::new(&world, number, "api")).collect();
        for _ in 0..12 {
            for worker in &mut workers {
                worker.beat().await;
            }
        }
        // To the middle of what has happened.
        let id = world.coordinator();
        let ends = world.healthy_runs(&id).await.last().unwrap().task_ends();
        let event = ends[ends.len() / 2].to_string();
        let done = std::cell::Cell::new(false);
        let reset = async {
            tokio::task::block_in_place(|| {
                world.temporal_ok(&["workflow", "reset", "-w", &id, "--event-id", &event, "--reason", "test"])
            });
            world.status_when("the reset is noticed", |status| status.resets > 0).await;
            done.set(true);
        };
        let load = async {
            while !done.get() {
                for worker in &mut workers {
                    worker.beat().await;
                }
            }
        };
        tokio::join!(reset, load);
        let status = world.status_when("a new run", |status| status.runs > 0).await;
        assert_eq!(status.resets, 1);
        assert_ne!(status.epoch, first.epoch);
        assert!(status.recovering_until_us.is_some_and(|until| until > status.now_us), "{status:?}");
        for worker in &mut workers {
            let claim = worker.acting.unwrap();
            let reply = worker.beat().await;
            let lease = worker.lease(&reply).unwrap();
            assert_eq!(reply.epoch, status.epoch);
            assert!(lease.confirm && lease.tokens_milli == 0, "{lease:?}");
            assert!(lease.share_ppb <= claim.share_ppb && lease.cap_milli <= claim.cap_milli, "{lease:?}");
        }
        let status = world.status().await;
        let shares: u64 = status.limits.iter().map(|row| u64::from(row.share_ppb)).sum();
        assert!(shares <= 1_000_000_000, "{status:?}");
        // The configuration comes again, since what the coordinator remembers may be an old one.
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s", "--ramp", "0s"]);
        world.status_when("a change", |status| row(status, "api").rate_micro == 50_000_000).await;
        // The second reset is noticed as well.
        let event = world.runs(&id).await.last().unwrap().task_ends().pop().unwrap().to_string();
        world.temporal_ok(&["workflow", "reset", "-w", &id, "--event-id", &event, "--reason", "again"]);
        for worker in &mut workers {
            worker.beat().await;
        }
        let again = world.status_when("the second reset", |status| status.resets > 1).await;
        assert_ne!(again.epoch, status.epoch);
    });
}

#[test]
fn a_cancel_request_ends_neither_workflow_and_keeps_no_host_busy() {
    run(async {
        let world = World::new("cancel").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "2"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        for id in [world.coordinator(), world.config()] {
            world.temporal_ok(&["workflow", "cancel", "-w", &id]);
        }
        let mut worker = Worker::new(&world, 1, "api");
        for _ in 0..5 {
            let began = Instant::now();
            worker.beat().await;
            assert!(began.elapsed() < Duration::from_secs(5), "a heartbeat took {:?}", began.elapsed());
        }
        // Timers go on as well.
        for (name, cost) in [("one", 2), ("two", 2)] {
            let input = json!({"id": name, "client": "c", "limit": "api", "cost": cost});
            world.signal(&world.coordinator(), "lease", tollgate_workflows::wire::write(&input)).await;
        }
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s", "--ramp", "0s"]);
        world.status_when("a change", |status| row(status, "api").rate_micro == 50_000_000).await;
        let status = world.status().await;
        assert_eq!((status.resets, status.recovering_until_us), (0, None));
    });
}
