//! Who holds and who waits, and why, as golden files print it.

use super::show::{micro, span};
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::explain::{Reason, Waiter, Who};
use tollgate_core::ledger::view::{CellView, HolderView};
use tollgate_core::limit::CellKey;
use tollgate_core::message::Incarnation;
use tollgate_core::units::{Amount, LedgerTime};

/// One limit, or all.
pub fn limits(ledger: &Ledger, only: Option<&CellKey>) -> Vec<String> {
    let now = ledger.state().now;
    let keys = ledger.state().cells.keys().filter(|key| only.is_none_or(|only| only == *key));
    let mut lines = Vec::new();
    for explanation in keys.filter_map(|key| ledger.explain(key)) {
        lines.push(head(&explanation.cell, now));
        let holds = |holder: &&HolderView| holder.held_since.is_some();
        lines.extend(explanation.cell.holders.iter().filter(holds).map(|holder| held(holder, now)));
        lines.extend(explanation.permits.iter().map(|permit| {
            let (since, left) = (span(now.since(permit.since)), span(permit.expires.since(now)));
            format!("  {} holds {} for {since}, {left} left", permit.id, permit.tokens)
        }));
        lines.extend(explanation.waiters.iter().map(|waiter| waits(waiter, now)));
    }
    if let Some(only) = only.filter(|_| lines.is_empty()) {
        let workers = ledger.asked_in_vain(&only.limit);
        lines.push(format!("{only}: no such limit, wanted by {workers} workers"));
    }
    lines
}

/// One worker.
pub fn worker(ledger: &Ledger, incarnation: Incarnation) -> Vec<String> {
    let now = ledger.state().now;
    let explanation = ledger.explain_worker(incarnation);
    let mut lines = Vec::new();
    for (key, holder, waiter) in &explanation.cells {
        lines.push(format!("{key}:"));
        lines.extend(holder.held_since.map(|_| held(holder, now)));
        lines.extend(waiter.iter().map(|waiter| waits(waiter, now)));
    }
    lines.extend(explanation.unknown.iter().map(|key| format!("{key}: no such limit")));
    lines
}

fn head(cell: &CellView, now: LedgerTime) -> String {
    let used = cell.used_micro.map_or_else(String::new, |used| format!(", used {}/s lately", micro(used)));
    let starving = cell.starving.as_ref().map_or_else(String::new, |waiter| {
        format!(", {} STARVES for {}", who(waiter), span(now.since(waiter.since)))
    });
    format!("{}: {}/s, free {}{used}{starving}", cell.key, micro(cell.rate_micro), cell.free)
}

fn held(holder: &HolderView, now: LedgerTime) -> String {
    let since = holder.held_since.map_or_else(String::new, |since| span(now.since(since)));
    let mut idle = Vec::new();
    if holder.idle_micro > 0 {
        idle.push(format!("{}/s", micro(holder.idle_micro)));
    }
    if holder.held > Amount::ZERO {
        idle.push(format!("{} tokens", holder.held));
    }
    let idle = if idle.is_empty() { String::new() } else { format!(", unused {}", idle.join(" and ")) };
    let silent = if holder.silent { ", silent" } else { "" };
    format!("  {} holds share {} cap {} for {since}{idle}{silent}", holder.worker, holder.share, holder.cap)
}

fn waits(waiter: &Waiter, now: LedgerTime) -> String {
    let (who, tokens, since) = (who(waiter), waiter.tokens, span(now.since(waiter.since)));
    format!("  {who} waits {since} for {tokens}: {}", why(waiter.reason, now))
}

fn who(waiter: &Waiter) -> &str {
    match &waiter.who {
        Who::Worker { name, .. } => name,
        Who::Permit { id, .. } => id,
    }
}

fn why(reason: Reason, now: LedgerTime) -> String {
    match reason {
        Reason::UnknownLimit => "no such limit".to_string(),
        Reason::Evicted => "evicted".to_string(),
        Reason::Paused => "paused".to_string(),
        Reason::Recovering { until } => format!("recovering for {}", span(until.since(now))),
        Reason::NotHeard { since } => format!("not heard for {}", span(now.since(since))),
        Reason::CostAboveBurst { cost, burst } => format!("cost {cost} above burst {burst}"),
        Reason::NoRate => "no rate".to_string(),
        Reason::Ramp { ends } => format!("ramp for {}", span(ends.since(now))),
        Reason::Queued { ahead } => format!("queued behind {ahead} tokens"),
        Reason::LimitReached { wanted_micro } => format!("limit reached, {}/s wanted", micro(wanted_micro)),
        Reason::AllOut { out, away, all } => format!("all out: {out} and {away} away of {all}"),
        Reason::HeldBySilent { workers, until } => {
            format!("held by {workers} silent, for {}", span(until.since(now)))
        }
        Reason::CrowdedBurst { needed, burst } => {
            format!("crowded: {needed} needed at once of burst {burst}")
        }
        Reason::Reserve { kept } => format!("reserve of {kept}"),
        Reason::NextMessage => "comes with the next message".to_string(),
        other => format!("{other:?}"),
    }
}
