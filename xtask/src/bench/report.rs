//! BENCHMARKS.md: what was reached beside what is wanted, tables and pictures, from the figures of one run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::plot::{Bars, short};
use crate::workspace::Workspace;

const FILE: &str = "BENCHMARKS.md";
const FOLDER: &str = "docs/bench";

/// A figure that is wanted.
struct Wanted {
    /// Where it is in the JSON, by names with dots between them.
    figure: &'static str,
    most: Option<f64>,
    least: Option<f64>,
}

const fn at_most(figure: &'static str, most: f64) -> Wanted {
    Wanted { figure, most: Some(most), least: None }
}

const fn at_least(figure: &'static str, least: f64) -> Wanted {
    Wanted { figure, most: None, least: Some(least) }
}

const WANTED: &[Wanted] = &[
    at_most("acquire.ratio_to_governor.threads_1", 0.7),
    at_most("acquire.ratio_to_governor.fallback_threads_1", 1.3),
    at_most("acquire.ratio_to_governor.threads_2", 0.25),
    at_most("acquire.meters.threads_1.ratio_3_to_1", 2.5),
    at_least("coordinator.ratio_to_bare.in_flight_8.limits_10", 0.85),
    at_most("decision.ratio_to_bare.strict_latency_p50", 1.2),
    at_most("growth.shares.ratio_2000_to_10_workers", 20.0),
    at_most("growth.tokens.ratio_2000_to_10_workers", 20.0),
    at_most("growth.shares.ratio_100_to_1_limits", 150.0),
    at_most("replay.part_of_task_timeout", 0.5),
    at_most("looks.status.milliseconds_p95", 150.0),
    at_most("looks.explain_limit.milliseconds_p95", 150.0),
    at_most("looks.explain_worker.milliseconds_p95", 150.0),
    at_most("state.workers_1000.part_of_input_limit", 0.5),
    at_most("accuracy.rate_5.tollgate.peak_over_bound", 1.0),
    at_most("accuracy.rate_50.tollgate.peak_over_bound", 1.0),
    at_most("accuracy.rate_150.tollgate.peak_over_bound", 1.0),
    at_least("accuracy.rate_50.tollgate.utilization", 0.9),
    at_least("accuracy.rate_150.tollgate.utilization", 0.9),
];

/// A part of the report.
struct Section {
    name: &'static str,
    title: &'static str,
    /// How it is measured, and what it doesn't say.
    text: &'static str,
    tables: fn(&Figures<'_>) -> String,
    pictures: fn(&Figures<'_>) -> Vec<(&'static str, Bars)>,
}

const SECTIONS: &[Section] = &[
    Section {
        name: "acquire",
        title: "One permit from the local bucket",
        text: "`try_acquire` as its users call it, and `check` of governor's direct limiter with its default clock, in short rounds that \
               take turns; medians of undisturbed rounds. With two threads both take from one limit. `fallback` reads CLOCK_BOOTTIME \
               for every permit, as on machines without a steady counter. governor keeps no count for a fleet, gives nothing back, \
               and can't be changed while it runs: it is here as the fastest known check of its kind. A refusal is an answer with a \
               reason and a time, and takes a look at the queue and the lease: it is slower than governor's. Below: three meters of a limit \
               at once, all or nothing, and permits that are held in flight: those are released under a lock.",
        tables: acquire_tables,
        pictures: |_| Vec::new(),
    },
    Section {
        name: "coordinator",
        title: "Heartbeats through the coordinator",
        text: "Ten workers, whose requests name all limits of a group, against a workflow whose update does nothing but answer. All \
               take turns within one run, on one Temporal dev server in memory, with the hosts as processes of their own and the \
               same worker settings. `bare` gets the same requests and answers a fixed reply of the coordinator's own bytes, which \
               the client writes and reads as JSON: what differs is what the workflow does. `empty` sends nothing and gets \
               nothing back. The coordinator's continue-as-news are within its figures; the bare workflow needs none. Ratios \
               are medians of the ratios of single rounds. It says nothing about a production server: there each task takes longer \
               and the ratio comes closer to 1.",
        tables: coordinator_tables,
        pictures: coordinator_pictures,
    },
    Section {
        name: "decision",
        title: "One permit for a fleet",
        text: "Four clients, each with connections of its own and a thread, ask one after the other where there is plenty. `tollgate`: \
               `acquire` on a gate that leases over Temporal. `redis`: a token-bucket script in a real Redis over loopback TCP. \
               `strict`: update `acquire` of the coordinator, with its use reported by a signal (the latency is that of the update). \
               `bare`: the same messages to a workflow that does nothing but answer with the same bytes. \
               Clients and servers share the machine. The first of these needs no round trip at all, since leases come ahead of \
               use: that is the design and no merit of the code. What the table doesn't show: a permit of a script in Redis is \
               counted at once for everybody, and Redis needs no second look for who holds what.",
        tables: decision_tables,
        pictures: decision_pictures,
    },
    Section {
        name: "transport",
        title: "Updates and signals",
        text: "So many gates, with some work in each, lease over Temporal at the pace that the ledger asks for: by updates, and by \
               signals alone, whose answers are pushed as activities. The time is from sending a heartbeat to having its answer, \
               tries again included; events are what one answer adds to the coordinator's history. `all leased`: from nothing to a \
               lease for everybody, as after a deployment of all at once, which updates refuse beyond ten at a time. The gates share \
               one process, and the machine with server and host.",
        tables: transport_tables,
        pictures: |_| Vec::new(),
    },
    Section {
        name: "accuracy",
        title: "How exactly a limit is kept",
        text: "The same calls on one task queue, with five worker processes and an HTTP downstream that counts for itself, under \
               Temporal's own limit (`temporal task-queue config set --queue-rps-limit`) and under tollgate. Peak: the most that was \
               admitted in any interval, as a part of burst + rate x length; above 1 the limit was broken. Temporal's limit has no \
               burst of one's own, so the last column holds it against a burst of a whole second too. Utilization: admitted calls as \
               a part of what the rate allows from the first to the last. Temporal limits how fast tasks leave the queue and promises \
               averages over seconds; it isn't meant for more.",
        tables: accuracy_tables,
        pictures: accuracy_pictures,
    },
    Section {
        name: "growth",
        title: "A heartbeat as fleets and messages grow",
        text: "Only the ledger (`Ledger::apply`), on one thread, by its own processor time: no Temporal, no JSON. Every worker leases \
               every limit of its message and comes three times per lease. `shares`: a rate that workers mint themselves. `tokens`: a \
               rate so small that the ledger counts out single tokens.",
        tables: growth_tables,
        pictures: growth_pictures,
    },
    Section {
        name: "replay",
        title: "A host takes over",
        text: "Replay of a full run of a coordinator, fetched from the server, by a worker that has never seen it; one heartbeat per \
               workflow task, the longest replay there is. `bare`: as many events of a workflow that answers the same bytes. Fetching \
               the history isn't in it.",
        tables: replay_tables,
        pictures: |_| Vec::new(),
    },
    Section {
        name: "looks",
        title: "An operator looks",
        text: "From the start of the program to its end, of a fleet of 200 workers that hold parts of 20 limits each, on one Temporal \
               dev server in memory; between two looks workers come, so that each is answered anew.",
        tables: looks_tables,
        pictures: |_| Vec::new(),
    },
    Section {
        name: "state",
        title: "Continue-as-new",
        text: "What a coordinator carries into its next run when every worker holds a lease of each of its limits and another one is on \
               its way: size, time to write it (protobuf) and to take it up. A group holds up to 13,000 pairs of worker and limit. \
               Temporal takes inputs of up to 2 MiB by default.",
        tables: state_tables,
        pictures: |_| Vec::new(),
    },
    Section {
        name: "sim",
        title: "The simulator",
        text: "Steps of the swarm (messages, admissions, faults), each checked by the model, on one thread.",
        tables: sim_tables,
        pictures: |_| Vec::new(),
    },
];

/// The figures, looked up by names with dots between them.
struct Figures<'a>(&'a Value);

impl Figures<'_> {
    fn value(&self, path: &str) -> Option<&Value> {
        self.0.pointer(&format!("/{}", path.replace('.', "/")))
    }

    fn number(&self, path: &str) -> f64 {
        self.value(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    fn text(&self, path: &str) -> &str {
        self.value(path).and_then(Value::as_str).unwrap_or("unknown")
    }

    fn short(&self, path: &str) -> String {
        short(self.number(path))
    }
}

/// What was reached beside what is wanted, as far as it was measured; nothing if nothing was wanted of what was.
pub fn reached(figures: &Value) -> Option<String> {
    let figures = Figures(figures);
    let mut rows = Vec::new();
    for wanted in WANTED {
        let part = wanted.figure.split('.').next().unwrap_or_default();
        if figures.value(part).is_none() {
            continue;
        }
        let measured = figures.number(wanted.figure);
        let (bound, is_reached) = match (wanted.most, wanted.least) {
            (Some(most), _) => (format!("at most {}", short(most)), measured <= most),
            (_, Some(least)) => (format!("at least {}", short(least)), measured >= least),
            _ => continue,
        };
        let mark = if is_reached { "reached" } else { "MISSED" };
        // Three digits could hide that one was exceeded.
        rows.push(vec![wanted.figure.to_owned(), format!("{measured:.4}"), bound, mark.to_owned()]);
    }
    (!rows.is_empty()).then(|| table(&["figure", "measured", "wanted", ""], &rows))
}

/// Writes the report and its pictures; returns their paths.
///
/// # Errors
/// When a file can't be written.
pub fn write(workspace: &Workspace, figures: &Value) -> Result<Vec<PathBuf>> {
    let folder = workspace.root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
    let mut written = Vec::new();
    for (name, picture) in pictures(figures) {
        let path = folder.join(format!("{name}.svg"));
        fs::write(&path, picture.svg()).with_context(|| format!("can't write {}", path.display()))?;
        written.push(path);
    }
    let path = workspace.root().join(FILE);
    fs::write(&path, markdown(figures)).with_context(|| format!("can't write {}", path.display()))?;
    written.push(path);
    Ok(written)
}

fn pictures(figures: &Value) -> Vec<(&'static str, Bars)> {
    let measured = SECTIONS.iter().filter(|section| figures.get(section.name).is_some());
    measured.flat_map(|section| (section.pictures)(&Figures(figures))).collect()
}

fn markdown(figures: &Value) -> String {
    let facts = Figures(figures);
    let mut text = format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench`; don't edit. Commit {}, {}, {}.\n\n\
         Machine: {} with {} processors, {}, Linux {}; load {} when it began. Everything that is compared ran in the same run, in \
         rounds that alternate; figures are medians of rounds. Ratios travel better to other machines than times.\n\n",
        facts.text("commit"),
        facts.text("date"),
        facts.text("rust"),
        facts.text("machine.processor"),
        facts.number("machine.processors"),
        facts.text("machine.memory"),
        facts.text("machine.kernel"),
        facts.short("machine.load_at_begin"),
    );
    if let Some(reached) = reached(figures) {
        text.push_str("## Wanted and reached\n\n");
        text.push_str(&reached);
    }
    for section in SECTIONS.iter().filter(|section| figures.get(section.name).is_some()) {
        text.push_str(&format!("\n## {}\n\n{}\n\n", section.title, wrapped(section.text)));
        text.push_str(&(section.tables)(&facts));
        for (name, picture) in (section.pictures)(&facts) {
            text.push_str(&format!("\n![{}]({FOLDER}/{name}.svg)\n", picture.title));
        }
    }
    text
}

/// Lines of at most 120 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| line.len() + word.len() < 120);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// A table that can be read as text too.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let line = |cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let fill = " ".repeat(width(column).saturating_sub(cell.chars().count()));
            if column == 0 { format!("{cell}{fill}") } else { format!("{fill}{cell}") }
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    let rule = (0..head.len()).map(|column| {
        let dashes = "-".repeat(width(column) - 1);
        if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    });
    text.push_str(&format!("| {} |\n", rule.collect::<Vec<_>>().join(" | ")));
    for row in rows {
        text.push_str(&line(row));
    }
    text
}

const LOADS: [(&str, &str); 2] = [("in_flight_1", "1 in flight"), ("in_flight_8", "8 in flight")];
const LIMITS: [&str; 3] = ["limits_1", "limits_10", "limits_100"];

fn coordinator_tables(figures: &Figures<'_>) -> String {
    let mut rows = Vec::new();
    for (load, load_name) in LOADS {
        for limits in LIMITS {
            let rate = |kind: &str| {
                figures.short(&format!("coordinator.heartbeats_per_second.{kind}.{load}.{limits}"))
            };
            rows.push(vec![
                format!("{load_name}, {} limits", limits.trim_start_matches("limits_")),
                rate("coordinator"),
                rate("bare"),
                rate("empty"),
                figures.short(&format!("coordinator.milliseconds_p50.coordinator.{load}.{limits}")),
                figures.short(&format!("coordinator.ratio_to_bare.{load}.{limits}")),
                figures.short(&format!("coordinator.ratio_to_bare_spread.{load}.{limits}")),
                figures.short(&format!("coordinator.ratio_to_empty.{load}.{limits}")),
            ]);
        }
    }
    let head = [
        "",
        "coordinator, 1/s",
        "bare, 1/s",
        "empty, 1/s",
        "median, ms",
        "ratio to bare",
        "spread",
        "ratio to empty",
    ];
    let sizes = LIMITS.map(|limits| {
        format!(
            "{} for {}",
            ["request", "reply"]
                .map(|side| figures.short(&format!("coordinator.bytes.{limits}.{side}")))
                .join(" and "),
            limits.trim_start_matches("limits_"),
        )
    });
    format!("{}\nBytes of a request and of its reply: {} limits.\n", table(&head, &rows), sizes.join(", "))
}

fn coordinator_pictures(figures: &Figures<'_>) -> Vec<(&'static str, Bars)> {
    let mut groups = Vec::new();
    for (load, load_name) in LOADS {
        for limits in LIMITS {
            let rate = |kind: &str| {
                figures.number(&format!("coordinator.heartbeats_per_second.{kind}.{load}.{limits}"))
            };
            let name = format!("{load_name}, {}", limits.trim_start_matches("limits_"));
            groups.push((name, vec![rate("coordinator"), rate("bare"), rate("empty")]));
        }
    }
    let series = ["coordinator", "bare", "empty"].map(str::to_owned).to_vec();
    let bars = Bars {
        title: "Heartbeats a second".to_owned(),
        unit: "by messages in flight and limits of a message".to_owned(),
        logarithmic: false,
        series,
        groups,
        line: None,
    };
    vec![("coordinator", bars)]
}

const WAYS: [&str; 4] = ["tollgate", "redis", "strict", "bare"];

fn decision_tables(figures: &Figures<'_>) -> String {
    let rows = WAYS.map(|way| {
        let figure = |name: &str| figures.short(&format!("decision.{way}.{name}"));
        vec![
            way.to_owned(),
            figure("permits_per_second"),
            figure("microseconds_p50"),
            figure("microseconds_p99"),
        ]
    });
    let ratio = |name: &str| figures.short(&format!("decision.ratio_to_redis.{name}"));
    format!(
        "{}\ntollgate to Redis: {} times the permits a second, {} of the median latency. A strict permit takes {} times as long \
         as one of Redis, and {} times as long as a bare update.\n",
        table(&["", "permits a second", "median, us", "99th percentile, us"], &rows),
        ratio("permits_per_second"),
        ratio("latency_p50"),
        ratio("strict_latency_p50"),
        figures.short("decision.ratio_to_bare.strict_latency_p50"),
    )
}

fn decision_pictures(figures: &Figures<'_>) -> Vec<(&'static str, Bars)> {
    let row = |name: &str| WAYS.map(|way| figures.number(&format!("decision.{way}.{name}"))).to_vec();
    let groups = vec![
        ("median, us".to_owned(), row("microseconds_p50")),
        ("99th percentile, us".to_owned(), row("microseconds_p99")),
        ("permits a second".to_owned(), row("permits_per_second")),
    ];
    let bars = Bars {
        title: "One permit for a fleet".to_owned(),
        unit: "each step is ten times the one before".to_owned(),
        logarithmic: true,
        series: WAYS.map(str::to_owned).to_vec(),
        groups,
        line: None,
    };
    vec![("decision", bars)]
}

fn transport_tables(figures: &Figures<'_>) -> String {
    let mut rows = Vec::new();
    for workers in ["workers_10", "workers_50", "workers_200"] {
        for kind in ["updates", "signals"] {
            let figure = |name: &str| figures.short(&format!("transport.{workers}.{kind}.{name}"));
            rows.push(vec![
                format!("{} by {kind}", workers.trim_start_matches("workers_")),
                figure("milliseconds_p50"),
                figure("milliseconds_p99"),
                figure("answers_per_second"),
                figure("events_per_answer"),
                figure("all_leased_seconds"),
            ]);
        }
    }
    let heads =
        ["workers", "median, ms", "99th percentile, ms", "answers a second", "events each", "all leased, s"];
    table(&heads, &rows)
}

const RATES: [&str; 3] = ["rate_5", "rate_50", "rate_150"];
const KEEPERS: [&str; 2] = ["temporal", "tollgate"];

fn accuracy_tables(figures: &Figures<'_>) -> String {
    let mut rows = Vec::new();
    for rate in RATES {
        for keeper in KEEPERS {
            let figure = |name: &str| figures.short(&format!("accuracy.{rate}.{keeper}.{name}"));
            rows.push(vec![
                format!(
                    "{}/s, burst {}, {keeper}",
                    rate.trim_start_matches("rate_"),
                    figures.short(&format!("accuracy.{rate}.burst"))
                ),
                figure("peak_over_bound"),
                figure("utilization"),
                figure("rejected_by_downstream"),
                figure("peak_over_bound_of_one_second"),
            ]);
        }
    }
    let head = ["", "peak over bound", "utilization", "429 by the downstream", "peak, burst of a second"];
    let partitions = figures.short("accuracy.partitions");
    format!(
        "{}\nPartitions of the task queue: {partitions}. Without a limit this fleet gets {} calls a second through on this machine: \
         the utilization of a rate near that says something of the machine only.\n",
        table(&head, &rows),
        figures.short("accuracy.unlimited_per_second"),
    )
}

fn accuracy_pictures(figures: &Figures<'_>) -> Vec<(&'static str, Bars)> {
    let groups = |name: &str| {
        let group = |rate: &str| {
            let values = KEEPERS.map(|keeper| figures.number(&format!("accuracy.{rate}.{keeper}.{name}")));
            (format!("{}/s", rate.trim_start_matches("rate_")), values.to_vec())
        };
        RATES.map(group).to_vec()
    };
    let bars = |title: &str, unit: &str, name: &str, line: &str| Bars {
        title: title.to_owned(),
        unit: unit.to_owned(),
        logarithmic: false,
        series: KEEPERS.map(str::to_owned).to_vec(),
        groups: groups(name),
        line: Some((1.0, line.to_owned())),
    };
    vec![
        (
            "accuracy-peak",
            bars(
                "Peak over bound",
                "most admitted in any interval, as a part of what the limit allows",
                "peak_over_bound",
                "the limit",
            ),
        ),
        (
            "accuracy-utilization",
            bars("Utilization", "admitted, as a part of what the rate allows", "utilization", "all of it"),
        ),
    ]
}

const FLEETS: [&str; 5] = ["10", "50", "200", "1000", "2000"];
const MESSAGES: [&str; 5] = ["1", "3", "10", "30", "100"];
const KINDS: [&str; 2] = ["shares", "tokens"];

fn growth_tables(figures: &Figures<'_>) -> String {
    let micros = |path: String| short(figures.number(&path) / 1e3);
    let rows = |by: &str, counts: [&str; 5]| {
        KINDS.map(|kind| {
            let mut row = vec![kind.to_owned()];
            row.extend(counts.map(|count| micros(format!("growth.{kind}.nanoseconds_by_{by}.{count}"))));
            row
        })
    };
    let workers = FLEETS.map(|count| format!("{count} workers"));
    let limits = MESSAGES.map(|count| format!("{count} limits"));
    let head = |names: &[String; 5]| -> Vec<String> {
        [String::new()].into_iter().chain(names.iter().cloned()).collect()
    };
    let as_table = |names: &[String; 5], rows: &[Vec<String>]| {
        let head = head(names);
        table(&head.iter().map(String::as_str).collect::<Vec<_>>(), rows)
    };
    format!(
        "Microseconds of a heartbeat with {} limits:\n\n{}\nMicroseconds of a heartbeat in a fleet of {}:\n\n{}",
        figures.short("growth.limits_per_message_while_workers_grow"),
        as_table(&workers, &rows("workers", FLEETS)),
        figures.short("growth.workers_while_limits_grow"),
        as_table(&limits, &rows("limits", MESSAGES)),
    )
}

fn growth_pictures(figures: &Figures<'_>) -> Vec<(&'static str, Bars)> {
    let groups = |by: &str, counts: [&str; 5]| {
        let group = |count: &str| {
            let micros =
                |kind: &str| figures.number(&format!("growth.{kind}.nanoseconds_by_{by}.{count}")) / 1e3;
            (count.to_owned(), KINDS.map(micros).to_vec())
        };
        counts.map(group).to_vec()
    };
    let bars = |title: &str, by: &str, counts| Bars {
        title: title.to_owned(),
        unit: "microseconds; each step is ten times the one before".to_owned(),
        logarithmic: true,
        series: KINDS.map(str::to_owned).to_vec(),
        groups: groups(by, counts),
        line: None,
    };
    vec![
        ("growth-workers", bars("A heartbeat in the ledger, by workers of the fleet", "workers", FLEETS)),
        ("growth-limits", bars("A heartbeat in the ledger, by limits of the message", "limits", MESSAGES)),
    ]
}

fn replay_tables(figures: &Figures<'_>) -> String {
    let row = |name: &str, at: &str| {
        let figure = |name: &str| figures.short(&format!("{at}.{name}"));
        vec![name.to_owned(), figure("events"), figure("bytes"), figure("milliseconds")]
    };
    let rows = [row("coordinator, 10 limits", "replay"), row("bare", "replay.bare")];
    format!(
        "{}\nRatio to bare: {}. That is {} of the 2 s that a workflow task may take.\n",
        table(&["", "events", "bytes", "ms"], &rows),
        figures.short("replay.ratio_to_bare"),
        figures.short("replay.part_of_task_timeout"),
    )
}

fn looks_tables(figures: &Figures<'_>) -> String {
    let commands = [
        ("status", "`status`"),
        ("status_limit", "`status LIMIT`"),
        ("explain_limit", "`explain LIMIT`"),
        ("explain_worker", "`explain WORKER`"),
        ("worker_ls", "`worker ls`"),
    ];
    let rows = commands.map(|(name, shown)| {
        let figure = |figure: &str| figures.short(&format!("looks.{name}.{figure}"));
        vec![shown.to_owned(), figure("milliseconds"), figure("milliseconds_p95")]
    });
    table(&["", "median, ms", "95 of 100, ms"], &rows)
}

fn acquire_tables(figures: &Figures<'_>) -> String {
    let rows =
        [("granted", "ratio_to_governor"), ("refused", "ratio_to_governor_refused")].map(|(kind, ratios)| {
            [1, 2].map(|threads| {
                let of =
                    |who: &str| figures.short(&format!("acquire.nanoseconds.{who}.{kind}_threads_{threads}"));
                let ratio = |name: &str| figures.short(&format!("acquire.{ratios}.{name}threads_{threads}"));
                vec![
                    format!("{kind}, {threads} thread{}", if threads == 1 { "" } else { "s" }),
                    of("tollgate"),
                    of("tollgate_fallback"),
                    of("governor"),
                    ratio(""),
                    ratio("fallback_"),
                ]
            })
        });
    let rows: Vec<Vec<String>> = rows.into_iter().flatten().collect();
    let head = ["", "tollgate, ns", "fallback, ns", "governor, ns", "ratio", "ratio of fallback"];
    let meters = [1, 2].map(|threads| {
        let of = |name: &str| figures.short(&format!("acquire.meters.threads_{threads}.{name}"));
        let names = ["one", "meters_3", "ratio_3_to_1", "in_flight", "meters_3_in_flight"];
        [vec![format!("{threads} thread{}", if threads == 1 { "" } else { "s" })], names.map(of).to_vec()]
            .concat()
    });
    let meters_head =
        ["", "one meter, ns", "three, ns", "ratio", "in flight, ns", "three, one of them in flight, ns"];
    format!(
        "Clock: {}.\n\n{}\n{}",
        figures.text("acquire.clock"),
        table(&head, &rows),
        table(&meters_head, &meters)
    )
}

fn state_tables(figures: &Figures<'_>) -> String {
    let rows = ["10", "200", "1000"].map(|workers| {
        let figure = |name: &str| figures.short(&format!("state.workers_{workers}.{name}"));
        vec![
            format!("{workers} workers, {} limits each", figure("limits_of_a_worker")),
            figure("bytes"),
            figure("bytes_per_holding"),
            figure("part_of_input_limit"),
            figure("milliseconds_encode"),
            figure("milliseconds_take_up"),
        ]
    });
    let head = ["", "bytes", "bytes per lease", "part of 2 MiB", "written in, ms", "taken up in, ms"];
    table(&head, &rows)
}

fn sim_tables(figures: &Figures<'_>) -> String {
    format!("{} steps a second.\n", figures.short("sim.steps_per_second"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_that_misses_what_is_wanted_or_was_not_seen_says_so() {
        let figures = |ratio: Value| {
            json!({
                "coordinator": { "ratio_to_bare": { "in_flight_8": { "limits_10": ratio } } },
                "accuracy": { "rate_50": { "tollgate": { "peak_over_bound": 1.00001, "utilization": 0.95 } } },
            })
        };
        let row = |text: &str, part: &str| text.lines().find(|line| line.contains(part)).unwrap().to_owned();
        let good = reached(&figures(json!(0.9))).unwrap();
        assert!(row(&good, "coordinator").ends_with("| reached |"), "{good}");
        assert!(row(&good, "rate_50.tollgate.peak").ends_with("|  MISSED |"), "{good}");
        // Not measured at all: neither reached nor missed. Measured without this figure: missed.
        assert!(!good.contains("growth") && row(&good, "rate_5.tollgate").contains("MISSED"), "{good}");
        assert!(row(&reached(&figures(Value::Null)).unwrap(), "coordinator").contains("MISSED"));
    }

    #[test]
    fn the_report_has_a_section_for_each_benchmark_that_was_run_and_none_for_others() {
        let text = markdown(&json!({ "sim": { "steps_per_second": 123_456.0 } }));
        assert!(text.contains("123k steps a second") && !text.contains("Redis"), "{text}");
        for bench in super::super::BENCHES {
            assert!(
                SECTIONS.iter().any(|section| section.name == bench.name),
                "{} has no section",
                bench.name
            );
            // A run that gave nothing must not break the report.
            let text = markdown(&json!({ bench.name: {} }));
            assert!(text.contains("# Benchmarks") && text.lines().count() > 7, "{text}");
        }
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let text = table(&["a", "figure"], &[vec!["long name".to_owned(), "1".to_owned()]]);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }
}
