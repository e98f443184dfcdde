//! How far a request got decides what a retry is told: the gateway process before an upstream
//! that fails at each stage.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use semel_core::Status;
use support::http::{Connection, Message, ask, payment};
use support::{PATIENCE, Place};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::block_in_place;
use tokio::time::timeout;

const KEY: &str = "transmission-1";

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";

/// What the upstream does once it has read a request to its end.
#[derive(Clone, Copy, Debug)]
enum Upstream {
    /// Writes this and closes.
    Writes(&'static str),
    /// Writes the first at first, and the second from then on.
    Changes(&'static str, &'static str),
    /// Keeps the connection and says nothing.
    Waits,
}

/// The requests that arrived.
type Arrived = Arc<Mutex<Vec<Message>>>;

fn serve(listener: TcpListener, upstream: Upstream) -> Arrived {
    let arrived = Arrived::default();
    let seen = Arc::clone(&arrived);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = Connection::accepted(stream);
            // A connection that brings no request is none.
            let Ok(request) = connection.read().await else {
                continue;
            };
            let first = seen.lock().unwrap().is_empty();
            seen.lock().unwrap().push(request);
            let answer = match (upstream, first) {
                (Upstream::Writes(answer), _)
                | (Upstream::Changes(answer, _), true)
                | (Upstream::Changes(_, answer), false) => answer,
                (Upstream::Waits, _) => {
                    kept.push(connection);
                    continue;
                }
            };
            connection
                .stream()
                .write_all(answer.as_bytes())
                .await
                .unwrap();
        }
    });
    arrived
}

/// A port that refuses connections until it listens, and that nobody else gets meanwhile.
fn reserved() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// One row: how the upstream behaves, what the first attempt and the retry are told, what is
/// recorded, how many requests arrive.
async fn row(
    config: &str,
    upstream: Upstream,
    first: (u16, &str),
    retry: (u16, &str),
    recorded: Status,
    arrive: usize,
) -> (Message, Vec<Message>) {
    let (socket, address) = reserved();
    let arrived = serve(socket.listen(16).unwrap(), upstream);
    let place = Place::new(config);
    let gateway = block_in_place(|| place.start(&format!("http://{address}")));
    let asking = async {
        let told = ask(gateway.address, &payment(KEY)).await.unwrap();
        assert_eq!(
            (told.status(), &*told.code()),
            first,
            "{upstream:?}: {told:?}"
        );
        for _ in 0..2 {
            let told = ask(gateway.address, &payment(KEY)).await.unwrap();
            assert_eq!(
                (told.status(), &*told.code()),
                retry,
                "{upstream:?}: {told:?}"
            );
        }
        told
    };
    let told = timeout(PATIENCE, asking).await.expect("no answer");
    gateway.signal(Signal::TERM);
    gateway.ended().await;
    let records = place.records(None).await;
    let statuses: Vec<_> = records.iter().map(|record| record.status).collect();
    assert_eq!(statuses, [recorded], "{upstream:?}");
    let arrived = arrived.lock().unwrap().clone();
    assert_eq!(arrived.len(), arrive, "{upstream:?}: {arrived:?}");
    (told, arrived)
}

const BROKEN: (u16, &str) = (504, "idempotency_outcome_unknown");
const UNKNOWN: (u16, &str) = (409, "idempotency_outcome_unknown");

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_is_never_sent_again() {
    for upstream in [
        Upstream::Writes(""),
        Upstream::Writes("HTTP/1.1 201 Cre"),
        Upstream::Writes("HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"half\":"),
        Upstream::Writes("HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
    ] {
        row(CONFIG, upstream, BROKEN, UNKNOWN, Status::Unknown, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_too_slow_leaves_the_outcome_unknown() {
    let config = format!("[policy]\nupstream_timeout = \"200ms\"\n{CONFIG}");
    row(
        &config,
        Upstream::Waits,
        BROKEN,
        UNKNOWN,
        Status::Unknown,
        1,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_length_is_passed_on_and_not_kept() {
    let unframed = Upstream::Writes("HTTP/1.0 201 Created\r\n\r\n{\"id\":\"pay_1\"}");
    let gone = (410, "idempotency_response_not_stored");
    let (told, _) = row(CONFIG, unframed, (201, ""), gone, Status::Completed, 1).await;
    assert_eq!(told.text(), "{\"id\":\"pay_1\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_attempt_is_followed_by_another_under_the_same_downstream_key() {
    let timeout = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
    let upstream = Upstream::Changes(timeout, CREATED);
    let (_, arrived) = row(CONFIG, upstream, (408, ""), (201, ""), Status::Completed, 2).await;
    let sent = |name: &str| -> Vec<_> {
        let values = arrived.iter().map(|request| request.header(name));
        values.map(|value| value.unwrap().to_owned()).collect()
    };
    assert_eq!(sent("semel-attempt"), ["1", "2"]);
    for name in ["semel-downstream-key", "semel-operation-id"] {
        assert_eq!(sent(name)[0], sent(name)[1], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_reached_nobody_is_released_and_executes_later() {
    let (socket, address) = reserved();
    let place = Place::new(CONFIG);
    let gateway = block_in_place(|| place.start(&format!("http://{address}")));
    let refused = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!(
        (refused.status(), &*refused.code()),
        (502, "upstream_unreachable")
    );
    let records = place.records(Some(Status::FailedRetryable)).await;
    assert_eq!(records.len(), 1);

    let arrived = serve(socket.listen(16).unwrap(), Upstream::Writes(CREATED));
    let executed = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!((executed.status(), executed.is_replay()), (201, false));
    let replayed = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!((replayed.status(), replayed.is_replay()), (201, true));
    let arrived = arrived.lock().unwrap().clone();
    assert_eq!(arrived.len(), 1, "{arrived:?}");
    assert_eq!(arrived[0].header("semel-attempt"), Some("2"));
    // The same operation, and so the same key downstream, as that of the attempt that failed.
    let operation = arrived[0].header("semel-operation-id").map(str::to_owned);
    assert!(operation.is_some());
    assert_eq!(operation, refused.member("operation_id"));
    assert!(arrived[0].header("semel-downstream-key").is_some());
}
