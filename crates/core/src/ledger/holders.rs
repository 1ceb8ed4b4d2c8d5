//! All holders of a cell, and sums over them that are kept from message to message.
//!
//! Every message changes one holder, so the sums change by that one's part. What holders are worth also changes with time: a lease
//! ends, somebody has not asked for a lease's length. Sums are valid up to the next such time, and are then counted anew. They
//! follow from the holders alone: they are not carried anywhere, and two cells that differ in them only are equal.

use super::cell::{Holder, Holding, Place};
use crate::tier::{Claims, Class};
use crate::units::{Amount, LedgerTime, Share, Span};
use alloc::collections::BTreeMap;
use core::ops::Deref;

/// See the module's documentation. Reads like the map that it is; changes only by its own functions.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    all: BTreeMap<Holder, Holding>,
    kept: Option<Kept>,
}

/// Sums over all holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Shares that may be acted on, in parts of 10^9.
    pub share_ppb: u64,
    /// Caps that may be acted on.
    pub cap: Amount,
    /// Holders that asked lately; of those that don't hold for their own tier, the ones that want something.
    pub current: u64,
    /// Those of them that want something.
    pub active: u64,
    /// Tokens that the active ones must be able to hold at once.
    pub needed: u64,
    /// Tokens a second that the current ones want for their own tier, in millionths.
    pub wanted: u64,
    /// Tokens a second that others want, in millionths.
    pub wanted_elsewhere: u64,
    /// Holders that have, or had, a place in the queue.
    pub placed: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    sums: Sums,
    /// The demands of the current ones, by whose work it is for, with how often each occurs.
    demands: BTreeMap<(Class, u64), u64>,
    /// Who has, or had, a place in the queue, by whose work it is for and its number.
    places: BTreeMap<(Class, u64, Holder), Place>,
    /// Up to when the sums have been brought.
    at: LedgerTime,
    /// Before this nothing changes by itself.
    until: LedgerTime,
    lease: Span,
}

impl Kept {
    fn new(at: LedgerTime, lease: Span) -> Kept {
        let (demands, places) = Default::default();
        Kept { sums: Sums::default(), demands, places, at, until: LedgerTime(u64::MAX), lease }
    }

    fn add(&mut self, holder: Holder, holding: &Holding) {
        let part = part(holding, self.at, self.lease);
        let sums = &mut self.sums;
        sums.share_ppb += part.share_ppb;
        sums.cap += part.cap;
        sums.current += part.current;
        sums.active += part.active;
        sums.needed = sums.needed.saturating_add(part.needed);
        sums.wanted = sums.wanted.saturating_add(part.wanted);
        sums.wanted_elsewhere = sums.wanted_elsewhere.saturating_add(part.wanted_elsewhere);
        sums.placed += part.placed;
        if part.current > 0 {
            *self.demands.entry((holding.class, holding.demand)).or_default() += 1;
        }
        if let Some(place) = holding.place {
            self.places.insert((holding.class, place.number, holder), place);
        }
        let leases = [holding.acked, holding.pending].into_iter().flatten().map(|lease| lease.expires);
        let ends = leases.chain([holding.seen + self.lease]).filter(|end| self.at < *end);
        self.until = ends.min().unwrap_or(self.until).min(self.until);
    }

    /// Whether it could: a sum that is at its end can't be taken from.
    fn take(&mut self, holder: Holder, holding: &Holding) -> bool {
        let part = part(holding, self.at, self.lease);
        let sums = &mut self.sums;
        if [sums.needed, sums.wanted, sums.wanted_elsewhere].contains(&u64::MAX) {
            return false;
        }
        sums.share_ppb -= part.share_ppb;
        sums.cap -= part.cap;
        sums.current -= part.current;
        sums.active -= part.active;
        sums.needed -= part.needed;
        sums.wanted -= part.wanted;
        sums.wanted_elsewhere -= part.wanted_elsewhere;
        sums.placed -= part.placed;
        let demand = (holding.class, holding.demand);
        if part.current > 0
            && let Some(count) = self.demands.get_mut(&demand)
        {
            *count -= 1;
            if *count == 0 {
                self.demands.remove(&demand);
            }
        }
        if let Some(place) = holding.place {
            self.places.remove(&(holding.class, place.number, holder));
        }
        true
    }
}

/// What one holder adds.
fn part(holding: &Holding, at: LedgerTime, lease: Span) -> Sums {
    let (share, cap) = holding.counts(at);
    let own = holding.class == Class::Own;
    let current = holding.is_current(at, lease) && (own || holding.is_active());
    let demand = if current { holding.demand } else { 0 };
    Sums {
        share_ppb: u64::from(share.ppb()),
        cap,
        current: u64::from(current),
        active: u64::from(current && holding.is_active()),
        needed: if current { holding.need() } else { 0 },
        wanted: if own { demand } else { 0 },
        wanted_elsewhere: if own { 0 } else { demand },
        placed: u64::from(holding.place.is_some()),
    }
}

impl Holders {
    /// Brings the sums up to `at`, at which they are then valid.
    pub(super) fn settle(&mut self, at: LedgerTime, lease: Span) {
        match &mut self.kept {
            Some(kept) if kept.lease == lease && kept.at <= at && at < kept.until => kept.at = at,
            _ => self.kept = Some(self.count(at, lease)),
        }
    }

    fn count(&self, at: LedgerTime, lease: Span) -> Kept {
        let mut kept = Kept::new(at, lease);
        for (holder, holding) in &self.all {
            kept.add(*holder, holding);
        }
        kept
    }

    fn valid(&self, at: LedgerTime, lease: Span) -> Option<&Kept> {
        self.kept.as_ref().filter(|kept| kept.lease == lease && kept.at <= at && at < kept.until)
    }

    /// The sums at `at`, and when they may change by themselves.
    pub(super) fn sums(&self, at: LedgerTime, lease: Span) -> (Sums, LedgerTime) {
        match self.valid(at, lease) {
            Some(kept) => {
                debug_assert_eq!(kept.sums, self.count(at, lease).sums, "the sums follow from the holders");
                (kept.sums, kept.until)
            }
            None => {
                let kept = self.count(at, lease);
                (kept.sums, kept.until)
            }
        }
    }

    /// What is wanted a second, as `class` sees it.
    pub(super) fn claims(&self, at: LedgerTime, lease: Span, class: Class) -> Claims {
        let sums = self.sums(at, lease).0;
        if sums.wanted_elsewhere == 0 {
            return Claims { own: sums.wanted, ..Claims::default() };
        }
        let claims = |kept: &Kept| {
            let each =
                kept.demands.iter().map(|((class, demand), times)| (*class, demand.saturating_mul(*times)));
            Claims::of(class, each)
        };
        self.valid(at, lease).map_or_else(|| claims(&self.count(at, lease)), claims)
    }

    /// The level at which the demands of the current ones of a class, each cut to it, add up to `capacity`.
    pub(super) fn water_level(&self, at: LedgerTime, lease: Span, class: Class, capacity: u64) -> u64 {
        let level = |kept: &Kept| {
            let mut left = capacity;
            let demands = || kept.demands.range((class, 0)..=(class, u64::MAX));
            let mut count: u64 = demands().map(|(_, times)| times).sum();
            for ((_, demand), times) in demands() {
                let even = left / count.max(1);
                if *demand >= even {
                    return even;
                }
                left -= demand * times;
                count -= times;
            }
            u64::MAX
        };
        self.valid(at, lease).map_or_else(|| level(&self.count(at, lease)), level)
    }

    /// All who have, or had, a place, with whose work it is for.
    pub(super) fn places(&self, at: LedgerTime, lease: Span) -> impl Iterator<Item = (Class, &Place)> {
        let kept = self.valid(at, lease);
        let indexed = kept.into_iter().flat_map(|kept| kept.places.iter());
        let others = kept.is_none().then(|| self.all.values()).into_iter().flatten();
        let others = others.filter_map(|holding| Some((holding.class, holding.place.as_ref()?)));
        indexed.map(|((class, ..), place)| (*class, place)).chain(others)
    }

    /// Changes one holder, which is there afterwards.
    pub(super) fn update<T>(&mut self, holder: Holder, change: impl FnOnce(&mut Holding) -> T) -> T {
        if let Some(kept) = &mut self.kept
            && let Some(before) = self.all.get(&holder)
            && !kept.take(holder, before)
        {
            self.kept = None;
        }
        let holding = self.all.entry(holder).or_default();
        let result = change(holding);
        if let Some(kept) = &mut self.kept {
            kept.add(holder, holding);
        }
        result
    }

    /// Changes one holder, if it is there.
    pub(super) fn update_known<T>(
        &mut self,
        holder: Holder,
        change: impl FnOnce(&mut Holding) -> T,
    ) -> Option<T> {
        self.all.contains_key(&holder).then(|| self.update(holder, change))
    }

    pub(super) fn remove(&mut self, holder: &Holder) -> Option<Holding> {
        let gone = self.all.remove(holder)?;
        if let Some(kept) = &mut self.kept
            && !kept.take(*holder, &gone)
        {
            self.kept = None;
        }
        Some(gone)
    }

    pub(super) fn clear(&mut self) {
        *self = Holders::default();
    }

    /// Changes all of them.
    pub(super) fn update_all(&mut self, change: impl FnMut(&mut Holding)) {
        self.all.values_mut().for_each(change);
        self.kept = None;
    }

    /// Drops those that `keep` doesn't want.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Holder, &mut Holding) -> bool) {
        let before = self.all.len();
        self.all.retain(keep);
        if self.all.len() != before {
            self.kept = None;
        }
    }
}

impl Deref for Holders {
    type Target = BTreeMap<Holder, Holding>;

    fn deref(&self) -> &BTreeMap<Holder, Holding> {
        &self.all
    }
}

impl PartialEq for Holders {
    fn eq(&self, other: &Holders) -> bool {
        self.all == other.all
    }
}

impl Eq for Holders {}

impl FromIterator<(Holder, Holding)> for Holders {
    fn from_iter<T: IntoIterator<Item = (Holder, Holding)>>(all: T) -> Holders {
        Holders { all: all.into_iter().collect(), kept: None }
    }
}

/// Shares that add up to more than one count as one.
pub(super) fn share_of(ppb: u64) -> Share {
    u32::try_from(ppb).ok().and_then(Share::from_ppb).unwrap_or(Share::ONE)
}
