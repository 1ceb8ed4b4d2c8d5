//! What a ledger shows: figures for queries, tables and metrics, all read from the one state.

use super::Ledger;
use super::alloc_share::{Kind, KindReason, kind_reason, waiting};
use super::cell::{Cell, Holder, Holding};
use super::explain::{Waiter, is_silent};
use crate::limit::{CellKey, Conduct};
use crate::message::Incarnation;
use crate::policy::Policy;
use crate::units::{Amount, LedgerTime, Share, Span};
use alloc::string::String;
use alloc::vec::Vec;

/// A keeper that hasn't answered for so long is told of.
const KEEPER_SILENT: Span = Span::from_secs(5);

/// One cell, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellView {
    /// Which cell.
    pub key: CellKey,
    /// The rate now, in millionths of a token a second.
    pub rate_micro: u64,
    /// The rate that a ramp goes to, likewise.
    pub target_micro: u64,
    /// When the ramp began, while one is under way.
    pub ramp_begins: Option<LedgerTime>,
    /// When the ramp ends, while one is under way.
    pub ramp_ends: Option<LedgerTime>,
    /// The burst now, in whole tokens.
    pub burst: u64,
    /// How used tokens become usable again.
    pub policy: Policy,
    /// What an operator says of it beside how much it allows.
    pub conduct: Conduct,
    /// Tokens that nobody holds.
    pub free: Amount,
    /// Conserved tokens that nobody accounts for and that are not usable yet.
    pub away: Amount,
    /// Whether the keeper of what may have been drawn hasn't answered for a while: no more is lent until it does.
    pub keeper_silent: bool,
    /// Shares that are out.
    pub share: Share,
    /// Caps that are out.
    pub cap: Amount,
    /// How tokens are handed out.
    pub kind: Kind,
    /// The figures behind that.
    pub reason: KindReason,
    /// Tokens used since the cell began.
    pub used: u64,
    /// Tokens wanted and not there.
    pub waiting: u64,
    /// Tokens used a second in the last window, in millionths; `None` until one has ended.
    pub used_micro: Option<u64>,
    /// Whoever has waited longest for too long although there is room.
    pub starving: Option<Waiter>,
    /// Until when it recovers.
    pub recovering_until: Option<LedgerTime>,
    /// Whether it is only remembered.
    pub removed: bool,
    /// Who holds.
    pub holders: Vec<HolderView>,
}

/// One holder of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The process.
    pub incarnation: Incarnation,
    /// Its name for people.
    pub worker: String,
    /// Whether it borrows.
    pub borrowed: bool,
    /// The share that counts for it.
    pub share: Share,
    /// The cap that counts for it.
    pub cap: Amount,
    /// Since when it has held a part of the cell, if it does; in whole seconds.
    pub held_since: Option<LedgerTime>,
    /// Tokens in its bucket when it last asked: not used yet.
    pub held: Amount,
    /// What its share would bring a second beyond what it wants, in millionths of a token.
    pub idle_micro: u64,
    /// When the last of what it may act on ends.
    pub expires: Option<LedgerTime>,
    /// Whether it has said which lease it acts on.
    pub acknowledged: bool,
    /// Wanted tokens a second, in millionths.
    pub demand: u64,
    /// Conserved tokens that it has out: in use, or used within the window.
    pub out: u64,
    /// Tokens that its waiters want.
    pub waiting: u64,
    /// Since when without a break; those who wait may be others by now.
    pub waiting_since: Option<LedgerTime>,
    /// Since when the first of those who wait has waited, at least.
    pub unserved_since: Option<LedgerTime>,
    /// When it last asked.
    pub seen: LedgerTime,
    /// Whether it must be taken to be gone or cut off.
    pub silent: bool,
}

impl Ledger {
    /// All cells as of the ledger's latest time. Minting since then is not counted: a query changes nothing.
    pub fn view(&self) -> Vec<CellView> {
        let heartbeat = self.heartbeat();
        self.state().cells.values().map(|cell| self.view_cell(cell, heartbeat)).collect()
    }

    pub(super) fn view_cell(&self, cell: &Cell, heartbeat: Span) -> CellView {
        let now = self.state().now;
        let (share, cap) = cell.outstanding(now);
        let holders = cell.holders.iter();
        let holders = holders.map(|(holder, holding)| self.view_holder(cell, holder, holding, heartbeat));
        let (rate, burst) = (&cell.config.rate, &cell.config.burst);
        let (begins, ends) =
            if rate.end >= burst.end { (rate.start, rate.end) } else { (burst.start, burst.end) };
        CellView {
            key: cell.config.key.clone(),
            rate_micro: cell.config.rate.at(now).micro_per_second(),
            target_micro: cell.config.rate.target.micro_per_second(),
            ramp_begins: (now < ends).then_some(begins),
            ramp_ends: (now < ends).then_some(ends),
            burst: cell.config.burst_tokens(now),
            policy: cell.config.policy.clone(),
            conduct: cell.config.conduct,
            // After a cut more may be out than there is: that is no debt.
            free: if cell.config.policy.conserves() { cell.free.at_least_zero() } else { cell.free },
            away: cell.away.total(),
            keeper_silent: cell.kept.told.is_some() && cell.kept.told_at + KEEPER_SILENT <= now,
            share,
            cap,
            kind: cell.kind,
            reason: kind_reason(cell, now, heartbeat),
            used: cell.used,
            waiting: waiting(cell, now),
            used_micro: cell.room.last.map(|window| window.used_micro),
            starving: self.starving(cell, heartbeat),
            recovering_until: cell.recovering_until.filter(|until| now < *until),
            removed: cell.removed,
            holders: holders.collect(),
        }
    }

    pub(super) fn view_holder(
        &self,
        cell: &Cell,
        holder: &Holder,
        holding: &Holding,
        heartbeat: Span,
    ) -> HolderView {
        let now = self.state().now;
        let (share, cap) = holding.counts(now);
        let worker = self.state().workers.get(&holder.incarnation);
        let silent = is_silent(holding.seen, now, heartbeat);
        let brings = share.of(cell.config.rate.at(now).micro_per_second());
        HolderView {
            incarnation: holder.incarnation,
            worker: worker.map(|worker| worker.name.clone()).unwrap_or_default(),
            borrowed: holder.borrowed,
            share,
            cap,
            held_since: holding.held_since.filter(|_| share.ppb() > 0 || cap > Amount::ZERO),
            held: holding.held.min(cap),
            idle_micro: if silent { brings } else { brings.saturating_sub(holding.demand) },
            expires: holding.ends(now),
            acknowledged: holding.pending.is_none(),
            demand: holding.demand,
            out: holding.out,
            waiting: holding.waiting,
            waiting_since: holding.waiting_since,
            unserved_since: holding.unserved.map(|unserved| unserved.since),
            seen: holding.seen,
            silent,
        }
    }
}
