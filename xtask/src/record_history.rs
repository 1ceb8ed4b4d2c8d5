//! `cargo xtask record-history`: histories of the workflows, for the tests that replay them.
//!
//! Without arguments it records all of `workflows/tests/histories` anew: a scenario of the end-to-end tests runs against a
//! dev server of its own. With a workflow's id and a file it fetches one history from the server that Temporal's variables
//! name: one that went wrong in the field, for example.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::temporal_cli;
use crate::workspace::Workspace;

/// The folder of the recorded histories, relative to the repository.
const FOLDER: &str = "workflows/tests/histories";
/// The variable that names the folder to the scenario.
const FOLDER_VARIABLE: &str = "TOLLGATE_RECORD_HISTORIES";

/// What `cargo xtask record-history` takes.
#[derive(Debug, Clone, Default, Args)]
pub struct RecordOptions {
    /// The workflow: `tollgate/GROUP` or `tollgate-config/GROUP`.
    #[arg(requires = "file")]
    pub id: Option<String>,

    /// The file to write.
    pub file: Option<PathBuf>,

    /// The workflow's run; the newest if not given.
    #[arg(long, value_name = "RUN", requires = "id")]
    pub run: Option<String>,
}

/// Records.
///
/// # Errors
/// When the program doesn't build, there is no Temporal server, or the scenario fails.
pub fn run(workspace: &Workspace, options: &RecordOptions) -> Result<()> {
    let mut command = workspace.cargo();
    if let (Some(id), Some(file)) = (&options.id, &options.file) {
        command.args(["run", "--quiet", "--bin", "tollgate", "--", "history-export", id.as_str()]).arg(file);
        if let Some(run) = &options.run {
            command.args(["--run", run.as_str()]);
        }
    } else {
        let cli = temporal_cli::find_or_fetch(workspace.root())?;
        command
            .args(["test", "--workspace", "--test", "cli", "--"])
            .args(["--exact", "--nocapture", "record::every_kind_of_message_leaves_healthy_histories"])
            .env(temporal_cli::OVERRIDE_VARIABLE, cli.path)
            .env(FOLDER_VARIABLE, workspace.root().join(FOLDER));
    }
    let status = command.status().context("can't start cargo")?;
    if !status.success() {
        bail!("recording failed ({status}): see the errors above");
    }
    Ok(())
}
