//! Does steps to a world and looks at it after each, with a model of its own that knows what workers act on and what
//! time it really is, and nothing of how the ledger counts.

use crate::checker::Verdict;
use crate::step::{Op, Step, shares};
use crate::world::{Delivered, State, Up, Worker, World};
use std::collections::BTreeMap;
use tollgate_core::bucket::Level as _;
use tollgate_core::curve::BurstCurve;
use tollgate_core::ledger::Input;
use tollgate_core::ledger::strict::{AcquireOutcome, Settle};
use tollgate_core::limit::{CellConfig, CellKey, counted};
use tollgate_core::message::{CellOutcome, CellReport, Request};
use tollgate_core::policy::Terms;
use tollgate_core::rules::Rules;
use tollgate_core::units::{Amount, Share, Span};

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// More was admitted in some interval than its bound.
    Bound,
    /// Workers act on more than the whole rate.
    Shares,
    /// Workers may hold more than the burst.
    Caps,
    /// A reply that makes no sense.
    Grant,
    /// Something was admitted after the lease had ended by true time.
    Late,
    /// A worker got nothing although nothing is wrong any more.
    Starved,
    /// A calm fleet used too little.
    Unused,
    /// A lower tier used what a higher one doesn't lend.
    Order,
    /// A high tier's work waited for too long.
    Slow,
    /// A tier's own work got less than its floor.
    Floor,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What kind of thing.
    pub kind: Kind,
    /// When it was seen, in true microseconds.
    pub at: u64,
    /// In words.
    pub what: String,
}

/// What became of a step, for whoever plans the next ones.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Failed,
    /// The client would rather wait this long.
    Later(Span),
    /// A request with this seq is on its way.
    Sent(u64),
    /// An answer with this seq is on its way.
    Answered(u64),
    Admitted(u64),
    Acquired(AcquireOutcome),
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) world: World,
    pub(crate) found: Option<Violation>,
    /// When the reply under this name was made, in true time: (incarnation, epoch, seq).
    granted: BTreeMap<(u128, u64, u64), u64>,
    /// Bursts that caps may still be within, and until when.
    bursts: BTreeMap<CellKey, Vec<(u64, BurstCurve)>>,
    /// Leases of removed cells, to know how long their bursts count.
    configs: BTreeMap<CellKey, CellConfig>,
    permits: BTreeMap<String, (CellKey, u64, u64)>,
    /// Tokens used beyond what was there, and not yet told to the judge: they count when they are paid.
    owed: BTreeMap<(String, usize), u64>,
    debt_max: u64,
    clock_steps: u64,
    /// What each worker acted on when it was last looked at, and the sums of that: never less than now.
    acted: BTreeMap<String, Vec<(CellKey, u64, Amount)>>,
    sums: BTreeMap<CellKey, (u64, Amount)>,
    rate_max_micro: u64,
    lease_max: Span,
    ledger_up: bool,
}

impl Machine {
    pub(crate) fn new(rules: Rules, seed: u64) -> Machine {
        Machine {
            world: World::new(rules, seed),
            found: None,
            granted: BTreeMap::new(),
            bursts: BTreeMap::new(),
            configs: BTreeMap::new(),
            permits: BTreeMap::new(),
            owed: BTreeMap::new(),
            debt_max: 0,
            clock_steps: 0,
            acted: BTreeMap::new(),
            sums: BTreeMap::new(),
            rate_max_micro: 0,
            lease_max: Span::ZERO,
            ledger_up: true,
        }
    }

    /// Does one step. What can't be done is left out.
    pub(crate) fn step(&mut self, step: &Step) -> Done {
        self.world.advance_to(step.at);
        let done = self.apply(&step.op).unwrap_or(Done::Failed);
        if !self.owed.is_empty() {
            self.settle_debts();
        }
        let quiet = matches!(
            step.op,
            Op::Spend { .. } | Op::Release { .. } | Op::Want { .. } | Op::Ask { .. } | Op::Use { .. }
        );
        if !quiet && self.found.is_none() {
            step.op.workers().for_each(|name| self.look_at(name));
            // The sums so far still count leases that have ended since: what is within them is right.
            if self.wrong(&self.sums).is_some() {
                self.check();
            }
        }
        done
    }

    fn apply(&mut self, op: &Op) -> Option<Done> {
        match op {
            Op::Configure { cells, version } => self.configure(cells, *version)?,
            Op::AddWorker { name, ppm, wall } => self.world.add_worker(name, *ppm, *wall),
            Op::Borrow { name, key } => {
                self.world.add_cell(name, key.clone(), true).ok()?;
            }
            Op::Want { name, cell, waiting, largest, asked } => {
                let wants = self.world.worker_mut(name).ok()?.wants.get_mut(*cell)?;
                wants.waiting = *waiting;
                wants.largest = *largest;
                wants.requested += asked;
            }
            Op::Ask { name } => {
                return Some(match self.world.ask(name, false) {
                    Ok(request) => Done::Sent(request.seq),
                    Err(crate::world::Failure::NotYet(wait)) => Done::Later(wait),
                    Err(_) => Done::Failed,
                });
            }
            Op::Deliver { name, seq, keep, up: true } => {
                trim(self.world.up.get_mut(name));
                return self.deliver_up(name, *seq, *keep);
            }
            Op::Deliver { name, seq, keep, up: false } => {
                trim(self.world.down.get_mut(name));
                let down = take(self.world.down.get_mut(name)?, *keep, |down| down.seq == *seq)?;
                self.world.deliver_down(name, &down).ok()?;
            }
            Op::Report { name } => {
                let report = self.report(name)?;
                self.world.deliver_up(name, Up::Report(report));
            }
            Op::Spend { name, cell, tokens, pause } => return self.spend(name, *cell, *tokens, *pause),
            Op::Release { name, cell, tokens, from, generation } => {
                self.world.release(name, *cell, *tokens, *from, Some(*generation)).ok()?;
            }
            Op::Give { name, cell, tokens } => {
                let cell = self.world.running(name).ok()?.client.cell_mut(*cell)?;
                let (mint, level) = cell.bucket();
                mint.give_back(level, *tokens);
            }
            Op::Refund { name, cell, tokens, charged } => self.refund(name, *cell, *tokens, *charged)?,
            Op::Overdraw { name, cell, tokens } => self.overdraw(name, *cell, *tokens)?,
            Op::Pause { name } => self.world.pause(name).ok()?,
            Op::Suspend { name, clock_stops } => self.world.suspend(name, *clock_stops).ok()?,
            Op::Resume { name } => self.world.resume(name).ok()?,
            Op::Wall { name, by } => {
                let worker = self.world.worker_mut(name).ok()?;
                worker.wall_offset = worker.wall_offset.saturating_add(*by);
            }
            Op::Crash { name } => {
                self.world.crash(name).ok()?;
                self.forget_debts(name);
            }
            Op::Restart { name } => {
                self.world.restart(name).ok()?;
                self.forget_debts(name);
            }
            Op::Fork { name, copy } => self.fork(name, copy)?,
            Op::Revoke { name } => {
                self.world.revoke(name).ok()?;
                self.forget_debts(name);
            }
            Op::Evict { name } => self.world.evict(name).ok()?,
            Op::Acquire(acquire) => {
                let (id, key, cost) = (acquire.id.clone(), acquire.key.clone(), acquire.cost);
                let outcome = self.world.acquire(acquire.clone()).ok()?;
                if let AcquireOutcome::Granted { lease } = outcome {
                    let until = self.world.now.saturating_add(lease.0);
                    self.permits.entry(id).or_insert((key, cost, until));
                }
                return Some(Done::Acquired(outcome));
            }
            Op::Use { id } => {
                self.permits.remove(id);
                self.world.use_permit(id);
            }
            Op::Settle { id, key, used } => {
                self.permits.remove(id);
                let settle = Settle { id: id.clone(), key: key.clone(), used: *used };
                self.world.settle(settle).ok()?;
            }
            Op::LedgerUp(up) => {
                self.ledger_up = *up;
                self.world.set_ledger_up(*up);
            }
            Op::Tick => {
                self.world.apply(Input::Tick).ok()?;
            }
            Op::Snapshot => {
                self.world.snapshot();
            }
            // Both need a host that runs the new ledger, and notices.
            Op::Reset | Op::Amnesia if !self.ledger_up => return None,
            Op::Reset => self.world.reset(true).ok()?,
            Op::Amnesia => {
                self.world.amnesia(false).ok()?;
            }
            Op::StepClock { by } => {
                self.world.step_ledger_clock(*by);
                self.clock_steps += u64::try_from(*by).unwrap_or(0);
            }
        }
        Some(Done::Nothing)
    }

    fn configure(
        &mut self,
        cells: &[CellConfig],
        version: Option<tollgate_core::limit::Version>,
    ) -> Option<()> {
        let now = self.world.now;
        self.world.configure(cells.to_vec(), version).ok()?;
        let mut configs: BTreeMap<CellKey, CellConfig> =
            cells.iter().map(|config| (config.key.clone(), config.clone())).collect();
        for (key, old) in &self.configs {
            let until = now + counted(old.lease).0 + old.policy.drain().0;
            let bursts = self.bursts.entry(key.clone()).or_default();
            bursts.retain(|(until, _)| now < *until);
            bursts.push((until, old.burst));
            configs.entry(key.clone()).or_insert_with(|| old.clone());
        }
        for config in configs.values() {
            self.lease_max = self.lease_max.max(config.lease);
            for rate in [config.rate.source, config.rate.target] {
                self.rate_max_micro = self.rate_max_micro.max(rate.micro_per_second());
            }
        }
        self.configs = configs;
        Some(())
    }

    fn deliver_up(&mut self, name: &str, seq: u64, keep: bool) -> Option<Done> {
        let message = take(self.world.up.get_mut(name)?, keep, |up| up.request().seq == seq)?;
        Some(match self.world.deliver_up(name, message) {
            Delivered::Answered(down) => {
                if let Ok(reply) = &down.answer {
                    let name = (down.incarnation.0, reply.epoch, reply.seq);
                    let now = self.world.now;
                    self.granted.entry(name).or_insert(now);
                    for cell in &reply.cells {
                        if let CellOutcome::Lease(terms) = &cell.outcome
                            && (terms.tokens < Amount::ZERO || terms.cap < terms.tokens)
                        {
                            let what = format!("{} tokens in a cap of {}", terms.tokens, terms.cap);
                            self.note(Kind::Grant, what);
                        }
                    }
                }
                Done::Answered(down.seq)
            }
            Delivered::Failed => Done::Failed,
            _ => Done::Nothing,
        })
    }

    /// A copy of a process that has asked for nothing yet: both ask under one name, and both are heard.
    ///
    /// Were the copy's first request lost, nothing would tell its second from an honest one: that clones draw new
    /// incarnations is an assumption, and the ledger's noticing only a second line.
    fn fork(&mut self, name: &str, copy: &str) -> Option<()> {
        if !self.ledger_up || self.world.running(name).ok()?.last_seq != 0 {
            return None;
        }
        self.world.fork(name, copy).ok()?;
        for name in [name, copy] {
            let seq = self.world.ask(name, false).ok()?.seq;
            self.deliver_up(name, seq, false)?;
        }
        Some(())
    }

    fn report(&self, name: &str) -> Option<Request> {
        let worker = self.world.worker(name).ok()?;
        let cells = worker.client.cells().iter().map(|cell| {
            let acting = cell.mint().claim(cell.level());
            CellReport {
                key: cell.key().clone(),
                borrowed: cell.is_borrowed(),
                for_tier: None,
                acting,
                held: cell.mint().holds(cell.level()).at_least_zero(),
                used: cell.mint().used(cell.level()),
                returned: cell.mint().returned(),
                debt: Amount::ZERO,
                out: cell.mint().out(cell.level()),
                demand: 0,
                waiting: 0,
                largest: 1,
            }
        });
        Some(Request {
            incarnation: worker.client.incarnation(),
            seq: worker.last_seq,
            nonce: 0,
            worker: name.to_string(),
            cells: cells.collect(),
        })
    }

    fn spend(&mut self, name: &str, cell: usize, tokens: Option<u64>, pause: Span) -> Option<Done> {
        let now = self.world.now;
        let worker = self.world.running(name).ok()?;
        let (at, incarnation) = (worker.now(now), worker.client.incarnation());
        let bucket = worker.client.cell_mut(cell)?;
        bucket.refill(at);
        let level = u64::try_from(bucket.level().level()).unwrap_or(0);
        let tokens = tokens.unwrap_or(level);
        if tokens == 0 {
            return Some(Done::Admitted(0));
        }
        let name_of = bucket.mint().held().map(|held| held.name);
        if self.world.spend_at(name, cell, tokens, pause).ok()?.is_err() {
            return Some(Done::Admitted(0));
        }
        let granted = name_of.and_then(|name| self.granted.get(&(incarnation.0, name.epoch, name.seq)));
        let then = now.saturating_add(pause.0);
        // A lease's length may have been changed meanwhile: the longest counts.
        if granted.is_none_or(|granted| then >= granted.saturating_add(counted(self.lease_max).0)) {
            self.note(Kind::Late, format!("{name} admits {tokens} after its lease has surely ended"));
        }
        Some(Done::Admitted(tokens))
    }

    fn refund(&mut self, name: &str, cell: usize, tokens: u64, charged: u64) -> Option<()> {
        let now = self.world.now;
        let worker = self.world.running(name).ok()?;
        let (at, mark) = (worker.now(now), worker.charged(charged, cell));
        let cell = worker.client.cell_mut(cell)?;
        let key = cell.key().clone();
        let (mint, level) = cell.bucket();
        mint.refund(level, tokens, mark, at);
        self.world.books.get_mut(&key)?.unuse(name, charged, tokens);
        Some(())
    }

    fn overdraw(&mut self, name: &str, cell: usize, tokens: u64) -> Option<()> {
        let now = self.world.now;
        if !self.owed.is_empty() {
            return None;
        }
        let worker = self.world.running(name).ok()?;
        let (at, who) = (worker.now(now), worker.name.clone());
        let bucket = worker.client.cell_mut(cell)?;
        bucket.refill(at);
        if !bucket.mint().is_alive(at) {
            return None;
        }
        let there = u64::try_from(bucket.level().level()).unwrap_or(0).min(tokens);
        let key = bucket.key().clone();
        let tokens = bucket.overdraw(tokens);
        self.world.books.get_mut(&key)?.admit(&who, now, there, Terms::Minted);
        if tokens > there {
            self.owed.insert((name.to_string(), cell), tokens - there);
            self.debt_max = self.debt_max.max(tokens - there);
        }
        Some(())
    }

    /// Whatever is no longer owed has been paid by tokens that nobody else may use: it counts as admitted now.
    fn settle_debts(&mut self) {
        let (world, mut left) = (&mut self.world, BTreeMap::new());
        let now = world.now;
        for ((name, cell), owed) in std::mem::take(&mut self.owed) {
            let Some(worker) = world.workers.get_mut(&name) else { continue };
            let who = worker.name.clone();
            let Some(bucket) = worker.client.cell_mut(cell) else { continue };
            let owes = u64::try_from(-bucket.level().level()).unwrap_or(0);
            let paid = owed.saturating_sub(owes);
            if paid > 0
                && let Some(book) = world.books.get_mut(bucket.key())
            {
                book.admit(&who, now, paid, Terms::Minted);
            }
            if owes.min(owed) > 0 {
                left.insert((name, cell), owes.min(owed));
            }
        }
        self.owed = left;
    }

    /// A process that ends takes what it owes with it.
    fn forget_debts(&mut self, name: &str) {
        self.owed.retain(|(other, _), _| other != name);
    }

    pub(crate) fn note(&mut self, kind: Kind, what: String) {
        let at = self.world.now;
        self.found.get_or_insert(Violation { kind, at, what });
    }

    /// Notes what a worker acts on now.
    fn look_at(&mut self, name: &str) {
        let acts =
            self.world.workers.get(name).map(|worker| acts(worker, self.world.now)).unwrap_or_default();
        for (key, share, cap) in self.acted.remove(name).unwrap_or_default() {
            let sum = self.sums.entry(key).or_default();
            *sum = (sum.0 - share, sum.1 - cap);
        }
        for (key, share, cap) in &acts {
            let sum = self.sums.entry(key.clone()).or_default();
            *sum = (sum.0 + share, sum.1 + *cap);
        }
        if !acts.is_empty() {
            self.acted.insert(name.to_owned(), acts);
        }
    }

    /// What workers really act on must be within the whole rate, and what they may hold within the burst.
    fn check(&mut self) {
        let names: Vec<String> = self.acted.keys().chain(self.world.workers.keys()).cloned().collect();
        names.iter().for_each(|name| self.look_at(name));
        if let Some((kind, what)) = self.wrong(&self.sums) {
            let what = what + &self.holders();
            self.note(kind, what);
        }
    }

    fn wrong(&self, sums: &BTreeMap<CellKey, (u64, Amount)>) -> Option<(Kind, String)> {
        let now = self.world.now;
        let mut wrong = None;
        for (key, (share, cap)) in sums {
            let permits = self.permits.values().filter(|(other, _, until)| other == key && now < *until);
            let cap = permits.fold(*cap, |sum, (_, cost, _)| sum + Amount::tokens(*cost));
            if *share > u64::from(Share::ONE.ppb()) {
                wrong = Some((Kind::Shares, format!("{key}: workers act on shares of {}", shares(*share))));
            }
            let Some(config) = self.configs.get(key) else { continue };
            let ledger_now = self.world.ledger_time();
            let cell = self.world.ledger().state().cells.get(key);
            let free = cell.map_or(Amount::ZERO, |cell| cell.free.at_least_zero());
            let before = cell.map_or(ledger_now, |cell| cell.at.min(ledger_now));
            let ended = self.bursts.get(key).into_iter().flatten().filter(|(until, _)| now < *until);
            let curves = ended.map(|(_, curve)| *curve).chain([config.burst]);
            let burst = curves.map(|curve| curve.at(ledger_now).max(curve.at(before))).max();
            if burst.is_some_and(|burst| cap + free > burst) {
                wrong = Some((Kind::Caps, format!("{key}: workers may hold {cap}, the ledger {free}")));
            }
        }
        wrong
    }

    /// What every worker acts on, for people.
    fn holders(&self) -> String {
        let mut text = String::new();
        for (name, worker) in &self.world.workers {
            let at = worker.now(self.world.now);
            for cell in worker.client.cells() {
                let Some(held) = cell.mint().held().filter(|_| cell.mint().is_alive(at)) else { continue };
                let (lease, left) = (held.name, held.expires.since(at.boot).millis());
                let (share, cap) = (held.share, held.cap);
                text +=
                    &format!("; {name} {}.{} share {share} cap {cap} for {left} ms", lease.epoch, lease.seq);
            }
        }
        text
    }

    /// Tokens beyond the bound that the stated assumptions allow, in millionths: a step of the server's clock brings as
    /// much as the rate does in that time, and a debt counts when it is paid.
    pub(crate) fn allowance_micro(&self) -> i128 {
        let stepped = u128::from(self.clock_steps) * u128::from(self.rate_max_micro) / 1_000_000;
        i128::try_from(stepped).unwrap_or(i128::MAX) + i128::from(self.debt_max) * 1_000_000
    }

    /// Judges everything that was admitted, and returns the worst cell's verdict.
    pub(crate) fn judge(&mut self) -> Option<Verdict> {
        let allowance = self.allowance_micro();
        let mut worst: Option<Verdict> = None;
        for (key, verdict) in self.world.verdicts() {
            if verdict.exceeded
                && (allowance == 0 || verdict.excess_micro > allowance)
                && !self.is(Kind::Bound)
            {
                let what = crate::script::show::verdict(&key.to_string(), &verdict);
                // The guarantee itself outweighs whatever else was seen.
                self.found = Some(Violation { kind: Kind::Bound, at: verdict.to, what });
            }
            if worst.is_none_or(|worst| worst.peak_over_bound_ppm < verdict.peak_over_bound_ppm) {
                worst = Some(verdict);
            }
        }
        worst
    }

    fn is(&self, kind: Kind) -> bool {
        self.found.as_ref().is_some_and(|found| found.kind == kind)
    }
}

/// What a worker acts on now: shares in parts of 10^9, and caps.
fn acts(worker: &Worker, now: u64) -> Vec<(CellKey, u64, Amount)> {
    if worker.state == State::Crashed {
        return Vec::new();
    }
    let at = worker.now(now);
    let alive = worker.client.cells().iter().filter(|cell| cell.mint().is_alive(at));
    let acts = alive.filter_map(|cell| {
        let held = cell.mint().held()?;
        Some((cell.key().clone(), u64::from(held.share.ppb()), held.cap))
    });
    acts.collect()
}

/// The newest of those that are wanted: an earlier life of the process may have used the same seq.
fn take<T: Clone>(queue: &mut Vec<T>, keep: bool, wanted: impl Fn(&T) -> bool) -> Option<T> {
    let index = queue.iter().rposition(wanted)?;
    Some(if keep { queue[index].clone() } else { queue.remove(index) })
}

/// Copies of messages don't pile up for ever.
fn trim<T>(queue: Option<&mut Vec<T>>) {
    const KEPT: usize = 24;
    if let Some(queue) = queue {
        let over = queue.len().saturating_sub(KEPT);
        queue.drain(..over);
    }
}
