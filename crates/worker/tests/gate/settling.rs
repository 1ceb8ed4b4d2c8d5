//! Estimates and what came of them.

use crate::world::{limit, pass};
use std::time::Duration;
use tollgate_core::limit::DEBT_BURSTS_MAX;
use tollgate_worker::testing::{self, TestGroup, TestLimit};
use tollgate_worker::{Gate, Outcome, Permit};

fn group() -> TestGroup {
    TestGroup::new([
        limit("openai", 10, 10),
        limit("openai", 100, 100).meter("tokens"),
        TestLimit::in_flight("openai", 4).lease(Duration::from_secs(8)),
    ])
}

fn level(gate: &Gate, meter: &str) -> i64 {
    gate.state().limits.iter().find(|limit| limit.meter == meter).unwrap().level
}

async fn take(gate: &Gate, costs: [u64; 3]) -> Permit {
    let meters = gate.meters("openai", ["requests", "tokens", "in_flight"]);
    meters.acquire(costs).timeout(Duration::from_secs(30)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_meter_is_settled_by_itself() {
    let group = group();
    let gate = group.gate().await;
    pass(2_000).await;
    let mut permit = take(&gate, [1, 40, 1]).await;
    // A stream that says again and again how far it is.
    for so_far in [10, 25, 50, 60] {
        permit.settle_meter("tokens", so_far).unwrap();
    }
    assert_eq!(permit.charged_to("tokens"), 60);
    let error = permit.settle_meter("bytes", 1).unwrap_err();
    assert_eq!(error.charged, ["in_flight", "requests", "tokens"]);
    assert!(error.to_string().contains("not charged to meter \"bytes\", but to "), "{error}");
    permit.finish(Outcome::Success);
    assert_eq!(group.meter_usage("openai", "tokens").charged, 60);
    assert_eq!(group.usage("openai").charged, 1);
}

#[tokio::test(start_paused = true)]
async fn an_unused_permit_goes_back_whole() {
    let group = group();
    let gate = group.gate().await;
    pass(2_000).await;
    let before = ["requests", "tokens", "in_flight"].map(|meter| level(&gate, meter));
    take(&gate, [3, 40, 2]).await.give_back();
    let charged = |meter| group.meter_usage("openai", meter).charged;
    assert_eq!(before, ["requests", "tokens", "in_flight"].map(|meter| level(&gate, meter)));
    assert_eq!(["requests", "tokens"].map(charged), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_is_given_back_in_parts() {
    let group = group();
    let gate = group.gate().await;
    pass(2_000).await;
    let mut permit = take(&gate, [1, 1, 4]).await;
    let other = gate.meter("openai", "in_flight");
    assert!(other.try_acquire(1).is_err());
    permit.settle_meter("in_flight", 1).unwrap();
    let three = other.acquire().cost(3).timeout(Duration::from_secs(2)).await.unwrap();
    assert!(other.try_acquire(1).is_err());
    drop((permit, three));
    pass(1_000).await;
    assert!(other.acquire().cost(4).timeout(Duration::from_secs(2)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn debt_ends_at_its_bound_and_the_rest_is_counted() {
    let group = group();
    let gate = group.gate().await;
    pass(2_000).await;
    let permit = gate.meter("openai", "tokens").acquire().cost(10).await.unwrap();
    let settled = permit.settle(u64::MAX, Outcome::Success);
    assert_eq!(settled.charged, 100 * DEBT_BURSTS_MAX);
    assert_eq!(settled.beyond, u64::MAX - 10 - settled.charged);
    assert_eq!(group.meter_usage("openai", "tokens").beyond, settled.beyond);
    // The debt is paid off by what is minted, and then it goes on.
    let began = tokio::time::Instant::now();
    let next = gate.meter("openai", "tokens").acquire().timeout(Duration::from_secs(60)).await;
    assert!(next.is_ok(), "{next:?}");
    assert!((8..=40).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A permit that is out: which of the uses is its own, and whether it has cost more than was estimated.
struct Out {
    permit: Permit,
    entry: usize,
    is_over: bool,
}

/// Whatever is estimated and settled in whatever order: what was really used stays within the bound and the largest debt that
/// there was at any time, and that is at most what the permits that were out at one time cost beyond their charges.
async fn within_bound_and_debt(seed: u64) -> u64 {
    const OUT_MAX: usize = 4;
    const OVER_MAX: u64 = 15;
    let mut random = Random(seed ^ 0xdeb7);
    let (rate, burst) = (10 + random.below(100), 20 + random.below(100));
    let group = TestGroup::new([limit("openai", rate, burst).meter("tokens")]);
    let gate = group.gate().await;
    let tokens = gate.meters("openai", ["tokens"]);
    let mut out: Vec<Out> = Vec::new();
    // When, and how much: what was charged counts when it was charged, as far as it was used; what came on top, when it was told.
    let mut used: Vec<(u64, u64)> = Vec::new();
    let (mut debt_max, mut settled_up) = (0, 0);
    for _ in 0..300 {
        pass(random.below(150)).await;
        if out.len() < OUT_MAX && random.below(2) == 0 {
            let estimate = 1 + random.below(burst);
            if let Ok(permit) = tokens.try_acquire([estimate]) {
                used.push((permit.admitted_at().0, estimate));
                out.push(Out { permit, entry: used.len() - 1, is_over: false });
            }
            continue;
        }
        if out.is_empty() {
            continue;
        }
        let index = usize::try_from(random.below(out.len() as u64)).unwrap();
        let Out { permit, entry, is_over } = &mut out[index];
        let charged = permit.charged_to("tokens");
        match random.below(4) {
            0 if !*is_over => {
                let less = random.below(used[*entry].1 + 1);
                let settled = permit.settle_meter("tokens", less).unwrap();
                assert!(settled.returned <= charged - less && settled.charged == 0);
                used[*entry].1 = less;
            }
            1 => {
                let over = 1 + random.below(OVER_MAX - 1);
                let settled = permit.settle_meter("tokens", charged + over).unwrap();
                assert_eq!((settled.returned, settled.charged, settled.beyond), (0, over, 0));
                if !std::mem::replace(is_over, true) {
                    used[*entry].1 = charged;
                }
                used.push((group.clock().boot().0, over));
                debt_max = debt_max.max(-level(&gate, "tokens"));
                settled_up += 1;
            }
            2 if !*is_over => {
                used[*entry].1 = 0;
                out.swap_remove(index).permit.give_back();
            }
            _ => out.swap_remove(index).permit.finish(Outcome::Success),
        }
    }
    used.sort_unstable();
    for (index, (from, _)) in used.iter().enumerate() {
        let mut sum = 0;
        for (to, tokens) in used.get(index..).unwrap_or_default() {
            sum += i128::from(*tokens) * 1_000_000;
            let bound = i128::from(burst) * 1_000_000 + i128::from(rate) * i128::from(to - from);
            let bound = bound + i128::from(debt_max) * 1_000_000;
            assert!(
                sum <= bound,
                "seed {seed}: {sum} of {bound}, rate {rate}, burst {burst}, debt {debt_max}"
            );
        }
    }
    assert!(debt_max <= i64::try_from(burst * DEBT_BURSTS_MAX).unwrap());
    assert_eq!(group.meter_usage("openai", "tokens").beyond, 0);
    settled_up
}

#[test]
fn any_estimates_and_settlings_stay_within_bound_and_debt() {
    let settled_up: u64 = (0..100).map(|seed| testing::run(within_bound_and_debt(seed))).sum();
    assert!(settled_up > 1_000, "only {settled_up} settlements upwards show anything");
}
