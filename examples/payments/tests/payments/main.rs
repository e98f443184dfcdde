//! The servers on real sockets. Nothing here waits for time to pass: where something happens in
//! the background, the test asks until it has.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod app;
mod faults;
mod harness;
mod process;
mod provider;
mod webhooks;
