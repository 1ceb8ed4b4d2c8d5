//! How used tokens become usable again.
//!
//! | policy | bound | used tokens are usable again | what it costs |
//! |---|---|---|---|
//! | token bucket | in every interval [s, t] at most `B` plus the integral of the rate | never: new ones are minted at the rate | about 3% of the rate; what a lost worker holds, until its lease has ended |
//! | leaky bucket: the same with `B` = 1 | no two within the time that one token takes | likewise | more than that where many share it (DESIGN.md) |
//! | sliding window | in every interval as long as the window at most `N` | one window after their last possible use | 2% of `N` = 1000, 4% of 100; what a lost worker holds, for its lease and a window |
//! | fixed window | between two boundaries at most `N`, whichever clock within a second of ours tells when those are | at the boundary after their last possible use | the second on either side of a boundary; what a lost worker holds, until the next one |
//! | in flight | at every time at most `N` | when they are released; if their holder is lost, when its lease has ended and `drain` has passed | 2% of `N` = 1000, 3% of 100; what a lost worker holds, for its lease and the drain |
//!
//! The last three *conserve* tokens: there are `N` (the burst of the cell's configuration), and each is free, in
//! somebody's cap, or away until a known time. A cap takes its used tokens along: the holder itself knows when those are usable
//! again. Only when a holder is lost are its tokens taken to have been used at the last possible moment.

use crate::limit::MARGIN;
use crate::units::{LedgerTime, Span};
use alloc::string::String;
use alloc::vec::Vec;

/// The shortest sliding window.
pub const WINDOW_MIN: Span = Span::from_secs(2);
/// The longest sliding window: 31 days. A ledger that lost its memory waits for one of them.
pub const WINDOW_MAX: Span = Span::from_secs(31 * 24 * 3_600);
/// The longest time that work goes on after its holder is lost: a day.
pub const DRAIN_MAX: Span = Span::from_secs(24 * 3_600);
/// The most boundaries that a fixed window's configuration names ahead.
pub const BOUNDARIES_MAX: usize = 128;

/// How many boundaries to come are named at a time, where they follow a calendar: a day's worth of hours has its list renewed
/// twice, and a thousand limits with such lists fit into one message.
pub const BOUNDARIES_AHEAD: usize = 32;
/// The longest name of a time zone, and of a release of the database of time zones, in bytes.
pub const CALENDAR_BYTES_MAX: usize = 64;

/// What the boundaries of a fixed window follow. Only for those who name later ones: a ledger keeps to the times alone, since
/// another release of the time zone database must not change what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// A window is one of these.
    pub unit: CalendarUnit,
    /// The IANA name of the time zone: `America/Los_Angeles`.
    pub time_zone: String,
    /// The release of the time zone database that the boundaries were computed by: `2026f`.
    pub tz_version: String,
}

/// A part of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From one full hour of the zone's clock to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Tokens are minted at the rate, up to the burst.
    TokenBucket,
    /// At most `burst` tokens in any `window`.
    SlidingWindow {
        /// From [`WINDOW_MIN`] to [`WINDOW_MAX`].
        window: Span,
    },
    /// At most `burst` tokens from one boundary to the next.
    FixedWindow {
        /// When windows begin, in order: the last one that has begun, and those to come. After the last of them nothing
        /// comes back.
        boundaries: Vec<LedgerTime>,
        /// What they follow, if anything.
        calendar: Option<Calendar>,
        /// Whether somebody else keeps in mind how much of a window may have been drawn, and is told before it is.
        escrow: bool,
    },
    /// At most `burst` tokens in use at the same time.
    InFlight {
        /// How long work goes on downstream after its client is gone.
        drain: Span,
    },
}

/// What a worker must know of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Tokens are minted.
    Minted,
    /// Used tokens are usable again after this.
    After(Span),
    /// Used tokens are usable again at boundaries.
    AtBoundary {
        /// The boundary before the grant.
        last: Option<LedgerTime>,
        /// The one after it.
        next: Option<LedgerTime>,
    },
    /// Used tokens are usable again when they are released.
    OnRelease,
}

impl Terms {
    /// Whether tokens are conserved, rather than minted.
    pub fn conserves(self) -> bool {
        self != Terms::Minted
    }

    /// The boundary after the grant, of a fixed window.
    pub fn next(self) -> Option<LedgerTime> {
        match self {
            Terms::AtBoundary { next, .. } => next,
            _ => None,
        }
    }

    /// Whether two terms count tokens in the same way: a lease under the one can be renewed under the other.
    pub fn is_like(self, other: Terms) -> bool {
        core::mem::discriminant(&self) == core::mem::discriminant(&other)
    }
}

impl Policy {
    /// Whether tokens are conserved, rather than minted.
    pub fn conserves(&self) -> bool {
        *self != Policy::TokenBucket
    }

    /// When a token is usable again that may have been used up to `last_use`, and whose holder can't say.
    pub fn returns_at(&self, last_use: LedgerTime) -> LedgerTime {
        match self {
            Policy::TokenBucket => last_use,
            Policy::SlidingWindow { window } => last_use + *window,
            Policy::FixedWindow { boundaries, .. } => boundary_after(boundaries, last_use + MARGIN)
                .map_or(LedgerTime(u64::MAX), |boundary| boundary + MARGIN),
            Policy::InFlight { drain } => last_use + *drain,
        }
    }

    /// How long work goes on that nobody holds any more.
    pub fn drain(&self) -> Span {
        match self {
            Policy::InFlight { drain } => *drain,
            _ => Span::ZERO,
        }
    }

    /// What a worker must know of it at `now`.
    pub fn terms(&self, now: LedgerTime) -> Terms {
        match self {
            Policy::TokenBucket => Terms::Minted,
            Policy::SlidingWindow { window } => Terms::After(*window),
            Policy::FixedWindow { boundaries, .. } => Terms::AtBoundary {
                last: boundaries.iter().copied().take_while(|boundary| *boundary <= now).last(),
                next: boundary_after(boundaries, now),
            },
            Policy::InFlight { .. } => Terms::OnRelease,
        }
    }
}

fn boundary_after(boundaries: &[LedgerTime], at: LedgerTime) -> Option<LedgerTime> {
    boundaries.iter().copied().find(|boundary| *boundary > at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_at_the_edge_is_charged_on_both_sides() {
        let at = |secs: u64| LedgerTime(secs * 1_000_000);
        let policy = Policy::FixedWindow {
            boundaries: [100, 200, 300].map(at).to_vec(),
            calendar: None,
            escrow: false,
        };
        assert_eq!(policy.returns_at(at(150)), at(201));
        assert_eq!(policy.returns_at(at(198)), at(201));
        assert_eq!(policy.returns_at(at(199)), at(301), "another clock may say that it is past the edge");
        assert_eq!(
            policy.returns_at(at(299)),
            LedgerTime(u64::MAX),
            "nobody said when the next window begins"
        );
        assert_eq!(policy.terms(at(200)), Terms::AtBoundary { last: Some(at(200)), next: Some(at(300)) },);
    }
}
