//! The application behind the layer of the crate `idempotent`, as its documentation shows it, over
//! Redis (its `ValkeyStore`).
//!
//! Settings: the processing lease is two seconds instead of a minute, renewed while the handler
//! runs as is the default; the key is required; the caller's `Authorization` is the scope. The
//! fingerprint of method, path and body is always on. Answers larger than 1 MiB are not kept by
//! default, and we leave that as it is. Its Redis has `appendonly yes` and `appendfsync always`,
//! which its documentation asks for.

use std::time::Duration;

use app::{Ledger, router, serve, variable};
use idempotent::middleware::IdempotencyLayer;
use idempotent::valkey::ValkeyStore;

const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = ValkeyStore::with_url(variable("STORE")?)
        .prefix("work")
        .try_build()
        .await?;
    let layer = IdempotencyLayer::new(store)
        .processing_ttl(LEASE)
        .require_key(true)
        .scope(|parts| {
            let caller = parts.headers.get("authorization")?;
            Some(caller.to_str().ok()?.to_owned())
        });
    serve(router(Ledger::from_environment()?).layer(layer)).await
}
