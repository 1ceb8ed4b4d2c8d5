//! Strict permits: one message at a time, one permit for each caller, and that nothing is left behind.

use crate::world::{limit, pass, recorded_strict};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_worker::testing::{Fault, TestGroup};
use tollgate_worker::{AcquireError, Reason};

fn reported_and_open(group: &TestGroup) -> (u64, usize) {
    let usage = group.usage("api");
    (usage.reported, usage.strict_open)
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_sent_again_and_charged_once() {
    let group = TestGroup::new([limit("api", 0, 10)]);
    let strict = group.strict();
    group.fail_next([Fault::Unreachable, Fault::AnswerLost, Fault::Silent, Fault::AnswerLost]);
    let permit = strict.acquire("api").cost(3).lease(Duration::from_secs(60)).await.unwrap();
    // Counted from the first sending: a silent call is given up after ten seconds.
    assert!(permit.is_valid() && permit.valid_for() < Duration::from_secs(50), "{permit:?}");
    group.fail_next([Fault::AnswerLost, Fault::Unreachable]);
    permit.used(2);
    strict.flush().await;
    assert_eq!(reported_and_open(&group), (2, 0));
    // What was left has come back.
    strict.acquire("api").cost(8).await.unwrap().release();
}

#[tokio::test(start_paused = true)]
async fn a_crowd_has_one_message_under_way_and_is_served_in_order() {
    let group = TestGroup::new([limit("api", 10, 1)]);
    let (strict, recorder) = recorded_strict(&group);
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
    assert_eq!((reported_and_open(&group), recorder.most_under_way()), ((20, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_granted_is_an_error_at_once() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let strict = group.strict();
    let above =
        AcquireError::CostAboveBurst { limit: "api".into(), meter: "requests".into(), cost: 6, burst: 5 };
    assert_eq!(strict.acquire("api").cost(6).await.unwrap_err(), above);
    assert!(matches!(strict.acquire("nonesuch").await, Err(AcquireError::UnknownLimit { .. })));
    assert!(matches!(strict.acquire("api").cost(0).await, Err(AcquireError::ZeroCost { .. })));
    assert!(matches!(strict.acquire("a\nb").await, Err(AcquireError::InvalidLimit(_))));
    let short = strict.acquire("api").lease(Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(short.to_string(), "limit \"api\": lease is 1 ms, allowed: 2 s to 120 s");
    let long = strict.acquire("api").lease(Duration::MAX).await;
    assert!(matches!(long, Err(AcquireError::InvalidLease { .. })));
    assert_eq!(group.usage("api").strict_open, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_away_leaves_nothing_behind() {
    let group = TestGroup::new([limit("api", 0, 1)]);
    let strict = group.strict();
    let held = strict.acquire("api").lease(Duration::from_secs(120)).await.unwrap();
    let late = strict.acquire("api").timeout(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(late.reason(), Some(Reason::Deadline));
    pass(100).await;
    strict.flush().await;
    assert_eq!(group.usage("api").strict_open, 1, "the place was given up");
    held.release();
    strict.flush().await;
    // Granted while the caller goes away.
    let short = Duration::from_millis(7);
    let gone = tokio::time::timeout(short, strict.acquire("api").into_future()).await;
    assert!(gone.is_err(), "it went away before the answer");
    pass(100).await;
    strict.flush().await;
    assert_eq!(reported_and_open(&group), (0, 0), "it came back");
    drop(strict.acquire("api").await.unwrap());
    strict.flush().await;
    assert_eq!(reported_and_open(&group), (1, 0), "a dropped permit counts as used");
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_away_for_ten_seconds_shows_in_no_error_and_one_that_is_lost_does() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let strict = group.strict();
    group.fail(Fault::Unreachable);
    let waiting = tokio::spawn({
        let strict = strict.clone();
        async move { strict.acquire("api").await }
    });
    pass(10_000).await;
    group.heal();
    waiting.await.unwrap().unwrap().used(1);
    group.fail(Fault::Unreachable);
    let began = Instant::now();
    let all = (0..50).map(|_| strict.acquire("api").into_future());
    for result in futures_util::future::join_all(all).await {
        assert_eq!(result.unwrap_err().reason(), Some(Reason::CoordinatorLost));
    }
    // Thirty seconds of patience, and a pause of up to four before the first and the last attempt.
    assert!(began.elapsed() < Duration::from_secs(40), "they waited for each other: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_its_caller_never_looked_at_goes_back() {
    let group = TestGroup::new([limit("api", 0, 1)]);
    let strict = group.strict();
    let mut gone = Box::pin(strict.acquire("api").into_future());
    assert!(futures_util::poll!(&mut gone).is_pending());
    pass(1_000).await;
    assert_eq!(reported_and_open(&group), (0, 1), "it was granted");
    drop(gone);
    strict.flush().await;
    assert_eq!(reported_and_open(&group), (0, 0));
    strict.acquire("api").timeout(Duration::from_secs(1)).await.unwrap().release();
}
