//! Reasons in words, and the commands that would help.

use super::{StarvingJson, WhyJson};
use crate::contracts::GROUP_DEFAULT;
use crate::details::{clock, rate_text};
use crate::wire::status::LimitRowJson;
use tollgate_core::ledger::Ledger;
use tollgate_core::ledger::explain::Reason;
use tollgate_core::limit::CellKey;

/// What sentences name.
pub(super) struct Names<'a> {
    pub(super) group: &'a str,
    pub(super) limit: &'a str,
    /// The rate now, and where it goes.
    pub(super) rate: Option<(u64, u64)>,
}

impl Names<'_> {
    pub(super) fn with_rate(&self, ledger: &Ledger, key: &CellKey) -> Self {
        let rate = ledger.state().cells.get(key).map(|cell| {
            let now = ledger.state().now;
            (cell.config.rate.at(now).micro_per_second(), cell.config.rate.target.micro_per_second())
        });
        Names { rate, ..*self }
    }

    fn rate_now(&self) -> String {
        self.rate.map_or_else(String::new, |(now, target)| rate_text(now, target))
    }

    fn target(&self) -> String {
        self.rate.map_or_else(String::new, |(_, target)| rate_text(target, target))
    }

    /// `tollgate limit set` for the limit.
    fn set(&self, options: &str) -> String {
        format!("tollgate limit set {} {options}{}", shell(self.limit), self.in_group())
    }

    /// Another command that takes nothing but the limit.
    fn limit_command(&self, command: &str) -> String {
        format!("tollgate limit {command} {}{}", shell(self.limit), self.in_group())
    }

    fn in_group(&self) -> String {
        match self.group {
            "" | GROUP_DEFAULT => String::new(),
            group => format!(" --group {}", shell(group)),
        }
    }
}

/// A name as a shell takes it.
pub(super) fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A reason's name in JSON, which never changes.
pub fn code(reason: &Reason) -> &'static str {
    match reason {
        Reason::UnknownLimit => "unknown_limit",
        Reason::Evicted => "evicted",
        Reason::Paused => "paused",
        Reason::Recovering { .. } => "recovering",
        Reason::NotHeard { .. } => "not_heard",
        Reason::CostAboveBurst { .. } => "cost_above_burst",
        Reason::NoRate => "no_rate",
        Reason::Ramp { .. } => "ramp",
        Reason::Queued { .. } => "queued",
        Reason::LimitReached { .. } => "limit_reached",
        Reason::AllOut { .. } => "all_out",
        Reason::HeldBySilent { .. } => "held_by_silent",
        Reason::CrowdedBurst { .. } => "crowded_burst",
        Reason::Reserve { .. } => "reserve",
        Reason::NextMessage => "next_message",
        _ => "other",
    }
}

impl WhyJson {
    pub(super) fn told(reason: &str, text: impl Into<String>, help: impl Into<String>) -> WhyJson {
        WhyJson {
            reason: reason.to_owned(),
            waiters: 0,
            tokens: 0,
            since_us: None,
            text: text.into(),
            help: help.into(),
            command: None,
        }
    }

    pub(super) fn of(reason: &Reason, names: &Names<'_>) -> WhyJson {
        let (text, help, command) = sentences(reason, names);
        WhyJson { command, ..WhyJson::told(code(reason), text, help) }
    }
}

/// Why, what would help, and the command for it.
fn sentences(reason: &Reason, names: &Names<'_>) -> (String, String, Option<String>) {
    let plain = |text: String, help: &str| (text, help.to_owned(), None);
    match reason {
        Reason::LimitReached { wanted_micro } => (
            format!(
                "the limit is used up: {} are wanted and {} may be used",
                rate_text(*wanted_micro, *wanted_micro),
                names.rate_now()
            ),
            "raise the rate if what is behind the limit can take more, else let callers ask for less"
                .to_owned(),
            Some(names.set("--rate RATE")),
        ),
        Reason::AllOut { out, away, all } => {
            let lost = match away {
                0 => String::new(),
                away => format!(", and {away} count as used since their holders are gone"),
            };
            plain(
                format!("{out} of {all} are in use, or were used within the window{lost}"),
                "wait until some are done, or allow more if what is behind the limit can take it",
            )
        }
        Reason::Queued { ahead } => (
            format!("others come first, who wait for {ahead} tokens at {}", names.rate_now()),
            "wait for its turn, or raise the rate".to_owned(),
            Some(names.set("--rate RATE")),
        ),
        Reason::Ramp { ends } => (
            format!(
                "a ramp is under way to {} and has come to {}; it ends at {}",
                names.target(),
                names.rate_now(),
                clock(ends.0)
            ),
            "wait for the ramp, or jump to its end".to_owned(),
            Some(names.set(&format!("--rate {} --ramp 0", names.target()))),
        ),
        Reason::Reserve { kept } => (
            format!("the tokens that are left ({kept} at most) are kept for workers that are new"),
            "wait for what the rate brings, or keep less of the burst for newcomers".to_owned(),
            Some(names.set("--reserve 0%")),
        ),
        Reason::CrowdedBurst { needed, burst } => (
            format!("the burst of {burst} is less than the {needed} tokens that must be held at once"),
            "raise the burst, or let fewer workers or smaller costs share the limit".to_owned(),
            // A fifth of the burst is kept for newcomers.
            Some(names.set(&format!("--burst {}", needed.saturating_mul(5).div_ceil(4)))),
        ),
        Reason::CostAboveBurst { cost, burst } => (
            format!("a cost of {cost} can never be paid from a burst of {burst}"),
            "split the work into smaller costs, or raise the burst".to_owned(),
            Some(names.set(&format!("--burst {cost}"))),
        ),
        Reason::NoRate => {
            ("the rate is 0 and stays so".to_owned(), "set a rate".to_owned(), Some(names.set("--rate RATE")))
        }
        Reason::Recovering { until } => plain(
            format!(
                "the coordinator lost its memory; until {} leases may be out that it doesn't know",
                clock(until.0)
            ),
            "wait until then: leases are confirmed in the meantime, and none are raised",
        ),
        Reason::HeldBySilent { workers, until } => plain(
            format!(
                "{} held by {workers} not heard any more; free again by {}",
                if *workers == 1 { "a part is" } else { "parts are" },
                clock(until.0)
            ),
            "wait until then; workers that are stopped by SIGTERM give their part back at once",
        ),
        Reason::NotHeard { since } => plain(
            format!(
                "the worker was last heard at {}: it has stopped, or can't reach Temporal",
                clock(since.0)
            ),
            "look whether it runs, and at its log; what it holds is free again when its lease ends",
        ),
        Reason::Evicted => plain(
            "an operator evicted the worker: it gets nothing more".to_owned(),
            "restart the process: a new start is a new incarnation",
        ),
        Reason::Paused => (
            "an operator has paused the limit: all work is refused".to_owned(),
            "resume it; `tollgate config history` says who paused it, and why".to_owned(),
            Some(names.limit_command("resume")),
        ),
        Reason::UnknownLimit => (
            format!("the group has no limit {:?}", names.limit),
            "set it, or correct the name in the workers".to_owned(),
            Some(names.set("--rate RATE")),
        ),
        Reason::NextMessage => plain(
            "there is room: more comes with the next message".to_owned(),
            "wait for it: at most a heartbeat, or until the permit is asked for again",
        ),
        _ => plain("the reason is not known to this version".to_owned(), "update tollgate"),
    }
}

/// A starving limit in one sentence, without its name.
pub fn starving_text(row: &LimitRowJson, starving: &StarvingJson) -> String {
    format!(
        "{} has waited for {} token{} since {}, while {} of {} were used: {}",
        starving.who,
        starving.tokens,
        if starving.tokens == 1 { "" } else { "s" },
        clock(starving.since_us),
        rate_text(row.used_micro.unwrap_or(0), 0),
        rate_text(row.rate_micro, row.target_micro),
        starving.text
    )
}
