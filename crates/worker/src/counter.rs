//! The boot clock by way of the processor's time-stamp counter.
//!
//! Reading `CLOCK_BOOTTIME` takes as long as all the rest of an acquire. The counter is read in a third of that, but alone it is
//! no clock for leases: it may stop or start anew in a suspend, differ between processors, change its pace when a virtual
//! machine moves, and nobody says what its pace is. So the boot clock stays the truth, and the counter only bridges short stretches: each
//! thread reads both, the *anchor*, and for [`ANCHOR_LIFE`] of the counter's own time adds what the counter has advanced. Then it
//! reads both anew. Errors can't grow from anchor to anchor, so the length of a lease doesn't matter.
//!
//! What the reading may be off by, against the boot clock ([`ERROR`], by which leases end early for takers):
//! - *Reading an anchor*: the counter is read before and after the boot clock; the earlier value counts, which puts the reading
//!   ahead, never behind. A pair that is more than [`BRACKET`] apart (the thread was interrupted) makes no anchor.
//! - *Pace*: measured against the boot clock over at least [`MEASURED_OVER`] and again while the process runs. Over an
//!   anchor's life an error of 0.1% is a microsecond; a virtual machine that moves to a processor of twice or half the pace
//!   makes it one life.
//! - *Processors that differ*: a thread that moves to another one sees a jump. One of 50 us is within the error; a
//!   jump back before the anchor, or ahead by more than a life, ends the anchor.
//! - *Suspend*: the counter goes on, and the anchor is too old; or it starts anew, is smaller than the anchor's, and that
//!   ends it. A counter that stopped and went on from the same value is the one case that a thread can't see by itself:
//!   its last anchor then lives for the rest of its life, so that for at most 1 ms *of running* after the resume a lease may be
//!   used that ended in the sleep. (x86 resets its counter in every sleep that stops it; a virtual machine that is saved and
//!   restored finds its boot clock as it left it, too.)
//! - *Processes stopped between the readings*: between two instructions of one reading as well as after it; a reading is a
//!   time that has been, as with every clock. The counter may be read ahead of the instructions before it, as far as a
//!   processor works ahead: well below a microsecond, and an interrupt begins it anew.
//!
//! In each of its rounds the keeper compares how far both have come ([`Clock::is_steady`]). When they differ by more than
//! 0.1% every lease is ended, since one of the two is wrong, and the pace is measured anew; after [`TROUBLES_MAX`] times
//! the process reads the boot clock for good. It does so from the start where the kernel doesn't trust the
//! counter, or where the processor doesn't say that it runs at one pace in all states.

use crate::clock::{Clock, SystemClock};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tollgate_core::bucket::Now;
use tollgate_core::units::{BootTime, Span};

/// For how long the counter is believed without a look at the boot clock.
const ANCHOR_LIFE: Span = Span::from_millis(1);
/// The most that a reading may be off by: see the module's documentation.
const ERROR: Span = Span::from_millis(1);
/// The two readings of the counter around an anchor are no further apart than this.
const BRACKET: Span = Span(20);
/// The pace is measured over at least this long.
const MEASURED_OVER: Span = Span::from_millis(20);
/// And anew when this much has passed, to follow the boot clock where that is being corrected.
const MEASURED_AGAIN: Span = Span::from_millis(200);
/// Counter and boot clock may differ by this part of the time passed: 0.1%, as all clocks of the fleet may.
const DRIFT_PERMILLE: u64 = 1;
/// And by this much for reading them.
const READING: Span = Span(100);
/// After so many jumps the counter isn't used any more.
const TROUBLES_MAX: u32 = 3;
/// Readings that were interrupted are tried again this often.
const TRIES: u32 = 4;

/// `CLOCK_BOOTTIME` by the time-stamp counter where there is a good one, by the system elsewhere.
#[derive(Debug)]
pub struct CounterClock {
    /// Jumps that this clock's keeper knows of.
    seen: AtomicU32,
}

/// What is known of the counter, for all threads and gates of the process.
struct Pace {
    /// Microseconds per tick, in units of 2^-32; 0 while the counter isn't used.
    micros: AtomicU64,
    /// Ticks in [`ANCHOR_LIFE`].
    life: AtomicU64,
    /// Jumps so far.
    troubles: AtomicU32,
    /// The last comparison; `None` before the first one.
    base: Mutex<Option<Pair>>,
}

static PACE: Pace = Pace {
    micros: AtomicU64::new(0),
    life: AtomicU64::new(0),
    troubles: AtomicU32::new(0),
    base: Mutex::new(None),
};

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ticks: u64,
    boot: BootTime,
}

/// What a thread adds the counter to. Empty until a pace is known.
struct Anchor {
    ticks: Cell<u64>,
    boot: Cell<u64>,
    micros: Cell<u64>,
    life: Cell<u64>,
}

thread_local! {
    static ANCHOR: Anchor = const {
        Anchor { ticks: Cell::new(0), boot: Cell::new(0), micros: Cell::new(0), life: Cell::new(0) }
    };
}

impl CounterClock {
    /// The clock of this process.
    pub fn new() -> CounterClock {
        if is_trusted() {
            PACE.compare();
        }
        CounterClock { seen: AtomicU32::new(PACE.troubles.load(Ordering::Relaxed)) }
    }

    /// Whether the counter is in use now; else every reading is the system's.
    pub fn uses_counter(&self) -> bool {
        PACE.micros.load(Ordering::Relaxed) != 0
    }
}

/// [`CounterClock::boot`], for those who know that it is this clock.
#[inline]
pub(crate) fn read() -> BootTime {
    let now = machine::ticks();
    let reading = |anchor: &Anchor| match anchor.add(now) {
        Some(boot) => boot,
        None => anchor.renew(),
    };
    ANCHOR.try_with(reading).unwrap_or_else(|_| SystemClock.boot())
}

/// The same while this thread's anchor is good.
#[inline]
pub(crate) fn read_quickly() -> Option<BootTime> {
    let now = machine::ticks();
    ANCHOR.try_with(|anchor| anchor.add(now)).ok().flatten()
}

impl Default for CounterClock {
    fn default() -> CounterClock {
        CounterClock::new()
    }
}

impl Clock for CounterClock {
    fn boot(&self) -> BootTime {
        read()
    }

    fn now(&self) -> Now {
        SystemClock.now()
    }

    fn error(&self) -> Span {
        if is_trusted() { ERROR } else { Span::ZERO }
    }

    fn is_steady(&self) -> bool {
        if is_trusted() && PACE.troubles.load(Ordering::Relaxed) < TROUBLES_MAX {
            PACE.compare();
        }
        // Another gate's keeper may have found it first.
        let troubles = PACE.troubles.load(Ordering::Relaxed);
        self.seen.swap(troubles, Ordering::Relaxed) == troubles
    }
}

impl Anchor {
    /// What the counter has advanced, added; `None` when it is too old.
    #[inline]
    fn add(&self, now: u64) -> Option<BootTime> {
        // A counter behind the anchor's makes a huge difference.
        let ticks = now.wrapping_sub(self.ticks.get());
        (ticks < self.life.get()).then(|| BootTime(self.boot.get() + ((ticks * self.micros.get()) >> 32)))
    }

    #[cold]
    fn renew(&self) -> BootTime {
        let (micros, life) = (PACE.micros.load(Ordering::Relaxed), PACE.life.load(Ordering::Relaxed));
        self.life.set(0);
        if micros == 0 {
            return SystemClock.boot();
        }
        let (pair, apart) = Pair::read();
        // Pace and life are stored one after the other: used only when they fit together.
        if within(apart, micros, BRACKET) && within(life, micros, ANCHOR_LIFE) {
            self.ticks.set(pair.ticks);
            self.boot.set(pair.boot.0);
            self.micros.set(micros);
            self.life.set(life);
        }
        pair.boot
    }
}

/// Whether so many ticks take no longer than `span`.
fn within(ticks: u64, micros: u64, span: Span) -> bool {
    u128::from(ticks) * u128::from(micros) <= u128::from(span.0) << 32
}

impl Pair {
    /// Both, and how many ticks passed meanwhile. The ticks are those from before.
    fn read() -> (Pair, u64) {
        let ticks = machine::ticks();
        let boot = SystemClock.boot();
        (Pair { ticks, boot }, machine::ticks().wrapping_sub(ticks))
    }

    /// The least disturbed of a few readings.
    fn read_calmly() -> (Pair, u64) {
        (0..TRIES).map(|_| Pair::read()).min_by_key(|(_, apart)| *apart).unwrap_or_else(Pair::read)
    }
}

impl Pace {
    /// Compares how far both clocks have come since the last time.
    fn compare(&self) {
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, _) = Pair::read_calmly();
        let Some(then) = *base else {
            *base = Some(now);
            return;
        };
        let micros = self.micros.load(Ordering::Relaxed);
        let passed = now.boot.since(then.boot);
        if passed < MEASURED_OVER {
            return;
        }
        let ticks = now.ticks.wrapping_sub(then.ticks);
        if micros == 0 {
            *base = Some(now);
            self.set(pace(ticks, passed));
            return;
        }
        if !agree(ticks, micros, passed) {
            *base = Some(now);
            self.set(None);
            let troubles = self.troubles.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            tracing::warn!(
                troubles,
                boot_us = passed.0,
                counter_us = counted(ticks, micros).0,
                "time-stamp counter and boot clock disagree: leases end"
            );
            if troubles == TROUBLES_MAX {
                tracing::warn!("the time-stamp counter is not used any more");
            }
            return;
        }
        if passed >= MEASURED_AGAIN {
            *base = Some(now);
            self.set(pace(ticks, passed));
        }
    }

    /// `None` stops the use of the counter.
    fn set(&self, micros: Option<u64>) {
        let micros = micros.unwrap_or(0);
        let life = (u128::from(ANCHOR_LIFE.0) << 32).checked_div(u128::from(micros)).unwrap_or(0);
        self.micros.store(micros, Ordering::Relaxed);
        self.life.store(u64::try_from(life).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Microseconds per tick in units of 2^-32; `None` for a counter that stands still or is too slow or fast for the arithmetic.
fn pace(ticks: u64, passed: Span) -> Option<u64> {
    let micros = (u128::from(passed.0) << 32).checked_div(u128::from(ticks))?;
    // From 1 MHz to 100 GHz.
    u64::try_from(micros).ok().filter(|micros| (42_949..=1 << 32).contains(micros))
}

/// So many ticks at this pace.
fn counted(ticks: u64, micros: u64) -> Span {
    Span(u64::try_from((u128::from(ticks) * u128::from(micros)) >> 32).unwrap_or(u64::MAX))
}

/// Whether both clocks have come as far as each other.
fn agree(ticks: u64, micros: u64, passed: Span) -> bool {
    let apart = counted(ticks, micros).0.abs_diff(passed.0);
    apart <= passed.scale_ceil(DRIFT_PERMILLE, 1_000).0.saturating_add(READING.0)
}

/// Whether the counter may be used at all.
fn is_trusted() -> bool {
    static TRUSTED: OnceLock<bool> = OnceLock::new();
    *TRUSTED.get_or_init(machine::has_counter)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// The kernel's list leaves the counter out once it has found it unstable, or different between processors.
    const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

    #[inline]
    #[expect(unsafe_code, reason = "no safe interface reads the counter without an own calibration")]
    pub(super) fn ticks() -> u64 {
        // SAFETY: the instruction is in every x86-64 processor, and reads a register. Where the kernel forbids it
        // (PR_TSC_SIGSEGV) a process has asked for that itself.
        unsafe { _rdtsc() }
    }

    pub(super) fn has_counter() -> bool {
        let listed = std::fs::read_to_string(CLOCKS)
            .is_ok_and(|clocks| clocks.split_whitespace().any(|clock| clock == "tsc"));
        listed && is_invariant()
    }

    /// Whether the processor says that the counter runs at one pace in all of its states.
    fn is_invariant() -> bool {
        const HIGHEST: u32 = 0x8000_0000;
        const POWER: u32 = 0x8000_0007;
        __cpuid(HIGHEST).eax >= POWER && __cpuid(POWER).edx >> 8 & 1 == 1
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod machine {
    pub(super) fn ticks() -> u64 {
        0
    }
    pub(super) fn has_counter() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.3 GHz.
    const TICKS_PER_MS: u64 = 2_300_000;

    #[test]
    fn jumps_and_drift_beyond_a_thousandth_are_noticed() {
        let micros = pace(1_000 * TICKS_PER_MS, Span::from_secs(1)).unwrap();
        let after = |ms: u64, ticks: u64| agree(ticks, micros, Span::from_millis(ms));
        assert!(after(60_000, 60_000 * TICKS_PER_MS));
        // 50 us between processors is no jump.
        assert!(after(1_000, 1_000 * TICKS_PER_MS + TICKS_PER_MS / 20));
        assert!(after(1_000, 1_000 * TICKS_PER_MS - TICKS_PER_MS / 20));
        // Asleep for a minute with a counter that stood still; a counter that began anew; 0.2% off.
        assert!(!after(61_000, 1_000 * TICKS_PER_MS));
        assert!(!after(1_000, 5u64.wrapping_sub(1_000 * TICKS_PER_MS)));
        assert!(!after(10_000, 10_020 * TICKS_PER_MS) && !after(10_000, 9_980 * TICKS_PER_MS));
    }

    #[test]
    fn no_pace_is_made_of_a_counter_that_cannot_be_used() {
        assert_eq!(pace(0, Span::from_secs(1)), None);
        assert_eq!(pace(1_000, Span::from_secs(1)), None);
        assert_eq!(pace(u64::MAX, Span::from_secs(1)), None);
        assert!(pace(2_300_000_000, Span::from_secs(1)).is_some());
    }

    #[test]
    fn readings_stay_within_the_stated_error_of_the_boot_clock() {
        let clock = CounterClock::new();
        let begin = SystemClock.boot();
        // Long enough for many anchors, and for the pace to be measured more than once.
        while SystemClock.boot().since(begin) < Span::from_millis(500) {
            let before = SystemClock.boot();
            let read = clock.boot();
            let after = SystemClock.boot();
            assert!(read + clock.error() + Span(1) > before, "{read:?} is behind {before:?}");
            assert!(read < after + clock.error() + Span(1), "{read:?} is ahead of {after:?}");
            assert!(clock.is_steady());
        }
        assert_eq!(clock.uses_counter(), is_trusted());
    }

    #[test]
    fn an_anchor_is_left_when_the_counter_jumps() {
        let anchor = |ticks: u64| {
            ANCHOR.with(|anchor| {
                anchor.ticks.set(ticks);
                anchor.boot.set(7);
                anchor.micros.set(1);
                anchor.life.set(1_000);
            });
        };
        let clock = CounterClock { seen: AtomicU32::new(0) };
        let near = |time: BootTime| time + Span::from_secs(1) > SystemClock.boot();
        // Back by one tick, and ahead by more than a life.
        anchor(u64::MAX);
        assert!(near(clock.boot()));
        anchor(machine::ticks().wrapping_add(1 << 40));
        assert!(near(clock.boot()));
        anchor(machine::ticks().wrapping_sub(1 << 40));
        assert!(near(clock.boot()));
    }
}
