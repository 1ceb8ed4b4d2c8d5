//! What an operator sees of a config workflow in the Temporal UI, as Markdown.

use super::{Config, text};
use std::fmt::Write;
use tollgate_core::units::LedgerTime;

/// How many limits the table shows: the queries show all of them.
const ROWS_MAX: usize = 100;
/// How many changes are listed.
const CHANGES_MAX: usize = 5;
/// How many lines of a change are listed.
const LINES_MAX: usize = 5;

/// How to use the workflow. Static details of a workflow don't survive continue-as-new, so this is part of the current
/// ones.
const USAGE: &str = r#"
### Usage
| message | kind | input |
|---|---|---|
| `apply` | update | `{"actor":"ann","reason":"more quota","set":[{"name":"api","rate":{"count":100,"period_ms":1000},"burst":32}],"ramp_ms":15000}`; also `"remove":["api"]`, `"abort_ramps":["api"]`, `"if_version":"…"`, `"dry_run":true`; answers with the version and one line per change, or with every problem |
| `update_config` | signal | as `apply`; can't be answered: what was refused is shown above and by `config` and `history` |
| `ensure` | signal | none: tells the coordinator again, and starts it when it isn't there |
| `config` | query | none: limits, ramps, version, what was refused |
| `effective` | query | none, or `{"at_ms":1796043897000}`: the values in force then |
| `history` | query | none, or `{"limit":"api","count":20}`: who changed what, when and why |

A change goes linearly to its target, within 60 s unless `ramp_ms` says otherwise; a new limit begins at once. `burst` and
`lease_ms` of a limit that is there stay as they are unless given.
"#;

/// The text for the UI.
pub(super) fn markdown(config: &Config) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = write(config, &mut out);
    out
}

fn write(config: &Config, out: &mut String) -> std::fmt::Result {
    let (book, push) = (&config.book, &config.push);
    writeln!(out, "### Limits of group `{}`", cell(&config.group))?;
    writeln!(out, "Version {}, as of {}.\n", book.version, text::time(book.now))?;
    if config.adopting {
        writeln!(
            out,
            "**Starting**: asks the coordinator which limits there are; changes wait until it has answered.\n"
        )?;
    } else if push.acknowledged != Some(book.version) {
        writeln!(out, "**The coordinator doesn't have this version yet.** {}\n", cell(&push.error))?;
    }
    if book.refused_count > 0 {
        let last = book.refused.back();
        let why = last.map(|entry| entry.lines.join("; ")).unwrap_or_default();
        let when = last.map_or(LedgerTime(0), |entry| entry.at);
        writeln!(
            out,
            "Refused signals: {}, the last at {}: {}\n",
            book.refused_count,
            text::time(when),
            cell(&why)
        )?;
    }
    if config.unreadable.count > 0 {
        let (count, last) = (config.unreadable.count, &config.unreadable);
        let when = text::time(LedgerTime(last.last_us));
        writeln!(
            out,
            "Unreadable messages: {count}, the last `{}` at {when}: {}\n",
            last.last_name,
            cell(&last.last_error)
        )?;
    }
    writeln!(out, "| limit | rate | target | burst | lease | ramp ends |\n|---|---|---|---|---|---|")?;
    for limit in book.cells.values().take(ROWS_MAX) {
        let end = limit.rate.end.max(limit.burst.end);
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            cell(&limit.key.to_string()),
            text::rate(limit.rate.at(book.now)),
            text::rate(limit.rate.target),
            text::milli(limit.burst.at(book.now).milli_floor()),
            text::span(limit.lease),
            if book.now < end { text::time(end) } else { String::new() },
        )?;
    }
    if book.cells.len() > ROWS_MAX {
        writeln!(out, "\nand {} more: see query `config`", book.cells.len() - ROWS_MAX)?;
    }
    writeln!(out, "\n### Last changes")?;
    for entry in book.history.iter().rev().take(CHANGES_MAX) {
        let reason =
            if entry.reason.is_empty() { String::new() } else { format!(" ({})", cell(&entry.reason)) };
        writeln!(out, "- {} by {}{reason}", text::time(entry.at), cell(&entry.actor))?;
        for line in entry.lines.iter().take(LINES_MAX) {
            writeln!(out, "  - {}", cell(line))?;
        }
        let more = entry.lines.len().saturating_sub(LINES_MAX) as u64 + entry.lines_left_out;
        if more > 0 {
            writeln!(out, "  - and {more} more")?;
        }
    }
    out.push_str(USAGE);
    Ok(())
}

/// Text from outside that can't break a table or be taken for markup.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '<' | '\\' | '#' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
