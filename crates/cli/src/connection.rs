//! The one way from commands to workflows: connects, asks, and says in words what went wrong.

use crate::args;
use crate::failure::Failure;
use crate::settings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use temporalio_client::envconfig::ClientConfigProfile;
use temporalio_client::errors::{
    ClientConnectError, WorkflowInteractionError, WorkflowQueryError, WorkflowUpdateError,
};
use temporalio_client::tonic::{Code, Request, Status, transport};
use temporalio_client::{
    Client, ClientOptions, Connection, ConnectionOptions, QueryRejectCondition, RetryOptions, RpcOptions,
    UntypedQuery, UntypedUpdate, UntypedWorkflow, UntypedWorkflowHandle, WorkflowExecuteUpdateOptions,
    WorkflowExecutionInfo, WorkflowFetchHistoryOptions, WorkflowQueryOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::enums::v1::TaskQueueType;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;
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
        let profile = settings::profile(options, std::env::vars_os())?;
        let namespace = profile.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let connection = ConnectionOptions::try_from(profile)
            .map_err(|error| Failure::Usage(format!("connection settings: {error}")))?;
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
        let connection = connected
            .map_err(|_| silent(&address))?
            .map_err(|error| self.without_key(self.not_connected(&error)))?;
        Client::new(connection, ClientOptions::new(self.namespace.clone()).build())
            .map_err(|error| Failure::Failed(error.to_string()))
    }

    fn not_connected(&self, error: &ClientConnectError) -> Failure {
        let address = &self.address();
        if let Some(problem) = mismatch(error) {
            return Failure::Usage(format!("Temporal at {address} {problem}"));
        }
        match error {
            ClientConnectError::SystemInfoCallError(status) => match status.code() {
                Code::Unknown | Code::Cancelled | Code::Internal | Code::Unavailable
                    if is_cut_off(status) =>
                {
                    self.cut_off(&innermost(status))
                }
                Code::Unavailable => unreachable(address, &innermost(status)),
                Code::Cancelled | Code::DeadlineExceeded => silent(address),
                _ => refused(address, status),
            },
            ClientConnectError::TonicTransportError(error) => unreachable(address, &innermost(error)),
            ClientConnectError::DnsResolutionError { source, .. } => {
                unreachable(address, &source.to_string())
            }
            other => Failure::Usage(format!("connection settings for {address}: {other}")),
        }
    }

    /// The connection was there and ended. A server that wants a certificate may do so without telling why, and so does
    /// a proxy without a server: this is no proof of wrong settings.
    fn cut_off(&self, why: &str) -> Failure {
        let hint = match &self.connection.tls_options {
            None => "does it want TLS? Then set TEMPORAL_TLS=true or --tls, with what else it needs",
            Some(tls) if tls.client_tls_options.is_none() => {
                "does it want a client certificate? Then set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
            }
            Some(_) => "does it accept the client certificate?",
        };
        Failure::NoAnswer(format!(
            "Temporal at {} ends the connection without an answer ({why}): {hint}",
            self.address()
        ))
    }

    /// The failure, should a server have repeated the API key in it.
    fn without_key(&self, failure: Failure) -> Failure {
        let Some(key) = self.connection.api_key.as_ref() else { return failure };
        failure.map(|text| text.replace(key.as_str(), "(API key)"))
    }

    fn named(mut self) -> Settings {
        self.connection.identity =
            format!("tollgate/{}/{}", crate::actor::default_actor(), std::process::id());
        self
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
    settings: Settings,
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
        let address = settings.address();
        Ok(Session { client, settings, address, group, timeout: global.timeout, until })
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

    /// The events of a workflow's run, the newest if none is named.
    ///
    /// # Errors
    /// [`Failure`] in words.
    pub async fn history(&self, id: &str, run: Option<&str>) -> Result<Vec<HistoryEvent>, Failure> {
        let info = WorkflowExecutionInfo::builder()
            .namespace(self.client.options().namespace.clone())
            .workflow_id(id)
            .maybe_run_id(run.map(str::to_owned))
            .build();
        let history =
            info.bind_untyped(self.client.clone()).fetch_history(WorkflowFetchHistoryOptions::default());
        match timeout_at(self.until, history.into_events()).await {
            Ok(Ok(events)) => Ok(events),
            Ok(Err(WorkflowInteractionError::NotFound(status))) if is_about_namespace(&status) => {
                Err(no_namespace(&self.client.options().namespace, &self.address))
            }
            Ok(Err(WorkflowInteractionError::NotFound(_))) => {
                let of = run.map_or(String::new(), |run| format!(" with run {run:?}"));
                Err(Failure::Failed(format!("no workflow {id:?}{of} on {}", self.address)))
            }
            Ok(Err(WorkflowInteractionError::Rpc(status))) => Err(match status.code() {
                Code::Cancelled | Code::DeadlineExceeded => silent(&self.address),
                Code::Unavailable => unreachable(&self.address, status.message()),
                // Of a run id that isn't one.
                Code::InvalidArgument => Failure::Usage(format!("{id}: {}", status.message())),
                _ => self.settings.without_key(refused(&self.address, &status)),
            }),
            Ok(Err(error)) => Err(Failure::Failed(format!("the history of {id}: {error}"))),
            Err(_) => Err(silent(&self.address)),
        }
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
            _ => self.settings.without_key(refused(&self.address, status)),
        }
    }

    fn not_found(&self, on: Workflow, status: &Status) -> Failure {
        if is_about_namespace(status) {
            return no_namespace(&self.client.options().namespace, &self.address);
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

/// There is no such namespace.
pub fn no_namespace(namespace: &str, address: &str) -> Failure {
    Failure::Usage(format!(
        "namespace {namespace:?}: there is none of this name on {address}; name another one with --namespace, or make it: \
         `temporal operator namespace create --namespace {namespace}`"
    ))
}

/// Whether a server says by this that there is no such namespace.
pub fn is_about_namespace(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().to_lowercase().contains("namespace")
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

/// Whether a connection that was there ended instead of an answer.
fn is_cut_off(status: &Status) -> bool {
    let mut is_transport = false;
    for cause in causes(status) {
        is_transport |= cause.is::<transport::Error>();
        let text = cause.to_string();
        // These have reasons of their own, or are told as no answer in time.
        if text == "Timeout expired" || text.contains("connect error") {
            return false;
        }
    }
    is_transport
}

/// What a failed connection says about TLS on both sides, and what to do about it.
fn mismatch(error: &ClientConnectError) -> Option<String> {
    let error: &(dyn std::error::Error + 'static) = match error {
        ClientConnectError::SystemInfoCallError(status) => status,
        ClientConnectError::TonicTransportError(error) => error,
        _ => return None,
    };
    for cause in causes(error) {
        if let Some(tls) = tls_error(cause) {
            return Some(tls_text(tls));
        }
    }
    None
}

/// An error and what it comes from, the innermost last.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The error of TLS in an error: input and output wrap it.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(inner) => tls_error(inner),
        None => error.downcast_ref(),
    }
}

fn tls_text(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error};
    match error {
        // An authority that was made anew has the old one's name.
        Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => "has a certificate of an authority that is not trusted \
            here: name the authority's certificate with TEMPORAL_TLS_SERVER_CA_CERT_PATH or --tls-ca-path"
            .to_owned(),
        Error::InvalidCertificate(
            problem @ (Certificate::NotValidForName | Certificate::NotValidForNameContext { .. }),
        ) => format!(
            "has a certificate for another name ({problem}): set TEMPORAL_TLS_SERVER_NAME or --tls-server-name to the name in it"
        ),
        Error::InvalidCertificate(problem) => {
            format!("has a certificate that can't be accepted ({problem}): is it valid, is this machine's clock right?")
        }
        Error::AlertReceived(Alert::CertificateRequired) => "asks for a client certificate: set \
            TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH, or --tls-cert-path and --tls-key-path"
            .to_owned(),
        Error::AlertReceived(alert) => {
            format!("ends the TLS handshake ({alert:?}): does it accept the client certificate and the server name?")
        }
        Error::InvalidMessage(_) => "answers without TLS: is it the right port? Else unset TEMPORAL_TLS, or set it to false"
            .to_owned(),
        other => format!("can't be reached by TLS: {other}"),
    }
}

/// The cause that says most: the last of the chain.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}
