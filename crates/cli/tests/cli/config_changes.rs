//! Changes that fall back or come back by themselves, and those that are taken back: from the command line to the coordinator.

use crate::fleet::Worker;
use crate::world::{World, eventually, run};
use serde_json::{Value, json};
use std::process::Output;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(40);

/// What came out, and the exit code.
fn text(output: &Output) -> (String, Option<i32>) {
    let parts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (parts.concat(), output.status.code())
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The rate that the coordinator keeps to, in millionths of a token a second.
async fn rate(world: &World, limit: &str) -> u64 {
    let status = world.status().await;
    status.limits.iter().find(|row| row.limit == limit).map_or(0, |row| row.rate_micro)
}

async fn rate_becomes(world: &World, limit: &str, wanted: u64) {
    eventually(&format!("{limit} has {wanted}"), SOON, async || match rate(world, limit).await {
        rate if rate == wanted => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
}

#[test]
fn an_override_falls_back_by_itself_also_when_every_host_was_down() {
    run(async {
        let world = World::new("override").await;
        let host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s"]);
        let over = |rest: &[&str]| world.tollgate(&[&["limit", "override", "api"], rest].concat());

        let (told, code) = text(&over(&["--rate", "2x"]));
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--for DURATION"), "{told}");
        let (told, code) = text(&over(&["--end"]));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("there is no override of \"api\""), "{told}");
        let (told, code) =
            text(&world.tollgate(&["limit", "override", "nope", "--rate", "1", "--for", "1m"]));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("no limit \"nope\""), "{told}");

        let dry = ["--rate", "200/s", "--for", "1h", "--ramp", "0", "--dry-run"];
        let (told, code) = text(&over(&dry));
        assert_eq!(code, Some(0), "{told}");
        assert!(told.starts_with("would change:\napi: override 200/s up to 20"), "{told}");
        let (told, code) =
            text(&over(&["--rate", "200/s", "--for", "1h", "--ramp", "0", "--reason", "a backlog"]));
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("api: rate 50/s -> 200/s at once, the override begins"), "{told}");
        rate_becomes(&world, "api", 200_000_000).await;
        for shown in [&["limit", "show", "api"][..], &["limit", "ls"], &["config", "show"]] {
            let shown = world.tollgate_ok(shown);
            assert!(shown.contains("50/s") && shown.contains("api: override 200/s up to 20"), "{shown}");
            assert!(shown.contains("left, by ann@") && shown.contains(": a backlog"), "{shown}");
        }
        let json = parsed(&world.tollgate_ok(&["limit", "get", "api", "--json"]));
        assert_eq!(
            (&json[0]["by"], &json[0]["override"]["value_text"]),
            (&json!("override"), &json!("200/s"))
        );
        assert_eq!(json[0]["effective"]["rate_micro"], 200_000_000_u64);

        // What is set meanwhile stays beneath; what is exported is what is set.
        let set = world.tollgate_ok(&["limit", "set", "api", "--rate", "70/s", "--ramp", "0"]);
        assert!(set.contains("api: counts once the override is over"), "{set}");
        assert!(world.tollgate_ok(&["export"]).contains("rate = \"70/s\""));
        assert_eq!(rate(&world, "api").await, 200_000_000);
        let (told, code) = text(&over(&["--end", "--json", "--ramp", "0"]));
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(parsed(&told)["status"], "ok", "{told}");
        rate_becomes(&world, "api", 70_000_000).await;

        // By itself, while a host is there.
        world.tollgate_ok(&["limit", "override", "api", "--rate", "0.5x", "--for", "2s", "--ramp", "0"]);
        rate_becomes(&world, "api", 35_000_000).await;
        rate_becomes(&world, "api", 70_000_000).await;
        // And while none is.
        world.tollgate_ok(&["limit", "override", "api", "--rate", "9/s", "--for", "4s", "--ramp", "0"]);
        rate_becomes(&world, "api", 9_000_000).await;
        let until = world.query(&world.config(), "config", &Value::Null).await;
        let until = until["limits"][0]["override"]["until_us"].as_u64().unwrap();
        host.kill();
        eventually("it is over", SOON, async || {
            let now = tollgate_cli::moment::now_us();
            if now > until + 500_000 { Ok(()) } else { Err(format!("{now} of {until}")) }
        })
        .await;
        let _host = world.host();
        rate_becomes(&world, "api", 70_000_000).await;
        let history = world.query(&world.config(), "history", &json!({"count": 1})).await;
        let entry = &history["entries"][0];
        assert_eq!((&entry["outcome"], &entry["at_us"]), (&json!("scheduled"), &json!(until)), "{entry}");
        let shown = world.tollgate_ok(&["config", "history", "--limit", "api"]);
        assert!(
            shown.contains(" by itself instead of ") && shown.contains("the override is over"),
            "{shown}"
        );
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn what_a_version_set_comes_back_and_is_compared() {
    run(async {
        let world = World::new("rollback").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s", "--burst", "16"]);
        let version = || -> String {
            let config = parsed(&world.tollgate_ok(&["config", "show", "--json"]));
            config["version"].as_str().unwrap().to_owned()
        };
        let first = version();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "80/s", "--burst", "20", "--ramp", "0"]);
        world.tollgate_ok(&["limit", "set", "new", "--concurrency", "3"]);
        let third = version();
        let diff = world.tollgate_ok(&["config", "diff", &first]);
        let wanted = "api: rate 50/s -> 80/s\n    api: burst 16 -> 20\n    new [in_flight default]: created, 3 in flight";
        assert!(diff.starts_with(&format!("{first} → {third}\n    {wanted}")), "{diff}");
        let json = parsed(&world.tollgate_ok(&["config", "diff", "1", "1", "--json"]));
        assert_eq!(json, json!({"from": first, "to": first, "changes": []}));

        let (told, code) = text(&world.tollgate(&["config", "rollback", "1", "--dry-run"]));
        assert_eq!(code, Some(0), "{told}");
        assert!(told.starts_with("would change:\napi: rate 80/s -> 50/s over 60 s\n"), "{told}");
        assert_eq!(version(), third);
        for (wrong, why) in
            [("99", "isn't there yet"), ("x", "is none, allowed"), ("5.1", "reaches back to version")]
        {
            let (told, code) = text(&world.tollgate(&["config", "rollback", wrong]));
            assert_eq!(code, Some(1), "{told}");
            assert!(told.contains(why), "{told}");
            let (told, code) = text(&world.tollgate(&["config", "diff", wrong]));
            assert_eq!(code, Some(1), "{told}");
            assert!(told.contains(why), "{told}");
        }
        let (told, code) = text(&world.tollgate(&["config", "rollback", "1", "--if-version", &first]));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("if_version is"), "{told}");

        let done = world.tollgate_ok(&["config", "rollback", &first, "--ramp", "0", "--reason", "429s"]);
        assert!(done.contains("new [in_flight default]: removed"), "{done}");
        rate_becomes(&world, "api", 50_000_000).await;
        let shown = world.tollgate_ok(&["config", "history", "--count", "1"]);
        assert!(shown.contains(&format!(" instead of {third} ")) && shown.contains(": 429s"), "{shown}");
        assert!(shown.contains("what was set is known from version "), "{shown}");
        assert!(world.tollgate_ok(&["config", "rollback", &first]).starts_with("nothing to change"));
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn schedules_are_set_shown_kept_to_and_removed() {
    run(async {
        let world = World::new("schedules").await;
        let host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "50/s"]);
        world.tollgate_ok(&["limit", "set", "tiered", "--tier", "high=6/s", "--tier", "low=4/s"]);
        assert!(world.tollgate_ok(&["schedule", "ls"]).starts_with("no schedules"));
        let set = |rest: &[&str]| world.tollgate(&[&["schedule", "set"], rest].concat());
        let night = ["api", "--name", "night", "--between", "00:00-06:00", "--zone"];
        let (told, code) = text(&set(&[&night[..], &["Asia/Shangai", "--rate", "2x"]].concat()));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("time_zone is \"Asia/Shangai\", allowed"), "{told}");
        let (told, code) = text(&set(&[&night[..], &["UTC"]].concat()));
        assert_eq!((code, told.contains("one of --rate")), (Some(2), true), "{told}");
        let always = ["--between", "00:00-24:00", "--ramp", "0"];
        let (told, code) = text(&set(&[&["tiered", "--name", "all", "--rate", "9/s"], &always[..]].concat()));
        assert_eq!((code, told.contains("--tier (high, low)")), (Some(1), true), "{told}");

        // Always is now. A multiple goes for all tiers.
        let (told, code) = text(&set(&[&["tiered", "--name", "all", "--rate", "2x"], &always[..]].concat()));
        assert_eq!(code, Some(0), "{told}");
        assert!(
            told.contains("tiered [requests low]: rate 4/s -> 8/s at once, schedule all begins"),
            "{told}"
        );
        world
            .status_when("both tiers have twice as much", |status| {
                let rates =
                    status.limits.iter().filter(|row| row.limit == "tiered").map(|row| row.rate_micro);
                rates.sum::<u64>() == 20_000_000
            })
            .await;
        let (told, code) =
            text(
                &set(&[&night[..], &["Asia/Shanghai", "--rate", "100/s", "--days", "mon-fri,sun"]].concat()),
            );
        assert_eq!(code, Some(0), "{told}");
        assert!(
            told.contains("api: schedule night added: 100/s at 00:00-06:00 Asia/Shanghai on mon, tue, wed, thu, fri, sun"),
            "{told}"
        );
        let listed = world.tollgate_ok(&["schedule", "ls", "api", "--next", "7d"]);
        assert!(listed.contains("begins: 100/s") && listed.contains("16:00:00Z"), "{listed}");
        let json = parsed(&world.tollgate_ok(&["schedule", "ls", "--json"]));
        assert_eq!(json["schedules"].as_array().unwrap().len(), 3, "{json}");
        assert!(json["next"].as_array().unwrap().iter().any(|edge| edge["what"] == "ends"), "{json}");
        let (told, code) = text(&world.tollgate(&["schedule", "ls", "nope"]));
        assert_eq!(code, Some(1), "{told}");

        // In files: those that say something of schedules say all of them, others nothing.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        let path = file.to_str().unwrap();
        let exported = world.tollgate_ok(&["export"]);
        assert!(
            exported.contains("[[schedules]]") && exported.contains("between = \"00:00-06:00\""),
            "{exported}"
        );
        std::fs::write(&file, &exported).unwrap();
        let (told, code) = text(&world.tollgate(&["plan", "-f", path]));
        assert_eq!(code, Some(0), "{told}");
        std::fs::write(&file, "[limits.api]\nrate = \"50/s\"\n").unwrap();
        let (told, code) = text(&world.tollgate(&["plan", "-f", path]));
        assert_eq!(code, Some(0), "{told}");
        std::fs::write(&file, "schedules = []\n[limits.api]\nrate = \"50/s\"\n").unwrap();
        let (told, code) = text(&world.tollgate(&["apply", "-f", path]));
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("api: schedule night removed, was 100/s at 00:00-06:00"), "{told}");
        assert!(!told.contains("schedule all"), "{told}");

        // Whoever sends JSON needs no calendar: a host computes the times, and what is under way counts.
        let change = json!({"actor": "ann", "schedules": [{"limit": "api", "name": "now", "value": {"times_milli": 3000},
            "rule": {"from": "00:00", "to": "24:00", "time_zone": "Asia/Shanghai"}}]});
        let applied = world.update(&world.config(), "apply", &change).await.unwrap();
        assert_eq!(applied["status"], "ok", "{applied}");
        rate_becomes(&world, "api", 150_000_000).await;
        let config = world.query(&world.config(), "config", &Value::Null).await;
        let api = config["limits"].as_array().unwrap().iter().find(|limit| limit["limit"] == "api").unwrap();
        let now = api["schedules"].as_array().unwrap().iter().find(|one| one["name"] == "now").unwrap();
        assert!(now["windows_us"].as_array().unwrap().len() >= 16, "{now}");
        assert!(now["tz_version"].as_str().unwrap().starts_with("20"), "{now}");

        // One that begins and ends while every host is away, and one that begins.
        let clock = tollgate_cli::moment::now_us();
        // As many as a host would compute, so that none does.
        let windows = |from: u64, to: u64| -> Value {
            let day =
                |n: u64| [clock + (n * 86_400 + from) * 1_000_000, clock + (n * 86_400 + to) * 1_000_000];
            (0..16).map(day).map(|window| json!(window)).collect()
        };
        let brief = |name: &str, times: u64, windows: Value| {
            json!({"limit": "api", "name": name, "value": {"times_milli": times}, "windows_us": windows,
                "rule": {"from": "00:00", "to": "00:01", "days": ["wed"]}, "tz_version": "2026f"})
        };
        let change = json!({"schedules": [brief("gone", 7_000, windows(3, 4)), brief("here", 5_000, windows(5, 900))]});
        let applied = world.update(&world.config(), "apply", &change).await.unwrap();
        assert_eq!(applied["status"], "ok", "{applied}");
        host.kill();
        eventually("both have begun", SOON, async || {
            let now = tollgate_cli::moment::now_us();
            if now > clock + 5_500_000 { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
        let _host = world.host();
        rate_becomes(&world, "api", 250_000_000).await;
        let history = world.query(&world.config(), "history", &json!({"limit": "api", "count": 3})).await;
        let told: Vec<(&Value, &Value)> = history["entries"]
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .map(|entry| (&entry["at_us"], &entry["lines"][0]))
            .collect();
        let wanted = [
            (3, "api: rate 150/s -> 350/s at once, schedule gone begins"),
            (4, "api: rate 350/s -> 150/s at once, schedule now begins"),
            (5, "api: rate 150/s -> 250/s at once, schedule here begins"),
        ];
        let wanted = wanted.map(|(secs, line)| (json!(clock + secs * 1_000_000), json!(line)));
        assert_eq!(told, wanted.each_ref().map(|(at, line)| (at, line)));

        let (told, code) = text(&world.tollgate(&["schedule", "rm", "tiered", "--name", "all", "--json"]));
        assert_eq!((code, parsed(&told)["status"].as_str()), (Some(0), Some("ok")), "{told}");
        let (told, code) = text(&world.tollgate(&["schedule", "rm", "tiered", "--name", "all"]));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("has no schedule \"all\""), "{told}");
        world.healthy_runs(&world.config()).await;
    });
}

#[test]
fn who_held_what_in_the_past_is_told_from_the_history() {
    run(async {
        let world = World::new("audit").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--lease", "60s"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut workers = [1, 2].map(|number| Worker::new(&world, number, "api"));
        workers[0].beat().await;
        workers[0].beat().await;
        let detail = parsed(&world.tollgate_ok(&["status", "api", "--json"]));
        let at_us = detail["now_us"].as_i64().unwrap();
        let at = jiff::Timestamp::from_microsecond(at_us).unwrap().to_string();
        workers[1].beat().await;
        workers[0].beat().await;
        world.tollgate_ok(&["limit", "set", "api", "--rate", "7/s", "--ramp", "0"]);
        rate_becomes(&world, "api", 7_000_000).await;

        let audit = || world.tollgate(&["audit", "api", "--at", &at, "--json"]);
        let was = || async {
            eventually("the run is listed", SOON, async || {
                let (told, code) = text(&audit());
                if code == Some(0) { Ok(parsed(&told)) } else { Err(told) }
            })
            .await
        };
        let told = was().await;
        assert_eq!(told["cells"], detail["cells"], "what was seen then is what is found now");
        assert_eq!((&told["answers_different"], &told["at_us"]), (&json!(0), &json!(at_us)), "{told}");
        let shown = world.tollgate_ok(&["audit", "api", "--at", &at]);
        assert!(
            shown.starts_with("as of 20") && shown.contains("worker-1") && !shown.contains("worker-2"),
            "{shown}"
        );
        assert!(!shown.contains("not exact"), "{shown}");
        let now = jiff::Timestamp::now().to_string();
        assert!(world.tollgate_ok(&["audit", "api", "--at", &now]).contains("worker-2"));

        // An earlier run, once another one has begun.
        world.temporal_ok(&["workflow", "terminate", "-w", &world.coordinator(), "--reason", "test"]);
        world.status_when("the coordinator comes back", |status| status.recovering_until_us.is_some()).await;
        assert_eq!(was().await["cells"], detail["cells"]);

        let failing = [
            (&["audit", "nope", "--at", &at][..], 1, "no limit \"nope\" in group \"g-audit\" at 20"),
            (
                &["audit", "api", "--at", "2020-01-01T00:00:00Z"],
                1,
                "nothing is known of 2020-01-01 00:00:00Z: the oldest run",
            ),
            (&["audit", "api", "--at", "+1h"], 2, "allowed: up to now"),
            (&["audit", "api"], 2, "--at"),
        ];
        for (arguments, wanted, why) in failing {
            let (told, code) = text(&world.tollgate(arguments));
            assert_eq!(code, Some(wanted), "{told}");
            assert!(told.contains(why), "{told}");
        }
        let (told, _) = text(&world.tollgate(&["audit", "api", "--at", "2020-01-01T00:00:00Z"]));
        assert!(told.contains("keeps what has ended for "), "{told}");
    });
}
