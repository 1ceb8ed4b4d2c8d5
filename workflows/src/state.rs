//! What the coordinator carries through continue-as-new: the ledger's state as protobuf, and back.
//!
//! Everything that the ledger knows is kept, exactly: `decode(encode(state)) == state` is a test. Amounts in leases and
//! reports are whole thousandths of a token by construction, so they are stored as such.

mod usual;

use crate::limits::{
    self, burst_curve, burst_curve_of, policy, policy_of, priority, priority_of, rate_curve, rate_curve_of,
    version, version_of,
};
use crate::proto as pb;
use prost::Message;
use std::collections::BTreeMap;
use tollgate_core::curve::RateCurve;
use tollgate_core::digest::Digest;
use tollgate_core::ledger::alloc_share::Kind;
use tollgate_core::ledger::cell::{Cell, Holder, Holding, Lease, Place};
use tollgate_core::ledger::conserved::Away;
use tollgate_core::ledger::escrow::Kept;
use tollgate_core::ledger::explain::{Room, Unserved, Window};
use tollgate_core::ledger::strict::{Ended, GrantRecord, Stage, Strict};
use tollgate_core::ledger::{Settings, Standing, State, StoredCell, StoredReply, Worker};
use tollgate_core::limit::{CellConfig, CellKey, Initial};
use tollgate_core::message::{CellOutcome, Incarnation, LeaseTerms};
use tollgate_core::tier::Class;
use tollgate_core::units::{Amount, LedgerTime, Share, Span};
use usual::Last;

/// Continue-as-new warns above this.
pub const STATE_BYTES_WARN: usize = 512 * 1024;

/// Why bytes are no state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Not protobuf of this message.
    #[error("not a coordinator's state: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A part is missing or refers to nothing.
    #[error("{0} is missing or refers to nothing")]
    Broken(&'static str),
}

/// The bytes of a coordinator's state.
pub fn encode(coordinator: &pb::Coordinator) -> Vec<u8> {
    coordinator.encode_to_vec()
}

/// A coordinator's state from its bytes.
///
/// # Errors
/// [`StateError`] when they are something else.
pub fn decode(bytes: &[u8]) -> Result<pb::Coordinator, StateError> {
    Ok(pb::Coordinator::decode(bytes)?)
}

/// Writes a ledger's state.
pub fn ledger(state: &State) -> pb::Ledger {
    Writer::new(state).ledger()
}

/// Reads a ledger's state.
///
/// # Errors
/// [`StateError::Broken`] when a part is missing.
pub fn ledger_of(ledger: pb::Ledger) -> Result<State, StateError> {
    Reader { now: ledger.now_us, brief: ledger.brief }.ledger(ledger)
}

struct Writer<'a> {
    state: &'a State,
    cells: BTreeMap<&'a CellKey, u32>,
    workers: BTreeMap<Incarnation, u32>,
}

impl<'a> Writer<'a> {
    fn new(state: &'a State) -> Writer<'a> {
        let holders =
            state.cells.values().flat_map(|cell| cell.holders.keys().map(|holder| holder.incarnation));
        let mut all: Vec<Incarnation> = state.workers.keys().copied().chain(holders).collect();
        all.sort_unstable();
        all.dedup();
        let index = |position: usize| u32::try_from(position).unwrap_or(u32::MAX);
        Writer {
            state,
            cells: state.cells.keys().enumerate().map(|(position, key)| (key, index(position))).collect(),
            workers: all.into_iter().enumerate().map(|(position, id)| (id, index(position))).collect(),
        }
    }

    fn ledger(&self) -> pb::Ledger {
        let state = self.state;
        pb::Ledger {
            epoch: state.epoch,
            now_us: state.now.0,
            recovering_until_us: state.recovering_until.map(|until| until.0),
            version: Some(version(state.version)),
            target_rate_milli: state.settings.target_rate_milli,
            cells: state.cells.values().map(|cell| self.cell(cell)).collect(),
            workers: self.workers.keys().map(|incarnation| self.worker(*incarnation)).collect(),
            records: state.records.iter().map(|record| self.record(record)).collect(),
            sweep_at_us: state.sweep_at.0,
            ignored_configs: state.ignored_configs,
            ignored_version: state.ignored_version.map(version),
            digest: state.digest.0,
            brief: true,
        }
    }

    fn relative(&self, time: LedgerTime) -> i64 {
        relative(self.state.now, time)
    }

    fn cell(&self, cell: &Cell) -> pb::Cell {
        let config = &cell.config;
        let mut next = 0;
        let holding = |(holder, holding): (&Holder, &Holding)| self.holding(cell, holder, holding, &mut next);
        pb::Cell {
            limit: config.key.limit.clone(),
            meter: config.key.meter.clone(),
            tier: config.key.tier.clone(),
            rate: Some(rate_curve(config.rate)),
            burst: Some(burst_curve(config.burst)),
            lease_us: config.lease.0,
            fresh: config.fresh,
            initially_empty: config.initial == Initial::Empty,
            queue: config.queue,
            conduct: limits::conduct(config.conduct),
            kept: cell.kept.known.map(limits::escrow),
            told: cell.kept.told.map(limits::escrow),
            told_in_us: self.relative(cell.kept.told_at),
            free: Some(amount(cell.free)),
            at_us: cell.at.0,
            recovering_until_us: cell.recovering_until.map(|until| until.0),
            removed: cell.removed,
            kind: match cell.kind {
                Kind::Shares => 0,
                Kind::Tokens => 1,
                Kind::Turns => 2,
                Kind::Permits => 3,
            },
            holdings: cell.holders.iter().map(holding).collect(),
            strict: cell.strict.iter().map(|(id, strict)| self.strict(id, strict)).collect(),
            next_place: cell.next_place,
            used: cell.used,
            policy: policy(&config.policy),
            short_until_in_us: self.relative(cell.short_until),
            short_ppb: cell.short.ppb(),
            priority: priority(config.priority),
            behind: (cell.behind != Amount::ZERO).then(|| amount(cell.behind)),
            closed: cell.closed,
            away: cell.away.groups().map(away).collect(),
            room: Some(pb::Room {
                from_in_us: self.relative(cell.room.from),
                used: cell.room.used,
                last: cell.room.last.map(|window| pb::Window {
                    from_in_us: self.relative(window.from),
                    used_micro: window.used_micro,
                    left_room: window.left_room,
                }),
            }),
        }
    }

    /// `next` is the index after that of the holding before.
    fn holding(&self, cell: &Cell, holder: &Holder, holding: &Holding, next: &mut u32) -> pb::Holding {
        let index = self.workers.get(&holder.incarnation).copied().unwrap_or(u32::MAX);
        let mut written = pb::Holding {
            worker: index,
            borrowed: holder.borrowed,
            acked: holding.acked.map(|lease| self.lease(lease)),
            pending: holding.pending.map(|lease| self.lease(lease)),
            demand_micro: holding.demand,
            waiting: holding.waiting,
            // Most work costs one.
            largest: if holding.largest == 1 { 0 } else { holding.largest },
            held_milli: holding.held.milli_floor(),
            debt_milli: holding.debt.milli_floor(),
            used: holding.used,
            returned_milli: holding.returned.milli_floor(),
            seen_in_us: self.relative(holding.seen),
            waiting_since_in_us: holding.waiting_since.map(|since| self.relative(since)),
            place: holding.place.map(|place| self.place(place)),
            turn_until_in_us: holding.turn_until.map(|until| self.relative(until)),
            out: holding.out,
            class: class(holding.class),
            unserved: holding.unserved.map(|unserved| pb::Unserved {
                since_in_us: self.relative(unserved.since),
                until_used: unserved.until_used,
            }),
            held_secs: holding
                .held_since
                .map(|since| whole_secs(self.state.now.0).saturating_sub(whole_secs(since.0))),
            unlike: 0,
        };
        let last = Last::in_state(self.state, holder.incarnation);
        usual::leave_out(&mut written, holding, &cell.config, last, *next);
        *next = index.saturating_add(1);
        written
    }

    fn lease(&self, lease: Lease) -> pb::Lease {
        pb::Lease {
            seq: lease.seq,
            share_ppb: lease.share.ppb(),
            cap_milli: lease.cap.milli_floor(),
            tokens_milli: lease.tokens.milli_floor(),
            expires_in_us: self.relative(lease.expires),
        }
    }

    fn place(&self, place: Place) -> pb::Place {
        pb::Place { number: place.number, wants: place.wants, until_in_us: self.relative(place.until) }
    }

    fn strict(&self, id: &str, strict: &Strict) -> pb::Strict {
        let stage = match strict.stage {
            Stage::Waiting(place) => pb::strict::Stage::Waiting(self.place(place)),
            Stage::Granted { at, expires } => pb::strict::Stage::Granted(pb::Granted {
                at_in_us: self.relative(at),
                expires_in_us: self.relative(expires),
            }),
            Stage::Over { how, forget } => {
                pb::strict::Stage::Over(pb::Over { how: ended(how), forget_in_us: self.relative(forget) })
            }
        };
        pb::Strict {
            id: id.to_owned(),
            client: strict.client.clone(),
            cost: strict.cost,
            lease_us: strict.lease.0,
            auto: strict.auto,
            since_in_us: self.relative(strict.since),
            stage: Some(stage),
        }
    }

    /// The index of a cell, or its key when the cell is gone.
    fn cell_of(&self, key: &CellKey) -> (u32, Option<pb::CellKey>) {
        match self.cells.get(key) {
            Some(index) => (*index, None),
            None => {
                let key = pb::CellKey {
                    limit: key.limit.clone(),
                    meter: key.meter.clone(),
                    tier: key.tier.clone(),
                };
                (u32::MAX, Some(key))
            }
        }
    }

    fn record(&self, record: &GrantRecord) -> pb::GrantRecord {
        let (cell, key) = self.cell_of(&record.key);
        pb::GrantRecord {
            id: record.id.clone(),
            client: record.client.clone(),
            cell,
            key,
            cost: record.cost,
            how: ended(record.how),
            at_us: record.at.0,
        }
    }

    fn worker(&self, incarnation: Incarnation) -> pb::Worker {
        let id = incarnation.0.to_be_bytes().to_vec();
        let Some(worker) = self.state.workers.get(&incarnation) else {
            return pb::Worker { incarnation: id, standing: GONE, ..pb::Worker::default() };
        };
        pb::Worker {
            incarnation: id,
            name: worker.name.clone(),
            seq: worker.seq,
            content: worker.content,
            standing: match worker.standing {
                Standing::Live => 0,
                Standing::Evicted => 1,
                Standing::Revoked => 2,
                Standing::Burned => 3,
            },
            seen_in_us: self.relative(worker.seen),
            reply: worker.reply.as_ref().map(|reply| self.reply(incarnation, reply)),
        }
    }

    fn reply(&self, incarnation: Incarnation, reply: &StoredReply) -> pb::StoredReply {
        let mut cells: Vec<pb::StoredCell> =
            reply.cells.iter().map(|cell| self.stored(incarnation, reply.at, cell)).collect();
        let mut as_pending = Vec::new();
        if cells.iter().all(|cell| cell.as_pending) {
            as_pending = cells.drain(..).map(|cell| cell.cell * 2 + u32::from(cell.borrowed)).collect();
        }
        pb::StoredReply {
            at_in_us: self.relative(reply.at),
            heartbeat_us: reply.heartbeat.0,
            gap_us: reply.gap.0,
            recovering_until_us: reply.recovering_until.map(|until| until.0),
            evicted: reply.evicted,
            digest: reply.digest.0,
            cells,
            as_pending,
        }
    }

    fn stored(&self, incarnation: Incarnation, at: LedgerTime, stored: &StoredCell) -> pb::StoredCell {
        let (cell, key) = self.cell_of(&stored.key);
        let usual = usual_outcome(&self.state.cells, incarnation, at, &stored.key, stored.borrowed);
        if usual.as_ref() == Some(&stored.outcome) {
            return pb::StoredCell { cell, key, borrowed: stored.borrowed, terms: None, as_pending: true };
        }
        let current = self.state.cells.get(&stored.key).map(|cell| cell.config.rate);
        let terms = match &stored.outcome {
            CellOutcome::Unknown => None,
            CellOutcome::Lease(terms) => Some(pb::Terms {
                share_ppb: terms.share.ppb(),
                cap_milli: terms.cap.milli_floor(),
                tokens_milli: terms.tokens.milli_floor(),
                duration_us: terms.duration.0,
                rate: (current != Some(terms.rate)).then(|| rate_curve(terms.rate)),
                burst: terms.burst,
                confirm: terms.confirm,
                due_us: terms.due.map(|due| due.0),
                policy: limits::terms(terms.policy),
                scarce: terms.scarce,
                queue: terms.queue,
                conduct: limits::conduct(terms.conduct),
            }),
        };
        pb::StoredCell { cell, key, borrowed: stored.borrowed, terms, as_pending: false }
    }
}

/// What a worker was usually answered of a cell: its pending lease there.
fn usual_outcome(
    cells: &BTreeMap<CellKey, Cell>,
    incarnation: Incarnation,
    at: LedgerTime,
    key: &CellKey,
    borrowed: bool,
) -> Option<CellOutcome> {
    let cell = cells.get(key)?;
    let pending = cell.holders.get(&Holder { incarnation, borrowed })?.pending?;
    Some(CellOutcome::Lease(usual::answer(cell, pending, at)))
}

/// The standing of somebody who is no worker any more.
const GONE: u32 = 4;

fn whole_secs(us: u64) -> u64 {
    us / 1_000_000
}

fn relative(now: LedgerTime, time: LedgerTime) -> i64 {
    i64::try_from(i128::from(time.0) - i128::from(now.0)).unwrap_or(i64::MAX)
}

fn amount(amount: Amount) -> pb::Amount {
    pb::Amount {
        whole: i64::try_from(amount.whole()).unwrap_or(if amount < Amount::ZERO {
            i64::MIN
        } else {
            i64::MAX
        }),
        fraction: u64::try_from(amount.fraction().0).unwrap_or(0),
    }
}

fn away((until, tokens): (LedgerTime, Amount)) -> pb::Away {
    pb::Away { until_us: until.0, tokens_milli: tokens.milli_floor() }
}

fn away_of(groups: &[pb::Away]) -> Away {
    let group = |group: &pb::Away| (LedgerTime(group.until_us), Amount::from_milli(group.tokens_milli));
    groups.iter().map(group).collect()
}

fn ended(how: Ended) -> u32 {
    match how {
        Ended::Used => 0,
        Ended::Released => 1,
        Ended::Expired => 2,
        Ended::Abandoned => 3,
        Ended::CostAboveBurst => 4,
    }
}

fn ended_of(how: u32) -> Ended {
    match how {
        0 => Ended::Used,
        1 => Ended::Released,
        2 => Ended::Expired,
        4 => Ended::CostAboveBurst,
        _ => Ended::Abandoned,
    }
}

struct Reader {
    now: u64,
    /// Whether what follows from something else isn't written.
    brief: bool,
}

impl Reader {
    fn ledger(&self, ledger: pb::Ledger) -> Result<State, StateError> {
        let ids: Vec<Incarnation> = ledger.workers.iter().map(incarnation).collect::<Result<_, _>>()?;
        let last = |worker: &pb::Worker| Last { seq: worker.seq, seen: self.time(worker.seen_in_us) };
        let known: Vec<(Incarnation, Last)> =
            ids.iter().copied().zip(ledger.workers.iter().map(last)).collect();
        let mut cells = BTreeMap::new();
        for cell in ledger.cells {
            let cell = self.cell(cell, &known)?;
            cells.insert(cell.config.key.clone(), cell);
        }
        let keys: Vec<&CellKey> = cells.keys().collect();
        let mut workers = BTreeMap::new();
        for (id, worker) in ids.iter().zip(ledger.workers) {
            if worker.standing != GONE {
                workers.insert(*id, self.worker(*id, worker, &keys, &cells)?);
            }
        }
        let records =
            ledger.records.into_iter().map(|record| self.record(record, &keys)).collect::<Result<_, _>>()?;
        Ok(State {
            epoch: ledger.epoch,
            now: LedgerTime(ledger.now_us),
            recovering_until: ledger.recovering_until_us.map(LedgerTime),
            version: version_of(ledger.version.ok_or(StateError::Broken("version"))?),
            settings: Settings { target_rate_milli: ledger.target_rate_milli },
            workers,
            records,
            cells,
            sweep_at: LedgerTime(ledger.sweep_at_us),
            ignored_configs: ledger.ignored_configs,
            ignored_version: ledger.ignored_version.map(version_of),
            digest: Digest(ledger.digest),
        })
    }

    fn time(&self, relative: i64) -> LedgerTime {
        LedgerTime(self.now.saturating_add_signed(relative))
    }

    fn cell(&self, cell: pb::Cell, known: &[(Incarnation, Last)]) -> Result<Cell, StateError> {
        let config = CellConfig {
            key: CellKey { limit: cell.limit, meter: cell.meter, tier: cell.tier },
            rate: rate_curve_of(cell.rate.ok_or(StateError::Broken("rate"))?)?,
            burst: burst_curve_of(cell.burst.ok_or(StateError::Broken("burst"))?),
            policy: policy_of(cell.policy),
            lease: Span(cell.lease_us),
            priority: priority_of(cell.priority)?,
            fresh: cell.fresh,
            initial: limits::initial_of(cell.initially_empty),
            queue: cell.queue,
            conduct: limits::conduct_of(cell.conduct)?,
        };
        let (mut holders, mut next) = (Vec::with_capacity(cell.holdings.len()), 0);
        for holding in cell.holdings {
            let (same, index) =
                if self.brief { usual::left_out(&holding, next) } else { (0, holding.worker) };
            next = index.saturating_add(1);
            let position = usize::try_from(index).unwrap_or(usize::MAX);
            let (incarnation, last) = *known.get(position).ok_or(StateError::Broken("a holding's worker"))?;
            let holder = Holder { incarnation, borrowed: holding.borrowed };
            let mut holding = self.holding(holding)?;
            usual::put_back(&mut holding, same, &config, last);
            holders.push((holder, holding));
        }
        let mut strict = BTreeMap::new();
        for entry in cell.strict {
            strict.insert(entry.id.clone(), self.strict(entry)?);
        }
        Ok(Cell {
            config,
            free: amount_of(cell.free.ok_or(StateError::Broken("free"))?),
            at: LedgerTime(cell.at_us),
            recovering_until: cell.recovering_until_us.map(LedgerTime),
            short_until: self.time(cell.short_until_in_us),
            short: share_of(cell.short_ppb)?,
            behind: cell.behind.map_or(Amount::ZERO, amount_of),
            closed: cell.closed,
            away: away_of(&cell.away),
            kept: Kept {
                known: cell.kept.map(limits::escrow_of),
                told: cell.told.map(limits::escrow_of),
                told_at: self.time(cell.told_in_us),
            },
            removed: cell.removed,
            kind: match cell.kind {
                0 => Kind::Shares,
                1 => Kind::Tokens,
                2 => Kind::Turns,
                3 => Kind::Permits,
                _ => return Err(StateError::Broken("kind")),
            },
            holders: holders.into_iter().collect(),
            strict,
            next_place: cell.next_place,
            used: cell.used,
            room: cell.room.map_or(Room::begin(LedgerTime(self.now), cell.used), |room| self.room(room)),
        })
    }

    fn room(&self, room: pb::Room) -> Room {
        let window = |window: pb::Window| Window {
            from: self.time(window.from_in_us),
            used_micro: window.used_micro,
            left_room: window.left_room,
        };
        Room { from: self.time(room.from_in_us), used: room.used, last: room.last.map(window) }
    }

    fn holding(&self, holding: pb::Holding) -> Result<Holding, StateError> {
        let lease = |lease: Option<pb::Lease>| lease.map(|lease| self.lease(lease)).transpose();
        Ok(Holding {
            acked: lease(holding.acked)?,
            pending: lease(holding.pending)?,
            demand: holding.demand_micro,
            waiting: holding.waiting,
            largest: holding.largest.max(1),
            held: Amount::from_milli(holding.held_milli),
            out: holding.out,
            class: class_of(holding.class, holding.borrowed),
            debt: Amount::from_milli(holding.debt_milli),
            used: holding.used,
            returned: Amount::from_milli(holding.returned_milli),
            seen: self.time(holding.seen_in_us),
            waiting_since: holding.waiting_since_in_us.map(|since| self.time(since)),
            place: holding.place.map(|place| self.place(place)),
            turn_until: holding.turn_until_in_us.map(|until| self.time(until)),
            unserved: holding.unserved.map(|unserved| Unserved {
                since: self.time(unserved.since_in_us),
                until_used: unserved.until_used,
            }),
            held_since: holding
                .held_secs
                .map(|secs| LedgerTime(whole_secs(self.now).saturating_sub(secs).saturating_mul(1_000_000))),
        })
    }

    fn lease(&self, lease: pb::Lease) -> Result<Lease, StateError> {
        Ok(Lease {
            seq: lease.seq,
            share: share_of(lease.share_ppb)?,
            cap: Amount::from_milli(lease.cap_milli),
            tokens: Amount::from_milli(lease.tokens_milli),
            expires: self.time(lease.expires_in_us),
        })
    }

    fn place(&self, place: pb::Place) -> Place {
        Place { number: place.number, wants: place.wants, until: self.time(place.until_in_us) }
    }

    fn strict(&self, strict: pb::Strict) -> Result<Strict, StateError> {
        let stage = match strict.stage.ok_or(StateError::Broken("a strict permit's stage"))? {
            pb::strict::Stage::Waiting(place) => Stage::Waiting(self.place(place)),
            pb::strict::Stage::Granted(granted) => {
                Stage::Granted { at: self.time(granted.at_in_us), expires: self.time(granted.expires_in_us) }
            }
            pb::strict::Stage::Over(over) => {
                Stage::Over { how: ended_of(over.how), forget: self.time(over.forget_in_us) }
            }
        };
        Ok(Strict {
            client: strict.client,
            cost: strict.cost,
            lease: Span(strict.lease_us),
            auto: strict.auto,
            since: self.time(strict.since_in_us),
            stage,
        })
    }

    fn record(&self, record: pb::GrantRecord, keys: &[&CellKey]) -> Result<GrantRecord, StateError> {
        Ok(GrantRecord {
            id: record.id,
            client: record.client,
            key: key_of(record.cell, record.key, keys)?,
            cost: record.cost,
            how: ended_of(record.how),
            at: LedgerTime(record.at_us),
        })
    }

    fn worker(
        &self,
        incarnation: Incarnation,
        worker: pb::Worker,
        keys: &[&CellKey],
        cells: &BTreeMap<CellKey, Cell>,
    ) -> Result<Worker, StateError> {
        Ok(Worker {
            name: worker.name,
            seq: worker.seq,
            content: worker.content,
            reply: worker.reply.map(|reply| self.reply(incarnation, reply, keys, cells)).transpose()?,
            standing: match worker.standing {
                0 => Standing::Live,
                1 => Standing::Evicted,
                2 => Standing::Revoked,
                _ => Standing::Burned,
            },
            seen: self.time(worker.seen_in_us),
        })
    }

    fn reply(
        &self,
        incarnation: Incarnation,
        reply: pb::StoredReply,
        keys: &[&CellKey],
        cells: &BTreeMap<CellKey, Cell>,
    ) -> Result<StoredReply, StateError> {
        let at = self.time(reply.at_in_us);
        let stored = |stored: pb::StoredCell| -> Result<StoredCell, StateError> {
            let key = key_of(stored.cell, stored.key, keys)?;
            let outcome = match stored.terms {
                None if stored.as_pending => usual_outcome(cells, incarnation, at, &key, stored.borrowed)
                    .ok_or(StateError::Broken("a pending lease"))?,
                None => CellOutcome::Unknown,
                Some(terms) => {
                    let current = cells.get(&key).map(|cell| cell.config.rate);
                    CellOutcome::Lease(terms_of(terms, current)?)
                }
            };
            Ok(StoredCell { key, borrowed: stored.borrowed, outcome })
        };
        let as_pending = |number: &u32| pb::StoredCell {
            cell: number / 2,
            borrowed: number % 2 == 1,
            as_pending: true,
            ..pb::StoredCell::default()
        };
        let all: Vec<pb::StoredCell> = reply.as_pending.iter().map(as_pending).collect();
        Ok(StoredReply {
            at,
            heartbeat: Span(reply.heartbeat_us),
            gap: Span(reply.gap_us),
            recovering_until: reply.recovering_until_us.map(LedgerTime),
            evicted: reply.evicted,
            digest: Digest(reply.digest),
            cells: reply.cells.into_iter().chain(all).map(stored).collect::<Result<_, _>>()?,
        })
    }
}

fn incarnation(worker: &pb::Worker) -> Result<Incarnation, StateError> {
    let bytes = <[u8; 16]>::try_from(worker.incarnation.as_slice());
    bytes
        .map(|bytes| Incarnation(u128::from_be_bytes(bytes)))
        .map_err(|_| StateError::Broken("an incarnation"))
}

fn key_of(cell: u32, key: Option<pb::CellKey>, keys: &[&CellKey]) -> Result<CellKey, StateError> {
    if let Some(key) = key {
        return Ok(CellKey { limit: key.limit, meter: key.meter, tier: key.tier });
    }
    let position = usize::try_from(cell).unwrap_or(usize::MAX);
    keys.get(position).map(|key| (*key).clone()).ok_or(StateError::Broken("a cell"))
}

fn terms_of(terms: pb::Terms, current: Option<RateCurve>) -> Result<LeaseTerms, StateError> {
    let rate = match terms.rate {
        Some(rate) => rate_curve_of(rate)?,
        None => current.ok_or(StateError::Broken("a lease's rate"))?,
    };
    Ok(LeaseTerms {
        share: share_of(terms.share_ppb)?,
        cap: Amount::from_milli(terms.cap_milli),
        tokens: Amount::from_milli(terms.tokens_milli),
        duration: Span(terms.duration_us),
        rate,
        burst: terms.burst,
        policy: limits::terms_of(terms.policy),
        scarce: terms.scarce,
        confirm: terms.confirm,
        due: terms.due_us.map(Span),
        queue: terms.queue,
        conduct: limits::conduct_of(terms.conduct)?,
    })
}

fn share_of(ppb: u32) -> Result<Share, StateError> {
    Share::from_ppb(ppb).ok_or(StateError::Broken("a share"))
}

fn class(class: Class) -> u64 {
    match class {
        Class::Own => 0,
        Class::Barred => 1,
        Class::Borrowed(rank) => 2 + 2 * u64::from(rank),
        Class::Lent(rank) => 3 + 2 * u64::from(rank),
    }
}

fn class_of(class: u64, borrowed: bool) -> Class {
    let rank = u32::try_from((class.saturating_sub(2)) / 2).unwrap_or(u32::MAX);
    match class {
        0 if borrowed => Class::Borrowed(u32::MAX),
        0 => Class::Own,
        1 => Class::Barred,
        class if class % 2 == 0 => Class::Borrowed(rank),
        _ => Class::Lent(rank),
    }
}

fn amount_of(amount: pb::Amount) -> Amount {
    let whole = Amount::tokens(amount.whole.unsigned_abs());
    (if amount.whole < 0 { -whole } else { whole }) + Amount(i128::from(amount.fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::curve::Rate;
    use tollgate_core::ledger::strict::{Acquire, Settle};
    use tollgate_core::ledger::{Configure, Input, Ledger, Output, Start};
    use tollgate_core::limit::Version;
    use tollgate_core::message::{Acting, CellReport, LeaseName, Request};
    use tollgate_core::policy::{Calendar, CalendarUnit, Policy};
    use tollgate_core::tier::Priority;

    fn limits(n: u64) -> Input {
        let lease = Span::from_secs(15);
        let mut shared = CellConfig::constant("shared", Rate::per_second(100), 20, lease);
        shared.rate = shared.rate.ramp_to(
            Rate::new(7, Span::from_secs(3_600)),
            LedgerTime(5_000_000),
            Span::from_secs(60),
        );
        shared.burst = shared.burst.ramp_to(3, LedgerTime(5_000_000), Span::from_secs(60));
        let small = CellConfig::constant("small", Rate::new(5, Span::from_secs(86_400)), 5, lease);
        let mut cells = vec![small];
        let policies = [
            Policy::SlidingWindow { window: Span::from_secs(60) },
            Policy::FixedWindow {
                boundaries: vec![LedgerTime(1_000_000), LedgerTime(86_400_000_000)],
                calendar: Some(Calendar {
                    unit: CalendarUnit::Week,
                    time_zone: "Europe/Berlin".to_owned(),
                    tz_version: "2026f".to_owned(),
                }),
                escrow: true,
            },
            Policy::InFlight { drain: Span::from_millis(1_500) },
        ];
        for (index, policy) in policies.into_iter().enumerate() {
            let conserved =
                CellConfig::constant(&format!("conserved {index}"), Rate::per_second(1), 9, lease);
            let initial = if index == 0 { Initial::Empty } else { Initial::Full };
            cells.push(CellConfig { policy, initial, queue: Some(7), ..conserved });
        }
        if n == 1 {
            cells.push(shared);
        }
        let version = Version { run: 9, n };
        Input::Configure(Configure { version, settings: Settings { target_rate_milli: 20_000 }, cells })
    }

    fn request(worker: u128, seq: u64, acting: Option<Acting>) -> Input {
        let cell = |limit: &str| CellReport {
            key: CellKey::of(limit),
            borrowed: false,
            for_tier: None,
            acting,
            held: Amount::from_milli(1_250),
            used: seq * 3,
            returned: Amount::tokens(1),
            debt: Amount::from_milli(700),
            out: 3,
            demand: 30_000_000,
            waiting: 4,
            largest: 2,
        };
        Input::Heartbeat(Request {
            incarnation: Incarnation(u128::MAX - worker),
            seq,
            nonce: 5,
            worker: format!("worker {worker}"),
            cells: ["shared", "small", "conserved 0", "conserved 1", "conserved 2", "unknown"]
                .map(cell)
                .to_vec(),
        })
    }

    fn busy_ledger() -> Ledger {
        let mut ledger = Ledger::new(Start::First, 77, LedgerTime(1_000_000));
        assert_eq!(ledger.apply(LedgerTime(1_000_000), limits(1)), Output::Configured);
        for worker in 0..5u64 {
            ledger.apply(LedgerTime(6_000_000 + worker * 333_333), request(u128::from(worker), 1, None));
        }
        let name = LeaseName { epoch: 77, seq: 1 };
        let acting = Acting { name, share: Share::ratio_floor(1, 7), cap: Amount::from_milli(1_500) };
        ledger.apply(LedgerTime(9_000_001), request(2, 2, Some(acting)));
        for (id, cost, auto) in [("a", 1, false), ("b", 5, true), ("c", 2, true), ("d", 1, false)] {
            let acquire = Acquire {
                id: id.to_owned(),
                client: "c1".to_owned(),
                key: CellKey::of("small"),
                cost,
                lease: Span::from_secs(15),
                auto,
            };
            ledger.apply(LedgerTime(9_100_000), Input::Acquire(acquire));
        }
        let settle = Settle { id: "d".to_owned(), key: CellKey::of("small"), used: 0 };
        ledger.apply(LedgerTime(9_200_000), Input::Settle(settle));
        // It acts on nothing any more: what it had may be used.
        ledger.apply(LedgerTime(9_250_000), request(0, 2, None));
        ledger.apply(LedgerTime(9_300_000), Input::Evict(Incarnation(u128::MAX - 3)));
        ledger.apply(LedgerTime(9_400_000), limits(2));
        ledger.apply(LedgerTime(9_400_001), limits(1));
        ledger
    }

    #[test]
    fn continue_as_new_loses_nothing() {
        let ledger = busy_ledger();
        let state = ledger.state();
        assert!(
            state.cells.values().any(|cell| cell.removed)
                && state.ignored_configs == 1
                && !state.records.is_empty()
        );
        assert!(state.cells.values().filter(|cell| cell.away.total() > Amount::ZERO).count() > 1);
        let carried = pb::Coordinator { ledger: Some(super::ledger(state)), ..pb::Coordinator::default() };
        let bytes = encode(&carried);
        let back = ledger_of(decode(&bytes).unwrap().ledger.unwrap()).unwrap();
        assert_eq!(back, *state);
    }

    /// 200 workers with 20 limits of three tiers each, all in use: each lease is acknowledged, and renewed.
    #[test]
    fn the_state_of_a_large_fleet_with_tiers_is_below_half_a_mebibyte() {
        let tiers = ["high", "mid", "low"];
        let key = |limit: usize, tier: &str| CellKey {
            tier: tier.to_owned(),
            ..CellKey::of(&format!("provider/model-{limit}"))
        };
        let keys: Vec<CellKey> =
            (0..20).flat_map(|limit| tiers.iter().map(move |tier| key(limit, tier))).collect();
        let config = |key: &CellKey| {
            let rank = tiers.iter().position(|tier| *tier == key.tier).unwrap_or(0);
            let priority = Priority { rank: u32::try_from(rank).unwrap_or(0), ..Priority::default() };
            let lease = Span::from_secs(15);
            let cell = CellConfig::constant(&key.limit, Rate::per_second(20_000), 40_000, lease);
            CellConfig { key: key.clone(), priority, ..cell }
        };
        let mut now = LedgerTime(1_800_000_000_000_000);
        let mut ledger = Ledger::new(Start::First, 7, now);
        let cells = keys.iter().map(config).collect();
        let version = Version { run: now.0, n: 1 };
        let configure = Configure { version, settings: Settings::default(), cells };
        assert_eq!(ledger.apply(now, Input::Configure(configure)), Output::Configured);
        let report = |key: &CellKey, worker: u128| CellReport {
            key: key.clone(),
            borrowed: false,
            for_tier: None,
            acting: None,
            held: Amount::from_milli(1_234),
            used: 0,
            returned: Amount::ZERO,
            debt: Amount::ZERO,
            out: 0,
            demand: 50_000_000 + u64::try_from(worker).unwrap() * 10_000,
            waiting: 0,
            largest: 1,
        };
        let request = |worker: u128| Request {
            incarnation: Incarnation(u128::MAX / 201 * (worker + 1)),
            seq: 0,
            nonce: 0,
            worker: format!("host-{worker}/4711"),
            cells: keys.iter().map(|key| report(key, worker)).collect(),
        };
        let mut requests: Vec<Request> = (0..200).map(request).collect();
        for seq in 1..=6 {
            for request in &mut requests {
                now = now + Span::from_millis(10);
                request.seq = seq;
                let Output::Reply(Ok(reply)) = ledger.apply(now, Input::Heartbeat(request.clone())) else {
                    panic!("no answer");
                };
                for (report, cell) in request.cells.iter_mut().zip(&reply.cells) {
                    let CellOutcome::Lease(terms) = &cell.outcome else { panic!("no lease") };
                    let name = LeaseName { epoch: reply.epoch, seq };
                    report.acting = Some(Acting { name, share: terms.share, cap: terms.cap });
                    report.used += 700;
                }
            }
        }
        let state = ledger.state();
        let holdings: usize = state.cells.values().map(|cell| cell.holders.len()).sum();
        assert_eq!(holdings, 200 * 20 * 3);
        let carried = pb::Coordinator { ledger: Some(super::ledger(state)), ..pb::Coordinator::default() };
        let bytes = encode(&carried);
        assert_eq!(ledger_of(decode(&bytes).unwrap().ledger.unwrap()).unwrap(), *state);
        assert!(bytes.len() < 512 * 1024, "{} bytes, {} a holding", bytes.len(), bytes.len() / holdings);
    }

    #[test]
    fn a_resumed_ledger_goes_on_as_the_old_one_would() {
        let mut old = busy_ledger();
        let mut new = Ledger::resume(ledger_of(ledger(old.state())).unwrap());
        for step in 0..40u64 {
            let at = LedgerTime(10_000_000 + step * 777_777);
            let input = request(u128::from(step % 5), 3 + step, None);
            assert_eq!(old.apply(at, input.clone()), new.apply(at, input));
            assert_eq!(old.state(), new.state());
        }
    }

    #[test]
    fn broken_bytes_are_an_error() {
        assert!(decode(b"\xff\xff\xff").is_err());
        let empty = pb::Coordinator::default();
        assert!(empty.ledger.is_none());
        assert!(ledger_of(pb::Ledger { version: None, ..pb::Ledger::default() }).is_err());
    }
}
