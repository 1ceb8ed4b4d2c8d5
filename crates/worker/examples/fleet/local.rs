//! A limit that one process keeps to by itself: what a fleet has without tollgate.

use crate::notes::{Notes, now_ns};
use futures_util::FutureExt as _;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use temporalio_sdk::interceptors::{
    ActivityInboundInterceptor, ExecuteActivityInput, ExecuteActivityOutput, Next,
};
use tokio::sync::Mutex;

/// A rate and a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    rate: u32,
    burst: u32,
}

impl FromStr for Figures {
    type Err = String;

    fn from_str(text: &str) -> Result<Figures, String> {
        let figures =
            text.split_once(':').and_then(|(rate, burst)| Some((rate.parse().ok()?, burst.parse().ok()?)));
        match figures {
            Some((rate, burst)) if rate > 0 && burst > 0 => Ok(Figures { rate, burst }),
            _ => Err("give calls a second and calls at once, both from 1, as in 50:16".to_owned()),
        }
    }
}

/// Holds every activity of this process until its own bucket has a token.
pub(crate) struct LocalGate {
    figures: Figures,
    limit: String,
    admissions: Notes,
    bucket: Arc<Mutex<Bucket>>,
}

struct Bucket {
    /// When the next token is there; tokens up to the burst may have come before.
    next: Instant,
}

impl LocalGate {
    pub(crate) fn new(figures: Figures, limit: &str, admissions: Notes) -> LocalGate {
        let whole = Duration::from_secs(1) * figures.burst / figures.rate;
        let now = Instant::now();
        let bucket = Arc::new(Mutex::new(Bucket { next: now.checked_sub(whole).unwrap_or(now) }));
        LocalGate { figures, limit: limit.to_owned(), admissions, bucket }
    }

    async fn admit(&self) {
        let step = Duration::from_secs(1) / self.figures.rate;
        let whole = step * self.figures.burst;
        // Waiting with the lock keeps the order.
        let mut bucket = self.bucket.lock().await;
        let now = Instant::now();
        let earliest = now.checked_sub(whole).unwrap_or(now);
        let token_at = bucket.next.max(earliest) + step;
        tokio::time::sleep_until(token_at.into()).await;
        bucket.next = token_at;
        self.admissions.add(now_ns(), format_args!("{} 1", self.limit));
    }
}

impl ActivityInboundInterceptor for LocalGate {
    fn execute_activity<'a>(
        &'a self,
        input: ExecuteActivityInput,
        next: Next<'a, ExecuteActivityInput, ExecuteActivityOutput<'a>>,
    ) -> ExecuteActivityOutput<'a> {
        async move {
            self.admit().await;
            next.run(input).await
        }
        .boxed()
    }
}
