//! Tiers of a limit: each takes of its own cell, and high ones of what low ones leave.

use crate::world::{drain, limit, pass, recorded};
use std::time::Duration;
use tollgate_worker::testing::TestGroup;
use tollgate_worker::{AcquireError, Limit, Reason};

/// So many ask at once; how long until all have been served.
async fn take(limit: &Limit, count: usize) -> Duration {
    let began = tokio::time::Instant::now();
    let ask = |_| limit.acquire().timeout(Duration::from_secs(100)).into_future();
    for permit in futures_util::future::join_all((0..count).map(ask)).await {
        assert!(permit.unwrap().limit().starts_with("api"));
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_high_tier_that_is_dry_takes_what_a_low_one_leaves() {
    let group = TestGroup::new([limit("api", 10, 5).tier("high", 0), limit("api", 40, 20).tier("low", 1)]);
    let gate = group.gate().await;
    let high = gate.limit("api").tier("high");
    pass(1_000).await;
    take(&high, 100).await;
    // 50 a second are there, of which its own are ten.
    let took = take(&high, 250).await;
    assert!(took < Duration::from_secs(7), "{took:?}");
    // Builder and handle are the same.
    let permit = gate.acquire("api").tier("high").timeout(Duration::from_secs(9)).await.unwrap();
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn a_low_tier_has_its_own_and_nothing_of_a_high_one() {
    let group = TestGroup::new([limit("api", 40, 20).tier("high", 0), limit("api", 10, 5).tier("low", 1)]);
    let gate = group.gate().await;
    let low = gate.limit("api").tier("low");
    pass(1_000).await;
    drain(&low);
    let took = take(&low, 100).await;
    assert!(took > Duration::from_millis(9_500), "{took:?}");
    // Unless that one lends.
    group.set(limit("api", 40, 20).tier("high", 0).lends());
    take(&low, 100).await;
    let took = take(&low, 250).await;
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_low_tier_that_gives_way_keeps_nothing_from_a_high_one() {
    let group = TestGroup::new([
        limit("api", 10, 5).tier("high", 0),
        limit("api", 40, 20).tier("low", 1).gives_way(),
    ]);
    let (one, two) = (group.gate().await, group.gate().await);
    let (high, low) = (one.limit("api").tier("high"), two.limit("api").tier("low"));
    let hungry = tokio::spawn(async move {
        loop {
            take(&low, 1_000).await;
        }
    });
    pass(5_000).await;
    take(&high, 100).await;
    let took = take(&high, 250).await;
    assert!(took < Duration::from_secs(8), "{took:?}");
    hungry.abort();
}

#[tokio::test(start_paused = true)]
async fn a_tier_that_is_not_there_is_an_error_and_so_is_a_name_that_can_not_be() {
    let group = TestGroup::new([limit("api", 10, 5).tier("high", 0)]);
    let gate = group.gate().await;
    let acquire = |tier: &str| gate.acquire("api").tier(tier).timeout(Duration::from_secs(5));
    assert!(matches!(acquire("low").await, Err(AcquireError::UnknownLimit { .. })));
    assert!(matches!(acquire("Low!").await, Err(AcquireError::InvalidLimit(_))));
    assert!(acquire("high").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_needs_is_not_spoken_of() {
    let group = TestGroup::new([limit("api", 10, 5).tier("high", 0), limit("api", 40, 20).tier("low", 1)]);
    let (gate, recorder) = recorded(&group);
    let high = gate.limit("api").tier("high");
    pass(5_000).await;
    assert!(recorder.sent().iter().all(|sent| sent.cells.iter().all(|cell| !cell.borrowed)));
    take(&high, 100).await;
    let borrows = |sent: &[tollgate_workflows::wire::lease::HeartbeatJson]| {
        sent.iter().flat_map(|sent| &sent.cells).filter(|cell| cell.borrowed).count()
    };
    let sent = recorder.sent();
    assert!(borrows(&sent) > 0);
    let first = sent.iter().flat_map(|sent| &sent.cells).find(|cell| cell.borrowed).unwrap();
    assert_eq!((first.tier.as_str(), first.for_tier.as_deref()), ("low", Some("high")));
    // Given back, it is said once more, and then no more.
    pass(10_000).await;
    let settled = recorder.sent().len();
    pass(10_000).await;
    assert_eq!(borrows(&recorder.sent()[settled..]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_coordinator_closes_borrowed_cells_with_all_others() {
    let group = TestGroup::new([limit("api", 10, 5).tier("high", 0), limit("api", 40, 20).tier("low", 1)]);
    let gate = group.gate().await;
    let high = gate.limit("api").tier("high");
    take(&high, 200).await;
    group.fail(tollgate_worker::testing::Fault::Unreachable);
    pass(10_000).await;
    match high.try_acquire(1) {
        Err(AcquireError::Refused { refused, .. }) => assert_eq!(refused.reason, Reason::CoordinatorLost),
        other => panic!("{other:?}"),
    }
    group.heal();
    pass(5_000).await;
    take(&high, 100).await;
    gate.shutdown().await.unwrap();
    assert!(high.try_acquire(1).is_err());
}
