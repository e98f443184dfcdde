//! The probes against APIs with and without defects, and what reports contain.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail loudly"
)]

mod defects;
mod output;
