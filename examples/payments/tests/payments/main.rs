//! The servers on real sockets. A test polls for what happens in the background. The tests that
//! kill the shop are in `lab/killwalk`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod app;
mod broker;
mod faults;
mod harness;
mod process;
mod provider;
mod shop;
mod webhooks;
