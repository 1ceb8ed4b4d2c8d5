//! What is in flight: permits that are held until the work is done.

use crate::world::{Flaky, pass};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::limit::CellKey;
use tollgate_core::units::Amount;
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Gate, Limit, Permit};

fn group(permits: u64) -> TestGroup {
    let limit =
        TestLimit::in_flight("db", permits).drain(Duration::from_secs(2)).lease(Duration::from_secs(6));
    TestGroup::new([limit])
}

async fn take(limit: &Limit) -> Permit {
    limit.acquire().timeout(Duration::from_secs(30)).await.unwrap()
}

fn meter(gate: &Gate) -> Limit {
    gate.meter("db", CellKey::IN_FLIGHT)
}

/// Takes so many, which must be all there are.
async fn take_all(limit: &Limit, count: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    for _ in 0..count {
        permits.push(take(limit).await);
    }
    assert!(limit.try_acquire(1).is_err(), "more than {count}");
    permits
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
    let lost = timeout(Duration::from_secs(60), permit.lost());
    assert!(lost.await.is_err(), "ten leases long it was renewed");
    group.fail(Fault::Unreachable);
    let began = Instant::now();
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
    let began = Instant::now();
    // Without a word: the lease is six seconds, and two more are the drain.
    drop(gone);
    let _mine = take(&db).await;
    let waited = began.elapsed();
    drop(held);
    assert!(waited >= Duration::from_millis(7_500) && waited <= Duration::from_secs(14), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_the_work_its_permit_comes_back() {
    async fn early(db: &Limit) -> Result<(), std::num::ParseIntError> {
        let _permit = take(db).await;
        let _number: u32 = "no number".parse()?;
        Ok(())
    }
    let group = group(4);
    let gate = group.gate().await;
    let db = meter(&gate);
    for round in 0..1_000 {
        let db = db.clone();
        let task = tokio::spawn(async move {
            match round % 6 {
                0 => {
                    let _permit = take(&db).await;
                    std::panic::resume_unwind(Box::new("work panics"));
                }
                1 => drop(early(&db).await),
                2 => drop(db.acquire().into_future()),
                3 => {
                    let mut waiting = Box::pin(db.acquire().cost(4).into_future());
                    let _permit_or_place = futures_util::poll!(&mut waiting);
                }
                4 => {
                    // A pool that refuses the task.
                    let (queue, pool) = tokio::sync::oneshot::channel();
                    drop(pool);
                    drop(queue.send(take(&db).await));
                }
                _ => {
                    let _permit = take(&db).await;
                    std::future::pending::<()>().await;
                }
            }
        });
        pass(20).await;
        task.abort();
        let _ended = task.await;
    }
    drop(take_all(&db, 4).await);
    let elsewhere = meter(&group.gate().await);
    drop(take_all(&elsewhere, 4).await);
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_never_takes_the_slot_that_a_waiter_is_woken_for() {
    let group = group(1);
    let db = meter(&group.gate().await);
    let mut held = take(&db).await;
    for round in 0..10_000 {
        let waiter = tokio::spawn({
            let db = db.clone();
            async move { take(&db).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert!(db.try_acquire(1).is_err(), "round {round}: it barged in");
        held = waiter.await.unwrap();
        assert!(db.try_acquire(1).is_err(), "round {round}: two hold one slot");
    }
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_lost_lease_and_live_ones_dropped_together_come_back_once() {
    let group = group(5);
    let gate = group.gate().await;
    let db = meter(&gate);
    let old = [take(&db).await, take(&db).await];
    group.end_leases(&gate);
    for permit in &old {
        permit.lost().await;
    }
    let new = [take(&db).await, take(&db).await, take(&db).await];
    assert!(db.try_acquire(1).is_err(), "the old ones still run");
    drop((old, new));
    pass(15_000).await;
    let all = take_all(&db, 5).await;
    assert!(meter(&group.gate().await).try_acquire(1).is_err());
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn one_renewal_in_two_that_fails_costs_no_permit() {
    let limit = TestLimit::in_flight("db", 1).lease(Duration::from_secs(30));
    let group = TestGroup::new([limit]);
    let gate = Gate::with_transport(Flaky::new(&group), group.options()).unwrap();
    let permit = take(&meter(&gate)).await;
    assert!(timeout(Duration::from_secs(180), permit.lost()).await.is_err(), "every second one got through");
    group.fail(Fault::Unreachable);
    assert!(
        timeout(Duration::from_secs(10), permit.lost()).await.is_err(),
        "an outage shorter than the lease"
    );
    group.heal();
    assert!(timeout(Duration::from_secs(60), permit.lost()).await.is_err());
    let other = meter(&group.gate().await);
    assert!(other.try_acquire(1).is_err(), "it is still held");
}

#[tokio::test(start_paused = true)]
async fn releases_and_expiries_that_nobody_hears_of_leave_no_slot_taken() {
    let group = group(20);
    let (gate, other) = (group.gate().await, group.gate().await);
    let (db, elsewhere) = (meter(&gate), meter(&other));
    let mut held = take_all(&db, 20).await;
    group.fail(Fault::AnswerLost);
    held.truncate(10);
    pass(2_000).await;
    group.fail(Fault::Unreachable);
    pass(1_000).await;
    group.heal();
    group.end_leases(&gate);
    for permit in &held {
        permit.lost().await;
    }
    drop(held);
    // The lease that was lost, what it is counted longer, and the drain.
    pass(10_000).await;
    let all = take_all(&elsewhere, 20).await;
    assert!(db.try_acquire(1).is_err());
    drop(all);
    pass(2_000).await;
    let mut granted = 0;
    for gate in [&gate, &other] {
        let state = gate.state();
        let state = state.limits.iter().find(|state| state.meter == CellKey::IN_FLIGHT).unwrap();
        assert_eq!(
            state.cap,
            Amount::tokens(u64::try_from(state.level).unwrap()),
            "nothing is out: {state:?}"
        );
        granted += state.counters.granted;
    }
    assert_eq!((granted, group.usage("db").reported), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn none_in_flight_is_refused_at_once_and_never_hangs() {
    let group = TestGroup::new([TestLimit::in_flight("db", 0)]);
    let db = meter(&group.gate().await);
    let none = |refused: Result<Permit, AcquireError>| {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, AcquireError::CostAboveBurst { cost: 1, burst: 0, .. }), "{refused}");
    };
    // The first time the coordinator has to be asked.
    none(db.acquire().timeout(Duration::from_secs(1)).await);
    let began = Instant::now();
    none(db.acquire().timeout(Duration::from_secs(1)).await);
    none(db.try_acquire(1));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_callers_patience_keeps_its_slot() {
    let group = group(2);
    let db = meter(&group.gate().await);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (db, running, most) = (db.clone(), running.clone(), most.clone());
            tokio::spawn(async move {
                let permit = take(&db).await;
                // What can't be cancelled takes its permit along.
                let work = tokio::spawn(async move {
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    sleep(Duration::from_secs(10)).await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    drop(permit);
                });
                timeout(Duration::from_secs(1), work).await.is_err()
            })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap(), "its caller has given up");
    }
    assert_eq!(most.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_in_flight_is_served_beside_another_workers_stream_of_small_ones() {
    let group = group(2);
    let (busy, rare) = (meter(&group.gate().await), meter(&group.gate().await));
    for _ in 0..6 {
        let busy = busy.clone();
        tokio::spawn(async move {
            while let Ok(_permit) = busy.acquire().await {
                sleep(Duration::from_secs(1)).await;
            }
        });
    }
    pass(5_000).await;
    for _ in 0..5 {
        let began = Instant::now();
        let permit = rare.acquire().cost(2).timeout(Duration::from_secs(30)).await;
        assert!(
            permit.is_ok() && began.elapsed() < Duration::from_secs(4),
            "{permit:?} {:?}",
            began.elapsed()
        );
        pass(500).await;
        drop(permit);
        pass(2_000).await;
    }
}
