//! Sends traces to a collector, by OTLP over HTTP.
//!
//! A separate thread sends queued spans. **Invariant:** no request waits for a collector: spans
//! that do not fit into the queue are dropped, and the log reports how many.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use rustls::crypto::aws_lc_rs;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::config::OtlpConfig;

/// Maximum number of queued spans: some seconds of a busy gateway, in a few megabytes.
const MAX_QUEUED_SPANS: usize = 16_384;

/// Maximum number of spans in one request to the collector.
const MAX_BATCH: usize = 1_024;

/// How long a span waits for a batch.
const BATCH_DELAY: Duration = Duration::from_secs(2);

/// How long one request to the collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connecting may take, within [`EXPORT_TIMEOUT`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long sending the last spans may take when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of a collector's response.
const MAX_RESPONSE: usize = 64 << 10;

/// `service.name`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` sets another.
const SERVICE: &str = "semel";

/// The exporter of traces to a collector.
#[derive(Debug)]
pub struct Otlp(SdkTracerProvider);

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exporter rejects its settings.
    #[error("cannot send traces: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The operating system has no root certificates.
    #[error("cannot send traces: {0}")]
    Tls(String),
    /// The operating system refused a runtime.
    #[error("cannot start the trace exporter: {0}")]
    System(#[from] std::io::Error),
}

impl Otlp {
    /// Starts to collect spans. It does not check whether the collector is reachable.
    ///
    /// # Errors
    /// [`Error`], before anything is sent.
    pub fn open(config: &OtlpConfig) -> Result<Self, Error> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new()?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(config.collector.traces())
            .with_timeout(EXPORT_TIMEOUT)
            .build()?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        let processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        let ratio = Sampler::TraceIdRatioBased(config.ratio.get());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_resource(resource())
            .build();
        Ok(Self(provider))
    }

    /// The layer that exports Semel's spans. Log events are not exported: some contain a tenant.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            .with_context_activation(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_traced).with_max_level_hint(LevelFilter::DEBUG))
    }

    /// Sends the remaining spans, for at most `SHUTDOWN_TIMEOUT`.
    pub fn close(self) {
        if let Err(error) = self.0.shutdown_with_timeout(SHUTDOWN_TIMEOUT) {
            tracing::warn!(%error, "cannot send the last traces");
        }
    }
}

/// Semel's spans only, without the one made for logs: spans of libraries would include the
/// exporter's own requests.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && metadata.target().starts_with(SERVICE)
        && metadata.name() != semel_http::spans::LOG_SPAN
}

fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder_empty()
        .with_service_name(SERVICE)
        .with_attribute(version)
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        Ok(_) | Err(_) => resource,
    }
    .build()
}

/// Sends on the exporter's thread, blocking it.
#[derive(Debug)]
struct Client {
    /// The exporter's thread has no runtime, and exports must not run on those of requests.
    runtime: tokio::runtime::Runtime,
    client: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Client {
    fn new() -> Result<Self, Error> {
        let tls_error = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
        // Explicit: the process may have installed no default provider, or a different one.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls_error(&error))?
            .with_native_roots()
            .map_err(|error| tls_error(&error))?
            .with_no_client_auth();
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        // The runtime is not polled between two batches, so it cannot maintain idle connections.
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self { runtime, client })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sending = async {
            let response = self.client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        self.runtime
            .block_on(async { tokio::time::timeout(EXPORT_TIMEOUT, sending).await })?
    }
}
