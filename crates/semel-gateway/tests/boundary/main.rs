//! Every row of the tables in the specification of the HTTP boundary, through the tower layer
//! in an axum application *and* through the gateway, by the same code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    unreachable_pub,
    reason = "a test may fail loudly"
)]

mod answers;
mod app;
mod endings;
mod fingerprints;
mod keys;
mod own_record;
mod requests;
mod stored;
mod told;
mod world;

/// Runs each scenario through both doors.
macro_rules! through_both_doors {
    ($($scenario:ident),* $(,)?) => {
        mod layer {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::world::Door::Layer).await;
            })*
        }
        mod gateway {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::world::Door::Gateway).await;
            })*
        }
    };
}
pub(crate) use through_both_doors;
