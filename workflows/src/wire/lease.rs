//! What workers say: heartbeats with their replies, strict permits, reports and revokes.

use super::Unreadable;
use super::conduct::ConductJson;
use super::config::RateCurveJson;
use serde::{Deserialize, Serialize};
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome, Ended};
use tollgate_core::limit::{CellKey, LEASE_MAX, LEASE_MIN, check_label, check_lease, check_name};
use tollgate_core::message as core;
use tollgate_core::policy::Terms;
use tollgate_core::units::{Amount, LedgerTime, Share, Span};

/// Epochs and nonces are drawn from 53 bits, so that JSON numbers carry them everywhere.
pub const NUMBER_BITS: u32 = 53;

/// The largest seq: a process that sends a thousand requests a second for 285,000 years.
pub const SEQ_MAX: u64 = 1 << NUMBER_BITS;

/// An incarnation as 32 hexadecimal digits.
pub fn incarnation_text(incarnation: core::Incarnation) -> String {
    format!("{:032x}", incarnation.0)
}

/// Reads an incarnation.
///
/// # Errors
/// [`Unreadable`] when it isn't 32 hexadecimal digits.
pub fn incarnation_of(text: &str) -> Result<core::Incarnation, Unreadable> {
    let number = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(core::Incarnation).ok_or_else(|| {
        let start: String = text.chars().take(40).collect();
        Unreadable::of(
            "incarnation",
            format!("{start:?} ({} bytes), wanted: 32 hexadecimal digits", text.len()),
        )
    })
}

fn meter() -> String {
    CellKey::METER.to_owned()
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_rank(rank: &u32) -> bool {
    *rank == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
fn tier() -> String {
    CellKey::TIER.to_owned()
}

/// Input of update `heartbeat` and of signals `lease`, `report` and `revoke` from workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatJson {
    /// 32 hexadecimal digits, drawn at every start of a process.
    pub incarnation: String,
    /// Counts the requests of the incarnation from one.
    pub seq: u64,
    /// Random per seq.
    #[serde(default)]
    pub nonce: u64,
    /// A name for people.
    #[serde(default)]
    pub worker: String,
    /// One entry per cell.
    #[serde(default)]
    pub cells: Vec<CellReportJson>,
}

/// One cell of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellReportJson {
    /// The limit's name.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// Whether it is borrowed for another tier's work.
    #[serde(default)]
    pub borrowed: bool,
    /// That tier: the highest, when there are several.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub for_tier: Option<String>,
    /// The lease acted on, if any.
    #[serde(default)]
    pub acting: Option<ActingJson>,
    /// Tokens in the bucket.
    #[serde(default)]
    pub held_milli: u64,
    /// Tokens used since the incarnation began.
    #[serde(default)]
    pub used: u64,
    /// Tokens given back since the incarnation began.
    #[serde(default)]
    pub returned_milli: u64,
    /// Debt.
    #[serde(default)]
    pub debt_milli: u64,
    /// Conserved tokens that are in use, or used and not yet usable again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out: u64,
    /// Wanted tokens a second, in millionths.
    #[serde(default)]
    pub demand_micro: u64,
    /// Tokens that waiters want.
    #[serde(default)]
    pub waiting: u64,
    /// The largest cost.
    #[serde(default)]
    pub largest: u64,
}

/// The lease that a worker acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActingJson {
    /// The ledger's epoch.
    pub epoch: u64,
    /// The seq of the reply that brought it.
    pub seq: u64,
    /// The share still minted.
    pub share_ppb: u32,
    /// The cap still kept to.
    pub cap_milli: u64,
}

impl HeartbeatJson {
    /// The request as JSON carries it.
    pub fn of(request: &core::Request) -> HeartbeatJson {
        let cell = |report: &core::CellReport| CellReportJson {
            limit: report.key.limit.clone(),
            meter: report.key.meter.clone(),
            tier: report.key.tier.clone(),
            borrowed: report.borrowed,
            for_tier: report.for_tier.clone(),
            acting: report.acting.map(|acting| ActingJson {
                epoch: acting.name.epoch,
                seq: acting.name.seq,
                share_ppb: acting.share.ppb(),
                cap_milli: acting.cap.milli_floor(),
            }),
            held_milli: report.held.milli_floor(),
            used: report.used,
            returned_milli: report.returned.milli_floor(),
            debt_milli: report.debt.milli_floor(),
            out: report.out,
            demand_micro: report.demand,
            waiting: report.waiting,
            largest: report.largest,
        };
        HeartbeatJson {
            incarnation: incarnation_text(request.incarnation),
            seq: request.seq,
            nonce: request.nonce,
            worker: request.worker.clone(),
            cells: request.cells.iter().map(cell).collect(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Unreadable`] with the first field that is wrong.
    pub fn check(self) -> Result<core::Request, Unreadable> {
        let incarnation = incarnation_of(&self.incarnation)?;
        if self.seq == 0 || self.seq > SEQ_MAX {
            return Err(Unreadable::of("seq", format!("is {}, allowed: 1 to {SEQ_MAX}", self.seq)));
        }
        if !self.worker.is_empty() {
            check_name("worker", &self.worker)?;
        }
        if self.cells.len() > core::CELLS_PER_REQUEST_MAX {
            let problem =
                format!("{} entries, allowed: up to {}", self.cells.len(), core::CELLS_PER_REQUEST_MAX);
            return Err(Unreadable::of("cells", problem));
        }
        let mut seen = std::collections::BTreeSet::new();
        let mut cells = Vec::with_capacity(self.cells.len());
        for (index, cell) in self.cells.into_iter().enumerate() {
            let report = cell.check().map_err(|error| Unreadable::of(&format!("cells[{index}]"), error))?;
            if !seen.insert((report.key.clone(), report.borrowed)) {
                return Err(Unreadable::of(
                    &format!("cells[{index}]"),
                    format!("{} is given twice", report.key),
                ));
            }
            cells.push(report);
        }
        Ok(core::Request { incarnation, seq: self.seq, nonce: self.nonce, worker: self.worker, cells })
    }
}

impl CellReportJson {
    fn check(self) -> Result<core::CellReport, Unreadable> {
        let key = key_of(self.limit, self.meter, self.tier)?;
        if let Some(tier) = &self.for_tier {
            check_label("for", tier)?;
        }
        let acting = match self.acting {
            None => None,
            Some(acting) => Some(core::Acting {
                name: core::LeaseName { epoch: acting.epoch, seq: acting.seq },
                share: Share::from_ppb(acting.share_ppb).ok_or_else(|| {
                    Unreadable::of(
                        "acting.share_ppb",
                        format!("is {}, allowed: 0 to 1000000000", acting.share_ppb),
                    )
                })?,
                cap: Amount::from_milli(acting.cap_milli),
            }),
        };
        Ok(core::CellReport {
            key,
            borrowed: self.borrowed,
            for_tier: self.for_tier,
            acting,
            held: Amount::from_milli(self.held_milli),
            used: self.used,
            returned: Amount::from_milli(self.returned_milli),
            debt: Amount::from_milli(self.debt_milli),
            out: self.out,
            demand: self.demand_micro,
            waiting: self.waiting,
            largest: self.largest.max(1),
        })
    }
}

/// Checks a key's parts.
///
/// # Errors
/// [`Unreadable`] with the part that is wrong.
pub fn key_of(limit: String, meter: String, tier: String) -> Result<CellKey, Unreadable> {
    check_name("limit", &limit)?;
    check_label("meter", &meter)?;
    check_label("tier", &tier)?;
    Ok(CellKey { limit, meter, tier })
}

/// Result of update `heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum HeartbeatReplyJson {
    /// Leases.
    Ok(ReplyJson),
    /// None, and why.
    Refused(RefusedJson),
}

/// Input of activity `tollgate.notice` when it brings the answer to a heartbeat that came by signal `lease`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerJson {
    /// Whose.
    pub incarnation: String,
    /// The request answered.
    pub seq: u64,
    /// As update `heartbeat` gives it.
    pub reply: HeartbeatReplyJson,
}

/// Why a heartbeat got no reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedJson {
    /// `stale`, `burned`, `revoked`, `too_many_workers`, `too_many_cells`, `busy`, `unreadable`.
    pub reason: String,
    /// What to do.
    pub message: String,
    /// With `stale`: the newest seq seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<u64>,
}

/// The leases of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyJson {
    /// The ledger's epoch.
    pub epoch: u64,
    /// The request answered.
    pub seq: u64,
    /// When it was granted.
    pub at_us: u64,
    /// Come again after this.
    pub heartbeat_ms: u64,
    /// Not before this.
    pub gap_ms: u64,
    /// Until when the ledger recovers, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_until_us: Option<u64>,
    /// Whether an operator evicted the worker.
    #[serde(default)]
    pub evicted: bool,
    /// One entry per cell of the request, in its order.
    pub cells: Vec<CellReplyJson>,
    /// Fingerprint of the ledger, 16 hexadecimal digits.
    pub digest: String,
}

/// One cell of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellReplyJson {
    /// The limit's name.
    pub limit: String,
    /// Its meter.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier.
    #[serde(default = "tier")]
    pub tier: String,
    /// As in the request.
    #[serde(default)]
    pub borrowed: bool,
    /// Its tier's place among those of the limit: lower numbers are higher tiers; zero if missing.
    #[serde(default, skip_serializing_if = "is_zero_rank")]
    pub rank: u32,
    /// The tiers from which work of this one may borrow, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lenders: Vec<LenderJson>,
    /// The lease; missing when there is no such limit, meter or tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseJson>,
}

/// A tier that another one may borrow from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LenderJson {
    /// Its name.
    pub tier: String,
    /// Whether it is a higher tier, which lends what it leaves idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub above: bool,
}

/// What a lease allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseJson {
    /// The share of the rate that may be minted.
    pub share_ppb: u32,
    /// The most that the bucket may hold.
    pub cap_milli: u64,
    /// Tokens that come with it.
    pub tokens_milli: u64,
    /// How long, from before the request was sent.
    pub duration_ms: u64,
    /// The rate.
    pub rate: RateCurveJson,
    /// The burst now.
    pub burst: u64,
    /// How used tokens become usable again.
    #[serde(default, skip_serializing_if = "TermsJson::is_minted")]
    pub policy: TermsJson,
    /// Others want more of what is conserved than there is: what isn't about to be used shall come back at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scarce: bool,
    /// Only confirms what the request claimed.
    #[serde(default)]
    pub confirm: bool,
    /// When to ask again for counted tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
    /// How many may wait for it in this process; if missing, as many as the process lets wait for any limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// What an operator says of the limit beside how much it allows.
    #[serde(default, skip_serializing_if = "ConductJson::is_default")]
    pub conduct: ConductJson,
}

/// How used tokens become usable again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TermsJson {
    /// Never: new ones are minted.
    #[default]
    TokenBucket,
    /// One window after their use.
    SlidingWindow {
        /// The window.
        window_us: u64,
    },
    /// At the next boundary.
    FixedWindow {
        /// The one before the grant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_us: Option<u64>,
        /// The one after it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_us: Option<u64>,
    },
    /// When they are released.
    InFlight {},
}

impl TermsJson {
    fn is_minted(&self) -> bool {
        *self == TermsJson::TokenBucket
    }

    fn of(terms: Terms) -> TermsJson {
        match terms {
            Terms::Minted => TermsJson::TokenBucket,
            Terms::After(window) => TermsJson::SlidingWindow { window_us: window.0 },
            Terms::AtBoundary { last, next } => {
                TermsJson::FixedWindow { last_us: last.map(|at| at.0), next_us: next.map(|at| at.0) }
            }
            Terms::OnRelease => TermsJson::InFlight {},
        }
    }

    fn terms(self) -> Terms {
        match self {
            TermsJson::TokenBucket => Terms::Minted,
            TermsJson::SlidingWindow { window_us } => Terms::After(Span(window_us)),
            TermsJson::FixedWindow { last_us, next_us } => {
                Terms::AtBoundary { last: last_us.map(LedgerTime), next: next_us.map(LedgerTime) }
            }
            TermsJson::InFlight {} => Terms::OnRelease,
        }
    }
}

impl HeartbeatReplyJson {
    /// The answer as JSON carries it.
    pub fn of(answer: &Result<core::Reply, core::RequestError>) -> HeartbeatReplyJson {
        match answer {
            Ok(reply) => HeartbeatReplyJson::Ok(ReplyJson::of(reply)),
            Err(error) => HeartbeatReplyJson::Refused(RefusedJson::of(*error)),
        }
    }

    /// The answer as the client takes it.
    ///
    /// # Errors
    /// [`Unreadable`] when a field is wrong, or the reason of a refusal is not known.
    pub fn check(self) -> Result<Result<core::Reply, core::RequestError>, Unreadable> {
        match self {
            HeartbeatReplyJson::Ok(reply) => reply.check().map(Ok),
            HeartbeatReplyJson::Refused(refused) => refused.check().map(Err),
        }
    }
}

impl RefusedJson {
    /// The ledger can't answer now; the same request may come again.
    pub fn busy() -> RefusedJson {
        RefusedJson::of(core::RequestError::Busy)
    }

    /// The request can't be read.
    pub fn unreadable(error: &Unreadable) -> RefusedJson {
        RefusedJson { reason: "unreadable".to_owned(), message: error.to_string(), newest: None }
    }

    fn of(error: core::RequestError) -> RefusedJson {
        let (reason, message, newest) = match error {
            core::RequestError::Stale { newest } => {
                ("stale", "a newer request was answered; go on from `newest`", Some(newest))
            }
            core::RequestError::Burned => (
                "burned",
                "one seq came with two contents: two processes use one incarnation; draw a new one",
                None,
            ),
            core::RequestError::Revoked => {
                ("revoked", "this incarnation gave everything back; draw a new one", None)
            }
            core::RequestError::TooManyWorkers => (
                "too_many_workers",
                "the group is full; use more groups, or wait for stopped workers to be forgotten",
                None,
            ),
            core::RequestError::Busy => {
                ("busy", "the ledger recovers from a reset; send the same again", None)
            }
            core::RequestError::TooManyCells => ("too_many_cells", "report fewer cells in one request", None),
        };
        RefusedJson { reason: reason.to_owned(), message: message.to_owned(), newest }
    }

    fn check(self) -> Result<core::RequestError, Unreadable> {
        Ok(match self.reason.as_str() {
            "stale" => core::RequestError::Stale { newest: self.newest.unwrap_or(0) },
            "burned" => core::RequestError::Burned,
            "revoked" => core::RequestError::Revoked,
            "too_many_workers" => core::RequestError::TooManyWorkers,
            "too_many_cells" => core::RequestError::TooManyCells,
            "busy" => core::RequestError::Busy,
            other => {
                return Err(Unreadable::of("reason", format!("{other:?} is not known: {}", self.message)));
            }
        })
    }
}

impl ReplyJson {
    fn of(reply: &core::Reply) -> ReplyJson {
        let cell = |cell: &core::CellReply| CellReplyJson {
            limit: cell.key.limit.clone(),
            meter: cell.key.meter.clone(),
            tier: cell.key.tier.clone(),
            borrowed: cell.borrowed,
            rank: cell.rank,
            lenders: cell.lenders.iter().map(LenderJson::of).collect(),
            lease: match &cell.outcome {
                core::CellOutcome::Lease(terms) => Some(LeaseJson::of(terms)),
                core::CellOutcome::Unknown => None,
            },
        };
        ReplyJson {
            epoch: reply.epoch,
            seq: reply.seq,
            at_us: reply.at.0,
            heartbeat_ms: reply.heartbeat.millis_ceil(),
            gap_ms: reply.gap.millis_ceil(),
            recovering_until_us: reply.recovering_until.map(|until| until.0),
            evicted: reply.evicted,
            cells: reply.cells.iter().map(cell).collect(),
            digest: format!("{:016x}", reply.digest.0),
        }
    }

    fn check(self) -> Result<core::Reply, Unreadable> {
        let digest =
            u64::from_str_radix(&self.digest, 16).map_err(|error| Unreadable::of("digest", error))?;
        let mut cells = Vec::with_capacity(self.cells.len());
        for cell in self.cells {
            let outcome = match cell.lease {
                Some(lease) => core::CellOutcome::Lease(lease.check()?),
                None => core::CellOutcome::Unknown,
            };
            let key = key_of(cell.limit, cell.meter, cell.tier)?;
            let mut lenders = Vec::with_capacity(cell.lenders.len());
            for lender in cell.lenders {
                check_label("lenders", &lender.tier)?;
                lenders.push(core::Lender { tier: lender.tier, above: lender.above });
            }
            cells.push(core::CellReply { key, borrowed: cell.borrowed, outcome, rank: cell.rank, lenders });
        }
        Ok(core::Reply {
            epoch: self.epoch,
            seq: self.seq,
            at: LedgerTime(self.at_us),
            heartbeat: Span::from_millis(self.heartbeat_ms),
            gap: Span::from_millis(self.gap_ms),
            recovering_until: self.recovering_until_us.map(LedgerTime),
            evicted: self.evicted,
            cells,
            digest: tollgate_core::digest::Digest(digest),
        })
    }
}

impl LenderJson {
    fn of(lender: &core::Lender) -> LenderJson {
        LenderJson { tier: lender.tier.clone(), above: lender.above }
    }
}

impl LeaseJson {
    fn of(terms: &core::LeaseTerms) -> LeaseJson {
        LeaseJson {
            share_ppb: terms.share.ppb(),
            cap_milli: terms.cap.milli_floor(),
            tokens_milli: terms.tokens.milli_floor(),
            duration_ms: terms.duration.millis(),
            rate: RateCurveJson::of(terms.rate),
            burst: terms.burst,
            policy: TermsJson::of(terms.policy),
            scarce: terms.scarce,
            confirm: terms.confirm,
            due_ms: terms.due.map(Span::millis_ceil),
            queue: terms.queue,
            conduct: ConductJson::of(terms.conduct),
        }
    }

    fn check(self) -> Result<core::LeaseTerms, Unreadable> {
        Ok(core::LeaseTerms {
            share: Share::from_ppb(self.share_ppb).ok_or_else(|| {
                Unreadable::of("share_ppb", format!("is {}, allowed: 0 to 1000000000", self.share_ppb))
            })?,
            cap: Amount::from_milli(self.cap_milli),
            tokens: Amount::from_milli(self.tokens_milli),
            duration: Span::from_millis(self.duration_ms),
            rate: self.rate.check()?,
            burst: self.burst,
            policy: self.policy.terms(),
            scarce: self.scarce,
            confirm: self.confirm,
            due: self.due_ms.map(Span::from_millis),
            queue: self.queue,
            conduct: self.conduct.check()?,
        })
    }
}

/// Input of update `acquire` and of signal `lease`: one strict permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireJson {
    /// Names the request: the same id gets the same permit again. Signals may leave it out.
    #[serde(default)]
    pub id: String,
    /// Who asks.
    #[serde(alias = "worker", alias = "workerId", alias = "client_id", default)]
    pub client: String,
    /// From which limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// How many tokens; one if missing.
    #[serde(alias = "permits", alias = "amount", default = "one")]
    pub cost: u64,
    /// How long it may be used; 15 s if missing.
    #[serde(default = "lease_ms")]
    pub lease_ms: u64,
}

fn one() -> u64 {
    1
}
fn lease_ms() -> u64 {
    15_000
}

impl AcquireJson {
    /// Checks every field. `auto`: the ledger serves it by itself, since nobody can come back for it.
    ///
    /// # Errors
    /// [`Unreadable`] with the first field that is wrong.
    pub fn check(self, auto: bool) -> Result<Acquire, Unreadable> {
        check_name("id", &self.id)?;
        check_name("client", &self.client)?;
        if self.cost == 0 {
            return Err(Unreadable::of("cost", "is 0, allowed: 1 to the limit's burst"));
        }
        let lease = Span::from_millis(self.lease_ms);
        check_lease(lease)?;
        debug_assert!(LEASE_MIN <= lease && lease <= LEASE_MAX);
        let key = key_of(self.limit, self.meter, self.tier)?;
        Ok(Acquire { id: self.id, client: self.client, key, cost: self.cost, lease, auto })
    }
}

/// Result of update `acquire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum AcquireReplyJson {
    /// May be used for this long, counted from before the request was sent. Report its use by signal `report`.
    Granted {
        /// How long.
        lease_ms: u64,
    },
    /// A place in the queue: ask again with the same id after `due_ms`, or lose it.
    Queued {
        /// Tokens wanted by those served earlier.
        ahead: u64,
        /// When to ask again; missing when nothing is minted at present.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due_ms: Option<u64>,
    },
    /// No permit.
    Refused {
        /// `cost_above_burst`, `id_taken`, `unknown_limit`, `unknown_id`, `queue_full`, `used`, `released`, `expired`,
        /// `abandoned`, `not_granted`, `paused`.
        reason: String,
        /// What to do.
        message: String,
        /// With `cost_above_burst`: the burst now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burst: Option<u64>,
    },
}

impl AcquireReplyJson {
    /// The outcome of a request for so much of a cell, as JSON carries it.
    pub fn of(outcome: AcquireOutcome, wanted: u64, key: &CellKey) -> AcquireReplyJson {
        let refused = |reason: &str, message: String| AcquireReplyJson::Refused {
            reason: reason.to_owned(),
            message,
            burst: None,
        };
        match outcome {
            AcquireOutcome::Granted { lease } => AcquireReplyJson::Granted { lease_ms: lease.millis() },
            AcquireOutcome::Queued { ahead, due } => {
                AcquireReplyJson::Queued { ahead, due_ms: due.map(Span::millis_ceil) }
            }
            AcquireOutcome::Ended(how) => {
                let message = "this id's permit has ended; a new permit wants a new id".to_owned();
                refused(ended_text(how), message)
            }
            AcquireOutcome::CostAboveBurst { burst } => AcquireReplyJson::Refused {
                reason: "cost_above_burst".to_owned(),
                message: format!("cost is {wanted}, allowed: 1 to {burst}, the burst of limit {key}"),
                burst: Some(burst),
            },
            AcquireOutcome::IdTaken { cost } => refused(
                "id_taken",
                format!("this id was used for a cost of {cost}; another request wants another id"),
            ),
            AcquireOutcome::UnknownLimit => {
                refused("unknown_limit", format!("there is no limit {key} in this group"))
            }
            AcquireOutcome::UnknownId => {
                refused("unknown_id", "no permit with this id is remembered".to_owned())
            }
            AcquireOutcome::NotGranted => refused(
                "not_granted",
                "this id's permit still waits; nothing can have been used of it".to_owned(),
            ),
            AcquireOutcome::Paused => {
                refused("paused", format!("limit {key} is paused by an operator; come back later"))
            }
            AcquireOutcome::QueueFull => {
                refused("queue_full", "too many strict permits wait or are out; come back later".to_owned())
            }
        }
    }
}

/// How a strict permit ended, in a word.
pub fn ended_text(how: Ended) -> &'static str {
    match how {
        Ended::Used => "used",
        Ended::Released => "released",
        Ended::Expired => "expired",
        Ended::Abandoned => "abandoned",
        Ended::CostAboveBurst => "cost_above_burst",
    }
}

/// Input of signal `report` for a strict permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportJson {
    /// The permit.
    pub id: String,
    /// Its limit.
    pub limit: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
    /// Tokens used of it; what is left goes back. Zero gives up the place of one that still waits.
    pub used: u64,
}
