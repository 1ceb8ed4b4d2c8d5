//! Snapshots pushed by OTLP over gRPC, for collectors that are not scraped. Needs the feature `otlp`.
//!
//! Metrics have the same names as for Prometheus, suffixes included, so that queries are the same whichever way they came.

use crate::catalogue::{Kind, Scope};
use crate::endpoint::Figures;
use crate::snapshot::{Family, Histogram, Sample, Snapshot, Value, real, seconds};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    self as proto, AggregationTemporality, HistogramDataPoint, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, metric::Data, number_data_point::Value as Number,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// The shortest time between two pushes.
pub const EVERY_MIN: Duration = Duration::from_secs(1);
/// The longest: what comes more rarely is taken to be gone.
pub const EVERY_MAX: Duration = Duration::from_secs(300);
/// Values in one message: collectors take 4 MB unless told otherwise, and a histogram's value is up to 1 kB.
const POINTS_MAX: usize = 2_000;
/// How long the figures and each message may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why nothing is pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// Not an address.
    #[error("OTLP address {given:?}: {error}; allowed: http://HOST:PORT or https://HOST:PORT")]
    Address {
        /// What was given.
        given: String,
        /// What is wrong with it.
        error: String,
    },
    /// Too often or too rarely.
    #[error("OTLP every {0:?}, allowed: 1 s to 300 s")]
    Every(Duration),
    /// Messages are sent by a task: push within a Tokio runtime with I/O and time enabled.
    #[error("metrics must be pushed within a tokio runtime")]
    NoRuntime,
}

/// Pushes metrics as long as it lives.
#[must_use = "metrics are pushed as long as this lives"]
#[derive(Debug)]
pub struct Push(AbortHandle);

impl Push {
    /// Pushes to the collector at `address`, such as `http://localhost:4317`, in the name of `service`: now, and then in
    /// equal steps. A collector that is away is tried again each time, and the log says so once.
    ///
    /// # Errors
    /// [`PushError`] when that can't be.
    pub fn start(address: &str, service: &str, every: Duration, figures: Figures) -> Result<Push, PushError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| PushError::NoRuntime)?;
        if !(EVERY_MIN..=EVERY_MAX).contains(&every) {
            return Err(PushError::Every(every));
        }
        let channel =
            channel(address).map_err(|error| PushError::Address { given: address.to_owned(), error })?;
        let (address, service) = (address.to_owned(), service.to_owned());
        let task = runtime.spawn(push(address, service, every, channel, figures));
        Ok(Push(task.abort_handle()))
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn channel(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| error.to_string())?;
    let endpoint = endpoint.timeout(TIMEOUT).connect_timeout(TIMEOUT);
    let endpoint = match endpoint.uri().scheme_str() {
        Some("http") => endpoint,
        Some("https") => {
            let tls = endpoint.tls_config(ClientTlsConfig::new().with_native_roots());
            tls.map_err(|error| error.to_string())?
        }
        _ => return Err("no scheme".to_owned()),
    };
    Ok(endpoint.connect_lazy())
}

async fn push(address: String, service: String, every: Duration, channel: Channel, figures: Figures) {
    let mut client = MetricsServiceClient::new(channel);
    let start_ns = now_ns();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_away = false;
    loop {
        ticks.tick().await;
        let Ok(snapshot) = timeout(TIMEOUT, figures()).await else { continue };
        let mut problem = None;
        for request in requests(&snapshot, &service, start_ns, now_ns()) {
            if let Err(status) = client.export(request).await {
                problem = Some(status);
                break;
            }
        }
        match &problem {
            Some(status) if !is_away => {
                tracing::warn!(%address, error = status.message(), "metrics are not taken by OTLP");
            }
            None if is_away => tracing::info!(%address, "metrics are taken by OTLP again"),
            _ => {}
        }
        is_away = problem.is_some();
    }
}

/// Nanoseconds since the Unix epoch.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The messages that a snapshot takes. What the process itself counts began at `start_ns`.
pub fn requests(
    snapshot: &Snapshot,
    service: &str,
    start_ns: u64,
    now_ns: u64,
) -> Vec<ExportMetricsServiceRequest> {
    let parts = snapshot.families().iter();
    let parts = parts.flat_map(|family| family.samples.chunks(POINTS_MAX).map(move |part| (family, part)));
    let mut requests = Vec::new();
    let (mut metrics, mut points) = (Vec::new(), 0);
    for (family, part) in parts {
        if points + part.len() > POINTS_MAX {
            requests.push(request(std::mem::take(&mut metrics), service));
            points = 0;
        }
        points += part.len();
        metrics.push(metric(family, part, start_ns, now_ns));
    }
    if !metrics.is_empty() {
        requests.push(request(metrics, service));
    }
    requests
}

fn request(metrics: Vec<proto::Metric>, service: &str) -> ExportMetricsServiceRequest {
    let attributes = vec![attribute("service.name", service)];
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        }],
    }
}

fn metric(family: &Family, samples: &[Sample], start_ns: u64, now_ns: u64) -> proto::Metric {
    let about = family.about;
    // What a coordinator counts began with it, at a time that isn't known here.
    let start_ns = if about.scope == Scope::Worker { start_ns } else { 0 };
    let attributes = |sample: &Sample| {
        let pairs = about.labels.iter().zip(&sample.labels);
        pairs.map(|(name, value)| attribute(name, value)).collect::<Vec<_>>()
    };
    let number = |sample: &Sample| {
        let value = match &sample.value {
            Value::Count(count) => Number::AsInt(i64::try_from(*count).unwrap_or(i64::MAX)),
            Value::Level(level) => Number::AsDouble(*level),
            Value::Histogram(histogram) => Number::AsDouble(real(histogram.counts.iter().sum())),
        };
        NumberDataPoint {
            attributes: attributes(sample),
            start_time_unix_nano: if about.kind == Kind::Counter { start_ns } else { 0 },
            time_unix_nano: now_ns,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    };
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let data = match about.kind {
        Kind::Gauge => Data::Gauge(proto::Gauge { data_points: samples.iter().map(number).collect() }),
        Kind::Counter => Data::Sum(proto::Sum {
            data_points: samples.iter().map(number).collect(),
            aggregation_temporality,
            is_monotonic: true,
        }),
        Kind::Histogram => {
            let points = samples.iter().filter_map(|sample| match &sample.value {
                Value::Histogram(histogram) => Some(buckets(histogram, attributes(sample), start_ns, now_ns)),
                Value::Count(_) | Value::Level(_) => None,
            });
            Data::Histogram(proto::Histogram { data_points: points.collect(), aggregation_temporality })
        }
    };
    proto::Metric {
        name: about.name.to_owned(),
        description: about.help.to_owned(),
        unit: unit(about.unit).to_owned(),
        data: Some(data),
        ..proto::Metric::default()
    }
}

fn buckets(
    histogram: &Histogram,
    attributes: Vec<KeyValue>,
    start_ns: u64,
    now_ns: u64,
) -> HistogramDataPoint {
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: start_ns,
        time_unix_nano: now_ns,
        count: histogram.counts.iter().sum(),
        sum: Some(seconds(histogram.sum_us)),
        bucket_counts: histogram.counts.clone(),
        explicit_bounds: histogram.bounds_us.iter().map(|us| seconds(*us)).collect(),
        ..HistogramDataPoint::default()
    }
}

/// A unit as OTLP writes it.
fn unit(unit: &'static str) -> &'static str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        "ratio" | "" => "1",
        "tokens" => "{token}",
        "tokens_per_second" => "{token}/s",
        "versions" => "{version}",
        other => other,
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
