//! What operators do at night: who is there, who holds what, take it away; hold a ramp, let it go on.

use crate::fleet::Worker;
use crate::world::{World, run};
use serde_json::{Value, json};
use std::process::Output;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn workers_are_listed_and_evicted_by_name_and_by_the_beginning_of_their_incarnation() {
    run(async {
        let world = World::new("operate").await;
        let _host = world.host();
        assert_eq!(world.tollgate_ok(&["worker", "ls"]), "no workers\n");
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        world.status_when("the limit arrives", |status| status.limits.len() == 1).await;
        let mut workers: Vec<Worker> = (1..=3).map(|n| Worker::new(&world, n, "api")).collect();
        for worker in &mut workers {
            worker.beat().await;
        }
        let shown = world.tollgate_ok(&["worker", "ls"]);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("WORKER    STANDING  LAST HEARD"), "{shown}");
        for (line, worker) in lines[1..4].iter().zip(&workers) {
            assert!(line.contains("live") && line.contains("api "), "{shown}");
            assert!(line.ends_with(&worker.incarnation()[..8]), "{shown}");
        }
        let shown = world.tollgate_ok(&["worker", "ls", "worker-2", "--limit", "api", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["workers"].as_array().unwrap().len(), 1, "{shown}");
        let holds = &shown["workers"][0]["holds"][0];
        assert_eq!((&holds["limit"], &holds["meter"]), (&json!("api"), &json!("requests")), "{shown}");
        let shown = world.tollgate_ok(&["worker", "ls", "--limit", "other"]);
        assert_eq!(shown, "no workers\n");

        let output = world.tollgate(&["worker", "ls", "nobody"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("no worker \"nobody\" in group"), "{}", stderr(&output));
        // All begin with the same digits: nobody is meant.
        for wanted in ["nobody", "0000"] {
            let output = world.tollgate(&["worker", "evict", wanted, "--reason", "a test"]);
            assert_eq!(output.status.code(), Some(1), "{wanted}");
            assert!(stderr(&output).contains("worker: is "), "{}", stderr(&output));
        }
        let shown = world.tollgate_ok(&["worker", "evict", "worker-1", "--reason", "a test"]);
        assert!(shown.starts_with("worker-1 (00000000): evicted; what it holds comes back when"), "{shown}");
        let shown = world.tollgate_ok(&["worker", "evict", "worker-1"]);
        assert_eq!(shown, "worker-1 (00000000): was evicted before\n");
        let prefix = &workers[1].incarnation()[..32];
        let shown = world.tollgate_ok(&["worker", "evict", &prefix.to_ascii_uppercase(), "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(
            (&shown["status"], &shown["workers"][0]["was"]),
            (&json!("ok"), &json!("live")),
            "{shown}"
        );
        let shown = world.tollgate_ok(&["worker", "ls", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let standing: Vec<&str> =
            shown["workers"].as_array().unwrap().iter().map(|it| it["standing"].as_str().unwrap()).collect();
        assert_eq!(standing, ["evicted", "evicted", "live"]);
        // What an evicted worker held is given back with its next message.
        workers[0].beat().await;
        workers[0].beat().await;
        let shown = world.tollgate_ok(&["worker", "ls", "worker-1"]);
        assert!(shown.contains("nothing"), "{shown}");
        world.healthy_runs(&world.coordinator()).await;
    });
}

#[test]
fn a_ramp_is_shown_paused_resumed_and_aborted() {
    run(async {
        let world = World::new("ramps").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        assert_eq!(world.tollgate_ok(&["ramp", "show"]), "no ramp is under way\n");
        world.tollgate_ok(&["limit", "set", "api", "--rate", "1000/s", "--ramp", "1h"]);
        let shown = world.tollgate_ok(&["ramp", "show"]);
        let line = shown.lines().nth(1).unwrap();
        assert!(line.starts_with("api    rate  10") && line.contains("1000/s  ░░░░"), "{shown}");

        let dry = world.tollgate_ok(&["ramp", "pause", "api", "--dry-run"]);
        assert!(dry.starts_with("would change:\napi: rate paused at "), "{dry}");
        let paused = world.tollgate_ok(&["ramp", "pause", "api", "--reason", "429s"]);
        assert!(paused.contains(" before 1000/s\nversion "), "{paused}");
        let shown = world.tollgate_ok(&["ramp", "show", "api"]);
        assert!(shown.contains("paused") && shown.contains("when resumed"), "{shown}");
        let held = world.tollgate_ok(&["limit", "list"]);
        assert!(held.contains("rate paused, 59m") && held.contains(" before 1000/s"), "{held}");
        let shown = world.tollgate_ok(&["ramp", "show", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown[0]["rate_paused"]["to"], json!("1000/s"), "{shown}");
        // The coordinator keeps to the value that is held.
        let rate = shown[0]["effective"]["rate_micro"].as_u64().unwrap();
        world
            .status_when("the pause arrives", |status| {
                let row = &status.limits[0];
                row.rate_micro == rate && row.ramp_ends_us.is_none()
            })
            .await;

        let resumed = world.tollgate_ok(&["ramp", "resume", "api"]);
        assert!(resumed.contains(" -> 1000/s over ") && resumed.contains(", resumed\n"), "{resumed}");
        world.status_when("it goes on", |status| status.limits[0].ramp_ends_us.is_some()).await;
        let aborted = world.tollgate_ok(&["ramp", "abort", "api"]);
        assert!(aborted.contains(", was on its way to 1000/s\n"), "{aborted}");
        assert_eq!(world.tollgate_ok(&["ramp", "show"]), "no ramp is under way\n");
        for (verb, problem) in [
            ("pause", "pause_ramps: no ramp of limit \"api\" is under way"),
            ("resume", "resume_ramps: no ramp of limit \"api\" is paused"),
        ] {
            let output = world.tollgate(&["ramp", verb, "api"]);
            assert_eq!(output.status.code(), Some(1), "{verb}");
            assert!(stderr(&output).contains(problem), "{}", stderr(&output));
        }
        let output = world.tollgate(&["ramp", "show", "nope"]);
        assert_eq!(output.status.code(), Some(1));
        let history = world.tollgate_ok(&["config", "history", "--count", "5"]);
        assert!(history.contains(": 429s\n    api: rate paused at "), "{history}");
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn a_groups_own_histories_are_replayed_before_an_upgrade() {
    run(async {
        let world = World::new("replay").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        world.status_when("the limit arrives", |status| status.limits.len() == 1).await;
        let mut worker = Worker::new(&world, 1, "api");
        for _ in 0..5 {
            worker.beat().await;
        }
        let shown = world.tollgate_ok(&["replay"]);
        let lines: Vec<&str> = shown.lines().collect();
        let coordinator = format!("{}: replays; ", world.coordinator());
        assert!(
            lines[0].starts_with(&coordinator) && lines[0].ends_with("(tollgate.coordinator)"),
            "{shown}"
        );
        assert!(lines[1].contains(": replays; ") && lines[1].ends_with("(tollgate.config)"), "{shown}");
        let shown = world.tollgate_ok(&["replay", "--workflow-id", &world.coordinator(), "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert!(shown["answers"].as_u64().is_some_and(|answers| answers >= 5), "{shown}");
        let output = world.tollgate(&["replay", "--workflow-id", "nobody"]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("no workflow \"nobody\" on "), "{}", stderr(&output));
    });
}
