//! Tests of the testkit itself.
#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may panic on any reply but the right one, and prints when it is skipped"
)]

mod broken;
mod faulty;
mod memory;
mod pg_proxy;
