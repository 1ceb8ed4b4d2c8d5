//! What a limit promises, in a sentence, and what keeping to it costs.

use super::config::WindowJson;
use crate::config::text;
use crate::details::rate_text;
use tollgate_core::ledger::view::CellView;
use tollgate_core::policy::Policy;
use tollgate_core::units::Span;

/// The most that the whole fleet is admitted. While a ramp is under way, as of now.
pub(super) fn bound(view: &CellView) -> String {
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
