//! One child process.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::output::{Tail, last_lines};

/// How often a wait looks again. Short against anything that a run measures.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// How long a killed process may take to go: the kernel has to free its memory.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of output that an error shows.
const LINES_SHOWN: usize = 15;

/// A child process and the group that it leads. Clones are handles to the same process.
#[derive(Debug, Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    pid: Pid,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Length of the output that an earlier process of the same name has left.
    stdout_start: u64,
    /// Set before an interrupt kills everything: see [`Process::hold_if_interrupted`].
    interrupted: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Set once the process is gone and its id may belong to another one: no signal is sent after that.
    status: Option<ExitStatus>,
}

impl Process {
    pub(super) fn spawn(
        name: &str,
        mut command: Command,
        run_dir: &Path,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self> {
        let stdout = run_dir.join(format!("{name}.stdout.log"));
        let stderr = run_dir.join(format!("{name}.stderr.log"));
        let stdout_file = append(&stdout)?;
        let stdout_start = stdout_file
            .metadata()
            .with_context(|| format!("can't read the length of {}", stdout.display()))?
            .len();
        command.stdin(Stdio::null()).stdout(stdout_file).stderr(append(&stderr)?).process_group(0);
        let child = command.spawn().with_context(|| format!("can't start {name}: {command:?}"))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process id below 1")?;
        let state = Mutex::new(State { child, status: None });
        let inner = Inner { name: name.to_owned(), pid, stdout, stderr, stdout_start, interrupted, state };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The name that it was started under.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its process id, which is the id of its process group too.
    pub fn pid(&self) -> i32 {
        self.inner.pid.as_raw_nonzero().get()
    }

    /// The file with its standard output.
    pub fn stdout_path(&self) -> &Path {
        &self.inner.stdout
    }

    /// The file with its standard error.
    pub fn stderr_path(&self) -> &Path {
        &self.inner.stderr
    }

    /// How it ended, or nothing while it runs or is paused.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        let status = self.poll();
        self.hold_if_interrupted();
        status
    }

    /// Whether it hasn't ended. A paused process runs in this sense.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// Waits for the first line of its standard output that starts with `prefix`, and returns that line. Lines
    /// that an earlier process of the same name wrote don't count.
    ///
    /// # Errors
    /// When the process ends first or the time is over; the error shows the end of its output.
    pub fn wait_for_line(&self, prefix: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        let mut tail = Tail::open(&self.inner.stdout, self.inner.stdout_start)?;
        loop {
            // The state comes first: what a process printed before its end is read even if it's gone by then.
            let status = self.exit_status();
            while let Some(line) = tail.next_line()? {
                if line.starts_with(prefix) {
                    return Ok(line);
                }
            }
            if let Some(status) = status {
                bail!("{} ended ({status}) before it printed {prefix:?}{}", self.name(), self.output_end());
            }
            if Instant::now() >= deadline {
                bail!("{} did not print {prefix:?} within {timeout:?}{}", self.name(), self.output_end());
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When the time is over; the error shows the end of its output.
    pub fn wait(&self, timeout: Duration) -> Result<ExitStatus> {
        let status = self.wait_until(Instant::now() + timeout);
        self.hold_if_interrupted();
        status.with_context(|| format!("{} still ran after {timeout:?}{}", self.name(), self.output_end()))
    }

    /// Kills it and its group (SIGKILL) and waits until it is gone. Does nothing if it has ended.
    ///
    /// # Errors
    /// When it stays although it was killed.
    pub fn kill(&self) -> Result<()> {
        let killed = self.kill_now();
        self.hold_if_interrupted();
        killed
    }

    /// [`Process::is_running`] for who holds the list of children, which the end of the program waits for.
    pub(super) fn is_running_now(&self) -> bool {
        self.poll().is_none()
    }

    /// [`Process::kill`] for the thread that ends the program.
    pub(super) fn kill_now(&self) -> Result<()> {
        self.signal_group(Signal::KILL)?;
        if self.wait_until(Instant::now() + KILL_TIMEOUT).is_none() {
            bail!("{} was killed and is still there after {KILL_TIMEOUT:?}", self.name());
        }
        Ok(())
    }

    /// Stops it and its group where they are (SIGSTOP), until [`Process::resume`].
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn pause(&self) -> Result<()> {
        self.signal_group(Signal::STOP)
    }

    /// Lets it and its group run on (SIGCONT).
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn resume(&self) -> Result<()> {
        self.signal_group(Signal::CONT)
    }

    /// Asks it to end (SIGTERM, to itself and not to its group), and doesn't wait for that.
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn ask_to_end(&self) -> Result<()> {
        let mut state = self.lock();
        if state.poll(self.inner.pid).is_some() {
            return Ok(());
        }
        kill_process(self.inner.pid, Signal::TERM)
            .with_context(|| format!("can't send SIGTERM to {}", self.name()))
    }

    /// Asks it to end (SIGTERM, to itself and not to its group), waits, and kills it when the time is over.
    ///
    /// # Errors
    /// When it had to be killed, or a signal can't be sent.
    pub fn terminate(&self, timeout: Duration) -> Result<ExitStatus> {
        self.ask_to_end()?;
        // A paused process would sleep through it.
        self.resume()?;
        let status = self.wait_until(Instant::now() + timeout);
        self.hold_if_interrupted();
        if let Some(status) = status {
            return Ok(status);
        }
        self.kill()?;
        bail!("{} did not end within {timeout:?} of SIGTERM and was killed{}", self.name(), self.output_end())
    }

    fn signal_group(&self, signal: Signal) -> Result<()> {
        let mut state = self.lock();
        if state.poll(self.inner.pid).is_some() {
            return Ok(());
        }
        kill_process_group(self.inner.pid, signal)
            .with_context(|| format!("can't send {signal:?} to {}", self.name()))
    }

    fn poll(&self) -> Option<ExitStatus> {
        self.lock().poll(self.inner.pid)
    }

    fn wait_until(&self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            let status = self.poll();
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Stops this thread for good once an interrupt is ending the program. Otherwise the program would see its
    /// children die, take it for an event of the run, and act on it while it is being ended.
    fn hold_if_interrupted(&self) {
        while self.inner.interrupted.load(Ordering::SeqCst) {
            thread::park();
        }
    }

    /// What it has printed on standard output so far.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn output(&self) -> Result<String> {
        let path = &self.inner.stdout;
        let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        let start = usize::try_from(self.inner.stdout_start).unwrap_or(usize::MAX);
        Ok(String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned())
    }

    /// The last lines of its output, to be put behind an error message.
    pub fn output_end(&self) -> String {
        let mut text = String::new();
        for path in [&self.inner.stdout, &self.inner.stderr] {
            text.push_str(&format!("\n  the end of {}:", path.display()));
            for line in last_lines(path, LINES_SHOWN) {
                text.push_str("\n  | ");
                text.push_str(&line);
            }
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Looks whether the process has ended, and if so, kills what is left of its group before its id is given
    /// back to the system.
    fn poll(&mut self, pid: Pid) -> Option<ExitStatus> {
        if self.status.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_))) {
                // Fails when nothing is left, which is as well.
                kill_process_group(pid, Signal::KILL).ok();
                self.status = self.child.wait().ok();
            }
        }
        self.status
    }
}

fn append(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("can't write the output to {}", path.display()))
}
