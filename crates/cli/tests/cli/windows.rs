//! Windows that follow a calendar: from the command line to the ledger, renewed in time, and remembered elsewhere.

use crate::world::{World, eventually, run};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SOON: Duration = Duration::from_secs(40);

#[test]
fn windows_of_a_calendar_are_set_shown_renewed_and_escrowed() {
    run(async {
        let world = World::new("windows").await;
        let _host = world.host();
        let set = |rest: &[&str]| world.tollgate(&[&["limit", "set"], rest].concat());
        // Everything that is wrong is listed, and nothing is changed.
        let wrong = set(&[
            "gemini",
            "--rate",
            "1000/h",
            "--burst",
            "5",
            "--policy",
            "fixed_window",
            "--window",
            "day",
            "--time-zone",
            "America/Los_Angles",
        ]);
        let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!(wrong.status.code(), Some(1), "{told}");
        for part in
            ["time_zone is \"America/Los_Angles\"", "burst is given", "rate is per 3600 s, allowed: per day"]
        {
            assert!(told.contains(part), "{told}");
        }
        let told = set(&["api", "--rate", "5/s", "--time-zone", "UTC", "--window", "day"]).stderr;
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains("--time-zone is given") && told.contains("--window is given"), "{told}");
        assert!(world.tollgate_ok(&["limit", "list"]).starts_with("no limits yet"));

        let zone = "America/Los_Angeles";
        let printed = world.tollgate_ok(&[
            "limit",
            "set",
            "gemini",
            "--rate",
            "1000/day",
            "--policy",
            "fixed-window",
            "--time-zone",
            zone,
        ]);
        assert!(
            printed.contains("gemini: created, 1000 in a fixed window of a day in America/Los_Angeles"),
            "{printed}"
        );
        let shown = world.tollgate_ok(&["limit", "get", "gemini"]);
        assert!(shown.contains("each day") && shown.contains("gemini: next windows begin 20"), "{shown}");
        assert!(shown.contains("time zone database 20"), "{shown}");
        let status = world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        assert_eq!(status.limits[0].bound, "at most 1000 in each day of America/Los_Angeles");
        assert!(world.tollgate_ok(&["status", "gemini"]).contains("promised: at most 1000 in each day"));

        // A look takes nothing; its exit code says what it found.
        let check = |count: &str| {
            world.tollgate(&["limit", "check", "gemini", "--cost", "10", "--count", count, "--json"])
        };
        for _ in 0..2 {
            let yes = check("100");
            assert_eq!(yes.status.code(), Some(0), "{}", String::from_utf8_lossy(&yes.stderr));
            assert_eq!(serde_json::from_slice::<Value>(&yes.stdout).unwrap()["would_admit"], true);
        }
        let no = check("101");
        assert_eq!(no.status.code(), Some(4));
        let answer: Value = serde_json::from_slice(&no.stdout).unwrap();
        assert_eq!((&answer["reason"], &answer["wanted"]), (&json!("too_little"), &json!(1010)));
        assert_eq!(world.tollgate(&["limit", "check", "nonesuch"]).status.code(), Some(4));

        // What was drawn is known to the config workflow, within a few parts in a hundred, before and after the coordinator is lost.
        let id = world.coordinator();
        let take = async |n: u64| {
            let permit = json!({"id": format!("p{n}"), "client": "c", "limit": "gemini", "cost": 10});
            world.update(&id, "acquire", &permit).await.unwrap()
        };
        let mut taken = 0;
        let escrowed = async || {
            let config = world.query(&world.config(), "config", &Value::Null).await;
            config["limits"][0]["escrowed"].as_u64()
        };
        eventually("the config workflow is told", SOON, async || {
            // Five in all; after that it only makes the coordinator look.
            if take(taken.min(4)).await["status"] == "granted" {
                taken = (taken + 1).min(5);
            }
            match escrowed().await {
                Some(tokens) if tokens < 1_000 && tokens >= taken * 10 && tokens <= taken * 10 + 60 => Ok(()),
                other => Err(format!("{other:?}, taken {taken}")),
            }
        })
        .await;
        let before = escrowed().await;
        world.temporal_ok(&["workflow", "terminate", "-w", &id, "--reason", "test"]);
        world.status_when("the coordinator comes back", |status| status.recovering_until_us.is_some()).await;
        assert!(escrowed().await >= before, "what was drawn is not forgotten");

        // Boundaries that are about to run out are renewed; a zone that no host knows is told of.
        let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
        let hour = 3_600_000_000;
        let limit = |name: &str, zone: &str| {
            json!({"name": name, "rate": {"count": 9, "period_ms": 86_400_000}, "policy": {"kind": "fixed_window",
                "time_zone": zone, "tz_version": "1999a", "boundaries_us": [now - hour, now + hour]}})
        };
        let change =
            json!({"actor": "ann", "set": [limit("berlin", "Europe/Berlin"), limit("nowhere", "No/Where")]});
        let applied = world.update(&world.config(), "apply", &change).await.unwrap();
        assert_eq!(applied["status"], "ok", "{applied}");
        eventually("boundaries are renewed", SOON, async || {
            let config = world.query(&world.config(), "config", &Value::Null).await;
            let limits = config["limits"].as_array().unwrap();
            let policy = |name: &str| &limits.iter().find(|limit| limit["limit"] == name).unwrap()["policy"];
            let renewed = policy("berlin")["boundaries_us"].as_array().unwrap().len() == 33
                && policy("berlin")["calendar"]["tz_version"] != "1999a"
                && policy("nowhere")["boundaries_us"].as_array().unwrap().len() == 2;
            let told = config["calendar_error"].as_str().is_some_and(|error| error.contains("No/Where"));
            if renewed && told { Ok(()) } else { Err(config.to_string()) }
        })
        .await;
        let shown = world.tollgate_ok(&["config", "show"]);
        assert!(
            shown.contains("later windows aren't known") && shown.contains("each day in Europe/Berlin"),
            "{shown}"
        );
        world.healthy_runs(&world.config()).await;
        world.healthy_runs(&world.coordinator()).await;
    });
}
