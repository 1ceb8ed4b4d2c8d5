use super::super::{Applied, Book};
use super::*;
use crate::config::view::ConfiguredLimitJson;
use crate::wire::read_json;
use tollgate_core::units::Amount;

const BEGAN: u64 = 1_000_000_000_000_000;

fn at(ms: u64) -> LedgerTime {
    LedgerTime(BEGAN + ms * 1_000)
}

fn apply(book: &mut Book, ms: u64, json: &str) -> Result<Vec<String>, Vec<String>> {
    book.apply(at(ms), &read_json(json.as_bytes()).unwrap()).map(|Applied { changes, .. }| changes)
}

/// From 50/s and 10 at once on its way to 100/s and 20, for a minute from second 10 on.
fn ramping() -> Book {
    let mut book = Book::new(at(0));
    apply(&mut book, 0, r#"{"set":[{"name":"api","rate":{"count":50},"burst":10}]}"#).unwrap();
    apply(&mut book, 10_000, r#"{"set":[{"name":"api","rate":{"count":100},"burst":20}]}"#).unwrap();
    book
}

fn api(book: &Book) -> &CellConfig {
    &book.cells[&CellKey::of("api")]
}

const PAUSE: &str = r#"{"pause_ramps":["api"]}"#;
const RESUME: &str = r#"{"resume_ramps":["api"]}"#;

#[test]
fn a_paused_ramp_stands_still_and_goes_on_for_the_time_that_was_left() {
    let mut book = ramping();
    assert_eq!(
        apply(&mut book, 25_000, PAUSE).unwrap(),
        ["api: rate paused at 62.5/s, 45 s before 100/s", "api: burst paused at 12, 45 s before 20"]
    );
    let held = api(&book).rate.at(at(25_000));
    assert_eq!(api(&book).rate.at(at(3_600_000)), held);
    assert_eq!(apply(&mut book, 30_000, PAUSE).unwrap(), [""; 0], "said twice");
    assert_eq!(
        apply(&mut book, 3_600_000, RESUME).unwrap(),
        ["api: rate 62.5/s -> 100/s over 45 s, resumed", "api: burst 12 -> 20 over 45 s, resumed"]
    );
    assert!(book.paused.is_empty());
    assert_eq!(api(&book).rate.at(at(3_622_500)).micro_per_second(), 81_250_000);
    assert_eq!(api(&book).rate.at(at(3_645_000)), Rate::per_second(100));
    assert_eq!(api(&book).burst.at(at(3_645_000)), Amount::tokens(20));
    assert_eq!(apply(&mut book, 3_601_000, RESUME).unwrap(), [""; 0], "said twice");
}

#[test]
fn what_is_left_is_kept_exactly_and_said_as_people_want_to_know_it() {
    let mut book = ramping();
    let odd = LedgerTime(at(25_000).0 + 123);
    let pause = read_json(PAUSE.as_bytes()).unwrap();
    let lines = book.apply(odd, &pause).unwrap().changes;
    assert!(lines[0].ends_with(", 44 s before 100/s"), "{lines:?}");
    assert_eq!(book.paused[&CellKey::of("api")].rate, Some((Rate::per_second(100), Span(44_999_877))));
    assert_eq!(about(Span(9_999_999)), "9999 ms");
}

#[test]
fn a_value_that_is_set_anew_is_no_longer_paused() {
    let mut book = ramping();
    apply(&mut book, 25_000, PAUSE).unwrap();
    apply(&mut book, 26_000, r#"{"set":[{"name":"api","rate":{"count":70}}]}"#).unwrap();
    let paused = book.paused[&CellKey::of("api")];
    assert_eq!((paused.rate, paused.burst), (None, Some((20, Span::from_secs(45)))));
    // The rate's ramp is paused beside the burst's.
    apply(&mut book, 56_000, PAUSE).unwrap();
    let paused = book.paused[&CellKey::of("api")];
    assert_eq!(paused.rate, Some((Rate::per_second(70), Span::from_secs(30))));
    assert_eq!(paused.burst, Some((20, Span::from_secs(45))));
    apply(&mut book, 57_000, r#"{"remove":["api"]}"#).unwrap();
    assert!(book.paused.is_empty());
}

#[test]
fn aborting_a_paused_ramp_leaves_nothing_to_resume() {
    let mut book = ramping();
    apply(&mut book, 25_000, PAUSE).unwrap();
    assert_eq!(
        apply(&mut book, 26_000, r#"{"abort_ramps":["api"]}"#).unwrap(),
        [
            "api: rate stays at 62.5/s, was on its way to 100/s",
            "api: burst stays at 12, was on its way to 20"
        ]
    );
    assert!(book.paused.is_empty());
    assert_eq!(
        apply(&mut book, 27_000, RESUME).unwrap_err(),
        [r#"resume_ramps: no ramp of limit "api" is paused"#]
    );
}

#[test]
fn what_cannot_be_paused_is_refused_and_a_look_changes_nothing() {
    let mut book = ramping();
    let before = book.clone();
    apply(&mut book, 25_000, r#"{"pause_ramps":["api"],"dry_run":true}"#).unwrap();
    assert_eq!(book, before);
    assert_eq!(
        apply(&mut book, 80_000, PAUSE).unwrap_err(),
        [r#"pause_ramps: no ramp of limit "api" is under way"#]
    );
    assert_eq!(
        apply(&mut book, 25_000, r#"{"pause_ramps":["api","nope"],"resume_ramps":["api"]}"#).unwrap_err(),
        [
            r#"pause_ramps: there is no limit "nope""#,
            r#"pause_ramps and resume_ramps: both name limit "api""#,
            r#"pause_ramps: no ramp of limit "nope" is under way"#
        ]
    );
}

#[test]
fn what_is_paused_is_shown_with_what_is_left() {
    let mut book = ramping();
    apply(&mut book, 25_000, PAUSE).unwrap();
    let key = CellKey::of("api");
    let shown = ConfiguredLimitJson::of(&book, &book.cells[&key]).with_paused(book.paused.get(&key));
    let rate = shown.rate_paused.unwrap();
    assert_eq!((rate.to.as_str(), rate.left_us), ("100/s", 45_000_000));
    assert_eq!(shown.burst_paused.unwrap().to, "20");
    assert_eq!((shown.rate_text.as_str(), shown.rate_ramp), ("62.5/s", None));
}
