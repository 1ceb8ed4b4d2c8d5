//! Asking: order, costs, deadlines, errors, and that nothing is left behind.

use crate::world::{drain, limit, pass};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_worker::testing::TestGroup;
use tollgate_worker::{AcquireError, Outcome, Reason};

const PAUSED: &str = "time is virtual in here";

fn reason(error: AcquireError) -> Reason {
    error.reason().unwrap_or_else(|| panic!("{error}"))
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_at_the_head_is_not_starved_by_small_ones() {
    let group = TestGroup::new([limit("api", 20, 20)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(100).await;
    let rest = drain(&api);
    assert!(rest >= 8, "{rest}");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, cost) in [1, 15, 1, 1, 2].into_iter().enumerate() {
        let (api, order) = (api.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let permit = api.acquire().cost(cost).await.unwrap();
            assert_eq!(permit.cost(), cost);
            order.lock().unwrap().push(number);
        }));
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4], "{PAUSED}");
    assert!(began.elapsed() < Duration::from_millis(1_800), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_never_takes_what_a_waiter_waits_for() {
    let group = TestGroup::new([limit("api", 10, 2)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(100).await;
    let mut barged = 0;
    for _ in 0..200 {
        drain(&api);
        let waiter = tokio::spawn({
            let api = api.clone();
            async move { api.acquire().await }
        });
        tokio::task::yield_now().await;
        let began = Instant::now();
        while !waiter.is_finished() {
            pass(1).await;
            // Until the waiter has its permit, a newcomer is refused.
            match api.try_acquire(1) {
                Ok(_) if !waiter.is_finished() => barged += 1,
                Ok(_) => {}
                Err(error) => assert!(matches!(reason(error), Reason::Queued | Reason::Empty)),
            }
            assert!(began.elapsed() < Duration::from_secs(2));
        }
        drop(waiter.await.unwrap().unwrap());
    }
    assert_eq!(barged, 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiters_leave_nothing_behind() {
    let group = TestGroup::new([limit("api", 100, 10)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    let mut seed = 42_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let granted = Arc::new(Mutex::new((0_u64, 0_u64)));
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        let (api, granted) = (api.clone(), granted.clone());
        let (cost, patience) = (1 + random(3), random(60));
        tasks.push(tokio::spawn(async move {
            if let Ok(permit) =
                tokio::time::timeout(Duration::from_millis(patience), api.acquire().cost(cost)).await
            {
                let mut granted = granted.lock().unwrap();
                granted.0 += 1;
                granted.1 += permit.unwrap().cost();
            }
        }));
        if random(4) == 0 {
            let victim = usize::try_from(random(tasks.len() as u64)).unwrap();
            tasks[victim].abort();
        }
        pass(random(12)).await;
    }
    for task in tasks {
        match task.await {
            Ok(()) => {}
            Err(error) => assert!(error.is_cancelled()),
        }
    }
    let (permits, tokens) = *granted.lock().unwrap();
    let state = gate.state();
    assert_eq!(state.limits[0].counters.granted, permits);
    assert_eq!(state.limits[0].counters.charged, tokens);
    assert_eq!(state.limits[0].waiting, (0, 0));
    assert!(permits > 200 && permits < 1_000, "{permits}");
    // And the next one is served as if nothing had been.
    api.acquire().timeout(Duration::from_secs(1)).await.unwrap().settle(1, Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn the_next_in_line_is_woken_when_the_head_goes_away() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(100).await;
    drain(&api);
    let mut head = Box::pin(api.acquire().cost(10).into_future());
    assert!(futures_util::poll!(&mut head).is_pending());
    let second = tokio::spawn({
        let api = api.clone();
        async move { api.acquire().await }
    });
    pass(150).await;
    assert!(!second.is_finished(), "the head needs all tokens");
    drop(head);
    pass(1).await;
    assert!(second.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_future_that_nobody_polls_does_not_block_the_line() {
    let group = TestGroup::new([limit("api", 10, 2)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(100).await;
    drain(&api);
    let mut sleeper = Box::pin(api.acquire().into_future());
    assert!(futures_util::poll!(&mut sleeper).is_pending());
    let began = Instant::now();
    let permit = api.acquire().timeout(Duration::from_secs(2)).await;
    assert!(
        permit.is_ok() && began.elapsed() < Duration::from_millis(500),
        "{permit:?} {:?}",
        began.elapsed()
    );
    assert!(sleeper.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn deadlines_are_kept_and_hopeless_ones_refused_at_once() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(100).await;
    drain(&api);
    // 10 of these need a second; the deadline comes first.
    let began = Instant::now();
    let error = api.acquire().cost(10).timeout(Duration::from_millis(300)).await.unwrap_err();
    assert!(error.retry_after().is_some());
    assert_eq!(reason(error), Reason::Deadline);
    assert_eq!(began.elapsed().as_millis(), 300);
    // 40 tokens in line, of which at most 10 are there: 3 s at least.
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.acquire().cost(10).await.map(drop) })
        })
        .collect();
    pass(1).await;
    let began = Instant::now();
    let error = api.acquire().deadline(Instant::now() + Duration::from_secs(2)).await.unwrap_err();
    assert_eq!((reason(error), began.elapsed().as_millis()), (Reason::Deadline, 0));
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn impossible_questions_are_answered_and_charge_nothing() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    pass(100).await;
    let level = gate.state().limits[0].level;
    let zero = gate.acquire("api").cost(0).await.unwrap_err();
    assert_eq!(zero.to_string(), "limit \"api\": cost is 0, allowed: 1 to the limit's burst");
    let above =
        AcquireError::CostAboveBurst { limit: "api".into(), meter: "requests".into(), cost: 11, burst: 10 };
    assert_eq!(gate.acquire("api").cost(11).await.unwrap_err(), above);
    assert_eq!(gate.limit("api").try_acquire(11).unwrap_err(), above);
    assert!(matches!(gate.limit("api").try_acquire(u64::MAX), Err(AcquireError::CostAboveBurst { .. })));
    assert!(matches!(gate.acquire("a\nb").await, Err(AcquireError::InvalidLimit(_))));
    assert_eq!(gate.state().limits[0].level, level);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_does_not_exist_is_an_error_within_a_second() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    pass(1_000).await;
    let began = Instant::now();
    let (first, second) = tokio::join!(gate.acquire("nonesuch"), gate.acquire("nonesuch").cost(5));
    assert!(matches!(first, Err(AcquireError::UnknownLimit { .. })));
    assert!(matches!(second, Err(AcquireError::UnknownLimit { .. })));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(matches!(gate.limit("nonesuch").try_acquire(1), Err(AcquireError::UnknownLimit { .. })));
    // Removed while somebody waits.
    let api = gate.limit("api");
    drain(&api);
    let waiting = tokio::spawn(async move { api.acquire().cost(10).await });
    pass(10).await;
    group.remove("api");
    group.set(limit("nonesuch", 5, 5));
    pass(1_100).await;
    assert!(waiting.is_finished());
    assert!(matches!(waiting.await.unwrap(), Err(AcquireError::UnknownLimit { .. })));
    // And what was unknown has come to be.
    gate.acquire("nonesuch").timeout(Duration::from_secs(1)).await.unwrap().settle(1, Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_refuses_and_never_hangs() {
    let group = TestGroup::new([limit("none", 0, 0), limit("one", 0, 1)]);
    let gate = group.gate().await;
    let within = Duration::from_secs(5);
    let none = tokio::time::timeout(within, gate.acquire("none")).await.unwrap();
    assert!(matches!(none, Err(AcquireError::CostAboveBurst { cost: 1, burst: 0, .. })), "{none:?}");
    let mut granted = 0;
    for _ in 0..1_000 {
        match tokio::time::timeout(within, gate.acquire("one")).await.unwrap() {
            Ok(_permit) => granted += 1,
            Err(error) => {
                assert_eq!(error.retry_after(), None, "never, not soon");
                assert_eq!(reason(error), Reason::NoQuota);
            }
        }
    }
    assert_eq!(granted, 1);
    let error = gate.limit("one").try_acquire(1).unwrap_err();
    assert_eq!((error.retry_after(), reason(error)), (None, Reason::NoQuota));
    // Raised while closed: it opens by the next heartbeat.
    group.set(limit("one", 10, 5));
    pass(1_500).await;
    assert!(gate.acquire("one").timeout(within).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn errors_between_permit_and_work_keep_nothing() {
    let group = TestGroup::new([limit("api", 100, 50)]);
    let gate = group.gate().await;
    async fn early(gate: &tollgate_worker::Gate) -> Result<(), std::num::ParseIntError> {
        let _permit = gate.acquire("api").await.unwrap();
        let _number: u32 = "no number".parse()?;
        Ok(())
    }
    for round in 0..1_000 {
        let gate = gate.clone();
        let task = tokio::spawn(async move {
            match round % 4 {
                0 => {
                    let _permit = gate.acquire("api").await.unwrap();
                    std::panic::resume_unwind(Box::new("work panics"));
                }
                1 => drop(early(&gate).await),
                2 => drop(gate.acquire("api").into_future()),
                _ => {
                    let _permit = gate.acquire("api").await.unwrap();
                    std::future::pending::<()>().await;
                }
            }
        });
        pass(20).await;
        task.abort();
        let _ended = task.await;
    }
    let counters = gate.state().limits[0].counters.clone();
    assert_eq!((counters.granted, counters.charged), (750, 750));
    assert_eq!(gate.state().limits[0].waiting, (0, 0));
    pass(2_000).await;
    assert_eq!(group.usage("api").reported, 750);
}

#[tokio::test(start_paused = true)]
async fn settling_gives_back_at_most_what_is_safe_and_charges_the_rest() {
    let group = TestGroup::new([limit("tokens", 100, 100)]);
    let gate = group.gate().await;
    pass(100).await;
    let level = || gate.state().limits[0].level;
    let full = level();
    let permit = gate.acquire("tokens").cost(10).await.unwrap();
    permit.settle(25, Outcome::Slow);
    assert!(level() <= full - 25 + 1, "{} of {full}", level());
    let permit = gate.acquire("tokens").cost(10).await.unwrap();
    let before = level();
    permit.settle(0, Outcome::Ignored);
    assert!(level() >= before && level() <= full);
    let counters = gate.state().limits[0].counters.clone();
    assert_eq!(counters.settled, [(Outcome::Slow, 1), (Outcome::Ignored, 1)]);
}

#[tokio::test(start_paused = true)]
async fn refused_callers_are_sent_back_at_different_times() {
    let group = TestGroup::new([limit("api", 10, 10)]);
    let gate = group.gate().await;
    let api = gate.limit("api");
    pass(2_000).await;
    let mut hints = Vec::new();
    for _ in 0..1_000 {
        if let Err(error) = api.try_acquire(5) {
            hints.push(error.retry_after().unwrap());
        }
    }
    hints.sort();
    let (first, last) = (hints[0], *hints.last().unwrap());
    assert!(last > first + first / 10, "{first:?} to {last:?}");
    // Refusals don't make the wait longer.
    assert!(last < Duration::from_secs(10), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_callers_wait_than_may() {
    let group = TestGroup::new([limit("api", 1, 1)]);
    let gate = group.gate_with(group.options().waiters_max(3)).await;
    pass(100).await;
    drop(gate.acquire("api").await);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { drop(gate.acquire("api").await) })
        })
        .collect();
    pass(1).await;
    assert_eq!(reason(gate.acquire("api").await.unwrap_err()), Reason::QueueFull);
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn every_admission_is_in_the_log() {
    let group = TestGroup::new([limit("a b", 100, 10)]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let gate = group.gate_with(group.options().admission_log(file.path())).await;
    let mut expected = String::new();
    for cost in 1..=5 {
        let permit = gate.acquire("a b").cost(cost).await.unwrap();
        expected += &format!("{}000 a b {cost}\n", permit.admitted_at().0);
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn workers_take_turns_where_the_burst_is_smaller_than_the_fleet() {
    let group = TestGroup::new([limit("api", 100, 5)]);
    let gates = join_all((0..8).map(|_| group.gate())).await;
    let served: Vec<_> = gates.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
    for (gate, served) in gates.iter().zip(&served) {
        // As many as a worker has slots.
        for _ in 0..20 {
            let (api, served) = (gate.limit("api"), served.clone());
            tokio::spawn(async move {
                while api.acquire().await.is_ok() {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    pass(5_000).await;
    let so_far = |served: &[Arc<AtomicU64>]| -> Vec<u64> {
        served.iter().map(|served| served.load(Ordering::Relaxed)).collect()
    };
    let before = so_far(&served);
    pass(60_000).await;
    let each: Vec<u64> = so_far(&served).iter().zip(before).map(|(after, before)| after - before).collect();
    let sum: u64 = each.iter().sum();
    assert!((5_400..=6_005).contains(&sum), "{sum}: {each:?}");
    assert!(each.iter().all(|each| each.abs_diff(sum / 8) < sum / 80), "{each:?}");
}
