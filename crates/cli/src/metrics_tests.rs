use super::*;
use serde_json::json;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn status() -> StatusJson {
    let row = |limit: &str, more: serde_json::Value| {
        let mut row = json!({
            "limit": limit, "meter": "requests", "tier": "default", "rate_micro": 75_000_000u64,
            "target_micro": 100_000_000u64, "burst": 16, "free_milli": 2_500, "share_ppb": 250_000_000,
            "cap_milli": 4_000, "kind": "shares", "kind_reason": "", "used": 12, "waiting": 3, "holders": 2,
        });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        row
    };
    let ramp = json!({"ramp_begins_us": 1_000_000u64, "ramp_ends_us": 5_000_000u64});
    let limits = [row("a", ramp), row("b", json!({"debt_milli": 4_000})), row("c", json!({"removed": true}))];
    serde_json::from_value(json!({
        "group": "g", "now_us": 4_000_000u64, "epoch": 1, "version": {"run_us": 7, "n": 3}, "rules_version": 1,
        "workers": 2, "heartbeat_ms": 1_000, "limits": limits, "unreadable": {"count": 1}, "runs": 5,
        "state_bytes": 4_096, "digest": "",
    }))
    .unwrap()
}

fn text_of(status: StatusJson, version: Option<&str>) -> String {
    let mut out = Snapshot::default();
    show(&mut out, "g", &Answer { status, version: version.map(str::to_owned) });
    out.into_text()
}

#[test]
fn an_answer_becomes_figures_in_base_units() {
    let text = text_of(status(), Some("7.5"));
    for line in [
        r#"tollgate_coordinator_workers{group="g"} 2.0"#,
        r#"tollgate_coordinator_limits{group="g"} 2.0"#,
        r#"tollgate_coordinator_continued_as_new_total{group="g"} 5"#,
        r#"tollgate_coordinator_state_bytes{group="g"} 4096.0"#,
        r#"tollgate_coordinator_unreadable_messages_total{group="g"} 1"#,
        r#"tollgate_coordinator_configuration_lag_versions{group="g"} 2.0"#,
        r#"tollgate_limit_rate_tokens_per_second{group="g",limit="a",meter="requests",tier="default"} 75.0"#,
        r#"tollgate_limit_ramp_position_ratio{group="g",limit="a",meter="requests",tier="default"} 0.75"#,
        r#"tollgate_limit_ramp_remaining_seconds{group="g",limit="a",meter="requests",tier="default"} 1.0"#,
        r#"tollgate_limit_ramp_position_ratio{group="g",limit="b",meter="requests",tier="default"} 1.0"#,
        r#"tollgate_limit_free_tokens{group="g",limit="b",meter="requests",tier="default"} -1.5"#,
        r#"tollgate_limit_used_tokens_total{group="g",limit="b",meter="requests",tier="default"} 12"#,
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    assert!(!text.contains(r#"limit="c""#), "what was removed isn't shown");
    assert!(!text_of(status(), None).contains("lag_versions"));
}

#[test]
fn no_more_limits_are_shown_than_a_group_can_have() {
    let mut status = status();
    let row = status.limits[0].clone();
    status.limits =
        (0..2_000).map(|number| LimitRowJson { limit: format!("l{number}"), ..row.clone() }).collect();
    let text = text_of(status, None);
    let shown = text.lines().filter(|line| line.starts_with("tollgate_limit_starving{")).count();
    assert_eq!(shown, LIMITS_SHOWN_MAX);
}

#[test]
fn a_config_workflow_that_began_anew_is_ahead() {
    let of = VersionJson { run_us: 7, n: 3 };
    assert_eq!(
        ["7.3", "7.5", "8.1", "6.9", "7", "x.y"].map(|newest| lag(newest, of)),
        [Some(0), Some(2), Some(1), Some(0), None, None]
    );
}

/// A coordinator that answers, or not, or never.
#[derive(Default)]
struct Told {
    asked: AtomicUsize,
    answer: StdMutex<Option<Answer>>,
    hangs: StdMutex<bool>,
}

impl Ask for Told {
    fn ask<'a>(&'a self, _group: &'a str) -> BoxFuture<'a, Option<Answer>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let (answer, hangs) = (self.answer.lock().unwrap().clone(), *self.hangs.lock().unwrap());
        Box::pin(async move { if hangs { std::future::pending().await } else { answer } })
    }
}

async fn is_up(groups: &Groups) -> (bool, bool) {
    let text = groups.snapshot().await.into_text();
    (text.contains(r#"tollgate_coordinator_up{group="g"} 1.0"#), text.contains("tollgate_limit_rate"))
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_is_asked_by_scrapes_alone_and_every_fifteen_seconds_at_most() {
    let told = Arc::new(Told::default());
    *told.answer.lock().unwrap() = Some(Answer { status: status(), version: None });
    let groups = Groups::new(&["g".to_owned()], told.clone());
    let began = Instant::now();
    for _ in 0..600 {
        assert_eq!(is_up(&groups).await, (true, true));
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    let most = began.elapsed().as_secs() / 15 + 1;
    let asked = told.asked.swap(0, Ordering::Relaxed) as u64;
    assert!((most - 1..=most).contains(&asked), "{asked} of {most}");
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(told.asked.load(Ordering::Relaxed), 0, "nobody scrapes");
    // A scraper with the same period gets an answer of its own each time, also when it comes a little early.
    for _ in 0..10 {
        is_up(&groups).await;
        tokio::time::advance(Duration::from_millis(14_990)).await;
    }
    assert_eq!(told.asked.load(Ordering::Relaxed), 10);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_down_within_one_scrape_that_ends_in_time() {
    let told = Arc::new(Told::default());
    let groups = Groups::new(&["g".to_owned()], told.clone());
    assert_eq!(is_up(&groups).await, (false, false), "there is no connection yet");
    *told.answer.lock().unwrap() = Some(Answer { status: status(), version: None });
    tokio::time::advance(ASK_EVERY).await;
    assert_eq!(is_up(&groups).await, (true, true));
    *told.hangs.lock().unwrap() = true;
    tokio::time::advance(ASK_EVERY).await;
    let began = Instant::now();
    let both = tokio::join!(is_up(&groups), is_up(&groups));
    assert_eq!(both, ((false, true), (false, true)), "the last figures stay for a while");
    assert_eq!(began.elapsed(), ANSWER_TIMEOUT);
    tokio::time::advance(FIGURES_MAX_AGE).await;
    assert_eq!(is_up(&groups).await, (false, false));
    // A scraper that breaks off before the answer is there.
    tokio::time::advance(ASK_EVERY).await;
    timeout(Duration::from_millis(100), groups.snapshot()).await.unwrap_err();
    assert_eq!(is_up(&groups).await, (false, false));
}
