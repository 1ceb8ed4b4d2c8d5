//! What a gate shows: true figures, counters that never fall, and no more series than it has limits.

use crate::world::limit;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_worker::metrics::SocketAddr;
use tollgate_worker::testing::{Fault, TestGroup};
use tollgate_worker::{Gate, Outcome, Reason};

const LABELS: &str = r#"{group="default",limit="api",meter="requests",tier="default""#;

/// Series with their values.
fn read(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<(String, f64)> = lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect();
    let unique: BTreeMap<String, f64> = series.iter().cloned().collect();
    assert_eq!(unique.len(), series.len(), "a series is there twice: {text}");
    unique
}

/// The value of a series of limit `api`.
fn value(gate: &Gate, name: &str, more: &str) -> f64 {
    let series = format!("{name}{LABELS}{more}}}");
    let all = read(&gate.metrics().text());
    *all.get(&series).unwrap_or_else(|| panic!("no {series} in {:?}", all.keys()))
}

fn group_value(gate: &Gate, series: &str) -> f64 {
    let all = read(&gate.metrics().text());
    *all.get(series).unwrap_or_else(|| panic!("no {series} in {:?}", all.keys()))
}

#[tokio::test(start_paused = true)]
async fn figures_are_those_of_what_happened() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let value = |name: &str, more: &str| value(&gate, name, more);
    gate.acquire("api").cost(4).await.unwrap().settle(1, Outcome::Success);
    gate.acquire("api").cost(1).await.unwrap().settle(2, Outcome::Throttled);
    assert_eq!(value("tollgate_worker_permits_granted_total", ""), 2.0);
    let (charged, refunded) = (
        value("tollgate_worker_charged_tokens_total", ""),
        value("tollgate_worker_refunded_tokens_total", ""),
    );
    assert_eq!(charged, 6.0, "with the overdraft");
    assert!((0.0..=3.0).contains(&refunded), "as far as it was safe: {refunded}");
    let state = gate.state().limits.remove(0);
    let used: f64 = state.counters.charged.to_string().parse().unwrap();
    assert_eq!(charged - refunded, used);
    let level: f64 = state.level.to_string().parse().unwrap();
    assert_eq!(value("tollgate_worker_left_tokens", ""), level);
    assert_eq!(value("tollgate_worker_share_ratio", ""), f64::from(state.share.ppb()) / 1e9);
    assert_eq!(value("tollgate_worker_permits_settled_total", r#",outcome="success""#), 1.0);
    assert_eq!(value("tollgate_worker_permits_settled_total", r#",outcome="throttled""#), 1.0);
    assert_eq!(value("tollgate_worker_permits_settled_total", r#",outcome="failure""#), 0.0);

    let (count, sum) =
        (value("tollgate_worker_wait_seconds_count", ""), value("tollgate_worker_wait_seconds_sum", ""));
    gate.limit("api").try_acquire(5).unwrap_err();
    let waits = gate.acquire("api").cost(5);
    let waiting = tokio::spawn(async move { waits.await });
    group.advance(Duration::from_millis(1)).await;
    assert_eq!(value("tollgate_worker_waiting_callers", ""), 1.0);
    assert_eq!(value("tollgate_worker_waiting_tokens", ""), 5.0);
    drop(waiting.await.unwrap().unwrap());
    assert_eq!(value("tollgate_worker_wait_seconds_count", ""), count + 1.0);
    let waited = value("tollgate_worker_wait_seconds_sum", "") - sum;
    assert!((0.05..1.0).contains(&waited), "{waited}");
    assert_eq!(value("tollgate_worker_refusals_total", r#",reason="empty""#), 1.0);
    assert_eq!(value("tollgate_worker_refusals_total", r#",reason="deadline""#), 0.0);
    let late = gate.acquire("api").cost(5).timeout(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(late.reason(), Some(Reason::Deadline));
    assert_eq!(value("tollgate_worker_refusals_total", r#",reason="deadline""#), 1.0);
    assert_eq!(value("tollgate_worker_waits_given_up_total", ""), 1.0);

    assert_eq!(value("tollgate_worker_condition", r#",condition="open""#), 1.0);
    assert_eq!(value("tollgate_worker_condition", r#",condition="closed""#), 0.0);
    let left = value("tollgate_worker_lease_remaining_seconds", "");
    assert!(left > 1.0 && left + value("tollgate_worker_lease_age_seconds", "") <= 8.0, "{left}");
    assert!(group_value(&gate, r#"tollgate_worker_heartbeat_seconds_count{group="default"}"#) >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn what_goes_back_is_counted_apart_from_what_was_charged() {
    let group = TestGroup::new([limit("api", 100, 100)]);
    let gate = group.gate().await;
    // Used as fast as it comes, the bucket has room, into which tokens can go back.
    for _ in 0..100 {
        gate.acquire("api").cost(10).await.unwrap().settle(5, Outcome::Ignored);
    }
    let (charged, refunded) = (
        value(&gate, "tollgate_worker_charged_tokens_total", ""),
        value(&gate, "tollgate_worker_refunded_tokens_total", ""),
    );
    assert_eq!(charged, 1_000.0);
    assert!(refunded > 0.0 && refunded <= 500.0, "{refunded}");
    let used: f64 = gate.state().limits[0].counters.charged.to_string().parse().unwrap();
    assert_eq!(charged - refunded, used);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_away_shows_whether_it_says_so_or_is_silent() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let up = r#"tollgate_worker_coordinator_up{group="default"}"#;
    let errors = |reason: &str| {
        let series =
            format!(r#"tollgate_worker_heartbeat_errors_total{{group="default",reason="{reason}"}}"#);
        group_value(&gate, &series)
    };
    assert_eq!((group_value(&gate, up), errors("unreachable"), errors("timeout")), (1.0, 0.0, 0.0));
    group.fail(Fault::Unreachable);
    group.advance(Duration::from_secs(5)).await;
    assert_eq!(group_value(&gate, up), 0.0);
    assert!(errors("unreachable") >= 1.0);
    let since = group_value(&gate, r#"tollgate_worker_coordinator_state_seconds{group="default"}"#);
    assert!((0.1..5.0).contains(&since), "{since}");
    group.heal();
    group.advance(Duration::from_secs(5)).await;
    assert_eq!((group_value(&gate, up), errors("timeout")), (1.0, 0.0));
    // No error comes back, and no answer.
    group.set_round_trip(Duration::from_secs(3_600));
    group.advance(Duration::from_secs(6)).await;
    assert_eq!(group_value(&gate, up), 0.0);
    assert!(errors("timeout") >= 1.0);
    group.advance(Duration::from_secs(6)).await;
    assert_eq!(value(&gate, "tollgate_worker_condition", r#",condition="closed""#), 1.0);
    assert_eq!(value(&gate, "tollgate_worker_lease_remaining_seconds", ""), 0.0);
}

#[tokio::test(start_paused = true)]
async fn names_without_end_make_no_series_without_end() {
    let group = TestGroup::new([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let odd = "we\"ird\\näme {a=\"b\"}";
    let _refused = gate.limit(odd).try_acquire(1);
    let series = |gate: &Gate| read(&gate.metrics().text()).len();
    let two = series(&gate);
    assert!(gate.metrics().text().contains(r#"limit="we\"ird\\näme {a=\"b\"}""#));
    for number in 0..3_000 {
        let _refused = gate.limit(&format!("made-up-{number}")).try_acquire(1);
        let _refused = gate.limit(&format!("bad\n{number}")).try_acquire(1);
    }
    let full = series(&gate);
    let text = gate.metrics().text();
    let granted = text.lines().filter(|line| line.starts_with("tollgate_worker_permits_granted_total{"));
    assert_eq!(granted.count(), 1_000, "as many as one gate leases");
    for number in 3_000..4_000 {
        let _refused = gate.limit(&format!("made-up-{number}")).try_acquire(1);
    }
    assert_eq!(series(&gate), full, "beyond that they add nothing");
    assert!(full <= 1_000 * two, "{full} for 1,000 limits, {two} for two");
}

/// Threads take and settle for less and for more while others look.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_never_fall() {
    let group = TestGroup::in_real_time([limit("api", 100_000, 1_000)]);
    let gate = group.gate().await;
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let work = (0..2_u64).map(|number| {
        let (gate, done) = (gate.clone(), done.clone());
        tokio::task::spawn_blocking(move || {
            let limit = gate.limit("api");
            let mut round = number;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                if let Ok(permit) = limit.try_acquire(1 + round % 7) {
                    permit.settle(round % 5, Outcome::Success);
                }
            }
        })
    });
    let work: Vec<_> = work.collect();
    let is_counter = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        ["_total", "_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end))
    };
    let mut last = BTreeMap::new();
    for round in 0..300 {
        if round == 150 {
            // A new lease, and tokens that are void.
            group.end_leases(&gate);
        }
        let now = read(&gate.metrics().text());
        for (series, value) in now.iter().filter(|(series, _)| is_counter(series)) {
            let before = last.get(series).copied().unwrap_or(0.0);
            assert!(*value >= before, "{series} fell from {before} to {value}");
        }
        last = now;
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::Relaxed);
    for work in work {
        work.await.unwrap();
    }
    let of = |name: &str| last.iter().find(|(series, _)| series.starts_with(name)).unwrap().1;
    assert!(*of("tollgate_worker_charged_tokens_total{") > 0.0);
}

async fn scrape(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn scrapes_go_on_through_a_shutdown_and_do_not_keep_the_gate_going() {
    let group = TestGroup::in_real_time([limit("api", 10, 5)]);
    let gate = group.gate().await;
    let endpoint = gate.serve_metrics("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = endpoint.address();
    let up = |answer: &str| answer.contains("tollgate_worker_coordinator_up{group=\"default\"} 1.0\n");
    assert!(up(&scrape(address).await.unwrap()));
    let scrapes = async {
        loop {
            let answer = scrape(address).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("# EOF\n"), "{answer}");
            if !up(&answer) {
                return answer;
            }
        }
    };
    let (answer, ended) = tokio::join!(scrapes, gate.shutdown());
    ended.unwrap();
    assert!(answer.contains(&format!("tollgate_worker_left_tokens{LABELS}}} 0.0\n")), "{answer}");
    drop(endpoint);
    assert!(scrape(address).await.is_err());

    let gate = group.gate().await;
    let endpoint = gate.serve_metrics("127.0.0.1:0".parse().unwrap()).await.unwrap();
    assert!(up(&scrape(endpoint.address()).await.unwrap()));
    drop(gate);
    while up(&scrape(endpoint.address()).await.unwrap()) {}
    let error = group.gate().await.serve_metrics(endpoint.address()).await.unwrap_err();
    assert!(error.to_string().contains("another program listens there"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_without_the_coordinator_and_what_a_shadow_would_refuse_is_shown() {
    let group = TestGroup::new([limit("api", 10, 5).open_when_lost()]);
    let gate = group.gate().await;
    let value = |name: &str, more: &str| value(&gate, name, more);
    let modes = |held: f64, opened: f64| {
        assert_eq!(value("tollgate_worker_lost_mode", r#",mode="held""#), held);
        assert_eq!(value("tollgate_worker_lost_mode", r#",mode="opened""#), opened);
    };
    modes(0.0, 0.0);
    assert_eq!(value("tollgate_worker_alone_seconds", ""), 0.0);
    group.fail(Fault::Unreachable);
    group.advance(Duration::from_secs(30)).await;
    let charged = value("tollgate_worker_charged_tokens_total", "");
    drop(gate.limit("api").try_acquire(3).unwrap());
    modes(0.0, 1.0);
    assert_eq!(value("tollgate_worker_condition", r#",condition="opened""#), 1.0);
    assert!(value("tollgate_worker_alone_seconds", "") > 10.0);
    assert_eq!(value("tollgate_worker_opened_permits_total", ""), 1.0);
    assert_eq!(value("tollgate_worker_opened_tokens_total", ""), 3.0);
    assert_eq!(value("tollgate_worker_charged_tokens_total", ""), charged);
    group.heal();
    group.set(limit("api", 10, 5).shadow());
    group.advance(Duration::from_secs(10)).await;
    modes(0.0, 0.0);
    drop(gate.limit("api").try_acquire(6).unwrap());
    assert_eq!(value("tollgate_worker_in_shadow", ""), 1.0);
    assert_eq!(value("tollgate_worker_shadow_refusals_total", r#",reason="cost_above_burst""#), 1.0);
    assert_eq!(value("tollgate_worker_shadow_refusals_total", r#",reason="empty""#), 0.0);
    assert_eq!(value("tollgate_worker_shadow_tokens_total", ""), 6.0);
}
