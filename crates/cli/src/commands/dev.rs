//! `tollgate dev`.

use super::{print, print_line};
use crate::args::{Dev, Global};
use crate::connection::Settings;
use crate::failure::Failure;
use crate::host::Host;
use crate::logging;
use crate::signals::StopSignals;
use crate::temporal_server::{Options, TemporalServer};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the server may take until it answers: a machine that does much else at the same time is slow.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked until then.
const START_POLL: Duration = Duration::from_millis(100);

/// Runs a Temporal dev server and a coordinator host until asked to stop.
///
/// # Errors
/// [`Failure`] when one of them can't be started, or the server ends by itself.
pub async fn run(global: &Global, options: &Dev) -> Result<(), Failure> {
    logging::start(options.log)?;
    if global.temporal.address.is_some() {
        return Err(Failure::Usage(
            "--address: `dev` starts a server of its own; see `tollgate serve`".to_owned(),
        ));
    }
    let mut stop = StopSignals::listen()?;
    let address = format!("127.0.0.1:{}", options.port);
    let mut settings = Settings::plain(&address)?;
    if let Some(namespace) = &global.temporal.namespace {
        settings.namespace.clone_from(namespace);
    }
    let mut server = TemporalServer::start(&Options {
        db_filename: options.db_filename.clone(),
        port: options.port,
        ui_port: (!options.headless).then_some(options.ui_port),
        namespace: settings.namespace.clone(),
    })?;
    let groups = global.groups();
    let (settings, groups, call_timeout) = (settings.clone(), groups.clone(), global.timeout);
    let host = Host { settings: settings.clone(), groups: groups.clone(), call_timeout, metrics: None };
    let serve = async {
        tokio::select! {
            signal = stop.recv() => return Ok(signal),
            answers = wait_until_ready(&settings) => answers?,
        }
        host.run(&mut stop, || print(&welcome(options, &settings, &groups))).await
    };
    let outcome = tokio::select! {
        outcome = serve => outcome,
        failure = server.ended() => return Err(failure),
    };
    let stopped = server.stop().await;
    let signal = outcome?;
    stopped?;
    print_line(&format!("stopped by {signal}"))
}

/// Waits until the server answers.
async fn wait_until_ready(settings: &Settings) -> Result<(), Failure> {
    let until = Instant::now() + START_TIMEOUT;
    loop {
        let attempt = (Instant::now() + Duration::from_secs(2)).min(until);
        match settings.connect(attempt).await {
            Ok(_) => return Ok(()),
            Err(Failure::NoAnswer(_)) if Instant::now() < until => sleep(START_POLL).await,
            Err(failure) => return Err(failure),
        }
    }
}

/// Where everything is and what to do next.
fn welcome(options: &Dev, settings: &Settings, groups: &[String]) -> String {
    let mut text = format!("Temporal:  {}", settings.address());
    match &options.db_filename {
        Some(file) => text.push_str(&format!(", kept in {}\n", file.display())),
        None => text.push_str(", in memory\n"),
    }
    if !options.headless {
        text.push_str(&format!("UI:        http://127.0.0.1:{}\n", options.ui_port));
    }
    text.push_str(&format!("Groups:    {}\n\nIn another terminal:\n", groups.join(", ")));
    let mut suffix = String::new();
    if options.port != 7233 {
        text.push_str(&format!("  export TEMPORAL_ADDRESS={}\n", settings.address()));
    }
    if settings.namespace != "default" {
        text.push_str(&format!("  export TEMPORAL_NAMESPACE={}\n", settings.namespace));
    }
    if let Some(group) = groups.first().filter(|group| *group != tollgate_workflows::contracts::GROUP_DEFAULT)
    {
        suffix = format!(" --group {group}");
    }
    text.push_str(&format!("  tollgate limit set example --rate 50/s --burst 16{suffix}\n"));
    text.push_str(&format!("  tollgate status --watch{suffix}\n\nCtrl-C stops it all.\n"));
    text
}
