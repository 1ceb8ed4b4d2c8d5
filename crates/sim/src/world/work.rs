//! What the fleet does with what it holds, and what the judge is told of it.

use super::{Failure, World};
use tollgate_core::bucket::{Level, Refusal, admit};
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome, Settle};
use tollgate_core::ledger::{Configure, Input, Output};
use tollgate_core::limit::{CellKey, counted};
use tollgate_core::policy::Terms;
use tollgate_core::rules::Rule;
use tollgate_core::units::Span;

/// How a strict permit's owner uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    key: CellKey,
    cost: u64,
    /// True time up to which the owner uses it; `None` until granted.
    until: Option<u64>,
    /// Whether that has happened: an owner that asks again doesn't use it twice.
    used: bool,
}

impl World {
    /// A worker admits one piece of work. With `pause`, its process stops for that long between taking and the clock:
    /// with the rule [`Rule::ClockAfterTaking`] switched off, between the clock and taking.
    ///
    /// # Errors
    /// [`Failure`]; a refusal by the bucket is in the inner result.
    pub fn spend(
        &mut self,
        name: &str,
        key: &CellKey,
        cost: u64,
        pause: Span,
    ) -> Result<Result<(), Refusal>, Failure> {
        let index = self.running(name)?.index_of(key).ok_or(Failure::NoCell)?;
        self.spend_at(name, index, cost, pause)
    }

    /// [`World::spend`] from the cell with this index: a worker may hold a cell for itself and borrow from it, too.
    ///
    /// # Errors
    /// [`Failure`]; a refusal by the bucket is in the inner result.
    pub fn spend_at(
        &mut self,
        name: &str,
        index: usize,
        cost: u64,
        pause: Span,
    ) -> Result<Result<(), Refusal>, Failure> {
        let (now, clock_after) = (self.now, self.rules.keeps(Rule::ClockAfterTaking));
        let worker = self.running(name)?;
        let (at, boot) = (worker.now(now), worker.boot);
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        let key = cell.key().clone();
        cell.refill(at);
        let policy = cell.mint().held().map_or(Terms::Minted, |held| held.policy);
        worker.note_charge(now, index);
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        let then = now.saturating_add(pause.0);
        let outcome = if clock_after {
            admit(cell.level(), cost, || boot.at(then)).map(|_| ())
        } else {
            let alive = at.boot < cell.level().expiry();
            match (alive, alive && cell.level().take(cost)) {
                (false, _) => Err(Refusal::Expired),
                (true, false) => Err(Refusal::Empty),
                (true, true) => Ok(()),
            }
        };
        worker.paused_until = worker.paused_until.max(then);
        worker.wants[index].requested += cost;
        let who = worker.name.clone();
        if outcome.is_ok() {
            self.books.entry(key).or_default().admit(&who, then, cost, policy);
        }
        Ok(outcome)
    }

    /// Work of a worker that began at true time `from`, in this generation of the level, ends: `tokens` are in use no more. The
    /// worker learns of it when its code runs.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn release(
        &mut self,
        name: &str,
        index: usize,
        tokens: u64,
        from: u64,
        generation: Option<u32>,
    ) -> Result<(), Failure> {
        let now = self.now;
        let worker = self.worker_mut(name)?;
        let cell = worker.client.cells().get(index).ok_or(Failure::NoCell)?;
        let (key, generation) = (cell.key().clone(), generation.unwrap_or_else(|| cell.level().generation()));
        if worker.runs(now) {
            cell.level().release(tokens, generation);
        } else {
            worker.ended.push((index, tokens, generation));
        }
        if let Some(book) = self.books.get_mut(&key) {
            book.finish(name, from, tokens, now);
        }
        Ok(())
    }

    /// What a worker could admit at once, after minting.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn level(&mut self, name: &str, key: &CellKey) -> Result<i64, Failure> {
        let now = self.now;
        let worker = self.running(name)?;
        let at = worker.now(now);
        let index = worker.index_of(key).ok_or(Failure::NoCell)?;
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        cell.refill(at);
        Ok(cell.level().level())
    }

    /// A worker admits everything that it can, in one piece. Returns how much.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn spend_all(&mut self, name: &str, key: &CellKey) -> Result<u64, Failure> {
        let all = u64::try_from(self.level(name, key)?).unwrap_or(0);
        if all == 0 {
            return Ok(0);
        }
        Ok(if self.spend(name, key, all, Span::ZERO)?.is_ok() { all } else { 0 })
    }

    /// [`World::spend_all`] from the cell with this index.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn spend_all_at(&mut self, name: &str, index: usize) -> Result<u64, Failure> {
        let now = self.now;
        let worker = self.running(name)?;
        let at = worker.now(now);
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        cell.refill(at);
        let all = u64::try_from(cell.level().level()).unwrap_or(0);
        if all == 0 {
            return Ok(0);
        }
        Ok(if self.spend_at(name, index, all, Span::ZERO)?.is_ok() { all } else { 0 })
    }

    /// Somebody without a lease asks the ledger for a strict permit, and hears the answer at once.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn acquire(&mut self, acquire: Acquire) -> Result<AcquireOutcome, Failure> {
        let (id, key, cost) = (acquire.id.clone(), acquire.key.clone(), acquire.cost);
        let outcome = match self.apply(Input::Acquire(acquire))? {
            Output::Acquired(outcome) => outcome,
            _ => return Err(Failure::LedgerDown),
        };
        let until = match outcome {
            AcquireOutcome::Granted { lease } => Some(self.now.saturating_add(lease.0)),
            _ => None,
        };
        let permit = self.permits.entry(id).or_insert(Permit { key, cost, until, used: false });
        permit.until = permit.until.or(until);
        Ok(outcome)
    }

    /// The owner of a strict permit uses it now. Returns whether it may.
    pub fn use_permit(&mut self, id: &str) -> bool {
        let now = self.now;
        let Some(permit) = self.permits.get_mut(id) else { return false };
        let until = permit.until.take();
        let usable = !permit.used && until.is_some_and(|until| now < until);
        permit.used |= usable;
        if usable {
            let (key, cost) = (permit.key.clone(), permit.cost);
            let config = self.config.cells.iter().find(|config| config.key == key);
            let policy = config.map_or(Terms::Minted, |config| config.policy.terms(self.ledger_time()));
            let book = self.books.entry(key).or_default();
            book.admit(&id.into(), now, cost, policy);
            // Whoever has a strict permit uses it no longer than it may.
            book.lease(&id.into(), now, until.unwrap_or(now));
        }
        usable
    }

    /// Tells the ledger what was used of a strict permit.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn settle(&mut self, settle: Settle) -> Result<AcquireOutcome, Failure> {
        // Its owner speaks the truth: what it doesn't report was not used.
        if let Some(permit) = self.permits.get_mut(&settle.id) {
            permit.until = None;
            permit.used = true;
            let unused = permit.cost.saturating_sub(settle.used);
            if let Some(book) = self.books.get_mut(&permit.key).filter(|_| self.ledger_up) {
                book.unuse(&settle.id, self.now, unused);
                book.finish_all(&settle.id, self.now);
            }
        }
        match self.apply(Input::Settle(settle))? {
            Output::Acquired(outcome) => Ok(outcome),
            _ => Err(Failure::LedgerDown),
        }
    }

    pub(super) fn note_config(&mut self, new: &Configure) {
        let (now, zero) = (self.now, self.zero());
        self.note_leases();
        for cell in &new.cells {
            let before = self.config.cells.iter().find(|old| old.key == cell.key);
            let lease = before.map_or(cell.lease, |old| old.lease);
            let drain = before.map_or(Span::ZERO, |old| old.policy.drain());
            let until = now.saturating_add((counted(lease) + drain).0);
            let since = self.ledger.state().now;
            let book = self.books.entry(cell.key.clone()).or_default();
            book.configure(now, zero, cell.rate, cell.burst, &cell.policy, until);
            book.want(cell.rate, since);
        }
    }

    /// Tells the judge which curves live leases carry.
    fn note_leases(&mut self) {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        for name in names {
            self.note_lease(&name);
        }
    }

    pub(super) fn note_lease(&mut self, name: &str) {
        let (now, zero) = (self.now, self.zero());
        let Some(worker) = self.workers.get(name) else { return };
        for cell in worker.client.cells() {
            let Some(book) = self.books.get_mut(cell.key()) else { continue };
            let held = cell.mint().held();
            let ended = held.is_some_and(|held| worker.boot.at(now) >= held.expires);
            let ended_at = held.filter(|_| ended).and_then(|held| worker.boot.when(held.expires));
            let rate =
                held.filter(|held| !ended && book.may_carry(held.rate, held.granted)).map(|held| held.rate);
            book.carry(&worker.name, ended_at.unwrap_or(now), zero, rate);
            if let Some(held) = held.filter(|held| held.policy == Terms::OnRelease)
                && let Some(until) = worker.boot.when(held.expires)
            {
                book.lease(&worker.name, now, until);
            }
        }
    }
}
