//! The guide's chapter is written from the catalogue, and the dashboard and the alerts name what is in it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use tollgate_metrics::catalogue::{ALL, HEARTBEAT_BOUNDS_US, Kind, LABELS, Scope, WAIT_BOUNDS_US};

const INTRODUCTION: &str = "\
# Metrics

Written from `crates/metrics/src/catalogue.rs`; `UPDATE_DOCS=1 cargo test -p tollgate-metrics` writes it anew.

Workers and coordinator hosts serve [OpenMetrics](https://prometheus.io/docs/specs/om/open_metrics_spec/) text at `/metrics`, and \
`ok` at `/healthz`, over plain HTTP: bind the address to where only scrapers reach it.

```rust
// A worker (crate `tollgate-worker`, feature `metrics`): one line, kept as long as it is to be scraped.
let _metrics = gate.serve_metrics(\"0.0.0.0:9464\".parse()?).await?;
```

```
tollgate serve --metrics 0.0.0.0:9464      # a coordinator host
```

A process with an endpoint of its own takes `gate.metrics()`: `.text()`, or as a collector in a registry of the crate \
`prometheus-client`. `Snapshot::merge` puts several gates into one text.

Where nobody scrapes, the feature `otlp` pushes the same figures under the same names to an OpenTelemetry collector, over gRPC: \
`gate.push_metrics(\"http://localhost:4317\", \"orders\", Duration::from_secs(15))?`, and `tollgate serve --otlp http://localhost:4317` where that is built with \
`--features otlp`.

A host asks a coordinator when it is scraped, once in 15 seconds at most, and waits two seconds for the answer: without one \
`tollgate_coordinator_up` is 0, and a minute later the group's other figures are gone. Every host shows every group that it \
serves, so queries take the `max` over hosts; the dashboard and the alerts do.

- [`deploy/grafana/tollgate.json`](../../../deploy/grafana/tollgate.json): a dashboard for Grafana.
- [`deploy/prometheus/alerts.yml`](../../../deploy/prometheus/alerts.yml): alerts for Prometheus.

Both are tested against a running fleet and a real Prometheus.

How many series: a worker has about 50 for each limit that it has asked for (buckets included; 1,000 limits at most, whatever names \
it is asked for), and about 25 beside them. A host has 14 for each limit of a group, of which there are up to 1,000, and 11 for \
each group.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (scope, title) in [
        (Scope::Worker, "Workers"),
        (Scope::Group, "Coordinator hosts: groups"),
        (Scope::Limit, "Coordinator hosts: limits"),
    ] {
        write!(text, "\n## {title}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n").unwrap();
        for about in ALL.iter().filter(|about| about.scope == scope) {
            let kind = match about.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let labels = about.labels.join(", ");
            writeln!(text, "| `{}` | {kind} | {labels} | {} |", about.name, about.help).unwrap();
        }
    }
    let seconds = |bounds: &[u64]| {
        let seconds = bounds.iter().map(|us| format!("{}", f64::from(u32::try_from(*us).unwrap()) / 1e6));
        seconds.collect::<Vec<_>>().join(", ")
    };
    write!(
        text,
        "\nUpper bounds of the buckets, in seconds: `tollgate_worker_wait_seconds` {}; `tollgate_worker_heartbeat_seconds` {}.\n",
        seconds(&WAIT_BOUNDS_US),
        seconds(&HEARTBEAT_BOUNDS_US),
    )
    .unwrap();
    text.push_str("\n## Labels\n\n| label | meaning |\n|---|---|\n");
    for (label, help) in LABELS {
        writeln!(text, "| `{label}` | {help} |").unwrap();
    }
    text
}

#[test]
fn the_guide_says_what_the_catalogue_says() {
    let path = root().join("docs/guide/src/metrics.md");
    let text = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{} is not current: set UPDATE_DOCS=1 to write it anew", path.display());
}

/// Words of a query that begin like one of ours.
fn named(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("tollgate_"))
}

fn is_known(name: &str) -> bool {
    ALL.iter().any(|about| {
        let parts = ["_bucket", "_sum", "_count"].map(|part| name.strip_suffix(part));
        about.name == name || (about.kind == Kind::Histogram && parts.contains(&Some(about.name)))
    })
}

#[test]
fn dashboard_and_alerts_name_only_what_there_is() {
    for path in ["deploy/grafana/tollgate.json", "deploy/prometheus/alerts.yml"] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let names: Vec<&str> = named(&text).collect();
        assert!(names.len() > 5, "{path}");
        for name in names {
            assert!(is_known(name), "{path}: {name}");
        }
    }
}

#[test]
fn the_dashboard_is_valid_and_its_panels_do_not_overlap() {
    let text = fs::read_to_string(root().join("deploy/grafana/tollgate.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(dashboard["uid"], "tollgate");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut places = std::collections::BTreeSet::new();
    let mut ids = std::collections::BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(places.insert((x, y)), "{title} lies on another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        let targets = panel["targets"].as_array().unwrap();
        assert!(targets.iter().all(|target| target["expr"].is_string()) && !targets.is_empty(), "{title}");
    }
}
