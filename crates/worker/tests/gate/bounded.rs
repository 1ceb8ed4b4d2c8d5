//! Limits that say how many may wait, and looks that take nothing.

use crate::world::{limit, pass};
use futures_util::future::join_all;
use std::time::Duration;
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Reason};

#[tokio::test(start_paused = true)]
async fn who_finds_a_limits_queue_full_is_refused_at_once_and_told_when_to_come() {
    // Evenly spaced, ten a second.
    let group = TestGroup::new([limit("leaky", 10, 1).queue(3), limit("api", 10, 1)]);
    let gate = group.gate().await;
    assert!(gate.acquire("leaky").await.is_ok() && gate.acquire("api").await.is_ok());
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let acquire = gate.acquire("leaky");
            tokio::spawn(async move { acquire.await.is_ok() })
        })
        .collect();
    tokio::task::yield_now().await;
    let refused = gate.acquire("leaky").await.unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::QueueFull));
    let AcquireError::Refused { refused, .. } = refused else { panic!("{refused}") };
    // Three come first, then its own: four tenths of a second, or what is left of them, at the very best.
    let after = refused.retry_after.unwrap();
    assert!(after > Duration::from_millis(200) && after < Duration::from_secs(60), "{after:?}");
    // Another limit's callers wait for as long as they like.
    let others =
        join_all((0..20).map(|_| gate.acquire("api").timeout(Duration::from_secs(60)).into_future()));
    assert!(others.await.iter().all(Result::is_ok));
    assert!(join_all(waiting).await.into_iter().all(|served| served.unwrap()));
    assert!(gate.acquire("leaky").await.is_ok(), "the queue has room again");
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_none_lets_nobody_wait_and_a_change_of_it_is_heard() {
    let group = TestGroup::new([limit("leaky", 10, 1).queue(0)]);
    let gate = group.gate().await;
    // A burst of one is not prefetched. Who is refused is heard of all the same, and the token is there for who comes again.
    assert_eq!(gate.acquire("leaky").await.unwrap_err().reason(), Some(Reason::QueueFull));
    let mut tries = 0;
    while let Err(refused) = gate.acquire("leaky").await {
        assert_eq!(refused.reason(), Some(Reason::QueueFull));
        tries += 1;
        assert!(tries < 100, "never granted");
        pass(50).await;
    }
    group.set(limit("leaky", 10, 1).queue(1));
    pass(3_000).await;
    for _ in 0..2 {
        assert!(gate.acquire("leaky").await.is_ok(), "one may wait");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_says_what_asking_would_and_takes_nothing() {
    let group = TestGroup::new([limit("api", 10, 5), TestLimit::closed("closed")]);
    let gate = group.gate().await;
    assert!(gate.acquire("api").await.is_ok());
    group.advance(Duration::from_secs(3)).await;
    let charged = group.usage("api").charged;
    let there = u64::try_from(gate.state().limits.first().unwrap().level).unwrap();
    assert!((1..5).contains(&there), "a part of the burst, and not all of it: {there}");
    for _ in 0..100 {
        let yes = gate.would_admit("api", there).unwrap();
        assert!(yes.would_admit && yes.reason.is_none() && yes.retry_after.is_none(), "{yes:?}");
        assert!(yes.age.unwrap() <= Duration::from_secs(2), "{yes:?}");
    }
    assert_eq!(group.usage("api").charged, charged);
    let no = gate.would_admit("api", there + 1).unwrap();
    assert_eq!((no.would_admit, no.reason), (false, Some(Reason::Empty)));
    assert!(no.retry_after.is_some(), "{no:?}");
    assert!(
        gate.limit("api").try_acquire(there + 1).is_err() && gate.limit("api").try_acquire(there).is_ok()
    );
    assert_eq!(
        gate.would_admit("api", 6).unwrap_err(),
        AcquireError::CostAboveBurst { limit: "api".into(), meter: "requests".into(), cost: 6, burst: 5 }
    );
    assert!(matches!(gate.would_admit("api", 0), Err(AcquireError::ZeroCost { .. })));
    let new = gate.would_admit("nonesuch", 1).unwrap();
    assert_eq!((new.would_admit, new.reason), (false, Some(Reason::Starting)), "nobody has answered yet");
    assert!(!gate.would_admit("closed", 1).unwrap().would_admit);
    group.advance(Duration::from_secs(1)).await;
    assert!(matches!(gate.would_admit("nonesuch", 1), Err(AcquireError::UnknownLimit { .. })));
    assert!(!gate.would_admit("closed", 1).unwrap().would_admit);
    group.fail(Fault::Unreachable);
    group.advance(Duration::from_secs(20)).await;
    let lost = gate.would_admit("api", 1).unwrap();
    assert_eq!((lost.would_admit, lost.reason), (false, Some(Reason::CoordinatorLost)));
    assert!(lost.age.unwrap() >= Duration::from_secs(19), "{lost:?}");
}
