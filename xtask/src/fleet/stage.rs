//! The processes of a run, and how they are started.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::LEASE;
use super::batch::Batch;
use super::metrics::RampLine;
use crate::downstream::Allowance;
use crate::downstream::arrivals::boot_ns;
use crate::downstream::control::Control;
use crate::process::{Process, Supervisor, free_ports};
use crate::temporal_cli::TemporalCli;
use crate::workspace::Workspace;

/// The limit that all workers share.
pub const LIMIT: &str = "demo";
/// Calls of one workflow: with six events each and more for retries, its history stays below 4,096 events.
const CALLS_PER_WORKFLOW: u64 = 300;
/// How long a process may take until it says that it is ready: on a cold machine the first start reads a lot from disk.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long an operator's command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
/// Variables by which a person's own Temporal settings would reach the demo's processes.
const TEMPORAL_VARIABLES: [&str; 14] = [
    "TEMPORAL_ADDRESS",
    "TEMPORAL_NAMESPACE",
    "TEMPORAL_API_KEY",
    "TEMPORAL_PROFILE",
    "TEMPORAL_TLS",
    "TEMPORAL_TLS_CLIENT_CERT_PATH",
    "TEMPORAL_TLS_CLIENT_CERT_DATA",
    "TEMPORAL_TLS_CLIENT_KEY_PATH",
    "TEMPORAL_TLS_CLIENT_KEY_DATA",
    "TEMPORAL_TLS_SERVER_CA_CERT_PATH",
    "TEMPORAL_TLS_SERVER_CA_CERT_DATA",
    "TEMPORAL_TLS_SERVER_NAME",
    "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION",
    "TEMPORAL_CONFIG_FILE",
];

/// The programs that were built.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `tollgate`.
    pub tollgate: PathBuf,
    /// The example `fleet`.
    pub fleet: PathBuf,
    /// `xtask`, for the downstream. This program's own file may just have been replaced by the build.
    pub xtask: PathBuf,
}

/// Builds what the demo runs, in the profile of the tests, with cargo's own progress.
///
/// # Errors
/// When it doesn't build.
pub fn build(workspace: &Workspace) -> Result<Programs> {
    let mut command = workspace.cargo();
    // The whole workspace, so that cargo chooses the same features as for the tests and builds nothing twice.
    command.args([
        "build",
        "--workspace",
        "--bins",
        "--examples",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cargo does not run")?;
    if !output.status.success() {
        bail!("the demo's programs do not build ({}); see the errors above", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let path = |name| executable(&text, name).with_context(|| format!("cargo built no program {name}"));
    Ok(Programs { tollgate: path("tollgate")?, fleet: path("fleet")?, xtask: path("xtask")? })
}

fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let mut built = built.filter(|message| message.reason == "compiler-artifact");
    built.find_map(|message| {
        message.executable.filter(|_| message.target.is_some_and(|target| target.name == name))
    })
}

/// A Temporal server, coordinator hosts, and what is needed to start more.
#[derive(Debug)]
pub struct Stage {
    supervisor: Supervisor,
    programs: Programs,
    temporal_cli: PathBuf,
    config_file: PathBuf,
    settings: StageSettings,
    ports: [u16; 2],
    address: String,
    temporal: Mutex<Process>,
    hosts: Vec<Mutex<Process>>,
}

/// How a stage is set up.
#[derive(Debug, Clone, Copy)]
pub struct StageSettings {
    /// Whether the server keeps its state in a file, so that it can be killed.
    pub durable: bool,
    /// Coordinator hosts.
    pub hosts: usize,
}

impl Default for StageSettings {
    /// All in memory, and one host.
    fn default() -> Self {
        Self { durable: false, hosts: 1 }
    }
}

/// Processes that belong to one run.
#[derive(Debug)]
pub struct Fleet {
    /// Which run: part of the names of queues and workflows.
    pub run: String,
    /// Folder of the workers' notes.
    pub notes: PathBuf,
    /// Running workers, by name.
    pub workers: Vec<Process>,
}

/// What the workers of a run keep to.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// How many.
    pub workers: u32,
    /// Task queues.
    pub queues: Vec<String>,
    /// Base address of the downstream.
    pub downstream: String,
    /// Activities at a time, for each worker and queue.
    pub slots: u32,
    /// Rate and burst that each keeps to by itself, without tollgate.
    pub local_only: Option<(u32, u32)>,
}

impl FleetSettings {
    /// Workers with room for two seconds of calls at this rate, so that work waits at every gate even when Temporal hands
    /// it out in bursts.
    pub fn of_rate(workers: u32, queues: Vec<String>, downstream: &str, rate_max: u32) -> Self {
        let places = u64::from(workers) * queues.len() as u64;
        let slots = (2 * u64::from(rate_max)).div_ceil(places).clamp(2, 200);
        let slots = u32::try_from(slots).unwrap_or(2);
        Self { workers, queues, downstream: downstream.to_owned(), slots, local_only: None }
    }
}

impl Stage {
    /// Starts the Temporal server and the coordinator hosts.
    ///
    /// # Errors
    /// When one of them isn't ready in time; the error shows the end of its output.
    pub fn open(
        supervisor: Supervisor,
        programs: Programs,
        cli: &TemporalCli,
        settings: StageSettings,
    ) -> Result<Self> {
        let ports = free_ports::<2>()?;
        let config_file = supervisor.run_dir().join("temporal.toml");
        fs::write(&config_file, "").with_context(|| format!("can't write {}", config_file.display()))?;
        let temporal = spawn_temporal(&supervisor, &cli.path, ports, settings)?;
        let address = format!("127.0.0.1:{}", ports[0]);
        listens(&temporal, ports[0])?;
        let spawn = |number| spawn_host(&supervisor, &programs, &address, &config_file, number);
        let hosts = (0..settings.hosts).map(|number| Ok(Mutex::new(spawn(number)?)));
        let hosts = hosts.collect::<Result<Vec<_>>>()?;
        let stage = Self {
            supervisor,
            programs,
            temporal_cli: cli.path.clone(),
            config_file,
            settings,
            ports,
            address,
            temporal: Mutex::new(temporal),
            hosts,
        };
        for number in 0..settings.hosts {
            stage.wait_for(&stage.host(number), "ready")?;
        }
        Ok(stage)
    }

    /// Address of the Temporal UI.
    pub fn ui(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[1])
    }

    /// Address of the Temporal server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The Temporal server that was started last.
    pub fn temporal(&self) -> Process {
        lock(&self.temporal).clone()
    }

    /// A coordinator host, by its number from zero.
    pub fn host(&self, number: usize) -> Process {
        lock(&self.hosts[number]).clone()
    }

    /// How many coordinator hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Starts the Temporal server again, on the same ports and with the same file, after it has ended.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_temporal(&self) -> Result<()> {
        let mut temporal = lock(&self.temporal);
        *temporal = spawn_temporal(&self.supervisor, &self.temporal_cli, self.ports, self.settings)?;
        Ok(())
    }

    /// Whether the Temporal server takes connections.
    pub fn temporal_listens(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[0])).is_ok()
    }

    /// Starts a coordinator host again after it has ended.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start_host(&self, number: usize) -> Result<()> {
        let mut host = lock(&self.hosts[number]);
        *host = spawn_host(&self.supervisor, &self.programs, &self.address, &self.config_file, number)?;
        Ok(())
    }

    /// The program `tollgate`.
    pub fn tollgate(&self) -> &Path {
        &self.programs.tollgate
    }

    /// Who owns the processes.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Kills the first coordinator host (SIGKILL) and starts it again. Returns when it was killed, by the boot clock.
    ///
    /// # Errors
    /// When it can't be killed or started.
    pub fn restart_host(&self) -> Result<u64> {
        let at = boot_ns();
        self.host(0).kill()?;
        self.start_host(0)?;
        Ok(at)
    }

    /// Fails when the server or a host has ended.
    ///
    /// # Errors
    /// With the end of its output.
    pub fn check(&self) -> Result<()> {
        check(&self.temporal())?;
        (0..self.hosts.len()).try_for_each(|number| check(&self.host(number)))
    }

    /// Starts a downstream.
    ///
    /// # Errors
    /// When it isn't ready in time.
    pub fn downstream(&self, run: &str, allowance: Allowance) -> Result<(Process, Control, PathBuf)> {
        let log = self.supervisor.run_dir().join(format!("{run}.arrivals.jsonl"));
        let mut command = Command::new(&self.programs.xtask);
        command.arg("downstream").arg("--log").arg(&log);
        command.args(["--rate", &allowance.rate.to_string(), "--burst", &allowance.burst.to_string()]);
        let process = self.supervisor.spawn(&format!("{run}-downstream"), command)?;
        let control = Control::from_ready_line(&self.wait_for(&process, "listening on")?)?;
        Ok((process, control, log))
    }

    /// Starts the workers of a run and waits until they are ready.
    ///
    /// # Errors
    /// When one isn't.
    pub fn fleet(&self, run: &str, settings: &FleetSettings) -> Result<Fleet> {
        let notes = self.supervisor.run_dir().join(format!("{run}-notes"));
        fs::create_dir_all(&notes).with_context(|| format!("can't create {}", notes.display()))?;
        let mut fleet = Fleet { run: run.to_owned(), notes, workers: Vec::new() };
        for name in fleet.names(settings.workers) {
            fleet.workers.push(self.worker(&fleet, &name, settings)?);
        }
        for worker in &fleet.workers {
            self.wait_for(worker, "ready")?;
        }
        Ok(fleet)
    }

    /// Starts one worker of a fleet. It isn't ready yet then.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn worker(&self, fleet: &Fleet, name: &str, settings: &FleetSettings) -> Result<Process> {
        let mut command = self.command(&self.programs.fleet);
        command.args(["worker", "--name", name, "--downstream", &settings.downstream, "--limit", LIMIT]);
        command.args(["--slots", &settings.slots.to_string()]).arg("--notes").arg(&fleet.notes);
        for queue in &settings.queues {
            command.arg("--queue").arg(format!("{queue}-{}", fleet.run));
        }
        if let Some((rate, burst)) = settings.local_only {
            command.arg("--local-only").arg(format!("{rate}:{burst}"));
        }
        self.supervisor.spawn(name, command)
    }

    /// Starts a batch of this many calls for a fleet and waits until it is ready to begin.
    ///
    /// # Errors
    /// When it isn't.
    pub fn batch(&self, run: &str, batch: &Batch, calls: u64, settings: &FleetSettings) -> Result<Process> {
        let path = self.supervisor.run_dir().join(format!("{run}.batch.jsonl"));
        batch.write(calls, &path)?;
        let workflows = calls.div_ceil(CALLS_PER_WORKFLOW).clamp(1, 500);
        let slots = u64::from(settings.slots) * u64::from(settings.workers) * settings.queues.len() as u64;
        // Twice what fits into the workers, so that the task queues are never empty.
        let lanes = (2 * slots).div_ceil(workflows).clamp(1, 100);
        let mut command = self.command(&self.programs.fleet);
        command.args(["batch", "--run", run]).arg("--input").arg(&path);
        command.args(["--workflows", &workflows.to_string(), "--lanes", &lanes.to_string()]);
        let process = self.supervisor.spawn(&format!("{run}-batch"), command)?;
        self.wait_for(&process, "ready")?;
        Ok(process)
    }

    /// Ends the workflows of a run that was broken off.
    ///
    /// # Errors
    /// When the Temporal CLI fails.
    pub fn end_workflows(&self, run: &str) -> Result<()> {
        let mut command = self.command(&self.temporal_cli);
        let query = format!(
            "WorkflowType=\"demo.batch\" AND TaskQueue=\"demo-batch-{run}\" AND ExecutionStatus=\"Running\""
        );
        command.args(["workflow", "terminate", "--yes", "--reason", "the run is over", "--query", &query]);
        self.finish("end-workflows", command).map(drop)
    }

    /// Sets the limit with the program `tollgate`, as an operator would.
    ///
    /// # Errors
    /// When it fails.
    pub fn set_limit(&self, rate: u32, rest: &[&str]) -> Result<()> {
        let mut command = self.command(&self.programs.tollgate);
        command.args(["limit", "set", LIMIT, "--rate", &format!("{rate}/s")]).args(rest);
        self.finish("limit-set", command).map(drop)
    }

    /// Creates the limit.
    ///
    /// # Errors
    /// As [`Stage::set_limit`].
    pub fn create_limit(&self, rate: u32, burst: u32) -> Result<()> {
        let lease = format!("{}s", LEASE.as_secs());
        let reason = "what the downstream allows";
        self.set_limit(rate, &["--burst", &burst.to_string(), "--lease", &lease, "--reason", reason])
    }

    /// The ramp of the limit's rate, as the configuration states it, moved to the boot clock.
    ///
    /// # Errors
    /// When it can't be asked for, or there is none.
    pub fn ramp(&self, to: u32) -> Result<RampLine> {
        #[derive(Deserialize)]
        struct Limit {
            rate_ramp: Option<Line>,
        }
        #[derive(Deserialize)]
        struct Line {
            start_us: u64,
            end_us: u64,
        }
        let mut command = self.command(&self.programs.tollgate);
        command.args(["limit", "get", LIMIT, "--json"]);
        let answer = self.finish("limit-get", command)?;
        let limits: Vec<Limit> = serde_json::from_str(&answer).context("`tollgate limit get --json`")?;
        let ramp = limits.into_iter().find_map(|limit| limit.rate_ramp).context("the limit has no ramp")?;
        let start_ns = wall_to_boot_ns(ramp.start_us);
        Ok(RampLine { start_ns, end_ns: start_ns + (ramp.end_us - ramp.start_us) * 1_000, to })
    }

    /// Runs `tollgate` with these arguments to its end, as an operator would; what it printed.
    ///
    /// # Errors
    /// When it fails; the error shows the end of its output.
    pub fn operate(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(&self.programs.tollgate);
        command.args(arguments);
        self.finish(name, command)
    }

    /// Runs the Temporal CLI with these arguments to its end; what it printed.
    ///
    /// # Errors
    /// When it fails; the error shows the end of its output.
    pub fn temporal_command(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(&self.temporal_cli);
        command.args(arguments);
        self.finish(name, command)
    }

    /// Runs a command to its end; its output, or an error with its last words.
    fn finish(&self, name: &str, command: Command) -> Result<String> {
        let process = self.supervisor.spawn(name, command)?;
        let status = match process.wait(COMMAND_WITHIN) {
            Ok(status) => status,
            Err(error) => {
                process.kill()?;
                return Err(error);
            }
        };
        if !status.success() {
            bail!("{name} failed ({status}){}", process.output_end());
        }
        process.output()
    }

    fn wait_for(&self, process: &Process, prefix: &str) -> Result<String> {
        // Whoever waits for the server in vain would hide that the server is gone.
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            check(&self.temporal())?;
            let left = deadline.saturating_duration_since(Instant::now());
            match process.wait_for_line(prefix, left.min(Duration::from_secs(1))) {
                Err(error) if left.is_zero() || !process.is_running() => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(10)),
                line => return line,
            }
        }
    }

    fn command(&self, program: &Path) -> Command {
        temporal_command(program, &self.address, &self.config_file)
    }
}

impl Fleet {
    /// Names of all workers that were started, killed ones too.
    pub fn names(&self, count: u32) -> Vec<String> {
        (1..=count).map(|number| format!("{}-worker-{number}", self.run)).collect()
    }

    /// Fails when a worker has ended by itself.
    ///
    /// # Errors
    /// With the end of its output.
    pub fn check(&self) -> Result<()> {
        self.workers.iter().try_for_each(check)
    }
}

/// Waits until the server takes connections.
fn listens(server: &Process, port: u16) -> Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        check(server)?;
        if Instant::now() >= deadline {
            bail!("{} takes no connections after {READY_WITHIN:?}{}", server.name(), server.output_end());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Fails when a process has ended.
///
/// # Errors
/// With the end of its output.
pub fn check(process: &Process) -> Result<()> {
    match process.exit_status() {
        Some(status) => bail!("{} ended ({status}){}", process.name(), process.output_end()),
        None => Ok(()),
    }
}

fn spawn_host(
    supervisor: &Supervisor,
    programs: &Programs,
    address: &str,
    config_file: &Path,
    number: usize,
) -> Result<Process> {
    let mut command = temporal_command(&programs.tollgate, address, config_file);
    command.arg("serve");
    let name = if number == 0 { "host".to_owned() } else { format!("host-{}", number + 1) };
    supervisor.spawn(&name, command)
}

fn spawn_temporal(
    supervisor: &Supervisor,
    cli: &Path,
    [port, ui_port]: [u16; 2],
    settings: StageSettings,
) -> Result<Process> {
    let mut command = Command::new(cli);
    command.args(["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]);
    command.args(["--port", &port.to_string(), "--ui-port", &ui_port.to_string()]);
    // Otherwise timers fire up to a second late.
    command.args(["--dynamic-config-value", "history.timerProcessorMaxTimeShift=\"50ms\""]);
    if settings.durable {
        command.arg("--db-filename").arg(supervisor.run_dir().join("temporal.db"));
        // Several times as fast; what was written survives the death of the process.
        command.args(["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=0"]);
    }
    supervisor.spawn("temporal", command)
}

fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

fn temporal_command(program: &Path, address: &str, config_file: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in TEMPORAL_VARIABLES {
        command.env_remove(variable);
    }
    command.env("TEMPORAL_ADDRESS", address).env("TEMPORAL_CONFIG_FILE", config_file);
    command
}

/// Moves a time of the wall clock to the boot clock, by reading both now.
pub fn wall_to_boot_ns(wall_us: u64) -> u64 {
    let boot_before = boot_ns();
    let wall = clock_gettime(ClockId::Realtime);
    let boot_after = boot_ns();
    let boot = i128::from(boot_before.midpoint(boot_after));
    let wall = i128::from(wall.tv_sec) * 1_000_000_000 + i128::from(wall.tv_nsec);
    u64::try_from(i128::from(wall_us) * 1_000 + boot - wall).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages_by_their_target() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"fleet\"},\"executable\":null}\n",
            "{\"reason\":\"build-script-executed\"}\nno json\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"fleet\"},\"executable\":\"/t/examples/fleet\"}\n",
        );
        assert_eq!(executable(messages, "fleet"), Some(PathBuf::from("/t/examples/fleet")));
        assert_eq!(executable(messages, "tollgate"), None);
    }

    #[test]
    fn a_wall_time_of_now_is_a_boot_time_of_now() {
        let wall = clock_gettime(ClockId::Realtime);
        let wall_us = u64::try_from(wall.tv_sec * 1_000_000 + wall.tv_nsec / 1_000).unwrap();
        let moved = wall_to_boot_ns(wall_us);
        assert!(moved.abs_diff(boot_ns()) < 1_000_000_000, "{moved}");
    }
}
