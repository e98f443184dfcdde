//! An upstream that fails at each stage of a request: the stage decides the response to a retry.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use semel_core::Status;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::support::http::{Connection, Message, ask, payment};
use crate::support::{GatewayDirectory, TEST_TIMEOUT};

const KEY: &str = "transmission-1";

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";

/// What the upstream does after it has read a whole request.
#[derive(Clone, Copy, Debug)]
enum Upstream {
    /// Writes this and closes.
    Writes(&'static str),
    /// Writes the first answer to the first request, and the second one to all others.
    Changes(&'static str, &'static str),
    /// Keeps the connection open without an answer.
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
            // Ignores a connection without a request.
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

/// A bound port that refuses connections until the socket listens.
fn bind_without_listening() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Asserts the first response, the response to a retry, the status of the record, and how many
/// requests arrive at an upstream with this behaviour.
async fn assert_responses(
    config: &str,
    upstream: Upstream,
    first: (u16, &str),
    retry: (u16, &str),
    recorded: Status,
    arrive: usize,
) -> (Message, Vec<Message>) {
    let (socket, address) = bind_without_listening();
    let arrived = serve(socket.listen(16).unwrap(), upstream);
    let gateway_dir = GatewayDirectory::new(config);
    let gateway = block_in_place(|| gateway_dir.start(&format!("http://{address}")));
    let asking = async {
        let response = ask(gateway.address, &payment(KEY)).await.unwrap();
        assert_eq!(
            (response.status(), &*response.code()),
            first,
            "{upstream:?}: {response:?}"
        );
        for _ in 0..2 {
            let response = ask(gateway.address, &payment(KEY)).await.unwrap();
            assert_eq!(
                (response.status(), &*response.code()),
                retry,
                "{upstream:?}: {response:?}"
            );
        }
        response
    };
    let response = timeout(TEST_TIMEOUT, asking).await.expect("no answer");
    gateway.signal(Signal::TERM);
    gateway.wait_for_exit().await;
    let records = gateway_dir.records(None).await;
    let statuses: Vec<_> = records.iter().map(|record| record.status).collect();
    assert_eq!(statuses, [recorded], "{upstream:?}");
    let arrived = arrived.lock().unwrap().clone();
    assert_eq!(arrived.len(), arrive, "{upstream:?}: {arrived:?}");
    (response, arrived)
}

const FIRST_UNKNOWN: (u16, &str) = (504, "idempotency_outcome_unknown");
const RETRY_UNKNOWN: (u16, &str) = (409, "idempotency_outcome_unknown");

#[tokio::test(flavor = "multi_thread")]
async fn request_that_was_sent_is_not_sent_again() {
    for upstream in [
        Upstream::Writes(""),
        Upstream::Writes("HTTP/1.1 201 Cre"),
        Upstream::Writes("HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"half\":"),
        Upstream::Writes("HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
    ] {
        assert_responses(
            CONFIG,
            upstream,
            FIRST_UNKNOWN,
            RETRY_UNKNOWN,
            Status::Unknown,
            1,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_timeout_makes_the_outcome_unknown() {
    let config = format!("[policy]\nupstream_timeout = \"200ms\"\n{CONFIG}");
    assert_responses(
        &config,
        Upstream::Waits,
        FIRST_UNKNOWN,
        RETRY_UNKNOWN,
        Status::Unknown,
        1,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_without_a_length_is_passed_on_and_not_stored() {
    let unframed = Upstream::Writes("HTTP/1.0 201 Created\r\n\r\n{\"id\":\"pay_1\"}");
    let gone = (410, "idempotency_response_not_stored");
    let (response, _) =
        assert_responses(CONFIG, unframed, (201, ""), gone, Status::Completed, 1).await;
    assert_eq!(response.text(), "{\"id\":\"pay_1\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_after_a_release_has_the_same_downstream_key() {
    let timeout = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
    let upstream = Upstream::Changes(timeout, CREATED);
    let (_, arrived) =
        assert_responses(CONFIG, upstream, (408, ""), (201, ""), Status::Completed, 2).await;
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
async fn unreachable_upstream_releases_the_key_and_a_retry_executes() {
    let (socket, address) = bind_without_listening();
    let gateway_dir = GatewayDirectory::new(CONFIG);
    let gateway = block_in_place(|| gateway_dir.start(&format!("http://{address}")));
    let refused = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!(
        (refused.status(), &*refused.code()),
        (502, "upstream_unreachable")
    );
    let records = gateway_dir.records(Some(Status::FailedRetryable)).await;
    assert_eq!(records.len(), 1);

    let arrived = serve(socket.listen(16).unwrap(), Upstream::Writes(CREATED));
    let executed = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!((executed.status(), executed.is_replay()), (201, false));
    let replayed = ask(gateway.address, &payment(KEY)).await.unwrap();
    assert_eq!((replayed.status(), replayed.is_replay()), (201, true));
    let arrived = arrived.lock().unwrap().clone();
    assert_eq!(arrived.len(), 1, "{arrived:?}");
    assert_eq!(arrived[0].header("semel-attempt"), Some("2"));
    // The record, and so the downstream key, is the one of the failed attempt.
    let operation = arrived[0].header("semel-operation-id").map(str::to_owned);
    assert!(operation.is_some());
    assert_eq!(operation, refused.member("operation_id"));
    assert!(arrived[0].header("semel-downstream-key").is_some());
}
