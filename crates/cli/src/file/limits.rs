//! What a file says of limits.

use super::tree::{Entry, Node, Place, Value};
use crate::quantity;
use tollgate_activities::calendar;
use tollgate_core::limit::{CellKey, check_label, check_name};
use tollgate_core::units::{LedgerTime, Span};
use tollgate_workflows::wire::conduct::{ConductJson, WhenLostJson};
use tollgate_workflows::wire::config::{InitialJson, LimitJson, LimitPolicyJson, RateJson, WindowJson};
use tollgate_workflows::wire::layers::ScheduleJson;

/// What a file may have.
pub const FILE_FIELDS: &[&str] = &["$schema", "limits", "ramp", "schedules"];
/// What a limit may have beyond what a meter may have.
pub const LIMIT_FIELDS: &[&str] = &["meters"];
/// What a meter may have beyond what a tier of it may have.
pub const METER_FIELDS: &[&str] = &["tiers"];
/// What a tier, and a meter that has one, may have.
pub const CELL_FIELDS: &[&str] = &[
    "rate",
    "burst",
    "lease",
    "policy",
    "concurrency",
    "drain",
    "initial",
    "queue",
    "window",
    "time_zone",
    "reserve",
    "shadow",
    "when_lost",
];
/// What a tier may have beyond that.
pub const TIER_FIELDS: &[&str] = &["rank", "floor", "lend"];
/// The policies, by their names on the command line. `concurrency` has one of its own.
pub const POLICIES: &[(&str, Policy)] = &[
    ("token-bucket", Policy::TokenBucket),
    ("leaky-bucket", Policy::LeakyBucket),
    ("sliding-window", Policy::SlidingWindow),
    ("fixed-window", Policy::FixedWindow),
];
/// The windows of the calendar.
const WINDOWS: &[(&str, WindowJson)] = &[
    ("hour", WindowJson::Hour),
    ("day", WindowJson::Day),
    ("week", WindowJson::Week),
    ("month", WindowJson::Month),
];
/// What there is at the beginning.
const INITIALS: &[(&str, InitialJson)] = &[("full", InitialJson::Full), ("empty", InitialJson::Empty)];
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
    /// Schedules, if the file says anything of them.
    pub schedules: Option<Vec<(Place, ScheduleJson)>>,
    /// All that is wrong.
    pub problems: Vec<(Place, String)>,
    pub(super) now: LedgerTime,
}

/// How a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A burst, then the rate.
    TokenBucket,
    /// Evenly spaced.
    LeakyBucket,
    /// So many in any window.
    SlidingWindow,
    /// So many in each window of the calendar.
    FixedWindow,
}

/// Reads a file's tree. Nothing of it counts while there are problems. Windows of the calendar begin with the one at `now`.
pub fn decode(tree: &Node, now: LedgerTime) -> File {
    let mut file = File { now, ..File::default() };
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
            "schedules" => file.schedules = Some(file.schedules(&entry.node)),
            // For editors.
            _ => {}
        }
    }
    file.problems.sort_by_key(|(place, _)| *place);
    file
}

/// What the fields of a meter or tier say, before they are put together.
#[derive(Clone, Default)]
struct Fields {
    rate: Option<RateJson>,
    burst: Option<u64>,
    lease: Option<Span>,
    policy: Option<Policy>,
    concurrency: Option<u64>,
    drain: Option<Span>,
    initial: Option<InitialJson>,
    queue: Option<u64>,
    reserve: Option<u32>,
    shadow: Option<bool>,
    when_lost: Option<WhenLostJson>,
    window: Option<WindowJson>,
    time_zone: Option<String>,
    rank: Option<u32>,
    floor: Option<RateJson>,
    lend: Option<bool>,
    tiers: Vec<(Place, String, Fields)>,
}

impl Fields {
    /// What is said here, and for what isn't, what is said of all.
    fn or(self, all: &Fields) -> Fields {
        Fields {
            lease: self.lease.or(all.lease),
            policy: self.policy.or(all.policy),
            drain: self.drain.or(all.drain),
            initial: self.initial.or(all.initial),
            queue: self.queue.or(all.queue),
            reserve: self.reserve.or(all.reserve),
            shadow: self.shadow.or(all.shadow),
            when_lost: self.when_lost.or(all.when_lost),
            window: self.window.or(all.window),
            time_zone: self.time_zone.or_else(|| all.time_zone.clone()),
            ..self
        }
    }
}

impl File {
    pub(super) fn problem(&mut self, place: Place, why: String) {
        self.problems.push((place, why));
    }

    pub(super) fn wrong(&mut self, field: &str, node: &Node, allowed: &str) {
        self.problem(node.place, format!("{field} is {}, allowed: {allowed}", node.value.shown()));
    }

    /// The entries of a table that has no others than these.
    pub(super) fn table<'a>(&mut self, what: &str, node: &'a Node, known: &[&[&str]]) -> Option<&'a [Entry]> {
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
        let Some(entries) = self.table(&what, &entry.node, &[CELL_FIELDS, METER_FIELDS, LIMIT_FIELDS]) else {
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
                    self.table(&format!("meter {:?}", meter.name), &meter.node, &[CELL_FIELDS, METER_FIELDS])
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
        if own.rate.is_some() || !own.tiers.is_empty() {
            meters.insert(0, (entry.place, CellKey::METER.to_owned(), own.clone()));
        } else {
            let alone = [
                ("burst", "rate", own.burst.is_some()),
                ("policy", "rate", own.policy.is_some()),
                ("window", "rate", own.window.is_some()),
                ("time_zone", "rate", own.time_zone.is_some()),
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
            let fields = Fields {
                lease: fields.lease.or(own.lease),
                reserve: fields.reserve.or(own.reserve),
                shadow: fields.shadow.or(own.shadow),
                when_lost: fields.when_lost.or(own.when_lost),
                ..fields
            };
            for (place, tier, fields) in tiers_of(place, fields) {
                let named = tier.as_ref().map(|(name, ..)| format!(", tier {name:?}")).unwrap_or_default();
                match complete(name, &meter, fields, self.now) {
                    Ok(limit) => {
                        let limit = match tier {
                            Some(tier) => of_tier(limit, tier),
                            None => limit,
                        };
                        self.limits.push(Stated { place, limit });
                    }
                    // What is missing may be among what couldn't be read.
                    Err(_) if self.problems.len() > before => {}
                    Err(why) => self.problem(place, format!("{what}{named}, meter {meter:?}: {why}")),
                }
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
                "policy" => fields.policy = self.choice("policy", node, POLICIES),
                "initial" => fields.initial = self.choice("initial", node, INITIALS),
                "window" => fields.window = self.choice("window", node, WINDOWS),
                "reserve" => fields.reserve = self.text("reserve", node, quantity::reserve),
                "when_lost" => fields.when_lost = self.text("when_lost", node, quantity::when_lost),
                "shadow" => match node.value {
                    Value::Bool(shadow) => fields.shadow = Some(shadow),
                    _ => self.wrong("shadow", node, "true, false"),
                },
                "queue" => fields.queue = self.read("queue", node, quantity::queue),
                "time_zone" => match &node.value {
                    Value::Text(zone) => fields.time_zone = Some(zone.clone()),
                    _ => self.wrong("time_zone", node, "the IANA name of a time zone: Europe/Berlin"),
                },
                "rank" => {
                    let rank = self.whole("rank", node).map(u32::try_from);
                    fields.rank = rank.and_then(Result::ok);
                }
                "floor" => fields.floor = self.rate(node),
                "lend" => match node.value {
                    Value::Bool(lend) => fields.lend = Some(lend),
                    _ => self.wrong("lend", node, "true, false"),
                },
                "tiers" => fields.tiers = self.tiers(node),
                _ => {}
            }
        }
        fields
    }

    fn tiers(&mut self, node: &Node) -> Vec<(Place, String, Fields)> {
        let mut tiers = Vec::new();
        let Value::Table(entries) = &node.value else {
            self.wrong("tiers", node, "a table of tiers by their names");
            return tiers;
        };
        for (index, tier) in entries.iter().enumerate() {
            if let Err(error) = check_label("tier", &tier.name) {
                self.problem(tier.place, error.to_string());
            } else if let Some(entries) =
                self.table(&format!("tier {:?}", tier.name), &tier.node, &[CELL_FIELDS, TIER_FIELDS])
            {
                let mut fields = self.fields(entries);
                // The highest comes first.
                fields.rank = fields.rank.or(u32::try_from(index).ok());
                tiers.push((tier.place, tier.name.clone(), fields));
            }
        }
        tiers
    }

    fn rate(&mut self, node: &Node) -> Option<RateJson> {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Whole(number) => number.to_string(),
            other => other.shown(),
        };
        quantity::rate(&text).map_err(|why| self.problem(node.place, format!("rate is {text:?}, {why}"))).ok()
    }

    pub(super) fn whole(&mut self, field: &str, node: &Node) -> Option<u64> {
        self.read(field, node, quantity::burst)
    }

    fn read(&mut self, field: &str, node: &Node, read: impl Fn(&str) -> Result<u64, String>) -> Option<u64> {
        let number = match &node.value {
            Value::Whole(number) => number.to_string(),
            other => other.shown(),
        };
        read(&number).map_err(|why| self.problem(node.place, format!("{field} is {number}, {why}"))).ok()
    }

    pub(super) fn duration(
        &mut self,
        field: &str,
        node: &Node,
        read: impl Fn(&str) -> Result<Span, String>,
    ) -> Option<Span> {
        self.text(field, node, read)
    }

    pub(super) fn text<T>(
        &mut self,
        field: &str,
        node: &Node,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            other => other.shown(),
        };
        read(&text).map_err(|why| self.problem(node.place, format!("{field} is {text:?}, {why}"))).ok()
    }

    /// One of several words.
    fn choice<T: Copy>(&mut self, field: &str, node: &Node, words: &[(&str, T)]) -> Option<T> {
        let found = match &node.value {
            Value::Text(text) => words.iter().find(|(word, _)| word == text).map(|(_, meant)| *meant),
            _ => None,
        };
        if found.is_none() {
            let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(field, node, &allowed.join(", "));
        }
        found
    }
}

/// A tier's name, and what is said of it and of all of them together.
type TierOf = (String, Fields, Option<RateJson>, Option<u64>);

/// The meter itself, or each of its tiers.
fn tiers_of(place: Place, mut fields: Fields) -> Vec<(Place, Option<TierOf>, Fields)> {
    let tiers = std::mem::take(&mut fields.tiers);
    if tiers.is_empty() {
        return vec![(place, None, fields)];
    }
    let total_burst = fields.burst.or(fields.concurrency);
    let each = tiers.into_iter().map(|(place, name, tier)| {
        let tier = tier.or(&fields);
        (place, Some((name, tier.clone(), fields.rate, total_burst)), tier)
    });
    each.collect()
}

fn of_tier(limit: LimitJson, (tier, fields, total_rate, total_burst): TierOf) -> LimitJson {
    LimitJson {
        tier,
        rank: fields.rank,
        floor: fields.floor,
        lend: Some(fields.lend.unwrap_or(false)),
        total_rate,
        total_burst,
        ..limit
    }
}

/// A meter with everything that isn't said at its default: leaving something out of a file puts it back.
fn complete(name: &str, meter: &str, fields: Fields, now: LedgerTime) -> Result<LimitJson, String> {
    let mut limit = LimitJson { meter: meter.to_owned(), ..LimitJson::named(name) };
    limit.lease_ms = fields.lease.map(Span::millis);
    limit.initial = fields.initial;
    limit.queue = fields.queue;
    let usual = ConductJson::default();
    limit.reserve_ppb = Some(fields.reserve.unwrap_or(usual.reserve_ppb));
    limit.shadow = Some(fields.shadow.unwrap_or(usual.shadow));
    limit.when_lost = Some(fields.when_lost.unwrap_or(usual.when_lost));
    if let Some(concurrency) = fields.concurrency {
        if fields.rate.is_some() || fields.burst.is_some() || fields.policy.is_some() {
            return Err("concurrency is given, allowed: no rate, burst or policy beside it".to_owned());
        }
        let drain_ms = fields.drain.unwrap_or(Span::ZERO).millis();
        limit.policy = Some(LimitPolicyJson::InFlight { drain_ms });
        limit.burst = Some(concurrency);
    } else {
        if fields.drain.is_some() {
            return Err("drain is given without concurrency".to_owned());
        }
        let rate = fields.rate.ok_or("rate is missing")?;
        limit.rate = Some(rate);
        limit.burst = fields.burst;
        limit.policy = Some(match fields.policy.unwrap_or(Policy::TokenBucket) {
            Policy::TokenBucket => {
                limit.burst = Some(limit.burst_or_default(rate));
                LimitPolicyJson::TokenBucket
            }
            Policy::LeakyBucket => LimitPolicyJson::LeakyBucket,
            Policy::SlidingWindow => LimitPolicyJson::SlidingWindow,
            Policy::FixedWindow => {
                let window = fields.window.or(WindowJson::of_period(rate.period_ms));
                let time_zone = fields.time_zone.as_deref().unwrap_or("UTC");
                calendar::fixed_window(window, time_zone, now).map_err(|error| error.to_string())?
            }
        });
    }
    if !matches!(limit.policy, Some(LimitPolicyJson::FixedWindow { .. }))
        && (fields.window.is_some() || fields.time_zone.is_some())
    {
        return Err("window and time_zone are only for policy fixed-window".to_owned());
    }
    limit.lease_ms = Some(limit.lease_or_default().millis());
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Language, read};
    use super::*;

    fn file(text: &str) -> File {
        decode(&read(Language::Toml, text).unwrap(), LedgerTime(1_796_043_897_000_000))
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
        assert_eq!(file.limits.get(1).map(|stated| stated.limit.policy.clone()), Some(in_flight));
    }

    #[test]
    fn tiers_stand_in_the_order_of_the_file_and_have_what_is_said_of_all() {
        let text = "
            [limits.batch]
            rate = \"1000/min\"
            lease = \"8s\"
            [limits.batch.tiers.urgent]
            rate = \"600/min\"
            burst = 20
            [limits.batch.tiers.background]
            rate = \"400/min\"
            floor = \"100/min\"
            lease = \"5s\"
            lend = true
            [limits.gemini]
            rate = \"1000/day\"
            policy = \"fixed-window\"
            time_zone = \"America/Los_Angeles\"
            queue = 50
            initial = \"empty\"
            [limits.wrong]
            rate = \"1000/day\"
            policy = \"fixed-window\"
            time_zone = \"Nowhere\"
        ";
        let file = file(text);
        let problems: Vec<&str> = file.problems.iter().map(|(_, why)| why.as_str()).collect();
        assert!(problems.len() == 1 && problems[0].contains("\"Nowhere\""), "{problems:?}");
        let per_minute = |count| Some(RateJson { count, period_ms: 60_000 });
        let [urgent, background, gemini] = &file.limits[..] else { panic!("{:?}", file.limits) };
        let (urgent, background, gemini) = (&urgent.limit, &background.limit, &gemini.limit);
        assert_eq!(
            (urgent.tier.as_str(), urgent.rank, urgent.burst, urgent.lease_ms),
            ("urgent", Some(0), Some(20), Some(8_000))
        );
        assert_eq!((urgent.floor, urgent.lend, urgent.total_rate), (None, Some(false), per_minute(1_000)));
        assert_eq!(
            (background.rank, background.floor, background.lend),
            (Some(1), per_minute(100), Some(true))
        );
        assert_eq!((background.burst, background.lease_ms), (Some(400), Some(5_000)));
        assert_eq!((gemini.queue, gemini.initial, gemini.burst), (Some(50), Some(InitialJson::Empty), None));
        let Some(LimitPolicyJson::FixedWindow { window, boundaries_us, .. }) = &gemini.policy else {
            panic!("{gemini:?}")
        };
        assert_eq!((*window, boundaries_us[0]), (Some(WindowJson::Day), 1_796_025_600_000_000));
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
            "2:1 the file has no \"rates\"; there are $schema, limits, ramp, schedules",
            "4:8 rate is \"5/parsec\", allowed: ",
            "5:1 limit \"a\" has no \"brust\"; is \"burst\" meant?",
            "limit \"b\": burst is given without rate",
            "10:9 burst is -1, ",
            "11:9 lease is \"8\", allowed: ",
            "12:10 policy is \"fifo\", allowed: token-bucket, leaky-bucket, sliding-window, fixed-window",
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
        assert_eq!(fields("/$defs/schedule/properties"), sorted(&[super::super::schedules::SCHEDULE_FIELDS]));
        assert_eq!(fields("/$defs/limit/properties"), sorted(&[CELL_FIELDS, METER_FIELDS, LIMIT_FIELDS]));
        assert_eq!(fields("/$defs/meter/properties"), sorted(&[CELL_FIELDS, METER_FIELDS]));
        assert_eq!(fields("/$defs/tier/properties"), sorted(&[CELL_FIELDS, TIER_FIELDS]));
        let policies = schema.pointer("/$defs/cell/properties/policy/enum").unwrap();
        let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
        assert_eq!(policies, &serde_json::json!(names));
    }
}
