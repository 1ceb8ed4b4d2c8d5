//! The options of the chaos run, with their ranges.

use std::path::PathBuf;

use clap::Args;

/// What `cargo xtask chaos` takes.
#[derive(Debug, Clone, Args)]
pub struct ChaosOptions {
    /// How long faults go on [1 to 120]. Healing and finishing the batch come on top.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub minutes: u32,

    /// What the faults are drawn from: the same seed plans the same faults. Drawn, and printed, unless given.
    #[arg(long)]
    pub seed: Option<u64>,

    /// Write the outcome to this file as one JSON object, and a plot beside it, under the same name with the ending svg.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Number of worker processes [5 to 64].
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(5..=64))]
    pub workers: u32,

    /// tollgate's limit in calls a second; it moves between half of this and one and a half [4 to 1000].
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub rate: u32,

    /// tollgate's burst in calls [2 to 10000]. The downstream allows half as much again, for calls that leave evenly and
    /// arrive bunched.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub burst: u32,

    /// One fixed minute with a fault of each kind that needs no recovery, instead of random ones.
    #[arg(long, conflicts_with_all = ["minutes", "seed"])]
    pub short: bool,
}

impl ChaosOptions {
    /// A run for tests: about 80 seconds.
    pub fn short() -> ChaosOptions {
        ChaosOptions { minutes: 1, seed: None, json: None, workers: 5, rate: 40, burst: 16, short: true }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        options: ChaosOptions,
    }

    fn parse(arguments: &[&str]) -> Result<ChaosOptions, String> {
        let parsed = Program::try_parse_from([&["chaos"], arguments].concat());
        parsed.map(|program| program.options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_flag_value_and_range() {
        for (arguments, range) in [
            (["--minutes", "0"], "1..=120"),
            (["--workers", "4"], "5..=64"),
            (["--rate", "3"], "4..=1000"),
            (["--burst", "1"], "2..=10000"),
        ] {
            let error = parse(&arguments).unwrap_err();
            for part in [arguments[0], arguments[1], range] {
                assert!(error.contains(part), "{error} names {part}");
            }
        }
        assert!(parse(&["--short", "--seed", "1"]).is_err());
        assert_eq!(parse(&["--seed", "7"]).unwrap().seed, Some(7));
    }
}
