//! What a limit is, as protobuf: what the states of both workflows share.

use crate::proto as pb;
use crate::state::StateError;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::escrow::Escrow;
use tollgate_core::limit::{Conduct, Initial, Version, WhenLost};
use tollgate_core::policy::{Calendar, CalendarUnit, Policy, Terms};
use tollgate_core::tier::Priority;
use tollgate_core::units::{Amount, LedgerTime, Share, Span};

pub(crate) fn version(version: Version) -> pb::Version {
    pb::Version { run_us: version.run, n: version.n }
}

pub(crate) fn version_of(version: pb::Version) -> Version {
    Version { run: version.run_us, n: version.n }
}

pub(crate) fn escrow(escrow: Escrow) -> pb::Escrow {
    pb::Escrow { seq: escrow.seq, tokens: escrow.tokens }
}

pub(crate) fn escrow_of(escrow: pb::Escrow) -> Escrow {
    Escrow { seq: escrow.seq, tokens: escrow.tokens }
}

pub(crate) fn initial_of(empty: bool) -> Initial {
    if empty { Initial::Empty } else { Initial::Full }
}

pub(crate) fn rate_curve(curve: RateCurve) -> pb::RateCurve {
    let rate = |rate: Rate| pb::Rate { micro_tokens: rate.micro_tokens, period_us: rate.period.0 };
    pb::RateCurve {
        source: Some(rate(curve.source)),
        target: Some(rate(curve.target)),
        start_us: curve.start.0,
        end_us: curve.end.0,
    }
}

pub(crate) fn rate_curve_of(curve: pb::RateCurve) -> Result<RateCurve, StateError> {
    let rate = |rate: Option<pb::Rate>| {
        rate.map(|rate| Rate { micro_tokens: rate.micro_tokens, period: Span(rate.period_us) })
            .ok_or(StateError::Broken("a curve's rate"))
    };
    Ok(RateCurve {
        source: rate(curve.source)?,
        target: rate(curve.target)?,
        start: LedgerTime(curve.start_us),
        end: LedgerTime(curve.end_us),
    })
}

pub(crate) fn burst_curve(curve: BurstCurve) -> pb::BurstCurve {
    pb::BurstCurve {
        source_milli: curve.source.milli_floor(),
        target_milli: curve.target.milli_floor(),
        start_us: curve.start.0,
        end_us: curve.end.0,
    }
}

pub(crate) fn burst_curve_of(curve: pb::BurstCurve) -> BurstCurve {
    BurstCurve {
        source: Amount::from_milli(curve.source_milli),
        target: Amount::from_milli(curve.target_milli),
        start: LedgerTime(curve.start_us),
        end: LedgerTime(curve.end_us),
    }
}

/// The priority of a cell; none where it says nothing.
pub(crate) fn priority(priority: Priority) -> Option<pb::Priority> {
    (priority != Priority::default()).then(|| pb::Priority {
        rank: priority.rank,
        floor_ppb: Some(priority.floor.ppb()),
        lends: priority.lends,
    })
}

/// Reads what [`priority`] wrote.
pub(crate) fn priority_of(priority: Option<pb::Priority>) -> Result<Priority, StateError> {
    let Some(priority) = priority else { return Ok(Priority::default()) };
    let floor =
        priority.floor_ppb.map_or(Some(Share::ONE), Share::from_ppb).ok_or(StateError::Broken("a floor"))?;
    Ok(Priority { rank: priority.rank, floor, lends: priority.lends })
}

/// What is said of a cell; none where that is as by default.
pub(crate) fn conduct(conduct: Conduct) -> Option<pb::Conduct> {
    (conduct != Conduct::default()).then(|| pb::Conduct {
        paused: conduct.paused,
        shadow: conduct.shadow,
        reserve_ppb: conduct.reserve.ppb(),
        when_lost: match conduct.when_lost {
            WhenLost::Closed => None,
            WhenLost::Hold(part) => Some(pb::conduct::WhenLost::HoldPpb(part.ppb())),
            WhenLost::Open => Some(pb::conduct::WhenLost::Open(true)),
        },
    })
}

/// Reads what [`conduct`] wrote.
pub(crate) fn conduct_of(conduct: Option<pb::Conduct>) -> Result<Conduct, StateError> {
    let Some(conduct) = conduct else { return Ok(Conduct::default()) };
    let share = |ppb| Share::from_ppb(ppb).ok_or(StateError::Broken("a conduct"));
    Ok(Conduct {
        paused: conduct.paused,
        shadow: conduct.shadow,
        reserve: share(conduct.reserve_ppb)?,
        when_lost: match conduct.when_lost {
            None => WhenLost::Closed,
            Some(pb::conduct::WhenLost::HoldPpb(part)) => WhenLost::Hold(share(part)?),
            Some(pb::conduct::WhenLost::Open(_)) => WhenLost::Open,
        },
    })
}

/// `None` where tokens are minted.
pub(crate) fn policy(policy: &Policy) -> Option<pb::Policy> {
    let kind = match policy {
        Policy::TokenBucket => return None,
        Policy::SlidingWindow { window } => pb::policy::Kind::SlidingWindowUs(window.0),
        Policy::FixedWindow { boundaries, calendar, escrow } => {
            pb::policy::Kind::FixedWindow(pb::Boundaries {
                at_us: boundaries.iter().map(|boundary| boundary.0).collect(),
                calendar: calendar.as_ref().map(|calendar| pb::Calendar {
                    unit: match calendar.unit {
                        CalendarUnit::Hour => 0,
                        CalendarUnit::Day => 1,
                        CalendarUnit::Week => 2,
                        CalendarUnit::Month => 3,
                    },
                    time_zone: calendar.time_zone.clone(),
                    tz_version: calendar.tz_version.clone(),
                }),
                escrow: *escrow,
            })
        }
        Policy::InFlight { drain } => pb::policy::Kind::InFlightUs(drain.0),
    };
    Some(pb::Policy { kind: Some(kind) })
}

pub(crate) fn policy_of(policy: Option<pb::Policy>) -> Policy {
    match policy.and_then(|policy| policy.kind) {
        None => Policy::TokenBucket,
        Some(pb::policy::Kind::SlidingWindowUs(window)) => Policy::SlidingWindow { window: Span(window) },
        Some(pb::policy::Kind::FixedWindow(boundaries)) => {
            let calendar = boundaries.calendar.map(|calendar| Calendar {
                unit: match calendar.unit {
                    0 => CalendarUnit::Hour,
                    1 => CalendarUnit::Day,
                    2 => CalendarUnit::Week,
                    _ => CalendarUnit::Month,
                },
                time_zone: calendar.time_zone,
                tz_version: calendar.tz_version,
            });
            Policy::FixedWindow {
                boundaries: boundaries.at_us.into_iter().map(LedgerTime).collect(),
                calendar,
                escrow: boundaries.escrow,
            }
        }
        Some(pb::policy::Kind::InFlightUs(drain)) => Policy::InFlight { drain: Span(drain) },
    }
}

/// `None` where tokens are minted.
pub(crate) fn terms(terms: Terms) -> Option<pb::TermsPolicy> {
    let kind = match terms {
        Terms::Minted => return None,
        Terms::After(window) => pb::terms_policy::Kind::AfterUs(window.0),
        Terms::AtBoundary { last, next } => pb::terms_policy::Kind::AtBoundary(pb::Edges {
            last_us: last.map(|at| at.0),
            next_us: next.map(|at| at.0),
        }),
        Terms::OnRelease => pb::terms_policy::Kind::OnRelease(true),
    };
    Some(pb::TermsPolicy { kind: Some(kind) })
}

pub(crate) fn terms_of(terms: Option<pb::TermsPolicy>) -> Terms {
    match terms.and_then(|terms| terms.kind) {
        None => Terms::Minted,
        Some(pb::terms_policy::Kind::AfterUs(window)) => Terms::After(Span(window)),
        Some(pb::terms_policy::Kind::AtBoundary(edges)) => {
            Terms::AtBoundary { last: edges.last_us.map(LedgerTime), next: edges.next_us.map(LedgerTime) }
        }
        Some(pb::terms_policy::Kind::OnRelease(_)) => Terms::OnRelease,
    }
}
