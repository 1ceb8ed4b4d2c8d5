//! What the Temporal UI shows of a workflow: Markdown that an operator can read without documents.

use crate::wire::explain::starving_text;
use crate::wire::status::{LimitRowJson, StatusJson};
use std::fmt::Write;
use tollgate_core::limit::CellKey;
use tollgate_core::units::LedgerTime;

/// The most limits in the table: the rest is a query away.
const ROWS_MAX: usize = 50;
/// The most starving limits that are told of above it: more have one cause.
const STARVING_MAX: usize = 5;
const MICRO: u64 = 1_000_000;
const PPB: u64 = 1_000_000_000;
/// The UI draws tables without any room between columns, and takes plain blanks at the ends of cells away.
const GAP: &str = "\u{a0}\u{a0}\u{a0}";

/// The coordinator's page.
pub fn coordinator(status: &StatusJson) -> String {
    let mut page = String::new();
    let _ = writeln!(
        page,
        "**Group {}**: {} worker{}, heartbeat every {}, configuration {}.{}, as of {}.\n",
        escaped(&status.group),
        status.workers,
        if status.workers == 1 { "" } else { "s" },
        seconds(status.heartbeat_ms),
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
            "**{} messages refused or unreadable**, the last a `{}` at {}: {}\n",
            unreadable.count,
            unreadable.last_name,
            clock(unreadable.last_us),
            escaped(&unreadable.last_error),
        );
    }
    if status.ignored_configs > 0 {
        let _ = writeln!(page, "Older configurations ignored: {}.\n", status.ignored_configs);
    }
    let starving = status.limits.iter().filter_map(|row| Some((row, row.starving.as_ref()?)));
    for (row, who) in starving.take(STARVING_MAX) {
        let (name, text) = (escaped(&key(row)), escaped(&starving_text(row, who)));
        let _ = writeln!(page, "**{name} has room, and {text}**. Query `explain` says more.\n");
    }
    if status.limits.is_empty() {
        page.push_str("No limits yet: `tollgate limit set NAME --rate 50/s` makes one.\n");
    } else {
        let titles = ["limit", "rate", "burst", "used", "free", "out", "waiting", "holders"];
        table(&mut page, &titles, status.limits.iter().take(ROWS_MAX).map(cells));
        if status.limits.len() > ROWS_MAX {
            let _ = writeln!(page, "\n{} more: query `limit`.", status.limits.len() - ROWS_MAX);
        }
        page.push_str(COLUMNS);
    }
    page.push_str(USAGE);
    page
}

/// A table whose first two columns are text and whose others are figures.
pub(crate) fn table<const N: usize>(
    page: &mut String,
    titles: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let line = |cells: &[&str]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| match column {
            0 | 1 => format!(" {cell}{GAP} |"),
            _ => format!(" {GAP}{cell} |"),
        });
        format!("|{}\n", cells.collect::<String>())
    };
    page.push_str(&line(titles));
    let rules = (0..N).map(|column| if column < 2 { ":---|" } else { "---:|" });
    let _ = writeln!(page, "|{}", rules.collect::<String>());
    for row in rows {
        page.push_str(&line(&row.each_ref().map(String::as_str)));
    }
}

fn cells(row: &LimitRowJson) -> [String; 8] {
    let state = match (row.removed, row.conduct.paused, row.recovering_until_us) {
        (true, _, _) => " (removed)",
        (false, true, _) => " (paused)",
        (false, false, Some(_)) => " (recovering)",
        (false, false, None) if row.conduct.shadow => " (shadow)",
        (false, false, None) => "",
    };
    let rate = match row.ramp_ends_us {
        Some(end) => format!(
            "{} → {} at {}",
            rate_text(row.rate_micro, row.target_micro),
            rate_text(row.target_micro, row.target_micro),
            clock(end).trim_end_matches(" UTC")
        ),
        None => rate_text(row.rate_micro, row.target_micro),
    };
    let free =
        if row.debt_milli > 0 { format!("-{}", tenths(row.debt_milli)) } else { tenths(row.free_milli) };
    [
        format!("{}{state}", escaped(&key(row))),
        rate,
        row.burst.to_string(),
        row.used.to_string(),
        free,
        out_text(row),
        if row.starving.is_some() { format!("{} (starving)", row.waiting) } else { row.waiting.to_string() },
        row.holders.to_string(),
    ]
}

/// A row's limit, with meter and tier where they aren't the only ones.
pub fn key(row: &LimitRowJson) -> String {
    CellKey { limit: row.limit.clone(), meter: row.meter.clone(), tier: row.tier.clone() }.to_string()
}

const COLUMNS: &str = "\nrate: now, and where a ramp leads; burst: the most tokens at once; used: tokens, as reported so far; \
    free: tokens that nobody holds; out: what workers hold, as a share of the rate or in tokens; waiting: tokens that are \
    wanted and not there; holders: workers that have a part.\n";

const USAGE: &str = "\n### What to do here\n\
    - See who holds, who waits and why: query `explain` with `{\"name\":\"api\"}`, a limit or a worker, or \
    `tollgate explain api`.\n\
    - Take a worker's quota away: signal `evict` with `{\"worker\":\"host/123\"}`.\n\
    - Ask for a permit: signal `lease` with `{\"client\":\"me\", \"limit\":\"api\", \"id\":\"job-7\"}`, see query `grants`; \
    when it is used: signal `report` with `{\"id\":\"job-7\", \"limit\":\"api\", \"used\":1}`; to give all back: signal `revoke` \
    with `{\"client\":\"me\"}`. Update `acquire` is `lease` with an answer.\n\
    - Change limits: `tollgate limit set`, or workflow `tollgate-config/…` of this group.\n\n\
    Other queries: `status`, `limit`, `worker`, `configuration`. Update `heartbeat` is for workers.\n";

/// What workers hold of a limit: a share of its rate, else tokens.
pub fn out_text(row: &LimitRowJson) -> String {
    if row.kind == "tokens" || row.share_ppb == 0 && row.cap_milli > 0 {
        tenths(row.cap_milli)
    } else {
        percent(row.share_ppb)
    }
}

/// Tokens per time of `micro` millionths of a token a second: in the unit of `like` where that is the smallest that
/// gives a whole number, else per second. Rates come rounded down to a millionth a second, so that `100/h` comes as
/// 0.027777.
pub fn rate_text(micro: u64, like: u64) -> String {
    const WHOLE_MAX: u64 = 100_000;
    let units = [(1, "s"), (60, "min"), (3_600, "h"), (86_400, "day")];
    let whole = |secs: u64| {
        let amount = like.saturating_mul(secs);
        let rounded = amount.saturating_add(MICRO / 2) / MICRO;
        let is_near = amount.abs_diff(rounded.saturating_mul(MICRO)) < secs;
        rounded > 0 && (secs == 1 || rounded <= WHOLE_MAX) && is_near
    };
    let (secs, unit) = units.into_iter().find(|(secs, _)| whole(*secs)).unwrap_or((1, "s"));
    let amount = micro.saturating_mul(secs);
    let rounded = amount.saturating_add(MICRO / 2) / MICRO;
    if amount.abs_diff(rounded.saturating_mul(MICRO)) < secs {
        return format!("{rounded}/{unit}");
    }
    let decimal = |places: usize, scale: u64| {
        let text = format!("{}.{:0places$}", amount / MICRO, amount % MICRO / scale);
        format!("{}/{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    // On its way, a rate is read at a glance; once it stays, it is the same as in the configuration.
    if micro != like && amount >= 10 * MICRO { decimal(1, 100_000) } else { decimal(3, 1_000) }
}

/// Thousandths of a token, as tokens with one decimal, rounded down.
pub fn tenths(milli: u64) -> String {
    format!("{}.{}", milli / 1_000, milli % 1_000 / 100)
}

/// Parts in 10^9, as percent, rounded to whole ones as far as that doesn't hide that there is something.
pub fn percent(ppb: u32) -> String {
    let ppb = u64::from(ppb);
    let rounded = (ppb * 100 + PPB / 2) / PPB;
    match ppb {
        0 => "0%".to_owned(),
        _ if rounded == 0 => "<1%".to_owned(),
        _ => format!("{rounded}%"),
    }
}

/// Milliseconds in seconds.
fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The time of day in UTC, to the second.
pub fn clock(us: u64) -> String {
    let secs = LedgerTime(us).0 / 1_000_000;
    format!("{:02}:{:02}:{:02} UTC", secs / 3_600 % 24, secs / 60 % 60, secs % 60)
}

/// Text that can't break a table or be taken for markup.
pub(crate) fn escaped(text: &str) -> String {
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
    fn times_and_names_read_well() {
        assert_eq!(clock(3_661_000_000), "01:01:01 UTC");
        assert_eq!(seconds(1_000), "1 s");
        assert_eq!(seconds(1_050), "1.05 s");
        assert_eq!(escaped("a|b\n<script>"), "a\\|b \\<script\\>");
    }

    #[test]
    fn somebody_who_starves_is_told_of_above_the_table_and_in_it() {
        let status = serde_json::json!({
            "group": "default", "now_us": 1, "epoch": 1, "version": {"run_us": 1, "n": 1}, "rules_version": 1, "workers": 1,
            "heartbeat_ms": 1_000, "unreadable": {"count": 0}, "digest": "",
            "limits": [{
                "limit": "a*b", "meter": "requests", "tier": "default", "rate_micro": 50_000_000, "target_micro": 50_000_000,
                "burst": 16, "free_milli": 0, "share_ppb": 0, "cap_milli": 0, "kind": "shares", "kind_reason": "", "used": 7,
                "waiting": 5, "holders": 1, "used_micro": 12_000_000,
                "starving": {"who": "host|1", "tokens": 5, "since_us": 0, "reason": "reserve", "text": "so", "help": ""},
            }],
        });
        let page = coordinator(&serde_json::from_value(status).unwrap());
        let told = "**a\\*b has room, and host\\|1 has waited for 5 tokens since 00:00:00 UTC, while 12/s of 50/s were used: so**.";
        assert!(page.contains(told), "{page}");
        assert!(page.contains("5 (starving) |"), "{page}");
    }

    #[test]
    fn a_table_keeps_its_columns_apart() {
        let mut page = String::new();
        table(&mut page, &["limit", "rate", "burst"], [["a", "5/s", "16"].map(str::to_owned)].into_iter());
        let gap = GAP;
        assert_eq!(
            page,
            format!(
                "| limit{gap} | rate{gap} | {gap}burst |\n|:---|:---|---:|\n| a{gap} | 5/s{gap} | {gap}16 |\n"
            )
        );
    }
}
