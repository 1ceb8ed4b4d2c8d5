//! Unpacks Debian's packages into a folder, by the machine's own `apt-get download`. Nothing is installed: no root is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Unpacks `packages`, in the version that the distribution has, and gives the folder that stands for their root.
///
/// # Errors
/// When they can't be had or unpacked.
pub fn unpack(packages: &[&str], folder: &Path) -> Result<PathBuf> {
    eprintln!("unpacking Debian's {} into {}", packages.join(", "), folder.display());
    let root = folder.join("root");
    fs::create_dir_all(&root).with_context(|| format!("can't create {}", root.display()))?;
    succeed(Command::new("apt-get").args(["download", "--quiet"]).args(packages).current_dir(folder))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            succeed(Command::new("dpkg").arg("--extract").arg(&path).arg(&root))?;
            fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()))?;
        }
    }
    Ok(root)
}

fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{name} does not run"))?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
