//! What is counted for metrics alone. Without the feature `metrics` nothing is, and the hooks cost nothing.
//!
//! None of it is on the hot path: a hook is where somebody has waited, settled, or talked to the coordinator.

use crate::error::TransportError;
use tollgate_core::message::RequestError;
use tollgate_core::units::Span;

#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{CellMeter, GateMeter};
#[cfg(feature = "metrics")]
pub(crate) use recorded::{CellMeter, GateMeter};

/// Why a heartbeat had no answer, or a refusal as answer: values of a label, which don't change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "nobody shows them"))]
pub(crate) enum Unanswered {
    Timeout,
    NotFound,
    Busy,
    Unreachable,
    Rejected,
    Unreadable,
    GroupFull,
    Refused,
}

#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "nobody shows them"))]
impl Unanswered {
    pub(crate) const ALL: [Unanswered; 8] = [
        Unanswered::Timeout,
        Unanswered::NotFound,
        Unanswered::Busy,
        Unanswered::Unreachable,
        Unanswered::Rejected,
        Unanswered::Unreadable,
        Unanswered::GroupFull,
        Unanswered::Refused,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Unanswered::Timeout => "timeout",
            Unanswered::NotFound => "not_found",
            Unanswered::Busy => "busy",
            Unanswered::Unreachable => "unreachable",
            Unanswered::Rejected => "rejected",
            Unanswered::Unreadable => "unreadable",
            Unanswered::GroupFull => "group_full",
            Unanswered::Refused => "refused",
        }
    }

    pub(crate) fn error(error: &TransportError) -> Unanswered {
        match error {
            TransportError::Timeout => Unanswered::Timeout,
            TransportError::NotFound => Unanswered::NotFound,
            TransportError::Busy(_) => Unanswered::Busy,
            TransportError::Unreachable(_) => Unanswered::Unreachable,
            TransportError::Rejected(_) => Unanswered::Rejected,
            TransportError::Unreadable(_) => Unanswered::Unreadable,
        }
    }

    pub(crate) fn refusal(refusal: RequestError) -> Unanswered {
        match refusal {
            RequestError::TooManyWorkers => Unanswered::GroupFull,
            RequestError::Busy => Unanswered::Busy,
            _ => Unanswered::Refused,
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod nothing {
    use super::{Span, Unanswered};

    /// Of one limit.
    #[derive(Debug, Default)]
    pub(crate) struct CellMeter {}

    impl CellMeter {
        pub(crate) fn waited(&self, _span: Span) {}
        pub(crate) fn refunded(&self, _tokens: u64) {}
    }

    /// Of the gate.
    #[derive(Debug, Default)]
    pub(crate) struct GateMeter {}

    impl GateMeter {
        pub(crate) fn answered(&self, _took: Span) {}
        pub(crate) fn unanswered(&self, _why: Unanswered) {}
    }
}

#[cfg(feature = "metrics")]
mod recorded {
    use super::{Span, Unanswered};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tollgate_metrics::Histogram;
    use tollgate_metrics::catalogue::{HEARTBEAT_BOUNDS_US, WAIT_BOUNDS_US};

    /// Of one limit.
    #[derive(Debug)]
    pub(crate) struct CellMeter {
        waits: Timings<{ WAIT_BOUNDS_US.len() }>,
        refunded: AtomicU64,
        /// The largest counts that were shown: threads that take at the moment of a look can make two figures that
        /// belong together differ for an instant, and what is shown as a counter never falls.
        granted_shown: AtomicU64,
        charged_shown: AtomicU64,
    }

    impl Default for CellMeter {
        fn default() -> CellMeter {
            CellMeter {
                waits: Timings::new(&WAIT_BOUNDS_US),
                refunded: AtomicU64::new(0),
                granted_shown: AtomicU64::new(0),
                charged_shown: AtomicU64::new(0),
            }
        }
    }

    impl CellMeter {
        pub(crate) fn waited(&self, span: Span) {
            self.waits.note(span);
        }
        /// With the client locked, as the figures are read.
        pub(crate) fn refunded(&self, tokens: u64) {
            self.refunded.fetch_add(tokens, Ordering::Relaxed);
        }
        pub(crate) fn waits(&self) -> Histogram {
            self.waits.histogram()
        }
        /// Permits, tokens charged and tokens refunded, given what counts as used now. With the client locked.
        pub(crate) fn totals(&self, granted: u64, used: u64) -> (u64, u64, u64) {
            let refunded = self.refunded.load(Ordering::Relaxed);
            let charged = used.saturating_add(refunded);
            let granted = self.granted_shown.fetch_max(granted, Ordering::Relaxed).max(granted);
            let charged = self.charged_shown.fetch_max(charged, Ordering::Relaxed).max(charged);
            (granted, charged, refunded)
        }
    }

    /// Of the gate.
    #[derive(Debug)]
    pub(crate) struct GateMeter {
        heartbeats: Timings<{ HEARTBEAT_BOUNDS_US.len() }>,
        unanswered: [AtomicU64; Unanswered::ALL.len()],
    }

    impl Default for GateMeter {
        fn default() -> GateMeter {
            GateMeter { heartbeats: Timings::new(&HEARTBEAT_BOUNDS_US), unanswered: Default::default() }
        }
    }

    impl GateMeter {
        pub(crate) fn answered(&self, took: Span) {
            self.heartbeats.note(took);
        }
        pub(crate) fn unanswered(&self, why: Unanswered) {
            if let Some(count) = self.unanswered.get(why as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        pub(crate) fn heartbeats(&self) -> Histogram {
            self.heartbeats.histogram()
        }
        pub(crate) fn errors(&self) -> impl Iterator<Item = (Unanswered, u64)> {
            let counts = self.unanswered.iter().map(|count| count.load(Ordering::Relaxed));
            Unanswered::ALL.into_iter().zip(counts)
        }
    }

    /// Times in buckets.
    #[derive(Debug)]
    struct Timings<const BOUNDS: usize> {
        bounds_us: &'static [u64; BOUNDS],
        counts: [AtomicU64; BOUNDS],
        above: AtomicU64,
        sum_us: AtomicU64,
    }

    impl<const BOUNDS: usize> Timings<BOUNDS> {
        fn new(bounds_us: &'static [u64; BOUNDS]) -> Timings<BOUNDS> {
            let counts = [const { AtomicU64::new(0) }; BOUNDS];
            Timings { bounds_us, counts, above: AtomicU64::new(0), sum_us: AtomicU64::new(0) }
        }

        fn note(&self, span: Span) {
            let bucket = self.bounds_us.partition_point(|bound| *bound < span.0);
            self.counts.get(bucket).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
            self.sum_us.fetch_add(span.0, Ordering::Relaxed);
        }

        fn histogram(&self) -> Histogram {
            let counts = self.counts.iter().chain([&self.above]);
            Histogram {
                bounds_us: self.bounds_us,
                counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
                sum_us: self.sum_us.load(Ordering::Relaxed),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_time_on_a_bound_is_in_the_bucket_of_that_bound() {
            let timings = Timings::new(&[10, 20]);
            for us in [0, 10, 11, 20, 21, 1_000] {
                timings.note(Span(us));
            }
            let histogram = timings.histogram();
            assert_eq!((histogram.counts, histogram.sum_us), (vec![2, 2, 2], 1_062));
        }
    }
}
