//! Malformed and ambiguous requests, byte by byte, against the real server.

use crate::support::{OK, ask, connect, fixed, proxy_to, until};
use tokio::io::AsyncWriteExt;

/// Each must be refused with a 400 and a closed connection, without a request to the upstream.
#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    for head in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /#frag HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: Idempotency-Key\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close, authorization\r\nAuthorization: k\r\nContent-Length: 0\r\n\r\n",
    ] {
        let answer = ask(proxy.address, head.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400"),
            "{head:?} gave {answer:?}"
        );
        assert_eq!(
            answer.matches("HTTP/1.1").count(),
            1,
            "{head:?} gave {answer:?}"
        );
    }
    assert_eq!(upstream.requests(), 0);
}

/// The body is already being forwarded when these are detected: the exchange ends with a 400, and
/// the bytes that follow are never read as a request.
#[tokio::test]
async fn a_wrongly_framed_body_is_refused_and_ends_the_connection() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    for body in [
        "1\na\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1 \r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "1;x\ny\r\na\r\n0\r\n\r\n",
        "0\r\nA: b\nC: d\r\n\r\n",
        "0\r\n A: b\r\n\r\n",
        "0\n\r\n",
        "0\r\n\n",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}\
             GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let answer = ask(proxy.address, request.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400"),
            "{body:?} gave {answer:?}"
        );
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{body:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let mut three = String::new();
    three += "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na\nb";
    three += "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\n\r\n";
    three += "GET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = ask(proxy.address, three.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
    assert_eq!(upstream.requests(), 3);
    // The same, byte by byte.
    let mut client = connect(proxy.address).await;
    client.set_nodelay(true).unwrap();
    for byte in three.as_bytes().chunks(1) {
        client.write_all(byte).await.unwrap();
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        until(&mut client, "ok").await;
    }
}

#[tokio::test]
async fn a_bad_request_behind_a_good_one_is_refused_after_the_response() {
    let upstream = fixed(OK).await;
    let proxy = proxy_to(upstream.address).await;
    let two = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\nHost: a\r\n\r\n";
    let answer = ask(proxy.address, two.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("HTTP/1.1 400"), "{answer}");
    assert_eq!(upstream.requests(), 1);
}
