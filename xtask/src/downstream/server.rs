//! The HTTP side of the downstream.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;

use super::arrivals::{Entry, LogWriter, boot_ns};
use super::{Allowance, Bucket, DownstreamOptions};

/// How much of the log a kill may lose.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Open connections; more of them wait in the listener's queue. Well above a fleet of 64 workers.
const CONNECTIONS_MAX: usize = 1_024;
/// A request's body is read and thrown away up to this size; a larger one ends its connection.
const BODY_BYTES_MAX: usize = 1 << 20;
/// A client that sends no complete head within this time is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long answers under way may take after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Counts since the start, and what is allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Calls that came in: `accepted + rejected`.
    pub arrivals: u64,
    /// Calls within the allowance.
    pub accepted: u64,
    /// Calls that got a 429.
    pub rejected: u64,
    /// Allowed calls a second.
    pub rate: u32,
    /// Allowed calls at once.
    pub burst: u32,
}

type Reply = Response<Full<Bytes>>;

/// One lock around all of it makes the times in the log, the decisions and the counts one order.
struct Books {
    bucket: Bucket,
    log: LogWriter,
    accepted: u64,
    rejected: u64,
    /// The first failure to write the log. It ends the server: a count that isn't written is worth nothing.
    log_error: Option<std::io::Error>,
}

struct Downstream {
    books: Mutex<Books>,
    latency: Duration,
}

pub(super) async fn serve(options: &DownstreamOptions) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("can't wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't wait for SIGINT")?;
    let downstream = Arc::new(Downstream::new(options)?);
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("--listen {}: can't listen there", options.listen))?;
    let address = listener.local_addr().context("can't read the address that it listens on")?;
    announce(&format!("listening on http://{address}"))?;

    let connections = GracefulShutdown::new();
    let outcome = tokio::select! {
        outcome = accept(&listener, &downstream, &connections) => outcome,
        outcome = flush_often(&downstream) => outcome,
        () = stopped(&mut terminate, &mut interrupt) => Ok(()),
    };
    drop(listener);
    // Whoever is still there after the time-out is cut off; the log is complete either way.
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.shutdown()).await.is_err() {
        eprintln!("some answers were still under way after {DRAIN_TIMEOUT:?}");
    }
    outcome.and(downstream.flush())
}

async fn stopped(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn accept(
    listener: &TcpListener,
    downstream: &Arc<Downstream>,
    connections: &GracefulShutdown,
) -> Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.context("the places are never closed")?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file handles, or a client that left early: both pass.
                eprintln!("can't take a connection, trying again: {error}");
                tokio::time::sleep(FLUSH_EVERY).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("a connection went away at once: {error}");
            continue;
        }
        let downstream = Arc::clone(downstream);
        let service = service_fn(move |request| {
            let downstream = Arc::clone(&downstream);
            async move { Ok::<_, Infallible>(downstream.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A client that breaks off is its own affair; what it asked for is in the log.
            connection.await.ok();
            drop(place);
        });
    }
}

async fn flush_often(downstream: &Downstream) -> Result<()> {
    let mut ticks = tokio::time::interval(FLUSH_EVERY);
    loop {
        ticks.tick().await;
        downstream.flush()?;
    }
}

/// Prints a line and sees that it leaves, also into a pipe.
fn announce(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("can't print the address")
}

impl Downstream {
    fn new(options: &DownstreamOptions) -> Result<Self> {
        let now_ns = boot_ns();
        let bucket = Bucket::new(Allowance { rate: options.rate, burst: options.burst }, now_ns);
        let Allowance { rate, burst } = bucket.allowance();
        let mut log = LogWriter::create(&options.log)?;
        log.write(&Entry::Allowance { boot_ns: now_ns, rate, burst })
            .with_context(|| format!("--log {}: can't write", options.log.display()))?;
        Ok(Self {
            books: Mutex::new(Books { bucket, log, accepted: 0, rejected: 0, log_error: None }),
            latency: Duration::from_millis(u64::from(options.latency_ms)),
        })
    }

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let reply = match (request.uri().path(), request.method()) {
            ("/stats", &Method::GET) => json(StatusCode::OK, &self.books().stats()),
            ("/stats", _) => wrong_method("GET"),
            ("/allowance", &Method::PUT) => self.change_allowance(request.uri().query().unwrap_or("")),
            ("/allowance", _) => wrong_method("PUT"),
            _ => {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                self.arrive(path).await
            }
        };
        // An unread body would end the connection, which costs a client that keeps it alive.
        Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await.ok();
        reply
    }

    async fn arrive(&self, path: &str) -> Reply {
        let decision = self.books().arrive(path);
        match decision {
            Ok(()) => {
                tokio::time::sleep(self.latency).await;
                json(StatusCode::OK, &serde_json::json!({ "path": path }))
            }
            Err(wait_ns) => {
                // The header counts whole seconds: rounded up, so that coming back then is early for nobody.
                let seconds = wait_ns.div_ceil(1_000_000_000).max(1);
                let mut reply = failure(StatusCode::TOO_MANY_REQUESTS, "beyond the allowance");
                reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                reply
            }
        }
    }

    fn change_allowance(&self, query: &str) -> Reply {
        let mut books = self.books();
        match parse_allowance(query, books.bucket.allowance()) {
            Ok(allowance) => {
                books.change_allowance(allowance);
                json(StatusCode::OK, &allowance)
            }
            Err(message) => failure(StatusCode::BAD_REQUEST, &message),
        }
    }

    fn flush(&self) -> Result<()> {
        let mut books = self.books();
        let outcome = books.log_error.take().map_or(Ok(()), Err).and_then(|()| books.log.flush());
        outcome.context("can't write the log of arrivals: free space on its disk")
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing panics while it holds the lock; if it did, the counts would still be whole.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn arrive(&mut self, path: &str) -> Result<(), u64> {
        let now_ns = boot_ns();
        let decision = self.bucket.take(now_ns);
        let status = if decision.is_ok() {
            self.accepted += 1;
            StatusCode::OK
        } else {
            self.rejected += 1;
            StatusCode::TOO_MANY_REQUESTS
        };
        self.write(&Entry::arrival(now_ns, path, status.as_u16()));
        decision
    }

    fn change_allowance(&mut self, allowance: Allowance) {
        let now_ns = boot_ns();
        self.bucket.set_allowance(allowance, now_ns);
        self.write(&Entry::Allowance { boot_ns: now_ns, rate: allowance.rate, burst: allowance.burst });
    }

    fn write(&mut self, entry: &Entry) {
        if let Err(error) = self.log.write(entry) {
            self.log_error.get_or_insert(error);
        }
    }

    fn stats(&self) -> Stats {
        let Allowance { rate, burst } = self.bucket.allowance();
        let (accepted, rejected) = (self.accepted, self.rejected);
        Stats { arrivals: accepted + rejected, accepted, rejected, rate, burst }
    }
}

/// Reads `rate=..&burst=..`; what isn't named stays as it is.
fn parse_allowance(query: &str, current: Allowance) -> Result<Allowance, String> {
    let (mut rate, mut burst) = (None, None);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, text) = part.split_once('=').unwrap_or((part, ""));
        let slot = match name {
            "rate" => &mut rate,
            "burst" => &mut burst,
            _ => return Err(format!("{name}: no such field; there are rate and burst")),
        };
        let value = text
            .parse()
            .ok()
            .filter(|value| (1..=Allowance::MAX).contains(value))
            .ok_or_else(|| format!("{name}={text}: give a whole number from 1 to {}", Allowance::MAX))?;
        if slot.replace(value).is_some() {
            return Err(format!("{name}: given twice; give it once"));
        }
    }
    if rate.is_none() && burst.is_none() {
        return Err("nothing to change: give rate, burst or both, as in ?rate=100&burst=20".to_owned());
    }
    Ok(Allowance { rate: rate.unwrap_or(current.rate), burst: burst.unwrap_or(current.burst) })
}

fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    // Plain structs and maps with string keys always serialize.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

fn failure(status: StatusCode, message: &str) -> Reply {
    json(status, &serde_json::json!({ "error": message }))
}

fn wrong_method(allowed: &'static str) -> Reply {
    let mut reply = failure(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allowed} here"));
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Allowance = Allowance { rate: 50, burst: 20 };

    #[test]
    fn an_allowance_changes_only_what_it_names() {
        assert_eq!(parse_allowance("rate=100", NOW), Ok(Allowance { rate: 100, burst: 20 }));
        assert_eq!(parse_allowance("burst=1", NOW), Ok(Allowance { rate: 50, burst: 1 }));
        assert_eq!(parse_allowance("burst=2&rate=3", NOW), Ok(Allowance { rate: 3, burst: 2 }));
    }

    #[test]
    fn a_bad_allowance_is_refused_with_field_value_and_range() {
        for (query, said) in [
            ("", "nothing to change"),
            ("rate=0", "rate=0: give a whole number from 1 to 1000000"),
            ("rate=-1", "rate=-1"),
            ("burst=1000001", "burst=1000001"),
            ("burst", "burst="),
            ("rate=1&rate=2", "given twice"),
            ("speed=1", "speed: no such field"),
        ] {
            let message = parse_allowance(query, NOW).unwrap_err();
            assert!(message.contains(said), "{query}: {message}");
        }
    }
}
