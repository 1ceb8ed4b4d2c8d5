//! What a file says of limits.

use super::tree::{Entry, Node, Place, Value};
use crate::quantity;
use tollgate_core::limit::{CellKey, check_label, check_name};
use tollgate_core::units::Span;
use tollgate_workflows::wire::config::{LimitJson, LimitPolicyJson, RateJson};

/// What a file may have.
pub const FILE_FIELDS: &[&str] = &["$schema", "limits", "ramp"];
/// What a limit may have beyond what a meter may have.
pub const LIMIT_FIELDS: &[&str] = &["meters"];
/// What a meter may have.
pub const METER_FIELDS: &[&str] = &["rate", "burst", "lease", "policy", "concurrency", "drain"];
/// The policies, by their names on the command line. `concurrency` has one of its own.
pub const POLICIES: &[(&str, LimitPolicyJson)] = &[
    ("token-bucket", LimitPolicyJson::TokenBucket),
    ("leaky-bucket", LimitPolicyJson::LeakyBucket),
    ("sliding-window", LimitPolicyJson::SlidingWindow),
];
/// Names that differ in more than this, of one, are no slips of the pen.
const ALIKE: f64 = 0.75;

/// One meter of a limit, with everything that a file leaves out at its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// Where it is.
    pub place: Place,
    /// What it is to be.
    pub limit: LimitJson,
}

/// What a file says.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// All meters that could be read.
    pub limits: Vec<Stated>,
    /// How long changes ramp.
    pub ramp: Option<(Place, u64)>,
    /// All that is wrong.
    pub problems: Vec<(Place, String)>,
}

/// Reads a file's tree. Nothing of it counts while there are problems.
pub fn decode(tree: &Node) -> File {
    let mut file = File::default();
    let Some(entries) = file.table("the file", tree, &[FILE_FIELDS]) else { return file };
    for entry in entries {
        match entry.name.as_str() {
            "limits" => {
                if let Value::Table(limits) = &entry.node.value {
                    limits.iter().for_each(|limit| file.limit(limit));
                } else {
                    file.wrong("limits", &entry.node, "a table of limits by their names");
                }
            }
            "ramp" => {
                let ramp = file.duration("ramp", &entry.node, quantity::ramp);
                file.ramp = ramp.map(|ramp| (entry.node.place, ramp.millis()));
            }
            // For editors.
            _ => {}
        }
    }
    file.problems.sort_by_key(|(place, _)| *place);
    file
}

/// What a meter's fields say, before they are put together.
#[derive(Clone, Copy, Default)]
struct Fields {
    rate: Option<RateJson>,
    burst: Option<u64>,
    lease: Option<Span>,
    policy: Option<LimitPolicyJson>,
    concurrency: Option<u64>,
    drain: Option<Span>,
}

impl File {
    fn problem(&mut self, place: Place, why: String) {
        self.problems.push((place, why));
    }

    fn wrong(&mut self, field: &str, node: &Node, allowed: &str) {
        self.problem(node.place, format!("{field} is {}, allowed: {allowed}", node.value.shown()));
    }

    /// The entries of a table that has no others than these.
    fn table<'a>(&mut self, what: &str, node: &'a Node, known: &[&[&str]]) -> Option<&'a [Entry]> {
        let Value::Table(entries) = &node.value else {
            // An empty file of YAML is nothing, and says nothing.
            if node.value != Value::Nothing {
                self.wrong(what, node, "a table");
            }
            return None;
        };
        for entry in entries {
            if !known.iter().any(|names| names.contains(&entry.name.as_str())) {
                let alike = |name: &&&str| strsim::normalized_damerau_levenshtein(name, &entry.name) >= ALIKE;
                let hint = match known.iter().flat_map(|names| names.iter()).find(alike) {
                    Some(name) => format!("; is {name:?} meant?"),
                    None => format!("; there are {}", known.concat().join(", ")),
                };
                self.problem(entry.place, format!("{what} has no {:?}{hint}", entry.name));
            }
        }
        Some(entries)
    }

    fn limit(&mut self, entry: &Entry) {
        let name = &entry.name;
        if let Err(error) = check_name("name", name) {
            return self.problem(entry.place, error.to_string());
        }
        let what = format!("limit {name:?}");
        let Some(entries) = self.table(&what, &entry.node, &[METER_FIELDS, LIMIT_FIELDS]) else {
            if entry.node.value == Value::Nothing {
                self.problem(entry.place, format!("{what} has neither rate, concurrency nor meters"));
            }
            return;
        };
        let before = self.problems.len();
        let mut own = self.fields(entries);
        let mut meters: Vec<(Place, String, Fields)> = Vec::new();
        for field in entries.iter().filter(|field| field.name == "meters") {
            let Value::Table(entries) = &field.node.value else {
                self.wrong("meters", &field.node, "a table of meters by their names");
                continue;
            };
            for meter in entries {
                if let Err(error) = check_label("meter", &meter.name) {
                    self.problem(meter.place, error.to_string());
                } else if let Some(entries) =
                    self.table(&format!("meter {:?}", meter.name), &meter.node, &[METER_FIELDS])
                {
                    let fields = self.fields(entries);
                    meters.push((meter.place, meter.name.clone(), fields));
                }
            }
        }
        // What is said of the limit is said of its usual meters.
        if own.concurrency.is_some() {
            let (concurrency, drain) = (own.concurrency.take(), own.drain.take());
            meters.insert(
                0,
                (
                    entry.place,
                    CellKey::IN_FLIGHT.to_owned(),
                    Fields { concurrency, drain, ..Fields::default() },
                ),
            );
        }
        if own.rate.is_some() {
            meters.insert(0, (entry.place, CellKey::METER.to_owned(), own));
        } else {
            let alone = [
                ("burst", "rate", own.burst.is_some()),
                ("policy", "rate", own.policy.is_some()),
                ("drain", "concurrency", own.drain.is_some()),
            ];
            for (field, of, _) in alone.into_iter().filter(|(_, _, is_given)| *is_given) {
                self.problem(entry.place, format!("{what}: {field} is given without {of}"));
            }
        }
        if meters.is_empty() && self.problems.len() == before {
            self.problem(entry.place, format!("{what} has neither rate, concurrency nor meters"));
        }
        let mut names: Vec<&str> = Vec::new();
        let mut twice = Vec::new();
        for (place, meter, _) in &meters {
            if names.contains(&meter.as_str()) {
                twice.push((*place, format!("{what}: meter {meter:?} is given twice")));
            }
            names.push(meter);
        }
        self.problems.append(&mut twice);
        for (place, meter, fields) in meters {
            let fields = Fields { lease: fields.lease.or(own.lease), ..fields };
            match complete(name, &meter, fields) {
                Ok(limit) => self.limits.push(Stated { place, limit }),
                // What is missing may be among what couldn't be read.
                Err(_) if self.problems.len() > before => {}
                Err(why) => self.problem(place, format!("{what}, meter {meter:?}: {why}")),
            }
        }
    }

    fn fields(&mut self, entries: &[Entry]) -> Fields {
        let mut fields = Fields::default();
        for Entry { name, node, .. } in entries {
            match name.as_str() {
                "rate" => fields.rate = self.rate(node),
                "burst" => fields.burst = self.whole("burst", node),
                "concurrency" => fields.concurrency = self.whole("concurrency", node),
                "lease" => fields.lease = self.duration("lease", node, quantity::lease),
                "drain" => fields.drain = self.duration("drain", node, quantity::ramp),
                "policy" => fields.policy = self.policy(node),
                _ => {}
            }
        }
        fields
    }

    fn rate(&mut self, node: &Node) -> Option<RateJson> {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Whole(number) => number.to_string(),
            other => other.shown(),
        };
        quantity::rate(&text).map_err(|why| self.problem(node.place, format!("rate is {text:?}, {why}"))).ok()
    }

    fn whole(&mut self, field: &str, node: &Node) -> Option<u64> {
        let number = match &node.value {
            Value::Whole(number) => number.to_string(),
            other => other.shown(),
        };
        let read = quantity::burst(&number);
        read.map_err(|why| self.problem(node.place, format!("{field} is {number}, {why}"))).ok()
    }

    fn duration(
        &mut self,
        field: &str,
        node: &Node,
        read: impl Fn(&str) -> Result<Span, String>,
    ) -> Option<Span> {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            other => other.shown(),
        };
        read(&text).map_err(|why| self.problem(node.place, format!("{field} is {text:?}, {why}"))).ok()
    }

    fn policy(&mut self, node: &Node) -> Option<LimitPolicyJson> {
        let known = |text: &String| POLICIES.iter().find(|(name, _)| name == text).map(|(_, policy)| *policy);
        let found = match &node.value {
            Value::Text(text) => known(text),
            _ => None,
        };
        if found.is_none() {
            let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
            self.wrong("policy", node, &names.join(", "));
        }
        found
    }
}

/// A meter with everything that isn't said at its default: leaving something out of a file puts it back.
fn complete(name: &str, meter: &str, fields: Fields) -> Result<LimitJson, &'static str> {
    let mut limit = LimitJson { meter: meter.to_owned(), ..LimitJson::named(name) };
    limit.lease_ms = fields.lease.map(Span::millis);
    if let Some(concurrency) = fields.concurrency {
        if fields.rate.is_some() || fields.burst.is_some() || fields.policy.is_some() {
            return Err("concurrency is given, allowed: no rate, burst or policy beside it");
        }
        let drain_ms = fields.drain.unwrap_or(Span::ZERO).millis();
        limit.policy = Some(LimitPolicyJson::InFlight { drain_ms });
        limit.burst = Some(concurrency);
    } else {
        if fields.drain.is_some() {
            return Err("drain is given without concurrency");
        }
        let rate = fields.rate.ok_or("rate is missing")?;
        let policy = fields.policy.unwrap_or(LimitPolicyJson::TokenBucket);
        limit.rate = Some(rate);
        limit.burst = fields.burst;
        if policy == LimitPolicyJson::TokenBucket {
            limit.burst = Some(limit.burst_or_default(rate));
        }
        limit.policy = Some(policy);
    }
    limit.lease_ms = Some(limit.lease_or_default().millis());
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Language, read};
    use super::*;

    fn file(text: &str) -> File {
        decode(&read(Language::Toml, text).unwrap())
    }

    #[test]
    fn what_a_file_leaves_out_is_put_back_to_its_default() {
        let text = "
            [limits.openai]
            rate = \"1000/min\"
            concurrency = 20
            drain = \"5s\"
            [limits.openai.meters.tokens]
            rate = \"100000/min\"
            lease = \"30s\"
            [limits.search]
            rate = 100
            lease = \"8s\"
            [limits.odd.meters.bytes]
            rate = \"1000/10s\"
            policy = \"sliding-window\"
        ";
        let file = file(text);
        assert!(file.problems.is_empty(), "{:?}", file.problems);
        let seen: Vec<_> = file
            .limits
            .iter()
            .map(|Stated { limit, .. }| {
                (limit.name.as_str(), limit.meter.as_str(), limit.burst, limit.lease_ms)
            })
            .collect();
        let wanted = [
            ("openai", "requests", Some(1_000), Some(15_000)),
            ("openai", "in_flight", Some(20), Some(15_000)),
            ("openai", "tokens", Some(100_000), Some(30_000)),
            ("search", "requests", Some(100), Some(8_000)),
            ("odd", "bytes", None, Some(2_000)),
        ];
        assert_eq!(seen, wanted);
        let in_flight = Some(LimitPolicyJson::InFlight { drain_ms: 5_000 });
        assert_eq!(file.limits.get(1).map(|stated| stated.limit.policy), Some(in_flight));
    }

    #[test]
    fn every_problem_of_a_file_is_named_with_its_place_at_once() {
        let text = "\
ramp = \"soon\"
rates = 3
[limits.a]
rate = \"5/parsec\"
brust = 3
[limits.b]
burst = 5
[limits.c]
rate = \"5/s\"
burst = -1
lease = 8
policy = \"fifo\"
[limits.d]
rate = \"5/s\"
drain = \"5s\"
[limits.e]
concurrency = 5
[limits.e.meters.in_flight]
concurrency = 6
[limits.f]
[limits.g]
meters = 5
[limits.\" h\"]
rate = \"5/s\"
";
        let problems: Vec<String> =
            file(text).problems.iter().map(|(place, why)| format!("{place} {why}")).collect();
        let text = problems.join("\n");
        for part in [
            "1:8 ramp is \"soon\", allowed: ",
            "2:1 the file has no \"rates\"; there are $schema, limits, ramp",
            "4:8 rate is \"5/parsec\", allowed: ",
            "5:1 limit \"a\" has no \"brust\"; is \"burst\" meant?",
            "limit \"b\": burst is given without rate",
            "10:9 burst is -1, ",
            "11:9 lease is \"8\", allowed: ",
            "12:10 policy is \"fifo\", allowed: token-bucket, leaky-bucket, sliding-window",
            "drain is given without concurrency",
            "limit \"e\": meter \"in_flight\" is given twice",
            "limit \"f\" has neither rate, concurrency nor meters",
            "22:10 meters is 5, allowed: ",
            "23:9 ",
        ] {
            assert!(text.contains(part), "{part}\n--\n{text}");
        }
        assert_eq!(problems.len(), 13, "{text}");
    }

    #[test]
    fn the_schema_for_editors_has_the_same_fields() {
        let schema: serde_json::Value = serde_json::from_str(super::super::SCHEMA).unwrap();
        let fields = |path: &str| -> Vec<String> {
            let table = schema.pointer(path).and_then(serde_json::Value::as_object).unwrap();
            table.keys().cloned().collect()
        };
        let sorted = |names: &[&[&str]]| {
            let mut names: Vec<String> = names.concat().iter().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(fields("/properties"), sorted(&[FILE_FIELDS]));
        assert_eq!(fields("/$defs/limit/properties"), sorted(&[METER_FIELDS, LIMIT_FIELDS]));
        assert_eq!(fields("/$defs/meter/properties"), sorted(&[METER_FIELDS]));
        let policies = schema.pointer("/$defs/meter/properties/policy/enum").unwrap();
        let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
        assert_eq!(policies, &serde_json::json!(names));
    }
}
