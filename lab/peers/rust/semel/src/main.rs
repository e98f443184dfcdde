//! The application behind Semel's layer. `STORE` is a PostgreSQL URL or the path of a SQLite file.
//!
//! Settings: the lease is two seconds instead of thirty, so that the probes are as quick as with
//! the peers; the caller is who `Authorization` says. All else is as it comes: the key is
//! required, the fingerprint is on, an answer of up to 1 MiB is kept.

use std::time::Duration;

use app::{Ledger, router, serve, variable};
use axum::Router;

const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = variable("STORE")?;
    let app = if store.starts_with("postgres://") {
        guarded(semel::Postgres::open(&store).await?)?
    } else {
        guarded(semel::Sqlite::open(&store).await?)?
    };
    serve(app).await
}

fn guarded(store: impl semel::Store) -> anyhow::Result<Router> {
    let layer = semel::Layer::new(store)
        .tenant(semel::tenant::authorization())
        .try_route("POST /work", |route| route.operation("work").lease(LEASE))?;
    Ok(router(Ledger::from_environment()?).layer(layer))
}
