//! Strict permits: one message at a time, one permit for each caller, and that nothing is left behind.

use crate::world::{Fate, World, limit, pass};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_worker::{AcquireError, Reason};

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_sent_again_and_charged_once() {
    let world = World::new(vec![limit("api", 0, 10)]);
    let strict = world.strict();
    world.fates.lock().unwrap().extend([Fate::Lost, Fate::ReplyLost, Fate::Silent, Fate::ReplyLost]);
    let permit = strict.acquire("api").cost(3).lease(Duration::from_secs(60)).await.unwrap();
    // Counted from the first sending: a silent call is given up after ten seconds.
    assert!(permit.is_valid() && permit.valid_for() < Duration::from_secs(50), "{permit:?}");
    world.fates.lock().unwrap().extend([Fate::ReplyLost, Fate::Lost]);
    permit.used(2);
    strict.flush().await;
    assert_eq!((world.used("api"), world.strict_open()), (2, 0));
    // What was left has come back.
    strict.acquire("api").cost(8).await.unwrap().release();
}

#[tokio::test(start_paused = true)]
async fn a_crowd_has_one_message_under_way_and_is_served_in_order() {
    let world = World::new(vec![limit("api", 10, 1)]);
    let strict = world.strict();
    let began = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let strict = strict.clone();
        tasks.push(tokio::spawn(async move {
            let permit = strict.acquire("api").await.unwrap();
            let at = permit.id().to_owned();
            permit.used(1);
            (Instant::now(), at)
        }));
        tokio::task::yield_now().await;
    }
    let mut served = Vec::new();
    for task in tasks {
        served.push(task.await.unwrap());
    }
    assert!(served.is_sorted_by_key(|(at, _)| *at), "{served:?}");
    assert!(began.elapsed() >= Duration::from_millis(1_850), "{:?}", began.elapsed());
    strict.flush().await;
    assert_eq!((world.used("api"), world.strict_open(), world.most_under_way()), (20, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_granted_is_an_error_at_once() {
    let world = World::new(vec![limit("api", 10, 5)]);
    let strict = world.strict();
    let above = AcquireError::CostAboveBurst { limit: "api".into(), cost: 6, burst: 5 };
    assert_eq!(strict.acquire("api").cost(6).await.unwrap_err(), above);
    assert!(matches!(strict.acquire("nonesuch").await, Err(AcquireError::UnknownLimit { .. })));
    assert!(matches!(strict.acquire("api").cost(0).await, Err(AcquireError::ZeroCost { .. })));
    assert!(matches!(strict.acquire("a\nb").await, Err(AcquireError::InvalidLimit(_))));
    let short = strict.acquire("api").lease(Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(short.to_string(), "limit \"api\": lease is 1 ms, allowed: 2 s to 120 s");
    let long = strict.acquire("api").lease(Duration::MAX).await;
    assert!(matches!(long, Err(AcquireError::InvalidLease { .. })));
    assert_eq!(world.strict_open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_away_leaves_nothing_behind() {
    let world = World::new(vec![limit("api", 0, 1)]);
    let strict = world.strict();
    let held = strict.acquire("api").lease(Duration::from_secs(120)).await.unwrap();
    let late = strict.acquire("api").timeout(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(late.reason(), Some(Reason::Deadline));
    pass(100).await;
    strict.flush().await;
    assert_eq!(world.strict_open(), 1, "the place was given up");
    held.release();
    strict.flush().await;
    // Granted while the caller goes away.
    let short = Duration::from_millis(7);
    let gone = tokio::time::timeout(short, strict.acquire("api").into_future()).await;
    assert!(gone.is_err(), "it went away before the answer");
    pass(100).await;
    strict.flush().await;
    assert_eq!((world.used("api"), world.strict_open()), (0, 0), "it came back");
    drop(strict.acquire("api").await.unwrap());
    strict.flush().await;
    assert_eq!((world.used("api"), world.strict_open()), (1, 0), "a dropped permit counts as used");
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_away_for_ten_seconds_shows_in_no_error_and_one_that_is_lost_does() {
    let world = World::new(vec![limit("api", 10, 5)]);
    let strict = world.strict();
    *world.always.lock().unwrap() = Some(Fate::Lost);
    let waiting = tokio::spawn({
        let strict = strict.clone();
        async move { strict.acquire("api").await }
    });
    pass(10_000).await;
    *world.always.lock().unwrap() = None;
    waiting.await.unwrap().unwrap().used(1);
    *world.always.lock().unwrap() = Some(Fate::Lost);
    let began = Instant::now();
    let all = (0..50).map(|_| strict.acquire("api").into_future());
    for result in futures_util::future::join_all(all).await {
        assert_eq!(result.unwrap_err().reason(), Some(Reason::CoordinatorLost));
    }
    // Thirty seconds of patience, and a pause of up to four before the first and the last attempt.
    assert!(began.elapsed() < Duration::from_secs(40), "they waited for each other: {:?}", began.elapsed());
}
