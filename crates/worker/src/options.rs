//! How a gate is set up.

use crate::clock::Clock;
use crate::uncharged::Shadow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::limit::{OutOfRange, check_label, check_name};
use tollgate_core::message::CELLS_PER_REQUEST_MAX;
use tollgate_workflows::contracts::{GROUP_DEFAULT, check_group};
use tollgate_workflows::wire::Unreadable;

/// Callers that may wait per limit, unless set otherwise: each costs a few hundred bytes, and who stands further back
/// than this is better refused at once.
const WAITERS_MAX_DEFAULT: usize = 10_000;
/// The most that [`Options::waiters_max`] may be.
const WAITERS_MAX_MAX: usize = 1_000_000;

/// How a gate's messages reach the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Messages {
    /// By Temporal's updates, which bring the answer with them.
    #[default]
    Updates,
    /// By signals alone, for services without updates: heartbeats are signal `lease`, and the answers come by an activity on
    /// the task queue that also brings notices. Slower, and dearer for the coordinator.
    Signals,
}

/// How a gate is set up. All have defaults.
#[derive(Clone)]
pub struct Options {
    pub(crate) group: String,
    pub(crate) worker: Option<String>,
    pub(crate) limits: Vec<String>,
    /// Limits with one of their meters.
    pub(crate) meters: Vec<(String, String)>,
    pub(crate) request_timeout: Duration,
    pub(crate) waiters_max: usize,
    pub(crate) shadow: Shadow,
    pub(crate) notices: bool,
    pub(crate) messages: Messages,
    pub(crate) admission_log: Option<PathBuf>,
    /// The processor's counter when `None`.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// What random bits are made of instead of the operating system's.
    pub(crate) seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options {
            group: GROUP_DEFAULT.to_owned(),
            worker: None,
            limits: Vec::new(),
            meters: Vec::new(),
            request_timeout: Duration::from_secs(10),
            waiters_max: WAITERS_MAX_DEFAULT,
            shadow: Shadow::default(),
            notices: true,
            messages: Messages::Updates,
            admission_log: None,
            clock: None,
            seed: None,
        }
    }

    /// The group whose limits are used: its coordinator is the workflow `tollgate/<group>`. 1 to 100 of
    /// `a-z`, `A-Z`, `0-9`, `.`, `_`, `-`. Default: `default`.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Options {
        self.group = group.into();
        self
    }

    /// A name for people, up to 200 bytes. Default: `<host>/<process id>`.
    #[must_use]
    pub fn worker(mut self, worker: impl Into<String>) -> Options {
        self.worker = Some(worker.into());
        self
    }

    /// A limit that is leased from the start; others are at first use, which then waits for one round trip.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<String>) -> Options {
        self.limits.push(limit.into());
        self
    }

    /// Limits that are leased from the start, up to 1000.
    #[must_use]
    pub fn limits(mut self, limits: impl IntoIterator<Item = impl Into<String>>) -> Options {
        self.limits.extend(limits.into_iter().map(Into::into));
        self
    }

    /// One of several meters of a limit that is leased from the start, such as `tokens`; 1 to 64 of `a-z`, `0-9`, `_`, `-`. Together
    /// with [`Options::limits`] up to 1000.
    #[must_use]
    pub fn meter(mut self, limit: impl Into<String>, meter: impl Into<String>) -> Options {
        self.meters.push((limit.into(), meter.into()));
        self
    }

    /// How long one message to the coordinator may take, from 100 ms to 60 s. Default: 10 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Options {
        self.request_timeout = timeout;
        self
    }

    /// How many callers may wait per limit, from 1 to 1000000; more are refused. Default: 10000.
    #[must_use]
    pub fn waiters_max(mut self, waiters: usize) -> Options {
        self.waiters_max = waiters;
        self
    }

    /// Whether this process refuses nothing, whatever limits say: it takes what is there, and where it would refuse or wait it hands
    /// out a permit at once that is charged nothing, and counts that. To introduce tollgate in production: see
    /// [`LimitState::shadow`](crate::state::LimitState::shadow). Limits that are paused refuse all the same, and so does a gate that
    /// was shut down. Default: no.
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Options {
        self.shadow.all = shadow;
        self
    }

    /// The same for one limit, in this process; `tollgate limit set --shadow on` does it for all.
    #[must_use]
    pub fn shadow_limit(mut self, limit: impl Into<String>) -> Options {
        self.shadow.limits.insert(limit.into());
        self
    }

    /// Whether urgent news (a cut, a pause) is taken at once, on a task queue of this process's own and a thread that
    /// polls it; otherwise the next heartbeat brings it. Only with [`crate::Gate::connect`]. Default: yes.
    #[must_use]
    pub fn notices(mut self, notices: bool) -> Options {
        self.notices = notices;
        self
    }

    /// How messages reach the coordinator. Only with [`crate::Gate::connect`]. Default: [`Messages::Updates`].
    #[must_use]
    pub fn messages(mut self, messages: Messages) -> Options {
        self.messages = messages;
        self
    }

    /// Appends a line `<nanoseconds of the boot clock> <limit> <cost>` to this file for every permit, before the permit
    /// is handed out and with one write each, so that a killed process leaves no permit unwritten. For audits and
    /// demonstrations: it costs one system call per permit. Several processes may share a file. Default: none.
    #[must_use]
    pub fn admission_log(mut self, path: impl Into<PathBuf>) -> Options {
        self.admission_log = Some(path.into());
        self
    }

    /// Another clock than the machine's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Options {
        self.clock = Some(clock);
        self
    }

    pub(crate) fn check(&self) -> Result<(), Unreadable> {
        check_group(&self.group)?;
        if let Some(worker) = &self.worker {
            check_name("worker", worker)?;
        }
        for limit in &self.limits {
            check_name("limit", limit)?;
        }
        for (limit, meter) in &self.meters {
            check_name("limit", limit)?;
            check_label("meter", meter)?;
        }
        for limit in &self.shadow.limits {
            check_name("shadow_limit", limit)?;
        }
        if self.shadow.limits.len() > CELLS_PER_REQUEST_MAX {
            let (given, allowed) = (self.shadow.limits.len().to_string(), "up to 1000");
            return Err(OutOfRange { field: "shadow_limit", given, allowed }.into());
        }
        let out_of_range = |field, given: String, allowed| Err(OutOfRange { field, given, allowed }.into());
        let cells = self.limits.len().saturating_add(self.meters.len());
        if cells > CELLS_PER_REQUEST_MAX {
            return out_of_range("limits", cells.to_string(), "up to 1000");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.request_timeout) {
            return out_of_range("request_timeout", format!("{:?}", self.request_timeout), "100 ms to 60 s");
        }
        if self.messages == Messages::Signals && !self.notices {
            let allowed = "true with messages by signals: the answers come with notices";
            return out_of_range("notices", "false".to_owned(), allowed);
        }
        if !(1..=WAITERS_MAX_MAX).contains(&self.waiters_max) {
            return out_of_range("waiters_max", self.waiters_max.to_string(), "1 to 1000000");
        }
        Ok(())
    }

    /// The worker's name, given or by default.
    pub(crate) fn worker_name(&self) -> String {
        self.worker.clone().unwrap_or_else(|| {
            let uname = rustix::system::uname();
            let host: String = uname.nodename().to_string_lossy().chars().take(64).collect();
            format!("{host}/{}", std::process::id())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_field_value_and_range() {
        let said = |options: Options| options.check().unwrap_err().to_string();
        let error = said(Options::new().request_timeout(Duration::ZERO));
        assert_eq!(error, "request_timeout is 0ns, allowed: 100 ms to 60 s");
        assert!(said(Options::new().group("a/b")).starts_with("group"));
        assert!(said(Options::new().worker("x".repeat(10_240))).starts_with("worker is"));
        assert!(said(Options::new().limits(["a", "b\n"])).starts_with("limit is"));
        assert!(said(Options::new().meter("a", "To Kens")).starts_with("meter is"));
        assert!(said(Options::new().waiters_max(0)).starts_with("waiters_max is 0"));
        let error = said(Options::new().messages(Messages::Signals).notices(false));
        assert!(error.starts_with("notices is false, allowed: true with"), "{error}");
        assert!(Options::new().messages(Messages::Signals).check().is_ok());
        assert!(Options::new().check().is_ok());
    }
}
