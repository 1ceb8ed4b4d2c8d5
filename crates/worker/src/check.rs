//! A look at a limit that takes nothing.

use crate::error::{AcquireError, Reason};
use crate::gate::Gate;
use crate::limit::Limit;
use crate::queue::{Verdict, duration};
use std::time::Duration;
use tollgate_core::bucket::Level;

/// What a look at a limit found: true when it was made, and no promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outlook {
    /// Whether [`Limit::try_acquire`] would have granted it.
    pub would_admit: bool,
    /// Why not.
    pub reason: Option<Reason>,
    /// When asking may help, as far as is known. `None` when it would be granted now, and when nothing but a change by an
    /// operator helps.
    pub retry_after: Option<Duration>,
    /// How old what is known is: the time since the request was sent that the coordinator answered last. `None` before the first
    /// answer.
    pub age: Option<Duration>,
}

impl Gate {
    /// Whether `cost` tokens of a limit would be granted now: answers from memory, takes nothing and never waits. For failing
    /// a batch before it starts. A limit that was not used before is leased from now on; until the coordinator has answered,
    /// nothing would be granted.
    ///
    /// The fleet may have more than this process holds: `tollgate limit check` and query `would_admit` look at all of it.
    ///
    /// # Errors
    /// What is wrong with the question: a cost of zero or above the burst, a limit that doesn't exist.
    pub fn would_admit(&self, limit: &str, cost: u64) -> Result<Outlook, AcquireError> {
        self.limit(limit).would_admit(cost)
    }
}

impl Limit {
    /// Whether [`Limit::try_acquire`] would grant `cost` tokens now: see [`Gate::would_admit`].
    ///
    /// # Errors
    /// As [`Gate::would_admit`].
    pub fn would_admit(&self, cost: u64) -> Result<Outlook, AcquireError> {
        let (cell, core) = (&self.cell, &self.cell.core);
        let Some(index) = cell.index.filter(|_| cost > 0) else { return Err(cell.wrong(cost)) };
        let age = self.gate.shared.ledger().map(|heard| core.clock.boot().since(heard.sent));
        let age = age.map(duration);
        if !core.home.is_here() {
            return Ok(Outlook {
                would_admit: false,
                reason: Some(Reason::Starting),
                retry_after: None,
                age,
            });
        }
        if let Ok(mut client) = core.client.try_lock()
            && let Some(leased) = client.cell_mut(index)
        {
            leased.refill(core.clock.now());
        }
        let queue = cell.queue();
        let (facts, ahead) = (queue.facts, queue.cost());
        let queued = queue.present() > 0;
        drop(queue);
        if facts.lets_through() {
            return Ok(Outlook { would_admit: true, reason: None, retry_after: None, age });
        }
        let (now, level) = (core.clock.boot(), cell.level_at_most());
        let reason = match facts.verdict(cost, level, None, now) {
            Some(Verdict::UnknownLimit) => {
                return Err(AcquireError::UnknownLimit { limit: cell.name.clone() });
            }
            Some(Verdict::CostAboveBurst { burst }) => {
                return Err(AcquireError::CostAboveBurst {
                    limit: cell.limit.clone(),
                    meter: cell.meter.clone(),
                    cost,
                    burst,
                });
            }
            Some(Verdict::Refused(reason)) => reason,
            None if !queued && now < cell.level.expiry() && u64::try_from(level).is_ok_and(|n| n >= cost) => {
                return Ok(Outlook { would_admit: true, reason: None, retry_after: None, age });
            }
            None => facts.reason_now(queued, now),
        };
        let retry_after = facts.hint(reason, cost.saturating_add(ahead), level, now).map(duration);
        Ok(Outlook { would_admit: false, reason: Some(reason), retry_after, age })
    }
}
