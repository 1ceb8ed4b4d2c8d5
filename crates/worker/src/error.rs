//! What can go wrong, for whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::limit::{CellKey, OutOfRange};
use tollgate_workflows::wire::Unreadable;

/// Why there is no permit now. The texts of [`Reason::as_str`] are stable: metrics and failures carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Not enough tokens right now.
    Empty,
    /// Others wait already, and it's their turn.
    Queued,
    /// The limit mints nothing at present, so no amount of waiting helps.
    NoQuota,
    /// The coordinator has not answered yet since the limit was first used.
    Starting,
    /// The coordinator waits for leases that it doesn't remember, and grants nothing before they have ended.
    Recovering,
    /// The lease has ended and the coordinator can't be reached.
    CoordinatorLost,
    /// An operator took this worker's quota away.
    Evicted,
    /// An operator has paused the limit: nobody gets anything until it is resumed.
    Paused,
    /// The group has as many workers as it may have.
    GroupFull,
    /// As many callers wait as may wait: the limit's own bound (`queue`), or the gate's for any limit.
    QueueFull,
    /// The deadline has come, or can't be met.
    Deadline,
    /// The gate was shut down.
    ShuttingDown,
}

impl Reason {
    /// All reasons, in the order of [`Reason::as_str`]'s definition.
    pub const ALL: [Reason; 12] = [
        Reason::Empty,
        Reason::Queued,
        Reason::NoQuota,
        Reason::Starting,
        Reason::Recovering,
        Reason::CoordinatorLost,
        Reason::Evicted,
        Reason::Paused,
        Reason::GroupFull,
        Reason::QueueFull,
        Reason::Deadline,
        Reason::ShuttingDown,
    ];

    /// A name that doesn't change.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Empty => "empty",
            Reason::Queued => "queued",
            Reason::NoQuota => "no_quota",
            Reason::Starting => "starting",
            Reason::Recovering => "recovering",
            Reason::CoordinatorLost => "coordinator_lost",
            Reason::Evicted => "evicted",
            Reason::Paused => "paused",
            Reason::GroupFull => "group_full",
            Reason::QueueFull => "queue_full",
            Reason::Deadline => "deadline",
            Reason::ShuttingDown => "shutting_down",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Reason::Empty => "not enough tokens right now",
            Reason::Queued => "others wait already",
            Reason::NoQuota => "the limit mints nothing at present",
            Reason::Starting => "the coordinator has not answered yet",
            Reason::Recovering => "the coordinator is recovering",
            Reason::CoordinatorLost => "the lease has ended and the coordinator can't be reached",
            Reason::Evicted => "an operator took this worker's quota away",
            Reason::Paused => "an operator has paused the limit",
            Reason::GroupFull => "the group has as many workers as it may have",
            Reason::QueueFull => "too many callers wait already",
            Reason::Deadline => "the deadline can't be met",
            Reason::ShuttingDown => "the gate was shut down",
        }
    }

    /// What to do about it, in words for people.
    pub const fn help(self) -> &'static str {
        match self {
            Reason::Empty => "wait with `acquire`, or see `tollgate explain` for who holds the rest",
            Reason::Queued => "wait in line with `acquire`; if it takes long, see `tollgate explain`",
            Reason::NoQuota => "set a rate with `tollgate limit set --rate`",
            Reason::Starting => {
                "wait a moment; if it stays so, is `tollgate serve` running and Temporal reachable from here?"
            }
            Reason::Recovering => "wait; `tollgate status` says until when",
            Reason::CoordinatorLost => {
                "see that `tollgate serve` runs and that Temporal is reachable from here"
            }
            Reason::Evicted => "restart this process to let it ask again",
            Reason::Paused => {
                "resume it with `tollgate limit resume`; `tollgate config history` says who paused it, and why"
            }
            Reason::GroupFull => "stop workers, or move limits to another group",
            Reason::QueueFull => {
                "send fewer callers, or raise the bound: `tollgate limit set --queue`, or the gate's options"
            }
            Reason::Deadline => "allow more time, or see `tollgate explain` for what it waits for",
            Reason::ShuttingDown => "ask another process",
        }
    }
}

/// No permit now, and when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// When asking again may help; spread, so that those refused together come back apart. `None` when nothing but a
    /// change by an operator helps.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason.text(), self.reason.help())
    }
}

impl std::error::Error for Refused {}

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Not now.
    #[error("{}: {refused}", name(limit, meter))]
    Refused {
        /// Which limit.
        limit: Arc<str>,
        /// Which of its meters refuses; of several, the one that takes longest.
        meter: Arc<str>,
        /// Why, and when to come back.
        refused: Refused,
    },
    /// Work that costs nothing needs no permit.
    #[error("{}: cost is 0, allowed: 1 to the limit's burst", name(limit, meter))]
    ZeroCost {
        /// Which limit.
        limit: Arc<str>,
        /// Which of its meters; of several that all cost nothing, the first one.
        meter: Arc<str>,
    },
    /// Never: a bucket can't hold that much. Split the work, or raise the burst.
    #[error("{}: cost is {cost}, allowed: 1 to {burst}, the limit's burst", name(limit, meter))]
    CostAboveBurst {
        /// Which limit.
        limit: Arc<str>,
        /// Which of its meters.
        meter: Arc<str>,
        /// What was asked for.
        cost: u64,
        /// The burst when the coordinator last answered.
        burst: u64,
    },
    /// The coordinator knows no such limit. Set it, or correct the name.
    #[error(
        "limit {limit:?} is not known in this group; set it with `tollgate limit set`, or correct the name"
    )]
    UnknownLimit {
        /// Which limit.
        limit: Arc<str>,
    },
    /// The limit has no such meter, but others. Nothing was charged to those.
    #[error(
        "limit {limit:?} has no meter {meter:?}, but {}; set it with `tollgate limit set --meter`, or correct the name",
        list(there)
    )]
    UnknownMeter {
        /// Which limit.
        limit: Arc<str>,
        /// The meter that it doesn't have.
        meter: Arc<str>,
        /// Meters that it has, as far as this gate has asked for them.
        there: Vec<Arc<str>>,
    },
    /// No piece of work can be charged to these meters together.
    #[error("limit {limit:?}: {error}")]
    InvalidMeters {
        /// Which limit.
        limit: Arc<str>,
        /// What is allowed.
        error: OutOfRange,
    },
    /// No limit can have this name.
    #[error(transparent)]
    InvalidLimit(#[from] OutOfRange),
    /// The process uses as many limits as one gate can lease. Names should not be made from user input.
    #[error("limit {limit:?} would be one more than the {max} that one gate can lease")]
    TooManyLimits {
        /// Which limit.
        limit: Arc<str>,
        /// How many there may be.
        max: usize,
    },
    /// No strict permit can be had for that long.
    #[error("limit {limit:?}: {error}")]
    InvalidLease {
        /// Which limit.
        limit: Arc<str>,
        /// What is allowed.
        error: OutOfRange,
    },
    /// The coordinator doesn't take the question, or its answer can't be read. Asking again doesn't help.
    #[error("limit {limit:?}: {error}")]
    NotTaken {
        /// Which limit.
        limit: Arc<str>,
        /// What is wrong.
        error: TransportError,
    },
}

/// A limit, and its meter unless that is the one that every limit has.
fn name(limit: &str, meter: &str) -> String {
    if meter == CellKey::METER {
        format!("limit {limit:?}")
    } else {
        format!("limit {limit:?}, meter {meter:?}")
    }
}

fn list(names: &[Arc<str>]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

impl AcquireError {
    /// The meter that is meant; `None` where it is about the limit as a whole.
    pub fn meter(&self) -> Option<&str> {
        match self {
            AcquireError::Refused { meter, .. }
            | AcquireError::ZeroCost { meter, .. }
            | AcquireError::CostAboveBurst { meter, .. }
            | AcquireError::UnknownMeter { meter, .. } => Some(meter),
            _ => None,
        }
    }

    /// When asking again may help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            AcquireError::Refused { refused, .. } => refused.retry_after,
            _ => None,
        }
    }

    /// The reason of a refusal; `None` for what is wrong with the question itself.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            AcquireError::Refused { refused, .. } => Some(refused.reason),
            _ => None,
        }
    }

    /// A name that doesn't change, of the reason or of the error.
    pub fn as_str(&self) -> &'static str {
        match self {
            AcquireError::Refused { refused, .. } => refused.reason.as_str(),
            AcquireError::ZeroCost { .. } => "zero_cost",
            AcquireError::CostAboveBurst { .. } => "cost_above_burst",
            AcquireError::UnknownLimit { .. } => "unknown_limit",
            AcquireError::UnknownMeter { .. } => "unknown_meter",
            AcquireError::InvalidMeters { .. } => "invalid_meters",
            AcquireError::InvalidLimit(_) => "invalid_limit",
            AcquireError::TooManyLimits { .. } => "too_many_limits",
            AcquireError::InvalidLease { .. } => "invalid_lease",
            AcquireError::NotTaken { .. } => "not_taken",
        }
    }
}

/// Why there is no gate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of its range.
    #[error("{0}")]
    Options(#[from] Unreadable),
    /// Messages are sent by tasks: make the gate within a Tokio runtime with time enabled.
    #[error("a gate, and a source of strict permits, must be made within a tokio runtime")]
    NoRuntime,
    /// The operating system gave no random bits, without which a process can't tell itself from others.
    #[error("the operating system gave no random bits: {0}")]
    NoRandomness(String),
    /// The file for the admission log can't be opened.
    #[error("admission log {path:?}: {error}")]
    AdmissionLog {
        /// Which file.
        path: std::path::PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The thread that takes notices can't be started.
    #[error("the thread for notices can't be started: {0}")]
    Thread(std::io::Error),
}

/// Why a message did not reach the coordinator, or its answer did not come back. The keeper tries again in all cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No answer in time. It may have arrived all the same.
    #[error("no answer in time; is a coordinator host running?")]
    Timeout,
    /// There is no coordinator for the group, or it was terminated.
    #[error("no coordinator is running for this group; start one with `tollgate serve`")]
    NotFound,
    /// The coordinator had too many messages at once, or was just replacing itself.
    #[error("the coordinator is busy: {0}")]
    Busy(String),
    /// The server can't be reached.
    #[error("the Temporal server can't be reached: {0}")]
    Unreachable(String),
    /// The coordinator doesn't take the message.
    #[error("the coordinator does not take the message: {0}")]
    Rejected(String),
    /// The answer makes no sense.
    #[error("the answer can't be read: {0}")]
    Unreadable(String),
}

impl TransportError {
    /// Whether the same message may get an answer later.
    pub fn is_passing(&self) -> bool {
        match self {
            TransportError::Timeout
            | TransportError::NotFound
            | TransportError::Busy(_)
            | TransportError::Unreachable(_) => true,
            TransportError::Rejected(_) | TransportError::Unreadable(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        for reason in Reason::ALL {
            let text = Refused { reason, retry_after: None }.to_string();
            let (why, help) = text.split_once("; ").unwrap();
            assert_eq!((why, help), (reason.text(), reason.help()));
            assert!(!why.is_empty() && !help.is_empty() && !text.ends_with('.'), "{text}");
        }
        assert!(Reason::CoordinatorLost.help().contains("tollgate serve"));
    }
}
