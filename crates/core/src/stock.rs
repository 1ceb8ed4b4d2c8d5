//! The worker's side of conserved tokens: which of those that it holds are out, and when they are usable again.
//!
//! Holding `capacity` tokens, a worker has `level` of them to use and the rest out: in use, or used within the window. Takers leave
//! no timestamps, and take while their tokens are counted: what is seen to be out counts as used up to the next look, whose
//! time is read after this one has seen it.

use crate::bucket::Held;
use crate::limit::MARGIN;
use crate::policy::Terms;
use crate::units::{BootTime, LedgerTime, Span};
use alloc::collections::VecDeque;

/// Into how many groups the uses of one window are put: each is usable again up to this part of a window late.
const GROUPS: u64 = 128;
/// The most groups: those of a window, and those that a longer window before left.
const GROUPS_MAX: usize = 256;
/// Clocks may be off by one part in a thousand.
const DRIFT_PERMILLE: u64 = 1;
/// Boundaries are days or hours apart: uses are told apart to this.
const BOUNDARY_GRAIN: Span = Span::from_millis(500);

/// Tokens used in one stretch of time.
#[derive(Clone, Copy, Debug)]
struct Group {
    from: BootTime,
    to: BootTime,
    /// How often the level had been looked at when the last of them was put in.
    look: u64,
    tokens: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stock {
    /// Tokens held, used ones included.
    pub(crate) capacity: u64,
    /// Oldest first.
    groups: VecDeque<Group>,
    /// Tokens in all groups.
    grouped: u64,
    /// Tokens that were out at the last look.
    seen: u64,
    /// The `look` of the newest group that has come back.
    back_to: u64,
}

impl Stock {
    /// Takes note that `out` tokens are out at `now`, and returns how many of them are usable again under `terms`.
    pub(crate) fn look(&mut self, out: u64, held: &Held, now: BootTime, look: u64) -> u64 {
        let grain = match held.policy {
            Terms::Minted | Terms::OnRelease => return 0,
            Terms::After(window) => window.scale_floor(1, GROUPS),
            Terms::AtBoundary { .. } => BOUNDARY_GRAIN,
        };
        let fresh = self.seen.min(out).saturating_sub(self.grouped);
        if fresh > 0 {
            self.note(fresh, grain, now, look);
        }
        let mut back = 0;
        while let Some(group) = self.groups.front().filter(|group| is_back(group.to, held, now)) {
            back += group.tokens;
            self.back_to = self.back_to.max(group.look);
            self.groups.pop_front();
        }
        self.grouped -= back;
        self.seen = out - back.min(out);
        back
    }

    /// When to look again: something may be usable then, or was used and has no time yet.
    pub(crate) fn next_look(&self, held: &Held, now: BootTime) -> Option<BootTime> {
        let (grain, window) = match held.policy {
            Terms::Minted | Terms::OnRelease => return None,
            Terms::After(window) => (window.scale_floor(1, GROUPS), Some(window)),
            // Between boundaries nothing comes back, and around them requests are made often enough.
            Terms::AtBoundary { .. } => (BOUNDARY_GRAIN, None),
        };
        let stamp = (self.seen > self.grouped).then(|| now + grain);
        let front = self.groups.front().zip(window);
        let back = front.map(|(group, window)| group.to + window + window.scale_ceil(DRIFT_PERMILLE, 1_000));
        stamp.into_iter().chain(back).min()
    }

    /// Takes note that `tokens`, taken when the level had been looked at `looks` times, were not used and go back now. Returns
    /// `false` when they may have come back by themselves. Of the groups that they may be in, the oldest lose them: then no other token comes
    /// back before its time.
    pub(crate) fn unuse(&mut self, tokens: u64, looks: u64) -> bool {
        if looks < self.back_to {
            return false;
        }
        let mut left = tokens;
        for group in self.groups.iter_mut().filter(|group| group.look >= looks) {
            let less = left.min(group.tokens);
            group.tokens -= less;
            left -= less;
        }
        self.groups.retain(|group| group.tokens > 0);
        self.grouped -= tokens - left;
        self.seen = self.seen.saturating_sub(tokens);
        true
    }

    fn note(&mut self, tokens: u64, grain: Span, now: BootTime, look: u64) {
        self.grouped += tokens;
        let full = self.groups.len() >= GROUPS_MAX;
        match self.groups.back_mut() {
            Some(last) if full || now.since(last.from) < grain => {
                last.to = last.to.max(now);
                last.look = last.look.max(look);
                last.tokens += tokens;
            }
            _ => self.groups.push_back(Group { from: now, to: now, look, tokens }),
        }
    }

    /// Nothing is out any more.
    pub(crate) fn forget(&mut self) {
        *self = Stock::default();
    }
}

/// Whether a token that was last used at `used` is usable again, on the late side of every clock.
fn is_back(used: BootTime, held: &Held, now: BootTime) -> bool {
    match held.policy {
        Terms::Minted | Terms::OnRelease => false,
        Terms::After(window) => used + window + window.scale_ceil(DRIFT_PERMILLE, 1_000) <= now,
        Terms::AtBoundary { last, next } => {
            let (used, now) = (latest(held, used), earliest(held, now));
            let passed = |boundary: LedgerTime| used + MARGIN < boundary && boundary + MARGIN <= now;
            last.into_iter().chain(next).any(passed)
        }
    }
}

/// The latest ledger time that it may have been at `at`.
fn latest(held: &Held, at: BootTime) -> LedgerTime {
    if at < held.sent.boot {
        let before = held.sent.boot.since(at).scale_floor(1_000 - DRIFT_PERMILLE, 1_000);
        return LedgerTime(held.granted.0.saturating_sub(before.0));
    }
    held.granted + at.since(held.sent.boot).scale_ceil(1_000 + DRIFT_PERMILLE, 1_000)
}

/// The earliest ledger time that it may be at `at`, which is not before the lease was received.
fn earliest(held: &Held, at: BootTime) -> LedgerTime {
    held.granted + at.since(held.received).scale_floor(1_000 - DRIFT_PERMILLE, 1_000)
}
