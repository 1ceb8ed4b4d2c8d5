//! Every metric.
//!
//! Names follow the conventions of Prometheus: base units, the unit at the end, `_total` behind it for what only grows. The
//! names of limits, meters and tiers are label values, never parts of names. Names and labels are promises: metrics are
//! added, not renamed.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, and starts at zero with its process; of what a coordinator counts, with the coordinator.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size, in fixed buckets.
    Histogram,
}

/// Who shows a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A worker: one gate.
    Worker,
    /// A coordinator host: a group.
    Group,
    /// A coordinator host: each limit of a group.
    Limit,
}

/// What is known of a metric.
#[derive(Debug)]
pub struct About {
    /// Its full name, with all suffixes.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its base unit, or nothing: what is counted is in the name.
    pub unit: &'static str,
    /// Who shows it.
    pub scope: Scope,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in one line without a full stop.
    pub help: &'static str,
}

/// A metric that only grows, with so many labels.
#[derive(Debug)]
pub struct Counter<const LABELS: usize>(pub About);
/// A metric that goes up and down, with so many labels.
#[derive(Debug)]
pub struct Gauge<const LABELS: usize>(pub About);
/// A metric in buckets, with so many labels.
#[derive(Debug)]
pub struct Buckets<const LABELS: usize>(pub About);

macro_rules! kind_of {
    (Counter) => {
        Kind::Counter
    };
    (Gauge) => {
        Kind::Gauge
    };
    (Buckets) => {
        Kind::Histogram
    };
}

/// Defines the metrics, and the list of them, which can't miss one.
macro_rules! catalogue {
    ($($id:ident: $kind:ident, $name:literal, $unit:literal, $scope:ident, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help, ".")]
            pub static $id: $kind<{ const LABELS: &[&str] = &[$($label),*]; LABELS.len() }> = $kind(About {
                name: $name,
                kind: kind_of!($kind),
                unit: $unit,
                scope: Scope::$scope,
                labels: &[$($label),*],
                help: $help,
            });
        )*
        /// All metrics, in the order of the documentation.
        pub static ALL: &[&About] = &[$(&$id.0),*];
    };
}

/// Bounds of the buckets of [`WORKER_WAIT`], in microseconds: from a few tokens' time to a request's usual timeouts.
pub const WAIT_BOUNDS_US: [u64; 14] = [
    1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// Bounds of the buckets of [`WORKER_HEARTBEAT`], in microseconds: around what an answer of a workflow takes.
pub const HEARTBEAT_BOUNDS_US: [u64; 11] =
    [5_000, 10_000, 20_000, 30_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000];

/// What labels mean, and their values where those are few.
pub static LABELS: &[(&str, &str)] = &[
    ("group", "the group of limits"),
    ("limit", "the limit"),
    ("meter", "which of its meters"),
    ("tier", "the priority class"),
    (
        "reason",
        "of refusals: `empty`, `queued`, `no_quota`, `starting`, `recovering`, `coordinator_lost`, `evicted`, \
         `paused`, `group_full`, `queue_full`, `deadline`, `shutting_down`; of shadows also `cost_above_burst`, `unknown_limit`; of heartbeats: `timeout`, `not_found` (there is no \
         coordinator), `busy`, `unreachable`, `rejected`, `unreadable`, `group_full`, `refused` (this incarnation is)",
    ),
    ("outcome", "`success`, `failure`, `slow`, `ignored`, `throttled`"),
    (
        "condition",
        "`starting`, `open`, `recovering`, `paused`, `held` and `opened` (the coordinator is lost), `closed`, `unknown` (there is no such limit)",
    ),
    ("mode", "`held` (at a part of the last share), `opened` (everything is let through)"),
    ("worker", "the worker's name"),
    ("version", "the version of the program"),
];

/// The conditions of a lease: values of the label `condition`.
pub const CONDITIONS: [&str; 8] =
    ["starting", "open", "recovering", "paused", "held", "opened", "closed", "unknown"];

/// How work goes on without the coordinator: values of the label `mode`.
pub const LOST_MODES: [&str; 2] = ["held", "opened"];

catalogue! {
    WORKER_INFO: Gauge, "tollgate_worker_info", "", Worker, ["group", "worker", "version"],
        "Always 1; the worker's name for people and the version of the library";
    WORKER_GRANTED: Counter, "tollgate_worker_permits_granted_total", "", Worker, ["group", "limit", "meter", "tier"],
        "Permits handed out";
    WORKER_CHARGED: Counter, "tollgate_worker_charged_tokens_total", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens charged for them, overdrafts included; less what was refunded it is what was used";
    WORKER_REFUNDED: Counter, "tollgate_worker_refunded_tokens_total", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens that went back when permits were settled for less than was charged";
    WORKER_REFUSED: Counter, "tollgate_worker_refusals_total", "", Worker, ["group", "limit", "meter", "tier", "reason"],
        "Refusals, by reason; one that says wait a moment counts like any other";
    WORKER_SHADOW: Gauge, "tollgate_worker_in_shadow", "", Worker, ["group", "limit", "meter", "tier"],
        "1 while the limit is in shadow mode here: it refuses nothing";
    WORKER_SHADOW_REFUSED: Counter, "tollgate_worker_shadow_refusals_total", "", Worker, ["group", "limit", "meter", "tier", "reason"],
        "Permits without a charge that a limit in shadow mode handed out where it would have refused or let wait, by reason";
    WORKER_SHADOW_TOKENS: Counter, "tollgate_worker_shadow_tokens_total", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens that those permits would have cost";
    WORKER_LOST_MODE: Gauge, "tollgate_worker_lost_mode", "", Worker, ["group", "limit", "meter", "tier", "mode"],
        "1 while work goes on in this way although the lease has ended and the coordinator is lost: the limit may be broken";
    WORKER_ALONE: Gauge, "tollgate_worker_alone_seconds", "seconds", Worker, ["group", "limit", "meter", "tier"],
        "For how long it has been so; 0 while it isn't";
    WORKER_OPENED: Counter, "tollgate_worker_opened_permits_total", "", Worker, ["group", "limit", "meter", "tier"],
        "Permits without a charge that were handed out since the coordinator was lost and the limit opens then";
    WORKER_OPENED_TOKENS: Counter, "tollgate_worker_opened_tokens_total", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens that those permits would have cost";
    WORKER_SETTLED: Counter, "tollgate_worker_permits_settled_total", "", Worker, ["group", "limit", "meter", "tier", "outcome"],
        "Permits settled, by outcome; a permit that is dropped without is not counted";
    WORKER_WAITING: Gauge, "tollgate_worker_waiting_callers", "", Worker, ["group", "limit", "meter", "tier"],
        "Callers that wait for a permit";
    WORKER_WAITING_TOKENS: Gauge, "tollgate_worker_waiting_tokens", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens that they wait for";
    WORKER_WAIT: Buckets, "tollgate_worker_wait_seconds", "seconds", Worker, ["group", "limit", "meter", "tier"],
        "How long callers waited that got a permit and had to wait for it";
    WORKER_GAVE_UP: Counter, "tollgate_worker_waits_given_up_total", "", Worker, ["group", "limit", "meter", "tier"],
        "Callers that waited and went without: refused, out of time, or gone";
    WORKER_SHARE: Gauge, "tollgate_worker_share_ratio", "ratio", Worker, ["group", "limit", "meter", "tier"],
        "The part of the limit's rate that this worker mints, from 0 to 1";
    WORKER_CAP: Gauge, "tollgate_worker_cap_tokens", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "The most tokens that this worker may hold";
    WORKER_LEFT: Gauge, "tollgate_worker_left_tokens", "tokens", Worker, ["group", "limit", "meter", "tier"],
        "Tokens that are there now; negative for debt";
    WORKER_LEASE_AGE: Gauge, "tollgate_worker_lease_age_seconds", "seconds", Worker, ["group", "limit", "meter", "tier"],
        "Time since the lease was asked for; missing without a lease";
    WORKER_LEASE_LEFT: Gauge, "tollgate_worker_lease_remaining_seconds", "seconds", Worker, ["group", "limit", "meter", "tier"],
        "Time until the lease ends, 0 without a lease; heartbeats renew it long before";
    WORKER_CONDITION: Gauge, "tollgate_worker_condition", "", Worker, ["group", "limit", "meter", "tier", "condition"],
        "1 for the condition that the lease is in, 0 for all others";
    WORKER_HEARTBEAT: Buckets, "tollgate_worker_heartbeat_seconds", "seconds", Worker, ["group"],
        "From a heartbeat's first sending to its answer";
    WORKER_HEARTBEAT_ERRORS: Counter, "tollgate_worker_heartbeat_errors_total", "", Worker, ["group", "reason"],
        "Heartbeats without an answer, or with a refusal as answer, by reason; the worker tries again in all cases";
    WORKER_COORDINATOR_UP: Gauge, "tollgate_worker_coordinator_up", "", Worker, ["group"],
        "1 when the coordinator answered the last message, else 0";
    WORKER_COORDINATOR_SINCE: Gauge, "tollgate_worker_coordinator_state_seconds", "seconds", Worker, ["group"],
        "For how long that has been so";

    HOST_INFO: Gauge, "tollgate_host_info", "", Group, ["version"],
        "Always 1; the version of the coordinator host";
    COORDINATOR_UP: Gauge, "tollgate_coordinator_up", "", Group, ["group"],
        "1 when the coordinator answered when it was last asked, else 0";
    COORDINATOR_ANSWER_AGE: Gauge, "tollgate_coordinator_answer_age_seconds", "seconds", Group, ["group"],
        "Time since its last answer, which all figures of the group and its limits are of; missing before the first";
    COORDINATOR_WORKERS: Gauge, "tollgate_coordinator_workers", "", Group, ["group"],
        "Workers that hold or ask";
    COORDINATOR_LIMITS: Gauge, "tollgate_coordinator_limits", "", Group, ["group"],
        "Limits of the group: meters and tiers counted one by one, and those that were removed left out";
    COORDINATOR_RECOVERING: Gauge, "tollgate_coordinator_recovering", "", Group, ["group"],
        "1 while the coordinator waits for leases that it doesn't remember, and raises none, else 0";
    COORDINATOR_RUNS: Counter, "tollgate_coordinator_continued_as_new_total", "", Group, ["group"],
        "Times that the coordinator's workflow continued as new";
    COORDINATOR_RESETS: Counter, "tollgate_coordinator_resets_total", "", Group, ["group"],
        "Resets of the workflow that were noticed";
    COORDINATOR_STATE: Gauge, "tollgate_coordinator_state_bytes", "bytes", Group, ["group"],
        "Size of the state that goes through continue-as-new; Temporal allows 2 MB";
    COORDINATOR_UNREADABLE: Counter, "tollgate_coordinator_unreadable_messages_total", "", Group, ["group"],
        "Messages that couldn't be read, and signals that were refused; `tollgate status` shows the last one";
    COORDINATOR_IGNORED: Counter, "tollgate_coordinator_ignored_configurations_total", "", Group, ["group"],
        "Configurations that were ignored since they were older than the one in force";
    COORDINATOR_LAG: Gauge, "tollgate_coordinator_configuration_lag_versions", "versions", Group, ["group"],
        "Versions that the config workflow is ahead of the coordinator; missing when one of them didn't answer";

    LIMIT_RATE: Gauge, "tollgate_limit_rate_tokens_per_second", "tokens_per_second", Limit,
        ["group", "limit", "meter", "tier"], "The rate in force";
    LIMIT_TARGET: Gauge, "tollgate_limit_target_rate_tokens_per_second", "tokens_per_second", Limit,
        ["group", "limit", "meter", "tier"], "The rate that a ramp goes to; without a ramp the same";
    LIMIT_RAMP: Gauge, "tollgate_limit_ramp_position_ratio", "ratio", Limit, ["group", "limit", "meter", "tier"],
        "How much of a ramp's time is over, from 0 to 1; 1 without a ramp";
    LIMIT_RAMP_LEFT: Gauge, "tollgate_limit_ramp_remaining_seconds", "seconds", Limit,
        ["group", "limit", "meter", "tier"], "Time until a ramp ends, 0 without one";
    LIMIT_BURST: Gauge, "tollgate_limit_burst_tokens", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "The burst in force; of a meter in flight, how many there may be at once";
    LIMIT_FREE: Gauge, "tollgate_limit_free_tokens", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "Tokens that nobody holds; negative for debt of workers that are gone";
    LIMIT_SHARE: Gauge, "tollgate_limit_share_out_ratio", "ratio", Limit, ["group", "limit", "meter", "tier"],
        "The part of the rate that is out to workers, from 0 to 1";
    LIMIT_CAPS: Gauge, "tollgate_limit_cap_out_tokens", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "The most tokens that all workers together may hold";
    LIMIT_OUT: Gauge, "tollgate_limit_in_use_tokens", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "Tokens in flight, or used in a window and not yet usable again; 0 for a token bucket";
    LIMIT_WAITING: Gauge, "tollgate_limit_waiting_tokens", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "Tokens that workers want and don't have";
    LIMIT_STARVING: Gauge, "tollgate_limit_starving", "", Limit, ["group", "limit", "meter", "tier"],
        "1 when somebody waits for too long although the limit has room, else 0; `tollgate explain` says who and why";
    LIMIT_USED: Counter, "tollgate_limit_used_tokens_total", "tokens", Limit, ["group", "limit", "meter", "tier"],
        "Tokens used since the limit began, as workers reported them";
    LIMIT_HOLDERS: Gauge, "tollgate_limit_holders", "", Limit, ["group", "limit", "meter", "tier"],
        "Workers that hold or want a part of it";
    LIMIT_RECOVERING: Gauge, "tollgate_limit_recovering", "", Limit, ["group", "limit", "meter", "tier"],
        "1 while leases are only confirmed, since some may be out that nobody remembers, else 0";
    LIMIT_PAUSED: Gauge, "tollgate_limit_paused", "", Limit, ["group", "limit", "meter", "tier"],
        "1 while an operator has paused the limit, so that all work is refused, else 0";
    LIMIT_SHADOW: Gauge, "tollgate_limit_shadow", "", Limit, ["group", "limit", "meter", "tier"],
        "1 while the limit is in shadow mode, so that nothing is refused, else 0";
}

impl About {
    /// The name without the suffixes that its kind and its unit give it.
    pub fn stem(&self) -> &'static str {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        };
        let without = name.strip_suffix(self.unit).and_then(|rest| rest.strip_suffix('_'));
        without.filter(|_| !self.unit.is_empty()).unwrap_or(name)
    }
}
