//! Workers on signals alone: the same rules, and not one update from them.

use crate::world::{World, eventually, run};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tollgate_worker::state::Coordinator;
use tollgate_worker::{Gate, Messages, Options};

const WORKERS: usize = 4;
/// Of each worker, so that it always has more to do than it may.
const CALLERS: usize = 10;
const RATE: u64 = 100;
const BURST: u64 = 20;

#[test]
fn workers_on_signals_alone_share_a_limit_through_a_killed_host_and_give_back_what_they_hold() {
    run(async {
        let world = World::new("signals").await;
        let host = world.host();
        let (rate, burst) = (format!("{RATE}/s"), BURST.to_string());
        world.tollgate_ok(&["limit", "set", "api", "--rate", &rate, "--burst", &burst]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let mut gates = Vec::new();
        for number in 0..WORKERS {
            let options = Options::new().group(world.group.clone()).worker(format!("w{number}")).limit("api");
            let options = options.messages(Messages::Signals);
            gates.push(Gate::connect(world.connect().await, options).await.unwrap());
        }
        for gate in &gates {
            eventually("an answer", Duration::from_secs(30), async || {
                let state = gate.state();
                if state.coordinator == Coordinator::Reachable { Ok(()) } else { Err(format!("{state:?}")) }
            })
            .await;
        }
        // All work as fast as they may, while the host is killed and replaced.
        let began = Instant::now();
        let callers = gates.iter().flat_map(|gate| std::iter::repeat_n(gate, CALLERS));
        let work = callers.map(|gate| async move {
            let mut admitted = 0u64;
            while began.elapsed() < Duration::from_secs(8) {
                let asked = gate.acquire("api").timeout(Duration::from_secs(2)).await;
                admitted += u64::from(asked.is_ok());
            }
            admitted
        });
        let replace = async {
            world.status_when("all are at work", |status| status.limits[0].used > BURST + RATE).await;
            host.kill();
            world.host()
        };
        let (admitted, _host) = tokio::join!(join_all(work), replace);
        let (took, admitted) = (began.elapsed(), admitted.iter().sum::<u64>());
        let bound = BURST + RATE * u64::try_from(took.as_millis()).unwrap() / 1_000 + 1;
        println!("{admitted} admitted in {took:?}, at most {bound}");
        assert!(admitted <= bound, "{admitted} in {took:?}");
        assert!(admitted >= bound / 2, "{admitted} in {took:?} is far from the limit");

        let status = world.status().await;
        assert_eq!((status.workers, status.unreadable.count, status.resets), (WORKERS as u64, 0, 0));
        for gate in &gates {
            gate.shutdown().await.unwrap();
        }
        let status = world.status_when("all give back", |status| status.limits[0].cap_milli == 0).await;
        assert_eq!(status.limits[0].used, admitted, "every token is reported once");
        let runs = world.healthy_runs(&world.coordinator()).await;
        let updates: usize = runs.iter().map(|run| run.updates()).sum();
        let events: usize = runs.iter().map(|run| run.events.len()).sum();
        println!("{events} events in {} runs, {updates} updates", runs.len());
        // The configuration comes by update.
        assert!(updates <= 2, "{updates}");
    });
}
