//! Faults that other rate limiters had, held against the core. What needs a fleet or a golden output is a script in
//! `crates/sim/tests/scripts`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use tollgate_core::bucket::{Arrival, Level as _, Mint, Now, PlainLevel, admit};
use tollgate_core::client::{Action, Client};
use tollgate_core::curve::{Rate, RateCurve};
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome, Ended, STRICT_MAX, Settle};
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::message::{Incarnation, LeaseName, LeaseTerms};
use tollgate_core::policy::{Policy, Terms};
use tollgate_core::rules::Rules;
use tollgate_core::units::{Amount, BootTime, LedgerTime, Share, Span, WallTime};

const DAY: u64 = 24 * 3_600;

/// A worker's bucket with all of a limit, at a clock that the test sets.
struct Bucket {
    mint: Mint,
    level: PlainLevel,
}

impl Bucket {
    fn new(rate: Rate, cap: u64, tokens: u64) -> Bucket {
        let mut bucket = Bucket { mint: Mint::new(Rules::ALL), level: PlainLevel::default() };
        let terms = LeaseTerms {
            share: Share::ONE,
            cap: Amount::tokens(cap),
            tokens: Amount::tokens(tokens),
            duration: Span::from_secs(100_000),
            rate: RateCurve::constant(rate),
            burst: cap,
            policy: Terms::Minted,
            scarce: false,
            confirm: false,
            due: None,
            queue: None,
            conduct: Default::default(),
        };
        let now = at(0);
        let name = LeaseName { epoch: 1, seq: 1 };
        let arrival = Arrival { now, sent: now, spent_at_sending: 0, name, granted: LedgerTime(0) };
        assert!(bucket.mint.apply(&bucket.level, &arrival, &terms));
        bucket
    }

    fn admits(&mut self, micros: u64, cost: u64) -> bool {
        self.mint.refill(&self.level, at(micros));
        admit(&self.level, cost, || at(micros).boot).is_ok()
    }

    fn takes_all(&mut self, micros: u64) -> u64 {
        self.mint.refill(&self.level, at(micros));
        let all = u64::try_from(self.level.level()).unwrap();
        if all > 0 && self.admits(micros, all) { all } else { 0 }
    }
}

fn at(micros: u64) -> Now {
    Now { boot: BootTime(1_000_000 + micros), wall: WallTime(9_000_000 + micros) }
}

/// A ledger with one limit, `api`.
struct Books {
    ledger: Ledger,
    ids: u64,
}

impl Books {
    fn new(rate: Rate, burst: u64) -> Books {
        Books::under(Policy::TokenBucket, rate, burst)
    }

    fn under(policy: Policy, rate: Rate, burst: u64) -> Books {
        let mut books = Books { ledger: Ledger::new(Start::First, 1, LedgerTime(0)), ids: 0 };
        let cells =
            vec![CellConfig { policy, ..CellConfig::constant("api", rate, burst, Span::from_secs(10)) }];
        let configure = Configure { version: Version { run: 1, n: 1 }, settings: Settings::default(), cells };
        assert_eq!(books.ledger.apply(LedgerTime(0), Input::Configure(configure)), Output::Configured);
        books
    }

    fn acquires(&mut self, micros: u64, cost: u64) -> AcquireOutcome {
        self.asks(micros, cost, Span::from_secs(10), false)
    }

    fn asks(&mut self, micros: u64, cost: u64, lease: Span, auto: bool) -> AcquireOutcome {
        self.ids += 1;
        let id = format!("id-{}", self.ids);
        let acquire = Acquire { id, client: "test".into(), key: CellKey::of("api"), cost, lease, auto };
        let Output::Acquired(outcome) = self.ledger.apply(LedgerTime(micros), Input::Acquire(acquire)) else {
            panic!("an acquire is answered");
        };
        outcome
    }

    /// Uses what was acquired last, or gives up waiting for it.
    fn settles(&mut self, micros: u64, used: u64) -> AcquireOutcome {
        let settle = Settle { id: format!("id-{}", self.ids), key: CellKey::of("api"), used };
        let Output::Acquired(outcome) = self.ledger.apply(LedgerTime(micros), Input::Settle(settle)) else {
            panic!("a settle is answered");
        };
        outcome
    }

    fn uses(&mut self, micros: u64, cost: u64) -> bool {
        let granted = matches!(self.acquires(micros, cost), AcquireOutcome::Granted { .. });
        self.settles(micros, if granted { cost } else { 0 });
        granted
    }

    fn free(&mut self, micros: u64) -> Amount {
        self.ledger.apply(LedgerTime(micros), Input::Tick);
        self.ledger.state().cells[&CellKey::of("api")].free
    }
}

fn secs(secs: u64) -> u64 {
    secs * 1_000_000
}

#[test]
fn time_that_is_worth_less_than_a_token_is_not_lost() {
    let mut bucket = Bucket::new(Rate::per_second(1), 10, 0);
    let taken: u64 = (1..=100).map(|step| bucket.takes_all(step * 1_900_000)).sum();
    assert!((188..=190).contains(&taken), "{taken}");
    let mut books = Books::new(Rate::per_second(1), 10);
    assert!(books.uses(0, 10));
    let granted = (1..=1_900).filter(|step| books.uses(step * 100_000, 1)).count();
    assert_eq!(granted, 190);
}

#[test]
fn idling_for_years_fills_the_bucket_and_overflows_nothing() {
    let mut books = Books::new(Rate::per_second(1_000_000), 1_000_000);
    let mut now = 0;
    for idle in [DAY / 2, 30 * DAY, 3_650 * DAY] {
        now += secs(idle);
        assert!(books.uses(now, 1));
        assert_eq!(books.free(now), Amount::tokens(999_999));
    }
    let mut bucket = Bucket::new(Rate::per_second(1_000_000), 1_000_000, 0);
    assert!(bucket.admits(secs(99_999), 1));
    assert_eq!(bucket.level.level(), 999_999);
}

#[test]
fn rates_above_a_thousand_a_second_are_kept() {
    for (rate, per_second) in [
        (Rate::per_second(1_500), 1_500),
        (Rate::per_second(2_000), 2_000),
        (Rate::new(120_000, Span::from_secs(60)), 2_000),
        (Rate::per_second(1_000_000), 1_000_000),
    ] {
        let mut bucket = Bucket::new(rate, per_second / 100, 0);
        let taken: u64 = (1..=10_000).map(|milli| bucket.takes_all(milli * 1_000)).sum();
        let wanted = 10 * per_second;
        assert!(taken <= wanted && taken * 100 >= wanted * 99, "{taken} of {wanted}");
        assert_eq!(
            rate.time_for(Amount::tokens(per_second)),
            Some(Span(1_000_001)),
            "never zero, never early"
        );
    }
}

#[test]
fn a_rate_of_zero_is_neither_unlimited_nor_due_at_once() {
    let mut none = Books::new(Rate::ZERO, 0);
    let mut one = Books::new(Rate::ZERO, 1);
    let mut granted = 0;
    for step in 0..1_000 {
        assert_eq!(none.acquires(secs(step), 1), AcquireOutcome::CostAboveBurst { burst: 0 });
        let outcome = one.acquires(secs(step), 1);
        let is_granted = matches!(outcome, AcquireOutcome::Granted { .. });
        assert!(is_granted || outcome == AcquireOutcome::Queued { ahead: 0, due: None }, "{outcome:?}");
        granted += u64::from(is_granted);
        one.settles(secs(step), u64::from(is_granted));
    }
    assert_eq!(granted, 1);
}

#[test]
fn what_is_left_is_exact_on_large_limits() {
    for (rate, burst) in
        [(Rate::new(1_000_000, Span::from_secs(3_600)), 1_000_000), (Rate::per_second(6_000), 6_000)]
    {
        let mut books = Books::new(rate, burst);
        // A thousand within a millisecond: each counts at once.
        for spent in 1..=1_000u64 {
            assert!(books.uses(spent - 1, 1));
            let left = books.free(spent - 1);
            let minted = RateCurve::constant(rate).integral_nano(LedgerTime(0), LedgerTime(spent - 1));
            let least = Amount::tokens(burst - spent);
            let most = least + Amount(i128::try_from(minted).unwrap() * 1_000_000_000);
            assert!(least <= left && left <= most, "{left:?} is not from {least:?} to {most:?}");
        }
    }
}

#[test]
fn a_clock_that_jitters_neither_refuses_early_nor_mints_twice() {
    let mut bucket = Bucket::new(Rate::per_second(10), 10, 10);
    let jitter = [0i64, -50, 50, 13, -37, 49, -1, 50, -50, 20];
    let mut now = secs(10);
    for round in 0..1_000 {
        for step in &jitter {
            assert!(bucket.admits(now.saturating_add_signed(*step), 1), "round {round}");
        }
        for step in &jitter {
            assert!(!bucket.admits(now.saturating_add_signed(*step), 1), "round {round}");
        }
        assert!(bucket.level.level() >= 0);
        // As long as ten tokens take, and a little more for a mint that runs slow.
        now += 1_010_000;
        bucket.mint.refill(&bucket.level, at(now));
    }
}

#[test]
fn a_period_of_thirty_days_fits_every_timer() {
    let rate = Rate::new(50_000_000, Span::from_secs(30 * DAY));
    let mut books = Books::new(rate, 50_000_000);
    assert!(books.uses(0, 50_000_000));
    for micros in [2_000, secs(24 * DAY) + secs(DAY * 9 / 10), secs(29 * DAY) + secs(DAY * 9 / 10)] {
        let minted = RateCurve::constant(rate).integral_nano(LedgerTime(0), LedgerTime(micros));
        assert_eq!(books.free(micros), Amount(i128::try_from(minted).unwrap() * 1_000_000_000));
    }
    assert_eq!(books.free(secs(30 * DAY)), Amount::tokens(50_000_000));
    let never = Books::new(Rate::new(1, Span::from_secs(366 * DAY)), 1).acquires(0, 1);
    assert!(matches!(never, AcquireOutcome::Granted { .. }));
}

#[test]
fn a_hundred_of_a_burst_of_two_hundred_at_once() {
    let mut books = Books::new(Rate::per_second(10), 200);
    assert!((0..100).all(|step| matches!(books.acquires(step * 1_000, 1), AcquireOutcome::Granted { .. })));
    let mut books = Books::new(Rate::per_second(10), 200);
    assert!((0..10).all(|step| matches!(books.acquires(step * 10_000, 10), AcquireOutcome::Granted { .. })));
}

#[test]
fn permits_that_have_ended_do_not_fill_the_queue() {
    let mut books = Books::new(Rate::per_second(100), 20);
    let granted = (0..3 * STRICT_MAX as u64).filter(|step| books.uses(step * 10_000, 1)).count();
    assert_eq!(granted, 3 * STRICT_MAX);
    assert_eq!(books.settles(secs(30), 1), AcquireOutcome::Ended(Ended::Used), "the newest are remembered");
}

#[test]
fn a_wrong_figure_for_debt_does_not_close_a_limit_for_good() {
    let limit = CellConfig::constant("api", Rate::per_second(20), 5, Span::from_secs(4));
    let mut ledger = Ledger::new(Start::First, 1, LedgerTime(0));
    let version = Version { run: 1, n: 1 };
    let configure = Configure { version, settings: Settings::default(), cells: vec![limit] };
    ledger.apply(LedgerTime(0), Input::Configure(configure));
    let cell = tollgate_core::message::CellReport {
        key: CellKey::of("api"),
        borrowed: false,
        for_tier: None,
        acting: None,
        held: Amount::ZERO,
        used: 0,
        returned: Amount::ZERO,
        debt: Amount::tokens(u64::MAX),
        out: 0,
        demand: 0,
        waiting: 0,
        largest: 1,
    };
    let request = tollgate_core::message::Request {
        incarnation: Incarnation(7),
        seq: 1,
        nonce: 0,
        worker: "w".to_owned(),
        cells: vec![cell],
    };
    ledger.apply(LedgerTime(0), Input::Heartbeat(request));
    // It is forgotten; what is counted of its debt is paid off within the time of ten bursts.
    ledger.apply(LedgerTime(200_000_000), Input::Tick);
    ledger.apply(LedgerTime(204_000_000), Input::Tick);
    assert_eq!(ledger.state().cells[&CellKey::of("api")].free, Amount::tokens(5));
}

#[test]
fn a_seq_that_somebody_else_sent_ahead_makes_a_new_incarnation() {
    use tollgate_core::client::{AfterRefusal, Client};
    use tollgate_core::message::{Incarnation, RequestError};
    let mut client: Client<PlainLevel> = Client::new(Incarnation(1), "w", 1);
    client.add_cell(CellKey::of("api"), false, PlainLevel::default());
    client.poll(at(0), 1);
    let after = client.on_refusal(at(10), RequestError::Stale { newest: u64::MAX });
    assert_eq!(after, AfterRefusal::Reincarnate);
    assert_eq!(client.on_refusal(at(10), RequestError::Stale { newest: 3 }), AfterRefusal::GoOn);
}

#[test]
fn a_permit_of_which_nobody_speaks_ends_by_itself_and_many_cost_few_timers() {
    let mut books = Books::new(Rate::per_second(100), 100);
    for step in 0..100 {
        assert!(matches!(books.acquires(step * 9_000, 1), AcquireOutcome::Granted { .. }));
    }
    let mut ticks = Vec::new();
    while let Some(due) = books.ledger.next_due() {
        assert!(ticks.last().is_none_or(|last| due.0 >= last + secs(1)), "{due:?} after {ticks:?}");
        books.ledger.apply(due, Input::Tick);
        ticks.push(due.0);
    }
    assert!(ticks.len() <= 2, "{ticks:?}");
    let records = &books.ledger.state().records;
    assert_eq!(records.iter().filter(|record| record.how == Ended::Expired).count(), 100);
    // 10 s and what a lease is counted longer than its owner does, and up to a second.
    assert!(records.iter().all(|record| (secs(11)..=secs(14)).contains(&record.at.0)), "{records:?}");
}

/// The ledger's own timers until the permit asked for last is granted or gives up, as (how many, when the last one was).
fn timers(books: &mut Books) -> (u64, u64) {
    let id = format!("id-{}", books.ids);
    let (mut count, mut now) = (0, 0);
    let waits = |ledger: &Ledger| {
        ledger.state().cells[&CellKey::of("api")]
            .strict
            .get(&id)
            .is_some_and(|strict| strict.place().is_some())
    };
    while waits(&books.ledger) && count < 10_000 {
        let due = books.ledger.next_due().unwrap();
        assert!(due.0 > now, "{due:?} after {now}");
        (count, now) = (count + 1, due.0);
        books.ledger.apply(due, Input::Tick);
    }
    (count, now)
}

#[test]
fn waiting_for_what_time_alone_does_not_bring_costs_no_timers() {
    let (minute, hour) = (Span::from_secs(60), Span::from_secs(3_600));
    // All five in flight, and nobody says that they are over: that shows when their lease has ended.
    let mut books = Books::under(Policy::InFlight { drain: Span::ZERO }, Rate::per_second(5), 5);
    assert_eq!(books.asks(0, 5, minute, false), AcquireOutcome::Granted { lease: minute });
    assert!(matches!(books.asks(0, 1, minute, true), AcquireOutcome::Queued { ahead: 0, .. }));
    let (count, granted) = timers(&mut books);
    assert!(count <= 2 && (secs(61)..=secs(63)).contains(&granted), "{count} timers until {granted}");
    // A window that is used up.
    let hourly = Rate::new(5_000, hour);
    let mut books = Books::under(Policy::SlidingWindow { window: hour }, hourly, 5_000);
    assert!(books.uses(0, 5_000));
    let queued = books.asks(secs(60), 5, minute, true);
    let AcquireOutcome::Queued { due: Some(due), .. } = queued else { panic!("{queued:?}") };
    assert!(Span::from_secs(3_540) <= due && due <= Span::from_secs(3_600), "{due:?}");
    let (count, granted) = timers(&mut books);
    assert!(count <= 2 && (secs(3_600)..=secs(3_640)).contains(&granted), "{count} timers until {granted}");
    // A rate of zero: a place is kept for a day.
    let mut books = Books::new(Rate::ZERO, 1);
    assert!(books.uses(0, 1));
    assert_eq!(books.asks(0, 1, minute, true), AcquireOutcome::Queued { ahead: 0, due: None });
    let (count, ended) = timers(&mut books);
    assert!(count <= 2 && ended >= secs(DAY), "{count} timers until {ended}");
}

#[test]
fn a_place_that_nobody_comes_back_for_ends_by_itself() {
    let mut books = Books::new(Rate::new(1, Span::from_secs(10)), 1);
    assert!(matches!(books.acquires(0, 1), AcquireOutcome::Granted { .. }));
    books.settles(0, 1);
    assert!(matches!(books.acquires(0, 1), AcquireOutcome::Queued { .. }));
    let due = books.ledger.next_due().unwrap();
    books.ledger.apply(due, Input::Tick);
    assert_eq!(books.ledger.state().records.last().unwrap().how, Ended::Abandoned);
    assert_eq!(books.ledger.next_due(), None, "an idle ledger needs no timer");
}

#[test]
fn a_report_of_use_costs_nobody_the_place_in_the_queue() {
    let mut books = Books::new(Rate::per_second(1), 1);
    assert!(books.uses(0, 1));
    assert!(matches!(books.acquires(0, 1), AcquireOutcome::Queued { .. }));
    assert_eq!(books.settles(10, 1), AcquireOutcome::NotGranted);
    books.ids -= 1;
    assert!(matches!(books.acquires(secs(1), 1), AcquireOutcome::Granted { .. }), "the place was kept");
    // Nothing used of one that waits gives its place up.
    assert!(matches!(books.acquires(secs(1), 1), AcquireOutcome::Queued { .. }));
    assert_eq!(books.settles(secs(1), 0), AcquireOutcome::Ended(Ended::Abandoned));
}

#[test]
fn a_fleet_that_is_refused_together_comes_back_at_the_pace_that_it_was_given() {
    let limit = CellConfig::constant("api", Rate::per_second(100), 50, Span::from_secs(60));
    let mut ledger = Ledger::new(Start::First, 1, LedgerTime(0));
    let version = Version { run: 1, n: 1 };
    let configure = Configure { version, settings: Settings::default(), cells: vec![limit] };
    ledger.apply(LedgerTime(0), Input::Configure(configure));
    let mut fleet: Vec<Client<PlainLevel>> = (0..100u64)
        .map(|n| {
            let mut client =
                Client::new(Incarnation(u128::from(n) + 1), "w", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            client.add_cell(CellKey::of("api"), false, PlainLevel::default());
            client
        })
        .collect();
    // Refused for half a minute from the start, answered for twenty seconds, then refused for a minute.
    let mut tries = Vec::new();
    for now in (0..secs(110)).step_by(10_000) {
        for client in &mut fleet {
            let Action::Send(request) = client.poll(at(now), 0) else { continue };
            if (secs(30)..secs(50)).contains(&now) {
                let Output::Reply(Ok(reply)) = ledger.apply(LedgerTime(now), Input::Heartbeat(request))
                else {
                    panic!("a heartbeat is answered");
                };
                client.on_reply(at(now), &reply);
            } else {
                client.on_failure(at(now));
                tries.push(now);
            }
        }
    }
    let per_second = |from: u64, to: u64| {
        tries.iter().filter(|at| (secs(from)..secs(to)).contains(at)).count() as u64 / (to - from)
    };
    let most_at_once =
        |from: u64, to: u64| (from..to).map(|second| per_second(second, second + 1)).max().unwrap_or(0);
    // Nobody knows yet how many there are.
    assert!(per_second(15, 30) <= 16, "{} tries a second", per_second(15, 30));
    assert!(per_second(50, 60) <= 30, "{} tries a second", per_second(50, 60));
    // Half of what the ledger wants of a fleet of any size, so that what the server forgot gets through.
    assert!(per_second(90, 110) <= 7, "{} tries a second", per_second(90, 110));
    assert!(most_at_once(15, 30) <= 30 && most_at_once(90, 110) <= 30, "they come back as one");
    assert!(per_second(90, 110) >= 3, "{} tries a second", per_second(90, 110));
}

#[test]
fn a_reply_whose_time_was_read_before_a_refill_mints_nothing_twice() {
    let mint = |at_refill: u64, at_reply: u64| {
        let (level, mut mint) = (PlainLevel::default(), Mint::new(Rules::ALL));
        let now = |at: u64| Now { boot: BootTime(at), wall: WallTime(at) };
        let arrival = |at: u64| Arrival {
            now: now(at),
            sent: now(0),
            spent_at_sending: 0,
            name: LeaseName { epoch: 1, seq: 1 },
            granted: LedgerTime(0),
        };
        let terms = LeaseTerms {
            share: Share::ONE,
            cap: Amount::tokens(100),
            tokens: Amount::ZERO,
            duration: Span::from_secs(10),
            rate: RateCurve::constant(Rate::per_second(100)),
            burst: 100,
            policy: Terms::Minted,
            scarce: false,
            confirm: false,
            due: None,
            queue: None,
            conduct: Default::default(),
        };
        mint.apply(&level, &arrival(0), &terms);
        mint.refill(&level, now(at_refill));
        mint.apply(&level, &arrival(at_reply), &terms);
        mint.refill(&level, now(at_refill));
        level.level()
    };
    assert_eq!(mint(500_000, 500_000), 49);
    assert_eq!(mint(500_000, 200_000), 49);
}

#[test]
fn a_ramp_that_ends_before_it_begins_is_refused_naming_it() {
    let mut config = CellConfig::constant("api", Rate::per_second(1), 1, Span::from_secs(10));
    assert_eq!(config.check(), Ok(()));
    (config.rate.start, config.rate.end) = (LedgerTime(2), LedgerTime(1));
    let told = "ramp is an end before its start, allowed: an end at or after the start";
    assert_eq!(config.check().unwrap_err().to_string(), told);
    config.rate.end = LedgerTime(2) + Span::from_secs(24 * 3_600 + 1);
    assert_eq!(config.check().unwrap_err().to_string(), "ramp is 86401000 ms, allowed: 0 to 24 h");
}
