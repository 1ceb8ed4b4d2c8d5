//! Input that nobody should send, by the Temporal CLI: a clear answer, nothing half-applied, and the workflow goes on.

use crate::world::{World, run};
use serde_json::{Value, json};
use temporalio_common::data_converters::RawValue;
use tollgate_workflows::wire;
use tollgate_workflows::wire::status::{LimitRowJson, StatusJson};

/// What the Temporal CLI sends.
enum Sent<'a> {
    /// No input at all.
    Nothing,
    /// One JSON text.
    Json(&'a str),
    /// Several inputs.
    Two(&'a str, &'a str),
    /// Bytes that aren't JSON, and say so.
    Binary(&'a str),
}
use Sent::{Binary, Json, Nothing, Two};

impl Sent<'_> {
    fn arguments(&self) -> Vec<&str> {
        match *self {
            Nothing => vec![],
            Json(text) => vec!["--input", text],
            Two(one, two) => vec!["--input", one, "--input", two],
            Binary(text) => vec!["--input", text, "--input-meta", "encoding=binary/plain"],
        }
    }
}

impl World {
    fn cli_signal(&self, id: &str, name: &str, input: &Sent<'_>) {
        let arguments = [vec!["workflow", "signal", "-w", id, "--name", name], input.arguments()].concat();
        self.temporal_ok(&arguments);
    }

    /// An update by the CLI: its result, or what it says is wrong.
    fn cli_update(&self, id: &str, name: &str, input: &Sent<'_>) -> Result<Value, String> {
        let call = vec!["workflow", "update", "execute", "-w", id, "--name", name, "-o", "json"];
        let output = self.temporal([call, input.arguments()].concat());
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        Ok(told["result"].clone())
    }

    fn cli_query(&self, id: &str, name: &str, input: &Sent<'_>) -> Result<String, String> {
        let call = vec!["workflow", "query", "-w", id, "--name", name, "-o", "json"];
        let output = self.temporal([call, input.arguments()].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

/// A JSON array in an array, and so on.
fn deep(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// All that a message which is refused must leave alone.
fn what_is_granted(status: &StatusJson) -> Vec<(String, u64, u32, u64, u64, u64)> {
    let row = |row: &LimitRowJson| {
        (row.limit.clone(), row.burst, row.share_ppb, row.cap_milli, row.used, row.free_milli)
    };
    status.limits.iter().map(row).collect()
}

#[test]
fn hostile_input_to_the_coordinator_is_answered_or_counted_and_changes_nothing() {
    run(async {
        let world = World::new("hostile-coordinator").await;
        let _host = world.host();
        let id = &world.coordinator();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        let before = world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let granted = what_is_granted(&before);

        let long = "x".repeat(10_240);
        let long_client = format!(r#"{{"client":"{long}","limit":"api"}}"#);
        let long_worker = format!(
            r#"{{"incarnation":"000000000000000000000000000000aa","seq":1,"worker":"{long}","cells":[]}}"#
        );
        let deep_field = format!(r#"{{"id":"good","client":"c","limit":"api","unknown":{}}}"#, deep(5_000));
        let rate = |count: &str| {
            format!(
                r#"{{"version":{{"run_us":18446744073709551615,"n":1}},"cells":[{{"limit":"api","lease_ms":15000,
                "rate":{{"source":{{"micro_tokens":1,"period_us":1000000}},"target":{{"micro_tokens":{count},"period_us":1000000}}}},
                "burst":{{"source_milli":20000,"target_milli":20000}}}}]}}"#
            )
        };
        let (negative, huge, too_big) =
            (rate("-5"), rate("18446744073709551616"), rate("18446744073709551615"));
        let ahead = r#"{"version":{"run_us":18446744073709551615,"n":1},"cells":[]}"#;
        let entry = r#"{"limit":"a","lease_ms":5000,"rate":{"source":{"micro_tokens":1,"period_us":1000000},
            "target":{"micro_tokens":1,"period_us":1000000}},"burst":{"source_milli":1000,"target_milli":1000}}"#;
        let newer = before.version.run_us + 1;
        let twice = format!(r#"{{"version":{{"run_us":{newer},"n":1}},"cells":[{entry},{entry}]}}"#);
        let cases: &[(&str, Sent<'_>, &[&str])] = &[
            ("lease", Nothing, &["no input given", "one JSON object is wanted"]),
            ("lease", Two("{}", "{}"), &["2 inputs given", "one JSON object is wanted"]),
            ("lease", Binary("nope"), &["binary/plain", "allowed: json/plain"]),
            ("lease", Json("[1]"), &["[0]", "integer `1`"]),
            ("lease", Json("\"text\""), &["string \"text\""]),
            ("lease", Json("null"), &["null"]),
            ("lease", Json("{}"), &["limit"]),
            ("lease", Json(&deep(10_000)), &["invalid type: sequence"]),
            ("report", Json(&deep(10_000)), &["[0][0][0]", "recursion limit"]),
            ("lease", Json(r#"{"client":"c","limit":"api","cost":0}"#), &["cost: is 0", "allowed: 1 to"]),
            (
                "lease",
                Json(r#"{"client":"c","limit":"api","cost":-1}"#),
                &["cost", "`-1`", "18446744073709551615"],
            ),
            (
                "lease",
                Json(r#"{"client":"c","limit":"api","cost":"1"}"#),
                &["cost", "string \"1\"", "allowed"],
            ),
            ("lease", Json(r#"{"client":"c","limit":"api","cost":1.5}"#), &["cost", "1.5", "allowed"]),
            (
                "lease",
                Json(r#"{"client":"c","limit":"api","cost":18446744073709551616}"#),
                &["cost", "allowed"],
            ),
            ("lease", Json(r#"{"client":"c","limit":"api","cost":21}"#), &["cost", "21", "allowed: 1 to 20"]),
            ("lease", Json(r#"{"client":"c","limit":"paymnets"}"#), &["unknown_limit", "paymnets"]),
            (
                "lease",
                Json(r#"{"client":"c","limit":"api","lease_ms":1}"#),
                &["lease is 1 ms", "2 s to 120 s"],
            ),
            ("lease", Json(r#"{"client":"","limit":"api"}"#), &["client", "1 to 200 bytes"]),
            ("lease", Json(&long_client), &["client", "10240 bytes", "1 to 200 bytes"]),
            ("report", Json(r#"{"id":"none","limit":"api","used":1}"#), &["id", "none"]),
            (
                "report",
                Json(r#"{"incarnation":"zz","seq":1}"#),
                &["incarnation", "zz", "32 hexadecimal digits"],
            ),
            ("report", Json(&long_worker), &["worker", "10240 bytes", "1 to 200 bytes"]),
            ("revoke", Json("{}"), &["client"]),
            ("revoke", Json("7"), &["integer `7`"]),
            ("evict", Json(r#"{"worker":"nobody"}"#), &["worker", "nobody"]),
            ("configure", Json("{}"), &["version"]),
            ("configure", Json(&negative), &["cells[0].rate.target.micro_tokens", "`-5`"]),
            ("configure", Json(&huge), &["cells[0].rate.target.micro_tokens", "allowed"]),
            ("configure", Json(&too_big), &["rate is 18446744073710", "allowed: 0 to 1000000000000"]),
            ("configure", Json(&twice), &["limit a", "given twice"]),
            ("configure", Json(ahead), &["version is 18446744073709551615.1", "at most a day from now"]),
        ];
        let mut counted = 0;
        for (name, input, wanted) in cases {
            world.cli_signal(id, name, input);
            counted += 1;
            let what = format!("signal {name} {:.120} is counted", input.arguments().join(" "));
            let status = world.status_when(&what, |status| status.unreadable.count >= counted).await;
            let seen = &status.unreadable;
            assert_eq!((seen.count, seen.last_name.as_str()), (counted, *name), "{what}");
            for text in *wanted {
                assert!(seen.last_error.contains(text), "{what}: {:?} has no {text:?}", seen.last_error);
            }
            assert!(seen.last_error.len() < 400, "{what}: {:?}", seen.last_error);
            assert_eq!(what_is_granted(&status), granted, "{what}");
            assert_eq!(status.version, before.version, "{what}");
        }
        // What says that it is JSON and isn't: the CLI refuses to send that, other clients don't.
        let garbage = wire::payload("json/plain", b"{nope".to_vec());
        for (name, input) in
            [("lease", garbage), ("lease", RawValue::empty()), ("evict", RawValue::default())]
        {
            world.signal(id, name, input).await;
            counted += 1;
        }
        // Signals that don't exist are dropped.
        world.cli_signal(id, "leese", &Json(r#"{"client":"c","limit":"api"}"#));
        // Unknown fields are ignored, whatever is in them.
        world.cli_signal(id, "lease", &Json(&deep_field));

        let heartbeat = |rest: &str| {
            format!(r#"{{"incarnation":"000000000000000000000000000000ab","seq":1,"worker":"w"{rest}}}"#)
        };
        let twice = heartbeat(r#","cells":[{"limit":"api"},{"limit":"api"}]"#);
        let share = heartbeat(
            r#","cells":[{"limit":"api","acting":{"epoch":1,"seq":1,"share_ppb":1000000001,"cap_milli":1}}]"#,
        );
        let text_number = heartbeat(r#","cells":[{"limit":"api","used":"1"}]"#);
        let refused: &[(&str, Sent<'_>, &[&str])] = &[
            ("heartbeat", Nothing, &["no input given"]),
            ("heartbeat", Two("1", "2"), &["2 inputs given"]),
            ("heartbeat", Binary("x"), &["allowed: json/plain"]),
            ("heartbeat", Json(&deep(10_000)), &["invalid type: sequence"]),
            ("heartbeat", Json(r#"{"incarnation":"aa","seq":1}"#), &["incarnation", "32 hexadecimal digits"]),
            (
                "heartbeat",
                Json(r#"{"incarnation":"000000000000000000000000000000ab","seq":0}"#),
                &["seq: is 0"],
            ),
            ("heartbeat", Json(&long_worker), &["worker", "10240 bytes", "1 to 200 bytes"]),
            ("heartbeat", Json(&twice), &["cells[1]", "api is given twice"]),
            ("heartbeat", Json(&share), &["share_ppb", "1000000001", "0 to 1000000000"]),
            ("heartbeat", Json(&text_number), &["cells[0].used", "string \"1\"", "allowed"]),
            ("acquire", Json(r#"{"client":"c","limit":"api"}"#), &["id", "1 to 200 bytes"]),
            ("acquire", Json(r#"{"id":"1","client":"c","limit":"api","cost":0}"#), &["cost: is 0"]),
            ("configure", Json(&too_big), &["rate is 18446744073710", "allowed: 0 to 1000000000000"]),
            ("configure", Json("{}"), &["version"]),
            ("hartbeat", Json("{}"), &["No update handler registered", "hartbeat"]),
        ];
        for (name, input, wanted) in refused {
            let error = world.cli_update(id, name, input).unwrap_err();
            for text in *wanted {
                assert!(error.contains(text), "update {name} {:.200}: {error}", input.arguments().join(" "));
            }
        }
        for (rest, reason, text) in [
            (r#""limit":"paymnets""#, "unknown_limit", "paymnets"),
            (r#""limit":"api","cost":21"#, "cost_above_burst", "allowed: 1 to 20"),
            (r#""limit":"api","cost":18446744073709551615"#, "cost_above_burst", "18446744073709551615"),
        ] {
            let input = format!(r#"{{"id":"bad","client":"c",{rest}}}"#);
            let result = world.cli_update(id, "acquire", &Json(&input)).unwrap();
            assert_eq!(result["reason"], reason, "{result}");
            assert!(result["message"].as_str().unwrap().contains(text), "{result}");
        }
        let unknown = heartbeat(r#","cells":[{"limit":"paymnets"},{"limit":"api"}]"#);
        let reply = world.cli_update(id, "heartbeat", &Json(&unknown)).unwrap();
        assert!(reply["cells"][0].get("lease").is_none(), "an unknown limit has no lease: {reply}");
        assert!(reply["cells"][1].get("lease").is_some(), "the known one has: {reply}");

        let error = world.cli_query(id, "stauts", &Nothing).unwrap_err();
        assert!(error.contains("stauts"), "{error}");
        for (name, input, wanted) in [
            ("limit", Json(r#"{"limit":5}"#), "limit: invalid type: integer `5`"),
            ("grants", Json("[[1]]"), "error"),
            ("worker", Two("{}", "{}"), "2 inputs given"),
            ("explain", Json(r#"{"name":[]}"#), "name: invalid type: sequence"),
            ("explain", Json(r#"{"name":"nobody"}"#), r#""candidates":"#),
            ("starving", Json("[[1]]"), r#""now_us":"#),
        ] {
            let answer = world.cli_query(id, name, &input).unwrap();
            assert!(answer.contains(wanted), "query {name}: {answer}");
        }
        let grants = world.query(id, "grants", &json!({"id": "good"})).await;
        assert_eq!(grants["grants"][0]["status"], "granted", "{grants}");
        assert_eq!(world.status().await.unreadable.count, counted);
        let shown = world.tollgate_ok(&["status"]);
        assert!(shown.contains("unreadable") && shown.contains(&counted.to_string()), "{shown}");
        for run in world.runs(id).await {
            assert_eq!(run.failures(), [], "no message fails a workflow task");
        }
    });
}

#[test]
fn hostile_input_to_the_config_workflow_is_answered_or_counted_and_changes_nothing() {
    run(async {
        let world = World::new("hostile-config").await;
        let _host = world.host();
        let id = &world.config();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--burst", "20"]);
        let before = world.query(id, "config", &Value::Null).await;

        let long = "x".repeat(10_240);
        let long_name = format!(r#"{{"set":[{{"name":"{long}","rate":{{"count":1}}}}]}}"#);
        let long_actor = format!(r#"{{"actor":"{long}","set":[{{"name":"n","rate":{{"count":1}}}}]}}"#);
        // One good limit beside each bad one: nothing of it may come into force.
        let with = |bad: &str| format!(r#"{{"set":[{{"name":"good","rate":{{"count":1}}}},{bad}]}}"#);
        let twice = with(r#"{"name":"good","rate":{"count":2}}"#);
        let negative = with(r#"{"name":"n","rate":{"count":-1}}"#);
        let text_number = with(r#"{"name":"n","rate":{"count":"10"}}"#);
        let overflow = with(r#"{"name":"n","rate":{"count":18446744073709551616}}"#);
        let huge = with(r#"{"name":"n","rate":{"count":18446744073709551615}}"#);
        let burst = with(r#"{"name":"n","rate":{"count":1},"burst":18446744073709551615}"#);
        let period = with(r#"{"name":"n","rate":{"count":1,"period_ms":0}}"#);
        let lease = with(r#"{"name":"n","rate":{"count":1},"lease_ms":1}"#);
        let blank = with(r#"{"name":" n","rate":{"count":1}}"#);
        let unreadable: &[(Sent<'_>, &[&str])] = &[
            (Nothing, &["no input given"]),
            (Two("{}", "{}"), &["2 inputs given"]),
            (Binary("x"), &["allowed: json/plain"]),
            (Json("7"), &["integer `7`"]),
            (Json(&deep(10_000)), &["invalid type: sequence"]),
            (Json(r#"{"set":[{"rate":{"count":1}}]}"#), &["set[0]", "name"]),
            (Json(&negative), &["set[1].rate.count", "`-1`", "18446744073709551615"]),
            (Json(&text_number), &["set[1].rate.count", "\"10\"", "allowed"]),
            (Json(&overflow), &["set[1].rate.count", "allowed"]),
        ];
        let refused: &[(&str, &[&str])] = &[
            (&twice, &["set: limit \"good\" is given twice"]),
            (&huge, &["limit \"n\"", "rate is 18446744073709551615", "allowed: 0 to 1000000000000"]),
            (&burst, &["limit \"n\"", "burst is 18446744073709551615", "allowed: 0 to 1000000000000000"]),
            (&period, &["limit \"n\"", "period is 0 ms", "allowed: 1 ms to 366 days"]),
            (&lease, &["limit \"n\"", "lease is 1 ms", "allowed: 2 s to 120 s"]),
            (&blank, &["name is \" n\"", "no blanks at the ends"]),
            (&long_name, &["name is", "10240 bytes", "1 to 200 bytes"]),
            (&long_actor, &["actor", "10240 bytes", "up to 200"]),
            (r#"{"remove":["paymnets"]}"#, &["remove", "paymnets"]),
            (r#"{"abort_ramps":["paymnets"]}"#, &["abort_ramps", "paymnets"]),
            (r#"{"remove":["api","api"]}"#, &["remove", "api", "twice"]),
            (r#"{"set":[{"name":"api","rate":{"count":1}}],"remove":["api"]}"#, &["set and remove", "api"]),
            (
                r#"{"set":[{"name":"good","rate":{"count":1}}],"ramp_ms":86400001}"#,
                &["ramp is 86400001 ms", "0 to 24 h"],
            ),
            (r#"{"set":[{"name":"good","rate":{"count":1}}],"if_version":"1.1"}"#, &["if_version", "1.1"]),
            (r#"{"target_rate_milli":0}"#, &["target_rate_milli", "is 0", "100 to 200000"]),
        ];
        for (input, wanted) in unreadable {
            let error = world.cli_update(id, "apply", input).unwrap_err();
            world.cli_signal(id, "update_config", input);
            for text in *wanted {
                assert!(error.contains(text), "apply {:.200}: {error}", input.arguments().join(" "));
            }
        }
        for (input, wanted) in refused {
            let result = world.cli_update(id, "apply", &Json(input)).unwrap();
            world.cli_signal(id, "update_config", &Json(input));
            assert_eq!(result["status"], "refused", "{input:.200}: {result}");
            for text in *wanted {
                let problems: Vec<&str> =
                    result["problems"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                assert!(problems.iter().any(|problem| problem.contains(text)), "{input:.200}: {problems:?}");
            }
        }
        world.signal(id, "update_config", wire::payload("json/plain", b"{nope".to_vec())).await;
        world.cli_signal(id, "update_confg", &Json("{}"));
        let error = world.cli_update(id, "aply", &Json("{}")).unwrap_err();
        assert!(error.contains("No update handler registered") && error.contains("aply"), "{error}");
        let error = world.cli_query(id, "confg", &Nothing).unwrap_err();
        assert!(error.contains("confg"), "{error}");
        for (name, input) in [("effective", r#"{"at_ms":-1}"#), ("history", r#"{"count":"x"}"#)] {
            let answer = world.cli_query(id, name, &Json(input)).unwrap();
            assert!(answer.contains("error"), "query {name}: {answer}");
        }

        let after = world.query(id, "config", &Value::Null).await;
        assert_eq!(after["limits"], before["limits"], "nothing is half-applied");
        assert_eq!(after["version"], before["version"]);
        assert_eq!(after["unreadable"]["count"], unreadable.len() + 1, "{after}");
        assert_eq!(after["refused"]["count"], refused.len(), "{after}");
        let shown = world.tollgate_ok(&["config", "show"]);
        assert!(shown.contains("unreadable messages") && shown.contains("refused signals"), "{shown}");
        // Unknown fields are ignored, and it still works.
        let good = r#"{"colour":"red","set":[{"name":"good","rate":{"count":5,"unit":"s"}}]}"#;
        assert_eq!(world.cli_update(id, "apply", &Json(good)).unwrap()["status"], "ok");
        for run in world.runs(id).await {
            assert_eq!(run.failures(), [], "no message fails a workflow task");
        }
    });
}
