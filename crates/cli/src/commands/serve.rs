//! `tollgate serve`.

use super::print_line;
use crate::args::{Global, Serve};
use crate::connection::Settings;
use crate::failure::Failure;
use crate::host::Host;
use crate::logging;
use crate::metrics::{Groups, Temporal};
use crate::signals::StopSignals;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_metrics::{Endpoint, EndpointError, figures};

/// Runs a coordinator host until it is asked to stop.
///
/// # Errors
/// [`Failure`] when the settings are wrong, the address for metrics is taken, or the server refuses the host. A server that is away is no error.
pub async fn run(global: &Global, options: &Serve) -> Result<(), Failure> {
    logging::start(options.log)?;
    let mut stop = StopSignals::listen()?;
    let settings = Settings::load(&global.temporal)?;
    let groups = global.groups();
    let ready = format!("ready: groups {} on {}", groups.join(","), settings.address());
    let metrics = Arc::new(Temporal::default());
    // Before all else, so that also a host that never gets to Temporal shows that; until the end.
    let _endpoint = match options.metrics {
        Some(address) => Some(show(address, Groups::new(&groups, metrics.clone())).await?),
        None => None,
    };
    let host = Host { settings, groups, call_timeout: global.timeout, metrics: Some(metrics) };
    let signal = host.run(&mut stop, || print_line(&ready)).await?;
    tracing::info!(signal, "stopped");
    Ok(())
}

async fn show(address: SocketAddr, groups: Groups) -> Result<Endpoint, Failure> {
    let groups = Arc::new(groups);
    let snapshot = move || {
        let groups = groups.clone();
        async move { groups.snapshot().await }
    };
    let endpoint = Endpoint::bind(address, figures(snapshot)).await.map_err(|error| match error {
        EndpointError::Taken(_) | EndpointError::Refused { .. } => {
            Failure::Usage(format!("--metrics: {error}"))
        }
        other => Failure::Failed(other.to_string()),
    })?;
    print_line(&format!("metrics: http://{}/metrics", endpoint.address()))?;
    Ok(endpoint)
}
