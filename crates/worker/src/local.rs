//! What each thread has for itself on the hot path: a number, and a handle that it needn't count anew.

use crate::limit;
use crate::set::Set;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

/// Not numbered yet.
const UNNUMBERED: usize = usize::MAX;
/// The number of a thread that is about to end, and has given its own back.
const NOBODY: usize = usize::MAX - 1;

/// Numbers of threads that live: small ones first, so that those few threads that take have pockets.
struct Numbers {
    free: BinaryHeap<Reverse<usize>>,
    next: usize,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BinaryHeap::new(), next: 0 });

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    /// Apart from the number itself, so that reading that needs no look at whether the thread is about to end.
    static LENT: Lent = const { Lent(Cell::new(NOBODY)) };
    /// The cell of the permit that this thread dropped last. Permits come and go; counting their handles up and down would
    /// be two locked instructions on a word that all threads share.
    static SPARE: Cell<Option<Arc<limit::Cell>>> = const { Cell::new(None) };
    /// The same for permits of several meters.
    static SPARE_SET: Cell<Option<Arc<Set>>> = const { Cell::new(None) };
}

/// Gives a thread's number back when it ends.
struct Lent(Cell<usize>);

impl Drop for Lent {
    fn drop(&mut self) {
        NUMBER.set(NOBODY);
        let number = self.0.get();
        if number != NOBODY {
            // The lock orders this thread's use of its pockets before the next one's.
            NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).free.push(Reverse(number));
        }
    }
}

/// This thread's number, which no other living thread has.
#[inline]
pub(crate) fn number() -> usize {
    match NUMBER.get() {
        UNNUMBERED => draw(),
        number => number,
    }
}

#[cold]
fn draw() -> usize {
    let drawn = LENT.try_with(|lent| {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.free.pop().map_or(numbers.next, |Reverse(number)| number);
        numbers.next = numbers.next.max(number.saturating_add(1));
        lent.0.set(number);
        number
    });
    let number = drawn.unwrap_or(NOBODY);
    NUMBER.set(number);
    number
}

/// A handle of `cell`, from this thread's spare one if that is of the same cell.
#[inline]
pub(crate) fn handle(cell: &Arc<limit::Cell>) -> Arc<limit::Cell> {
    let spare = SPARE.try_with(Cell::take).ok().flatten();
    spare.filter(|spare| Arc::ptr_eq(spare, cell)).unwrap_or_else(|| cell.clone())
}

/// Keeps a handle that is no longer needed for the next [`handle`].
#[inline]
pub(crate) fn keep(cell: Arc<limit::Cell>) {
    // The old one is dropped outside of the slot. A thread that is about to end keeps nothing.
    let _old = SPARE.try_with(|spare| spare.replace(Some(cell)));
}

/// As [`handle`], of a set.
#[inline]
pub(crate) fn set_handle(set: &Arc<Set>) -> Arc<Set> {
    let spare = SPARE_SET.try_with(Cell::take).ok().flatten();
    spare.filter(|spare| Arc::ptr_eq(spare, set)).unwrap_or_else(|| set.clone())
}

/// As [`keep`], of a set.
#[inline]
pub(crate) fn keep_set(set: Arc<Set>) {
    let _old = SPARE_SET.try_with(|spare| spare.replace(Some(set)));
}
