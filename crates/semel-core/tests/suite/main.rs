//! The tests of the core, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod corpus;
mod model;
mod properties;
mod vectors;
