//! An operation of phases that stops anywhere, and what becomes of it.
#![cfg(feature = "axum")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "test code says what is wrong by panicking"
)]

mod calls;
mod crashes;
mod stories;
mod world;
mod zombies;
