//! `semel bench`: throughput and latency of an endpoint.

use anyhow::Result;

pub(crate) use semel_check::cli::bench::Args;

pub(crate) fn run(args: &Args) -> Result<()> {
    semel_check::cli::bench::run(args)?;
    Ok(())
}
