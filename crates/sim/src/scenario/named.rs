//! The scenarios by name.

mod tiers;

use super::load::Load;
use super::{Happening, Scenario};
use crate::rng::Rng;
use crate::world::{LEDGER_ZERO, LedgerZero};
use tollgate_core::curve::Rate;
use tollgate_core::limit::CellConfig;
use tollgate_core::policy::Policy;
use tollgate_core::units::Span;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

type Draw = fn(&mut Rng) -> Scenario;

pub(super) const ALL: [(&str, Draw); 29] = [
    ("doorman-1", |rng| doorman(rng, 5, 10 * MINUTE)),
    ("doorman-2", |rng| away(rng, 20)),
    ("doorman-3", |rng| away(rng, 50)),
    ("doorman-4", |rng| doorman(rng, 15, 10 * MINUTE)),
    ("doorman-5", doorman_jobs),
    ("doorman-6", doorman_spikes),
    ("doorman-7", doorman_mishaps),
    ("cron", cron),
    ("cut", cut),
    ("shift", shift),
    ("rolling-restart", rolling_restart),
    ("flood", flood),
    ("tiny", tiny),
    ("small-burst", small_burst),
    ("amnesia", |rng| forgets(rng, false)),
    ("reset", |rng| forgets(rng, true)),
    ("sliding-window", |rng| sliding(rng, 1_000, 10)),
    ("sliding-window-60", |rng| sliding(rng, 1_000, 60)),
    ("sliding-window-100", |rng| sliding(rng, 100, 10)),
    ("fixed-window", fixed_window),
    ("leaky-bucket", |rng| leaky_bucket(rng, 20)),
    ("leaky-bucket-1", |rng| leaky_bucket(rng, 1)),
    ("in-flight", |rng| in_flight(rng, 1_000)),
    ("in-flight-100", |rng| in_flight(rng, 100)),
    ("conserved-chaos", conserved_chaos),
    ("reconfigure", reconfigure),
    ("meters", |rng| meters(rng, false)),
    ("meters-chaos", |rng| meters(rng, true)),
    ("tiers", tiers::draw),
];

pub(super) fn draw(name: &str, seed: u64) -> Option<Scenario> {
    let (_, draw) = ALL.iter().find(|(other, _)| *other == name)?;
    Some(draw(&mut Rng::new(seed ^ 0xd0_0123)))
}

/// A fleet of `loads`, all of which are there from the first second on.
pub(super) fn fleet(
    rng: &mut Rng,
    rate: Rate,
    burst: u64,
    lease_secs: u64,
    length: u64,
    loads: Vec<Load>,
) -> Scenario {
    let joins = (0..loads.len()).map(|worker| (rng.below(SECOND / 2), Happening::Join(worker)));
    Scenario {
        config: CellConfig::constant("api", rate, burst, Span::from_secs(lease_secs)),
        cost: 1,
        more: Vec::new(),
        rolled_back_ppm: 0,
        length,
        tick: 20_000,
        delay: (3_000, 15_000),
        loss_ppm: 0,
        patience: 2 * SECOND,
        window: 10 * SECOND,
        served_within: MINUTE,
        drift: true,
        work: (0, 0),
        odd_ppm: 0,
        happenings: joins.collect(),
        lower: Vec::new(),
        loads,
    }
}

/// Wants about `per_second`, up to a tenth more or less, another figure every ten seconds.
fn unsteady(rng: &mut Rng, per_second: u64, length: u64) -> Load {
    let mut load = Load::steady(0);
    for at in (0..length).step_by(10_000_000) {
        load = load.then(at, per_second * (900 + rng.below(201)));
    }
    load
}

/// Doorman's capacity of 500 with leases of 60 s; clients that together want a tenth more than there is.
fn doorman(rng: &mut Rng, clients: u64, length: u64) -> Scenario {
    let loads = (0..clients).map(|_| unsteady(rng, 550 / clients, length)).collect();
    let mut scenario = fleet(rng, Rate::per_second(500), 500, 60, length, loads);
    scenario.tick = 50_000;
    scenario
}

/// The ledger is away for a while, once.
fn away(rng: &mut Rng, seconds: u64) -> Scenario {
    let mut scenario = doorman(rng, 5, 5 * MINUTE);
    let from = 2 * MINUTE + rng.below(20 * SECOND);
    scenario.happenings.push((from, Happening::LedgerUp(false)));
    scenario.happenings.push((from + seconds * SECOND, Happening::LedgerUp(true)));
    scenario
}

/// 13 jobs with 45 clients in all; a job's clients want the same, jobs differ.
fn jobs(rng: &mut Rng, length: u64) -> Scenario {
    let mut loads = Vec::new();
    for job in 0..13 {
        let clients = if job < 6 { 4 } else { 3 };
        let each = 8 + rng.below(10);
        loads.extend((0..clients).map(|_| unsteady(rng, each, length)));
    }
    let mut scenario = fleet(rng, Rate::per_second(500), 500, 60, length, loads);
    scenario.tick = 250_000;
    scenario
}

fn doorman_jobs(rng: &mut Rng) -> Scenario {
    jobs(rng, 10 * MINUTE)
}

fn doorman_spikes(rng: &mut Rng) -> Scenario {
    let length = 10 * MINUTE;
    let mut scenario = jobs(rng, length);
    for worker in [3, 17] {
        let (from, stays) = (MINUTE + rng.below(6 * MINUTE), MINUTE + rng.below(MINUTE));
        let calm = scenario.loads[worker].clone();
        scenario.happenings.push((from, Happening::Load(worker, Load::steady(1_000_000))));
        scenario.happenings.push((from + stays, Happening::Load(worker, calm)));
    }
    scenario
}

/// An hour in which something goes wrong every minute.
fn doorman_mishaps(rng: &mut Rng) -> Scenario {
    let length = 60 * MINUTE;
    let mut scenario = jobs(rng, length);
    for minute in 1..59 {
        let at = minute * MINUTE + rng.below(30 * SECOND);
        let worker = usize::try_from(rng.below(45)).unwrap_or(0);
        let later = at + 2 * SECOND + rng.below(25 * SECOND);
        let (first, second) = match rng.below(5) {
            0 => (Happening::LedgerUp(false), Happening::LedgerUp(true)),
            1 => (Happening::Crash(worker), Happening::Join(worker)),
            2 => (Happening::Pause(worker), Happening::Resume(worker)),
            3 => (Happening::Leave(worker), Happening::Join(worker)),
            _ => {
                let calm = scenario.loads[worker].clone();
                let spike = Load::steady(1_000 * (100 + rng.below(900)));
                (Happening::Load(worker, spike), Happening::Load(worker, calm))
            }
        };
        scenario.happenings.push((at, first));
        scenario.happenings.push((later, second));
    }
    scenario
}

/// One client that fires a few calls at once, rarely; none of them may wait.
fn cron(rng: &mut Rng) -> Scenario {
    let length = 60 * MINUTE;
    let mut bursts = Vec::new();
    let mut at = 30 * SECOND;
    while at < length {
        bursts.push((at, 1 + rng.below(10)));
        at += 20 * SECOND + rng.below(5 * MINUTE);
    }
    let mut scenario = fleet(rng, Rate::per_second(10), 50, 15, length, vec![Load::bursts(bursts)]);
    scenario.patience = 0;
    scenario
}

/// 100 a second are cut to 20 at once, with three clients that use all they get.
fn cut(rng: &mut Rng) -> Scenario {
    let loads = (0..3).map(|_| unsteady(rng, 60, 3 * MINUTE)).collect();
    let mut scenario = fleet(rng, Rate::per_second(100), 50, 15, 3 * MINUTE, loads);
    let at = MINUTE + rng.below(20 * SECOND);
    scenario.happenings.push((at, Happening::Rate { rate: Rate::per_second(20), over: Span::ZERO }));
    scenario
}

/// 10 workers that want 1.2 times the limit; one of them wants four fifths of it, another one every 30 s.
fn shift(rng: &mut Rng) -> Scenario {
    let length = 5 * MINUTE;
    let mut loads = vec![Load::steady(0); 10];
    let mut hot = 0;
    for at in (0..length).step_by(30_000_000) {
        hot = (hot + 1 + usize::try_from(rng.below(8)).unwrap_or(0)) % 10;
        for (worker, load) in loads.iter_mut().enumerate() {
            let milli = if worker == hot { 480_000 } else { 120_000 / 9 };
            *load = load.clone().then(at, milli);
        }
    }
    let mut scenario = fleet(rng, Rate::per_second(500), 500, 15, length, loads);
    scenario.window = 30 * SECOND;
    scenario
}

/// 20 workers; one after the other stops in good order and starts anew.
fn rolling_restart(rng: &mut Rng) -> Scenario {
    let length = 4 * MINUTE;
    let loads = (0..20).map(|_| unsteady(rng, 12, length)).collect();
    let mut scenario = fleet(rng, Rate::per_second(200), 200, 15, length, loads);
    for worker in 0..20u64 {
        let at = 30 * SECOND + worker * 5 * SECOND + rng.below(SECOND);
        let index = usize::try_from(worker).unwrap_or(0);
        scenario.happenings.push((at, Happening::Leave(index)));
        scenario.happenings.push((at + SECOND + rng.below(2 * SECOND), Happening::Join(index)));
    }
    scenario
}

/// From nobody to 2,000 workers within ten seconds.
fn flood(rng: &mut Rng) -> Scenario {
    let length = 45 * SECOND;
    let loads = vec![Load::steady(2_000); 2_000];
    let mut scenario = fleet(rng, Rate::per_second(2_000), 4_000, 90, length, loads);
    for (at, _) in &mut scenario.happenings {
        *at = rng.below(10 * SECOND);
    }
    scenario.tick = 500_000;
    scenario.patience = 60 * SECOND;
    scenario.window = MINUTE;
    scenario
}

/// 100 an hour for 50 workers that always have work.
fn tiny(rng: &mut Rng) -> Scenario {
    let length = 120 * MINUTE;
    let loads = vec![Load::steady(3); 50];
    let rate = Rate { micro_tokens: 100_000_000, period: Span::from_secs(3_600) };
    let mut scenario = fleet(rng, rate, 10, 60, length, loads);
    scenario.tick = SECOND;
    scenario.patience = 24 * 60 * MINUTE;
    scenario.window = 100 * MINUTE;
    scenario.served_within = 90 * MINUTE;
    scenario
}

/// 100 a second for 20 workers, of which only five can hold a token at a time.
fn small_burst(rng: &mut Rng) -> Scenario {
    let length = 4 * MINUTE;
    let loads = vec![Load::steady(6_000); 20];
    let mut scenario = fleet(rng, Rate::per_second(100), 5, 15, length, loads);
    scenario.tick = 10_000;
    scenario.patience = MINUTE;
    scenario.window = MINUTE;
    scenario
}

/// Evenly spaced: a burst of one, wanted by eight workers a fifth faster than it comes. The bound of such a bucket is that no two
/// are admitted within the time that one takes.
fn leaky_bucket(rng: &mut Rng, per_second: u64) -> Scenario {
    let length = 5 * MINUTE;
    let loads = (0..8).map(|_| Load::steady(per_second * 150)).collect();
    let mut scenario = fleet(rng, Rate::per_second(per_second), 1, 15, length, loads);
    scenario.tick = 5_000;
    scenario.patience = MINUTE;
    scenario.window = MINUTE;
    scenario.served_within = 3 * MINUTE;
    scenario
}

/// The ledger loses its memory under full load.
fn forgets(rng: &mut Rng, by_reset: bool) -> Scenario {
    let length = 6 * MINUTE;
    let loads = (0..10).map(|_| unsteady(rng, 12, length)).collect();
    let mut scenario = fleet(rng, Rate::per_second(100), 100, 30, length, loads);
    let at = MINUTE + rng.below(20 * SECOND);
    if by_reset {
        scenario.happenings.push((at - 5 * SECOND - rng.below(20 * SECOND), Happening::Snapshot));
        scenario.happenings.push((at, Happening::Reset));
    } else {
        scenario.happenings.push((at, Happening::Amnesia));
    }
    scenario
}

/// Ten workers that want 1.2 times `per_second`; half of it is wanted by one of them, another one every 30 s.
fn skewed(rng: &mut Rng, per_second: u64, length: u64) -> Vec<Load> {
    let mut loads = vec![Load::steady(0); 10];
    let mut hot = 0;
    for at in (0..length).step_by(30_000_000) {
        hot = (hot + 1 + usize::try_from(rng.below(8)).unwrap_or(0)) % 10;
        for (worker, load) in loads.iter_mut().enumerate() {
            let milli = if worker == hot { per_second * 600 } else { per_second * 600 / 9 };
            *load = load.clone().then(at, milli);
        }
    }
    loads
}

/// Never more than `tokens` in any window, wanted 1.2 times as fast, by a fleet whose demand moves.
fn sliding(rng: &mut Rng, tokens: u64, window_secs: u64) -> Scenario {
    let length = 5 * MINUTE;
    let loads = skewed(rng, tokens.div_ceil(window_secs), length);
    let lease = (window_secs / 10).max(2);
    let mut scenario =
        fleet(rng, Rate::new(tokens, Span::from_secs(window_secs)), tokens, lease, length, loads);
    scenario.config.policy = Policy::SlidingWindow { window: Span::from_secs(window_secs) };
    scenario.window = MINUTE;
    scenario.served_within = 3 * MINUTE;
    scenario
}

/// Windows of a minute that begin at whole ones; a few workers that want more than there is.
fn fixed_window(rng: &mut Rng) -> Scenario {
    let length = 6 * MINUTE;
    let loads = skewed(rng, 100, length);
    let mut scenario = fleet(rng, Rate::new(3_000, Span::from_secs(60)), 3_000, 5, length, loads);
    let boundaries = (0..10).map(|minute| LedgerZero(LEDGER_ZERO).ledger_time(minute * MINUTE));
    scenario.config.policy =
        Policy::FixedWindow { boundaries: boundaries.collect(), calendar: None, escrow: true };
    scenario.patience = 20 * SECOND;
    scenario.window = 2 * MINUTE;
    scenario.served_within = 3 * MINUTE;
    scenario
}

/// Never more than `permits` at once, each held for five to fifteen seconds, by a fleet whose demand moves.
fn in_flight(rng: &mut Rng, permits: u64) -> Scenario {
    let length = 5 * MINUTE;
    let loads = skewed(rng, permits.div_ceil(10), length);
    let mut scenario = fleet(rng, Rate::per_second(permits), permits, 15, length, loads);
    scenario.config.policy = Policy::InFlight { drain: Span::from_secs(2) };
    scenario.work = (5 * SECOND, 15 * SECOND);
    scenario.window = MINUTE;
    scenario.served_within = 3 * MINUTE;
    scenario
}

/// Any policy that conserves tokens, any number of them, and everything that can go wrong.
fn conserved_chaos(rng: &mut Rng) -> Scenario {
    let length = 2 * MINUTE + rng.below(4 * MINUTE);
    let workers = 1 + rng.below(12);
    let tokens = [1, 3, 10, 100, 1_000][usize::try_from(rng.below(5)).unwrap_or(0)];
    let lease = 2 + rng.below(15);
    let window = (lease + rng.below(60)).max(2);
    let work = SECOND + rng.below(20 * SECOND);
    let kind = rng.below(3);
    let per_second = if kind == 2 { tokens * SECOND * 1_500 / work } else { tokens * 1_500 / window };
    let loads = (0..workers).map(|_| Load::steady(per_second.div_ceil(workers))).collect();
    let rate = Rate::new(tokens, Span::from_secs(window));
    let mut scenario = fleet(rng, rate, tokens, lease, length, loads);
    scenario.config.policy = match kind {
        0 => Policy::SlidingWindow { window: Span::from_secs(window) },
        1 => {
            let every = (window.max(lease) + 3) * SECOND;
            let begins = (0..100).map(|index| LedgerZero(LEDGER_ZERO).ledger_time(index * every));
            Policy::FixedWindow {
                boundaries: begins.collect(),
                calendar: None,
                escrow: window.is_multiple_of(2),
            }
        }
        _ => Policy::InFlight { drain: Span::from_millis(rng.below(5_000)) },
    };
    scenario.work = (work / 2, work * 2);
    scenario.loss_ppm = rng.below(50_000);
    scenario.odd_ppm = rng.below(50_000);
    scenario.served_within = 24 * 60 * MINUTE;
    let mut at = 10 * SECOND;
    while at + 30 * SECOND < length {
        let worker = usize::try_from(rng.below(workers)).unwrap_or(0);
        let later = at + SECOND + rng.below(2 * lease * SECOND);
        let (first, second) = match rng.below(9) {
            0 => (Happening::LedgerUp(false), Happening::LedgerUp(true)),
            1 => (Happening::Crash(worker), Happening::Join(worker)),
            2 => (Happening::Pause(worker), Happening::Resume(worker)),
            3 => (Happening::Leave(worker), Happening::Join(worker)),
            4 => (Happening::Snapshot, Happening::Reset),
            5 => (Happening::Snapshot, Happening::Amnesia),
            6 => {
                let less = Happening::Capacity { tokens: tokens / 2, over: Span(rng.below(5 * SECOND)) };
                (less, Happening::Capacity { tokens, over: Span(rng.below(5 * SECOND)) })
            }
            7 => {
                let calm = scenario.loads[worker].clone();
                (Happening::Load(worker, Load::steady(0)), Happening::Load(worker, calm))
            }
            _ => {
                let calm = scenario.loads[worker].clone();
                let spike = Load::steady(per_second * 3);
                (Happening::Load(worker, spike), Happening::Load(worker, calm))
            }
        };
        scenario.happenings.push((at, first));
        scenario.happenings.push((later, second));
        at = later + rng.below(20 * SECOND);
    }
    scenario
}

/// A busy limit whose policy, rate and number of tokens change, with work waiting and leases out.
fn reconfigure(rng: &mut Rng) -> Scenario {
    let length = 6 * MINUTE;
    let loads = (0..6).map(|_| Load::steady(4_000)).collect();
    let mut scenario = fleet(rng, Rate::per_second(20), 40, 5, length, loads);
    scenario.work = (SECOND, 8 * SECOND);
    scenario.loss_ppm = rng.below(20_000);
    scenario.odd_ppm = rng.below(20_000);
    scenario.served_within = 3 * MINUTE;
    let mut at = 20 * SECOND;
    while at + MINUTE < length {
        let change = match rng.below(6) {
            0 => Happening::Policy(Policy::TokenBucket),
            1 => Happening::Policy(Policy::SlidingWindow { window: Span::from_secs(5 + rng.below(20)) }),
            2 => Happening::Policy(Policy::InFlight { drain: Span::from_millis(rng.below(3_000)) }),
            3 => {
                let begins = (0..120).map(|index| LedgerZero(LEDGER_ZERO).ledger_time(index * 10 * SECOND));
                Happening::Policy(Policy::FixedWindow {
                    boundaries: begins.collect(),
                    calendar: None,
                    escrow: true,
                })
            }
            4 => Happening::Capacity { tokens: 5 + rng.below(60), over: Span(rng.below(5 * SECOND)) },
            _ => Happening::Rate {
                rate: Rate::per_second(5 + rng.below(40)),
                over: Span(rng.below(5 * SECOND)),
            },
        };
        scenario.happenings.push((at, change));
        at += SECOND + rng.below(40 * SECOND);
    }
    scenario
}

/// Work that is charged a request, a hundred tokens and a place in flight, all or nothing, by a fleet whose demand moves. One of the
/// three is the scarcest; figures are about that one. With `chaos` everything goes wrong that can.
fn meters(rng: &mut Rng, chaos: bool) -> Scenario {
    const TOKENS: u64 = 100;
    const WORKS: u64 = 300;
    let length = 3 * MINUTE;
    let mut scenario = fleet(rng, Rate::per_second(WORKS), WORKS, 15, length, Vec::new());
    let loads = skewed(rng, WORKS, length);
    scenario.happenings =
        (0..loads.len()).map(|worker| (rng.below(SECOND / 2), Happening::Join(worker))).collect();
    scenario.loads = loads;
    scenario.work = (5 * SECOND, 15 * SECOND);
    let meter = |meter: &str, works: u64, cost: u64| {
        let mut config = scenario.config.clone();
        config.key.meter = meter.to_owned();
        config.rate = tollgate_core::curve::RateCurve::constant(Rate::per_second(works * cost));
        config.burst = tollgate_core::curve::BurstCurve::constant(works * cost);
        (config, cost)
    };
    let scarcest = usize::try_from(rng.below(3)).unwrap_or(0);
    let mut room =
        |index: usize| if index == scarcest { WORKS } else { WORKS * (130 + rng.below(100)) / 100 };
    let mut all = vec![
        meter("requests", room(0), 1),
        meter("tokens", room(1), TOKENS),
        meter("in_flight", 10 * room(2), 1),
    ];
    if let Some((config, _)) = all.last_mut() {
        config.policy = Policy::InFlight { drain: Span::from_secs(2) };
    }
    (scenario.config, scenario.cost) = all.remove(scarcest);
    scenario.more = all;
    scenario.rolled_back_ppm = 20_000;
    scenario.window = MINUTE;
    scenario.served_within = 3 * MINUTE;
    if chaos {
        scenario.rolled_back_ppm = 300_000;
        scenario.loss_ppm = rng.below(50_000);
        scenario.odd_ppm = rng.below(50_000);
        scenario.served_within = 24 * 60 * MINUTE;
        let mut at = 10 * SECOND;
        while at + 30 * SECOND < length {
            let worker = usize::try_from(rng.below(10)).unwrap_or(0);
            let later = at + SECOND + rng.below(30 * SECOND);
            let (first, second) = match rng.below(6) {
                0 => (Happening::LedgerUp(false), Happening::LedgerUp(true)),
                1 => (Happening::Crash(worker), Happening::Join(worker)),
                2 => (Happening::Pause(worker), Happening::Resume(worker)),
                3 => (Happening::Leave(worker), Happening::Join(worker)),
                4 => (Happening::Snapshot, Happening::Reset),
                _ => (Happening::Snapshot, Happening::Amnesia),
            };
            scenario.happenings.push((at, first));
            scenario.happenings.push((later, second));
            at = later + rng.below(20 * SECOND);
        }
    }
    scenario
}
