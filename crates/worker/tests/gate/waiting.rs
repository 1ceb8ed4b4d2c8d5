//! Crowds that wait, with costs, deadlines and ways of going away drawn from a seed: order, bounds, and that nothing is left
//! behind whenever somebody goes away.

use crate::world::{drain, for_all_seeds, pass};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{AcquireError, Limit, Outcome, Permit, Reason};

const SEEDS: u64 = 120;
const MS: Duration = Duration::from_millis(1);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
    fn ms(&mut self, bound: u64) -> Duration {
        MS * u32::try_from(self.below(bound)).unwrap()
    }
}

/// What a caller does once it is in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Waits for as long as it takes.
    Stays,
    /// Waits until then.
    TimesOut(Duration),
    /// Goes away then.
    Leaves(Duration),
    /// Goes away when it is woken, in place of looking.
    LeavesWhenWoken,
    /// Doesn't look for so long, then waits.
    Sleeps(Duration),
    /// Doesn't look for so long, then goes away.
    SleepsAndLeaves(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    after: Duration,
    gate: usize,
    cost: u64,
    manner: Manner,
}

/// Everybody who stands in line at one gate, by arrival; `false` for those who don't look.
type Line = Arc<Mutex<BTreeMap<u64, bool>>>;

/// Somebody in line, until it is dropped.
struct Standing {
    line: Line,
    number: u64,
}

impl Standing {
    fn new(line: &Line) -> Standing {
        let mut standing = line.lock().unwrap();
        let number = standing.last_key_value().map_or(0, |(last, _)| last + 1);
        standing.insert(number, true);
        drop(standing);
        Standing { line: line.clone(), number }
    }
    fn looks(&self, looks: bool) {
        self.line.lock().unwrap().insert(self.number, looks);
    }
    /// Nobody who looks stands before it.
    fn is_first(&self) -> bool {
        self.line.lock().unwrap().range(..self.number).all(|(_, looks)| !looks)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.line.lock().unwrap().remove(&self.number);
    }
}

type Acquiring = Pin<Box<tollgate_worker::acquire::Acquiring>>;

/// How a caller ended: what it got, when, and whether it went away by itself.
#[derive(Debug)]
struct End {
    caller: Caller,
    result: Option<Result<Permit, AcquireError>>,
    asked: Instant,
    ended: Instant,
}

async fn call(limit: Limit, line: Line, caller: Caller) -> End {
    sleep(caller.after).await;
    let asked = Instant::now();
    let end = |result| End { caller, result, asked, ended: Instant::now() };
    let mut acquire = limit.acquire().cost(caller.cost);
    if let Manner::TimesOut(time) = caller.manner {
        acquire = acquire.timeout(time);
    }
    let mut acquiring: Acquiring = Box::pin(acquire.into_future());
    let at_once = poll_fn(|cx| match acquiring.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(result) = at_once.await {
        let passed = result.is_ok() && line.lock().unwrap().values().any(|looks| *looks);
        assert!(!passed, "a newcomer passed who waits: {caller:?}");
        return end(Some(result));
    }
    let standing = Standing::new(&line);
    let result = match caller.manner {
        Manner::Stays | Manner::TimesOut(_) => Some(acquiring.await),
        Manner::Leaves(time) => timeout(time, acquiring).await.ok(),
        Manner::LeavesWhenWoken => {
            let mut polled = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut polled, true) {
                    return Poll::Ready(None);
                }
                acquiring.as_mut().poll(cx).map(Some)
            })
            .await
        }
        Manner::Sleeps(time) => {
            standing.looks(false);
            sleep(time).await;
            standing.looks(true);
            Some(acquiring.await)
        }
        Manner::SleepsAndLeaves(time) => {
            standing.looks(false);
            sleep(time).await;
            None
        }
    };
    assert!(!matches!(result, Some(Ok(_))) || standing.is_first(), "out of turn: {caller:?}");
    end(result)
}

fn crowd(random: &mut Random, gates: u64, burst: u64) -> Vec<Caller> {
    let callers = 40 + random.below(120);
    let caller = |random: &mut Random| Caller {
        after: random.ms(3_000),
        gate: usize::try_from(random.below(gates)).unwrap(),
        cost: 1 + if random.below(5) == 0 { random.below(burst) } else { random.below(burst.min(3)) },
        manner: match random.below(10) {
            0..=3 => Manner::Stays,
            4 => Manner::TimesOut(random.ms(2_000)),
            5 => Manner::Leaves(random.ms(2_000)),
            6 => Manner::LeavesWhenWoken,
            7 => Manner::Sleeps(random.ms(1_000)),
            8 => Manner::SleepsAndLeaves(random.ms(1_000)),
            _ => Manner::Leaves(random.ms(20)),
        },
    };
    (0..callers).map(|_| caller(random)).collect()
}

/// The largest admitted(s, t) less what the bound allows, in tokens; admissions are (microseconds, cost).
fn excess(admitted: &[(u64, u64)], rate: u64, burst: u64) -> i128 {
    let mut worst = i128::MIN;
    for (index, (begin, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for (end, cost) in &admitted[index..] {
            sum += i128::from(*cost);
            worst = worst.max(sum - i128::from(burst) - i128::from((end - begin) * rate / 1_000_000));
        }
    }
    worst
}

/// Lets a crowd loose on the gates of one limit and judges what came of it. `trouble` goes on meanwhile, if it
/// shall be `troubled`.
async fn judge<T: Future<Output = ()>>(
    seed: u64,
    gates: usize,
    troubled: bool,
    trouble: impl FnOnce(TestGroup, Random) -> T,
) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (rate, burst) = (2 + random.below(100), 1 + random.below(30));
    let group = TestGroup::new([TestLimit::per_second("api", rate).burst(burst).lease(8_000 * MS)]);
    group.set_round_trip(random.ms(100));
    let gates = join_all((0..gates).map(|_| group.gate())).await;
    let lines: Vec<Line> = gates.iter().map(|_| Line::default()).collect();
    let callers = crowd(&mut random, gates.len() as u64, burst);
    let wanted: u64 = callers.iter().map(|caller| caller.cost).sum();
    let tasks = callers.iter().map(|caller| {
        let limit = gates[caller.gate].limit("api");
        tokio::spawn(call(limit, lines[caller.gate].clone(), *caller))
    });
    let tasks = join_all(tasks.collect::<Vec<_>>());
    let trouble = trouble(group.clone(), random);
    // What all want takes this long at most, at a third of the rate, and nobody waits longer than that.
    let most = MS * u32::try_from(wanted * 3_000 / rate).unwrap() + 30_000 * MS;
    let Ok((tasks, ())) = timeout(most, async { tokio::join!(tasks, trouble) }).await else {
        let states: Vec<_> = gates.iter().map(tollgate_worker::Gate::state).collect();
        panic!("somebody waits for ever: rate {rate} burst {burst} {group:#?} {states:#?}");
    };

    let mut admitted = Vec::new();
    for task in tasks {
        let End { caller, result, asked, ended } = task.unwrap();
        if let Manner::TimesOut(time) = caller.manner {
            assert!(ended <= asked + time + MS, "{caller:?} ended after {:?}", ended - asked);
        }
        match result {
            Some(Ok(permit)) => {
                assert!(permit.is_valid() || ended < Instant::now(), "{caller:?}");
                admitted.push((permit.admitted_at().0, permit.cost()));
            }
            Some(Err(error)) => {
                let expected = match error.reason() {
                    Some(Reason::Deadline) => matches!(caller.manner, Manner::TimesOut(_)),
                    Some(Reason::CoordinatorLost) => true,
                    _ => false,
                };
                assert!(expected, "{caller:?}: {error}");
            }
            None => assert_ne!(caller.manner, Manner::Stays),
        }
    }
    admitted.sort_unstable();
    assert!(excess(&admitted, rate, burst) <= 0, "over the bound of {rate}/s, burst {burst}: {admitted:?}");
    let usage = group.usage("api");
    let tokens: u64 = admitted.iter().map(|(_, cost)| cost).sum();
    assert_eq!((usage.granted, usage.charged), (admitted.len() as u64, tokens));
    assert_eq!((usage.waiting, usage.waiting_tokens), (0, 0));
    // The coordinator comes to know it, and the next one is served as if nothing had been.
    group.heal();
    pass(31_000).await;
    // A worker that goes on as a new one doesn't report what the old one had yet to say, and counts what was void.
    let reported = group.usage("api").reported;
    assert!(reported == tokens || troubled, "{reported} of {tokens}");
    for gate in &gates {
        let permit =
            gate.acquire("api").cost(burst).timeout(20_000 * MS + MS * u32::try_from(burst * 1_000).unwrap());
        let began = Instant::now();
        let permit = permit.await;
        assert!(
            permit.is_ok(),
            "{permit:?} after {:?}: rate {rate} burst {burst} {group:#?} {:#?}",
            began.elapsed(),
            gate.state()
        );
    }
}

#[test]
fn a_crowd_is_served_in_order_whoever_goes_away() {
    for_all_seeds(SEEDS, |seed| judge(seed, 1, false, |_, _| async {}));
}

#[test]
fn crowds_of_three_workers_share_a_limit_and_starve_nobody() {
    for_all_seeds(SEEDS, |seed| judge(seed, 3, false, |_, _| async {}));
}

#[test]
fn a_crowd_outlives_lost_messages_lost_leases_and_outages() {
    let trouble = |group: TestGroup, mut random: Random| async move {
        for _ in 0..6 {
            pass(random.below(1_500)).await;
            match random.below(6) {
                0 => group.fail_next([Fault::AnswerLost, Fault::Unreachable]),
                1 => group.fail_next([Fault::Silent]),
                2 => group.fail_next([Fault::Burned]),
                3 => group.suspend(random.ms(12_000)),
                4 => {
                    group.fail(Fault::Unreachable);
                    pass(random.below(3_000)).await;
                    group.heal();
                }
                _ => group.set_round_trip(random.ms(600)),
            }
        }
        group.heal();
    };
    for_all_seeds(SEEDS, |seed| judge(seed, 2, true, trouble));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_futures_that_nobody_polls_hold_the_line_up_for_seconds() {
    let group = TestGroup::new([TestLimit::per_second("api", 10).burst(10).used_up()]);
    let api = group.gate().await.limit("api");
    let mut sleepers = Vec::new();
    for _ in 0..1_000 {
        let mut sleeper = Box::pin(api.acquire().into_future());
        assert!(futures_util::poll!(&mut sleeper).is_pending());
        sleepers.push(sleeper);
    }
    let began = Instant::now();
    api.acquire().await.unwrap().settle(1, Outcome::Success);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // They have their places when they look again.
    let mut last = Box::pin(api.acquire().into_future());
    assert!(futures_util::poll!(&mut last).is_pending() || group.usage("api").granted == 2);
    for sleeper in sleepers {
        drop(sleeper.await.unwrap());
    }
    assert_eq!(group.usage("api").granted, 1_001 + u64::from(last.await.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn who_is_woken_and_goes_away_wakes_the_next() {
    let group = TestGroup::new([TestLimit::per_second("api", 10).burst(1)]);
    let api = group.gate().await.limit("api");
    drain(&api);
    let line = Line::default();
    let caller = |manner| Caller { after: Duration::ZERO, gate: 0, cost: 1, manner };
    let gone = tokio::spawn(call(api.clone(), line.clone(), caller(Manner::LeavesWhenWoken)));
    tokio::task::yield_now().await;
    let next = tokio::spawn(call(api.clone(), line, caller(Manner::Stays)));
    let gone = gone.await.unwrap();
    assert!(gone.result.is_none());
    let next = next.await.unwrap();
    assert!(next.result.unwrap().is_ok());
    assert_eq!(next.ended, gone.ended, "the token was there: nobody had to wait for another one");
}

#[tokio::test(start_paused = true)]
async fn a_cut_refuses_at_once_whose_deadline_cannot_be_met_any_more() {
    let limit = |rate| TestLimit::per_second("api", rate).burst(5).used_up();
    let group = TestGroup::new([limit(20)]);
    let api = group.gate().await.limit("api");
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move {
                let result = api.acquire().timeout(Duration::from_secs(10)).await;
                (result.map(drop).map_err(|error| error.reason()), Instant::now())
            })
        })
        .collect();
    pass(500).await;
    let (cut, before) = (Instant::now(), group.usage("api").granted);
    group.set(limit(1));
    pass(1_000).await;
    let left = group.usage("api").waiting as u64;
    assert!((8..=16).contains(&left), "{left} still wait of {}", 40 - before);
    for waiting in waiting {
        match waiting.await.unwrap() {
            (Ok(()), _) => {}
            (Err(reason), at) => {
                assert_eq!(reason, Some(Reason::Deadline));
                assert!(at < cut + Duration::from_secs(1) || at >= cut + Duration::from_millis(9_400));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_used_up_holds_up_nobody_of_another_one() {
    let group =
        TestGroup::new([TestLimit::per_second("slow", 1).burst(1), TestLimit::per_second("fast", 100)]);
    let gate = group.gate().await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { drop(gate.acquire("slow").await) })
        })
        .collect();
    pass(500).await;
    let began = Instant::now();
    gate.acquire("fast").cost(10).await.unwrap().settle(10, Outcome::Success);
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    waiting.iter().for_each(|waiting| waiting.abort());
}

#[tokio::test(start_paused = true)]
async fn time_in_line_does_not_shorten_a_permit() {
    let group = TestGroup::new([TestLimit::per(Duration::from_secs(170), "batch", 1).burst(1).used_up()]);
    let permit = group.gate().await.acquire("batch").await.unwrap();
    assert!(permit.valid_for() > Duration::from_secs(2), "{permit:?}");
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_is_served_beside_another_workers_stream_of_small_ones() {
    let group = TestGroup::new([TestLimit::per_second("api", 20).burst(10)]);
    let (busy, rare) = (group.gate().await, group.gate().await);
    for _ in 0..20 {
        let api = busy.limit("api");
        tokio::spawn(async move { while api.acquire().await.is_ok() {} });
    }
    pass(5_000).await;
    for _ in 0..5 {
        let began = Instant::now();
        let permit = rare.acquire("api").cost(10).timeout(Duration::from_secs(60)).await;
        assert!(permit.is_ok(), "{permit:?} {group:#?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        pass(2_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_while_work_waits_is_waited_for_or_refused() {
    let group = TestGroup::new([TestLimit::per_second("api", 10).burst(5).used_up()]);
    let gate = group.gate().await;
    let waiting = |gate: &tollgate_worker::Gate| {
        let gate = gate.clone();
        tokio::spawn(async move { gate.acquire("api").cost(5).await.map(drop) })
    };
    let served = waiting(&gate);
    pass(100).await;
    group.end_leases(&gate);
    served.await.unwrap().unwrap();
    group.fail(Fault::Unreachable);
    // Until nothing is under way.
    pass(50).await;
    drain(&gate.limit("api"));
    let lost = waiting(&gate);
    pass(10).await;
    group.end_leases(&gate);
    let began = Instant::now();
    assert_eq!(lost.await.unwrap().unwrap_err().reason(), Some(Reason::CoordinatorLost));
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
    assert_eq!(group.usage("api").waiting, 0);
}
