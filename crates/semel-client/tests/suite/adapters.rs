//! The client inside of reqwest-middleware and tower stacks.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use semel_client::{Client, Error, Intent, Journal, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::world::{Clock, Scripted, response};

/// Responds to one connection after the other, and returns the head of each request.
async fn serve(statuses: &'static [u16]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/payments", listener.local_addr().unwrap());
    let requests = tokio::spawn(async move {
        let mut heads = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
                stream.read_buf(&mut bytes).await.unwrap();
            }
            heads.push(String::from_utf8(bytes).unwrap().to_ascii_lowercase());
            let head = format!(
                "HTTP/1.1 {status} S\r\nconnection: close\r\ncontent-length: 4\r\n\r\ndone"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
        }
        heads
    });
    (url, requests)
}

fn key(head: &str) -> &str {
    let line = head
        .lines()
        .find(|line| line.starts_with("idempotency-key:"));
    line.unwrap_or_default()
}

fn stack() -> ClientWithMiddleware {
    let plain = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let middleware = Client::builder(Journal::memory())
        .environment(Arc::new(Clock::default()))
        .middleware();
    ClientBuilder::new(plain).with(middleware).build()
}

#[tokio::test]
async fn middleware_makes_a_request_with_an_intent_happen_once() {
    let (url, requests) = serve(&[503, 201]).await;
    let client = stack();
    let send = |body: &'static str| {
        let request = client.post(&url).body(body);
        request.with_extension(Intent::new("invoice-1")).send()
    };
    let first = send("one").await.unwrap();
    assert_eq!(first.status(), 201);
    assert_eq!(first.text().await.unwrap(), "done");
    let heads = requests.await.unwrap();
    assert_eq!(heads.len(), 2);
    assert_eq!(key(&heads[0]), key(&heads[1]));
    assert!(key(&heads[0]).starts_with("idempotency-key: \""));
    // Nothing listens any more.
    assert_eq!(send("one").await.unwrap().text().await.unwrap(), "done");
    let reqwest_middleware::Error::Middleware(error) = send("two").await.unwrap_err() else {
        panic!("not of the middleware");
    };
    assert!(
        matches!(error.downcast_ref(), Some(Error::IntentConflict)),
        "{error}"
    );
}

#[tokio::test]
async fn middleware_retries_with_a_key_of_the_callers_own() {
    let (url, requests) = serve(&[503, 201]).await;
    let response = stack()
        .post(&url)
        .header("idempotency-key", "mine")
        .send()
        .await;
    assert_eq!(response.unwrap().status(), 201);
    let heads = requests.await.unwrap();
    assert!(
        heads
            .iter()
            .all(|head| key(head) == "idempotency-key: mine"),
        "{heads:?}"
    );
}

#[tokio::test]
async fn middleware_sends_a_post_without_a_key_once() {
    let (url, requests) = serve(&[503]).await;
    let response = stack().post(&url).body("x").send().await;
    assert_eq!(response.unwrap().status(), 503);
    assert_eq!(key(&requests.await.unwrap()[0]), "");
}

#[tokio::test]
async fn a_layer_makes_a_request_with_an_intent_happen_once() {
    let below = Scripted::new([response(503, ""), response(201, "done")]);
    let sender = below.clone();
    let inner = service_fn(move |request: http::Request<Full<Bytes>>| {
        let sender = sender.clone();
        async move {
            let sent = sender.send(request.map(|_| Bytes::new())).await;
            sent.map(|response| response.map(Full::new))
        }
    });
    let layer = Client::builder(Journal::memory())
        .environment(Arc::new(Clock::default()))
        .layer();
    let service = layer.layer(inner);
    let request = |body: &'static str| {
        http::Request::post("http://api.example/payments")
            .extension(Intent::new("invoice-1"))
            .body(Bytes::from_static(body.as_bytes()))
            .unwrap()
    };
    for _ in 0..2 {
        let response = service.clone().oneshot(request("one")).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.body()[..]),
            (201, &b"done"[..])
        );
    }
    let refused = service.clone().oneshot(request("two")).await;
    assert!(matches!(refused, Err(Error::IntentConflict)), "{refused:?}");
    let keys = below.keys();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}
