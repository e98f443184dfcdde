//! Logs go to standard error: standard output says where the listeners are, and nothing else.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How logs are written.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// One object a line
    Json,
    /// For people
    Pretty,
}

/// Starts logging by `RUST_LOG`, else at `level`.
pub(crate) fn start(format: Format, level: &str) -> Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => text
            .parse::<EnvFilter>()
            .with_context(|| format!("RUST_LOG: {text:?} is no filter; write \"info\""))?,
        _ => EnvFilter::new(level),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let started = match format {
        Format::Json => builder.json().flatten_event(true).try_init(),
        Format::Pretty => builder.try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
