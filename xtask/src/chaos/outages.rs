//! Times in which the ledger can't grant, and says so: they are announced, measured, and left out of utilisation.
//!
//! | cause | from | until |
//! |---|---|---|
//! | the server is killed or paused: no work comes either | that | the first lease after it is back |
//! | all hosts are away for so long that leases end | that | the first lease after one is back |
//! | the coordinator lost its memory | that | the first lease after its recovery |

use serde::Serialize;

use super::hands::Done;
use super::schedule::{Blow, Doing, Step};
use super::watch::Seen;
use crate::fleet::LEASE;
use crate::fleet::metrics::SECOND_NS;

/// A recovery that nobody saw is taken to last this long: the longest lease and its allowances.
const RECOVERY_NS: u64 = 123 * SECOND_NS;
/// The recovery that a blow causes is announced within this time.
const ANNOUNCED_WITHIN_NS: u64 = 60 * SECOND_NS;

/// A time without grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Why.
    pub cause: &'static str,
    /// When the fault was.
    #[serde(skip)]
    pub from_ns: u64,
    /// When the ledger granted again.
    #[serde(skip)]
    pub to_ns: u64,
}

/// All outages by the order of their beginnings. `grants` are the times of all leases, in order.
pub fn outages(journal: &[Done], seen: &[Seen], grants: &[u64], hosts: usize, end_ns: u64) -> Vec<Outage> {
    let granted = |healed_ns: u64| {
        let next = grants.partition_point(|at| *at < healed_ns);
        grants.get(next).copied().unwrap_or(end_ns).min(end_ns)
    };
    let mut found = Vec::new();
    let mut server_away: Option<(&'static str, u64)> = None;
    let mut away = vec![false; hosts];
    let mut all_away = None;
    for done in journal {
        match done.event.map(|event| event.step) {
            Some(Step::Server(Doing::Kill)) => server_away = Some(("server killed", done.at_ns)),
            Some(Step::Server(Doing::Pause)) => server_away = Some(("server paused", done.at_ns)),
            Some(Step::Server(Doing::Start | Doing::Resume)) => {
                if let Some((cause, from_ns)) = server_away.take() {
                    found.push(Outage { cause, from_ns, to_ns: granted(done.done_ns) });
                }
            }
            Some(Step::Host(number, doing)) => {
                let was_all = away.iter().all(|away| *away);
                if let Some(host) = away.get_mut(number) {
                    *host = !matches!(doing, Doing::Start | Doing::Resume);
                }
                let is_all = away.iter().all(|away| *away);
                if is_all && !was_all {
                    all_away = Some(done.at_ns);
                } else if was_all
                    && !is_all
                    && let Some(from_ns) = all_away.take()
                {
                    let to_ns = granted(done.done_ns);
                    if u128::from(to_ns - from_ns) > LEASE.as_nanos() {
                        found.push(Outage { cause: "all hosts away", from_ns, to_ns });
                    }
                }
            }
            Some(Step::Workflow(
                blow @ (Blow::ResetFirst | Blow::ResetLast | Blow::TerminateCoordinator),
            )) => {
                let cause = if blow == Blow::TerminateCoordinator { "terminated" } else { "reset" };
                let within = done.at_ns..done.done_ns + ANNOUNCED_WITHIN_NS;
                let announced = seen.iter().filter(|seen| within.contains(&seen.at_ns));
                let until = announced.filter_map(|seen| seen.recovering_until_ns).max();
                let healed_ns = until.unwrap_or(done.done_ns + RECOVERY_NS);
                found.push(Outage { cause, from_ns: done.at_ns, to_ns: granted(healed_ns) });
            }
            _ => {}
        }
    }
    found.sort_by_key(|outage| outage.from_ns);
    found
}

/// The same as times that don't overlap, each within the run.
pub fn merged(outages: &[Outage], from_ns: u64, to_ns: u64) -> Vec<(u64, u64)> {
    let mut times: Vec<(u64, u64)> = Vec::new();
    for outage in outages {
        let (from, to) = (outage.from_ns.max(from_ns), outage.to_ns.min(to_ns));
        match times.last_mut() {
            Some((_, last)) if from <= *last => *last = (*last).max(to),
            _ if from < to => times.push((from, to)),
            _ => {}
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::schedule::Event;

    const S: u64 = SECOND_NS;

    fn done(at_s: u64, step: Step) -> Done {
        let event = Event { at: std::time::Duration::ZERO, fault: None, step };
        Done { at_ns: at_s * S, done_ns: at_s * S, event: Some(event), text: String::new() }
    }

    fn found(journal: &[Done], seen: &[Seen], grants: &[u64]) -> Vec<(&'static str, u64, u64)> {
        let grants: Vec<u64> = grants.iter().map(|at| at * S).collect();
        let found = outages(journal, seen, &grants, 2, 500 * S);
        found.iter().map(|outage| (outage.cause, outage.from_ns / S, outage.to_ns / S)).collect()
    }

    #[test]
    fn a_server_is_away_until_the_first_lease_after_its_return() {
        let journal = [done(10, Step::Server(Doing::Kill)), done(13, Step::Server(Doing::Start))];
        assert_eq!(found(&journal, &[], &[5, 12, 16, 17]), [("server killed", 10, 16)]);
        assert_eq!(found(&journal, &[], &[]), [("server killed", 10, 500)]);
    }

    #[test]
    fn hosts_that_are_away_for_less_than_a_lease_or_not_all_at_once_are_no_outage() {
        let host = |at, number, doing| done(at, Step::Host(number, doing));
        let one = [host(10, 0, Doing::Kill), host(30, 0, Doing::Start), host(31, 1, Doing::Pause)];
        assert_eq!(found(&one, &[], &[40]), []);
        let both = [host(10, 0, Doing::Kill), host(12, 1, Doing::Kill), host(15, 0, Doing::Start)];
        assert_eq!(found(&both, &[], &[16]), []);
        assert_eq!(found(&both, &[], &[30]), [("all hosts away", 12, 30)]);
    }

    #[test]
    fn a_lost_memory_counts_until_the_announced_end_and_the_next_lease() {
        let journal = [done(10, Step::Workflow(Blow::ResetLast))];
        let seen = |at: u64, until: u64| Seen { at_ns: at * S, recovering_until_ns: Some(until * S) };
        let announced = [seen(9, 11), seen(14, 132), seen(15, 133)];
        assert_eq!(found(&journal, &announced, &[100, 132, 134]), [("reset", 10, 134)]);
        assert_eq!(found(&journal, &[], &[100, 134]), [("reset", 10, 134)]);
    }

    #[test]
    fn outages_that_overlap_count_once() {
        let outage = |from: u64, to: u64| Outage { cause: "", from_ns: from, to_ns: to };
        let all = [outage(1, 5), outage(3, 4), outage(4, 9), outage(20, 30)];
        assert_eq!(merged(&all, 2, 25), [(2, 9), (20, 25)]);
    }
}
