//! How much the layer holds at a time.

use std::convert::Infallible;

use crate::support::{Body, answer};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use semel_core::Memory;
use semel_http::{Layer, RequestBody, ResponseBody, tenant};
use tower::ServiceExt as _;

/// Sends a request whose response has `length` bytes. The response is not read.
async fn send(layer: &Layer<Memory>, key: &str, length: usize) -> Response<ResponseBody<Body>> {
    let request = Request::post("/pay")
        .header("x-account", "acme")
        .header("idempotency-key", key)
        .body(Body::from("{}"))
        .unwrap();
    let handler = tower::service_fn(move |_: Request<RequestBody<Body>>| async move {
        Ok::<_, Infallible>(answer(201, &"x".repeat(length)))
    });
    let service = tower_layer::Layer::layer(layer, handler);
    service.oneshot(request).await.unwrap()
}

async fn read(response: Response<ResponseBody<Body>>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn responses_that_are_not_read_stop_further_executions() {
    let layer = Layer::new(Memory::default())
        .cache_bytes(0)
        .max_buffered(100)
        .tenant(tenant::header("X-Account"));
    let first = send(&layer, "k1", 60).await;
    assert_eq!(first.status(), 201);
    let refused = send(&layer, "k2", 1).await;
    assert_eq!(refused.status(), 503);
    assert!(read(refused).await.starts_with(b"{"));
    assert_eq!(read(first).await.len(), 60);
    assert_eq!(send(&layer, "k2", 1).await.status(), 201);

    // A replay counts as well, and one that is larger than half of the room is still possible.
    let replayed = send(&layer, "k1", 0).await;
    assert!(replayed.headers().contains_key("idempotent-replayed"));
    assert_eq!(send(&layer, "k1", 0).await.status(), 503);
    assert_eq!(read(replayed).await.len(), 60);
    assert_eq!(send(&layer, "k1", 0).await.status(), 201);
}

#[tokio::test]
async fn a_response_that_does_not_fit_reaches_its_client_and_is_not_stored() {
    let layer = Layer::new(Memory::default())
        .max_buffered(100)
        .tenant(tenant::header("X-Account"));
    assert_eq!(read(send(&layer, "k1", 101).await).await.len(), 101);
    let retry = send(&layer, "k1", 101).await;
    assert_eq!(retry.status(), 410);
}
