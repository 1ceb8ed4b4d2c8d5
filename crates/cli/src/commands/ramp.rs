//! `tollgate ramp`.

use super::{limit, print, print_line};
use crate::args::{Global, OfLimit, Ramp};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, clock, left};
use crate::table::{Cell, Paint, Side, Table};
use tollgate_core::limit::CellKey;
use tollgate_workflows::config::view::{AtJson, ConfigJson, ConfiguredLimitJson, EffectiveJson};
use tollgate_workflows::details::tenths;
use tollgate_workflows::wire::config::ApplyJson;

/// How many characters a bar has.
const BAR: u64 = 20;

/// Shows and changes ramps.
///
/// # Errors
/// As [`Session::query`] and [`Session::update`]; [`Failure::Refused`] when the change is refused.
pub async fn run(global: &Global, command: &Ramp) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    let change = |of: &OfLimit| (vec![of.limit.clone()], limit::base(&of.change));
    let apply = match command {
        Ramp::Show { limit } => return show(&session, limit.as_deref(), global.json).await,
        Ramp::Abort(of) => {
            let (abort_ramps, base) = change(of);
            ApplyJson { abort_ramps, ..base }
        }
        Ramp::Pause(of) => {
            let (pause_ramps, base) = change(of);
            ApplyJson { pause_ramps, ..base }
        }
        Ramp::Resume(of) => {
            let (resume_ramps, base) = change(of);
            ApplyJson { resume_ramps, ..base }
        }
    };
    limit::send(&session, &apply, global.json).await
}

async fn show(session: &Session, only: Option<&str>, json: bool) -> Result<(), Failure> {
    let now_us = moment::now_us();
    let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
    let mut limits = config.limits;
    if let Some(only) = only {
        limits.retain(|limit| limit.limit == only);
        if limits.is_empty() {
            return Err(limit::unknown(only, session.group()));
        }
    }
    limits.retain(|limit| !rows(limit, "", now_us).is_empty());
    if json {
        return print_line(&limit::json_line(&limits)?);
    }
    if limits.is_empty() {
        return print_line("no ramp is under way");
    }
    let at = AtJson { at_ms: Some(now_us / 1_000) };
    let effective = session.query(Workflow::Config, "effective", &at).await?.read()?;
    let paint = Paint::of_stdout();
    print(&paint.fold(&render(&limits, &effective, now_us, paint)))
}

/// One value on its way.
struct Row {
    what: &'static str,
    now: String,
    to: String,
    /// How far it has come, in parts of [`BAR`] and in percent; nothing for a paused one, whose start is forgotten.
    done: Option<(u64, u64)>,
    left_us: u64,
    ends_us: u64,
}

fn rows(limit: &ConfiguredLimitJson, rate_now: &str, now_us: u64) -> Vec<Row> {
    let under_way = [("rate", &limit.rate_ramp), ("burst", &limit.burst_ramp)].map(|(what, ramp)| {
        let ramp = ramp.as_ref().filter(|ramp| ramp.end_us > now_us)?;
        let (length, gone) =
            (ramp.end_us.saturating_sub(ramp.start_us), now_us.saturating_sub(ramp.start_us));
        let part = |of: u64| {
            let whole = u128::from(gone.min(length)) * u128::from(of) / u128::from(length.max(1));
            u64::try_from(whole).unwrap_or(of)
        };
        Some(Row {
            what,
            now: rate_now.to_owned(),
            to: ramp.to.clone(),
            done: Some((part(BAR), part(100))),
            left_us: ramp.end_us.saturating_sub(now_us),
            ends_us: ramp.end_us,
        })
    });
    let paused = [("rate", &limit.rate_paused), ("burst", &limit.burst_paused)].map(|(what, paused)| {
        let paused = paused.as_ref()?;
        let now = rate_now.to_owned();
        Some(Row { what, now, to: paused.to.clone(), done: None, left_us: paused.left_us, ends_us: 0 })
    });
    under_way.into_iter().chain(paused).flatten().collect()
}

fn render(limits: &[ConfiguredLimitJson], effective: &EffectiveJson, now_us: u64, paint: Paint) -> String {
    let mut table = Table::new(&[
        ("LIMIT", Side::Left),
        ("WHAT", Side::Left),
        ("NOW", Side::Right),
        ("TO", Side::Right),
        ("DONE", Side::Left),
        ("LEFT", Side::Right),
        ("ENDS", Side::Left),
    ]);
    for limit in limits {
        let key =
            CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() };
        let is_it = |other: &&tollgate_workflows::config::view::EffectiveLimitJson| {
            other.limit == key.limit && other.meter == key.meter && other.tier == key.tier
        };
        let now = effective.limits.iter().find(is_it).unwrap_or(&limit.effective);
        for row in rows(limit, &now.rate_text, now_us) {
            let is_paused = row.done.is_none();
            let value = if row.what == "rate" { row.now } else { tenths(now.burst_milli) };
            let done = row.done.map_or_else(
                || "paused".to_owned(),
                |(parts, percent)| format!("{} {percent:>3}%", bar(parts)),
            );
            table.row(vec![
                Cell::new(&key),
                Cell::new(row.what),
                Cell::new(value),
                Cell::new(row.to),
                Cell::warn_if(done, is_paused),
                Cell::new(moment::length(row.left_us)),
                if is_paused { Cell::new("when resumed") } else { Cell::new(clock(row.ends_us, now_us)) },
            ]);
        }
    }
    table.render(paint)
}

/// A bar of [`BAR`] characters, of which so many are full.
pub fn bar(full: u64) -> String {
    let full = usize::try_from(full.min(BAR)).unwrap_or(0);
    let rest = usize::try_from(BAR).unwrap_or(0) - full;
    format!("{}{}", "█".repeat(full), "░".repeat(rest))
}

/// The ramps of a limit that stand still, in words.
pub fn paused(limit: &ConfiguredLimitJson) -> Vec<String> {
    let all = [("rate", &limit.rate_paused), ("burst", &limit.burst_paused)];
    let paused = all.into_iter().filter_map(|(what, paused)| {
        let paused = paused.as_ref()?;
        Some(format!("{what} paused, {} before {}", left(paused.left_us, 0), paused.to))
    });
    paused.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::config::view::{PausedRampJson, RampJson};

    const NOW: u64 = 1_796_043_897_000_000;
    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_ramp_shows_how_far_it_has_come_and_a_paused_one_what_is_left() {
        let mut going = limit::tests::limit("api", 100_000_000);
        let ramp = |from: &str, to: &str| RampJson {
            from: from.to_owned(),
            to: to.to_owned(),
            start_us: NOW - 15 * SECOND,
            end_us: NOW + 45 * SECOND,
        };
        going.rate_ramp = Some(ramp("50/s", "100/s"));
        let mut still = limit::tests::limit("slow", 7_000_000);
        still.burst_paused = Some(PausedRampJson { to: "20".to_owned(), left_us: 90 * SECOND });
        let mut effective =
            EffectiveJson { at_us: NOW, version: "7.1".to_owned(), limits: vec![going.effective.clone()] };
        effective.limits[0].rate_text = "62.5/s".to_owned();
        let shown = render(&[going.clone(), still.clone()], &effective, NOW, Paint::OFF);
        assert_eq!(
            shown,
            "\
LIMIT  WHAT      NOW     TO  DONE                        LEFT  ENDS
api    rate   62.5/s  100/s  █████░░░░░░░░░░░░░░░  25%    45s  13:05:42Z
slow   burst    16.0     20  paused                     1m30s  when resumed
"
        );
        assert!(rows(&going, "", NOW + 45 * SECOND).is_empty(), "it is over");
        assert_eq!(paused(&still), ["burst paused, 1m30s before 20"]);
        assert_eq!(bar(99).chars().filter(|c| *c == '█').count(), 20);
    }
}
