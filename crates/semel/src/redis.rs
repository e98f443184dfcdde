//! A replay cache that many processes share, in front of PostgreSQL.

pub use semel_redis::*;
