//! What is put back: never so much that a bucket, or a window, holds more than it may.

use super::*;
use crate::curve::Rate;
use alloc::vec::Vec;

const SECOND: u64 = 1_000_000;

struct Bucket {
    mint: Mint,
    level: PlainLevel,
}

fn at(micros: u64) -> Now {
    Now { boot: BootTime(micros), wall: WallTime(micros) }
}

fn terms(cap: u64, tokens: u64, rate: u64, policy: Terms) -> LeaseTerms {
    LeaseTerms {
        share: if rate == 0 { Share::ZERO } else { Share::ONE },
        cap: Amount::tokens(cap),
        tokens: Amount::tokens(tokens),
        duration: Span::from_secs(60),
        rate: RateCurve::constant(Rate::per_second(rate.max(1))),
        burst: cap,
        policy,
        scarce: false,
        confirm: false,
        due: None,
        queue: None,
        conduct: Default::default(),
    }
}

impl Bucket {
    fn new(terms: &LeaseTerms) -> Bucket {
        let mut bucket = Bucket { mint: Mint::new(Rules::ALL), level: PlainLevel::default() };
        bucket.renew(0, 0, terms);
        bucket
    }

    fn renew(&mut self, micros: u64, spent_at_sending: u64, terms: &LeaseTerms) {
        let name = LeaseName { epoch: 1, seq: 1 };
        let (now, granted) = (at(micros), LedgerTime(micros));
        assert!(self.mint.apply(
            &self.level,
            &Arrival { now, sent: now, spent_at_sending, name, granted },
            terms
        ));
    }

    fn refund(&mut self, tokens: u64, mark: Mark, now: u64) -> u64 {
        self.mint.refund(&self.level, tokens, mark, at(now))
    }

    fn take(&mut self, tokens: u64) -> Mark {
        let mark = Mark::of(&self.level);
        assert!(self.level.take(tokens));
        mark
    }

    fn look(&mut self, micros: u64) {
        self.mint.refill(&self.level, at(micros));
    }
}

#[test]
fn what_nobody_missed_goes_back_whole_also_into_a_full_bucket() {
    let mut bucket = Bucket::new(&terms(10, 10, 5, Terms::Minted));
    let mark = bucket.take(6);
    assert_eq!(bucket.refund(6, mark, 20), 6);
    assert_eq!((bucket.level.level(), bucket.mint.used(&bucket.level)), (10, 0));
    // And it is known to be full: nothing is minted on top.
    bucket.look(5 * SECOND);
    assert_eq!(bucket.level.level(), 10);
}

#[test]
fn what_was_minted_meanwhile_is_not_put_back_on_top() {
    let mut bucket = Bucket::new(&terms(10, 10, 5, Terms::Minted));
    let mark = bucket.take(6);
    bucket.look(SECOND / 2);
    bucket.look(2 * SECOND);
    let back = bucket.refund(6, mark, 2 * SECOND);
    bucket.look(20 * SECOND);
    assert!(back <= 6 && bucket.level.level() <= 10, "{back} back, {}", bucket.level.level());
}

#[test]
fn a_mark_that_is_read_too_late_would_put_tokens_on_top() {
    // What the rule of reading it before is for: a mint has missed the tokens, and nobody could tell.
    let mut bucket = Bucket::new(&terms(10, 10, 5, Terms::Minted));
    bucket.take(6);
    bucket.look(SECOND);
    let too_late = Mark::of(&bucket.level);
    assert_eq!(bucket.refund(6, too_late, SECOND), 6);
    bucket.look(20 * SECOND);
    assert!(bucket.level.level() > 10, "{}", bucket.level.level());
}

#[test]
fn two_refunds_don_t_each_take_the_room_of_both() {
    let mut bucket = Bucket::new(&terms(100, 100, 10, Terms::Minted));
    let (a, b) = (bucket.take(50), bucket.take(50));
    // The first look finds them gone, the second one mints nearly 70; so 30 had room all the time. Then others use 60 at once.
    bucket.look(4 * SECOND);
    bucket.look(11 * SECOND);
    bucket.take(60);
    let back = bucket.refund(50, a, 11 * SECOND) + bucket.refund(50, b, 11 * SECOND);
    let again = bucket.refund(50, a, 11 * SECOND);
    assert!((30..=31).contains(&back) && again == 0, "{back}, then {again}");
    let at_once = 60 + bucket.level.level();
    assert!(at_once <= 100, "{at_once} at once");
}

#[test]
fn what_was_given_back_or_has_ended_meanwhile_does_not_come_alive_again() {
    let all = terms(10, 10, 5, Terms::Minted);
    let mut bucket = Bucket::new(&all);
    let mark = bucket.take(4);
    assert_eq!(bucket.mint.give_back(&bucket.level, u64::MAX), 6);
    let back = bucket.refund(4, mark, 10);
    bucket.look(20 * SECOND);
    let cap = bucket.mint.held().unwrap().cap.whole();
    assert!(i128::from(bucket.level.level()) <= cap, "{back} back, {} of {cap}", bucket.level.level());

    let mut bucket = Bucket::new(&all);
    let mark = bucket.take(4);
    bucket.mint.end(&bucket.level);
    assert_eq!(bucket.refund(4, mark, 10), 0);
    bucket.renew(20, bucket.mint.spent(&bucket.level), &all);
    assert_eq!((bucket.refund(4, mark, 30), bucket.level.level()), (0, 10));
}

#[test]
fn tokens_that_were_put_back_count_as_spent_since_the_request() {
    // Six are charged when the request goes out; they go back, eight are used, and then the reply brings what was missing.
    let mut bucket = Bucket::new(&terms(10, 10, 0, Terms::Minted));
    let mark = bucket.take(6);
    bucket.look(4 * SECOND);
    let spent_at_sending = bucket.mint.spent(&bucket.level);
    assert_eq!(bucket.refund(6, mark, 5 * SECOND), 6);
    bucket.take(8);
    bucket.renew(6 * SECOND, spent_at_sending, &terms(10, 6, 0, Terms::Minted));
    assert!(bucket.level.level() + 8 <= 10, "{} on top of 8 of 10", bucket.level.level());
}

#[test]
fn an_unused_token_of_a_window_comes_back_once() {
    let mut bucket = Bucket::new(&terms(10, 0, 0, Terms::After(Span::from_secs(10))));
    let mark = bucket.take(5);
    for second in 1..=8 {
        bucket.look(second * SECOND);
    }
    assert_eq!(bucket.refund(5, mark, 9 * SECOND), 5);
    assert_eq!(bucket.level.level(), 10);
    bucket.look(30 * SECOND);
    assert_eq!(bucket.level.level(), 10, "it came back a second time");

    // What has come back by itself doesn't come back again, at the cost of others.
    let mark = bucket.take(5);
    for second in 31..=44 {
        bucket.look(second * SECOND);
    }
    assert_eq!(bucket.level.level(), 10);
    bucket.take(5);
    assert_eq!(bucket.refund(5, mark, 45 * SECOND), 0);
}

#[test]
fn of_an_older_way_of_counting_nothing_is_put_back() {
    let window = terms(10, 0, 0, Terms::After(Span::from_secs(10)));
    let mut bucket = Bucket::new(&window);
    let mark = bucket.take(5);
    bucket.renew(1, 0, &terms(10, 0, 0, Terms::OnRelease));
    bucket.renew(2, 0, &window);
    bucket.take(5);
    assert_eq!(bucket.refund(5, mark, 3), 0);
    assert_eq!(bucket.level.level(), 5);
}

#[test]
fn what_is_in_flight_goes_back_in_parts() {
    let mut bucket = Bucket::new(&terms(10, 0, 0, Terms::OnRelease));
    let mark = bucket.take(8);
    bucket.look(10);
    assert_eq!(bucket.refund(3, mark, SECOND), 3);
    assert_eq!((bucket.level.level(), bucket.mint.out(&bucket.level)), (5, 5));
}

#[test]
fn debt_ends_at_its_bound_and_what_is_beyond_is_told() {
    let mut bucket = Bucket::new(&terms(10, 10, 5, Terms::Minted));
    let (mint, level) = (&mut bucket.mint, &bucket.level);
    assert_eq!(mint.overdraw(level, 50, 100), 50);
    assert_eq!(mint.overdraw(level, 100, 100), 60);
    assert_eq!((level.level(), mint.overdraw(level, u64::MAX, 100)), (-100, 0));
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A charge: when, where in the level's history, and how many of its tokens were really used.
type Charge = (u64, Mark, u64);

/// Charges, refunds and looks drawn at random; `each` sees all charges after every step.
fn at_random(terms: &LeaseTerms, seed: u64, mut each: impl FnMut(u64, &[Charge])) {
    let mut random = Random(seed);
    let mut bucket = Bucket::new(&LeaseTerms { duration: Span::from_secs(120), ..*terms });
    let mut charges: Vec<Charge> = Vec::new();
    let mut now = 1;
    for _ in 0..200 {
        now += random.below(SECOND / 4);
        match random.below(4) {
            0 => bucket.look(now),
            1 if !charges.is_empty() => {
                let index = usize::try_from(random.below(charges.len() as u64)).unwrap();
                let (_, mark, tokens) = charges[index];
                let unused = random.below(tokens + 1);
                bucket.refund(unused, mark, now);
                // Its owner says truly what it didn't use, whether that helped or not.
                charges[index].2 -= unused;
            }
            _ => {
                bucket.mint.refill(&bucket.level, at(now));
                let (mark, tokens) = (Mark::of(&bucket.level), 1 + random.below(6));
                if bucket.level.take(tokens) {
                    charges.push((now, mark, tokens));
                }
            }
        }
        each(now, &charges);
    }
}

#[test]
fn no_window_ever_has_more_than_there_are_whatever_is_put_back() {
    let length = 2 * SECOND;
    for seed in 0..300 {
        at_random(&terms(20, 0, 0, Terms::After(Span(length))), seed, |now, charges| {
            let used: u64 =
                charges.iter().filter(|(at, ..)| at + length > now).map(|(.., tokens)| tokens).sum();
            assert!(used <= 20, "seed {seed}: {used} in the window before {now}");
        });
    }
}

#[test]
fn no_interval_ever_has_more_than_burst_and_rate_whatever_is_put_back() {
    for seed in 0..300 {
        let mut charges = Vec::new();
        at_random(&terms(20, 20, 10, Terms::Minted), seed, |_, all| charges = all.to_vec());
        for (index, (from, ..)) in charges.iter().enumerate() {
            let mut used = 0;
            for (to, _, tokens) in charges.get(index..).unwrap_or_default() {
                used += tokens;
                let bound = 20 * SECOND + 10 * (to - from);
                assert!(used * SECOND <= bound, "seed {seed}: {used} from {from} to {to}");
            }
        }
    }
}

#[test]
fn what_is_held_alone_is_part_of_the_last_lease_claims_nothing_and_is_void_at_an_answer() {
    let lease = terms(20, 20, 100, Terms::Minted);
    let mut bucket = Bucket::new(&lease);
    let Bucket { mint, level } = &mut bucket;
    let last = *mint.held().unwrap();
    let half = Share::from_ppb(500_000_000).unwrap();
    assert!(!mint.hold(level, at(SECOND), &last, half), "not beside a lease");
    let end = last.expires.0;
    assert!(mint.hold(level, at(end), &last, half));
    assert!(mint.is_alone() && mint.is_alive(at(end)) && mint.claim(level).is_none());
    assert_eq!((level.level(), mint.held().unwrap().share), (0, half), "nothing of the lease is left");
    // Half of the rate, up to half of the cap.
    mint.refill(level, at(end + SECOND / 10));
    assert_eq!(level.level(), 4);
    mint.refill(level, at(end + 5 * SECOND));
    assert_eq!(level.level(), 10);
    let returned = mint.returned();
    assert_eq!(mint.give_back(level, 5), 0);
    mint.give_back_all(level);
    mint.lower_cap(level);
    mint.lower_share(level, Share::ZERO, at(end + 5 * SECOND));
    assert_eq!((level.level(), mint.returned(), mint.held().unwrap().share), (10, returned, half));
    // It lasts as long as it is asked to, and ends by itself.
    let again = end + 5 * SECOND;
    assert!(mint.hold(level, at(again), &last, half));
    assert!(mint.is_alive(at(again + 59 * SECOND)) && !mint.is_alive(at(again + 60 * SECOND)));
    // An answer that comes too late to be acted on ends it just as well.
    let name = LeaseName { epoch: 1, seq: 2 };
    let arrival = |sent: u64, now: u64| Arrival {
        now: at(now),
        sent: at(sent),
        spent_at_sending: 0,
        name,
        granted: LedgerTime(sent),
    };
    assert!(!mint.apply(level, &arrival(0, again), &lease));
    assert!(!mint.is_alone() && mint.held().is_none() && level.level() == 0);
    assert!(mint.hold(level, at(again + SECOND), &last, half));
    mint.refill(level, at(again + 3 * SECOND));
    assert_eq!(level.level(), 10);
    assert!(mint.apply(level, &arrival(again + 3 * SECOND, again + 3 * SECOND), &lease));
    assert_eq!(
        (level.level(), mint.returned()),
        (20, returned),
        "what it brings, and nothing of what was there"
    );
}

#[test]
fn conserved_tokens_that_are_out_are_among_those_that_are_held_alone() {
    for policy in [Terms::OnRelease, Terms::After(Span::from_secs(10))] {
        let mut bucket = Bucket::new(&terms(8, 0, 0, policy));
        bucket.take(3);
        let Bucket { mint, level } = &mut bucket;
        let last = *mint.held().unwrap();
        let end = last.expires.0;
        let part = Share::from_ppb(500_000_000).unwrap();
        mint.refill(level, at(end));
        assert!(mint.hold(level, at(end), &last, part) && mint.claim(level).is_none(), "{policy:?}");
        assert_eq!((level.level(), mint.out(level)), (1, 3), "{policy:?}");
        mint.end(level);
        assert_eq!((level.level(), mint.out(level)), (-3, 3), "{policy:?}");
    }
}
