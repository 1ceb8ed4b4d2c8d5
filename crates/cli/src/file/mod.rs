//! Limits in files: what `tollgate apply`, `plan` and `validate` read and `export` writes.
//!
//! [`tree`] reads TOML, YAML and JSON alike, [`limits`] makes limits of that and names everything that is wrong with its place,
//! [`export`] is the way back.

pub mod export;
pub mod limits;
pub mod schedules;
pub mod tree;

use crate::failure::Failure;
use crate::moment;
use limits::Stated;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tollgate_core::units::LedgerTime;
use tollgate_workflows::wire::config::LimitJson;
use tollgate_workflows::wire::layers::ScheduleJson;
use tree::Language;

/// The most that is read of one file: a thousand limits take a tenth of it.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most files that are read of a directory.
const FILES_MAX: usize = 1_000;
/// The schema of a file, for editors.
pub const SCHEMA: &str = include_str!("../../../../docs/limits.schema.json");

/// What all files together say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Every meter of every limit, with file, line and column.
    pub limits: Vec<(String, LimitJson)>,
    /// How long changes ramp, if the files say so.
    pub ramp_ms: Option<u64>,
    /// Schedules with file, line and column, if any file says something of them.
    pub schedules: Option<Vec<(String, ScheduleJson)>>,
}

/// Reads files, directories (their `.toml`, `.yaml`, `.yml` and `.json` files, not those below) and, for `-`, standard input.
///
/// # Errors
/// [`Failure::Refused`] with every problem, each with its file, line and column; [`Failure::Failed`] when something can't be
/// read at all.
pub fn read(paths: &[PathBuf], language: Option<Language>) -> Result<Wanted, Failure> {
    let mut wanted = Wanted::default();
    let mut problems = Vec::new();
    let mut ramp_from: Option<String> = None;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for (name, language, text) in texts(paths, language)? {
        let tree = match tree::read_named(&name, language, &text) {
            Ok(tree) => tree,
            Err(Failure::Refused(why)) => {
                problems.extend(why);
                continue;
            }
            Err(other) => return Err(other),
        };
        let file = limits::decode(&tree, LedgerTime(moment::now_us()));
        problems.extend(file.problems.iter().map(|(place, why)| format!("{name}:{place}: {why}")));
        if let Some((place, ramp_ms)) = file.ramp {
            let here = format!("{name}:{place}");
            match (&ramp_from, wanted.ramp_ms) {
                (Some(there), Some(other)) if other != ramp_ms => {
                    problems.push(format!("{here}: ramp differs from the one at {there}"));
                }
                _ => (ramp_from, wanted.ramp_ms) = (Some(here), Some(ramp_ms)),
            }
        }
        if let Some(schedules) = file.schedules {
            let all = wanted.schedules.get_or_insert_default();
            for (place, schedule) in schedules {
                let here = format!("{name}:{place}");
                let is_it = |(_, other): &&(String, ScheduleJson)| {
                    other.key() == schedule.key() && other.name == schedule.name
                };
                if let Some((there, _)) = all.iter().find(is_it) {
                    problems.push(format!("{here}: schedule {:?} is also at {there}", schedule.name));
                }
                all.push((here, schedule));
            }
        }
        let mut new = BTreeMap::new();
        for Stated { place, limit } in file.limits {
            let here = format!("{name}:{place}");
            if let Some(there) = seen.get(&limit.name) {
                problems.push(format!("{here}: limit {:?} is also at {there}", limit.name));
            }
            new.entry(limit.name.clone()).or_insert(here.clone());
            wanted.limits.push((here, limit));
        }
        seen.append(&mut new);
    }
    if problems.is_empty() { Ok(wanted) } else { Err(Failure::Refused(problems)) }
}

/// Every text with its name and language.
fn texts(paths: &[PathBuf], language: Option<Language>) -> Result<Vec<(String, Language, String)>, Failure> {
    let mut texts = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
            read.map_err(|error| Failure::Failed(format!("standard input can't be read: {error}")))?;
            check_size("standard input", text.len() as u64)?;
            texts.push(("-".to_owned(), language.unwrap_or(Language::Toml), text));
        } else if path.is_dir() {
            for (path, language) in files_of(path)? {
                texts.push((path.display().to_string(), language, text_of(&path)?));
            }
        } else {
            let by_name =
                || path.extension().and_then(|extension| Language::of_extension(extension.to_str()?));
            let Some(language) = language.or_else(by_name) else {
                let shown = path.display();
                return Err(Failure::Usage(format!(
                    "{shown}: neither .toml, .yaml, .yml nor .json: name its language with --format"
                )));
            };
            texts.push((path.display().to_string(), language, text_of(path)?));
        }
    }
    Ok(texts)
}

fn files_of(directory: &Path) -> Result<Vec<(PathBuf, Language)>, Failure> {
    let shown = directory.display();
    let unread = |error: std::io::Error| Failure::Failed(format!("{shown} can't be read: {error}"));
    let mut files = Vec::new();
    for entry in directory.read_dir().map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(language) = extension.and_then(Language::of_extension)
            && path.is_file()
        {
            files.push((path, language));
        }
        if files.len() > FILES_MAX {
            return Err(Failure::Failed(format!("{shown} has more than {FILES_MAX} files of limits")));
        }
    }
    if files.is_empty() {
        return Err(Failure::Failed(format!("{shown} has no .toml, .yaml, .yml or .json file")));
    }
    files.sort();
    Ok(files)
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let unread = |error: std::io::Error| Failure::Failed(format!("{shown} can't be read: {error}"));
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unread)?;
    check_size(&shown.to_string(), text.len() as u64)?;
    Ok(text)
}

fn check_size(name: &str, bytes: u64) -> Result<(), Failure> {
    if bytes > FILE_BYTES_MAX {
        return Err(Failure::Failed(format!("{name} is too large, allowed: up to {FILE_BYTES_MAX} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_directory_is_one_statement_and_all_its_problems_come_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        written(path, "a.toml", "ramp = \"30s\"\n[limits.a]\nrate = \"5/s\"\n");
        written(path, "b.yaml", "limits:\n  b: { rate: 6/s }\n");
        written(path, "readme.md", "# not limits\n");
        let wanted = read(&[path.to_owned()], None).unwrap();
        let names: Vec<&str> = wanted.limits.iter().map(|(_, limit)| limit.name.as_str()).collect();
        assert_eq!((names, wanted.ramp_ms), (vec!["a", "b"], Some(30_000)));

        written(path, "c.json", "{\"limits\": {\"a\": {\"rate\": \"7/s\"}}, \"ramp\": \"1s\"}");
        written(path, "d.toml", "[limits.d]\nrate = \n");
        let Err(Failure::Refused(problems)) = read(&[path.to_owned()], None) else { panic!() };
        let text = problems.join("\n");
        assert_eq!(problems.len(), 3, "{text}");
        for part in ["c.json:1:", "limit \"a\" is also at ", "a.toml:2:", "ramp differs", "d.toml:2:"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_file_in_no_known_language_and_one_that_is_not_there_are_said_so() {
        let directory = tempfile::tempdir().unwrap();
        let odd = written(directory.path(), "limits.conf", "[limits.a]\nrate = \"5/s\"\n");
        let error = read(std::slice::from_ref(&odd), None).unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains("--format")), "{error}");
        assert_eq!(read(&[odd], Some(Language::Toml)).unwrap().limits.len(), 1);
        let error = read(&[directory.path().join("none.toml")], None).unwrap_err();
        assert!(matches!(&error, Failure::Failed(text) if text.contains("none.toml")), "{error}");
    }
}
