//! Who may depend on whom, and a checker that holds these rules against what cargo resolves.
//!
//! The arrows point one way: worker, activities, cli -> workflows -> core; sim -> core; worker, cli -> metrics; core and metrics
//! -> nothing of ours.
//! Beyond that, what must be a function of its inputs has no runtime and no socket anywhere in its dependencies,
//! and says so in its source. Each rule has a test that feeds it a forbidden case: a checker that complains about
//! nothing would go unnoticed otherwise.

mod facts;

use std::fmt;

use anyhow::Result;

use crate::workspace::Workspace;

pub use facts::{Dependency, Facts, Package, TreeNode};

/// A member of the workspace and the members that it may depend on, in whatever way (tests and build scripts
/// too).
struct Arrow {
    from: &'static str,
    to: &'static [&'static str],
}

const CORE: &str = "tollgate-core";
const SIM: &str = "tollgate-sim";
const WORKFLOWS: &str = "tollgate-workflows";
const ACTIVITIES: &str = "tollgate-activities";
const WORKER: &str = "tollgate-worker";
const METRICS: &str = "tollgate-metrics";
const LEVEL_MODEL: &str = "tollgate-level-model";
const CLI: &str = "tollgate-cli";
const XTASK: &str = "xtask";

const ARROWS: &[Arrow] = &[
    Arrow { from: CORE, to: &[] },
    Arrow { from: SIM, to: &[CORE] },
    Arrow { from: WORKFLOWS, to: &[CORE] },
    Arrow { from: ACTIVITIES, to: &[WORKFLOWS, CORE] },
    Arrow { from: METRICS, to: &[] },
    Arrow { from: WORKER, to: &[WORKFLOWS, CORE, METRICS] },
    Arrow { from: LEVEL_MODEL, to: &[CORE] },
    Arrow { from: CLI, to: &[WORKER, ACTIVITIES, WORKFLOWS, CORE, METRICS, SIM] },
    Arrow { from: XTASK, to: &[SIM, CORE] },
];

/// Members whose whole tree of normal dependencies is free of runtimes and sockets.
const PURE: &[&str] = &[CORE, SIM, WORKFLOWS];

/// Members that need no standard library, so that a clock or an environment isn't even within reach.
const NO_STD: &[&str] = &[CORE];

/// Members that calculate in integers alone.
const NO_FLOATS: &[&str] = &[CORE, WORKFLOWS];

/// Packages that bring a runtime or a socket with them.
const IMPURE_PACKAGES: &[&str] = &[
    "async-io",
    "async-std",
    "curl",
    "h2",
    "hyper",
    "hyper-util",
    "mio",
    "polling",
    "quinn",
    "reqwest",
    "rustls",
    "smol",
    "socket2",
    "temporalio-client",
    "temporalio-sdk",
    "temporalio-sdk-core",
    "ureq",
];

/// Packages that are harmless as channels and generated types, which the Temporal API crates use, and impure
/// with these features.
const IMPURE_FEATURES: &[(&str, &[&str])] = &[
    ("tokio", &["fs", "full", "io-std", "net", "process", "rt", "rt-multi-thread", "signal", "time"]),
    ("tonic", &["channel", "router", "server", "transport"]),
];

/// Packages that a pure member may not even name as a normal dependency of its own.
const IMPURE_BY_CHOICE: &[&str] = &["tokio", "tokio-util", "tonic", "tower"];

/// Something that breaks a rule: what, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint(String);

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Asks cargo what depends on what in a workspace.
///
/// # Errors
/// When cargo can't resolve it or says something unexpected.
pub fn gather(workspace: &Workspace) -> Result<Facts> {
    facts::gather(workspace, PURE)
}

/// Everything that breaks a rule.
pub fn check(facts: &Facts) -> Vec<Complaint> {
    let ours = facts.packages.iter().map(|package| package.name.as_str()).collect::<Vec<_>>();
    let mut complaints = Vec::new();
    for package in &facts.packages {
        check_arrows(package, &ours, &mut complaints);
        if PURE.contains(&package.name.as_str()) {
            check_purity(package, &mut complaints);
        }
        check_sources(package, &mut complaints);
    }
    complaints
}

fn check_arrows(package: &Package, ours: &[&str], complaints: &mut Vec<Complaint>) {
    let name = &package.name;
    let Some(arrow) = ARROWS.iter().find(|arrow| arrow.from == name.as_str()) else {
        complaints.push(Complaint(format!(
            "{name} has no rule: say in ARROWS of xtask/src/rules what it may depend on"
        )));
        return;
    };
    for dependency in &package.dependencies {
        let target = dependency.name.as_str();
        if ours.contains(&target) && target != name && !arrow.to.contains(&target) {
            complaints.push(Complaint(format!(
                "{name} depends on {target} ({}), against the arrows: it may use {}",
                dependency.kind,
                if arrow.to.is_empty() { "nothing of ours".to_owned() } else { arrow.to.join(", ") },
            )));
        }
    }
}

fn check_purity(package: &Package, complaints: &mut Vec<Complaint>) {
    let name = &package.name;
    if package.tree.is_empty() {
        complaints.push(Complaint(format!("{name} has an empty dependency tree: nothing was checked")));
    }
    for dependency in &package.dependencies {
        if dependency.kind == "normal" && IMPURE_BY_CHOICE.contains(&dependency.name.as_str()) {
            complaints.push(Complaint(format!(
                "{name} depends on {} itself: move what needs it to a crate that does I/O",
                dependency.name
            )));
        }
    }
    // The shortest way first, each package once, and nothing that only comes along with what was named.
    let mut nodes = package.tree.iter().collect::<Vec<_>>();
    nodes.sort_by_key(|node| node.path.len());
    let mut named: Vec<&str> = Vec::new();
    for node in nodes {
        if node.path.iter().any(|step| named.contains(&step.as_str())) {
            continue;
        }
        let reason = if IMPURE_PACKAGES.contains(&node.name()) {
            "brings a runtime or a socket".to_owned()
        } else if let Some(feature) = impure_feature(node) {
            format!("has its feature `{feature}`, which brings a runtime or a socket")
        } else {
            continue;
        };
        named.push(node.name());
        complaints.push(Complaint(format!(
            "{name} must stay pure, but {} {reason}: {}",
            node.name(),
            node.path.join(" -> ")
        )));
    }
}

fn impure_feature(node: &TreeNode) -> Option<&str> {
    let (_, impure) = IMPURE_FEATURES.iter().find(|(name, _)| *name == node.name())?;
    node.features.iter().map(String::as_str).find(|feature| impure.contains(feature))
}

fn check_sources(package: &Package, complaints: &mut Vec<Complaint>) {
    let name = &package.name;
    if NO_STD.contains(&name.as_str()) {
        if !package.root_source.lines().any(|line| line.trim() == "#![no_std]") {
            complaints.push(Complaint(format!("{name} is not `#![no_std]`: put that line into its lib.rs")));
        }
        for (file, source) in &package.sources {
            if let Some(line) = std_outside_tests(source) {
                complaints.push(Complaint(format!(
                    "{name} takes in the standard library at {file}:{line}: \
                     write `#[cfg(test)]` on the line before `extern crate std;`"
                )));
            }
        }
    }
    if NO_FLOATS.contains(&name.as_str()) && !denies(&package.root_source, "clippy::float_arithmetic") {
        complaints.push(Complaint(format!(
            "{name} does not rule out floats: put `#![deny(clippy::float_arithmetic)]` into its lib.rs"
        )));
    }
}

/// The line of an `extern crate std` that is neither marked `#[cfg(test)]` nor inside of a module that is. It goes
/// by the layout that rustfmt gives.
fn std_outside_tests(source: &str) -> Option<usize> {
    let mut before = "";
    let mut in_tests = false;
    for (index, line) in source.lines().enumerate() {
        in_tests = match line {
            "}" => false,
            _ if before == "#[cfg(test)]" && line.starts_with("mod ") && line.ends_with('{') => true,
            _ => in_tests,
        };
        let item = line.trim_start();
        let takes_std = item.strip_prefix("pub ").unwrap_or(item).starts_with("extern crate std");
        if takes_std && !in_tests && before.trim_start() != "#[cfg(test)]" {
            return Some(index + 1);
        }
        before = line;
    }
    None
}

/// Whether a crate's root denies or forbids a lint for the whole crate.
fn denies(source: &str, lint: &str) -> bool {
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect::<String>();
    ["#![deny(", "#![forbid("].iter().any(|start| {
        code.split(start)
            .skip(1)
            .filter_map(|rest| rest.split(")]").next())
            .any(|list| list.split(',').any(|item| item == lint))
    })
}

#[cfg(test)]
mod tests;
