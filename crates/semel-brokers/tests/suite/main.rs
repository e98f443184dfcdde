//! The sinks and subscriptions against real brokers, and an HTTP receiver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints when it skips"
)]

mod effects;
mod http;
mod nats;
mod rabbitmq;
mod support;
