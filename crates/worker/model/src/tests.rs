use crate::level::AtomicLevel;
use crate::sync::{Fault, plant};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tollgate_core::bucket::{Admitted, Arrival, Level, Mark, Mint, Now, Refusal, admit, admit_by};
use tollgate_core::curve::{Rate, RateCurve};
use tollgate_core::message::{LeaseName, LeaseTerms};
use tollgate_core::policy::Terms;
use tollgate_core::rules::Rules;
use tollgate_core::units::{Amount, BootTime, LedgerTime, Share, Span, WallTime};

/// How often a thread may lose the processor while it could go on. With the few steps of these models no more than
/// this many are needed to bring any two steps into any order.
const PREEMPTIONS_MAX: usize = 3;

/// Enough to fill a pocket for costs of one.
const PLENTY: i64 = 64;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// Whether the checker objects to a model with a fault in it.
fn is_found(fault: Option<Fault>, model: impl Fn() + Sync + Send + 'static) -> bool {
    plant(fault);
    let found = catch_unwind(AssertUnwindSafe(|| check(model))).is_err();
    plant(None);
    found
}

fn level(tokens: i64) -> Arc<AtomicLevel> {
    let level = AtomicLevel::new(2, Span::ZERO);
    level.add(tokens);
    Arc::new(level)
}

/// Permits of one token that thread `number` gets in `tries`.
fn quick(level: &AtomicLevel, number: usize, tries: usize) -> i64 {
    let taken = (0..tries).filter(|_| level.take_quickly(number, 1)).count();
    i64::try_from(taken).unwrap()
}

/// Two threads that have no pockets take from what suffices for one of them.
fn two_take_the_last_token() {
    let level = level(1);
    let other = level.clone();
    let thread = thread::spawn(move || quick(&other, 0, 1));
    let taken = i64::from(level.take(1)) + thread.join().unwrap();
    assert_eq!((taken, level.level()), (1, 0));
}

/// A thread takes from its pocket while another one needs what is in it.
fn pocket_is_collected_while_it_is_used() {
    let level = level(PLENTY);
    assert!(level.take_quickly(0, 1));
    let other = level.clone();
    let thread = thread::spawn(move || quick(&other, 0, 2));
    // No more than 3 are gone, whatever the thread does, so they are there; and more than any place holds.
    assert!(level.take(60), "tokens were out of reach");
    let taken = thread.join().unwrap();
    assert_eq!(level.level(), PLENTY - 1 - 60 - taken);
    assert!(level.level() >= 0);
}

#[test]
fn a_token_is_taken_once() {
    check(two_take_the_last_token);
    assert!(is_found(Some(Fault::TakeInTwoSteps), two_take_the_last_token));
}

#[test]
fn collecting_a_pocket_in_use_neither_loses_nor_makes_tokens() {
    check(pocket_is_collected_while_it_is_used);
    assert!(is_found(Some(Fault::NoLightBarrier), pocket_is_collected_while_it_is_used));
    assert!(is_found(Some(Fault::NoHeavyBarrier), pocket_is_collected_while_it_is_used));
}

#[test]
fn filling_two_pockets_and_refilling_neither_loses_nor_makes_tokens() {
    check(|| {
        let level = level(PLENTY);
        let threads = [0, 1].map(|number| {
            let level = level.clone();
            thread::spawn(move || quick(&level, number, 1))
        });
        level.add(7);
        let taken: i64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!((taken, level.level(), level.granted()), (2, PLENTY + 7 - 2, 2));
    });
}

#[test]
fn filling_and_collecting_exclude_each_other() {
    check(|| {
        let level = level(PLENTY);
        let other = level.clone();
        let thread = thread::spawn(move || quick(&other, 0, 2));
        assert!(level.take(60));
        let taken = thread.join().unwrap();
        assert_eq!((taken, level.level()), (2, 2));
    });
}

#[test]
fn the_sum_lies_between_what_was_and_what_is() {
    check(|| {
        let level = level(PLENTY);
        assert!(level.take_quickly(0, 1));
        let other = level.clone();
        let thread = thread::spawn(move || {
            let taken = quick(&other, 0, 1);
            taken + quick(&other, 1, 1)
        });
        let seen = level.level();
        assert!((PLENTY - 3..PLENTY).contains(&seen), "{seen}");
        assert_eq!(thread.join().unwrap(), 2);
        assert_eq!(level.level(), PLENTY - 3);
    });
}

#[test]
fn debt_is_charged_in_full_and_stops_everybody() {
    check(|| {
        let level = level(PLENTY);
        assert!(level.take_quickly(0, 1));
        let other = level.clone();
        let thread = thread::spawn(move || quick(&other, 0, 2));
        level.add(-2 * PLENTY);
        assert!(!level.take_quickly(1, 1) && !level.take(1));
        let taken = thread.join().unwrap();
        assert_eq!(level.level(), -PLENTY - 1 - taken);
    });
}

/// Time that both sides read. Read-modify-writes see the newest value, as readers of a real clock do.
struct Clock(AtomicU64);

impl Clock {
    fn set(&self, now: u64) {
        self.0.swap(now, Ordering::AcqRel);
    }
    fn read(&self) -> BootTime {
        BootTime(self.0.fetch_add(0, Ordering::AcqRel))
    }
}

/// The lease of one worker: alone, and all of it at once.
fn lease(mint: &mut Mint, level: &AtomicLevel, seq: u64, sent: u64, tokens: u64) {
    let now = Now { boot: BootTime(sent), wall: WallTime(sent) };
    let arrival = Arrival {
        now,
        sent: now,
        spent_at_sending: mint.spent(level),
        name: LeaseName { epoch: 1, seq },
        granted: LedgerTime(sent),
    };
    let terms = LeaseTerms {
        share: Share::ZERO,
        cap: Amount::tokens(tokens),
        tokens: Amount::tokens(tokens),
        duration: Span(10),
        rate: RateCurve::constant(Rate::per_second(1)),
        burst: tokens,
        policy: Terms::Minted,
        scarce: false,
        confirm: false,
        due: None,
        queue: None,
        conduct: Default::default(),
    };
    assert!(mint.apply(level, &arrival, &terms));
}

type Ask = fn(&AtomicLevel, &Clock) -> Result<Admitted, Refusal>;

fn as_designed(level: &AtomicLevel, clock: &Clock) -> Result<Admitted, Refusal> {
    let taken_at = std::cell::Cell::new(BootTime(0));
    let take = |level: &AtomicLevel| {
        let taken = level.take_quickly(0, 1);
        taken_at.set(clock.read());
        taken
    };
    let admitted = admit_by(level, 1, take, || clock.read());
    if let Ok(admitted) = admitted {
        assert!(taken_at.get() < admitted.valid_until, "taken when the lease had ended");
    }
    admitted
}

/// Two leases of one token follow each other with a gap, while somebody asks twice.
fn leases_follow_each_other(ask: Ask) {
    let level = Arc::new(AtomicLevel::new(2, Span::ZERO));
    let clock = Arc::new(Clock(AtomicU64::new(0)));
    let mut mint = Mint::new(Rules::ALL);
    lease(&mut mint, &level, 1, 0, 1);
    let (others_level, others_clock) = (level.clone(), clock.clone());
    let thread =
        thread::spawn(move || [ask(&others_level, &others_clock), ask(&others_level, &others_clock)]);
    // The first lease ends at 10.
    clock.set(15);
    lease(&mut mint, &level, 2, 15, 1);
    let admitted = thread.join().unwrap();
    let in_lease = |from: u64, to: u64| {
        admitted.iter().flatten().filter(|admitted| (from..to).contains(&admitted.at.0)).count()
    };
    assert!(in_lease(0, 10) <= 1 && in_lease(10, 15) == 0 && in_lease(15, 25) <= 1, "{admitted:?}");
    let used = mint.used(&*level);
    assert!(used >= admitted.iter().flatten().count() as u64, "{used} used of {admitted:?}");
}

#[test]
fn nothing_of_an_ended_lease_is_admitted_and_nothing_comes_back() {
    check(|| leases_follow_each_other(as_designed));
}

#[test]
fn the_clock_is_read_after_taking() {
    let clock_first: Ask = |level, clock| {
        let at = clock.read();
        let valid_until = level.expiry();
        if !level.take_quickly(0, 1) {
            return Err(Refusal::Empty);
        }
        assert!(at >= valid_until || clock.read() < valid_until, "taken when the lease had ended");
        if at < valid_until {
            Ok(Admitted { at, valid_until, mark: Mark::default() })
        } else {
            Err(Refusal::Expired)
        }
    };
    assert!(is_found(None, move || leases_follow_each_other(clock_first)));
}

#[test]
fn the_expiry_is_read_before_taking() {
    let expiry_last: Ask = |level, clock| {
        if !level.take_quickly(0, 1) {
            return Err(Refusal::Empty);
        }
        let at = clock.read();
        let valid_until = level.expiry();
        if at < valid_until {
            Ok(Admitted { at, valid_until, mark: Mark::default() })
        } else {
            Err(Refusal::Expired)
        }
    };
    assert!(is_found(None, move || leases_follow_each_other(expiry_last)));
}

#[test]
fn ending_a_lease_empties_pockets_in_use() {
    check(|| {
        let level = Arc::new(AtomicLevel::new(2, Span::ZERO));
        let clock = Arc::new(Clock(AtomicU64::new(0)));
        let mut mint = Mint::new(Rules::ALL);
        lease(&mut mint, &level, 1, 0, PLENTY.unsigned_abs());
        assert!(level.take_quickly(0, 1));
        let (others_level, others_clock) = (level.clone(), clock.clone());
        let thread = thread::spawn(move || as_designed(&others_level, &others_clock));
        mint.end(&*level);
        assert_eq!(level.level(), 0);
        // A second lease of one token, while the first one's time is not over: what is admitted from now on is from it.
        lease(&mut mint, &level, 2, 1, 1);
        let quick = thread.join().unwrap();
        let rest = admit(&*level, 1, || clock.read());
        let admitted = 1 + u64::from(quick.is_ok()) + u64::from(rest.is_ok());
        assert_eq!(admit(&*level, 1, || clock.read()), Err(Refusal::Empty));
        assert!(admitted <= 3 && mint.used(&*level) >= admitted);
    });
}

#[test]
fn what_is_given_back_is_not_taken_too() {
    check(|| {
        let level = Arc::new(AtomicLevel::new(2, Span::ZERO));
        let mut mint = Mint::new(Rules::ALL);
        lease(&mut mint, &level, 1, 0, PLENTY.unsigned_abs());
        assert!(level.take_quickly(0, 1));
        let other = level.clone();
        let thread = thread::spawn(move || quick(&other, 0, 2));
        let returned = i64::try_from(mint.give_back(&*level, 60)).unwrap();
        let taken = 1 + thread.join().unwrap();
        assert_eq!(returned + taken + level.level(), PLENTY);
        assert_eq!(i64::try_from(mint.used(&*level)).unwrap(), taken);
    });
}

/// Tokens that are taken in vain and put back, while the mint refills a bucket that was full.
fn put_back_while_minting() {
    let level = Arc::new(AtomicLevel::new(2, Span::ZERO));
    let now = |micros: u64| Now { boot: BootTime(micros), wall: WallTime(micros) };
    let mut mint = Mint::new(Rules::ALL);
    let arrival = Arrival {
        now: now(0),
        sent: now(0),
        spent_at_sending: 0,
        name: LeaseName { epoch: 1, seq: 1 },
        granted: LedgerTime(0),
    };
    let terms = LeaseTerms {
        share: Share::ONE,
        cap: Amount::tokens(8),
        tokens: Amount::tokens(8),
        duration: Span(1_000),
        rate: RateCurve::constant(Rate::per_second(1_000_000)),
        burst: 8,
        policy: Terms::Minted,
        scarce: false,
        confirm: false,
        due: None,
        queue: None,
        conduct: Default::default(),
    };
    assert!(mint.apply(&*level, &arrival, &terms));
    // Whoever has it is the only one who mints or puts back: the client's lock.
    let mint = Arc::new(loom::sync::Mutex::new(mint));
    let (others_level, others_mint) = (level.clone(), mint.clone());
    let thread = thread::spawn(move || {
        let mark = Mark::of(&*others_level);
        assert!(others_level.take(5));
        let back = others_mint.lock().unwrap().refund(&*others_level, 5, mark, now(100));
        assert!(back <= 5);
    });
    mint.lock().unwrap().refill(&*level, now(100));
    thread.join().unwrap();
    let mut mint = mint.lock().unwrap();
    for later in [200, 300] {
        mint.refill(&*level, now(later));
        assert!(level.level() <= 8, "{} of 8", level.level());
    }
}

#[test]
fn what_is_put_back_never_comes_on_top_of_what_was_minted() {
    check(put_back_while_minting);
}
