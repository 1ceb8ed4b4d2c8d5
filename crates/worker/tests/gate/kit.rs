//! The test kit itself: each refusal can be had, and nothing depends on chance.

use crate::world::limit;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_worker::testing::{self, Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, ActivityGate, Gate, Outcome, Reason};

fn reason(gate: &Gate, cost: u64) -> Reason {
    gate.limit("api").try_acquire(cost).unwrap_err().reason().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_refusal_can_be_had() {
    let group = TestGroup::new([limit("api", 10, 5).used_up(), TestLimit::closed("closed")]);
    let gate = group.gate().await;
    assert_eq!(reason(&gate, 5), Reason::Empty);
    let late = gate.acquire("api").cost(5).timeout(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(late.reason(), Some(Reason::Deadline));
    assert_eq!(gate.acquire("closed").await.unwrap_err().reason(), Some(Reason::NoQuota));
    let above =
        AcquireError::CostAboveBurst { limit: "api".into(), meter: "requests".into(), cost: 6, burst: 5 };
    assert_eq!(gate.acquire("api").cost(6).await.unwrap_err(), above);
    group.set(limit("api", 10, 3));
    group.advance(Duration::from_millis(300)).await;
    assert!(matches!(gate.acquire("api").cost(5).await, Err(AcquireError::CostAboveBurst { burst: 3, .. })));
    assert!(matches!(gate.acquire("nonesuch").await, Err(AcquireError::UnknownLimit { .. })));
    group.remove("closed");
    group.advance(Duration::from_millis(300)).await;
    assert!(matches!(gate.acquire("closed").await, Err(AcquireError::UnknownLimit { .. })));

    let other = group.gate().await;
    group.evict(&other);
    group.advance(Duration::from_secs(9)).await;
    assert_eq!(reason(&other, 3), Reason::Evicted);

    group.fail(Fault::Unreachable);
    group.advance(Duration::from_secs(9)).await;
    assert_eq!(reason(&gate, 1), Reason::CoordinatorLost);
    group.heal();
    assert!(gate.acquire("api").timeout(Duration::from_secs(5)).await.is_err_and(|error| {
        // Until it is heard again.
        error.reason() == Some(Reason::CoordinatorLost)
    }));
    group.advance(Duration::from_secs(5)).await;
    assert!(gate.acquire("api").await.is_ok());

    group.forget();
    group.advance(Duration::from_millis(300)).await;
    group.end_leases(&gate);
    assert_eq!(reason(&gate, 1), Reason::Recovering);
    group.advance(Duration::from_secs(130)).await;
    assert!(gate.acquire("api").await.is_ok());

    group.fail(Fault::GroupFull);
    assert_eq!(reason(&group.gate().await, 1), Reason::GroupFull);
    group.heal();
    gate.shutdown().await.unwrap();
    assert_eq!(reason(&gate, 1), Reason::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_suspended_finds_its_leases_ended() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let permit = gate.limit("api").try_acquire(1).unwrap();
    group.suspend(Duration::from_secs(9));
    assert!(!permit.is_valid());
    assert!(gate.limit("api").try_acquire(1).is_err());
    // Soon after it has a new one.
    assert!(gate.acquire("api").timeout(Duration::from_secs(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_others_used_and_what_gates_used_is_told_apart() {
    let group = TestGroup::new([limit("api", 10, 5).used_up()]);
    let (first, second) = (group.gate().await, group.gate().await);
    for gate in [&first, &second] {
        gate.acquire("api").cost(2).await.unwrap().settle(1, Outcome::Failure);
    }
    let acquire = first.acquire("api").cost(5);
    let waiting = tokio::spawn(async move { acquire.await });
    group.advance(Duration::from_millis(1)).await;
    assert_eq!((group.usage("api").waiting, group.usage("api").waiting_tokens), (1, 5));
    drop(waiting.await.unwrap().unwrap());
    let strict = group.strict();
    strict.acquire("api").cost(2).await.unwrap().used(2);
    strict.flush().await;
    group.advance(Duration::from_secs(3)).await;
    let usage = group.usage("api");
    assert_eq!((usage.granted, usage.settled_as(Outcome::Failure), usage.waiting), (3, 2, 0));
    assert_eq!((usage.reported, usage.strict_open), (usage.charged + 2, 0));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "limit \"apy\" is not set, and nobody asked for it; there are [\"api\"]")]
async fn the_use_of_a_misspelt_limit_is_not_zero() {
    TestGroup::new([limit("api", 10, 5)]).usage("apy");
}

#[tokio::test]
#[should_panic(expected = "start_paused = true")]
async fn time_that_goes_on_by_itself_is_noticed() {
    TestGroup::new([limit("api", 10, 5)]);
}

#[tokio::test]
async fn a_group_works_in_real_time_where_that_is_wanted() {
    let group = TestGroup::in_real_time([limit("api", 10, 5)]);
    let gate = group.gate().await;
    gate.acquire("api").await.unwrap().settle(1, Outcome::Success);
    assert_eq!(group.usage("api").granted, 1);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "limit api: lease is 1 ms, allowed: 2 s to 120 s")]
async fn an_impossible_limit_says_what_is_possible() {
    TestGroup::new([limit("api", 10, 5).lease(Duration::from_millis(1))]);
}

#[test]
fn the_same_test_goes_the_same_way() {
    let trace = || {
        testing::run(async {
            let group = TestGroup::new([limit("api", 37, 9)]);
            let gates = [group.gate().await, group.gate().await, group.gate().await];
            group.fail_next([Fault::AnswerLost, Fault::Unreachable, Fault::Burned]);
            let began = Instant::now();
            let mut tasks = Vec::new();
            for gate in gates.iter().cycle().take(12) {
                let gate = gate.clone();
                tasks.push(tokio::spawn(async move {
                    let mut times = Vec::new();
                    for cost in [1, 2, 1, 4, 1, 1, 3] {
                        let permit = gate.acquire("api").cost(cost).await.unwrap();
                        times.push((permit.admitted_at(), cost));
                        let refused = gate.limit("api").try_acquire(9).unwrap_err();
                        tokio::time::sleep(refused.retry_after().unwrap() / 4).await;
                    }
                    times
                }));
            }
            let mut trace = Vec::new();
            for task in tasks {
                trace.push(task.await.unwrap());
            }
            (trace, began.elapsed())
        })
    };
    assert_eq!(trace(), trace());
}

#[tokio::test(start_paused = true)]
async fn an_activity_without_a_rule_runs_freely_and_one_with_a_rule_is_charged() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let limits = ActivityGate::new(&gate).rule("call", "api", 5).max_wait(Duration::from_millis(400));
    assert_eq!(limits.run("other", async { Ok(1) }).await.unwrap(), 1);
    assert_eq!(group.usage("api").granted, 0);
    assert_eq!(limits.run("call", async { Ok(2) }).await.unwrap(), 2);
    let mut ran = false;
    let refused = limits.run("call", async {
        ran = true;
        Ok(())
    });
    assert!(refused.await.is_err());
    assert!(!ran, "what has no permit is not begun");
    let usage = group.usage("api");
    assert_eq!((usage.charged, usage.refused_for(Reason::Deadline), usage.waiting), (5, 1, 0));
}
