//! What becomes of work in a process that has lost the coordinator, where the operator has said that it shall go on.

use crate::world::{drain, limit, pass, recorded};
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate_worker::state::{Condition, LimitState};
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::transport::Transport;
use tollgate_worker::{Gate, Limit, Outcome, Reason, TransportError};
use tollgate_workflows::wire::lease::{HeartbeatJson, HeartbeatReplyJson};

fn state(gate: &Gate) -> LimitState {
    gate.state().limits[0].clone()
}

/// A gate that wants more than there is, all the time, and has got all of it.
async fn busy(group: &TestGroup) -> (Gate, Limit) {
    let gate = group.gate().await;
    let api = gate.limit("api");
    take_for(&api, 5).await;
    (gate, api)
}

/// How much it gets in so many seconds, by waiting for it. Refusals count as nothing.
async fn take_for(api: &Limit, seconds: u64) -> u64 {
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let mut taken = 0;
    while tokio::time::Instant::now() < end {
        match api.acquire().deadline(end).await {
            Ok(_permit) => taken += 1,
            Err(_) => pass(10).await,
        }
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_holds_goes_on_at_a_part_of_the_last_share_until_the_coordinator_answers() {
    let group = TestGroup::new([limit("api", 100, 20).hold_when_lost(50)]);
    let (gate, api) = busy(&group).await;
    let share = state(&gate).share;
    group.fail(Fault::Unreachable);
    assert_eq!(state(&gate).condition, Condition::Open, "its lease runs on");
    pass(8_100).await;
    let held = state(&gate);
    assert_eq!((held.condition, held.share.ppb()), (Condition::Held, share.ppb() / 2));
    assert!(held.cap.milli_floor() <= 10_000, "{held:?}");
    assert!(held.alone_for.is_some_and(|since| since < Duration::from_secs(1)), "{held:?}");
    drain(&api);
    // For several leases' time.
    let taken = take_for(&api, 60).await;
    assert!((2_700..=3_000).contains(&taken), "{taken}");
    let held = state(&gate);
    assert_eq!(held.condition, Condition::Held);
    assert!(held.alone_for.is_some_and(|since| since > Duration::from_secs(59)), "{held:?}");
    group.heal();
    pass(10_000).await;
    let back = state(&gate);
    assert_eq!((back.condition, back.alone_for), (Condition::Open, None));
    assert!(take_for(&api, 10).await <= 1_000 + 20);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_alone_is_never_claimed_and_is_void_when_an_answer_comes() {
    let group = TestGroup::new([limit("api", 100, 20).hold_when_lost(100)]);
    let (gate, recorder) = recorded(&group);
    let api = gate.limit("api");
    take_for(&api, 5).await;
    group.fail(Fault::Silent);
    pass(15_000).await;
    assert_eq!(state(&gate).condition, Condition::Held);
    assert!(state(&gate).level > 0);
    let before = recorder.sent().len();
    pass(60_000).await;
    assert_eq!(state(&gate).condition, Condition::Held);
    let sent = recorder.sent();
    assert!(sent.len() > before, "it goes on asking");
    for request in &sent[before..] {
        let cell = &request.cells[0];
        assert!(cell.acting.is_none() && cell.held_milli == 0 && cell.returned_milli == 0, "{cell:?}");
    }
    // Answered with next to nothing, since another one has the rest by now.
    group.heal();
    let (other, _) = busy(&group).await;
    pass(31_000).await;
    assert_eq!(state(&gate).condition, Condition::Open);
    let cap = state(&gate).cap.milli_floor() + state(&other).cap.milli_floor();
    assert!(cap <= 20_000 && state(&gate).level <= 20, "{cap}");
}

#[tokio::test(start_paused = true)]
async fn in_flight_holds_as_many_permits_and_counts_those_that_were_out() {
    let group = TestGroup::new([TestLimit::in_flight("db", 8).hold_when_lost(50)]);
    let gate = group.gate().await;
    let db = gate.meter("db", "in_flight");
    let mut permits = Vec::new();
    for _ in 0..6 {
        permits.push(db.acquire().await.unwrap());
    }
    pass(2_000).await;
    let cap = state(&gate).cap.milli_floor() / 1_000;
    group.fail(Fault::Unreachable);
    pass(16_000).await;
    assert_eq!(state(&gate).condition, Condition::Held);
    // Six are out already, of at most half as many.
    assert!(db.try_acquire(1).is_err(), "{cap} before");
    permits.clear();
    let again: Vec<_> = (0..8).map_while(|_| db.try_acquire(1).ok()).collect();
    assert_eq!(again.len() as u64, cap / 2);
    drop(again);
    group.heal();
    pass(5_000).await;
    assert_eq!(state(&gate).condition, Condition::Open);
    let mut all = Vec::new();
    for _ in 0..8 {
        all.push(db.acquire().timeout(Duration::from_secs(5)).await.unwrap());
    }
    assert!(db.try_acquire(1).is_err(), "eight at once, and no more");
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_opens_charges_nothing_and_owes_nothing_afterwards() {
    let group = TestGroup::new([limit("api", 10, 10).open_when_lost()]);
    let (gate, api) = busy(&group).await;
    group.fail(Fault::Unreachable);
    pass(8_100).await;
    let (opened, charged) = (state(&gate), state(&gate).counters.charged);
    assert_eq!((opened.condition, opened.level), (Condition::Opened, 0));
    for _ in 0..1_000 {
        let permit = api.try_acquire(1).unwrap();
        assert!(permit.is_valid() && permit.cost() == 0);
        assert_eq!(permit.settle(5, Outcome::Success).charged, 0);
    }
    // Also those that would wait, and what a bucket can never hold.
    assert!(api.acquire().await.is_ok());
    assert!(api.acquire().cost(50).await.is_ok());
    let after = state(&gate);
    assert_eq!((after.level, after.counters.charged), (0, charged));
    assert_eq!((after.counters.opened, after.counters.opened_tokens), (1_002, 1_051));
    assert_eq!(after.counters.shadow_refused, []);
    group.heal();
    pass(10_000).await;
    let back = state(&gate);
    assert_eq!((back.condition, back.alone_for), (Condition::Open, None));
    assert!(back.level >= 0 && drain(&api) <= 10);
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::Empty));
}

#[tokio::test(start_paused = true)]
async fn waiters_go_on_when_a_limit_opens() {
    let group = TestGroup::new([limit("api", 1, 5).open_when_lost()]);
    let (_gate, api) = busy(&group).await;
    group.fail(Fault::Silent);
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.acquire().await.is_ok() })
        })
        .collect();
    pass(10_000).await;
    for waiter in waiting {
        assert!(waiter.is_finished() && waiter.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_on_alone_while_the_coordinator_answers() {
    let open = || limit("api", 10, 10).open_when_lost();
    // Whatever it says: evicted, full, paused, gone.
    let group = TestGroup::new([open()]);
    let (gate, api) = busy(&group).await;
    group.evict(&gate);
    pass(2_000).await;
    group.fail(Fault::Unreachable);
    pass(60_000).await;
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::Evicted));

    let group = TestGroup::new([open()]);
    let (_gate, api) = busy(&group).await;
    group.fail(Fault::GroupFull);
    pass(60_000).await;
    assert_eq!(api.try_acquire(1).unwrap_err().reason(), Some(Reason::GroupFull));

    let group = TestGroup::new([open()]);
    let (_gate, api) = busy(&group).await;
    group.remove("api");
    pass(2_000).await;
    group.fail(Fault::Unreachable);
    pass(60_000).await;
    assert!(api.try_acquire(1).is_err());

    // Never answered: it doesn't know what the operator has said.
    let group = TestGroup::new([open()]);
    group.fail(Fault::Unreachable);
    let gate = group.gate().await;
    pass(60_000).await;
    assert_eq!(gate.limit("api").try_acquire(1).unwrap_err().reason(), Some(Reason::CoordinatorLost));

    // A lease that has ended by itself.
    let group = TestGroup::new([open()]);
    let (gate, api) = busy(&group).await;
    group.end_leases(&gate);
    assert_ne!(state(&gate).condition, Condition::Opened);
    drain(&api);
    assert_eq!(state(&gate).counters.opened, 0);
}

#[tokio::test(start_paused = true)]
async fn a_share_of_nothing_is_nothing_to_go_on_with() {
    // Counted tokens: nobody has a share.
    let group =
        TestGroup::new([TestLimit::per(Duration::from_secs(60), "slow", 60).burst(1).hold_when_lost(100)]);
    let gate = group.gate().await;
    drop(gate.acquire("slow").await.unwrap());
    group.fail(Fault::Unreachable);
    pass(60_000).await;
    assert_eq!(gate.limit("slow").try_acquire(1).unwrap_err().reason(), Some(Reason::CoordinatorLost));
    assert_eq!(state(&gate).condition, Condition::Closed);
}

/// A process that is cut off from the coordinator, while others are not.
struct Cut {
    to: std::sync::Arc<dyn Transport>,
    is_cut: AtomicBool,
}

impl Transport for Cut {
    fn heartbeat(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<HeartbeatReplyJson, TransportError>> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Box::pin(async { Err(TransportError::Unreachable("cut off".to_owned())) });
        }
        self.to.heartbeat(request)
    }
    fn revoke(&self, request: HeartbeatJson) -> BoxFuture<'_, Result<(), TransportError>> {
        self.to.revoke(request)
    }
}

/// When each permit was handed out, for so many seconds.
async fn admitted(api: Limit, seconds: u64) -> Vec<u64> {
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let mut admitted = Vec::new();
    while tokio::time::Instant::now() < end {
        match api.acquire().deadline(end).await {
            Ok(permit) => admitted.push(permit.admitted_at().0),
            Err(_) => pass(10).await,
        }
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn who_holds_alone_takes_the_fleet_beyond_the_limit_by_its_part_and_no_more() {
    let group = TestGroup::new([limit("api", 100, 20).hold_when_lost(50)]);
    let cut = std::sync::Arc::new(Cut { to: group.transport(), is_cut: AtomicBool::new(false) });
    let alone = Gate::with_transport(cut.clone(), group.options()).unwrap();
    // All of the limit is its own.
    take_for(&alone.limit("api"), 5).await;
    cut.is_cut.store(true, Ordering::Relaxed);
    let other = group.gate().await;
    let both = [&alone, &other].map(|gate| tokio::spawn(admitted(gate.limit("api"), 60)));
    let mut times = Vec::new();
    for one in both {
        times.extend(one.await.unwrap());
    }
    times.sort_unstable();
    assert_eq!((state(&alone).condition, state(&other).condition), (Condition::Held, Condition::Open));
    let count = |index: usize| u64::try_from(index).unwrap();
    for (index, begin) in times.iter().enumerate() {
        for (more, end) in times[index..].iter().enumerate() {
            let allowed = (20 + (end - begin) * 100 / 1_000_000) * 3 / 2 + 1;
            assert!(count(more) < allowed + 1, "{more} from {begin} to {end}, allowed {allowed}");
        }
    }
    let lasted = times.iter().filter(|at| **at >= times[times.len() - 1] - 40_000_000).count();
    assert!(count(lasted) > 40 * 140, "{lasted}: it is used, too");
}
