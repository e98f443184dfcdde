//! Every row of the tables in `docs/http.md`, through the tower layer in an axum application *and*
//! through the gateway, with the same test code.

mod answers;
mod app;
mod endings;
mod fingerprints;
pub(crate) mod fixture;
mod key_rules;
mod keys;
mod operation_info;
mod paths;
mod replays;
mod requests;
mod self_completed;
mod stored;
mod tenants;

/// Runs each scenario through both entry points.
macro_rules! through_both_entry_points {
    ($($scenario:ident),* $(,)?) => {
        mod layer {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::boundary::fixture::EntryPoint::Layer).await;
            })*
        }
        mod gateway {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::boundary::fixture::EntryPoint::Gateway).await;
            })*
        }
    };
}
pub(crate) use through_both_entry_points;
