//! The applications under test, served by this same program in processes of their own.

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{DefaultBodyLimit, RawQuery};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::serve::ListenerExt;
use bytes::Bytes;
use clap::Subcommand;
use semel_core::Store;
use semel_http::{KeyRule, Layer, tenant};
use semel_sqlite::Sqlite;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::client::kibibyte;
use crate::postgres;

/// What a line on standard output begins with, once the server listens.
pub(crate) const LISTENING: &str = "listening ";

/// The largest request and answer of `/sized`.
pub(crate) const MAX_SIZED: usize = 8 << 20;

const ANSWER: &str = r#"{"id":"pay_8f2b1c94","status":"succeeded","amount":12950,"currency":"EUR","captured":true,"created":1700000000}"#;

#[derive(Subcommand)]
pub(crate) enum Application {
    /// Just axum.
    Plain,
    /// The same behind the layer, over SQLite.
    Layer {
        #[arg(long)]
        store: PathBuf,
        /// Of the cache in the process; the layer's own default without it.
        #[arg(long)]
        cache_bytes: Option<u64>,
    },
    /// The same over Postgres, without a cache in the process.
    PostgresLayer {
        #[arg(long)]
        url: String,
    },
    /// The same without the layer, its keys guarded by hand in Postgres.
    HandWritten {
        #[arg(long)]
        url: String,
    },
}

/// Serves until standard input ends.
pub(crate) fn run(application: &Application) -> Result<()> {
    // The parent process holds the other end: when it ends, so does this.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Runtime::new()?.block_on(async {
        let router = match application {
            Application::Plain => plain(),
            Application::Layer { store, cache_bytes } => {
                layered(Sqlite::open(store).await?, *cache_bytes)?
            }
            Application::PostgresLayer { url } => {
                layered(postgres::open(url.clone()).await?, Some(0))?
            }
            Application::HandWritten { url } => postgres::hand_written(url).await?,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{LISTENING}http://{}", listener.local_addr()?);
        let listener = listener.tap_io(|stream| {
            // It fails only where the client is gone.
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router)
            .await
            .context("cannot serve any longer")
    })
}

fn plain() -> Router {
    let answer = payment_answer();
    let filling = Bytes::from(vec![b'x'; MAX_SIZED]);
    Router::new()
        .route(
            "/payments",
            post(|_body: Bytes| async move { created("application/json", answer) }),
        )
        .route(
            "/sized",
            post(|RawQuery(query): RawQuery, _body: Bytes| async move {
                sized(query.as_deref(), &filling)
            }),
        )
        .layer(DefaultBodyLimit::max(MAX_SIZED))
}

/// Who is calling, and that a key is optional, are the gateway's defaults: so the work is the
/// same on both sides.
fn layered(store: impl Store, cache_bytes: Option<u64>) -> Result<Router> {
    let mut layer = Layer::new(store);
    if let Some(bytes) = cache_bytes {
        layer = layer.cache_bytes(bytes);
    }
    let layer = layer
        .tenant(tenant::authorization())
        .try_route("POST /payments", |route| {
            route.operation("create_payment").key(KeyRule::Optional)
        })?;
    Ok(plain().layer(layer))
}

/// What every payment is answered with.
pub(crate) fn payment_answer() -> Bytes {
    kibibyte(ANSWER)
}

/// An answer of `?bytes=` bytes.
fn sized(query: Option<&str>, filling: &Bytes) -> axum::response::Response {
    let bytes = query
        .and_then(|query| query.strip_prefix("bytes="))
        .and_then(|bytes| bytes.parse::<usize>().ok());
    match bytes {
        Some(bytes) if bytes <= filling.len() => {
            created("application/octet-stream", filling.slice(..bytes)).into_response()
        }
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

pub(crate) fn created(content_type: &'static str, body: Bytes) -> impl IntoResponse {
    let content_type = HeaderValue::from_static(content_type);
    (
        StatusCode::CREATED,
        [(header::CONTENT_TYPE, content_type)],
        body,
    )
}
