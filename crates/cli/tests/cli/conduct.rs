//! What operators say of a limit beside how much it allows, from the command line to a worker.

use crate::world::{World, run};
use serde_json::{Value, json};
use tollgate_worker::{Gate, Options, Reason};

#[test]
fn a_paused_limit_refuses_workers_and_strict_permits_and_says_so_everywhere() {
    run(async {
        let world = World::new("paused").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "50"]);
        world.tollgate_ok(&["limit", "set", "other", "--rate", "1/s"]);
        world.status_when("both arrive", |status| status.limits.len() == 2).await;
        let options = Options::new().group(&world.group).worker("w").limit("api");
        let gate = Gate::connect(world.connect().await, options).await.unwrap();
        let api = gate.limit("api");
        drop(api.acquire().await.unwrap());

        let said =
            world.tollgate_ok(&["limit", "pause", "api", "other", "api", "--reason", "provider is down"]);
        assert!(said.contains("api: paused") && said.contains("other: paused"), "{said}");
        world.status_when("paused", |status| status.limits.iter().all(|row| row.conduct.paused)).await;
        // By a notice, not by the next heartbeat.
        let error = loop {
            match api.acquire().await {
                Ok(permit) => drop(permit),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(Reason::Paused));
        let ask = json!({"id": "one", "client": "c", "limit": "api", "lease_ms": 5_000});
        let reply = world.update(&world.coordinator(), "acquire", &ask).await.unwrap();
        assert_eq!(reply["reason"], "paused", "{reply}");
        for (command, says) in [
            (&["status"][..], "PAUSED"),
            (&["limit", "list"], "PAUSED, bucket"),
            (&["limit", "get", "api"], "PAUSED, bucket"),
            (&["explain", "api"], "an operator has paused the limit"),
            (&["explain", "api"], "tollgate limit resume api"),
            (&["config", "history"], "provider is down"),
        ] {
            let shown = world.tollgate_ok(command);
            assert!(shown.contains(says), "{command:?}: {shown}");
        }
        let no = world.tollgate(&["limit", "check", "api"]);
        assert_eq!(no.status.code(), Some(4));
        // A file says nothing of pauses.
        let exported = world.tollgate_ok(&["export"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, exported).unwrap();
        let applied = world.tollgate_ok(&["apply", "-f", file.to_str().unwrap()]);
        assert!(applied.contains("nothing to change"), "{applied}");

        let wrong = world.tollgate(&["limit", "resume", "api", "nothing"]);
        let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(wrong.status.code() == Some(1) && error.contains("there is no limit \"nothing\""), "{error}");
        world.tollgate_ok(&["limit", "resume", "api", "other"]);
        while api.acquire().await.is_err() {
            tokio::task::yield_now().await;
        }
        gate.shutdown().await.unwrap();
        world.healthy_runs(&world.coordinator()).await;
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn reserve_shadow_and_what_holds_when_lost_go_from_the_command_line_to_the_coordinator() {
    run(async {
        let world = World::new("conduct").await;
        let _host = world.host();
        let set = ["limit", "set", "api", "--rate", "100/s", "--reserve", "12.5%", "--shadow", "on"];
        world.tollgate_ok(&[&set[..], &["--when-lost", "hold:50%"]].concat());
        let row = |status: Value| status["limits"][0]["conduct"].clone();
        world.status_when("it arrives", |status| !status.limits.is_empty()).await;
        let shown: Value = serde_json::from_str(&world.tollgate_ok(&["status", "--json"])).unwrap();
        let hold = json!({"kind": "hold", "part_ppb": 500_000_000});
        assert_eq!(row(shown), json!({"shadow": true, "reserve_ppb": 125_000_000, "when_lost": hold}));
        let list = world.tollgate_ok(&["limit", "list"]);
        assert!(list.contains("shadow, bucket, reserve 12.5%, when lost hold:50%"), "{list}");
        let exported = world.tollgate_ok(&["export"]);
        for line in ["reserve = \"12.5%\"", "shadow = true", "when_lost = \"hold:50%\""] {
            assert!(exported.contains(line), "{exported}");
        }
        for (option, value) in [("--reserve", "51%"), ("--shadow", "maybe"), ("--when-lost", "hold:0%")] {
            let output = world.tollgate(&["limit", "set", "api", option, value]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && error.contains(option), "{option}: {error}");
        }
        world.healthy_runs(&world.coordinator()).await;
    });
}
