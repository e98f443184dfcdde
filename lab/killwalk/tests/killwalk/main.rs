//! Kills the payments shop with SIGKILL and starts it again.
//!
//! The tests poll what happens in another process. Only the lease of a killed process is waited
//! for by time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod database;
mod harness;
mod provider_calls;
mod shop_process;
mod statements;
