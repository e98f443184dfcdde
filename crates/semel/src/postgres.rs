//! The store that many processes share, and transactions of the application in its database.

pub use semel_postgres::transaction::*;
pub use semel_postgres::*;
