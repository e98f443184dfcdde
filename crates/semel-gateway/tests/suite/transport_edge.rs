//! Clients at the edge: those that are refused while they send, that do not read, that close one
//! side, and whose heads are too large.

use std::time::Duration;

use crate::boundary::fixture::{EntryPoint, Fixture};
use crate::support::{OK, ask, connect, fixed, proxy, proxy_to, read_request, tls_proxy, until};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_gateway::server::Limits;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Refused as soon as its head is read: there is no host.
const REFUSED: &str = "POST / HTTP/1.1\r\nContent-Length: 10000000\r\n\r\n";

/// Sends ten megabytes and only then reads, as simple clients do.
async fn send_all_then_read(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    stream.write_all(REFUSED.as_bytes()).await.unwrap();
    for _ in 0..1000 {
        stream.write_all(&[b'x'; 10_000]).await.unwrap();
    }
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("request_malformed"), "{answer}");
}

#[tokio::test]
async fn a_refused_client_can_send_its_body_and_read_the_response() {
    let upstream = fixed(OK).await;
    let plain = proxy_to(upstream.address).await;
    for _ in 0..20 {
        send_all_then_read(connect(plain.address).await).await;
    }
    let (secure, connector) = tls_proxy(upstream.address, b"http/1.1").await;
    for _ in 0..20 {
        let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
        let stream = connect(secure.address).await;
        send_all_then_read(connector.connect(name, stream).await.unwrap()).await;
    }
    assert_eq!(upstream.requests(), 0);
}

/// The second of these gets the only connection when the first is gone.
async fn served_after(first: tokio::net::TcpStream, address: std::net::SocketAddr) -> Duration {
    let mut second = connect(address).await;
    second.write_all(GET).await.unwrap();
    let begun = tokio::time::Instant::now();
    until(&mut second, "ok").await;
    drop(first);
    begun.elapsed()
}

async fn one_connection() -> crate::support::Proxy {
    let upstream = fixed(OK).await;
    let mut limits = Limits::default();
    limits.max_connections = 1;
    proxy(upstream.address, limits, None).await
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_that_stays_is_closed_after_two_seconds() {
    let proxy = one_connection().await;
    let mut first = connect(proxy.address).await;
    first.write_all(REFUSED.as_bytes()).await.unwrap();
    until(&mut first, "request_malformed").await;
    let took = served_after(first, proxy.address).await;
    let two = Duration::from_secs(2);
    assert!(
        took >= two && took < two + Duration::from_secs(1),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_close_does_not_linger_where_nothing_is_outstanding() {
    let proxy = one_connection().await;
    // The body has arrived in full.
    let mut first = connect(proxy.address).await;
    let request = "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
    first.write_all(request.as_bytes()).await.unwrap();
    until(&mut first, "request_malformed").await;
    let took = served_after(first, proxy.address).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The client closes first.
    let mut first = connect(proxy.address).await;
    first.write_all(REFUSED.as_bytes()).await.unwrap();
    until(&mut first, "request_malformed").await;
    first.shutdown().await.unwrap();
    let took = served_after(first, proxy.address).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_guarded_request_that_is_too_large_gets_its_413() {
    let fixture = Fixture::new(EntryPoint::Gateway).await;
    for _ in 0..20 {
        let mut client = connect(fixture.address).await;
        let head = "POST /do/x HTTP/1.1\r\nHost: a\r\nX-Account: a\r\nIdempotency-Key: k\r\n\
                    Content-Length: 10000000\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; 10_000_000]).await.unwrap();
        until(&mut client, "request_too_large").await;
    }
    assert_eq!(fixture.app.executions(), 0);
}

#[tokio::test]
async fn a_client_that_closes_its_side_gets_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    for request in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        let mut client = connect(proxy.address).await;
        client.write_all(request).await.unwrap();
        client.shutdown().await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        // sleeps because the gateway must have read the end of the client's stream by then
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_client_that_closes_within_its_request_gets_nothing_executed() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let mut client = connect(proxy.address).await;
    let part = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
    client.write_all(part).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test]
async fn a_head_that_is_too_large_gets_a_431_that_names_the_limits() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let fields = |count: usize| "X: y\r\n".repeat(count);
    let long = "x".repeat(40_000);
    let first = "GET / HTTP/1.1\r\nHost: a\r\n";
    for head in [
        format!("{first}{}\r\n", fields(100)),
        format!("{first}X: {long}\r\n\r\n"),
        format!("{first}{long}: y\r\n\r\n"),
        format!(
            "{first}{}\r\n",
            "X: 0123456789012345678901234567890123456789\r\n"
                .repeat(99)
                .repeat(9)
        ),
        format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("{long} / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let answer = ask(proxy.address, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(
            answer.contains("32768 bytes") && answer.contains("100 header fields"),
            "{answer}"
        );
        // The same in small pieces.
        let mut client = connect(proxy.address).await;
        client.set_nodelay(true).unwrap();
        for piece in head.as_bytes().chunks(500) {
            client.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(
            until(&mut client, "100 header fields")
                .await
                .starts_with("HTTP/1.1 431")
        );
    }
    assert_eq!(upstream.requests(), 0);
    // As many as there may be, and a large head behind a good one.
    let good = format!("{first}{}\r\n", fields(99));
    let two = format!("{good}{first}{}\r\n", fields(100));
    let answer = ask(proxy.address, two.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 431"),
        "{answer}"
    );
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test]
async fn the_limits_on_a_head_apply_to_http2() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let io = TokioIo::new(connect(proxy.address).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = |fields: usize, name: &str, value: &str| {
        let request = Request::get(format!("http://{}/", proxy.address));
        let request = (0..fields).fold(request, |request, _| request.header(name, value));
        request.body(Empty::<Bytes>::new()).unwrap()
    };
    for (fields, name, value, status) in [
        (90, "x", "y", 200),
        // Browsers send each cookie in a field of its own.
        (300, "cookie", "a=b", 200),
        (101, "x", "y", 431),
        (1, "x", &*"y".repeat(33_000), 431),
    ] {
        let response = sender
            .send_request(request(fields, name, value))
            .await
            .unwrap();
        assert_eq!(response.status(), status, "{fields} {name}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let names_it = String::from_utf8_lossy(&body).contains("100 header fields");
        assert_eq!(names_it, status == 431);
    }
}

/// The client reads frames and responds to pings, and grants no window. The first response is one
/// that hyper takes over at once, the second one that it takes in parts.
#[tokio::test(start_paused = true)]
async fn an_http2_client_that_does_not_read_is_disconnected() {
    for length in [3000, 1_000_000_000] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = proxy_to(listener.local_addr().unwrap()).await;
        let io = TokioIo::new(connect(proxy.address).await);
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1000)
            .handshake(io)
            .await
            .unwrap();
        let mut connection = tokio::spawn(connection);
        let request = Request::get(format!("http://{}/", proxy.address));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let begun = tokio::time::Instant::now();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&[b'x'; 3000]).await.unwrap();
            stream
        };
        let (unread, mut stream) = tokio::join!(sender.send_request(request), serving);
        // The gateway closes the upstream's socket when it disconnects the client.
        let piece = vec![b'x'; 64 * 1024];
        let closed = async {
            if length > 3000 {
                while stream.write_all(&piece).await.is_ok() {}
            } else {
                let _ = (&mut connection).await;
            }
        };
        let closed = tokio::time::timeout(Duration::from_mins(2), closed).await;
        assert!(closed.is_ok(), "the upstream connection is still held");
        let took = begun.elapsed();
        let limit = Limits::WRITE_STALL_TIMEOUT;
        assert!(took >= limit && took < limit * 3 / 2, "{length}: {took:?}");
        drop((unread, connection));
    }
}

/// A slow application is not a client that does not read.
#[tokio::test(start_paused = true)]
async fn an_http2_client_that_waits_for_the_application_stays_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let io = TokioIo::new(connect(proxy.address).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{}/", proxy.address);
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..2 {
            stream.write_all(&vec![b'x'; 20_000]).await.unwrap();
            // sleeps because the application takes longer than the limit; the clock is paused
            tokio::time::sleep(Duration::from_secs(50)).await;
        }
    };
    let reading = async {
        let response = sender.send_request(request).await.unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    };
    let (body, ()) = tokio::join!(reading, serving);
    assert_eq!(body.len(), 40_000);
}
