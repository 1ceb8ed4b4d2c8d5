//! The cells that a tier borrows from, for takers that hold no lock.

use crate::limit::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tollgate_core::tier::TIERS_MAX;

/// Places in the order are numbers of so many bits.
const BITS: u32 = 4;

/// Cells once known stay known; their order changes. Written by the keeper alone.
#[derive(Debug, Default)]
pub(crate) struct Lenders {
    known: [OnceLock<Arc<Cell>>; TIERS_MAX],
    /// Which of the known ones are lenders now, in order: one more than the number of each, the first in the lowest bits.
    order: AtomicU64,
}

impl Lenders {
    /// Those that a tier may borrow from now, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Cell>> {
        // Acquire: what is named there is known.
        let mut order = self.order.load(Ordering::Acquire);
        let next = move || {
            let place = order & ((1 << BITS) - 1);
            order >>= BITS;
            place.checked_sub(1)
        };
        let places = std::iter::from_fn(next);
        places.filter_map(|place| self.known.get(usize::try_from(place).ok()?)?.get())
    }

    /// Whether it may borrow from nobody now.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.load(Ordering::Relaxed) == 0
    }

    /// These are the lenders from now on. Tiers that come and go beyond [`TIERS_MAX`] in the life of a process are left out.
    pub(crate) fn set(&self, lenders: &[Arc<Cell>]) {
        let mut order = 0;
        for (index, lender) in lenders.iter().take(TIERS_MAX).enumerate() {
            let is_it = |slot: &OnceLock<Arc<Cell>>| Arc::ptr_eq(slot.get_or_init(|| lender.clone()), lender);
            if let Some(place) = self.known.iter().position(is_it) {
                order |= (place as u64 + 1) << (BITS * u32::try_from(index).unwrap_or(0));
            }
        }
        self.order.store(order, Ordering::Release);
    }
}
