//! The options of the demo, with their ranges.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::fleet::BATCH_DEFAULT;
use crate::workspace::Workspace;

/// Most worker processes: each is a Temporal client with connections and threads of its own.
const WORKERS_MAX: i64 = 64;
/// Highest rate in calls a second, and largest burst in calls.
const RATE_MAX: i64 = 1_000_000;
/// Shortest run in seconds: long enough to be judged.
const SECONDS_MIN: i64 = 10;
/// Longest run in seconds.
const SECONDS_MAX: i64 = 3_600;

/// What `cargo xtask demo` takes.
#[derive(Debug, Clone, Args)]
pub struct DemoOptions {
    /// Write the outcome to this file as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Make the run about this long: takes as much of the batch as the limit allows in that time, or goes through it
    /// several times. Without it the batch is run once, 81 seconds [10 to 3600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(SECONDS_MIN..=SECONDS_MAX))]
    pub seconds: Option<u32>,

    /// Number of worker processes [1 to 64].
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    pub workers: u32,

    /// tollgate's limit in calls a second [1 to 1000000].
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    pub rate: u32,

    /// tollgate's burst in calls [1 to 1000000]. Keep it below the downstream's own: calls that leave
    /// evenly may arrive bunched.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    pub burst: u32,

    /// Call a server that is already there, instead of one that the demo starts.
    #[arg(long, value_name = "URL")]
    pub downstream: Option<DownstreamUrl>,

    /// The batch: a file with one JSON object a line [default: examples/batch.jsonl].
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Leave out the run without tollgate.
    #[arg(long)]
    pub no_baseline: bool,

    /// Leave the limit as it is, instead of ramping it to twice its rate.
    #[arg(long)]
    pub no_ramp: bool,

    /// Leave everything running at the end, to look at.
    #[arg(long)]
    pub keep: bool,
}

impl DemoOptions {
    /// A run for tests: the whole path, with the ramp and the kills, in about 50 seconds.
    pub fn short() -> DemoOptions {
        DemoOptions {
            json: None,
            seconds: Some(50),
            workers: 3,
            rate: 50,
            burst: 16,
            downstream: None,
            input: None,
            no_baseline: true,
            no_ramp: false,
            keep: false,
        }
    }

    /// The file with the batch.
    pub fn input_path(&self, workspace: &Workspace) -> PathBuf {
        self.input.clone().unwrap_or_else(|| workspace.root().join(BATCH_DEFAULT))
    }
}

/// The base address of a downstream: `http://`, a host, and possibly a port and a path,
/// without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamUrl(String);

impl DownstreamUrl {
    /// The address, ready for a path that starts with a slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DownstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(
                "start it with http:// (the demo's workers have no TLS), as in http://127.0.0.1:8080"
                    .to_owned(),
            );
        };
        if rest.contains(['?', '#']) || rest.contains(char::is_whitespace) {
            return Err("leave out spaces, queries and fragments: paths of the batch are appended".to_owned());
        }
        if rest.starts_with(['/', ':']) || rest.is_empty() {
            return Err("name a host, as in http://127.0.0.1:8080".to_owned());
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        options: DemoOptions,
    }

    fn parse(arguments: &[&str]) -> Result<DemoOptions, String> {
        Program::try_parse_from([&["demo"], arguments].concat())
            .map(|program| program.options)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_documented_run() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.workers, options.rate, options.burst), (5, 50, 16));
        assert_eq!(options.seconds, None);
        assert_eq!(options.input_path(&Workspace::at("/repo")), PathBuf::from("/repo/examples/batch.jsonl"));
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_flag_value_and_range() {
        for (arguments, range) in [
            (["--workers", "0"], "1..=64"),
            (["--rate", "0"], "1..=1000000"),
            (["--burst", "1000001"], "1..=1000000"),
            (["--seconds", "3601"], "10..=3600"),
        ] {
            let error = parse(&arguments).unwrap_err();
            for part in [arguments[0], arguments[1], range] {
                assert!(error.contains(part), "{error} names {part}");
            }
        }
    }

    #[test]
    fn a_downstream_url_that_a_path_cannot_be_appended_to_is_refused() {
        for bad in [
            "127.0.0.1:80",
            "ftp://host",
            "https://host",
            "http://",
            "http:///x",
            "http://h?x=1",
            "http://h o",
        ] {
            assert!(bad.parse::<DownstreamUrl>().is_err(), "{bad}");
        }
        assert_eq!("http://h:1/base/".parse::<DownstreamUrl>().unwrap().as_str(), "http://h:1/base");
    }
}
