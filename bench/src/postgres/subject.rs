//! The store under test. Nothing else in this benchmark names it.

use anyhow::Result;
use semel_core::Store;

/// Opens the store in an empty or a filled database; makes its schema where there is none.
pub(crate) async fn open(url: String) -> Result<impl Store + Clone> {
    Ok(semel_postgres::Postgres::open(&url).await?)
}
