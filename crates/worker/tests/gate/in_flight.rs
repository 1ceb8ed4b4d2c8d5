//! What is in flight: permits that are held until the work is done.

use crate::world::pass;
use std::time::Duration;
use tollgate_core::limit::CellKey;
use tollgate_worker::Limit;
use tollgate_worker::testing::{TestGroup, TestLimit};

fn group(permits: u64) -> TestGroup {
    let limit =
        TestLimit::in_flight("db", permits).drain(Duration::from_secs(2)).lease(Duration::from_secs(6));
    TestGroup::new([limit])
}

async fn take(limit: &Limit) -> tollgate_worker::Permit {
    limit.acquire().timeout(Duration::from_secs(30)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_fleet_never_has_more_in_flight_than_there_may_be() {
    let group = group(3);
    let (one, two) = (group.gate().await, group.gate().await);
    let (one, two) = (one.meter("db", CellKey::IN_FLIGHT), two.meter("db", CellKey::IN_FLIGHT));
    let first = [take(&one).await, take(&two).await, take(&one).await];
    pass(3_000).await;
    assert!(one.try_acquire(1).is_err() && two.try_acquire(1).is_err());
    // Dropping is enough, and whoever waits elsewhere gets it.
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { take(&two).await }
    });
    pass(1_000).await;
    assert!(!waiter.is_finished());
    let [a, b, c] = first;
    drop(a);
    let d = waiter.await.unwrap();
    pass(1_000).await;
    assert!(one.try_acquire(1).is_err() && two.try_acquire(1).is_err());
    drop((b, c, d));
    for _ in 0..3 {
        // All three of them, wherever they were used last.
        drop((take(&two).await, take(&two).await, take(&two).await));
        drop((take(&one).await, take(&one).await, take(&one).await));
    }
}

#[tokio::test(start_paused = true)]
async fn permits_live_as_long_as_the_coordinator_is_heard() {
    let group = group(2);
    let gate = group.gate().await;
    let db = gate.meter("db", CellKey::IN_FLIGHT);
    let permit = take(&db).await;
    let lost = tokio::time::timeout(Duration::from_secs(60), permit.lost());
    assert!(lost.await.is_err(), "ten leases long it was renewed");
    group.fail(tollgate_worker::testing::Fault::Unreachable);
    let began = tokio::time::Instant::now();
    permit.lost().await;
    assert!(began.elapsed() <= Duration::from_secs(6), "{:?}", began.elapsed());
    group.heal();
    // What still runs counts, although it should have stopped.
    pass(10_000).await;
    let other = take(&db).await;
    assert!(db.try_acquire(1).is_err());
    drop(permit);
    pass(1_000).await;
    let _third = take(&db).await;
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_process_that_is_gone_are_free_after_its_lease_and_the_drain() {
    let group = group(1);
    let (gone, here) = (group.gate().await, group.gate().await);
    let held = take(&gone.meter("db", CellKey::IN_FLIGHT)).await;
    let db = here.meter("db", CellKey::IN_FLIGHT);
    pass(100).await;
    let began = tokio::time::Instant::now();
    // Without a word: the lease is six seconds, and two more are the drain.
    drop(gone);
    let _mine = take(&db).await;
    let waited = began.elapsed();
    drop(held);
    assert!(waited >= Duration::from_millis(7_500) && waited <= Duration::from_secs(14), "{waited:?}");
}
