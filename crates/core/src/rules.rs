//! The safety rules by name, so that code, golden scripts and the simulator speak of the same thing.
//!
//! Each rule closes a hole through which a careless ledger goes over its limit. The simulator can switch one off to show
//! the hole; everything else runs with [`Rules::ALL`].

/// Versions of the ledger's behaviour. A run of the coordinator pins one in its input; a new one begins at
/// continue-as-new. Numbers are never reused.
pub const RULES_VERSION: u32 = 1;

macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $number:literal;)*) => {
        /// One safety rule. The number in [`Rule::number`] is the one under which DESIGN.md explains it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Rule { $($(#[$doc])* $variant,)* }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Rule] = &[$(Rule::$variant),*];

            /// The name used by scripts and by `--break`.
            pub const fn name(self) -> &'static str {
                match self { $(Rule::$variant => $name),* }
            }
            /// The number of the rule in DESIGN.md.
            pub const fn number(self) -> u32 {
                match self { $(Rule::$variant => $number),* }
            }
        }
    };
}

rules! {
    /// A holder counts with the larger of its acknowledged and its pending lease until it says which one it acts on.
    LowerOnAcknowledgement = "lower-on-acknowledgement", 1;
    /// Only a request with a newer seq settles a reply; a report never does.
    SettleByNewerSeq = "settle-by-newer-seq", 1;
    /// A worker applies only the reply to its current seq.
    CurrentReplyOnly = "current-reply-only", 2;
    /// The name of a lease carries the ledger's epoch; a name of another epoch matches nothing.
    EpochInName = "epoch-in-name", 2;
    /// One seq with two contents burns the incarnation.
    OneSeqOneContent = "one-seq-one-content", 2;
    /// What a reply brings is limited by what was held and spent since its request was sent.
    CapFromSending = "cap-from-sending", 3;
    /// A worker counts its lease from before sending, the ledger from granting, with an allowance for clocks.
    WorkerStopsFirst = "worker-stops-first", 4;
    /// A lease dies when wall time shows that elapsed time was asleep.
    SuspendEndsLease = "suspend-ends-lease", 4;
    /// The clock is read after the tokens are taken.
    ClockAfterTaking = "clock-after-taking", 4;
    /// Between messages each share is counted until its own expiry.
    PiecewiseTime = "piecewise-time", 5;
    /// A worker mints a little slower than its share, for clocks that run fast.
    MintSlowly = "mint-slowly", 6;
    /// A worker mints by the smallest rate of all ledger times that it may be at.
    MintOnSlowSide = "mint-on-slow-side", 6;
    /// Caps are granted within the smallest burst of their lease's time.
    CapsFollowBurst = "caps-follow-burst", 6;
    /// Tokens of a reply that was not applied are gone.
    SkippedTokensAreGone = "skipped-tokens-are-gone", 7;
    /// Tokens that are given back count at the worker until the ledger has settled it.
    GivenBackCounts = "given-back-counts", 7;
    /// A refund is at most the smallest headroom since its charge.
    RefundWithinHeadroom = "refund-within-headroom", 7;
    /// A cumulative counter begins with a baseline at first sight.
    BaselineAtFirstSight = "baseline-at-first-sight", 7;
    /// Debt survives renewal and expiry.
    DebtStays = "debt-stays", 8;
    /// A strict grant counts in the sum of caps until reported or expired.
    StrictGrantsCount = "strict-grants-count", 9;
    /// A reservation is a place in the queue, confirmed when due, never a promise of tokens.
    ReservationsConfirm = "reservations-confirm", 9;
    /// An eviction is a target of zero; what is held counts until acknowledged or expired.
    EvictionWaits = "eviction-waits", 10;
    /// A revoked incarnation leaves a tombstone.
    RevokedStaysRevoked = "revoked-stays-revoked", 10;
    /// A ledger without memory grants nothing new for the longest lease.
    RecoverWithoutMemory = "recover-without-memory", 11;
    /// A confirmation is at most what that very request claims.
    ConfirmOnlyClaim = "confirm-only-claim", 11;
    /// A confirmation is applied only while the lease before it lives.
    ConfirmOnlyWhileAlive = "confirm-only-while-alive", 11;
    /// A removed limit is remembered until its last lease has ended and its burst has refilled.
    RemovedIsRemembered = "removed-is-remembered", 11;
    /// A configuration's version carries the start of its run, so that counting anew never looks older.
    VersionsNeverRestart = "versions-never-restart", 12;
    /// What is borrowed counts at the lender.
    BorrowedCountsAtLender = "borrowed-counts-at-lender", 13;
    /// Conserved tokens of a lease that ended without a word count as used at its end.
    EndedCountsAsUsed = "ended-counts-as-used", 14;
    /// A worker counts with what it has out, also when it may hold less by now.
    OutCounts = "out-counts", 14;
    /// What may be out is told to a keeper that outlives the ledger's memory before it is lent.
    EscrowedFirst = "escrowed-first", 14;
    /// After recovery, conserved tokens that nobody claimed count as used at its end.
    UnclaimedCountsAsUsed = "unclaimed-counts-as-used", 14;
}

/// The set of rules in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    off: u64,
}

impl Rules {
    /// All rules: the only set outside of the simulator.
    pub const ALL: Rules = Rules { off: 0 };

    /// All rules but one, to show what it is for.
    pub const fn without(rule: Rule) -> Rules {
        Rules { off: 1 << rule as u64 }
    }
    /// Whether `rule` is in force.
    pub const fn keeps(self, rule: Rule) -> bool {
        self.off & (1 << rule as u64) == 0
    }
    /// Whether every rule is in force.
    pub const fn is_complete(self) -> bool {
        self.off == 0
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::ALL
    }
}
