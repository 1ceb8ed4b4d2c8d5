//! What the judge is told: every admission, and every curve that was in force or carried by a live lease.

use crate::checker::{Admission, Bound, Live, PICO, Polyline, Verdict, judge, largest, pico_per_second};
use std::rc::Rc;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::units::{Amount, LedgerTime};

/// True time is counted in microseconds.
pub const TICKS_PER_SECOND: u64 = 1_000_000;

/// The record of one cell.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Who was allowed to use how much, and when.
    pub admissions: Vec<(Rc<str>, Admission)>,
    rates: Vec<(Source, RateCurve, Live)>,
    bursts: Vec<(BurstCurve, Live)>,
    /// The rate that operators want, and since when by the ledger's clock.
    wanted: Option<(RateCurve, LedgerTime)>,
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
    fn true_time(self, t: LedgerTime) -> u64 {
        u64::try_from((i128::from(t.0) - self.0).max(0)).unwrap_or(u64::MAX)
    }
}

impl Book {
    /// Tokens were admitted.
    pub fn admit(&mut self, who: &Rc<str>, at: u64, tokens: u64) {
        self.admissions.push((who.clone(), Admission { at, tokens }));
    }

    /// Of the latest admissions of `who` up to `charged`, `tokens` turned out not to be used.
    pub fn unuse(&mut self, who: &str, charged: u64, mut tokens: u64) {
        for (name, admission) in self.admissions.iter_mut().rev() {
            if &**name == who && admission.at <= charged {
                let less = admission.tokens.min(tokens);
                admission.tokens -= less;
                tokens -= less;
            }
        }
    }

    /// A configuration is in force from `now` on. The burst before it counts until `burst_until`: caps that were granted
    /// within it live that long.
    pub fn configure(
        &mut self,
        now: u64,
        zero: LedgerZero,
        rate: RateCurve,
        burst: BurstCurve,
        burst_until: u64,
    ) {
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

    /// Judges everything that was admitted so far.
    pub fn verdict(&self) -> Option<Verdict> {
        let log: Vec<Admission> = self.admissions.iter().map(|(_, admission)| *admission).collect();
        judge(&log, &self.bound())
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
