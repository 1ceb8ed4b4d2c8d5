//! Limits that refuse nothing, and say what they would refuse.

use crate::world::{drain, limit, pass};
use std::time::Duration;
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Outcome, Reason};

#[tokio::test(start_paused = true)]
async fn a_limit_in_shadow_refuses_nothing_and_counts_what_it_would_have() {
    let group = TestGroup::new([limit("api", 10, 10).shadow()]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    for _ in 0..50 {
        assert!(api.acquire().await.is_ok(), "at once");
    }
    let state = gate.state().limits[0].clone();
    assert!(state.shadow);
    // What was there is charged as ever.
    let charged = state.counters.charged;
    assert!((1..=10).contains(&charged), "{charged}");
    assert_eq!((state.counters.granted, state.level), (50, 0));
    assert_eq!(state.counters.shadow_refused, [("empty", 50 - charged)]);
    assert_eq!((state.counters.shadow_tokens, state.counters.refused.len()), (50 - charged, 0));
    assert!(gate.would_admit("api", 50).unwrap().would_admit);
    assert!(api.acquire().cost(11).await.is_ok() && api.try_acquire(12).is_ok());
    let usage = group.usage("api");
    assert!(usage.shadow_refused.contains(&("cost_above_burst", 2)), "{usage:?}");
    // It is told as wanted: the limit gets a share as if it were in force.
    pass(3_000).await;
    assert!(gate.state().limits[0].share.ppb() > 0);
    assert_eq!((gate.state().limits[0].waiting, group.usage("api").waited), ((0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_charged_nothing_gives_nothing_back_and_owes_nothing() {
    let group = TestGroup::new([limit("api", 10, 10).shadow(), TestLimit::in_flight("db", 2).shadow()]);
    let gate = group.gate().await;
    let (api, db) = (gate.limit("api"), gate.meter("db", "in_flight"));
    pass(1_000).await;
    drain_charged(&api);
    let level = gate.state().limits[0].level;
    for actual in [0, 1, 100] {
        let permit = api.try_acquire(5).unwrap();
        assert_eq!(permit.cost(), 0);
        let settled = permit.settle(actual, Outcome::Success);
        assert_eq!((settled.returned, settled.charged, settled.beyond), (0, 0, 0));
    }
    api.try_acquire(5).unwrap().give_back();
    assert_eq!(gate.state().limits[0].level, level);
    // More are in flight than may be; when all are done, as many as before may begin.
    let many: Vec<_> = (0..20).map(|_| db.try_acquire(1).unwrap()).collect();
    let charged = many.iter().filter(|permit| permit.cost() > 0).count();
    assert!(charged <= 2, "{charged}");
    drop(many);
    pass(3_000).await;
    group.set(TestLimit::in_flight("db", 2));
    pass(1_000).await;
    let first = db.acquire().await.unwrap();
    let second = db.acquire().await.unwrap();
    assert!(db.try_acquire(1).is_err());
    drop((first, second));
}

/// Takes until the first that is charged nothing.
fn drain_charged(limit: &tollgate_worker::Limit) {
    while limit.try_acquire(1).unwrap().cost() > 0 {}
}

#[tokio::test(start_paused = true)]
async fn waiters_go_on_when_shadow_is_switched_on_and_are_refused_again_after_it() {
    let group = TestGroup::new([limit("api", 1, 5)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    drain(&api);
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.acquire().await.is_ok() })
        })
        .collect();
    pass(500).await;
    group.set(limit("api", 1, 5).shadow());
    pass(500).await;
    for waiter in waiting {
        assert!(waiter.is_finished() && waiter.await.unwrap());
    }
    group.set(limit("api", 1, 5));
    pass(500).await;
    drain(&api);
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::Empty));
}

#[tokio::test(start_paused = true)]
async fn of_several_meters_those_in_force_are_charged_and_refuse() {
    let group = TestGroup::new([limit("api", 10, 10), limit("api", 1, 100).meter("tokens").shadow()]);
    let gate = group.gate().await;
    pass(1_000).await;
    let meters = gate.meters("api", ["requests", "tokens"]);
    let ask = || meters.try_acquire([1, 90]);
    let mut granted = 0;
    let error = loop {
        match ask() {
            Ok(mut permit) => {
                granted += 1;
                assert_eq!(permit.cost(), 1);
                let settled = permit.settle_meter("tokens", 5).unwrap();
                assert_eq!(settled.charged, 0);
            }
            Err(error) => break error,
        }
    };
    assert_eq!((error.reason(), error.meter()), (Some(Reason::Empty), Some("requests")));
    assert!((2..=10).contains(&granted), "{granted}");
    // Who waits does so for what is in force alone.
    let waited = gate.acquire("api").charge("tokens", 90).timeout(Duration::from_secs(10)).await;
    assert_eq!(waited.unwrap().charged_to("requests"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_in_shadow_depends_on_nothing() {
    let group = TestGroup::new([limit("api", 1, 1), limit("other", 1, 1)]);
    group.fail(Fault::Unreachable);
    let gate = group.gate_with(group.options().shadow(true)).await;
    for name in ["api", "nothing of the kind"] {
        assert!(gate.limit(name).try_acquire(1).is_ok());
        assert!(gate.acquire(name).await.is_ok());
    }
    group.heal();
    pass(10_000).await;
    let nothing = gate.limit("nothing of the kind");
    assert!(nothing.try_acquire(1).is_ok() && nothing.acquire().await.is_ok());
    assert!(group.usage("nothing of the kind").shadow_refused.contains(&("unknown_limit", 2)));
    // A question that makes no sense, and an operator's pause, are refused all the same.
    assert!(matches!(nothing.try_acquire(0), Err(AcquireError::ZeroCost { .. })));
    group.set(limit("api", 1, 1).paused());
    pass(1_000).await;
    assert_eq!(gate.limit("api").try_acquire(1).unwrap_err().reason(), Some(Reason::Paused));
    gate.shutdown().await.unwrap();
    assert_eq!(gate.limit("other").try_acquire(1).unwrap_err().reason(), Some(Reason::ShuttingDown));
}

#[tokio::test(start_paused = true)]
async fn one_limit_can_be_in_shadow_in_one_process() {
    let group = TestGroup::new([limit("api", 1, 1), limit("other", 1, 1)]);
    let gate = group.gate_with(group.options().shadow_limit("api")).await;
    let refuses = |name: &str| (0..5).any(|_| gate.limit(name).try_acquire(1).is_err());
    assert_eq!((refuses("api"), refuses("other")), (false, true));
    let strict = group.gate().await;
    assert!((0..5).any(|_| strict.limit("api").try_acquire(1).is_err()));
}
