//! `cargo xtask demo`: one rate limit, several worker processes, a downstream that counts for itself.

mod options;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

pub use options::{DemoOptions, DownstreamUrl};

/// Runs the demo.
///
/// # Errors
/// When a part of it can't be started, or its outcome breaks what tollgate promises.
pub fn run(workspace: &Workspace, options: &DemoOptions) -> Result<()> {
    let input = options.input_path(workspace);
    if !input.is_file() {
        bail!("--input {}: no such file; give a file with one JSON object a line", input.display());
    }
    bail!("the demo has no flow yet: only its options are checked");
}
