//! The tests of the SQLite store, in one binary: each links SQLite.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod conformance;
mod crash;
mod group_commit;
mod messages;
mod opening;
mod phases;
mod power_loss;
mod schema;
mod statistics;
mod support;
mod transactions;
