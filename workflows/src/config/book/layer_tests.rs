use super::schedules::{Rule, Window};
use super::*;
use crate::wire::layers::RuleJson;
use crate::wire::read_json;
use tollgate_core::curve::Rate;

const BEGAN: u64 = 1_000_000_000_000_000;

/// Seconds after the book began.
fn at(secs: u64) -> LedgerTime {
    LedgerTime(BEGAN + secs * 1_000_000)
}

fn change(json: &str) -> ApplyJson {
    read_json(json.as_bytes()).unwrap()
}

fn apply(book: &mut Book, secs: u64, json: &str) -> Vec<String> {
    book.apply(at(secs), &change(json)).unwrap().changes
}

fn refused(book: &mut Book, secs: u64, json: &str) -> Vec<String> {
    let before = book.clone();
    let problems = book.apply(at(secs), &change(json)).unwrap_err();
    assert_eq!(*book, before, "a refused change leaves nothing behind");
    problems
}

fn book() -> Book {
    let mut book = Book::new(at(0));
    apply(&mut book, 0, r#"{"actor":"ann","set":[{"name":"api","rate":{"count":50},"burst":16}]}"#);
    book
}

fn api(book: &Book) -> &CellConfig {
    &book.cells[&CellKey::of("api")]
}

/// Tokens a second, in thousandths, at a time.
fn milli(book: &Book, secs: u64) -> u64 {
    api(book).rate.at(at(secs)).micro_per_second() / 1_000
}

/// The book as it is later, whoever was there meanwhile.
fn later(book: &Book, secs: u64) -> Book {
    let mut book = book.clone();
    book.advance(at(secs));
    book
}

const DOUBLE: &str = r#"{"actor":"bob","reason":"backlog","ramp_ms":60000,
    "overrides":[{"limit":"api","value":{"rate":{"count":200}},"for_ms":1800000}]}"#;

#[test]
fn an_override_ramps_there_and_back_by_itself_also_when_nobody_was_there() {
    let mut book = book();
    assert_eq!(
        apply(&mut book, 100, DOUBLE),
        [
            "api: override 200/s up to 2001-09-09 02:18:20Z",
            "api: rate 50/s -> 200/s over 60 s, the override begins",
        ]
    );
    assert_eq!((milli(&book, 100), milli(&book, 130), milli(&book, 160)), (50_000, 125_000, 200_000));
    assert_eq!(book.next_change(), Some(at(1_900)));
    let version = book.version;
    // On time, during the ramp back, and hours later: the same curve, which began when it was time.
    let mut on_time = book.clone();
    for secs in [1_900, 1_930, 90_000] {
        let late = later(&book, secs);
        on_time.advance(at(secs));
        assert_eq!(api(&late).rate, api(&on_time).rate);
        assert_eq!((milli(&late, 1_930), milli(&late, 1_960)), (125_000, 50_000));
        assert_eq!((late.version.n, late.next_change()), (version.n + 1, None));
        assert!(late.layers.is_empty());
        let entry = late.history.back().unwrap();
        assert_eq!((entry.outcome, entry.at, entry.replaced), (Outcome::Scheduled, at(1_900), version));
        assert_eq!(entry.lines, ["api: rate 200/s -> 50/s over 60 s, the override is over"]);
    }
}

#[test]
fn what_is_set_under_an_override_counts_once_it_is_over() {
    let mut book = book();
    apply(&mut book, 0, DOUBLE);
    let set = r#"{"ramp_ms":600000,"set":[{"name":"api","rate":{"count":100},"lease_ms":8000}]}"#;
    assert_eq!(
        apply(&mut book, 1_700, set),
        [
            "api: rate 50/s -> 100/s over 600 s",
            "api: lease 15 s -> 8 s",
            "api: counts once the override is over",
        ]
    );
    assert_eq!((milli(&book, 1_750), api(&book).lease), (200_000, Span::from_secs(8)));
    let over = later(&book, 1_800);
    // What was set is on its way until 2,300: falling back is no faster.
    assert_eq!(
        (api(&over).rate.end, over.cells[&CellKey::of("api")].rate.target),
        (at(2_300), Rate::per_second(100))
    );
    assert!(over.history.back().unwrap().lines[0].starts_with("api: rate 200/s -> 100/s over 500 s"));
}

#[test]
fn an_override_is_replaced_ended_early_and_stopped_in_its_ramp() {
    let mut book = book();
    apply(&mut book, 0, DOUBLE);
    let half = r#"{"ramp_ms":0,"overrides":[{"limit":"api","value":{"times_milli":500},"for_ms":60000}]}"#;
    let lines = apply(&mut book, 100, half);
    assert_eq!(
        lines,
        [
            "api: override x0.5 up to 2001-09-09 01:49:20Z, instead of 200/s up to 2001-09-09 02:16:40Z",
            "api: rate 200/s -> 25/s at once, the override",
            "api: burst 16 -> 8 at once, the override",
        ]
    );
    assert_eq!(
        milli(&later(&book, 160), 160),
        50_000,
        "it falls back to what is set, not to the first override"
    );
    // What is set changes, and with it half of it.
    let set = r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":80}}]}"#;
    assert_eq!(apply(&mut book, 110, set)[1], "api: rate 25/s -> 40/s at once, the override");
    let end = r#"{"ramp_ms":10000,"end_overrides":[{"name":"api"}]}"#;
    assert_eq!(
        apply(&mut book, 120, end),
        [
            "api: override x0.5 ends now, was up to 2001-09-09 01:49:20Z",
            "api: rate 40/s -> 80/s over 10 s, the override is over",
            "api: burst 8 -> 16 over 10 s, the override is over",
        ]
    );
    assert_eq!((milli(&book, 130), book.layers.len()), (80_000, 0));
    assert_eq!(refused(&mut book, 130, end), [r#"end_overrides: there is no override of "api""#]);
    // A ramp that is stopped stays where it is until the override is over.
    apply(&mut book, 200, DOUBLE);
    apply(&mut book, 230, r#"{"abort_ramps":["api"]}"#);
    assert_eq!((milli(&book, 1_000), milli(&later(&book, 2_100), 2_100)), (140_000, 80_000));
}

#[test]
fn values_that_do_not_suit_a_limit_are_refused_with_what_is_allowed() {
    let mut book = book();
    apply(
        &mut book,
        0,
        r#"{"set":[{"name":"slots","policy":{"kind":"in_flight"},"burst":20},
        {"name":"window","policy":{"kind":"sliding_window"},"rate":{"count":70,"period_ms":10000}},
        {"name":"huge","rate":{"count":1000000000000}}]}"#,
    );
    let over = |limit: &str, value: &str| format!(r#"{{"limit":"{limit}","value":{value},"for_ms":60000}}"#);
    let list = [
        over("nope", "{}"),
        over("api", "{}"),
        over("api", r#"{"times_milli":1000001}"#),
        over("api", r#"{"times_milli":1,"burst":1}"#),
        over("api", r#"{"rate":{"count":1,"period_ms":0}}"#),
        r#"{"limit":"api","value":{"burst":1},"for_ms":5}"#.to_owned(),
        over("slots", r#"{"rate":{"count":1}}"#),
        over("window", r#"{"rate":{"count":1}}"#),
        over("huge", r#"{"times_milli":2000}"#),
    ];
    let mut problems = refused(&mut book, 1, &format!(r#"{{"overrides":[{}]}}"#, list.join(",")));
    problems.retain(|problem| !problem.ends_with("is given twice"));
    assert_eq!(
        problems,
        [
            r#"override of "nope": there is no such limit"#,
            r#"override of "api": value is empty, allowed: times_milli, or rate, burst or both"#,
            r#"override of "api": times_milli is 1000001, allowed: 0 to 1000000 thousandths"#,
            r#"override of "api": times_milli is given, allowed: alone, without rate and burst"#,
            r#"override of "api": period is 0 ms, allowed: 1 ms to 366 days"#,
            r#"override of "api": for_ms is 5, allowed: 1 s to 31 days"#,
            r#"limit "huge", the override: x2 of what is set is beyond what a limit may have"#,
            r#"limit "slots", the override: rate is given, allowed: none with in_flight; `burst` says how many at once"#,
            r#"limit "window", the override: rate is per another time, allowed: per 10 s, the window"#,
        ]
    );
    let twice = over("api", r#"{"burst":1}"#);
    let night = schedule("night", 1, &[]);
    assert_eq!(
        refused(&mut book, 1, &format!(r#"{{"overrides":[{twice},{twice}],"schedules":[{night},{night}]}}"#)),
        [r#"overrides: "api" is given twice"#, r#"schedules: "api", schedule "night" is given twice"#]
    );
    let list = [
        over("slots", r#"{"burst":40}"#),
        over("window", r#"{"rate":{"count":140,"period_ms":10000}}"#),
        over("api", r#"{"times_milli":0}"#),
    ];
    apply(&mut book, 1, &format!(r#"{{"ramp_ms":0,"overrides":[{}]}}"#, list.join(",")));
    let burst = |name: &str| book.cells[&CellKey::of(name)].burst.target;
    assert_eq!(
        (burst("slots"), burst("window"), burst("api")),
        (Amount::tokens(40), Amount::tokens(140), Amount::ZERO)
    );
    // What is set must go with what is on top of it.
    let other = r#"{"set":[{"name":"slots","policy":{"kind":"token_bucket"},"rate":{"count":5}},
        {"name":"window","policy":{"kind":"sliding_window"},"rate":{"count":70,"period_ms":20000}}]}"#;
    assert_eq!(refused(&mut book, 2, other).len(), 1);
    apply(&mut book, 3, r#"{"remove":["slots"]}"#);
    assert!(!book.layers.contains_key(&CellKey::of("slots")));
}

fn schedule(name: &str, times_milli: u64, windows: &[(u64, u64)]) -> String {
    let windows: Vec<String> =
        windows.iter().map(|(begin, end)| format!("[{},{}]", at(*begin).0, at(*end).0)).collect();
    format!(
        r#"{{"limit":"api","name":"{name}","rule":{{"from":"00:00","to":"06:00","time_zone":"Asia/Shanghai"}},
        "value":{{"times_milli":{times_milli}}},"ramp_ms":120000,"windows_us":[{}],"tz_version":"2026f"}}"#,
        windows.join(",")
    )
}

#[test]
fn schedules_begin_and_end_at_their_times_however_late_anybody_looks() {
    let mut book = book();
    let night = schedule("night", 2_000, &[(1_000, 2_000), (5_000, 6_000)]);
    let lines = apply(&mut book, 0, &format!(r#"{{"schedules":[{night}]}}"#));
    assert_eq!(lines, ["api: schedule night added: x2 at 00:00-06:00 Asia/Shanghai, ramp 120 s"]);
    for (secs, wanted) in
        [(999, 50_000), (1_060, 75_000), (1_120, 100_000), (2_060, 75_000), (4_000, 50_000), (5_500, 100_000)]
    {
        let once = later(&book, secs);
        let mut often = book.clone();
        (0..=secs).step_by(7).chain([secs]).for_each(|secs| often.advance(at(secs)));
        assert_eq!((milli(&once, secs), milli(&often, secs)), (wanted, wanted), "at {secs}");
        assert_eq!(api(&once), api(&often));
    }
    // The same again is no change, also with times that were computed later.
    let again = schedule("night", 2_000, &[(5_000, 6_000)]);
    assert!(apply(&mut book, 10, &format!(r#"{{"schedules":[{again}]}}"#)).is_empty());
    // An override goes first, and the schedule goes on beneath.
    apply(
        &mut book,
        900,
        r#"{"ramp_ms":0,"overrides":[{"limit":"api","value":{"rate":{"count":7}},"for_ms":300000}]}"#,
    );
    assert_eq!(milli(&later(&book, 1_100), 1_100), 7_000);
    let after = later(&book, 1_200);
    assert_eq!(
        after.history.back().unwrap().lines[0],
        "api: rate 7/s -> 100/s at once, schedule night begins"
    );
    assert_eq!(milli(&later(&book, 2_200), 2_200), 50_000);
    // Removed while it is in force.
    let mut book = after;
    let gone = r#"{"ramp_ms":0,"remove_schedules":[{"limit":"api","name":"night"}]}"#;
    assert_eq!(
        apply(&mut book, 1_300, gone),
        [
            "api: schedule night removed, was x2 at 00:00-06:00 Asia/Shanghai, ramp 120 s",
            "api: rate 100/s -> 50/s at once, schedule night is over",
            "api: burst 32 -> 16 at once, schedule night is over",
        ]
    );
    assert_eq!((milli(&book, 1_300), book.layers.len()), (50_000, 0));
}

#[test]
fn of_two_schedules_the_one_that_began_last_is_in_force() {
    let mut book = book();
    let list = [
        schedule("day", 2_000, &[(100, 1_000)]),
        schedule("lunch", 3_000, &[(400, 500)]),
        schedule("brunch", 4_000, &[(400, 600)]),
        schedule("next", 5_000, &[(1_000, 1_100)]),
    ];
    apply(&mut book, 0, &format!(r#"{{"schedules":[{}]}}"#, list.join(",")));
    let on_top = |secs| {
        let book = later(&book, secs);
        let top = book.layers[&CellKey::of("api")].on_top.clone();
        top.map(|top| top.source.text())
    };
    for (secs, wanted) in [
        (99, None),
        (100, Some("day")),
        (400, Some("lunch")),
        (500, Some("brunch")),
        (600, Some("day")),
        (1_000, Some("next")),
        (1_100, None),
    ] {
        assert_eq!(on_top(secs), wanted.map(|name| format!("schedule {name}")), "at {secs}");
    }
}

#[test]
fn later_times_are_asked_for_and_taken_with_the_release_that_says_so() {
    let mut book = book();
    // Without times, the workflow has them computed.
    let bare = schedule("night", 2_000, &[]);
    apply(&mut book, 0, &format!(r#"{{"schedules":[{bare}]}}"#));
    assert_eq!(book.schedules_due(), Some(LedgerTime(0)));
    let json = RuleJson {
        from: "00:00".to_owned(),
        to: "06:00".to_owned(),
        days: vec![],
        time_zone: "Asia/Shanghai".to_owned(),
    };
    let rule = Rule::read(&json).unwrap();
    assert_eq!(book.due_rules(at(0)), std::slice::from_ref(&rule));
    let windows = |from: u64| -> Vec<Window> {
        (0..16).map(|n| Window { begin: at(from + n * 1_000), end: at(from + n * 1_000 + 500) }).collect()
    };
    book.renew_schedules(at(1), &rule, &windows(100), "2026f").unwrap();
    assert_eq!((book.schedules_due(), book.version.n, book.history.len()), (Some(at(8_100)), 2, 2));
    // Nobody was there for all known times and more: what is under way by the new ones counts from when it began.
    let (version, late) = (book.version, 1_000_020);
    book.renew_schedules(at(late), &rule, &windows(1_000_000), "2027a").unwrap();
    assert!(book.version > version);
    assert_eq!(milli(&book, late), 50_000 + 50_000 * 20 / 120);
    let lines: Vec<&String> = book.history.iter().rev().take(2).flat_map(|entry| &entry.lines).collect();
    assert_eq!(lines[2], "api: schedule night: time zones 2026f -> 2027a");
    let before = book.clone();
    for bad in [windows(1)[..15].to_vec(), vec![windows(1)[0]; 20], Vec::new()] {
        assert!(book.renew_schedules(at(late), &rule, &bad, "2027a").is_err());
    }
    assert_eq!(book, before);
}

#[test]
fn wrong_schedules_are_refused_whole_with_every_problem() {
    let mut book = book();
    let many: Vec<String> = (0..101).map(|n| schedule(&format!("n{n}"), 1, &[])).collect();
    let problems = refused(&mut book, 1, &format!(r#"{{"schedules":[{}]}}"#, many.join(",")));
    assert_eq!(problems, ["schedules: 101 after this change, allowed: up to 100"]);
    let problems = refused(
        &mut book,
        1,
        r#"{"schedules":[{"limit":"api","name":"No Label","rule":{"from":"24:00","to":"7","time_zone":""},
        "value":{},"ramp_ms":86400001,"windows_us":[[5,5]]},
        {"limit":"nope","name":"a","rule":{"from":"00:00","to":"07:00"},"value":{"times_milli":1}}],
        "remove_schedules":[{"limit":"api","name":"b"}]}"#,
    );
    assert_eq!(problems.len(), 9, "{problems:#?}");
    for (problem, part) in problems.iter().zip([
        "no schedule",
        "name is",
        "to: is",
        "from is",
        "time_zone",
        "value is empty",
        "ramp is",
        "windows_us",
        "no such limit",
    ]) {
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn a_rollback_sets_what_was_set_with_ramps_and_as_a_version_of_its_own() {
    let mut book = book();
    let first = book.version;
    apply(
        &mut book,
        10,
        r#"{"ramp_ms":0,"target_rate_milli":20000,"set":[{"name":"api","rate":{"count":100},"burst":40,"lease_ms":8000,"queue":7},
        {"name":"new","rate":{"count":5}}]}"#,
    );
    let night = schedule("night", 2_000, &[(1_000, 2_000)]);
    apply(&mut book, 20, &format!(r#"{{"schedules":[{night}]}}"#));
    apply(&mut book, 30, r#"{"ramp_ms":0,"remove":["api"]}"#);
    let removed = book.version;
    assert_eq!(book.difference("1", Some("1")).unwrap().2, Vec::<String>::new());
    let (_, _, lines) = book.difference("1", Some(&format!("{BEGAN}.3"))).unwrap();
    assert_eq!(
        lines,
        [
            "target rate: 10 -> 20 messages a second",
            "api: rate 50/s -> 100/s",
            "api: burst 16 -> 40",
            "api: lease 15 s -> 8 s",
            "api: queue as the process says -> 7",
            "api: schedule night added: x2 at 00:00-06:00 Asia/Shanghai, ramp 120 s",
            "new: created, rate 5/s, burst 5, lease 15 s",
        ]
    );
    // What is gone comes back, with its schedule.
    let dry = book.apply(at(40), &change(r#"{"rollback":"3","dry_run":true}"#)).unwrap();
    assert_eq!((dry.version, dry.changes.len(), book.version), (removed, 2, removed));
    apply(&mut book, 40, r#"{"reason":"oops","rollback":"3"}"#);
    assert_eq!((book.version.n, milli(&book, 40)), (5, 100_000));
    assert!(book.difference("3", None).unwrap().2.is_empty());
    // To the first one: ramps, and what came since is removed.
    let lines = apply(&mut book, 50, &format!(r#"{{"ramp_ms":20000,"rollback":"{first}"}}"#));
    assert!(lines.contains(&"api: rate 100/s -> 50/s over 20 s".to_owned()), "{lines:?}");
    assert!(lines.contains(&"new: removed, was rate 5/s, burst 5".to_owned()), "{lines:?}");
    assert_eq!((milli(&book, 60), milli(&book, 70)), (75_000, 50_000));
    assert_eq!((book.settings, book.layers.len()), (Settings::default(), 0));
    assert_eq!(api(&book).queue, None);
    // Undone itself, and again no change.
    apply(&mut book, 80, r#"{"rollback":"5"}"#);
    assert!(apply(&mut book, 90, r#"{"rollback":"5"}"#).is_empty());
    assert!(book.difference("3", None).unwrap().2.is_empty());
}

#[test]
fn a_rollback_stays_beneath_an_override() {
    let mut book = book();
    apply(&mut book, 10, r#"{"ramp_ms":0,"set":[{"name":"api","rate":{"count":100}}]}"#);
    apply(&mut book, 20, DOUBLE);
    assert_eq!(
        apply(&mut book, 100, r#"{"rollback":"1"}"#),
        ["api: rate 100/s -> 50/s over 60 s", "api: counts once the override is over"]
    );
    assert_eq!((milli(&book, 500), milli(&later(&book, 3_000), 3_000)), (200_000, 50_000));
}

#[test]
fn a_rollback_beyond_what_is_kept_says_how_far_it_reaches() {
    let mut book = book();
    for n in 0..250 {
        apply(&mut book, 10 + n, &format!(r#"{{"set":[{{"name":"api","rate":{{"count":{}}}}}]}}"#, 51 + n));
    }
    assert_eq!(book.undos.len(), 200);
    let kept = format!("{BEGAN}.51");
    assert_eq!(book.kept_from.to_string(), kept);
    assert_eq!(
        refused(&mut book, 300, r#"{"rollback":"50"}"#),
        [format!(
            "rollback: what version {BEGAN}.50 set is not kept any more: it reaches back to version {kept}"
        )]
    );
    let lines = apply(&mut book, 300, r#"{"rollback":"51"}"#);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(api(&book).rate.target, Rate::per_second(100));
    for bad in ["", "x", "1.2.3", "-1", "999", "99999999999999999999"] {
        assert!(refused(&mut book, 300, &format!(r#"{{"rollback":"{bad}"}}"#))[0].starts_with("rollback: "));
    }
    assert_eq!(
        refused(&mut book, 300, r#"{"rollback":"60","remove":["api"]}"#),
        ["rollback: other changes beside it, allowed: none"]
    );
    // A change of many limits takes the place of many small ones.
    let set: Vec<String> =
        (0..900).map(|n| format!(r#"{{"name":"{}{n}","rate":{{"count":1}}}}"#, "n".repeat(150))).collect();
    apply(&mut book, 400, &format!(r#"{{"set":[{}]}}"#, set.join(",")));
    let names: Vec<String> = (0..900).map(|n| format!(r#""{}{n}""#, "n".repeat(150))).collect();
    apply(&mut book, 500, &format!(r#"{{"remove":[{}]}}"#, names.join(",")));
    assert_eq!((book.undos.len(), book.kept_from), (0, book.version));
}

#[test]
fn changes_that_nobody_made_push_out_none_that_somebody_made() {
    let mut book = book();
    let windows: Vec<(u64, u64)> = (0..32).map(|n| (n * 100, n * 100 + 50)).collect();
    let list = [schedule("a", 2_000, &windows), schedule("b", 3_000, &windows)];
    apply(&mut book, 0, &format!(r#"{{"schedules":[{}]}}"#, list.join(",")));
    book.advance(at(100_000));
    let by_time = |entry: &&Entry| entry.outcome == Outcome::Scheduled;
    assert_eq!(book.history.iter().filter(by_time).count(), SCHEDULED_ENTRIES_MAX);
    assert_eq!(book.history.front().unwrap().actor, "ann");
}
