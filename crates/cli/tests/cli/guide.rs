//! The commands in the guide and in the README are ones that the program takes.

use clap::Parser as _;
use std::path::{Path, PathBuf};
use tollgate_cli::args::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands in a text's blocks of code, each with its line, as a shell would take them apart.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let (mut inside, mut found) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = !inside && ["", "console", "sh", "bash"].contains(&language);
            continue;
        }
        let line = line.trim().strip_prefix("$ ").unwrap_or(line.trim());
        if inside && line.starts_with("tollgate ") {
            found.push((number + 1, words(line)));
        }
    }
    found
}

/// Up to a comment, a pipe, a redirection or the next command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (None, '#' | '|' | '>' | ';' | '&') if word.is_empty() => break,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            (_, c) => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

fn texts() -> Vec<PathBuf> {
    let guide = std::fs::read_dir(root().join("docs/guide/src")).unwrap();
    let mut all: Vec<PathBuf> = guide.map(|entry| entry.unwrap().path()).collect();
    all.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    all.push(root().join("README.md"));
    all.sort();
    all
}

#[test]
fn every_command_in_the_guide_is_one_that_the_program_takes() {
    let mut count = 0;
    for file in texts() {
        let text = std::fs::read_to_string(&file).unwrap();
        for (line, words) in commands(&text) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(&words) {
                let is_help = !error.use_stderr();
                assert!(is_help, "{}:{line}: {words:?}: {error}", file.display());
            }
        }
    }
    assert!(count > 20, "{count} commands are hardly all");
}

#[test]
fn every_page_of_the_guide_is_in_its_contents_and_its_links_lead_somewhere() {
    let folder = root().join("docs/guide/src");
    let contents = std::fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    for file in texts().iter().filter(|file| file.starts_with(&folder)) {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || contents.contains(&format!("({name})")), "{name}");
        let text = std::fs::read_to_string(file).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or(link);
            let is_here = path.is_empty() || path.starts_with("http") || folder.join(path).exists();
            assert!(is_here, "{name}: {link}");
        }
    }
}

#[test]
fn a_command_that_there_is_not_is_noticed() {
    let text =
        "```\ntollgate limit sett api --rate 5/s  # no\ntollgate status | head\n```\ntollgate nothing\n";
    let found = commands(text);
    assert_eq!(found[0].1, ["tollgate", "limit", "sett", "api", "--rate", "5/s"]);
    assert_eq!(found[1].1, ["tollgate", "status"]);
    assert_eq!(found.len(), 2);
    assert!(Cli::try_parse_from(&found[0].1).is_err());
}
