//! The commands that make, deliver and lose messages.

use super::args::{self, Args};
use super::command::{Lines, limit_of, told};
use super::show;
use crate::world::{Delivered, State, Up, World};
use tollgate_core::bucket::Level as _;
use tollgate_core::curve::Rate;
use tollgate_core::limit::CellKey;
use tollgate_core::message::{Acting, CellReport, LeaseName, Request};
use tollgate_core::units::{Amount, Share};

pub(super) fn want(world: &mut World, args: &mut Args) -> Result<String, String> {
    let name = args.word("a worker")?;
    let key = limit_of(world, args)?;
    let worker = world.worker_mut(&name).map_err(told)?;
    let index = worker.index_of(&key).ok_or("no such limit at this worker")?;
    let wants = &mut worker.wants[index];
    wants.waiting = args.get_or("waiting", args::number, wants.waiting)?;
    wants.largest = args.get_or("largest", args::number, wants.largest.max(1))?;
    wants.requested += args.get_or("asked", args::number, 0)?;
    Ok(name)
}

pub(super) fn ask(world: &mut World, args: &mut Args) -> Lines {
    let soft = args.flag("soft");
    let name = want(world, args)?;
    match world.ask(&name, !soft) {
        Ok(request) => Ok(vec![show::request(&name, &request)]),
        Err(failure) => Ok(vec![format!("{name}: {}", told(failure))]),
    }
}

pub(super) fn heartbeat(world: &mut World, args: &mut Args) -> Lines {
    let name = want(world, args)?;
    let mut lines = match world.ask(&name, true) {
        Ok(request) => vec![show::request(&name, &request)],
        Err(failure) => return Ok(vec![format!("{name}: {}", told(failure))]),
    };
    let Some(message) = world.up.get_mut(&name).and_then(Vec::pop) else { return Ok(lines) };
    let delivered = world.deliver_up(&name, message);
    lines.push(show::delivered(&name, &delivered));
    if matches!(delivered, Delivered::Answered(_))
        && let Some(down) = world.down.get_mut(&name).and_then(Vec::pop)
    {
        let applied = world.deliver_down(&name, &down).map_err(told)?;
        if applied != Delivered::Applied {
            lines.push(show::delivered(&name, &applied));
        }
    }
    Ok(lines)
}

pub(super) fn deliver(world: &mut World, args: &mut Args) -> Lines {
    let (name, what) = (args.word("a worker")?, args.word("request or reply")?);
    let (seq, keep) = (args.get("seq", args::number)?, args.flag("keep"));
    match what.as_str() {
        "request" => {
            let message = world.take_up(&name, seq, keep).map_err(told)?;
            Ok(vec![show::delivered(&name, &world.deliver_up(&name, message))])
        }
        "reply" => {
            let down = world.take_down(&name, seq, keep).map_err(told)?;
            let delivered = world.deliver_down(&name, &down);
            let mut lines = vec![delivered.as_ref().map_or_else(
                |failure| format!("{name} is {}: lost", show::failure(failure)),
                |delivered| show::delivered(&name, delivered),
            )];
            if delivered == Ok(Delivered::Applied) {
                lines.extend(holds(world, &name, None)?);
            }
            Ok(lines)
        }
        other => Err(format!("deliver: {other} is neither request nor reply")),
    }
}

pub(super) fn drop_message(world: &mut World, args: &mut Args) -> Lines {
    let (name, what) = (args.word("a worker")?, args.word("request or reply")?);
    let seq = args.get("seq", args::number)?;
    let dropped = match what.as_str() {
        "request" => world.take_up(&name, seq, false).map(|_| ()),
        _ => world.take_down(&name, seq, false).map(|_| ()),
    };
    dropped.map(|()| Vec::new()).map_err(told)
}

pub(super) fn raw(world: &mut World, args: &mut Args) -> Lines {
    let name = args.word("a worker")?;
    let author = args.get_or("as", |text| Some(text.to_string()), name.clone())?;
    let incarnation = world.worker(&author).map_err(told)?.client.incarnation();
    let seq = args.get("seq", args::number)?.ok_or("raw: seq is missing")?;
    let epoch_now = world.ledger().state().epoch;
    let acting = args.get("acting", |text| {
        let (epoch, seq) =
            text.split_once('.').map_or((Some(epoch_now), text), |(epoch, seq)| (epoch.parse().ok(), seq));
        Some(LeaseName { epoch: epoch?, seq: seq.parse().ok()? })
    })?;
    let share = args.get_or("share", args::share, Share::ZERO)?;
    let cap = args.get_or("cap", args::amount, Amount::ZERO)?;
    let demand = args.get_or("demand", args::rate, Rate::ZERO)?.micro_per_second();
    let cell = CellReport {
        key: limit_of(world, args)?,
        borrowed: args.flag("borrowed"),
        for_tier: args.get("for", |text| Some(text.to_string()))?,
        acting: acting.map(|name| Acting { name, share, cap }),
        held: args.get_or("held", args::amount, Amount::ZERO)?,
        used: args.get_or("used", args::number, 0)?,
        returned: args.get_or("returned", args::amount, Amount::ZERO)?,
        debt: args.get_or("debt", args::amount, Amount::ZERO)?,
        out: args.get_or("out", args::number, 0)?,
        demand,
        waiting: args.get_or("waiting", args::number, 0)?,
        largest: args.get_or("largest", args::number, 1)?,
    };
    let nonce = args.get_or("nonce", args::number, 0)?;
    let request = Request { incarnation, seq, nonce, worker: author, cells: vec![cell] };
    let line = show::request(&name, &request);
    let message = if args.flag("report") {
        Up::Report(request)
    } else if args.flag("revoke") {
        Up::Revoke(request)
    } else {
        Up::Heartbeat(request)
    };
    world.send(&name, message);
    Ok(vec![line])
}

pub(super) fn holds(world: &mut World, name: &str, only: Option<CellKey>) -> Lines {
    let now = world.now;
    let worker = world.worker_mut(name).map_err(told)?;
    if worker.state == State::Crashed {
        return Ok(vec![format!("{name} is crashed")]);
    }
    let (at, count) = (worker.now(now), worker.client.cells().len());
    let mut lines = Vec::new();
    for index in 0..count {
        let Some(cell) = worker.client.cell_mut(index) else { continue };
        if only.as_ref().is_some_and(|only| only != cell.key()) {
            continue;
        }
        cell.refill(at);
        let named = if count > 1 { format!("{} ", cell.key()) } else { String::new() };
        let level = cell.level().level();
        lines.push(match cell.mint().held() {
            Some(held) => {
                let (share, cap, left) = (held.share, held.cap, show::span(held.expires.since(at.boot)));
                format!("{name} {named}holds {level} of cap {cap}, share {share}, for {left}")
            }
            None => format!("{name} {named}has no lease, level {level}"),
        });
    }
    Ok(lines)
}
