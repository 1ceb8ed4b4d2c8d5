//! What each thread has for itself on the hot path: a number, and a handle that it needn't count anew.

use crate::limit;
use crate::set::{Set, Several};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::ManuallyDrop;
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
    /// be two locked instructions on a word that all threads share. Dropped by [`Lent`], so that using it needs no look at
    /// whether the thread is about to end either: only threads with a number keep something here.
    static SPARE: Cell<ManuallyDrop<Option<Arc<limit::Cell>>>> = const { Cell::new(ManuallyDrop::new(None)) };
    /// The same for permits of several meters, with the room for what they were charged.
    static SPARE_SEVERAL: Cell<Option<Box<Several>>> = const { Cell::new(None) };
}

/// Gives a thread's number back when it ends.
struct Lent(Cell<usize>);

impl Drop for Lent {
    fn drop(&mut self) {
        NUMBER.set(NOBODY);
        drop(ManuallyDrop::into_inner(SPARE.replace(ManuallyDrop::new(None))));
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

/// The same, or a number that is nobody's when this thread has none yet.
#[inline]
pub(crate) fn number_if_drawn() -> usize {
    NUMBER.get()
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
    spare(cell).unwrap_or_else(|| cell.clone())
}

/// This thread's spare handle, if it is one of `cell`.
#[inline]
pub(crate) fn spare(cell: &Arc<limit::Cell>) -> Option<Arc<limit::Cell>> {
    let handle = ManuallyDrop::into_inner(SPARE.replace(ManuallyDrop::new(None)))?;
    if Arc::ptr_eq(&handle, cell) {
        return Some(handle);
    }
    keep(handle);
    None
}

/// Keeps a handle that is no longer needed for the next [`handle`].
#[inline]
pub(crate) fn keep(cell: Arc<limit::Cell>) {
    // A thread that is about to end keeps nothing, nor does one that has no number yet.
    if NUMBER.get() >= NOBODY {
        return let_go(cell);
    }
    // The old one is dropped outside of the slot.
    if let Some(old) = ManuallyDrop::into_inner(SPARE.replace(ManuallyDrop::new(Some(cell)))) {
        let_go(old);
    }
}

#[cold]
#[inline(never)]
fn let_go(_old: Arc<limit::Cell>) {}

/// Room for what a permit of `set` is charged, from this thread's spare ones: to be filled.
#[inline]
pub(crate) fn room(set: &Arc<Set>) -> Box<Several> {
    let spare = SPARE_SEVERAL.try_with(|spare| {
        let mut first = spare.take()?;
        spare.set(first.take_next());
        Some(first)
    });
    match spare.ok().flatten() {
        Some(mut room) => {
            room.make_of(set);
            room
        }
        None => Box::new(Several::of(set)),
    }
}

/// Keeps what is no longer needed for the next [`room`].
#[inline]
pub(crate) fn keep_room(room: Box<Several>) {
    // What doesn't fit is dropped outside of the slot. A thread that is about to end keeps nothing.
    let _over = SPARE_SEVERAL.try_with(|spare| {
        let (first, over) = room.before(spare.take());
        spare.set(Some(first));
        over
    });
}
