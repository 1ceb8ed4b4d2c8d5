//! Leases: what happens to them when messages, coordinators and processes fail.

use crate::world::{BadClock, limit, pass, recorded};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::limit::CellConfig;
use tollgate_core::units::Span;
use tollgate_worker::state::{Condition, Coordinator};
use tollgate_worker::testing::{Fault, TestGroup};
use tollgate_worker::{Gate, Reason};

async fn keep_asking(gate: Gate, name: &'static str, seconds: u64) -> Vec<u64> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut admitted = Vec::new();
    while let Ok(permit) = gate.acquire(name).deadline(end).await {
        admitted.push(permit.admitted_at().0);
    }
    admitted
}

/// The largest admitted(s, t) less what the bound allows, in tokens.
fn excess(admitted: &[u64], rate: u64, burst: u64) -> i64 {
    // The worst interval begins at an admission and ends at one.
    let mut worst = i64::MIN;
    for (index, begin) in admitted.iter().enumerate() {
        for (count, end) in admitted[index..].iter().enumerate() {
            let allowed = burst + (end - begin) * rate / 1_000_000;
            worst = worst.max(i64::try_from(count + 1).unwrap() - i64::try_from(allowed).unwrap());
        }
    }
    worst
}

#[tokio::test(start_paused = true)]
async fn two_gates_share_one_limit_within_the_bound_and_use_it() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    let first = group.gate().await;
    let second = group.gate().await;
    let mut tasks = Vec::new();
    for gate in [&first, &second] {
        for _ in 0..8 {
            tasks.push(tokio::spawn(keep_asking(gate.clone(), "api", 60)));
        }
    }
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.extend(task.await.unwrap());
    }
    admitted.sort_unstable();
    let excess = excess(&admitted, 50, 16);
    assert!(excess <= 0, "{excess} over the bound");
    let used = admitted.len() as f64 / (60.0 * 50.0 + 16.0);
    assert!(used > 0.9, "used {used}");
    let granted = [&first, &second].map(|gate| gate.state().limits[0].counters.granted);
    assert!(granted[0].abs_diff(granted[1]) < 300, "{granted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_small_rate_is_handed_out_in_counted_tokens() {
    let group = TestGroup::new([CellConfig::constant(
        "slow",
        tollgate_core::curve::Rate::new(60, Span::from_secs(60)),
        1,
        Span::from_secs(8),
    )]);
    let first = group.gate().await;
    let second = group.gate().await;
    let tasks = [first, second].map(|gate| tokio::spawn(keep_asking(gate, "slow", 60)));
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.extend(task.await.unwrap());
    }
    admitted.sort_unstable();
    assert!(excess(&admitted, 1, 1) <= 0);
    // With a burst of one, the next token is minted from when the ledger has heard that this one was used.
    assert!(admitted.len() > 40, "{}", admitted.len());
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_an_outage_and_closes_at_its_end() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    let asking = tokio::spawn(keep_asking(gate.clone(), "api", 3));
    asking.await.unwrap();
    group.fail(Fault::Silent);
    let began = Instant::now();
    let error = loop {
        match api.acquire().timeout(Duration::from_secs(20)).await {
            Ok(_permit) => pass(20).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.reason(), Some(Reason::CoordinatorLost));
    assert!(error.retry_after().is_some());
    let lasted = began.elapsed().as_secs_f64();
    assert!((6.0..8.1).contains(&lasted), "{lasted}");
    let state = gate.state();
    assert_eq!(state.limits[0].condition, Condition::Closed);
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::CoordinatorLost));
    // It opens again by itself.
    group.heal();
    pass(31_000).await;
    assert!(api.acquire().timeout(Duration::from_secs(1)).await.is_ok());
    assert_eq!(gate.state().coordinator, Coordinator::Reachable);
    assert_eq!(gate.state().limits[0].condition, Condition::Open);
}

#[tokio::test(start_paused = true)]
async fn without_a_coordinator_nobody_waits_for_ever() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    group.fail(Fault::Unreachable);
    let gate = group.gate().await;
    let began = Instant::now();
    let error = gate.acquire("api").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::CoordinatorLost));
    assert!(began.elapsed() <= Duration::from_millis(2_100));
    assert!(matches!(gate.state().coordinator, Coordinator::Unreachable(_)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_asked_for_with_the_same_bytes() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    group.fail_next([Fault::AnswerLost, Fault::Unreachable, Fault::AnswerLost]);
    let (gate, recorder) = recorded(&group);
    assert!(gate.acquire("api").timeout(Duration::from_secs(2)).await.is_ok());
    let sent = recorder.sent();
    assert!(sent.len() >= 4);
    assert!(sent[..4].iter().all(|request| *request == sent[0]), "{sent:?}");
    assert_eq!((sent[0].seq, sent[4..].iter().filter(|request| request.seq == 1).count()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_silent_coordinator_is_asked_anew_under_the_next_seq() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    group.fail_next([Fault::Silent, Fault::Silent]);
    let (gate, recorder) = recorded(&group);
    pass(10_000).await;
    let seqs: Vec<u64> = recorder.sent().iter().map(|request| request.seq).collect();
    assert_eq!(seqs[..3], [1, 2, 3]);
    assert!(gate.acquire("api").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_partial_grant_shrinks_the_bucket_at_once() {
    let group = TestGroup::new([limit("api", 50, 40)]);
    let gate = group.gate().await;
    pass(3_000).await;
    let before = gate.state().limits[0].clone();
    group.set(limit("api", 50, 4));
    gate.notice();
    pass(300).await;
    let after = gate.state().limits[0].clone();
    assert!(before.level > 4 && before.cap > after.cap, "{before:?}");
    assert!(after.level <= 4, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_back_refuses_and_ends_waiting() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let (gate, recorder) = recorded(&group);
    let api = gate.limit("api");
    pass(1_000).await;
    let mut used = 0;
    while let Ok(permit) = api.try_acquire(1) {
        assert!(permit.is_valid());
        used += 1;
    }
    let waiting = tokio::spawn({
        let api = api.clone();
        async move { api.acquire().cost(8).await }
    });
    pass(10).await;
    let (first, second) = tokio::join!(gate.shutdown(), gate.shutdown());
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(waiting.await.unwrap().unwrap_err().reason(), Some(Reason::ShuttingDown));
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::ShuttingDown));
    assert_eq!(gate.acquire("other").await.unwrap_err().reason(), Some(Reason::ShuttingDown));
    assert_eq!(gate.state().coordinator, Coordinator::Stopped);
    let revoked = recorder.revoked.lock().unwrap().clone();
    assert_eq!((revoked.len(), revoked[0].cells[0].used), (1, used));
    let sent = recorder.sent().len();
    pass(60_000).await;
    assert_eq!(recorder.sent().len(), sent, "silent after the last word");
    // What was given back is there for others at once.
    let other = group.gate().await;
    assert!(other.acquire("api").cost(8).timeout(Duration::from_secs(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_keeper_ends_with_the_last_handle() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let (gate, recorder) = recorded(&group);
    let api = gate.limit("api");
    pass(1_000).await;
    drop(gate);
    pass(5_000).await;
    let permit = api.try_acquire(1).unwrap();
    drop(api);
    pass(1_000).await;
    let sent = recorder.sent().len();
    pass(60_000).await;
    assert_eq!(recorder.sent().len(), sent);
    assert!(!permit.is_valid(), "its lease has ended");
}

#[tokio::test(start_paused = true)]
async fn a_burned_incarnation_is_never_used_again() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    let (gate, recorder) = recorded(&group);
    pass(1_000).await;
    let before = gate.state().incarnation;
    let sent = recorder.sent().len();
    group.fail_next([Fault::Burned, Fault::Burned]);
    pass(3_000).await;
    let after = gate.state().incarnation;
    assert_ne!(before, after);
    let later: Vec<_> = recorder.sent()[sent + 1..].to_vec();
    assert!(later.iter().all(|request| request.incarnation != before));
    assert_eq!(later[0].seq, 1);
    assert!(later[0].cells[0].acting.is_none());
    assert!(gate.acquire("api").timeout(Duration::from_secs(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_burns_everybody_is_not_stormed() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    group.fail(Fault::Burned);
    let (_gate, recorder) = recorded(&group);
    pass(60_000).await;
    let sent = recorder.sent().len();
    assert!(sent < 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_finds_its_lease_ended() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    let clock = BadClock::new(group.clock());
    let gate = group.gate_with(group.options().clock(clock.clone())).await;
    pass(900).await;
    assert!(gate.limit("api").try_acquire(1).is_ok());
    group.fail(Fault::Unreachable);
    clock.wall_ahead_us.store(60_000_000, Ordering::Relaxed);
    pass(500).await;
    assert!(gate.limit("api").try_acquire(1).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_ends_all_leases_until_they_are_granted_anew() {
    let group = TestGroup::new([limit("api", 50, 16)]);
    let clock = BadClock::new(group.clock());
    let gate = group.gate_with(group.options().clock(clock.clone())).await;
    pass(100).await;
    let api = gate.limit("api");
    assert!(api.try_acquire(1).is_ok());
    group.fail(Fault::Unreachable);
    clock.jumped.store(true, Ordering::Relaxed);
    // The keeper's next round, and no answer after it.
    pass(2_000).await;
    let refused = api.try_acquire(1).unwrap_err();
    assert!(refused.reason().is_some(), "{refused}");
    group.heal();
    pass(5_000).await;
    assert!(api.try_acquire(1).is_ok());
}
