//! `tollgate tail`: what happens in a group, a line for each event as it happens.
//!
//! Seen by asking every second and comparing: what comes and goes between two answers isn't seen.

use super::print_line;
use super::status::counted;
use crate::args::{Global, Tail};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, left};
use crate::signals::StopSignals;
use crate::table::{Paint, Tone, printable};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_workflows::config::view::{EntryJson, HistoryFilterJson, HistoryJson};
use tollgate_workflows::details::{key as key_text, rate_text};
use tollgate_workflows::wire::explain::starving_text;
use tollgate_workflows::wire::status::{FilterJson, LimitRowJson, StatusJson};

/// Changes that are asked for at a time: more than are made in a second.
const CHANGES_MAX: u64 = 50;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Happened {
    /// When, by the clock of the Temporal server.
    at_us: u64,
    /// What kind it is, for scripts: `change`, `workers`, `ramp`, `starving`, `recovery`, `reset`, `unreadable`.
    kind: &'static str,
    /// Of which limit.
    limit: Option<String>,
    text: String,
    tone: Tone,
}

/// Prints what happens until it is told to stop.
///
/// # Errors
/// As [`Session::query`] at the first answers; later ones are asked for again, which is said once.
pub async fn run(global: &Global, options: &Tail) -> Result<(), Failure> {
    let mut session = Session::open(global).await?;
    let mut stop = StopSignals::listen()?;
    let paint = Paint::of_stdout();
    let (mut status, mut history) = ask(&session).await?;
    let mut ticks = interval(options.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut is_cut_off = false;
    loop {
        let next = async {
            ticks.tick().await;
            session.restart_time();
            ask(&session).await
        };
        let answer = tokio::select! {
            _ = stop.recv() => return Ok(()),
            answer = next => answer,
        };
        match answer {
            Ok((now, changes)) => {
                let mut happened = changes_since(&history, &changes);
                happened.extend(between(&status, &now));
                happened.sort_by_key(|happened| happened.at_us);
                for one in &happened {
                    print_line(&shown(one, global.json, paint))?;
                }
                (status, history, is_cut_off) = (now, changes, false);
            }
            Err(failure) if !is_cut_off => {
                is_cut_off = true;
                let text = format!("no answer, asking again: {failure}");
                let at_us = moment::now_us();
                let one = Happened { at_us, kind: "silence", limit: None, text, tone: Tone::Warn };
                print_line(&shown(&one, global.json, paint))?;
            }
            Err(_) => {}
        }
    }
}

async fn ask(session: &Session) -> Result<(StatusJson, HistoryJson), Failure> {
    let filter = HistoryFilterJson { limit: String::new(), count: Some(CHANGES_MAX) };
    let history = session.query(Workflow::Config, "history", &filter).await?.read()?;
    let status = session.query(Workflow::Coordinator, "status", &FilterJson::default()).await?.read()?;
    Ok((status, history))
}

/// Entries that weren't there before, oldest first.
fn changes_since(before: &HistoryJson, now: &HistoryJson) -> Vec<Happened> {
    let new = now.entries.iter().take_while(|entry| !before.entries.contains(entry));
    let mut happened: Vec<Happened> = new.map(of_entry).collect();
    happened.reverse();
    happened
}

fn of_entry(entry: &EntryJson) -> Happened {
    let why = if entry.reason.is_empty() { String::new() } else { format!(" ({})", entry.reason) };
    let lines = entry.lines.join("; ");
    let more =
        if entry.lines_left_out > 0 { format!("; {} more", entry.lines_left_out) } else { String::new() };
    let (what, tone) = match entry.outcome.as_str() {
        "refused" => ("refused", Tone::Warn),
        "adopted" => ("taken over", Tone::Plain),
        _ => ("changed", Tone::Plain),
    };
    let text = format!("{what} by {}{why}: {lines}{more} [{}]", entry.actor, entry.version);
    Happened { at_us: entry.at_us, kind: "change", limit: None, text, tone }
}

/// What must have happened for one answer to follow another.
fn between(before: &StatusJson, now: &StatusJson) -> Vec<Happened> {
    let mut happened = Vec::new();
    let mut add = |kind, limit: Option<&LimitRowJson>, text: String, tone| {
        happened.push(Happened { at_us: now.now_us, kind, limit: limit.map(key_text), text, tone });
    };
    if before.workers != now.workers {
        add(
            "workers",
            None,
            format!("{}, there were {}", counted(now.workers, "worker"), before.workers),
            Tone::Plain,
        );
    }
    match (before.recovering_until_us, now.recovering_until_us) {
        (None, Some(until)) => {
            let text = format!(
                "recovering until {}: leases are confirmed, none are raised",
                clock(until, now.now_us)
            );
            add("recovery", None, text, Tone::Warn);
        }
        (Some(_), None) => add("recovery", None, "recovered".to_owned(), Tone::Plain),
        _ => {}
    }
    if now.resets > before.resets {
        add("reset", None, "a reset of the coordinator was noticed".to_owned(), Tone::Warn);
    }
    if now.unreadable.count > before.unreadable.count {
        let more = counted(now.unreadable.count - before.unreadable.count, "message");
        let last = &now.unreadable;
        let text =
            format!("{more} refused or unreadable, the last one {}: {}", last.last_name, last.last_error);
        add("unreadable", None, text, Tone::Warn);
    }
    for row in &now.limits {
        let Some(old) = before.limits.iter().find(|old| key_text(old) == key_text(row)) else { continue };
        match (&old.starving, &row.starving) {
            (None, Some(starving)) => {
                add(
                    "starving",
                    Some(row),
                    format!("has room, and {}", starving_text(row, starving)),
                    Tone::Warn,
                );
            }
            (Some(_), None) => add("starving", Some(row), "nobody starves any more".to_owned(), Tone::Plain),
            _ => {}
        }
        let is_on = |row: &LimitRowJson, at: u64| row.ramp_ends_us.filter(|end| *end > at);
        match (is_on(old, before.now_us), is_on(row, now.now_us)) {
            (None, Some(end)) => {
                let (from, to) = (
                    rate_text(row.rate_micro, row.target_micro),
                    rate_text(row.target_micro, row.target_micro),
                );
                add(
                    "ramp",
                    Some(row),
                    format!("ramps from {from} to {to} in {}", left(end, now.now_us)),
                    Tone::Plain,
                );
            }
            (Some(_), None) => {
                let rate = rate_text(row.rate_micro, row.target_micro);
                add("ramp", Some(row), format!("ramp over, the rate is {rate}"), Tone::Plain);
            }
            _ => {}
        }
    }
    happened
}

fn shown(one: &Happened, json: bool, paint: Paint) -> String {
    if json {
        return json!({ "at_us": one.at_us, "kind": one.kind, "limit": one.limit, "text": one.text })
            .to_string();
    }
    let limit = one.limit.as_deref().map(|limit| format!("{}: ", printable(limit))).unwrap_or_default();
    let text = format!("{limit}{}", printable(&one.text));
    let text = if one.tone == Tone::Warn { paint.warn(&text) } else { text };
    format!("{}  {text}", paint.dim(&moment::absolute(one.at_us)))
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::{NOW, row, status};
    use super::*;

    fn texts(happened: &[Happened]) -> Vec<String> {
        happened.iter().map(|one| shown(one, false, Paint::OFF)).collect()
    }

    #[test]
    fn what_changed_between_two_answers_is_a_line_each() {
        let before = status(vec![row("a", 50), row("b", 10)]);
        let mut now = before.clone();
        now.now_us += 1_000_000;
        now.workers = 6;
        now.resets = 1;
        now.recovering_until_us = Some(now.now_us + 60_000_000);
        now.limits[0].ramp_ends_us = Some(now.now_us + 30_000_000);
        now.limits[0].target_micro = 100_000_000;
        now.unreadable.count = 2;
        now.unreadable.last_name = "lease".to_owned();
        now.unreadable.last_error = "cost is 0".to_owned();
        let happened = texts(&between(&before, &now));
        assert_eq!(happened.len(), 5, "{happened:#?}");
        let text = happened.join("\n");
        for part in [
            "6 workers, there were 5",
            "recovering until ",
            "a reset of",
            "2 messages refused",
            "a: ramps from 50/s to 100/s in 30s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(between(&now, &now).is_empty());
        let back = texts(&between(&now, &before)).join("\n");
        assert!(back.contains("recovered") && back.contains("a: ramp over, the rate is 50/s"), "{back}");
    }

    #[test]
    fn changes_are_told_once_oldest_first_and_harmless_for_a_terminal() {
        let entry = |n: u64, outcome: &str| EntryJson {
            at_us: NOW + n,
            version: format!("7.{n}"),
            replaced: format!("7.{}", n - 1),
            actor: "ann\u{1b}[2J".to_owned(),
            reason: "tier 2".to_owned(),
            outcome: outcome.to_owned(),
            lines: vec![format!("a: change {n}")],
            lines_left_out: 0,
        };
        let history = |entries: Vec<EntryJson>| HistoryJson {
            version: "7.9".to_owned(),
            kept_from: String::new(),
            entries,
        };
        let before = history(vec![entry(1, "applied")]);
        let now = history(vec![entry(3, "refused"), entry(2, "applied"), entry(1, "applied")]);
        let happened = changes_since(&before, &now);
        let lines = texts(&happened);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("changed by ann\u{fffd}[2J (tier 2): a: change 2 [7.2]"), "{}", lines[0]);
        assert!(lines[1].contains("refused by"), "{}", lines[1]);
        let json: serde_json::Value = serde_json::from_str(&shown(&happened[0], true, Paint::OFF)).unwrap();
        assert_eq!((json["kind"].as_str(), json["at_us"].as_u64()), (Some("change"), Some(NOW + 2)));
    }
}
