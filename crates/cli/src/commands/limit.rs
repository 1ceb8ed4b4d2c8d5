//! `tollgate limit`.

use super::{print, print_line};
use crate::actor;
use crate::args::{Change, Global, InitialKind, Limit, LimitSet, PolicyKind, Switch, Tier, Window};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, left};
use crate::quantity::span_text;
use crate::table::{Cell, Paint, Side, Table, printable};
use std::collections::BTreeSet;
use tollgate_activities::calendar;
use tollgate_core::limit::CellKey;
use tollgate_core::units::{LedgerTime, Span};
use tollgate_workflows::config::view::{ConfigJson, ConfiguredLimitJson};
use tollgate_workflows::wire::conduct::{ConductJson, percent_text};
use tollgate_workflows::wire::config::{
    AppliedJson, ApplyJson, InitialJson, LimitJson, LimitPolicyJson, MeterJson, PolicyJson, WindowJson,
};
use tollgate_workflows::wire::outlook::{OutlookJson, WouldAdmitJson};

/// How many windows to come are shown.
const NEXT_WINDOWS: usize = 3;

/// Shows and changes limits.
///
/// # Errors
/// As [`Session::query`] and [`Session::update`]; [`Failure::Refused`] when the change is refused.
pub async fn run(global: &Global, command: &Limit) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    match command {
        Limit::Set(wanted) => {
            let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
            let (limits, problems) = merge(&config, wanted, moment::now_us())?;
            let mut apply = base(&wanted.change);
            apply.set = limits;
            apply.ramp_ms = wanted.ramp.map(Span::millis);
            if !problems.is_empty() {
                return Err(Failure::Refused(refused(&session, apply, problems).await?));
            }
            // What isn't given was read from this version: another edit in between must not be undone.
            apply.if_version.get_or_insert(config.version);
            send(&session, &apply, global.json).await
        }
        Limit::Rm { name, meter, tier, change } => {
            let mut apply = base(change);
            if meter.is_none() && tier.is_none() {
                apply.remove.push(name.clone());
            } else {
                let meter = meter.clone().unwrap_or_else(|| CellKey::METER.to_owned());
                let tier = tier.clone().unwrap_or_else(|| CellKey::TIER.to_owned());
                apply.remove_meters.push(MeterJson { name: name.clone(), meter, tier });
            }
            send(&session, &apply, global.json).await
        }
        Limit::AbortRamp { name, change } => {
            let apply = ApplyJson { abort_ramps: vec![name.clone()], ..base(change) };
            send(&session, &apply, global.json).await
        }
        Limit::Pause { names, change } => {
            let apply = ApplyJson { pause: each_once(names), ..base(change) };
            send(&session, &apply, global.json).await
        }
        Limit::Resume { names, change } => {
            let apply = ApplyJson { resume: each_once(names), ..base(change) };
            send(&session, &apply, global.json).await
        }
        Limit::Check { name, cost, count, meter } => {
            let key = CellKey::of(name);
            let ask = WouldAdmitJson {
                limit: key.limit,
                meter: meter.clone().unwrap_or(key.meter),
                tier: key.tier,
                cost: *cost,
                count: *count,
                at_us: moment::now_us(),
            };
            let answer = session.query(Workflow::Coordinator, "would_admit", &ask).await?;
            let outlook: OutlookJson = answer.read()?;
            if global.json {
                print_line(&answer.text())?;
            }
            let line = checked(&outlook);
            match outlook.would_admit {
                false => Err(Failure::No(line)),
                true if global.json => Ok(()),
                true => print_line(&line),
            }
        }
        Limit::Override(options) => super::overriding::run(global, &session, options).await,
        Limit::Get { name } => {
            let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
            let found: Vec<_> = config.limits.into_iter().filter(|limit| limit.limit == *name).collect();
            if found.is_empty() {
                return Err(unknown(name, session.group()));
            }
            if global.json {
                return print_line(&json_line(&found)?);
            }
            print(&render(&found, moment::now_us(), Paint::of_stdout()))
        }
        Limit::List => {
            let answer = session.query(Workflow::Config, "config", &()).await?;
            if global.json {
                return print_line(&answer.text());
            }
            let config: ConfigJson = answer.read()?;
            print(&render(&config.limits, moment::now_us(), Paint::of_stdout()))
        }
    }
}

/// Limits as a table.
pub fn render(limits: &[ConfiguredLimitJson], now_us: u64, paint: Paint) -> String {
    if limits.is_empty() {
        return "no limits yet: `tollgate limit set NAME --rate 50/s` makes one\n".to_owned();
    }
    let mut table = Table::new(&[
        ("LIMIT", Side::Left),
        ("RATE SET", Side::Right),
        ("BURST SET", Side::Right),
        ("POLICY", Side::Left),
        ("LEASE", Side::Right),
        ("RAMPS", Side::Left),
    ]);
    for limit in limits {
        let key = key_of(limit).to_string();
        let ramps = ramps(limit, now_us);
        table.row(vec![
            Cell::new(key),
            Cell::new(if matches!(limit.policy, PolicyJson::InFlight { .. }) {
                "-"
            } else {
                &limit.rate_text
            }),
            Cell::new(limit.burst),
            policy_cell(limit),
            Cell::new(span_text(limit.lease_ms)),
            Cell::warn_if(&ramps, !ramps.is_empty()),
        ]);
    }
    let mut text = table.render(paint);
    for line in limits.iter().filter_map(|limit| windows(limit, now_us)) {
        text.push_str(&format!("{}\n", paint.dim(&printable(&line))));
    }
    for line in
        limits.iter().flat_map(|limit| super::overriding::notes(limit, &key_of(limit).to_string(), now_us))
    {
        text.push_str(&format!("{}\n", paint.warn(&line)));
    }
    text
}

fn key_of(limit: &ConfiguredLimitJson) -> CellKey {
    CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() }
}

/// When the next windows of a limit begin, and who says so.
fn windows(limit: &ConfiguredLimitJson, now_us: u64) -> Option<String> {
    let PolicyJson::FixedWindow { boundaries_us, calendar, .. } = &limit.policy else { return None };
    let next: Vec<String> = boundaries_us
        .iter()
        .filter(|at| **at > now_us)
        .take(NEXT_WINDOWS)
        .map(|at| moment::absolute(*at))
        .collect();
    let next = if next.is_empty() { "none known".to_owned() } else { next.join(", ") };
    let by = calendar.as_ref().map(|calendar| {
        let (window, zone) = (calendar.window.as_str(), &calendar.time_zone);
        format!(" (each {window} in {zone}; time zone database {})", calendar.tz_version)
    });
    Some(format!("{}: next windows begin {next}{}", limit.limit, by.unwrap_or_default()))
}

/// How a limit counts, and what is special of it.
fn policy_cell(limit: &ConfiguredLimitJson) -> Cell {
    let ConductJson { paused, shadow, .. } = limit.conduct;
    let state = match (paused, shadow) {
        (true, _) => "PAUSED, ",
        (false, true) => "shadow, ",
        (false, false) => "",
    };
    let text = format!("{state}{}{}{}", policy(&limit.policy), standing(limit), conduct(&limit.conduct));
    Cell::warn_if(text, paused || shadow)
}

/// How a limit counts, in a word or two.
fn policy(policy: &PolicyJson) -> String {
    match policy {
        PolicyJson::TokenBucket => "bucket".to_owned(),
        PolicyJson::SlidingWindow { window_ms } => format!("in any {}", span_text(*window_ms)),
        PolicyJson::FixedWindow { calendar: Some(calendar), .. } => {
            format!("each {}", calendar.window.as_str())
        }
        PolicyJson::FixedWindow { .. } => "fixed window".to_owned(),
        PolicyJson::InFlight { drain_ms: 0 } => "at once".to_owned(),
        PolicyJson::InFlight { drain_ms } => format!("at once, drain {}", span_text(*drain_ms)),
    }
}

fn each_once(names: &[String]) -> Vec<String> {
    names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// What is special of a limit; empty when nothing is.
fn conduct(conduct: &ConductJson) -> String {
    let usual = ConductJson::default();
    let mut text = String::new();
    if conduct.reserve_ppb != usual.reserve_ppb {
        text += &format!(", reserve {}", percent_text(conduct.reserve_ppb));
    }
    if conduct.when_lost != usual.when_lost {
        text += &format!(", when lost {}", conduct.when_lost);
    }
    text
}

/// What a look found.
fn checked(outlook: &OutlookJson) -> String {
    if outlook.would_admit {
        return format!("yes: {}", outlook.message);
    }
    let after =
        outlook.after_ms.map(|ms| format!("; not before {}", moment::length(ms.saturating_mul(1_000))));
    format!("no: {}{}", outlook.message, after.unwrap_or_default())
}

/// How a tier stands to the others of its limit; empty for the only one.
fn standing(limit: &ConfiguredLimitJson) -> String {
    let mut text = String::new();
    if limit.rank > 0 {
        text += &format!(", rank {}", limit.rank);
    }
    if let Some(floor) = &limit.floor {
        text += &format!(", floor {floor}");
    }
    if limit.lends {
        text += ", lends";
    }
    text
}

/// The ramps that are under way.
fn ramps(limit: &ConfiguredLimitJson, now_us: u64) -> String {
    let named = [("rate", &limit.rate_ramp), ("burst", &limit.burst_ramp)];
    let under_way = named.into_iter().filter_map(|(what, ramp)| {
        let ramp = ramp.as_ref().filter(|ramp| ramp.end_us > now_us)?;
        Some(format!("{what} {} → {}, {} left", ramp.from, ramp.to, left(ramp.end_us, now_us)))
    });
    under_way.chain(super::ramp::paused(limit)).collect::<Vec<_>>().join("; ")
}

/// The limit as it is sent, by tier: the server keeps what isn't given. With the problems that only show here: the server
/// knows no time zones.
fn merge(
    config: &ConfigJson,
    wanted: &LimitSet,
    now_us: u64,
) -> Result<(Vec<LimitJson>, Vec<String>), Failure> {
    let mut limit = LimitJson::named(&wanted.name);
    limit.rate = wanted.rate;
    limit.burst = wanted.burst;
    limit.lease_ms = wanted.lease.map(Span::millis);
    limit.moved = wanted.moved;
    limit.queue = wanted.queue;
    limit.reserve_ppb = wanted.reserve;
    limit.shadow = wanted.shadow.map(|shadow| shadow == Switch::On);
    limit.when_lost = wanted.when_lost;
    limit.initial = wanted.initial.map(|initial| match initial {
        InitialKind::Full => InitialJson::Full,
        InitialKind::Empty => InitialJson::Empty,
    });
    let mut problems = Vec::new();
    if let Some(meter) = &wanted.meter {
        limit.meter.clone_from(meter);
    }
    if wanted.concurrency.is_some() {
        limit.meter = CellKey::IN_FLIGHT.to_owned();
        limit.policy =
            Some(LimitPolicyJson::InFlight { drain_ms: wanted.drain.unwrap_or(Span::ZERO).millis() });
        limit.burst = wanted.concurrency;
    }
    let key = limit.key();
    let is_it = |limit: &&ConfiguredLimitJson| {
        limit.limit == key.limit && limit.meter == key.meter && limit.tier == key.tier
    };
    let old = config.limits.iter().find(is_it);
    match wanted.policy {
        Some(PolicyKind::TokenBucket) => limit.policy = Some(LimitPolicyJson::TokenBucket),
        Some(PolicyKind::LeakyBucket) => limit.policy = Some(LimitPolicyJson::LeakyBucket),
        Some(PolicyKind::SlidingWindow) => limit.policy = Some(LimitPolicyJson::SlidingWindow),
        Some(PolicyKind::FixedWindow) | None => {
            limit.policy = fixed_window(wanted, old, now_us, &mut problems).or(limit.policy);
        }
    }
    if !matches!(limit.policy, Some(LimitPolicyJson::FixedWindow { .. })) {
        for (option, given) in
            [("--time-zone", wanted.time_zone.is_some()), ("--window", wanted.window.is_some())]
        {
            if given {
                problems.push(format!("{option} is given, allowed: only with --policy fixed-window"));
            }
        }
    }
    if !wanted.tiers.is_empty() {
        return Ok((wanted.tiers.iter().map(|tier| tier_of(&limit, tier)).collect(), problems));
    }
    if limit.rate.is_none() && wanted.concurrency.is_none() && old.is_none() {
        let problem =
            format!("limit {key:?} doesn't exist yet: --rate is needed to create it", key = key.to_string());
        return Err(Failure::Failed(problem));
    }
    Ok((vec![limit], problems))
}

/// One tier of a limit: what is said of the limit's rate and burst is said of all tiers together.
fn tier_of(limit: &LimitJson, tier: &Tier) -> LimitJson {
    let in_flight = matches!(limit.policy, Some(LimitPolicyJson::InFlight { .. }));
    let (rate, burst) =
        if in_flight { (None, tier.rate.map(|rate| rate.count)) } else { (tier.rate, tier.burst) };
    LimitJson {
        tier: tier.name.clone(),
        rate,
        burst: burst.or(tier.burst),
        rank: tier.rank,
        floor: tier.floor,
        lend: tier.lend,
        total_rate: limit.rate,
        total_burst: limit.burst,
        ..limit.clone()
    }
}

/// A fixed window with its first boundaries, where one is asked for or a limit's calendar changes.
fn fixed_window(
    wanted: &LimitSet,
    old: Option<&ConfiguredLimitJson>,
    now_us: u64,
    problems: &mut Vec<String>,
) -> Option<LimitPolicyJson> {
    let calendar = match old.map(|old| &old.policy) {
        Some(PolicyJson::FixedWindow { calendar, .. }) => calendar.as_ref(),
        _ => None,
    };
    let is_asked_for = wanted.policy == Some(PolicyKind::FixedWindow);
    let is_changed = calendar.is_some() && (wanted.window.is_some() || wanted.time_zone.is_some());
    if !is_asked_for && !is_changed {
        return None;
    }
    let window = match wanted.window {
        Some(Window::Hour) => Some(WindowJson::Hour),
        Some(Window::Day) => Some(WindowJson::Day),
        Some(Window::Week) => Some(WindowJson::Week),
        Some(Window::Month) => Some(WindowJson::Month),
        None => wanted.rate.and_then(|rate| WindowJson::of_period(rate.period_ms)),
    };
    let window = window.or(calendar.map(|calendar| calendar.window));
    let known = calendar.map(|calendar| calendar.time_zone.clone());
    let time_zone = wanted.time_zone.clone().or(known).unwrap_or_else(|| "UTC".to_owned());
    let from = LedgerTime(now_us);
    calendar::fixed_window(window, &time_zone, from)
        .map_err(|error| problems.push(error.to_string()))
        .or_else(|()| calendar::fixed_window(window, "UTC", from))
        .ok()
}

/// Everything that is wrong with a change of which some is known to be: the server says the rest.
async fn refused(
    session: &Session,
    apply: ApplyJson,
    mut problems: Vec<String>,
) -> Result<Vec<String>, Failure> {
    let apply = ApplyJson { dry_run: true, ..apply };
    let answer = session.update(Workflow::Config, "apply", &apply).await?;
    if let AppliedJson::Refused { problems: more } = answer.read()? {
        problems.extend(more);
    }
    Ok(problems)
}

pub(super) fn base(change: &Change) -> ApplyJson {
    ApplyJson {
        actor: change.actor.clone().unwrap_or_else(actor::default_actor),
        reason: change.reason.clone().unwrap_or_default(),
        if_version: change.if_version.clone(),
        dry_run: change.dry_run,
        ..ApplyJson::default()
    }
}

pub(super) async fn send(session: &Session, apply: &ApplyJson, json: bool) -> Result<(), Failure> {
    let answer = session.update(Workflow::Config, "apply", apply).await?;
    let applied: AppliedJson = answer.read()?;
    if json {
        print_line(&answer.text())?;
    }
    match applied {
        AppliedJson::Refused { mut problems } => {
            if problems.iter().any(|problem| problem.starts_with("if_version is")) {
                problems.push(
                    "somebody else changed the group: see `tollgate config history`, then try again"
                        .to_owned(),
                );
            }
            Err(Failure::Refused(problems))
        }
        AppliedJson::Ok { .. } if json => Ok(()),
        AppliedJson::Ok { version, changes } => print(&outcome(&version, &changes, apply.dry_run)),
    }
}

/// What changed, or what would.
fn outcome(version: &str, changes: &[String], dry_run: bool) -> String {
    if changes.is_empty() {
        return format!("nothing to change; version {version}\n");
    }
    let lines: String = changes.iter().map(|change| format!("{}\n", printable(change))).collect();
    if dry_run { format!("would change:\n{lines}") } else { format!("{lines}version {version}\n") }
}

pub(super) fn unknown(name: &str, group: &str) -> Failure {
    Failure::Failed(format!("no limit {name:?} in group {group:?}: see `tollgate limit list`"))
}

pub(super) fn json_line(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tollgate_workflows::config::view::{CoordinatorKnowsJson, EffectiveLimitJson, RampJson};
    use tollgate_workflows::wire::conduct::WhenLostJson;
    use tollgate_workflows::wire::config::{CalendarJson, ExactRateJson, RateJson};
    use tollgate_workflows::wire::status::UnreadableJson;

    const NOW: u64 = 1_796_043_897_000_000;

    /// A limit with a rate per second, in millionths.
    pub(crate) fn limit(name: &str, micro_tokens: u64) -> ConfiguredLimitJson {
        let rate = ExactRateJson { micro_tokens, period_us: 1_000_000 };
        let rate_text = format!("{}.{:06}/s", micro_tokens / 1_000_000, micro_tokens % 1_000_000);
        let (meter, tier) = (CellKey::METER.to_owned(), CellKey::TIER.to_owned());
        ConfiguredLimitJson {
            limit: name.to_owned(),
            meter: meter.clone(),
            tier: tier.clone(),
            rate,
            rate_text: rate_text.clone(),
            burst: 16,
            policy: PolicyJson::TokenBucket,
            lease_ms: 8_000,
            initial: InitialJson::Full,
            queue: None,
            conduct: ConductJson::default(),
            escrowed: None,
            moved: false,
            rank: 0,
            floor: None,
            lends: false,
            effective: EffectiveLimitJson {
                limit: name.to_owned(),
                meter,
                tier,
                rate,
                rate_text,
                rate_micro: micro_tokens,
                burst_milli: 16_000,
            },
            rate_ramp: None,
            burst_ramp: None,
            by: None,
            overriding: None,
            schedules: Vec::new(),
            rate_paused: None,
            burst_paused: None,
        }
    }

    fn config() -> ConfigJson {
        ConfigJson {
            group: "default".to_owned(),
            now_us: NOW,
            version: "7.1".to_owned(),
            target_rate_milli: 10_000,
            limits: vec![limit("a", 50_000_000), limit("b", 73_216_549)],
            calendar_error: String::new(),
            starting: false,
            coordinator: CoordinatorKnowsJson::default(),
            unreadable: UnreadableJson::default(),
            refused: UnreadableJson::default(),
            runs: 0,
        }
    }

    fn wanted(name: &str) -> LimitSet {
        let change = Change::default();
        LimitSet {
            name: name.to_owned(),
            meter: None,
            policy: None,
            window: None,
            time_zone: None,
            initial: None,
            queue: None,
            reserve: None,
            shadow: None,
            when_lost: None,
            concurrency: None,
            drain: None,
            rate: None,
            burst: None,
            tiers: Vec::new(),
            lease: None,
            ramp: None,
            moved: false,
            change,
        }
    }

    #[test]
    fn what_is_not_given_is_left_to_what_is_there() {
        let (sent, _) = merge(&config(), &LimitSet { burst: Some(20), ..wanted("a") }, NOW).unwrap();
        let sent = &sent[0];
        assert_eq!((sent.rate, sent.burst, sent.lease_ms), (None, Some(20), None));
        let rate = RateJson { count: 9, period_ms: 60_000 };
        assert_eq!(
            merge(&config(), &LimitSet { rate: Some(rate), ..wanted("new") }, NOW).unwrap().0[0].rate,
            Some(rate)
        );
        let error = merge(&config(), &wanted("new"), NOW).unwrap_err().to_string();
        assert!(error.contains("--rate is needed"), "{error}");
    }

    #[test]
    fn a_fixed_window_is_sent_with_its_first_boundaries_and_everything_wrong_is_listed() {
        let day = RateJson { count: 1_000, period_ms: 86_400_000 };
        let fixed = |time_zone: &str| LimitSet {
            rate: Some(day),
            policy: Some(PolicyKind::FixedWindow),
            time_zone: Some(time_zone.to_owned()),
            ..wanted("g")
        };
        let (sent, problems) = merge(&config(), &fixed("america/los_angeles"), NOW).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let Some(LimitPolicyJson::FixedWindow { window, time_zone, boundaries_us, tz_version }) =
            sent[0].policy.clone()
        else {
            panic!("{sent:?}");
        };
        assert_eq!((window, time_zone.as_str()), (Some(WindowJson::Day), "America/Los_Angeles"));
        // 2026-11-30 and 2026-12-01, midnight in Los Angeles.
        assert_eq!(boundaries_us[..2], [1_796_025_600_000_000, 1_796_112_000_000_000]);
        assert!(tz_version.starts_with("20"), "{tz_version}");
        let (_, problems) = merge(&config(), &fixed("Nowhere"), NOW).unwrap();
        assert!(problems.len() == 1 && problems[0].starts_with("time_zone is \"Nowhere\""), "{problems:?}");
        let (_, problems) = merge(
            &config(),
            &LimitSet { time_zone: Some("UTC".to_owned()), window: Some(Window::Hour), ..wanted("a") },
            NOW,
        )
        .unwrap();
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn the_next_windows_are_shown_with_the_release_that_says_so() {
        let calendar = CalendarJson {
            window: WindowJson::Day,
            time_zone: "Europe/Berlin".to_owned(),
            tz_version: "2026f".to_owned(),
        };
        let policy = PolicyJson::FixedWindow {
            boundaries_us: vec![NOW - 1, NOW + 5_000_000],
            calendar: Some(calendar),
            escrow: true,
        };
        let shown = render(&[ConfiguredLimitJson { policy, ..limit("g", 1) }], NOW, Paint::OFF);
        assert!(
            shown.ends_with(
                "g: next windows begin 2026-11-30 13:05:02Z (each day in Europe/Berlin; time zone database 2026f)\n"
            ),
            "{shown}"
        );
    }

    #[test]
    fn tiers_are_sent_one_by_one_and_what_the_limit_has_is_said_of_all() {
        let tiers =
            ["high=60:burst=9", "low=40:floor=10:lend"].map(|text| crate::quantity::tier(text).unwrap());
        let per_second = |count| Some(RateJson { count, period_ms: 1_000 });
        let set = LimitSet { rate: per_second(100), tiers: tiers.to_vec(), ..wanted("new") };
        let (sent, _) = merge(&config(), &set, NOW).unwrap();
        assert_eq!((sent[0].tier.as_str(), sent[0].rate, sent[0].burst), ("high", per_second(60), Some(9)));
        assert_eq!(
            (sent[1].floor, sent[1].lend, sent[1].total_rate),
            (per_second(10), Some(true), per_second(100))
        );
        let at_once = LimitSet { concurrency: Some(100), rate: None, ..set };
        let (sent, _) = merge(&config(), &at_once, NOW).unwrap();
        assert_eq!((sent[1].rate, sent[1].burst, sent[1].total_burst), (None, Some(40), Some(100)));
    }

    #[test]
    fn limits_are_shown_with_the_ramps_that_are_under_way() {
        let ramp = |end_us| {
            Some(RampJson {
                from: "50/s".to_owned(),
                to: "100/s".to_owned(),
                start_us: NOW - 3_000_000,
                end_us,
            })
        };
        let ramped = ConfiguredLimitJson { rate_ramp: ramp(NOW + 12_000_000), ..limit("openai/gpt-4o", 1) };
        let over = ConfiguredLimitJson { rate_ramp: ramp(NOW), lease_ms: 90_000, ..limit("b", 2) };
        assert_eq!(
            render(&[ramped, over], NOW, Paint::OFF),
            "LIMIT            RATE SET  BURST SET  POLICY  LEASE  RAMPS\n\
             openai/gpt-4o  0.000001/s         16  bucket     8s  rate 50/s → 100/s, 12s left\n\
             b              0.000002/s         16  bucket  1m30s\n"
        );
        assert!(render(&[], NOW, Paint::OFF).starts_with("no limits yet"));
    }

    #[test]
    fn what_is_special_of_a_limit_is_shown() {
        let conduct = ConductJson {
            paused: true,
            shadow: true,
            reserve_ppb: 125_000_000,
            when_lost: WhenLostJson::Hold { part_ppb: 500_000_000 },
        };
        let shown = render(&[ConfiguredLimitJson { conduct, ..limit("a", 1_000_000) }], NOW, Paint::OFF);
        assert!(shown.contains("  PAUSED, bucket, reserve 12.5%, when lost hold:50%  "), "{shown}");
        let conduct = ConductJson { shadow: true, ..ConductJson::default() };
        let shown = render(&[ConfiguredLimitJson { conduct, ..limit("a", 1_000_000) }], NOW, Paint::OFF);
        assert!(shown.contains("  shadow, bucket  "), "{shown}");
        let set = LimitSet { shadow: Some(Switch::Off), reserve: Some(0), ..wanted("a") };
        let (sent, _) = merge(&config(), &set, NOW).unwrap();
        assert_eq!((sent[0].shadow, sent[0].reserve_ppb, sent[0].when_lost), (Some(false), Some(0), None));
    }

    #[test]
    fn an_outcome_says_whether_it_happened() {
        let changes = ["a: rate 50/s -> 60/s over 15 s".to_owned()];
        assert_eq!(outcome("7.2", &changes, false), "a: rate 50/s -> 60/s over 15 s\nversion 7.2\n");
        assert_eq!(outcome("7.1", &changes, true), "would change:\na: rate 50/s -> 60/s over 15 s\n");
        assert_eq!(outcome("7.1", &[], true), "nothing to change; version 7.1\n");
    }
}
