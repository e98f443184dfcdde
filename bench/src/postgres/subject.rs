//! The store under test. Nothing else in this benchmark names it.

use anyhow::Result;
use semel_core::{Inbox, Inspect, Maintain, Store};

/// All that a worker needs.
pub(crate) trait Whole: Store + Maintain + Inspect + Inbox + Clone {}

impl<S: Store + Maintain + Inspect + Inbox + Clone> Whole for S {}

/// Opens the store in an empty or a filled database; makes its schema where there is none.
pub(crate) async fn open(url: String) -> Result<impl Whole> {
    Ok(semel_postgres::Postgres::open(&url).await?)
}
