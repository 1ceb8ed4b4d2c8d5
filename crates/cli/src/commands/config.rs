//! `tollgate config`.

use super::{limit, print, print_line};
use crate::args::{Config, Global};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, relative};
use crate::table::{Cell, Paint, Side, Table, printable};
use tollgate_core::limit::CellKey;
use tollgate_core::units::Span;
use tollgate_workflows::config::view::{
    AtJson, ConfigJson, DiffAskJson, DiffJson, EffectiveJson, EntryJson, HistoryFilterJson, HistoryJson,
};

/// Shows the configuration and its history.
///
/// # Errors
/// As [`Session::query`].
pub async fn run(global: &Global, command: &Config) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    let (now_us, paint) = (moment::now_us(), Paint::of_stdout());
    let (answer, shown) = match command {
        Config::Show { at: None } => {
            let answer = session.query(Workflow::Config, "config", &()).await?;
            let config = answer.read()?;
            (answer, render_config(&config, now_us, paint))
        }
        Config::Show { at: Some(at) } => {
            let at = AtJson { at_ms: Some(at.us(now_us) / 1_000) };
            let answer = session.query(Workflow::Config, "effective", &at).await?;
            let effective = answer.read()?;
            (answer, render_effective(&effective, now_us, paint))
        }
        Config::Rollback { to, ramp, change } => {
            let mut apply = limit::base(change);
            apply.rollback = Some(to.clone());
            apply.ramp_ms = ramp.map(Span::millis);
            return limit::send(&session, &apply, global.json).await;
        }
        Config::Diff { from, to } => {
            let ask = DiffAskJson { from: from.clone(), to: to.clone() };
            let answer = session.query(Workflow::Config, "diff", &ask).await?;
            let diff = answer.read()?;
            (answer, render_diff(&diff, paint))
        }
        Config::History { limit, count } => {
            let filter = HistoryFilterJson { limit: limit.clone().unwrap_or_default(), count: *count };
            let answer = session.query(Workflow::Config, "history", &filter).await?;
            let history = answer.read()?;
            (answer, render_history(&history, now_us, paint))
        }
    };
    if global.json { print_line(&answer.text()) } else { print(&shown) }
}

fn render_config(config: &ConfigJson, now_us: u64, paint: Paint) -> String {
    let title = paint.bold(&format!("group {}", printable(&config.group)));
    let mut text = format!("{title} · version {}\n", config.version);
    for note in notes(config, now_us) {
        text.push_str(&format!("{}\n", paint.alarm(&printable(&note))));
    }
    format!("{text}\n{}", limit::render(&config.limits, now_us, paint))
}

/// What an operator should know before relying on it.
fn notes(config: &ConfigJson, now_us: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if config.starting {
        notes.push("starting: it still asks the coordinator which limits there are".to_owned());
    } else if !config.coordinator.is_current {
        let has = config.coordinator.version.as_deref().unwrap_or("none");
        let why = &config.coordinator.error;
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        notes.push(format!("not in force yet: the coordinator has version {has}{why}"));
    }
    if !config.calendar_error.is_empty() {
        notes.push(format!("later windows aren't known: {}", config.calendar_error));
    }
    for (what, seen) in [("unreadable messages", &config.unreadable), ("refused signals", &config.refused)] {
        if seen.count > 0 {
            let when = format!("{} ({})", clock(seen.last_us, now_us), relative(seen.last_us, now_us));
            notes.push(format!(
                "{what}: {}, the last one {when}, {}: {}",
                seen.count, seen.last_name, seen.last_error
            ));
        }
    }
    notes
}

fn render_effective(effective: &EffectiveJson, now_us: u64, paint: Paint) -> String {
    let title = paint.bold(&format!("in force at {}", super::status::dated(effective.at_us, now_us)));
    let mut text = format!("{title} · by version {}\n\n", effective.version);
    let mut table = Table::new(&[("LIMIT", Side::Left), ("RATE", Side::Right), ("BURST", Side::Right)]);
    for limit in &effective.limits {
        let key =
            CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() };
        let burst = tollgate_workflows::details::tenths(limit.burst_milli);
        table.row(vec![Cell::new(key), Cell::new(&limit.rate_text), Cell::new(burst)]);
    }
    text.push_str(&table.render(paint));
    text
}

fn render_history(history: &HistoryJson, now_us: u64, paint: Paint) -> String {
    if history.entries.is_empty() {
        return "no changes\n".to_owned();
    }
    let entries: String = history.entries.iter().map(|entry| render_entry(entry, now_us, paint)).collect();
    if history.kept_from.is_empty() {
        return entries;
    }
    let reach = format!("what was set is known from version {} on (rollback, diff)", history.kept_from);
    format!("{entries}{}\n", paint.dim(&printable(&reach)))
}

fn render_diff(diff: &DiffJson, paint: Paint) -> String {
    let title = paint.bold(&format!("{} → {}", printable(&diff.from), printable(&diff.to)));
    let lines: String = diff.changes.iter().map(|line| format!("    {}\n", printable(line))).collect();
    let lines = if lines.is_empty() { "    the same is set\n".to_owned() } else { lines };
    format!("{title}\n{lines}")
}

fn render_entry(entry: &EntryJson, now_us: u64, paint: Paint) -> String {
    let when = super::status::dated(entry.at_us, now_us);
    let title = match entry.outcome.as_str() {
        "refused" => paint.alarm("refused"),
        "scheduled" => format!("{} by itself", paint.bold(&printable(&entry.version))),
        "adopted" => format!("{} adopted from the coordinator", paint.bold(&printable(&entry.version))),
        _ => paint.bold(&printable(&entry.version)),
    };
    let instead = match entry.replaced == entry.version || entry.outcome == "refused" {
        true => String::new(),
        false => format!(" instead of {}", printable(&entry.replaced)),
    };
    let mut text = format!("{title}{instead}  {when}  by {}", printable(&entry.actor));
    if !entry.reason.is_empty() {
        text.push_str(&format!(": {}", printable(&entry.reason)));
    }
    text.push('\n');
    for line in &entry.lines {
        text.push_str(&format!("    {}\n", printable(line)));
    }
    if entry.lines_left_out > 0 {
        text.push_str(&format!("    … {} more, not kept\n", entry.lines_left_out));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_796_043_897_000_000;

    #[test]
    fn a_change_shows_who_when_why_and_what() {
        let entry = |outcome: &str, reason: &str, lines_left_out| EntryJson {
            at_us: NOW - 90_000_000,
            version: "7.2".to_owned(),
            replaced: "7.1".to_owned(),
            actor: "ann@desk".to_owned(),
            reason: reason.to_owned(),
            outcome: outcome.to_owned(),
            lines: vec!["a: rate 50/s -> 60/s over 15 s".to_owned()],
            lines_left_out,
        };
        let entries = vec![entry("applied", "tier 2\u{1b}[2J", 0), entry("refused", "", 3)];
        let history = HistoryJson { version: "7.2".to_owned(), kept_from: String::new(), entries };
        assert_eq!(
            render_history(&history, NOW, Paint::OFF),
            "7.2 instead of 7.1  2026-11-30 13:03:27Z (1m30s ago)  by ann@desk: tier 2\u{fffd}[2J\n    a: rate 50/s -> 60/s over 15 s\n\
             refused  2026-11-30 13:03:27Z (1m30s ago)  by ann@desk\n    a: rate 50/s -> 60/s over 15 s\n    \
             … 3 more, not kept\n"
        );
    }
}
