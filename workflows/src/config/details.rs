//! What an operator sees of a config workflow in the Temporal UI, as Markdown.

use super::book::overrides::Source;
use super::book::ramps::about;
use super::book::{Book, tiers};
use super::{Config, text};
use crate::details::{clock, escaped, table};
use std::fmt::Write;
use tollgate_core::limit::{CellConfig, Conduct};
use tollgate_core::units::{Amount, LedgerTime};

/// How many limits the table shows: the queries show all of them.
const ROWS_MAX: usize = 100;
/// How many ramps are listed: those of one change.
const RAMPS_MAX: usize = 20;
/// How many changes are listed.
const CHANGES_MAX: usize = 5;
/// How many lines of a change are listed.
const LINES_MAX: usize = 5;

/// How to use the workflow. Static details of a workflow don't survive continue-as-new, so this is part of the current
/// ones.
const USAGE: &str = r#"
### What to do here
Change limits with `tollgate limit set api --rate 100/s --burst 32 --ramp 15s`, or with update `apply`:

```json
{
  "actor": "ann",
  "reason": "more quota",
  "ramp_ms": 15000,
  "set": [
    {
      "name": "api",
      "burst": 32,
      "rate": {"count": 100, "period_ms": 1000}
    }
  ]
}
```

- It answers with the version and one line for each change, or with every problem.
- `"overrides": [{"limit": "api", "value": {"times_milli": 2000}, "for_ms": 1800000}]` changes a limit for a time, `"schedules"` does so again and again, `"rollback": "7"` goes back to what version 7 set.
- It also takes `"remove": ["api"]`, `"abort_ramps": ["api"]`, `"pause_ramps": ["api"]`, `"resume_ramps": ["api"]`, `"pause": ["api"]` (all its work is refused until `"resume": ["api"]`), `"if_version": "…"`, `"dry_run": true`.
- A change goes linearly to its target, within 60 s unless `ramp_ms` says otherwise; a new limit begins at once. `burst` and `lease_ms` of a limit that is there stay as they are unless given.
- Signal `update_config` takes the same and can't answer: what was refused is shown above.
- Signal `ensure` tells the coordinator again, and starts it when it isn't there.

Queries: `config` (all limits), `effective` with `{"at_ms": 1796043897000}` (the values at that time), `history` with `{"limit": "api", "count": 20}` (who changed what, when and why), `diff` with `{"from": "6", "to": "7"}`.
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
    writeln!(out, "### Limits of group {}", escaped(&config.group))?;
    writeln!(out, "Version {}, as of {}.\n", book.version, text::time(book.now))?;
    if config.adopting {
        writeln!(
            out,
            "**Starting**: asks the coordinator which limits there are; changes wait until it has answered.\n"
        )?;
    } else if push.acknowledged != Some(book.version) {
        writeln!(out, "**The coordinator doesn't have this version yet.** {}\n", escaped(&push.error))?;
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
            escaped(&why)
        )?;
    }
    if config.unreadable.count > 0 {
        let (count, last) = (config.unreadable.count, &config.unreadable);
        let when = text::time(LedgerTime(last.last_us));
        writeln!(
            out,
            "Unreadable messages: {count}, the last `{}` at {when}: {}\n",
            last.last_name,
            escaped(&last.last_error)
        )?;
    }
    if book.cells.is_empty() {
        writeln!(out, "No limits yet.")?;
    } else {
        let rows = book.cells.values().take(ROWS_MAX).map(|limit| {
            let (rate, burst) = (&limit.rate, &limit.burst);
            let tokens = |amount: Amount| text::milli(amount.milli_floor());
            let rate = ramp(text::rate(rate.at(book.now)), text::rate(rate.target), rate.end, book.now);
            let burst = ramp(tokens(burst.at(book.now)), tokens(burst.target), burst.end, book.now);
            let state = match limit.conduct {
                Conduct { paused: true, .. } => " (paused)",
                Conduct { shadow: true, .. } => " (shadow)",
                _ => "",
            };
            let by = book.layers.get(&limit.key).and_then(|layers| {
                let top = layers.on_top.as_ref()?;
                let over = layers.over.as_ref().filter(|_| top.source == Source::Override);
                let until = over.map(|over| format!(" up to {}", text::time(over.until))).unwrap_or_default();
                Some(format!(" (by {}{until})", top.source.text()))
            });
            let rate = rate + &escaped(&by.unwrap_or_default());
            [
                escaped(&limit.key.to_string()) + state,
                rate,
                burst,
                text::span(limit.lease),
                escaped(&how(limit)),
            ]
        });
        table(out, &["limit", "rate", "burst", "lease", "policy and tier"], rows);
    }
    if book.cells.len() > ROWS_MAX {
        writeln!(out, "\nand {} more: see query `config`", book.cells.len() - ROWS_MAX)?;
    }
    write_ramps(book, out)?;
    writeln!(out, "\n### Last changes")?;
    for entry in book.history.iter().rev().take(CHANGES_MAX) {
        let reason =
            if entry.reason.is_empty() { String::new() } else { format!(" ({})", escaped(&entry.reason)) };
        let lines: Vec<String> = entry.lines.iter().take(LINES_MAX).map(|line| escaped(line)).collect();
        write!(out, "- {} by {}{reason}: {}", text::time(entry.at), escaped(&entry.actor), lines.join("; "))?;
        let more = entry.lines.len().saturating_sub(LINES_MAX) as u64 + entry.lines_left_out;
        if more > 0 {
            write!(out, "; and {more} more")?;
        }
        writeln!(out)?;
    }
    out.push_str(USAGE);
    Ok(())
}

/// How a limit counts, and where its tier stands.
fn how(limit: &CellConfig) -> String {
    format!("{}{}", text::policy(&limit.policy), tiers::described(limit))
}

/// Ramps that are under way, and those that stand still.
fn write_ramps(book: &Book, out: &mut String) -> std::fmt::Result {
    let mut lines = Vec::new();
    for limit in book.cells.values() {
        let key = escaped(&limit.key.to_string());
        let tokens = |amount: Amount| text::milli(amount.milli_floor());
        let (rate, burst) = (&limit.rate, &limit.burst);
        for (what, from, to, start, end) in [
            ("rate", text::rate(rate.source), text::rate(rate.target), rate.start, rate.end),
            ("burst", tokens(burst.source), tokens(burst.target), burst.start, burst.end),
        ] {
            if book.now < end {
                let (start, end) = (text::time(start), clock(end.0));
                lines.push(format!("- {key}: {what} {from} → {to}, from {start} to {end}"));
            }
        }
        let paused = book.paused.get(&limit.key).copied().unwrap_or_default();
        let rate = paused.rate.map(|(to, left)| ("rate", text::rate(to), left));
        let burst = paused.burst.map(|(to, left)| ("burst", to.to_string(), left));
        for (what, to, left) in rate.into_iter().chain(burst) {
            lines.push(format!("- {key}: {what} **paused**, {} before {to}", about(left)));
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n### Ramps")?;
    for line in lines.iter().take(RAMPS_MAX) {
        writeln!(out, "{line}")?;
    }
    if lines.len() > RAMPS_MAX {
        writeln!(out, "- and {} more: see query `config`", lines.len() - RAMPS_MAX)?;
    }
    Ok(())
}

/// A value, and where it is on its way to.
fn ramp(value: String, target: String, end: LedgerTime, now: LedgerTime) -> String {
    if now < end && value != target { format!("{value} → {target} at {}", clock(end.0)) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::read_json;

    #[test]
    fn ramps_are_listed_with_their_times_and_paused_ones_with_what_is_left() {
        let mut book = Book::new(LedgerTime(1_796_043_897_000_000));
        let mut apply = |seconds: u64, json: &str| {
            let at = LedgerTime(1_796_043_897_000_000 + seconds * 1_000_000);
            book.apply(at, &read_json(json.as_bytes()).unwrap()).unwrap();
        };
        apply(
            0,
            r#"{"set":[{"name":"a*b","rate":{"count":50},"burst":10},{"name":"slow","rate":{"count":5},"burst":5}]}"#,
        );
        apply(10, r#"{"set":[{"name":"a*b","rate":{"count":100}},{"name":"slow","rate":{"count":10}}]}"#);
        apply(25, r#"{"pause_ramps":["slow"]}"#);
        let mut page = String::new();
        write_ramps(&book, &mut page).unwrap();
        assert_eq!(
            page,
            "\n### Ramps\n- a\\*b: rate 50/s → 100/s, from 2026-11-30 13:05:07Z to 13:06:07 UTC\n\
             - slow: rate **paused**, 45 s before 10/s\n"
        );
        let key = tollgate_core::limit::CellKey::of("slow");
        assert_eq!(how(&book.cells[&key]), "token bucket");
    }
}
