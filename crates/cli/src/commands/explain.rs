//! `tollgate explain`.

use super::print;
use super::status::{counted, rate_cell};
use crate::args::{Explain, Global};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, left, relative};
use crate::table::{Cell, Paint, Side, Table, printable};
use tollgate_core::limit::CellKey;
use tollgate_workflows::details::{key as key_text, percent, rate_text, tenths};
use tollgate_workflows::wire::explain::{
    CandidatesJson, ExplainJson, ExplainLimitJson, ExplainWorkerJson, HoldJson, WaiterJson, WhyJson,
    starving_text,
};
use tollgate_workflows::wire::status::FilterJson;

/// How many candidates an error names: enough to see a slip of the finger, few enough to read.
const CANDIDATES_MAX: usize = 10;

/// Says who holds what, who waits and why, and what would help.
///
/// # Errors
/// As [`Session::query`], and [`Failure::Failed`] for a name that is unknown or means several workers.
pub async fn run(global: &Global, options: &Explain) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    let filter = FilterJson { name: options.name.clone(), ..FilterJson::default() };
    let answer = session.query(Workflow::Coordinator, "explain", &filter).await?;
    let explained: ExplainJson = answer.read()?;
    let now_us = moment::now_us();
    if let Some(candidates) = &explained.candidates {
        return Err(Failure::Failed(not_found(&options.name, session.group(), candidates, now_us)));
    }
    if global.json {
        return print(&format!("{}\n", answer.text()));
    }
    let paint = Paint::of_stdout();
    print(&paint.fold(&render(&explained, &options.name, now_us, paint)))
}

fn not_found(name: &str, group: &str, candidates: &CandidatesJson, now_us: u64) -> String {
    let mut text = if candidates.ambiguous {
        format!(
            "{name:?} means several workers in group {group:?}; name one by the beginning of its incarnation:"
        )
    } else {
        format!("no limit or worker {name:?} in group {group:?}")
    };
    let limits = candidates.limits.iter().map(|limit| format!("limit   {limit}"));
    let workers = candidates.workers.iter().map(|worker| {
        let (id, heard) = (short(&worker.incarnation), relative(worker.seen_us, now_us));
        format!("worker  {}  {id}, {}, heard {heard}", worker.worker, worker.standing)
    });
    let count = (candidates.limits.len() + candidates.workers.len()) as u64 + candidates.left_out;
    if count > 0 && !candidates.ambiguous {
        text.push_str("; there are:");
    }
    // A long list of limits doesn't hide all workers.
    let few = if candidates.workers.is_empty() { CANDIDATES_MAX } else { CANDIDATES_MAX / 2 };
    for line in limits.take(few).chain(workers).take(CANDIDATES_MAX) {
        text.push_str(&format!("\n  {}", printable(&line)));
    }
    let shown = candidates.limits.len().min(few) + candidates.workers.len();
    let left_out = count.saturating_sub(shown.min(CANDIDATES_MAX) as u64);
    if left_out > 0 {
        text.push_str(&format!("\n  and {left_out} more: see `tollgate status`"));
    }
    text
}

/// The tables and sentences of an answer.
pub fn render(explained: &ExplainJson, name: &str, now_us: u64, paint: Paint) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(missing) = &explained.missing {
        let heading = format!("limit {} · not there · {} for it", printable(name), asking(missing.waiters));
        parts.push(format!("{}\n{}", paint.bold(&heading), sentence(missing, "", paint)));
    }
    parts.extend(explained.limits.iter().map(|limit| limit_part(limit, explained.now_us, now_us, paint)));
    parts.extend(explained.workers.iter().map(|worker| worker_part(worker, explained.now_us, now_us, paint)));
    if explained.workers_left_out > 0 {
        parts.push(format!("{} of this name\n", counted(explained.workers_left_out, "worker")));
    }
    parts.join("\n")
}

fn asking(workers: u64) -> String {
    if workers == 1 { "1 worker asks".to_owned() } else { format!("{workers} workers ask") }
}

fn limit_part(limit: &ExplainLimitJson, at_us: u64, now_us: u64, paint: Paint) -> String {
    let row = &limit.row;
    let used =
        row.used_micro.map_or_else(String::new, |used| format!(", {} used lately", rate_text(used, 0)));
    let as_of = format!("as of {} ({})", clock(at_us, now_us), relative(at_us, now_us));
    let figures = format!(
        "{}, burst {}{used}, handed out by {} · {as_of}",
        rate_cell(row, now_us),
        row.burst,
        row.kind
    );
    let name = paint.bold(&format!("limit {}", printable(&key_text(row))));
    let mut text = format!("{name} · {}\n", printable(&figures));
    if let Some(starving) = &row.starving {
        let told = format!("it has room, and {}", starving_text(row, starving));
        text.push_str(&format!("{}\n", paint.alarm(&printable(&told))));
    }
    text.push('\n');
    let holds = |holder: &&HoldJson| holder.share_ppb > 0 || holder.cap_milli > 0;
    let mut holders = Table::new(&[
        ("HOLDS", Side::Left),
        ("SINCE", Side::Left),
        ("SHARE", Side::Right),
        ("TOKENS", Side::Right),
        ("UNUSED", Side::Left),
        ("EXPIRES", Side::Left),
        ("HEARD", Side::Left),
        ("INCARNATION OR PERMIT", Side::Left),
    ]);
    for holder in limit.holders.iter().filter(holds) {
        let mut cells = vec![Cell::new(worker_name(holder))];
        cells.extend(hold_cells(holder, row.target_micro, at_us, now_us));
        cells.push(Cell::warn_if(relative(holder.seen_us, now_us), holder.silent));
        cells.push(Cell::dim(short(&holder.incarnation)));
        holders.row(cells);
    }
    for permit in &limit.permits {
        let mut cells =
            vec![Cell::new(&permit.client), Cell::new(ago(permit.since_us, at_us)), Cell::new("-")];
        let expires = relative(permit.expires_us, now_us);
        cells.extend([permit.tokens.to_string(), "-".to_owned(), expires, "-".to_owned()].map(Cell::new));
        cells.push(Cell::dim(&permit.permit));
        holders.row(cells);
    }
    text.push_str(&if holders.is_empty() {
        "nobody holds any of it\n".to_owned()
    } else {
        holders.render(paint)
    });
    let idle = limit.holders.iter().filter(|holder| !holds(holder)).count() as u64;
    if idle > 0 {
        text.push_str(&format!("{} known that hold nothing now\n", counted(idle, "worker")));
    }
    text.push_str(&left_out(limit.holders_left_out + limit.permits_left_out));
    text.push('\n');
    if limit.waiters.is_empty() {
        text.push_str("nobody waits\n");
        return text + &why_part(limit, paint);
    }
    let mut waiters = Table::new(&[
        ("WAITS", Side::Left),
        ("FOR TOKENS", Side::Right),
        ("SINCE", Side::Left),
        ("REASON", Side::Left),
        ("INCARNATION OR PERMIT", Side::Left),
    ]);
    for waiter in &limit.waiters {
        waiters.row(vec![
            Cell::new(&waiter.who),
            Cell::new(waiter.tokens),
            Cell::new(ago(waiter.since_us, at_us)),
            Cell::new(words(&waiter.reason)),
            Cell::dim(id_text(waiter)),
        ]);
    }
    text.push_str(&waiters.render(paint));
    text.push_str(&left_out(limit.waiters_left_out));
    text + &why_part(limit, paint)
}

/// Why somebody waits, or why nobody may.
fn why_part(limit: &ExplainLimitJson, paint: Paint) -> String {
    let mut text = String::new();
    for why in &limit.reasons {
        let waiters = if why.waiters == 1 { "1 waits".to_owned() } else { format!("{} wait", why.waiters) };
        let waiters = format!(", {waiters} for {}", counted(why.tokens, "token"));
        let waiters = if why.waiters == 0 { "" } else { &waiters };
        let label = format!("{}{waiters}: ", words(&why.reason));
        text.push_str(&format!("\n{}", sentence(why, &label, paint)));
    }
    text
}

fn worker_part(worker: &ExplainWorkerJson, at_us: u64, now_us: u64, paint: Paint) -> String {
    let name = if worker.worker.is_empty() { "-" } else { &worker.worker };
    let heard = format!("heard {} ({})", relative(worker.seen_us, now_us), clock(worker.seen_us, now_us));
    let heading = paint.bold(&format!("worker {}", printable(name)));
    let standing = if worker.silent && worker.standing == "live" { "silent" } else { &worker.standing };
    let mut text =
        format!("{heading} · {standing} · {heard} · incarnation {}\n", printable(&worker.incarnation));
    for why in &worker.reasons {
        text.push_str(&sentence(why, "", paint));
    }
    text.push('\n');
    if worker.limits.is_empty() {
        text.push_str("it holds and wants nothing\n");
        return text;
    }
    let mut limits = Table::new(&[
        ("LIMIT", Side::Left),
        ("HOLDS SINCE", Side::Left),
        ("SHARE", Side::Right),
        ("TOKENS", Side::Right),
        ("UNUSED", Side::Left),
        ("EXPIRES", Side::Left),
        ("WAITING", Side::Right),
        ("SINCE", Side::Left),
        ("REASON", Side::Left),
    ]);
    for limit in &worker.limits {
        let mut cells = vec![Cell::new(key(&limit.limit, &limit.meter, &limit.tier))];
        cells.extend(hold_cells(&limit.hold, 0, at_us, now_us));
        let since = limit.why.as_ref().and_then(|why| why.since_us).map(|since| ago(since, at_us));
        let reason = limit.why.as_ref().map(|why| words(&why.reason));
        cells.push(Cell::warn_if(limit.waiting, limit.why.is_some()));
        cells.push(Cell::new(since.unwrap_or_default()));
        cells.push(Cell::new(reason.unwrap_or_default()));
        limits.row(cells);
    }
    text.push_str(&limits.render(paint));
    text.push_str(&left_out(worker.limits_left_out));
    for limit in &worker.limits {
        if let Some(why) = &limit.why {
            let label = format!("{}: ", key(&limit.limit, &limit.meter, &limit.tier));
            text.push_str(&format!("\n{}", sentence(why, &label, paint)));
        }
    }
    text
}

/// Since when, how much, how much of it unused, and until when.
fn hold_cells(hold: &HoldJson, like_micro: u64, at_us: u64, now_us: u64) -> Vec<Cell> {
    let mut unused = Vec::new();
    if hold.idle_micro > 0 {
        unused.push(rate_text(hold.idle_micro, like_micro));
    }
    if hold.held_milli > 0 {
        unused.push(format!("{} tokens", tenths(hold.held_milli)));
    }
    let expires = hold.expires_us.map_or_else(
        || "-".to_owned(),
        |at| if at > now_us { relative(at, now_us) } else { "over".to_owned() },
    );
    vec![
        Cell::new(hold.since_us.map_or_else(|| "-".to_owned(), |since| ago(since, at_us))),
        Cell::new(percent(hold.share_ppb)),
        Cell::new(tenths(hold.cap_milli)),
        Cell::new(if unused.is_empty() { "-".to_owned() } else { unused.join(" and ") }),
        Cell::new(expires),
    ]
}

/// A reason in words, what would help, and the command for that.
fn sentence(why: &WhyJson, label: &str, paint: Paint) -> String {
    let mut text = format!("{}{}\n", paint.bold(&printable(label)), paint.warn(&printable(&why.text)));
    text.push_str(&format!("  what helps: {}", printable(&why.help)));
    match &why.command {
        Some(command) => text.push_str(&format!(": {}\n", paint.bold(&printable(command)))),
        None => text.push('\n'),
    }
    text
}

fn left_out(count: u64) -> String {
    if count > 0 { format!("{count} more are left out\n") } else { String::new() }
}

/// A point in time as seen from the last message: figures are as of then.
fn ago(us: u64, at_us: u64) -> String {
    format!("{} ago", left(at_us, us))
}

fn words(reason: &str) -> String {
    reason.replace('_', " ")
}

fn key(limit: &str, meter: &str, tier: &str) -> String {
    CellKey { limit: limit.to_owned(), meter: meter.to_owned(), tier: tier.to_owned() }.to_string()
}

fn worker_name(holder: &HoldJson) -> String {
    let name = if holder.worker.is_empty() { "-" } else { &holder.worker };
    if holder.borrowed { format!("{name} (borrows)") } else { name.to_owned() }
}

fn id_text(waiter: &WaiterJson) -> &str {
    match (&waiter.incarnation, &waiter.permit) {
        (Some(incarnation), _) => short(incarnation),
        (None, permit) => permit.as_deref().unwrap_or_default(),
    }
}

/// As much of an incarnation as tells it from others.
fn short(incarnation: &str) -> &str {
    incarnation.get(..8).unwrap_or(incarnation)
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
