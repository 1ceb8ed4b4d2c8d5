//! Golden scripts: a small command language over a [`World`], see [`command`] for the commands.
//!
//! A script about a rule (`rule: NAME` in its head) runs twice. With all rules it must print what the file says, and the
//! judge must find the bound kept. With that rule switched off the same commands must exceed it, by at least what
//! `broken: peak>=…` says; their output doesn't matter then.

pub mod args;
pub mod command;
pub mod explained;
pub mod file;
mod message;
pub mod show;

use crate::checker::Verdict;
use crate::world::World;
use file::Script;
use std::path::Path;
use tollgate_core::limit::CellKey;
use tollgate_core::rules::Rules;

/// The seed of every script's world.
const SEED: u64 = 1;

/// What a run printed, by block, and what the judge found worst.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The lines of each block.
    pub output: Vec<Vec<String>>,
    /// The cell that comes nearest to its bound or exceeds it most, if anything was admitted.
    pub worst: Option<(CellKey, Verdict)>,
}

/// Runs a script's commands under `rules`. A command that can't be done prints an error and the run goes on.
pub fn run(script: &Script, rules: Rules) -> Outcome {
    let mut world = World::new(rules, SEED);
    let mut output = Vec::new();
    for block in &script.blocks {
        let mut lines = Vec::new();
        for line in block.commands() {
            match command::execute(&mut world, line) {
                Ok(more) => lines.extend(more),
                Err(error) => lines.push(format!("error: {error}")),
            }
        }
        output.push(lines);
    }
    Outcome { output, worst: worst(&world) }
}

/// What the judge finds worst in a world.
pub fn worst(world: &World) -> Option<(CellKey, Verdict)> {
    world.verdicts().into_iter().max_by_key(|(_, verdict)| verdict.peak_over_bound_ppm)
}

/// Checks a golden file in both of its modes. With `update`, its expected output is rewritten first. Returns a line for
/// people about what was shown.
///
/// # Errors
/// A text that says what is not as it should be.
pub fn check_file(path: &Path, update: bool) -> Result<String, String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let mut script = file::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    let kept = run(&script, Rules::ALL);
    if update {
        for (block, lines) in script.blocks.iter_mut().zip(&kept.output) {
            block.output.clone_from(lines);
        }
        let new = file::format(&script);
        if new != text {
            std::fs::write(path, new).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    for (block, lines) in script.blocks.iter().zip(&kept.output) {
        if block.output != *lines {
            let (expected, got) = (block.output.join("\n  "), lines.join("\n  "));
            let at = block.line;
            return Err(format!(
                "{name}: line {at}: expected\n  {expected}\ngot\n  {got}\n(UPDATE_GOLDEN=1 rewrites)"
            ));
        }
    }
    if let Some((key, verdict)) = kept.worst.as_ref().filter(|(_, verdict)| verdict.exceeded) {
        return Err(format!("{name}: with all rules: {}", show::verdict(&key.to_string(), verdict)));
    }
    let Some(rule) = script.rule else { return Ok(format!("{name}: ok")) };
    let broken = run(&script, Rules::without(rule));
    let shown = broken.worst.map(|(key, verdict)| (show::verdict(&key.to_string(), &verdict), verdict));
    let Some((text, verdict)) = shown else {
        return Err(format!("{name}: nothing was admitted without {}", rule.name()));
    };
    let least = script.broken;
    let enough = verdict.exceeded
        && verdict.peak_over_bound_ppm >= least.peak_ppm
        && verdict.peak_over_burst_ppm >= least.burst_ppm;
    if !enough && !least.none {
        let (peak, burst) = (show::ratio(least.peak_ppm), show::ratio(least.burst_ppm));
        return Err(format!(
            "{name}: without the rule, expected at least peak {peak}, burst {burst}, got {text}"
        ));
    }
    if least.none && broken.output == kept.output {
        return Err(format!("{name}: without the rule, nothing changes"));
    }
    Ok(format!("{name}: ok; without the rule {text}"))
}
