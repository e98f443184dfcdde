//! The client side: pooling, stages, truncation.

use crate::support::{OK, fixed, read_request, until, upstream_at};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use semel_core::{Fence, OperationId};
use semel_gateway::upstream::{Stage, Upstream, UpstreamConfig};
use semel_http::Operation;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn get() -> Request<Empty<Bytes>> {
    Request::get("/")
        .header("host", "a")
        .body(Empty::new())
        .unwrap()
}

fn post(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/")
        .header("host", "a")
        .body(Full::from(body))
        .unwrap()
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = fixed(OK).await;
    let upstream = upstream_at(server.address);
    for _ in 0..20 {
        let body = upstream.send(post("x")).await.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "ok");
    }
    assert_eq!((server.requests(), server.connections()), (20, 1));
}

/// Sends a guarded request `idle` after the connection was last used.
async fn guarded_after(upstream: &Upstream, idle: Duration) {
    tokio::time::pause();
    tokio::time::advance(idle).await;
    tokio::time::resume();
    let fence = Fence {
        id: OperationId::from_bytes([7; 16]),
        attempt: 1,
    };
    let mut request = post("x");
    request.extensions_mut().insert(Operation::new(fence));
    let body = upstream.send(request).await.unwrap().into_body();
    body.collect().await.unwrap();
}

#[tokio::test]
async fn a_guarded_request_uses_no_connection_that_was_idle_for_upstream_idle() {
    let (just_under, limit) = (Duration::from_millis(800), Duration::from_millis(900));
    let server = fixed(OK).await;
    let upstream = upstream_at(server.address);
    guarded_after(&upstream, Duration::ZERO).await;
    guarded_after(&upstream, just_under).await;
    assert_eq!(server.connections(), 1, "idle for less than the limit");
    guarded_after(&upstream, limit).await;
    assert_eq!(
        server.connections(),
        2,
        "idle for the limit less the margin"
    );
    // Other requests still use what is kept: the new connection, and then the old one.
    upstream.send(get()).await.unwrap();
    assert_eq!(server.connections(), 2);

    let server = fixed(OK).await;
    let mut config = UpstreamConfig::new(format!("http://{}", server.address).parse().unwrap());
    config.guarded_idle = Duration::ZERO;
    let upstream = Upstream::new(&config).unwrap();
    for connections in 1..=3 {
        guarded_after(&upstream, Duration::ZERO).await;
        assert_eq!(server.connections(), connections, "always a new one");
    }
}

#[tokio::test]
async fn an_unread_response_closes_its_connection() {
    // Longer than what arrives with the head.
    let server = fixed("HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\npart").await;
    let upstream = upstream_at(server.address);
    for _ in 0..3 {
        drop(upstream.send(get()).await.unwrap());
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn connection_refused_reports_nothing_sent() {
    let address = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let error = upstream_at(address).send(get()).await.unwrap_err();
    assert_eq!(error.stage, Stage::NothingSent);
}

#[tokio::test(start_paused = true)]
async fn connecting_times_out() {
    // With a full backlog the kernel drops further SYNs, and connecting hangs.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fillers = Vec::new();
    for _ in 0..8 {
        let filler = tokio::time::timeout(
            Duration::from_millis(200),
            tokio::net::TcpStream::connect(address),
        );
        fillers.push(filler.await);
    }
    let error = upstream_at(address).send(get()).await.unwrap_err();
    assert_eq!(error.stage, Stage::NothingSent);
}

#[tokio::test]
async fn from_the_first_byte_on_it_counts_as_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream_at(listener.local_addr().unwrap());
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
    };
    let (answer, ()) = tokio::join!(upstream.send(post("x")), server);
    assert_eq!(answer.unwrap_err().stage, Stage::Sent);
}

#[tokio::test]
async fn a_server_that_closes_at_once_is_reported_by_what_was_written() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream_at(listener.local_addr().unwrap());
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
    };
    // The close is seen before or after the first byte; the request neither hangs nor succeeds.
    let (answer, ()) = tokio::join!(upstream.send(post("x")), server);
    let error = answer.unwrap_err();
    assert!(matches!(error.stage, Stage::NothingSent | Stage::Sent));
}

#[tokio::test]
async fn a_pooled_connection_closed_by_the_server_is_replaced_without_sending_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream_at(listener.local_addr().unwrap());
    for round in 0..20 {
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await.unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
            (stream, request)
        };
        // The server accepts a new connection each time: the pooled one is never written to.
        let exchange = async {
            let response = upstream.send(post("body")).await.unwrap();
            response.into_body().collect().await.unwrap();
        };
        let ((), (mut stream, request)) = tokio::join!(exchange, server);
        assert!(request.ends_with("body"), "round {round}: {request}");
        // Closed while idle; the runtime has not polled its reactor since.
        let mut rest = [0; 1];
        assert_eq!(
            stream.try_read(&mut rest).map_err(|e| e.kind()),
            Err(std::io::ErrorKind::WouldBlock)
        );
        stream.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_truncated_response_is_an_error() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = upstream_at(listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let read = async {
            let mut body = upstream.send(get()).await.unwrap().into_body();
            loop {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break (error.stage, body.is_truncated()),
                    None => panic!("a clean end of {answer:?}"),
                }
            }
        };
        let (ended, ()) = tokio::join!(read, server);
        assert_eq!(ended, (Stage::Sent, true), "{answer:?}");
    }
}

#[tokio::test]
async fn a_connection_with_an_unfinished_upload_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream_at(listener.local_addr().unwrap());
    let endless =
        futures_util::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>();
    let body = http_body_util::StreamBody::new(endless);
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        until(&mut stream, "\r\n\r\n").await;
        stream
            .write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        // Ends only when the client closes.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    };
    let exchange = async {
        let response = upstream.send(request).await.unwrap();
        assert_eq!(response.status(), 413);
    };
    tokio::join!(exchange, server);
}

#[tokio::test]
async fn invalid_addresses_are_refused() {
    for base in ["https://a", "ftp://a", "/path", "http://a/?q"] {
        assert!(
            Upstream::new(&UpstreamConfig::new(base.parse().unwrap())).is_err(),
            "{base}"
        );
    }
}
