//! Named scenarios: one seed of each, with what it must reach.

use tollgate_core::rules::Rules;
use tollgate_sim::scenario::{self, Outcome};

/// Played, and nothing wrong with it.
fn play(name: &str) -> Outcome {
    let outcome = scenario::run(name, 1, Rules::ALL, false).unwrap();
    let found = &outcome.violation;
    assert!(
        found.is_none(),
        "{found:?}\n  cargo run -p tollgate-sim -- run --scenario {name} --seed 1 --shrink"
    );
    assert!(outcome.peak_over_bound_ppm <= 1_000_000);
    outcome
}

#[test]
fn a_moving_load_is_followed_at_one_message_a_second_and_worker() {
    let outcome = play("shift");
    assert!(outcome.figures.utilization_ppm >= 965_000, "{:?}", outcome.figures);
    assert!(
        outcome.messages_per_worker_minute_milli <= 60_000,
        "{}",
        outcome.messages_per_worker_minute_milli
    );
}

#[test]
fn a_high_tier_gets_its_bursts_beside_a_saturated_low_one() {
    let mut calm = Vec::new();
    let mut waits = std::collections::BTreeMap::new();
    for seed in 0..8 {
        let outcome = scenario::run("tiers", seed, Rules::ALL, false).unwrap();
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        assert!(outcome.peak_over_bound_ppm <= 1_000_000);
        calm.extend(outcome.figures.calm_utilization_ppm);
        for (wait, tokens) in outcome.figures.high_waits {
            *waits.entry(wait).or_default() += tokens;
        }
    }
    assert!(calm.len() >= 2 && calm.iter().sum::<u64>() / calm.len() as u64 >= 970_000, "{calm:?}");
    assert!(scenario::p99(&waits).unwrap() <= 2_000, "two heartbeats");
}

#[test]
fn a_burst_smaller_than_the_fleet_is_used_and_fairly() {
    let outcome = play("small-burst");
    assert!(outcome.figures.utilization_ppm >= 950_000, "{:?}", outcome.figures);
    assert!(outcome.figures.fairness_error_ppm.unwrap() <= 50_000, "{:?}", outcome.figures);
}

#[test]
fn rates_below_one_token_per_heartbeat_are_used() {
    let outcome = play("tiny");
    assert!(outcome.figures.utilization_ppm >= 950_000, "{:?}", outcome.figures);
}

#[test]
fn rare_bursts_far_below_the_limit_are_never_refused() {
    let outcome = play("cron");
    assert_eq!((outcome.figures.refused, outcome.figures.wrongly_refused), (0, 0));
    assert!(outcome.figures.admitted > 50);
}

#[test]
fn a_ledger_that_is_away_for_less_than_a_lease_is_not_missed() {
    for name in ["doorman-2", "doorman-3"] {
        let outcome = play(name);
        assert_eq!(outcome.figures.zero_grant_seconds, 0, "{name}");
        assert!(outcome.figures.utilization_ppm >= 970_000, "{name}: {:?}", outcome.figures);
    }
}

#[test]
fn a_fleet_is_used_through_mishaps_spikes_and_restarts() {
    for (name, least) in [
        ("doorman-1", 970_000),
        ("doorman-4", 970_000),
        ("doorman-5", 960_000),
        ("doorman-6", 960_000),
        ("doorman-7", 960_000),
        ("cut", 970_000),
        ("rolling-restart", 970_000),
        ("amnesia", 970_000),
        ("reset", 970_000),
    ] {
        let outcome = play(name);
        assert!(outcome.figures.utilization_ppm >= least, "{name}: {:?}", outcome.figures);
    }
}

#[test]
fn two_thousand_workers_come_at_once() {
    assert!(play("flood").figures.admitted > 0);
}

#[test]
fn a_scenario_and_a_seed_give_the_same_run_every_time() {
    let steps = || {
        let outcome = scenario::run("cut", 3, Rules::ALL, true).unwrap();
        outcome.steps.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(steps(), steps());
}

#[test]
fn conserved_tokens_go_where_they_are_wanted() {
    for (name, least) in [
        ("sliding-window", 960_000),
        ("sliding-window-100", 920_000),
        ("in-flight", 970_000),
        ("in-flight-100", 950_000),
    ] {
        let outcome = play(name);
        assert!(outcome.figures.utilization_ppm >= least, "{name}: {:?}", outcome.figures);
    }
}

/// The judge of intervals, with a burst of one: no two within the time that one token takes.
#[test]
fn a_leaky_bucket_is_evenly_spaced_at_a_known_price() {
    for (name, least) in [("leaky-bucket", 840_000), ("leaky-bucket-1", 680_000)] {
        let outcome = play(name);
        assert!(outcome.figures.utilization_ppm >= least, "{name}: {:?}", outcome.figures);
        assert!(outcome.peak_over_bound_ppm > 990_000, "{name}: as dense as the bound allows");
    }
}

#[test]
fn a_window_that_is_escrowed_is_used_up() {
    let outcome = play("fixed-window");
    assert!(outcome.figures.utilization_ppm >= 990_000, "{:?}", outcome.figures);
}

/// After a cut, two workers that had got their parts of it began new work while a third still had more out than its own.
#[test]
fn seeds_in_which_a_cut_was_exceeded_are_within_it() {
    for seed in [430, 439, 541, 703, 791, 803] {
        let outcome = scenario::run("conserved-chaos", seed, Rules::ALL, false).unwrap();
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
    }
}

/// With twenty workers each holds a twentieth more than its part when one comes back: less than what noise is taken to be.
#[test]
fn who_comes_back_to_a_large_fleet_gets_its_part() {
    for seed in [29, 177, 922] {
        let outcome = scenario::run("rolling-restart", seed, Rules::ALL, false).unwrap();
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        assert!(outcome.figures.fairness_error_ppm.unwrap() < 30_000, "seed {seed}: {:?}", outcome.figures);
    }
}

#[test]
fn several_meters_at_once_use_the_scarcest_and_leak_nothing() {
    let outcome = play("meters");
    assert!(outcome.figures.utilization_ppm >= 955_000, "{:?}", outcome.figures);
    play("meters-chaos");
}
