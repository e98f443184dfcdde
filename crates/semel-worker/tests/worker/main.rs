//! What the worker guarantees, over the reference store and a clock that stands still.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "test code says what is wrong by panicking, at any answer but the right one"
)]

mod chores;
mod meters;
mod notices;
mod pipeline;
mod running;
mod spans;
mod support;
