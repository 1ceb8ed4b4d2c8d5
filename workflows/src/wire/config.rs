//! What operators say: limits, changes with their ramps, and what the coordinator is configured with.

use super::Unreadable;
use super::conduct::{ConductJson, WhenLostJson};
use super::layers::{OverrideJson, ScheduleJson, ScheduleNameJson};
use serde::{Deserialize, Serialize};
use tollgate_core::curve::{BurstCurve, Rate, RateCurve};
use tollgate_core::ledger::{Configure, Settings};
use tollgate_core::limit::{
    CellConfig, CellKey, Initial, LEASE_MIN, Version, check_label, check_name, check_ramp, check_rate,
};
use tollgate_core::policy::{Calendar, CalendarUnit, Policy};
use tollgate_core::tier::Priority;
use tollgate_core::units::{Amount, LedgerTime, Share, Span};

/// How long a change ramps when it doesn't say.
pub const RAMP_DEFAULT: Span = Span::from_secs(60);
/// How long a lease lasts when its limit doesn't say: three heartbeats of the longest kind that small fleets get.
pub const LEASE_DEFAULT: Span = Span::from_secs(15);

/// A rate as people state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateJson {
    /// Tokens per period.
    pub count: u64,
    /// The period; a second if missing.
    #[serde(default = "second")]
    pub period_ms: u64,
}

fn second() -> u64 {
    1_000
}

impl RateJson {
    /// Checks the range.
    ///
    /// # Errors
    /// [`Unreadable`] naming `rate` or `period`.
    pub fn check(self) -> Result<Rate, Unreadable> {
        let period = Span::from_millis(self.period_ms);
        check_rate(self.count, period)?;
        Ok(Rate::new(self.count, period))
    }
}

/// A limit as an operator wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitJson {
    /// Its name.
    pub name: String,
    /// What is counted: `requests` if missing. A limit may have several meters; each is set by itself.
    #[serde(default = "meter", skip_serializing_if = "is_default_meter")]
    pub meter: String,
    /// The priority class: `default` if missing.
    #[serde(default = "tier", skip_serializing_if = "is_default_tier")]
    pub tier: String,
    /// How it counts. If missing: an existing limit keeps its policy; a new one is a token bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<LimitPolicyJson>,
    /// Tokens per time. If missing: an existing limit keeps its rate, with the ramp that it is on; a new one needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateJson>,
    /// The most tokens used at once. If missing: an existing limit keeps its burst; a new one gets what the rate brings in
    /// one second, at least one, or the whole count for periods of a minute and more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// How long a worker may act on one answer. If missing: an existing limit keeps its lease; a new one gets 15 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Where its tier stands among those of the limit: lower numbers are higher tiers. If missing: an existing tier keeps its
    /// place; a new one comes below all others, in the order of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// What higher tiers leave it in any case, stated as its rate is; in flight only the count matters. If missing: an
    /// existing tier keeps the same part of its rate; of a new one higher tiers borrow only what it leaves unused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<RateJson>,
    /// Whether lower tiers may use what it leaves idle. If missing: an existing tier keeps to what it did; a new one
    /// doesn't lend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lend: Option<bool>,
    /// What all tiers of this meter together may have after the change: it is refused when their rates add up to more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_rate: Option<RateJson>,
    /// The same for their bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_burst: Option<u64>,
    /// Counts at creation only. `true` when the limit was used in another group until now: it then waits for the leases of that group to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
    /// Counts at creation only: what there is at the beginning. If missing, `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<InitialJson>,
    /// How many may wait for it in one process, from 0 to 1000000. If missing: an existing limit keeps what it has; for a
    /// new one the process decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// The part of the burst that is kept for newcomers while the rest suffices, from 0 to 500000000 of 10^9. If missing: an
    /// existing limit keeps what it has; a new one gets a fifth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_ppb: Option<u32>,
    /// Whether it refuses nothing, and only counts what it would refuse. If missing: an existing limit keeps to what it did; a
    /// new one refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<bool>,
    /// What becomes of work in a process that has lost the coordinator. If missing: an existing limit keeps to what it did; of a
    /// new one it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_lost: Option<WhenLostJson>,
}

/// What there is when a limit begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitialJson {
    /// The whole burst.
    #[default]
    Full,
    /// Nothing: a bucket fills at its rate, and a window counts as used up.
    Empty,
}

impl InitialJson {
    /// As JSON carries it.
    pub fn of(initial: Initial) -> InitialJson {
        match initial {
            Initial::Full => InitialJson::Full,
            Initial::Empty => InitialJson::Empty,
        }
    }

    /// As the ledger takes it.
    pub fn initial(self) -> Initial {
        match self {
            InitialJson::Full => Initial::Full,
            InitialJson::Empty => Initial::Empty,
        }
    }

    fn is_full(&self) -> bool {
        *self == InitialJson::Full
    }
}

/// A part of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowJson {
    /// From one full hour of the time zone's clock to the next.
    Hour,
    /// From midnight to midnight: 23 or 25 hours when clocks are moved.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl WindowJson {
    /// As JSON carries it.
    pub fn of(unit: CalendarUnit) -> WindowJson {
        match unit {
            CalendarUnit::Hour => WindowJson::Hour,
            CalendarUnit::Day => WindowJson::Day,
            CalendarUnit::Week => WindowJson::Week,
            CalendarUnit::Month => WindowJson::Month,
        }
    }

    /// As the ledger takes it.
    pub fn unit(self) -> CalendarUnit {
        match self {
            WindowJson::Hour => CalendarUnit::Hour,
            WindowJson::Day => CalendarUnit::Day,
            WindowJson::Week => CalendarUnit::Week,
            WindowJson::Month => CalendarUnit::Month,
        }
    }

    /// `hour`, `day`, `week`, `month`.
    pub fn as_str(self) -> &'static str {
        match self {
            WindowJson::Hour => "hour",
            WindowJson::Day => "day",
            WindowJson::Week => "week",
            WindowJson::Month => "month",
        }
    }

    /// Whether a rate with this period means so many in such a window. A month is 28 to 31 days.
    pub fn fits(self, period_ms: u64) -> bool {
        const DAY: u64 = 86_400_000;
        match self {
            WindowJson::Hour => period_ms == 3_600_000,
            WindowJson::Day => period_ms == DAY,
            WindowJson::Week => period_ms == 7 * DAY,
            WindowJson::Month => {
                [28, 29, 30, 31].contains(&(period_ms / DAY)) && period_ms.is_multiple_of(DAY)
            }
        }
    }

    /// The window of a rate with this period.
    pub fn of_period(period_ms: u64) -> Option<WindowJson> {
        let all = [WindowJson::Hour, WindowJson::Day, WindowJson::Week, WindowJson::Month];
        all.into_iter().find(|window| window.fits(period_ms))
    }
}

/// How a limit counts, as an operator wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LimitPolicyJson {
    /// `burst` at once, then `rate`: in every interval at most the burst and what the rate brings in it.
    TokenBucket,
    /// Evenly spaced: a token bucket whose burst is one token unless given.
    LeakyBucket,
    /// Never more than the rate's count in any window as long as the rate's period. Takes no burst.
    SlidingWindow,
    /// Never more than the rate's count between two boundaries. Takes no burst.
    ///
    /// Whoever sends this names the first boundaries, as `tollgate limit set` does; the config workflow has later ones
    /// computed before they run out.
    FixedWindow {
        /// The part of the calendar that a window is; that of the rate's period if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<WindowJson>,
        /// The IANA name of the time zone whose calendar it is; `UTC` if missing.
        #[serde(default = "utc")]
        time_zone: String,
        /// When windows begin: the last one that has begun, and up to 127 to come.
        #[serde(default)]
        boundaries_us: Vec<u64>,
        /// The release of the time zone database that they were computed by: `2026f`.
        #[serde(default = "unknown")]
        tz_version: String,
    },
    /// Never more than `burst` at once. Takes no rate.
    InFlight {
        /// How long work goes on downstream after its client is gone.
        #[serde(default)]
        drain_ms: u64,
    },
}

fn utc() -> String {
    "UTC".to_owned()
}
fn unknown() -> String {
    "unknown".to_owned()
}

/// Names one meter of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MeterJson {
    /// The limit.
    pub name: String,
    /// Its meter; `requests` if missing.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier; `default` if missing.
    #[serde(default = "tier")]
    pub tier: String,
}

impl LimitJson {
    /// A limit of which nothing is said yet.
    pub fn named(name: &str) -> LimitJson {
        LimitJson {
            name: name.to_owned(),
            meter: meter(),
            tier: tier(),
            policy: None,
            rate: None,
            burst: None,
            lease_ms: None,
            rank: None,
            floor: None,
            lend: None,
            total_rate: None,
            total_burst: None,
            moved: false,
            initial: None,
            queue: None,
            reserve_ppb: None,
            shadow: None,
            when_lost: None,
        }
    }

    /// Which cell it is.
    pub fn key(&self) -> CellKey {
        CellKey { limit: self.name.clone(), meter: self.meter.clone(), tier: self.tier.clone() }
    }

    /// The burst of a new limit with this rate, given or by default; never below one when the rate isn't zero.
    pub fn burst_or_default(&self, rate: RateJson) -> u64 {
        self.burst.unwrap_or_else(|| default_burst(rate))
    }

    /// The lease of a new limit, given or by default: for a sliding window a tenth of it, from 2 s to 15 s, since what a lost
    /// worker holds is away for a lease and a window.
    pub fn lease_or_default(&self) -> Span {
        match (self.lease_ms, &self.policy, self.rate) {
            (None, Some(LimitPolicyJson::SlidingWindow), Some(rate)) => {
                Span::from_millis(rate.period_ms / 10).clamp(LEASE_MIN, LEASE_DEFAULT)
            }
            _ => self.lease(),
        }
    }

    /// The lease, given or by default.
    pub fn lease(&self) -> Span {
        self.lease_ms.map_or(LEASE_DEFAULT, Span::from_millis)
    }
}

/// What a second brings, at least one token; for periods of a minute and more the whole count, since `5 a day` means
/// that five may be used at once.
fn default_burst(rate: RateJson) -> u64 {
    if rate.period_ms >= 60_000 {
        return rate.count;
    }
    let per_second = u128::from(rate.count) * 1_000 / u128::from(rate.period_ms.max(1));
    let least = u128::from(rate.count.min(1));
    u64::try_from(per_second.max(least)).unwrap_or(u64::MAX).min(tollgate_core::curve::BURST_MAX)
}

/// Input of update `apply` and signal `update_config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyJson {
    /// Who changes it.
    #[serde(default)]
    pub actor: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Limits to create or change.
    #[serde(default)]
    pub set: Vec<LimitJson>,
    /// Limits to remove.
    #[serde(default)]
    pub remove: Vec<String>,
    /// Single meters to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_meters: Vec<MeterJson>,
    /// Limits whose ramp stops where it is.
    #[serde(default)]
    pub abort_ramps: Vec<String>,
    /// Limits all of whose work is refused from now on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pause: Vec<String>,
    /// Paused limits whose work goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<String>,
    /// Limits whose ramp stands still where it is, until it is resumed, aborted, or the value is set anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pause_ramps: Vec<String>,
    /// Limits whose ramp goes on from where it was paused, for the time that was left of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume_ramps: Vec<String>,
    /// How long the changes ramp; 60 s if missing. New limits begin at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_ms: Option<u64>,
    /// Refuse unless the version in force is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<String>,
    /// Messages a second that the group's coordinator aims at, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_rate_milli: Option<u64>,
    /// Temporary changes: they fall back by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideJson>,
    /// Meters whose temporary change ends now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_overrides: Vec<MeterJson>,
    /// Schedules to create or replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleJson>,
    /// Schedules to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_schedules: Vec<ScheduleNameJson>,
    /// Go back to what was set when this version was in force: `run.n`, or the number `n` alone. Goes with nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<String>,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl ApplyJson {
    /// The ramp, given or by default.
    ///
    /// # Errors
    /// [`Unreadable`] when it is too long.
    pub fn ramp(&self) -> Result<Span, Unreadable> {
        let ramp = self.ramp_ms.map_or(RAMP_DEFAULT, Span::from_millis);
        check_ramp(ramp)?;
        Ok(ramp)
    }
}

/// Result of update `apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum AppliedJson {
    /// In force, or what would be with `dry_run`.
    Ok {
        /// The version in force afterwards.
        version: String,
        /// One line per change; empty when nothing changes.
        changes: Vec<String>,
    },
    /// Nothing was changed.
    Refused {
        /// Every problem, each naming its field.
        problems: Vec<String>,
    },
}

/// A rate with the resolution of ramps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactRateJson {
    /// Millionths of a token per period.
    pub micro_tokens: u64,
    /// The period.
    pub period_us: u64,
}

/// A rate that goes linearly from `source` to `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateCurveJson {
    /// In force up to `start_us`.
    pub source: ExactRateJson,
    /// In force from `end_us` on.
    pub target: ExactRateJson,
    /// Where the ramp begins.
    #[serde(default)]
    pub start_us: u64,
    /// Where it ends.
    #[serde(default)]
    pub end_us: u64,
}

impl RateCurveJson {
    /// The curve as JSON carries it.
    pub fn of(curve: RateCurve) -> RateCurveJson {
        let rate = |rate: Rate| ExactRateJson { micro_tokens: rate.micro_tokens, period_us: rate.period.0 };
        RateCurveJson {
            source: rate(curve.source),
            target: rate(curve.target),
            start_us: curve.start.0,
            end_us: curve.end.0,
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Unreadable`] naming the field.
    pub fn check(self) -> Result<RateCurve, Unreadable> {
        let rate = |rate: ExactRateJson| -> Result<Rate, Unreadable> {
            check_rate(rate.micro_tokens.div_ceil(1_000_000), Span(rate.period_us))?;
            Ok(Rate { micro_tokens: rate.micro_tokens, period: Span(rate.period_us) })
        };
        if self.end_us < self.start_us {
            return Err(Unreadable::of("end_us", "is before start_us"));
        }
        check_ramp(Span(self.end_us - self.start_us))?;
        Ok(RateCurve {
            source: rate(self.source)?,
            target: rate(self.target)?,
            start: LedgerTime(self.start_us),
            end: LedgerTime(self.end_us),
        })
    }
}

/// A burst that goes linearly from `source_milli` to `target_milli`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BurstCurveJson {
    /// In force up to `start_us`.
    pub source_milli: u64,
    /// In force from `end_us` on.
    pub target_milli: u64,
    /// Where the ramp begins.
    #[serde(default)]
    pub start_us: u64,
    /// Where it ends.
    #[serde(default)]
    pub end_us: u64,
}

impl BurstCurveJson {
    /// The curve as JSON carries it.
    pub fn of(curve: BurstCurve) -> BurstCurveJson {
        BurstCurveJson {
            source_milli: curve.source.milli_floor(),
            target_milli: curve.target.milli_floor(),
            start_us: curve.start.0,
            end_us: curve.end.0,
        }
    }

    /// The curve. Ranges are checked with the cell.
    pub fn curve(self) -> BurstCurve {
        BurstCurve {
            source: Amount::from_milli(self.source_milli),
            target: Amount::from_milli(self.target_milli),
            start: LedgerTime(self.start_us),
            end: LedgerTime(self.end_us),
        }
    }
}

/// How used tokens become usable again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicyJson {
    /// Never: tokens are minted at the rate, up to the burst.
    #[default]
    TokenBucket,
    /// One window after their use: never more than the burst in any window.
    SlidingWindow {
        /// The window.
        window_ms: u64,
    },
    /// At the next boundary: never more than the burst between two of them.
    FixedWindow {
        /// When windows begin, in order.
        boundaries_us: Vec<u64>,
        /// What they follow, if anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        calendar: Option<CalendarJson>,
        /// Whether the config workflow keeps in mind how much of a window may have been drawn.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        escrow: bool,
    },
    /// When they are released: never more than the burst at once.
    InFlight {
        /// How long work goes on downstream after its client is gone.
        #[serde(default)]
        drain_ms: u64,
    },
}

/// What the boundaries of a fixed window follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarJson {
    /// A window is one of these.
    pub window: WindowJson,
    /// The IANA name of the time zone: `America/Los_Angeles`.
    pub time_zone: String,
    /// The release of the time zone database that the boundaries were computed by: `2026f`.
    pub tz_version: String,
}

impl CalendarJson {
    fn of(calendar: &Calendar) -> CalendarJson {
        CalendarJson {
            window: WindowJson::of(calendar.unit),
            time_zone: calendar.time_zone.clone(),
            tz_version: calendar.tz_version.clone(),
        }
    }

    fn calendar(&self) -> Calendar {
        Calendar {
            unit: self.window.unit(),
            time_zone: self.time_zone.clone(),
            tz_version: self.tz_version.clone(),
        }
    }
}

impl PolicyJson {
    /// The policy as JSON carries it.
    pub fn of(policy: &Policy) -> PolicyJson {
        match policy {
            Policy::TokenBucket => PolicyJson::TokenBucket,
            Policy::SlidingWindow { window } => PolicyJson::SlidingWindow { window_ms: window.millis() },
            Policy::FixedWindow { boundaries, calendar, escrow } => PolicyJson::FixedWindow {
                boundaries_us: boundaries.iter().map(|at| at.0).collect(),
                calendar: calendar.as_ref().map(CalendarJson::of),
                escrow: *escrow,
            },
            Policy::InFlight { drain } => PolicyJson::InFlight { drain_ms: drain.millis() },
        }
    }

    /// The policy. Ranges are checked with the cell.
    pub fn policy(&self) -> Policy {
        match self {
            PolicyJson::TokenBucket => Policy::TokenBucket,
            PolicyJson::SlidingWindow { window_ms } => {
                Policy::SlidingWindow { window: Span::from_millis(*window_ms) }
            }
            PolicyJson::FixedWindow { boundaries_us, calendar, escrow } => Policy::FixedWindow {
                boundaries: boundaries_us.iter().copied().map(LedgerTime).collect(),
                calendar: calendar.as_ref().map(CalendarJson::calendar),
                escrow: *escrow,
            },
            PolicyJson::InFlight { drain_ms } => Policy::InFlight { drain: Span::from_millis(*drain_ms) },
        }
    }

    fn is_bucket(&self) -> bool {
        *self == PolicyJson::TokenBucket
    }
}

/// One cell of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellConfigJson {
    /// The limit's name.
    pub limit: String,
    /// Its meter.
    #[serde(default = "meter")]
    pub meter: String,
    /// Its tier.
    #[serde(default = "tier")]
    pub tier: String,
    /// Tokens per time.
    pub rate: RateCurveJson,
    /// The most tokens used at once.
    pub burst: BurstCurveJson,
    /// How used tokens become usable again.
    #[serde(default, skip_serializing_if = "PolicyJson::is_bucket")]
    pub policy: PolicyJson,
    /// How long a worker may act on one answer.
    pub lease_ms: u64,
    /// Whether nobody can hold a lease of it from elsewhere.
    #[serde(default = "yes")]
    pub fresh: bool,
    /// What there is when it begins.
    #[serde(default, skip_serializing_if = "InitialJson::is_full")]
    pub initial: InitialJson,
    /// How many may wait for it in one process; if missing, the process decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// What an operator says of it beside how much it allows.
    #[serde(default, skip_serializing_if = "ConductJson::is_default")]
    pub conduct: ConductJson,
    /// How its tier stands to the others of the limit.
    #[serde(default, skip_serializing_if = "PriorityJson::is_default")]
    pub priority: PriorityJson,
}

/// How a tier stands to the others of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityJson {
    /// Its place: lower numbers are higher tiers.
    #[serde(default)]
    pub rank: u32,
    /// The part of the cell that its own work has before higher tiers borrow.
    #[serde(default = "all_of_it")]
    pub floor_ppb: u32,
    /// Whether lower tiers may use what is idle.
    #[serde(default)]
    pub lends: bool,
}

impl Default for PriorityJson {
    fn default() -> PriorityJson {
        PriorityJson::of(Priority::default())
    }
}

impl PriorityJson {
    /// The priority as JSON carries it.
    pub fn of(priority: Priority) -> PriorityJson {
        PriorityJson { rank: priority.rank, floor_ppb: priority.floor.ppb(), lends: priority.lends }
    }

    /// Checks the range.
    ///
    /// # Errors
    /// [`Unreadable`] naming `floor_ppb`.
    pub fn check(self) -> Result<Priority, Unreadable> {
        let floor = Share::from_ppb(self.floor_ppb).ok_or_else(|| {
            Unreadable::of("floor_ppb", format!("is {}, allowed: 0 to 1000000000", self.floor_ppb))
        })?;
        Ok(Priority { rank: self.rank, floor, lends: self.lends })
    }

    /// Whether there is nothing to say of it.
    pub fn is_default(&self) -> bool {
        *self == PriorityJson::default()
    }
}

fn all_of_it() -> u32 {
    Share::ONE.ppb()
}

fn meter() -> String {
    CellKey::METER.to_owned()
}
fn is_default_meter(meter: &str) -> bool {
    meter == CellKey::METER
}
fn is_default_tier(tier: &str) -> bool {
    tier == CellKey::TIER
}
fn tier() -> String {
    CellKey::TIER.to_owned()
}
fn yes() -> bool {
    true
}

/// A version of the configuration, as `run.n` in text and as numbers in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionJson {
    /// When the run that numbers began.
    pub run_us: u64,
    /// Counts its changes from one.
    pub n: u64,
}

impl VersionJson {
    /// The version as JSON carries it.
    pub fn of(version: Version) -> VersionJson {
        VersionJson { run_us: version.run, n: version.n }
    }
    /// The version.
    pub fn version(self) -> Version {
        Version { run: self.run_us, n: self.n }
    }
}

/// Input of signal `configure`, and part of the coordinator's start input: the full configuration of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureJson {
    /// Its version: ignored unless newer than the one in force.
    pub version: VersionJson,
    /// Messages a second that the coordinator aims at, in thousandths.
    #[serde(default = "target_rate_milli")]
    pub target_rate_milli: u64,
    /// Every cell.
    #[serde(default)]
    pub cells: Vec<CellConfigJson>,
}

fn target_rate_milli() -> u64 {
    Settings::default().target_rate_milli
}

/// The lowest target rate: one message in ten seconds.
pub const TARGET_RATE_MILLI_MIN: u64 = 100;
/// The highest target rate: 200 messages a second.
pub const TARGET_RATE_MILLI_MAX: u64 = 200_000;

/// Checks the target rate.
///
/// # Errors
/// [`Unreadable`] naming `target_rate_milli`.
pub fn check_target_rate(milli: u64) -> Result<(), Unreadable> {
    if !(TARGET_RATE_MILLI_MIN..=TARGET_RATE_MILLI_MAX).contains(&milli) {
        return Err(Unreadable::of("target_rate_milli", format!("is {milli}, allowed: 100 to 200000")));
    }
    Ok(())
}

impl ConfigureJson {
    /// The configuration as JSON carries it.
    pub fn of(configure: &Configure) -> ConfigureJson {
        let cell = |config: &CellConfig| CellConfigJson {
            limit: config.key.limit.clone(),
            meter: config.key.meter.clone(),
            tier: config.key.tier.clone(),
            rate: RateCurveJson::of(config.rate),
            burst: BurstCurveJson::of(config.burst),
            policy: PolicyJson::of(&config.policy),
            lease_ms: config.lease.millis(),
            fresh: config.fresh,
            initial: InitialJson::of(config.initial),
            queue: config.queue,
            conduct: ConductJson::of(config.conduct),
            priority: PriorityJson::of(config.priority),
        };
        ConfigureJson {
            version: VersionJson::of(configure.version),
            target_rate_milli: configure.settings.target_rate_milli,
            cells: configure.cells.iter().map(cell).collect(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Unreadable`] with the first field that is wrong.
    pub fn check(self) -> Result<Configure, Unreadable> {
        check_target_rate(self.target_rate_milli)?;
        let mut cells = Vec::with_capacity(self.cells.len());
        for cell in self.cells {
            check_name("limit", &cell.limit)?;
            check_label("meter", &cell.meter)?;
            check_label("tier", &cell.tier)?;
            let config = CellConfig {
                key: CellKey { limit: cell.limit, meter: cell.meter, tier: cell.tier },
                rate: cell.rate.check()?,
                burst: cell.burst.curve(),
                policy: cell.policy.policy(),
                lease: Span::from_millis(cell.lease_ms),
                fresh: cell.fresh,
                initial: cell.initial.initial(),
                queue: cell.queue,
                conduct: cell.conduct.check()?,
                priority: cell.priority.check()?,
            };
            config.check().map_err(|error| Unreadable::of(&format!("limit {}", config.key), error))?;
            cells.push(config);
        }
        Ok(Configure {
            version: self.version.version(),
            settings: Settings { target_rate_milli: self.target_rate_milli },
            cells,
        })
    }
}

/// Result of the coordinator's update `configure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredJson {
    /// What became of it.
    pub status: ConfiguredStatus,
    /// Why, where there is something to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What became of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfiguredStatus {
    /// In force.
    Configured,
    /// Not newer than the one in force.
    Ignored,
    /// Out of range, or too much.
    Refused,
    /// The coordinator recovers from a reset: ask again.
    Busy,
}
