//! Finds a Redis server, the peer of benchmark `decision`, or unpacks Debian's into `.tools`.
//!
//! In this order: the variable `TOLLGATE_REDIS_SERVER`, `redis-server` in a folder of `PATH`, the copy that was unpacked
//! earlier, and Debian's packages, by the machine's own `apt-get download`. Nothing is installed: no root is needed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::debian;
use anyhow::{Context as _, Result, bail};

/// The variable that names the program.
pub const VARIABLE: &str = "TOLLGATE_REDIS_SERVER";
/// The program is in the tools' package; the others are libraries that few machines have.
const PACKAGES: [&str; 3] = ["redis-tools", "libjemalloc2", "liblzf1"];

/// A server that runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisServer {
    /// The program.
    pub path: PathBuf,
    /// Folders with its libraries, as LD_LIBRARY_PATH takes them.
    pub libraries: Option<PathBuf>,
    /// What it says that it is.
    pub version: String,
}

impl RedisServer {
    /// Tells a program where it is.
    pub fn tell(&self, command: &mut Command) {
        command.env(VARIABLE, &self.path);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }
}

/// Finds a server for the repository at `root`, or unpacks one. See the [module](self).
///
/// # Errors
/// When none works; the error says how to get one.
pub fn find_or_fetch(root: &Path) -> Result<RedisServer> {
    if let Some(chosen) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return probe(PathBuf::from(chosen), None)
            .with_context(|| format!("{VARIABLE}: correct or unset it"));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut on_path = env::split_paths(&path).map(|folder| folder.join("redis-server"));
    if let Some(found) = on_path.find_map(|candidate| probe(candidate, None).ok()) {
        return Ok(found);
    }
    let folder = root.join(".tools").join("redis");
    if let Ok(found) = unpacked(&folder) {
        return Ok(found);
    }
    fetch(&folder).and_then(|()| unpacked(&folder)).with_context(|| {
        format!("benchmark `decision` needs a Redis server: `apt-get install redis-server`, or name one by {VARIABLE}")
    })
}

fn probe(path: PathBuf, libraries: Option<PathBuf>) -> Result<RedisServer> {
    let mut command = Command::new(&path);
    if let Some(libraries) = &libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let output = command.arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{}: does not run", path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split(" v=").nth(1).and_then(|rest| rest.split(' ').next());
    match version.filter(|_| output.status.success()) {
        Some(version) => Ok(RedisServer { version: version.to_owned(), path, libraries }),
        None => bail!("{}: is no Redis server ({})", path.display(), output.status),
    }
}

fn unpacked(folder: &Path) -> Result<RedisServer> {
    let root = folder.join("root");
    let libraries = fs::read_dir(root.join("usr/lib"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("liblzf.so.1").exists());
    // The program looks at the name by which it is called.
    probe(root.join("usr/bin/redis-server"), libraries)
}

fn fetch(folder: &Path) -> Result<()> {
    let root = debian::unpack(&PACKAGES, folder)?;
    let program = root.join("usr/bin/redis-server");
    if !program.exists() {
        fs::copy(root.join("usr/bin/redis-check-rdb"), &program)
            .context("redis-tools has no server in it")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_program_that_says_that_it_is_a_redis_server_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, body: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let good =
            script("good", "echo 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64'");
        assert_eq!(probe(good.clone(), None).unwrap().version, "7.0.15");
        assert!(probe(script("other", "echo hello"), None).is_err());
        assert!(probe(script("broken", "echo 'Redis server v=7.0.15 '; exit 127"), None).is_err());
        assert!(probe(folder.path().join("absent"), None).is_err());
    }
}
