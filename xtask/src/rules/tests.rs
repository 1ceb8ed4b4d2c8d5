use std::fs;

use super::facts::parse_tree;
use super::*;

const PURE_ROOT: &str = "//! Docs.\n#![no_std]\n#![deny(clippy::float_arithmetic)]\n";

fn package(name: &str, dependencies: &[(&str, &str)]) -> Package {
    Package {
        name: name.to_owned(),
        dependencies: dependencies
            .iter()
            .map(|(name, kind)| Dependency { name: (*name).to_owned(), kind: (*kind).to_owned() })
            .collect(),
        tree: parse_tree(&format!("0{name} v0.1.0|\n")).unwrap(),
        root_source: PURE_ROOT.to_owned(),
        sources: Vec::new(),
    }
}

/// The whole workspace as it should be.
fn allowed() -> Facts {
    let packages = ARROWS
        .iter()
        .map(|arrow| {
            let to = arrow.to.iter().map(|name| (*name, "normal")).collect::<Vec<_>>();
            package(arrow.from, &[&to[..], &[("serde", "normal"), ("proptest", "dev")]].concat())
        })
        .collect();
    Facts { packages }
}

fn complaints(facts: &Facts) -> Vec<String> {
    check(facts).iter().map(Complaint::to_string).collect()
}

/// Complaints after a change to one package of the workspace as it should be.
fn complaints_after(name: &str, change: impl FnOnce(&mut Package)) -> Vec<String> {
    let mut facts = allowed();
    change(facts.packages.iter_mut().find(|package| package.name == name).unwrap());
    complaints(&facts)
}

fn assert_one(complaints: &[String], parts: &[&str]) {
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    for part in parts {
        assert!(complaints[0].contains(part), "{complaints:?} has {part}");
    }
}

#[test]
fn the_allowed_graph_has_no_complaint() {
    assert_eq!(complaints(&allowed()), [""; 0]);
}

#[test]
fn every_arrow_that_is_not_allowed_is_complained_about() {
    for arrow in ARROWS {
        for target in ARROWS.iter().map(|other| other.from) {
            if target == arrow.from || arrow.to.contains(&target) {
                continue;
            }
            for kind in ["normal", "dev", "build"] {
                let found = complaints_after(arrow.from, |package| {
                    package.dependencies.push(Dependency { name: target.to_owned(), kind: kind.to_owned() });
                });
                assert_one(&found, &[arrow.from, target, kind, "against the arrows"]);
            }
        }
    }
}

#[test]
fn the_arrows_have_no_cycle() {
    // Each may use only what stands before it when sorted by how much it may use.
    for arrow in ARROWS {
        for target in arrow.to {
            let back = ARROWS.iter().find(|other| other.from == *target).unwrap();
            assert!(!back.to.contains(&arrow.from), "{} and {target}", arrow.from);
            assert!(
                back.to.iter().all(|far| arrow.to.contains(far)),
                "{} skips what {target} uses",
                arrow.from
            );
        }
    }
}

#[test]
fn a_member_without_a_rule_is_complained_about() {
    let mut facts = allowed();
    facts.packages.push(package("tollgate-common", &[]));
    assert_one(&complaints(&facts), &["tollgate-common has no rule"]);
}

#[test]
fn a_socket_deep_in_the_tree_is_complained_about_with_the_way_to_it() {
    let tree = "0tollgate-workflows v0.1.0|\n1serde v1.0.0|std\n1nice v1.0.0|\n2hyper v1.12.0|client (*)\n";
    let found = complaints_after(WORKFLOWS, |package| package.tree = parse_tree(tree).unwrap());
    assert_one(&found, &["hyper brings a runtime", "tollgate-workflows -> nice -> hyper"]);
}

#[test]
fn a_forbidden_package_is_named_once_by_the_shortest_way_and_without_what_it_brings_along() {
    let tree = "0tollgate-workflows v0.1.0|\n1a v1.0.0|\n2hyper v1.12.0|\n1hyper v1.12.0|\n2mio v1.0.0|\n";
    let found = complaints_after(WORKFLOWS, |package| package.tree = parse_tree(tree).unwrap());
    assert_one(&found, &[": tollgate-workflows -> hyper"]);
}

#[test]
fn channels_of_tokio_are_allowed_in_the_tree_and_its_runtime_is_not() {
    let tree = |features| format!("0tollgate-workflows v0.1.0|\n1api v1.0.0|\n2tokio v1.54.1|{features}\n");
    let found =
        |features| complaints_after(WORKFLOWS, |package| package.tree = parse_tree(&tree(features)).unwrap());
    assert_eq!(found("default,sync"), [""; 0]);
    assert_one(&found("default,rt,sync"), &["tokio has its feature `rt`", "api -> tokio"]);
}

#[test]
fn a_pure_member_that_names_tokio_itself_is_complained_about() {
    let name_tokio = |kind: &'static str| {
        complaints_after(WORKFLOWS, |package| {
            package.dependencies.push(Dependency { name: "tokio".to_owned(), kind: kind.to_owned() });
        })
    };
    assert_one(&name_tokio("normal"), &["tollgate-workflows depends on tokio itself"]);
    assert_eq!(name_tokio("dev"), [""; 0]);
}

#[test]
fn a_tree_that_was_not_gathered_is_complained_about() {
    assert_one(&complaints_after(CORE, |package| package.tree.clear()), &["nothing was checked"]);
}

#[test]
fn a_core_with_the_standard_library_is_complained_about() {
    let found = complaints_after(CORE, |package| {
        package.root_source = "// #![no_std]\n#![deny(clippy::float_arithmetic)]\n".to_owned();
    });
    assert_one(&found, &["tollgate-core is not `#![no_std]`"]);
}

#[test]
fn a_core_that_takes_the_standard_library_back_in_is_complained_about() {
    for (source, line) in [
        ("\nextern crate std;\n", Some(2)),
        ("pub extern crate std as base;\n", Some(1)),
        ("mod a {\n    extern crate std;\n}\n", Some(2)),
        ("#[cfg(test)]\nmod tests {\n    use super::*;\n}\n\nextern crate std;\n", Some(6)),
        ("#[cfg(test)]\nmod tests;\nextern crate std;\n", Some(3)),
        ("#[cfg(test)]\nextern crate std;\n", None),
        ("#[cfg(test)]\nmod tests {\n    extern crate std;\n    use std::vec;\n}\n", None),
    ] {
        let found = complaints_after(CORE, |package| {
            package.sources = vec![("src/a.rs".to_owned(), source.to_owned())];
        });
        match line {
            Some(line) => assert_one(&found, &[&format!("src/a.rs:{line}:"), "#[cfg(test)]"]),
            None => assert_eq!(found, [""; 0], "{source}"),
        }
    }
}

#[test]
fn floats_that_are_not_ruled_out_are_complained_about() {
    for (root, count) in [
        ("#![no_std]\n", 1),
        ("#![no_std]\n// #![deny(clippy::float_arithmetic)]\n", 1),
        ("#![no_std]\n#![warn(clippy::float_arithmetic)]\n", 1),
        ("#![no_std]\n#![deny(\n    missing_docs,\n    clippy::float_arithmetic,\n)]\n", 0),
        ("#![no_std]\n#![forbid(clippy::float_arithmetic)]\n", 0),
    ] {
        let found = complaints_after(CORE, |package| package.root_source = root.to_owned());
        assert_eq!(found.len(), count, "{root:?}: {found:?}");
    }
}

#[test]
fn a_tree_of_another_form_is_an_error_and_not_an_empty_tree() {
    for bad in ["tokio v1|", "0tokio v1", "1tokio v1|", "0 v1|"] {
        assert!(parse_tree(bad).is_err(), "{bad}");
    }
}

/// The control from end to end: cargo itself, on a small workspace that breaks three rules.
#[test]
fn a_forbidden_workspace_is_found_out_through_cargo() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let manifest = |name: &str, dependencies: &str| {
        format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n\n[dependencies]\n{dependencies}")
    };
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"core\", \"workflows\"]\nexclude = [\"mio\"]\n",
    );
    write("mio/Cargo.toml", &manifest("mio", ""));
    write("mio/src/lib.rs", "");
    write("core/Cargo.toml", &manifest(CORE, "sockets = { package = \"mio\", path = \"../mio\" }\n"));
    write("core/src/lib.rs", "#![deny(clippy::float_arithmetic)]\n");
    write("workflows/Cargo.toml", &manifest(WORKFLOWS, "tollgate-core = { path = \"../core\" }\n"));
    write("workflows/src/lib.rs", PURE_ROOT);

    let found = complaints(&gather(&Workspace::at(folder.path())).unwrap());
    let expected = [
        "tollgate-core must stay pure, but mio brings a runtime or a socket: tollgate-core -> mio",
        "tollgate-core is not `#![no_std]`: put that line into its lib.rs",
        "tollgate-workflows must stay pure, but mio brings a runtime or a socket: \
         tollgate-workflows -> tollgate-core -> mio",
    ];
    assert_eq!(found, expected);
}
