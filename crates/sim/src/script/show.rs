//! How things are printed in golden files: short, and the same on any machine.

use crate::checker::Verdict;
use crate::world::{Delivered, Down, Failure, State};
use tollgate_core::bucket::Refusal;
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::alloc_share::Kind;
use tollgate_core::ledger::outlook::{Obstacle, Outlook};
use tollgate_core::ledger::strict::AcquireOutcome;
use tollgate_core::ledger::{Output, view::CellView};
use tollgate_core::message::{CellOutcome, CellReport, Reply, Request, RequestError};
use tollgate_core::units::{Amount, LedgerTime, Span};

/// `1.5s`, `200ms`, `37us`.
pub fn span(span: Span) -> String {
    let (micros, unit, name) = match span.0 {
        0 => return "0s".to_string(),
        micros if micros >= 1_000_000 => (micros, 1_000_000, "s"),
        micros if micros >= 1_000 => (micros, 1_000, "ms"),
        micros => (micros, 1, "us"),
    };
    format!("{}{name}", fraction(micros.into(), unit, 3))
}

/// Up to `digits` digits behind the point, rounded down.
fn fraction(value: u128, unit: u128, digits: u32) -> String {
    let (whole, rest) = (value / unit, value % unit);
    let scale = 10u128.pow(digits);
    let digits_text = format!("{:0width$}", rest * scale / unit, width = digits as usize);
    let digits_text = digits_text.trim_end_matches('0');
    if digits_text.is_empty() { whole.to_string() } else { format!("{whole}.{digits_text}") }
}

/// Millionths as a ratio with three digits, rounded up, so that what exceeds one never prints as one.
pub fn ratio(ppm: u64) -> String {
    if ppm == u64::MAX { "endless".to_string() } else { fraction(ppm.div_ceil(1_000).into(), 1_000, 3) }
}

/// Tokens from millionths.
pub(super) fn micro(value: u64) -> String {
    fraction(value.into(), 1_000_000, 3)
}

/// What a request says.
pub fn request(name: &str, request: &Request) -> String {
    let cells: Vec<String> = request.cells.iter().map(|cell| report(cell, request.cells.len() > 1)).collect();
    format!("{name} -> {}: {}", request.seq, cells.join(" | "))
}

fn report(cell: &CellReport, named: bool) -> String {
    let mut text = if named { format!("{} ", cell.key) } else { String::new() };
    if let Some(tier) = &cell.for_tier {
        text += &format!("for {tier} ");
    }
    match cell.acting {
        Some(acting) => {
            let name = acting.name;
            text += &format!("acting {}.{} share {} cap {}", name.epoch, name.seq, acting.share, acting.cap);
        }
        None => text += "acting none",
    }
    text += &format!(" held {}", cell.held);
    for (label, value) in [("used", cell.used), ("waiting", cell.waiting)] {
        if value > 0 {
            text += &format!(" {label} {value}");
        }
    }
    if cell.demand > 0 {
        text += &format!(" demand {}/s", micro(cell.demand));
    }
    for (label, amount) in [("returned", cell.returned), ("debt", cell.debt)] {
        if amount.0 != 0 {
            text += &format!(" {label} {amount}");
        }
    }
    text
}

/// What a look found.
pub fn outlook(name: &str, outlook: &Outlook) -> String {
    let why = match outlook.obstacle {
        None => "would be admitted",
        Some(Obstacle::CostAboveBurst) => "the cost is above the burst",
        Some(Obstacle::Paused) => "paused",
        Some(Obstacle::Recovering) => "recovering",
        Some(Obstacle::TooLittle) => "too little",
    };
    let after = outlook.after.map(|after| format!(", not before {}", span(after))).unwrap_or_default();
    format!("{name}: {why}, {} of {} there{after}", outlook.available, outlook.burst)
}

/// What a reply says.
pub fn down(name: &str, down: &Down) -> String {
    match &down.answer {
        Ok(answer) => format!("{name} <- {}: {}", down.seq, reply(answer)),
        Err(error) => format!("{name} <- {}: refused, {}", down.seq, refusal(*error)),
    }
}

fn reply(reply: &Reply) -> String {
    let named = reply.cells.len() > 1;
    let cells = reply.cells.iter().map(|cell| {
        let mut name = if named { format!("{} ", cell.key) } else { String::new() };
        if named && cell.borrowed {
            name += "borrowed ";
        }
        let CellOutcome::Lease(terms) = &cell.outcome else { return format!("{name}no such limit") };
        let tokens = if terms.tokens.0 > 0 { format!(" tokens {}", terms.tokens) } else { String::new() };
        let due = terms.due.map(|due| format!("; again in {}", span(due))).unwrap_or_default();
        let confirm = if terms.confirm { "; confirms only" } else { "" };
        let lasts = span(terms.duration);
        format!("{name}share {} cap {}{tokens}, {lasts}{confirm}{due}", terms.share, terms.cap)
    });
    let mut text = cells.collect::<Vec<_>>().join(" | ");
    if reply.evicted {
        text += "; evicted";
    }
    text
}

/// Why a request was refused.
pub fn refusal(error: RequestError) -> String {
    match error {
        RequestError::Stale { newest } => format!("stale: {newest} is newer"),
        RequestError::Burned => "burned: two processes claim to be this one".to_string(),
        RequestError::Revoked => "revoked".to_string(),
        RequestError::TooManyWorkers => "too many workers".to_string(),
        RequestError::TooManyCells => "too many cells".to_string(),
        RequestError::Busy => "busy".to_string(),
    }
}

/// What became of a message.
pub fn delivered(name: &str, delivered: &Delivered) -> String {
    match delivered {
        Delivered::Answered(answer) => down(name, answer),
        Delivered::Taken => "taken in".to_string(),
        Delivered::Failed => format!("{name}: the ledger is down"),
        Delivered::Applied => format!("{name} applies it"),
        Delivered::Ignored => format!("{name} ignores it"),
        Delivered::Reincarnated(error) => format!("{name} starts anew: {}", refusal(*error)),
        Delivered::Refused(error) => format!("{name} is refused: {}", refusal(*error)),
    }
}

/// Why a bucket refuses.
pub fn empty(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Empty => "empty",
        Refusal::Expired => "the lease has ended",
    }
}

/// Why something could not be done.
pub fn failure(failure: &Failure) -> String {
    match failure {
        Failure::NoWorker(name) => format!("no worker {name}"),
        Failure::NotRunning(State::Paused) => "paused".to_string(),
        Failure::NotRunning(State::Suspended) => "suspended".to_string(),
        Failure::NotRunning(State::Crashed) => "crashed".to_string(),
        Failure::NotRunning(State::Running) => "running".to_string(),
        Failure::NoMessage => "no such message".to_string(),
        Failure::NoCell => "no such limit at this worker".to_string(),
        Failure::NotYet(wait) => format!("waits for {}", span(*wait)),
        Failure::LedgerDown => "the ledger is down".to_string(),
        Failure::NoSnapshot => "no snapshot".to_string(),
    }
}

/// What the ledger says to a configuration.
pub fn output(output: &Output) -> String {
    match output {
        Output::Configured => "ok".to_string(),
        Output::Ignored => "ignored: not newer".to_string(),
        Output::Refused(error) => format!("refused: {error}"),
        Output::Reply(_) | Output::Acquired(_) | Output::Done => "done".to_string(),
    }
}

/// The answer to a strict acquire or settle.
pub fn acquired(outcome: &AcquireOutcome) -> String {
    match outcome {
        AcquireOutcome::Granted { lease } => format!("granted for {}", span(*lease)),
        AcquireOutcome::Queued { ahead, due } => {
            let due = due.map_or("never, as it is".to_string(), |due| format!("in {}", span(due)));
            format!("queued behind {ahead} tokens, again {due}")
        }
        AcquireOutcome::Ended(how) => format!("ended: {how:?}").to_lowercase(),
        AcquireOutcome::CostAboveBurst { burst } => format!("impossible: the burst is {burst}"),
        AcquireOutcome::UnknownLimit => "no such limit".to_string(),
        AcquireOutcome::UnknownId => "no such permit".to_string(),
        AcquireOutcome::NotGranted => "still waits".to_string(),
        AcquireOutcome::QueueFull => "the queue is full".to_string(),
        AcquireOutcome::Paused => "paused".to_string(),
        AcquireOutcome::IdTaken { cost } => format!("this id has asked for {cost}"),
    }
}

/// A ledger's books. Times are relative to its clock.
pub fn status(ledger: &Ledger) -> Vec<String> {
    let now = ledger.state().now;
    let mut lines = Vec::new();
    if let Some(until) = ledger.state().recovering_until.filter(|until| now < *until) {
        lines.push(format!("recovering for {}", span(until.since(now))));
    }
    if ledger.state().ignored_configs > 0 {
        lines.push(format!("ignored configurations: {}", ledger.state().ignored_configs));
    }
    for cell in ledger.view() {
        lines.extend(cell_status(&cell, now));
    }
    lines
}

fn cell_status(cell: &CellView, now: LedgerTime) -> Vec<String> {
    let kind = match cell.kind {
        Kind::Shares => "shares",
        Kind::Tokens => "tokens",
        Kind::Turns => "turns",
        Kind::Permits => "permits",
    };
    let mut head =
        format!("{}: out share {} cap {}, free {}, by {kind}", cell.key, cell.share, cell.cap, cell.free);
    if cell.away > Amount::ZERO {
        head += &format!(", away {}", cell.away);
    }
    if cell.waiting > 0 {
        head += &format!(", waiting {}", cell.waiting);
    }
    if let Some(until) = cell.recovering_until {
        head += &format!(", recovering for {}", span(until.since(now)));
    }
    if cell.conduct.paused {
        head += ", paused";
    }
    if cell.removed {
        head += ", removed";
    }
    let mut lines = vec![head];
    for holder in &cell.holders {
        let until = holder.expires.map_or("ended".to_string(), |at| format!("for {}", span(at.since(now))));
        let pending = if holder.acknowledged { "" } else { ", until it answers" };
        let name = if holder.worker.is_empty() { "gone" } else { &holder.worker };
        let borrowed = if holder.borrowed { " (borrowed)" } else { "" };
        lines
            .push(format!("  {name}{borrowed}: share {} cap {}, {until}{pending}", holder.share, holder.cap));
    }
    lines
}

/// What the judge says.
pub fn verdict(name: &str, verdict: &Verdict) -> String {
    let (peak, burst) = (ratio(verdict.peak_over_bound_ppm), ratio(verdict.peak_over_burst_ppm));
    if !verdict.exceeded {
        return format!("{name}: within the bound, peak {peak} of it");
    }
    format!(
        "{name}: OVER the bound, peak {peak} of it, {burst} of the burst: from {} to {} admitted {}, allowed {} + {}",
        span(Span(verdict.from)),
        span(Span(verdict.to)),
        verdict.admitted,
        micro(verdict.burst_micro),
        micro(verdict.minted_micro),
    )
}
