//! The conventions that names must keep, and the text that they are shown in.

use std::collections::BTreeSet;
use tollgate_metrics::catalogue::{self, ALL, Kind, LABELS};
use tollgate_metrics::{Histogram, Snapshot};

/// Units that aren't base units, and words that say what the kind or the type says.
const NOT_IN_NAMES: &[&str] = &[
    "milliseconds",
    "ms",
    "micros",
    "us",
    "minutes",
    "percent",
    "kilobytes",
    "gauge",
    "counter",
    "histogram",
    "count",
    "sum",
    "bucket",
];

#[test]
fn names_are_unique_and_keep_to_the_conventions() {
    let mut seen = BTreeSet::new();
    for about in ALL {
        let name = about.name;
        assert!(seen.insert(name), "{name} is there twice");
        assert!(seen.insert(about.stem()) || about.stem() == name, "{name}: its stem is another's");
        assert!(name.starts_with("tollgate_"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert!(!name.contains("__") && !name.ends_with('_'), "{name}");
        assert!(name.split('_').all(|word| !NOT_IN_NAMES.contains(&word)), "{name}");
        assert_eq!(about.kind == Kind::Counter, name.ends_with("_total"), "{name}: {:?}", about.kind);
        let before_total = name.strip_suffix("_total").unwrap_or(name);
        if about.unit.is_empty() {
            for unit in ["seconds", "bytes", "tokens", "ratio", "per_second"] {
                assert!(!before_total.ends_with(unit), "{name} says a unit that it doesn't have");
            }
        } else {
            assert!(
                before_total.ends_with(&format!("_{}", about.unit)),
                "{name} doesn't end in {}",
                about.unit
            );
        }
        assert!(!about.help.contains(['\n', '\\']) && !about.help.ends_with('.'), "{name}: {}", about.help);
        assert!(about.help.starts_with(|first: char| first.is_uppercase() || first.is_numeric()), "{name}");
        let labels: BTreeSet<&str> = about.labels.iter().copied().collect();
        assert_eq!(labels.len(), about.labels.len(), "{name}: a label is there twice");
        for label in about.labels {
            assert!(LABELS.iter().any(|(known, _)| known == label), "{name}: nothing says what {label} is");
            assert!(!["le", "quantile", "job", "instance"].contains(label), "{name}: {label} is taken");
        }
    }
    assert!(LABELS.iter().all(|(label, _)| ALL.iter().any(|about| about.labels.contains(label))));
}

#[test]
fn bounds_of_buckets_grow() {
    for bounds in [&catalogue::WAIT_BOUNDS_US[..], &catalogue::HEARTBEAT_BOUNDS_US[..]] {
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]) && bounds[0] > 0, "{bounds:?}");
    }
}

#[test]
fn a_snapshot_is_open_metrics_and_odd_names_are_escaped() {
    let mut first = Snapshot::default();
    let odd = "a\"b\\c\nd é";
    first.count(&catalogue::WORKER_GRANTED, ["g", odd, "requests", "default"], 7);
    first.level(&catalogue::WORKER_LEFT, ["g", "x", "requests", "default"], -2.5);
    let waits = Histogram { bounds_us: &[1_000, 250_000], counts: vec![1, 2, 3], sum_us: 1_500_000 };
    first.buckets(&catalogue::WORKER_WAIT, ["g", "x", "requests", "default"], waits);
    let mut second = Snapshot::default();
    second.count(&catalogue::WORKER_GRANTED, ["h", "x", "requests", "default"], 1);
    first.merge(second);
    assert_eq!(first.len(), 4);
    let labels = r#"group="g",limit="x",meter="requests",tier="default""#;
    let expected = format!(
        r#"# HELP tollgate_worker_permits_granted Permits handed out
# TYPE tollgate_worker_permits_granted counter
tollgate_worker_permits_granted_total{{group="g",limit="a\"b\\c\nd é",meter="requests",tier="default"}} 7
tollgate_worker_permits_granted_total{{group="h",limit="x",meter="requests",tier="default"}} 1
# HELP tollgate_worker_left_tokens Tokens that are there now; negative for debt
# TYPE tollgate_worker_left_tokens gauge
# UNIT tollgate_worker_left_tokens tokens
tollgate_worker_left_tokens{{{labels}}} -2.5
# HELP tollgate_worker_wait_seconds How long callers waited that got a permit and had to wait for it
# TYPE tollgate_worker_wait_seconds histogram
# UNIT tollgate_worker_wait_seconds seconds
tollgate_worker_wait_seconds_sum{{{labels}}} 1.5
tollgate_worker_wait_seconds_count{{{labels}}} 6
tollgate_worker_wait_seconds_bucket{{le="0.001",{labels}}} 1
tollgate_worker_wait_seconds_bucket{{le="0.25",{labels}}} 3
tollgate_worker_wait_seconds_bucket{{le="+Inf",{labels}}} 6
# EOF
"#
    );
    assert_eq!(first.into_text(), expected);
}

#[test]
fn nothing_is_a_valid_text_too() {
    assert_eq!(Snapshot::default().into_text(), "# EOF\n");
}
