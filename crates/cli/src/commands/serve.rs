//! `tollgate serve`.

use super::print_line;
use crate::args::{Global, Serve};
use crate::connection::Settings;
use crate::failure::Failure;
use crate::host::Host;
use crate::logging;
use crate::signals::StopSignals;

/// Runs a coordinator host until it is asked to stop.
///
/// # Errors
/// [`Failure`] when the settings are wrong or the server refuses the host. A server that is away is no error.
pub async fn run(global: &Global, options: &Serve) -> Result<(), Failure> {
    logging::start(options.log)?;
    let mut stop = StopSignals::listen()?;
    let settings = Settings::load(&global.temporal)?;
    let groups = global.groups();
    let ready = format!("ready: groups {} on {}", groups.join(","), settings.address());
    let host = Host { settings, groups, call_timeout: global.timeout };
    let signal = host.run(&mut stop, || print_line(&ready)).await?;
    tracing::info!(signal, "stopped");
    Ok(())
}
