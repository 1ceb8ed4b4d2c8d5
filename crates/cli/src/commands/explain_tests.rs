use super::*;
use tollgate_workflows::wire::conduct::ConductJson;
use tollgate_workflows::wire::config::PolicyJson;
use tollgate_workflows::wire::explain::{CandidateJson, PermitJson, StarvingJson, WorkerLimitJson};
use tollgate_workflows::wire::status::LimitRowJson;

const NOW: u64 = 1_796_043_897_000_000;
const SECOND: u64 = 1_000_000;

fn row() -> LimitRowJson {
    LimitRowJson {
        limit: "api".to_owned(),
        meter: CellKey::METER.to_owned(),
        tier: CellKey::TIER.to_owned(),
        rate_micro: 50_000_000,
        target_micro: 50_000_000,
        ramp_begins_us: None,
        ramp_ends_us: None,
        burst: 16,
        conduct: ConductJson::default(),
        free_milli: 0,
        debt_milli: 0,
        share_ppb: 980_000_000,
        cap_milli: 12_700,
        policy: PolicyJson::TokenBucket,
        out: 0,
        away_milli: 0,
        kind: "shares".to_owned(),
        kind_reason: String::new(),
        used: 12_345,
        waiting: 15,
        holders: 2,
        used_micro: Some(20_500_000),
        starving: None,
        recovering_until_us: None,
        bound: String::new(),
        bound_costs: String::new(),
        removed: false,
    }
}

fn hold(worker: &str) -> HoldJson {
    HoldJson {
        incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
        worker: worker.to_owned(),
        borrowed: false,
        since_us: Some(NOW - 185 * SECOND),
        share_ppb: 500_000_000,
        cap_milli: 8_000,
        held_milli: 2_500,
        idle_micro: 5_000_000,
        demand_micro: 20_000_000,
        expires_us: Some(NOW + 7 * SECOND),
        seen_us: NOW - SECOND,
        silent: false,
    }
}

fn why(reason: &str, command: Option<&str>) -> WhyJson {
    WhyJson {
        reason: reason.to_owned(),
        waiters: 2,
        tokens: 15,
        since_us: Some(NOW - 4 * SECOND),
        text: "it is so".to_owned(),
        help: "do this".to_owned(),
        command: command.map(str::to_owned),
    }
}

fn limit() -> ExplainLimitJson {
    let waiter = WaiterJson {
        who: "host-2".to_owned(),
        incarnation: Some("fedcba98".repeat(4)),
        permit: None,
        tokens: 12,
        since_us: NOW - 4 * SECOND,
        reason: "limit_reached".to_owned(),
    };
    let permit = WaiterJson {
        who: "cron\x1b[2J".to_owned(),
        incarnation: None,
        permit: Some("job-7".to_owned()),
        tokens: 3,
        ..waiter.clone()
    };
    let silent = HoldJson {
        since_us: None,
        idle_micro: 0,
        held_milli: 0,
        expires_us: None,
        silent: true,
        seen_us: NOW - 14 * SECOND,
        ..hold("host-9")
    };
    ExplainLimitJson {
        row: row(),
        holders: vec![hold("host-1"), silent],
        holders_left_out: 0,
        permits: vec![PermitJson {
            permit: "job-6".to_owned(),
            client: "cron".to_owned(),
            tokens: 2,
            since_us: NOW - 2 * SECOND,
            expires_us: NOW + 9 * SECOND,
        }],
        permits_left_out: 0,
        waiters: vec![waiter, permit],
        waiters_left_out: 4,
        reasons: vec![why("limit_reached", Some("tollgate limit set api --rate RATE"))],
    }
}

fn answer() -> ExplainJson {
    ExplainJson { now_us: NOW, heartbeat_ms: 1_000, limits: vec![limit()], ..ExplainJson::default() }
}

#[test]
fn a_limit_shows_who_holds_who_waits_and_what_helps() {
    assert_eq!(
        render(&answer(), "api", NOW, Paint::OFF),
        "limit api · 50/s, burst 16, 20.5/s used lately, handed out by shares · as of 13:04:57Z (now)\n\
         \n\
         HOLDS   SINCE      SHARE  TOKENS  UNUSED              EXPIRES  HEARD     INCARNATION OR PERMIT\n\
         host-1  3m05s ago    50%     8.0  5/s and 2.5 tokens  in 7.0s  1.0s ago  01234567\n\
         host-9  -            50%     8.0  -                   -        14s ago   01234567\n\
         cron    2.0s ago       -       2  -                   in 9.0s  -         job-6\n\
         \n\
         WAITS     FOR TOKENS  SINCE     REASON         INCARNATION OR PERMIT\n\
         host-2            12  4.0s ago  limit reached  fedcba98\n\
         cron\u{fffd}[2J           3  4.0s ago  limit reached  job-7\n\
         4 more are left out\n\
         \n\
         limit reached, 2 wait for 15 tokens: it is so\n\
         \x20 what helps: do this: tollgate limit set api --rate RATE\n"
    );
    let painted = render(&answer(), "api", NOW, Paint { on: true, columns: None });
    assert!(painted.contains("\x1b[33mit is so\x1b[0m"), "{painted:?}");
}

#[test]
fn a_starving_limit_says_so_first() {
    let mut answer = answer();
    answer.limits[0].row.starving = Some(StarvingJson {
        who: "host-2".to_owned(),
        tokens: 12,
        since_us: NOW - 40 * SECOND,
        reason: "crowded_burst".to_owned(),
        text: "the burst is small".to_owned(),
        help: String::new(),
    });
    let shown = render(&answer, "api", NOW, Paint::OFF);
    let told = "\nit has room, and host-2 has waited for 12 tokens since 13:04:17 UTC, while 20.5/s of 50/s were used: \
                the burst is small\n";
    assert!(shown.contains(told), "{shown}");
}

#[test]
fn a_worker_shows_its_limits_and_what_is_wrong_with_it() {
    let used = |limit: &str, why: Option<WhyJson>| WorkerLimitJson {
        limit: limit.to_owned(),
        meter: CellKey::METER.to_owned(),
        tier: CellKey::TIER.to_owned(),
        hold: hold("host-1"),
        waiting: if why.is_some() { 15 } else { 0 },
        why,
    };
    let worker = ExplainWorkerJson {
        incarnation: "0123456789abcdef0123456789abcdef".to_owned(),
        worker: "host-1".to_owned(),
        standing: "evicted".to_owned(),
        seen_us: NOW - SECOND,
        silent: false,
        limits: vec![used("api", Some(why("ramp", None))), used("b", None)],
        limits_left_out: 0,
        reasons: vec![WhyJson { text: "evicted".to_owned(), ..why("evicted", None) }],
    };
    let answer =
        ExplainJson { now_us: NOW, heartbeat_ms: 1_000, workers: vec![worker], ..ExplainJson::default() };
    assert_eq!(
        render(&answer, "host-1", NOW, Paint::OFF),
        "worker host-1 · evicted · heard 1.0s ago (13:04:56Z) · incarnation 0123456789abcdef0123456789abcdef\n\
         evicted\n\
         \x20 what helps: do this\n\
         \n\
         LIMIT  HOLDS SINCE  SHARE  TOKENS  UNUSED              EXPIRES  WAITING  SINCE     REASON\n\
         api    3m05s ago      50%     8.0  5/s and 2.5 tokens  in 7.0s       15  4.0s ago  ramp\n\
         b      3m05s ago      50%     8.0  5/s and 2.5 tokens  in 7.0s        0\n\
         \n\
         api: it is so\n\
         \x20 what helps: do this\n"
    );
}

#[test]
fn a_name_that_means_nothing_is_told_what_there_is() {
    let worker = |n: usize| CandidateJson {
        worker: format!("host-{n}"),
        incarnation: format!("{n:08}{}", "0".repeat(24)),
        standing: "live".to_owned(),
        seen_us: NOW - SECOND,
    };
    let mut candidates = CandidatesJson {
        ambiguous: false,
        limits: (0..7).map(|n| format!("api-{n}")).collect(),
        workers: (0..8).map(worker).collect(),
        left_out: 2,
    };
    let text = not_found("ap", "default", &candidates, NOW);
    assert!(
        text.starts_with("no limit or worker \"ap\" in group \"default\"; there are:\n  limit   api-0\n")
    );
    assert!(
        text.contains("\n  worker  host-4  00000004, live, heard 1.0s ago\n  and 7 more: see "),
        "{text}"
    );
    candidates = CandidatesJson { ambiguous: true, limits: Vec::new(), left_out: 0, ..candidates };
    let text = not_found("host", "default", &candidates, NOW);
    assert!(
        text.starts_with("\"host\" means several workers")
            && text.ends_with("host-7  00000007, live, heard 1.0s ago")
    );
    let nothing = not_found("ap", "default", &CandidatesJson::default(), NOW);
    assert_eq!(nothing, "no limit or worker \"ap\" in group \"default\"");
}
