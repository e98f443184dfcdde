//! The client against scripted servers, its journals, and SIGKILL.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod adapters;
mod crash;
mod fingerprints;
mod journals;
mod resumed;
mod scenarios;
mod world;
