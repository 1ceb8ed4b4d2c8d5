//! What operators say of a limit beside how much it allows.

use crate::world::{drain, limit, pass};
use std::time::Duration;
use tollgate_worker::Reason;
use tollgate_worker::state::Condition;
use tollgate_worker::testing::{TestGroup, TestLimit};

#[tokio::test(start_paused = true)]
async fn a_paused_limit_refuses_all_work_at_once_and_goes_on_within_its_bound() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    drain(&api);
    let waiting = tokio::spawn({
        let api = api.clone();
        async move { api.acquire().cost(10).await }
    });
    pass(300).await;
    group.set(limit("api", 10, 10).paused());
    pass(300).await;
    // Whoever waited is told, also without a deadline.
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Paused));
    assert!(error.retry_after().is_some_and(|after| after >= Duration::from_secs(5)), "{error:?}");
    assert!(error.to_string().contains("tollgate limit resume"), "{error}");
    // A pause is no starvation and no outage, however long it takes.
    for _ in 0..30 {
        pass(2_000).await;
        assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::Paused));
        assert_eq!(api.acquire().await.unwrap_err().reason(), Some(Reason::Paused));
    }
    let state = gate.state().limits[0].clone();
    assert_eq!((state.condition, state.level, state.cap.milli_floor()), (Condition::Paused, 0, 0));
    let paused = state.counters.refused.iter().find(|(reason, _)| *reason == Reason::Paused);
    assert_eq!(paused, Some(&(Reason::Paused, 61)));
    group.set(limit("api", 10, 10));
    pass(1_000).await;
    let first = tokio::time::timeout(Duration::from_secs(2), api.acquire()).await;
    assert!(first.unwrap().is_ok());
    pass(1_000).await;
    // A burst, and what two seconds bring: no more for the minute that it was paused.
    let more = drain(&api);
    assert!(more <= 10 + 20, "{more}");
    assert_eq!(gate.state().limits[0].condition, Condition::Open);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_goes_on_in_a_paused_limit_and_counts() {
    let group = TestGroup::new([TestLimit::in_flight("db", 4)]);
    let (one, other) = (group.gate().await, group.gate().await);
    let db = one.meter("db", "in_flight");
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(db.acquire().await.unwrap());
    }
    group.set(TestLimit::in_flight("db", 4).paused());
    pass(3_000).await;
    assert_eq!(db.try_acquire(1).unwrap_err().reason(), Some(Reason::Paused));
    assert!(permits.iter().all(tollgate_worker::Permit::is_valid));
    group.set(TestLimit::in_flight("db", 4));
    let there = other.meter("db", "in_flight");
    pass(3_000).await;
    let more: Vec<_> = (0..4).map_while(|_| there.try_acquire(1).ok()).collect();
    let more = more.len() + (0..4).map_while(|_| db.try_acquire(1).ok()).collect::<Vec<_>>().len();
    assert!(more <= 1, "{more} beside three that are in flight");
    drop(permits);
}

#[tokio::test(start_paused = true)]
async fn strict_permits_of_a_paused_limit_are_refused_and_those_that_are_out_stay() {
    let group = TestGroup::new([limit("api", 1, 2)]);
    let strict = group.strict();
    let permit = strict.acquire("api").await.unwrap();
    let waiting = tokio::spawn({
        let strict = strict.clone();
        async move { strict.acquire("api").cost(2).await }
    });
    pass(100).await;
    group.set(limit("api", 1, 2).paused());
    let error = strict.acquire("api").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Paused));
    assert_eq!(waiting.await.unwrap().unwrap_err().reason(), Some(Reason::Paused));
    assert!(permit.is_valid());
    group.set(limit("api", 1, 2));
    assert!(strict.acquire("api").timeout(Duration::from_secs(5)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pause_outlives_the_coordinator() {
    let group = TestGroup::new([limit("api", 10, 10).paused()]);
    let gate = group.gate().await;
    group.fail(tollgate_worker::testing::Fault::Unreachable);
    pass(60_000).await;
    assert_eq!(gate.limit("api").try_acquire(1).unwrap_err().reason(), Some(Reason::Paused));
}

#[tokio::test(start_paused = true)]
async fn a_reserve_is_there_for_a_newcomer_at_once_and_without_one_all_is_held() {
    for (reserve, kept) in [(0, 0), (20, 20), (50, 50)] {
        let group = TestGroup::new([limit("api", 100, 100).reserve(reserve)]);
        let first = group.gate().await;
        // It wants more than there is, all the time.
        for _ in 0..8 {
            let api = first.limit("api");
            tokio::spawn(async move { while api.acquire().await.is_ok() {} });
        }
        pass(10_000).await;
        let cap = first.state().limits[0].cap.milli_floor();
        assert!(cap.abs_diff((100 - kept) * 1_000) <= 100, "reserve {reserve}%: holds {cap} thousandths");
        let newcomer = drain(&group.gate().await.limit("api"));
        assert_eq!(newcomer > 0, kept > 0, "reserve {reserve}%: {newcomer} for a newcomer");
    }
}
