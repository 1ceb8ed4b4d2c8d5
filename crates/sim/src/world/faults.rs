//! What can go wrong in a [`World`].

use super::{Failure, State, Up, World};
use std::collections::BTreeMap;
use tollgate_core::bucket::Level as _;
use tollgate_core::client::Client;
use tollgate_core::ledger::{Input, Ledger, Output, Start};
use tollgate_core::limit::CellKey;
use tollgate_core::message::Incarnation;
use tollgate_core::policy::Terms;
use tollgate_core::units::Span;

impl World {
    /// Stops a worker's code; its clocks go on.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn pause(&mut self, name: &str) -> Result<(), Failure> {
        self.worker_mut(name)?.state = State::Paused;
        Ok(())
    }

    /// Puts a worker's machine to sleep. With `clock_stops`, its elapsed-time clock doesn't count that, as
    /// CLOCK_MONOTONIC doesn't.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn suspend(&mut self, name: &str, clock_stops: bool) -> Result<(), Failure> {
        let now = self.now;
        let worker = self.worker_mut(name)?;
        worker.state = State::Suspended;
        if clock_stops {
            worker.boot.stop(now);
        }
        Ok(())
    }

    /// A paused or sleeping worker goes on.
    ///
    /// # Errors
    /// [`Failure::NotRunning`] when it has crashed.
    pub fn resume(&mut self, name: &str) -> Result<(), Failure> {
        let now = self.now;
        let worker = self.worker_mut(name)?;
        if worker.state == State::Crashed {
            return Err(Failure::NotRunning(State::Crashed));
        }
        worker.boot.start(now);
        worker.state = State::Running;
        for (index, tokens, generation) in std::mem::take(&mut worker.ended) {
            if let Some(cell) = worker.client.cells().get(index) {
                cell.level().release(tokens, generation);
            }
        }
        Ok(())
    }

    /// A worker is gone, with everything that it held.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn crash(&mut self, name: &str) -> Result<(), Failure> {
        self.worker_mut(name)?.state = State::Crashed;
        self.note_end(name);
        Ok(())
    }

    /// A worker's process starts anew, as another incarnation that holds nothing.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn restart(&mut self, name: &str) -> Result<(), Failure> {
        let (incarnation, seed, rules) = (Incarnation(self.rng.next_u128()), self.rng.next_u64(), self.rules);
        let now = self.now;
        let worker = self.worker_mut(name)?;
        let mut client = Client::with_rules(incarnation, name, seed, rules);
        for cell in worker.client.cells() {
            client.add_cell(cell.key().clone(), cell.is_borrowed(), Default::default());
        }
        worker.wants = vec![Default::default(); client.cells().len()];
        worker.client = client;
        worker.boot.start(now);
        worker.state = State::Running;
        worker.last_seq = 0;
        worker.charges.clear();
        worker.ended.clear();
        Ok(())
    }

    /// A second process that believes to be the first one: a fork, or a restored snapshot.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn fork(&mut self, name: &str, copy: &str) -> Result<(), Failure> {
        let mut worker = self.worker(name)?.clone();
        worker.name = copy.into();
        self.workers.insert(copy.to_string(), worker);
        self.note_lease(copy);
        Ok(())
    }

    /// A worker stops for good, and its process ends; its last word stays on its way.
    ///
    /// # Errors
    /// [`Failure::NotRunning`].
    pub fn revoke(&mut self, name: &str) -> Result<(), Failure> {
        let (now, nonce) = (self.now, self.rng.next_u64());
        let worker = self.running(name)?;
        let at = worker.now(now);
        let request = worker.client.revoke(at, nonce);
        worker.last_seq = request.seq;
        worker.state = State::Crashed;
        self.note_lease(name);
        self.note_end(name);
        self.send(name, Up::Revoke(request));
        Ok(())
    }

    fn note_end(&mut self, name: &str) {
        for book in self.books.values_mut() {
            book.end(&name.into(), self.now);
        }
    }

    /// An operator evicts a worker.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn evict(&mut self, name: &str) -> Result<(), Failure> {
        let incarnation = self.worker(name)?.client.incarnation();
        self.apply(Input::Evict(incarnation)).map(|_| ())
    }

    /// A worker puts back tokens that were charged at true time `charged` and not used. Returns how many went back.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn refund(&mut self, name: &str, key: &CellKey, tokens: u64, charged: u64) -> Result<u64, Failure> {
        let now = self.now;
        let worker = self.running(name)?;
        let at = worker.now(now);
        let index = worker.index_of(key).ok_or(Failure::NoCell)?;
        let mark = worker.charged(charged, index);
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        let (mint, level) = cell.bucket();
        let back = mint.refund(level, tokens, mark, at);
        self.books.entry(key.clone()).or_default().unuse(name, charged, tokens);
        Ok(back)
    }

    /// A worker charges tokens that were used beyond an estimate.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn overdraw(&mut self, name: &str, key: &CellKey, tokens: u64) -> Result<i64, Failure> {
        let now = self.now;
        let worker = self.running(name)?;
        let index = worker.index_of(key).ok_or(Failure::NoCell)?;
        let who = worker.name.clone();
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        let tokens = cell.overdraw(tokens);
        self.books.entry(key.clone()).or_default().admit(&who, now, tokens, Terms::Minted);
        self.level(name, key)
    }

    /// A worker gives tokens back; its next request says so. Returns how many.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn give_back(&mut self, name: &str, key: &CellKey, tokens: u64) -> Result<u64, Failure> {
        self.level(name, key)?;
        let worker = self.running(name)?;
        let index = worker.index_of(key).ok_or(Failure::NoCell)?;
        let cell = worker.client.cell_mut(index).ok_or(Failure::NoCell)?;
        let (mint, level) = cell.bucket();
        Ok(mint.give_back(level, tokens))
    }

    /// The coordinator's hosts go away or come back; its memory stays.
    pub fn set_ledger_up(&mut self, up: bool) {
        self.ledger_up = up;
    }

    /// The ledger is terminated and started anew: it remembers nothing, and gets the configuration again. `first` says
    /// that Temporal (wrongly) proves it to be the first one.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn amnesia(&mut self, first: bool) -> Result<Output, Failure> {
        self.epoch += 1;
        let start = if first { Start::First } else { Start::WithoutMemory };
        self.ledger = Ledger::with_rules(start, self.epoch, self.ledger_time(), self.rules);
        self.apply(Input::Configure(self.config.clone()))
    }

    /// Remembers the ledger as it is, for [`World::reset`]. Returns the snapshot's number.
    pub fn snapshot(&mut self) -> usize {
        self.snapshots.push(self.ledger.clone());
        self.snapshots.len()
    }

    /// The ledger goes back to its last snapshot. When `detected`, it is told that its memory can't be trusted.
    ///
    /// # Errors
    /// [`Failure::NoSnapshot`].
    pub fn reset(&mut self, detected: bool) -> Result<(), Failure> {
        self.ledger = self.snapshots.last().cloned().ok_or(Failure::NoSnapshot)?;
        if detected {
            self.forget()?;
        }
        // Temporal applies the signals that came since then once more.
        if self.config.version > self.ledger.state().version {
            self.apply(Input::Configure(self.config.clone()))?;
        }
        Ok(())
    }

    /// The ledger is told that its memory can't be trusted.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn forget(&mut self) -> Result<(), Failure> {
        self.epoch += 1;
        self.apply(Input::Forget { epoch: self.epoch }).map(|_| ())
    }

    /// The ledger's clock jumps by `micros`.
    pub fn step_ledger_clock(&mut self, micros: i64) {
        self.ledger_offset = self.ledger_offset.saturating_add(micros);
        let config = self.config.clone();
        self.note_config(&config);
    }

    /// The fleet works by itself for `span`: every worker of `load` that runs keeps so many tokens waiting and admits
    /// what it can every 10 ms; requests and answers take `delay` each way; the ledger gets its ticks. `W:TIER` is the work of one
    /// tier at worker `W`, which takes from its own cell and from those that it borrows from.
    pub fn run(&mut self, span: Span, load: &BTreeMap<String, u64>, delay: Span) -> BTreeMap<String, u64> {
        const STEP: u64 = 10_000;
        let end = self.now.saturating_add(span.0);
        let mut admitted: BTreeMap<String, u64> = load.keys().map(|name| (name.clone(), 0)).collect();
        let mut due_up: Vec<(u64, String, Up)> = Vec::new();
        let mut due_down: Vec<(u64, String, super::Down)> = Vec::new();
        while self.now < end {
            for (_, name, message) in due_up.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
                if let super::Delivered::Answered(down) = self.deliver_up(&name, message) {
                    if let Some(queue) = self.down.get_mut(&name) {
                        queue.pop();
                    }
                    due_down.push((self.now + delay.0, name, down));
                }
            }
            for (_, name, down) in due_down.extract_if(.., |(at, ..)| *at <= self.now).collect::<Vec<_>>() {
                // A worker that doesn't run misses it.
                let _missed = self.deliver_down(&name, &down).is_err();
            }
            for (who, waiting) in load {
                let (name, tier) =
                    who.split_once(':').map_or((who.as_str(), None), |(name, tier)| (name, Some(tier)));
                let name = &name.to_string();
                let lanes: Vec<usize> = match (self.running(name), tier) {
                    (Ok(worker), None) => (0..worker.client.cells().len()).collect(),
                    (Ok(worker), Some(tier)) => worker.own_of(tier).into_iter().collect(),
                    (Err(_), _) => Vec::new(),
                };
                for index in lanes {
                    let sources: Vec<usize> = match self.running(name) {
                        Ok(worker) if tier.is_some() => worker.client.sources(index).collect(),
                        _ => vec![index],
                    };
                    for source in sources {
                        let more = self.spend_all_at(name, source).unwrap_or(0);
                        *admitted.entry(who.clone()).or_default() += more;
                    }
                    if let Ok(worker) = self.worker_mut(name) {
                        worker.wants[index].waiting = *waiting;
                        worker.wants[index].largest = 1;
                    }
                }
                if self.ask(name, false).is_ok()
                    && let Some(message) = self.up.get_mut(name).and_then(Vec::pop)
                {
                    due_up.push((self.now + delay.0, name.clone(), message));
                }
            }
            if self.ledger.next_due().is_some_and(|due| due <= self.ledger_time()) {
                let _down = self.apply(Input::Tick).is_err();
            }
            self.now = (self.now + STEP).min(end);
        }
        admitted
    }
}
