//! The gateway's tests, in one binary because each further one costs a link of the whole crate.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    unreachable_pub,
    reason = "a test reports a failure by panicking, and a missing tool by printing SKIPPED"
)]

mod admin;
mod admin_access;
mod admin_api;
mod boundary;
mod console;
mod deploy;
mod regions;
mod replay_requests;
mod support;
mod transport_clients;
mod transport_edge;
mod transport_hygiene;
mod transport_server;
mod transport_smuggling;
mod transport_upstream;
mod transport_upstream_tls;
