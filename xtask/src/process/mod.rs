//! Child processes of a run: started, watched, broken on purpose, and never left behind.
//!
//! A [`Supervisor`] owns the children of one run. Each child
//! - writes its output to two files in the run's folder, so that it depends on no pipe of ours and may outlive
//!   us when it is released;
//! - leads a process group of its own: Ctrl-C reaches only us, and a signal that we send reaches what the child
//!   has started in turn.
//!
//! Everything that still runs is killed when the supervisor is dropped, and on Ctrl-C or SIGTERM once
//! [`Supervisor::kill_on_interrupt`] has been called.

mod child;
mod output;
mod ports;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

pub use child::Process;
pub use ports::{free_port, free_ports};

/// Most children that run at once: far more than a demo has, and a stop to a loop that starts too many.
pub const CHILDREN_MAX: usize = 128;
/// What a shell reports for a program that ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// Owns the children of one run. See the [module](self).
#[derive(Debug)]
pub struct Supervisor {
    run_dir: PathBuf,
    children: Arc<Mutex<Vec<Process>>>,
    /// Set once a signal ends this program.
    interrupted: Arc<AtomicBool>,
}

impl Supervisor {
    /// A supervisor whose children write their output into `run_dir`, which is created.
    ///
    /// # Errors
    /// When the folder can't be created.
    pub fn new(run_dir: impl Into<PathBuf>) -> Result<Self> {
        let run_dir = run_dir.into();
        fs::create_dir_all(&run_dir)
            .with_context(|| format!("can't create the run's folder {}", run_dir.display()))?;
        Ok(Self { run_dir, children: Arc::default(), interrupted: Arc::default() })
    }

    /// The folder with the children's output.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Starts a child. Its output is appended to `NAME.stdout.log` and `NAME.stderr.log` in the run's folder, so
    /// that a restart under the same name keeps what was there.
    ///
    /// # Errors
    /// When the name has other characters than letters, digits, `-`, `_` and `.`, when the program can't be
    /// started, or when [`CHILDREN_MAX`] are running.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(allowed) {
            bail!("{name:?} can't name a process: its log files are named so; use letters, digits, - and _");
        }
        let mut children = lock(&self.children);
        children.retain(Process::is_running_now);
        if children.len() >= CHILDREN_MAX {
            bail!("can't start {name}: {CHILDREN_MAX} processes are running already");
        }
        let process = Process::spawn(name, command, &self.run_dir, Arc::clone(&self.interrupted))?;
        children.push(process.clone());
        Ok(process)
    }

    /// The children that are running.
    pub fn running(&self) -> Vec<Process> {
        let mut children = lock(&self.children);
        children.retain(Process::is_running_now);
        children.clone()
    }

    /// Kills everything that runs, the last started first, and waits until it is gone.
    pub fn kill_all(&self) {
        kill_all(&mut lock(&self.children));
    }

    /// Gives up all children: they stay, whatever happens to this program.
    ///
    /// Returns them, so that their names and process ids can be shown.
    pub fn release(&self) -> Vec<Process> {
        let mut children = lock(&self.children);
        children.retain(Process::is_running_now);
        std::mem::take(&mut *children)
    }

    /// From now on SIGINT (Ctrl-C), SIGTERM and SIGHUP kill all children and end this program with status 130.
    ///
    /// # Errors
    /// When the signals can't be waited for.
    pub fn kill_on_interrupt(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("can't wait for Ctrl-C")?;
        let mut signals = {
            let _entered = runtime.enter();
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
                .into_iter()
                .map(signal)
                .collect::<Result<Vec<_>, _>>()
                .context("can't wait for Ctrl-C")?
        };
        let (children, interrupted) = (Arc::clone(&self.children), Arc::clone(&self.interrupted));
        let wait = move || {
            runtime.block_on(std::future::poll_fn(|context| {
                let came = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
                if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }));
            interrupted.store(true, Ordering::SeqCst);
            // The lock is never given back: nothing is started any more, and no drop of the supervisor gets past.
            let mut children = lock(&children);
            eprintln!("\ninterrupted: stopping {} processes", children.len());
            kill_all(&mut children);
            std::process::exit(EXIT_INTERRUPTED);
        };
        thread::Builder::new().name("interrupt".to_owned()).spawn(wait).context("can't wait for Ctrl-C")?;
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn kill_all(children: &mut Vec<Process>) {
    while let Some(process) = children.pop() {
        if let Err(error) = process.kill_now() {
            eprintln!("{error:#}");
        }
    }
}

fn lock(children: &Mutex<Vec<Process>>) -> MutexGuard<'_, Vec<Process>> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
