//! `/metrics` and `/healthz` over HTTP, for scrapers and probes.
//!
//! Every connection carries one request and is gone after [`CONNECTION_TIMEOUT`] at the latest, and there are
//! [`CONNECTIONS_MAX`] of them at a time: whoever comes beyond that waits to be taken, and holds up nobody's work.

use crate::snapshot::Snapshot;
use crate::text::CONTENT_TYPE;
use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Connections at a time: a few scrapers and probes, and whoever looks by hand.
pub const CONNECTIONS_MAX: usize = 16;
/// A connection is cut off after this: scrapers give up after ten seconds themselves.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head must be there within this.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Figures that aren't there by then are answered with 503. Leaves time to send them.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(8);
/// The largest head of a request. Scrapers send a few hundred bytes; hyper allows no less than 8,192.
const HEAD_BYTES_MAX: usize = 8_192;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// When no connection can be taken, the next try is after this.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Makes a snapshot when it is asked for. See [`figures()`].
pub type Figures = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Snapshot> + Send>> + Send + Sync>;

/// From a function that makes a snapshot, which may take a while.
pub fn figures<F, S>(make: F) -> Figures
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = Snapshot> + Send + 'static,
{
    Arc::new(move || Box::pin(make()))
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Another program listens there.
    #[error(
        "metrics can't be served at {0}: another program listens there; choose another port, or 0 for any that is free"
    )]
    Taken(SocketAddr),
    /// The operating system doesn't allow it.
    #[error("metrics can't be served at {address}: {error}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
    /// Connections are served by tasks: serve within a Tokio runtime with I/O and time enabled.
    #[error("metrics must be served within a tokio runtime")]
    NoRuntime,
}

/// Serves metrics as long as it lives.
#[must_use = "metrics are served as long as this lives"]
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    task: AbortHandle,
}

impl Endpoint {
    /// Listens at `address`, port 0 for any that is free, and answers from then on.
    ///
    /// # Errors
    /// [`EndpointError`] when it can't listen there.
    pub async fn bind(address: SocketAddr, figures: Figures) -> Result<Endpoint, EndpointError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| EndpointError::NoRuntime)?;
        let refused = |error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse => EndpointError::Taken(address),
            _ => EndpointError::Refused { address, error },
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let task = runtime.spawn(accept(listener, figures)).abort_handle();
        Ok(Endpoint { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, figures: Figures) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
            continue;
        }
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, figures.clone()));
                }
                // Out of file handles, or a client that left early: both pass.
                Err(error) => {
                    tracing::debug!(%error, "no connection for metrics");
                    sleep(AGAIN_AFTER).await;
                }
            },
        }
    }
}

async fn serve(stream: TcpStream, figures: Figures) {
    let service = service_fn(move |request| {
        let figures = figures.clone();
        async move { Ok::<_, Infallible>(answer(&request, &figures).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off, or is cut off, is its own affair.
    let _ended = timeout(CONNECTION_TIMEOUT, connection).await;
}

type Reply = Response<Full<Bytes>>;

async fn answer(request: &Request<Incoming>, figures: &Figures) -> Reply {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut reply = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET here\n");
        reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    if request.body().size_hint().lower() > 0 {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "a body says nothing here\n");
    }
    match request.uri().path() {
        "/metrics" => match timeout(FIGURES_TIMEOUT, figures()).await {
            Ok(snapshot) => reply(StatusCode::OK, CONTENT_TYPE, snapshot.into_text()),
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "no figures in time\n"),
        },
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics and /healthz\n"),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Reply {
    reply(status, "text/plain; charset=utf-8", text)
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}
