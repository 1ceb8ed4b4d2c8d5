//! Looks for holes at random: makes scripts of faults, runs them, and shortens those that exceed the bound.
//!
//! What is found is a script in the language of [`crate::script::command`], ready to become a golden file.

use crate::checker::Verdict;
use crate::rng::Rng;
use crate::script::command::execute;
use crate::script::worst;
use crate::world::World;
use tollgate_core::rules::Rules;

/// How many workers a random script has.
const WORKERS: u64 = 3;

/// The random script of a seed: `steps` commands.
pub fn script(seed: u64, steps: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let rate = [2, 20, 100, 1_000][usize::try_from(rng.below(4)).unwrap_or(0)];
    let burst = 5 + rng.below(200);
    let lease = 2 + rng.below(20);
    let mut lines = vec![format!("limit api rate={rate}/s burst={burst} lease={lease}s")];
    for worker in 1..=WORKERS {
        let (sign, drift) = (if rng.chance(1, 2) { '+' } else { '-' }, rng.below(1_001));
        lines.push(format!("worker w{worker} drift={sign}{drift}ppm"));
    }
    let mut at = 0u64;
    for step in 0..steps {
        at += match rng.below(10) {
            0..=3 => 0,
            4..=7 => rng.below(400),
            8 => rng.below(3_000),
            _ => rng.below(15_000),
        };
        let action = action(&mut rng, rate, burst, step);
        lines.push(format!("{action} at={at}ms"));
    }
    lines
}

fn action(rng: &mut Rng, rate: u64, burst: u64, step: usize) -> String {
    let worker = 1 + rng.below(WORKERS);
    let keep = if rng.chance(1, 4) { " keep" } else { "" };
    match rng.below(100) {
        0..=16 => format!("ask w{worker} waiting={}", rng.below(2 * rate)),
        17..=22 => format!("heartbeat w{worker} waiting={}", rng.below(2 * rate)),
        23..=38 => format!("deliver w{worker} request{keep}"),
        39..=54 => format!("deliver w{worker} reply{keep}"),
        55..=57 => format!("drop w{worker} request"),
        58..=61 => format!("drop w{worker} reply"),
        62..=79 => format!("spend w{worker} all"),
        80..=82 => format!("give w{worker} {}", 1 + rng.below(burst)),
        83 => format!("spend w{worker} 1 pause={}ms", rng.below(20_000)),
        84 => format!("suspend w{worker} clock-stops"),
        85..=87 => format!("resume w{worker}"),
        88 => format!("restart w{worker}"),
        89 => format!("revoke w{worker}"),
        90 => format!("evict w{worker}"),
        91 => "ledger snapshot".to_string(),
        92 => "ledger reset".to_string(),
        93 => "ledger amnesia".to_string(),
        94..=96 => {
            // One id always means the same: a cost that follows from it.
            let id = step / 8;
            format!("acquire p{id} cost={} lease=5s", 1 + Rng::new(id as u64).below(burst))
        }
        97 | 98 => format!("use p{}", step / 8),
        _ => format!("settle p{} used={}", step / 8, rng.below(burst)),
    }
}

/// Runs commands under `rules` and returns the worst verdict.
pub fn judge_lines(lines: &[String], rules: Rules) -> Option<Verdict> {
    let mut world = World::new(rules, 1);
    for line in lines {
        // What can't be done at random is left out.
        let _failed = execute(&mut world, line).is_err();
    }
    worst(&world).map(|(_, verdict)| verdict)
}

/// The random script of a seed if it exceeds the bound, without the commands that it doesn't need.
pub fn find(seed: u64, steps: usize, rules: Rules) -> Option<Vec<String>> {
    let exceeds = |lines: &[String]| judge_lines(lines, rules).is_some_and(|verdict| verdict.exceeded);
    let mut lines = script(seed, steps);
    if !exceeds(&lines) {
        return None;
    }
    let mut size = lines.len() / 2;
    while size > 0 {
        let mut start = 0;
        while start < lines.len() {
            let end = (start + size).min(lines.len());
            let shorter: Vec<String> = lines[..start].iter().chain(&lines[end..]).cloned().collect();
            if exceeds(&shorter) {
                lines = shorter;
            } else {
                start = end;
            }
        }
        size /= 2;
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::rules::Rule;

    #[test]
    fn random_faults_exceed_nothing_with_all_rules_and_something_without_one() {
        assert_eq!((0..1_000).find_map(|seed| find(seed, 120, Rules::ALL)), None);
        let broken = Rules::without(Rule::RecoverWithoutMemory);
        let found = (0..4_000).find_map(|seed| find(seed, 120, broken)).expect("a hole this wide is found");
        assert!(found.len() < 20, "{found:#?}");
    }
}
