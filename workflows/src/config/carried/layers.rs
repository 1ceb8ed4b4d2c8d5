//! What is on top of what is set, and what changes replaced, as protobuf.

use super::{read_limit, write_limit};
use crate::config::book::overrides::{Layers, OnTop, Override, Source, Value};
use crate::config::book::schedules::{Rule, Schedule, Window};
use crate::config::book::snapshots::{Stated, Undo};
use crate::limits::{burst_curve, burst_curve_of, rate_curve, rate_curve_of, version, version_of};
use crate::proto as pb;
use crate::state::StateError;
use tollgate_core::curve::Rate;
use tollgate_core::ledger::Settings;
use tollgate_core::limit::CellKey;
use tollgate_core::units::{LedgerTime, Span};

fn write_key(key: &CellKey) -> Option<pb::CellKey> {
    Some(pb::CellKey { limit: key.limit.clone(), meter: key.meter.clone(), tier: key.tier.clone() })
}

fn read_key(key: Option<pb::CellKey>) -> Result<CellKey, StateError> {
    let key = key.ok_or(StateError::Broken("a limit's name"))?;
    Ok(CellKey { limit: key.limit, meter: key.meter, tier: key.tier })
}

fn write_value(value: Value) -> Option<pb::ConfigValue> {
    Some(match value {
        Value::Times(milli) => pb::ConfigValue { times_milli: Some(milli), ..pb::ConfigValue::default() },
        Value::Of { rate, burst } => pb::ConfigValue {
            times_milli: None,
            rate: rate.map(|rate| pb::Rate { micro_tokens: rate.micro_tokens, period_us: rate.period.0 }),
            burst,
        },
    })
}

fn read_value(value: Option<pb::ConfigValue>) -> Result<Value, StateError> {
    let value = value.ok_or(StateError::Broken("a temporary value"))?;
    let rate = |rate: pb::Rate| Rate { micro_tokens: rate.micro_tokens, period: Span(rate.period_us) };
    Ok(match value.times_milli {
        Some(milli) => Value::Times(milli),
        None => Value::Of { rate: value.rate.map(rate), burst: value.burst },
    })
}

pub(super) fn write_layers((key, layers): (&CellKey, &Layers)) -> pb::ConfigLayers {
    pb::ConfigLayers {
        key: write_key(key),
        over: layers.over.as_ref().map(|over| pb::ConfigOverride {
            value: write_value(over.value),
            ramp_us: over.ramp.0,
            since_us: over.since.0,
            until_us: over.until.0,
            actor: over.actor.clone(),
            reason: over.reason.clone(),
        }),
        schedules: layers.schedules.iter().map(write_schedule).collect(),
        on_top: layers.on_top.as_ref().map(|top| pb::ConfigOnTop {
            schedule: match &top.source {
                Source::Override => None,
                Source::Schedule(name) => Some(name.clone()),
            },
            rate: Some(rate_curve(top.rate)),
            burst: Some(burst_curve(top.burst)),
        }),
    }
}

pub(super) fn read_layers(layers: pb::ConfigLayers) -> Result<(CellKey, Layers), StateError> {
    let over = |over: pb::ConfigOverride| -> Result<Override, StateError> {
        Ok(Override {
            value: read_value(over.value)?,
            ramp: Span(over.ramp_us),
            since: LedgerTime(over.since_us),
            until: LedgerTime(over.until_us),
            actor: over.actor,
            reason: over.reason,
        })
    };
    let top = |top: pb::ConfigOnTop| -> Result<OnTop, StateError> {
        Ok(OnTop {
            source: top.schedule.map_or(Source::Override, Source::Schedule),
            rate: rate_curve_of(top.rate.ok_or(StateError::Broken("the rate that is set"))?)?,
            burst: burst_curve_of(top.burst.ok_or(StateError::Broken("the burst that is set"))?),
        })
    };
    let read = Layers {
        over: layers.over.map(over).transpose()?,
        schedules: layers.schedules.into_iter().map(read_schedule).collect::<Result<_, _>>()?,
        on_top: layers.on_top.map(top).transpose()?,
    };
    Ok((read_key(layers.key)?, read))
}

fn write_schedule((name, schedule): (&String, &Schedule)) -> pb::ConfigSchedule {
    pb::ConfigSchedule {
        name: name.clone(),
        value: write_value(schedule.value),
        ramp_us: schedule.ramp.0,
        days: schedule.rule.days.into(),
        from_min: schedule.rule.from.into(),
        to_min: schedule.rule.to.into(),
        time_zone: schedule.rule.time_zone.clone(),
        edges_us: schedule.windows.iter().flat_map(|window| [window.begin.0, window.end.0]).collect(),
        tz_version: schedule.tz_version.clone(),
    }
}

fn read_schedule(schedule: pb::ConfigSchedule) -> Result<(String, Schedule), StateError> {
    let broken = |_| StateError::Broken("a schedule");
    let window = |pair: &[u64]| match pair {
        [begin, end] => Some(Window { begin: LedgerTime(*begin), end: LedgerTime(*end) }),
        _ => None,
    };
    let read = Schedule {
        value: read_value(schedule.value)?,
        ramp: Span(schedule.ramp_us),
        rule: Rule {
            days: schedule.days.try_into().map_err(broken)?,
            from: schedule.from_min.try_into().map_err(broken)?,
            to: schedule.to_min.try_into().map_err(broken)?,
            time_zone: schedule.time_zone,
        },
        windows: schedule.edges_us.chunks(2).filter_map(window).collect(),
        tz_version: schedule.tz_version,
    };
    Ok((schedule.name, read))
}

pub(super) fn write_undo(undo: &Undo) -> pb::ConfigUndo {
    let stated = |(key, stated): (&CellKey, &Option<Stated>)| pb::ConfigStated {
        key: write_key(key),
        limit: stated.as_ref().map(|stated| write_limit(&stated.cell)),
        schedules: stated.iter().flat_map(|stated| stated.schedules.iter().map(write_schedule)).collect(),
    };
    pb::ConfigUndo {
        version: Some(version(undo.version)),
        target_rate_milli: undo.settings.map(|settings| settings.target_rate_milli),
        limits: undo.cells.iter().map(stated).collect(),
    }
}

pub(super) fn read_undo(undo: pb::ConfigUndo) -> Result<Undo, StateError> {
    let stated = |stated: pb::ConfigStated| -> Result<(CellKey, Option<Stated>), StateError> {
        let schedules = stated.schedules.into_iter().map(read_schedule).collect::<Result<_, _>>()?;
        let cell = stated.limit.map(read_limit).transpose()?;
        Ok((read_key(stated.key)?, cell.map(|cell| Stated { cell, schedules })))
    };
    Ok(Undo {
        version: version_of(undo.version.ok_or(StateError::Broken("an undone version"))?),
        settings: undo.target_rate_milli.map(|target_rate_milli| Settings { target_rate_milli }),
        cells: undo.limits.into_iter().map(stated).collect::<Result<_, _>>()?,
    })
}
