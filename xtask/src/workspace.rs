//! Where the repository is, and how to call cargo in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// The checkout that a task works on.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the checkout that this program was started from, whatever the current directory is.
    ///
    /// # Errors
    /// When the program runs outside of cargo and the folder that it was built from is gone.
    pub fn find() -> Result<Self> {
        // Cargo sets the variable for `cargo run` and `cargo test`. The value from compile time serves a
        // binary that is started by itself.
        let xtask = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = xtask
            .parent()
            .with_context(|| format!("{} has no parent folder", xtask.display()))?
            .canonicalize()
            .with_context(|| {
                format!("the repository is not above {}; run this as `cargo xtask`", xtask.display())
            })?;
        Ok(Self { root })
    }

    /// A checkout at a given folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder with the workspace's `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command in this checkout: the same cargo that runs this program, if one does.
    pub fn cargo(&self) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command.current_dir(&self.root);
        command
    }
}
