//! Logs go to standard error: standard output says where the listeners are, and nothing else.
//! Traces go to a collector, if there is one.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use semel_gateway::config::OtlpConfig;
#[cfg(feature = "otlp")]
use semel_gateway::telemetry::otlp::Otlp;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// How logs are written.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// One object a line
    Json,
    /// For people
    Pretty,
}

/// What is still on its way when a process ends.
#[must_use = "the last traces are sent by `close`"]
pub(crate) struct Traces {
    #[cfg(feature = "otlp")]
    otlp: Option<Otlp>,
}

/// Starts logging by `RUST_LOG`, else at `level`, and tracing where it is told to whom.
pub(crate) fn start(format: Format, level: &str, otlp: Option<&OtlpConfig>) -> Result<Traces> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text
            .parse::<EnvFilter>()
            .with_context(|| format!("RUST_LOG: {text:?} is no filter; write \"info\""))?,
        _ => EnvFilter::new(level),
    };
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // Each has a filter of its own: what is traced need not be logged.
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
        // The configuration refuses a collector in a program without traces.
        let _ = otlp;
        Traces {}
    };
    let started = logs.try_init();
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(traces)
}

impl Traces {
    /// Sends what is left, within a bound. To be called when the last span is over.
    #[cfg_attr(
        not(feature = "otlp"),
        allow(clippy::unused_self, reason = "there is nothing left")
    )]
    pub(crate) fn close(self) {
        #[cfg(feature = "otlp")]
        if let Some(otlp) = self.otlp {
            otlp.close();
        }
    }
}
