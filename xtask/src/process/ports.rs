//! Ports for programs that can't pick one by themselves.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A TCP port of 127.0.0.1 that nobody listened on a moment ago.
///
/// Prefer port 0 where the program prints what it got: between this call and its start, another program may take
/// the port.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr().context("a listener without an address")?.port())
}

/// As many different free ports.
///
/// # Errors
/// When there are fewer.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    // All are held until the last is found, so that none is given twice.
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
        *port = listener.local_addr().context("a listener without an address")?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_that_are_asked_for_together_differ() {
        let ports = free_ports::<16>().unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        assert!(ports.iter().all(|port| *port > 0));
        assert!(free_port().unwrap() > 0);
    }
}
