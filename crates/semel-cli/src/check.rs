//! `semel check`: whether an API, ours or not, keeps what retries rely on.

use anyhow::{Result, bail};
use semel_check::cli::{Ended, check};

pub(crate) use semel_check::cli::check::Args;

/// Nothing of Semel is linked into what is probed with: see the crate.
pub(crate) fn run(args: &Args) -> Result<()> {
    match check::run(args)? {
        Ended::Well => Ok(()),
        Ended::Badly => bail!("not every guarantee holds"),
        Ended::Unseen => bail!("not every guarantee was seen, and --strict asks for all"),
    }
}
