//! Names and figures of limits at the edges of what is allowed, from the command line to the coordinator.

use crate::past::Run;
use crate::world::{World, run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tollgate_workflows::wire;

#[test]
fn odd_names_are_keys_of_their_own_from_the_command_line_to_the_coordinator() {
    const NAMES: [&str; 10] = [
        "2001:db8::1",
        "a b",
        "na\u{ef}ve",
        "nai\u{308}ve",
        "\u{438}\u{43c}\u{44f}",
        "\u{1f6a6}",
        "../x",
        "%2F",
        "A",
        "a",
    ];
    run(async {
        let world = World::new("names").await;
        let _host = world.host();
        for (n, name) in NAMES.iter().enumerate() {
            let burst = (n + 1).to_string();
            let printed = world.tollgate_ok(&["limit", "set", name, "--rate", "10/s", "--burst", &burst]);
            assert!(printed.contains(&format!("{name}: created")), "{printed}");
        }
        let status = world.status_when("all arrive", |status| status.limits.len() == NAMES.len()).await;
        let seen: BTreeSet<&str> = status.limits.iter().map(|row| row.limit.as_str()).collect();
        assert_eq!(seen, BTreeSet::from(NAMES));
        // Each has its own tokens, at the coordinator and wherever it is shown.
        for (n, name) in NAMES.iter().enumerate() {
            let (cost, id) = (n + 1, format!("permit-{n}"));
            let acquire = json!({"id": id, "client": name, "limit": name, "cost": cost, "lease_ms": 60_000});
            let reply = world.update(&world.coordinator(), "acquire", &acquire).await.unwrap();
            assert_eq!(reply["status"], "granted", "{name:?}: {reply}");
        }
        let shown: Value = serde_json::from_str(&world.tollgate_ok(&["status", "--json"])).unwrap();
        for row in shown["limits"].as_array().unwrap() {
            let n = NAMES.iter().position(|name| row["limit"] == *name).unwrap();
            assert_eq!(row["cap_milli"], json!((n + 1) * 1_000), "{row}");
        }
        let table = world.tollgate_ok(&["limit", "list"]);
        assert!(NAMES.iter().all(|name| table.contains(name)), "{table}");
        for (n, name) in [(1, "a b"), (2, NAMES[2]), (3, NAMES[3])] {
            let got: Value =
                serde_json::from_str(&world.tollgate_ok(&["limit", "get", name, "--json"])).unwrap();
            assert_eq!(got[0]["burst"], json!(n + 1), "{got}");
            let shown = world.tollgate_ok(&["explain", name]);
            assert!(shown.starts_with(&format!("limit {name} ")), "{shown}");
        }
        let long = "x".repeat(1_000);
        for name in ["", " a", "a\n", &long] {
            let output = world.tollgate(&["limit", "set", name, "--rate", "1/s"]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name:?}: {error}");
            assert!(error.contains("1 to 200 bytes"), "{name:?}: {error}");
        }
        assert_eq!(world.status().await.limits.len(), NAMES.len());
        world.healthy_runs(&world.coordinator()).await;
    });
}

#[test]
fn extreme_figures_are_kept_exactly_or_refused_whole_and_a_calm_group_sets_no_timers() {
    run(async {
        let world = World::new("figures").await;
        let _host = world.host();
        // As (rate, millionths of a token a second, burst unless given).
        let wanted = [
            ("1500/s", 1_500_000_000, 1_500),
            ("120000/min", 2_000_000_000, 120_000),
            ("1000000/s", 1_000_000_000_000, 1_000_000),
            ("2147483647/s", 2_147_483_647_000_000, 2_147_483_647),
            ("2/s", 2_000_000, 2),
            ("1/h", 277, 1),
            ("5/24h", 57, 5),
            ("0", 0, 0),
        ];
        for (rate, ..) in wanted {
            world.tollgate_ok(&["limit", "set", rate, "--rate", rate]);
        }
        world.tollgate_ok(&["limit", "set", "slots", "--concurrency", "0"]);
        let count = wanted.len() + 1;
        let status = world.status_when("all arrive", |status| status.limits.len() == count).await;
        // Nobody waits, nothing is out: until a message comes nothing happens, and no history grows.
        for id in [world.coordinator(), world.config()] {
            let timers: usize = world.healthy_runs(&id).await.iter().map(Run::timers).sum();
            assert_eq!(timers, 0, "{id}");
        }
        for (rate, micro, burst) in wanted {
            let row = status.limits.iter().find(|row| row.limit == rate).unwrap();
            assert_eq!((row.rate_micro, row.burst), (micro, burst), "{rate}");
            let cost_one = json!({"id": rate, "client": "c", "limit": rate, "lease_ms": 2_000});
            let reply = world.update(&world.coordinator(), "acquire", &cost_one).await.unwrap();
            let told = if burst > 0 { &reply["status"] } else { &reply["reason"] };
            assert_eq!(told, if burst > 0 { "granted" } else { "cost_above_burst" }, "{rate}: {reply}");
            let nothing = json!({"id": rate, "limit": rate, "used": 0});
            world.signal(&world.coordinator(), "report", wire::write(&nothing)).await;
        }
        let none = json!({"id": "slot", "client": "c", "limit": "slots", "meter": "in_flight"});
        let reply = world.update(&world.coordinator(), "acquire", &none).await.unwrap();
        assert_eq!(reply["reason"], "cost_above_burst", "none in flight is an answer, and no wait: {reply}");

        for (option, value) in [
            ("--rate", "18446744073709551615/1ms"),
            ("--rate", "2147483647/0s"),
            ("--rate", "-1"),
            ("--burst", "18446744073709551615"),
            ("--concurrency", "-1"),
        ] {
            let output = world.tollgate(&["limit", "set", "2/s", option, value]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{option} {value}: {error}");
            let says = error.contains(option) && error.contains(value) && error.contains("allowed: ");
            assert!(says, "{option} {value}: {error}");
        }
        let after = world.status().await;
        assert_eq!((after.version, after.limits.len()), (status.version, count), "nothing is half-done");
        world.healthy_runs(&world.coordinator()).await;
    });
}
