//! A file's text as a tree in which everything has its place, whichever language it is written in.

use crate::failure::Failure;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::BTreeSet;
use std::fmt;
use toml::de::{DeTable, DeValue};

/// How deep a file may be nested: ours need five levels.
const DEPTH_MAX: usize = 32;

/// The languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Language {
    /// TOML
    Toml,
    /// YAML
    Yaml,
    /// JSON
    Json,
}

impl Language {
    /// By a file name's extension.
    pub fn of_extension(extension: &str) -> Option<Language> {
        match extension.to_ascii_lowercase().as_str() {
            "toml" => Some(Language::Toml),
            "yaml" | "yml" => Some(Language::Yaml),
            "json" => Some(Language::Json),
            _ => None,
        }
    }
}

/// Line and column, from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where.
    pub place: Place,
    /// What.
    pub value: Value,
}

/// What stands in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Whole(i128),
    /// Yes or no.
    Bool(bool),
    /// A list.
    List(Vec<Node>),
    /// Names with values, in the order of the file where that is known.
    Table(Vec<Entry>),
    /// Nothing at all.
    Nothing,
    /// Anything that no limit is made of, such as a date: as it is written.
    Other(String),
}

/// A name with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Where the name is.
    pub place: Place,
    /// Its value.
    pub node: Node,
}

impl Value {
    /// What it is, in an error.
    pub fn shown(&self) -> String {
        match self {
            Value::Text(text) => format!("{text:?}"),
            Value::Whole(number) => number.to_string(),
            Value::Bool(yes) => yes.to_string(),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
            Value::Nothing => "nothing".to_owned(),
            Value::Other(text) => text.clone(),
        }
    }
}

/// Reads a whole text.
///
/// # Errors
/// Where it is no TOML, YAML or JSON, and why.
pub fn read(language: Language, text: &str) -> Result<Node, (Place, String)> {
    match language {
        Language::Toml => read_toml(text),
        Language::Yaml => Yaml::new(text).document(),
        Language::Json => {
            // YAML, of which JSON is a part, knows the places; what is JSON and what isn't, it doesn't.
            let checked: Result<serde_json::Value, _> = serde_json::from_str(text);
            checked.map_err(|error| {
                let place = Place { line: error.line(), column: error.column() };
                let text = error.to_string();
                let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why);
                (place, why.to_owned())
            })?;
            Yaml::new(text).document()
        }
    }
}

fn read_toml(text: &str) -> Result<Node, (Place, String)> {
    let at = |offset: usize| place_of(text, offset);
    let table = DeTable::parse(text).map_err(|error| {
        let place = at(error.span().map_or(0, |span| span.start));
        (place, error.message().to_owned())
    })?;
    table_of(table.get_ref(), at(table.span().start), &at, 0)
}

fn table_of(
    table: &DeTable<'_>,
    place: Place,
    at: &impl Fn(usize) -> Place,
    depth: usize,
) -> Result<Node, (Place, String)> {
    let mut entries = Vec::new();
    for (name, value) in table.iter() {
        let place = at(name.span().start);
        let node = value_of(value.get_ref(), at(value.span().start), at, depth + 1)?;
        entries.push(Entry { name: name.get_ref().to_string(), place, node });
    }
    // The parser sorts by name.
    entries.sort_by_key(|entry| entry.place);
    Ok(Node { place, value: Value::Table(entries) })
}

fn value_of(
    value: &DeValue<'_>,
    place: Place,
    at: &impl Fn(usize) -> Place,
    depth: usize,
) -> Result<Node, (Place, String)> {
    if depth > DEPTH_MAX {
        return Err((place, too_deep()));
    }
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Other(number.as_str().to_owned()),
        },
        DeValue::Float(number) => Value::Other(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Value::Bool(*yes),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(list) => {
            let items =
                list.iter().map(|item| value_of(item.get_ref(), at(item.span().start), at, depth + 1));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => return table_of(table, place, at, depth),
    };
    Ok(Node { place, value })
}

fn place_of(text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count();
    Place { line: before.matches('\n').count() + 1, column: column + 1 }
}

fn too_deep() -> String {
    format!("nested deeper than {DEPTH_MAX} levels")
}

/// Builds a tree from a YAML parser's events.
struct Yaml<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
}

type Read<T> = Result<T, (Place, String)>;

impl<'a> Yaml<'a> {
    fn new(text: &'a str) -> Yaml<'a> {
        Yaml { events: Parser::new_from_str(text) }
    }

    fn next(&mut self) -> Read<(Event<'a>, Place)> {
        let place = |span: Span| Place { line: span.start.line(), column: span.start.col() + 1 };
        let scan = |error: ScanError| {
            let marker = error.marker();
            (Place { line: marker.line(), column: marker.col() + 1 }, error.info().to_owned())
        };
        match self.events.next_event() {
            Some(next) => next.map(|(event, span)| (event, place(span))).map_err(scan),
            None => Ok((Event::StreamEnd, Place::default())),
        }
    }

    /// The one document that there may be. None is like an empty one.
    fn document(mut self) -> Read<Node> {
        let mut document = None;
        loop {
            let (event, place) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) if document.is_some() => {
                    return Err((place, "a second document begins, allowed: one".to_owned()));
                }
                Event::StreamStart | Event::Nothing | Event::DocumentStart(_) | Event::DocumentEnd => {}
                event => document = Some(self.node(event, place, 0)?),
            }
        }
        Ok(document.unwrap_or(Node { place: Place { line: 1, column: 1 }, value: Value::Nothing }))
    }

    fn node(&mut self, event: Event<'a>, place: Place, depth: usize) -> Read<Node> {
        if depth > DEPTH_MAX {
            return Err((place, too_deep()));
        }
        let value = match event {
            Event::Scalar(text, style, _, None) => scalar(&text, style),
            Event::SequenceStart(_, None) => {
                let mut items = Vec::new();
                loop {
                    let (event, place) = self.next()?;
                    if event == Event::SequenceEnd {
                        break Value::List(items);
                    }
                    items.push(self.node(event, place, depth + 1)?);
                }
            }
            Event::MappingStart(_, None) => self.table(depth)?,
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                return Err((place, "tags have no meaning here".to_owned()));
            }
            // An alias may make a small file huge.
            Event::Alias(_) => return Err((place, "aliases have no meaning here".to_owned())),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err((place, "a value is missing".to_owned())),
        };
        Ok(Node { place, value })
    }

    fn table(&mut self, depth: usize) -> Read<Value> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut names = BTreeSet::new();
        loop {
            let (event, place) = self.next()?;
            let name = match event {
                Event::MappingEnd => return Ok(Value::Table(entries)),
                // Names are text, also where they look like something else.
                Event::Scalar(name, _, _, None) => name.into_owned(),
                _ => return Err((place, "a name is not text".to_owned())),
            };
            if !names.insert(name.clone()) {
                return Err((place, format!("{name:?} is given twice")));
            }
            let (event, at) = self.next()?;
            let node = self.node(event, at, depth + 1)?;
            entries.push(Entry { name, place, node });
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Nothing,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => match text.parse() {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Text(text.to_owned()),
        },
    }
}

/// Reads a text, and puts an error into words.
///
/// # Errors
/// [`Failure::Refused`] with file, line and column.
pub fn read_named(name: &str, language: Language, text: &str) -> Result<Node, Failure> {
    read(language, text).map_err(|(place, why)| Failure::Refused(vec![format!("{name}:{place}: {why}")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(node: &'a Node, name: &str) -> &'a Entry {
        match &node.value {
            Value::Table(entries) => entries.iter().find(|entry| entry.name == name).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_three_languages_say_the_same_and_where() {
        let toml = "# why\n[limits.\"a b\"]\nrate = \"5/s\"\nburst = 7\n";
        let yaml = "# why\nlimits:\n  a b:\n    rate: 5/s\n    burst: 7\n";
        let json = "{\n \"limits\": { \"a b\": {\n  \"rate\": \"5/s\",\n  \"burst\": 7 } } }\n";
        let places = [
            (Language::Toml, toml, (4, 9)),
            (Language::Yaml, yaml, (5, 12)),
            (Language::Json, json, (4, 12)),
        ];
        for (language, text, (line, column)) in places {
            let tree = read(language, text).unwrap();
            let limit = &entry(&entry(&tree, "limits").node, "a b").node;
            assert_eq!(entry(limit, "rate").node.value, Value::Text("5/s".to_owned()), "{language:?}");
            let burst = &entry(limit, "burst").node;
            assert_eq!(
                (&burst.value, burst.place),
                (&Value::Whole(7), Place { line, column }),
                "{language:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_place() {
        let [deep, nested] =
            [5_000, 40].map(|levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
        for (language, text, line, why) in [
            (Language::Toml, "a = 1\na = 2\n", 2, "duplicate"),
            (Language::Toml, "a = \n", 1, ""),
            (Language::Yaml, "a: 1\na: 2\n", 2, "twice"),
            (Language::Yaml, "a: 1\n---\nb: 2\n", 2, "second document"),
            (Language::Yaml, "a: &x 1\nb: *x\n", 2, "alias"),
            (Language::Yaml, "a: !!binary x\n", 1, "tag"),
            (Language::Yaml, "a: [1\n", 2, ""),
            (Language::Yaml, &deep, 1, "recursion"),
            (Language::Yaml, &nested, 1, "nested"),
            (Language::Json, "{\"a\": 1,}\n", 1, "trailing comma"),
            (Language::Json, "{\"a\": 1, \"a\": 2}\n", 1, "twice"),
            (Language::Json, "a: 1\n", 1, "expected"),
            (Language::Json, &deep, 1, "recursion"),
            (Language::Json, &nested, 1, "nested"),
        ] {
            let (place, said) = read(language, text).unwrap_err();
            assert_eq!(place.line, line, "{language:?} {said}");
            assert!(said.contains(why), "{language:?} {said}");
        }
        let (_, why) = read(Language::Toml, &format!("a = {deep}")).unwrap_err();
        assert!(!why.is_empty());
    }

    #[test]
    fn plain_words_of_yaml_are_text_unless_they_are_whole_numbers_or_yes_or_no() {
        for (text, value) in [
            ("5", Value::Whole(5)),
            ("-5", Value::Whole(-5)),
            ("5.5", Value::Text("5.5".to_owned())),
            ("\"5\"", Value::Text("5".to_owned())),
            ("yes", Value::Text("yes".to_owned())),
            ("true", Value::Bool(true)),
            ("~", Value::Nothing),
            ("1000/min", Value::Text("1000/min".to_owned())),
        ] {
            assert_eq!(read(Language::Yaml, text).unwrap().value, value, "{text}");
        }
    }
}
