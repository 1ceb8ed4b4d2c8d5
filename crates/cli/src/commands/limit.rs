//! `tollgate limit`.

use super::{print, print_line};
use crate::actor;
use crate::args::{Change, Global, Limit, LimitSet, PolicyKind};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::moment::{self, left};
use crate::quantity::span_text;
use crate::table::{Cell, Paint, Side, Table, printable};
use tollgate_core::limit::CellKey;
use tollgate_core::units::Span;
use tollgate_workflows::config::view::{ConfigJson, ConfiguredLimitJson};
use tollgate_workflows::wire::config::{
    AppliedJson, ApplyJson, LimitJson, LimitPolicyJson, MeterJson, PolicyJson,
};

/// Shows and changes limits.
///
/// # Errors
/// As [`Session::query`] and [`Session::update`]; [`Failure::Refused`] when the change is refused.
pub async fn run(global: &Global, command: &Limit) -> Result<(), Failure> {
    let session = Session::open(global).await?;
    match command {
        Limit::Set(wanted) => {
            let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
            let limit = merge(&config, wanted)?;
            let mut apply = base(&wanted.change);
            apply.set.push(limit);
            apply.ramp_ms = wanted.ramp.map(Span::millis);
            // What isn't given was read from this version: another edit in between must not be undone.
            apply.if_version.get_or_insert(config.version);
            send(&session, &apply, global.json).await
        }
        Limit::Rm { name, meter, change } => {
            let mut apply = base(change);
            match meter {
                None => apply.remove.push(name.clone()),
                Some(meter) => {
                    let key = CellKey { meter: meter.clone(), ..CellKey::of(name) };
                    apply.remove_meters.push(MeterJson { name: key.limit, meter: key.meter, tier: key.tier });
                }
            }
            send(&session, &apply, global.json).await
        }
        Limit::AbortRamp { name, change } => {
            let apply = ApplyJson { abort_ramps: vec![name.clone()], ..base(change) };
            send(&session, &apply, global.json).await
        }
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
        let key =
            CellKey { limit: limit.limit.clone(), meter: limit.meter.clone(), tier: limit.tier.clone() }
                .to_string();
        let ramps = ramps(limit, now_us);
        table.row(vec![
            Cell::new(key),
            Cell::new(if matches!(limit.policy, PolicyJson::InFlight { .. }) {
                "-"
            } else {
                &limit.rate_text
            }),
            Cell::new(limit.burst),
            Cell::new(policy(&limit.policy)),
            Cell::new(span_text(limit.lease_ms)),
            Cell::warn_if(&ramps, !ramps.is_empty()),
        ]);
    }
    table.render(paint)
}

/// How a limit counts, in a word or two.
fn policy(policy: &PolicyJson) -> String {
    match policy {
        PolicyJson::TokenBucket => "bucket".to_owned(),
        PolicyJson::SlidingWindow { window_ms } => format!("in any {}", span_text(*window_ms)),
        PolicyJson::FixedWindow { .. } => "fixed window".to_owned(),
        PolicyJson::InFlight { drain_ms: 0 } => "at once".to_owned(),
        PolicyJson::InFlight { drain_ms } => format!("at once, drain {}", span_text(*drain_ms)),
    }
}

/// The ramps that are under way.
fn ramps(limit: &ConfiguredLimitJson, now_us: u64) -> String {
    let named = [("rate", &limit.rate_ramp), ("burst", &limit.burst_ramp)];
    let under_way = named.into_iter().filter_map(|(what, ramp)| {
        let ramp = ramp.as_ref().filter(|ramp| ramp.end_us > now_us)?;
        Some(format!("{what} {} → {}, {} left", ramp.from, ramp.to, left(ramp.end_us, now_us)))
    });
    under_way.collect::<Vec<_>>().join("; ")
}

/// The limit as it is sent: the server keeps what isn't given.
fn merge(config: &ConfigJson, wanted: &LimitSet) -> Result<LimitJson, Failure> {
    let mut limit = LimitJson::named(&wanted.name);
    limit.rate = wanted.rate;
    limit.burst = wanted.burst;
    limit.lease_ms = wanted.lease.map(Span::millis);
    limit.moved = wanted.moved;
    limit.policy = wanted.policy.map(|policy| match policy {
        PolicyKind::TokenBucket => LimitPolicyJson::TokenBucket,
        PolicyKind::LeakyBucket => LimitPolicyJson::LeakyBucket,
        PolicyKind::SlidingWindow => LimitPolicyJson::SlidingWindow,
    });
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
    let is_it = |limit: &ConfiguredLimitJson| {
        limit.limit == key.limit && limit.meter == key.meter && limit.tier == key.tier
    };
    if limit.rate.is_none() && wanted.concurrency.is_none() && !config.limits.iter().any(is_it) {
        let problem =
            format!("limit {key:?} doesn't exist yet: --rate is needed to create it", key = key.to_string());
        return Err(Failure::Failed(problem));
    }
    Ok(limit)
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

fn unknown(name: &str, group: &str) -> Failure {
    Failure::Failed(format!("no limit {name:?} in group {group:?}: see `tollgate limit list`"))
}

fn json_line(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::config::view::{CoordinatorKnowsJson, EffectiveLimitJson, RampJson};
    use tollgate_workflows::wire::config::{ExactRateJson, RateJson};
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
            moved: false,
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
        }
    }

    fn config() -> ConfigJson {
        ConfigJson {
            group: "default".to_owned(),
            now_us: NOW,
            version: "7.1".to_owned(),
            target_rate_milli: 10_000,
            limits: vec![limit("a", 50_000_000), limit("b", 73_216_549)],
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
            concurrency: None,
            drain: None,
            rate: None,
            burst: None,
            lease: None,
            ramp: None,
            moved: false,
            change,
        }
    }

    #[test]
    fn what_is_not_given_is_left_to_what_is_there() {
        let sent = merge(&config(), &LimitSet { burst: Some(20), ..wanted("a") }).unwrap();
        assert_eq!((sent.rate, sent.burst, sent.lease_ms), (None, Some(20), None));
        let rate = RateJson { count: 9, period_ms: 60_000 };
        assert_eq!(
            merge(&config(), &LimitSet { rate: Some(rate), ..wanted("new") }).unwrap().rate,
            Some(rate)
        );
        let error = merge(&config(), &wanted("new")).unwrap_err().to_string();
        assert!(error.contains("--rate is needed"), "{error}");
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
    fn an_outcome_says_whether_it_happened() {
        let changes = ["a: rate 50/s -> 60/s over 15 s".to_owned()];
        assert_eq!(outcome("7.2", &changes, false), "a: rate 50/s -> 60/s over 15 s\nversion 7.2\n");
        assert_eq!(outcome("7.1", &changes, true), "would change:\na: rate 50/s -> 60/s over 15 s\n");
        assert_eq!(outcome("7.1", &[], true), "nothing to change; version 7.1\n");
    }
}
