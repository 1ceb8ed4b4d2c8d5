//! Plays a scenario: its workers, their work, the messages, and what happens to all of them, as one queue of events in
//! true time.

use super::load::Load;
use super::measure::{Figures, Limit, Line, Measure};
use super::tiers::{Tiers, Trouble};
use super::{Happening, Sample, Scenario};
use crate::machine::{Done, Kind, Machine};
use crate::rng::Rng;
use crate::step::{Op, Step};
use crate::world::State;
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::bucket::Level as _;
use tollgate_core::limit::counted;
use tollgate_core::policy::Terms;
use tollgate_core::rules::Rules;
use tollgate_core::units::Span;

const SECOND: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick(usize, u64),
    Poll(usize, u64),
    Up(usize, u64, bool),
    Down(usize, u64, bool),
    /// Of a worker's life with this number, so many tokens' work that began then ends.
    End {
        worker: usize,
        cell: usize,
        life: u64,
        from: u64,
        tokens: u64,
        generation: u32,
    },
    /// What was taken in vain then is put back.
    Back {
        worker: usize,
        life: u64,
        cell: usize,
        tokens: u64,
        charged: u64,
    },
    Happen(usize),
    Sample,
}

/// A worker as its work sees it.
#[derive(Debug)]
struct Hand {
    name: String,
    /// One for each tier, the highest first. Its own cell has the same index.
    lanes: Vec<Lane>,
    there: bool,
    tick: u64,
    poll: u64,
    admitted_at: u64,
    /// Counts its starts.
    life: u64,
}

/// A tier's work at a worker.
#[derive(Debug)]
struct Lane {
    load: Load,
    /// Since when, and how many tokens: who waits, in order.
    queue: VecDeque<(u64, u64)>,
    waiting: u64,
    told: u64,
}

impl Hand {
    fn waiting(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.waiting).sum()
    }
}

#[derive(Debug)]
pub(super) struct Stage<'a> {
    scenario: &'a Scenario,
    pub(super) machine: Machine,
    pub(super) measure: Measure,
    /// How tiers do, where there are several.
    pub(super) tiers: Option<Tiers>,
    pub(super) steps: Vec<Step>,
    pub(super) samples: Vec<Sample>,
    pub(super) messages: u64,
    pub(super) events: u64,
    /// Time during which workers were there, summed over workers.
    pub(super) worker_time: u64,
    record: bool,
    sampled: u64,
    rng: Rng,
    now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    hands: Vec<Hand>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64, rules: Rules, record: bool) -> Stage<'a> {
        let rates = scenario.cells().into_iter().map(|cell| cell.rate.target.micro_per_second());
        let limit =
            Limit { rate: Line::new(rates.sum::<u64>() / scenario.cost), burst: Line::new(scenario.burst()) };
        let lane = |load: &Load| Lane { load: load.clone(), queue: VecDeque::new(), waiting: 0, told: 0 };
        let hand = |(index, load): (usize, &Load)| Hand {
            name: format!("w{}", index + 1),
            lanes: [load].into_iter().chain(scenario.loads_below(index)).map(lane).collect(),
            there: false,
            tick: 0,
            poll: 0,
            admitted_at: 0,
            life: 0,
        };
        Stage {
            scenario,
            machine: Machine::new(rules, seed),
            measure: Measure::new(
                limit,
                scenario.how(),
                scenario.patience,
                scenario.window,
                scenario.loads.len(),
            ),
            tiers: Tiers::of(scenario),
            steps: Vec::new(),
            samples: Vec::new(),
            messages: 0,
            events: 0,
            worker_time: 0,
            record,
            sampled: 0,
            rng: Rng::new(seed ^ 0x5ce_0a10),
            now: 0,
            queue: BTreeMap::new(),
            hands: scenario.loads.iter().enumerate().map(hand).collect(),
        }
    }

    pub(super) fn play(&mut self) {
        self.play_and_tell(&mut |_| {});
    }

    /// `told` hears how much is done, in percent, whenever that is another number.
    pub(super) fn play_and_tell(&mut self, told: &mut dyn FnMut(u64)) {
        let mut done = 0;
        self.act(Op::Configure { cells: self.scenario.all_cells(), version: None });
        for (index, (at, _)) in self.scenario.happenings.iter().enumerate() {
            self.at(*at, Event::Happen(index));
        }
        if self.record {
            self.at(SECOND, Event::Sample);
        }
        let length = self.scenario.length;
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > length || self.machine.found.is_some() {
                break;
            }
            let event = entry.remove();
            self.now = at;
            let percent = at * 100 / length.max(1);
            if percent > done {
                done = percent;
                told(done);
            }
            let hands = &self.hands;
            self.measure.pass(at, |worker| hands[worker].there.then(|| hands[worker].waiting()));
            self.handle(event);
        }
        self.now = length;
        let hands = &self.hands;
        self.measure.pass(length, |worker| hands[worker].there.then(|| hands[worker].waiting()));
        self.look_for_the_starving();
        self.judge_tiers();
        self.machine.judge();
        if done < 100 {
            told(100);
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let figures = self.measure.figures();
        self.tiers.as_ref().map_or(figures.clone(), |tiers| tiers.figures(figures))
    }

    fn judge_tiers(&mut self) {
        let Some(tiers) = &self.tiers else { return };
        if let Some((kind, what)) = tiers.wrong().filter(|_| self.machine.found.is_none()) {
            self.machine.note(kind, what);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick(worker, number) => {
                if self.hands[worker].tick == number {
                    self.tick(worker);
                }
            }
            Event::Poll(worker, number) => {
                if self.hands[worker].poll == number {
                    self.poll(worker);
                }
            }
            Event::Up(worker, seq, keep) => {
                let name = self.hands[worker].name.clone();
                match self.act(Op::Deliver { name, seq, keep, up: true }) {
                    Done::Answered(seq) => self.send(|keep| Event::Down(worker, seq, keep)),
                    _ => self.poll(worker),
                }
            }
            Event::End { worker, cell, life, from, tokens, generation } => {
                if self.hands[worker].life == life {
                    let name = self.hands[worker].name.clone();
                    self.act(Op::Release { name, cell, tokens, from, generation });
                    self.tick(worker);
                    self.poll(worker);
                }
            }
            Event::Back { worker, life, cell, tokens, charged } => {
                if self.hands[worker].life == life && self.runs(worker) {
                    let name = self.hands[worker].name.clone();
                    self.act(Op::Refund { name, cell, tokens, charged });
                }
            }
            Event::Down(worker, seq, keep) => {
                let name = self.hands[worker].name.clone();
                self.act(Op::Deliver { name, seq, keep, up: false });
                self.tick(worker);
                self.poll(worker);
            }
            Event::Happen(index) => self.happen(index),
            Event::Sample => self.sample(),
        }
    }

    fn act(&mut self, op: Op) -> Done {
        let step = Step { at: self.now, op };
        let done = self.machine.step(&step);
        if self.record {
            self.steps.push(step);
        }
        done
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    /// Sends a message. Rarely it is lost, comes much later, or comes twice.
    fn send(&mut self, event: impl Fn(bool) -> Event) {
        let (least, most) = self.scenario.delay;
        let odd = self.scenario.odd_ppm;
        let mut after = least + self.rng.below(most - least + 1);
        if odd > 0 && self.rng.chance(odd, 1_000_000) {
            after += self.rng.below(20 * SECOND);
        }
        let twice = odd > 0 && self.rng.chance(odd, 1_000_000);
        if !self.rng.chance(self.scenario.loss_ppm, 1_000_000) {
            self.at(self.now + after, event(twice));
        }
        if twice {
            let later = self.rng.below(20 * SECOND);
            self.at(self.now + after + later, event(false));
        }
    }

    fn runs(&self, worker: usize) -> bool {
        let found = self.machine.world.worker(&self.hands[worker].name);
        self.hands[worker].there && found.is_ok_and(|found| found.runs(self.now))
    }

    /// Work arrives, waits, is admitted, and is given up.
    fn tick(&mut self, worker: usize) {
        if !self.runs(worker) {
            return;
        }
        let (now, patience) = (self.now, self.scenario.patience);
        let lanes = self.hands[worker].lanes.len();
        for index in 0..lanes {
            let lane = &mut self.hands[worker].lanes[index];
            let arrived = lane.load.arrived(now);
            if arrived > 0 {
                lane.queue.push_back((now, arrived));
                lane.waiting += arrived;
            }
            match &mut self.tiers {
                Some(tiers) => tiers.arrive(index, arrived, now),
                None => self.measure.arrive(worker, arrived, now),
            }
        }
        let (mut waits, mut refuses) = (false, false);
        for index in 0..lanes {
            if self.hands[worker].lanes[index].waiting > 0 {
                self.serve(worker, index);
            }
            let lane = &mut self.hands[worker].lanes[index];
            let mut refused = 0;
            while let Some((since, tokens)) =
                lane.queue.front().copied().filter(|(since, _)| since + patience <= now)
            {
                lane.queue.pop_front();
                lane.waiting -= tokens;
                refused += tokens;
                match &mut self.tiers {
                    Some(tiers) => tiers.give_up(index, tokens, since, now),
                    None => self.measure.give_up(tokens, since, now),
                }
            }
            waits |= lane.waiting > 0;
            refuses |= refused > 0;
            if lane.told != lane.waiting || refused > 0 {
                lane.told = lane.waiting;
                self.want(worker, index, refused);
            }
        }
        let hand = &self.hands[worker];
        let next =
            if waits { Some(now) } else { hand.lanes.iter().filter_map(|lane| lane.load.next(now)).min() };
        if waits || refuses {
            self.poll(worker);
        }
        self.hands[worker].tick += 1;
        if let Some(next) = next {
            let number = self.hands[worker].tick;
            self.at(next.max(now + self.scenario.tick), Event::Tick(worker, number));
        }
    }

    /// Tells the client what waits in a lane, of each meter that it is charged to.
    fn want(&mut self, worker: usize, lane: usize, refused: u64) {
        let scenario = self.scenario;
        let (name, waiting) = (self.hands[worker].name.clone(), self.hands[worker].lanes[lane].waiting);
        if scenario.more.is_empty() {
            let (largest, waiting, asked) = (scenario.cost, waiting * scenario.cost, refused * scenario.cost);
            self.act(Op::Want { name, cell: lane, waiting, largest, asked });
            return;
        }
        for (cell, (_, cost)) in scenario.meters().enumerate() {
            let (name, waiting, asked) = (name.clone(), waiting * cost, refused * cost);
            self.act(Op::Want { name, cell, waiting, largest: cost, asked });
        }
    }

    /// Work of a tier takes from its own level, then from those that are borrowed for it.
    fn serve(&mut self, worker: usize, lane: usize) {
        if !self.scenario.more.is_empty() {
            return self.serve_by_all(worker);
        }
        let Ok(running) = self.machine.world.running(&self.hands[worker].name.clone()) else { return };
        let sources: Vec<usize> = running.client.sources(lane).collect();
        for source in sources {
            if self.hands[worker].lanes[lane].waiting > 0 {
                self.serve_from(worker, lane, source);
            }
        }
    }

    /// Work that is charged to several meters takes from all of them or from none.
    fn serve_by_all(&mut self, worker: usize) {
        let (scenario, now) = (self.scenario, self.now);
        let name = self.hands[worker].name.clone();
        let Ok(running) = self.machine.world.running(&name) else { return };
        let at = running.now(now);
        let mut works = self.hands[worker].waiting();
        // Of each meter, the generation where what is taken is in flight.
        let mut held = Vec::with_capacity(1 + scenario.more.len());
        for (index, (_, cost)) in scenario.meters().enumerate() {
            let Some(cell) = running.client.cell_mut(index) else { return };
            cell.refill(at);
            let level = u64::try_from(cell.level().level()).unwrap_or(0);
            let is_in_flight = cell.mint().held().is_some_and(|held| held.policy == Terms::OnRelease);
            held.push(is_in_flight.then(|| cell.level().generation()));
            works = works.min(level / cost);
        }
        if works == 0 {
            return;
        }
        if scenario.rolled_back_ppm > 0 && self.rng.chance(scenario.rolled_back_ppm, 1_000_000) {
            return self.take_in_vain(worker, works);
        }
        for (cell, (_, cost)) in scenario.meters().enumerate() {
            let (name, tokens) = (name.clone(), works * cost);
            // A lease may have ended between the meters: then nothing is admitted, and what was taken goes back.
            let spend = Op::Spend { name, cell, tokens: Some(tokens), pause: Span::ZERO };
            if !matches!(self.act(spend), Done::Admitted(taken) if taken == tokens) {
                for (cell, (_, cost)) in scenario.meters().enumerate().take(cell) {
                    self.put_back(worker, cell, works * cost, now);
                }
                return;
            }
        }
        self.measure.admit(worker, works, now);
        for (cell, ((_, cost), generation)) in scenario.meters().zip(held).enumerate() {
            if let Some(generation) = generation {
                self.begin(worker, cell, works * cost, generation);
            }
        }
        let hand = &mut self.hands[worker];
        hand.admitted_at = now;
        let Some(lane) = hand.lanes.first_mut() else { return };
        lane.waiting -= works;
        let mut left = works;
        while let Some((_, works)) = lane.queue.front_mut().filter(|_| left > 0) {
            let part = (*works).min(left);
            *works -= part;
            left -= part;
            if *works == 0 {
                lane.queue.pop_front();
            }
        }
    }

    fn serve_from(&mut self, worker: usize, lane: usize, source: usize) {
        let name = self.hands[worker].name.clone();
        let now = self.now;
        let Ok(running) = self.machine.world.running(&name) else { return };
        let at = running.now(now);
        let Some(cell) = running.client.cell_mut(source) else { return };
        cell.refill(at);
        let level = u64::try_from(cell.level().level()).unwrap_or(0);
        let generation = cell.level().generation();
        let is_in_flight = cell.mint().held().is_some_and(|held| held.policy == Terms::OnRelease);
        let tier = cell.key().tier.clone();
        let tokens = level.min(self.hands[worker].lanes[lane].waiting);
        if tokens == 0 {
            return;
        }
        let spend = Op::Spend { name, cell: source, tokens: Some(tokens), pause: Span::ZERO };
        let Done::Admitted(mut left) = self.act(spend) else { return };
        self.measure.admit(worker, left, now);
        if is_in_flight {
            self.begin(worker, source, left, generation);
        }
        let hand = &mut self.hands[worker];
        hand.admitted_at = now;
        let queue = &mut hand.lanes[lane];
        queue.waiting -= left;
        while let Some((since, tokens)) = queue.queue.front_mut().filter(|_| left > 0) {
            let part = (*tokens).min(left);
            *tokens -= part;
            left -= part;
            match &mut self.tiers {
                Some(tiers) => tiers.admit(lane, &tier, part, *since, now),
                None => self.measure.waited(part, now - *since),
            }
            if *tokens == 0 {
                queue.queue.pop_front();
            }
        }
    }

    /// Takes from some of the meters, finds that another one lacks something by now, and puts back what was taken: at once, or after
    /// a pause in which there may be minted, or leases end.
    fn take_in_vain(&mut self, worker: usize, works: u64) {
        let now = self.now;
        let most = u64::try_from(self.scenario.more.len()).unwrap_or(0);
        let count = usize::try_from(1 + self.rng.below(most.max(1))).unwrap_or(1);
        // A pause holds up what others wait for: only where all goes wrong.
        let pause =
            if self.scenario.odd_ppm > 0 && self.rng.chance(1, 50) { self.rng.below(2 * SECOND) } else { 0 };
        for (cell, (_, cost)) in self.scenario.meters().enumerate().take(count) {
            let (name, tokens) = (self.hands[worker].name.clone(), works * cost);
            let spend = Op::Spend { name, cell, tokens: Some(tokens), pause: Span::ZERO };
            if matches!(self.act(spend), Done::Admitted(taken) if taken == tokens) {
                if pause == 0 {
                    self.put_back(worker, cell, tokens, now);
                } else {
                    let life = self.hands[worker].life;
                    self.at(now + pause, Event::Back { worker, life, cell, tokens, charged: now });
                }
            }
        }
    }

    fn put_back(&mut self, worker: usize, cell: usize, tokens: u64, charged: u64) {
        let name = self.hands[worker].name.clone();
        self.act(Op::Refund { name, cell, tokens, charged });
    }

    /// Work begins, in pieces that end at different times.
    fn begin(&mut self, worker: usize, cell: usize, tokens: u64, generation: u32) {
        const PIECES: u64 = 8;
        let ((least, most), life) = (self.scenario.work, self.hands[worker].life);
        let mut left = tokens;
        while left > 0 {
            let part = left.min(tokens.div_ceil(PIECES));
            let takes = least + self.rng.below(most - least + 1);
            let from = self.now;
            self.at(self.now + takes, Event::End { worker, cell, life, from, tokens: part, generation });
            left -= part;
        }
    }

    fn poll(&mut self, worker: usize) {
        if !self.runs(worker) {
            return;
        }
        // After sending, the second poll says how long to wait for the answer.
        for _ in 0..2 {
            let name = self.hands[worker].name.clone();
            match self.act(Op::Ask { name }) {
                Done::Sent(seq) => {
                    self.messages += 1;
                    self.send(|keep| Event::Up(worker, seq, keep));
                }
                Done::Later(wait) => {
                    self.steps.pop();
                    self.hands[worker].poll += 1;
                    let number = self.hands[worker].poll;
                    self.at(self.now + wait.0.max(1), Event::Poll(worker, number));
                    return;
                }
                _ => return,
            }
        }
    }

    fn happen(&mut self, index: usize) {
        let lease = counted(self.scenario.config.lease).0;
        let scenario = self.scenario;
        match &scenario.happenings[index].1 {
            Happening::Join(worker) => self.join(*worker),
            Happening::Leave(worker) => {
                let name = self.hands[*worker].name.clone();
                self.act(Op::Revoke { name: name.clone() });
                self.gone(*worker);
                let seq = self.machine.world.worker(&name).map_or(0, |worker| worker.last_seq);
                let worker = *worker;
                self.send(|keep| Event::Up(worker, seq, keep));
            }
            Happening::Crash(worker) => {
                let name = self.hands[*worker].name.clone();
                self.act(Op::Crash { name });
                self.gone(*worker);
                self.disturb(self.now + lease, Trouble::Death);
            }
            Happening::Pause(worker) => {
                let name = self.hands[*worker].name.clone();
                self.act(Op::Pause { name });
                self.disturb(self.now + lease, Trouble::Other);
                self.measure.interrupt(*worker);
            }
            Happening::Resume(worker) => {
                let name = self.hands[*worker].name.clone();
                self.act(Op::Resume { name });
                self.measure.interrupt(*worker);
                if let Some(tiers) = &mut self.tiers {
                    tiers.disturb(self.now, self.now + lease, Trouble::Other);
                }
                self.wake(*worker);
            }
            Happening::LedgerUp(up) => {
                self.act(Op::LedgerUp(*up));
                if let Some(tiers) = self.tiers.as_mut().filter(|_| !*up) {
                    tiers.disturb(self.now, self.now + 2 * lease, Trouble::Other);
                }
                self.disturb(self.now + SECOND, Trouble::Other);
            }
            Happening::Amnesia => {
                self.act(Op::Amnesia);
                self.disturb(self.now + counted(tollgate_core::limit::LEASE_MAX).0 + lease, Trouble::Other);
            }
            Happening::Snapshot => drop(self.act(Op::Snapshot)),
            Happening::Reset => {
                self.act(Op::Reset);
                self.disturb(self.now + counted(tollgate_core::limit::LEASE_MAX).0 + lease, Trouble::Other);
            }
            Happening::Load(worker, load) => {
                // What has arrived until now has arrived.
                self.tick(*worker);
                let mut load = load.clone();
                load.arrived(self.now);
                self.hands[*worker].lanes[0].load = load;
                self.wake(*worker);
            }
            Happening::Rate { rate, over } => {
                let ledger_now = self.machine.world.ledger_time();
                let mut cells = self.machine.world.config().cells.clone();
                for cell in &mut cells {
                    cell.rate = cell.rate.ramp_to(*rate, ledger_now, *over);
                }
                self.act(Op::Configure { cells, version: None });
                let value = rate.micro_per_second();
                self.measure.limit.rate.change(self.now, self.now + over.0, value);
                self.disturb(self.now + over.0 + lease, Trouble::Other);
            }
            Happening::Capacity { tokens, over } => {
                let ledger_now = self.machine.world.ledger_time();
                let mut cells = self.machine.world.config().cells.clone();
                for cell in &mut cells {
                    cell.burst = cell.burst.ramp_to(*tokens, ledger_now, *over);
                }
                self.act(Op::Configure { cells, version: None });
                self.measure.limit.burst.change(self.now, self.now + over.0, *tokens);
                self.disturb(self.now + over.0 + lease, Trouble::Other);
            }
            Happening::Cells(cells) => {
                if let Some(tiers) = &mut self.tiers {
                    tiers.reconfigure(cells);
                }
                self.act(Op::Configure { cells: cells.clone(), version: None });
                self.disturb(self.now + 2 * lease, Trouble::Change);
            }
            Happening::Policy(policy) => {
                let mut cells = self.machine.world.config().cells.clone();
                for cell in &mut cells {
                    cell.policy = policy.clone();
                }
                self.act(Op::Configure { cells, version: None });
                self.disturb(self.now + 3 * lease, Trouble::Other);
            }
        }
    }

    fn disturb(&mut self, until: u64, trouble: Trouble) {
        self.measure.disturb(until);
        if let Some(tiers) = &mut self.tiers {
            tiers.disturb(self.now, until, trouble);
        }
    }

    fn join(&mut self, worker: usize) {
        let name = self.hands[worker].name.clone();
        if self.machine.world.worker(&name).is_ok_and(|worker| worker.state == State::Crashed) {
            self.act(Op::Restart { name });
        } else {
            let (ppm, wall) = if self.scenario.drift {
                let ppm = i64::try_from(self.rng.below(2_001)).unwrap_or(0) - 1_000;
                (ppm, i64::try_from(self.rng.below(3_600 * SECOND)).unwrap_or(0))
            } else {
                (0, 0)
            };
            self.act(Op::AddWorker { name, ppm, wall });
        }
        let now = self.now;
        let hand = &mut self.hands[worker];
        hand.life += 1;
        hand.there = true;
        for lane in &mut hand.lanes {
            lane.load.arrived(now);
        }
        hand.admitted_at = now;
        self.worker_time += self.scenario.length - now;
        self.measure.interrupt(worker);
        self.wake(worker);
    }

    fn gone(&mut self, worker: usize) {
        let hand = &mut self.hands[worker];
        hand.there = false;
        for lane in &mut hand.lanes {
            lane.queue.clear();
            (lane.waiting, lane.told) = (0, 0);
        }
        self.worker_time -= self.scenario.length - self.now;
        self.measure.interrupt(worker);
    }

    fn wake(&mut self, worker: usize) {
        self.tick(worker);
        self.poll(worker);
    }

    /// Whoever has waited for a long time at the end, while others were served, has been lost.
    fn look_for_the_starving(&mut self) {
        let calm_since = self.scenario.happenings.iter().map(|(at, _)| *at).max().unwrap_or(0);
        let lease = counted(self.scenario.config.lease).0;
        let since = self.now.saturating_sub(self.scenario.served_within.max(3 * lease));
        if since < calm_since || self.machine.found.is_some() {
            return;
        }
        for worker in 0..self.hands.len() {
            let hand = &self.hands[worker];
            if self.runs(worker) && hand.waiting() > 0 && hand.admitted_at < since {
                let what = format!("{} has got nothing since {} s", hand.name, hand.admitted_at / SECOND);
                self.machine.note(Kind::Starved, what);
                return;
            }
        }
    }

    fn sample(&mut self) {
        let ledger_now = self.machine.world.ledger_time();
        let key = &self.scenario.config.key;
        let share = |hand: &Hand| {
            let worker = self.machine.world.worker(&hand.name).ok()?;
            let cell = worker.client.cells().iter().find(|cell| cell.key() == key)?;
            let alive = hand.there && cell.mint().is_alive(worker.now(self.now));
            Some(cell.mint().held().filter(|_| alive).map_or(0, |held| held.share.ppb()))
        };
        let shares = self.hands.iter().map(|hand| share(hand).unwrap_or(0)).collect();
        let rate = self
            .machine
            .world
            .config()
            .cells
            .first()
            .map_or(0, |cell| cell.rate.at(ledger_now).micro_per_second());
        let admitted = self.measure.figures().admitted;
        self.samples.push(Sample {
            at: self.now,
            rate_micro: rate,
            admitted: admitted - self.sampled,
            shares,
        });
        self.sampled = admitted;
        self.at(self.now + SECOND, Event::Sample);
    }
}
