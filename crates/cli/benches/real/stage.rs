//! A Temporal dev server in memory, and the hosts of what is compared: each a process of its own.

use crate::Failure;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::time::{Duration, Instant};
use temporalio_client::{
    Client, ClientOptions, Connection, ConnectionOptions, RetryOptions, UntypedWorkflow, WorkflowStartOptions,
};
use temporalio_common::data_converters::RawValue;
use temporalio_common::envconfig::ClientConfigProfile;
use tokio::process::{Child, Command};
use tollgate_cli::temporal_server::{Options, TemporalServer};
use tollgate_workflows::contracts::{
    COORDINATOR_TYPE, CoordinatorStart, TASK_QUEUE, coordinator_id, rules_version,
};
use tollgate_workflows::wire;
use tollgate_workflows::wire::config::ConfigureJson;

/// How long a busy machine may take to start something.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// As the coordinator has it in production; kept over continue-as-new.
const TASK_TIMEOUT: Duration = Duration::from_secs(2);

/// What runs while a benchmark does.
pub(crate) struct Stage {
    pub(crate) client: Client,
    address: String,
    hosts: [Child; 2],
    server: TemporalServer,
}

impl Stage {
    /// Starts all of it.
    pub(crate) async fn open() -> Result<Stage, Failure> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let options = Options { db_filename: None, port, ui_port: None, namespace: "default".to_owned() };
        let mut server = TemporalServer::start(&options)?;
        let address = format!("127.0.0.1:{port}");
        let until = Instant::now() + START_TIMEOUT;
        let client = loop {
            let problem = match connect(&address).await {
                Ok(client) => break client,
                Err(problem) => problem,
            };
            if Instant::now() > until {
                return Err(format!("no Temporal server within {START_TIMEOUT:?}: {problem}").into());
            }
            tokio::select! {
                failure = server.ended() => return Err(failure.into()),
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        };
        let coordinators = host(Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("serve"), &address)?;
        let bare = host(Command::new(std::env::current_exe()?).arg("bare-host"), &address)?;
        Ok(Stage { client, address, hosts: [coordinators, bare], server })
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// One more connection, as another process would have it.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        connect(&self.address).await
    }

    /// Starts a coordinator with limits that everybody can have plenty of.
    pub(crate) async fn coordinator(&self, group: &str, configure: ConfigureJson) -> Result<(), Failure> {
        let start = CoordinatorStart {
            group: group.to_owned(),
            first: true,
            rules_version: rules_version(),
            configure,
        };
        self.start(COORDINATOR_TYPE, TASK_QUEUE, &coordinator_id(group), wire::write(&start)).await
    }

    /// Starts a workflow.
    pub(crate) async fn start(
        &self,
        kind: &str,
        queue: &str,
        id: &str,
        input: RawValue,
    ) -> Result<(), Failure> {
        let options = WorkflowStartOptions::new(queue, id).task_timeout(TASK_TIMEOUT).build();
        self.client.start_workflow(UntypedWorkflow::new(kind), input, options).await?;
        Ok(())
    }

    /// Ends everything.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        for mut host in self.hosts {
            host.kill().await?;
        }
        self.server.stop().await?;
        Ok(())
    }
}

async fn connect(address: &str) -> Result<Client, Failure> {
    let profile = ClientConfigProfile::builder().address(address.to_owned()).build();
    let mut options = ConnectionOptions::try_from(profile).map_err(|error| error.to_string())?;
    options.identity = "tollgate-bench".to_owned();
    options.connect_timeout = Some(Duration::from_secs(5));
    // What is tried again is tried again where it is counted.
    options.retry_options = RetryOptions::no_retries();
    Ok(Client::new(Connection::connect(options).await?, ClientOptions::new("default").build())?)
}

fn host(command: &mut Command, address: &str) -> Result<Child, Failure> {
    let command = command.env("TEMPORAL_ADDRESS", address).env("TEMPORAL_NAMESPACE", "default");
    // The server's notes about its own restarts would be lost among the figures.
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.kill_on_drop(true).spawn()?)
}
