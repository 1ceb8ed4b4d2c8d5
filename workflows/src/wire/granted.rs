//! Outcomes of strict permits, as they are told to workflows: the input of signal `granted`, the result of workflow
//! `tollgate.preload`, and the permit that an activity carries.

use super::lease::AcquireReplyJson;
use super::{Unreadable, read};
use serde::{Deserialize, Serialize};
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payload;
use tollgate_core::limit::CellKey;
use tollgate_core::units::Span;

/// The signal that brings the outcome to the workflow that `reply_to` names.
pub const GRANTED: &str = "granted";
/// The header in which an activity carries its permit: a [`PermitJson`].
pub const PERMIT_HEADER: &str = "tollgate-permit";
/// The longest `reply_to`: Temporal's own limit for a workflow id, unless its operators have raised that.
pub const REPLY_TO_BYTES_MAX: usize = 1_000;

/// What signals `lease`, `report` and `revoke` may say beside their own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyToJson {
    /// The id of the workflow that gets the outcome by signal [`GRANTED`]; whichever run of it is the current one then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// With `lease`: who won't have the permit within this is refused at once, as far as that can be told. Whoever is not
    /// refused, and waits no longer, says so by signal `report` with `used` 0. As long as it takes if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// With `lease` and `reply_to`: the place is kept for so long after it was last asked for; a day if missing. Whoever
    /// asks again now and then, with the same id, leaves no place behind when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
}

impl ReplyToJson {
    /// Reads these fields of a message that has others beside them.
    ///
    /// # Errors
    /// [`Unreadable`] when one of them is wrong.
    pub fn of(input: &RawValue) -> Result<ReplyToJson, Unreadable> {
        let fields: ReplyToJson = read(input)?;
        if let Some(id) = fields.reply_to.as_ref().filter(|id| id.is_empty() || id.len() > REPLY_TO_BYTES_MAX)
        {
            let problem = format!("is {} bytes long, allowed: 1 to {REPLY_TO_BYTES_MAX}", id.len());
            return Err(Unreadable::of("reply_to", problem));
        }
        Ok(fields)
    }
}

/// Input of signal [`GRANTED`], and the result of workflow `tollgate.preload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedJson {
    /// The permit: as it was asked for.
    pub id: String,
    /// Who asked.
    #[serde(default)]
    pub client: String,
    /// The group: workflow `tollgate/<group>` granted it and takes its report.
    #[serde(default)]
    pub group: String,
    /// Its limit.
    #[serde(default)]
    pub limit: String,
    /// Its meter.
    #[serde(default)]
    pub meter: String,
    /// Its tier.
    #[serde(default)]
    pub tier: String,
    /// Tokens.
    #[serde(default)]
    pub cost: u64,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: OutcomeJson,
}

/// What became of a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum OutcomeJson {
    /// Granted: the work may start until `valid_until_us`. Report its use by signal `report`.
    Granted {
        /// How long it could be used when it was granted.
        lease_ms: u64,
        /// When it was granted, by the clock of the Temporal server.
        granted_us: u64,
        /// Until when the work may start, by that clock.
        valid_until_us: u64,
        /// Until when the permit counts unless its use is reported: a little longer, for clocks that disagree.
        expires_us: u64,
        /// It was granted before: this only answers a request that was sent again.
        #[serde(default)]
        repeated: bool,
    },
    /// No permit.
    Refused {
        /// As in the reply to update `acquire`; also `deadline`: not within `wait_ms`; `coordinator_lost`: nobody
        /// answered; `unreadable`.
        reason: String,
        /// What to do.
        message: String,
        /// With `cost_above_burst`: the burst now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burst: Option<u64>,
        /// When asking again makes sense, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The answer to signals `report` and `revoke`: it has ended.
    Ended {
        /// `used`, `released`, `expired`, `abandoned`, `cost_above_burst`; `revoked` for all permits of a client.
        how: String,
    },
}

impl OutcomeJson {
    /// A refusal, in the words of update `acquire`.
    pub fn refused(reply: AcquireReplyJson, retry_after: Option<Span>) -> OutcomeJson {
        let (reason, message, burst) = match reply {
            AcquireReplyJson::Refused { reason, message, burst } => (reason, message, burst),
            AcquireReplyJson::Granted { .. } | AcquireReplyJson::Queued { .. } => {
                ("deadline".to_owned(), "not granted within wait_ms; ask again later".to_owned(), None)
            }
        };
        let retry_after_ms = retry_after.map(Span::millis_ceil);
        OutcomeJson::Refused { reason, message, burst, retry_after_ms }
    }
}

/// A permit on its way to the activity that it was taken for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitJson {
    /// The permit.
    pub id: String,
    /// Its group.
    pub group: String,
    /// Its limit.
    pub limit: String,
    /// Its meter.
    pub meter: String,
    /// Its tier.
    pub tier: String,
    /// Tokens.
    pub cost: u64,
    /// Until when the work may start, by the clock of the Temporal server.
    pub valid_until_us: u64,
}

impl PermitJson {
    /// What a header says.
    ///
    /// # Errors
    /// [`Unreadable`] when it is no permit.
    pub fn of(header: &Payload) -> Result<PermitJson, Unreadable> {
        read(&RawValue::new(vec![header.clone()]))
    }

    /// Whether it is for the only meter and tier of this limit.
    pub fn is_for(&self, group: &str, limit: &str) -> bool {
        self.group == group
            && self.limit == limit
            && self.meter == CellKey::METER
            && self.tier == CellKey::TIER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::write;
    use serde_json::json;

    #[test]
    fn an_outcome_is_one_flat_object_and_reads_back() {
        let outcome = OutcomeJson::Granted {
            lease_ms: 15_000,
            granted_us: 1,
            valid_until_us: 2,
            expires_us: 3,
            repeated: false,
        };
        let text = |text: &str| text.to_owned();
        let granted = GrantedJson {
            id: text("a"),
            client: text("c"),
            group: text("g"),
            limit: text("l"),
            meter: text("requests"),
            tier: text("default"),
            cost: 2,
            outcome,
        };
        let json = serde_json::to_value(&granted).unwrap();
        assert_eq!((&json["status"], &json["valid_until_us"]), (&json!("granted"), &json!(2)));
        assert_eq!(serde_json::from_value::<GrantedJson>(json).unwrap(), granted);
        let least = json!({"id": "a", "status": "refused", "reason": "x", "message": "y", "unknown": [1]});
        assert!(serde_json::from_value::<GrantedJson>(least).is_ok());
    }

    #[test]
    fn an_address_that_is_none_is_refused_with_its_field() {
        let long = "x".repeat(REPLY_TO_BYTES_MAX + 1);
        for bad in ["", long.as_str()] {
            let error = ReplyToJson::of(&write(&json!({"limit": "l", "reply_to": bad}))).unwrap_err();
            assert!(error.to_string().starts_with("reply_to: is "), "{error}");
        }
        let error = ReplyToJson::of(&write(&json!({"wait_ms": "soon"}))).unwrap_err();
        assert!(error.to_string().starts_with("wait_ms: "), "{error}");
        assert_eq!(ReplyToJson::of(&write(&json!({"limit": "l"}))).unwrap(), ReplyToJson::default());
    }
}
