//! Random bits: from the operating system where identity depends on them, mixed cheaply where they only spread load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::message::Incarnation;
use tollgate_workflows::wire::lease::NUMBER_BITS;

/// Waits are stretched by up to this much, so that those who were refused together don't come back together: a quarter.
const SPREAD_MILLI_MAX: u64 = 250;

/// Where identities and nonces come from: the operating system, since two copies of one process's memory must not draw the
/// same; or a seed, in a test that shall go the same way each time.
#[derive(Debug, Default)]
pub(crate) struct Identities(Option<Spread>);

impl Identities {
    /// From `seed`, if there is one.
    pub(crate) fn new(seed: Option<u64>) -> Identities {
        Identities(seed.map(Spread::new))
    }

    /// A new identity.
    pub(crate) fn incarnation(&self) -> Result<Incarnation, getrandom::Error> {
        let mut bytes = [0; 16];
        for half in bytes.chunks_mut(8) {
            half.copy_from_slice(&self.bits()?.to_le_bytes());
        }
        Ok(Incarnation(u128::from_le_bytes(bytes)))
    }

    /// A nonce for one request.
    pub(crate) fn nonce(&self) -> Result<u64, getrandom::Error> {
        Ok(self.bits()? >> (u64::BITS - NUMBER_BITS))
    }

    fn bits(&self) -> Result<u64, getrandom::Error> {
        self.0.as_ref().map_or_else(getrandom::u64, |seeded| Ok(seeded.next()))
    }
}

/// A nonce from the operating system.
pub(crate) fn nonce() -> Result<u64, getrandom::Error> {
    Identities::default().nonce()
}

/// Spreads waits. Shared by threads; not for secrets.
#[derive(Debug)]
pub(crate) struct Spread(AtomicU64);

impl Spread {
    pub(crate) fn new(seed: u64) -> Spread {
        Spread(AtomicU64::new(seed))
    }

    /// The next of a sequence (splitmix64).
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Anything from zero up to `bound`.
    pub(crate) fn within(&self, bound: Duration) -> Duration {
        let milli = u32::try_from(self.next() % 1_001).unwrap_or(0);
        (bound / 1_000).saturating_mul(milli)
    }

    /// `wait` and up to a quarter more, at least a millisecond.
    pub(crate) fn stretch(&self, wait: Duration) -> Duration {
        let wait = wait.max(Duration::from_millis(1));
        let milli = u32::try_from(self.next() % (SPREAD_MILLI_MAX + 1)).unwrap_or(0);
        wait.saturating_add((wait / 1_000).saturating_mul(milli))
    }
}
