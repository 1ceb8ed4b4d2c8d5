//! Several meters at once: all or nothing, in order, and nothing is left behind.

use crate::world::{for_all_seeds, limit, pass};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Gate, Meters, Outcome, Reason};

const MS: Duration = Duration::from_millis(1);

fn openai(requests: u64, tokens: u64, in_flight: u64) -> [TestLimit; 3] {
    [
        limit("openai", requests, requests),
        limit("openai", tokens, tokens).meter("tokens"),
        TestLimit::in_flight("openai", in_flight).lease(Duration::from_secs(8)),
    ]
}

fn all(gate: &Gate) -> Meters<3> {
    gate.meters("openai", ["requests", "tokens", "in_flight"])
}

fn charged(group: &TestGroup) -> [u64; 3] {
    ["requests", "tokens", "in_flight"].map(|meter| group.meter_usage("openai", meter).charged)
}

fn refusal(result: Result<tollgate_worker::Permit, AcquireError>) -> (Reason, String) {
    let error = result.unwrap_err();
    (error.reason().unwrap(), error.meter().unwrap().to_owned())
}

#[tokio::test(start_paused = true)]
async fn all_meters_are_charged_or_none() {
    let group = TestGroup::new(openai(10, 100, 2));
    let gate = group.gate().await;
    let openai = all(&gate);
    pass(2_000).await;
    let first = openai.acquire([1, 60, 1]).await.unwrap();
    assert_eq!(
        ["requests", "tokens", "in_flight", "bytes"].map(|meter| first.charged_to(meter)),
        [1, 60, 1, 0]
    );
    assert_eq!((first.limit(), first.cost()), ("openai", 1));
    assert_eq!(refusal(openai.try_acquire([1, 60, 0])), (Reason::Empty, "tokens".to_owned()));
    assert_eq!(charged(&group), [1, 60, 1]);
    // What costs nothing isn't asked for.
    let second = openai.acquire([1, 0, 1]).await.unwrap();
    assert_eq!(refusal(openai.try_acquire([1, 0, 1])), (Reason::Empty, "in_flight".to_owned()));
    drop((first, second));
    pass(1_000).await;
    let third = gate.acquire("openai").charge("tokens", 90).charge("in_flight", 2).await.unwrap();
    third.finish(Outcome::Success);
    for meter in ["requests", "tokens", "in_flight"] {
        assert_eq!(group.meter_usage("openai", meter).settled_as(Outcome::Success), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_choice_of_meters_is_said_and_nothing_is_charged() {
    let group = TestGroup::new(openai(10, 100, 2));
    let gate = group.gate().await;
    pass(1_000).await;
    let typo = gate.acquire("openai").charge("tokns", 5).await.unwrap_err();
    let AcquireError::UnknownMeter { limit, meter, there } = &typo else { panic!("{typo}") };
    assert_eq!((&**limit, &**meter), ("openai", "tokns"));
    assert!(there.iter().any(|meter| &**meter == "tokens") && !there.contains(meter), "{typo}");
    assert!(
        typo.to_string().contains("has no meter \"tokns\", but \"in_flight\", \"requests\", \"tokens\""),
        "{typo}"
    );
    let twice = gate.acquire("openai").charge("tokens", 5).charge("tokens", 5).await.unwrap_err();
    assert_eq!(twice.to_string(), "limit \"openai\": meters is \"tokens\" twice, allowed: each meter once");
    let many = gate.meters("openai", ["a", "b", "c", "d", "e", "f", "g", "h", "i"]).try_acquire([1; 9]);
    assert!(many.unwrap_err().to_string().contains("meters is 9, allowed: 1 to 8 of them"));
    let bad = gate.acquire("openai").charge("To Kens", 5).await.unwrap_err();
    assert!(matches!(bad, AcquireError::InvalidLimit(_)), "{bad}");
    let zero = all(&gate).try_acquire([0; 3]).unwrap_err();
    assert!(matches!(zero, AcquireError::ZeroCost { .. }), "{zero}");
    let above = all(&gate).acquire([1, 101, 1]).await.unwrap_err();
    assert_eq!((above.meter(), above.as_str()), (Some("tokens"), "cost_above_burst"));
    assert!(matches!(
        gate.acquire("nonesuch").charge("tokens", 1).await,
        Err(AcquireError::UnknownLimit { .. })
    ));
    assert_eq!(charged(&group), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_is_not_starved_by_those_who_charge_only_some_of_the_meters() {
    let group = TestGroup::new(openai(20, 100, 5));
    let gate = group.gate().await;
    pass(1_000).await;
    let small: Vec<_> = (0..20)
        .map(|number| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let (requests, tokens) = (gate.limit("openai"), gate.meter("openai", "tokens"));
                while if number % 2 == 0 { tokens.acquire().cost(7).await } else { requests.acquire().await }
                    .is_ok()
                {}
            })
        })
        .collect();
    pass(2_000).await;
    for _ in 0..5 {
        let began = Instant::now();
        let permit = timeout(Duration::from_secs(10), all(&gate).acquire([10, 95, 1])).await;
        assert!(matches!(permit, Ok(Ok(_))), "{permit:?} {:#?}", gate.state());
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
    small.iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_wait_covers_all_meters_and_a_deadline_is_refused_by_the_one_that_cannot_meet_it() {
    let group = TestGroup::new([
        TestLimit::per(Duration::from_secs(7), "api", 1).burst(1),
        TestLimit::per(Duration::from_secs(60), "api", 5).meter("minute").burst(5),
    ]);
    let gate = group.gate().await;
    let api = gate.meters("api", ["requests", "minute"]);
    let began = Instant::now();
    let mut at = Vec::new();
    for _ in 0..7 {
        api.acquire([1, 1]).timeout(Duration::from_secs(40)).await.unwrap().finish(Outcome::Success);
        at.push(began.elapsed().as_secs());
    }
    // One every seven seconds, until the other meter has no more: then one every twelve.
    assert!(at[4] <= 30 && at[6] >= 42, "{at:?}");
    let hopeless = api.acquire([1, 5]).timeout(Duration::from_secs(30));
    let (asked, waiting) = (Instant::now(), tokio::spawn(api.acquire([1, 5]).into_future()));
    pass(1).await;
    assert_eq!(refusal(hopeless.await), (Reason::Deadline, "minute".to_owned()));
    assert!(asked.elapsed() < 10 * MS, "at once");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_meter_that_goes_away_or_comes_while_work_waits() {
    let [requests, tokens, in_flight] = openai(10, 100, 1);
    let group = TestGroup::new([requests, tokens.clone().used_up()]);
    let gate = group.gate().await;
    let waiting = tokio::spawn(all(&gate).acquire([1, 90, 1]).into_future());
    pass(600).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.as_str(), error.meter()), ("unknown_meter", Some("in_flight")));
    // Set meanwhile: it is charged from the next heartbeat on.
    group.set(in_flight);
    pass(2_000).await;
    let held = all(&gate).acquire([1, 10, 1]).timeout(Duration::from_secs(5)).await.unwrap();
    let waiting = tokio::spawn(all(&gate).acquire([1, 10, 1]).into_future());
    pass(1_000).await;
    assert!(!waiting.is_finished());
    group.remove_meter("openai", "tokens");
    pass(1_500).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.meter(), Some("tokens"));
    drop(held);
    group.set(tokens);
    pass(2_000).await;
    assert!(all(&gate).acquire([1, 10, 1]).timeout(Duration::from_secs(5)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_away_wakes_the_next_of_each_line() {
    let group = TestGroup::new(openai(10, 100, 1));
    let gate = group.gate().await;
    pass(1_000).await;
    let held = all(&gate).acquire([1, 1, 1]).await.unwrap();
    let mut head = Box::pin(all(&gate).acquire([1, 1, 1]).into_future());
    assert!(futures_util::poll!(&mut head).is_pending());
    let next = [gate.limit("openai"), gate.meter("openai", "tokens")]
        .map(|meter| tokio::spawn(async move { meter.acquire().await.map(drop) }));
    pass(50).await;
    assert!(next.iter().all(|next| !next.is_finished()), "they came later");
    drop(head);
    pass(1).await;
    assert!(next.iter().all(tokio::task::JoinHandle::is_finished));
    drop(held);
    let state = gate.state();
    assert!(state.limits.iter().all(|limit| limit.waiting == (0, 0)), "{state:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_future_of_several_meters_that_nobody_polls_blocks_none_of_the_lines() {
    let group = TestGroup::new(openai(10, 100, 2));
    let gate = group.gate().await;
    pass(1_000).await;
    let held = all(&gate).acquire([1, 1, 2]).await.unwrap();
    let mut sleeper = Box::pin(all(&gate).acquire([1, 1, 1]).into_future());
    assert!(futures_util::poll!(&mut sleeper).is_pending());
    let others: Vec<_> = (0..6)
        .map(|number| {
            let gate = gate.clone();
            let costs = [[1, 0, 0], [0, 1, 0], [1, 1, 1]][number % 3];
            tokio::spawn(async move { all(&gate).acquire(costs).await.map(drop) })
        })
        .collect();
    pass(10).await;
    drop(held);
    let began = Instant::now();
    for other in others {
        other.await.unwrap().unwrap();
    }
    assert!(began.elapsed() < 500 * MS, "{:?}", began.elapsed());
    assert!(sleeper.await.is_ok(), "it has its place when it comes");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One admission: when, its costs, and until when it was in flight.
type Seen = (u64, [u64; 3], u64);

/// The most that was admitted beyond what `burst` and `rate` allow, over all intervals.
fn excess(seen: &[Seen], meter: usize, rate: u64, burst: u64) -> i128 {
    let mut worst = i128::MIN;
    for (index, (from, ..)) in seen.iter().enumerate() {
        let mut tokens = 0;
        for (to, costs, _) in seen.get(index..).unwrap_or_default() {
            tokens += i128::from(costs[meter]) * 1_000_000;
            worst =
                worst.max(tokens - i128::from(burst) * 1_000_000 - i128::from(rate) * i128::from(to - from));
        }
    }
    worst
}

/// A crowd of callers who charge one, two or three meters, time out, go away or don't look.
async fn crowd(seed: u64, workers: usize, troubled: bool) {
    let mut random = Random(seed ^ 0x5eed);
    let rates = [5 + random.below(40), 20 + random.below(200), 1 + random.below(4)];
    let group = TestGroup::new(openai(rates[0], rates[1], rates[2]));
    let gates = join_all((0..workers).map(|_| group.gate())).await;
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let gate = gates[usize::try_from(random.below(workers as u64)).unwrap()].clone();
        let charges = |random: &mut Random, most: u64| {
            if random.below(4) == 0 { 0 } else { 1 + random.below(most) }
        };
        let mut costs =
            [charges(&mut random, rates[0]), charges(&mut random, rates[1]), charges(&mut random, 1)];
        if costs == [0; 3] {
            costs[0] = 1;
        }
        let (after, works, patience) = (random.below(4_000), random.below(300), random.below(3_000));
        let (manner, seen) = (random.below(5), seen.clone());
        tasks.push(tokio::spawn(async move {
            pass(after).await;
            let meters = all(&gate);
            let result = match manner {
                0 => meters.acquire(costs).timeout(MS * u32::try_from(patience).unwrap()).await,
                1 => match timeout(MS * u32::try_from(patience).unwrap(), meters.acquire(costs)).await {
                    Ok(result) => result,
                    Err(_) => return None,
                },
                2 => {
                    let mut sleeper = Box::pin(meters.acquire(costs).into_future());
                    let once = futures_util::poll!(&mut sleeper);
                    pass(patience).await;
                    match once {
                        std::task::Poll::Ready(result) => result,
                        std::task::Poll::Pending => sleeper.await,
                    }
                }
                3 => meters.try_acquire(costs),
                _ => meters.acquire(costs).await,
            };
            match result {
                Ok(permit) => {
                    let admitted = permit.admitted_at().0;
                    pass(works).await;
                    drop(permit);
                    seen.lock().unwrap().push((admitted, costs, admitted + works * 1_000));
                    None
                }
                Err(error) => Some(error),
            }
        }));
    }
    if troubled {
        for _ in 0..4 {
            pass(random.below(1_500)).await;
            match random.below(4) {
                0 => group.fail_next([Fault::AnswerLost, Fault::Unreachable]),
                1 => group.fail_next([Fault::Burned]),
                2 => group.suspend(MS * u32::try_from(random.below(10_000)).unwrap()),
                _ => group.set_round_trip(MS * u32::try_from(random.below(400)).unwrap()),
            }
        }
        group.heal();
        group.set_round_trip(10 * MS);
    }
    for task in tasks {
        let Ok(error) = timeout(Duration::from_secs(300), task).await else {
            panic!(
                "somebody waits for ever: {rates:?} {:#?}",
                gates.iter().map(Gate::state).collect::<Vec<_>>()
            );
        };
        if let Some(error) = error.unwrap() {
            let expected = matches!(
                error.reason(),
                Some(
                    Reason::Deadline
                        | Reason::Empty
                        | Reason::Queued
                        | Reason::CoordinatorLost
                        | Reason::Starting
                )
            );
            assert!(expected, "{error}");
        }
    }
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert!(excess(&seen, 0, rates[0], rates[0]) <= 0, "requests over their bound {rates:?}: {seen:?}");
    assert!(excess(&seen, 1, rates[1], rates[1]) <= 0, "tokens over their bound {rates:?}: {seen:?}");
    if !troubled {
        for (at, ..) in &seen {
            let held = |(from, _, to): &&Seen| from <= at && at < to;
            let held: u64 = seen.iter().filter(held).map(|(_, costs, _)| costs[2]).sum();
            assert!(held <= rates[2], "{held} in flight of {}", rates[2]);
        }
    }
    for (meter, name) in ["requests", "tokens", "in_flight"].into_iter().enumerate() {
        let usage = group.meter_usage("openai", name);
        let tokens: u64 = seen.iter().map(|(_, costs, _)| costs[meter]).sum();
        let permits = seen.iter().filter(|(_, costs, _)| costs[meter] > 0).count() as u64;
        assert_eq!((usage.charged, usage.granted), (tokens, permits), "{name}");
        assert_eq!((usage.waiting, usage.waiting_tokens), (0, 0), "{name}");
    }
    pass(20_000).await;
    for gate in &gates {
        let permit = all(gate).acquire(rates).timeout(Duration::from_secs(60)).await;
        assert!(permit.is_ok(), "{permit:?}: {rates:?} {:#?}", gate.state());
    }
}

#[test]
fn a_crowd_of_several_meters_is_served_and_leaves_nothing_behind() {
    for_all_seeds(100, |seed| crowd(seed, 1, false));
}

#[test]
fn a_crowd_of_several_meters_outlives_lost_messages_and_lost_leases() {
    for_all_seeds(100, |seed| crowd(seed, 1, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_that_race_for_one_meter_leak_nothing_of_the_others() {
    const SCARCE: u64 = 3_000;
    let fixed = |tokens| TestLimit::per_second("api", 0).burst(tokens);
    let group = TestGroup::in_real_time([
        fixed(100_000),
        fixed(100_000).meter("bytes"),
        fixed(SCARCE).meter("tokens"),
    ]);
    let gate = group.gate().await;
    let api = gate.meters("api", ["requests", "bytes", "tokens"]);
    let granted = AtomicU64::new(0);
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while granted.load(Ordering::Relaxed) < SCARCE && began.elapsed() < Duration::from_secs(60) {
                    if api.try_acquire([1, 2, 1]).is_ok() {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(granted.into_inner(), SCARCE);
    assert!(api.try_acquire([1, 2, 1]).is_err());
    // What leaked would count as used at the coordinator. A heartbeat that looks between taking and putting back may lose some.
    let reported = |meter| group.meter_usage("api", meter).reported;
    while reported("tokens") < SCARCE {
        assert!(began.elapsed() < Duration::from_secs(60), "{} reported", reported("tokens"));
        tokio::task::yield_now().await;
    }
    let [requests, bytes, tokens] = ["requests", "bytes", "tokens"].map(reported);
    assert!((SCARCE..SCARCE + 10).contains(&requests), "{requests}");
    assert!((2 * SCARCE..2 * SCARCE + 20).contains(&bytes), "{bytes}");
    assert_eq!(tokens, SCARCE);
}
