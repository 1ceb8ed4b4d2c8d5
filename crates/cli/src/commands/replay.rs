//! `tollgate replay`.

use super::print_line;
use crate::args::{Global, Replay};
use crate::connection::Session;
use crate::failure::Failure;
use serde_json::json;
use temporalio_client::WorkflowHistory;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;
use tollgate_activities::{ReplayError, replay};
use tollgate_workflows::contracts::{config_id, coordinator_id};

/// Replays histories with this program's workflows.
///
/// # Errors
/// [`Failure`] naming the first history that doesn't replay or isn't there.
pub async fn run(global: &Global, options: &Replay) -> Result<(), Failure> {
    if !options.histories.is_empty() {
        for file in &options.histories {
            let name = file.display().to_string();
            let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{name}: {error}"));
            let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
            let history = WorkflowHistory::from_json(&bytes).map_err(|error| failed(&error))?;
            let events = history.into_events().await.map_err(|error| failed(&error))?;
            check(global, &name, events).await?;
        }
        return Ok(());
    }
    let mut session = Session::open(global).await?;
    let ids = match &options.workflow_id {
        Some(id) => vec![id.clone()],
        None => vec![coordinator_id(session.group()), config_id(session.group())],
    };
    for id in ids {
        let events = session.history(&id, options.run_id.as_deref()).await?;
        check(global, &id, events).await?;
        session.restart_time();
    }
    Ok(())
}

async fn check(global: &Global, name: &str, events: Vec<HistoryEvent>) -> Result<(), Failure> {
    let replayed = replay(events).await.map_err(|error| {
        let what = match &error {
            ReplayError::Differs(_) | ReplayError::AnswerDiffers { .. } => {
                "doesn't replay with this version: keep the old hosts, and report it"
            }
            _ => "can't be replayed",
        };
        Failure::Failed(format!("{name} {what}: {error}"))
    })?;
    if global.json {
        return print_line(
            &json!({
                "name": name, "type": replayed.workflow_type, "events": replayed.events, "answers": replayed.answers,
                "replays": true,
            })
            .to_string(),
        );
    }
    print_line(&format!(
        "{name}: replays; {} events, {} answers are the same ({})",
        replayed.events, replayed.answers, replayed.workflow_type
    ))
}
