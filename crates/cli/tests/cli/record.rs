//! A little of everything that the workflows do, whose histories can be kept: `cargo xtask record-history` keeps them for
//! the tests that replay them.

use crate::fleet::Worker;
use crate::world::{Server, World, eventually, run};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tollgate_workflows::wire;

/// The variable that names a folder for the histories; without it they are written to one that goes away.
const FOLDER_VARIABLE: &str = "TOLLGATE_RECORD_HISTORIES";

#[test]
fn every_kind_of_message_leaves_healthy_histories() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = std::env::var_os(FOLDER_VARIABLE).map_or(temporary.path().to_owned(), PathBuf::from);
    // Short runs, so that a small file has a continue-as-new in it.
    let server = Server::start(&[], &["limit.historyCount.suggestContinueAsNew=70"]);
    run(async {
        let world = World::with(server, "recorded").await;
        let _host = world.host();
        let (config, coordinator) = (world.config(), world.coordinator());
        world.tollgate_ok(&[
            "limit", "set", "api", "--rate", "100/s", "--burst", "20", "--actor", "ann", "--reason", "first",
        ]);
        world.tollgate_ok(&["limit", "set", "slow", "--rate", "2/s", "--burst", "2", "--actor", "ann"]);
        world.status_when("both limits arrive", |status| status.limits.len() == 2).await;
        let mut workers: Vec<Worker> = (1..3).map(|number| Worker::new(&world, number, "api")).collect();
        for worker in &mut workers {
            worker.beat().await;
        }
        world.tollgate_ok(&[
            "limit", "set", "api", "--rate", "50/s", "--burst", "10", "--ramp", "3s", "--actor", "bob",
        ]);
        for n in 0..4 {
            let permit = json!({"id": format!("p{n}"), "client": "c", "limit": "slow"});
            world.signal(&coordinator, "lease", wire::write(&permit)).await;
            workers[n % 2].beat().await;
        }
        world
            .signal(&coordinator, "report", wire::write(&json!({"id": "p0", "limit": "slow", "used": 1})))
            .await;
        // A worker on signals alone, which doesn't hear the answer.
        let silent = Worker::new(&world, 3, "api").request();
        world.signal(&coordinator, "lease", wire::write(&silent)).await;
        // One for a workflow, which it waits for; the answers to a workflow that isn't there; and their report.
        let preload = json!({"group": world.group, "limit": "slow", "id": "preloaded", "wait_ms": 60_000});
        world.start("tollgate", "tollgate.preload", "preload", &preload).await;
        let nobody =
            json!({"id": "n", "client": "c", "limit": "slow", "reply_to": "nobody", "keep_ms": 1_000});
        world.signal(&coordinator, "lease", wire::write(&nobody)).await;
        let told = json!({"id": "p1", "limit": "slow", "used": 1, "reply_to": "nobody"});
        world.signal(&coordinator, "report", wire::write(&told)).await;
        world.signal(&coordinator, "lease", wire::payload("json/plain", b"{nope".to_vec())).await;
        world
            .update(&coordinator, "acquire", &json!({"id": "u", "client": "c", "limit": "slow"}))
            .await
            .unwrap();
        world.update(&coordinator, "heartbeat", &json!({"incarnation": "x", "seq": 1})).await.unwrap_err();
        world.tollgate_ok(&["limit", "abort-ramp", "api", "--actor", "bob"]);
        eventually("a second run", Duration::from_secs(60), async || {
            workers[0].beat().await;
            let runs = world.status().await.runs;
            if runs > 0 { Ok(()) } else { Err(format!("{runs}")) }
        })
        .await;
        for _ in 0..5 {
            for worker in &mut workers {
                worker.beat().await;
            }
        }
        world.signal(&coordinator, "evict", wire::write(&json!({"worker": "worker-1"}))).await;
        workers[0].beat().await;
        let gone = workers[1].request();
        world.signal(&coordinator, "revoke", wire::write(&gone)).await;

        world.tollgate_ok(&["limit", "set", "api", "--rate", "70/s", "--dry-run", "--actor", "ann"]);
        let refused =
            json!({"set": [{"name": "a", "rate": {"count": 1}}, {"name": "a", "rate": {"count": 2}}]});
        world.update(&config, "apply", &refused).await.unwrap();
        world.signal(&config, "update_config", wire::write(&refused)).await;
        world.signal(&config, "update_config", wire::payload("json/plain", b"{nope".to_vec())).await;
        world.tollgate_ok(&["limit", "rm", "slow", "--actor", "ann", "--reason", "last"]);
        eventually("all has arrived", Duration::from_secs(30), async || {
            let seen = world.query(&config, "config", &Value::Null).await;
            if seen["coordinator"]["is_current"] == json!(true) { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        assert_eq!(world.result("preload").await.unwrap()["id"], "preloaded");
        let preload = "preload".to_owned();
        for (id, name) in [(&coordinator, "coordinator"), (&config, "config"), (&preload, "preload")] {
            assert!(!world.healthy_runs(id).await.is_empty());
            for (index, run) in world.healthy_runs(id).await.iter().enumerate() {
                let json = world.history_json(id, &run.id).await;
                let file = folder.join(format!("{name}-{}.json", index + 1));
                println!("{}: {} events, {} bytes", file.display(), run.events.len(), json.len());
                std::fs::write(file, json).unwrap();
            }
        }
    });
}
