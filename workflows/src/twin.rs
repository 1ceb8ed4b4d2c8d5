//! Tells whether the history under a run was reset.
//!
//! A reset makes Temporal hand the old messages in again, to a ledger that remembers an earlier time: the same request
//! would get another reply than the one that a worker already acts on. Run id and random seeds change with a reset, from
//! its point on; nothing else does. So the coordinator draws one number per message from a random stream of its own, and
//! this twin, seeded as the stream was at the start, predicts it. The first surprise is the reset.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};

/// The name of the random stream that one number per message is drawn from, and nothing else.
pub const STREAM: &str = "tollgate.reset";

/// Predicts the stream. See the module's documentation.
#[derive(Debug)]
pub struct Twin(Option<Pcg64Mcg>);

impl Twin {
    /// The twin of a run that started with this randomness seed.
    pub fn new(start_seed: u64) -> Twin {
        Twin(Some(stream_of(start_seed)))
    }

    /// Whether the run was reset between the previous message and the one that `drawn` was drawn for. Seeds after a
    /// reset follow from the new run's id, so the twin finds back and notices the next one too.
    pub fn reset_since_last(&mut self, drawn: u64, run_id: &str) -> bool {
        let predicted = self.0.as_mut().map(|twin| twin.random::<u64>());
        if predicted == Some(drawn) {
            return false;
        }
        let in_step = predicted.is_some();
        let mut twin = stream_of(seed_of_run(run_id));
        let found = twin.random::<u64>() == drawn;
        self.0 = found.then_some(twin);
        in_step || found
    }
}

/// How the SDK seeds a named stream from a run's seed; part of its promise to replay old histories.
fn stream_of(seed: u64) -> Pcg64Mcg {
    let mut hasher = SipHasher13::new_with_keys(seed, seed ^ u64::from_be_bytes(*b"temporal"));
    hasher.write(b"temporal-rust-workflow-random-stream\0");
    hasher.write(STREAM.as_bytes());
    Pcg64Mcg::seed_from_u64(hasher.finish())
}

/// How the SDK seeds a run that began with a reset.
pub(crate) fn seed_of_run(run_id: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    run_id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_noticed_once_and_the_twin_finds_back() {
        let mut real = stream_of(7);
        let mut twin = Twin::new(7);
        for _ in 0..3 {
            assert!(!twin.reset_since_last(real.random(), "first"));
        }
        let mut real = stream_of(seed_of_run("second"));
        assert!(twin.reset_since_last(real.random(), "second"));
        assert!(!twin.reset_since_last(real.random(), "second"));
        // A chain: the middle reset's run is not known any more, the last one's is.
        let mut unknown = stream_of(99);
        assert!(twin.reset_since_last(unknown.random(), "third"));
        assert!(!twin.reset_since_last(unknown.random(), "third"));
        let mut real = stream_of(seed_of_run("third"));
        assert!(twin.reset_since_last(real.random(), "third"));
        assert!(!twin.reset_since_last(real.random(), "third"));
    }
}
