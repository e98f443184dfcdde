//! The tests of the store. They run on two servers, ExtendDB and dynoxide: see `cargo xtask test`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test reports a failure by panicking"
)]

mod capacity;
mod clocks;
mod conformance;
mod faults;
mod guards;
mod killed_server;
mod leftovers;
mod opening;
mod server;
mod settled;
mod transaction;
