//! Plays a seed: greedy workers, an unkind network and whatever else goes wrong, as one queue of events in true time.

use super::plan::{Fault, Plan, pick};
use crate::machine::{Done, Kind, Machine};
use crate::rng::Rng;
use crate::step::{Op, Step};
use crate::world::State;
use std::collections::BTreeMap;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome};
use tollgate_core::limit::{CellConfig, CellKey, LEASE_MAX, MARGIN, Version, counted};
use tollgate_core::rules::Rules;
use tollgate_core::units::{Share, Span};

const SECOND: u64 = 1_000_000;
/// A run that would do more than this is cut short: it is as good as the next one.
const STEPS_MAX: usize = 60_000;
/// After the last fault, everybody is served within a recovery, a lease, the client's longest back-off, and this.
const SERVED_WITHIN: u64 = 45 * SECOND;

/// What a worker's work is like at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Takes what there is, at once.
    Greedy,
    /// Says that work waits and takes nothing: everything fills up. Then takes all.
    Hoards,
    /// Wants nothing.
    Idle,
}

#[derive(Clone, Debug)]
enum Event {
    /// What was planned, unless its worker has gone.
    Do(Op),
    Poll(usize, u64),
    Work(usize),
    Mode(usize),
    /// A message arrives, as far as nothing stands in between.
    Arrive {
        worker: usize,
        seq: u64,
        up: bool,
        tries: u32,
    },
    Fault,
    StrictWork,
    Pause,
    Ledger,
}

#[derive(Debug)]
struct Player {
    name: String,
    mode: Mode,
    poll: u64,
    /// Messages that arrive before then are lost, on the way up and down.
    cut_up: u64,
    cut_down: u64,
    /// Its last admission that may be corrected.
    charge: Option<(usize, u64, u64)>,
    /// The next reply to it, or its next request, takes this long.
    slow_up: u64,
    slow_down: u64,
    lose_down: bool,
    admitted: u64,
    fresh: bool,
}

/// Everything about one run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) steps: Vec<Step>,
    pub(super) plan: Plan,
    pub(super) utilization_ppm: Option<u64>,
    rng: Rng,
    now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    events: u64,
    players: Vec<Player>,
    cells: Vec<CellConfig>,
    base: Vec<CellConfig>,
    version: Version,
    permits: Vec<(String, CellKey, u64)>,
    /// Strict permits that wait, or did.
    waiting: Vec<(String, CellKey)>,
    healed: bool,
    removed_until: u64,
    stepped: u64,
    /// What an operator does beside changing amounts is drawn by this, so that other runs of a seed are the same without it.
    operator: Option<Rng>,
}

/// Plays `seed` under `rules`; `operated`: limits have reserves of their own, and are paused and resumed.
pub(super) fn play(seed: u64, rules: Rules, operated: bool) -> Run {
    let mut rng = Rng::new(seed ^ 0x7011_6a7e);
    let plan = Plan::draw(&mut rng);
    let mut run = Run {
        machine: Machine::new(rules, seed),
        steps: Vec::new(),
        plan,
        utilization_ppm: None,
        rng,
        now: 0,
        queue: BTreeMap::new(),
        events: 0,
        players: Vec::new(),
        cells: Vec::new(),
        base: Vec::new(),
        version: Version { run: 1, n: 0 },
        permits: Vec::new(),
        waiting: Vec::new(),
        healed: false,
        removed_until: 0,
        stepped: 0,
        operator: operated.then(|| Rng::new(seed ^ 0x0be_7a7e)),
    };
    run.set_up();
    run.go(run.plan.length);
    if run.plan.heals && run.machine.found.is_none() {
        run.heal();
    }
    run.machine.judge();
    if run.plan.calm {
        run.note_utilization();
    }
    run
}

impl Run {
    fn has(&self, fault: Fault) -> bool {
        !self.healed && self.plan.has(fault)
    }

    fn act(&mut self, op: Op) -> Done {
        let step = Step { at: self.now, op };
        let done = self.machine.step(&step);
        self.steps.push(step);
        done
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    fn soon(&mut self, within: u64, event: Event) {
        let at = self.now + self.rng.below(within.max(1));
        self.at(at, event);
    }

    fn later(&mut self, after: u64, op: Op) {
        self.at(self.now + after, Event::Do(op));
    }

    fn lease(&self) -> u64 {
        self.plan.lease_ms * 1_000
    }

    fn set_up(&mut self) {
        let plan = &self.plan;
        let tiers: &[&str] = if plan.has(Fault::Borrow) { &["low", "high"] } else { &[CellKey::TIER] };
        let mut cells = Vec::new();
        for limit in ["api", "mail"].into_iter().take(usize::try_from(plan.limits).unwrap_or(1)) {
            for tier in tiers {
                let lease = Span::from_millis(plan.lease_ms);
                let mut config = CellConfig::constant(limit, Rate::per_second(plan.rate), plan.burst, lease);
                config.key.tier = (*tier).to_string();
                cells.push(config);
            }
        }
        if let Some(rng) = self.operator.as_mut().filter(|_| !self.plan.calm) {
            let parts = [0, 200_000_000, 500_000_000];
            for cell in &mut cells {
                cell.conduct.reserve = Share::from_ppb(pick(rng, &parts)).unwrap_or(cell.conduct.reserve);
            }
            let first = rng.below(2 * self.plan.lease_ms * 1_000);
            self.at(first, Event::Pause);
        }
        self.base.clone_from(&cells);
        self.configure(cells);
        for _ in 0..self.plan.workers {
            self.add_player();
        }
        if !self.plan.moments.is_empty() {
            self.soon(3 * SECOND, Event::Fault);
        }
        if self.plan.has(Fault::Strict) {
            self.soon(2 * SECOND, Event::StrictWork);
        }
        self.at(200_000, Event::Ledger);
    }

    fn configure(&mut self, cells: Vec<CellConfig>) {
        self.cells.clone_from(&cells);
        self.version.n += 1;
        let version = Some(self.version);
        self.act(Op::Configure { cells, version });
    }

    fn add_player(&mut self) {
        let name = format!("w{}", self.players.len() + 1);
        let ppm = match (self.has(Fault::Drift), self.rng.below(3)) {
            (true, 0) => 1_000,
            (true, 1) => -1_000,
            (true, _) => i64::try_from(self.rng.below(2_001)).unwrap_or(0) - 1_000,
            _ => 0,
        };
        let wall = if self.has(Fault::Wall) { self.rng.below(7_200 * SECOND) } else { 0 };
        let wall = i64::try_from(wall).unwrap_or(0) - if wall > 0 { 3_600_000_000 } else { 0 };
        self.act(Op::AddWorker { name: name.clone(), ppm, wall });
        if self.plan.has(Fault::Borrow) && self.rng.chance(1, 2) {
            let key = self.cells[0].key.clone();
            self.act(Op::Borrow { name: name.clone(), key });
        }
        self.enter(name);
    }

    fn enter(&mut self, name: String) {
        let index = self.players.len();
        self.players.push(Player {
            name,
            mode: Mode::Greedy,
            poll: 0,
            cut_up: 0,
            cut_down: 0,
            charge: None,
            slow_up: 0,
            slow_down: 0,
            lose_down: false,
            admitted: 0,
            fresh: true,
        });
        self.soon(SECOND / 2, Event::Mode(index));
        self.soon(SECOND / 2, Event::Work(index));
    }

    fn go(&mut self, length: u64) {
        let end = self.now + length;
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > end || self.machine.found.is_some() || self.steps.len() > STEPS_MAX {
                break;
            }
            let event = entry.remove();
            self.now = at;
            self.handle(event);
        }
        self.now = self.now.max(end);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Do(op) => {
                if !self.healed {
                    self.do_planned(op);
                }
            }
            Event::Poll(worker, number) => {
                if self.players[worker].poll == number {
                    self.poll(worker);
                }
            }
            Event::Work(worker) => self.work(worker),
            Event::Mode(worker) => self.change_mode(worker),
            Event::Arrive { worker, seq, up, tries } => self.arrive(worker, seq, up, tries),
            Event::Fault => {
                if !self.healed {
                    let fault = pick(&mut self.rng, &self.plan.moments.clone());
                    self.fault(fault);
                    let within = 2 * self.plan.fault_every;
                    self.soon(within, Event::Fault);
                }
            }
            Event::StrictWork => self.strict_work(),
            Event::Pause => self.pause_limit(),
            Event::Ledger => {
                let ledger = self.machine.world.ledger();
                if ledger.next_due().is_some_and(|due| due <= self.machine.world.ledger_time()) {
                    self.act(Op::Tick);
                }
                self.at(self.now + 200_000, Event::Ledger);
            }
        }
    }

    fn do_planned(&mut self, op: Op) {
        match op {
            Op::Amnesia => self.amnesia(),
            // Whatever else has changed meanwhile stays changed.
            Op::Configure { .. } => self.configure(self.cells.clone()),
            op => drop(self.act(op)),
        }
    }

    fn running(&self, worker: usize) -> bool {
        let worker = self.machine.world.worker(&self.players[worker].name);
        worker.is_ok_and(|worker| worker.runs(self.now))
    }

    fn cell_count(&self, worker: usize) -> usize {
        self.machine.world.worker(&self.players[worker].name).map_or(0, |worker| worker.client.cells().len())
    }

    fn change_mode(&mut self, worker: usize) {
        let mode = match self.rng.below(10) {
            _ if self.healed || !self.plan.idles => Mode::Greedy,
            0..=4 => Mode::Greedy,
            5..=7 => Mode::Hoards,
            _ => Mode::Idle,
        };
        self.players[worker].mode = mode;
        let name = self.players[worker].name.clone();
        let most = 1 + self.plan.burst / 4;
        for cell in 0..self.cell_count(worker) {
            let (waiting, largest) = match mode {
                Mode::Idle => (0, 1),
                _ if self.healed || self.plan.calm => (2 * self.plan.rate, 1),
                _ => {
                    let largest = if self.rng.chance(3, 4) { 1 } else { 1 + self.rng.below(most) };
                    (1 + self.rng.below(3 * self.plan.rate), largest)
                }
            };
            self.act(Op::Want { name: name.clone(), cell, waiting, largest, asked: 0 });
        }
        let stays = SECOND / 2 + self.rng.below(if mode == Mode::Greedy { 8 } else { 3 } * SECOND);
        self.at(self.now + stays, Event::Mode(worker));
        self.poll(worker);
    }

    fn work(&mut self, worker: usize) {
        let gap = self.plan.gap;
        let next = gap / 2 + self.rng.below(gap);
        self.at(self.now + next, Event::Work(worker));
        if self.players[worker].mode != Mode::Greedy || !self.running(worker) {
            return;
        }
        for cell in 0..self.cell_count(worker) {
            self.take(worker, cell, None, Span::ZERO);
        }
    }

    fn take(&mut self, worker: usize, cell: usize, tokens: Option<u64>, pause: Span) {
        let name = self.players[worker].name.clone();
        if let Done::Admitted(tokens) = self.act(Op::Spend { name, cell, tokens, pause })
            && tokens > 0
        {
            let player = &mut self.players[worker];
            player.admitted += tokens;
            player.charge = Some((cell, self.now, tokens));
        } else {
            self.forget_empty();
        }
    }

    /// A look at an empty bucket changes nothing that a later look wouldn't: runs stay short.
    fn forget_empty(&mut self) {
        self.steps.pop();
    }

    fn poll(&mut self, worker: usize) {
        if !self.running(worker) {
            self.poll_after(worker, SECOND / 10);
            return;
        }
        let name = self.players[worker].name.clone();
        match self.act(Op::Ask { name }) {
            Done::Sent(seq) => {
                self.players[worker].fresh = false;
                self.send(worker, seq, true);
                self.poll_after(worker, SECOND / 5);
            }
            Done::Later(wait) => self.poll_after(worker, wait.0.clamp(1_000, SECOND / 2) + 1_000),
            _ => self.poll_after(worker, SECOND / 5),
        }
    }

    fn poll_after(&mut self, worker: usize, after: u64) {
        self.players[worker].poll += 1;
        let number = self.players[worker].poll;
        self.at(self.now + after, Event::Poll(worker, number));
    }

    /// A message starts: it may get lost, come late, or come more than once.
    fn send(&mut self, worker: usize, seq: u64, up: bool) {
        let loss = if up { Fault::LossUp } else { Fault::LossDown };
        let late = if up { Fault::LateRequests } else { Fault::LateReplies };
        let lost = !up && std::mem::take(&mut self.players[worker].lose_down);
        if lost || (self.has(loss) && self.rng.chance(1, 4)) {
            // It may still come much later.
            if self.has(late) && self.rng.chance(1, 2) {
                let after = self.rng.below(3 * self.lease());
                self.at(self.now + after, Event::Arrive { worker, seq, up, tries: 0 });
            }
            return;
        }
        let slow = if up { &mut self.players[worker].slow_up } else { &mut self.players[worker].slow_down };
        let slow = std::mem::take(slow);
        let mut after = self.plan.delay / 2 + self.rng.below(self.plan.delay) + slow;
        if self.has(late) && self.rng.chance(1, 5) {
            let most = if self.rng.chance(1, 2) { 2 * SECOND } else { 2 * self.lease() };
            after += self.rng.below(most);
        }
        self.at(self.now + after, Event::Arrive { worker, seq, up, tries: 0 });
        if self.has(Fault::Repeats) && self.rng.chance(1, 4) {
            let most = if self.rng.chance(1, 2) { SECOND } else { 2 * self.lease() };
            let again = after + self.rng.below(most);
            self.at(self.now + again, Event::Arrive { worker, seq, up, tries: 0 });
        }
    }

    fn arrive(&mut self, worker: usize, seq: u64, up: bool, tries: u32) {
        let player = &self.players[worker];
        let name = player.name.clone();
        if self.now < if up { player.cut_up } else { player.cut_down } {
            return;
        }
        if !up && !self.running(worker) && tries < 100 {
            // A stopped process finds it in its socket; a dead one never does.
            self.at(self.now + SECOND / 4, Event::Arrive { worker, seq, up, tries: tries + 1 });
            return;
        }
        let keep = self.has(Fault::Repeats) || self.has(Fault::Reset) || self.has(Fault::Amnesia);
        match self.act(Op::Deliver { name, seq, keep, up }) {
            Done::Answered(answered) => self.send(worker, answered, false),
            _ if !up => self.poll(worker),
            _ => {}
        }
    }

    fn strict_work(&mut self) {
        let every = self.plan.fault_every.min(2 * SECOND);
        self.soon(every, Event::StrictWork);
        if self.healed {
            return;
        }
        match self.rng.below(10) {
            0..=4 => {
                let id = format!("p{}", self.events);
                let config = pick_ref(&mut self.rng, &self.cells);
                let Some(config) = config.cloned() else { return };
                let cost = 1 + self.rng.below(1 + self.plan.burst / 2);
                // Never longer than a lease: a burst that was cut counts for as long as that.
                let lease = Span::from_millis(500 + self.rng.below(1_500));
                let auto = self.rng.chance(1, 5);
                let key = config.key.clone();
                self.acquire(id, key, cost, lease, auto);
            }
            5 | 6 => {
                // All that are held are used at once.
                for (id, ..) in std::mem::take(&mut self.permits) {
                    self.act(Op::Use { id });
                }
            }
            7 => {
                let Some((id, key, cost)) = self.permits.pop() else { return };
                let used = self.rng.below(cost + 1);
                if used > 0 {
                    self.act(Op::Use { id: id.clone() });
                }
                let after = self.rng.below(SECOND);
                self.later(after, Op::Settle { id, key, used });
            }
            _ => {}
        }
    }

    fn acquire(&mut self, id: String, key: CellKey, cost: u64, lease: Span, auto: bool) {
        let acquire = Acquire { id: id.clone(), client: id.clone(), key: key.clone(), cost, lease, auto };
        match self.act(Op::Acquire(acquire.clone())) {
            Done::Acquired(AcquireOutcome::Granted { .. }) => {
                self.permits.push((id.clone(), key, cost));
                let within = lease.0;
                if self.rng.chance(1, 2) {
                    self.later(within - within / 8, Op::Use { id });
                }
            }
            Done::Acquired(AcquireOutcome::Queued { due: None, .. }) => self.waiting.push((id, key)),
            Done::Acquired(AcquireOutcome::Queued { due: Some(due), .. }) => {
                // Its owner comes back, and uses what it gets.
                self.waiting.push((id.clone(), key));
                for again in 1..=3 {
                    let acquire = acquire.clone();
                    self.later(due.0 * again + 10_000, Op::Acquire(acquire));
                    self.later(due.0 * again + 20_000 + self.plan.gap, Op::Use { id: id.clone() });
                }
            }
            _ => {}
        }
    }

    fn some_player(&mut self) -> usize {
        usize::try_from(self.rng.below(self.players.len() as u64)).unwrap_or(0)
    }

    /// Up to a bit beyond a lease as the ledger counts it, often near to its end.
    fn about_a_lease(&mut self) -> u64 {
        let counted = counted(Span(self.lease())).0;
        match self.rng.below(4) {
            0 => self.rng.below(self.lease()),
            1 => self.lease() + self.rng.below(SECOND),
            2 => counted + self.rng.below(SECOND / 2),
            _ => counted + self.rng.below(2 * self.lease()),
        }
    }

    fn fault(&mut self, fault: Fault) {
        let worker = self.some_player();
        let name = self.players[worker].name.clone();
        let span = self.about_a_lease();
        match fault {
            Fault::Partition => {
                let until = self.now + span;
                if self.rng.chance(2, 3) {
                    self.players[worker].cut_down = until;
                }
                if self.rng.chance(1, 2) {
                    self.players[worker].cut_up = until;
                }
                // What is on its way just now may come out of it at the end.
                if self.rng.chance(1, 3) {
                    self.players[worker].slow_up = span;
                }
            }
            Fault::Silence => {
                let until = self.now + span;
                for player in &mut self.players {
                    player.cut_up = until;
                }
            }
            Fault::Crash => {
                self.act(Op::Crash { name: name.clone() });
                let after = self.rng.below(span);
                self.later(after, Op::Restart { name });
                self.players[worker].fresh = true;
            }
            Fault::Fork => self.fork(worker),
            Fault::Pause => {
                let silent = self.plan.length > 140 * SECOND && self.rng.chance(1, 4);
                let span = if silent { counted(LEASE_MAX).0 + self.rng.below(5 * SECOND) } else { span };
                self.act(Op::Pause { name: name.clone() });
                self.later(span, Op::Resume { name });
            }
            Fault::PauseInAcquire => self.take(worker, 0, Some(1), Span(span)),
            Fault::Suspend => {
                let clock_stops = self.rng.chance(3, 4);
                self.act(Op::Suspend { name: name.clone(), clock_stops });
                self.later(span, Op::Resume { name });
            }
            Fault::Wall => {
                // A clock that is set back while the machine sleeps would hide the sleep.
                let back = !self.plan.has(Fault::Suspend) && self.rng.chance(1, 2);
                let by = i64::try_from(self.rng.below(20 * SECOND)).unwrap_or(0);
                self.act(Op::Wall { name, by: if back { -by } else { by } });
            }
            Fault::ClockStep => {
                let by = self.rng.below(MARGIN.0 / 2);
                if self.stepped + by < MARGIN.0 * 9 / 10 {
                    self.stepped += by;
                    self.act(Op::StepClock { by: i64::try_from(by).unwrap_or(0) });
                }
            }
            Fault::LedgerDown => {
                self.act(Op::LedgerUp(false));
                self.later(span, Op::LedgerUp(true));
            }
            Fault::Amnesia => self.plan_amnesia(worker),
            Fault::Reset => {
                if self.rng.chance(2, 3) {
                    self.act(Op::Snapshot);
                } else {
                    self.act(Op::Reset);
                    self.replay_old();
                }
            }
            Fault::Cut | Fault::Ramp | Fault::BurstRamp => self.change_limit(fault),
            Fault::NewConfigRun => {
                self.version = Version { run: self.version.run + 1, n: 0 };
                self.change_limit(Fault::Cut);
            }
            Fault::Remove => self.remove_limit(),
            Fault::Evict => {
                self.act(Op::Evict { name: name.clone() });
                let after = self.rng.below(2 * span);
                self.later(after, Op::Restart { name });
                self.players[worker].fresh = true;
            }
            Fault::Revoke => self.revoke(worker),
            Fault::Overdraw => {
                let tokens = 1 + self.rng.below(1 + self.plan.burst / 8);
                for again in 0..6 {
                    let name = name.clone();
                    self.later(again * self.lease() / 4, Op::Overdraw { name, cell: 0, tokens });
                }
            }
            Fault::Refund => self.plan_refund(worker),
            Fault::GiveBack => {
                let tokens = 1 + self.rng.below(self.plan.burst);
                self.act(Op::Give { name, cell: 0, tokens });
                let span = self.rng.below(2 * SECOND);
                self.players[worker].slow_up = span;
                self.poll(worker);
            }
            _ => {}
        }
    }

    /// A copy of a process that has asked for nothing yet: both believe to be the only one.
    fn fork(&mut self, worker: usize) {
        if !self.players[worker].fresh || self.players.len() > 10 {
            let name = self.players[worker].name.clone();
            self.act(Op::Crash { name: name.clone() });
            self.act(Op::Restart { name });
            self.players[worker].fresh = true;
        }
        if self.players.len() > 10 || self.rng.chance(1, 4) {
            return;
        }
        let name = self.players[worker].name.clone();
        let copy = format!("w{}", self.players.len() + 1);
        if let Done::Nothing = self.act(Op::Fork { name, copy: copy.clone() }) {
            self.enter(copy);
            self.send(worker, 1, false);
            self.send(self.players.len() - 1, 1, false);
        }
    }

    fn plan_amnesia(&mut self, worker: usize) {
        if self.rng.chance(1, 2) {
            self.amnesia();
            return;
        }
        // A request that left before its lease ended arrives at the next ledger, when the lease has been lent on.
        let lease = self.lease();
        let after = counted(Span(lease)).0;
        self.players[worker].cut_down = self.now + after;
        let slow = lease / 2 + self.rng.below(lease);
        self.players[worker].slow_up = slow;
        let forgets = after.saturating_sub(lease / 3) + self.rng.below(SECOND / 2);
        self.later(forgets, Op::Amnesia);
    }

    fn amnesia(&mut self) {
        self.act(Op::Amnesia);
        self.replay_old();
    }

    /// Old messages that are still on their way come to a ledger that doesn't know better.
    fn replay_old(&mut self) {
        if self.rng.chance(1, 3) {
            return;
        }
        for worker in 0..self.players.len() {
            let name = self.players[worker].name.clone();
            let Some(queue) = self.machine.world.up.get(&name) else { continue };
            let seqs: Vec<u64> = queue.iter().map(|message| message.request().seq).collect();
            let some = self.rng.below(4);
            for _ in 0..some {
                let Some(seq) = pick_ref(&mut self.rng, &seqs).copied() else { continue };
                self.soon(SECOND / 2, Event::Arrive { worker, seq, up: true, tries: 0 });
            }
        }
    }

    fn change_limit(&mut self, fault: Fault) {
        // A limit that comes back with a larger burst is a new one and starts full; the judge knows only one.
        if self.now < self.removed_until {
            return;
        }
        let mut cells = self.cells.clone();
        let index = usize::try_from(self.rng.below(cells.len() as u64)).unwrap_or(0);
        let Some(config) = cells.get_mut(index) else { return };
        let ledger_now = self.machine.world.ledger_time();
        let (rate, burst) = (self.plan.rate, self.plan.burst);
        match fault {
            Fault::Cut => {
                let count = pick(&mut self.rng, &[rate / 10, rate / 2, rate, rate, 2 * rate]);
                config.rate = RateCurve::constant(Rate::per_second(count));
                if self.rng.chance(1, 3) {
                    config.burst = BurstCurve::constant(pick(&mut self.rng, &[1 + burst / 4, burst]));
                }
                if self.rng.chance(1, 6) {
                    let lease = pick(&mut self.rng, &[2_000, self.plan.lease_ms, 2 * self.plan.lease_ms]);
                    // Only longer: a lease of before would outlive the burst that it was granted within.
                    config.lease = config.lease.max(Span::from_millis(lease));
                }
            }
            Fault::Ramp => {
                let over = Span(SECOND + self.rng.below(4 * self.lease()));
                let count = pick(&mut self.rng, &[0, rate / 10, rate / 4, rate, 2 * rate, 5 * rate]);
                let base = if self.rng.chance(1, 4) {
                    RateCurve::constant(config.rate.at(ledger_now))
                } else {
                    config.rate
                };
                config.rate = base.ramp_to(Rate::per_second(count), ledger_now, over);
            }
            _ => {
                let over = Span(self.lease() + self.rng.below(4 * self.lease()));
                let target = pick(&mut self.rng, &[1, 1 + burst / 8, burst / 2 + 1, burst, 2 * burst]);
                config.burst = config.burst.ramp_to(target, ledger_now, over);
            }
        }
        self.configure(cells);
    }

    /// Pauses a limit, or resumes it.
    fn pause_limit(&mut self) {
        if self.healed {
            return;
        }
        if self.now < self.removed_until {
            return self.at(self.removed_until + 1, Event::Pause);
        }
        let lease = self.lease();
        let Some(rng) = &mut self.operator else { return };
        let (index, next) = (rng.below(self.cells.len() as u64), self.now + rng.below(2 * lease));
        let mut cells = self.cells.clone();
        let Some(one) = usize::try_from(index).ok().and_then(|index| cells.get(index)) else { return };
        let (name, paused) = (one.key.limit.clone(), !one.conduct.paused);
        for cell in cells.iter_mut().filter(|cell| cell.key.limit == name) {
            cell.conduct.paused = paused;
        }
        self.configure(cells);
        self.at(next, Event::Pause);
    }

    fn remove_limit(&mut self) {
        let all = self.cells.clone();
        let ledger_now = self.machine.world.ledger_time();
        if self.now < self.removed_until || all.iter().any(|cell| ledger_now < cell.burst.end) {
            return;
        }
        let index = usize::try_from(self.rng.below(all.len() as u64)).unwrap_or(0);
        let mut fewer = all.clone();
        if index < fewer.len() {
            fewer.remove(index);
        }
        self.configure(fewer);
        self.cells.clone_from(&all);
        let after = if self.rng.chance(1, 2) { self.rng.below(SECOND / 2) } else { self.about_a_lease() };
        self.removed_until = self.now + after + 1;
        self.later(after, Op::Configure { cells: all, version: None });
    }

    fn revoke(&mut self, worker: usize) {
        let name = self.players[worker].name.clone();
        if !self.running(worker) {
            return;
        }
        let last = self.machine.world.worker(&name).map_or(0, |worker| worker.last_seq);
        if self.rng.chance(1, 2) {
            self.act(Op::Ask { name: name.clone() });
        }
        let before = self.machine.world.worker(&name).map_or(0, |worker| worker.last_seq);
        self.act(Op::Revoke { name: name.clone() });
        let word = before + 1;
        let mut after = self.rng.below(SECOND / 4);
        self.later(after, Op::Deliver { name: name.clone(), seq: word, keep: true, up: true });
        if self.has(Fault::Repeats) || self.rng.chance(1, 2) {
            for seq in [before, last, word] {
                after += 1 + self.rng.below(SECOND / 2);
                self.later(after, Op::Deliver { name: name.clone(), seq, keep: true, up: true });
            }
        }
        let span = self.about_a_lease();
        self.later(after + span, Op::Restart { name });
        self.players[worker].fresh = true;
    }

    fn plan_refund(&mut self, worker: usize) {
        let Some((cell, charged, tokens)) = self.players[worker].charge.take() else { return };
        let name = self.players[worker].name.clone();
        let within = self.about_a_lease();
        let after = self.rng.below(within);
        // The bucket may fill up meanwhile.
        if self.rng.chance(1, 2) {
            self.players[worker].mode = Mode::Hoards;
        }
        let tokens = 1 + self.rng.below(tokens);
        self.later(after, Op::Refund { name, cell, tokens, charged });
    }

    /// All faults end; everybody who wants something must get some.
    fn heal(&mut self) {
        self.healed = true;
        self.act(Op::LedgerUp(true));
        // Whoever waits for a strict permit says that it has given up: its place would be kept for it otherwise.
        for (id, key) in std::mem::take(&mut self.waiting) {
            self.act(Op::Settle { id, key, used: 0 });
        }
        for worker in 0..self.players.len() {
            let player = &mut self.players[worker];
            (player.cut_up, player.cut_down, player.admitted, player.mode) = (0, 0, 0, Mode::Greedy);
            (player.slow_up, player.slow_down, player.lose_down) = (0, 0, false);
            let name = player.name.clone();
            let state = self.machine.world.worker(&name).map(|worker| worker.state);
            let evicted = self.machine.world.worker(&name).is_ok_and(|worker| worker.client.is_evicted());
            let gone = self.plan.has(Fault::Evict) || evicted;
            match state {
                Ok(State::Crashed) => drop(self.act(Op::Restart { name })),
                _ if gone => drop(self.act(Op::Restart { name })),
                _ => drop(self.act(Op::Resume { name })),
            }
            self.change_mode(worker);
        }
        self.version.n += 2;
        // A limit that is gone just now comes back as it was, for a start.
        self.configure(self.cells.clone());
        let mut cells = self.base.clone();
        for (base, last) in cells.iter_mut().zip(&self.cells) {
            base.lease = base.lease.max(last.lease);
        }
        self.configure(cells);
        // A crowd of dead incarnations slows the pace below what a short lease needs, until they are forgotten.
        if self.machine.world.ledger().state().workers.len() > 12 {
            self.go(counted(LEASE_MAX).0);
            self.players.iter_mut().for_each(|player| player.admitted = 0);
        }
        let ledger = self.machine.world.ledger().state();
        let now = self.machine.world.ledger_time();
        let cells = ledger.cells.values().filter_map(|cell| cell.recovering_until);
        let until = cells.chain(ledger.recovering_until).max().map_or(Span::ZERO, |until| until.since(now));
        let lease = self.machine.world.config().cells.iter().map(|cell| cell.lease.0).max().unwrap_or(0);
        let paused = self.machine.world.workers.values().map(|worker| worker.paused_until).max();
        let paused = paused.unwrap_or(0).saturating_sub(self.now);
        let rotation = (self.players.len() as u64) * 2 * SECOND / self.plan.rate.max(1);
        self.go(until.0.max(paused) + 3 * counted(Span(lease)).0 + SERVED_WITHIN + rotation);
        if self.machine.found.is_some() || self.steps.len() > STEPS_MAX {
            return;
        }
        for worker in 0..self.players.len() {
            let player = &self.players[worker];
            if player.admitted == 0 {
                let what = format!("{} got nothing although nothing is wrong any more", player.name);
                self.machine.note(Kind::Starved, what);
            }
        }
    }

    fn note_utilization(&mut self) {
        let admitted: u64 = self.players.iter().map(|player| player.admitted).sum();
        let seconds = self.now / SECOND;
        let per_limit = self.plan.rate * seconds + self.plan.burst;
        let could = per_limit * self.cells.len() as u64;
        self.utilization_ppm =
            Some(u64::try_from(u128::from(admitted) * 1_000_000 / u128::from(could.max(1))).unwrap_or(0));
    }
}

fn pick_ref<'a, T>(rng: &mut Rng, of: &'a [T]) -> Option<&'a T> {
    of.get(usize::try_from(rng.below(of.len() as u64)).unwrap_or(0))
}
