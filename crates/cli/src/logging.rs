//! The log of long-running commands, on standard error.

use crate::args::{Log, LogFormat};
use crate::failure::Failure;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// What is logged when `RUST_LOG` doesn't say: what an operator acts on.
const FILTER_DEFAULT: &str =
    "warn,tollgate=info,tollgate_cli=info,tollgate_activities=info,tollgate_workflows=info";

/// Starts logging.
///
/// # Errors
/// [`Failure::Usage`] when `RUST_LOG` can't be read.
pub fn start(options: Log) -> Result<(), Failure> {
    let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.unwrap_or_else(|| FILTER_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&wanted).map_err(|error| {
        Failure::Usage(format!("RUST_LOG is {wanted:?}: {error}; an example: tollgate=debug,warn"))
    })?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!no_color && std::io::stderr().is_terminal());
    let started = match options.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::Failed(format!("can't start logging: {error}")))
}
