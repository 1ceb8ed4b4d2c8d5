//! A saturated low tier and a high one with bursts.

use super::super::{Happening, Lower, Scenario};
use super::{Load, MINUTE, Policy, Rate, Rng, SECOND, Span, fleet};
use tollgate_core::curve::{BurstCurve, RateCurve};
use tollgate_core::limit::{CellConfig, CellKey};
use tollgate_core::tier::Priority;
use tollgate_core::units::Share;

const WORKERS: u64 = 8;

/// Two or three tiers. Lower ones want half as much again as they have, all the time; the highest one wants little, and for some
/// seconds now and then most of what it may have: its own, and what the others have above their floors. In every
/// second seed things go wrong.
pub(super) fn draw(rng: &mut Rng) -> Scenario {
    let length = 6 * MINUTE;
    let high = 40 + rng.below(40);
    let mut lower: Vec<(u64, u32)> = vec![(100 + rng.below(100), 20 + percent(rng, 40))];
    if rng.chance(1, 2) {
        lower.insert(0, (40 + rng.below(40), 30 + percent(rng, 50)));
    }
    let open: u64 = lower.iter().map(|(rate, floor)| rate * u64::from(100 - floor) / 100).sum();
    let loads = bursty(rng, high, high + open * 4 / 5, length);
    let mut scenario = fleet(rng, Rate::per_second(high), high, 15, length, loads);
    scenario.config.key.tier = "high".to_owned();
    let names = ["low", "mid"];
    let count = lower.len();
    for (index, (rate, floor)) in lower.into_iter().enumerate() {
        let priority = Priority {
            rank: u32::try_from(index).unwrap_or(0) + 1,
            floor: Share::from_ppb(floor * 10_000_000).unwrap_or(Share::ONE),
            lends: false,
        };
        let name = names[count - 1 - index];
        let config = CellConfig {
            key: CellKey { tier: name.to_owned(), ..scenario.config.key.clone() },
            rate: RateCurve::constant(Rate::per_second(rate)),
            burst: BurstCurve::constant(rate),
            priority,
            ..scenario.config.clone()
        };
        let loads = (0..WORKERS).map(|_| super::unsteady(rng, rate * 3 / 2 / WORKERS, length)).collect();
        scenario.lower.push(Lower { config, loads });
    }
    scenario.patience = 20 * SECOND;
    if rng.chance(1, 2) {
        trouble(rng, &mut scenario);
    }
    scenario
}

fn percent(rng: &mut Rng, below: u64) -> u32 {
    u32::try_from(rng.below(below)).unwrap_or(0)
}

/// A third of `calm` a second all the time, and up to `most` for a while now and then, at one to three workers.
fn bursty(rng: &mut Rng, calm: u64, most: u64, length: u64) -> Vec<Load> {
    let each = calm * 1_000 / 3 / WORKERS;
    let mut loads = vec![Load::steady(each); usize::try_from(WORKERS).unwrap_or(0)];
    let mut at = 20 * SECOND;
    while at + 40 * SECOND < length {
        let until = at + 3 * SECOND + rng.below(8 * SECOND);
        let count = 1 + rng.below(3);
        let more = (calm + rng.below(most - calm) - calm / 3) * 1_000 / count;
        let first = rng.below(WORKERS);
        for offset in 0..count {
            let worker = usize::try_from((first + offset) % WORKERS).unwrap_or(0);
            loads[worker] = loads[worker].clone().then(at, each + more).then(until, each);
        }
        // Quota moves twice a minute, as in `shift`.
        at = until + 30 * SECOND + rng.below(30 * SECOND);
    }
    loads
}

fn trouble(rng: &mut Rng, scenario: &mut Scenario) {
    if rng.chance(1, 2) {
        scenario.loss_ppm = 1 + rng.below(20_000);
        scenario.odd_ppm = rng.below(5_000);
        if rng.chance(1, 3) {
            in_flight(scenario);
        }
    }
    let mut at = 15 * SECOND;
    while at + 40 * SECOND < scenario.length {
        let worker = usize::try_from(rng.below(WORKERS)).unwrap_or(0);
        let later = at + SECOND + rng.below(25 * SECOND);
        let (first, second) = match rng.below(6) {
            0 => (Happening::LedgerUp(false), Happening::LedgerUp(true)),
            1 => (Happening::Crash(worker), Happening::Join(worker)),
            2 => (Happening::Pause(worker), Happening::Resume(worker)),
            3 => (Happening::Cells(reordered(scenario)), Happening::Cells(scenario.cells())),
            4 => {
                let fewer = scenario.cells().split_last().map(|(_, rest)| rest.to_vec());
                (Happening::Cells(fewer.unwrap_or_default()), Happening::Cells(scenario.cells()))
            }
            _ => (Happening::Leave(worker), Happening::Join(worker)),
        };
        scenario.happenings.push((at, first));
        scenario.happenings.push((later, second));
        at = later + rng.below(30 * SECOND);
    }
}

/// The lowest tier is the highest now, and lends.
fn reordered(scenario: &Scenario) -> Vec<CellConfig> {
    let mut cells = scenario.cells();
    let last = cells.len() - 1;
    for (rank, cell) in cells.iter_mut().enumerate() {
        cell.priority.rank = u32::try_from((rank + 1) % (last + 1)).unwrap_or(0);
        cell.priority.lends = rank == last;
    }
    cells
}

/// The same with permits in flight: as many as take the work that the rate brings in a second and a half.
fn in_flight(scenario: &mut Scenario) {
    scenario.work = (SECOND, 2 * SECOND);
    let lower = scenario.lower.iter_mut().map(|lower| &mut lower.config);
    for cell in [&mut scenario.config].into_iter().chain(lower) {
        let permits = u64::try_from(cell.burst.target.whole()).unwrap_or(0) * 3 / 2;
        cell.burst = BurstCurve::constant(permits);
        cell.policy = Policy::InFlight { drain: Span::from_secs(1) };
    }
}
