//! `semel check`: probes whether an API keeps the guarantees that retries rely on.

use anyhow::{Result, bail};
use semel_check::cli::{CheckOutcome, check};

pub(crate) use semel_check::cli::check::Args;

pub(crate) fn run(args: &Args) -> Result<()> {
    match check::run(args)? {
        CheckOutcome::Passed => Ok(()),
        CheckOutcome::Failed => bail!("not every guarantee holds"),
        CheckOutcome::Incomplete => {
            bail!("not every guarantee could be checked, and --strict requires all")
        }
    }
}
