//! The level on real threads. What only some interleavings show is in `crates/worker/model`.

use crate::level::{AtomicLevel, SharedLevel};
use std::sync::Arc;
use tollgate_core::bucket::{Level, Refusal, admit};
use tollgate_core::units::{BootTime, Span};

fn level(pockets: usize) -> SharedLevel {
    SharedLevel(Arc::new(AtomicLevel::new(pockets, Span::ZERO)))
}

#[test]
fn threads_never_take_more_than_there_is() {
    let level = level(2);
    level.set_expiry(BootTime(10));
    level.add(10_000);
    let taken: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|cost| {
                let level = level.clone();
                scope.spawn(move || (0..).take_while(|_| level.take(cost)).count() as u64 * cost)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(taken + u64::try_from(level.level()).unwrap(), 10_000);
}

#[test]
fn tokens_are_void_from_the_expiry_on() {
    let level = level(2);
    level.set_expiry(BootTime(10));
    level.add(2);
    assert!(admit(&level, 1, || BootTime(9)).is_ok());
    assert_eq!(admit(&level, 1, || BootTime(10)), Err(Refusal::Expired));
    assert_eq!(admit(&level, 1, || BootTime(9)), Err(Refusal::Empty));
}

#[test]
fn huge_debts_stay_debts() {
    let level = level(2);
    level.add(-i64::MAX);
    level.add(-i64::MAX);
    assert_eq!(level.level(), i64::MIN);
    assert!(!level.take(1));
}

#[test]
fn all_that_is_there_can_be_taken_at_once() {
    let level = level(2);
    level.add(1_000);
    // Two threads' pockets are filled, one after the other.
    assert!(level.0.take_quickly(0, 1) && level.0.take_quickly(1, 1) && level.0.take_quickly(0, 1));
    assert_eq!((level.level(), level.0.granted()), (997, 3));
    assert!(!level.0.take_quickly(0, 997), "no single place holds that much");
    assert!(!level.take(998) && level.take(997));
    assert_eq!(level.level(), 0);
}

#[test]
fn debt_empties_pockets_first() {
    let level = level(1);
    level.add(1_000);
    assert!(level.0.take_quickly(0, 1));
    level.add(-1_500);
    assert_eq!(level.level(), -501);
    assert!(!level.0.take_quickly(0, 1) && !level.take(1));
    level.add(502);
    assert!(level.0.take_quickly(0, 1) && !level.0.take_quickly(0, 1));
}

#[test]
fn pockets_on_all_threads_neither_lose_nor_make_tokens() {
    let level = level(3);
    level.add(1_000_000);
    let taken: u64 = std::thread::scope(|scope| {
        let quick: Vec<_> = (0..3)
            .map(|thread| {
                let level = &level;
                scope.spawn(move || (0..200_000).filter(|_| level.0.take_quickly(thread, 1)).count() as u64)
            })
            .collect();
        let mut slow = 0;
        for cost in [1_000, 300_000, 7, 90_000].into_iter().cycle().take(40) {
            slow += if level.take(cost) { cost } else { 0 };
            level.add(-5);
            level.add(5);
        }
        slow + quick.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    assert_eq!(taken + u64::try_from(level.level()).unwrap(), 1_000_000);
}
