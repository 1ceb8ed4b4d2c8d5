//! The ledger: accounts for all limits of one group.
//!
//! A [`Ledger`] is driven by [`Ledger::apply`] with the workflow's time and one [`Input`]. It never looks at a clock, so
//! between two inputs nothing happens; what should have happened (leases that ended, tokens that were minted) is made up
//! for at the next one, piece by piece. The two sums that everything rests on are kept by each [`cell::Cell`].

pub mod alloc_share;
pub mod cell;
pub mod conserved;
pub mod escrow;
pub mod explain;
pub mod holders;
pub mod outlook;
pub mod strict;
pub mod view;

use crate::digest::Digest;
use crate::limit::{CellConfig, CellKey, LEASE_MAX, OutOfRange, Version, counted};
use crate::message::{
    CELLS_PER_REQUEST_MAX, CellOutcome, CellReply, CellReport, Incarnation, Lender, Reply, Request,
    RequestError,
};
use crate::rules::{Rule, Rules};
use crate::tier::{Class, TIERS_MAX};
use crate::units::{Amount, LedgerTime, Span};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use cell::{Cell, Holder, Turn};
use escrow::Escrow;
use strict::{Acquire, AcquireOutcome, GrantRecord, Settle};

/// The most limits' cells in one group, removed ones that are still remembered included.
pub const CELLS_MAX: usize = 1_000;
/// The most workers in one group, tombstones included. A larger fleet wants more groups.
pub const WORKERS_MAX: usize = 2_000;
/// The most (worker, cell) pairs in one group: at about 75 bytes each, the state stays below 1 MiB.
pub const HOLDINGS_MAX: usize = 13_000;
/// How many ended strict grants the `grants` query can show.
pub const GRANT_RECORDS_MAX: usize = 256;
/// How often entries that have ended are swept, at the earliest: the sweep costs a walk over all holders.
const SWEEP_EVERY: Span = Span::from_secs(1);
/// How far in the future the run of a configuration's version may begin: wall clocks disagree.
const VERSION_AHEAD_MAX: Span = Span::from_secs(24 * 3_600);
/// How long an eviction is remembered after its worker was last heard: a worker that was cut off for longer than this
/// is taken for a new one.
const EVICTION_KEPT: Span = Span::from_secs(3_600);
/// The heartbeat is never shorter than this.
const HEARTBEAT_MIN: Span = Span::from_secs(1);
/// The heartbeat is never longer than this.
const HEARTBEAT_MAX: Span = Span::from_secs(30);
/// Early requests are never closer than this, however small the fleet.
const GAP_MIN: Span = Span::from_millis(200);

/// What a group keeps to, beside its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The fleet's messages a second that the coordinator aims at, in thousandths. Sets heartbeat and gap.
    pub target_rate_milli: u64,
}

impl Default for Settings {
    /// Ten messages a second: what a workflow on a production database carries without strain.
    fn default() -> Settings {
        Settings { target_rate_milli: 10_000 }
    }
}

/// How a ledger begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Temporal proved that nothing ran under this name before: buckets start full.
    First,
    /// Anything else: what an earlier ledger granted may still be out.
    WithoutMemory,
}

/// One worker process, or what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its name for people.
    pub name: String,
    /// The newest request answered.
    pub seq: u64,
    /// Fingerprint of that request's content.
    pub content: u64,
    /// The header of that reply; its leases are the pending ones of the worker's holdings.
    pub reply: Option<StoredReply>,
    /// What may still be said to it.
    pub standing: Standing,
    /// When it was last heard.
    pub seen: LedgerTime,
}

/// The part of a reply that holdings don't keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReply {
    /// As sent.
    pub at: LedgerTime,
    /// As sent.
    pub heartbeat: Span,
    /// As sent.
    pub gap: Span,
    /// As sent.
    pub recovering_until: Option<LedgerTime>,
    /// As sent.
    pub evicted: bool,
    /// As sent.
    pub digest: Digest,
    /// The cells in their order, with whether each got a lease.
    pub cells: Vec<StoredCell>,
}

/// One cell of a stored reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCell {
    /// As sent.
    pub key: CellKey,
    /// As sent.
    pub borrowed: bool,
    /// As sent.
    pub outcome: CellOutcome,
}

/// What a worker may still be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In good standing.
    Live,
    /// An operator's target of zero.
    Evicted,
    /// It stopped and gave everything back.
    Revoked,
    /// Two processes claimed to be it.
    Burned,
}

/// The whole state. Public, so that it can be carried through continue-as-new and looked at; only [`Ledger`] changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Names this ledger's leases.
    pub epoch: u64,
    /// The latest time seen.
    pub now: LedgerTime,
    /// Until when nothing new is granted.
    pub recovering_until: Option<LedgerTime>,
    /// The version of the configuration in force.
    pub version: Version,
    /// What the group keeps to.
    pub settings: Settings,
    /// All cells, removed ones that are still remembered included.
    pub cells: BTreeMap<CellKey, Cell>,
    /// All workers and tombstones.
    pub workers: BTreeMap<Incarnation, Worker>,
    /// Strict grants that have ended, oldest first.
    pub records: Vec<GrantRecord>,
    /// When entries that have ended are swept next.
    pub sweep_at: LedgerTime,
    /// Configurations that were ignored since they were older, and the newest such version.
    pub ignored_configs: u64,
    /// The last ignored version.
    pub ignored_version: Option<Version>,
    /// Fingerprint of everything done up to here.
    pub digest: Digest,
}

/// What drives a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The full configuration of a version. Cells that it doesn't list are removed.
    Configure(Configure),
    /// A worker reports, acknowledges and asks.
    Heartbeat(Request),
    /// A worker's usage, for the record. Never settles a lease.
    Report(Request),
    /// A strict permit is wanted.
    Acquire(Acquire),
    /// A strict permit was used, or wasn't needed.
    Settle(Settle),
    /// A worker has stopped for good. The cells' counters are its last ones.
    Revoke(Request),
    /// An operator wants a worker to get nothing more.
    Evict(Incarnation),
    /// Memory can't be trusted any more (a reset was detected): recover under a new epoch.
    Forget {
        /// The new epoch.
        epoch: u64,
    },
    /// A keeper has answered what [`Ledger::escrow_asks`] had it told.
    Escrowed {
        /// Which cell's.
        key: CellKey,
        /// What it keeps in mind.
        escrow: Escrow,
    },
    /// Time has passed; serves who waits.
    Tick,
}

/// A full configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configure {
    /// Its version: ignored unless newer than the one in force.
    pub version: Version,
    /// What the group keeps to.
    pub settings: Settings,
    /// Every cell.
    pub cells: Vec<CellConfig>,
}

/// What follows from an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The configuration is in force.
    Configured,
    /// The configuration is not newer than the one in force and was ignored.
    Ignored,
    /// The configuration was refused as a whole.
    Refused(ConfigError),
    /// The answer to a heartbeat.
    Reply(Result<Reply, RequestError>),
    /// The answer to an acquire or a settle.
    Acquired(AcquireOutcome),
    /// Nothing to say.
    Done,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A value is out of its range.
    Cell(Box<(CellKey, OutOfRange)>),
    /// Two entries for one cell.
    Twice(CellKey),
    /// More tiers of one meter of a limit than [`TIERS_MAX`].
    TooManyTiers(CellKey),
    /// More cells than [`CELLS_MAX`], removed ones that are still remembered included.
    TooMany(usize),
    /// A version whose run begins more than a day from now: nothing could ever be newer.
    FromTheFuture(Version),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::Cell(cell) => write!(f, "limit {}: {}", cell.0, cell.1),
            ConfigError::Twice(key) => write!(f, "limit {key}: given twice"),
            ConfigError::TooManyTiers(key) => {
                write!(f, "limit {key}: is one tier too many, allowed: up to {TIERS_MAX}")
            }
            ConfigError::FromTheFuture(version) => {
                write!(
                    f,
                    "version is {version}, allowed: a run that begins at most a day from now, in microseconds"
                )
            }
            ConfigError::TooMany(count) => {
                write!(
                    f,
                    "limits: {count} cells, allowed: up to {CELLS_MAX}, removed ones still remembered included"
                )
            }
        }
    }
}

impl core::error::Error for ConfigError {}

/// The state machine. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Ledger {
    state: State,
    rules: Rules,
    /// For cells of limits with several tiers: their ranks and lenders. Follows from the configuration.
    tiers: BTreeMap<CellKey, (u32, Vec<Lender>)>,
}

impl Ledger {
    /// A ledger without limits. `epoch` is random, and drawn anew for every ledger.
    pub fn new(start: Start, epoch: u64, now: LedgerTime) -> Ledger {
        Ledger::with_rules(start, epoch, now, Rules::ALL)
    }

    /// A ledger for the simulator, which may have a rule switched off.
    pub fn with_rules(start: Start, epoch: u64, now: LedgerTime, rules: Rules) -> Ledger {
        let mut ledger = Ledger {
            state: State {
                epoch,
                now,
                recovering_until: None,
                version: Version::default(),
                settings: Settings::default(),
                cells: BTreeMap::new(),
                workers: BTreeMap::new(),
                records: Vec::new(),
                sweep_at: now,
                ignored_configs: 0,
                ignored_version: None,
                digest: Digest::default(),
            },
            rules,
            tiers: BTreeMap::new(),
        };
        if start == Start::WithoutMemory && rules.keeps(Rule::RecoverWithoutMemory) {
            ledger.state.recovering_until = Some(now + counted(LEASE_MAX));
        }
        ledger
    }

    /// Takes up a state that went through continue-as-new.
    pub fn resume(state: State) -> Ledger {
        let mut ledger = Ledger { state, rules: Rules::ALL, tiers: BTreeMap::new() };
        ledger.note_tiers();
        ledger
    }

    /// The state, to look at or to carry on.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How often a worker is heard at the fleet's present size.
    pub fn heartbeat(&self) -> Span {
        self.pace().0
    }

    /// Does what `input` asks, at `now`. A `now` before an earlier one counts as that one.
    pub fn apply(&mut self, now: LedgerTime, input: Input) -> Output {
        let now = self.state.now.max(now);
        self.state.now = now;
        if self.state.recovering_until.is_some_and(|until| until <= now) {
            self.state.recovering_until = None;
        }
        self.sweep(now);
        let output = match input {
            Input::Configure(configure) => self.configure(now, configure),
            Input::Heartbeat(request) => Output::Reply(self.answer_once(now, request)),
            Input::Report(request) => {
                self.report(now, &request);
                Output::Done
            }
            Input::Acquire(acquire) => Output::Acquired(self.acquire(now, acquire)),
            Input::Settle(settle) => Output::Acquired(self.settle(now, settle)),
            Input::Revoke(request) => {
                self.revoke(now, &request);
                Output::Done
            }
            Input::Evict(incarnation) => {
                self.evict(incarnation);
                Output::Done
            }
            Input::Forget { epoch } => {
                self.forget(now, epoch);
                Output::Done
            }
            Input::Escrowed { key, escrow } => {
                if let Some(cell) = self.state.cells.get_mut(&key) {
                    cell.advance(now, self.rules);
                    cell.escrowed(escrow);
                }
                Output::Done
            }
            Input::Tick => {
                for cell in self.state.cells.values_mut() {
                    cell.advance(now, self.rules);
                }
                Output::Done
            }
        };
        self.serve(now);
        output
    }

    /// When a strict permit may come due that waits for the ledger alone, or one ends by itself: drive [`Input::Tick`] then,
    /// not earlier. `None` while there are none: an idle ledger needs no timer.
    pub fn next_due(&self) -> Option<LedgerTime> {
        self.state.cells.values().filter_map(|cell| cell.next_due(self.state.now)).min()
    }

    fn answer_once(&mut self, now: LedgerTime, request: Request) -> Result<Reply, RequestError> {
        if request.cells.len() > CELLS_PER_REQUEST_MAX {
            return Err(RequestError::TooManyCells);
        }
        let content = content_of(&request);
        let known = self.state.workers.get_mut(&request.incarnation);
        if let Some(worker) = known {
            match worker.standing {
                Standing::Revoked => return Err(RequestError::Revoked),
                Standing::Burned => return Err(RequestError::Burned),
                Standing::Live | Standing::Evicted => {}
            }
            if request.seq < worker.seq {
                return Err(RequestError::Stale { newest: worker.seq });
            }
            if request.seq == worker.seq {
                if content != worker.content && self.rules.keeps(Rule::OneSeqOneContent) {
                    worker.standing = Standing::Burned;
                    worker.seen = now;
                    return Err(RequestError::Burned);
                }
                if let Some(stored) = &worker.reply {
                    let mut reply = stored.reply(self.state.epoch, request.seq);
                    for cell in &mut reply.cells {
                        (cell.rank, cell.lenders) = self.tier_of(&cell.key, cell.borrowed);
                    }
                    return Ok(reply);
                }
            }
        } else {
            let holdings: usize = self.state.cells.values().map(|cell| cell.holders.len()).sum();
            if self.state.workers.len() >= WORKERS_MAX || holdings + request.cells.len() > HOLDINGS_MAX {
                return Err(RequestError::TooManyWorkers);
            }
        }
        let reply = self.answer(now, &request, content);
        Ok(reply)
    }

    fn answer(&mut self, now: LedgerTime, request: &Request, content: u64) -> Reply {
        let worker = self.state.workers.entry(request.incarnation).or_insert_with(|| Worker {
            name: request.worker.clone(),
            seq: 0,
            content: 0,
            reply: None,
            standing: Standing::Live,
            seen: now,
        });
        worker.seen = now;
        let evicted = worker.standing == Standing::Evicted;
        let (heartbeat, gap) = self.pace();
        let turn = Turn {
            now,
            epoch: self.state.epoch,
            seq: request.seq,
            heartbeat,
            gap,
            recovering: self.state.recovering_until.is_some(),
            evicted,
            rules: self.rules,
        };
        let mut cells = Vec::with_capacity(request.cells.len());
        let mut seen = alloc::collections::BTreeSet::new();
        for report in &request.cells {
            let holder = Holder { incarnation: request.incarnation, borrowed: report.borrowed };
            // One cell named twice would be granted twice and counted once.
            let once = seen.insert((&report.key, report.borrowed));
            let class = self.class_of(report, now);
            let outcome = match self.state.cells.get_mut(&report.key).filter(|_| once) {
                Some(cell) => {
                    cell.advance(now, self.rules);
                    let outcome = cell.heartbeat(holder, class, report, &turn);
                    cell.fingerprint(&mut self.state.digest);
                    outcome
                }
                None => CellOutcome::Unknown,
            };
            digest_outcome(&mut self.state.digest, &outcome);
            let (rank, lenders) = self.tier_of(&report.key, report.borrowed);
            cells.push(CellReply {
                key: report.key.clone(),
                borrowed: report.borrowed,
                outcome,
                rank,
                lenders,
            });
        }
        let reply = Reply {
            epoch: self.state.epoch,
            seq: request.seq,
            at: now,
            heartbeat,
            gap,
            recovering_until: self.state.recovering_until,
            evicted,
            cells,
            digest: self.state.digest,
        };
        if let Some(worker) = self.state.workers.get_mut(&request.incarnation) {
            worker.seq = request.seq;
            worker.content = content;
            worker.reply = Some(StoredReply::of(&reply));
        }
        reply
    }

    /// Heartbeat and gap for the fleet's size: the coordinator sets the pace, so that messages stay within its target.
    fn pace(&self) -> (Span, Span) {
        let live =
            self.state.workers.values().filter(|worker| worker.standing == Standing::Live).count() as u64;
        let target = self.state.settings.target_rate_milli.max(1);
        let each = Span(live.saturating_mul(1_000_000_000) / target);
        let heartbeat = Span(each.0.clamp(HEARTBEAT_MIN.0, HEARTBEAT_MAX.0));
        (heartbeat, Span((each.0 / 2).clamp(GAP_MIN.0, HEARTBEAT_MAX.0)))
    }

    fn report(&mut self, now: LedgerTime, request: &Request) {
        let Some(worker) = self.state.workers.get_mut(&request.incarnation) else { return };
        if worker.standing != Standing::Live || request.seq < worker.seq {
            return;
        }
        worker.seen = now;
        for report in request.cells.iter().take(CELLS_PER_REQUEST_MAX) {
            let holder = Holder { incarnation: request.incarnation, borrowed: report.borrowed };
            if let Some(cell) = self.state.cells.get_mut(&report.key) {
                cell.advance(now, self.rules);
                cell.report(holder, report, self.state.epoch, self.rules);
            }
        }
    }

    fn revoke(&mut self, now: LedgerTime, request: &Request) {
        // One of two processes under one name speaks for itself only: what the other one holds runs out by itself.
        let known = self.state.workers.get(&request.incarnation);
        if known.is_some_and(|worker| worker.standing == Standing::Burned) {
            return;
        }
        // A last word has the newest seq; one that is older is not from a process that has stopped.
        if self.state.workers.get(&request.incarnation).is_some_and(|worker| request.seq < worker.seq) {
            return;
        }
        for report in request.cells.iter().take(CELLS_PER_REQUEST_MAX) {
            let holder = Holder { incarnation: request.incarnation, borrowed: report.borrowed };
            if let Some(cell) = self.state.cells.get_mut(&report.key) {
                cell.advance(now, self.rules);
                let recovering = self.state.recovering_until.is_some();
                cell.release(holder, Some(report), self.state.epoch, recovering, self.rules);
            }
        }
        for cell in self.state.cells.values_mut() {
            for borrowed in [false, true] {
                let holder = Holder { incarnation: request.incarnation, borrowed };
                if cell.holders.contains_key(&holder) {
                    cell.advance(now, self.rules);
                    cell.release(holder, None, self.state.epoch, false, self.rules);
                }
            }
        }
        if !self.rules.keeps(Rule::RevokedStaysRevoked) {
            self.state.workers.remove(&request.incarnation);
            return;
        }
        let room = self.state.workers.len() < WORKERS_MAX;
        if let Some(worker) = self.state.workers.get_mut(&request.incarnation) {
            worker.standing = Standing::Revoked;
            worker.reply = None;
            worker.seen = now;
        } else if room {
            let tombstone = Worker {
                name: request.worker.clone(),
                seq: request.seq,
                content: 0,
                reply: None,
                standing: Standing::Revoked,
                seen: now,
            };
            self.state.workers.insert(request.incarnation, tombstone);
        }
    }

    fn evict(&mut self, incarnation: Incarnation) {
        if let Some(worker) = self.state.workers.get_mut(&incarnation)
            && worker.standing == Standing::Live
        {
            worker.standing = Standing::Evicted;
        }
        if !self.rules.keeps(Rule::EvictionWaits) {
            for cell in self.state.cells.values_mut() {
                cell.holders.retain(|holder, _| holder.incarnation != incarnation);
            }
        }
    }

    fn forget(&mut self, now: LedgerTime, epoch: u64) {
        if !self.rules.keeps(Rule::EpochInName) {
            // The hole: with nothing but a seq in their names, leases from before a reset look like those that this ledger
            // remembers, and it goes on with them.
            return;
        }
        let until = now + counted(LEASE_MAX);
        self.state.epoch = epoch;
        self.state.workers.clear();
        self.state.recovering_until = Some(until);
        for cell in self.state.cells.values_mut() {
            cell.forget(now, until);
        }
    }

    fn configure(&mut self, now: LedgerTime, configure: Configure) -> Output {
        let newer = if self.rules.keeps(Rule::VersionsNeverRestart) {
            configure.version > self.state.version
        } else {
            configure.version.n > self.state.version.n
        };
        if !newer {
            self.state.ignored_configs = self.state.ignored_configs.saturating_add(1);
            self.state.ignored_version = Some(configure.version);
            return Output::Ignored;
        }
        if configure.version.run > (now + VERSION_AHEAD_MAX).0 {
            return Output::Refused(ConfigError::FromTheFuture(configure.version));
        }
        if let Err(error) = self.check(&configure) {
            return Output::Refused(error);
        }
        let listed: BTreeMap<CellKey, CellConfig> =
            configure.cells.into_iter().map(|config| (config.key.clone(), config)).collect();
        for (key, cell) in &mut self.state.cells {
            cell.advance(now, self.rules);
            if !listed.contains_key(key) {
                cell.removed = true;
            }
        }
        if !self.rules.keeps(Rule::RemovedIsRemembered) {
            self.state.cells.retain(|_, cell| !cell.removed);
        }
        let mut new = Vec::new();
        for (key, config) in listed {
            if let Some(cell) = self.state.cells.get_mut(&key) {
                cell.reconfigure(now, config);
            } else {
                let recovering = self.state.recovering_until;
                let mut cell = Cell::new(now, config, recovering, self.rules);
                if let Some(until) = self.state.in_use_until(&key, now) {
                    cell.begin_beside(until);
                }
                new.push((key, cell));
            }
        }
        self.state.cells.extend(new);
        self.state.version = configure.version;
        self.state.settings = configure.settings;
        self.note_tiers();
        Output::Configured
    }

    fn check(&self, configure: &Configure) -> Result<(), ConfigError> {
        let mut keys = alloc::collections::BTreeSet::new();
        for config in &configure.cells {
            config.check().map_err(|problem| ConfigError::Cell(Box::new((config.key.clone(), problem))))?;
            if !keys.insert(&config.key) {
                return Err(ConfigError::Twice(config.key.clone()));
            }
        }
        let mut tiers: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for config in &configure.cells {
            let count = tiers.entry((&config.key.limit, &config.key.meter)).or_default();
            *count += 1;
            if *count > TIERS_MAX {
                return Err(ConfigError::TooManyTiers(config.key.clone()));
            }
        }
        let remembered = self.state.cells.keys().filter(|key| !keys.contains(key)).count();
        let count = keys.len() + remembered;
        if count > CELLS_MAX { Err(ConfigError::TooMany(count)) } else { Ok(()) }
    }

    /// Drops what has ended: holdings and workers that can act on nothing any more, removed limits that are as good as
    /// new, strict grants past their time.
    fn sweep(&mut self, now: LedgerTime) {
        if now < self.state.sweep_at {
            return;
        }
        self.state.sweep_at = now + SWEEP_EVERY;
        let heartbeat = self.heartbeat();
        let workers = &mut self.state.workers;
        workers.retain(|_, worker| {
            let evicted = worker.standing == Standing::Evicted;
            now < worker.seen + if evicted { EVICTION_KEPT } else { counted(LEASE_MAX) }
        });
        for cell in self.state.cells.values_mut() {
            cell.advance(now, self.rules);
            cell.sweep(now, |holder| workers.contains_key(&holder.incarnation));
            cell.watch(now, heartbeat);
        }
        self.state.cells.retain(|_, cell| !(cell.removed && cell.is_as_new()));
    }

    /// Whose work a report is for: its own tier's unless it says that it borrows.
    fn class_of(&self, report: &CellReport, now: LedgerTime) -> Class {
        let Some(lender) = self.state.cells.get(&report.key).filter(|_| report.borrowed) else {
            return Class::Own;
        };
        let Some(tier) = &report.for_tier else { return Class::Borrowed(u32::MAX) };
        let user = self.state.cells.get(&CellKey { tier: tier.clone(), ..report.key.clone() });
        // Its own cell comes first, as long as that has more to give.
        let dry = user.filter(|user| !user.removed && alloc_share::is_dry(user, now));
        dry.map_or(Class::Barred, |user| lender.config.priority.class_for(user.config.priority.rank))
    }

    fn tier_of(&self, key: &CellKey, borrowed: bool) -> (u32, Vec<Lender>) {
        if borrowed { Default::default() } else { self.tiers.get(key).cloned().unwrap_or_default() }
    }

    /// Notes for each tier which others it may borrow from: the next lower one first, then higher ones that lend, the
    /// nearest first.
    fn note_tiers(&mut self) {
        self.tiers.clear();
        let mut tiers: BTreeMap<(&str, &str), Vec<&CellConfig>> = BTreeMap::new();
        for cell in self.state.cells.values().filter(|cell| !cell.removed) {
            let key = &cell.config.key;
            tiers.entry((&key.limit, &key.meter)).or_default().push(&cell.config);
        }
        for tiers in tiers.into_values().filter(|tiers| tiers.len() > 1) {
            for user in &tiers {
                let rank = user.priority.rank;
                let mut lenders: Vec<(Class, u32, &CellConfig)> = Vec::new();
                for lender in &tiers {
                    let (class, other) = (lender.priority.class_for(rank), lender.priority.rank);
                    if class != Class::Barred {
                        lenders.push((class, other.abs_diff(rank), lender));
                    }
                }
                lenders.sort_by_key(|(class, distance, _)| (*class, *distance));
                let lender = |(class, _, lender): (Class, u32, &CellConfig)| Lender {
                    tier: lender.key.tier.clone(),
                    above: matches!(class, Class::Lent(_)),
                };
                self.tiers.insert(user.key.clone(), (rank, lenders.into_iter().map(lender).collect()));
            }
        }
    }

    fn serve(&mut self, now: LedgerTime) {
        for cell in self.state.cells.values_mut() {
            // Granting at a time that the cell has not come to yet would count from then on only.
            if !cell.strict.is_empty() {
                cell.advance(now, self.rules);
            }
            cell.serve(now, &mut self.state.records, self.rules);
            cell.plan_escrow(now);
        }
        let over = self.state.records.len().saturating_sub(GRANT_RECORDS_MAX);
        self.state.records.drain(..over);
    }

    fn acquire(&mut self, now: LedgerTime, acquire: Acquire) -> AcquireOutcome {
        let Some(cell) = self.state.cells.get_mut(&acquire.key) else { return AcquireOutcome::UnknownLimit };
        if cell.removed {
            return AcquireOutcome::UnknownLimit;
        }
        cell.advance(now, self.rules);
        let outcome = cell.acquire(now, acquire, self.rules);
        cell.fingerprint(&mut self.state.digest);
        outcome
    }

    fn settle(&mut self, now: LedgerTime, settle: Settle) -> AcquireOutcome {
        let Some(cell) = self.state.cells.get_mut(&settle.key) else { return AcquireOutcome::UnknownLimit };
        cell.advance(now, self.rules);
        let outcome = cell.settle(now, &settle, &mut self.state.records);
        cell.fingerprint(&mut self.state.digest);
        outcome
    }
}

impl State {
    /// Whether other tiers of the same meter are known, and until when something of those may be in use that were removed.
    fn in_use_until(&self, key: &CellKey, now: LedgerTime) -> Option<LedgerTime> {
        let beside = |(other, _): &(&CellKey, &Cell)| other.limit == key.limit && other.meter == key.meter;
        let ends = |cell: &Cell| {
            let leases = cell.holders.values().flat_map(|holding| [holding.acked, holding.pending]).flatten();
            let strict = cell.strict.values().filter_map(strict::Strict::expires);
            leases.map(|lease| lease.expires).chain(strict).max().filter(|_| cell.removed)
        };
        self.cells.iter().filter(beside).map(|(_, cell)| ends(cell).unwrap_or(now)).max()
    }
}

impl StoredReply {
    fn of(reply: &Reply) -> StoredReply {
        let cell = |cell: &CellReply| StoredCell {
            key: cell.key.clone(),
            borrowed: cell.borrowed,
            outcome: cell.outcome.clone(),
        };
        StoredReply {
            at: reply.at,
            heartbeat: reply.heartbeat,
            gap: reply.gap,
            recovering_until: reply.recovering_until,
            evicted: reply.evicted,
            digest: reply.digest,
            cells: reply.cells.iter().map(cell).collect(),
        }
    }

    /// The reply to request `seq`, in a ledger of this epoch. Whom cells may borrow from isn't stored.
    pub fn reply(&self, epoch: u64, seq: u64) -> Reply {
        let cell = |cell: &StoredCell| CellReply {
            key: cell.key.clone(),
            borrowed: cell.borrowed,
            outcome: cell.outcome.clone(),
            rank: 0,
            lenders: Vec::new(),
        };
        Reply {
            epoch,
            seq,
            at: self.at,
            heartbeat: self.heartbeat,
            gap: self.gap,
            recovering_until: self.recovering_until,
            evicted: self.evicted,
            cells: self.cells.iter().map(cell).collect(),
            digest: self.digest,
        }
    }
}

/// Fingerprint of all that a request says.
fn content_of(request: &Request) -> u64 {
    let mut digest = Digest::default();
    digest.number(request.nonce);
    digest.text(&request.worker);
    for report in &request.cells {
        digest_key(&mut digest, &report.key);
        digest.number(u64::from(report.borrowed));
        if let Some(tier) = &report.for_tier {
            digest.text(tier);
        }
        if let Some(acting) = report.acting {
            digest.number(acting.name.epoch);
            digest.number(acting.name.seq);
            digest.number(u64::from(acting.share.ppb()));
            digest.wide(acting.cap.0);
        }
        digest.wide(report.held.0);
        digest.number(report.used);
        digest.wide(report.returned.0);
        digest.wide(report.debt.0);
        digest.number(report.out);
        digest.number(report.demand);
        digest.number(report.waiting);
        digest.number(report.largest);
    }
    digest.0
}

fn digest_key(digest: &mut Digest, key: &CellKey) {
    digest.text(&key.limit);
    digest.text(&key.meter);
    digest.text(&key.tier);
}

fn digest_outcome(digest: &mut Digest, outcome: &CellOutcome) {
    match outcome {
        CellOutcome::Lease(terms) => {
            digest.number(u64::from(terms.share.ppb()));
            digest.wide(terms.cap.0);
            digest.wide(terms.tokens.0);
            digest.number(terms.duration.0);
            digest.number(u64::from(terms.confirm));
        }
        CellOutcome::Unknown => digest.number(u64::MAX),
    }
}

/// A sum of amounts that never leaves its range.
pub(crate) fn total(amounts: impl Iterator<Item = Amount>) -> Amount {
    amounts.fold(Amount::ZERO, |sum, amount| sum + amount)
}
