//! The messages between a worker's lease and the ledger, as plain values. Their JSON is in `tollgate-workflows`.

use crate::curve::RateCurve;
use crate::digest::Digest;
use crate::limit::{CellKey, Conduct};
use crate::policy::Terms;
use crate::units::{Amount, LedgerTime, Share, Span};
use alloc::string::String;
use alloc::vec::Vec;

/// The most cells that one request may report: bounds the work of one message.
pub const CELLS_PER_REQUEST_MAX: usize = 1_000;

/// One start of one process: 128 random bits that never return, drawn anew after a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u128);

/// The name of a lease: the ledger's epoch and the seq of the reply that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName {
    /// Drawn at a ledger's start without memory and at a detected reset; unchanged by continue-as-new.
    pub epoch: u64,
    /// The request that the lease answered.
    pub seq: u64,
}

/// What a worker says it acts on: at most what the named lease gave, less what it gave up by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// Which lease.
    pub name: LeaseName,
    /// The share that it still mints.
    pub share: Share,
    /// The cap that it still keeps to.
    pub cap: Amount,
}

/// One process reports, acknowledges and asks, for all of its cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub incarnation: Incarnation,
    /// Counts the requests of the incarnation from one. The same seq means the same bytes.
    pub seq: u64,
    /// Random per seq, so that two copies of one process can't send the same bytes.
    pub nonce: u64,
    /// A name for people: host and process.
    pub worker: String,
    /// One entry per cell that the process uses.
    pub cells: Vec<CellReport>,
}

/// What a request says of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellReport {
    /// Which cell.
    pub key: CellKey,
    /// Whether the lease is borrowed for a higher tier.
    pub borrowed: bool,
    /// The tier whose work it is borrowed for: the highest of them, when there are several.
    pub for_tier: Option<String>,
    /// The lease acted on; `None` when there is none or it has ended.
    pub acting: Option<Acting>,
    /// Tokens in the bucket at sending. For allocation only: safety doesn't rest on it.
    pub held: Amount,
    /// Tokens used since the incarnation began.
    pub used: u64,
    /// Tokens given back since the incarnation began.
    pub returned: Amount,
    /// Debt at sending, zero or more.
    pub debt: Amount,
    /// Conserved tokens that are out: in use, or used and not yet usable again.
    pub out: u64,
    /// Wanted tokens a second, in millionths.
    pub demand: u64,
    /// Tokens that waiters want at sending.
    pub waiting: u64,
    /// The largest single cost among the waiters, or seen lately; at least one.
    pub largest: u64,
}

/// The ledger's answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The epoch, for the names of the leases in here.
    pub epoch: u64,
    /// The request that is answered.
    pub seq: u64,
    /// When the ledger granted.
    pub at: LedgerTime,
    /// Come again after this, if nothing hurries.
    pub heartbeat: Span,
    /// Don't come again earlier than this, whatever hurries.
    pub gap: Span,
    /// Until when the ledger recovers, if it does.
    pub recovering_until: Option<LedgerTime>,
    /// Whether an operator evicted this worker: it gets nothing more.
    pub evicted: bool,
    /// One entry per reported cell, in the same order.
    pub cells: Vec<CellReply>,
    /// Fingerprint of all that the ledger did up to here.
    pub digest: Digest,
}

/// The answer for one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// Which cell.
    pub key: CellKey,
    /// As reported.
    pub borrowed: bool,
    /// The lease, or why there is none.
    pub outcome: CellOutcome,
    /// Its tier's place among those of the limit: lower numbers are higher tiers. Zero where it doesn't matter.
    pub rank: u32,
    /// The tiers of the same limit from which work of this one may borrow, in the order in which it should.
    pub lenders: Vec<Lender>,
}

/// A tier that another one may borrow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lender {
    /// Its name.
    pub tier: String,
    /// Whether it is a higher tier, which lends what it leaves idle.
    pub above: bool,
}

/// What a reply gives for one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellOutcome {
    /// A lease that replaces the one before.
    Lease(LeaseTerms),
    /// No such limit, meter or tier: any lease of it ends.
    Unknown,
}

/// What a lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The share of the rate that may be minted.
    pub share: Share,
    /// The most that the bucket may hold.
    pub cap: Amount,
    /// Tokens that come with this reply.
    pub tokens: Amount,
    /// How long, counted by the worker from before it sent the request.
    pub duration: Span,
    /// The rate that the share is a share of.
    pub rate: RateCurve,
    /// The burst now, in whole tokens: a larger cost is impossible.
    pub burst: u64,
    /// How used tokens become usable again.
    pub policy: Terms,
    /// Others want more conserved tokens than there are: what nobody here is about to use shall come back at once.
    pub scarce: bool,
    /// Only confirms what the request claimed; void when the lease before it has ended.
    pub confirm: bool,
    /// When to ask again for counted tokens, from the ledger's answer on; `None` when nothing is waited for, or when
    /// no amount of waiting helps.
    pub due: Option<Span>,
    /// How many may wait for it in this process; `None`: as many as the process lets wait for any limit.
    pub queue: Option<u64>,
    /// What an operator says of the limit beside how much it allows.
    pub conduct: Conduct,
}

/// Why a request got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A newer request of the same incarnation has been answered.
    Stale {
        /// The newest seq seen.
        newest: u64,
    },
    /// One seq came with two contents: two processes claim to be the same one. Draw a new incarnation.
    Burned,
    /// The incarnation was revoked. Draw a new one.
    Revoked,
    /// The group has as many workers as it may.
    TooManyWorkers,
    /// More cells than [`CELLS_PER_REQUEST_MAX`].
    TooManyCells,
    /// The ledger can't answer now: the same bytes may come again.
    Busy,
}
