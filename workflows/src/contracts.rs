//! What workflows, their hosts and their callers agree on: names, ids, start inputs and activities.

use crate::wire::Unreadable;
use crate::wire::config::{ConfigureJson, VersionJson, WindowJson};
use crate::wire::layers::RuleJson;
use serde::{Deserialize, Serialize};
use tollgate_core::ledger::{self, Settings};
use tollgate_core::limit::Version;

/// The task queue of the hosts that run coordinators and config workflows.
pub const TASK_QUEUE: &str = "tollgate";
/// The type of the workflow that runs the ledger of a group.
pub const COORDINATOR_TYPE: &str = "tollgate.coordinator";
/// The type of the workflow that holds the limits of a group.
pub const CONFIG_TYPE: &str = "tollgate.config";
/// The type of the workflow that takes one permit and gives it as its result.
pub const PRELOAD_TYPE: &str = "tollgate.preload";
/// The group of those who name none.
pub const GROUP_DEFAULT: &str = "default";
/// The activity that brings urgent news to one worker, or the answer to a heartbeat that came by signal; run on its
/// [`notice_queue`].
pub const NOTICE_ACTIVITY: &str = "tollgate.notice";
/// The longest name of a group: it is part of workflow ids.
pub const GROUP_BYTES_MAX: usize = 100;

const COORDINATOR_PREFIX: &str = "tollgate/";
const CONFIG_PREFIX: &str = "tollgate-config/";

/// The id of the workflow that runs the ledger of `group`.
pub fn coordinator_id(group: &str) -> String {
    format!("{COORDINATOR_PREFIX}{group}")
}

/// The id of the workflow that holds the limits of `group`.
pub fn config_id(group: &str) -> String {
    format!("{CONFIG_PREFIX}{group}")
}

/// The group of a coordinator, from its workflow id.
pub fn group_of_coordinator(workflow_id: &str) -> Option<&str> {
    workflow_id.strip_prefix(COORDINATOR_PREFIX).filter(|group| check_group(group).is_ok())
}

/// The group of a config workflow, from its workflow id.
pub fn group_of_config(workflow_id: &str) -> Option<&str> {
    workflow_id.strip_prefix(CONFIG_PREFIX).filter(|group| check_group(group).is_ok())
}

/// The task queue on which one process, by its incarnation, hears [`NOTICE_ACTIVITY`].
pub fn notice_queue(incarnation: &str) -> String {
    format!("tollgate-notice/{incarnation}")
}

/// Checks the name of a group: 1 to 100 of `a-z`, `A-Z`, `0-9`, `.`, `_`, `-`.
///
/// # Errors
/// [`Unreadable`] naming `group`.
pub fn check_group(group: &str) -> Result<(), Unreadable> {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if group.is_empty() || group.len() > GROUP_BYTES_MAX || !group.bytes().all(good) {
        let short: String = group.chars().take(40).collect();
        let given = format!("{short:?} ({} bytes)", group.len());
        return Err(Unreadable::of(
            "group",
            format!("is {given}, allowed: 1 to 100 of a-z, A-Z, 0-9, ., _ and -"),
        ));
    }
    Ok(())
}

/// Start input of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorStart {
    /// Its group.
    pub group: String,
    /// Whether Temporal has proven that no coordinator of this group ran before (id reuse policy REJECT_DUPLICATE).
    /// Otherwise leases may be out that this one knows nothing of, and it recovers first.
    #[serde(default)]
    pub first: bool,
    /// The behaviour of the ledger that the run pins.
    #[serde(default = "rules_version")]
    pub rules_version: u32,
    /// What it is configured with from its first moment on.
    #[serde(default = "nothing")]
    pub configure: ConfigureJson,
}

fn nothing() -> ConfigureJson {
    ConfigureJson::of(&ledger::Configure {
        version: Version::default(),
        settings: Settings::default(),
        cells: Vec::new(),
    })
}

/// The behaviour that new coordinators pin.
pub fn rules_version() -> u32 {
    tollgate_core::rules::RULES_VERSION
}

/// Start input of the config workflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStart {
    /// Its group. The workflow id has the last word, if it names one.
    #[serde(default)]
    pub group: String,
    /// Whether Temporal has proven that no config workflow of this group ran before. For the record only: a workflow
    /// without limits takes over those that a coordinator still keeps to, whatever is said here.
    #[serde(default)]
    pub first: bool,
}

/// Input of activity `tollgate.configure`: one configuration on its way to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushJson {
    /// The group.
    pub group: String,
    /// Everything that the coordinator shall keep to.
    pub configure: ConfigureJson,
    /// The refusal that the workflow knows of already. The activity reports another one at once and retries this one
    /// silently, so that a refusal that lasts doesn't fill the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub known_refusal: String,
}

/// Result of activity `tollgate.configure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum PushedJson {
    /// The coordinator has it, or was started with it.
    Configured {
        /// Whether the coordinator had to be started.
        #[serde(default)]
        started: bool,
    },
    /// The coordinator keeps to something else that is at least as new.
    Ignored {
        /// The version that it keeps to.
        in_force: VersionJson,
    },
    /// The coordinator can't take it.
    Refused {
        /// Why.
        message: String,
    },
}

/// Input of activity `tollgate.read_configuration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadConfigurationJson {
    /// The group.
    pub group: String,
}

/// Result of activity `tollgate.read_configuration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationReadJson {
    /// What the coordinator keeps to; nothing when there is no coordinator.
    #[serde(default)]
    pub configuration: Option<ConfigureJson>,
}

/// Input of activity `tollgate.calendar`: which windows' boundaries are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarAskJson {
    /// A window is one of these.
    pub window: WindowJson,
    /// The IANA name of the time zone.
    pub time_zone: String,
    /// The first boundary is the last one that has begun then.
    pub from_us: u64,
}

/// Result of activity `tollgate.calendar`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum CalendarAnswerJson {
    /// They are known.
    Ok {
        /// When windows begin, in order.
        boundaries_us: Vec<u64>,
        /// The release of the time zone database that they were computed by.
        tz_version: String,
    },
    /// The host that was asked has no such time zone.
    Refused {
        /// Why.
        message: String,
    },
}

/// Input of activity `tollgate.schedule`: at which times a schedule is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleAskJson {
    /// By the clocks of a time zone.
    pub rule: RuleJson,
    /// From then on: the time that is under way then, or the next one.
    pub from_us: u64,
}

/// Result of activity `tollgate.schedule`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ScheduleAnswerJson {
    /// They are known.
    Ok {
        /// Beginnings and ends, in order.
        windows_us: Vec<[u64; 2]>,
        /// The release of the time zone database that they were computed by.
        tz_version: String,
    },
    /// The host that was asked has no such time zone.
    Refused {
        /// Why.
        message: String,
    },
}

pub use definitions::{Activities, Calendar, Configure, Escrow, ReadConfiguration, Schedule};

mod definitions {
    #![allow(missing_docs, reason = "the macro makes public names of the activities and gives them no docs")]
    #![allow(
        clippy::unimplemented,
        reason = "the macro wants this body and never calls it: these are names and types"
    )]

    use std::convert::Infallible;
    use temporalio_common::data_converters::RawValue;
    use temporalio_macros::activity_definitions;

    /// The activities that the workflows call. Their bodies are in `tollgate-activities`.
    #[derive(Debug)]
    pub struct Activities;

    #[activity_definitions]
    impl Activities {
        /// Brings a configuration ([`PushJson`](super::PushJson)) to the coordinator and starts it when it isn't there;
        /// answers with [`PushedJson`](super::PushedJson). May be repeated: the coordinator takes newer versions only.
        #[activity(name = "tollgate.configure")]
        pub fn configure(_push: RawValue) -> Result<RawValue, Infallible> {
            unimplemented!()
        }

        /// Reads what the coordinator of a group ([`ReadConfigurationJson`](super::ReadConfigurationJson)) keeps to;
        /// answers with [`ConfigurationReadJson`](super::ConfigurationReadJson).
        #[activity(name = "tollgate.read_configuration")]
        pub fn read_configuration(_group: RawValue) -> Result<RawValue, Infallible> {
            unimplemented!()
        }

        /// Tells the config workflow how much of windows may have been drawn
        /// ([`EscrowJson`](crate::wire::escrow::EscrowJson)); answers with what it keeps in mind
        /// ([`EscrowReplyJson`](crate::wire::escrow::EscrowReplyJson)). May be repeated.
        #[activity(name = "tollgate.escrow")]
        pub fn escrow(_escrow: RawValue) -> Result<RawValue, Infallible> {
            unimplemented!()
        }

        /// Computes when windows of a calendar begin ([`CalendarAskJson`](super::CalendarAskJson)): what workflows can't do,
        /// since another release of the time zone database would replay to other times. Answers with
        /// [`CalendarAnswerJson`](super::CalendarAnswerJson).
        #[activity(name = "tollgate.calendar")]
        pub fn calendar(_ask: RawValue) -> Result<RawValue, Infallible> {
            unimplemented!()
        }

        /// Computes at which times a schedule is in force ([`ScheduleAskJson`](super::ScheduleAskJson)), for the same reason.
        /// Answers with [`ScheduleAnswerJson`](super::ScheduleAnswerJson).
        #[activity(name = "tollgate.schedule")]
        pub fn schedule(_ask: RawValue) -> Result<RawValue, Infallible> {
            unimplemented!()
        }
    }

    pub use activities::{Calendar, Configure, Escrow, ReadConfiguration, Schedule};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_from_the_id_that_it_makes() {
        for group in ["default", "eu-west.1_b", "A"] {
            assert_eq!(group_of_coordinator(&coordinator_id(group)), Some(group));
            assert_eq!(group_of_config(&config_id(group)), Some(group));
        }
        for bad in ["", "a/b", "ä", "a b", &"x".repeat(101)] {
            let error = check_group(bad).unwrap_err().to_string();
            assert!(error.starts_with("group: is "), "{error}");
            assert_eq!(group_of_config(&config_id(bad)), None);
        }
        assert_eq!(group_of_config("some-workflow"), None);
    }
}
