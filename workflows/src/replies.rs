//! What the coordinator owes to workflows: who waits for the outcome of which strict permit, and which outcomes are on
//! their way.
//!
//! The ledger knows permits; whom to tell is known only here. An outcome that is lost in spite of all is had again by
//! asking again with the same id, so everything here may be bounded by forgetting.

use crate::proto as pb;
use crate::wire::granted::{GrantedJson, OutcomeJson};
use crate::wire::lease::{AcquireReplyJson, ended_text};
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::strict::{AcquireOutcome, Stage, Strict};
use tollgate_core::limit::CellKey;
use tollgate_core::units::LedgerTime;

/// Workflows that may wait for permits of one group: twice what one limit remembers. Each is up to 1.5 KiB of the state
/// that goes through continue-as-new, usually a tenth of that.
pub const AWAITED_MAX: usize = 2_000;
/// Outcomes that may be on their way: as many as can be owed.
pub const OUTBOX_MAX: usize = AWAITED_MAX;

/// Which permit.
pub type PermitKey = (CellKey, String);

/// Who waits for an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Awaited {
    reply_to: String,
    /// Its place is kept until then.
    until: LedgerTime,
}

/// An outcome on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The workflow's id.
    pub to: String,
    /// What it is told.
    pub granted: GrantedJson,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies {
    /// At most [`AWAITED_MAX`]; each waits in the ledger.
    awaited: BTreeMap<PermitKey, Awaited>,
    /// At most [`OUTBOX_MAX`]; in the order in which they came about.
    outbox: VecDeque<Reply>,
}

impl Replies {
    /// Notes that `reply_to` waits for a permit. Returns `false` when too many wait already.
    pub fn expect(&mut self, permit: PermitKey, reply_to: String, until: LedgerTime) -> bool {
        if self.awaited.len() >= AWAITED_MAX && !self.awaited.contains_key(&permit) {
            return false;
        }
        self.awaited.insert(permit, Awaited { reply_to, until });
        true
    }

    /// Sends an outcome. The oldest is forgotten when too many are on their way.
    pub fn send(&mut self, to: String, granted: GrantedJson) {
        if self.outbox.len() >= OUTBOX_MAX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(Reply { to, granted });
    }

    /// The next to send.
    pub fn take_next(&mut self) -> Option<Reply> {
        self.outbox.pop_front()
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Places that are kept no longer: nobody has asked for them for as long as they were to be kept.
    pub fn stale(&self, now: LedgerTime) -> Vec<PermitKey> {
        let stale = self.awaited.iter().filter(|(_, awaited)| awaited.until < now);
        stale.map(|(permit, _)| permit.clone()).collect()
    }

    /// Nobody waits for this any more.
    pub fn cancel(&mut self, permit: &PermitKey) {
        self.awaited.remove(permit);
    }

    /// Forgets what a workflow waits for that is gone, and gives the places that it has.
    pub fn forget(&mut self, reply_to: &str) -> Vec<PermitKey> {
        let gone = self.awaited.extract_if(.., |_, awaited| awaited.reply_to == reply_to);
        gone.map(|(permit, _)| permit).collect()
    }

    /// Sends the outcomes of all that wait no more.
    pub fn collect(&mut self, group: &str, ledger: &Ledger) {
        if self.awaited.is_empty() {
            return;
        }
        let cells = &ledger.state().cells;
        let strict = |(key, id): &PermitKey| cells.get(key).and_then(|cell| cell.strict.get(id));
        let is_over = |permit: &PermitKey| strict(permit).is_none_or(|strict| strict.place().is_none());
        let over: Vec<_> = self.awaited.extract_if(.., |permit, _| is_over(permit)).collect();
        for (permit, awaited) in over {
            let granted = outcome(group, &permit, strict(&permit), false);
            self.send(awaited.reply_to, granted);
        }
    }

    /// As it goes through continue-as-new.
    pub fn to_proto(&self) -> pb::Replies {
        let awaited = self.awaited.iter().map(|((key, id), awaited)| pb::Awaited {
            key: Some(pb::CellKey {
                limit: key.limit.clone(),
                meter: key.meter.clone(),
                tier: key.tier.clone(),
            }),
            id: id.clone(),
            reply_to: awaited.reply_to.clone(),
            until_us: awaited.until.0,
        });
        let outbox = self.outbox.iter().map(|reply| pb::Reply {
            to: reply.to.clone(),
            // Our own types have string keys and no failing serializers.
            json: serde_json::to_vec(&reply.granted).unwrap_or_default(),
        });
        pb::Replies { awaited: awaited.collect(), outbox: outbox.collect() }
    }

    /// As it came through continue-as-new; what can't be read is left out.
    pub fn of_proto(replies: pb::Replies) -> Replies {
        let awaited = replies.awaited.into_iter().filter_map(|awaited| {
            let key = awaited.key?;
            let key = CellKey { limit: key.limit, meter: key.meter, tier: key.tier };
            let until = LedgerTime(awaited.until_us);
            Some(((key, awaited.id), Awaited { reply_to: awaited.reply_to, until }))
        });
        let outbox = replies.outbox.into_iter().filter_map(|reply| {
            let granted = serde_json::from_slice(&reply.json).ok()?;
            Some(Reply { to: reply.to, granted })
        });
        Replies { awaited: awaited.collect(), outbox: outbox.collect() }
    }
}

/// How a permit stands, for who waits for it.
pub fn outcome(group: &str, permit: &PermitKey, strict: Option<&Strict>, repeated: bool) -> GrantedJson {
    let (key, id) = permit;
    let outcome = match strict.map(|strict| (strict.stage, strict.lease)) {
        Some((Stage::Granted { at, expires }, lease)) => OutcomeJson::Granted {
            lease_ms: lease.millis(),
            granted_us: at.0,
            valid_until_us: (at + lease).0,
            expires_us: expires.0,
            repeated,
        },
        Some((Stage::Over { how, .. }, _)) => refused(key, 0, AcquireOutcome::Ended(how)),
        // Nobody is told of a place: who is asked for has an outcome.
        Some((Stage::Waiting(_), _)) | None => refused(key, 0, AcquireOutcome::UnknownId),
    };
    GrantedJson {
        id: id.clone(),
        client: strict.map(|strict| strict.client.clone()).unwrap_or_default(),
        group: group.to_owned(),
        limit: key.limit.clone(),
        meter: key.meter.clone(),
        tier: key.tier.clone(),
        cost: strict.map_or(0, |strict| strict.cost),
        outcome,
    }
}

/// A refusal of so much of a cell.
pub fn refused(key: &CellKey, cost: u64, why: AcquireOutcome) -> OutcomeJson {
    OutcomeJson::refused(AcquireReplyJson::of(why, cost, key), None)
}

/// The answer to a report.
pub fn settled(key: &CellKey, used: u64, outcome: AcquireOutcome) -> OutcomeJson {
    match outcome {
        AcquireOutcome::Ended(how) => OutcomeJson::Ended { how: ended_text(how).to_owned() },
        why => refused(key, used, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::curve::Rate;
    use tollgate_core::ledger::strict::{Acquire, Settle};
    use tollgate_core::ledger::{Configure, Input, Settings, Start};
    use tollgate_core::limit::{CellConfig, Version};
    use tollgate_core::units::Span;

    /// A burst of one, and one a second.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Start::First, 7, LedgerTime(0));
        let cells = vec![CellConfig::constant("l", Rate::per_second(1), 1, Span::from_secs(15))];
        let version = Version { run: 1, n: 1 };
        ledger.apply(
            LedgerTime(0),
            Input::Configure(Configure { version, settings: Settings::default(), cells }),
        );
        ledger
    }

    fn permit(id: &str) -> PermitKey {
        (CellKey::of("l"), id.to_owned())
    }

    fn ask(ledger: &mut Ledger, at: LedgerTime, id: &str) {
        let lease = Span::from_secs(2);
        let (client, key) = ("c".to_owned(), CellKey::of("l"));
        let acquire = Acquire { id: id.to_owned(), client, key, cost: 1, lease, auto: true };
        ledger.apply(at, Input::Acquire(acquire));
    }

    #[test]
    fn each_who_waits_is_told_once_also_across_continue_as_new() {
        let (mut ledger, mut replies) = (ledger(), Replies::default());
        for id in ["a", "b", "c"] {
            ask(&mut ledger, LedgerTime(1), id);
            assert!(replies.expect(permit(id), format!("w-{id}"), LedgerTime(u64::MAX)));
            replies.collect("g", &ledger);
        }
        let first = replies.take_next().unwrap();
        assert!(replies.is_empty(), "the others wait: {replies:?}");
        assert_eq!((first.to.as_str(), first.granted.id.as_str()), ("w-a", "a"));
        let OutcomeJson::Granted { granted_us, valid_until_us, expires_us, repeated, .. } =
            first.granted.outcome
        else {
            panic!("{first:?}")
        };
        assert_eq!((granted_us, valid_until_us, repeated), (1, 2_000_001, false));
        assert!(expires_us > valid_until_us, "the ledger counts longer");

        let settle = Settle { id: "a".to_owned(), key: CellKey::of("l"), used: 1 };
        ledger.apply(LedgerTime(2), Input::Settle(settle));
        ledger.apply(LedgerTime(1_100_000), Input::Tick);
        replies.collect("g", &ledger);
        let mut replies = Replies::of_proto(replies.to_proto());
        assert_eq!(replies.take_next().map(|reply| reply.to), Some("w-b".to_owned()));
        replies.collect("g", &ledger);
        assert!(replies.is_empty(), "c waits on, and nobody is told twice: {replies:?}");
    }

    #[test]
    fn places_of_those_who_are_gone_or_ask_no_more_are_found() {
        let mut replies = Replies::default();
        for (id, to, until) in [("a", "w", 10), ("b", "w", 20), ("c", "v", 30)] {
            assert!(replies.expect(permit(id), to.to_owned(), LedgerTime(until)));
        }
        assert_eq!(replies.stale(LedgerTime(20)), [permit("a")]);
        // Asked again: kept longer.
        assert!(replies.expect(permit("a"), "w".to_owned(), LedgerTime(50)));
        assert_eq!(replies.stale(LedgerTime(21)), [permit("b")]);
        assert_eq!(replies.forget("w"), [permit("a"), permit("b")]);
        assert_eq!(replies.stale(LedgerTime(100)), [permit("c")]);
    }

    #[test]
    fn a_place_that_ended_is_told_with_its_reason() {
        let (mut ledger, mut replies) = (ledger(), Replies::default());
        for id in ["a", "b"] {
            ask(&mut ledger, LedgerTime(1), id);
        }
        replies.expect(permit("b"), "w".to_owned(), LedgerTime(u64::MAX));
        replies.expect(permit("never"), "v".to_owned(), LedgerTime(u64::MAX));
        let settle = Settle { id: "b".to_owned(), key: CellKey::of("l"), used: 0 };
        ledger.apply(LedgerTime(2), Input::Settle(settle));
        replies.collect("g", &ledger);
        let reasons: Vec<String> = std::iter::from_fn(|| replies.take_next())
            .map(|reply| match reply.granted.outcome {
                OutcomeJson::Refused { reason, .. } => reason,
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(reasons, ["abandoned", "unknown_id"]);
    }

    #[test]
    fn what_waits_and_what_is_on_its_way_is_bounded() {
        let mut replies = Replies::default();
        for n in 0..AWAITED_MAX {
            assert!(replies.expect(permit(&n.to_string()), "w".to_owned(), LedgerTime(1)));
        }
        assert!(!replies.expect(permit("more"), "w".to_owned(), LedgerTime(1)));
        assert!(replies.expect(permit("0"), "w".to_owned(), LedgerTime(1)), "asked again");
        let told = outcome("g", &permit("x"), None, false);
        for n in 0..=OUTBOX_MAX {
            replies.send(n.to_string(), told.clone());
        }
        assert_eq!(
            replies.take_next().map(|reply| reply.to),
            Some("1".to_owned()),
            "the oldest is forgotten"
        );
    }
}
