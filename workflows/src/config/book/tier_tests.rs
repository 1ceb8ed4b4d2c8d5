use super::*;
use crate::wire::config::ConfigureJson;
use crate::wire::read_json;
use tollgate_core::units::Share;

fn change(json: &str) -> ApplyJson {
    read_json(json.as_bytes()).unwrap()
}

fn apply(book: &mut Book, json: &str) -> Result<Vec<String>, Vec<String>> {
    book.apply(book.now, &change(json)).map(|applied| applied.changes)
}

fn book() -> Book {
    let mut book = Book::new(LedgerTime(1_000_000_000_000_000));
    apply(
        &mut book,
        r#"{"set":[
            {"name":"api","tier":"high","rate":{"count":600,"period_ms":60000},"burst":20,
             "total_rate":{"count":1000,"period_ms":60000}},
            {"name":"api","tier":"low","rate":{"count":400,"period_ms":60000},"lend":true,
             "floor":{"count":100,"period_ms":60000}}]}"#,
    )
    .unwrap();
    book
}

fn tier(book: &Book, tier: &str) -> CellConfig {
    book.cells[&CellKey { tier: tier.to_owned(), ..CellKey::of("api") }].clone()
}

#[test]
fn tiers_stand_in_the_order_in_which_they_were_stated() {
    let mut book = book();
    let quarter = Share::from_ppb(250_000_000).unwrap();
    assert_eq!(tier(&book, "high").priority, Priority::default());
    assert_eq!(tier(&book, "low").priority, Priority { rank: 1, floor: quarter, lends: true });
    let lines = &book.history.back().unwrap().lines;
    assert_eq!(
        lines[1],
        "api [requests low]: created, rate 400/min, burst 400, lease 15 s, rank 1, floor 100/min, lends what is idle"
    );
    // One that comes later stands below, unless it says where.
    apply(&mut book, r#"{"set":[{"name":"api","tier":"batch","rate":{"count":1}}]}"#).unwrap();
    assert_eq!(tier(&book, "batch").priority.rank, 2);
    let changes = apply(
        &mut book,
        r#"{"ramp_ms":0,"set":[{"name":"api","tier":"low","rank":5,"lend":false,
            "rate":{"count":200,"period_ms":60000},"floor":{"count":80,"period_ms":60000}}]}"#,
    );
    assert_eq!(
        changes.unwrap(),
        [
            "api [requests low]: rate 400/min -> 200/min at once",
            "api [requests low]: rank 1 -> 5",
            "api [requests low]: floor 50/min -> 80/min",
            "api [requests low]: lends no more",
        ]
    );
    // What isn't given stays, the floor as a part of the rate.
    let rate = r#"{"ramp_ms":0,"set":[{"name":"api","tier":"low","rate":{"count":400,"period_ms":60000}}]}"#;
    apply(&mut book, rate).unwrap();
    assert_eq!(tiers::floor_text(&tier(&book, "low")), "160/min");
    assert_eq!(tier(&book, "low").priority.rank, 5);
}

#[test]
fn permits_in_flight_have_floors_in_permits() {
    let mut book = Book::new(LedgerTime(0));
    let json = |floor: u64| {
        format!(
            r#"{{"set":[{{"name":"api","tier":"low","policy":{{"kind":"in_flight"}},"burst":40,"floor":{{"count":{floor}}}}}]}}"#
        )
    };
    apply(&mut book, &json(10)).unwrap();
    assert_eq!(tiers::floor_text(&tier(&book, "low")), "10");
    let told = apply(&mut book, &json(41)).unwrap_err();
    assert_eq!(told, ["limit \"api\", tier low: floor is 41, allowed: 0 to 40"]);
}

#[test]
fn tiers_that_contradict_each_other_are_refused_with_every_problem() {
    let mut book = book();
    let before = book.clone();
    let told = apply(
        &mut book,
        r#"{"set":[
            {"name":"api","tier":"high","rate":{"count":700,"period_ms":60000},"rank":1,
             "total_rate":{"count":1000,"period_ms":60000},"total_burst":30},
            {"name":"api","tier":"low","rank":1,"floor":{"count":7}},
            {"name":"api","tier":"low","floor":{"count":8}},
            {"name":"b","tier":"one","rate":{"count":1}},
            {"name":"b","tier":"two","policy":{"kind":"sliding_window"},"rate":{"count":9,"period_ms":10000}},
            {"name":"c","tier":"No Label","rate":{"count":1},"floor":{"count":2000000000000}}]}"#,
    )
    .unwrap_err();
    assert_eq!(book, before);
    let told: Vec<&str> = told.iter().map(String::as_str).collect();
    assert_eq!(
        told,
        [
            "set: limit \"api\" (requests low) is given twice",
            "limit \"api\", tier low: floor is 7/s, allowed: 0 to its rate of 400/min",
            "limit \"api\", tier low: floor is 8/s, allowed: 0 to its rate of 400/min",
            "limit \"c\": tier is \"No Label\" (8 bytes), allowed: 1 to 64 of a-z, 0-9, _ and -",
            "limit \"c\": floor: rate is 2000000000000, allowed: 0 to 1000000000000 per period",
            "limit \"api\": rank is 1 for tiers high and low",
            "limit \"api\": the rates of its tiers add up to more than its rate of 1000/min: high 700/min, low 400/min",
            "limit \"api\": the bursts of its tiers add up to 420, allowed: its burst of 30",
            "limit \"b\": tier one is a token bucket and tier two a sliding window of 10 s, allowed: one policy for all tiers",
        ]
    );
    let many: Vec<String> =
        (0..9).map(|n| format!(r#"{{"name":"m","tier":"t{n}","rate":{{"count":1}}}}"#)).collect();
    let told = apply(&mut book, &format!(r#"{{"set":[{}]}}"#, many.join(","))).unwrap_err();
    assert_eq!(told, ["limit \"m\": 9 tiers, allowed: up to 8"]);
}

#[test]
fn the_coordinator_is_told_of_ranks_floors_and_lending() {
    let configure = book().configure();
    let json = serde_json::to_string(&ConfigureJson::of(&configure)).unwrap();
    let back: ConfigureJson = serde_json::from_str(&json).unwrap();
    assert_eq!(back.check().unwrap(), configure);
    assert!(json.contains(r#""priority":{"rank":1,"floor_ppb":250000000,"lends":true}"#), "{json}");
    assert_eq!(json.matches("priority").count(), 1, "what is the only tier or the highest says nothing");
}
