//! Figures over time, from what was written down.

use std::collections::BTreeMap;

use tollgate_sim::checker::{Admission, PICO, Polyline};
use tollgate_sim::plot::{Band, Line, Mark, Plot};

use super::hands::Done;
use super::outages::{Outage, merged};
use super::outcome::OutageFigures;
use crate::downstream::arrivals::Entry;
use crate::fleet::metrics::{SECOND_NS, admitted, minted, real, seconds};
use crate::fleet::notes::WorkerNotes;

/// Most faults that the plot marks: more of them can't be told apart.
const MARKS_MAX: usize = 400;

/// What figures over time are made from. `admissions` are in order.
#[derive(Debug, Clone, Copy)]
pub struct Figures<'a> {
    /// What workers logged.
    pub admissions: &'a [Admission],
    /// What was configured.
    pub configured: &'a Polyline,
    /// Announced ones.
    pub outages: &'a [Outage],
    /// The start of the batch.
    pub begin_ns: u64,
    /// The end of what counts for utilisation.
    pub to_ns: u64,
}

impl Figures<'_> {
    /// Admitted against configured from the first admission on, without the times of outages or with them.
    pub fn utilization(&self, without_outages: bool) -> Option<f64> {
        let first = self.admissions.first()?.at;
        let left_out = if without_outages { merged(self.outages, first, self.to_ns) } else { Vec::new() };
        let (mut used, mut allowed) = (0.0, 0.0);
        let mut from = first;
        for (begin, end) in left_out.into_iter().chain([(self.to_ns, self.to_ns)]) {
            used += admitted(self.admissions, from, begin);
            allowed += minted(self.configured, from, begin.max(from));
            from = end;
        }
        (allowed > 0.0).then(|| used / allowed)
    }

    /// Limit and admissions, with faults marked and outages shaded.
    pub fn plot(&self, title: &str, bound: &Polyline, journal: &[Done]) -> Plot {
        let mut plot = Plot::new(title, "seconds", "calls a second");
        let end_ns = self.admissions.last().map_or(self.to_ns, |last| last.at).max(self.begin_ns);
        let each_second =
            || (self.begin_ns..end_ns).step_by(usize::try_from(SECOND_NS).unwrap_or(usize::MAX));
        let second = |at: u64| seconds(at.saturating_sub(self.begin_ns));
        let tenths =
            || (self.begin_ns..end_ns).step_by(usize::try_from(SECOND_NS / 10).unwrap_or(usize::MAX));
        let line = |curve: &Polyline| tenths().map(|at| (second(at), per_second(curve.after(at)))).collect();
        let admitted: Vec<(f64, f64)> = each_second()
            .map(|at| (second(at) + 0.5, admitted(self.admissions, at, at + SECOND_NS)))
            .collect();
        plot.lines.push(Line { name: "admitted".to_owned(), color: "#2980b9", points: admitted });
        plot.lines.push(Line {
            name: "largest rate of a live lease".to_owned(),
            color: "#e67e22",
            points: line(bound),
        });
        plot.lines.push(Line {
            name: "configured".to_owned(),
            color: "#c0392b",
            points: line(self.configured),
        });
        let marks = journal.iter().filter(|done| done.event.is_some_and(|event| event.fault.is_some()));
        plot.marks = marks
            .take(MARKS_MAX)
            .map(|done| Mark {
                at: second(done.at_ns),
                text: format!("{:.1} s: {}", second(done.at_ns), done.text),
            })
            .collect();
        plot.bands = self
            .outages
            .iter()
            .map(|outage| Band {
                from: second(outage.from_ns),
                to: second(outage.to_ns),
                text: format!("{}: {:.1} s", outage.cause, outage.seconds()),
            })
            .collect();
        plot
    }
}

fn per_second(pico: i128) -> f64 {
    real(u64::try_from(pico / (PICO / 1_000)).unwrap_or(u64::MAX)) / 1_000.0
}

impl Outage {
    /// How long it was.
    pub fn seconds(&self) -> f64 {
        seconds(self.to_ns.saturating_sub(self.from_ns))
    }

    /// The same for people; the run began at `begin_ns`.
    pub fn figures(&self, begin_ns: u64) -> OutageFigures {
        let at_seconds = seconds(self.from_ns.saturating_sub(begin_ns));
        OutageFigures { cause: self.cause, at_seconds, seconds: self.seconds() }
    }
}

/// A call that the downstream let in.
pub fn arrival(entry: &Entry) -> Option<Admission> {
    match entry {
        Entry::Arrival { boot_ns, .. } => Some(Admission { at: *boot_ns, tokens: 1 }),
        Entry::Allowance { .. } => None,
    }
}

/// When anybody got a lease, in order. While the limit is paused, leases have no share.
pub fn grants(notes: &BTreeMap<String, WorkerNotes>) -> Vec<u64> {
    let mut grants: Vec<u64> =
        notes.values().flat_map(|notes| &notes.leases).map(|lease| lease.at_ns).collect();
    grants.sort_unstable();
    grants
}

/// How many faults of each kind happened.
pub fn happened(journal: &[Done]) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for kind in journal.iter().filter_map(|done| done.event?.fault) {
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_counts_neither_as_allowed_nor_as_lost() {
        let second = |range: std::ops::Range<u64>| {
            range.flat_map(|at| [0, 1, 2, 3].map(|part| Admission { at: at * SECOND_NS + part, tokens: 1 }))
        };
        // Four a second of five, and nothing from second 10 to 20.
        let admissions: Vec<Admission> = second(0..10).chain(second(20..30)).collect();
        let outages = [Outage { cause: "", from_ns: 10 * SECOND_NS, to_ns: 20 * SECOND_NS }];
        let configured = Polyline::constant(5 * PICO);
        let figures = Figures {
            admissions: &admissions,
            configured: &configured,
            outages: &outages,
            begin_ns: 0,
            to_ns: 30 * SECOND_NS,
        };
        assert!((figures.utilization(true).unwrap() - 0.8).abs() < 1e-9);
        assert!((figures.utilization(false).unwrap() - 8.0 / 15.0).abs() < 1e-9);
        assert_eq!(Figures { admissions: &[], ..figures }.utilization(true), None);
    }
}
