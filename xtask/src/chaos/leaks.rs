//! Whether somebody who is gone still holds something.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use super::watch::query;
use crate::fleet::LEASE;
use crate::fleet::stage::Stage;

/// A lease counts for this much longer than it lasts, and it takes a heartbeat until the ledger looks.
const ALLOWANCES: Duration = Duration::from_secs(4);
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

// The Temporal CLI prints empty lists as null.
#[derive(Debug, Deserialize)]
struct Detail {
    cells: Vec<Cell>,
}

#[derive(Debug, Deserialize)]
struct Cell {
    row: Row,
    holders: Option<Vec<Holder>>,
}

#[derive(Debug, Deserialize)]
struct Row {
    burst: u64,
    free_milli: u64,
    cap_milli: u64,
    share_ppb: u64,
}

#[derive(Debug, Deserialize)]
struct Holder {
    incarnation: String,
    worker: String,
    share_ppb: u64,
    cap_milli: u64,
    seen_us: u64,
}

#[derive(Debug, Deserialize)]
struct Grants {
    grants: Option<Vec<Grant>>,
}

#[derive(Debug, Deserialize)]
struct Grant {
    status: String,
}

/// Permits that are out although nobody alive has them, after giving leases the time to end; and what was seen, for people.
/// `alive` are the names of the workers that run, each one process.
///
/// # Errors
/// When the coordinator doesn't answer any more.
pub fn leaked(stage: &Stage, alive: &[String]) -> Result<(u64, String)> {
    let deadline = Instant::now() + LEASE + ALLOWANCES;
    loop {
        let detail: Detail = query(stage, "limit", "{}")?;
        let grants: Grants = query(stage, "grants", "{}")?;
        let leaked = count(&detail, &grants, alive);
        if leaked == 0 || Instant::now() > deadline {
            return Ok((leaked, format!("{detail:?} {grants:?}")));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn count(detail: &Detail, grants: &Grants, alive: &[String]) -> u64 {
    let out = |grant: &&Grant| matches!(grant.status.as_str(), "waiting" | "granted");
    let mut leaked = grants.grants.iter().flatten().filter(out).count() as u64;
    for cell in &detail.cells {
        let mut newest: BTreeMap<&str, &Holder> = BTreeMap::new();
        for holder in cell.holders.iter().flatten().filter(|holder| alive.contains(&holder.worker)) {
            let known = newest.entry(&holder.worker).or_insert(holder);
            if known.seen_us < holder.seen_us {
                *known = holder;
            }
        }
        for holder in cell.holders.iter().flatten() {
            let lives = newest
                .get(holder.worker.as_str())
                .is_some_and(|known| known.incarnation == holder.incarnation);
            if !lives {
                leaked += holder.cap_milli.div_ceil(1_000).max(u64::from(holder.share_ppb > 0));
            }
        }
        let row = &cell.row;
        leaked += (row.free_milli + row.cap_milli).saturating_sub(row.burst * 1_000).div_ceil(1_000);
        leaked += u64::from(row.share_ppb > 1_000_000_000);
    }
    leaked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(incarnation: &str, worker: &str, cap_milli: u64, seen_us: u64) -> Holder {
        let (incarnation, worker) = (incarnation.to_owned(), worker.to_owned());
        Holder { incarnation, worker, share_ppb: 0, cap_milli, seen_us }
    }

    fn counted(free_milli: u64, cap_milli: u64, holders: Vec<Holder>, status: &[&str]) -> u64 {
        let row = Row { burst: 16, free_milli, cap_milli, share_ppb: 0 };
        let grants = status.iter().map(|status| Grant { status: (*status).to_owned() }).collect();
        count(
            &Detail { cells: vec![Cell { row, holders: Some(holders) }] },
            &Grants { grants: Some(grants) },
            &["a".to_owned()],
        )
    }

    #[test]
    fn what_an_earlier_life_of_a_worker_or_a_stranger_holds_is_leaked() {
        assert_eq!(counted(10_000, 6_000, vec![holder("2", "a", 6_000, 9)], &["used"]), 0);
        assert_eq!(
            counted(8_000, 8_000, vec![holder("1", "a", 1_500, 5), holder("2", "a", 6_000, 9)], &[]),
            2
        );
        assert_eq!(counted(10_000, 6_000, vec![holder("1", "b", 6_000, 9)], &[]), 6);
        assert_eq!(counted(10_500, 6_000, vec![holder("2", "a", 6_000, 9)], &[]), 1);
        assert_eq!(counted(0, 0, Vec::new(), &["granted", "waiting"]), 2);
    }
}
