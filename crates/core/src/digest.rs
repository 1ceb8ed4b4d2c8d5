//! A 64-bit fingerprint of what a ledger did, chained from message to message.
//!
//! Replay never compares the results of updates, so a changed core would silently replay to another ledger than the one
//! that workers were told of. Every reply carries this digest; replay tests compare it with the recorded one.

/// FNV-1a over 64 bits: no secret, no adversary, only "the same or not".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub u64);

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Default for Digest {
    fn default() -> Digest {
        Digest(OFFSET)
    }
}

impl Digest {
    /// Mixes in bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
    /// Mixes in a string and its length, so that neighbours can't run together.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
    /// Mixes in a number.
    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
    /// Mixes in a wide number.
    pub fn wide(&mut self, number: i128) {
        self.bytes(&number.to_le_bytes());
    }
}
