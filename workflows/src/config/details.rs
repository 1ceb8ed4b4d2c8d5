//! What an operator sees of a config workflow in the Temporal UI, as Markdown.

use super::book::overrides::Source;
use super::{Config, text};
use crate::details::{clock, escaped, table};
use std::fmt::Write;
use tollgate_core::limit::Conduct;
use tollgate_core::units::{Amount, LedgerTime};

/// How many limits the table shows: the queries show all of them.
const ROWS_MAX: usize = 100;
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
- It also takes `"remove": ["api"]`, `"abort_ramps": ["api"]`, `"pause": ["api"]` (all its work is refused until `"resume": ["api"]`), `"if_version": "…"`, `"dry_run": true`.
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
            [escaped(&limit.key.to_string()) + state, rate, burst, text::span(limit.lease)]
        });
        table(out, &["limit", "rate", "burst", "lease"], rows);
    }
    if book.cells.len() > ROWS_MAX {
        writeln!(out, "\nand {} more: see query `config`", book.cells.len() - ROWS_MAX)?;
    }
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

/// A value, and where it is on its way to.
fn ramp(value: String, target: String, end: LedgerTime, now: LedgerTime) -> String {
    if now < end && value != target { format!("{value} → {target} at {}", clock(end.0)) } else { value }
}
