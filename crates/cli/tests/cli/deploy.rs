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
