//! What the judge is told: every admission, and every curve that was in force or carried by a live lease.

use crate::checker::conserved::{Use, judge_in_flight, judge_stretches, judge_window};
use crate::checker::{Admission, Bound, Live, PICO, Polyline, Verdict, judge, largest, pico_per_second};
use std::collections::BTreeMap;
use std::rc::Rc;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::limit::MARGIN;
use tollgate_core::policy::{Policy, Terms};
use tollgate_core::units::{Amount, LedgerTime};

/// True time is counted in microseconds.
pub const TICKS_PER_SECOND: u64 = 1_000_000;

/// The record of one cell.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Who was allowed to use how much, and when.
    pub admissions: Vec<Admitted>,
    /// When windows begin, in true time.
    boundaries: Vec<u64>,
    /// From when on, and how long, work goes on whose client is gone.
    drains: Vec<(u64, u64)>,
    /// From when on and up to when somebody has a lease.
    leases: Vec<(Rc<str>, u64, u64)>,
    /// Processes that ended.
    gone: Vec<(Rc<str>, u64)>,
    rates: Vec<(Source, RateCurve, Live)>,
    bursts: Vec<(BurstCurve, Live)>,
    /// The rate that operators want, and since when by the ledger's clock.
    wanted: Option<(RateCurve, LedgerTime)>,
}

/// Tokens that somebody was allowed to use.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who.
    pub who: Rc<str>,
    /// When and how many.
    pub admission: Admission,
    /// By which policy.
    pub policy: Terms,
    /// When their use ended, if it has.
    pub until: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Config,
    Lease(Rc<str>),
}

/// How ledger time becomes true time: `true = ledger - zero`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerZero(pub i128);

impl LedgerZero {
    /// What the ledger's clock shows at a true time.
    pub fn ledger_time(self, t: u64) -> LedgerTime {
        LedgerTime(u64::try_from(i128::from(t) + self.0).unwrap_or(0))
    }

    fn true_time(self, t: LedgerTime) -> u64 {
        u64::try_from((i128::from(t.0) - self.0).max(0)).unwrap_or(u64::MAX)
    }
}

impl Book {
    /// Tokens were admitted under `policy`.
    pub fn admit(&mut self, who: &Rc<str>, at: u64, tokens: u64, policy: Terms) {
        let admission = Admission { at, tokens };
        self.admissions.push(Admitted { who: who.clone(), admission, policy, until: None });
    }

    /// Of the latest admissions of `who` up to `charged`, `tokens` turned out not to be used.
    pub fn unuse(&mut self, who: &str, charged: u64, mut tokens: u64) {
        // Of that very charge, if it is known by its time; else of the last ones before.
        for is_exact in [true, false] {
            let mut all = self.admissions.iter_mut().rev();
            while let Some(one) = all.next().filter(|_| tokens > 0) {
                let at = one.admission.at;
                if &*one.who == who && at <= charged && (at == charged) == is_exact {
                    let less = one.admission.tokens.min(tokens);
                    one.admission.tokens -= less;
                    tokens -= less;
                }
            }
        }
    }

    /// Of what `who` has in use, `tokens` that began at `from` are used no more.
    pub fn finish(&mut self, who: &str, from: u64, tokens: u64, at: u64) {
        let mut left = tokens;
        let mut rest = Vec::new();
        let running =
            |one: &&mut Admitted| one.until.is_none() && &*one.who == who && one.admission.at == from;
        for one in self.admissions.iter_mut().rev().filter(running) {
            if left == 0 {
                break;
            }
            let part = one.admission.tokens.min(left);
            if part < one.admission.tokens {
                let mut other = one.clone();
                other.admission.tokens -= part;
                rest.push(other);
            }
            one.admission.tokens = part;
            one.until = Some(at);
            left -= part;
        }
        self.admissions.append(&mut rest);
    }

    /// Whatever `who` has in use is used no more.
    pub fn finish_all(&mut self, who: &str, at: u64) {
        let running = |one: &&mut Admitted| one.until.is_none() && &*one.who == who;
        self.admissions.iter_mut().filter(running).for_each(|one| one.until = Some(at));
    }

    /// `who` has a lease from `from` up to `until`.
    pub fn lease(&mut self, who: &Rc<str>, from: u64, until: u64) {
        self.leases.push((who.clone(), from, until));
    }

    /// The process `who` ends.
    pub fn end(&mut self, who: &Rc<str>, at: u64) {
        self.gone.push((who.clone(), at));
    }

    /// For each process, the stretches of time in which it had a lease without a break.
    fn covered(&self) -> BTreeMap<Rc<str>, Vec<(u64, u64)>> {
        let mut covered: BTreeMap<Rc<str>, Vec<(u64, u64)>> = BTreeMap::new();
        // They come in the order of their beginnings.
        for (who, from, until) in &self.leases {
            let stretches = covered.entry(who.clone()).or_default();
            match stretches.last_mut() {
                Some(last) if *from <= last.1 => last.1 = last.1.max(*until),
                _ => stretches.push((*from, *until)),
            }
        }
        covered
    }

    /// When the work of one admission ends at the latest: when it was said to, or with what its client needs to go on, and the
    /// drain.
    fn until(&self, one: &Admitted, covered: &BTreeMap<Rc<str>, Vec<(u64, u64)>>) -> u64 {
        let at = one.admission.at;
        let stretches = covered.get(&one.who).map(Vec::as_slice).unwrap_or_default();
        let after = stretches.partition_point(|(from, _)| *from <= at);
        let leased =
            after.checked_sub(1).and_then(|index| stretches.get(index)).map_or(at, |last| last.1.max(at));
        let gone = self.gone.iter().filter(|(who, gone)| *who == one.who && at <= *gone);
        let alone = gone.map(|(_, gone)| *gone).min().unwrap_or(u64::MAX).min(leased);
        // The longest that was in force while it was out.
        let first = self.drains.partition_point(|(from, _)| *from <= at).saturating_sub(1);
        let drains = self.drains.iter().skip(first).take_while(|(from, _)| *from <= alone);
        let drain = drains.map(|(_, drain)| *drain).max().unwrap_or(0);
        one.until.unwrap_or(u64::MAX).min(alone.saturating_add(drain))
    }

    /// A configuration is in force from `now` on. The burst before it counts until `burst_until`: caps that were granted
    /// within it live that long.
    pub fn configure(
        &mut self,
        now: u64,
        zero: LedgerZero,
        rate: RateCurve,
        burst: BurstCurve,
        policy: &Policy,
        burst_until: u64,
    ) {
        if let Policy::FixedWindow { boundaries, .. } = policy {
            self.boundaries.extend(boundaries.iter().map(|boundary| zero.true_time(*boundary)));
            self.boundaries.sort_unstable();
            self.boundaries.dedup();
        }
        self.drains.push((now, policy.drain().0));
        self.close(&Source::Config, now);
        self.rates.push((Source::Config, rate, live(now, rate_line(rate, zero))));
        if self.bursts.last().is_some_and(|(last, live)| *last == burst && live.until.is_none()) {
            return;
        }
        if let Some((_, live)) = self.bursts.last_mut() {
            live.until = Some(burst_until);
        }
        self.bursts.push((burst, live(now, burst_line(burst, zero))));
    }

    /// Operators want `rate` from `since` on, by the ledger's clock. A lease that was granted later and carries another rate
    /// allows nothing: the ledger should have known better.
    pub fn want(&mut self, rate: RateCurve, since: LedgerTime) {
        if self.wanted.is_none_or(|(wanted, _)| wanted != rate) {
            self.wanted = Some((rate, since));
        }
    }

    /// Whether a lease that was granted at `granted` may carry `rate`.
    pub fn may_carry(&self, rate: RateCurve, granted: LedgerTime) -> bool {
        self.wanted.is_none_or(|(wanted, since)| wanted == rate || granted <= since)
    }

    /// A worker's lease carries `rate` from `from` on; `None`: it carries nothing any more. Curves equal to the one in
    /// force need no entry.
    pub fn carry(&mut self, who: &Rc<str>, from: u64, zero: LedgerZero, rate: Option<RateCurve>) {
        let source = Source::Lease(who.clone());
        let known = self
            .rates
            .iter()
            .any(|(other, curve, live)| *other == source && Some(*curve) == rate && live.until.is_none());
        if known {
            return;
        }
        self.close(&source, from);
        if let Some(rate) = rate {
            self.rates.push((source, rate, live(from, rate_line(rate, zero))));
        }
    }

    fn close(&mut self, source: &Source, at: u64) {
        for (other, _, live) in &mut self.rates {
            if other == source && live.until.is_none() {
                live.until = Some(at.max(live.from));
            }
        }
    }

    /// The bound of the whole run so far.
    pub fn bound(&self) -> Bound {
        // The same curve from several sources is one as long as an open one of it exists.
        let mut rates: Vec<Live> = Vec::new();
        for (_, _, live) in &self.rates {
            if !rates.iter().any(|known| covers(known, live)) {
                rates.push(live.clone());
            }
        }
        let bursts: Vec<Live> = self.bursts.iter().map(|(_, live)| live.clone()).collect();
        Bound { ticks_per_second: TICKS_PER_SECOND, rate: largest(&rates), burst: largest(&bursts) }
    }

    /// Judges everything that was admitted so far, each policy's part by itself.
    pub fn verdict(&self) -> Option<Verdict> {
        let mut kinds: Vec<Terms> = Vec::new();
        for one in &self.admissions {
            if !kinds.iter().any(|kind| self.is_one(*kind, one.policy)) {
                kinds.push(one.policy);
            }
        }
        let bound = self.bound();
        let verdicts = kinds.into_iter().filter_map(|kind| {
            let part = self.admissions.iter().filter(|one| self.is_one(kind, one.policy));
            let log = || -> Vec<Admission> { part.clone().map(|one| one.admission).collect() };
            match kind {
                Terms::Minted => judge(&log(), &bound),
                Terms::After(window) => judge_window(&log(), window.0, &bound.burst),
                Terms::AtBoundary { .. } => judge_stretches(&log(), &self.boundaries, MARGIN.0, &bound.burst),
                Terms::OnRelease => {
                    let covered = self.covered();
                    let uses: Vec<Use> = part
                        .map(|one| Use {
                            from: one.admission.at,
                            until: self.until(one, &covered),
                            tokens: one.admission.tokens,
                        })
                        .collect();
                    judge_in_flight(&uses, &bound.burst)
                }
            }
        });
        verdicts.max_by_key(|verdict| verdict.peak_over_bound_ppm)
    }

    /// Whether admissions under two terms are judged together.
    fn is_one(&self, one: Terms, other: Terms) -> bool {
        one == other || (one.is_like(other) && !matches!(one, Terms::After(_)))
    }
}

fn live(from: u64, line: Polyline) -> Live {
    Live { from, until: None, line }
}

fn covers(known: &Live, other: &Live) -> bool {
    let end = |live: &Live| live.until.unwrap_or(u64::MAX);
    known.line == other.line && known.from <= other.from && end(other) <= end(known)
}

fn rate_line(curve: RateCurve, zero: LedgerZero) -> Polyline {
    let pico = |rate: Rate| {
        pico_per_second(TICKS_PER_SECOND, i128::from(rate.micro_tokens) * (PICO / 1_000_000), rate.period.0)
    };
    line(pico(curve.source), pico(curve.target), zero.true_time(curve.start), zero.true_time(curve.end))
}

fn burst_line(curve: BurstCurve, zero: LedgerZero) -> Polyline {
    let pico = |amount: Amount| -(-amount.0).div_euclid(Amount::ONE.0 / PICO);
    line(pico(curve.source), pico(curve.target), zero.true_time(curve.start), zero.true_time(curve.end))
}

fn line(source: i128, target: i128, start: u64, end: u64) -> Polyline {
    Polyline::new(vec![(start, source), (end, target)])
}
