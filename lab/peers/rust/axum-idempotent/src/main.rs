//! The application behind axum-idempotent, as its documentation shows it: the client's header is
//! the key, and a session says whose it is.
//!
//! Settings: the key is required; answers are kept for a day, that of a timeout (504) included, which
//! is off by default. There is no lease to shorten, since nothing is reserved. The middleware keeps
//! answers only for a request that has a session, so the harness sends a session cookie for each
//! tenant. `STORE` is `memory` or a PostgreSQL URL; the pool is as the hand-written adapter's, and
//! memory has room for all sessions of the load, of which the default would drop some. A larger
//! answer than 1 MiB is not kept by default, and we leave that as it is, as with all others.
//!
//! The load (`X-Work: quick`) is spread over many sessions, as customers are: in memory a write
//! walks through all answers of its session, so a single session would not be a realistic load.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use app::{Ledger, router, serve, variable};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_request;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::SessionStore;
use ruts::store::moka::MokaStore;
use ruts::store::postgres::PostgresStoreBuilder;
use ruts::{CookieOptions, SessionLayer};
use sqlx::Connection as _;
use sqlx::postgres::PgPoolOptions;
use tower_cookies::CookieManagerLayer;

const A_DAY: i64 = 24 * 60 * 60;
const SESSIONS_OF_THE_LOAD: u64 = 10_000;
/// More than there are, so that none is dropped for want of room.
const SESSIONS_IN_MEMORY: u64 = 1_000_000;
const POOL: u32 = 20;
/// See the hand-written adapter.
const IDLE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = variable("STORE")?;
    let app = if store == "memory" {
        let store = MokaStore::builder().max_capacity(SESSIONS_IN_MEMORY);
        guarded(store.build())?
    } else {
        let pool = PgPoolOptions::new()
            .max_connections(POOL)
            .min_connections(POOL)
            .test_before_acquire(false)
            .before_acquire(|connection, lent| {
                Box::pin(async move {
                    if lent.idle_for > IDLE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect(&store)
            .await?;
        let store = PostgresStoreBuilder::new(pool).create_table(true);
        guarded(store.build().await?)?
    };
    serve(app).await
}

fn guarded<S: SessionStore>(store: S) -> anyhow::Result<Router> {
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .cache_response_status_code(StatusCode::GATEWAY_TIMEOUT)
        .expire_after(A_DAY);
    let cookie = CookieOptions::build().name("session");
    Ok(router(Ledger::from_environment()?)
        .layer(IdempotentLayer::<S>::new(options))
        .layer(SessionLayer::new(Arc::new(store)).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new())
        .layer(map_request(spread)))
}

/// Gives a request of the load the session that belongs to its key.
async fn spread(mut request: Request) -> Request {
    let headers = request.headers_mut();
    if headers.get("x-work").is_some_and(|work| work == "quick") {
        let mut hasher = DefaultHasher::new();
        headers.get("idempotency-key").hash(&mut hasher);
        // 22 characters of base64url, which a session's id has to be.
        let session = format!("session={:021}A", hasher.finish() % SESSIONS_OF_THE_LOAD);
        if let Ok(cookie) = HeaderValue::from_str(&session) {
            headers.insert(header::COOKIE, cookie);
        }
    }
    request
}
