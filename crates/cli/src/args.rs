//! The command line.

mod check;
mod operate;

pub use check::{BenchLimit, Replay};
pub use operate::{Evict, OfLimit, Ramp, Worker};

use crate::file::tree::Language;
use crate::{layers, quantity};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::units::Span;
use tollgate_workflows::contracts::{GROUP_DEFAULT, check_group};
use tollgate_workflows::wire::conduct::WhenLostJson;
use tollgate_workflows::wire::config::RateJson;
use tollgate_workflows::wire::layers::ValueJson;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: refused by the server, or not valid; nothing was changed
  2  wrong usage: arguments or connection settings (of `tollgate plan`: something would change)
  3  no answer: Temporal not reachable, no coordinator host, or the time was over
  4  no: what `limit check` asked about could not begin now

Connection settings come from Temporal's own variables (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY,
TEMPORAL_TLS, TEMPORAL_TLS_*, TEMPORAL_GRPC_META_*, TEMPORAL_PROFILE, TEMPORAL_CONFIG_FILE) and temporal.toml, as the
Temporal CLI reads them. Options on the command line go first. Refused are a codec server, since messages are plain
JSON, and TEMPORAL_TLS_DISABLE_HOST_VERIFICATION.";

/// Rate limits for a fleet of workers, held by Temporal.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    about,
    max_term_width = 110,
    propagate_version = true,
    after_help = EXIT_CODES,
    after_long_help = format!("\
Examples:
  tollgate dev                                     a Temporal server to try things with, and a coordinator
  tollgate serve --address temporal:7233           a coordinator host for your own Temporal server
  tollgate limit set openai --rate 50/s --burst 16
  tollgate status --watch

{EXIT_CODES}")
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The group of limits, which share one coordinator [default: default]
    #[arg(long, global = true, value_name = "GROUP", value_parser = group)]
    pub group: Vec<String>,
    /// Print JSON as the server sends it; errors too, on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait for an answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = quantity::timeout,
          allow_hyphen_values = true)]
    pub timeout: Duration,
    /// How to reach Temporal.
    #[command(flatten)]
    pub temporal: Temporal,
}

/// How to reach Temporal: the options have the Temporal CLI's names.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Temporal")]
pub struct Temporal {
    /// The Temporal server [default: localhost:7233]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The namespace [default: default]
    #[arg(long, short = 'n', global = true)]
    pub namespace: Option<String>,
    /// A profile of the configuration file
    #[arg(long, global = true)]
    pub profile: Option<String>,
    /// The configuration file, instead of temporal.toml in its usual place
    #[arg(long, global = true, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// API key; turns TLS on
    #[arg(long, global = true, value_name = "KEY", hide_short_help = true)]
    pub api_key: Option<String>,
    /// Use TLS
    #[arg(long, global = true, hide_short_help = true)]
    pub tls: bool,
    /// Certificate of the authority that signed the server's
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub tls_ca_path: Option<String>,
    /// Client certificate
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub tls_cert_path: Option<String>,
    /// Key of the client certificate
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub tls_key_path: Option<String>,
    /// The name that the server's certificate is for
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub tls_server_name: Option<String>,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start a Temporal dev server with its UI, and a coordinator host
    #[command(after_help = "\
Examples:
  tollgate dev                              everything in memory, gone when it ends
  tollgate dev --db-filename tollgate.db    kept in a file
  tollgate dev --port 17233 --ui-port 18233 --group default --group batch

The server is the Temporal CLI's: the one that TOLLGATE_TEMPORAL_CLI names, else `temporal` in PATH. Only for
development: nothing is secured or replicated. Ctrl-C stops both.")]
    Dev(Dev),
    /// Run a coordinator host for a Temporal server
    #[command(after_help = "\
Examples:
  tollgate serve
  tollgate serve --group default --group batch --address temporal:7233 --namespace limits
  TEMPORAL_PROFILE=production RUST_LOG=tollgate=debug tollgate serve --log-format json
  tollgate serve --metrics 0.0.0.0:9464     and curl http://localhost:9464/metrics

It makes sure that each group's workflows are there, and prints `ready: groups default on HOST:PORT` once it serves.
Without Temporal it keeps trying; for its namespace it waits as long as --timeout says. Run two of them: either may
be killed at any time. SIGTERM and SIGINT stop it cleanly.")]
    Serve(Serve),
    /// Show and change limits
    #[command(subcommand)]
    Limit(Limit),
    /// Show and change schedules: changes of limits that come back
    #[command(subcommand)]
    Schedule(Schedule),
    /// Put what files say in force: all of it in one version, or nothing
    #[command(after_help = "\
Examples:
  tollgate apply -f limits.toml --reason \"the provider's tier 2\"
  tollgate apply -f limits/ --prune               every .toml, .yaml, .yml and .json in it; the rest is removed
  generate | tollgate apply -f - --format json
  tollgate apply -f limits.toml --dry-run

A file:
  [limits.openai]
  rate = \"1000/min\"          # 50, 50/s, 600/min, 5/day
  burst = 50                   # at once; else what a second brings, from a minute on the whole count
  lease = \"15s\"
  concurrency = 20             # at once in flight; with drain = \"5s\" for work that goes on after its client is gone
  [limits.openai.meters.tokens]
  rate = \"100000/min\"
  policy = \"sliding-window\"   # else token-bucket; leaky-bucket

What a file leaves out of a limit is put back to its default; what limits and meters it doesn't name is kept, unless
--prune is given. `tollgate schema` prints a schema for editors. If somebody changes the group meanwhile, nothing happens.")]
    Apply(Apply),
    /// Say what `apply` would do; exit code 2 when anything would change
    #[command(after_help = "\
Examples:
  tollgate plan -f limits.toml
  tollgate plan -f limits/ --prune --json | jq -r '.changes[]'

Exit codes: 0 nothing would change, 2 something would, 1 the files or the arguments are wrong, 3 no answer.")]
    Plan(Plan),
    /// Check files without asking anybody
    #[command(
        after_help = "Examples:\n  tollgate validate -f limits.toml\n  tollgate validate -f limits/ --json"
    )]
    Validate(Files),
    /// Write what is configured as a file that `apply` reads
    #[command(after_help = "\
Examples:
  tollgate export > limits.toml
  tollgate export --format yaml --group batch > batch.yaml")]
    Export(Export),
    /// Print the JSON Schema of a file of limits, for editors
    #[command(after_help = "\
Examples:
  tollgate schema > limits.schema.json      then `#:schema ./limits.schema.json` at the top of a TOML file, `$schema`
                                            in JSON, or `# yaml-language-server: $schema=limits.schema.json` in YAML")]
    Schema,
    /// Show the configuration and what changed it
    #[command(subcommand)]
    Config(Config),
    /// Say who held what of a limit at a time in the past
    #[command(after_help = "\
Examples:
  tollgate audit openai --at 2026-11-30T13:00:00Z
  tollgate audit openai --at -15m
  tollgate audit openai --at -2h --json | jq '.cells[].holders[] | {worker, share_ppb, tokens_milli}'

Worked out from the history of the coordinator's run at that time: its messages are taken in by a ledger once more, and its answers
compared with those that were given. It reaches back as far as the namespace keeps workflows that have ended.")]
    Audit(Audit),
    /// Show what is in force: limits, their use, and who holds what
    #[command(after_help = "\
Examples:
  tollgate status             all limits
  tollgate status openai      one limit with its holders
  tollgate status --watch     drawn anew every second; q or Ctrl-C ends it
  tollgate status --json | jq '.limits[] | {limit, used, waiting}'

Columns: RATE NOW and where a ramp leads; FREE tokens that no worker holds; OUT what workers hold of the limit, as a
share of its rate, or in tokens where it is handed out in tokens; WAITING tokens that are wanted and not there.")]
    Status(Status),
    /// Look at limits as they move: use, sparklines, waits, holders
    #[command(after_help = "\
Examples:
  tollgate top
  tollgate top --group batch --every 5s

Keys: up and down (j, k) choose a limit, enter shows its holders and esc goes back, s sorts by use, waiting or name, / filters,
q leaves. OF IT is what is used of the limit; LATELY is its course, in which a full block is the limit.")]
    Top(Top),
    /// Print what happens: changes, ramps, workers that come and go, starvation, recoveries
    #[command(after_help = "\
Examples:
  tollgate tail
  tollgate tail --json | jq -r 'select(.kind == \"starving\") | .limit'

A line for each event as it happens, until Ctrl-C. Seen by asking every second: what comes and goes in between isn't.")]
    Tail(Tail),
    /// Say who holds a limit, who waits for it, why, and what would help
    #[command(after_help = "\
Examples:
  tollgate explain openai           a limit
  tollgate explain host-7/1234      a worker, by its name ...
  tollgate explain 3f9a01c2         ... or by the beginning of its incarnation, as `tollgate status LIMIT` shows it
  tollgate explain openai --json | jq '.limits[].reasons[] | {reason, waiters, help, command}'

SINCE is from when on it has been so without a break. UNUSED is what a share brings beyond what its worker wants, and
tokens that lay in its bucket when it last asked. Figures are as of the coordinator's last message. A worker knows
more about itself, such as that it can't reach Temporal: see its log, or `Gate::state`.")]
    Explain(Explain),
    /// Show workers, and take their quota away
    #[command(subcommand)]
    Worker(Worker),
    /// Show, stop, pause and resume ramps
    #[command(subcommand)]
    Ramp(Ramp),
    /// Say how a limit would behave under a stated load: runs the simulator
    #[command(after_help = "\
Examples:
  tollgate bench-limit --rate 100/s --burst 20 --workers 10 --demand 120/s
  tollgate bench-limit --rate 100/s --workers 10 --demand 120/s --skew 80%      one worker wants most of it
  tollgate bench-limit --rate 5/s --burst 1 --workers 40 --demand 6/s --for 10m --patience 30s
  tollgate bench-limit --rate 600/min --demand 8/s --json | jq .utilization

It plays the ledger and the workers' side in virtual time; no server is asked. Messages take 3 to 15 ms a way, clocks are off
by up to 0.1%, and what a worker wants changes by up to a tenth every ten seconds. Waits are measured in steps of 20 ms.")]
    BenchLimit(BenchLimit),
    /// Check that this version replays your own histories: before an upgrade
    #[command(after_help = "\
Examples:
  tollgate replay                                          the coordinator and the config workflow of the group
  tollgate replay --workflow-id tollgate/default --run-id 7f9c24e8-3b12-4fd1-9a57-1f0f0b7c2b11
  tollgate replay --history coordinator.json               a file of `tollgate history-export`

Replays what is recorded with the workflows of this program, and compares what updates answer with what was answered. Changes
nothing. Exit code 0: a host of this version can take over; 1: it can't, or there is no such history.")]
    Replay(Replay),
    /// Write the history of a workflow's run to a file, as tests of the workflows replay it
    #[command(hide = true)]
    HistoryExport(HistoryExport),
    /// Print a script for the completions of a shell
    #[command(after_help = "\
Examples:
  tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
  tollgate completions zsh  > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    #[command(after_help = "\
Examples:
  tollgate man ~/.local/share/man/man1 && man tollgate-limit-set")]
    Man {
        /// The directory for them, which must be there
        directory: PathBuf,
    },
}

/// `tollgate history-export`.
#[derive(Clone, Debug, Args)]
pub struct HistoryExport {
    /// The workflow
    pub id: String,
    /// The file to write
    pub file: PathBuf,
    /// Its run; the newest if not given
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
}

/// `tollgate dev`.
#[derive(Clone, Debug, Args)]
pub struct Dev {
    /// Keep the server's state in this file; in memory if not given
    #[arg(long, short = 'f', value_name = "FILE")]
    pub db_filename: Option<PathBuf>,
    /// Port of the Temporal server
    #[arg(long, default_value_t = 7233, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Port of the Temporal UI
    #[arg(long, default_value_t = 8233, value_parser = clap::value_parser!(u16).range(1..))]
    pub ui_port: u16,
    /// Without the UI
    #[arg(long)]
    pub headless: bool,
    /// How it logs.
    #[command(flatten)]
    pub log: Log,
}

/// `tollgate serve`.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Serve metrics for Prometheus there, at /metrics; port 0 is any that is free [default: none]
    #[arg(long, value_name = "IP:PORT", value_parser = quantity::socket, allow_hyphen_values = true)]
    pub metrics: Option<SocketAddr>,
    /// Push metrics every 15 s by OTLP over gRPC to this collector: http://HOST:4317 [default: none]
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// How it logs.
    #[command(flatten)]
    pub log: Log,
}

/// How a long-running command logs, on standard error. `RUST_LOG` says what.
#[derive(Clone, Copy, Debug, Args)]
pub struct Log {
    /// Form of the log on standard error; RUST_LOG chooses what is logged
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// `tollgate limit`.
#[derive(Clone, Debug, Subcommand)]
pub enum Limit {
    /// Create a limit, or change what is given of it
    #[command(after_help = "\
Examples:
  tollgate limit set openai --rate 50/s --burst 16 --reason \"the provider's tier 2\"
  tollgate limit set openai --rate 100/s --ramp 15s      the rest stays as it is
  tollgate limit set openai --rate 100/s --dry-run       say what would change
  tollgate limit set reports --rate 5/day --lease 2m
  tollgate limit set openai --meter tokens --rate 100000/min      a second thing that is counted
  tollgate limit set openai --concurrency 20 --drain 5s           at most 20 calls at once
  tollgate limit set search --rate 1000/10s --policy sliding-window
  tollgate limit set gemini --rate 1000/day --policy fixed-window --time-zone America/Los_Angeles
  tollgate limit set fragile --rate 5/s --policy leaky-bucket --queue 100 --initial empty
  tollgate limit set batch --tier high=600/min:burst=20 --tier low=400/min:floor=100/min
  tollgate limit set search --shadow on                           refuse nothing, count what would be refused
  tollgate limit set mail --when-lost hold:50% --reserve 10%

A new limit begins at once; a change ramps linearly, over 60 s unless --ramp says otherwise. When somebody else
changes the group at the same time, the second change is refused.")]
    Set(Box<LimitSet>),
    /// Change a limit for a time: it falls back by itself
    #[command(after_help = "\
Examples:
  tollgate limit override openai --rate 2000/min --for 30m --reason \"a backlog\"
  tollgate limit override openai --rate 0.5x --for 2h --ramp 15s     half of what is set, rate and burst
  tollgate limit override openai --concurrency 40 --for 1h --meter in_flight
  tollgate limit override openai --end --reason \"done\"

It ramps there and back, over 60 s unless --ramp says otherwise, and falls back on time also when every coordinator host
is down meanwhile. What is set stays beneath: a `limit set` or `apply` meanwhile changes that, and counts once the override
is over. Another override replaces the first one; --end ends it now. Schedules wait until it is over.")]
    Override(Box<Override>),
    /// Show one limit as it is configured
    #[command(visible_alias = "show")]
    #[command(after_help = "Examples:\n  tollgate limit get openai\n  tollgate limit get openai --json")]
    Get {
        /// The limit
        #[arg(value_parser = quantity::name)]
        name: String,
    },
    /// Show all limits as they are configured
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  tollgate limit list
  tollgate limit list --group batch --json

RATE SET and BURST SET are what was set, to which RAMPS lead; `tollgate status` shows what is in force now.")]
    List,
    /// Say whether work could begin at once; takes nothing
    #[command(after_help = "\
Examples:
  tollgate limit check openai --cost 3
  tollgate limit check gemini --count 500 || exit    before a batch of 500 calls
  tollgate limit check openai --meter tokens --cost 2000 --count 20 --json

Exit code 0: all of it could begin now, as far as the coordinator knows; 4: it could not. It is a look and no promise:
others may take what is there.")]
    Check {
        /// The limit
        #[arg(value_parser = quantity::name)]
        name: String,
        /// Tokens that one piece of work costs
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        cost: u64,
        /// How many pieces of work
        #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// The meter [default: requests]
        #[arg(long, value_name = "NAME", value_parser = quantity::label)]
        meter: Option<String>,
    },
    /// Refuse all work of limits until they are resumed, with reason `paused`
    #[command(after_help = "\
Examples:
  tollgate limit pause openai --reason \"provider is down\"
  tollgate limit pause openai gemini --dry-run

All meters and tiers of each limit are paused. Work that has begun goes on; what waits in a process is refused at once. A
pause survives `tollgate apply`: only `tollgate limit resume` ends it.")]
    Pause {
        /// The limits
        #[arg(required = true, value_name = "NAME", value_parser = quantity::name)]
        names: Vec<String>,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
    /// Let work of paused limits go on
    #[command(after_help = "\
Examples:
  tollgate limit resume openai
  tollgate limit resume openai gemini --reason \"provider is back\"")]
    Resume {
        /// The limits
        #[arg(required = true, value_name = "NAME", value_parser = quantity::name)]
        names: Vec<String>,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
    /// Remove a limit; its leases end by themselves
    #[command(after_help = "\
Examples:
  tollgate limit rm openai --reason \"provider is gone\"
  tollgate limit rm openai --meter tokens         one meter of several
  tollgate limit rm openai --tier low             one tier of several
  tollgate limit rm openai --dry-run")]
    Rm {
        /// The limit
        #[arg(value_parser = quantity::name)]
        name: String,
        /// Only this meter
        #[arg(long, value_name = "NAME", value_parser = quantity::label)]
        meter: Option<String>,
        /// Only this tier
        #[arg(long, value_name = "NAME", value_parser = quantity::label)]
        tier: Option<String>,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
    /// Stop the ramp of a limit where it is
    #[command(after_help = "Examples:\n  tollgate limit abort-ramp openai --reason \"429s at 80/s\"")]
    AbortRamp {
        /// The limit
        #[arg(value_parser = quantity::name)]
        name: String,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
}

/// `tollgate limit set`. What isn't given stays as it is.
#[derive(Clone, Debug, Args)]
pub struct LimitSet {
    /// The limit
    #[arg(value_parser = quantity::name)]
    pub name: String,
    /// What is counted; a limit may have several meters, each set by itself [default: requests]
    #[arg(long, value_name = "NAME", value_parser = quantity::label, conflicts_with = "concurrency")]
    pub meter: Option<String>,
    /// How it counts [default: token-bucket]
    #[arg(long, value_enum, conflicts_with = "concurrency")]
    pub policy: Option<PolicyKind>,
    /// With --policy fixed-window: the part of the calendar that a window is [default: the rate's period]
    #[arg(long, value_enum)]
    pub window: Option<Window>,
    /// With --policy fixed-window: whose midnight it is, by its IANA name [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
    /// Of a new limit: what there is at the beginning [default: full]
    #[arg(long, value_enum)]
    pub initial: Option<InitialKind>,
    /// How many may wait for it in one process; others are refused at once [default: as the process says]
    #[arg(long, value_name = "N", value_parser = quantity::queue, allow_hyphen_values = true)]
    pub queue: Option<u64>,
    /// The part of the burst that is kept for workers that are new, while the rest suffices: 0% to 50% [default: 20%]
    #[arg(long, value_name = "PERCENT", value_parser = quantity::reserve, allow_hyphen_values = true)]
    pub reserve: Option<u32>,
    /// Refuse nothing, and count what would be refused: to introduce a limit in production [default: off]
    #[arg(long, value_enum)]
    pub shadow: Option<Switch>,
    /// What becomes of work in a process whose lease has ended and that doesn't reach the coordinator: `closed` refuses it;
    /// `hold:50%` goes on at that part of its last share; `open` lets everything through. With the last two the limit may be
    /// broken meanwhile [default: closed]
    #[arg(long, value_name = "closed|hold:PERCENT|open", value_parser = quantity::when_lost)]
    pub when_lost: Option<WhenLostJson>,
    /// At most so many at once: sets meter `in_flight`
    #[arg(long, value_name = "N", value_parser = quantity::burst, allow_hyphen_values = true,
        conflicts_with_all = ["rate", "burst"])]
    pub concurrency: Option<u64>,
    /// With --concurrency: how long work goes on downstream after its client is gone [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true,
        requires = "concurrency")]
    pub drain: Option<Span>,
    /// Tokens per time: 50, 50/s, 600/min, 100/h, 5/day, 10/250ms
    #[arg(long, value_parser = quantity::rate, allow_hyphen_values = true)]
    pub rate: Option<RateJson>,
    /// A tier with a rate of its own, for work that asks for it by name; may be given several times, the highest tier first.
    /// Higher tiers borrow from lower ones what those leave unused. `NAME[=RATE][:burst=N][:floor=RATE][:lend][:no-lend][:rank=N]`;
    /// with `floor`, higher tiers come first above it; with `lend`, lower ones may use what is idle; `rank` changes the order
    /// (0 is the highest). --rate and --burst are then what all tiers together may have at most. What a limit without tiers
    /// has is its tier `default`
    #[arg(long = "tier", value_name = "TIER", value_parser = quantity::tier)]
    pub tiers: Vec<Tier>,
    /// The most tokens used at once [default: what the rate brings in a second, the whole count from a minute on]
    #[arg(long, value_name = "TOKENS", value_parser = quantity::burst, allow_hyphen_values = true)]
    pub burst: Option<u64>,
    /// How long a worker may act on one answer: longer rides out longer outages, shorter takes a dead worker's
    /// quota back sooner [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::lease, allow_hyphen_values = true)]
    pub lease: Option<Span>,
    /// How long the change takes, in a straight line [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
    pub ramp: Option<Span>,
    /// The limit was used in another group until now: wait for the leases of that group to end
    #[arg(long)]
    pub moved: bool,
    /// How it is changed.
    #[command(flatten)]
    pub change: Change,
}

/// Which of a limit's meters.
#[derive(Clone, Debug, Default, Args)]
pub struct Meter {
    /// The meter [default: the only one, else requests]
    #[arg(long, value_name = "NAME", value_parser = quantity::label)]
    pub meter: Option<String>,
    /// The tier [default: all of them]
    #[arg(long, value_name = "NAME", value_parser = quantity::label)]
    pub tier: Option<String>,
}

/// `tollgate schedule`.
#[derive(Clone, Debug, Subcommand)]
pub enum Schedule {
    /// Create or replace a schedule of a limit
    #[command(after_help = "\
Examples:
  tollgate schedule set openai --name night --between 00:00-06:00 --zone Asia/Shanghai --rate 2x --ramp 2m
  tollgate schedule set openai --name weekend --between 00:00-24:00 --days weekends --zone Europe/Berlin --rate 3000/min
  tollgate schedule set fragile --name nightly-import --between 22:00-02:00 --days mon-fri --rate 0x

A multiple is of what is set, rate and burst; a rate leaves the burst as it is set unless --burst is given. The ramp
begins when the time comes, at its end too. Of two schedules the one that began last is in force; an override goes first.
On days on which clocks are moved: a time that is skipped is the moment when it is skipped, so that what lies within the gap
doesn't happen; a time that comes twice is the first of the two. What ends earlier in the day than it begins ends on the next day;
--days are those on which it begins.")]
    Set(Box<ScheduleSet>),
    /// Show schedules, and when they begin and end next
    #[command(visible_alias = "list")]
    #[command(after_help = "\
Examples:
  tollgate schedule ls
  tollgate schedule ls openai --next 2d
  tollgate schedule ls --json | jq '.next[] | {at_us, limit, what}'")]
    Ls {
        /// Only of this limit
        #[arg(value_parser = quantity::name)]
        limit: Option<String>,
        /// How far ahead to look, up to 31d
        #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = layers::ahead, allow_hyphen_values = true)]
        next: Span,
    },
    /// Remove a schedule; what is in force by it falls back, over 60 s
    #[command(after_help = "\
Examples:
  tollgate schedule rm openai --name night --reason \"no longer needed\"")]
    Rm {
        /// The limit
        #[arg(value_parser = quantity::name)]
        limit: String,
        /// The schedule
        #[arg(long, value_name = "NAME", value_parser = layers::name)]
        name: String,
        /// Which of its meters.
        #[command(flatten)]
        meter: Meter,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
}

/// `tollgate schedule set`.
#[derive(Clone, Debug, Args)]
pub struct ScheduleSet {
    /// The limit
    #[arg(value_parser = quantity::name)]
    pub limit: String,
    /// The schedule's name: one of this name is replaced
    #[arg(long, value_name = "NAME", value_parser = layers::name)]
    pub name: String,
    /// The times of day between which it is in force: 00:00-06:00, 22:00-06:00, 00:00-24:00
    #[arg(long, value_name = "FROM-TO", value_parser = layers::between)]
    pub between: (String, String),
    /// The days on which it begins: mon,wed, mon-fri, weekdays, weekends [default: every day]
    #[arg(long, value_name = "DAYS", value_delimiter = ',', value_parser = layers::days)]
    pub days: Vec<layers::Days>,
    /// Whose clocks, by the IANA name of the time zone
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub zone: String,
    /// Which of its meters.
    #[command(flatten)]
    pub meter: Meter,
    /// What it has meanwhile: a rate such as 2000/min, or a multiple of what is set such as 2x or 0.5x
    #[arg(long, value_name = "RATE", value_parser = layers::value, allow_hyphen_values = true)]
    pub rate: Option<ValueJson>,
    /// The most tokens used at once meanwhile [default: as it is set]
    #[arg(long, value_name = "TOKENS", value_parser = quantity::burst, allow_hyphen_values = true)]
    pub burst: Option<u64>,
    /// Of what is in flight: at most so many at once meanwhile
    #[arg(long, value_name = "N", value_parser = quantity::burst, allow_hyphen_values = true,
        conflicts_with_all = ["rate", "burst"])]
    pub concurrency: Option<u64>,
    /// How long the change takes, at the beginning and at the end, in a straight line [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
    pub ramp: Option<Span>,
    /// How it is changed.
    #[command(flatten)]
    pub change: Change,
}

/// `tollgate limit override`.
#[derive(Clone, Debug, Args)]
pub struct Override {
    /// The limit
    #[arg(value_parser = quantity::name)]
    pub name: String,
    /// Which of its meters.
    #[command(flatten)]
    pub meter: Meter,
    /// What it has meanwhile: a rate such as 2000/min, or a multiple of what is set such as 2x or 0.5x
    #[arg(long, value_name = "RATE", value_parser = layers::value, allow_hyphen_values = true)]
    pub rate: Option<ValueJson>,
    /// The most tokens used at once meanwhile [default: as it is set]
    #[arg(long, value_name = "TOKENS", value_parser = quantity::burst, allow_hyphen_values = true)]
    pub burst: Option<u64>,
    /// Of what is in flight: at most so many at once meanwhile
    #[arg(long, value_name = "N", value_parser = quantity::burst, allow_hyphen_values = true,
        conflicts_with_all = ["rate", "burst"])]
    pub concurrency: Option<u64>,
    /// For how long: 1s to 31d
    #[arg(long = "for", value_name = "DURATION", value_parser = layers::lasting, allow_hyphen_values = true)]
    pub lasting: Option<Span>,
    /// How long the change takes, there and back, in a straight line [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
    pub ramp: Option<Span>,
    /// End it now
    #[arg(long, conflicts_with_all = ["rate", "burst", "concurrency", "lasting"])]
    pub end: bool,
    /// How it is changed.
    #[command(flatten)]
    pub change: Change,
}

/// What is said of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Its rate; with `--concurrency`, the count alone matters.
    pub rate: Option<RateJson>,
    /// Its burst.
    pub burst: Option<u64>,
    /// What higher tiers leave it.
    pub floor: Option<RateJson>,
    /// Whether lower tiers may use what is idle.
    pub lend: Option<bool>,
    /// Its place.
    pub rank: Option<u32>,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyKind {
    /// A burst at once, then the rate: in every interval at most the burst and what the rate brings in it
    #[value(alias = "token_bucket")]
    TokenBucket,
    /// Evenly spaced: a token bucket with a burst of one
    #[value(alias = "leaky_bucket")]
    LeakyBucket,
    /// Never more than the rate's count in any window as long as its period
    #[value(alias = "sliding_window")]
    SlidingWindow,
    /// Never more than the rate's count in each hour, day, week or month of a time zone's calendar
    #[value(alias = "fixed_window")]
    FixedWindow,
}

/// A part of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Window {
    /// From one full hour to the next
    Hour,
    /// From midnight to midnight
    Day,
    /// From Monday to Monday
    Week,
    /// From the first to the first; the rate is then per 28d to 31d
    Month,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is so from now on
    On,
    /// It is so no more
    Off,
}

/// What there is when a limit begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InitialKind {
    /// The whole burst
    Full,
    /// Nothing: a bucket fills at its rate, and a window counts as used up
    Empty,
}

/// Files of limits.
#[derive(Clone, Debug, Args)]
pub struct Files {
    /// A file, a directory, or - for standard input; may be given several times
    #[arg(short = 'f', long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// The language [default: by the file's name; TOML on standard input]
    #[arg(long, value_enum)]
    pub format: Option<Language>,
    /// Remove every limit and meter that the files don't name
    #[arg(long)]
    pub prune: bool,
}

/// `tollgate apply`.
#[derive(Clone, Debug, Args)]
pub struct Apply {
    /// What to read.
    #[command(flatten)]
    pub files: Files,
    /// How long the change takes, in a straight line [default: `ramp` of the files, else 60s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
    pub ramp: Option<Span>,
    /// How it is changed.
    #[command(flatten)]
    pub change: Change,
}

/// `tollgate plan`.
#[derive(Clone, Debug, Args)]
pub struct Plan {
    /// What to read.
    #[command(flatten)]
    pub files: Files,
    /// How long the change takes, in a straight line [default: `ramp` of the files, else 60s]
    #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
    pub ramp: Option<Span>,
}

/// `tollgate export`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Export {
    /// The language
    #[arg(long, value_enum, default_value_t = Language::Toml)]
    pub format: Language,
}

/// What goes with every change.
#[derive(Clone, Debug, Default, Args)]
pub struct Change {
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the history; the login name and the host unless given
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Say what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Refuse unless this version is in force
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<String>,
}

/// `tollgate config`.
#[derive(Clone, Debug, Subcommand)]
pub enum Config {
    /// Show the configuration in force
    #[command(after_help = "\
Examples:
  tollgate config show
  tollgate config show --json > limits.json
  tollgate config show --at +30s      what will be in force by then, with all ramps
  tollgate config show --at 2026-11-30T13:00:00Z")]
    Show {
        /// The values that are in force at this time, instead of what was set: +30s, -5m, 2026-11-30T13:00:00Z
        #[arg(long, value_name = "TIME", value_parser = At::read, allow_hyphen_values = true)]
        at: Option<At>,
    },
    /// Go back to what was set when a version was in force
    #[command(after_help = "\
Examples:
  tollgate config history                            which versions there are
  tollgate config rollback 7 --dry-run               version 1796043897000000.7, and what would change
  tollgate config rollback 1796043897000000.7 --reason \"429s since the last change\"

It is a change like any other: a new version, with ramps, over 60 s unless --ramp says otherwise. Limits, meters, tiers and
schedules become what was set then; an override stays on top until it ends. The last 200 changes are kept, fewer of large
ones; `config history` says how far it reaches.")]
    Rollback {
        /// The version, as `config history` shows it, or its number after the point
        #[arg(value_name = "VERSION")]
        to: String,
        /// How long the change takes, in a straight line [default: 60s]
        #[arg(long, value_name = "DURATION", value_parser = quantity::ramp, allow_hyphen_values = true)]
        ramp: Option<Span>,
        /// How it is changed.
        #[command(flatten)]
        change: Change,
    },
    /// Show what differs between what was set by two versions
    #[command(after_help = "\
Examples:
  tollgate config diff 6 7
  tollgate config diff 1796043897000000.6       against the version in force

Overrides and ramps are none of it.")]
    Diff {
        /// A version, as `config history` shows it, or its number after the point
        from: String,
        /// Another one [default: the one in force]
        to: Option<String>,
    },
    /// Show what changed, newest first: who, when, why
    #[command(after_help = "Examples:\n  tollgate config history\n  tollgate config history --limit openai")]
    History {
        /// Only changes of this limit
        #[arg(long, value_name = "NAME", value_parser = quantity::name)]
        limit: Option<String>,
        /// Only the newest so many
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Microseconds since the Unix epoch.
    Absolute(u64),
    /// After now.
    In(Span),
    /// Before now.
    Ago(Span),
}

impl At {
    fn read(text: &str) -> Result<At, String> {
        let allowed = || "allowed: +DURATION, -DURATION, or a time such as 2026-11-30T13:00:00Z".to_owned();
        if let Some(span) = text.strip_prefix('+') {
            return quantity::span(span).map(At::In).map_err(|_| allowed());
        }
        if let Some(span) = text.strip_prefix('-') {
            return quantity::span(span).map(At::Ago).map_err(|_| allowed());
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| allowed())?;
        u64::try_from(time.as_microsecond()).map(At::Absolute).map_err(|_| allowed())
    }

    /// Microseconds since the Unix epoch.
    pub fn us(self, now_us: u64) -> u64 {
        match self {
            At::Absolute(us) => us,
            At::In(span) => now_us.saturating_add(span.0),
            At::Ago(span) => now_us.saturating_sub(span.0),
        }
    }
}

/// `tollgate audit`.
#[derive(Clone, Debug, Args)]
pub struct Audit {
    /// The limit
    #[arg(value_parser = quantity::name)]
    pub limit: String,
    /// When: -15m, 2026-11-30T13:00:00Z
    #[arg(long, value_name = "TIME", value_parser = At::read, allow_hyphen_values = true)]
    pub at: At,
}

/// `tollgate status`.
#[derive(Clone, Debug, Args)]
pub struct Status {
    /// Only this limit, with who holds it
    #[arg(value_parser = quantity::name)]
    pub limit: Option<String>,
    /// Draw it anew every second
    #[arg(long, short = 'w')]
    pub watch: bool,
}

/// `tollgate top`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Top {
    /// How often it asks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = quantity::every, allow_hyphen_values = true)]
    pub every: Duration,
}

/// `tollgate tail`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Tail {
    /// How often it asks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = quantity::every, allow_hyphen_values = true)]
    pub every: Duration,
}

/// `tollgate explain`.
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// The limit, or the worker: its name, or at least four digits of its incarnation
    #[arg(value_name = "LIMIT|WORKER", value_parser = quantity::name)]
    pub name: String,
}

impl Cli {
    /// Whether the command is `plan`, also when the rest can't be read.
    pub fn names_plan(arguments: impl Iterator<Item = OsString>) -> bool {
        let commands = Cli::command();
        let named = arguments.skip(1).find(|argument| commands.find_subcommand(argument).is_some());
        named.is_some_and(|command| command == "plan")
    }
}

impl Global {
    /// All groups, each once, in the order given.
    pub fn groups(&self) -> Vec<String> {
        let mut groups: Vec<String> = Vec::new();
        for group in &self.group {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        if groups.is_empty() {
            groups.push(GROUP_DEFAULT.to_owned());
        }
        groups
    }
}

fn group(text: &str) -> Result<String, String> {
    check_group(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_and_after_the_command() {
        let before = Cli::try_parse_from(["tollgate", "--group", "a", "--json", "status"]).unwrap();
        let after = Cli::try_parse_from(["tollgate", "status", "--group", "a", "--json"]).unwrap();
        for cli in [before, after] {
            assert_eq!(cli.global.groups(), ["a"]);
            assert!(cli.global.json);
        }
    }

    #[test]
    fn wrong_usage_of_plan_is_told_from_a_plan_with_changes() {
        let names = |line: &str| Cli::names_plan(line.split(' ').map(OsString::from));
        assert!(names("tollgate plan --fiel x"));
        assert!(names("tollgate --group a plan"));
        assert!(!names("tollgate limit get plan --bogus"));
        assert!(!names("tollgate"));
    }

    #[test]
    fn a_group_given_twice_is_served_once() {
        let cli = Cli::try_parse_from(["tollgate", "serve", "--group", "a", "--group", "b", "--group", "a"]);
        assert_eq!(cli.unwrap().global.groups(), ["a", "b"]);
        let cli = Cli::try_parse_from(["tollgate", "serve"]);
        assert_eq!(cli.unwrap().global.groups(), ["default"]);
    }

    #[test]
    fn times_are_absolute_or_as_seen_from_now() {
        assert_eq!(At::read("+30s").map(|at| at.us(1_000_000)), Ok(31_000_000));
        assert_eq!(At::read("-5m").map(|at| at.us(301_000_000)), Ok(1_000_000));
        assert_eq!(At::read("1970-01-01T00:00:01Z"), Ok(At::Absolute(1_000_000)));
        for bad in ["", "30s", "+", "-x", "1969-01-01T00:00:00Z", "yesterday"] {
            assert!(At::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_option_value_and_what_is_allowed() {
        for (option, value) in [
            ("--rate", "-1"),
            ("--rate", "50/0s"),
            ("--rate", "99999999999999999999"),
            ("--rate", "abc"),
            ("--burst", "-1"),
            ("--burst", "99999999999999999999"),
            ("--lease", "1s"),
            ("--lease", "8"),
            ("--ramp", "-5s"),
            ("--timeout", "0s"),
        ] {
            let error = Cli::try_parse_from(["tollgate", "limit", "set", "api", option, value]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(option) && text.contains(&format!("'{value}'")), "{text}");
            assert!(text.contains("allowed: "), "{text}");
        }
    }
}
