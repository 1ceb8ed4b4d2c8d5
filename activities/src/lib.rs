//! What tollgate's workflows do outside of themselves, and the host that runs both.
//!
//! - [`Hosted`]: the activities of [`tollgate_workflows::contracts`], with the Temporal client of the worker they run on.
//! - [`calendar::boundaries`]: when windows begin, by the calendar of a time zone.
//! - [`schedule::windows`]: at which times a schedule is in force.
//! - [`ensure_group`]: makes sure that the workflows of a group are there.
//! - [`replay()`]: whether recorded histories replay to what is in them.
//! - [`run_host`]: a worker that runs the workflows and activities of all groups.

pub mod calendar;
mod coordinator;
mod ensure;
mod escrow;
mod host;
mod replay;
pub mod schedule;

pub use ensure::{EnsureError, Ensured, ensure_group};
pub use host::{HostError, host_worker_options, run_host};
pub use replay::{ReplayError, Replayed, replay};

pub use activities::Hosted;

mod activities {
    #![allow(missing_docs, reason = "the macro makes public names of the activities and gives them no docs")]

    use crate::{calendar, coordinator, escrow, schedule};
    use temporalio_common::data_converters::RawValue;
    use temporalio_sdk::activities::{ActivityContext, ActivityError, activities};
    use tollgate_core::units::LedgerTime;
    use tollgate_workflows::config::book::schedules::Rule;
    use tollgate_workflows::contracts::{
        CalendarAnswerJson, CalendarAskJson, PushJson, ReadConfigurationJson, ScheduleAnswerJson,
        ScheduleAskJson,
    };
    use tollgate_workflows::wire::escrow::EscrowJson;
    use tollgate_workflows::wire::{read, write};

    /// The activities that a coordinator host runs.
    #[derive(Debug)]
    pub struct Hosted;

    #[activities]
    impl Hosted {
        /// See [`tollgate_workflows::contracts::Activities`].
        #[activity(definition = tollgate_workflows::contracts::Configure)]
        pub async fn configure(ctx: ActivityContext, input: RawValue) -> Result<RawValue, ActivityError> {
            let push: PushJson = read(&input)?;
            Ok(write(&coordinator::configure(&ctx.client(), push).await?))
        }

        /// See [`tollgate_workflows::contracts::Activities`].
        #[activity(definition = tollgate_workflows::contracts::ReadConfiguration)]
        pub async fn read_configuration(
            ctx: ActivityContext,
            input: RawValue,
        ) -> Result<RawValue, ActivityError> {
            let wanted: ReadConfigurationJson = read(&input)?;
            Ok(write(
                &coordinator::read_configuration(&ctx.client(), &wanted.group, ctx.info().attempt).await?,
            ))
        }

        /// See [`tollgate_workflows::contracts::Activities`].
        #[activity(definition = tollgate_workflows::contracts::Escrow)]
        pub async fn escrow(ctx: ActivityContext, input: RawValue) -> Result<RawValue, ActivityError> {
            let told: EscrowJson = read(&input)?;
            Ok(write(&escrow::tell(&ctx.client(), &told).await?))
        }

        /// See [`tollgate_workflows::contracts::Activities`].
        #[activity(definition = tollgate_workflows::contracts::Calendar)]
        pub async fn calendar(_ctx: ActivityContext, input: RawValue) -> Result<RawValue, ActivityError> {
            let ask: CalendarAskJson = read(&input)?;
            let from = LedgerTime(ask.from_us);
            Ok(write(&match calendar::boundaries(ask.window.unit(), &ask.time_zone, from) {
                Ok((boundaries, calendar)) => CalendarAnswerJson::Ok {
                    boundaries_us: boundaries.iter().map(|boundary| boundary.0).collect(),
                    tz_version: calendar.tz_version,
                },
                Err(error) => CalendarAnswerJson::Refused { message: error.to_string() },
            }))
        }

        /// See [`tollgate_workflows::contracts::Activities`].
        #[activity(definition = tollgate_workflows::contracts::Schedule)]
        pub async fn schedule(_ctx: ActivityContext, input: RawValue) -> Result<RawValue, ActivityError> {
            let ask: ScheduleAskJson = read(&input)?;
            let windows = Rule::read(&ask.rule).map_err(|problems| problems.join("; ")).and_then(|rule| {
                schedule::windows(&rule, LedgerTime(ask.from_us)).map_err(|error| error.to_string())
            });
            Ok(write(&match windows {
                Ok((windows, _, tz_version)) => ScheduleAnswerJson::Ok {
                    windows_us: windows.iter().map(|window| [window.begin.0, window.end.0]).collect(),
                    tz_version,
                },
                Err(message) => ScheduleAnswerJson::Refused { message },
            }))
        }
    }
}
