//! The layer over in-memory stores.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking"
)]

mod commit_with;
#[cfg(feature = "axum")]
mod phases;
mod spans;
mod support;
mod waiting;
