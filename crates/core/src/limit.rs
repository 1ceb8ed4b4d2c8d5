//! What a limit is, and which values it may have.

use crate::curve::{BURST_MAX, BurstCurve, PERIOD_MAX, PERIOD_MIN, RAMP_MAX, RATE_COUNT_MAX, RateCurve};
use crate::policy::{BOUNDARIES_MAX, CALENDAR_BYTES_MAX, DRAIN_MAX, Policy, WINDOW_MAX, WINDOW_MIN};
use crate::tier::Priority;
use crate::units::{Amount, LedgerTime, Share, Span};
use alloc::string::{String, ToString};
use core::fmt;

/// The longest lease there can be. A ledger that lost its memory waits this long (plus allowances) before it grants
/// anything new, so it is a constant of the protocol: what one ledger granted, the next one must outwait.
pub const LEASE_MAX: Span = Span::from_secs(120);
/// The shortest lease: below this the allowance for clocks would be most of it.
pub const LEASE_MIN: Span = Span::from_secs(2);
/// How far the ledger's clock may step forward, and wall time may run ahead of elapsed time, without harm.
pub const MARGIN: Span = Span::from_secs(1);
/// The longest name of a limit, a worker, a client or a grant, in bytes: names are stored per holder.
pub const NAME_BYTES_MAX: usize = 200;
/// The longest name of a meter or tier, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

/// The most that may wait for a limit in one process: each costs the process some memory.
pub const QUEUE_MAX: u64 = 1_000_000;

/// The most debt that counts, in bursts of its limit: of one worker, and of those whom the ledger has forgotten. A wrong figure
/// then stops a limit for ten times what a full bucket takes to fill, and not for good.
pub const DEBT_BURSTS_MAX: u64 = 10;

/// How long the ledger counts a lease of `duration`, from granting: 1% for clocks that disagree, and the margin.
pub fn counted(duration: Span) -> Span {
    duration + duration.scale_ceil(1, 100) + MARGIN
}

/// What a lease belongs to: one meter of one limit, in one tier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    /// The limit's name, as operators write it: `openai/gpt-4o`.
    pub limit: String,
    /// The dimension that is counted: `requests`.
    pub meter: String,
    /// The priority class: `default`.
    pub tier: String,
}

impl CellKey {
    /// The meter of a limit that names none.
    pub const METER: &'static str = "requests";
    /// The meter of what is in flight, unless it is named otherwise.
    pub const IN_FLIGHT: &'static str = "in_flight";
    /// The tier of a limit that has one only.
    pub const TIER: &'static str = "default";

    /// The only cell of a limit with one meter and one tier.
    pub fn of(limit: &str) -> CellKey {
        CellKey { limit: limit.to_string(), meter: Self::METER.to_string(), tier: Self::TIER.to_string() }
    }
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.limit)?;
        if self.meter != Self::METER || self.tier != Self::TIER {
            write!(f, " [{} {}]", self.meter, self.tier)?;
        }
        Ok(())
    }
}

/// A version of the configuration: greater means newer, also after the config workflow has been created anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// When the run that numbers began, in microseconds since the Unix epoch.
    pub run: u64,
    /// Counts the changes of that run, from one.
    pub n: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.run, self.n)
    }
}

/// One cell's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellConfig {
    /// Which cell.
    pub key: CellKey,
    /// Tokens per time.
    pub rate: RateCurve,
    /// The most tokens that may be used at once; where tokens are conserved, all that there are.
    pub burst: BurstCurve,
    /// How used tokens become usable again.
    pub policy: Policy,
    /// How long a worker may act on one reply: from [`LEASE_MIN`] to [`LEASE_MAX`].
    pub lease: Span,
    /// How its tier stands to the others of the limit.
    pub priority: Priority,
    /// Whether nobody can hold a lease of it from elsewhere. `false` for a limit that moved here from another group: it
    /// then recovers alone, and grants nothing new for the longest lease.
    pub fresh: bool,
    /// What there is when the limit begins. A change of it changes nothing.
    pub initial: Initial,
    /// How many may wait for it in one process; `None`: as many as the process lets wait for any limit.
    pub queue: Option<u64>,
    /// What an operator says of it beside how much it allows.
    pub conduct: Conduct,
}

/// What an operator says of a limit beside how much it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// Nothing is granted until it is resumed, and nothing waits: all work is refused.
    pub paused: bool,
    /// It refuses nothing: it counts, and says what it would have refused.
    pub shadow: bool,
    /// The part of the burst that is not prefetched while the rest suffices, for newcomers: up to [`RESERVE_MAX`].
    pub reserve: Share,
    /// What becomes of work in a process whose lease has ended and that doesn't reach the coordinator.
    pub when_lost: WhenLost,
}

/// The largest reserve: a half.
pub const RESERVE_MAX: Share = match Share::from_ppb(500_000_000) {
    Some(share) => share,
    None => Share::ZERO,
};

impl Conduct {
    /// The reserve of a limit that says nothing of it: a fifth.
    pub const RESERVE: Share = match Share::from_ppb(200_000_000) {
        Some(share) => share,
        None => Share::ZERO,
    };
}

impl Default for Conduct {
    fn default() -> Conduct {
        Conduct { paused: false, shadow: false, reserve: Conduct::RESERVE, when_lost: WhenLost::Closed }
    }
}

/// What becomes of work in a process whose lease has ended and that doesn't reach the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenLost {
    /// It is refused: the limit holds under every fault.
    #[default]
    Closed,
    /// It goes on at this part of the share that the last lease gave. As far as others reach the coordinator, they get what ended: each
    /// process that is cut off adds up to so much of the part that it had.
    Hold(Share),
    /// It goes on without any limit.
    Open,
}

/// What there is when a limit begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initial {
    /// The whole burst.
    #[default]
    Full,
    /// Nothing: a bucket fills at its rate, and a window counts as used up.
    Empty,
}

/// A value outside of its range: names the field, the value given and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The field, as the user writes it.
    pub field: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, allowed: {}", self.field, self.given, self.allowed)
    }
}

impl core::error::Error for OutOfRange {}

fn out_of_range(field: &'static str, given: impl ToString, allowed: &'static str) -> OutOfRange {
    OutOfRange { field, given: given.to_string(), allowed }
}

/// Shortens what is quoted in an error, so that a huge input doesn't come back whole.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    alloc::format!("{short:?}{dots} ({} bytes)", text.len())
}

/// Checks the name of a limit, worker, client or grant: any text of 1 to 200 bytes without control characters and
/// without blanks at its ends. Names are compared byte by byte: `A` and `a` differ, and so do two spellings of `ï`.
///
/// # Errors
/// [`OutOfRange`] with `field` as given.
pub fn check_name(field: &'static str, name: &str) -> Result<(), OutOfRange> {
    const ALLOWED: &str = "1 to 200 bytes of text, no control characters, no blanks at the ends";
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.chars().any(char::is_control)
        || name.trim() != name
    {
        return Err(out_of_range(field, quoted(name), ALLOWED));
    }
    Ok(())
}

/// Checks the name of a meter or tier: 1 to 64 of `a-z`, `0-9`, `_`, `-`.
///
/// # Errors
/// [`OutOfRange`] with `field` as given.
pub fn check_label(field: &'static str, label: &str) -> Result<(), OutOfRange> {
    const ALLOWED: &str = "1 to 64 of a-z, 0-9, _ and -";
    let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    if label.is_empty() || label.len() > LABEL_BYTES_MAX || !label.bytes().all(good) {
        return Err(out_of_range(field, quoted(label), ALLOWED));
    }
    Ok(())
}

/// Checks the count of a rate, as a user states it. Zero is allowed: it mints nothing, so after the burst everything is
/// refused for ever.
///
/// # Errors
/// [`OutOfRange`] for field `rate`.
pub fn check_rate(count: u64, period: Span) -> Result<(), OutOfRange> {
    if count > RATE_COUNT_MAX {
        return Err(out_of_range("rate", count, "0 to 1000000000000 per period"));
    }
    if period < PERIOD_MIN || period > PERIOD_MAX {
        return Err(out_of_range("period", alloc::format!("{} ms", period.millis()), "1 ms to 366 days"));
    }
    Ok(())
}

/// Checks a burst, as a user states it. Zero is allowed: it refuses everything.
///
/// # Errors
/// [`OutOfRange`] for field `burst`.
pub fn check_burst(burst: u64) -> Result<(), OutOfRange> {
    if burst > BURST_MAX {
        return Err(out_of_range("burst", burst, "0 to 1000000000000000 tokens"));
    }
    Ok(())
}

/// Checks the duration of a lease.
///
/// # Errors
/// [`OutOfRange`] for field `lease`.
pub fn check_lease(lease: Span) -> Result<(), OutOfRange> {
    if lease < LEASE_MIN || lease > LEASE_MAX {
        return Err(out_of_range("lease", alloc::format!("{} ms", lease.millis()), "2 s to 120 s"));
    }
    Ok(())
}

/// Checks how many may wait for a limit in one process.
///
/// # Errors
/// [`OutOfRange`] for field `queue`.
pub fn check_queue(queue: u64) -> Result<(), OutOfRange> {
    if queue > QUEUE_MAX {
        return Err(out_of_range("queue", queue, "0 to 1000000 that wait in a process"));
    }
    Ok(())
}

/// Checks the part of a burst that is kept for newcomers.
///
/// # Errors
/// [`OutOfRange`] for field `reserve`.
pub fn check_reserve(reserve: Share) -> Result<(), OutOfRange> {
    if reserve > RESERVE_MAX {
        return Err(out_of_range("reserve", reserve, "0 to 0.5 of the burst"));
    }
    Ok(())
}

/// Checks what there is when a limit begins.
///
/// # Errors
/// [`OutOfRange`] for field `initial`.
pub fn check_initial(initial: Initial, policy: &Policy) -> Result<(), OutOfRange> {
    if initial == Initial::Empty && matches!(policy, Policy::InFlight { .. }) {
        return Err(out_of_range(
            "initial",
            "empty",
            "full where what is in flight is counted: nothing is, at first",
        ));
    }
    Ok(())
}

/// Checks the duration of a ramp.
///
/// # Errors
/// [`OutOfRange`] for field `ramp`.
pub fn check_ramp(ramp: Span) -> Result<(), OutOfRange> {
    if ramp > RAMP_MAX {
        return Err(out_of_range("ramp", alloc::format!("{} ms", ramp.millis()), "0 to 24 h"));
    }
    Ok(())
}

/// Checks a policy against the lease under which it is used.
///
/// # Errors
/// [`OutOfRange`] for fields `window`, `boundaries` and `drain`.
pub fn check_policy(policy: &Policy, lease: Span) -> Result<(), OutOfRange> {
    let ms = |span: Span| alloc::format!("{} ms", span.millis());
    match policy {
        Policy::TokenBucket => Ok(()),
        Policy::SlidingWindow { window } if *window < WINDOW_MIN || *window > WINDOW_MAX => {
            Err(out_of_range("window", ms(*window), "2 s to 31 days"))
        }
        Policy::SlidingWindow { window } if *window < lease => {
            Err(out_of_range("window", ms(*window), "at least as long as the lease"))
        }
        Policy::SlidingWindow { .. } => Ok(()),
        Policy::FixedWindow { boundaries, calendar, .. } => {
            for (field, text) in calendar.iter().flat_map(|calendar| {
                [("time_zone", &calendar.time_zone), ("tz_version", &calendar.tz_version)]
            }) {
                if text.is_empty() || text.len() > CALENDAR_BYTES_MAX || text.chars().any(char::is_control) {
                    return Err(out_of_range(field, quoted(text), "1 to 64 bytes of text"));
                }
            }
            let rising = boundaries.windows(2).all(|pair| pair[0] + lease <= pair[1]);
            if boundaries.is_empty() || boundaries.len() > BOUNDARIES_MAX || !rising {
                let given = alloc::format!("{} of them", boundaries.len());
                return Err(out_of_range(
                    "boundaries",
                    given,
                    "1 to 128 rising times, each a lease or more apart",
                ));
            }
            Ok(())
        }
        Policy::InFlight { drain } if *drain > DRAIN_MAX => {
            Err(out_of_range("drain", ms(*drain), "0 to 24 h"))
        }
        Policy::InFlight { .. } => Ok(()),
    }
}

impl CellConfig {
    /// A limit with a constant rate and burst and one cell.
    pub fn constant(limit: &str, rate: crate::curve::Rate, burst: u64, lease: Span) -> CellConfig {
        CellConfig {
            key: CellKey::of(limit),
            rate: RateCurve::constant(rate),
            burst: BurstCurve::constant(burst),
            policy: Policy::TokenBucket,
            lease,
            priority: Priority::default(),
            fresh: true,
            initial: Initial::Full,
            queue: None,
            conduct: Conduct::default(),
        }
    }

    /// Checks every field, also those that come from another program.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        check_name("limit", &self.key.limit)?;
        check_label("meter", &self.key.meter)?;
        check_label("tier", &self.key.tier)?;
        for rate in [self.rate.source, self.rate.target] {
            check_rate(rate.micro_tokens.div_ceil(1_000_000), rate.period)?;
        }
        for burst in [self.burst.source, self.burst.target] {
            check_burst(u64::try_from(burst.whole()).unwrap_or(u64::MAX))?;
        }
        check_window(self.rate.start, self.rate.end)?;
        check_window(self.burst.start, self.burst.end)?;
        check_lease(self.lease)?;
        check_policy(&self.policy, self.lease)?;
        check_initial(self.initial, &self.policy)?;
        self.queue.map_or(Ok(()), check_queue)?;
        check_reserve(self.conduct.reserve)
    }

    /// The burst now, in whole tokens: a larger cost can never be granted.
    pub fn burst_tokens(&self, now: LedgerTime) -> u64 {
        whole_tokens(self.burst.at(now))
    }
}

fn check_window(start: LedgerTime, end: LedgerTime) -> Result<(), OutOfRange> {
    if end < start {
        return Err(out_of_range("ramp", "an end before its start", "an end at or after the start"));
    }
    check_ramp(end.since(start))
}

/// Whole tokens of a non-negative amount.
pub(crate) fn whole_tokens(amount: Amount) -> u64 {
    u64::try_from(amount.whole()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_name_field_value_and_range() {
        let error = check_rate(2_000_000_000_000, Span::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "rate is 2000000000000, allowed: 0 to 1000000000000 per period");
        let error = check_name("worker", &"x".repeat(10_240)).unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
        assert!(check_rate(1, Span::ZERO).unwrap_err().to_string().starts_with("period is 0 ms"));
    }

    #[test]
    fn odd_names_are_keys_of_their_own_or_refused() {
        for good in ["2001:db8::1", "a b", "naïve", "nai\u{308}ve", "имя", "🚦", "../x", "%2F", "A", "a"]
        {
            assert!(check_name("limit", good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a\n", "a\0b", &"x".repeat(1000)] {
            assert!(check_name("limit", bad).is_err(), "{bad:?}");
        }
        assert_ne!(CellKey::of("naïve"), CellKey::of("nai\u{308}ve"));
    }
}
