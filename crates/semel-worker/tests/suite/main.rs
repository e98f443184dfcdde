//! The worker over the reference store and a manual clock.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking"
)]

mod added_jobs;
mod meters;
mod notices;
mod pipeline;
mod record_count_scan;
mod relay;
mod running;
mod spans;
mod support;
mod unreconciled;
mod webhooks;
