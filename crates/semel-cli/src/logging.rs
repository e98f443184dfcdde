//! Logs go to standard error, because standard output has the addresses of the listeners. Traces go
//! to a collector, if one is configured.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use semel_gateway::config::OtlpConfig;
#[cfg(feature = "otlp")]
use semel_gateway::telemetry::otlp::Otlp;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// The format of logs.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// One JSON object per line
    Json,
    /// Text for people
    Pretty,
}

/// The trace exporter, which has unsent spans when the process ends.
#[must_use = "the last traces are sent by `close`"]
pub(crate) struct Traces {
    #[cfg(feature = "otlp")]
    otlp: Option<Otlp>,
}

/// Starts logging with the filter `RUST_LOG`, else `level`, and tracing if `otlp` is configured.
pub(crate) fn start(format: Format, level: &str, otlp: Option<&OtlpConfig>) -> Result<Traces> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text.parse::<EnvFilter>().with_context(|| {
            format!("invalid RUST_LOG {text:?}: write a filter such as \"info\"")
        })?,
        _ => EnvFilter::new(level),
    };
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // The filter belongs to this layer only: traces are not filtered by it.
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Format::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
        Format::Pretty => lines.with_filter(filter).boxed(),
    };
    let logs = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otlp")]
    let (logs, traces) = {
        let otlp = otlp.map(Otlp::open).transpose()?;
        let layer = otlp.as_ref().map(Otlp::layer);
        (logs.with(layer), Traces { otlp })
    };
    #[cfg(not(feature = "otlp"))]
    let traces = {
        // The configuration refuses a collector if the feature is off.
        let _ = otlp;
        Traces {}
    };
    let started = logs.try_init();
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(traces)
}

impl Traces {
    /// Sends the remaining spans, within a time limit. Call it after the last span has ended.
    #[cfg_attr(
        not(feature = "otlp"),
        allow(clippy::unused_self, reason = "nothing to send")
    )]
    pub(crate) fn close(self) {
        #[cfg(feature = "otlp")]
        if let Some(otlp) = self.otlp {
            otlp.close();
        }
    }
}
