//! The layer over in-memory stores.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking"
)]

#[cfg(feature = "axum")]
mod buffers;
mod commands;
mod commit_with;
mod contracts;
mod counters;
mod paths;
#[cfg(feature = "axum")]
mod phases;
mod replays;
mod returned_grants;
mod spans;
mod support;
mod waiting;
