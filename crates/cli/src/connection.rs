//! The one way from commands to workflows: connects, asks, and says in words what went wrong.

use crate::args;
use crate::failure::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use temporalio_client::envconfig::{ClientConfigProfile, DataSource, LoadClientConfigProfileOptions};
use temporalio_client::errors::{ClientConnectError, WorkflowQueryError, WorkflowUpdateError};
use temporalio_client::tonic::{Code, Request, Status};
use temporalio_client::{
    Client, ClientOptions, Connection, ConnectionOptions, QueryRejectCondition, RetryOptions, RpcOptions,
    UntypedQuery, UntypedUpdate, UntypedWorkflow, UntypedWorkflowHandle, WorkflowExecuteUpdateOptions,
    WorkflowQueryOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::envconfig::{ClientConfigTLS, load_client_config_profile};
use temporalio_common::protos::temporal::api::enums::v1::TaskQueueType;
use temporalio_common::protos::temporal::api::taskqueue::v1::TaskQueue;
use temporalio_common::protos::temporal::api::workflowservice::v1::DescribeTaskQueueRequest;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_workflows::contracts;
use tollgate_workflows::wire;

/// At the end of a command's time, this much is kept to find out who didn't answer.
const DIAGNOSIS_MAX: Duration = Duration::from_secs(1);
/// A host polls its queue at least this often.
const POLL_PERIOD: Duration = Duration::from_secs(70);
/// Pause before an update is sent again that met a task which failed under it.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Where Temporal is and how to get in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For the SDK's connection.
    pub connection: ConnectionOptions,
    /// The namespace.
    pub namespace: String,
}

impl Settings {
    /// From Temporal's variables and `temporal.toml`, under what the command line says.
    ///
    /// # Errors
    /// [`Failure::Usage`] naming what can't be used.
    pub fn load(options: &args::Temporal) -> Result<Settings, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(format!("connection settings: {error}"));
        if let Some(file) = options.config_file.as_ref().filter(|file| !file.is_file()) {
            return Err(Failure::Usage(format!("--config-file {}: there is no such file", file.display())));
        }
        let source = options.config_file.as_ref().map(|file| DataSource::Path(file.display().to_string()));
        let load = LoadClientConfigProfileOptions::builder()
            .maybe_config_source(source)
            .maybe_config_file_profile(options.profile.clone())
            .build();
        let mut profile = load_client_config_profile(load, None).map_err(|error| usage(&error))?;
        override_with(&mut profile, options);
        let namespace = profile.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let connection = ConnectionOptions::try_from(profile).map_err(|error| usage(&error))?;
        Ok(Settings { connection, namespace }.named())
    }

    /// For a server without any security at this address, whatever the environment says.
    ///
    /// # Errors
    /// [`Failure::Usage`] when it isn't an address.
    pub fn plain(address: &str) -> Result<Settings, Failure> {
        let profile = ClientConfigProfile::builder().address(address).build();
        let connection = ConnectionOptions::try_from(profile)
            .map_err(|error| Failure::Usage(format!("address {address:?}: {error}")))?;
        Ok(Settings { connection, namespace: "default".to_owned() }.named())
    }

    /// Host and port.
    pub fn address(&self) -> String {
        let target = &self.connection.target;
        let port = target.port_or_known_default().unwrap_or(7233);
        format!("{}:{port}", target.host_str().unwrap_or_default())
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Failure::NoAnswer`] when nobody answers until then, [`Failure::Failed`] when the server doesn't let us in.
    pub async fn connect(&self, until: Instant) -> Result<Client, Failure> {
        let address = self.address();
        let left = until.saturating_duration_since(Instant::now());
        let mut options = self.connection.clone();
        options.connect_timeout = Some(left);
        options.retry_options = RetryOptions::builder()
            .max_interval(Duration::from_millis(500))
            .max_elapsed_time(Some(left))
            .build();
        let connected = timeout_at(until, Connection::connect(options)).await;
        let connection =
            connected.map_err(|_| silent(&address))?.map_err(|error| not_connected(&address, &error))?;
        Client::new(connection, ClientOptions::new(self.namespace.clone()).build())
            .map_err(|error| Failure::Failed(error.to_string()))
    }

    fn named(mut self) -> Settings {
        self.connection.identity =
            format!("tollgate/{}/{}", crate::actor::default_actor(), std::process::id());
        self
    }
}

fn override_with(profile: &mut ClientConfigProfile, options: &args::Temporal) {
    let over = |target: &mut Option<String>, given: &Option<String>| {
        if given.is_some() {
            target.clone_from(given);
        }
    };
    over(&mut profile.address, &options.address);
    over(&mut profile.namespace, &options.namespace);
    over(&mut profile.api_key, &options.api_key);
    let files =
        [&options.tls_ca_path, &options.tls_cert_path, &options.tls_key_path, &options.tls_server_name];
    if options.tls || files.iter().any(|file| file.is_some()) {
        let tls = profile.tls.get_or_insert_with(ClientConfigTLS::default);
        tls.disabled = Some(false);
        let file = |target: &mut Option<DataSource>, given: &Option<String>| {
            if let Some(path) = given {
                *target = Some(DataSource::Path(path.clone()));
            }
        };
        file(&mut tls.server_ca_cert, &options.tls_ca_path);
        file(&mut tls.client_cert, &options.tls_cert_path);
        file(&mut tls.client_key, &options.tls_key_path);
        over(&mut tls.server_name, &options.tls_server_name);
    }
}

/// The workflows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workflow {
    /// Runs the ledger.
    Coordinator,
    /// Holds limits and their history.
    Config,
}

impl Workflow {
    fn id(self, group: &str) -> String {
        match self {
            Workflow::Coordinator => contracts::coordinator_id(group),
            Workflow::Config => contracts::config_id(group),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Workflow::Coordinator => "coordinator",
            Workflow::Config => "config workflow",
        }
    }
}

/// What a workflow answered: JSON.
#[derive(Clone, Debug)]
pub struct Answer(Vec<u8>);

impl Answer {
    /// As it was sent.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// As a message.
    ///
    /// # Errors
    /// [`Failure::Failed`] naming the field: the host is of another version.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        wire::read_json(&self.0).map_err(|error| {
            Failure::Failed(format!(
                "the answer can't be read ({error}): is the coordinator host of another version?"
            ))
        })
    }
}

/// A connection to one group.
#[derive(Clone)]
pub struct Session {
    client: Client,
    address: String,
    group: String,
    timeout: Duration,
    until: Instant,
}

impl Session {
    /// Connects. The command's time begins now and covers all that follows.
    ///
    /// # Errors
    /// As [`Settings::load`] and [`Settings::connect`].
    pub async fn open(global: &args::Global) -> Result<Session, Failure> {
        let [group] = <[String; 1]>::try_from(global.groups()).map_err(|groups| {
            Failure::Usage(format!("--group: {} given, this command takes one", groups.len()))
        })?;
        let settings = Settings::load(&global.temporal)?;
        let until = Instant::now() + global.timeout;
        let client = settings.connect(until).await?;
        Ok(Session { client, address: settings.address(), group, timeout: global.timeout, until })
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Gives the next question the whole time again.
    pub fn restart_time(&mut self) {
        self.until = Instant::now() + self.timeout;
    }

    /// Asks a workflow.
    ///
    /// # Errors
    /// [`Failure`] in words.
    pub async fn query(&self, on: Workflow, name: &str, input: &impl Serialize) -> Result<Answer, Failure> {
        let options = WorkflowQueryOptions::builder()
            .reject_condition(QueryRejectCondition::NotOpen)
            .rpc_options(RpcOptions::builder().timeout(self.patience()).build())
            .build();
        let handle = self.handle(on);
        let call = handle.query(UntypedQuery::new(name), wire::write(input), options);
        match timeout_at(self.answer_until(), call).await {
            Ok(Ok(value)) => answer(value),
            Ok(Err(WorkflowQueryError::NotFound(status))) => Err(self.not_found(on, &status)),
            Ok(Err(WorkflowQueryError::Rejected { .. })) => Err(self.absent(on)),
            Ok(Err(WorkflowQueryError::Rpc(status))) => Err(self.rpc(on, &status).await),
            Ok(Err(error)) => Err(Failure::Failed(error.to_string())),
            Err(_) => Err(self.diagnose(on).await),
        }
    }

    /// Changes something in a workflow and waits for the outcome.
    ///
    /// # Errors
    /// [`Failure`] in words.
    pub async fn update(&self, on: Workflow, name: &str, input: &impl Serialize) -> Result<Answer, Failure> {
        let rpc_options = RpcOptions::builder().timeout(self.patience()).build();
        let options = WorkflowExecuteUpdateOptions::builder().rpc_options(rpc_options).build();
        let handle = self.handle(on);
        let call = async {
            loop {
                let sent = handle
                    .execute_update(UntypedUpdate::new(name), wire::write(input), options.clone())
                    .await;
                match sent {
                    // The task under it failed, for example since the workflow continued as new: the server asks
                    // to send it again.
                    Err(WorkflowUpdateError::Rpc(status)) if status.code() == Code::FailedPrecondition => {
                        sleep(AGAIN_AFTER).await;
                    }
                    done => return done,
                }
            }
        };
        let failure = match timeout_at(self.answer_until(), call).await {
            Ok(Ok(value)) => return answer(value),
            Ok(Err(WorkflowUpdateError::NotFound(status))) => return Err(self.not_found(on, &status)),
            Ok(Err(WorkflowUpdateError::Failed(failure))) => {
                return Err(Failure::Refused(vec![failure.message.clone()]));
            }
            Ok(Err(WorkflowUpdateError::Rpc(status))) => self.rpc(on, &status).await,
            Ok(Err(error)) => return Err(Failure::Failed(error.to_string())),
            Err(_) => self.diagnose(on).await,
        };
        Err(match failure {
            Failure::NoAnswer(text) => Failure::NoAnswer(format!(
                "{text}\nthe change may still be carried out later: see `tollgate config history`"
            )),
            other => other,
        })
    }

    fn handle(&self, on: Workflow) -> UntypedWorkflowHandle<Client> {
        self.client.get_workflow_handle::<UntypedWorkflow>(on.id(&self.group))
    }

    /// Until when an answer counts; what is left then goes to finding out why there is none.
    fn answer_until(&self) -> Instant {
        self.until - DIAGNOSIS_MAX.min(self.timeout / 5)
    }

    fn patience(&self) -> Duration {
        self.answer_until().saturating_duration_since(Instant::now())
    }

    async fn rpc(&self, on: Workflow, status: &Status) -> Failure {
        match status.code() {
            Code::Cancelled | Code::DeadlineExceeded => self.diagnose(on).await,
            Code::Unavailable => unreachable(&self.address, status.message()),
            Code::NotFound => self.not_found(on, status),
            _ => refused(&self.address, status),
        }
    }

    fn not_found(&self, on: Workflow, status: &Status) -> Failure {
        if status.message().to_lowercase().contains("namespace") {
            let namespace = &self.client.options().namespace;
            return Failure::Failed(format!("no namespace {namespace:?} on {}", self.address));
        }
        self.absent(on)
    }

    fn absent(&self, on: Workflow) -> Failure {
        let group = &self.group;
        Failure::NoAnswer(format!(
            "no {} in group {group:?} on {}: is `tollgate serve --group {group}` or `tollgate dev` running?",
            on.name(),
            self.address
        ))
    }

    /// Nobody answered in time: was it Temporal, or is there no host?
    async fn diagnose(&self, on: Workflow) -> Failure {
        let (group, address) = (&self.group, &self.address);
        let queue = contracts::TASK_QUEUE.to_owned();
        let request = DescribeTaskQueueRequest {
            namespace: self.client.options().namespace.clone(),
            task_queue: Some(TaskQueue { name: queue.clone(), ..Default::default() }),
            task_queue_type: TaskQueueType::Workflow.into(),
            ..Default::default()
        };
        let mut service = self.client.connection().workflow_service();
        let described = timeout_at(self.until, service.describe_task_queue(Request::new(request))).await;
        let Ok(Ok(described)) = described else {
            return silent(address);
        };
        let now = std::time::SystemTime::now();
        let seen = described.into_inner().pollers.into_iter().filter_map(|poller| {
            let at = std::time::SystemTime::try_from(poller.last_access_time?).ok()?;
            Some(now.duration_since(at).unwrap_or_default())
        });
        let patience =
            crate::quantity::span_text(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX));
        let why = match seen.min() {
            Some(ago) if ago < POLL_PERIOD => format!(
                "the last one was seen {} s ago; if it runs, look at its log and at workflow {} in the Temporal UI, else",
                ago.as_secs(),
                on.id(group)
            ),
            _ => format!("nobody serves task queue {queue:?} on {address};"),
        };
        Failure::NoAnswer(format!(
            "no coordinator host answers in group {group:?} within {patience}: {why} start `tollgate serve`"
        ))
    }
}

fn answer(value: RawValue) -> Result<Answer, Failure> {
    /// What a workflow answers to a question that it can't read.
    #[derive(serde::Deserialize)]
    struct Problem {
        error: String,
    }
    let payload = value.payloads.into_iter().next();
    let answer = payload.map(|payload| Answer(payload.data));
    let answer = answer.ok_or_else(|| Failure::Failed("the answer is empty".to_owned()))?;
    match serde_json::from_slice::<Problem>(&answer.0) {
        Ok(Problem { error }) => Err(Failure::Failed(format!("refused: {error}"))),
        Err(_) => Ok(answer),
    }
}

/// Nobody answers at an address.
fn silent(address: &str) -> Failure {
    Failure::NoAnswer(format!(
        "no answer from Temporal at {address} in time: is it the right address, is the network up?"
    ))
}

fn unreachable(address: &str, why: &str) -> Failure {
    Failure::NoAnswer(format!(
        "Temporal is not reachable at {address} ({why}): start it (`tollgate dev`), or name another with --address"
    ))
}

fn refused(address: &str, status: &Status) -> Failure {
    let said = status.message();
    Failure::Failed(match status.code() {
        Code::Unauthenticated => {
            format!("{address} asks for credentials ({said}): set TEMPORAL_API_KEY or TEMPORAL_TLS_*")
        }
        Code::PermissionDenied => {
            format!("{address} does not allow this ({said}): check API key, certificate and namespace")
        }
        Code::ResourceExhausted => format!("{address} is too busy ({said}): try again"),
        code => format!("{address} answered {code:?}: {said}"),
    })
}

fn not_connected(address: &str, error: &ClientConnectError) -> Failure {
    match error {
        ClientConnectError::SystemInfoCallError(status) => match status.code() {
            Code::Unavailable => unreachable(address, &innermost(status)),
            Code::Cancelled | Code::DeadlineExceeded => silent(address),
            _ => refused(address, status),
        },
        ClientConnectError::TonicTransportError(error) => unreachable(address, &innermost(error)),
        ClientConnectError::DnsResolutionError { source, .. } => unreachable(address, &source.to_string()),
        other => Failure::Usage(format!("connection settings for {address}: {other}")),
    }
}

/// The cause that says most: the last of the chain.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
