use super::sentences::shell;
use super::*;
use crate::wire::MESSAGE_BYTES_MAX;
use crate::wire::status::FilterJson;
use tollgate_core::curve::Rate;
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::{Configure, Input, Output, Settings, Start};
use tollgate_core::limit::CellKey;
use tollgate_core::limit::{CellConfig, LABEL_BYTES_MAX, NAME_BYTES_MAX, Version};
use tollgate_core::message::Incarnation;
use tollgate_core::message::{CellReport, Request};
use tollgate_core::units::{Amount, LedgerTime, Span};

fn ledger(cells: Vec<CellConfig>) -> Ledger {
    let mut ledger = Ledger::new(Start::First, 7, LedgerTime(1_000_000));
    let configure = Configure {
        version: Version { run: 1, n: 1 },
        settings: Settings { target_rate_milli: 10_000 },
        cells,
    };
    assert_eq!(ledger.apply(LedgerTime(1_000_000), Input::Configure(configure)), Output::Configured);
    ledger
}

fn ask(ledger: &mut Ledger, worker: u128, name: &str, keys: &[CellKey], waiting: u64) {
    let cell = |key: &CellKey| CellReport {
        key: key.clone(),
        borrowed: false,
        for_tier: None,
        acting: None,
        held: Amount::ZERO,
        used: 0,
        returned: Amount::ZERO,
        debt: Amount::ZERO,
        out: 0,
        demand: waiting * 1_000_000,
        waiting,
        largest: 1,
    };
    let request = Request {
        incarnation: Incarnation(worker),
        seq: 1,
        nonce: 1,
        worker: name.to_owned(),
        cells: keys.iter().map(cell).collect(),
    };
    let at = LedgerTime(ledger.state().now.0 + 1_000);
    assert!(matches!(ledger.apply(at, Input::Heartbeat(request)), Output::Reply(Ok(_))));
}

fn named(name: &str) -> FilterJson {
    FilterJson { name: name.to_owned(), ..FilterJson::default() }
}

fn small() -> Ledger {
    let cell = CellConfig::constant("open ai", Rate::per_second(10), 10, Span::from_secs(15));
    let mut ledger = ledger(vec![cell]);
    ask(&mut ledger, 0xabcd_0000 << 96, "host-1", &[CellKey::of("open ai")], 50);
    ask(&mut ledger, 0xabce_0000 << 96, "host-2", &[CellKey::of("open ai"), CellKey::of("opnai")], 0);
    ask(&mut ledger, 0xdddd_0000 << 96, "host-2", &[], 0);
    ledger
}

#[test]
fn a_limit_is_explained_with_the_command_that_would_help() {
    let answer = explain(&small(), "batch jobs", &named("open ai"));
    let limit = &answer.limits[0];
    assert_eq!((limit.holders.len(), limit.waiters.len(), answer.workers.len()), (2, 1, 0));
    assert_eq!((limit.waiters[0].who.as_str(), limit.waiters[0].tokens), ("host-1", 50));
    let why = &limit.reasons[0];
    assert_eq!((why.reason.as_str(), why.waiters, why.tokens), ("limit_reached", 1, 50));
    assert_eq!(why.text, "the limit is used up: 50/s are wanted and 10/s may be used");
    let command = "tollgate limit set 'open ai' --rate RATE --group 'batch jobs'";
    assert_eq!(why.command.as_deref(), Some(command));
}

#[test]
fn a_worker_is_found_by_name_and_by_the_beginning_of_its_incarnation() {
    let ledger = small();
    for name in ["host-1", "abcd", "ABCD0000"] {
        let answer = explain(&ledger, "default", &named(name));
        assert_eq!(answer.workers[0].worker, "host-1", "{name}");
        assert_eq!(answer.workers[0].limits[0].why.as_ref().unwrap().reason, "limit_reached");
        assert_eq!(answer.candidates, None);
    }
}

#[test]
fn an_ambiguous_or_unknown_name_is_answered_with_candidates() {
    let ledger = small();
    for (name, ambiguous, limits, workers) in
        [("host-2", true, 0, 2), ("dddd", false, 0, 0), ("abc", false, 1, 3), ("nobody", false, 1, 3)]
    {
        let answer = explain(&ledger, "default", &named(name));
        let Some(candidates) = answer.candidates else {
            assert_eq!(answer.workers.len(), 1, "{name}");
            continue;
        };
        assert!(answer.limits.is_empty() && answer.workers.is_empty());
        let found = (candidates.ambiguous, candidates.limits.len(), candidates.workers.len());
        assert_eq!(found, (ambiguous, limits, workers), "{name}");
    }
    let near = explain(&ledger, "default", &named("host-11")).candidates.unwrap();
    assert_eq!(near.workers[0].worker, "host-1");
}

#[test]
fn a_limit_that_only_workers_know_is_told_as_missing() {
    let answer = explain(&small(), "default", &named("opnai"));
    let missing = answer.missing.unwrap();
    assert_eq!((missing.reason.as_str(), missing.waiters, answer.candidates), ("unknown_limit", 1, None));
    assert_eq!(missing.command.as_deref(), Some("tollgate limit set opnai --rate RATE"));
}

#[test]
fn the_answer_for_a_full_group_with_the_longest_names_can_be_read() {
    for quote in ["\"", "'"] {
        let name = |n: usize| format!("{}{n:04}", quote.repeat(NAME_BYTES_MAX - 4));
        let label = "t".repeat(LABEL_BYTES_MAX);
        let keys: Vec<CellKey> =
            (0..60).map(|n| CellKey { meter: label.clone(), tier: label.clone(), limit: name(n) }).collect();
        let cells = keys.iter().map(|key| CellConfig {
            key: key.clone(),
            ..CellConfig::constant("x", Rate::per_second(10), 10, Span::from_secs(15))
        });
        let mut ledger = ledger(cells.collect());
        for worker in 0..100 {
            ask(&mut ledger, 1 + worker as u128, &name(worker), &keys, 50);
        }
        for filter in [FilterJson::default(), named(&name(3)), named("nobody")] {
            let answer = explain(&ledger, &"g".repeat(100), &filter);
            let bytes = serde_json::to_vec(&answer).unwrap().len();
            assert!(bytes < MESSAGE_BYTES_MAX, "{bytes} bytes");
            if filter == FilterJson::default() {
                assert_eq!((answer.limits.len(), answer.limits_left_out), (EXPLAINED_MAX, 10));
                assert_eq!((answer.limits[0].waiters.len(), answer.limits[0].waiters_left_out), (5, 95));
                assert_eq!(answer.limits[0].reasons.iter().map(|why| why.waiters).sum::<u64>(), 100);
            }
        }
    }
}

#[test]
fn names_are_quoted_for_a_shell() {
    assert_eq!(shell("openai/gpt-4o"), "openai/gpt-4o");
    assert_eq!(shell("a b"), "'a b'");
    assert_eq!(shell("it's; rm"), r"'it'\''s; rm'");
}
