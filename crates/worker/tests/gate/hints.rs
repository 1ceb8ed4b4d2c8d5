//! When to come back, for those who are refused.

use crate::world::{BadClock, drain, pass};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_core::limit::CellKey;
use tollgate_worker::Limit;
use tollgate_worker::testing::{TestGroup, TestLimit};

fn hint(limit: &Limit) -> Duration {
    limit.try_acquire(1).unwrap_err().retry_after().unwrap()
}

#[tokio::test(start_paused = true)]
async fn refusals_do_not_make_the_wait_longer() {
    let group = TestGroup::new([TestLimit::in_flight("db", 30)]);
    let db = group.gate().await.meter("db", CellKey::IN_FLIGHT);
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(db.acquire().await.unwrap());
    }
    let mut longest = Duration::ZERO;
    for _ in 0..1_000 {
        (0..16).for_each(|_| longest = longest.max(hint(&db)));
        pass(1).await;
    }
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    drop(held);
    assert!(db.try_acquire(1).is_ok(), "as soon as there is one");
}

#[tokio::test(start_paused = true)]
async fn those_who_are_refused_together_come_back_apart_and_not_too_early() {
    // The next one comes in ten seconds.
    let group = TestGroup::new([TestLimit::per(Duration::from_secs(10), "api", 1).burst(1)]);
    let api = group.gate().await.limit("api");
    drop(api.acquire().await.unwrap());
    pass(50).await;
    let hints: Vec<Duration> = (0..200).map(|_| hint(&api)).collect();
    let earliest = *hints.iter().min().unwrap();
    assert!(earliest > Duration::from_millis(9_500), "{earliest:?}");
    let mut slots: BTreeMap<u128, usize> = BTreeMap::new();
    hints.iter().for_each(|hint| *slots.entry(hint.as_millis() / 100).or_default() += 1);
    assert!(slots.values().all(|count| *count <= 20), "more than a tenth in 100 ms: {slots:?}");
}

#[tokio::test(start_paused = true)]
async fn machines_that_were_started_a_day_apart_are_told_the_same() {
    let group = TestGroup::new([TestLimit::per(Duration::from_secs(10), "api", 2).burst(2)]);
    let clock = BadClock::new(group.clock());
    clock.boot_ahead_us.store(86_400_000_000, Ordering::Relaxed);
    let gates = [group.gate().await, group.gate_with(group.options().clock(clock)).await];
    let limits = gates.map(|gate| gate.limit("api"));
    pass(100).await;
    for step in 0..200 {
        for limit in &limits {
            drain(limit);
            // Ten seconds bring two; waits are stretched by up to a quarter.
            assert!(hint(limit) <= Duration::from_millis(12_500), "{:?} at step {step}", hint(limit));
        }
        pass(100).await;
    }
}
