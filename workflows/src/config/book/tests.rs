use super::*;
use crate::wire::config::ConfigureJson;
use crate::wire::read_json;
use tollgate_core::curve::{Rate, RateCurve};
use tollgate_core::units::Amount;

const BEGAN: u64 = 1_000_000_000_000_000;

/// Milliseconds after the book began.
fn at(ms: u64) -> LedgerTime {
    LedgerTime(BEGAN + ms * 1_000)
}

fn change(json: &str) -> ApplyJson {
    read_json(json.as_bytes()).unwrap()
}

fn set(json: &str) -> ApplyJson {
    change(&format!(r#"{{"actor":"ann","reason":"test","set":[{json}]}}"#))
}

fn book() -> Book {
    let mut book = Book::new(at(0));
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":50},"burst":16}"#)).unwrap();
    book
}

fn api(book: &Book) -> &CellConfig {
    &book.cells[&CellKey::of("api")]
}

fn problems(book: &mut Book, json: &str) -> Vec<String> {
    let before = book.clone();
    let problems = book.apply(at(1), &change(json)).unwrap_err();
    assert_eq!(*book, before, "a refused change leaves nothing behind");
    problems
}

#[test]
fn a_limit_that_was_closed_opens_with_a_burst() {
    let mut book = book();
    let burst = |book: &Book| {
        let key = CellKey::of("closed");
        book.configure().cells.iter().find(|cell| cell.key == key).unwrap().burst.target
    };
    book.apply(at(0), &set(r#"{"name":"closed","rate":{"count":0}}"#)).unwrap();
    assert_eq!(burst(&book), Amount::ZERO);
    book.apply(at(0), &change(r#"{"ramp_ms":0,"set":[{"name":"closed","rate":{"count":5}}]}"#)).unwrap();
    assert_eq!(burst(&book), Amount::tokens(5));
}

#[test]
fn a_rate_that_is_not_given_stays_with_its_ramp_and_a_new_limit_needs_one() {
    let mut book = book();
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":50},"burst":16}"#)).unwrap();
    book.apply(at(0), &change(r#"{"ramp_ms":60000,"set":[{"name":"api","rate":{"count":100}}]}"#)).unwrap();
    let ramp = api(&book).rate;
    let changes = book
        .apply(at(10_000), &change(r#"{"ramp_ms":0,"set":[{"name":"api","burst":20}]}"#))
        .unwrap()
        .changes;
    assert_eq!((changes.len(), api(&book).rate), (1, ramp));
    let problems = book.apply(at(10_000), &set(r#"{"name":"new"}"#)).unwrap_err();
    assert_eq!(problems, ["limit \"new\": rate is missing, a new limit needs one"]);
}

#[test]
fn a_change_ramps_linearly_and_a_new_limit_begins_at_once() {
    let mut book = book();
    let applied = book
        .apply(
            at(10_000),
            &change(
                r#"{"actor":"ann","ramp_ms":15000,"set":[
                    {"name":"api","rate":{"count":100},"burst":32},
                    {"name":"new","rate":{"count":10,"period_ms":60000}}]}"#,
            ),
        )
        .unwrap();
    assert_eq!(
        applied.changes,
        [
            "api: rate 50/s -> 100/s over 15 s",
            "api: burst 16 -> 32 over 15 s",
            "new: created, rate 10/min, burst 10, lease 15 s",
        ]
    );
    assert_eq!(applied.version, Version { run: BEGAN, n: 2 });
    for (ms, micro, burst) in
        [(10_000, 50_000_000, 16_000), (17_500, 75_000_000, 24_000), (25_000, 100_000_000, 32_000)]
    {
        assert_eq!(api(&book).rate.at(at(ms)).micro_per_second(), micro);
        assert_eq!(api(&book).burst.at(at(ms)), Amount::from_milli(burst));
    }
    let new = &book.cells[&CellKey::of("new")];
    assert_eq!(new.rate.at(at(10_000)), Rate::new(10, Span::from_secs(60)));
    assert!(new.fresh);
}

#[test]
fn a_change_without_a_ramp_takes_a_minute_and_zero_is_at_once() {
    let mut book = book();
    let changes = book.apply(at(0), &set(r#"{"name":"api","rate":{"count":20}}"#)).unwrap().changes;
    assert_eq!(changes, ["api: rate 50/s -> 20/s over 60 s"]);
    assert_eq!(api(&book).burst.target, Amount::tokens(16), "a burst that isn't given stays");
    let now = change(r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":100}}]}"#);
    let changes = book.apply(at(30_000), &now).unwrap().changes;
    assert_eq!(changes, ["api: rate 35/s -> 100/s at once, instead of 20/s"]);
    assert_eq!(api(&book).rate.at(at(30_000)), Rate::per_second(100));
}

#[test]
fn a_ramp_aborted_half_way_stays_where_it_is() {
    let mut book = book();
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":100},"burst":33}"#)).unwrap();
    let changes = book.apply(at(30_000), &change(r#"{"abort_ramps":["api"]}"#)).unwrap().changes;
    assert_eq!(
        changes,
        ["api: rate stays at 75/s, was on its way to 100/s", "api: burst stays at 24, was on its way to 33"]
    );
    for ms in [30_000, 60_000, 600_000] {
        assert_eq!(api(&book).rate.at(at(ms)), Rate::per_second(75));
        assert_eq!(api(&book).burst.at(at(ms)), Amount::tokens(24));
    }
    let again = book.apply(at(31_000), &change(r#"{"abort_ramps":["api"]}"#)).unwrap();
    assert_eq!((again.version.n, again.changes.len()), (3, 0), "nothing is left to abort");
}

#[test]
fn a_ramp_that_is_replaced_goes_on_from_the_value_in_force_without_a_jump() {
    let mut book = Book::new(at(0));
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":1},"burst":1}"#)).unwrap();
    let up = r#"{"ramp_ms":100000,"set":[{"name":"api","rate":{"count":100},"burst":100}]}"#;
    book.apply(at(0), &change(up)).unwrap();
    let first = api(&book).clone();
    let down = r#"{"ramp_ms":30000,"set":[{"name":"api","rate":{"count":10},"burst":10}]}"#;
    let changes = book.apply(at(70_000), &change(down)).unwrap().changes;
    assert_eq!(
        changes,
        [
            "api: rate 70.3/s -> 10/s over 30 s, instead of 100/s",
            "api: burst 70.3 -> 10 over 30 s, instead of 100"
        ]
    );
    let second = api(&book).clone();
    assert_eq!(second.rate.at(at(70_000)), first.rate.at(at(70_000)));
    assert_eq!(second.burst.at(at(70_000)), first.burst.at(at(70_000)).floor_to_milli());
    // The area under both lines: 70 s from 1 to 70.3, then 30 s from 70.3 to 10.
    let minted =
        first.rate.integral_nano(at(0), at(70_000)) + second.rate.integral_nano(at(70_000), at(100_000));
    assert_eq!(minted / 1_000_000, 2_495_500 + 1_204_500);
    let steps: Vec<u64> =
        (0..3_000).map(|step| second.rate.at(at(70_000 + 10 * step)).micro_per_second()).collect();
    assert!(steps.windows(2).all(|pair| pair[1] <= pair[0] && pair[0] - pair[1] <= 21_000));
}

#[test]
fn the_same_change_twice_changes_nothing_so_that_a_repeated_message_does_no_harm() {
    let mut book = book();
    let up = change(r#"{"ramp_ms":15000,"set":[{"name":"api","rate":{"count":100},"burst":32}]}"#);
    book.apply(at(0), &up).unwrap();
    let before = book.configure();
    let again = book.apply(at(2_000), &up).unwrap();
    assert_eq!(again, Applied { version: before.version, changes: vec![] });
    assert_eq!(book.configure(), before);
    // Other words for the same rate are no change either.
    let words = set(r#"{"name":"api","rate":{"count":6000,"period_ms":60000}}"#);
    assert_eq!(book.apply(at(3_000), &words).unwrap().changes.len(), 0);
    // To finish a ramp earlier is one.
    let hurry = change(r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":100}}]}"#);
    assert_eq!(
        book.apply(at(7_500), &hurry).unwrap().changes,
        ["api: rate 75/s -> 100/s at once, instead of 100/s"]
    );
}

#[test]
fn huge_values_are_refused_with_field_value_and_range_and_large_ones_are_taken() {
    let mut book = book();
    let found = problems(
        &mut book,
        r#"{"ramp_ms":86400001,"target_rate_milli":5,"set":[
            {"name":"a","rate":{"count":18446744073709551615,"period_ms":1}},
            {"name":"b","rate":{"count":1,"period_ms":0},"burst":18446744073709551615,"lease_ms":1},
            {"name":" c","rate":{"count":1}}]}"#,
    );
    assert_eq!(
        found,
        [
            "target_rate_milli: is 5, allowed: 100 to 200000",
            "ramp is 86400001 ms, allowed: 0 to 24 h",
            r#"limit "a": rate is 18446744073709551615, allowed: 0 to 1000000000000 per period"#,
            r#"limit "b": period is 0 ms, allowed: 1 ms to 366 days"#,
            r#"limit "b": burst is 18446744073709551615, allowed: 0 to 1000000000000000 tokens"#,
            r#"limit "b": lease is 1 ms, allowed: 2 s to 120 s"#,
            r#"name is " c" (2 bytes), allowed: 1 to 200 bytes of text, no control characters, no blanks at the ends"#,
        ]
    );
    let large = set(r#"{"name":"large","rate":{"count":2147483647}}"#);
    assert_eq!(
        book.apply(at(1), &large).unwrap().changes,
        ["large: created, rate 2147483647/s, burst 2147483647, lease 15 s"]
    );
    let negative =
        read_json::<ApplyJson>(br#"{"set":[{"name":"a","rate":{"count":-1}}]}"#).unwrap_err().to_string();
    assert!(negative.starts_with("set[0].rate.count: ") && negative.contains("-1"), "{negative}");
}

#[test]
fn contradictions_are_refused_naming_both_sides() {
    let mut book = book();
    let found = problems(
        &mut book,
        r#"{"set":[{"name":"api","rate":{"count":1}},{"name":"api","rate":{"count":2}},{"name":"x","rate":{"count":1}}],
            "remove":["api","paymnets","paymnets"],"abort_ramps":["nope","x"]}"#,
    );
    assert_eq!(
        found,
        [
            r#"set: limit "api" is given twice"#,
            r#"set and remove: both name limit "api""#,
            r#"remove: there is no limit "paymnets""#,
            r#"remove: limit "paymnets" is given twice"#,
            r#"abort_ramps: there is no limit "nope""#,
            r#"set and abort_ramps: both name limit "x""#,
        ]
    );
}

#[test]
fn names_of_people_have_a_bound_and_problems_do_not_repeat_huge_input() {
    let mut book = book();
    let (long, name) = ("x".repeat(1_001), "y".repeat(10_000));
    let json = format!(r#"{{"actor":"{long}","reason":"{long}","remove":["{name}"],"if_version":"{name}"}}"#);
    let found = problems(&mut book, &json);
    assert_eq!(found[0], "actor has 1001 bytes, allowed: up to 200");
    assert_eq!(found[1], "reason has 1001 bytes, allowed: up to 1000");
    assert!(found.iter().all(|problem| problem.len() < 200), "{found:?}");
    let many: Vec<String> = (0..2_000).map(|n| format!("\"no{n}\"")).collect();
    let found = problems(&mut book, &format!(r#"{{"remove":[{}]}}"#, many.join(",")));
    assert_eq!((found.len(), found[PROBLEMS_MAX].as_str()), (PROBLEMS_MAX + 1, "and 1950 more"));
}

#[test]
fn more_limits_than_a_group_may_have_are_refused_as_a_whole() {
    let mut book = book();
    let many: Vec<String> =
        (0..CELLS_MAX).map(|n| format!(r#"{{"name":"l{n}","rate":{{"count":1}}}}"#)).collect();
    let json = format!(r#"{{"set":[{}]}}"#, many.join(","));
    assert_eq!(problems(&mut book, &json), ["limits: 1001 after this change, allowed: up to 1000"]);
    let instead = json.replacen('{', r#"{"remove":["api"],"#, 1);
    book.apply(at(1), &change(&instead)).unwrap();
    assert_eq!(book.cells.len(), CELLS_MAX);
}

#[test]
fn a_default_burst_is_at_least_one() {
    let mut book = Book::new(at(0));
    for (name, rate, burst) in [
        ("slow", r#"{"count":2}"#, 2),
        ("hourly", r#"{"count":1,"period_ms":3600000}"#, 1),
        ("third", r#"{"count":1,"period_ms":3000}"#, 1),
        ("daily", r#"{"count":5,"period_ms":86400000}"#, 5),
        ("none", r#"{"count":0}"#, 0),
    ] {
        book.apply(at(0), &set(&format!(r#"{{"name":"{name}","rate":{rate}}}"#))).unwrap();
        assert_eq!(book.cells[&CellKey::of(name)].burst_tokens(at(0)), burst, "{name}");
    }
}

#[test]
fn a_dry_run_says_what_it_would_do_and_changes_nothing() {
    let mut book = book();
    let before = book.clone();
    let json = r#"{"dry_run":true,"remove":["api"],"set":[{"name":"b","rate":{"count":1}}],"target_rate_milli":20500}"#;
    let said = book.apply(at(5), &change(json)).unwrap();
    assert_eq!(said.version, before.version);
    assert_eq!(
        said.changes,
        [
            "target rate: 10 -> 20.5 messages a second",
            "api: removed, was rate 50/s, burst 16",
            "b: created, rate 1/s, burst 1, lease 15 s",
        ]
    );
    assert_eq!(book, before);
    let done = book.apply(at(5), &change(&json.replace("true", "false"))).unwrap();
    assert_eq!(done.changes, said.changes);
    assert_eq!(done.version.n, before.version.n + 1);
}

#[test]
fn a_change_meant_for_another_version_is_refused_naming_both() {
    let mut book = book();
    let now = book.version.to_string();
    let json = |version: &str| format!(r#"{{"if_version":"{version}","remove":["api"]}}"#);
    assert_eq!(
        problems(&mut book, &json("7.1")),
        [format!(r#"if_version is "7.1", the version in force is {now}"#)]
    );
    book.apply(at(1), &change(&json(&now))).unwrap();
    assert_eq!(problems(&mut book, &json(&now)).len(), 2, "the version has moved on, and the limit is gone");
}

#[test]
fn refused_signals_are_remembered_without_pushing_changes_out() {
    let mut book = book();
    for n in 0..500 {
        book.apply_signal(at(n), &change(r#"{"actor":"bot","remove":["nope"]}"#)).unwrap_err();
    }
    assert_eq!((book.refused_count, book.refused.len()), (500, REFUSED_ENTRIES_MAX));
    let last = book.refused.back().unwrap();
    assert_eq!((last.actor.as_str(), last.outcome, last.at), ("bot", Outcome::Refused, at(499)));
    assert_eq!(last.lines, [r#"remove: there is no limit "nope""#]);
    assert_eq!(book.history.len(), 1);
    assert_eq!(book.history[0].actor, "ann");
}

#[test]
fn history_has_a_bound_in_entries_and_in_bytes_and_says_what_was_replaced() {
    let mut book = book();
    for n in 0..1_000u64 {
        let json = format!(
            r#"{{"reason":"{}","ramp_ms":0,"set":[{{"name":"api","rate":{{"count":{n}}}}}]}}"#,
            "r".repeat(REASON_BYTES_MAX)
        );
        book.apply(at(n), &change(&json)).unwrap();
        assert!(book.history.len() <= HISTORY_ENTRIES_MAX);
    }
    let last = book.history.back().unwrap();
    assert_eq!(last.lines, ["api: rate 998/s -> 999/s at once"]);
    assert_eq!((last.replaced.n + 1, last.version), (last.version.n, book.version));
    assert_eq!(last.actor, "unknown");
    assert!(last.concerns("api") && !last.concerns("ap"));

    let names: Vec<String> =
        (0..900).map(|n| format!(r#"{{"name":"{}{n}","rate":{{"count":1}}}}"#, "n".repeat(190))).collect();
    book.apply(at(2_000), &change(&format!(r#"{{"set":[{}]}}"#, names.join(",")))).unwrap();
    let last = book.history.back().unwrap();
    assert_eq!((last.lines.len(), last.lines_left_out), (ENTRY_LINES_MAX, 870));
    assert!(book.history.iter().map(Entry::bytes).sum::<usize>() <= HISTORY_BYTES_MAX);
}

#[test]
fn time_never_runs_back() {
    let mut book = book();
    book.apply(at(60_000), &set(r#"{"name":"api","rate":{"count":100}}"#)).unwrap();
    book.apply(at(0), &set(r#"{"name":"b","rate":{"count":1}}"#)).unwrap();
    assert_eq!(book.now, at(60_000));
    assert_eq!(book.history.back().unwrap().at, at(60_000));
}

#[test]
fn a_book_created_anew_takes_over_the_limits_under_a_higher_version() {
    let mut old = Book::new(at(1_000_000));
    old.apply(at(1_000_000), &set(r#"{"name":"api","rate":{"count":50},"burst":16}"#)).unwrap();
    old.apply(at(1_000_000), &set(r#"{"name":"api","rate":{"count":100},"burst":33}"#)).unwrap();
    let held = ConfigureJson::of(&old.configure());
    // A clock that is behind: the new book begins before the old one did.
    let mut new = Book::new(at(0));
    new.adopt(at(1_007_000), held.check().unwrap());
    assert_eq!(new.cells, old.cells);
    assert_eq!(new.version, Version { run: old.version.run + 1, n: 1 });
    assert!(new.version > old.version);
    assert_eq!(new.history[0].outcome, Outcome::Adopted);
    assert_eq!(api(&new).rate.at(at(1_030_000)), Rate::per_second(75), "its ramp goes on");
    let later = new.apply(at(1_030_000), &change(r#"{"abort_ramps":["api"]}"#)).unwrap();
    assert_eq!(later.version.n, 2);
}

#[test]
fn adopting_nothing_still_numbers_above_what_is_held() {
    let mut book = Book::new(at(0));
    let held =
        Configure { version: Version { run: BEGAN + 5, n: 9 }, settings: Settings::default(), cells: vec![] };
    book.adopt(at(1), held);
    assert_eq!(book.version, Version { run: BEGAN + 6, n: 0 });
    assert!(book.history.is_empty());
}

#[test]
fn a_version_that_somebody_else_holds_is_overtaken() {
    let mut book = book();
    let mine = book.version;
    book.overtake(at(1), Version { run: mine.run, n: 7 });
    assert_eq!(book.version, Version { run: mine.run, n: 8 });
    book.overtake(at(2), Version { run: mine.run + 100, n: 3 });
    assert_eq!(book.version, Version { run: mine.run + 101, n: 9 });
    let settled = book.clone();
    book.overtake(at(2), Version { run: mine.run, n: 1_000 });
    assert_eq!(book, settled, "an older one is no reason");
}

#[test]
fn a_limit_that_moved_here_is_not_fresh_and_saying_so_again_changes_nothing() {
    let mut book = Book::new(at(0));
    let moved = set(r#"{"name":"api","rate":{"count":50},"moved":true}"#);
    book.apply(at(0), &moved).unwrap();
    assert!(!api(&book).fresh);
    assert_eq!(book.apply(at(1), &moved).unwrap().changes.len(), 0);
}

#[test]
fn what_the_coordinator_gets_is_read_back_as_it_is_also_in_mid_ramp() {
    let mut book = book();
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":6000,"period_ms":60000},"burst":33}"#)).unwrap();
    book.apply(at(7_777), &set(r#"{"name":"api","rate":{"count":3,"period_ms":86400000},"burst":7}"#))
        .unwrap();
    let configure = book.configure();
    assert_eq!(ConfigureJson::of(&configure).check().unwrap(), configure);
}

#[test]
fn a_ramp_between_extremes_is_left_alone_or_ended_at_once() {
    let mut book = Book::new(at(0));
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":1000000000000,"period_ms":1}}"#)).unwrap();
    book.apply(at(0), &set(r#"{"name":"api","rate":{"count":1,"period_ms":86400000}}"#)).unwrap();
    for json in [r#"{"set":[{"name":"api","rate":{"count":5}}]}"#, r#"{"abort_ramps":["api"]}"#] {
        let found = problems(&mut book, json);
        assert!(found[0].starts_with(r#"limit "api", as it is in mid-ramp: rate is "#), "{found:?}");
    }
    book.apply(at(2), &change(r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":5}}]}"#)).unwrap();
    assert_eq!(api(&book).rate, RateCurve::constant(Rate::per_second(5)));
}

#[test]
fn a_limit_has_several_meters_each_with_its_policy() {
    let mut book = book();
    let json = r#"{"name":"api","meter":"tokens","rate":{"count":1000,"period_ms":60000}},
        {"name":"api","meter":"in_flight","policy":{"kind":"in_flight","drain_ms":5000},"burst":20},
        {"name":"search","policy":{"kind":"sliding_window"},"rate":{"count":100,"period_ms":60000}},
        {"name":"fragile","policy":{"kind":"leaky_bucket"},"rate":{"count":10}}"#;
    let applied = book.apply(at(1), &set(json)).unwrap();
    assert_eq!(
        applied.changes,
        [
            "api [tokens default]: created, rate 1000/min, burst 1000, lease 15 s",
            "api [in_flight default]: created, 20 in flight, drain 5 s, lease 15 s",
            "search: created, 100 in a sliding window of 60 s, lease 6 s",
            "fragile: created, rate 10/s, burst 1, lease 15 s",
        ]
    );
    let again = book.apply(at(2), &set(json)).unwrap();
    assert!(again.changes.is_empty(), "repeating a message changes nothing: {:?}", again.changes);
    // One meter goes, the others stay; then the whole limit.
    let one = change(r#"{"remove_meters":[{"name":"api","meter":"tokens"}]}"#);
    assert_eq!(
        book.apply(at(3), &one).unwrap().changes,
        ["api [tokens default]: removed, was rate 1000/min, burst 1000"]
    );
    assert_eq!(book.apply(at(4), &change(r#"{"remove":["api"]}"#)).unwrap().changes.len(), 2);
}

#[test]
fn a_sliding_window_is_what_its_rate_says() {
    let mut book = book();
    let json = r#"{"name":"s","policy":{"kind":"sliding_window"},"rate":{"count":100,"period_ms":60000}}"#;
    book.apply(at(1), &set(json)).unwrap();
    let wider = set(r#"{"name":"s","rate":{"count":300,"period_ms":120000}}"#);
    assert_eq!(
        book.apply(at(2), &wider).unwrap().changes,
        [
            "s: sliding window of 60 s -> sliding window of 120 s",
            "s: rate 100/min -> 300 per 120 s over 60 s",
            "s: burst 100 -> 300 over 60 s",
        ]
    );
    let cell = &book.cells[&CellKey::of("s")];
    assert_eq!(cell.policy, Policy::SlidingWindow { window: Span::from_secs(120) });
    let bucket = set(r#"{"name":"s","policy":{"kind":"token_bucket"}}"#);
    assert_eq!(book.apply(at(3), &bucket).unwrap().changes, ["s: sliding window of 120 s -> token bucket"]);
}

#[test]
fn what_contradicts_itself_is_refused_whole() {
    let mut book = book();
    let told = problems(
        &mut book,
        r#"{"set":[
            {"name":"a","policy":{"kind":"in_flight"},"rate":{"count":5}},
            {"name":"b","policy":{"kind":"in_flight"}},
            {"name":"c","policy":{"kind":"sliding_window"},"rate":{"count":5},"burst":3},
            {"name":"d","policy":{"kind":"sliding_window"}},
            {"name":"e","policy":{"kind":"sliding_window"},"rate":{"count":5,"period_ms":1000}},
            {"name":"f","policy":{"kind":"sliding_window"},"rate":{"count":5,"period_ms":10000},"lease_ms":11000},
            {"name":"g","meter":"No Label","rate":{"count":5}},
            {"name":"h","rate":{"count":5}},{"name":"h","rate":{"count":6}}],
            "remove_meters":[{"name":"api","meter":"nope"}]}"#,
    );
    assert_eq!(
        told,
        [
            "set: limit \"h\" is given twice",
            "remove_meters: there is no \"api [nope default]\"",
            "limit \"a\": rate is given, allowed: none with in_flight; `burst` says how many at once",
            "limit \"b\": burst is missing: how many may be in flight at once",
            "limit \"c\": burst is given, allowed: none with a sliding window; its rate says it all",
            "limit \"d\": rate is missing: so many in any window as long as its period",
            "limit \"e\": window is 1000 ms, allowed: 2 s to 31 days",
            "limit \"f\": window is 10000 ms, allowed: at least as long as the lease",
            "limit \"g\": meter is \"No Label\" (8 bytes), allowed: 1 to 64 of a-z, 0-9, _ and -",
        ]
    );
}

/// A fixed window of a day whose boundaries begin in the last hour, `count` of them.
fn daily(name: &str, count: u64) -> String {
    let boundaries: Vec<String> =
        (0..count).map(|n| (BEGAN - 3_600_000_000 + n * 86_400_000_000).to_string()).collect();
    format!(
        r#"{{"name":"{name}","rate":{{"count":1000,"period_ms":86400000}},"policy":{{"kind":"fixed_window",
        "time_zone":"America/Los_Angeles","tz_version":"2026f","boundaries_us":[{}]}}}}"#,
        boundaries.join(",")
    )
}

#[test]
fn a_fixed_window_is_what_its_rate_says_and_follows_the_calendar() {
    let mut book = book();
    assert_eq!(
        book.apply(at(1), &set(&daily("g", 3))).unwrap().changes,
        ["g: created, 1000 in a fixed window of a day in America/Los_Angeles, by time zones 2026f, up to \
          2001-09-11 00:46:40Z, lease 15 s"]
    );
    assert_eq!(book.apply(at(2), &set(&daily("g", 3))).unwrap().changes.len(), 0);
    let more = set(r#"{"name":"g","rate":{"count":2000,"period_ms":86400000}}"#);
    assert_eq!(
        book.apply(at(3), &more).unwrap().changes,
        ["g: rate 1000/day -> 2000/day over 60 s", "g: burst 1000 -> 2000 over 60 s"]
    );
    let hourly = format!(
        r#"{{"name":"g","policy":{{"kind":"fixed_window","window":"hour","boundaries_us":[{}]}}}}"#,
        BEGAN * 2
    );
    assert_eq!(
        book.apply(at(4), &set(&hourly)).unwrap_err(),
        [r#"limit "g": rate is per 86400 s, allowed: per hour, which is the window"#]
    );
    let bucket = set(r#"{"name":"g","policy":{"kind":"token_bucket"}}"#);
    assert_eq!(book.apply(at(4), &bucket).unwrap().changes.len(), 1);
    assert_eq!(book.renewal_due(), None);
}

#[test]
fn contradictions_of_fixed_windows_are_refused_whole_with_every_problem() {
    let mut book = book();
    book.apply(at(1), &set(&daily("g", 3))).unwrap();
    let fixed = |name: &str, rest: &str| {
        format!(
            r#"{{"name":"{name}","policy":{{"kind":"fixed_window"{rest}}},"rate":{{"count":5,"period_ms":86400000}}}}"#
        )
    };
    let list = [
        fixed("a", ""),
        fixed("b", r#","boundaries_us":[5,4]"#),
        fixed("c", &format!(r#","boundaries_us":[{BEGAN},{}]"#, BEGAN + 14_000_000)),
        fixed("d", r#","boundaries_us":[1,100000000]"#),
        fixed("e", &format!(r#","window":"hour","boundaries_us":[{}]"#, BEGAN * 2)),
        format!(
            r#"{{"name":"f","policy":{{"kind":"fixed_window","window":"week","time_zone":"","boundaries_us":[{}]}},"burst":3}}"#,
            BEGAN * 2
        ),
        r#"{"name":"g","rate":{"count":5,"period_ms":3600000}}"#.to_owned(),
        r#"{"name":"h","rate":{"count":5,"period_ms":1000},"queue":1000001}"#.to_owned(),
        r#"{"name":"i","policy":{"kind":"in_flight"},"burst":3,"initial":"empty"}"#.to_owned(),
    ];
    let told = problems(&mut book, &format!(r#"{{"set":[{}]}}"#, list.join(",")));
    let disorder = "allowed: 1 to 128 rising times, each a lease or more apart";
    assert_eq!(
        told,
        [
            format!(r#"limit "a": boundaries is 0 of them, {disorder}"#),
            format!(r#"limit "b": boundaries is 2 of them, {disorder}"#),
            format!(r#"limit "c": boundaries is 2 of them, {disorder}"#),
            r#"limit "d": boundaries_us: none is to come, allowed: at least one"#.to_owned(),
            r#"limit "e": rate is per 86400 s, allowed: per hour, which is the window"#.to_owned(),
            r#"limit "f": burst is given, allowed: none with a fixed window; its rate says it all"#.to_owned(),
            r#"limit "f": rate is missing: so many in any window of its period"#.to_owned(),
            r#"limit "f": time_zone is "" (0 bytes), allowed: 1 to 64 bytes of text"#.to_owned(),
            r#"limit "g": rate is per 3600 s, allowed: per day, which is the window"#.to_owned(),
            r#"limit "h": queue is 1000001, allowed: 0 to 1000000 that wait in a process"#.to_owned(),
            r#"limit "i": initial is empty, allowed: full where what is in flight is counted: nothing is, at first"#
                .to_owned(),
        ]
    );
}

#[test]
fn boundaries_are_renewed_before_they_run_out_and_told_of_only_when_another_release_says_so() {
    let day = 86_400_000;
    let mut book = book();
    book.apply(at(1), &set(&format!("{},{}", daily("g", 33), daily("h", 33)))).unwrap();
    // Sixteen of 32 are still to come.
    let due = book.renewal_due().unwrap();
    assert_eq!(due, LedgerTime(BEGAN - 3_600_000_000 + 16 * day * 1_000));
    assert!(book.renewals(LedgerTime(due.0 - 1)).is_empty());
    let [calendar] = &book.renewals(due)[..] else { panic!("two limits, one calendar") };
    let (version, entries) = (book.version, book.history.len());
    let later: Vec<LedgerTime> = (0..33).map(|n| due + Span::from_millis(n * day)).collect();
    book.renew(due, calendar, &later).unwrap();
    assert_eq!((book.version.n, book.history.len()), (version.n + 1, entries));
    for name in ["g", "h"] {
        let Policy::FixedWindow { boundaries, .. } = &book.cells[&CellKey::of(name)].policy else { panic!() };
        assert_eq!(*boundaries, later);
    }
    assert_eq!(book.renewal_due(), Some(due + Span::from_millis(16 * day)));
    book.renew(due, calendar, &later).unwrap();
    assert_eq!(book.version.n, version.n + 1, "the same again is no change");
    let newer = Calendar { tz_version: "2027a".to_owned(), ..calendar.clone() };
    book.renew(due, &newer, &later).unwrap();
    assert_eq!(
        book.history.back().unwrap().lines,
        ["g: time zones 2026f -> 2027a", "h: time zones 2026f -> 2027a"]
    );
    let before = book.clone();
    for bad in [&[][..], &later[..1], &[later[3], later[2]]] {
        assert!(book.renew(due, &newer, bad).is_err(), "{bad:?}");
    }
    assert_eq!(book, before);
}

#[test]
fn how_a_limit_begins_and_how_many_wait_is_kept() {
    let mut book = book();
    let json =
        r#"{"name":"l","policy":{"kind":"leaky_bucket"},"rate":{"count":5},"queue":10,"initial":"empty"}"#;
    assert_eq!(
        book.apply(at(1), &set(json)).unwrap().changes,
        ["l: created, rate 5/s, burst 1, lease 15 s, queue 10, empty at first"]
    );
    let json = r#"{"name":"l","queue":0}"#;
    assert_eq!(book.apply(at(2), &set(json)).unwrap().changes, ["l: queue 10 -> 0"]);
    let cell = &book.cells[&CellKey::of("l")];
    assert_eq!((cell.queue, cell.initial), (Some(0), Initial::Empty));
    let json = r#"{"name":"api","queue":7}"#;
    assert_eq!(book.apply(at(3), &set(json)).unwrap().changes, ["api: queue as the process says -> 7"]);
}
