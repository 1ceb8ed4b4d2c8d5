//! Activities that have to wait for their permits.

use std::sync::Arc;
use std::time::Duration;
use temporalio_common::error::ApplicationErrorCategory;
use temporalio_sdk::activities::ActivityError;
use tokio::time::Instant;
use tollgate_worker::interceptor::QUOTA_EXHAUSTED;
use tollgate_worker::testing::{TestGroup, TestLimit};
use tollgate_worker::{ActivityGate, Outcome, Reason};

#[tokio::test(start_paused = true)]
async fn what_is_held_back_is_late_and_not_failed() {
    let group = TestGroup::new([TestLimit::per_second("api", 2).burst(2)]);
    let gate = group.gate().await;
    let limits = Arc::new(ActivityGate::new(&gate).rule("call", "api", 1).max_wait(Duration::from_secs(30)));
    let began = Instant::now();
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let limits = limits.clone();
            tokio::spawn(async move { limits.run("call", async { Ok(number) }).await.unwrap() })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), number);
    }
    // Eighteen beyond the burst at two a second.
    let took = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&took), "{took:?}");
    let usage = group.usage("api");
    assert_eq!(
        (usage.settled_as(Outcome::Success), usage.settled_as(Outcome::Failure), usage.refusals()),
        (20, 0, 0)
    );

    // Who can't wait so long is told when to come back: a part of the plan, and no sign of trouble downstream.
    let hasty = ActivityGate::new(&gate).rule("call", "api", 2).max_wait(Duration::from_millis(100));
    let ActivityError::Application(failure) = hasty.run("call", async { Ok(()) }).await.unwrap_err() else {
        panic!("an application failure is wanted");
    };
    assert_eq!(failure.type_name(), Some(QUOTA_EXHAUSTED));
    assert_eq!(failure.category(), ApplicationErrorCategory::Benign);
    let back = failure.next_retry_delay().unwrap();
    assert!((Duration::from_millis(100)..Duration::from_secs(2)).contains(&back), "{back:?}");
    let usage = group.usage("api");
    assert_eq!((usage.settled_as(Outcome::Failure), usage.refused_for(Reason::Deadline)), (0, 1));
}
