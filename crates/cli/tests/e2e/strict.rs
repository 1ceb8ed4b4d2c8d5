//! Strict permits: signals, queue, timer, and one permit for each id whatever happens between.

use crate::world::{World, eventually, run};
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_workflows::wire;

#[test]
fn permits_by_signal_are_shown_and_granted_in_order_and_each_id_gets_one() {
    run(async {
        let world = World::new("grants").await;
        let host = world.host();
        world.tollgate_ok(&["limit", "set", "slow", "--rate", "2/s", "--burst", "2"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let id = world.coordinator();
        for n in 0..8 {
            let input = json!({"id": format!("p{n}"), "client": "c", "limit": "slow"});
            world.signal(&id, "lease", wire::write(&input)).await;
        }
        let grants = async || world.query(&id, "grants", &json!({"client": "c"})).await["grants"].clone();
        let status_of = |grants: &Value, id: &str| -> String {
            let found = grants.as_array().unwrap().iter().find(|grant| grant["id"] == id);
            found.map(|grant| grant["status"].as_str().unwrap().to_owned()).unwrap_or_default()
        };
        let first = eventually("all are known", Duration::from_secs(20), async || {
            let seen = grants().await;
            if seen.as_array().unwrap().len() == 8 { Ok(seen) } else { Err(seen.to_string()) }
        })
        .await;
        assert_eq!(status_of(&first, "p0"), "granted", "{first}");
        // The same id again, by signal and by update, is the same permit.
        world.signal(&id, "lease", wire::write(&json!({"id": "p0", "client": "c", "limit": "slow"}))).await;
        for _ in 0..3 {
            let again =
                world.update(&id, "acquire", &json!({"id": "p0", "client": "c", "limit": "slow"})).await;
            assert_eq!(again.unwrap()["status"], "granted");
        }
        // A host that dies while permits wait: the next one serves them.
        host.kill();
        let _host = world.host();
        let last = eventually("the ledger's own timer grants all", Duration::from_secs(30), async || {
            let seen = grants().await;
            let waits = (0..8).any(|n| status_of(&seen, &format!("p{n}")) == "waiting");
            if waits { Err(seen.to_string()) } else { Ok(seen) }
        })
        .await;
        let at = |n: u32| {
            let found = last.as_array().unwrap().iter().find(|grant| grant["id"] == format!("p{n}"));
            found.unwrap_or_else(|| panic!("p{n} is lost: {last}"))["at_us"].as_u64().unwrap()
        };
        let mut before = 0;
        for n in 0..8 {
            assert_eq!(status_of(&last, &format!("p{n}")), "granted", "{last}");
            assert!(at(n) >= before, "p{n} was granted out of order: {last}");
            before = at(n);
        }
        // Six beyond the burst, at two a second.
        assert!(at(7) - at(0) >= 2_900_000, "eight permits within {} us: {last}", at(7) - at(0));
        for n in 0..8 {
            let used = json!({"id": format!("p{n}"), "limit": "slow", "used": 1});
            world.signal(&id, "report", wire::write(&used)).await;
        }
        let status = world.status_when("all is reported", |status| status.limits[0].used == 8).await;
        assert_eq!((status.limits[0].cap_milli, status.unreadable.count), (0, 0), "{status:?}");
        world.healthy_runs(&id).await;
    });
}
