//! The `semel` binary as a process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and prints when it skips"
)]

mod call;
mod callers_and_keys;
mod check;
mod client_disconnects;
mod console;
mod demo;
mod deploys;
mod dynamodb;
mod fingerprint;
mod frameworks;
mod gateway;
mod gateway_crash;
mod keep_alive;
mod lifecycle;
mod openapi;
mod operations;
mod operators;
mod outbox;
mod packages;
mod postgres;
mod postgres_crash;
mod reconciliation;
mod restarts;
mod roles;
mod same_transaction;
mod stripe_sdks;
mod support;
#[cfg(feature = "otlp")]
mod tracing;
mod upstream_failures;
