//! The store under test. Nothing else in this benchmark names it.

use anyhow::Result;
use semel_core::Store;

/// A store that a worker can run on.
pub(crate) trait BenchStore: Store + Clone {}

impl<S: Store + Clone> BenchStore for S {}

/// Opens the store in an empty or a filled database; makes its schema where there is none.
pub(crate) async fn open(url: String) -> Result<impl BenchStore> {
    Ok(semel_postgres::Postgres::open(&url).await?)
}
