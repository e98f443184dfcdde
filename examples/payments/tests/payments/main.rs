//! The servers on real sockets. Where something happens in the background, the test asks until it
//! has; only a process that was killed is waited for until its lease is over.
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
mod kills;
mod process;
mod provider;
mod shop;
mod supervised;
mod webhooks;
