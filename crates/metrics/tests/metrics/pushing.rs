//! Figures pushed to a collector: the generated service, behind a socket.

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data};
use std::future::ready;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tollgate_metrics::catalogue::{WORKER_GRANTED, WORKER_LEFT, WORKER_WAIT};
use tollgate_metrics::otlp::{Push, PushError, requests};
use tollgate_metrics::{Histogram, Snapshot, figures};
use tonic::{Request, Response, Status};

/// Pushes that may wait to be looked at.
const PUSHES_MAX: usize = 4;
const LABELS: [&str; 4] = ["g", "l", "requests", "default"];

fn some() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.count(&WORKER_GRANTED, LABELS, 7);
    snapshot.level(&WORKER_LEFT, LABELS, -2.0);
    let waits = Histogram { bounds_us: &[1_000, 250_000], counts: vec![1, 2, 3], sum_us: 1_500_000 };
    snapshot.buckets(&WORKER_WAIT, LABELS, waits);
    snapshot
}

fn metrics(request: &ExportMetricsServiceRequest) -> &[Metric] {
    &request.resource_metrics[0].scope_metrics[0].metrics
}

struct Collector(mpsc::Sender<ExportMetricsServiceRequest>);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        // The test looks at the first; those after it may find nobody.
        let _taken = self.0.try_send(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tokio::test]
async fn a_collector_gets_all_kinds_of_metrics() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (told, mut taken) = mpsc::channel(PUSHES_MAX);
    let every = Duration::from_secs(1);
    let push = Push::start(&address, "orders", every, figures(|| ready(some()))).unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(MetricsServiceServer::new(Collector(told)));
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        connection.await.unwrap();
    });
    let request = taken.recv().await.unwrap();
    drop(push);
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    assert_eq!(resource.attributes[0].key, "service.name");
    let [granted, left, wait] = metrics(&request) else { panic!("{request:?}") };
    assert_eq!(
        (granted.name.as_str(), left.unit.as_str()),
        ("tollgate_worker_permits_granted_total", "{token}")
    );
    let Some(Data::Sum(sum)) = &granted.data else { panic!("{granted:?}") };
    assert!(sum.is_monotonic && sum.data_points[0].start_time_unix_nano > 0, "{sum:?}");
    let keys: Vec<&str> = sum.data_points[0].attributes.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(keys, ["group", "limit", "meter", "tier"]);
    let Some(Data::Histogram(histogram)) = &wait.data else { panic!("{wait:?}") };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum, &point.bucket_counts[..]), (6, Some(1.5), &[1, 2, 3][..]));
    assert_eq!(point.explicit_bounds, [0.001, 0.25]);
}

#[test]
fn many_limits_make_several_messages_that_collectors_take() {
    let mut snapshot = some();
    for number in 0..4_999 {
        snapshot.count(&WORKER_GRANTED, ["g", &format!("l{number}"), "requests", "default"], number);
    }
    let requests = requests(&snapshot, "orders", 1, 2);
    let points = |metric: &Metric| match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        _ => 0,
    };
    let counts: Vec<usize> =
        requests.iter().map(|request| metrics(request).iter().map(points).sum()).collect();
    assert_eq!(counts, [2_000, 2_000, 1_002]);
}

#[tokio::test]
async fn what_is_wrong_with_an_address_or_a_time_is_said() {
    let start = |address: &str, every: u64| {
        Push::start(address, "orders", Duration::from_secs(every), figures(|| ready(some())))
    };
    for address in ["", "localhost:4317", "ftp://localhost", "http://", "http://a b"] {
        let error = start(address, 15).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{address:?}")) && error.contains("allowed: http://HOST:PORT"),
            "{error}"
        );
    }
    assert!(matches!(start("http://localhost:4317", 0), Err(PushError::Every(_))));
    assert!(matches!(start("http://localhost:4317", 301), Err(PushError::Every(_))));
    assert!(start("https://localhost:4317", 15).is_ok());
}
