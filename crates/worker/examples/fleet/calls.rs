//! The activities: real HTTP calls.

use crate::notes::{Notes, now_ns};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use temporalio_common::error::ApplicationFailure;
use temporalio_sdk::activities::{ActivityContext, ActivityError, activities};
use tollgate_worker::CurrentPermit;

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// When the downstream is asked again that said no without saying until when.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// One call of the batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    /// Its number.
    pub id: u64,
    /// `fetch` or `summarize`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The task queue.
    pub queue: String,
    /// What to ask the downstream for.
    pub path: String,
}

/// The activities of a worker.
pub(crate) struct Calls {
    base: String,
    client: Client<HttpConnector, Empty<Bytes>>,
    notes: Notes,
    gated: bool,
}

impl Calls {
    /// `gated`: every call needs a permit that still holds.
    pub(crate) fn new(base: &str, notes: Notes, gated: bool) -> Calls {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CALL_TIMEOUT));
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Calls { base: base.to_owned(), client, notes, gated }
    }

    async fn get(&self, call: &Call) -> Result<Bytes, ActivityError> {
        if self.gated && !CurrentPermit::get().is_some_and(|permit| permit.is_valid()) {
            return Err(failure("Stale", "the permit has ended, ask again".to_owned(), Some(Duration::ZERO)));
        }
        let done = tokio::time::timeout(CALL_TIMEOUT, self.exchange(&call.path)).await;
        let (status, answer) = match done {
            Ok(Ok((status, retry_after, body))) => match status {
                200..300 => (status, Ok(body)),
                429 => {
                    (status, Err(failure("Throttled", "429: too many calls".to_owned(), Some(retry_after))))
                }
                other => (status, Err(failure("Status", format!("status {other}"), None))),
            },
            Ok(Err(error)) => (0, Err(failure("Unreachable", error.to_string(), None))),
            Err(_) => (0, Err(failure("Timeout", format!("no answer within {CALL_TIMEOUT:?}"), None))),
        };
        self.notes.add(now_ns(), format_args!("{status} {}", call.id));
        answer
    }

    async fn exchange(&self, path: &str) -> Result<(u16, Duration, Bytes), crate::Failure> {
        let answer = self.client.get(format!("{}{path}", self.base).parse()?).await?;
        let status = answer.status().as_u16();
        let retry_after =
            answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok((status, retry_after.map_or(RETRY_AFTER_DEFAULT, Duration::from_secs), body))
    }
}

fn failure(kind: &str, text: String, retry_after: Option<Duration>) -> ActivityError {
    let failure =
        ApplicationFailure::builder(text).type_name(kind.to_owned()).maybe_next_retry_delay(retry_after);
    ActivityError::application(failure.build())
}

#[activities]
impl Calls {
    /// Gets a path; returns how many bytes came back.
    #[activity(name = "fetch")]
    pub(crate) async fn fetch(
        self: Arc<Self>,
        _ctx: ActivityContext,
        call: Call,
    ) -> Result<u64, ActivityError> {
        Ok(self.get(&call).await?.len() as u64)
    }

    /// Gets a path; returns how many words came back.
    #[activity(name = "summarize")]
    pub(crate) async fn summarize(
        self: Arc<Self>,
        _ctx: ActivityContext,
        call: Call,
    ) -> Result<u64, ActivityError> {
        let answer = self.get(&call).await?;
        Ok(answer.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count() as u64)
    }
}
