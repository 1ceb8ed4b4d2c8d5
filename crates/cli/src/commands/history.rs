//! `tollgate history-export`.

use super::print_line;
use crate::args::{Global, HistoryExport};
use crate::connection::Settings;
use crate::failure::Failure;
use temporalio_client::{WorkflowExecutionInfo, WorkflowFetchHistoryOptions};
use tokio::time::{Instant, timeout};

/// Writes the history of one run of a workflow to a file, as tests replay it.
///
/// # Errors
/// [`Failure`] when there is no such run, or the file can't be written.
pub async fn run(global: &Global, options: &HistoryExport) -> Result<(), Failure> {
    let settings = Settings::load(&global.temporal)?;
    let client = settings.connect(Instant::now() + global.timeout).await?;
    let info = WorkflowExecutionInfo::builder()
        .namespace(client.options().namespace.clone())
        .workflow_id(options.id.clone())
        .maybe_run_id(options.run.clone())
        .build();
    let history = info.bind_untyped(client).fetch_history(WorkflowFetchHistoryOptions::default());
    let json = timeout(global.timeout, history.to_json())
        .await
        .map_err(|_| Failure::NoAnswer(format!("the history of {} did not come in time", options.id)))?
        .map_err(|error| Failure::Failed(format!("the history of {}: {error}", options.id)))?;
    let file = options.file.display();
    std::fs::write(&options.file, &json).map_err(|error| Failure::Failed(format!("{file}: {error}")))?;
    print_line(&format!("{file}: {} bytes", json.len()))
}
