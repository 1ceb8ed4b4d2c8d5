//! The coordinator host: runs the workflows of all groups, and makes sure that those of its own are there.

use crate::alarm::Alarm;
use crate::connection::{Settings, is_about_namespace, no_namespace};
use crate::failure::Failure;
use crate::metrics::Temporal;
use crate::signals::StopSignals;
use std::sync::Arc;
use std::time::Duration;
use temporalio_client::errors::WorkflowInteractionError;
use temporalio_client::{Client, UntypedWorkflow, WorkflowDescribeOptions, WorkflowExecutionStatus};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tollgate_activities::{ensure_group, run_host};
use tollgate_workflows::contracts::{config_id, coordinator_id};

/// How often it looks whether the workflows of its groups are there. Two cheap calls for each.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often it looks until they are there for the first time.
const READY_EVERY: Duration = Duration::from_millis(100);
/// The first pause after a failure; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause after a failure: what a server that comes back waits at most.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a host may take to stop. What it has begun is done in less; the next host repeats the rest.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// A coordinator host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where Temporal is.
    pub settings: Settings,
    /// Whose workflows it makes sure of. It runs those of every group.
    pub groups: Vec<String>,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// Whoever shows figures is given the connection.
    pub metrics: Option<Arc<Temporal>>,
}

impl Host {
    /// Serves until a signal comes, which it returns; calls `ready` once, when every group is there. A second signal
    /// ends it at once.
    ///
    /// # Errors
    /// [`Failure`] when the settings are wrong, the server doesn't let it in, or `ready` fails. A server that is away
    /// is waited for; a namespace that isn't there only for one call's time: the server may just be setting it up.
    pub async fn run(
        &self,
        stop: &mut StopSignals,
        ready: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<&'static str, Failure> {
        let client = tokio::select! {
            signal = stop.recv() => return Ok(signal),
            client = self.connect() => client?,
        };
        if let Some(metrics) = &self.metrics {
            metrics.connected(&client);
        }
        tokio::select! {
            signal = stop.recv() => return Ok(signal),
            found = self.find_namespace(&client) => found?,
        }
        let (stop_host, stopped) = oneshot::channel::<()>();
        let mut host = std::pin::pin!(self.serve(&client, stopped));
        let failure = tokio::select! {
            signal = stop.recv() => Ok(signal),
            failure = self.look_after_groups(&client, ready) => Err(failure),
            () = &mut host => Err(Failure::Failed("the host ended by itself".to_owned())),
        };
        stop_host.send(()).ok();
        tokio::select! {
            ended = timeout(STOP_TIMEOUT, &mut host) => if ended.is_err() {
                tracing::warn!("the host did not stop in time and is cut off");
            },
            signal = stop.recv() => tracing::warn!(signal, "cut off"),
        }
        failure
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            match self.settings.connect(Instant::now() + self.call_timeout).await {
                Err(Failure::NoAnswer(problem)) => retry_later(&problem, &mut pause).await,
                done => return done,
            }
        }
    }

    /// Waits until the namespace is there, for one call's time: the server may just be setting it up.
    async fn find_namespace(&self, client: &Client) -> Result<(), Failure> {
        let until = Instant::now() + self.call_timeout;
        let mut pause = PAUSE_MIN;
        let Some(group) = self.groups.first() else { return Ok(()) };
        loop {
            match timeout(self.call_timeout, is_running(client, &config_id(group))).await {
                Ok(Err(WorkflowInteractionError::NotFound(_))) => {}
                // Whatever else is wrong is told later.
                _ => return Ok(()),
            }
            let failure = no_namespace(&self.settings.namespace, &self.settings.address());
            if Instant::now() + pause >= until {
                return Err(failure);
            }
            retry_later(&failure.to_string(), &mut pause).await;
        }
    }

    /// Serves until told to stop, again after failures.
    async fn serve(&self, client: &Client, mut stopped: oneshot::Receiver<()>) {
        let mut pause = PAUSE_MIN;
        let mut client = client.clone();
        loop {
            let mut is_over = false;
            let until = async {
                // Who is gone without a word doesn't want it any longer either.
                (&mut stopped).await.unwrap_or_default();
                is_over = true;
            };
            let problem = match run_host(client.clone(), until).await {
                _ if is_over => return,
                Ok(()) => "the host ended by itself".to_owned(),
                Err(error) => chain(&error),
            };
            let again = async {
                retry_later(&problem, &mut pause).await;
                // A host that failed stays registered with its connection, which then takes no other one.
                self.connect().await
            };
            client = tokio::select! {
                _ = &mut stopped => return,
                fresh = again => fresh.unwrap_or(client),
            };
        }
    }

    /// Keeps the workflows of all groups running. Only returns when `ready` fails.
    async fn look_after_groups(
        &self,
        client: &Client,
        ready: impl FnOnce() -> Result<(), Failure>,
    ) -> Failure {
        let mut ready = Some(ready);
        let mut alarm = Alarm::new();
        let mut pause = PAUSE_MIN;
        loop {
            let is_first = ready.is_some();
            match timeout(self.call_timeout, self.check_groups(client, is_first)).await {
                Ok(Ok(())) => {
                    if pause != PAUSE_MIN {
                        tracing::info!(address = self.settings.address(), "Temporal answers again");
                    }
                    pause = PAUSE_MIN;
                    if let Some(Err(failure)) = ready.take().map(|ready| ready()) {
                        return failure;
                    }
                    alarm.look(client, &self.groups).await;
                    sleep(CHECK_EVERY).await;
                }
                Ok(Err(problem)) => retry_later(&problem, &mut pause).await,
                Err(_) if is_first => {
                    retry_later("the groups' workflows do not run yet", &mut pause).await;
                }
                Err(_) => retry_later("no answer from Temporal in time", &mut pause).await,
            }
        }
    }

    /// Looks once; at first also waits until everything runs.
    async fn check_groups(&self, client: &Client, is_first: bool) -> Result<(), String> {
        for group in &self.groups {
            let mut told = false;
            if !is_first {
                for id in [config_id(group), coordinator_id(group)] {
                    if !told && !is_running(client, &id).await.map_err(|error| chain(&error))? {
                        tracing::warn!(workflow = id, "not running: starting it");
                        told = true;
                    }
                }
            }
            if told || is_first {
                ensure_group(client, group).await.map_err(|error| chain(&error))?;
            }
        }
        // The config workflow starts the coordinator, on whichever host comes first: that is, as soon as one works.
        for group in self.groups.iter().filter(|_| is_first) {
            while !is_running(client, &coordinator_id(group)).await.map_err(|error| chain(&error))? {
                sleep(READY_EVERY).await;
            }
        }
        Ok(())
    }
}

/// Whether a workflow runs; [`WorkflowInteractionError::NotFound`] says that there is no such namespace.
async fn is_running(client: &Client, id: &str) -> Result<bool, WorkflowInteractionError> {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    match handle.describe(WorkflowDescribeOptions::default()).await {
        Ok(description) => Ok(description.status() == WorkflowExecutionStatus::Running),
        Err(WorkflowInteractionError::NotFound(status)) if !is_about_namespace(&status) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn retry_later(problem: &str, pause: &mut Duration) {
    tracing::warn!(again_in = ?*pause, "{problem}");
    sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// An error with its causes, as far as each says something new.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(&format!(": {said}"));
        }
        next = cause.source();
    }
    text
}
