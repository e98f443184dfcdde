//! An order is taken once, and its row and its completion are one commit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel::Postgres;
use semel_testkit::database::Database;
use semel_testkit::pg_proxy::{Proxy, Trigger};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt as _;

struct Shop {
    router: Router,
    pool: PgPool,
    proxy: Proxy,
    _database: Database,
}

impl Shop {
    /// The application's own connections go through a proxy; the store's do not.
    async fn open() -> Option<Self> {
        let database = Database::new().await?;
        let proxy = Proxy::in_front_of(&database.url).await;
        let pool = PgPoolOptions::new().connect(&database.url).await.unwrap();
        let schema = include_str!("../queries/schema.sql");
        sqlx::raw_sql(schema).execute(&pool).await.unwrap();
        let through = PgPoolOptions::new().connect(proxy.url()).await.unwrap();
        let layer = orders::guard(Postgres::open(&database.url).await.unwrap());
        Some(Self {
            router: orders::router(through, &layer),
            pool,
            proxy,
            _database: database,
        })
    }

    async fn order(&self, key: &str, quantity: i32) -> (StatusCode, String) {
        let request = Request::post("/orders")
            .header("X-Account-Id", "a")
            .header("Idempotency-Key", format!("\"{key}\""))
            .header("Content-Type", "application/json")
            .body(Body::from(format!(
                r#"{{"item":"chair","quantity":{quantity}}}"#
            )))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn orders(&self) -> i64 {
        let count = "SELECT count(*) FROM orders";
        sqlx::query_scalar(count)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_taken_once_and_a_refusal_is_remembered() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let first = shop.order("one", 2).await;
    assert_eq!(first.0, StatusCode::CREATED, "{first:?}");
    assert_eq!(shop.order("one", 2).await, first);
    let refused = shop.order("too many", 9).await;
    assert_eq!(refused.0, StatusCode::CONFLICT, "{refused:?}");
    assert_eq!(shop.order("too many", 9).await, refused);
    assert_eq!(shop.orders().await, 1);
}

/// The answer to the commit is lost: the client gets the stored response where the commit happened,
/// and `not-executed` where it did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_answer_is_resolved_from_the_record() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    shop.proxy.cut(Trigger::committed());
    let answer = shop.order("after", 1).await;
    assert_eq!(answer.0, StatusCode::CREATED, "{answer:?}");
    assert_eq!(shop.orders().await, 1);
    assert_eq!(shop.order("after", 1).await, answer);

    shop.proxy.cut(Trigger::before("COMMIT"));
    let answer = shop.order("before", 1).await;
    assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert_eq!(shop.orders().await, 1);
    let answer = shop.order("before", 1).await;
    assert_eq!(answer.0, StatusCode::CREATED, "{answer:?}");
    assert_eq!(shop.orders().await, 2);
}
