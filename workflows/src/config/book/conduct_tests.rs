use super::*;
use crate::wire::conduct::{ConductJson, WhenLostJson};
use crate::wire::read_json;
use tollgate_core::limit::WhenLost;

fn change(json: &str) -> ApplyJson {
    read_json(json.as_bytes()).unwrap()
}

fn apply(book: &mut Book, json: &str) -> Vec<String> {
    book.apply(LedgerTime(1), &change(json)).unwrap().changes
}

fn book() -> Book {
    let mut book = Book::new(LedgerTime(0));
    let two = r#"{"set":[{"name":"api","rate":{"count":50},"burst":16},
        {"name":"api","meter":"tokens","rate":{"count":9},"burst":9},{"name":"other","rate":{"count":1}}]}"#;
    apply(&mut book, two);
    book
}

fn paused(book: &Book) -> Vec<&str> {
    let cells = book.cells.values().filter(|cell| cell.conduct.paused);
    cells.map(|cell| cell.key.meter.as_str()).collect()
}

#[test]
fn a_pause_covers_all_of_a_limit_and_survives_every_other_change() {
    let mut book = book();
    let lines = apply(&mut book, r#"{"pause":["api"],"reason":"down"}"#);
    let said = "paused: all work is refused until it is resumed";
    assert_eq!(lines, [format!("api: {said}"), format!("api [tokens default]: {said}")]);
    assert_eq!(paused(&book), ["requests", "tokens"]);
    assert_eq!(book.history.back().unwrap().reason, "down");
    // As a file says it that knows nothing of pauses, and a new meter of the limit.
    let file = r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":60},"burst":16,"reserve_ppb":200000000,"shadow":false,
        "when_lost":{"kind":"closed"}},{"name":"api","meter":"bytes","rate":{"count":1}}]}"#;
    let lines = apply(&mut book, file);
    assert!(lines.len() == 2 && lines[1].ends_with(", paused as the rest of the limit is"), "{lines:?}");
    assert_eq!(paused(&book), ["bytes", "requests", "tokens"]);
    let version = book.version;
    assert!(apply(&mut book, r#"{"pause":["api"]}"#).is_empty(), "it is paused already");
    assert_eq!(book.version, version);
    assert_eq!(apply(&mut book, r#"{"resume":["api"]}"#).len(), 3);
    assert!(paused(&book).is_empty());
}

#[test]
fn a_pause_of_what_is_not_there_or_named_twice_is_refused_whole() {
    let mut book = book();
    let before = book.clone();
    let wrong = r#"{"pause":["api","nothing"],"resume":["api"],"set":[{"name":"other","burst":5}]}"#;
    let problems = book.apply(LedgerTime(1), &change(wrong)).unwrap_err();
    assert_eq!(
        problems,
        ["pause: there is no limit \"nothing\"", "pause and resume: both name limit \"api\""]
    );
    assert_eq!(book, before);
}

#[test]
fn reserve_shadow_and_what_holds_when_lost_are_set_one_by_one_and_checked() {
    let mut book = book();
    let set = |fields: &str| format!(r#"{{"set":[{{"name":"api",{fields}}}]}}"#);
    assert_eq!(apply(&mut book, &set(r#""reserve_ppb":125000000"#)), ["api: reserve 20% -> 12.5%"]);
    assert_eq!(
        apply(&mut book, &set(r#""when_lost":{"kind":"hold","part_ppb":500000000}"#)),
        ["api: when lost closed -> hold:50%"]
    );
    assert_eq!(apply(&mut book, &set(r#""shadow":true"#)), ["api: shadow: refuses nothing from now on"]);
    let conduct = book.cells[&CellKey::of("api")].conduct;
    let half = WhenLostJson::Hold { part_ppb: 500_000_000 };
    let all = ConductJson { paused: false, shadow: true, reserve_ppb: 125_000_000, when_lost: half };
    assert_eq!(ConductJson::of(conduct), all);
    assert!(apply(&mut book, &set(r#""burst":16"#)).is_empty(), "what isn't said stays as it is");
    assert_eq!(apply(&mut book, &set(r#""when_lost":{"kind":"open"},"shadow":false"#)).len(), 2);
    assert_eq!(book.cells[&CellKey::of("api")].conduct.when_lost, WhenLost::Open);
    let wrong = set(r#""reserve_ppb":510000000,"when_lost":{"kind":"hold","part_ppb":1000000001}"#);
    let problems = book.apply(LedgerTime(1), &change(&wrong)).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("reserve is 0.51") && problems[0].contains("0 to 0.5"), "{problems:?}");
    assert!(problems[1].contains("when_lost: part_ppb: is 1000000001"), "{problems:?}");
}

#[test]
fn what_is_said_of_a_new_limit_is_in_its_line() {
    let mut book = book();
    let lines = apply(
        &mut book,
        r#"{"set":[{"name":"new","rate":{"count":5},"reserve_ppb":0,"shadow":true,"when_lost":{"kind":"open"}}]}"#,
    );
    assert!(lines[0].ends_with("lease 15 s, reserve 0%, when lost open, shadow"), "{lines:?}");
}
