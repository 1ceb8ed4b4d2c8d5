use super::*;
use tollgate_core::limit::CellKey;
use tollgate_workflows::wire::conduct::ConductJson;
use tollgate_workflows::wire::config::PolicyJson;
use tollgate_workflows::wire::explain::StarvingJson;
use tollgate_workflows::wire::status::{LimitCellJson, UnreadableJson};

pub(crate) const NOW: u64 = 1_796_043_897_000_000;
const SECOND: u64 = 1_000_000;
const MICRO: u64 = 1_000_000;

pub(crate) fn row(limit: &str, rate: u64) -> LimitRowJson {
    LimitRowJson {
        limit: limit.to_owned(),
        meter: CellKey::METER.to_owned(),
        tier: CellKey::TIER.to_owned(),
        rate_micro: rate * MICRO,
        target_micro: rate * MICRO,
        ramp_begins_us: None,
        ramp_ends_us: None,
        burst: 16,
        conduct: ConductJson::default(),
        free_milli: 3_290,
        debt_milli: 0,
        share_ppb: 980_000_000,
        cap_milli: 12_700,
        policy: PolicyJson::TokenBucket,
        out: 0,
        away_milli: 0,
        kind: "shares".to_owned(),
        kind_reason: "10.000 tokens per worker and heartbeat, 4 of burst 16 needed at once".to_owned(),
        used: 12_345,
        waiting: 0,
        holders: 5,
        used_micro: None,
        starving: None,
        recovering_until_us: None,
        bound: "at most 16 + 50/s * t in any interval t".to_owned(),
        bound_costs: "about 3%".to_owned(),
        removed: false,
    }
}

pub(crate) fn status(limits: Vec<LimitRowJson>) -> StatusJson {
    StatusJson {
        group: "default".to_owned(),
        now_us: NOW - 2 * SECOND,
        epoch: 7,
        recovering_until_us: None,
        version: VersionJson { run_us: NOW - 100 * SECOND, n: 3 },
        rules_version: 1,
        workers: 5,
        heartbeat_ms: 1_000,
        limits,
        unreadable: UnreadableJson::default(),
        ignored_configs: 0,
        ignored_version: None,
        resets: 0,
        runs: 1,
        state_bytes: None,
        digest: String::new(),
    }
}

#[test]
fn a_calm_group_is_one_line_and_a_table() {
    let slow = LimitRowJson {
        rate_micro: 57,
        target_micro: 57,
        kind: "tokens".to_owned(),
        waiting: 3,
        debt_milli: 2_500,
        conduct: ConductJson::default(),
        free_milli: 0,
        ..row("reports", 0)
    };
    let ramp = LimitRowJson {
        rate_micro: 73_216_549,
        target_micro: 100_000_000,
        ramp_ends_us: Some(NOW + 12 * SECOND),
        ..row("openai/gpt-4o", 0)
    };
    let shown = render(&status(vec![ramp, slow]), NOW, Paint::OFF);
    assert_eq!(
        shown,
        "group default · 5 workers, heartbeat every 1.0s · version 1796043797000000.3 · as of 13:04:55Z (2.0s ago)\n\
         \n\
         LIMIT          RATE NOW               BURST   USED  FREE   OUT  WAITING  HOLDERS  KIND\n\
         openai/gpt-4o  73.2/s → 100/s in 12s     16  12345   3.2   98%        0        5  shares\n\
         reports        5/day                     16  12345  -2.5  12.7        3        5  tokens\n"
    );
}

#[test]
fn what_an_operator_must_know_comes_before_the_figures() {
    let mut status = status(Vec::new());
    status.recovering_until_us = Some(NOW + 70 * SECOND);
    status.unreadable = UnreadableJson {
        count: 3,
        last_name: "signal lease".to_owned(),
        last_us: NOW - 61 * SECOND,
        last_error: "cells[0].limit: missing\x1b[2J".to_owned(),
    };
    status.ignored_configs = 1;
    status.ignored_version = Some(VersionJson { run_us: 5, n: 2 });
    status.resets = 2;
    status.workers = 1;
    let shown = render(&status, NOW, Paint::OFF);
    assert_eq!(
        shown,
        "group default · 1 worker, heartbeat every 1.0s · version 1796043797000000.3 · as of 13:04:55Z (2.0s ago)\n\
         recovering for 1m10s, until 13:06:07Z: leases are confirmed, none are raised\n\
         3 messages refused or unreadable, the last one 13:03:56Z (1m01s ago), signal lease: cells[0].limit: missing\u{fffd}[2J\n\
         1 configuration ignored since they were older than the one in force, the last one 5.2\n\
         2 resets of the coordinator noticed\n\
         \n\
         no limits yet: `tollgate limit set NAME --rate 50/s` makes one\n"
    );
    assert!(render(&status, NOW, Paint { on: true, columns: None }).contains("\x1b[31mrecovering"));
}

#[test]
fn somebody_who_starves_is_told_of_above_the_table_and_in_it() {
    let starving = StarvingJson {
        who: "host-2".to_owned(),
        tokens: 5,
        since_us: NOW - 40 * SECOND,
        reason: "crowded_burst".to_owned(),
        text: "the burst is small".to_owned(),
        help: "raise it".to_owned(),
    };
    let row =
        LimitRowJson { used_micro: Some(20_500_000), waiting: 5, starving: Some(starving), ..row("api", 50) };
    let shown = render(&status(vec![row]), NOW, Paint::OFF);
    assert!(
        shown.contains(
            "\napi has room, and host-2 has waited for 5 tokens since 13:04:17 UTC, while 20.5/s of 50/s were used: the \
             burst is small; see `tollgate explain`\n"
        ),
        "{shown}"
    );
    assert!(shown.contains("  5 starving        5  shares\n"), "{shown}");
}

#[test]
fn one_limit_shows_who_holds_it_and_who_is_late() {
    let holder = HolderJson {
        incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
        worker: "worker-1".to_owned(),
        limit: "api".to_owned(),
        meter: "requests".to_owned(),
        tier: "default".to_owned(),
        borrowed: false,
        share_ppb: 500_000_000,
        cap_milli: 8_000,
        expires_us: Some(NOW + 7 * SECOND),
        acknowledged: true,
        demand_micro: 25_500_000,
        waiting: 4,
        waiting_since_us: Some(NOW - 3 * SECOND),
        seen_us: NOW - SECOND,
    };
    let late = HolderJson {
        worker: String::new(),
        acknowledged: false,
        waiting: 0,
        waiting_since_us: None,
        share_ppb: 1,
        seen_us: NOW - 14 * SECOND,
        expires_us: Some(NOW - SECOND),
        ..holder.clone()
    };
    let cells = vec![LimitCellJson { row: row("api", 50), holders: vec![holder, late] }];
    let shown = render_limit(&LimitDetailJson { now_us: NOW, cells }, NOW, Paint::OFF);
    assert_eq!(
        shown,
        "LIMIT  RATE NOW  BURST   USED  FREE  OUT  WAITING  HOLDERS  KIND\n\
         api    50/s         16  12345   3.2  98%        0        5  shares\n\
         \n\
         shares: 10.000 tokens per worker and heartbeat, 4 of burst 16 needed at once; as of 13:04:57Z\n\
         promised: at most 16 + 50/s * t in any interval t; costs about 3%\n\
         WORKER    SHARE  CAP  DEMAND     WAITING  EXPIRES              SEEN                  ACKNOWLEDGED  INCARNATION\n\
         worker-1    50%  8.0  25.5/s  4 for 3.0s  in 7.0s (13:05:04Z)  1.0s ago (13:04:56Z)  yes           01234567\n\
         -           <1%  8.0  25.5/s           0  over (13:04:56Z)     14s ago (13:04:43Z)   not yet       01234567\n"
    );
}

#[test]
fn rates_are_shown_in_the_unit_that_makes_them_whole() {
    for (micro, text) in [
        (0, "0/s"),
        (50_000_000, "50/s"),
        (16_666_666, "1000/min"),
        (27_777, "100/h"),
        (57, "5/day"),
        (500_000, "30/min"),
        (2_500_000, "150/min"),
        (1_000_000_000_000_000_000, "1000000000000/s"),
        (73_216_549, "73.216/s"),
        (1_234_567, "1.234/s"),
        (1, "0/s"),
    ] {
        assert_eq!(rate_text(micro, micro), text, "{micro}");
    }
    // On the way to 100 a second.
    assert_eq!(rate_text(73_216_549, 100_000_000), "73.2/s");
    assert_eq!(rate_text(50_004_000, 100_000_000), "50/s");
}

#[test]
fn a_trace_of_a_share_is_not_shown_as_nothing() {
    for (ppb, text) in
        [(0, "0%"), (1, "<1%"), (5_000_000, "1%"), (999_999_999, "100%"), (1_000_000_000, "100%")]
    {
        assert_eq!(percent(ppb), text);
    }
}

#[test]
fn a_narrow_terminal_shows_everything() {
    let ramp = LimitRowJson {
        rate_micro: 73_216_549,
        target_micro: 100_000_000,
        ramp_ends_us: Some(NOW + 12 * SECOND),
        ..row("openai/gpt-4o", 0)
    };
    let shown = |columns| {
        let paint = Paint { on: false, columns: Some(columns) };
        paint.fold(&render(&status(vec![ramp.clone()]), NOW, paint))
    };
    assert_eq!(
        shown(40),
        "group default · 5 workers, heartbeat\n  every 1.0s · version\n  1796043797000000.3 · as of 13:04:55Z\n  (2.0s ago)\n\
         \n\
         openai/gpt-4o\n  RATE NOW 73.2/s → 100/s in 12s\n  BURST 16  USED 12345  FREE 3.2\n\x20 OUT 98%  WAITING 0  HOLDERS 5\n\x20 KIND shares\n"
    );
    assert!(shown(80).lines().all(|line| line.chars().count() <= 80), "{}", shown(80));
    assert!(
        shown(80).contains("\n  RATE NOW 73.2/s → 100/s in 12s  BURST 16  USED 12345  FREE 3.2  OUT 98%\n"),
        "{}",
        shown(80)
    );
}
