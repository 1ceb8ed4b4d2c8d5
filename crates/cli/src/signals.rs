//! Being asked to stop.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, heard from its creation on.
#[derive(Debug)]
pub struct StopSignals {
    int: Signal,
    term: Signal,
    hup: Signal,
}

impl StopSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// [`Failure::Failed`] when the system refuses.
    pub fn listen() -> Result<StopSignals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::Failed(format!("can't wait for signals: {error}")));
        Ok(StopSignals {
            int: listen(SignalKind::interrupt())?,
            term: listen(SignalKind::terminate())?,
            hup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one, and names it. May be called again for the next one.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.int.recv() => "SIGINT",
            _ = self.term.recv() => "SIGTERM",
            _ = self.hup.recv() => "SIGHUP",
        }
    }
}
