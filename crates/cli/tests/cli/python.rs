//! Another language's SDK: Python code that knows Temporal and nothing of tollgate but the names of its messages.

use crate::world::{World, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the folder with Temporal's Python SDK.
const SDK_VARIABLE: &str = "TOLLGATE_PYTHON_SDK";

#[test]
fn python_leases_reports_and_revokes_by_signals_and_takes_permits_in_workflows() {
    run(async {
        let world = World::new("python").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "api", "--rate", "20/s", "--burst", "2"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut python = Command::new("python3");
        python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/by_signals.py"));
        python.args([&world.group, "api"]);
        world.environment(&mut python);
        // A Python that a version manager chooses is found by these.
        for name in ["PATH", "PYENV_ROOT", "PYENV_VERSION"] {
            python.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        python.env("PYTHONPATH", sdk()).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = tokio::task::block_in_place(|| python.output()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(text(&output.stdout).trim(), "done");
        // 2 by signals, 5 in workflows, 1 by preload.
        let status = world.status_when("all is reported", |status| status.limits[0].used == 8).await;
        assert_eq!((status.unreadable.count, status.limits[0].cap_milli), (0, 0), "{status:?}");
        for id in [&world.coordinator(), "summaries-4", "preload-granted"] {
            world.healthy_runs(id).await;
        }
    });
}

/// Where `cargo xtask test` says that the SDK is, else where `cargo xtask python-sdk` puts it.
fn sdk() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let named = std::env::var_os(SDK_VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| {
        let folders = std::fs::read_dir(tools).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_sdk = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("temporalio-"))
        };
        folders.filter(is_sdk).max()
    });
    found.unwrap_or_else(|| {
        panic!(
            "this test needs Temporal's Python SDK: run it by `cargo xtask test`, which gets it, or run \
             `cargo xtask python-sdk`"
        )
    })
}
