//! `tollgate status`.

use super::{print, print_line, watch};
use crate::args::{Global, Status};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, absolute, clock, left, relative};
use crate::table::{Cell, Paint, Side, Table, printable};
use tollgate_core::limit::Version;
use tollgate_workflows::details::{key as key_text, out_text, percent, rate_text, tenths};
use tollgate_workflows::wire::config::VersionJson;
use tollgate_workflows::wire::explain::starving_text;
use tollgate_workflows::wire::status::{FilterJson, HolderJson, LimitDetailJson, LimitRowJson, StatusJson};

/// The most starving limits that are told of above the table, in which all are marked: more have one cause.
const STARVING_MAX: usize = 5;

/// Shows what is in force.
///
/// # Errors
/// As [`Session::query`].
pub async fn run(global: &Global, options: &Status) -> Result<(), Failure> {
    let mut session = Session::open(global).await?;
    if options.watch {
        return watch::run(&mut session, options.limit.as_deref(), global.json).await;
    }
    let shown = fetch(&session, options.limit.as_deref(), global.json, Paint::of_stdout()).await?;
    print(&shown)
}

/// Asks once and says what to show.
///
/// # Errors
/// As [`Session::query`].
pub async fn fetch(
    session: &Session,
    limit: Option<&str>,
    json: bool,
    paint: Paint,
) -> Result<String, Failure> {
    let Some(limit) = limit else {
        let answer = session.query(Workflow::Coordinator, "status", &FilterJson::default()).await?;
        if json {
            return Ok(format!("{}\n", answer.text()));
        }
        return Ok(paint.fold(&render(&answer.read()?, moment::now_us(), paint)));
    };
    let filter = FilterJson { limit: limit.to_owned(), ..FilterJson::default() };
    let answer = session.query(Workflow::Coordinator, "limit", &filter).await?;
    let detail: LimitDetailJson = answer.read()?;
    if detail.cells.is_empty() {
        let group = session.group();
        return Err(Failure::Failed(format!(
            "no limit {limit:?} in group {group:?}: see `tollgate limit list`"
        )));
    }
    Ok(if json {
        format!("{}\n", answer.text())
    } else {
        paint.fold(&render_limit(&detail, moment::now_us(), paint))
    })
}

/// Prints one line that a watcher without a terminal can tell apart.
///
/// # Errors
/// As [`print_line`].
pub fn print_separator() -> Result<(), Failure> {
    print_line("")
}

/// The table of all limits under a headline.
pub fn render(status: &StatusJson, now_us: u64, paint: Paint) -> String {
    let mut text = headline(status, now_us, paint);
    for note in notes(status, now_us) {
        text.push_str(&format!("{}\n", paint.alarm(&printable(&note))));
    }
    text.push('\n');
    if status.limits.is_empty() {
        text.push_str("no limits yet: `tollgate limit set NAME --rate 50/s` makes one\n");
        return text;
    }
    let mut table = limit_table();
    for row in &status.limits {
        table.row(limit_cells(row, now_us));
    }
    text.push_str(&table.render(paint));
    text
}

/// One limit with its holders.
pub fn render_limit(detail: &LimitDetailJson, now_us: u64, paint: Paint) -> String {
    let mut table = limit_table();
    for cell in &detail.cells {
        table.row(limit_cells(&cell.row, now_us));
    }
    let mut text = table.render(paint);
    for cell in &detail.cells {
        let row = &cell.row;
        let figures = format!("{}: {}; as of {}", row.kind, row.kind_reason, clock(detail.now_us, now_us));
        text.push_str(&format!("\n{}\n", paint.dim(&printable(&figures))));
        if !row.bound.is_empty() {
            let bound = format!("promised: {}; costs {}", row.bound, row.bound_costs);
            text.push_str(&format!("{}\n", paint.dim(&printable(&bound))));
        }
        if detail.cells.len() > 1 {
            text.push_str(&format!("{}\n", paint.bold(&printable(&key_text(row)))));
        }
        if cell.holders.is_empty() {
            text.push_str("no worker holds or wants any of it\n");
            continue;
        }
        let mut holders = Table::new(&[
            ("WORKER", Side::Left),
            ("SHARE", Side::Right),
            ("CAP", Side::Right),
            ("DEMAND", Side::Right),
            ("WAITING", Side::Right),
            ("EXPIRES", Side::Left),
            ("SEEN", Side::Left),
            ("ACKNOWLEDGED", Side::Left),
            ("INCARNATION", Side::Left),
        ]);
        for holder in &cell.holders {
            holders.row(holder_cells(holder, row, now_us));
        }
        text.push_str(&holders.render(paint));
    }
    text
}

fn headline(status: &StatusJson, now_us: u64, paint: Paint) -> String {
    let workers =
        if status.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", status.workers) };
    let heartbeat = moment::length(status.heartbeat_ms.saturating_mul(1_000));
    let as_of = format!("as of {} ({})", clock(status.now_us, now_us), relative(status.now_us, now_us));
    let version = version_text(status.version);
    let rest = format!("{workers}, heartbeat every {heartbeat} · version {version} · {as_of}");
    format!("{} · {rest}\n", paint.bold(&format!("group {}", printable(&status.group))))
}

/// What an operator should know before reading figures.
fn notes(status: &StatusJson, now_us: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(until) = status.recovering_until_us.filter(|until| *until > now_us) {
        let (left, at) = (left(until, now_us), clock(until, now_us));
        notes.push(format!("recovering for {left}, until {at}: leases are confirmed, none are raised"));
    }
    let unreadable = &status.unreadable;
    if unreadable.count > 0 {
        notes.push(format!(
            "{} refused or unreadable, the last one {} ({}), {}: {}",
            counted(unreadable.count, "message"),
            clock(unreadable.last_us, now_us),
            relative(unreadable.last_us, now_us),
            unreadable.last_name,
            unreadable.last_error
        ));
    }
    let starving = status.limits.iter().filter_map(|row| Some((row, row.starving.as_ref()?)));
    notes.extend(starving.take(STARVING_MAX).map(|(row, starving)| {
        format!("{} has room, and {}; see `tollgate explain`", key_text(row), starving_text(row, starving))
    }));
    if status.ignored_configs > 0 {
        let last = status.ignored_version.map(version_text).unwrap_or_default();
        notes.push(format!(
            "{} ignored since they were older than the one in force, the last one {last}",
            counted(status.ignored_configs, "configuration")
        ));
    }
    if status.resets > 0 {
        notes.push(format!("{} of the coordinator noticed", counted(status.resets, "reset")));
    }
    notes
}

fn limit_table() -> Table {
    Table::new(&[
        ("LIMIT", Side::Left),
        ("RATE NOW", Side::Left),
        ("BURST", Side::Right),
        ("USED", Side::Right),
        ("FREE", Side::Right),
        ("OUT", Side::Right),
        ("WAITING", Side::Right),
        ("HOLDERS", Side::Right),
        ("KIND", Side::Left),
    ])
}

fn limit_cells(row: &LimitRowJson, now_us: u64) -> Vec<Cell> {
    let recovering = row.recovering_until_us.filter(|until| *until > now_us);
    let is_special = recovering.is_some() || row.conduct.paused || row.conduct.shadow;
    let mut kind = row.kind.clone();
    if let Some(until) = recovering {
        kind.push_str(&format!(", recovering for {}", left(until, now_us)));
    }
    if row.conduct.paused {
        kind.push_str(", PAUSED");
    }
    if row.conduct.shadow {
        kind.push_str(", shadow");
    }
    if row.removed {
        kind.push_str(", removed");
    }
    let free =
        if row.debt_milli > 0 { format!("-{}", tenths(row.debt_milli)) } else { tenths(row.free_milli) };
    let waiting =
        if row.starving.is_some() { format!("{} starving", row.waiting) } else { row.waiting.to_string() };
    vec![
        Cell::new(key_text(row)),
        Cell::warn_if(rate_cell(row, now_us), row.ramp_ends_us.is_some_and(|end| end > now_us)),
        Cell::new(row.burst),
        Cell::new(row.used),
        Cell::warn_if(free, row.debt_milli > 0),
        Cell::new(out_text(row)),
        Cell::warn_if(waiting, row.waiting > 0),
        Cell::new(row.holders),
        if row.removed { Cell::dim(kind) } else { Cell::warn_if(kind, is_special) },
    ]
}

fn holder_cells(holder: &HolderJson, row: &LimitRowJson, now_us: u64) -> Vec<Cell> {
    let name = if holder.worker.is_empty() { "-" } else { &holder.worker };
    let name = if holder.borrowed { format!("{name} (borrows)") } else { name.to_owned() };
    let waiting = match holder.waiting_since_us.filter(|_| holder.waiting > 0) {
        Some(since) => format!("{} for {}", holder.waiting, left(now_us, since)),
        None => holder.waiting.to_string(),
    };
    let expires = holder.expires_us.map_or_else(
        || "-".to_owned(),
        |at| {
            format!(
                "{} ({})",
                if at > now_us { relative(at, now_us) } else { "over".to_owned() },
                clock(at, now_us)
            )
        },
    );
    // A worker that missed several heartbeats is either gone or cut off.
    let quiet = now_us.saturating_sub(holder.seen_us) > 10_000_000;
    vec![
        Cell::new(name),
        Cell::new(percent(holder.share_ppb)),
        Cell::new(tenths(holder.cap_milli)),
        Cell::new(rate_text(holder.demand_micro, row.target_micro)),
        Cell::warn_if(waiting, holder.waiting > 0),
        Cell::new(expires),
        Cell::warn_if(
            format!("{} ({})", relative(holder.seen_us, now_us), clock(holder.seen_us, now_us)),
            quiet,
        ),
        Cell::warn_if(if holder.acknowledged { "yes" } else { "not yet" }, !holder.acknowledged),
        Cell::dim(holder.incarnation.get(..8).unwrap_or(&holder.incarnation)),
    ]
}

/// The rate, or where it is on its way.
pub(super) fn rate_cell(row: &LimitRowJson, now_us: u64) -> String {
    let target = rate_text(row.target_micro, row.target_micro);
    match row.ramp_ends_us.filter(|end| *end > now_us) {
        Some(end) => {
            format!("{} → {target} in {}", rate_text(row.rate_micro, row.target_micro), left(end, now_us))
        }
        None => rate_text(row.rate_micro, row.target_micro),
    }
}

/// A version as `--if-version` takes it.
pub fn version_text(version: VersionJson) -> String {
    match version.version() {
        Version { run: 0, n: 0 } => "none".to_owned(),
        version => version.to_string(),
    }
}

pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The date in full, for what may be long ago.
pub fn dated(us: u64, now_us: u64) -> String {
    format!("{} ({})", absolute(us), relative(us, now_us))
}

#[cfg(test)]
#[path = "status_tests.rs"]
pub(super) mod tests;
