//! `tollgate limit override`: changes that fall back by themselves.

use super::limit::{base, send};
use crate::args::{Global, Override};
use crate::connection::{Session, Workflow};
use crate::failure::Failure;
use crate::layers;
use crate::moment::{self, left};
use crate::table::printable;
use tollgate_core::limit::CellKey;
use tollgate_workflows::config::view::{ConfigJson, ConfiguredLimitJson};
use tollgate_workflows::wire::config::{ApplyJson, MeterJson};
use tollgate_workflows::wire::layers::{OverrideJson, ValueJson};

/// Changes a limit for a time, or ends that.
///
/// # Errors
/// As [`Session::update`]; [`Failure::Refused`] when the change is refused, [`Failure::Usage`] when nothing is asked for.
pub async fn run(global: &Global, session: &Session, options: &Override) -> Result<(), Failure> {
    let config: ConfigJson = session.query(Workflow::Config, "config", &()).await?.read()?;
    let keys = layers::cells(&config.limits, &options.name, &options.meter).map_err(Failure::Failed)?;
    let mut apply = ApplyJson { ramp_ms: options.ramp.map(|ramp| ramp.millis()), ..base(&options.change) };
    // Which tiers there are was read from this version.
    apply.if_version.get_or_insert(config.version.clone());
    if options.end {
        let has_one = |key: &&CellKey| {
            let is_it = |limit: &&ConfiguredLimitJson| {
                limit.limit == key.limit && limit.meter == key.meter && limit.tier == key.tier
            };
            config.limits.iter().find(is_it).is_some_and(|limit| limit.overriding.is_some())
        };
        let ends: Vec<_> = keys.iter().filter(has_one).collect();
        // The server says that there is none.
        let ends = if ends.is_empty() { keys.iter().take(1).collect() } else { ends };
        let end = |key: &CellKey| MeterJson {
            name: key.limit.clone(),
            meter: key.meter.clone(),
            tier: key.tier.clone(),
        };
        apply.end_overrides = ends.into_iter().map(end).collect();
        return send(session, &apply, global.json).await;
    }
    let rate = options.rate.unwrap_or_default();
    let value = ValueJson { burst: options.burst.or(options.concurrency), ..rate };
    let Some(lasting) = options.lasting.filter(|_| value != ValueJson::default()) else {
        let problem = "--for DURATION and one of --rate, --burst, --concurrency are needed, or --end";
        return Err(Failure::Usage(problem.to_owned()));
    };
    if value.times_milli.is_none() && keys.len() > 1 {
        let tiers: Vec<&str> = keys.iter().map(|key| key.tier.as_str()).collect();
        let problem =
            format!("it has tiers: name one with --tier ({}), or give a multiple", tiers.join(", "));
        return Err(Failure::Refused(vec![format!("limit {:?}: {problem}", options.name)]));
    }
    let of = |key: CellKey| OverrideJson {
        limit: key.limit,
        meter: key.meter,
        tier: key.tier,
        value,
        for_ms: lasting.millis(),
    };
    apply.overrides = keys.into_iter().map(of).collect();
    send(session, &apply, global.json).await
}

/// What is in force instead of what is set, and what comes back, a line each.
pub(super) fn notes(limit: &ConfiguredLimitJson, key: &str, now_us: u64) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(over) = limit.overriding.as_ref().filter(|over| over.until_us > now_us) {
        let why = if over.reason.is_empty() { String::new() } else { format!(": {}", over.reason) };
        lines.push(printable(&format!(
            "{key}: override {} up to {}, {} left, by {}{why}",
            over.value_text,
            moment::absolute(over.until_us),
            left(over.until_us, now_us),
            over.actor
        )));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_workflows::wire::layers::OverridingJson;

    #[test]
    fn an_override_is_shown_with_what_is_left_of_it_and_who_made_it() {
        let now_us = 1_796_043_897_000_000;
        let over = OverridingJson {
            value: ValueJson { times_milli: Some(2_000), ..ValueJson::default() },
            value_text: "x2".to_owned(),
            since_us: now_us,
            until_us: now_us + 1_800_000_000,
            ramp_ms: 0,
            actor: "ann".to_owned(),
            reason: "a backlog\n".to_owned(),
        };
        let limit = super::super::limit::tests::limit("api", 50_000_000);
        let limit = ConfiguredLimitJson { overriding: Some(over), ..limit };
        assert_eq!(
            notes(&limit, "api", now_us),
            ["api: override x2 up to 2026-11-30 13:34:57Z, 30m00s left, by ann: a backlog\u{fffd}"]
        );
        assert!(notes(&limit, "api", now_us + 1_800_000_000).is_empty());
    }
}
