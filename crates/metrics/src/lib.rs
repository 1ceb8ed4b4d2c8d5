//! The metrics of workers and coordinator hosts.
//!
//! - [`catalogue`]: every metric, with its name, kind, unit, labels and meaning. Nothing about metrics is said elsewhere;
//!   `docs/guide/src/metrics.md` is written from it.
//! - [`Snapshot`]: values at one moment. Whoever knows them fills it in; this crate knows neither Temporal nor ledgers.
//! - [`text`]: a snapshot as OpenMetrics text, and as a [`Collector`] for a registry of one's own.
//! - [`endpoint`]: `/metrics` and `/healthz` over HTTP.
//! - `otlp`, with the feature of that name: pushed to a collector instead.

pub mod catalogue;
pub mod endpoint;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod snapshot;
pub mod text;

pub use endpoint::{Endpoint, EndpointError, Figures, figures};
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use snapshot::{Histogram, Snapshot};
