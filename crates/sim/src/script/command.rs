//! The commands. Every one takes `at=TIME` (since the beginning; true time moves there first). W is a worker, LIMIT is
//! `api`, `api:tier` or `api@meter:tier`; where a limit may be left out, it is the first one.
//!
//! ```text
//! limit LIMIT rate=100/s burst=20 [lease=10s] [empty] [rank=1] [floor=0.4] [lend]   adds or changes a limit, at once
//!     [reserve=0.2] [paused|resumed]
//! configure [LIMIT [rate=[A->]B] [burst=[A->]B] [over=15s] [lease=..] [moved] | LIMIT remove] [version=RUN.N]
//! worker W [drift=+1000ppm] [wall=+2s]               leases every limit that there is
//! borrow W LIMIT                                     leases it for a higher tier
//! want W [LIMIT] [waiting=5] [largest=1] [asked=10]  what waits, and what was asked for in addition
//! ask W [waiting=..] [largest=..] [asked=..] [soft]  makes its next request; `soft`: only if it is due by itself
//! deliver W request|reply [seq=N] [keep]             `keep`: a copy stays on its way
//! drop W request|reply [seq=N]
//! heartbeat W [as ask]                               ask, deliver the request, deliver the reply
//! raw W seq=1 [as=W2] [nonce=1] [acting=[EPOCH.]SEQ share=1.0 cap=18] [held=..] [used=..] [returned=..] [debt=..]
//!     [demand=100/s] [waiting=..] [largest=..] [limit=LIMIT] [borrowed] [for=TIER] [report|revoke]
//!                                                    a request made by hand, in the name of W, on its way
//! spend W[,W..] N|all [limit=LIMIT] [pause=30s] [for=10s]   `for`: everything there is, every 10 ms
//! give W N [limit=LIMIT]        refund W N charged=TIME [limit=LIMIT]        overdraw W N [limit=LIMIT]
//! show W [limit=LIMIT]                               its bucket
//! hold W 0.5 [limit=LIMIT]                           has lost the ledger: goes on with this part of its last lease
//! run 60s [W[:TIER]=WAITING ..] [delay=5ms]          the fleet works by itself
//! pause W   suspend W [clock-stops]   resume W   crash W   restart W   fork W COPY   revoke W   evict W
//! acquire ID [LIMIT] [cost=1] [lease=10s] [auto]     use ID      settle ID [LIMIT] used=1
//! ledger down|up|tick|snapshot|reset [unnoticed]|forget|amnesia [first]|step [by=+1s]
//! keeper up|down                                     of what may have been drawn: whether it can be reached
//! wait 10s      status      explain [W|LIMIT]      look [LIMIT] [cost=1] [count=1]      check
//! ```

use super::args::{self, Args};
use super::explained;
use super::message::{ask, deliver, drop_message, heartbeat, holds, raw, want};
use super::show;
use crate::world::{Failure, World};
use std::collections::BTreeMap;
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::Input;
use tollgate_core::ledger::strict::{Acquire, Settle};
use tollgate_core::limit::{CellConfig, CellKey, Initial, Version};
use tollgate_core::policy::Policy;
use tollgate_core::tier::Priority;
use tollgate_core::units::Span;

/// The lease of a limit that names none.
const LEASE_DEFAULT: Span = Span::from_secs(10);
/// How often a greedy worker takes what there is.
const GREEDY_EVERY: u64 = 10_000;

pub(super) type Lines = Result<Vec<String>, String>;

/// Does one command and returns what it prints.
///
/// # Errors
/// What could not be read or done.
pub fn execute(world: &mut World, line: &str) -> Lines {
    let mut args = Args::parse(line)?;
    if let Some(at) = args.get("at", args::span)? {
        if at.0 < world.now {
            return Err(format!("it is later than that: {}", show::span(Span(world.now))));
        }
        world.advance_to(at.0);
    }
    let lines = match args.name.as_str() {
        "limit" | "configure" => configure(world, &mut args),
        "want" => want(world, &mut args).map(|_| Vec::new()),
        "ask" => ask(world, &mut args),
        "heartbeat" => heartbeat(world, &mut args),
        "deliver" => deliver(world, &mut args),
        "drop" => drop_message(world, &mut args),
        "raw" => raw(world, &mut args),
        "spend" => spend(world, &mut args),
        "give" | "refund" | "overdraw" | "release" => correct(world, &mut args),
        "show" => bucket(world, &mut args),
        "hold" => hold(world, &mut args),
        "run" => run(world, &mut args),
        "worker" | "borrow" | "pause" | "suspend" | "resume" | "crash" | "restart" | "fork" | "revoke"
        | "evict" => worker(world, &mut args),
        "acquire" | "use" | "settle" => strict(world, &mut args),
        "ledger" => ledger(world, &mut args),
        "wait" => {
            let span = args::span(&args.word("a time")?).ok_or("wait: not a time")?;
            world.advance_to(world.now.saturating_add(span.0));
            Ok(Vec::new())
        }
        "status" => {
            // Shows the books as of now: whatever is due is made up for.
            let _down = world.apply(Input::Tick).is_err();
            Ok(show::status(world.ledger()))
        }
        "explain" => explain(world, &mut args),
        "look" => look(world, &mut args),
        "keeper" => {
            let up = args.word("up or down")? == "up";
            world.set_keeper_up(up);
            Ok(Vec::new())
        }
        "check" => Ok(world
            .verdicts()
            .iter()
            .map(|(key, verdict)| show::verdict(&key.to_string(), verdict))
            .collect()),
        other => Err(format!("no command {other}")),
    }?;
    args.finish()?;
    Ok(lines)
}

pub(super) fn told(failure: Failure) -> String {
    show::failure(&failure)
}

fn ok<T>(result: Result<T, Failure>) -> Lines {
    result.map(|_| vec!["ok".to_string()]).map_err(told)
}

pub(super) fn limit_of(world: &World, args: &mut Args) -> Result<CellKey, String> {
    let first = world.config().cells.first().map(|cell| cell.key.clone());
    args.get("limit", args::key)?.or(first).ok_or_else(|| "no limit is configured".to_string())
}

fn configure(world: &mut World, args: &mut Args) -> Lines {
    let version = args.get("version", |text| {
        let (run, n) = text.split_once('.')?;
        Some(Version { run: run.parse().ok()?, n: n.parse().ok()? })
    })?;
    let mut cells = world.config().cells.clone();
    if let Some(name) = args.optional() {
        let key = args::key(&name).ok_or("not a limit's name")?;
        if args.flag("remove") {
            cells.retain(|cell| cell.key != key);
        } else {
            let index = cells.iter().position(|cell| cell.key == key);
            let old = index.map(|index| cells.remove(index));
            let new = changed(world, args, key, old)?;
            cells.insert(index.unwrap_or(cells.len()), new);
        }
    }
    let output = world.configure(cells, version).map_err(told)?;
    Ok(vec![show::output(&output)])
}

fn changed(
    world: &World,
    args: &mut Args,
    key: CellKey,
    old: Option<CellConfig>,
) -> Result<CellConfig, String> {
    let now = world.ledger_time();
    let over = args.get_or("over", args::span, Span::ZERO)?;
    let mut config = old.unwrap_or_else(|| CellConfig {
        key,
        rate: RateCurve::constant(Rate::ZERO),
        burst: BurstCurve::constant(0),
        policy: Policy::TokenBucket,
        lease: LEASE_DEFAULT,
        priority: Priority::default(),
        fresh: true,
        initial: Initial::Full,
        queue: None,
        conduct: Default::default(),
    });
    if let Some((from, to)) = args.get("rate", args::change(args::rate))? {
        let base = from.map_or(config.rate, RateCurve::constant);
        config.rate = if over == Span::ZERO { RateCurve::constant(to) } else { base.ramp_to(to, now, over) };
    }
    if let Some((from, to)) = args.get("burst", args::change(args::number))? {
        let base = from.map_or(config.burst, BurstCurve::constant);
        config.burst =
            if over == Span::ZERO { BurstCurve::constant(to) } else { base.ramp_to(to, now, over) };
    }
    if let Some(window) = args.get("window", args::span)? {
        config.policy = Policy::SlidingWindow { window };
    }
    if let Some(drain) = args.get("drain", args::span)? {
        config.policy = Policy::InFlight { drain };
    }
    if let Some(boundaries) = args.get("boundaries", args::list(args::span))? {
        // In scripts they are given in true time.
        let at = |after: &Span| world.zero().ledger_time(after.0);
        let escrow = args.flag("escrow");
        config.policy =
            Policy::FixedWindow { boundaries: boundaries.iter().map(at).collect(), calendar: None, escrow };
    }
    if args.flag("minted") {
        config.policy = Policy::TokenBucket;
    }
    config.lease = args.get_or("lease", args::span, config.lease)?;
    let rank = args.get_or("rank", args::number, config.priority.rank.into())?;
    config.priority.rank = u32::try_from(rank).map_err(|_| "rank: too large")?;
    config.priority.floor = args.get_or("floor", args::share, config.priority.floor)?;
    config.priority.lends |= args.flag("lend");
    config.conduct.reserve = args.get_or("reserve", args::share, config.conduct.reserve)?;
    config.conduct.paused = (config.conduct.paused || args.flag("paused")) && !args.flag("resumed");
    config.fresh = !args.flag("moved");
    if args.flag("empty") {
        config.initial = Initial::Empty;
    }
    Ok(config)
}

fn spend(world: &mut World, args: &mut Args) -> Lines {
    let names: Vec<String> = args.word("workers")?.split(',').map(str::to_string).collect();
    let key = limit_of(world, args)?;
    let pause = args.get_or("pause", args::span, Span::ZERO)?;
    let amount = args.word("an amount")?;
    if let Some(span) = args.get("for", args::span)? {
        return greedy(world, &names, &key, span);
    }
    let mut lines = Vec::new();
    for name in names {
        let cost = match amount.as_str() {
            "all" => world.level(&name, &key).map(|level| u64::try_from(level).unwrap_or(0)),
            text => Ok(args::number(text).ok_or("spend: not a number")?),
        };
        let spent = cost.and_then(|cost| Ok((cost, world.spend(&name, &key, cost, pause)?)));
        lines.push(match spent {
            Ok((cost, Ok(()))) => format!("{name} admits {cost}"),
            Ok((_, Err(refusal))) => format!("{name} refuses: {}", show::empty(refusal)),
            Err(failure) => format!("{name} is {}", show::failure(&failure)),
        });
    }
    Ok(lines)
}

fn greedy(world: &mut World, names: &[String], key: &CellKey, span: Span) -> Lines {
    let end = world.now.saturating_add(span.0);
    let mut sums: BTreeMap<&String, u64> = names.iter().map(|name| (name, 0)).collect();
    loop {
        for name in names {
            let more = world.spend_all(name, key).unwrap_or(0);
            *sums.entry(name).or_default() += more;
        }
        if world.now >= end {
            break;
        }
        world.advance_to((world.now + GREEDY_EVERY).min(end));
    }
    Ok(sums.into_iter().map(|(name, sum)| format!("{name} admits {sum}")).collect())
}

fn correct(world: &mut World, args: &mut Args) -> Lines {
    let name = args.word("a worker")?;
    let tokens = args::number(&args.word("a number")?).ok_or("not a number")?;
    let key = limit_of(world, args)?;
    let line = match args.name.as_str() {
        "give" => {
            let given = world.give_back(&name, &key, tokens).map_err(told)?;
            format!("{name} gives back {given}")
        }
        "release" => {
            let from = args.get("from", args::span)?.ok_or("release: from is missing")?;
            let index = world.worker(&name).map_err(told)?.index_of(&key).ok_or("no such limit")?;
            world.release(&name, index, tokens, from.0, None).map_err(told)?;
            format!("{name} ends {tokens}")
        }
        "refund" => {
            let charged = args.get("charged", args::span)?.ok_or("refund: charged is missing")?;
            let back = world.refund(&name, &key, tokens, charged.0).map_err(told)?;
            format!("{name} puts back {back} of {tokens}")
        }
        _ => {
            let level = world.overdraw(&name, &key, tokens).map_err(told)?;
            format!("{name} is at {level}")
        }
    };
    Ok(vec![line])
}

fn hold(world: &mut World, args: &mut Args) -> Lines {
    let name = args.word("a worker")?;
    let part = args::share(&args.word("a part")?).ok_or("hold: not a part")?;
    let (key, now) = (limit_of(world, args)?, world.now);
    let worker = world.worker_mut(&name).map_err(told)?;
    let (index, at) = (worker.index_of(&key).ok_or("no such limit")?, worker.now(now));
    let cell = worker.client.cell_mut(index).ok_or("no such limit")?;
    let text = if cell.hold(at, part) { "goes on alone" } else { "has nothing to go on with" };
    Ok(vec![format!("{name} {text}")])
}

fn bucket(world: &mut World, args: &mut Args) -> Lines {
    let name = args.word("a worker")?;
    let key = args.get("limit", args::key)?;
    holds(world, &name, key)
}

fn run(world: &mut World, args: &mut Args) -> Lines {
    let span = args::span(&args.word("a time")?).ok_or("run: not a time")?;
    let delay = args.get_or("delay", args::span, Span::from_millis(5))?;
    let mut load = BTreeMap::new();
    for (name, waiting) in args.rest() {
        world.worker(name.split(':').next().unwrap_or_default()).map_err(told)?;
        load.insert(name, args::number(&waiting).ok_or("run: not a number")?);
    }
    let admitted = world.run(span, &load, delay);
    Ok(admitted.into_iter().map(|(name, sum)| format!("{name} admits {sum}")).collect())
}

fn worker(world: &mut World, args: &mut Args) -> Lines {
    let command = args.name.clone();
    let name = args.word("a worker")?;
    match command.as_str() {
        "worker" => {
            let drift = args.get_or("drift", args::ppm, 0)?;
            let wall = args.get_or("wall", args::signed_micros, 0)?;
            world.add_worker(&name, drift, wall);
            Ok(Vec::new())
        }
        "borrow" => {
            let key = args::key(&args.word("a limit")?).ok_or("not a limit's name")?;
            ok(world.add_cell(&name, key, true))
        }
        "pause" => ok(world.pause(&name)),
        "suspend" => {
            let stops = args.flag("clock-stops");
            ok(world.suspend(&name, stops))
        }
        "resume" => ok(world.resume(&name)),
        "crash" => ok(world.crash(&name)),
        "restart" => ok(world.restart(&name)),
        "fork" => {
            let copy = args.word("a name for the copy")?;
            ok(world.fork(&name, &copy))
        }
        "revoke" => ok(world.revoke(&name)),
        _ => ok(world.evict(&name)),
    }
}

fn strict(world: &mut World, args: &mut Args) -> Lines {
    let id = args.word("an id")?;
    if args.name == "use" {
        let used = world.use_permit(&id);
        return Ok(vec![format!("{id} {}", if used { "is used" } else { "can't be used" })]);
    }
    let auto = args.flag("auto");
    let named = args.optional().and_then(|text| args::key(&text));
    let key = named.map_or_else(|| limit_of(world, args), Ok)?;
    let outcome = if args.name == "settle" {
        let used = args.get("used", args::number)?.ok_or("settle: used is missing")?;
        world.settle(Settle { id: id.clone(), key, used })
    } else {
        let cost = args.get_or("cost", args::number, 1)?;
        let lease = args.get_or("lease", args::span, LEASE_DEFAULT)?;
        world.acquire(Acquire { id: id.clone(), client: id.clone(), key, cost, lease, auto })
    };
    Ok(vec![format!("{id}: {}", show::acquired(&outcome.map_err(told)?))])
}

fn explain(world: &mut World, args: &mut Args) -> Lines {
    let name = args.optional();
    let _down = world.apply(Input::Tick).is_err();
    let worker = name.as_ref().and_then(|name| world.worker(name).ok());
    if let Some(incarnation) = worker.map(|worker| worker.client.incarnation()) {
        return Ok(explained::worker(world.ledger(), incarnation));
    }
    let only = name.map(|name| args::key(&name).ok_or("not a limit's name")).transpose()?;
    Ok(explained::limits(world.ledger(), only.as_ref()))
}

fn look(world: &World, args: &mut Args) -> Lines {
    let named = args.optional().and_then(|text| args::key(&text));
    let key = named.map_or_else(|| limit_of(world, args), Ok)?;
    let (cost, count) = (args.get_or("cost", args::number, 1)?, args.get_or("count", args::number, 1)?);
    let found = world.ledger().would_admit(&key, cost, count, world.ledger_time());
    Ok(vec![
        found.map_or_else(|| format!("{key}: unknown"), |outlook| show::outlook(&key.to_string(), &outlook)),
    ])
}

fn ledger(world: &mut World, args: &mut Args) -> Lines {
    match args.word("what")?.as_str() {
        "down" => world.set_ledger_up(false),
        "up" => world.set_ledger_up(true),
        "tick" => return ok(world.apply(Input::Tick)),
        "snapshot" => return Ok(vec![format!("snapshot {}", world.snapshot())]),
        "reset" => {
            let detected = !args.flag("unnoticed");
            return ok(world.reset(detected));
        }
        "forget" => return ok(world.forget()),
        "amnesia" => {
            let first = args.flag("first");
            let output = world.amnesia(first).map_err(told)?;
            return Ok(vec![show::output(&output)]);
        }
        "step" => {
            let by = args.get("by", args::signed_micros)?.ok_or("ledger step: by is missing")?;
            world.step_ledger_clock(by);
        }
        other => return Err(format!("ledger {other}?")),
    }
    Ok(vec!["ok".to_string()])
}
