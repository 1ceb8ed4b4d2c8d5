//! What the coordinator says of itself meanwhile, asked for as an operator would.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tollgate_sim::checker::PICO;

use super::book::{Book, Curve, Version};
use crate::downstream::arrivals::boot_ns;
use crate::fleet::stage::{LIMIT, Stage, wall_to_boot_ns};

/// The coordinator's workflow.
pub const COORDINATOR: &str = "tollgate/default";
/// The config workflow.
pub const CONFIG: &str = "tollgate-config/default";

/// One answer to `tollgate status --json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// When it was asked for, by the boot clock.
    pub at_ns: u64,
    /// Until when it recovers, by the boot clock.
    pub recovering_until_ns: Option<u64>,
}

/// What was seen so far.
#[derive(Debug)]
pub struct Watch {
    /// The limit's burst, which nobody changes.
    burst: u32,
    inner: Mutex<Inner>,
    /// Held while the coordinator is asked for its configuration, and while it is reset: an answer from before the reset
    /// must not count for the time after it.
    asking: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    book: Book,
    seen: Vec<Seen>,
    /// How often the coordinator had continued as new, and when it was asked for last with a smaller number.
    runs: u64,
    run_began_after_ns: u64,
    last_ns: u64,
    /// Answers by which the limit was gone, or not as it was created.
    forgotten: u64,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    recovering_until_us: Option<u64>,
    version: VersionFields,
    #[serde(default)]
    runs: u64,
}

#[derive(Deserialize)]
struct VersionFields {
    run_us: u64,
    n: u64,
}

impl VersionFields {
    fn version(&self) -> Version {
        (self.run_us, self.n)
    }
}

#[derive(Deserialize)]
struct Configuration {
    version: VersionFields,
    cells: Vec<ConfiguredCell>,
}

#[derive(Deserialize)]
struct ConfiguredCell {
    limit: String,
    rate: CurveFields,
    burst: BurstFields,
}

#[derive(Deserialize)]
struct BurstFields {
    target_milli: u64,
}

#[derive(Deserialize)]
struct CurveFields {
    source: RateFields,
    target: RateFields,
    start_us: u64,
    end_us: u64,
}

#[derive(Deserialize)]
struct RateFields {
    micro_tokens: u64,
    period_us: u64,
}

impl RateFields {
    fn pico(&self) -> i128 {
        i128::from(self.micro_tokens) * PICO / i128::from(self.period_us.max(1))
    }
}

impl CurveFields {
    fn curve(&self) -> Curve {
        let boot = |us| if us == 0 { 0 } else { wall_to_boot_ns(us) };
        let (start_ns, length_us) = (boot(self.start_us), self.end_us.saturating_sub(self.start_us));
        let end_ns = start_ns + length_us * 1_000;
        Curve { source: self.source.pico(), target: self.target.pico(), start_ns, end_ns }
    }
}

impl Watch {
    /// Nothing was seen yet of a limit with this burst.
    pub fn new(burst: u32) -> Self {
        Self { burst, inner: Mutex::default(), asking: Mutex::default() }
    }

    /// Asks the coordinator how it is and, when that is news, what it keeps to.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub fn look(&self, stage: &Stage) -> Result<()> {
        let _one_at_a_time = lock(&self.asking);
        let asked_ns = boot_ns();
        let text = stage.operate("status", &["status", "--json", "--timeout", "4s"])?;
        let status: Status = serde_json::from_str(&text).context("`tollgate status --json`")?;
        let version = status.version.version();
        {
            let mut inner = lock(&self.inner);
            if status.runs > inner.runs {
                (inner.runs, inner.run_began_after_ns) = (status.runs, inner.last_ns);
            }
            inner.last_ns = asked_ns;
            let recovering_until_ns = status.recovering_until_us.map(wall_to_boot_ns);
            inner.seen.push(Seen { at_ns: asked_ns, recovering_until_ns });
            if inner.book.last() == Some(version) {
                inner.book.observe_again(asked_ns);
                return Ok(());
            }
        }
        let asked_ns = boot_ns();
        let configuration: Configuration = query(stage, "configuration", "{}")?;
        let cell = configuration.cells.iter().find(|cell| cell.limit == LIMIT);
        let mut inner = lock(&self.inner);
        if cell.is_none_or(|cell| cell.burst.target_milli != u64::from(self.burst) * 1_000) {
            inner.forgotten += 1;
        }
        if let Some(cell) = cell {
            let version = configuration.version.version();
            inner.book.observe(asked_ns, boot_ns(), version, cell.rate.curve());
        }
        Ok(())
    }

    /// Has the coordinator reset while nobody asks it.
    ///
    /// # Errors
    /// When `reset` fails.
    pub fn around_reset(&self, reset: impl FnOnce() -> Result<()>) -> Result<()> {
        let _nobody_asks = lock(&self.asking);
        {
            let mut inner = lock(&self.inner);
            let since_ns = inner.run_began_after_ns;
            inner.book.reset(boot_ns(), since_ns);
        }
        reset()
    }

    /// Whether the coordinator was seen to keep to this version or a newer one.
    pub fn has_seen(&self, version: Version) -> bool {
        lock(&self.inner).book.has_seen(version)
    }

    /// What was in force when.
    pub fn book(&self) -> Book {
        lock(&self.inner).book.clone()
    }

    /// Answers by which the limit was gone, or not as it was created.
    pub fn forgotten(&self) -> u64 {
        lock(&self.inner).forgotten
    }

    /// All answers.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.inner).seen.clone()
    }
}

/// Asks the coordinator a query.
///
/// # Errors
/// When it doesn't answer, or not with what is expected.
pub fn query<T: DeserializeOwned>(stage: &Stage, name: &str, input: &str) -> Result<T> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<T> {
        query_result: Vec<T>,
    }
    let arguments = ["workflow", "query", "-w", COORDINATOR, "--type", name, "--input", input, "-o", "json"];
    let text = stage.temporal_command(&format!("query-{name}"), &arguments)?;
    let answer: Answer<T> = serde_json::from_str(&text).with_context(|| format!("query {name}: {text}"))?;
    answer.query_result.into_iter().next().with_context(|| format!("query {name}: no answer"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
