//! Answers to heartbeats that came by signal, until they are sent.

use crate::proto as pb;
use crate::wire::lease::{AnswerJson, HeartbeatReplyJson, RefusedJson, incarnation_text};
use tollgate_core::ledger::Ledger;
use tollgate_core::message::{Incarnation, Reply, RequestError};

/// An answer to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) incarnation: Incarnation,
    pub(super) seq: u64,
    /// `None`: the reply that the ledger stores for the worker.
    refusal: Option<RefusedJson>,
}

impl Answer {
    pub(super) fn new(incarnation: Incarnation, seq: u64, answer: &Result<Reply, RequestError>) -> Answer {
        let refusal = match HeartbeatReplyJson::of(answer) {
            HeartbeatReplyJson::Ok(_) => None,
            HeartbeatReplyJson::Refused(refused) => Some(refused),
        };
        Answer { incarnation, seq, refusal }
    }

    /// What is sent; nothing when the worker has asked anew since.
    pub(super) fn json(self, ledger: &Ledger) -> Option<AnswerJson> {
        let reply = match self.refusal {
            Some(refused) => HeartbeatReplyJson::Refused(refused),
            None => {
                let state = ledger.state();
                let worker = state.workers.get(&self.incarnation).filter(|worker| worker.seq == self.seq)?;
                HeartbeatReplyJson::of(&Ok(worker.reply.as_ref()?.reply(state.epoch, self.seq)))
            }
        };
        Some(AnswerJson { incarnation: incarnation_text(self.incarnation), seq: self.seq, reply })
    }

    pub(super) fn to_proto(&self) -> pb::Answer {
        let refusal = self.refusal.as_ref().map(serde_json::to_vec);
        pb::Answer {
            incarnation: self.incarnation.0.to_be_bytes().to_vec(),
            seq: self.seq,
            // Our own types have string keys and no failing serializers.
            refusal: refusal.and_then(Result::ok).unwrap_or_default(),
        }
    }

    /// As it came through continue-as-new; nothing if it can't be read: then the worker asks again.
    pub(super) fn of_proto(answer: pb::Answer) -> Option<Answer> {
        let incarnation = Incarnation(u128::from_be_bytes(answer.incarnation.try_into().ok()?));
        let refusal = match answer.refusal.as_slice() {
            [] => None,
            json => Some(serde_json::from_slice(json).ok()?),
        };
        Some(Answer { incarnation, seq: answer.seq, refusal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::curve::Rate;
    use tollgate_core::ledger::{Configure, Input, Output, Settings, Start};
    use tollgate_core::limit::{CellConfig, CellKey, Version};
    use tollgate_core::message::{CellReport, Request};
    use tollgate_core::units::{Amount, LedgerTime, Span};

    fn request(seq: u64) -> Request {
        let report = CellReport {
            key: CellKey::of("l"),
            borrowed: false,
            for_tier: None,
            acting: None,
            held: Amount::ZERO,
            used: 0,
            returned: Amount::ZERO,
            debt: Amount::ZERO,
            out: 0,
            demand: 5_000_000,
            waiting: 1,
            largest: 1,
        };
        Request { incarnation: Incarnation(9), seq, nonce: seq, worker: "w".to_owned(), cells: vec![report] }
    }

    #[test]
    fn an_answer_is_the_stored_reply_also_across_continue_as_new_and_only_to_the_newest_request() {
        let mut ledger = Ledger::new(Start::First, 7, LedgerTime(0));
        let cells = vec![CellConfig::constant("l", Rate::per_second(10), 10, Span::from_secs(15))];
        let version = Version { run: 1, n: 1 };
        ledger.apply(
            LedgerTime(0),
            Input::Configure(Configure { version, settings: Settings::default(), cells }),
        );
        let mut answer =
            |seq: u64, at: u64| match ledger.apply(LedgerTime(at), Input::Heartbeat(request(seq))) {
                Output::Reply(reply) => (Answer::new(Incarnation(9), seq, &reply), reply),
                other => panic!("{other:?}"),
            };
        let (first, reply) = answer(1, 5);
        let (second, newer) = answer(2, 900_000);
        let (stale, refusal) = answer(1, 900_001);
        let sent = |answer: Answer| Answer::of_proto(answer.to_proto()).unwrap().json(&ledger);
        assert!(reply.is_ok());
        assert_eq!(sent(first), None, "a newer one was answered");
        let json = sent(second).unwrap();
        assert_eq!((json.seq, json.reply), (2, HeartbeatReplyJson::of(&newer)));
        let json = sent(stale).unwrap();
        assert_eq!(json.reply, HeartbeatReplyJson::of(&refusal));
        assert!(matches!(json.reply, HeartbeatReplyJson::Refused(_)), "{json:?}");
    }
}
