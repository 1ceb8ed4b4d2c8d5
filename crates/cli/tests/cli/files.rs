//! Limits in files, from the program's command line to the workflow.

use crate::world::{World, run};
use serde_json::Value;
use std::process::{Output, Stdio};

const FILE: &str = "\
[limits.openai]
rate = \"1000/min\"
burst = 50
concurrency = 20
[limits.openai.meters.tokens]
rate = \"100000/min\"
[limits.search]
rate = \"70/10s\"
policy = \"sliding-window\"
";

/// What came out, and the exit code.
fn text(output: &Output) -> (String, Option<i32>) {
    let parts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (parts.concat(), output.status.code())
}

#[test]
fn files_are_planned_applied_exported_and_pruned_and_never_overwrite_another_edit() {
    run(async {
        let world = World::new("files").await;
        let _host = world.host();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, FILE).unwrap();
        let path = file.to_str().unwrap();

        let (planned, code) = text(&world.tollgate(&["plan", "-f", path]));
        assert_eq!(code, Some(2), "{planned}");
        assert!(planned.contains("+ openai [tokens default]: created, rate 100000/min"), "{planned}");
        assert!(planned.contains("plan: 4 to create, 0 to change, 0 to remove"), "{planned}");

        let applied = world.tollgate_ok(&["apply", "-f", path, "--reason", "as agreed"]);
        assert!(applied.contains("search: created, 70 in a sliding window of 10 s"), "{applied}");
        let (planned, code) = text(&world.tollgate(&["plan", "-f", path]));
        assert_eq!((planned.starts_with("nothing to change; version "), code), (true, Some(0)), "{planned}");

        // What is exported is what was applied, in every language, also through standard input.
        for format in ["toml", "yaml", "json"] {
            let exported = world.tollgate_ok(&["export", "--format", format]);
            let mut command = world.command(&["plan", "-f", "-", "--format", format]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), exported.as_bytes()).unwrap();
            let (planned, code) = text(&child.wait_with_output().unwrap());
            assert_eq!(code, Some(0), "{format}: {planned}\n{exported}");
        }

        // Several changes are one version.
        let version = || -> String {
            let config = world.tollgate_ok(&["config", "show", "--json"]);
            serde_json::from_str::<Value>(&config).unwrap()["version"].as_str().unwrap().to_owned()
        };
        let before = version();
        std::fs::write(&file, "ramp = \"0\"\n[limits.openai]\nrate = \"2000/min\"\n[limits.new]\nrate = 5\n")
            .unwrap();
        let (applied, code) = text(&world.tollgate(&["apply", "-f", path]));
        assert_eq!(code, Some(0), "{applied}");
        assert!(
            applied.contains("openai: rate 1000/min -> 2000/min") && applied.contains("new: created"),
            "{applied}"
        );
        assert!(applied.contains("openai: burst 50 -> 2000"), "what is left out is put back: {applied}");
        assert!(applied.contains("kept, --prune removes them: openai [in_flight default]"), "{applied}");
        let number = |version: &str| version.rsplit('.').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(number(&version()), number(&before) + 1);

        // Made for a version that isn't in force any more: nothing of it happens.
        let (refused, code) =
            text(&world.tollgate(&["apply", "-f", path, "--prune", "--if-version", &before]));
        assert_eq!(code, Some(1), "{refused}");
        assert!(refused.contains("if_version is") && refused.contains("config history"), "{refused}");
        let (planned, code) = text(&world.tollgate(&["plan", "-f", path, "--prune"]));
        assert_eq!(code, Some(2), "{planned}");
        assert!(planned.contains("plan: 0 to create, 0 to change, 3 to remove"), "{planned}");
        world.tollgate_ok(&["apply", "-f", path, "--prune"]);
        let listed = world.tollgate_ok(&["limit", "list"]);
        assert!(!listed.contains("search") && !listed.contains("tokens"), "{listed}");

        // Wrong as a whole: every problem with its place, and nothing changes.
        let before = version();
        std::fs::write(
            &file,
            "[limits.openai]\nrate = \"1/s\"\nbrust = 3\n[limits.x]\nrate = \"1/parsec\"\n",
        )
        .unwrap();
        let (refused, code) = text(&world.tollgate(&["apply", "-f", path]));
        assert_eq!(code, Some(1), "{refused}");
        for part in [
            "limits.toml:3:1: limit \"openai\" has no \"brust\"; is \"burst\" meant?",
            "limits.toml:5:8: rate is \"1/parsec\"",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert_eq!(version(), before);
    });
}
