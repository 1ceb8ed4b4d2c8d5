//! A fleet in virtual time: one ledger, workers with clocks of their own, and the messages between them.
//!
//! Nothing happens by itself. Whoever drives a [`World`] moves true time, decides which message arrives, is lost or
//! comes twice, who is paused, and when the ledger forgets. Every admission goes to the judge with its true time.

mod book;
mod clock;
mod faults;
mod work;
mod worker;

pub use book::{Book, LedgerZero, TICKS_PER_SECOND};
pub use clock::Clock;
use work::Permit;
pub use worker::{State, Worker};

use crate::checker::Verdict;
use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::bucket::PlainLevel;
use tollgate_core::client::{Action, AfterRefusal, Client};
use tollgate_core::ledger::escrow::Escrow;
use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
use tollgate_core::limit::{CellConfig, CellKey, Version};
use tollgate_core::message::{Incarnation, Reply, Request, RequestError};
use tollgate_core::rules::Rules;
use tollgate_core::units::{LedgerTime, Span};

/// The ledger's clock shows this at true time zero, in microseconds.
pub(crate) const LEDGER_ZERO: i128 = 1_000_000_000_000;
/// A worker's elapsed-time clock shows this when it is made.
const BOOT_ZERO: u64 = 1_000_000_000;

/// A message on its way to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Up {
    /// A heartbeat.
    Heartbeat(Request),
    /// Usage only.
    Report(Request),
    /// A last word.
    Revoke(Request),
}

impl Up {
    /// What it carries.
    pub fn request(&self) -> &Request {
        match self {
            Up::Heartbeat(request) | Up::Report(request) | Up::Revoke(request) => request,
        }
    }
}

/// An answer on its way to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// Whom it was made for.
    pub incarnation: Incarnation,
    /// The request that it answers.
    pub seq: u64,
    /// The answer.
    pub answer: Result<Reply, RequestError>,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The ledger answered; the answer is on its way back.
    Answered(Down),
    /// The ledger took it in and says nothing.
    Taken,
    /// The ledger is down: the sender notices.
    Failed,
    /// The worker took the answer on.
    Applied,
    /// The worker ignored it.
    Ignored,
    /// The worker starts anew as another incarnation, since it was refused.
    Reincarnated(RequestError),
    /// The worker was refused, and goes on by itself.
    Refused(RequestError),
}

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No worker of this name.
    NoWorker(String),
    /// Its code doesn't run.
    NotRunning(State),
    /// No such message is on its way.
    NoMessage,
    /// The worker has no such cell.
    NoCell,
    /// The client would not send before this long.
    NotYet(Span),
    /// The ledger is down.
    LedgerDown,
    /// No snapshot was taken.
    NoSnapshot,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct World {
    /// True time in microseconds since the beginning.
    pub now: u64,
    /// The rules that ledger and clients keep.
    pub rules: Rules,
    /// The only source of chance.
    pub rng: Rng,
    /// All workers by name.
    pub workers: BTreeMap<String, Worker>,
    /// Messages on their way to the ledger, by sender, oldest first.
    pub up: BTreeMap<String, Vec<Up>>,
    /// Answers on their way, by receiver, oldest first.
    pub down: BTreeMap<String, Vec<Down>>,
    /// What the judge is told, by cell.
    pub books: BTreeMap<CellKey, Book>,
    ledger: Ledger,
    ledger_up: bool,
    ledger_offset: i64,
    epoch: u64,
    config: Configure,
    snapshots: Vec<Ledger>,
    /// What a keeper keeps in mind, and whether it can be reached.
    keeper: BTreeMap<CellKey, Escrow>,
    keeper_up: bool,
    permits: BTreeMap<String, Permit>,
}

impl World {
    /// A world at time zero with a ledger that is proven to be the first, and nobody in it.
    pub fn new(rules: Rules, seed: u64) -> World {
        let zero = LedgerTime(u64::try_from(LEDGER_ZERO).unwrap_or(0));
        World {
            now: 0,
            rules,
            rng: Rng::new(seed),
            workers: BTreeMap::new(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            books: BTreeMap::new(),
            ledger: Ledger::with_rules(Start::First, 1, zero, rules),
            ledger_up: true,
            ledger_offset: 0,
            epoch: 1,
            config: Configure {
                version: Version { run: 1, n: 0 },
                settings: Settings::default(),
                cells: Vec::new(),
            },
            snapshots: Vec::new(),
            keeper: BTreeMap::new(),
            keeper_up: true,
            permits: BTreeMap::new(),
        }
    }

    /// Moves true time to `at`; never back.
    pub fn advance_to(&mut self, at: u64) {
        self.now = self.now.max(at);
    }

    /// What the ledger's clock shows.
    pub fn ledger_time(&self) -> LedgerTime {
        let shown = i128::from(self.now) + LEDGER_ZERO + i128::from(self.ledger_offset);
        LedgerTime(u64::try_from(shown).unwrap_or(0))
    }

    /// How ledger time becomes true time at present.
    pub fn zero(&self) -> LedgerZero {
        LedgerZero(LEDGER_ZERO + i128::from(self.ledger_offset))
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The configuration that was sent last.
    pub fn config(&self) -> &Configure {
        &self.config
    }

    /// Adds a worker that leases all cells of the configuration. Its elapsed-time clock gains `ppm` microseconds a
    /// second; its wall clock is off by `wall_offset` microseconds.
    pub fn add_worker(&mut self, name: &str, ppm: i64, wall_offset: i64) {
        let incarnation = Incarnation(self.rng.next_u128());
        let mut client = Client::with_rules(incarnation, name, self.rng.next_u64(), self.rules);
        for config in &self.config.cells {
            client.add_cell(config.key.clone(), false, PlainLevel::default());
        }
        let worker = Worker {
            name: name.into(),
            wants: vec![Default::default(); client.cells().len()],
            client,
            boot: Clock::new(self.now, BOOT_ZERO, ppm),
            wall_offset,
            state: State::Running,
            paused_until: 0,
            last_seq: 0,
            charges: VecDeque::new(),
            ended: Vec::new(),
        };
        self.workers.insert(name.to_string(), worker);
    }

    /// Lets a worker lease one cell more, `borrowed` for a higher tier or not.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn add_cell(&mut self, name: &str, key: CellKey, borrowed: bool) -> Result<usize, Failure> {
        let worker = self.worker_mut(name)?;
        worker.wants.push(Default::default());
        Ok(worker.client.add_cell(key, borrowed, PlainLevel::default()))
    }

    /// A worker by name.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn worker(&self, name: &str) -> Result<&Worker, Failure> {
        self.workers.get(name).ok_or_else(|| Failure::NoWorker(name.to_string()))
    }

    /// A worker by name, to change.
    ///
    /// # Errors
    /// [`Failure::NoWorker`].
    pub fn worker_mut(&mut self, name: &str) -> Result<&mut Worker, Failure> {
        self.workers.get_mut(name).ok_or_else(|| Failure::NoWorker(name.to_string()))
    }

    pub(crate) fn running(&mut self, name: &str) -> Result<&mut Worker, Failure> {
        let now = self.now;
        let worker = self.worker_mut(name)?;
        if worker.state == State::Running && worker.paused_until > now {
            return Err(Failure::NotRunning(State::Paused));
        }
        if worker.state != State::Running { Err(Failure::NotRunning(worker.state)) } else { Ok(worker) }
    }

    /// Gives the ledger an input now.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn apply(&mut self, input: Input) -> Result<Output, Failure> {
        if !self.ledger_up {
            return Err(Failure::LedgerDown);
        }
        let output = self.ledger.apply(self.ledger_time(), input);
        self.tell_keeper();
        Ok(output)
    }

    /// Whether the keeper of what may have been drawn can be reached.
    pub fn set_keeper_up(&mut self, up: bool) {
        self.keeper_up = up;
        self.tell_keeper();
    }

    /// Tells the keeper what it has to be told, and the ledger its answers.
    fn tell_keeper(&mut self) {
        while self.keeper_up
            && self.ledger_up
            && let Some((key, told)) = self.ledger.escrow_asks().into_iter().next()
        {
            let kept = self.keeper.entry(key.clone()).or_insert(Escrow::ALL);
            *kept = kept.told(told);
            let input = Input::Escrowed { key, escrow: *kept };
            self.ledger.apply(self.ledger_time(), input);
        }
    }

    /// Sends the ledger a full configuration under `version`, or under the next one.
    ///
    /// # Errors
    /// [`Failure::LedgerDown`].
    pub fn configure(&mut self, cells: Vec<CellConfig>, version: Option<Version>) -> Result<Output, Failure> {
        let next = Version { n: self.config.version.n + 1, ..self.config.version };
        let version = version.unwrap_or(next);
        let configure = Configure { version, settings: self.config.settings, cells };
        let output = self.apply(Input::Configure(configure.clone()))?;
        // What operators want binds from here on, also when the ledger ignores it.
        if !matches!(output, Output::Refused(_)) {
            self.note_config(&configure);
            self.config = configure;
        }
        Ok(output)
    }

    /// A worker's client makes its next request, which stays on its way. With `force`, its next heartbeat hurries.
    ///
    /// # Errors
    /// [`Failure::NotYet`] while the client would rather wait.
    pub fn ask(&mut self, name: &str, force: bool) -> Result<Request, Failure> {
        let (now, nonce) = (self.now, self.rng.next_u64());
        let worker = self.running(name)?;
        for (index, wants) in worker.wants.clone().into_iter().enumerate() {
            if let Some(cell) = worker.client.cell_mut(index) {
                cell.set_wants(wants);
            }
        }
        if force {
            worker.client.on_notice();
        }
        let at = worker.now(now);
        match worker.client.poll(at, nonce) {
            Action::Idle { until } => Err(Failure::NotYet(until.since(at.boot))),
            Action::Send(request) => {
                worker.last_seq = request.seq;
                self.up.entry(name.to_string()).or_default().push(Up::Heartbeat(request.clone()));
                Ok(request)
            }
        }
    }

    /// Puts a message on its way to the ledger in the name of `name`, whoever made it.
    pub fn send(&mut self, name: &str, message: Up) {
        self.up.entry(name.to_string()).or_default().push(message);
    }

    /// Takes a message from the way up: the one with `seq`, or the oldest. `keep` leaves a copy there.
    ///
    /// # Errors
    /// [`Failure::NoMessage`].
    pub fn take_up(&mut self, name: &str, seq: Option<u64>, keep: bool) -> Result<Up, Failure> {
        take_one(self.up.get_mut(name), keep, |up| seq.is_none_or(|seq| up.request().seq == seq))
    }

    /// Takes an answer from the way down, likewise.
    ///
    /// # Errors
    /// [`Failure::NoMessage`].
    pub fn take_down(&mut self, name: &str, seq: Option<u64>, keep: bool) -> Result<Down, Failure> {
        take_one(self.down.get_mut(name), keep, |down| seq.is_none_or(|seq| down.seq == seq))
    }

    /// Delivers a message to the ledger; an answer starts its way down to `name`.
    pub fn deliver_up(&mut self, name: &str, message: Up) -> Delivered {
        let (incarnation, seq) = (message.request().incarnation, message.request().seq);
        let input = match message {
            Up::Heartbeat(request) => Input::Heartbeat(request),
            Up::Report(request) => Input::Report(request),
            Up::Revoke(request) => Input::Revoke(request),
        };
        match self.apply(input) {
            Ok(Output::Reply(answer)) => {
                let down = Down { incarnation, seq, answer };
                self.down.entry(name.to_string()).or_default().push(down.clone());
                Delivered::Answered(down)
            }
            Ok(_) => Delivered::Taken,
            Err(_) => {
                let now = self.now;
                if let Ok(worker) = self.running(name) {
                    let at = worker.now(now);
                    worker.client.on_failure(at);
                }
                Delivered::Failed
            }
        }
    }

    /// Delivers an answer to a worker.
    ///
    /// # Errors
    /// [`Failure::NotRunning`]; the answer is then lost.
    pub fn deliver_down(&mut self, name: &str, down: &Down) -> Result<Delivered, Failure> {
        let (now, fresh) = (self.now, Incarnation(self.rng.next_u128()));
        let worker = self.running(name)?;
        if worker.client.incarnation() != down.incarnation {
            return Ok(Delivered::Ignored);
        }
        let at = worker.now(now);
        let delivered = match &down.answer {
            Ok(reply) if worker.client.on_reply(at, reply) => {
                worker.add_lenders();
                Delivered::Applied
            }
            Ok(_) => Delivered::Ignored,
            Err(_) if worker.last_seq != down.seq => Delivered::Ignored,
            Err(error) => match worker.client.on_refusal(at, *error) {
                AfterRefusal::GoOn => Delivered::Refused(*error),
                AfterRefusal::Reincarnate => {
                    worker.client.reincarnate(fresh);
                    Delivered::Reincarnated(*error)
                }
            },
        };
        self.note_lease(name);
        Ok(delivered)
    }

    /// Judges every cell's whole history.
    pub fn verdicts(&self) -> BTreeMap<CellKey, Verdict> {
        let judged = self.books.iter().filter_map(|(key, book)| Some((key.clone(), book.verdict()?)));
        judged.collect()
    }
}

fn take_one<T: Clone>(
    queue: Option<&mut Vec<T>>,
    keep: bool,
    wanted: impl Fn(&T) -> bool,
) -> Result<T, Failure> {
    let queue = queue.ok_or(Failure::NoMessage)?;
    let index = queue.iter().position(wanted).ok_or(Failure::NoMessage)?;
    Ok(if keep { queue[index].clone() } else { queue.remove(index) })
}
