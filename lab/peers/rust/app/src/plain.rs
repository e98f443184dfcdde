//! The application without any guard: what stands behind the gateway.

use app::{Ledger, router, serve};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    serve(router(Ledger::from_environment()?)).await
}
