//! The endpoint against clients that behave and clients that don't.

use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_metrics::catalogue::WORKER_GRANTED;
use tollgate_metrics::endpoint::CONNECTIONS_MAX;
use tollgate_metrics::{Endpoint, EndpointError, Snapshot, figures};

const ANY: &str = "127.0.0.1:0";

fn one() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.count(&WORKER_GRANTED, ["g", "l", "requests", "default"], 1);
    snapshot
}

async fn endpoint() -> Endpoint {
    Endpoint::bind(ANY.parse().unwrap(), figures(|| ready(one()))).await.unwrap()
}

/// Sends bytes, and gives what comes back until the end.
async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Whoever is refused early may find the connection closed.
    let _sent = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn request(address: SocketAddr, line: &str) -> String {
    exchange(address, format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn scrapers_and_probes_get_what_they_want() {
    let endpoint = endpoint().await;
    let answer = request(endpoint.address(), "GET /metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert!(
        body.starts_with("# HELP tollgate_worker_permits_granted ") && body.ends_with("# EOF\n"),
        "{body}"
    );
    let health = request(endpoint.address(), "GET /healthz?verbose=1").await;
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("ok\n"), "{health}");
    let head = request(endpoint.address(), "HEAD /metrics").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_right() {
    let endpoint = endpoint().await;
    let address = endpoint.address();
    let missing = request(address, "GET /").await;
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("/metrics and /healthz"), "{missing}");
    let posted = request(address, "POST /metrics").await;
    assert!(posted.starts_with("HTTP/1.1 405") && posted.contains("allow: GET, HEAD"), "{posted}");
    let body = b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
    assert!(exchange(address, body).await.starts_with("HTTP/1.1 413"));
    let large = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let answer = exchange(address, large.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(65));
    let answer = exchange(address, many.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let answer = exchange(address, b"\x16\x03\x01 this is no HTTP\r\n\r\n").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(request(address, "GET /metrics").await.starts_with("HTTP/1.1 200"), "none of them did harm");
}

#[tokio::test]
async fn a_port_that_is_taken_is_a_clear_error() {
    let first = endpoint().await;
    let error = Endpoint::bind(first.address(), figures(|| ready(one()))).await.unwrap_err();
    assert!(matches!(error, EndpointError::Taken(address) if address == first.address()), "{error}");
    let text = error.to_string();
    assert!(text.contains(&first.address().to_string()) && text.contains("choose another port"), "{text}");
    // An address of somebody else's, kept for documentation.
    let error = Endpoint::bind("192.0.2.1:0".parse().unwrap(), figures(|| ready(one()))).await.unwrap_err();
    assert!(error.to_string().starts_with("metrics can't be served at 192.0.2.1:0: "), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_is_dropped_is_gone_with_its_connections() {
    let endpoint = Endpoint::bind(ANY.parse().unwrap(), figures(pending)).await.unwrap();
    let address = endpoint.address();
    let scrape = tokio::spawn(async move { request(address, "GET /metrics").await });
    assert!(
        request(address, "GET /healthz").await.ends_with("ok\n"),
        "a scrape that waits keeps nobody waiting"
    );
    drop(endpoint);
    assert_eq!(scrape.await.unwrap(), "");
    assert!(TcpStream::connect(address).await.is_err());
}

/// In paused time the endpoint's time limits pass as soon as all wait.
#[tokio::test(start_paused = true)]
async fn figures_that_never_come_are_an_error_and_not_a_hanging_scrape() {
    let endpoint = Endpoint::bind(ANY.parse().unwrap(), figures(pending)).await.unwrap();
    let answer = request(endpoint.address(), "GET /metrics").await;
    // A connection's own end may come first: time runs ahead while a socket is waited for.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn clients_that_say_nothing_are_cut_off_and_others_get_their_turn() {
    let scrapes = Arc::new(AtomicU64::new(0));
    let counted = scrapes.clone();
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        ready(one())
    };
    let endpoint = Endpoint::bind(ANY.parse().unwrap(), figures(count)).await.unwrap();
    let address = endpoint.address();
    let mut silent = Vec::new();
    for _ in 0..3 * CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTT").await.unwrap();
        silent.push(stream);
    }
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ended = stream.read_to_end(&mut rest).await;
    }
    assert_eq!(scrapes.load(Ordering::Relaxed), 0);
    assert!(request(address, "GET /metrics").await.starts_with("HTTP/1.1 200"));
}
