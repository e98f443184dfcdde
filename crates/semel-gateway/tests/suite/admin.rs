//! The admin listener, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use semel_core::Memory;
use semel_gateway::activity::Counts;
use semel_gateway::admin::{Access, Api};
use semel_gateway::observed::Events;
use semel_gateway::server::{Drained, Limits, Peer};
use semel_gateway::{admin, telemetry};
use semel_worker::Reconcilers;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::support::unrouted;

/// Short, so that a test can wait for it.
const HEADER_TIMEOUT: Duration = Duration::from_millis(200);

struct Admin {
    address: SocketAddr,
    stop: CancellationToken,
    served: JoinHandle<Drained>,
}

fn router(token: Option<&str>, ready: Result<(), &'static str>) -> axum::Router {
    let recorder = telemetry::recorder().unwrap();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        telemetry::describe();
        metrics::counter!(telemetry::names::UNGUARDED, "operation" => "pay").increment(2);
    });
    admin::router(
        token.map_or(Access::Loopback, |token| {
            Access::token(token.parse().unwrap())
        }),
        move || async move { ready.map(|()| Vec::new()).map_err(str::to_owned) },
        handle,
        Api {
            store: Memory::default(),
            reconcilers: Reconcilers::new(Memory::default()),
            events: Events::default(),
            key_hasher: None,
            counts: Counts::default(),
            layer: unrouted(Memory::default()),
        },
        Memory::default(),
    )
}

impl Admin {
    async fn start(router: axum::Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, mut limits) = (CancellationToken::new(), Limits::default());
        limits.header_timeout = HEADER_TIMEOUT;
        let served = tokio::spawn(admin::serve(listener, router, limits, stop.clone()));
        Self {
            address,
            stop,
            served,
        }
    }

    /// The status and the raw response.
    async fn ask(&self, path: &str, header: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    async fn stop(self) {
        self.stop.cancel();
        assert_eq!(self.served.await.unwrap().cut, 0);
    }
}

#[tokio::test]
async fn without_a_token_loopback_is_served() {
    let admin = Admin::start(router(None, Ok(()))).await;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/", 200),
        ("/metrics/", 404),
    ] {
        assert_eq!(admin.ask(path, "").await.0, status, "{path}");
    }
    let (_, text) = admin.ask("/metrics", "").await;
    assert!(
        text.contains("content-type: text/plain; version=0.0.4"),
        "{text}"
    );
    assert!(
        text.contains("api_idempotency_unguarded_total{operation=\"pay\"} 2"),
        "{text}"
    );
    admin.stop().await;
}

/// More clients than connections send half a head each, and then stay: all are closed, and a probe
/// is answered.
#[tokio::test]
async fn clients_that_send_half_a_head_are_closed() {
    let admin = Admin::start(router(None, Ok(()))).await;
    let mut slow = Vec::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: ")
            .await
            .unwrap();
        slow.push(stream);
    }
    assert_eq!(admin.ask("/readyz", "").await.0, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        // Closed, with or without a reset.
        let _ = stream.read_to_end(&mut rest).await;
    }
    let large = format!("X-Large: {}\r\n", "x".repeat(64 << 10));
    assert_eq!(admin.ask("/readyz", &large).await.0, 431);
    admin.stop().await;
}

#[tokio::test]
async fn a_token_is_required_except_for_probes() {
    let good = "Authorization: Bearer s3cret\r\n";
    for (header, metrics, elsewhere) in [
        (good.to_owned(), 200, 404),
        ("authorization: bearer s3cret\r\n".to_owned(), 200, 404),
        (String::new(), 401, 401),
        ("Authorization: Bearer s3cre\r\n".to_owned(), 401, 401),
        ("Authorization: Bearer s3cret2\r\n".to_owned(), 401, 401),
        ("Authorization: Bearer \r\n".to_owned(), 401, 401),
        ("Authorization: Basic s3cret\r\n".to_owned(), 401, 401),
        ("Authorization: s3cret\r\n".to_owned(), 401, 401),
        (good.repeat(2), 401, 401),
    ] {
        // A new listener each time: wrong tokens are rate limited.
        let admin = Admin::start(router(Some("s3cret"), Ok(()))).await;
        assert_eq!(admin.ask("/metrics", &header).await.0, metrics, "{header}");
        assert_eq!(
            admin.ask("/nothing", &header).await.0,
            elsewhere,
            "{header}"
        );
        assert_eq!(admin.ask("/healthz", &header).await.0, 200);
        assert_eq!(admin.ask("/readyz", &header).await.0, 200);
        admin.stop().await;
    }
    let admin = Admin::start(router(Some("s3cret"), Ok(()))).await;
    let (_, refused) = admin.ask("/metrics", "").await;
    assert!(refused.contains("www-authenticate: Bearer"), "{refused}");
    admin.stop().await;
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_ready() {
    let admin = Admin::start(router(None, Err("the disk is full"))).await;
    let (status, text) = admin.ask("/readyz", "").await;
    assert!(status == 503 && text.contains("the disk is full"), "{text}");
    assert_eq!(admin.ask("/healthz", "").await.0, 200);
    admin.stop().await;
}

/// The peer address is injected: a test has no remote peer.
#[tokio::test]
async fn without_a_token_other_machines_are_refused() {
    for (peer, token, status) in [
        (Some("127.0.0.1:1"), None, 200),
        (Some("[::1]:1"), None, 200),
        (Some("[::ffff:127.0.0.1]:1"), None, 200),
        (Some("192.0.2.1:1"), None, 403),
        (None, None, 403),
        (Some("192.0.2.1:1"), Some("s3cret"), 200),
    ] {
        let mut request = http::Request::get("/healthz")
            .body(axum::body::Body::empty())
            .unwrap();
        if let Some(peer) = peer {
            let peer: SocketAddr = peer.parse().unwrap();
            request.extensions_mut().insert(Peer::new(peer, false));
        }
        let answer = router(token, Ok(())).oneshot(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{peer:?} {token:?}");
    }
}
