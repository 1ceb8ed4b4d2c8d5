//! What follows from something else isn't written: most of a fleet's leases are renewed as they were, at the time of their worker's
//! last message. Of 200 workers with 20 limits of three tiers each this leaves half a mebibyte.

use crate::proto as pb;
use tollgate_core::ledger::cell::{Cell, Holding, Lease};
use tollgate_core::ledger::{State, Worker};
use tollgate_core::limit::{CellConfig, counted};
use tollgate_core::message::{Incarnation, LeaseTerms};
use tollgate_core::units::{Amount, LedgerTime, Share};

/// The holding was seen when its worker was.
const SEEN: u32 = 1;
/// There is a pending lease, even if nothing of it is written.
const PENDING: u32 = 1 << 1;
/// Its seq is that of the worker's last request.
const PENDING_SEQ: u32 = 1 << 2;
/// It lasts as long as a lease does that is granted when the holding is seen.
const PENDING_EXPIRES: u32 = 1 << 3;
/// Its share is that of the acknowledged lease.
const PENDING_SHARE: u32 = 1 << 4;
/// Its cap is that of the acknowledged lease.
const PENDING_CAP: u32 = 1 << 5;
/// The acknowledged lease is that of the worker's request before the last one.
const ACKED_SEQ: u32 = 1 << 6;
/// Its worker is the one after that of the holding before.
const NEXT: u32 = 1 << 7;
/// All of these: the usual.
const ALL: u32 = (1 << 8) - 1;

/// What a worker said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub seq: u64,
    pub seen: LedgerTime,
}

impl Last {
    pub(super) fn of(worker: &Worker) -> Last {
        Last { seq: worker.seq, seen: worker.seen }
    }

    pub(super) fn in_state(state: &State, incarnation: Incarnation) -> Option<Last> {
        state.workers.get(&incarnation).map(Last::of)
    }
}

fn usual_end(seen: LedgerTime, config: &CellConfig) -> LedgerTime {
    seen + (counted(config.lease) + config.policy.drain())
}

/// Leaves out of `written` what follows from the rest, from what its worker said last, and from the index that comes `next`.
pub(super) fn leave_out(
    written: &mut pb::Holding,
    holding: &Holding,
    config: &CellConfig,
    last: Option<Last>,
    next: u32,
) {
    let mut same = last.map_or(0, |last| leave_out_of_leases(written, holding, config, last));
    if written.worker == next {
        same |= NEXT;
        written.worker = 0;
    }
    written.unlike = ALL & !same;
}

/// What is left out of a brief ledger's holding, and the index of its worker.
pub(super) fn left_out(written: &pb::Holding, next: u32) -> (u32, u32) {
    let same = ALL & !written.unlike;
    (same, if same & NEXT != 0 { next } else { written.worker })
}

fn leave_out_of_leases(written: &mut pb::Holding, holding: &Holding, config: &CellConfig, last: Last) -> u32 {
    let mut same = 0;
    if holding.seen == last.seen {
        same |= SEEN;
        written.seen_in_us = 0;
    }
    if let (Some(written), Some(lease)) = (&mut written.acked, holding.acked)
        && lease.seq.checked_add(1) == Some(last.seq)
    {
        same |= ACKED_SEQ;
        written.seq = 0;
    }
    if let (Some(pending), Some(lease)) = (&mut written.pending, holding.pending) {
        same |= PENDING;
        if lease.seq == last.seq {
            same |= PENDING_SEQ;
            pending.seq = 0;
        }
        if lease.expires == usual_end(holding.seen, config) {
            same |= PENDING_EXPIRES;
            pending.expires_in_us = 0;
        }
        if holding.acked.is_some_and(|acked| acked.share == lease.share) {
            same |= PENDING_SHARE;
            pending.share_ppb = 0;
        }
        if holding.acked.is_some_and(|acked| acked.cap == lease.cap) {
            same |= PENDING_CAP;
            pending.cap_milli = 0;
        }
        if *pending == pb::Lease::default() {
            written.pending = None;
        }
    }
    same
}

/// Puts back what [`leave_out`] left out.
pub(super) fn put_back(holding: &mut Holding, same: u32, config: &CellConfig, last: Last) {
    let is_set = |bit: u32| same & bit != 0;
    if is_set(SEEN) {
        holding.seen = last.seen;
    }
    if let Some(acked) = holding.acked.as_mut().filter(|_| is_set(ACKED_SEQ)) {
        acked.seq = last.seq.saturating_sub(1);
    }
    if !is_set(PENDING) {
        return;
    }
    let nothing =
        Lease { seq: 0, share: Share::ZERO, cap: Amount::ZERO, tokens: Amount::ZERO, expires: LedgerTime(0) };
    let (seen, acked) = (holding.seen, holding.acked);
    let pending = holding.pending.get_or_insert(nothing);
    if is_set(PENDING_SEQ) {
        pending.seq = last.seq;
    }
    if is_set(PENDING_EXPIRES) {
        pending.expires = usual_end(seen, config);
    }
    if let Some(acked) = acked {
        if is_set(PENDING_SHARE) {
            pending.share = acked.share;
        }
        if is_set(PENDING_CAP) {
            pending.cap = acked.cap;
        }
    }
}

/// The answer that a pending lease usually was, when it was granted at `at`.
pub(super) fn answer(cell: &Cell, pending: Lease, at: LedgerTime) -> LeaseTerms {
    LeaseTerms {
        share: pending.share,
        cap: pending.cap,
        tokens: pending.tokens,
        duration: cell.config.lease,
        rate: cell.config.rate,
        burst: cell.config.burst_tokens(at),
        policy: cell.config.policy.terms(at),
        scarce: false,
        confirm: false,
        due: None,
        queue: cell.config.queue,
        conduct: cell.config.conduct,
    }
}
