//! What the coordinator's signals do.

use super::answers::Answer;
use super::{ANSWERS_MAX, Coordinator};
use crate::replies::{self, PermitKey};
use crate::wire::granted::{GrantedJson, OutcomeJson, ReplyToJson};
use crate::wire::lease::{AcquireJson, AcquireReplyJson, HeartbeatJson, ReportJson, key_of};
use crate::wire::{Unreadable, read};
use serde::{Deserialize, Serialize};
use temporalio_common::data_converters::RawValue;
use tollgate_core::ledger::strict::{Acquire, AcquireOutcome, Settle, Stage, Strict};
use tollgate_core::ledger::{Input, Output};
use tollgate_core::limit::{CellKey, NAME_BYTES_MAX, check_name};
use tollgate_core::units::{LedgerTime, Span};

/// Input of signal `revoke` from a client of strict permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RevokeClientJson {
    client: String,
}

/// What tells one permit from others, in a message that can't be read otherwise.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamesJson {
    id: String,
    client: String,
    limit: String,
}

impl Coordinator {
    pub(super) fn lease_signal(&mut self, now: LedgerTime, input: &RawValue) -> Result<(), Unreadable> {
        let address = ReplyToJson::of(input)?;
        let mut wanted = match read::<AcquireJson>(input) {
            Ok(wanted) => wanted,
            // A heartbeat names its limits elsewhere.
            Err(_) if is_from_worker(input).unwrap_or(false) => return self.heartbeat_signal(now, input),
            Err(error) => return self.answer_unreadable(address, input, error),
        };
        if wanted.id.is_empty() {
            check_name("client", &wanted.client)?;
            self.next_grant += 1;
            let named = format!("{}#{}", wanted.client, self.next_grant);
            // A long name leaves no room for the number.
            wanted.id = if named.len() <= NAME_BYTES_MAX { named } else { format!("#{}", self.next_grant) };
        }
        match wanted.check(true) {
            Ok(acquire) => self.ask(now, acquire, address),
            Err(error) => self.answer_unreadable(address, input, error),
        }
    }

    /// A worker that sends signals alone: it hears the answer on its private task queue. Signals come in the same order
    /// live and on replay, so that they are taken also while updates are put off.
    fn heartbeat_signal(&mut self, now: LedgerTime, input: &RawValue) -> Result<(), Unreadable> {
        let request = read::<HeartbeatJson>(input)?.check()?;
        let (incarnation, seq) = (request.incarnation, request.seq);
        let Output::Reply(reply) = self.ledger.apply(now, Input::Heartbeat(request)) else { return Ok(()) };
        // It waits for the newest alone.
        self.answers.retain(|answer| answer.incarnation != incarnation);
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(Answer::new(incarnation, seq, &reply));
        }
        Ok(())
    }

    /// Asks the ledger, and answers or remembers who is to be answered.
    fn ask(&mut self, now: LedgerTime, acquire: Acquire, address: ReplyToJson) -> Result<(), Unreadable> {
        let (client, cost) = (acquire.client.clone(), acquire.cost);
        let permit = (acquire.key.clone(), acquire.id.clone());
        let repeated =
            self.strict(&permit).is_some_and(|strict| matches!(strict.stage, Stage::Granted { .. }));
        let Output::Acquired(outcome) = self.ledger.apply(now, Input::Acquire(acquire)) else {
            return Ok(());
        };
        // This message is answered here, or waited for anew.
        self.replies.cancel(&permit);
        let refusal = match outcome {
            AcquireOutcome::Granted { .. } => {
                if let Some(to) = address.reply_to {
                    let granted = replies::outcome(&self.group, &permit, self.strict(&permit), repeated);
                    self.replies.send(to, granted);
                }
                return Ok(());
            }
            AcquireOutcome::Queued { due, .. } => {
                let wait = address.wait_ms.map(Span::from_millis);
                let until =
                    address.keep_ms.map_or(LedgerTime(u64::MAX), |keep| now + Span::from_millis(keep));
                let is_kept = |me: &mut Self| match &address.reply_to {
                    Some(to) => me.replies.expect(permit.clone(), to.clone(), until),
                    None => true,
                };
                let refusal =
                    if wait.is_some_and(|wait| wait == Span::ZERO || due.is_some_and(|due| due > wait)) {
                        OutcomeJson::refused(AcquireReplyJson::of(outcome, cost, &permit.0), due)
                    } else if is_kept(self) {
                        return Ok(());
                    } else {
                        replies::refused(&permit.0, cost, AcquireOutcome::QueueFull)
                    };
                self.give_up(now, vec![permit.clone()]);
                refusal
            }
            why => replies::refused(&permit.0, cost, why),
        };
        let (CellKey { limit, meter, tier }, id) = permit;
        let group = self.group.clone();
        self.answer(address, GrantedJson { id, client, group, limit, meter, tier, cost, outcome: refusal })
    }

    fn strict(&self, (key, id): &PermitKey) -> Option<&Strict> {
        self.ledger.state().cells.get(key)?.strict.get(id)
    }

    /// Sends an answer; a refusal that nobody wants to hear is counted.
    fn answer(&mut self, address: ReplyToJson, granted: GrantedJson) -> Result<(), Unreadable> {
        match (address.reply_to, granted.outcome) {
            (Some(to), outcome) => self.replies.send(to, GrantedJson { outcome, ..granted }),
            (None, OutcomeJson::Refused { reason, message, .. }) => {
                return Err(Unreadable::of(&reason, message));
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// What can't be read is counted, and told to whoever wants to hear.
    fn answer_unreadable(
        &mut self,
        address: ReplyToJson,
        input: &RawValue,
        error: Unreadable,
    ) -> Result<(), Unreadable> {
        if let Some(to) = address.reply_to {
            let NamesJson { id, client, limit } = read(input).unwrap_or_default();
            let (reason, message) = ("unreadable".to_owned(), error.to_string());
            let outcome = OutcomeJson::Refused { reason, message, burst: None, retry_after_ms: None };
            let group = self.group.clone();
            let (meter, tier) = (String::new(), String::new());
            self.replies.send(to, GrantedJson { id, client, group, limit, meter, tier, cost: 0, outcome });
        }
        Err(error)
    }

    pub(super) fn report_signal(&mut self, now: LedgerTime, input: &RawValue) -> Result<(), Unreadable> {
        if is_from_worker(input)? {
            let request = read::<HeartbeatJson>(input)?.check()?;
            self.ledger.apply(now, Input::Report(request));
            return Ok(());
        }
        let address = ReplyToJson::of(input)?;
        let report = read::<ReportJson>(input)?;
        let key = key_of(report.limit, report.meter, report.tier)?;
        let permit = (key.clone(), report.id.clone());
        let client = self.strict(&permit).map(|strict| strict.client.clone()).unwrap_or_default();
        // Whoever says what was used, or that nothing will be, waits no more.
        self.replies.cancel(&permit);
        let settle = Settle { id: report.id, key, used: report.used };
        let Output::Acquired(outcome) = self.ledger.apply(now, Input::Settle(settle)) else { return Ok(()) };
        let (key, id) = permit;
        let short = quoted(&id);
        if address.reply_to.is_none() {
            match outcome {
                // A place that isn't known needs no giving up.
                AcquireOutcome::UnknownId if report.used > 0 => {
                    let problem = format!("is {short}, allowed: the id of a permit that is remembered");
                    return Err(Unreadable::of("id", problem));
                }
                AcquireOutcome::NotGranted => {
                    let problem = format!("is {}, allowed: 0, since permit {short} still waits", report.used);
                    return Err(Unreadable::of("used", problem));
                }
                AcquireOutcome::UnknownLimit => {
                    return Err(Unreadable::of("limit", format!("there is no limit {key} in this group")));
                }
                _ => return Ok(()),
            }
        }
        let outcome = replies::settled(&key, report.used, outcome);
        let (group, cost) = (self.group.clone(), report.used);
        let CellKey { limit, meter, tier } = key;
        self.answer(address, GrantedJson { id, client, group, limit, meter, tier, cost, outcome })
    }

    pub(super) fn revoke_signal(&mut self, now: LedgerTime, input: &RawValue) -> Result<(), Unreadable> {
        if is_from_worker(input)? {
            let request = read::<HeartbeatJson>(input)?.check()?;
            self.ledger.apply(now, Input::Revoke(request));
            return Ok(());
        }
        let address = ReplyToJson::of(input)?;
        let client = read::<RevokeClientJson>(input)?.client;
        let mut permits = Vec::new();
        for (key, cell) in &self.ledger.state().cells {
            let mine = cell.strict.iter().filter(|(_, strict)| strict.client == client);
            let open = mine.filter(|(_, strict)| !matches!(strict.stage, Stage::Over { .. }));
            // What wasn't reported counts as used: nobody can tell. What waits gives its place up.
            permits.extend(open.map(|(id, strict)| Settle {
                id: id.clone(),
                key: key.clone(),
                used: if strict.place().is_some() { 0 } else { strict.cost },
            }));
        }
        for settle in permits {
            self.ledger.apply(now, Input::Settle(settle));
        }
        let outcome = OutcomeJson::Ended { how: "revoked".to_owned() };
        let (id, limit, meter, tier) = Default::default();
        let group = self.group.clone();
        self.answer(address, GrantedJson { id, client, group, limit, meter, tier, cost: 0, outcome })
    }
}

/// The beginning of a text that somebody sent.
fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

/// Whether a report or revoke comes from a worker, not from a client of strict permits.
fn is_from_worker(input: &RawValue) -> Result<bool, Unreadable> {
    let message: serde_json::Value = read(input)?;
    Ok(message.get("incarnation").is_some())
}
