//! `tollgate apply`, `plan`, `validate`, `export` and `schema`: limits in files.

#![allow(clippy::print_stderr, reason = "notes for people stand beside what a script reads")]

use super::limit::{base, send};
use super::{print, print_line};
use crate::args::{Apply, Change, Export, Files, Global, Plan};
use crate::connection::{Session, Workflow};
use crate::failure::{EXIT_CHANGES, EXIT_OK, Failure};
use crate::file::{self, Wanted};
use crate::moment;
use crate::table::{Paint, printable};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tollgate_core::limit::CellKey;
use tollgate_core::units::LedgerTime;
use tollgate_workflows::config::book::Book;
use tollgate_workflows::config::view::{ConfigJson, ConfiguredLimitJson};
use tollgate_workflows::wire::config::{
    AppliedJson, ApplyJson, LimitJson, LimitPolicyJson, MeterJson, PolicyJson,
};
use tollgate_workflows::wire::layers::{ScheduleJson, ScheduleNameJson};

/// Puts what files say in force: all of it in one version, or nothing.
///
/// # Errors
/// [`Failure::Refused`] with every problem of the files or of the change; else as [`Session::update`].
pub async fn apply(global: &Global, options: &Apply) -> Result<(), Failure> {
    let wanted = checked(&options.files)?;
    let session = Session::open(global).await?;
    let (mut apply, kept) = change(&session, &options.files, &wanted, &options.change).await?;
    apply.ramp_ms = options.ramp.map(|ramp| ramp.millis()).or(wanted.ramp_ms);
    send(&session, &apply, global.json).await?;
    if !global.json {
        note_kept(&kept);
    }
    Ok(())
}

/// Says what [`apply`] would do. Gives the exit code: whether anything would change.
///
/// # Errors
/// As [`apply`].
pub async fn plan(global: &Global, options: &Plan) -> Result<u8, Failure> {
    let wanted = checked(&options.files)?;
    let session = Session::open(global).await?;
    let (mut apply, kept) =
        change(&session, &options.files, &wanted, &Change { dry_run: true, ..Change::default() }).await?;
    apply.ramp_ms = options.ramp.map(|ramp| ramp.millis()).or(wanted.ramp_ms);
    let answer = session.update(Workflow::Config, "apply", &apply).await?;
    match answer.read()? {
        AppliedJson::Refused { problems } => Err(Failure::Refused(problems)),
        AppliedJson::Ok { version, changes } => {
            if global.json {
                let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
                print_line(
                    &json!({ "version": version, "changes": changes, "not_in_files": kept }).to_string(),
                )?;
            } else {
                print(&planned(&version, &changes, Paint::of_stdout()))?;
                note_kept(&kept);
            }
            Ok(if changes.is_empty() { EXIT_OK } else { EXIT_CHANGES })
        }
    }
}

/// Reads files and checks all that can be checked without asking anybody.
///
/// # Errors
/// As [`file::read`].
pub fn validate(global: &Global, files: &Files) -> Result<(), Failure> {
    let wanted = checked(files)?;
    let limits: BTreeSet<&str> = wanted.limits.iter().map(|(_, limit)| limit.name.as_str()).collect();
    if global.json {
        let meters = wanted.limits.len();
        return print_line(&json!({ "valid": true, "limits": limits.len(), "meters": meters }).to_string());
    }
    print(&format!("valid: {}\n", counted(limits.len(), wanted.limits.len())))
}

/// Writes what is configured as a file.
///
/// # Errors
/// As [`Session::query`].
pub async fn export(global: &Global, options: &Export) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
    let (text, notes) = file::export::export(&config.limits, options.format);
    for note in notes {
        eprintln!("note: {}", printable(&note));
    }
    print(&text)
}

/// The files, each of whose limits could be in force alone.
fn checked(files: &Files) -> Result<Wanted, Failure> {
    let wanted = file::read(&files.files, files.format)?;
    let now = LedgerTime(moment::now_us());
    let mut problems = Vec::new();
    for (place, limit) in &wanted.limits {
        let alone = ApplyJson { set: vec![limit.clone()], ..ApplyJson::default() };
        if let Err(found) = Book::new(now).apply(now, &alone) {
            problems.extend(found.into_iter().map(|problem| format!("{place}: {problem}")));
        }
    }
    let all = ApplyJson {
        set: wanted.limits.iter().map(|(_, limit)| limit.clone()).collect(),
        ramp_ms: wanted.ramp_ms,
        // Others may be of limits that are there already.
        schedules: schedules(wanted.schedules.as_ref())
            .filter(|schedule| wanted.limits.iter().any(|(_, limit)| limit.key() == schedule.key()))
            .cloned()
            .collect(),
        ..ApplyJson::default()
    };
    if problems.is_empty()
        && let Err(found) = Book::new(now).apply(now, &all)
    {
        problems = found;
    }
    if problems.is_empty() { Ok(wanted) } else { Err(Failure::Refused(problems)) }
}

/// What is sent, and the meters that the files don't name and that stay.
async fn change(
    session: &Session,
    files: &Files,
    wanted: &Wanted,
    how: &Change,
) -> Result<(ApplyJson, Vec<CellKey>), Failure> {
    let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
    let mut apply = base(how);
    apply.set = wanted.limits.iter().map(|(_, limit)| limit.clone()).collect();
    // Somebody else's edit since is noticed, and not undone.
    apply.if_version.get_or_insert(config.version.clone());
    for limit in &mut apply.set {
        if config.limits.iter().any(|other| has_calendar_of(other, limit)) {
            // What it has is newer than what would be computed here, or the same.
            limit.policy = None;
        }
    }
    let stated: BTreeSet<CellKey> = apply.set.iter().map(LimitJson::key).collect();
    let key = |limit: &ConfiguredLimitJson| CellKey {
        limit: limit.limit.clone(),
        meter: limit.meter.clone(),
        tier: limit.tier.clone(),
    };
    let others: Vec<CellKey> = config.limits.iter().map(key).filter(|key| !stated.contains(key)).collect();
    apply.schedules = schedules(wanted.schedules.as_ref()).cloned().collect();
    if wanted.schedules.is_some() {
        // Files that say something of schedules say all of them, for the limits that they name.
        let old = config.limits.iter().flat_map(|limit| &limit.schedules);
        let goes = |old: &&ScheduleJson| {
            let stays = |new: &ScheduleJson| new.key() == old.key() && new.name == old.name;
            stated.contains(&old.key()) && !apply.schedules.iter().any(stays)
        };
        let named = |old: &ScheduleJson| ScheduleNameJson {
            limit: old.limit.clone(),
            meter: old.meter.clone(),
            tier: old.tier.clone(),
            name: old.name.clone(),
        };
        apply.remove_schedules = old.filter(goes).map(named).collect();
    }
    if !files.prune {
        return Ok((apply, others));
    }
    let mut by_limit: BTreeMap<&str, Vec<&CellKey>> = BTreeMap::new();
    for key in &others {
        by_limit.entry(&key.limit).or_default().push(key);
    }
    for (limit, keys) in by_limit {
        if stated.iter().any(|key| key.limit == limit) {
            let meter = |key: &&CellKey| MeterJson {
                name: key.limit.clone(),
                meter: key.meter.clone(),
                tier: key.tier.clone(),
            };
            apply.remove_meters.extend(keys.iter().map(meter));
        } else {
            apply.remove.push(limit.to_owned());
        }
    }
    Ok((apply, Vec::new()))
}

fn schedules(of: Option<&Vec<(String, ScheduleJson)>>) -> impl Iterator<Item = &ScheduleJson> {
    of.into_iter().flatten().map(|(_, schedule)| schedule)
}

/// Whether a limit as it is configured follows the calendar that it is to follow.
fn has_calendar_of(configured: &ConfiguredLimitJson, limit: &LimitJson) -> bool {
    let is_it =
        configured.limit == limit.name && configured.meter == limit.meter && configured.tier == limit.tier;
    match (&configured.policy, &limit.policy) {
        (
            PolicyJson::FixedWindow { calendar: Some(has), .. },
            Some(LimitPolicyJson::FixedWindow { window, time_zone, .. }),
        ) => is_it && has.time_zone == *time_zone && window.is_none_or(|window| window == has.window),
        _ => false,
    }
}

fn note_kept(kept: &[CellKey]) {
    if !kept.is_empty() {
        let names: Vec<String> = kept.iter().map(|key| printable(&key.to_string())).collect();
        eprintln!("note: not in the files and kept, --prune removes them: {}", names.join(", "));
    }
}

/// One line per change, marked by its kind, and their number.
fn planned(version: &str, changes: &[String], paint: Paint) -> String {
    if changes.is_empty() {
        return format!("nothing to change; version {version}\n");
    }
    let mut counts = [0_usize; 3];
    let mut text = String::new();
    for change in changes {
        let (kind, line) = match change {
            line if line.contains(": created, ") => (0, paint.good(&format!("+ {}", printable(line)))),
            line if line.contains(": removed, ") => (2, paint.alarm(&format!("- {}", printable(line)))),
            line => (1, paint.warn(&format!("~ {}", printable(line)))),
        };
        if let Some(count) = counts.get_mut(kind) {
            *count += 1;
        }
        text.push_str(&format!("{line}\n"));
    }
    let [created, changed, removed] = counts;
    format!(
        "{text}plan: {created} to create, {changed} to change, {removed} to remove; version {version} is in force\n"
    )
}

fn counted(limits: usize, meters: usize) -> String {
    let plural = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    if meters == limits {
        plural(limits, "limit")
    } else {
        format!("{} with {}", plural(limits, "limit"), plural(meters, "meter"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_marks_each_change_by_its_kind_and_counts_them() {
        let changes = [
            "a: created, rate 5/s, burst 5, lease 15s",
            "b: rate 5/s -> 6/s over 60 s",
            "c: removed, was rate 1/s, burst 1",
        ];
        let changes = changes.map(str::to_owned);
        assert_eq!(
            planned("7.1", &changes, Paint::OFF),
            "+ a: created, rate 5/s, burst 5, lease 15s\n~ b: rate 5/s -> 6/s over 60 s\n- c: removed, was rate 1/s, burst 1\n\
             plan: 1 to create, 1 to change, 1 to remove; version 7.1 is in force\n"
        );
        let coloured = planned("7.1", &changes, Paint { on: true, columns: None });
        assert!(coloured.contains("\x1b[32m+ a") && coloured.contains("\x1b[31m- c"), "{coloured}");
        assert_eq!(planned("7.1", &[], Paint::OFF), "nothing to change; version 7.1\n");
    }

    #[test]
    fn what_is_wrong_between_fields_is_found_without_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.toml");
        let text = "[limits.a]\nrate = \"5/s\"\nburst = 3\npolicy = \"sliding-window\"\n[limits.b]\nrate = \"10/1s\"\npolicy = \"sliding-window\"\n";
        std::fs::write(&path, text).unwrap();
        let files = Files { files: vec![path], format: None, prune: false };
        let Err(Failure::Refused(problems)) = checked(&files) else { panic!() };
        let text = problems.join("\n");
        assert!(text.contains("a.toml:1:") && text.contains("burst is given"), "{text}");
        assert!(text.contains("a.toml:5:"), "{text}");
    }
}
