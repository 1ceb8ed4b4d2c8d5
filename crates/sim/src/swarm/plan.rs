//! What a seed's run is like: a random fleet, a random limit, and a random part of all faults. Runs with few kinds of
//! faults get deeper into each than a run that mixes all of them would.

use crate::rng::Rng;

/// A kind of fault or of odd work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    LateReplies,
    LateRequests,
    LossUp,
    LossDown,
    Repeats,
    Partition,
    Silence,
    Crash,
    Fork,
    Pause,
    PauseInAcquire,
    Suspend,
    Drift,
    Wall,
    ClockStep,
    LedgerDown,
    Amnesia,
    Reset,
    Cut,
    Ramp,
    BurstRamp,
    NewConfigRun,
    Remove,
    Evict,
    Revoke,
    Overdraw,
    Refund,
    GiveBack,
    Strict,
    Report,
    Borrow,
}

impl Fault {
    const ALL: [Fault; 31] = [
        Fault::LateReplies,
        Fault::LateRequests,
        Fault::LossUp,
        Fault::LossDown,
        Fault::Repeats,
        Fault::Partition,
        Fault::Silence,
        Fault::Crash,
        Fault::Fork,
        Fault::Pause,
        Fault::PauseInAcquire,
        Fault::Suspend,
        Fault::Drift,
        Fault::Wall,
        Fault::ClockStep,
        Fault::LedgerDown,
        Fault::Amnesia,
        Fault::Reset,
        Fault::Cut,
        Fault::Ramp,
        Fault::BurstRamp,
        Fault::NewConfigRun,
        Fault::Remove,
        Fault::Evict,
        Fault::Revoke,
        Fault::Overdraw,
        Fault::Refund,
        Fault::GiveBack,
        Fault::Strict,
        Fault::Report,
        Fault::Borrow,
    ];
    /// Those that happen at moments, rather than colour the whole run.
    const MOMENTS: [Fault; 22] = [
        Fault::Partition,
        Fault::Silence,
        Fault::Crash,
        Fault::Fork,
        Fault::Pause,
        Fault::PauseInAcquire,
        Fault::Suspend,
        Fault::Wall,
        Fault::ClockStep,
        Fault::LedgerDown,
        Fault::Amnesia,
        Fault::Reset,
        Fault::Cut,
        Fault::Ramp,
        Fault::BurstRamp,
        Fault::NewConfigRun,
        Fault::Remove,
        Fault::Evict,
        Fault::Revoke,
        Fault::Overdraw,
        Fault::Refund,
        Fault::GiveBack,
    ];
}

/// See the module's documentation. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) workers: u64,
    /// Tokens a second.
    pub(super) rate: u64,
    pub(super) burst: u64,
    /// In milliseconds.
    pub(super) lease_ms: u64,
    pub(super) limits: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) moments: Vec<Fault>,
    /// Mean time between faults.
    pub(super) fault_every: u64,
    /// Usual way of a message.
    pub(super) delay: u64,
    /// How long faults go on.
    pub(super) length: u64,
    /// Whether the fleet must be served again afterwards.
    pub(super) heals: bool,
    /// No faults and all work: what matters is how much gets used.
    pub(super) calm: bool,
    /// How often a greedy worker takes what there is.
    pub(super) gap: u64,
    /// Whether workers sometimes idle.
    pub(super) idles: bool,
}

const SECOND: u64 = 1_000_000;

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let calm = rng.chance(1, 12);
        let rate = pick(rng, if calm { &[20, 50, 100, 300] } else { &[2, 5, 20, 50, 100, 100, 300] });
        // With a burst below what a fleet must hold at once, how much gets used is a matter of allocation alone.
        let burst = if calm { rate / 2 + 20 + rng.below(rate) } else { 0 };
        let burst = burst.max(rate * pick(rng, &[5, 20, 20, 50, 100, 300, 1_000]) / 100).clamp(2, 600);
        let lease_ms = pick(rng, &[2_000, 2_000, 3_000, 4_000, 6_000, 10_000, 20_000]);
        let few = rng.chance(2, 3);
        let mut faults: Vec<Fault> = Fault::ALL.to_vec();
        faults.retain(|_| rng.chance(if few { 1 } else { 2 }, 6));
        if calm {
            faults.clear();
        }
        // Both live on the same margin, and only one of them at a time is within the assumptions.
        if faults.contains(&Fault::Suspend) {
            faults.retain(|fault| *fault != Fault::ClockStep);
        }
        let mut moments = Fault::MOMENTS.to_vec();
        moments.retain(|moment| faults.contains(moment));
        let forgets = faults.contains(&Fault::Amnesia) || faults.contains(&Fault::Reset);
        let long = forgets && rng.chance(1, 2);
        let length = if long { 150 + rng.below(60) } else { 20 + rng.below(50) } * SECOND;
        let workers = if rng.chance(2, 3) { 1 + rng.below(3) } else { 1 + rng.below(8) };
        // A bucket that is full before it is looked at again mints in vain.
        let gap = (burst * SECOND / (2 * rate * workers)).clamp(10_000, 400_000);
        Plan {
            workers,
            rate,
            burst,
            lease_ms,
            limits: if rng.chance(1, 8) { 2 } else { 1 },
            moments,
            fault_every: pick(rng, &[300, 1_000, 1_000, 3_000, 8_000]) * 1_000,
            delay: pick(rng, if calm { &[1_000, 5_000, 30_000] } else { &[1_000, 5_000, 30_000, 150_000] }),
            length,
            heals: !calm && rng.chance(1, 3),
            calm,
            gap: if long {
                gap.max(50_000)
            } else if calm {
                gap / 4
            } else {
                gap
            },
            idles: !calm && rng.chance(2, 3),
            faults,
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// One of them.
pub(super) fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[usize::try_from(rng.below(of.len() as u64)).unwrap_or(0)]
}
