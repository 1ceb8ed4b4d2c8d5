//! Finds a Prometheus, which a test lets scrape a running fleet, or unpacks Debian's into `.tools`.
//!
//! In this order: the variable `TOLLGATE_PROMETHEUS`, `prometheus` in a folder of `PATH`, the copy that was unpacked earlier, and
//! Debian's package, by the machine's own `apt-get download`, in the version that the distribution has. Nothing is installed: no
//! root is needed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::debian;
use anyhow::{Context as _, Result, bail};

/// The variable that names the program.
pub const OVERRIDE_VARIABLE: &str = "TOLLGATE_PROMETHEUS";
/// Debian's package. What it depends on is for its web pages.
const PACKAGE: &str = "prometheus";

/// Finds the program for the repository at `root`, or unpacks one. See the [module](self).
///
/// # Errors
/// When none works; the error says how to get one.
pub fn find_or_fetch(root: &Path) -> Result<PathBuf> {
    if let Some(chosen) = env::var_os(OVERRIDE_VARIABLE).filter(|value| !value.is_empty()) {
        return probe(PathBuf::from(chosen))
            .with_context(|| format!("{OVERRIDE_VARIABLE}: correct or unset it"));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut on_path = env::split_paths(&path).map(|folder| folder.join("prometheus"));
    if let Some(found) = on_path.find_map(|candidate| probe(candidate).ok()) {
        return Ok(found);
    }
    let folder = root.join(".tools").join("prometheus");
    let program = folder.join("root/usr/bin/prometheus");
    if let Ok(found) = probe(program.clone()) {
        return Ok(found);
    }
    debian::unpack(&[PACKAGE], &folder).and_then(|_| probe(program)).with_context(|| {
        format!(
            "tests of metrics need a Prometheus: `apt-get install prometheus`, or name the program by {OVERRIDE_VARIABLE}"
        )
    })
}

fn probe(path: PathBuf) -> Result<PathBuf> {
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{}: does not run", path.display()))?;
    // Older ones tell standard error.
    let says = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    if !output.status.success() || !says.iter().any(|text| text.starts_with("prometheus, version ")) {
        bail!("{}: is no Prometheus ({})", path.display(), output.status);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_program_that_says_that_it_is_prometheus_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, body: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        assert!(probe(script("good", "echo 'prometheus, version 2.42.0+ds (branch: debian/sid)'")).is_ok());
        assert!(probe(script("old", "echo 'prometheus, version 2.24.1' >&2")).is_ok());
        assert!(probe(script("other", "echo hello")).is_err());
        assert!(probe(script("broken", "echo 'prometheus, version 2'; exit 127")).is_err());
        assert!(probe(folder.path().join("absent")).is_err());
    }
}
