//! Metrics of a running fleet as a real Prometheus sees them: every query of the dashboard and of the alerts is asked.

use crate::child::Child;
use crate::world::{World, eventually, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use temporalio_client::tonic::transport::Uri;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_worker::{Gate, Options, Outcome};

/// The variable that names the program.
const VARIABLE: &str = "TOLLGATE_PROMETHEUS";
/// How long anything may take until it is seen.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// Gets a page, and gives its status line and its body.
async fn get(address: &str, path: &str) -> Result<(String, String), String> {
    let text = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let text = tokio::time::timeout(SEEN_WITHIN, text).await.map_err(|_| "no answer".to_owned())?;
    let text = text.map_err(|error| error.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| text.clone())?;
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

/// A server that scrapes these addresses and evaluates the alerts.
struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(targets: &[String]) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let alerts = deploy("prometheus/alerts.yml");
        let configuration = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: {targets:?}}}]}}]\n",
            alerts.display()
        );
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(program());
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).args(["--log.level=warn"]);
        Prometheus { child: Child::start("prometheus", &command), address, _folder: folder }
    }

    async fn api(&self, path: &str) -> Result<Value, String> {
        assert!(!self.child.has_ended(), "{}", self.child.tail());
        let (_, body) = get(&self.address, path).await?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(body) }
    }

    /// How many series a query gives.
    async fn query(&self, query: &str) -> Result<usize, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.api(&format!("/api/v1/query?query={encoded}")).await?;
        Ok(data["result"].as_array().map_or(0, Vec::len))
    }
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path).canonicalize().unwrap()
}

/// Where `cargo xtask test` says that it is, else where `cargo xtask prometheus` puts it, else the one in PATH.
fn program() -> PathBuf {
    let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
    let unpacked = || {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
        Some(tools.join("prometheus/root/usr/bin/prometheus")).filter(|path| path.is_file())
    };
    let on_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join("prometheus")).find(|file| file.is_file())
    };
    named.or_else(unpacked).or_else(on_path).unwrap_or_else(|| {
        panic!(
            "this test needs a Prometheus: run it by `cargo xtask test`, which gets one, or run `cargo xtask prometheus`"
        )
    })
}

/// The queries of all panels, with what Grafana puts in.
fn panels() -> Vec<(String, String)> {
    let dashboard = std::fs::read_to_string(deploy("grafana/tollgate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let queries = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        panel["targets"].as_array().unwrap().iter().map(move |target| {
            let query = target["expr"].as_str().unwrap();
            let query =
                query.replace("$__rate_interval", "30s").replace("$group", ".*").replace("$limit", ".*");
            assert!(!query.contains('$'), "{title}: {query}");
            (title.to_owned(), query)
        })
    });
    queries.collect()
}

/// Where a child says that it serves metrics.
fn metrics_of(child: &Child) -> String {
    let line = child.line("metrics: http://").unwrap_or_else(|| panic!("{}", child.tail()));
    line.trim_start_matches("metrics: http://").trim_end_matches("/metrics").to_owned()
}

#[test]
fn a_real_prometheus_has_data_for_every_panel_and_evaluates_every_alert() {
    run(async {
        let world = World::new("metrics").await;
        let host = world.host_serving(&["--metrics", "127.0.0.1:0"]);
        let odd = "we\"ird\\name";
        world.tollgate_ok(&["limit", "set", "api", "--rate", "200/s", "--burst", "20"]);
        world.tollgate_ok(&["limit", "set", odd, "--rate", "5/s", "--burst", "1"]);
        world.tollgate_ok(&["limit", "set", "api", "--rate", "100/s", "--ramp", "2m"]);
        world.status_when("the limits arrive", |status| status.limits.len() == 2).await;
        let mut gates = Vec::new();
        let mut endpoints = Vec::new();
        for name in ["one", "two"] {
            let options = Options::new().group(&world.group).worker(name).limits(["api", odd]);
            let gate = Gate::connect(world.connect().await, options).await.unwrap();
            endpoints.push(gate.serve_metrics("127.0.0.1:0".parse().unwrap()).await.unwrap());
            gates.push(gate);
        }
        let mut targets: Vec<String> =
            endpoints.iter().map(|endpoint| endpoint.address().to_string()).collect();
        targets.push(metrics_of(&host));
        // Work in the background, until the test is over.
        let work = tokio::spawn(async move {
            loop {
                for gate in &gates {
                    let permit = gate.acquire("api").cost(30).timeout(Duration::from_millis(300)).await;
                    assert!(permit.is_err(), "more than the burst");
                    if let Ok(permit) = gate.acquire("api").cost(2).timeout(Duration::from_secs(1)).await {
                        permit.settle(1, Outcome::Success);
                    }
                    let _refused = gate.limit(odd).try_acquire(1);
                }
            }
        });
        let prometheus = Prometheus::start(&targets);
        eventually("all are scraped", SEEN_WITHIN, async || {
            let up = prometheus.query("up{job=\"tollgate\"} == 1").await?;
            if up == targets.len() {
                Ok(())
            } else {
                Err(prometheus.api("/api/v1/targets").await?.to_string())
            }
        })
        .await;
        for (title, query) in panels() {
            eventually(&format!("panel {title}: {query}"), SEEN_WITHIN, async || {
                let series = prometheus.query(&query).await?;
                if series > 0 { Ok(()) } else { Err("no data".to_owned()) }
            })
            .await;
        }
        eventually(
            "all alerts are evaluated, and those of a fleet in trouble are quiet",
            SEEN_WITHIN,
            async || {
                let data = prometheus.api("/api/v1/rules").await?;
                let rules = data["groups"].as_array().ok_or("no groups")?.iter();
                let rules: Vec<Value> =
                    rules.flat_map(|group| group["rules"].as_array().cloned().unwrap()).collect();
                let healthy = rules.iter().all(|rule| rule["health"] == "ok" && rule["lastError"].is_null());
                // One that was evaluated before the first scrape is over with the next evaluation.
                let calm = ["TollgateCoordinatorLost", "TollgateHostsMissing", "TollgateUnreadableMessages"];
                let is_calm = |name: &&str| {
                    rules.iter().any(|rule| rule["name"] == *name && rule["state"] == "inactive")
                };
                if healthy && calm.iter().all(is_calm) { Ok(()) } else { Err(data.to_string()) }
            },
        )
        .await;
        // Odd names are the same on both sides.
        let both = "tollgate_limit_burst_tokens * on (group, limit, meter, tier) group_right \
                    tollgate_worker_lease_remaining_seconds{limit=\"we\\\"ird\\\\name\"}";
        assert_eq!(prometheus.query(both).await, Ok(2));
        work.abort();

        // A server that stops answering is seen by the next answer that is due; what it can't do is hold up a scrape.
        let (status, body) = get(&metrics_of(&host), "/metrics").await.unwrap();
        assert!(status.contains("200") && body.ends_with("# EOF\n"), "{status} {body}");
        let ramp = body
            .lines()
            .find(|line| line.starts_with("tollgate_limit_ramp_position_ratio{") && line.contains("\"api\""));
        let position: f64 = ramp.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!((0.0..1.0).contains(&position), "{ramp:?}");
    });
}

#[test]
fn a_host_that_never_reaches_temporal_says_that_its_coordinators_are_down() {
    run(async {
        let nowhere: Uri = "http://127.0.0.1:1".parse().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--group", "a", "--group", "b", "--metrics", "127.0.0.1:0"]);
        command.args(["--address", nowhere.authority().unwrap().as_str()]).env_clear();
        let host = Child::start("host", &command);
        host.wait_line("metrics: ", SEEN_WITHIN);
        let address = metrics_of(&host);
        let (status, body) = get(&address, "/metrics").await.unwrap();
        assert!(status.contains("200"), "{status}");
        for group in ["a", "b"] {
            assert!(body.contains(&format!("tollgate_coordinator_up{{group=\"{group}\"}} 0.0\n")), "{body}");
        }
        let taken = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--metrics", &address, "--address", "127.0.0.1:1"])
            .env_clear()
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&taken.stderr).into_owned();
        assert_eq!(taken.status.code(), Some(2), "{said}");
        assert!(said.contains("--metrics: metrics can't be served at") && said.contains(&address), "{said}");
        // Scraped until it ends.
        let scrapes = tokio::spawn(async move {
            let mut good = 0;
            while let Ok((status, _)) = get(&address, "/metrics").await {
                assert!(status.is_empty() || status.contains("200"), "{status}");
                good += 1;
            }
            good
        });
        let ended = tokio::task::block_in_place(|| host.terminate(SEEN_WITHIN));
        assert_eq!(ended.code(), Some(0));
        assert!(scrapes.await.is_ok());
    });
}
