//! Golden scripts, each in both of its modes. UPDATE_GOLDEN=1 rewrites what they expect.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

#[path = "sim/hostile.rs"]
mod hostile;
#[path = "sim/scenarios.rs"]
mod scenarios;
#[path = "sim/swarm.rs"]
mod swarm;

use std::path::{Path, PathBuf};
use tollgate_core::rules::Rule;
use tollgate_sim::script::check_file;

fn scripts(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

fn check(folder: &str) {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut failed = Vec::new();
    for file in scripts(folder) {
        match check_file(&file, update) {
            Ok(line) => println!("{line}"),
            Err(error) => failed.push(error),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_rule_switched_off_exceeds_the_bound_and_all_rules_keep_it() {
    check("rules");
}

#[test]
fn fleets_behave_as_their_scripts_say() {
    check("");
}

#[test]
fn every_rule_has_a_script_that_shows_its_hole() {
    let names: Vec<String> = scripts("rules")
        .iter()
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let missing: Vec<&str> = Rule::ALL
        .iter()
        .map(|rule| rule.name())
        .filter(|name| !names.iter().any(|file| file == name))
        .collect();
    assert!(missing.is_empty(), "rules without a script: {}", missing.join(", "));
}
