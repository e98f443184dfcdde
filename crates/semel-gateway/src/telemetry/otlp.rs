//! Traces to a collector, by OTLP over HTTP.
//!
//! Spans are queued, and sent by a thread of their own. **Invariant:** no request waits for a
//! collector: what the queue has no room for is dropped, and counted in the log.

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

/// Spans that wait to be sent, at most: some seconds of a busy gateway, in a few megabytes.
const QUEUE: usize = 16_384;

/// Spans in one request to the collector, at most.
const BATCH: usize = 1_024;

/// How long a span waits for others.
const EVERY: Duration = Duration::from_secs(2);

/// How long one request to the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection may take of it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// How long the last spans may take when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The largest answer that is read; it says little more than that it was taken.
const MAX_ANSWER: usize = 64 << 10;

/// What the collector knows this program by, unless `OTEL_SERVICE_NAME` or
/// `OTEL_RESOURCE_ATTRIBUTES` says otherwise.
const SERVICE: &str = "semel";

/// Traces, on their way to a collector.
#[derive(Debug)]
pub struct Otlp(SdkTracerProvider);

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings make no sense to the exporter.
    #[error("traces cannot be sent: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// This machine believes no certificate.
    #[error("traces cannot be sent: {0}")]
    Tls(String),
    /// The operating system refused a runtime.
    #[error("the operating system: {0}")]
    System(#[from] std::io::Error),
}

impl Otlp {
    /// Begins to take spans. Whether the collector is there is found out when the first are sent.
    ///
    /// # Errors
    /// [`Error`], before anything is sent.
    pub fn open(config: &OtlpConfig) -> Result<Self, Error> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new()?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(config.collector.traces())
            .with_timeout(PATIENCE)
            .build()?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(EVERY)
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

    /// What hands Semel's spans over. Log lines stay in the log: some name a tenant.
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

    /// Sends what is left, for as long as that is worth waiting for.
    pub fn close(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_WORDS) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Our spans, but not the one that is for logs, and nothing of the libraries below: the
/// exporter's own requests would trace themselves.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && metadata.target().starts_with(SERVICE)
        && metadata.name() != semel_http::spans::LOGGED
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

/// Sends on the exporter's own thread, which nobody waits for.
#[derive(Debug)]
struct Client {
    /// That thread has none, and those of requests are not to be disturbed.
    runtime: tokio::runtime::Runtime,
    client: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Client {
    fn new() -> Result<Self, Error> {
        let cannot = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
        // Named, not taken from the process: that may have none, or another.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| cannot(&error))?
            .with_native_roots()
            .map_err(|error| cannot(&error))?
            .with_no_client_auth();
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_PATIENCE));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        // Between two batches nobody would look after a connection.
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
            let answer = self.client.request(request.map(Full::new)).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, sending).await })?
    }
}
