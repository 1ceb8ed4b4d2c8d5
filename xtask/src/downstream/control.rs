//! Asks a running downstream for its figures and changes its allowance, as its owner would.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;

use super::{Allowance, Stats};

/// How long the server may take: it answers these requests without its latency.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A client for `/stats` and `/allowance`.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    address: SocketAddr,
}

impl Control {
    /// A client for the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A client for the server that printed this line when it was ready.
    ///
    /// # Errors
    /// When the line isn't `listening on http://ADDRESS`.
    pub fn from_ready_line(line: &str) -> Result<Self> {
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .and_then(|address| address.parse().ok())
            .with_context(|| format!("no address in the line {line:?}"))?;
        Ok(Self::new(address))
    }

    /// The base address for calls.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it counted and what it allows.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub fn stats(&self) -> Result<Stats> {
        self.ask("GET", "/stats")
    }

    /// Changes what it allows, at once.
    ///
    /// # Errors
    /// When it doesn't answer or refuses the figures.
    pub fn set_allowance(&self, allowance: Allowance) -> Result<Allowance> {
        self.ask("PUT", &format!("/allowance?rate={}&burst={}", allowance.rate, allowance.burst))
    }

    fn ask<T: DeserializeOwned>(&self, method: &str, target: &str) -> Result<T> {
        let context = || format!("{method} {}{target}", self.url());
        let answer = self.exchange(method, target).with_context(context)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status != "200" {
            bail!("{}: status {status}: {body}", context());
        }
        serde_json::from_str(body).with_context(context)
    }

    fn exchange(&self, method: &str, target: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}
