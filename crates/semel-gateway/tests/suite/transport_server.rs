//! The server: streaming, limits, protocols and shutdown.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{OK, connect, fixed, proxy, proxy_to, read_request, until, upstream_at};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_gateway::server::{self, Limits, Tls, Workers};
use semel_gateway::upstream::Forward;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_hours(1);

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn the_pool_serves_many_clients_with_one_connection() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    for _ in 0..5 {
        let mut client = connect(proxy.address).await;
        for _ in 0..5 {
            client.write_all(GET).await.unwrap();
            until(&mut client, "ok").await;
        }
    }
    assert_eq!((upstream.requests(), upstream.connections()), (25, 1));
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    client.write_all(GET).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await.unwrap();
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    until(&mut client, "\r\n\r\n").await;
    for event in 0..5 {
        // The next is sent only when this one has arrived.
        stream
            .write_all(format!("9\r\ndata: {event}\n\n\r\n").as_bytes())
            .await
            .unwrap();
        until(&mut client, &format!("data: {event}")).await;
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    until(&mut client, "0\r\n\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_streamed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000005\r\n\r\nfirst";
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    until(&mut stream, "first").await;
    // The upstream does not read: the gateway accepts what its buffers hold and no more.
    let piece = vec![b'x'; 64 * 1024];
    let mut taken = 0usize;
    while let Ok(Ok(n)) =
        tokio::time::timeout(Duration::from_millis(300), client.write(&piece)).await
    {
        taken += n;
    }
    assert!(taken < 40_000_000, "{taken} bytes were taken in");
}

#[tokio::test]
async fn a_truncated_response_is_truncated_for_the_client_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    client.write_all(GET).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await.unwrap();
    let part = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n";
    stream.write_all(part.as_bytes()).await.unwrap();
    drop(stream);
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("0\r\n\r\n"));
}

#[tokio::test]
async fn a_websocket_passes_through() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";
    client.write_all(ask.as_bytes()).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = read_request(&mut stream)
        .await
        .unwrap()
        .to_ascii_lowercase();
    assert!(request.contains("upgrade: websocket") && request.contains("connection: upgrade"));
    let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    stream.write_all(answer.as_bytes()).await.unwrap();
    let head = until(&mut client, "hello").await.to_ascii_lowercase();
    assert!(
        head.starts_with("http/1.1 101") && head.contains("upgrade: websocket"),
        "{head}"
    );
    // Bytes that an HTTP parser would refuse.
    client.write_all(b"\n\0ping\n").await.unwrap();
    until(&mut stream, "ping\n").await;
    stream.write_all(b"pong").await.unwrap();
    until(&mut client, "pong").await;
    drop(stream);
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn another_upgrade_is_not_offered() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let mut client = connect(proxy.address).await;
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    client.write_all(ask.as_bytes()).await.unwrap();
    assert!(until(&mut client, "ok").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn running_requests_finish_before_the_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut idle = connect(proxy.address).await;
    let mut client = connect(proxy.address).await;
    client.write_all(GET).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await.unwrap();
    proxy.shutdown.cancel();
    // The idle connection closes soon, and new connections are refused.
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
    stream.write_all(OK.as_bytes()).await.unwrap();
    let answer = until(&mut client, "ok").await.to_ascii_lowercase();
    assert!(answer.contains("connection: close"), "{answer}");
    assert_eq!(proxy.served.await.unwrap().cut, 0);
    assert!(tokio::net::TcpStream::connect(proxy.address).await.is_err());
}

#[tokio::test]
async fn a_server_that_is_asked_to_stop_accepts_for_the_drain_delay() {
    let upstream = fixed(OK).await;
    let mut limits = Limits::default();
    limits.drain_delay = HOUR;
    let proxy = proxy(upstream.address, limits, None).await;
    let mut kept = connect(proxy.address).await;
    kept.write_all(GET).await.unwrap();
    let answer = until(&mut kept, "ok").await.to_ascii_lowercase();
    assert!(!answer.contains("connection: close"), "{answer}");
    proxy.shutdown.cancel();
    for mut client in [kept, connect(proxy.address).await] {
        client.write_all(GET).await.unwrap();
        let answer = until(&mut client, "ok").await.to_ascii_lowercase();
        assert!(answer.contains("connection: close"), "{answer}");
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    }
    tokio::time::pause();
    tokio::time::advance(HOUR).await;
    assert_eq!(proxy.served.await.unwrap().cut, 0);
    assert!(tokio::net::TcpStream::connect(proxy.address).await.is_err());
}

#[tokio::test]
async fn http2_connections_are_used_until_the_drain_delay_is_over() {
    let upstream = fixed(OK).await;
    let mut limits = Limits::default();
    limits.drain_delay = HOUR;
    let proxy = proxy(upstream.address, limits, None).await;
    let io = TokioIo::new(connect(proxy.address).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    proxy.shutdown.cancel();
    for _ in 0..2 {
        let uri = format!("http://{}/", proxy.address);
        let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("connection"));
        response.into_body().collect().await.unwrap();
    }
    tokio::time::pause();
    tokio::time::advance(HOUR).await;
    connection.await.unwrap().unwrap();
    assert_eq!(proxy.served.await.unwrap().cut, 0);
}

/// The client's request may be on its way when the server stops.
#[tokio::test]
async fn a_new_connection_is_served_while_the_server_stops() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let mut used = connect(proxy.address).await;
    used.write_all(GET).await.unwrap();
    until(&mut used, "ok").await;
    let mut client = connect(proxy.address).await;
    proxy.shutdown.cancel();
    // The server has stopped when it has closed the connection that it used before.
    assert_eq!(used.read(&mut [0; 1]).await.unwrap(), 0);
    client.write_all(GET).await.unwrap();
    let answer = until(&mut client, "ok").await.to_ascii_lowercase();
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_outlast_the_drain_are_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    client.write_all(GET).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await.unwrap();
    proxy.shutdown.cancel();
    assert_eq!(proxy.served.await.unwrap().cut, 1);
}

#[tokio::test]
async fn clients_above_max_connections_wait() {
    let upstream = fixed(OK).await;
    let mut limits = Limits::default();
    limits.max_connections = 1;
    let proxy = proxy(upstream.address, limits, None).await;
    let mut first = connect(proxy.address).await;
    first.write_all(GET).await.unwrap();
    until(&mut first, "ok").await;
    let mut second = connect(proxy.address).await;
    second.write_all(GET).await.unwrap();
    // Requests served on the first connection show that the loop runs and the second one waits.
    for _ in 0..20 {
        first.write_all(GET).await.unwrap();
        until(&mut first, "ok").await;
    }
    assert_eq!(upstream.requests(), 21);
    drop(first);
    until(&mut second, "ok").await;
}

#[tokio::test(start_paused = true)]
async fn slow_heads_idle_connections_and_stalled_bodies_end() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    for (sent, limit) in [
        ("", Limits::HEADER_TIMEOUT),
        ("GET / HT", Limits::HEADER_TIMEOUT),
        ("GET / HTTP/1.1\r\nHost: a\r\nX:", Limits::HEADER_TIMEOUT),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
            Limits::BODY_IDLE_TIMEOUT,
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Limits::IDLE_TIMEOUT),
    ] {
        let begun = tokio::time::Instant::now();
        let mut client = connect(proxy.address).await;
        client.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let took = begun.elapsed();
        assert!(
            took >= limit && took < limit + Duration::from_secs(2),
            "{sent:?} took {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy_to(listener.local_addr().unwrap()).await;
    let mut client = connect(proxy.address).await;
    client.write_all(GET).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await.unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The gateway closes the upstream's socket when it disconnects the client.
    let piece = vec![b'x'; 64 * 1024];
    while stream.write_all(&piece).await.is_ok() {}
    drop(client);
}

#[tokio::test]
async fn http2_by_prior_knowledge() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let io = TokioIo::new(connect(proxy.address).await);
    ask_http2(io, &format!("http://{}/", proxy.address)).await;
    assert_eq!(upstream.requests(), 3);
}

#[tokio::test]
async fn http2_chosen_in_the_handshake() {
    let upstream = fixed(OK).await;
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = certified.cert.pem();
    let tls = Tls::from_pem(
        pem.as_bytes(),
        certified.signing_key.serialize_pem().as_bytes(),
    )
    .unwrap();
    let proxy = proxy(upstream.address, Limits::default(), Some(tls)).await;

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    // A silent client must not block the handshakes of others.
    let _silent = connect(proxy.address).await;
    for (alpn, expected) in [(&b"h2"[..], true), (b"http/1.1", false)] {
        config.alpn_protocols = vec![alpn.to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config.clone()));
        let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
        let mut stream = connector
            .connect(name, connect(proxy.address).await)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn));
        if expected {
            ask_http2(TokioIo::new(stream), "https://localhost/").await;
        } else {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"ok"));
        }
    }
}

async fn ask_http2<I>(io: I, uri: &str)
where
    I: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "ok"
        );
    }
    let mut mismatch = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    mismatch
        .headers_mut()
        .insert("host", http::HeaderValue::from_static("other.example"));
    assert_eq!(sender.send_request(mismatch).await.unwrap().status(), 400);
}

/// Two gateways with a store each would execute a request twice.
#[test]
fn a_port_that_is_in_use_is_shared_only_on_request() {
    let first = server::bind("127.0.0.1:0".parse().unwrap(), 2, false).unwrap();
    let address = first[0].local_addr().unwrap();
    let refused = server::bind(address, 2, false).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(server::bind(address, 2, true).unwrap().len(), 2);
}

#[tokio::test]
async fn workers_share_a_port_and_stop_together() {
    let upstream = fixed(OK).await;
    let listeners = server::bind("127.0.0.1:0".parse().unwrap(), 2, false).unwrap();
    let address = listeners[0].local_addr().unwrap();
    assert_eq!(listeners[1].local_addr().unwrap(), address);
    let shutdown = CancellationToken::new();
    let target = upstream.address;
    let make = move |_| {
        (
            Forward::new(upstream_at(target), Duration::from_mins(1)),
            std::future::ready(()),
        )
    };
    let workers = Workers::start(listeners, Limits::default(), None, &shutdown, make).unwrap();
    for _ in 0..16 {
        let mut client = connect(address).await;
        client.write_all(GET).await.unwrap();
        until(&mut client, "ok").await;
    }
    shutdown.cancel();
    assert_eq!(workers.stopped().await.unwrap().cut, 0);
    assert_eq!(upstream.requests(), 16);
}
