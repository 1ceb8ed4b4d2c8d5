//! Child processes that never outlive the tests.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs the program beneath a shell that kills it as soon as its standard input ends: also when the tests are killed.
const GUARD: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
echo "pid $child"
{ read -r _; kill -9 "$child"; } <&3 2>/dev/null &
guard=$!
wait "$child"
code=$?
kill "$guard" 2>/dev/null
exit "$code"
"#;
/// Lines of output that a failed test shows.
const LINES_KEPT: usize = 25;

/// A program beneath its guard.
pub(crate) struct Child {
    name: String,
    guard: std::process::Child,
    /// Closing it kills the program.
    leash: Option<ChildStdin>,
    pid: Pid,
    output: Arc<Output>,
}

#[derive(Default)]
struct Output {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    /// The first line that begins with `ready:`.
    ready: Option<String>,
    pid: Option<i32>,
    ended: bool,
}

impl Child {
    /// Starts a program; its arguments and environment are those of `command`.
    pub(crate) fn start(name: &str, command: &Command) -> Child {
        let mut guarded = Command::new("/bin/sh");
        guarded.args(["-c", GUARD, "guard"]).arg(command.get_program()).args(command.get_args()).env_clear();
        for (key, value) in command.get_envs() {
            if let Some(value) = value {
                guarded.env(key, value);
            }
        }
        guarded.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guard =
            guarded.spawn().unwrap_or_else(|error| panic!("{name}: can't start /bin/sh: {error}"));
        let output = Arc::<Output>::default();
        read_lines(guard.stdout.take().unwrap(), Arc::clone(&output), true);
        read_lines(guard.stderr.take().unwrap(), Arc::clone(&output), false);
        let pid = output.wait(Duration::from_secs(20), |state| state.pid);
        let pid = pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("{name}: the guard did not start it"));
        let leash = guard.stdin.take();
        Child { name: name.to_owned(), guard, leash, pid, output }
    }

    /// Waits for a line that begins with `ready:`.
    pub(crate) fn wait_ready(&self, limit: Duration) {
        if self.output.wait(limit, |state| state.ready.clone()).is_none() {
            panic!("{} is not ready within {limit:?}:{}", self.name, self.tail());
        }
    }

    /// Waits for a line that begins with this.
    pub(crate) fn wait_line(&self, start: &str, limit: Duration) {
        let begins = |line: &String| line.starts_with(start);
        if self.output.wait(limit, |state| state.lines.iter().any(begins).then_some(())).is_none() {
            panic!("{} does not say {start:?} within {limit:?}:{}", self.name, self.tail());
        }
    }

    /// A line that begins with this, of those that are kept.
    pub(crate) fn line(&self, start: &str) -> Option<String> {
        self.output.lock().lines.iter().find(|line| line.starts_with(start)).cloned()
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.output.lock().ended
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        kill_process(self.pid, Signal::KILL).unwrap();
        self.guard.wait().unwrap();
    }

    /// SIGTERM, and its exit status.
    pub(crate) fn terminate(mut self, limit: Duration) -> ExitStatus {
        let until = Instant::now() + limit;
        kill_process(self.pid, Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.guard.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < until,
                "{} does not end within {limit:?} of SIGTERM:{}",
                self.name,
                self.tail()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its last lines.
    pub(crate) fn tail(&self) -> String {
        self.output.lock().lines.iter().map(|line| format!("\n  {} | {line}", self.name)).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("last lines of {}:{}", self.name, self.tail());
        }
        drop(self.leash.take());
        self.guard.wait().ok();
    }
}

impl Output {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(&self, limit: Duration, found: impl Fn(&State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if let Some(found) = found(&state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                return None;
            }
            state = self.grown.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn read_lines(from: impl Read + Send + 'static, into: Arc<Output>, is_stdout: bool) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut state = into.lock();
            match line.strip_prefix("pid ") {
                Some(pid) if is_stdout && state.pid.is_none() => state.pid = pid.trim().parse().ok(),
                _ => {
                    if line.starts_with("ready:") && state.ready.is_none() {
                        state.ready = Some(line.clone());
                    }
                    if state.lines.len() == LINES_KEPT {
                        state.lines.pop_front();
                    }
                    state.lines.push_back(line);
                }
            }
            into.grown.notify_all();
        }
        if is_stdout {
            into.lock().ended = true;
            into.grown.notify_all();
        }
    });
}
