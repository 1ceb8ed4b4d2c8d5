//! The processes of the demo, and how they are started.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::metrics::RampLine;
use super::plan::LEASE;
use crate::downstream::Allowance;
use crate::downstream::arrivals::boot_ns;
use crate::downstream::control::Control;
use crate::process::{Process, Supervisor, free_ports};
use crate::temporal_cli::TemporalCli;
use crate::workspace::Workspace;

/// The limit that all workers share.
pub const LIMIT: &str = "demo";
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

/// A Temporal server, a coordinator host, and what is needed to start more.
#[derive(Debug)]
pub struct Stage {
    supervisor: Supervisor,
    programs: Programs,
    temporal_cli: PathBuf,
    config_file: PathBuf,
    address: String,
    ui: String,
    temporal: Process,
    host: Process,
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

impl Stage {
    /// Starts the Temporal server and the coordinator host.
    ///
    /// # Errors
    /// When one of them isn't ready in time; the error shows the end of its output.
    pub fn open(supervisor: Supervisor, programs: Programs, cli: &TemporalCli) -> Result<Self> {
        let [port, ui_port] = free_ports::<2>()?;
        let config_file = supervisor.run_dir().join("temporal.toml");
        fs::write(&config_file, "").with_context(|| format!("can't write {}", config_file.display()))?;
        let mut command = Command::new(&cli.path);
        command.args(["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]);
        command.args(["--port", &port.to_string(), "--ui-port", &ui_port.to_string()]);
        // Otherwise timers fire up to a second late.
        command.args(["--dynamic-config-value", "history.timerProcessorMaxTimeShift=\"50ms\""]);
        let temporal = supervisor.spawn("temporal", command)?;
        let address = format!("127.0.0.1:{port}");
        listens(&temporal, port)?;
        let host = spawn_host(&supervisor, &programs, &address, &config_file)?;
        let stage = Self {
            supervisor,
            programs,
            temporal_cli: cli.path.clone(),
            config_file,
            address,
            ui: format!("http://127.0.0.1:{ui_port}"),
            temporal,
            host,
        };
        stage.wait_for(&stage.host, "ready")?;
        Ok(stage)
    }

    /// Address of the Temporal UI.
    pub fn ui(&self) -> &str {
        &self.ui
    }

    /// Address of the Temporal server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The program `tollgate`.
    pub fn tollgate(&self) -> &Path {
        &self.programs.tollgate
    }

    /// Who owns the processes.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Kills the coordinator host (SIGKILL) and starts it again. Returns when it was killed, by the boot clock.
    ///
    /// # Errors
    /// When it can't be killed or started.
    pub fn restart_host(&mut self) -> Result<u64> {
        let at = boot_ns();
        self.host.kill()?;
        self.host = spawn_host(&self.supervisor, &self.programs, &self.address, &self.config_file)?;
        Ok(at)
    }

    /// Fails when the server or the host has ended.
    ///
    /// # Errors
    /// With the end of its output.
    pub fn check(&self) -> Result<()> {
        [&self.temporal, &self.host].into_iter().try_for_each(check)
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
        let mut workers = Vec::new();
        for number in 1..=settings.workers {
            let name = format!("{run}-worker-{number}");
            let mut command = self.command(&self.programs.fleet);
            command.args(["worker", "--name", &name, "--downstream", &settings.downstream, "--limit", LIMIT]);
            command.args(["--slots", &settings.slots.to_string()]).arg("--notes").arg(&notes);
            for queue in &settings.queues {
                command.arg("--queue").arg(format!("{queue}-{run}"));
            }
            if let Some((rate, burst)) = settings.local_only {
                command.arg("--local-only").arg(format!("{rate}:{burst}"));
            }
            workers.push(self.supervisor.spawn(&name, command)?);
        }
        for worker in &workers {
            self.wait_for(worker, "ready")?;
        }
        Ok(Fleet { run: run.to_owned(), notes, workers })
    }

    /// Starts a batch and waits until it is ready to begin.
    ///
    /// # Errors
    /// When it isn't.
    pub fn batch(&self, run: &str, input: &Path, workflows: u64, lanes: u64) -> Result<Process> {
        let mut command = self.command(&self.programs.fleet);
        command.args(["batch", "--run", run]).arg("--input").arg(input);
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

    /// Runs a command to its end; its output, or an error with its last words.
    fn finish(&self, name: &str, command: Command) -> Result<String> {
        let process = self.supervisor.spawn(name, command)?;
        let status = process.wait(COMMAND_WITHIN)?;
        if !status.success() {
            bail!("{name} failed ({status}){}", process.output_end());
        }
        process.output()
    }

    fn wait_for(&self, process: &Process, prefix: &str) -> Result<String> {
        // Whoever waits for the server in vain would hide that the server is gone.
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            check(&self.temporal)?;
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
) -> Result<Process> {
    let mut command = temporal_command(&programs.tollgate, address, config_file);
    command.arg("serve");
    supervisor.spawn("host", command)
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
fn wall_to_boot_ns(wall_us: u64) -> u64 {
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
