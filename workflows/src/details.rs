//! What the Temporal UI shows of a workflow: Markdown that an operator can read without documents.

use crate::wire::status::StatusJson;
use std::fmt::Write;
use tollgate_core::ledger::view::CellView;
use tollgate_core::units::LedgerTime;

/// The most limits in the table: the rest is a query away.
const ROWS_MAX: usize = 50;

/// The coordinator's page.
pub fn coordinator(status: &StatusJson, views: &[CellView]) -> String {
    let mut page = String::new();
    let _ = writeln!(
        page,
        "**Group {}**: {} workers, heartbeat {} ms, configuration {}.{}, as of {}.\n",
        status.group,
        status.workers,
        status.heartbeat_ms,
        status.version.run_us,
        status.version.n,
        clock(status.now_us),
    );
    if let Some(until) = status.recovering_until_us {
        let _ = writeln!(
            page,
            "**Recovering until {}**: what is held goes on, nothing new is granted.\n",
            clock(until)
        );
    }
    if status.unreadable.count > 0 {
        let unreadable = &status.unreadable;
        let _ = writeln!(
            page,
            "**{} unreadable messages**, the last a `{}` at {}: {}\n",
            unreadable.count,
            unreadable.last_name,
            clock(unreadable.last_us),
            escaped(&unreadable.last_error),
        );
    }
    if status.ignored_configs > 0 {
        let _ = writeln!(page, "{} older configurations ignored.\n", status.ignored_configs);
    }
    let _ =
        writeln!(page, "| limit | rate now | target | burst | used | free | out | waiting | holders | by |");
    let _ = writeln!(page, "|---|---|---|---|---|---|---|---|---|---|");
    for view in views.iter().take(ROWS_MAX) {
        let state = if view.removed {
            " (removed)"
        } else if view.recovering_until.is_some() {
            " (recovering)"
        } else {
            ""
        };
        let target = match view.ramp_ends {
            Some(end) => format!("{} at {}", per_second(view.target_micro), clock(end.0)),
            None => "".to_owned(),
        };
        let _ = writeln!(
            page,
            "| {}{state} | {} | {target} | {} | {} | {} | {} | {} | {} | {:?} |",
            escaped(&view.key.to_string()),
            per_second(view.rate_micro),
            view.burst,
            view.used,
            view.free,
            view.share,
            view.waiting,
            view.holders.len(),
            view.kind,
        );
    }
    if views.len() > ROWS_MAX {
        let _ = writeln!(page, "\n{} more: query `limit`.", views.len() - ROWS_MAX);
    }
    page.push_str(USAGE);
    page
}

const USAGE: &str = "\n---\n\
    Queries: `status`, `limit`, `worker`, `grants` (each takes `{\"limit\":…, \"worker\":…, \"client\":…}` or nothing), \
    `configuration`.\n\n\
    Signals: `lease` `{\"client\":\"c1\", \"limit\":\"api\", \"cost\":1, \"id\":\"job-7\"}`, then see query `grants`; \
    `report` `{\"id\":\"job-7\", \"limit\":\"api\", \"used\":1}`; `revoke` `{\"client\":\"c1\"}`; \
    `evict` `{\"worker\":\"host/123\"}`.\n\n\
    Updates: `acquire` (as `lease`, with an answer), `heartbeat` (workers).\n\n\
    Change limits at the config workflow: `tollgate limit set`, or update `apply` on `tollgate-config/<group>`.\n";

/// Tokens a second with up to three digits.
pub fn per_second(micro: u64) -> String {
    let (whole, rest) = (micro / 1_000_000, micro % 1_000_000);
    if rest == 0 {
        return format!("{whole}/s");
    }
    let digits = format!("{rest:06}");
    let digits = if whole > 0 { &digits[..3] } else { digits.as_str() };
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() { format!("{whole}/s") } else { format!("{whole}.{digits}/s") }
}

/// The time of day in UTC, to the second.
pub fn clock(us: u64) -> String {
    let secs = LedgerTime(us).0 / 1_000_000;
    format!("{:02}:{:02}:{:02} UTC", secs / 3_600 % 24, secs / 60 % 60, secs % 60)
}

/// Text that can't break a table or be taken for markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_read_well() {
        assert_eq!(per_second(50_000_000), "50/s");
        assert_eq!(per_second(50_500_000), "50.5/s");
        assert_eq!(per_second(27_777), "0.027777/s");
        assert_eq!(clock(3_661_000_000), "01:01:01 UTC");
        assert_eq!(escaped("a|b\n<script>"), "a\\|b \\<script\\>");
    }
}
