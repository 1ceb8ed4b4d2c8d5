//! Several meters of one limit at once.

use crate::acquire::Acquire;
use crate::charges::Charges;
use crate::error::AcquireError;
use crate::gate::Inner;
use crate::permit::Permit;
use crate::set::Set;
use std::sync::Arc;

pub use crate::set::METERS_MAX;

/// Several meters of one limit that a piece of work is charged to, all or nothing: a handle to keep, cheap to clone, that saves
/// looking them up. Made by [`Gate::meters`](crate::Gate::meters).
///
/// Costs are given in the order in which the meters were named. A meter whose cost is 0 isn't charged.
///
/// ```no_run
/// # async fn example(gate: tollgate_worker::Gate) -> Result<(), Box<dyn std::error::Error>> {
/// let openai = gate.meters("openai", ["requests", "tokens", "in_flight"]);
/// // Never waits, and when everything is there takes no lock and allocates nothing.
/// if let Ok(mut permit) = openai.try_acquire([1, 1_200, 1]) {
///     // Call now. The permit holds its place in flight until it is dropped.
///     permit.settle_meter("tokens", 840)?;
/// }
/// // Waits for its turn.
/// let permit = openai.acquire([1, 1_200, 1]).await?;
/// # Ok(())
/// # }
/// ```
///
/// A meter that the limit doesn't have is an error ([`AcquireError::UnknownMeter`]), and so is one that is named twice; nothing is
/// charged then.
///
/// Whoever holds a permit that is in flight must not wait for other meters of the same limit meanwhile: somebody may be first in line
/// for those who waits for what is in flight. Ask for all of them at once.
#[derive(Clone, Debug)]
pub struct Meters<const N: usize> {
    set: Arc<Set>,
    /// Keeps the gate going.
    gate: Arc<Inner>,
}

impl<const N: usize> Meters<N> {
    pub(crate) fn new(set: Arc<Set>, gate: Arc<Inner>) -> Meters<N> {
        Meters { set, gate }
    }

    /// Takes all of `costs` if they are there and nobody waits for any of the meters; never waits.
    ///
    /// # Errors
    /// [`AcquireError::Refused`] names the meter that takes longest, and says when to come back; the other errors say what is wrong
    /// with the question. Nothing is charged.
    #[inline]
    pub fn try_acquire(&self, costs: [u64; N]) -> Result<Permit, AcquireError> {
        let costs = self.set.in_order(&costs);
        if let Some(error) = self.set.wrong(&costs) {
            return Err(error);
        }
        match self.set.get_quickly(&costs) {
            Some(permit) => Ok(permit),
            None => Charges::Several(self.set.clone(), costs).try_slowly(),
        }
    }

    /// The same meters for work of another tier: its own cells, and those of the tiers that it may borrow from.
    pub fn tier(&self, tier: &str) -> Meters<N> {
        let (set, _) = self.set.of_tier(tier, &self.gate, &Default::default());
        Meters { set, gate: self.gate.clone() }
    }

    /// Asks for a permit and waits for it: first come, first served, for each of the meters.
    pub fn acquire(&self, costs: [u64; N]) -> Acquire {
        let costs = self.set.in_order(&costs);
        Acquire::of(Charges::Several(self.set.clone(), costs), self.gate.clone())
    }
}
