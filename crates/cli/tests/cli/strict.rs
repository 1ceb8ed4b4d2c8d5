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
            let input = json!({"id": format!("p{n}"), "client": "c", "limit": "slow", "lease_ms": 60_000});
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
        // What is granted counts until its use is reported: so each is reported as soon as it is seen.
        let mut served: Vec<(String, u64)> = Vec::new();
        eventually("the ledger's own timer grants all", Duration::from_secs(30), async || {
            let seen = grants().await;
            for grant in seen.as_array().unwrap().iter().filter(|grant| grant["status"] == "granted") {
                let permit = grant["id"].as_str().unwrap().to_owned();
                if !served.iter().any(|(known, _)| *known == permit) {
                    let used = json!({"id": permit, "limit": "slow", "used": 1});
                    world.signal(&id, "report", wire::write(&used)).await;
                    served.push((permit, grant["at_us"].as_u64().unwrap()));
                }
            }
            if served.len() == 8 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        served.sort_by_key(|(id, at)| (*at, id.clone()));
        let order: Vec<&str> = served.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(order, ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"], "first come, first served");
        // Six beyond the burst, at two a second.
        let took = served[7].1 - served[0].1;
        assert!(took >= 2_900_000, "eight permits within {took} us: {served:?}");
        let status = world.status_when("all is reported", |status| status.limits[0].used == 8).await;
        assert_eq!((status.limits[0].cap_milli, status.unreadable.count), (0, 0), "{status:?}");
        world.healthy_runs(&id).await;
    });
}

#[test]
fn a_permit_of_which_nobody_speaks_ends_without_another_message() {
    run(async {
        let world = World::new("silent").await;
        let _host = world.host();
        world.tollgate_ok(&["limit", "set", "once", "--rate", "0/s", "--burst", "1"]);
        world.status_when("the limit arrives", |status| !status.limits.is_empty()).await;
        let id = world.coordinator();
        let ask = |name: &str| json!({"id": name, "client": "c", "limit": "once", "lease_ms": 2_000});
        assert_eq!(world.update(&id, "acquire", &ask("held")).await.unwrap()["status"], "granted");
        assert_eq!(world.update(&id, "acquire", &ask("next")).await.unwrap()["status"], "queued");
        // Nothing can have been used of what isn't granted yet: that is said, and costs nobody the place.
        world.signal(&id, "report", wire::write(&json!({"id": "next", "limit": "once", "used": 1}))).await;
        let status = world.status_when("the report is refused", |status| status.unreadable.count == 1).await;
        assert!(status.unreadable.last_error.contains("still waits"), "{status:?}");
        let shown = async |name: &str| {
            let seen = world.query(&id, "grants", &json!({"id": name})).await;
            seen["grants"][0]["status"].as_str().unwrap().to_owned()
        };
        assert_eq!(shown("next").await, "waiting");
        for (name, ends) in [("held", "expired"), ("next", "abandoned")] {
            eventually(&format!("{name} is {ends}"), Duration::from_secs(30), async || {
                let seen = shown(name).await;
                if seen == ends { Ok(()) } else { Err(seen) }
            })
            .await;
        }
        world.healthy_runs(&id).await;
    });
}
