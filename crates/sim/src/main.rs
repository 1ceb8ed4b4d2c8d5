//! Runs golden scripts, and judges logs of admissions.
#![allow(clippy::print_stdout, reason = "a program that talks to a person")]

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tollgate_core::rules::{Rule, Rules};
use tollgate_sim::checker::{Admission, Bound, judge};
use tollgate_sim::{explore, script};

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
