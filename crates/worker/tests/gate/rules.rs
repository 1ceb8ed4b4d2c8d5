//! Rules of the activity interceptor: costs, and what is in flight.

use crate::world::{limit, pass};
use std::time::Duration;
use temporalio_common::error::{ApplicationErrorCategory, ApplicationFailure};
use temporalio_sdk::activities::ActivityError;
use tollgate_worker::interceptor::{COST_UNKNOWN, PERMIT_LOST};
use tollgate_worker::testing::{Fault, TestGroup, TestLimit};
use tollgate_worker::{ActivityGate, Outcome, Rule};

struct Prompt(&'static str);

fn group() -> TestGroup {
    TestGroup::new([
        limit("openai", 10, 10),
        limit("openai", 100, 100).meter("tokens"),
        TestLimit::in_flight("openai", 2).lease(Duration::from_secs(6)),
    ])
}

fn estimate(prompt: &Prompt) -> Result<u64, String> {
    match prompt.0 {
        "" => Err("an empty prompt".to_owned()),
        "bug" => panic!("no such index"),
        "none" => Ok(0),
        "huge" => Ok(u64::MAX),
        text => Ok(text.len() as u64 * 10),
    }
}

fn failure<T: std::fmt::Debug>(result: Result<T, ActivityError>) -> Box<ApplicationFailure> {
    match result.unwrap_err() {
        ActivityError::Application(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn costs_come_from_the_input_and_all_meters_are_charged() {
    let group = group();
    let gate = group.gate().await;
    let rule = Rule::new("openai").cost(2).charge_by("tokens", estimate).in_flight(1);
    let limits = ActivityGate::new(&gate).with("summarize", rule);
    let done = limits.run_with("summarize", &Prompt("four"), async { Ok(7) }).await.unwrap();
    assert_eq!(done, 7);
    let charged = |meter| group.meter_usage("openai", meter).charged;
    assert_eq!(["requests", "tokens", "in_flight"].map(charged), [2, 40, 1]);
    assert_eq!(group.meter_usage("openai", "tokens").settled_as(Outcome::Success), 1);
    // An activity without a rule runs freely.
    assert!(limits.run("other", async { Ok(()) }).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_cannot_be_told_fails_for_good_and_names_the_rule() {
    let group = group();
    let gate = group.gate().await;
    let limits =
        ActivityGate::new(&gate).with("summarize", Rule::new("openai").charge_by("tokens", estimate));
    for (prompt, problem) in [
        ("", "an empty prompt"),
        ("bug", "the function panicked: no such index"),
        ("none", "it is 0, allowed: 1 to the meter's burst"),
        ("huge", "cost is 18446744073709551615, allowed: 1 to 100"),
    ] {
        let mut ran = false;
        let work = async {
            ran = true;
            Ok(())
        };
        let failure = failure(limits.run_with("summarize", &Prompt(prompt), work).await);
        assert!(!ran && failure.is_non_retryable(), "{failure:?}");
        assert_eq!(failure.type_name(), Some(COST_UNKNOWN));
        let said = failure.source_error().to_string();
        assert!(
            said.contains("rule of activity \"summarize\"") && said.contains("meter \"tokens\""),
            "{said}"
        );
        assert!(said.contains(problem), "{said}");
    }
    let other = failure(limits.run_with("summarize", &7u32, async { Ok(()) }).await);
    let said = other.source_error().to_string();
    assert!(said.contains("no input of type") && said.contains("Prompt"), "{said}");
    assert!(failure(limits.run("summarize", async { Ok(()) }).await).is_non_retryable());
    assert_eq!(group.usage("openai").charged, 0);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_while_the_activity_runs_and_its_loss_cancels_it() {
    let group = group();
    let gate = group.gate().await;
    let limits = ActivityGate::new(&gate).with("download", Rule::of("openai", "in_flight"));
    let slow = || async {
        pass(60_000).await;
        Ok(())
    };
    let running = tokio::spawn(async move {
        let (one, two) = tokio::join!(limits.run("download", slow()), limits.run("download", slow()));
        (failure(one), failure(two))
    });
    pass(1_000).await;
    let slots = gate.meter("openai", "in_flight");
    assert!(slots.try_acquire(1).is_err(), "both are in use");
    group.fail(Fault::Unreachable);
    let began = tokio::time::Instant::now();
    let (one, two) = running.await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(7), "{:?}", began.elapsed());
    for failure in [one, two] {
        assert_eq!(failure.type_name(), Some(PERMIT_LOST));
        assert!(!failure.is_non_retryable() && failure.category() == ApplicationErrorCategory::Benign);
    }
    group.heal();
    pass(10_000).await;
    assert!(slots.acquire().cost(2).timeout(Duration::from_secs(10)).await.is_ok(), "they are free again");
}

#[test]
fn the_factor_of_what_may_hang_is_rounded_up_and_has_a_range() {
    let secs = Duration::from_secs;
    let cost = |rule: Rule| format!("{rule:?}");
    let rule = Rule::new("search").in_flight_factor(secs(31), secs(3)).unwrap();
    assert!(cost(rule).contains("(\"requests\", \"11\")"));
    for expected in [secs(0), secs(32)] {
        let error = Rule::new("search").in_flight_factor(secs(31), expected).unwrap_err();
        assert!(error.to_string().starts_with("expected_response is "), "{error}");
    }
}
