//! The swarm: seeds that found something once, and fresh ones.

use tollgate_core::rules::{Rule, Rules};
use tollgate_sim::swarm::{self, Outcome};

fn expect_right(outcome: &Outcome) {
    let (seed, found) = (outcome.seed, &outcome.violation);
    assert!(found.is_none(), "{found:?}\n  cargo run -p tollgate-sim -- run --seed {seed} --shrink");
}

#[test]
fn seeds_that_found_something_stay_right() {
    for line in include_str!("../corpus.txt").lines().filter(|line| !line.starts_with('#')) {
        let seed = line.split_whitespace().next().unwrap().parse().unwrap();
        expect_right(&swarm::run(seed, Rules::ALL));
    }
}

#[test]
fn fresh_fleets_keep_their_limits_under_any_fault() {
    swarm::run_all(1_000_000..1_000_300, Rules::ALL, |outcome| {
        expect_right(&outcome);
        true
    });
}

#[test]
fn limits_that_are_paused_and_resumed_keep_to_their_bounds_under_any_fault() {
    let (mut paused, mut refused) = (0, 0);
    for seed in 2_000_000..2_000_150 {
        let outcome = swarm::run_operated(seed, Rules::ALL);
        let text: String = outcome.steps.iter().map(ToString::to_string).collect();
        paused += u32::from(text.contains("paused"));
        refused += u32::from(outcome.books.iter().any(|line| line.ends_with(", paused")));
        let found = &outcome.violation;
        assert!(found.is_none(), "seed {seed}: {found:?}");
    }
    assert!(paused > 100 && refused > 10, "{paused} runs with a pause, {refused} that end in one");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..10 {
        let steps = |outcome: &Outcome| outcome.steps.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (one, other) = (swarm::run(seed, Rules::ALL), swarm::run(seed, Rules::ALL));
        assert_eq!(steps(&one), steps(&other));
        assert_eq!(one.books, other.books);
    }
}

#[test]
fn wide_holes_are_found_at_once() {
    for rule in [Rule::LowerOnAcknowledgement, Rule::RecoverWithoutMemory, Rule::EvictionWaits] {
        let found = (0..100).any(|seed| swarm::run(seed, Rules::without(rule)).violation.is_some());
        assert!(found, "{}", rule.name());
    }
}
