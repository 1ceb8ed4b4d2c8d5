//! Runs golden scripts, and judges logs of admissions.
#![allow(clippy::print_stdout, reason = "a program that talks to a person")]

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use tollgate_core::rules::{Rule, Rules};
use tollgate_sim::checker::{Admission, Bound, judge};
use tollgate_sim::{explore, script};

mod play;
mod scenarios;

#[derive(Parser)]
#[command(name = "tollgate-sim", about = "tollgate's simulator and judge")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a script and prints what its commands print.
    Script {
        /// The file.
        file: PathBuf,
        /// Switches one rule off, by its name.
        #[arg(long = "break", value_name = "RULE")]
        broken: Option<String>,
    },
    /// Looks for holes at random, and prints the shortest script of each seed that exceeds the bound.
    Explore {
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many seeds.
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// Commands per script.
        #[arg(long, default_value_t = 120)]
        steps: usize,
        /// Switches one rule off, by its name.
        #[arg(long = "break", value_name = "RULE")]
        broken: Option<String>,
    },
    /// Plays fleets, one run per seed: named ones, or random ones under random faults (`chaos`), and reports what is
    /// wrong with any of them.
    Run {
        /// Which fleets. All but `chaos` are measured against an ideal limiter.
        #[arg(long, value_name = "NAME", default_value = "chaos", value_parser = scenarios::names())]
        scenario: String,
        /// Seeds from A up to but not including B.
        #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
        seeds: Range<u64>,
        /// One seed only.
        #[arg(long, conflicts_with = "seeds")]
        seed: Option<u64>,
        /// Switches one rule off, by its name.
        #[arg(long = "break", value_name = "RULE")]
        broken: Option<String>,
        /// Prints every step of the run.
        #[arg(long)]
        verbose: bool,
        /// Prints the shortest list of steps that shows the same.
        #[arg(long)]
        shrink: bool,
        /// Stops at the first violation.
        #[arg(long)]
        first: bool,
        /// Writes a summary.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Draws limit, admissions and shares over time, of the first seed of one named scenario.
        #[arg(long, value_name = "FILE.svg")]
        plot: Option<PathBuf>,
    },
    /// Switches off one rule after the other and says how many seeds it takes to notice.
    Hunt {
        /// The most seeds per rule.
        #[arg(long, default_value_t = 4_000)]
        seeds: u64,
    },
    /// Lists the rules that can be switched off.
    Rules,
    /// Judges a log: one JSON object a line, {"at": TICKS, "tokens": N}.
    Check {
        /// The file.
        file: PathBuf,
        /// Tokens per second.
        #[arg(long)]
        rate: u64,
        /// Tokens at once.
        #[arg(long)]
        burst: u64,
        /// Ticks per second of the log's times.
        #[arg(long, default_value_t = 1_000_000_000)]
        ticks: u64,
    },
}

#[derive(Deserialize)]
struct Line {
    at: u64,
    tokens: u64,
}

#[derive(Serialize)]
struct Judged {
    exceeded: bool,
    peak_over_bound_ppm: u64,
    peak_over_burst_ppm: u64,
    from: u64,
    to: u64,
    admitted: u64,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Script { file, broken } => {
            let rules = rules_without(broken)?;
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let script = script::file::parse(&text).map_err(anyhow::Error::msg)?;
            let outcome = script::run(&script, rules);
            for (block, lines) in script.blocks.iter().zip(&outcome.output) {
                println!("{}\n----\n{}\n", block.input.join("\n"), lines.join("\n"));
            }
            if let Some((key, verdict)) = outcome.worst {
                println!("{}", script::show::verdict(&key.to_string(), &verdict));
            }
        }
        Command::Explore { from, seeds, steps, broken } => {
            let rules = rules_without(broken)?;
            let mut found = 0;
            for seed in from..from.saturating_add(seeds) {
                if let Some(lines) = explore::find(seed, steps, rules) {
                    found += 1;
                    println!("# seed {seed}\n{}\ncheck\n----\n", lines.join("\n"));
                }
            }
            println!("{found} of {seeds} seeds exceed the bound");
        }
        Command::Run { scenario, seeds, seed, broken, verbose, shrink, first, json, plot } => {
            let seeds = seed.map_or(seeds, |seed| seed..seed.saturating_add(1));
            let options = play::Options { verbose, shrink, first };
            let (json, plot) = (json.as_deref(), plot.as_deref());
            if scenario == scenarios::CHAOS && plot.is_none() {
                play::run(seeds, broken, &options, json)?;
            } else {
                scenarios::run(&scenarios::Wanted { name: &scenario, seeds, broken, options, json, plot })?;
            }
        }
        Command::Hunt { seeds } => play::hunt(seeds),
        Command::Rules => {
            for rule in Rule::ALL {
                println!("{:2} {}", rule.number(), rule.name());
            }
        }
        Command::Check { file, rate, burst, ticks } => {
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let mut log = Vec::new();
            for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let line: Line = serde_json::from_str(line).with_context(|| format!("line {}", index + 1))?;
                log.push(Admission { at: line.at, tokens: line.tokens });
            }
            let bound = Bound::constant(ticks, rate, ticks, burst);
            let Some(verdict) = judge(&log, &bound) else { bail!("the log is empty") };
            let judged = Judged {
                exceeded: verdict.exceeded,
                peak_over_bound_ppm: verdict.peak_over_bound_ppm,
                peak_over_burst_ppm: verdict.peak_over_burst_ppm,
                from: verdict.from,
                to: verdict.to,
                admitted: verdict.admitted,
            };
            println!("{}", serde_json::to_string(&judged)?);
            if verdict.exceeded {
                bail!("over the bound");
            }
        }
    }
    Ok(())
}

fn rules_without(broken: Option<String>) -> anyhow::Result<Rules> {
    let Some(name) = broken else { return Ok(Rules::ALL) };
    let rule = Rule::ALL.iter().find(|rule| rule.name() == name);
    Ok(Rules::without(*rule.with_context(|| format!("no rule {name}"))?))
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("seeds are given as A..B")?;
    let number = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    Ok(number(from)?..number(to)?)
}
