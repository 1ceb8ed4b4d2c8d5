//! The downstream as the demo uses it: a process of its own, over real connections.

#![allow(clippy::unwrap_used, reason = "a test may end at the first surprise")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use xtask::downstream::arrivals::{self, Entry, boot_ns};
use xtask::downstream::control::Control;
use xtask::downstream::{Allowance, Stats};
use xtask::process::{Process, Supervisor};

const LONG: Duration = Duration::from_secs(30);

struct Server {
    process: Process,
    control: Control,
    folder: TempDir,
    _supervisor: Supervisor,
}

impl Server {
    /// Starts a downstream that answers at once.
    fn start(flags: &[&str]) -> Self {
        Self::start_with_latency("0", flags)
    }

    fn start_with_latency(latency_ms: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Supervisor::new(folder.path().join("run")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["downstream", "--latency-ms", latency_ms]).args(flags);
        command.arg("--log").arg(folder.path().join("arrivals.jsonl"));
        let process = supervisor.spawn("downstream", command).unwrap();
        let line = process.wait_for_line("listening on ", LONG).unwrap();
        Self { process, control: Control::from_ready_line(&line).unwrap(), folder, _supervisor: supervisor }
    }

    fn connect(&self) -> Connection {
        let address = self.control.url();
        let stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Connection { stream: BufReader::new(stream) }
    }

    fn log(&self) -> Vec<Entry> {
        arrivals::read(&self.folder.path().join("arrivals.jsonl")).unwrap()
    }

    fn stop(&self) {
        assert!(self.process.terminate(LONG).unwrap().success());
    }
}

/// One connection that is kept alive.
struct Connection {
    stream: BufReader<TcpStream>,
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    headers: Vec<String>,
    body: String,
}

impl Connection {
    fn call(&mut self, method: &str, target: &str, body: &str) -> Answer {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        self.stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_ascii_lowercase());
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        Answer { status, headers: lines.split_off(1), body: String::from_utf8(body).unwrap() }
    }

    fn get(&mut self, target: &str) -> Answer {
        self.call("GET", target, "")
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).arg("downstream").args(arguments).output().unwrap()
}

#[test]
fn the_burst_is_served_on_one_connection_and_the_next_call_gets_a_429_with_retry_after() {
    let server = Server::start(&["--rate", "1", "--burst", "3"]);
    let mut connection = server.connect();
    let answers = (1..=4).map(|id| connection.get(&format!("/items/{id}"))).collect::<Vec<_>>();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 200, 429]);
    assert_eq!(answers[0].body, r#"{"path":"/items/1"}"#);
    assert!(answers[3].headers.contains(&"retry-after: 1".to_owned()), "{:?}", answers[3]);
    let expected = Stats { arrivals: 4, accepted: 3, rejected: 1, rate: 1, burst: 3 };
    assert_eq!(server.control.stats().unwrap(), expected);
}

#[test]
fn the_log_has_every_arrival_in_order_by_the_boot_clock() {
    let begin_ns = boot_ns();
    let server = Server::start(&["--rate", "1", "--burst", "1"]);
    let mut connection = server.connect();
    connection.call("POST", "/items/1?a=b", "a body that nobody reads");
    connection.get("/items/2");
    server.stop();

    let log = server.log();
    let shown = log
        .iter()
        .map(|entry| match entry {
            Entry::Arrival { path, status, .. } => format!("{path} {status}"),
            Entry::Allowance { rate, burst, .. } => format!("allows {rate} and {burst}"),
        })
        .collect::<Vec<_>>();
    assert_eq!(shown, ["allows 1 and 1", "/items/1?a=b 200", "/items/2 429"]);
    let times = log.iter().map(Entry::boot_ns).collect::<Vec<_>>();
    assert!(times.is_sorted() && times[0] > begin_ns && times[2] < boot_ns(), "{times:?}");
}

#[test]
fn a_new_allowance_holds_at_once_and_is_in_the_log() {
    let server = Server::start(&["--rate", "1", "--burst", "1"]);
    let mut connection = server.connect();
    assert_eq!(connection.get("/").status, 200);
    assert_eq!(connection.get("/").status, 429);
    let new = Allowance { rate: 1_000_000, burst: 20 };
    assert_eq!(server.control.set_allowance(new).unwrap(), new);
    assert!((0..20).all(|_| connection.get("/").status == 200));
    server.stop();
    let noted = |entry: &Entry| matches!(entry, Entry::Allowance { rate: 1_000_000, burst: 20, .. });
    assert_eq!(server.log().iter().filter(|entry| noted(entry)).count(), 1);
}

#[test]
fn the_owners_requests_are_no_arrivals_and_bad_ones_change_nothing() {
    let server = Server::start(&["--rate", "5", "--burst", "6"]);
    let mut connection = server.connect();
    let bad = connection.call("PUT", "/allowance?rate=0&burst=9", "");
    assert_eq!(bad.status, 400);
    assert!(bad.body.contains("rate=0: give a whole number from 1 to 1000000"), "{}", bad.body);
    let wrong = connection.get("/allowance?rate=9");
    assert_eq!(wrong.status, 405);
    assert!(wrong.headers.contains(&"allow: put".to_owned()), "{wrong:?}");
    assert_eq!(connection.call("POST", "/stats", "").status, 405);
    let expected = Stats { arrivals: 0, accepted: 0, rejected: 0, rate: 5, burst: 6 };
    assert_eq!(server.control.stats().unwrap(), expected);
}

#[test]
fn a_kill_loses_nothing_that_was_flushed() {
    let server = Server::start(&["--rate", "1", "--burst", "10"]);
    let mut connection = server.connect();
    assert_eq!(connection.get("/first").status, 200);
    let is_first = |entry: &Entry| matches!(entry, Entry::Arrival { path, .. } if path == "/first");
    let begin_ns = boot_ns();
    while !server.log().iter().any(is_first) {
        assert!(boot_ns() - begin_ns < 30_000_000_000, "the log is never flushed");
        std::thread::yield_now();
    }
    server.process.kill().unwrap();
    assert!(server.log().iter().any(is_first));
}

#[test]
fn sigterm_finishes_the_answer_that_is_under_way() {
    let server = Server::start_with_latency("300", &[]);
    let mut connection = server.connect();
    let answer = std::thread::scope(|scope| {
        let call = scope.spawn(|| connection.get("/slow"));
        while server.control.stats().unwrap().arrivals == 0 {
            std::thread::yield_now();
        }
        server.stop();
        call.join().unwrap()
    });
    assert_eq!(answer.status, 200);
}

#[test]
fn bad_flags_are_refused_with_flag_and_value() {
    let log = ["--log", "/nowhere/at/all.jsonl"];
    for (arguments, parts) in [
        (&["--rate", "0"][..], &["--rate", "0", "1..=1000000"][..]),
        (&["--burst", "many"], &["--burst", "many"]),
        (&["--latency-ms", "60001"], &["--latency-ms", "60001", "0..=60000"]),
        (&["--listen", "localhost"], &["--listen", "localhost"]),
        (&[], &["--log /nowhere/at/all.jsonl", "No such file"]),
    ] {
        let output = run(&[&log, arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        for part in parts {
            assert!(error.contains(part), "{error} names {part}");
        }
    }
}

#[test]
fn an_address_that_is_taken_is_refused_with_the_address() {
    let server = Server::start(&[]);
    let address = server.control.url().replace("http://", "");
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log").display().to_string();
    let output = run(&["--listen", &address, "--log", &log]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains(&format!("--listen {address}")), "{error}");
}
