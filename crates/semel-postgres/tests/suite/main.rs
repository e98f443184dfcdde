//! The tests of the PostgreSQL store, in one binary. They need a server: see
//! `semel_testkit::database`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod broken_connections;
mod conformance;
mod durability;
mod failover;
mod notifications;
mod opening;
mod races;
mod reveal_audit;
mod schema;
mod statistics;
mod support;
mod workers;

// An application's transaction may be that of either driver.
#[cfg(feature = "sqlx")]
mod messages;
#[cfg(feature = "sqlx")]
mod phases;
#[cfg(feature = "sqlx")]
mod transactions;
