//! The tests of the Redis cache, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod cache;
mod conformance;
mod postgres_conformance;
mod support;
mod unreliable_redis;
