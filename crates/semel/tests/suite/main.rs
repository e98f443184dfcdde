//! The library as an application uses it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![cfg(all(feature = "axum", feature = "sqlite"))]

mod layer;
mod sqlite;
