//! `tollgate explain`: who holds, who waits and why, on a real server.

use crate::fleet::Worker;
use crate::world::{World, eventually, run};
use serde_json::{Value, json};
use std::process::Output;
use std::time::Duration;
use tollgate_workflows::wire;

/// One heartbeat that says what waits, and has used nothing more.
async fn ask(worker: &mut Worker, waiting: u64) {
    let mut request = worker.request();
    let cell = &mut request.cells[0];
    (cell.waiting, cell.demand_micro) = (waiting, waiting * 1_000_000);
    let reply = worker.send(&request).await;
    let used = worker.used;
    worker.take(&reply);
    worker.used = used;
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn whoever_waits_is_told_why_and_what_would_help() {
    run(async {
        let world = World::new("explain").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "slow", "--rate", "10/s", "--burst", "5"]);
        world.tollgate_ok(&["limit", "set", "none", "--rate", "0/s", "--burst", "1"]);
        world.status_when("the limits arrive", |status| status.limits.len() == 2).await;
        let mut busy = Worker::new(&world, 1, "slow");
        let mut calm = Worker::new(&world, 2, "slow");
        let mut paused = Worker::new(&world, 3, "none");
        let mut lost = Worker::new(&world, 4, "slwo");
        for _ in 0..2 {
            ask(&mut busy, 50).await;
            ask(&mut calm, 0).await;
            ask(&mut paused, 2).await;
            ask(&mut lost, 2).await;
        }

        let shown = world.tollgate_ok(&["explain", "slow"]);
        println!("{shown}");
        let why = "limit reached, 1 waits for 50 tokens: the limit is used up: 50/s are wanted and 10/s may be used\n  \
                   what helps: raise the rate if what is behind the limit can take more, else let callers ask for less: \
                   tollgate limit set slow --rate RATE --group g-explain\n";
        assert!(shown.starts_with("limit slow · 10/s, burst 5, ") && shown.ends_with(why), "{shown}");
        assert!(shown.contains("\nworker-1  ") && !shown.contains('\x1b'), "{shown}");

        let shown = world.tollgate_ok(&["explain", "worker-3"]);
        println!("{shown}");
        assert!(shown.starts_with("worker worker-3 · live · heard "), "{shown}");
        assert!(shown.contains("none: the rate is 0 and stays so\n"), "{shown}");
        assert!(
            shown.contains("set a rate: tollgate limit set none --rate RATE --group g-explain\n"),
            "{shown}"
        );

        // A limit that isn't there, and that somebody asks for.
        let shown = world.tollgate_ok(&["explain", "slwo"]);
        println!("{shown}");
        assert!(
            shown.contains("1 worker asks") && shown.contains("the group has no limit \"slwo\""),
            "{shown}"
        );

        world.signal(&world.coordinator(), "evict", wire::write(&json!({"worker": "worker-1"}))).await;
        ask(&mut busy, 50).await;
        let shown = world.tollgate_ok(&["explain", &busy.incarnation()]);
        println!("{shown}");
        assert!(shown.contains(" · evicted · ") && shown.contains("restart the process"), "{shown}");

        let answer: Value = serde_json::from_str(&world.tollgate_ok(&["explain", "slow", "--json"])).unwrap();
        assert_eq!(answer["limits"][0]["reasons"][0]["reason"], "evicted", "{answer}");
        assert_eq!(answer["limits"][0]["waiters"][0]["who"], "worker-1", "{answer}");

        let output = world.tollgate(&["explain", "wroker-3"]);
        println!("{}", stderr(&output));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let text = stderr(&output);
        assert!(
            text.starts_with("error: no limit or worker \"wroker-3\" in group \"g-explain\"; there are:\n")
        );
        assert!(
            text.contains("\n  limit   slow\n") && text.contains("\n  worker  worker-3  00000000, live, "),
            "{text}"
        );
        // The workers' incarnations begin alike.
        let output = world.tollgate(&["explain", "0000", "--json"]);
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(error["error"].as_str().unwrap().contains("means several workers"), "{error}");
        assert_eq!(world.tollgate(&["explain"]).status.code(), Some(2), "a name is wanted");
        world.healthy_runs(&world.coordinator()).await;
    });
}

#[test]
fn somebody_who_starves_beside_room_is_shown_and_logged_once() {
    run(async {
        let world = World::new("starving").await;
        let host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20", "--lease", "2s"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut worker = Worker::new(&world, 1, "api");
        let minute = Duration::from_secs(60);
        let told = || host.tail().matches("the limit has room and somebody starves").count();
        // It has room, asks for five tokens, and never uses any.
        let starving = eventually("it starves", minute, async || {
            ask(&mut worker, 5).await;
            world.status().await.limits[0].starving.clone().ok_or_else(|| "not yet".to_owned())
        })
        .await;
        assert_eq!((starving.who.as_str(), starving.tokens), ("worker-1", 5));
        let shown = world.tollgate_ok(&["status"]);
        println!("{shown}");
        assert!(shown.contains("\napi has room, and worker-1 has waited for 5 tokens since "), "{shown}");
        assert!(shown.contains("5 starving"), "{shown}");
        let shown = world.tollgate_ok(&["explain", "api"]);
        assert!(shown.contains("\nit has room, and worker-1 has waited for 5 tokens since "), "{shown}");
        eventually("the host's log tells it", minute, async || {
            ask(&mut worker, 5).await;
            if told() == 1 { Ok(()) } else { Err(host.tail()) }
        })
        .await;
        // Once it is served, the episode is over.
        worker.used += 5;
        ask(&mut worker, 0).await;
        let status = world.status().await;
        assert_eq!((&status.limits[0].starving, status.limits[0].used), (&None, 5));
        eventually("the host's log tells the end", minute, async || {
            ask(&mut worker, 0).await;
            if host.tail().contains("nobody starves any more") { Ok(()) } else { Err(host.tail()) }
        })
        .await;
        assert_eq!(told(), 1, "{}", host.tail());
        world.healthy_runs(&world.coordinator()).await;
    });
}
