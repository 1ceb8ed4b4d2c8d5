//! Temporal's Python SDK, pinned, for the tests that speak to tollgate from another language.
//!
//! In this order: the folder that the variable `TOLLGATE_PYTHON_SDK` names; the copy in `.tools` of the repository; the package
//! from PyPI, by the machine's own `python3 -m pip`, into `.tools`. It is a folder for `PYTHONPATH` and nothing more, so that it
//! needs no `venv` module and stays usable where it is moved.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The variable that names the folder to use.
pub const OVERRIDE_VARIABLE: &str = "TOLLGATE_PYTHON_SDK";
/// The package on PyPI.
const PACKAGE: &str = "temporalio";
/// Its version.
const VERSION_PINNED: &str = "1.35.0";

/// Finds the SDK for the repository at `root`, or downloads it. See the [module](self).
///
/// # Errors
/// When there is none that works; the error says what to do.
pub fn find_or_fetch(root: &Path) -> Result<PathBuf> {
    if let Some(named) = env::var_os(OVERRIDE_VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        probe(&named)
            .with_context(|| format!("{OVERRIDE_VARIABLE}={}: correct or unset it", named.display()))?;
        return Ok(named);
    }
    let tools = root.join(".tools");
    let home = tools.join(format!("{PACKAGE}-{VERSION_PINNED}"));
    if probe(&home).is_ok() {
        return Ok(home);
    }
    install(&tools, &home, &download).context(
        "there is no Python SDK of Temporal here: install python3 (3.10 or later) with pip and allow it to reach PyPI",
    )?;
    Ok(home)
}

/// Downloads beside the final place and moves the result there in one step.
fn install(tools: &Path, home: &Path, download: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
    fs::create_dir_all(tools).with_context(|| format!("can't create the folder {}", tools.display()))?;
    let scratch = tempfile::Builder::new()
        .prefix("download-")
        .tempdir_in(tools)
        .with_context(|| format!("can't write to the folder {}", tools.display()))?;
    let ready = scratch.path().join("ready");
    download(&ready)?;
    if home.exists() {
        fs::rename(home, scratch.path().join("broken"))
            .with_context(|| format!("can't replace the broken {}", home.display()))?;
    }
    let moved = fs::rename(&ready, home);
    // Someone else may have been faster; then theirs is there, and is as good.
    if !home.is_dir() {
        moved.with_context(|| format!("can't move the download to {}", home.display()))?;
    }
    Ok(())
}

fn download(into: &Path) -> Result<()> {
    eprintln!(
        "no Python SDK of Temporal here yet: downloading {PACKAGE} {VERSION_PINNED} from PyPI (20 MB), once"
    );
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--only-binary", ":all:", "--target"])
        .arg(into)
        .arg(format!("{PACKAGE}=={VERSION_PINNED}"));
    run(pip)?;
    probe(into).context("the download doesn't work here")
}

/// Whether Python finds the SDK there, whole.
fn probe(folder: &Path) -> Result<()> {
    ensure!(folder.is_dir(), "{}: there is no such folder", folder.display());
    let mut python = Command::new("python3");
    python.args(["-c", "import temporalio.client, temporalio.worker"]).env("PYTHONPATH", folder);
    run(python)
}

fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("python3 does not run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(into: &Path) -> Result<()> {
        fs::create_dir_all(into)?;
        Ok(fs::write(into.join("mark"), "good")?)
    }

    #[test]
    fn a_broken_copy_is_replaced_and_no_scratch_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("sdk");
        fs::create_dir(&home).unwrap();
        install(folder.path(), &home, &good).unwrap();
        assert_eq!(fs::read_to_string(home.join("mark")).unwrap(), "good");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_download_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("sdk");
        let error = install(folder.path(), &home, &|_| anyhow::bail!("the network is down")).unwrap_err();
        assert!(error.to_string().contains("network is down"), "{error}");
        assert!(!home.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_without_the_sdk_is_told_from_one_with_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(probe(&folder.path().join("absent")).is_err());
        assert!(probe(folder.path()).is_err());
        let package = folder.path().join("temporalio");
        fs::create_dir(&package).unwrap();
        for module in ["__init__", "client", "worker"] {
            fs::write(package.join(format!("{module}.py")), "").unwrap();
        }
        assert!(probe(folder.path()).is_ok());
    }
}
