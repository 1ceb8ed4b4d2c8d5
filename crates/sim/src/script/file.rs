//! The format of golden files: comments, commands, `----`, what they print, an empty line.

use std::fmt::Write as _;
use tollgate_core::rules::Rule;

/// A golden file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The rule that the script is about: `rule: NAME`.
    pub rule: Option<Rule>,
    /// With that rule switched off, the bound must be exceeded at least so far.
    pub broken: Broken,
    /// The lines before the first block, as they are.
    pub head: Vec<String>,
    /// Commands with what they print.
    pub blocks: Vec<Block>,
}

/// `broken: peak>=1.3` (of the bound) or `broken: burst>=1.3` (of the burst): the least that must be seen, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// Of the bound: `admitted / (B + integral of R)`.
    pub peak_ppm: u64,
    /// Of the burst: `(admitted - integral of R) / B`.
    pub burst_ppm: u64,
    /// `broken: none`: switching the rule off shows in the golden output only, not at the judge.
    pub none: bool,
}

/// Some commands and the output of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Where it begins, for errors.
    pub line: usize,
    /// Comments before and between the commands, and the commands, as they are.
    pub input: Vec<String>,
    /// What was printed.
    pub output: Vec<String>,
}

impl Block {
    /// The commands, without comments.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.input.iter().map(|line| strip_comment(line)).filter(|line| !line.is_empty())
    }
}

fn strip_comment(line: &str) -> &str {
    let end = if line.trim_start().starts_with('#') { 0 } else { line.find(" #").unwrap_or(line.len()) };
    line[..end].trim()
}

/// Reads a golden file.
///
/// # Errors
/// A text with the line's number.
pub fn parse(text: &str) -> Result<Script, String> {
    let mut script = Script::default();
    let mut block = Block::default();
    let (mut in_head, mut in_output) = (true, false);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let bad = |what: &str| format!("line {number}: {what}: {line}");
        let line = line.trim_end();
        if in_output {
            if line.is_empty() {
                in_output = false;
                script.blocks.push(std::mem::take(&mut block));
            } else {
                block.output.push(line.to_string());
            }
            continue;
        }
        if in_head {
            if let Some(name) = line.strip_prefix("rule:") {
                let rule = Rule::ALL.iter().find(|rule| rule.name() == name.trim());
                script.rule = Some(*rule.ok_or_else(|| bad("no such rule"))?);
            } else if let Some(text) = line.strip_prefix("broken:") {
                script.broken = broken(text).ok_or_else(|| bad("not like peak>=1.3, burst>=1.3 or none"))?;
            } else if !line.is_empty() && !line.starts_with('#') {
                in_head = false;
                // Comments right before the first command belong to it.
                let keep = script.head.iter().rposition(|line| line.is_empty()).map_or(0, |last| last + 1);
                block.input = script.head.split_off(keep);
            }
            if in_head {
                script.head.push(line.to_string());
                continue;
            }
        }
        if line == "----" {
            in_output = true;
        } else if !line.is_empty() {
            if block.commands().next().is_none() {
                block.line = number;
            }
            block.input.push(line.to_string());
        } else if !block.input.is_empty() {
            block.input.push(String::new());
        }
    }
    while block.input.last().is_some_and(String::is_empty) {
        block.input.pop();
    }
    if !block.input.is_empty() {
        script.blocks.push(block);
    }
    Ok(script)
}

fn broken(text: &str) -> Option<Broken> {
    let mut broken = Broken::default();
    for part in text.split([' ', ',']).filter(|part| !part.is_empty()) {
        if part == "none" {
            broken.none = true;
        } else {
            let (what, value) = part.split_once(">=")?;
            let ppm = super::args::decimal(value, 1_000_000)?;
            match what {
                "peak" => broken.peak_ppm = ppm,
                "burst" => broken.burst_ppm = ppm,
                _ => return None,
            }
        }
    }
    Some(broken)
}

/// Writes a golden file.
pub fn format(script: &Script) -> String {
    let mut text = String::new();
    for line in &script.head {
        let _infallible = writeln!(text, "{line}");
    }
    for (index, block) in script.blocks.iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        let (input, output) = (block.input.join("\n"), block.output.join("\n"));
        let end = if output.is_empty() { "" } else { "\n" };
        let _infallible = write!(text, "{gap}{input}\n----\n{output}{end}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_as_it_was_read() {
        let text = "# What it shows.\nrule: mint-slowly\nbroken: peak>=1.02, burst>=3.9\n\n# First.\nlimit a   # why\n\
                    ----\nok\n\n# Then.\nask w1\ncheck\n----\nw1: x\ny\n";
        let script = parse(text).unwrap();
        assert_eq!(format(&script), text);
        assert_eq!(script.rule.map(Rule::name), Some("mint-slowly"));
        assert_eq!((script.broken.peak_ppm, script.broken.burst_ppm), (1_020_000, 3_900_000));
        assert_eq!(script.blocks[0].commands().collect::<Vec<_>>(), ["limit a"]);
        assert_eq!(script.blocks[1].commands().collect::<Vec<_>>(), ["ask w1", "check"]);
        assert!(parse("rule: nonsense\n").unwrap_err().starts_with("line 1: no such rule"));
    }
}
