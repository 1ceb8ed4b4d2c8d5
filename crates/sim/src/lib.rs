//! tollgate's simulator: the core in virtual time, and a judge that knows nothing of it.
//!
//! - [`checker`] decides from a log of admissions whether a limit was kept. It uses nothing of the core, so that it
//!   can also judge logs of real fleets.
//! - [`world`] holds a ledger, workers with clocks of their own, and the messages between them. Nothing happens by
//!   itself: whoever drives it decides which message arrives when, and who is paused.
//! - [`script`] drives a world by a small command language, as golden files, with all rules or with one switched off.
//! - [`explore`] makes such scripts at random and shortens those that exceed the bound.
//! - [`machine`] does [`step`]s to a world and looks at it after each with a model of its own.
//! - [`swarm`] plays whole fleets under a random part of all faults, one run per seed.
//! - [`plot`] draws runs.
//! - [`scenario`] plays named fleets, and measures how much of their limit they use, how fairly, and how soon.
//!
//! Runs are reproducible byte by byte: the only source of chance is [`rng::Rng`].

pub mod checker;
pub mod explore;
pub mod machine;
pub mod plot;
pub mod rng;
pub mod scenario;
pub mod script;
pub mod step;
pub mod swarm;
pub mod world;

/// Does `each` for every seed, on all processors and in any order, until one returns false.
fn on_all_processors(seeds: std::ops::Range<u64>, each: impl Fn(u64) -> bool + Sync) {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, order);
                    if seed >= seeds.end {
                        break;
                    }
                    if !each(seed) {
                        next.store(seeds.end, order);
                    }
                }
            });
        }
    });
}
