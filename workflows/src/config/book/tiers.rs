//! Tiers of a limit: their order, what each keeps for itself, and what all of them may have together.

use super::{LimitJson, Plan, Problems, quoted, text};
use crate::wire::config::RateJson;
use std::collections::BTreeMap;
use tollgate_core::curve::{PERIOD_MAX, Rate};
use tollgate_core::limit::{CellConfig, CellKey};
use tollgate_core::policy::Policy;
use tollgate_core::tier::{Priority, TIERS_MAX};
use tollgate_core::units::{Share, mul_div_floor};

impl Plan {
    /// The place below all tiers that the meter has.
    pub(super) fn lowest_rank(&self, key: &CellKey) -> u32 {
        self.tiers(key).map(|cell| cell.priority.rank.saturating_add(1)).max().unwrap_or(0)
    }

    fn tiers(&self, key: &CellKey) -> impl Iterator<Item = &CellConfig> {
        self.cells.values().filter(move |cell| cell.key.limit == key.limit && cell.key.meter == key.meter)
    }

    /// Checks what the tiers of each meter that was set make together.
    pub(super) fn check_tiers(&self, set: &[LimitJson], problems: &mut Problems) {
        let mut meters: BTreeMap<(&str, &str), Vec<&LimitJson>> = BTreeMap::new();
        for limit in set {
            meters.entry((&limit.name, &limit.meter)).or_default().push(limit);
        }
        for limits in meters.into_values() {
            let Some(first) = limits.first() else { continue };
            let named = format!("limit {}", quoted(&first.name));
            let tiers: Vec<&CellConfig> = self.tiers(&first.key()).collect();
            if tiers.len() > TIERS_MAX {
                problems.add(format!("{named}: {} tiers, allowed: up to {TIERS_MAX}", tiers.len()));
            }
            for pair in tiers.windows(2) {
                if let [one, other] = pair
                    && !is_alike(&one.policy, &other.policy)
                {
                    let (first, second) = (text::policy(&one.policy), text::policy(&other.policy));
                    problems.add(format!(
                        "{named}: tier {} is a {first} and tier {} a {second}, allowed: one policy for all tiers",
                        one.key.tier, other.key.tier
                    ));
                }
            }
            check_ranks(&named, &limits, problems);
            check_totals(&named, &limits, &tiers, problems);
        }
    }
}

/// Whether two tiers count in the same way; how long their work drains may differ.
fn is_alike(one: &Policy, other: &Policy) -> bool {
    matches!((one, other), (Policy::InFlight { .. }, Policy::InFlight { .. })) || one == other
}

fn check_ranks(named: &str, limits: &[&LimitJson], problems: &mut Problems) {
    let mut ranks: BTreeMap<u32, &str> = BTreeMap::new();
    for limit in limits {
        if let Some(rank) = limit.rank
            && let Some(other) = ranks.insert(rank, &limit.tier)
        {
            problems.add(format!("{named}: rank is {rank} for tiers {other} and {}", limit.tier));
        }
    }
}

fn check_totals(named: &str, limits: &[&LimitJson], tiers: &[&CellConfig], problems: &mut Problems) {
    for total in limits.iter().filter_map(|limit| limit.total_rate?.check().ok()) {
        let sum = tiers.iter().fold(0_u128, |sum, tier| sum.saturating_add(per_longest(tier.rate.target)));
        if sum > per_longest(total) {
            let rates: Vec<String> = tiers
                .iter()
                .map(|tier| format!("{} {}", tier.key.tier, text::rate(tier.rate.target)))
                .collect();
            problems.add(format!(
                "{named}: the rates of its tiers add up to more than its rate of {}: {}",
                text::rate(total),
                rates.join(", ")
            ));
            break;
        }
    }
    for total in limits.iter().filter_map(|limit| limit.total_burst) {
        let sum: i128 = tiers.iter().map(|tier| tier.burst.target.whole()).sum();
        if sum > i128::from(total) {
            problems.add(format!(
                "{named}: the bursts of its tiers add up to {sum}, allowed: its burst of {total}"
            ));
            break;
        }
    }
}

/// Millionths of a token in the longest period there is: rates with other periods can be added up so.
fn per_longest(rate: Rate) -> u128 {
    u128::from(rate.micro_tokens) * u128::from(PERIOD_MAX.0) / u128::from(rate.period.0.max(1))
}

/// What a change makes of a tier's priority. `cell` has its new rate and burst already.
pub(super) fn changed(
    limit: &LimitJson,
    cell: &CellConfig,
    old: Priority,
    problems: &mut Problems,
) -> Priority {
    let floor = match limit.floor.map(|floor| floor_of(floor, cell)) {
        None => old.floor,
        Some(Ok(floor)) => floor,
        Some(Err(problem)) => {
            problems.add(format!("limit {}, tier {}: {problem}", quoted(&limit.name), limit.tier));
            old.floor
        }
    };
    Priority { rank: limit.rank.unwrap_or(old.rank), floor, lends: limit.lend.unwrap_or(old.lends) }
}

/// A floor as a part of what the tier has.
fn floor_of(floor: RateJson, cell: &CellConfig) -> Result<Share, String> {
    let in_flight = matches!(cell.policy, Policy::InFlight { .. });
    let (part, whole, given, allowed) = if in_flight {
        let burst = u64::try_from(cell.burst.target.whole()).unwrap_or(0);
        (u128::from(floor.count), u128::from(burst), floor.count.to_string(), burst.to_string())
    } else {
        let rate = floor.check().map_err(|error| format!("floor: {error}"))?;
        let (given, allowed) = (text::rate(rate), format!("its rate of {}", text::rate(cell.rate.target)));
        (per_longest(rate), per_longest(cell.rate.target), given, allowed)
    };
    if part > whole {
        return Err(format!("floor is {given}, allowed: 0 to {allowed}"));
    }
    let all = u128::from(Share::ONE.ppb());
    let ppb = if part == 0 { 0 } else { mul_div_floor(part, all, whole) };
    Ok(u32::try_from(ppb).ok().and_then(Share::from_ppb).unwrap_or(Share::ONE))
}

/// A floor as its tier's rate is stated.
pub(in crate::config) fn floor_text(cell: &CellConfig) -> String {
    let floor = cell.priority.floor;
    if floor == Share::ONE {
        return "all of it".to_owned();
    }
    if let Policy::InFlight { .. } = cell.policy {
        return floor.of(u64::try_from(cell.burst.target.whole()).unwrap_or(0)).to_string();
    }
    let rate = cell.rate.target;
    text::rate(Rate { micro_tokens: nearest(floor.of(rate.micro_tokens)), ..rate })
}

/// A part in 10^9 doesn't hit whole thousandths exactly: the nearest one is what was meant.
fn nearest(micro: u64) -> u64 {
    if micro < 1_000 { micro } else { micro.saturating_add(500) / 1_000 * 1_000 }
}

/// The part of a line that says how a tier stands to others; empty for the only one.
pub(in crate::config) fn described(cell: &CellConfig) -> String {
    if cell.priority == Priority::default() {
        return String::new();
    }
    let lends = if cell.priority.lends { ", lends what is idle" } else { "" };
    format!(", rank {}, floor {}{lends}", cell.priority.rank, floor_text(cell))
}

/// One line for each part of the priority that changes.
pub(super) fn lines(cell: &CellConfig, old: &CellConfig) -> Vec<String> {
    let (key, new, was) = (&cell.key, cell.priority, old.priority);
    let mut lines = Vec::new();
    if new.rank != was.rank {
        lines.push(format!("{key}: rank {} -> {}", was.rank, new.rank));
    }
    if new.floor != was.floor {
        lines.push(format!("{key}: floor {} -> {}", floor_text(old), floor_text(cell)));
    }
    if new.lends != was.lends {
        let what = if new.lends { "lends what is idle from now on" } else { "lends no more" };
        lines.push(format!("{key}: {what}"));
    }
    lines
}
