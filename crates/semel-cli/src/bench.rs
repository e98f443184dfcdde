//! `semel bench`: how many requests an endpoint takes, and how long they wait.

use anyhow::Result;

pub(crate) use semel_check::cli::bench::Args;

pub(crate) fn run(args: &Args) -> Result<()> {
    semel_check::cli::bench::run(args)?;
    Ok(())
}
