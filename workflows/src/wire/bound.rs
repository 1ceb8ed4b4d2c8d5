//! What a limit promises, in a sentence, and what keeping to it costs.

use super::config::WindowJson;
use crate::config::text;
use crate::details::rate_text;
use tollgate_core::ledger::view::CellView;
use tollgate_core::limit::WhenLost;
use tollgate_core::policy::Policy;
use tollgate_core::units::Span;

/// The most that the whole fleet is admitted, and what an operator has made of that. While a ramp is under way, as of now.
pub(super) fn bound(view: &CellView) -> String {
    let bound = by_policy(view);
    if view.conduct.shadow {
        return format!("nothing in shadow mode; else {bound}");
    }
    match view.conduct.when_lost {
        WhenLost::Closed => bound,
        WhenLost::Hold(part) => {
            let part = text::percent(part);
            format!("{bound}; of each process that has lost the coordinator {part} of its part more")
        }
        WhenLost::Open => format!("{bound}; nothing of processes that have lost the coordinator"),
    }
}

fn by_policy(view: &CellView) -> String {
    let n = view.burst;
    match &view.policy {
        Policy::TokenBucket => {
            format!("at most {n} + {} * t in any interval t", rate_text(view.rate_micro, view.target_micro))
        }
        Policy::SlidingWindow { window } => format!("at most {n} in any {}", text::span(*window)),
        Policy::FixedWindow { calendar: Some(calendar), .. } => {
            let unit = WindowJson::of(calendar.unit).as_str();
            format!("at most {n} in each {unit} of {}", calendar.time_zone)
        }
        Policy::FixedWindow { .. } => format!("at most {n} between two boundaries"),
        Policy::InFlight { drain: Span::ZERO } => format!("at most {n} at once"),
        Policy::InFlight { drain } => {
            format!(
                "at most {n} at once, where work of a lost client counts for {} longer",
                text::span(*drain)
            )
        }
    }
}

/// How much use keeping to it costs. The figures are measured with skewed demand that moves (DESIGN.md).
pub(super) fn costs(policy: &Policy) -> &'static str {
    match policy {
        Policy::TokenBucket => "about 3% of the rate; what a lost worker holds, until its lease has ended",
        Policy::SlidingWindow { .. } => {
            "2% of 1000, 4% of 100; what a lost worker holds, until its lease and a window have ended"
        }
        Policy::FixedWindow { .. } => {
            "the second on either side of a boundary; what a lost worker holds, until the next boundary"
        }
        Policy::InFlight { .. } => {
            "2% of 1000, 3% of 100; what a lost worker holds, until its lease and the drain have ended"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::curve::Rate;
    use tollgate_core::ledger::{Configure, Input, Ledger, Output, Settings, Start};
    use tollgate_core::limit::{CellConfig, Version};
    use tollgate_core::policy::{Calendar, CalendarUnit};
    use tollgate_core::units::{LedgerTime, Share};

    #[test]
    fn each_policy_states_its_bound() {
        let calendar = Calendar {
            unit: CalendarUnit::Day,
            time_zone: "Europe/Berlin".to_owned(),
            tz_version: "2026f".to_owned(),
        };
        let boundaries = vec![LedgerTime(0), LedgerTime(86_400_000_000)];
        let policies = [
            (Policy::TokenBucket, "at most 20 + 100/s * t in any interval t"),
            (Policy::SlidingWindow { window: Span::from_secs(60) }, "at most 20 in any 60 s"),
            (
                Policy::FixedWindow {
                    boundaries: boundaries.clone(),
                    calendar: Some(calendar),
                    escrow: true,
                },
                "at most 20 in each day of Europe/Berlin",
            ),
            (
                Policy::FixedWindow { boundaries, calendar: None, escrow: false },
                "at most 20 between two boundaries",
            ),
            (Policy::InFlight { drain: Span::ZERO }, "at most 20 at once"),
            (
                Policy::InFlight { drain: Span::from_secs(5) },
                "at most 20 at once, where work of a lost client counts for 5 s longer",
            ),
        ];
        for (policy, text) in policies {
            let mut ledger = Ledger::new(Start::First, 1, LedgerTime(1));
            let cell = CellConfig::constant("api", Rate::per_second(100), 20, Span::from_secs(10));
            let configure = Configure {
                version: Version { run: 1, n: 1 },
                settings: Settings::default(),
                cells: vec![CellConfig { policy: policy.clone(), ..cell }],
            };
            assert_eq!(ledger.apply(LedgerTime(1), Input::Configure(configure)), Output::Configured);
            assert_eq!(bound(&ledger.view()[0]), text);
            assert!(costs(&policy).contains("lost worker"), "{policy:?}");
            let mut view = ledger.view().remove(0);
            view.conduct.when_lost = WhenLost::Hold(Share::ONE.half());
            assert_eq!(
                bound(&view),
                format!("{text}; of each process that has lost the coordinator 50% of its part more")
            );
            view.conduct.when_lost = WhenLost::Open;
            assert_eq!(bound(&view), format!("{text}; nothing of processes that have lost the coordinator"));
            view.conduct.shadow = true;
            assert_eq!(bound(&view), format!("nothing in shadow mode; else {text}"));
        }
    }
}
