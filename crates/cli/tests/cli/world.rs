//! One dev server for all tests; for each test a namespace of its own, with its own hosts.

use crate::child::Child;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use temporalio_client::errors::WorkflowUpdateError;
use temporalio_client::tonic::Code;
use temporalio_client::{
    Client, ClientOptions, Connection, ConnectionOptions, RetryOptions, RpcOptions, UntypedQuery,
    UntypedSignal, UntypedUpdate, UntypedWorkflow, UntypedWorkflowHandle, WorkflowExecuteUpdateOptions,
    WorkflowQueryOptions, WorkflowSignalOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::envconfig::ClientConfigProfile;
use tokio::runtime::Runtime;
use tollgate_cli::temporal_server::CLI_VARIABLE;
use tollgate_workflows::contracts::{config_id, coordinator_id};
use tollgate_workflows::wire;
use tollgate_workflows::wire::status::StatusJson;

/// Every test's namespace. They are made when the server starts: later ones would take seconds to be known everywhere.
const NAMESPACES: &[&str] = &[
    "paused",
    "conduct",
    "hostile-coordinator",
    "hostile-config",
    "limits",
    "lost-coordinator",
    "lost-config",
    "reset",
    "cancel",
    "load",
    "mixed",
    "crowd",
    "thirty",
    "flood",
    "herd",
    "grants",
    "silent",
    "permits",
    "giving-up",
    "asking-again",
    "ghosts",
    "preload",
    "python",
    "signals",
    "two-hosts",
    "stopping",
    "stopping-hosts",
    "tls",
    "mtls",
    "explain",
    "files",
    "starving",
    "windows",
    "names",
    "figures",
    "fifty",
    "metrics",
    "override",
    "rollback",
    "schedules",
    "audit",
    "operate",
    "ramps",
    "replay",
];
/// How long a machine that does much else may take to start something.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// How long an answer may take before it counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a condition is looked at.
const POLL_EVERY: Duration = Duration::from_millis(40);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(NAMESPACES, &[]));

/// Runs a test.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

/// A Temporal dev server.
pub(crate) struct Server {
    child: Child,
    cli: PathBuf,
    address: String,
}

impl Server {
    /// Starts one with these namespaces and more dynamic configuration.
    pub(crate) fn start(namespaces: &[&str], configuration: &[&str]) -> Server {
        let cli = find_cli();
        // Another program may take a port between looking and starting.
        for _ in 0..3 {
            let port = free_port();
            let mut command = Command::new(&cli);
            command.args(["server", "start-dev", "--ip", "127.0.0.1", "--headless", "--log-level", "error"]);
            command.args(["--port", &port.to_string()]);
            let on_time = "history.timerProcessorMaxTimeShift=\"50ms\"";
            for value in [on_time].iter().chain(configuration) {
                command.args(["--dynamic-config-value", value]);
            }
            for namespace in namespaces {
                command.args(["--namespace", namespace]);
            }
            plain(&mut command);
            let server = Server {
                child: Child::start("temporal", &command),
                cli: cli.clone(),
                address: format!("127.0.0.1:{port}"),
            };
            let until = Instant::now() + START_TIMEOUT;
            while Instant::now() < until && !server.child.has_ended() {
                if run(server.connect("default")).is_some() {
                    return server;
                }
                std::thread::sleep(POLL_EVERY);
            }
            eprintln!("the dev server did not start:{}", server.child.tail());
        }
        panic!("no Temporal dev server: {} is not able to start one", cli.display());
    }

    async fn connect(&self, namespace: &str) -> Option<Client> {
        let profile = ClientConfigProfile::builder().address(self.address.clone()).build();
        let mut options = ConnectionOptions::try_from(profile).unwrap();
        options.identity = "tollgate-tests".to_owned();
        options.connect_timeout = Some(Duration::from_secs(5));
        // Tests see every error, and try again themselves.
        options.retry_options = RetryOptions::no_retries();
        let connection = Connection::connect(options).await.ok()?;
        Client::new(connection, ClientOptions::new(namespace).build()).ok()
    }
}

/// One group in a namespace of its own.
pub(crate) struct World {
    server: Option<Server>,
    namespace: String,
    pub(crate) group: String,
    pub(crate) client: Client,
}

impl World {
    /// A namespace of the shared server.
    pub(crate) async fn new(namespace: &str) -> World {
        assert!(NAMESPACES.contains(&namespace), "add {namespace:?} to NAMESPACES");
        let server = tokio::task::block_in_place(|| &*SERVER);
        let client = server.connect(namespace).await.unwrap_or_else(|| panic!("{}", server.child.tail()));
        World { server: None, namespace: namespace.to_owned(), group: format!("g-{namespace}"), client }
    }

    /// A server of its own.
    pub(crate) async fn with(server: Server, group: &str) -> World {
        let client = server.connect("default").await.unwrap_or_else(|| panic!("{}", server.child.tail()));
        World { server: Some(server), namespace: "default".to_owned(), group: group.to_owned(), client }
    }

    /// Another connection, as another process has it.
    pub(crate) async fn connect(&self) -> Client {
        self.server().connect(&self.namespace).await.unwrap()
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap_or_else(|| &SERVER)
    }

    pub(crate) fn coordinator(&self) -> String {
        coordinator_id(&self.group)
    }

    pub(crate) fn config(&self) -> String {
        config_id(&self.group)
    }

    /// Starts a coordinator host and waits until it serves.
    pub(crate) fn host(&self) -> Child {
        self.host_with(&[])
    }

    /// The same with more variables.
    pub(crate) fn host_with(&self, variables: &[(&str, &str)]) -> Child {
        self.start_host(&[], variables)
    }

    /// The same with more options.
    pub(crate) fn host_serving(&self, options: &[&str]) -> Child {
        self.start_host(options, &[])
    }

    fn start_host(&self, options: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--group", &self.group]).args(options);
        self.environment(&mut command);
        command.envs(variables.iter().copied());
        let host = Child::start("host", &command);
        host.wait_ready(START_TIMEOUT);
        host
    }

    /// Runs `tollgate` for the group.
    pub(crate) fn tollgate(&self, arguments: &[&str]) -> Output {
        self.command(arguments).args(["--timeout", "30s"]).output().unwrap()
    }

    /// `tollgate` for the group.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).args(["--group", &self.group]);
        self.environment(&mut command);
        command
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> &str {
        &self.server().address
    }

    /// Runs `tollgate`, which must succeed, and gives what it prints.
    pub(crate) fn tollgate_ok(&self, arguments: &[&str]) -> String {
        let output = self.tollgate(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tollgate {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the Temporal CLI.
    pub(crate) fn temporal<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        let mut command = Command::new(&self.server().cli);
        command.args(arguments);
        self.environment(&mut command);
        command.output().unwrap()
    }

    /// Runs the Temporal CLI, which must succeed, and gives the JSON that it prints.
    pub(crate) fn temporal_ok(&self, arguments: &[&str]) -> String {
        let output = self.temporal(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "temporal {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Where the server is, and nothing of the settings of whoever runs the tests.
    pub(crate) fn environment(&self, command: &mut Command) {
        plain(command);
        command.env("TEMPORAL_ADDRESS", &self.server().address).env("TEMPORAL_NAMESPACE", &self.namespace);
    }

    pub(crate) fn handle(&self, id: &str) -> UntypedWorkflowHandle<Client> {
        self.client.get_workflow_handle::<UntypedWorkflow>(id)
    }

    /// Asks a workflow, again while its task queue has other trouble.
    pub(crate) async fn query(&self, id: &str, name: &str, input: &Value) -> Value {
        let handle = self.handle(id);
        eventually(&format!("query {name} of {id}"), ANSWER_TIMEOUT, async || {
            let rpc = RpcOptions::builder().timeout(Duration::from_secs(10)).build();
            let options = WorkflowQueryOptions::builder().rpc_options(rpc).build();
            let input = if input.is_null() { RawValue::default() } else { wire::write(input) };
            let result = handle.query(UntypedQuery::new(name), input, options).await;
            result.map(|value| read(&value)).map_err(|error| error.to_string())
        })
        .await
    }

    /// The coordinator's overview.
    pub(crate) async fn status(&self) -> StatusJson {
        serde_json::from_value(self.query(&self.coordinator(), "status", &Value::Null).await).unwrap()
    }

    /// Waits until the coordinator's overview is as wanted.
    pub(crate) async fn status_when(&self, what: &str, wanted: impl Fn(&StatusJson) -> bool) -> StatusJson {
        eventually(what, ANSWER_TIMEOUT, async || {
            let status = self.status().await;
            if wanted(&status) { Ok(status) } else { Err(format!("{status:?}")) }
        })
        .await
    }

    /// Signals a workflow with bytes of one's choice.
    pub(crate) async fn signal(&self, id: &str, name: &str, input: RawValue) {
        let handle = self.handle(id);
        eventually(&format!("signal {name} to {id}"), ANSWER_TIMEOUT, async || {
            let sent =
                handle.signal(UntypedSignal::new(name), input.clone(), WorkflowSignalOptions::default());
            sent.await.map_err(|error| error.to_string())
        })
        .await;
    }

    /// Updates a workflow; sends the same again as long as the server asks for that.
    pub(crate) async fn update(&self, id: &str, name: &str, input: &Value) -> Result<Value, String> {
        let handle = self.handle(id);
        eventually(&format!("update {name} of {id}"), ANSWER_TIMEOUT, async || {
            match update_once(&handle, name, wire::write(input), None).await {
                Ok(value) => Ok(Ok(read(&value))),
                Err(Sent::Refused(text)) => Ok(Err(text)),
                Err(Sent::Again(text)) => Err(text),
            }
        })
        .await
    }
}

/// Why an update has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Sent {
    /// The workflow doesn't want it.
    Refused(String),
    /// The same is to be sent again.
    Again(String),
}

/// Sends an update once. Under the same id, another one joins what is still under way instead of adding to it.
pub(crate) async fn update_once(
    handle: &UntypedWorkflowHandle<Client>,
    name: &str,
    input: RawValue,
    id: Option<String>,
) -> Result<RawValue, Sent> {
    let options = WorkflowExecuteUpdateOptions::builder().maybe_update_id(id).build();
    let update = handle.execute_update(UntypedUpdate::new(name), input, options);
    let Ok(result) = tokio::time::timeout(Duration::from_secs(10), update).await else {
        return Err(Sent::Again("no answer within 10 s".to_owned()));
    };
    result.map_err(|error| match error {
        WorkflowUpdateError::Failed(failure) => Sent::Refused(failure.message.clone()),
        WorkflowUpdateError::Rpc(status) => match status.code() {
            Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unavailable
            | Code::Aborted
            | Code::Cancelled
            | Code::DeadlineExceeded => Sent::Again(format!("{:?}: {}", status.code(), status.message())),
            code => Sent::Refused(format!("{code:?}: {}", status.message())),
        },
        other => Sent::Refused(other.to_string()),
    })
}

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned>(value: &RawValue) -> T {
    serde_json::from_slice(&value.payloads.first().unwrap().data).unwrap()
}

/// Looks again until it works; the last problem is part of the failure.
pub(crate) async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let until = Instant::now() + limit;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(problem) if Instant::now() >= until => panic!("{what}: not within {limit:?}: {problem}"),
            Err(_) => tokio::time::sleep(POLL_EVERY).await,
        }
    }
}

/// Nothing of the settings of whoever runs the tests.
fn plain(command: &mut Command) {
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).env("USER", "ann");
}

/// The Temporal CLI that `cargo xtask test` names, else the one in PATH.
fn find_cli() -> PathBuf {
    if let Some(named) = std::env::var_os(CLI_VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "{CLI_VARIABLE}={}: there is no such file", named.display());
        return named;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("temporal")).find(|file| file.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "these tests need a Temporal CLI: run them by `cargo xtask test`, which gets one, or set {CLI_VARIABLE} to \
             the path that `cargo xtask temporal-cli` prints"
        )
    })
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
