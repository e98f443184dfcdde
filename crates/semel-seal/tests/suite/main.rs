//! The tests of encryption at rest, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod recovery;
mod sealed;
