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
use tollgate_metrics::{Endpoint, Figures, figures};

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
    let figures = figures_of(Groups::new(&groups, metrics.clone()));
    #[cfg(feature = "otlp")]
    let _push = push(options, figures.clone())?;
    // Before all else, so that also a host that never gets to Temporal shows that; until the end.
    let _endpoint = match options.metrics {
        Some(address) => Some(show(address, figures).await?),
        None => None,
    };
    let host = Host { settings, groups, call_timeout: global.timeout, metrics: Some(metrics) };
    let signal = host.run(&mut stop, || print_line(&ready)).await?;
    tracing::info!(signal, "stopped");
    Ok(())
}

fn figures_of(groups: Groups) -> Figures {
    let groups = Arc::new(groups);
    figures(move || {
        let groups = groups.clone();
        async move { groups.snapshot().await }
    })
}

async fn show(address: SocketAddr, figures: Figures) -> Result<Endpoint, Failure> {
    let endpoint = Endpoint::bind(address, figures).await;
    let endpoint = endpoint.map_err(|error| Failure::Usage(format!("--metrics: {error}")))?;
    print_line(&format!("metrics: http://{}/metrics", endpoint.address()))?;
    Ok(endpoint)
}

#[cfg(feature = "otlp")]
fn push(options: &Serve, figures: Figures) -> Result<Option<tollgate_metrics::otlp::Push>, Failure> {
    /// As often as the coordinators may be asked.
    const EVERY: std::time::Duration = std::time::Duration::from_secs(15);
    let Some(address) = &options.otlp else { return Ok(None) };
    let push = tollgate_metrics::otlp::Push::start(address, "tollgate", EVERY, figures);
    push.map(Some).map_err(|error| Failure::Usage(format!("--otlp: {error}")))
}
