//! What the config workflow carries through continue-as-new, as protobuf.
//!
//! Everything that a [`Book`] knows is kept, exactly: bursts are whole thousandths of a token by construction.

mod layers;

use super::Push;
use super::book::ramps::Paused;
use super::book::{Book, Entry, Outcome};
use crate::limits::{
    burst_curve, burst_curve_of, conduct, conduct_of, escrow, escrow_of, initial_of, policy, policy_of,
    priority, priority_of, rate_curve, rate_curve_of, version, version_of,
};
use crate::proto as pb;
use crate::state::StateError;
use crate::wire::status::UnreadableJson;
use prost::Message;
use std::collections::BTreeMap;
use tollgate_core::curve::Rate;
use tollgate_core::ledger::Settings;
use tollgate_core::ledger::escrow::Escrow;
use tollgate_core::limit::{CellConfig, CellKey, Initial};
use tollgate_core::units::{LedgerTime, Span};

/// What one run hands to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    /// The group.
    pub(super) group: String,
    /// Its limits.
    pub(super) book: Book,
    /// Messages that couldn't be read.
    pub(super) unreadable: UnreadableJson,
    /// Runs before the next one.
    pub(super) runs: u64,
    /// How far the coordinator knows.
    pub(super) push: Push,
    /// What the coordinator said may have been drawn.
    pub(super) escrows: BTreeMap<CellKey, Escrow>,
}

impl Carried {
    /// The bytes for the next run.
    pub(super) fn encode(&self) -> Vec<u8> {
        let config = pb::Config {
            group: self.group.clone(),
            book: Some(write_book(&self.book)),
            unreadable: Some(pb::Unreadable {
                count: self.unreadable.count,
                last_name: self.unreadable.last_name.clone(),
                last_us: self.unreadable.last_us,
                last_error: self.unreadable.last_error.clone(),
            }),
            runs: self.runs,
            push: Some(pb::ConfigPush {
                acknowledged: self.push.acknowledged.map(version),
                acknowledged_us: self.push.acknowledged_at.0,
                again: self.push.again,
                error: self.push.error.clone(),
            }),
            escrows: self.escrows.iter().map(write_escrow).collect(),
        };
        config.encode_to_vec()
    }

    /// What the previous run wrote.
    ///
    /// # Errors
    /// [`StateError`] when the bytes are something else.
    pub(super) fn decode(bytes: &[u8]) -> Result<Carried, StateError> {
        let config = pb::Config::decode(bytes)?;
        let unreadable = config.unreadable.unwrap_or_default();
        let push = config.push.unwrap_or_default();
        Ok(Carried {
            group: config.group,
            book: read_book(config.book.ok_or(StateError::Broken("the book"))?)?,
            unreadable: UnreadableJson {
                count: unreadable.count,
                last_name: unreadable.last_name,
                last_us: unreadable.last_us,
                last_error: unreadable.last_error,
            },
            runs: config.runs,
            push: Push {
                acknowledged: push.acknowledged.map(version_of),
                acknowledged_at: LedgerTime(push.acknowledged_us),
                again: push.again,
                error: push.error,
            },
            escrows: config.escrows.into_iter().filter_map(read_escrow).collect(),
        })
    }
}

fn write_escrow((key, kept): (&CellKey, &Escrow)) -> pb::ConfigEscrow {
    let key = pb::CellKey { limit: key.limit.clone(), meter: key.meter.clone(), tier: key.tier.clone() };
    pb::ConfigEscrow { key: Some(key), escrow: Some(escrow(*kept)) }
}

fn read_escrow(kept: pb::ConfigEscrow) -> Option<(CellKey, Escrow)> {
    let key = kept.key?;
    Some((CellKey { limit: key.limit, meter: key.meter, tier: key.tier }, escrow_of(kept.escrow?)))
}

fn write_book(book: &Book) -> pb::ConfigBook {
    pb::ConfigBook {
        version: Some(version(book.version)),
        now_us: book.now.0,
        target_rate_milli: book.settings.target_rate_milli,
        limits: book.cells.values().map(write_limit).collect(),
        history: book.history.iter().map(write_entry).collect(),
        refused: book.refused.iter().map(write_entry).collect(),
        refused_count: book.refused_count,
        layers: book.layers.iter().map(layers::write_layers).collect(),
        undos: book.undos.iter().map(layers::write_undo).collect(),
        kept_from: Some(version(book.kept_from)),
        paused_ramps: book.paused.iter().map(write_paused).collect(),
    }
}

fn write_paused((key, paused): (&CellKey, &Paused)) -> pb::ConfigPausedRamp {
    pb::ConfigPausedRamp {
        key: Some(pb::CellKey { limit: key.limit.clone(), meter: key.meter.clone(), tier: key.tier.clone() }),
        rate: paused.rate.map(|(to, _)| pb::Rate { micro_tokens: to.micro_tokens, period_us: to.period.0 }),
        rate_left_us: paused.rate.map_or(0, |(_, left)| left.0),
        burst_tokens: paused.burst.map(|(to, _)| to),
        burst_left_us: paused.burst.map_or(0, |(_, left)| left.0),
    }
}

fn read_paused(paused: pb::ConfigPausedRamp) -> Option<(CellKey, Paused)> {
    let key = paused.key?;
    let rate = paused.rate.map(|to| Rate { micro_tokens: to.micro_tokens, period: Span(to.period_us) });
    let paused = Paused {
        rate: rate.map(|to| (to, Span(paused.rate_left_us))),
        burst: paused.burst_tokens.map(|to| (to, Span(paused.burst_left_us))),
    };
    Some((CellKey { limit: key.limit, meter: key.meter, tier: key.tier }, paused))
}

fn read_book(book: pb::ConfigBook) -> Result<Book, StateError> {
    let mut cells = Vec::with_capacity(book.limits.len());
    for limit in book.limits {
        let cell = read_limit(limit)?;
        cells.push((cell.key.clone(), cell));
    }
    let newest = version_of(book.version.ok_or(StateError::Broken("the version"))?);
    Ok(Book {
        version: newest,
        now: LedgerTime(book.now_us),
        settings: Settings { target_rate_milli: book.target_rate_milli },
        cells: cells.into_iter().collect(),
        paused: book.paused_ramps.into_iter().filter_map(read_paused).collect(),
        history: book.history.into_iter().map(read_entry).collect(),
        refused: book.refused.into_iter().map(read_entry).collect(),
        refused_count: book.refused_count,
        layers: book.layers.into_iter().map(layers::read_layers).collect::<Result<_, _>>()?,
        undos: book.undos.into_iter().map(layers::read_undo).collect::<Result<_, _>>()?,
        kept_from: book.kept_from.map_or(newest, version_of),
    })
}

fn write_limit(cell: &CellConfig) -> pb::ConfigLimit {
    pb::ConfigLimit {
        limit: cell.key.limit.clone(),
        meter: cell.key.meter.clone(),
        tier: cell.key.tier.clone(),
        rate: Some(rate_curve(cell.rate)),
        burst: Some(burst_curve(cell.burst)),
        lease_us: cell.lease.0,
        fresh: cell.fresh,
        initially_empty: cell.initial == Initial::Empty,
        queue: cell.queue,
        conduct: conduct(cell.conduct),
        policy: policy(&cell.policy),
        priority: priority(cell.priority),
    }
}

fn read_limit(limit: pb::ConfigLimit) -> Result<CellConfig, StateError> {
    Ok(CellConfig {
        key: CellKey { limit: limit.limit, meter: limit.meter, tier: limit.tier },
        rate: rate_curve_of(limit.rate.ok_or(StateError::Broken("a rate"))?)?,
        burst: burst_curve_of(limit.burst.ok_or(StateError::Broken("a burst"))?),
        policy: policy_of(limit.policy),
        lease: Span(limit.lease_us),
        priority: priority_of(limit.priority)?,
        fresh: limit.fresh,
        initial: initial_of(limit.initially_empty),
        queue: limit.queue,
        conduct: conduct_of(limit.conduct)?,
    })
}

fn write_entry(entry: &Entry) -> pb::ConfigEntry {
    let outcome = match entry.outcome {
        Outcome::Applied => pb::ConfigOutcome::Applied,
        Outcome::Adopted => pb::ConfigOutcome::Adopted,
        Outcome::Refused => pb::ConfigOutcome::Refused,
        Outcome::Scheduled => pb::ConfigOutcome::Scheduled,
    };
    pb::ConfigEntry {
        version: Some(version(entry.version)),
        replaced: Some(version(entry.replaced)),
        at_us: entry.at.0,
        actor: entry.actor.clone(),
        reason: entry.reason.clone(),
        lines: entry.lines.clone(),
        lines_left_out: entry.lines_left_out,
        outcome: outcome.into(),
    }
}

fn read_entry(entry: pb::ConfigEntry) -> Entry {
    let outcome = match entry.outcome() {
        pb::ConfigOutcome::Applied => Outcome::Applied,
        pb::ConfigOutcome::Adopted => Outcome::Adopted,
        pb::ConfigOutcome::Refused => Outcome::Refused,
        pb::ConfigOutcome::Scheduled => Outcome::Scheduled,
    };
    Entry {
        version: version_of(entry.version.unwrap_or_default()),
        replaced: version_of(entry.replaced.unwrap_or_default()),
        at: LedgerTime(entry.at_us),
        actor: entry.actor,
        reason: entry.reason,
        lines: entry.lines,
        lines_left_out: entry.lines_left_out,
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::config::ApplyJson;
    use crate::wire::read_json;
    use tollgate_core::limit::Version;

    fn apply(book: &mut Book, at: u64, json: &str) {
        let change: ApplyJson = read_json(json.as_bytes()).unwrap();
        let _ = book.apply_signal(LedgerTime(at), &change);
    }

    /// A book in which every field has something to lose: ramps within ramps, refusals, a moved limit.
    fn full() -> Carried {
        let mut book = Book::new(LedgerTime(1_000_000));
        apply(
            &mut book,
            2_000_000,
            r#"{"actor":"ann","reason":"begin","set":[{"name":"api","rate":{"count":50},"burst":16},
            {"name":"ïmport","rate":{"count":5,"period_ms":86400000},"lease_ms":120000,"moved":true}]}"#,
        );
        apply(
            &mut book,
            3_000_000,
            r#"{"set":[{"name":"api","rate":{"count":6000,"period_ms":60000},"burst":33}]}"#,
        );
        apply(
            &mut book,
            9_777_777,
            r#"{"target_rate_milli":15000,"ramp_ms":15000,"set":[{"name":"api","rate":{"count":7},"burst":3}]}"#,
        );
        apply(
            &mut book,
            9_790_000,
            r#"{"set":[{"name":"daily","rate":{"count":9,"period_ms":86400000},"queue":4,"initial":"empty","policy":
            {"kind":"fixed_window","time_zone":"Europe/Berlin","tz_version":"2026f","boundaries_us":[1,86400000000]}}]}"#,
        );
        apply(
            &mut book,
            9_795_000,
            r#"{"actor":"bob","reason":"why","overrides":[{"limit":"api","value":{"rate":{"count":9},"burst":4},"for_ms":60000}],
            "schedules":[{"limit":"daily","name":"night","rule":{"from":"22:00","to":"06:00","days":["fri","sat"]},
            "value":{"times_milli":1500},"ramp_ms":1000,"windows_us":[[5,86400000000],[86400000000,90000000000]],"tz_version":"2026f"}]}"#,
        );
        apply(&mut book, 9_797_000, r#"{"remove":["ïmport"]}"#);
        apply(&mut book, 9_795_000, r#"{"pause_ramps":["api"]}"#);
        assert_eq!(book.paused.len(), 1);
        apply(
            &mut book,
            9_796_000,
            r#"{"ramp_ms":20000,"set":[{"name":"ïmport","rate":{"count":7,"period_ms":86400000}}]}"#,
        );
        apply(&mut book, 9_800_000, r#"{"remove":["nope"]}"#);
        book.overtake(LedgerTime(9_900_000), Version { run: 1_000_000, n: 9 });
        Carried {
            group: "default".to_owned(),
            book,
            unreadable: UnreadableJson {
                count: 3,
                last_name: "update_config".to_owned(),
                last_us: 9_000_000,
                last_error: "set: invalid type".to_owned(),
            },
            runs: 4,
            push: Push {
                acknowledged: Some(Version { run: 1_000_000, n: 3 }),
                acknowledged_at: LedgerTime(9_800_001),
                again: true,
                error: "refused".to_owned(),
            },
            escrows: [(CellKey::of("daily"), Escrow { seq: 7, tokens: 9 })].into(),
        }
    }

    #[test]
    fn nothing_is_lost_between_two_runs() {
        let carried = full();
        assert_eq!(Carried::decode(&carried.encode()).unwrap(), carried);
        assert!(carried.book.layers.values().all(|layers| layers.on_top.is_some()));
        assert!(carried.book.undos.iter().any(|undo| undo.cells.values().any(Option::is_some)));
        let mut begun = carried.clone();
        begun.push = Push::default();
        begun.book = Book::new(LedgerTime(5));
        assert_eq!(Carried::decode(&begun.encode()).unwrap(), begun);
    }

    #[test]
    fn a_ramp_that_is_carried_over_goes_on_as_it_was() {
        let carried = full();
        let again = Carried::decode(&carried.encode()).unwrap();
        for (key, cell) in &carried.book.cells {
            for ms in 0..30_000 {
                let now = LedgerTime(9_000_000 + ms * 1_000);
                assert_eq!(again.book.cells[key].rate.at(now), cell.rate.at(now));
                assert_eq!(again.book.cells[key].burst.at(now), cell.burst.at(now));
            }
        }
    }

    #[test]
    fn what_an_older_release_wrote_is_known_from_its_version_on() {
        let carried = full();
        let mut config = pb::Config::decode(carried.encode().as_slice()).unwrap();
        let book = config.book.as_mut().unwrap();
        (book.layers, book.undos, book.kept_from) = (Vec::new(), Vec::new(), None);
        let read = Carried::decode(&config.encode_to_vec()).unwrap().book;
        assert_eq!((read.kept_from, read.undos.len(), read.layers.len()), (carried.book.version, 0, 0));
    }

    #[test]
    fn what_changes_replaced_takes_no_more_than_is_counted_for_it() {
        let carried = full();
        let counted: usize = carried.book.undos.iter().map(super::super::book::snapshots::Undo::bytes).sum();
        let written: usize =
            carried.book.undos.iter().map(|undo| layers::write_undo(undo).encoded_len()).sum();
        assert!(written > 100 && written <= counted, "{written} of {counted}");
    }

    #[test]
    fn the_largest_state_fits_continue_as_new() {
        let mut carried = full();
        let names: Vec<String> = (0..990)
            .map(|n| format!(r#"{{"name":"{}{n:04}","rate":{{"count":999999999999}}}}"#, "n".repeat(190)))
            .collect();
        apply(&mut carried.book, 10_000_000, &format!(r#"{{"set":[{}]}}"#, names.join(",")));
        for n in 0..2_000 {
            let long = "r".repeat(1_000);
            apply(
                &mut carried.book,
                11_000_000,
                &format!(r#"{{"reason":"{long}","set":[{{"name":"api","rate":{{"count":{n}}}}}]}}"#),
            );
            apply(
                &mut carried.book,
                11_000_000,
                &format!(r#"{{"reason":"{long}","remove":["{long}","x{n}"]}}"#),
            );
        }
        let windows: Vec<String> = (0..32_u64)
            .map(|n| 1_796_043_897_000_000 + n * 86_400_000_000)
            .map(|begin| format!("[{begin},{}]", begin + 1_000))
            .collect();
        let schedule = |n: usize| {
            format!(
                r#"{{"limit":"api","name":"{}{n:02}","rule":{{"from":"22:00","to":"06:00","time_zone":"{}"}},
                "value":{{"rate":{{"count":999999999999}}}},"windows_us":[{}],"tz_version":"2026f"}}"#,
                "s".repeat(60),
                "z".repeat(64),
                windows.join(",")
            )
        };
        let schedules: Vec<String> = (0..99).map(schedule).collect();
        apply(&mut carried.book, 12_000_000, &format!(r#"{{"schedules":[{}]}}"#, schedules.join(",")));
        let over = |n: usize| {
            format!(r#"{{"limit":"{}{n:04}","value":{{"times_milli":5}},"for_ms":60000}}"#, "n".repeat(190))
        };
        let overrides: Vec<String> = (0..99).map(over).collect();
        let change = format!(
            r#"{{"actor":"{}","reason":"{}","overrides":[{}]}}"#,
            "a".repeat(200),
            "r".repeat(1_000),
            overrides.join(",")
        );
        apply(&mut carried.book, 12_000_000, &change);
        assert_eq!(carried.book.layers.values().filter(|layers| layers.over.is_some()).count(), 100);
        assert_eq!(carried.book.layers.values().map(|layers| layers.schedules.len()).sum::<usize>(), 100);
        assert_eq!(carried.book.cells.len(), 993);
        let bytes = carried.encode().len();
        assert!(bytes < 1024 * 1024, "{bytes}");
    }

    #[test]
    fn other_bytes_are_an_error() {
        assert!(Carried::decode(b"\xff\xff").is_err());
        assert!(Carried::decode(b"").is_err());
    }
}
