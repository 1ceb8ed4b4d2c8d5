//! One limit, whichever way it is asked for, and whatever the work turns out to cost.

use crate::world::pass;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_worker::testing::{TestGroup, TestLimit};
use tollgate_worker::{ActivityGate, Outcome};

/// When tokens were admitted, by which way.
type Log = Arc<Mutex<Vec<(u64, usize)>>>;

/// The largest admitted(s, t) less what the bound allows.
fn excess(admitted: &[(u64, usize)], rate: u64, burst: u64) -> i128 {
    let mut worst = i128::MIN;
    for (index, (begin, _)) in admitted.iter().enumerate() {
        for (count, (end, _)) in admitted[index..].iter().enumerate() {
            let allowed = burst + (end - begin) * rate / 1_000_000;
            worst = worst.max(count as i128 + 1 - i128::from(allowed));
        }
    }
    worst
}

#[tokio::test(start_paused = true)]
async fn every_way_of_asking_draws_on_the_same_limit() {
    const WAYS: usize = 5;
    let group = TestGroup::new([TestLimit::per_second("api", 3).burst(3)]);
    let gates = [group.gate().await, group.gate().await, group.gate().await, group.gate().await];
    let [hasty, hurried, patient, active] = &gates;
    let (log, end) = (Log::default(), Instant::now() + Duration::from_secs(60));
    let clock = group.clock();
    let note = {
        let log = log.clone();
        move |way: usize| log.lock().unwrap().push((clock.boot().0, way))
    };
    let mut tasks = Vec::new();
    for (way, gate) in [hasty, hurried].into_iter().enumerate() {
        // Those who are refused and come back: by themselves, since they never pass somebody who waits.
        let (api, note) = (gate.limit("api"), note.clone());
        tasks.push(tokio::spawn(async move {
            while Instant::now() < end {
                match api.try_acquire(1) {
                    Ok(_permit) => note(way),
                    Err(error) => sleep(error.retry_after().unwrap()).await,
                }
            }
        }));
    }
    // Those who wait, activities, and those who ask for each permit.
    let (api, waited) = (patient.limit("api"), note.clone());
    tasks.push(tokio::spawn(async move {
        while api.acquire().deadline(end).await.is_ok() {
            waited(2);
        }
    }));
    let (limits, ran) = (ActivityGate::new(active).rule("call", "api", 1), note.clone());
    tasks.push(tokio::spawn(async move {
        while Instant::now() < end {
            let work = async {
                ran(3);
                Ok(())
            };
            let _refused = limits.run("call", work).await;
        }
    }));
    let strict = group.strict();
    let asking = strict.clone();
    tasks.push(tokio::spawn(async move {
        while let Ok(permit) = asking.acquire("api").deadline(end).await {
            note(4);
            permit.used(1);
        }
    }));
    for task in tasks {
        task.await.unwrap();
    }
    strict.flush().await;
    pass(3_000).await;
    let mut admitted = log.lock().unwrap().clone();
    admitted.sort_unstable();
    assert!(excess(&admitted, 3, 3) <= 0, "{admitted:?}");
    let each: Vec<usize> =
        (0..WAYS).map(|way| admitted.iter().filter(|(_, other)| *other == way).count()).collect();
    assert!(each.iter().all(|count| *count > 0) && admitted.len() > 130, "{each:?}");
    assert_eq!(group.usage("api").reported, admitted.len() as u64, "what each way counted adds up: {each:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_is_known_afterwards_is_owed_by_those_who_come_next() {
    const ESTIMATE: u64 = 7;
    let actual = |n: usize| [3, 7, 20][n % 3];
    let group = TestGroup::new([TestLimit::per(Duration::from_secs(60), "tokens", 15)]);
    let gate = group.gate().await;
    let tokens = gate.limit("tokens");
    pass(100).await;
    let began = Instant::now();
    let order = Arc::new(Mutex::new(Vec::new()));
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (tokens, order) = (tokens.clone(), order.clone());
            tokio::spawn(async move {
                let permit = tokens.acquire().cost(ESTIMATE).await.unwrap();
                let n = {
                    let mut order = order.lock().unwrap();
                    order.push(began.elapsed());
                    order.len() - 1
                };
                sleep(Duration::from_millis(500)).await;
                permit.settle(actual(n), Outcome::Success);
            })
        })
        .collect();
    pass(400).await;
    assert_eq!(order.lock().unwrap().len(), 2, "by their estimates two fit at once");
    let mut deepest = 0;
    while calls.iter().any(|call| !call.is_finished()) {
        deepest = deepest.min(gate.state().limits[0].level);
        pass(100).await;
        assert!(began.elapsed() < Duration::from_secs(900), "somebody waits for ever");
    }
    // One at a time beyond the first two, so that nobody adds to the debt of another.
    assert!(deepest >= -13, "{deepest}");
    let order = order.lock().unwrap().clone();
    let mut used = 0;
    for (n, at) in order.iter().enumerate().skip(2) {
        used = (0..n).map(actual).sum::<u64>();
        let minted = u64::try_from(at.as_millis()).unwrap() * 15 / 60_000;
        assert!(used + ESTIMATE <= 15 + minted + 1, "the {n}th came after {at:?}, when {used} were used");
    }
    // A quarter longer at most than what they used takes.
    let shortest = Duration::from_secs((used + ESTIMATE - 15) * 4);
    assert!(order[9] < shortest * 5 / 4, "{:?} for what takes {shortest:?}", order[9]);
}
