//! The files in `deploy`, as far as that can be checked without an engine: they can be read, and the commands in them are ones that
//! the program takes.

use std::path::{Path, PathBuf};
use std::process::Command;
use tollgate_cli::file::tree::{Entry, Language, Node, Value, read};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every list of words under one of these names, anywhere in the tree.
fn commands(node: &Node, names: &[&str], found: &mut Vec<Vec<String>>) {
    match &node.value {
        Value::Table(entries) => {
            for Entry { name, node, .. } in entries {
                if let (true, Value::List(items)) = (names.contains(&name.as_str()), &node.value) {
                    let words = items.iter().filter_map(|item| match &item.value {
                        Value::Text(word) => Some(word.clone()),
                        _ => None,
                    });
                    found.push(words.collect());
                }
                commands(node, names, found);
            }
        }
        Value::List(items) => items.iter().for_each(|item| commands(item, names, found)),
        _ => {}
    }
}

/// The program takes these arguments: with `--help` after them it explains the command instead of doing it.
fn is_taken(arguments: &[String]) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let explained = String::from_utf8_lossy(&output.stdout);
    for option in arguments.iter().filter(|argument| argument.starts_with("--")) {
        assert!(explained.contains(option.as_str()), "{option} of {arguments:?}");
    }
}

#[test]
fn kubernetes_objects_can_be_read_and_run_what_there_is() {
    let all = text("deploy/kubernetes/tollgate.yaml");
    let mut found = Vec::new();
    for object in all.split("\n---\n") {
        commands(&read(Language::Yaml, object).unwrap(), &["args"], &mut found);
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.iter().for_each(|arguments| is_taken(arguments));
}

#[test]
fn the_unit_of_systemd_runs_what_there_is() {
    let unit = text("deploy/systemd/tollgate.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/tollgate ")).unwrap();
    is_taken(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    // Directives stand in sections that systemd knows.
    let sections: Vec<&str> = unit.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(sections, ["[Unit]", "[Service]", "[Install]"]);
}

#[test]
fn the_image_builds_the_package_and_the_program_that_there_are() {
    let file = text("deploy/Dockerfile");
    for named in ["--package tollgate-cli", "--bin tollgate", "USER 65534", "target/release/tollgate"] {
        assert!(file.contains(named), "{named}");
    }
    let manifest = text("crates/cli/Cargo.toml");
    assert!(manifest.contains("name = \"tollgate-cli\"") && manifest.contains("name = \"tollgate\""));
    let toolchain = text("rust-toolchain.toml");
    let image = file.lines().find_map(|line| line.strip_prefix("FROM rust:")?.split('-').next()).unwrap();
    assert!(toolchain.contains(image), "the image has Rust {image}: {toolchain}");
}

/// The value of `name` in a table.
fn field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    let Value::Table(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.name == name).map(|entry| &entry.node)
}

fn words(node: &Node) -> Vec<String> {
    match &node.value {
        Value::List(items) => items.iter().flat_map(words).collect(),
        Value::Text(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// Our files of YAML share what several services have by anchors, which files of limits may not: spelled out, they are read all the same.
fn without_anchors(text: &str) -> String {
    let is_shared = |line: &&str| !line.trim_start().starts_with("<<: *");
    let plain = |line: &str| match line.split_once(": &") {
        Some((name, _)) => format!("{name}:\n"),
        None => format!("{line}\n"),
    };
    text.lines().filter(is_shared).map(plain).collect()
}

#[test]
fn the_composition_names_files_and_commands_that_there_are() {
    let composed = read(Language::Yaml, &without_anchors(&text("docker-compose.yml"))).unwrap();
    let services = field(&composed, "services").unwrap();
    let Value::Table(all) = &services.value else { panic!("services") };
    let names: Vec<&str> = all.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(
        names,
        ["postgresql", "temporal", "temporal-ui", "coordinator-1", "coordinator-2", "prometheus", "grafana"]
    );
    let volumes = field(&composed, "volumes").unwrap();
    for Entry { name, node: service, .. } in all {
        // The image's entry point is the program.
        if let Some(command) = field(service, "command") {
            is_taken(&words(command));
        } else {
            assert!(field(service, "image").is_some(), "{name}");
        }
        for mount in field(service, "volumes").map(words).unwrap_or_default() {
            let (source, rest) = mount.split_once(':').unwrap();
            match source.strip_prefix("./") {
                Some(path) => {
                    assert!(root().join(path).exists(), "{name}: {path}");
                    assert!(rest.ends_with(":ro"), "{name}: {mount}");
                }
                None => assert!(field(volumes, source).is_some(), "{name}: {source}"),
            }
        }
        for port in field(service, "ports").map(words).unwrap_or_default() {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port} is open to others");
        }
        let needed = field(service, "depends_on");
        let needed = needed.map(|needed| match &needed.value {
            Value::Table(entries) => entries.iter().map(|entry| entry.name.clone()).collect(),
            _ => words(needed),
        });
        for needed in needed.unwrap_or_default() {
            assert!(names.contains(&needed.as_str()), "{name} depends on {needed}");
        }
    }
    assert!(text("deploy/Dockerfile").contains("ENTRYPOINT [\"tollgate\"]"));
}

#[test]
fn prometheus_and_grafana_are_told_of_what_there_is() {
    let composed = text("docker-compose.yml");
    let scraping = read(Language::Yaml, &text("deploy/prometheus/prometheus.yml")).unwrap();
    for file in words(field(&scraping, "rule_files").unwrap()) {
        assert!(root().join("deploy/prometheus").join(&file).is_file(), "{file}");
        assert!(composed.contains(&format!(":/etc/prometheus/{file}:ro")), "{file} is not mounted");
    }
    let mut targets = Vec::new();
    commands(&scraping, &["targets"], &mut targets);
    for target in targets.iter().flatten() {
        let (host, port) = target.split_once(':').unwrap();
        assert!(composed.contains(&format!("\n  {host}:\n")), "{host} is no service");
        assert!(composed.contains(&format!("\"--metrics\", \"0.0.0.0:{port}\"")), "{port}");
    }
    assert_eq!(targets.iter().flatten().count(), 2);
    let provisioning = "deploy/grafana/provisioning";
    let sources = read(Language::Yaml, &text(&format!("{provisioning}/datasources/prometheus.yml"))).unwrap();
    let Value::List(sources) = &field(&sources, "datasources").unwrap().value else { panic!("no list") };
    assert_eq!(words(field(&sources[0], "url").unwrap()), ["http://prometheus:9090"]);
    let boards = read(Language::Yaml, &text(&format!("{provisioning}/dashboards/tollgate.yml"))).unwrap();
    let Value::List(providers) = &field(&boards, "providers").unwrap().value else { panic!("no list") };
    let path = words(field(field(&providers[0], "options").unwrap(), "path").unwrap()).remove(0);
    assert!(composed.contains(&format!("./deploy/grafana/tollgate.json:{path}/tollgate.json:ro")), "{path}");
    let board: serde_json::Value = serde_json::from_str(&text("deploy/grafana/tollgate.json")).unwrap();
    assert!(board["panels"].as_array().is_some_and(|panels| !panels.is_empty()));
}
