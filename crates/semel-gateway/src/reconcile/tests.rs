use std::net::SocketAddr;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use semel_core::{Fingerprint, Identity, Key, OperationId, Policy, Reserve, Timestamp, transition};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::config::{Environment, Flags, Source};

/// The first route's poller, as configured.
fn configured(text: &str, upstream: SocketAddr) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    load(file.path(), upstream)
}

fn load(file: &Path, upstream: SocketAddr) -> Config {
    let source = Source {
        file: Some(file.to_owned()),
        flags: Flags {
            upstream: Some(format!("http://{upstream}").parse().unwrap()),
            tenant: Some("authorization".parse().unwrap()),
            ..Flags::default()
        },
        environment: Environment::from_pairs([("TOKEN", "Bearer s3cret-token")]),
    };
    source.load().unwrap()
}

const RULES: &str = r#"
[[route]]
match = "POST /payments"
operation = "create_payment"
store_headers = ["X-Cost"]
store_set_cookie = true
max_response = "1KiB"

[route.reconcile]
poll = "GET /by/{operation_id}"
completed = ["200", "402"]
status_from = { "200" = "201" }
not_executed = "404"
timeout = "3s"
authorization_env = "TOKEN"
"#;

fn poller(text: &str, upstream: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Poller {
    let config = configured(text, upstream);
    let route = &config.routes[0];
    let rules = route.reconcile.as_ref().unwrap();
    Poller::new(route, rules, config.upstream.as_ref(), tls).unwrap()
}

fn operation_of(tenant: &str, key: &str) -> Record {
    let request = Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant, "create_payment", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&1).unwrap().into(),
        owner: "test".into(),
        policy: Policy::default(),
    };
    let reserved = transition::reserve(None, request, Timestamp::from_micros(1));
    reserved.record.unwrap()
}

fn operation() -> Record {
    operation_of("acme", "key-1")
}

/// A server of one connection: what it was asked, and its listener.
type Served = JoinHandle<(String, TcpListener)>;

/// Takes one connection, reads the head of a request, and answers.
async fn serve(answer: &'static [u8], close: bool) -> (SocketAddr, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        (exchange(stream, answer, close).await, listener)
    });
    (address, served)
}

/// The only request that arrived. Called after the lookup: a second connection would be waiting in
/// the backlog.
async fn only_request(served: Served) -> String {
    let (request, listener) = served.await.unwrap();
    let again = listener.into_std().unwrap().accept();
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    request
}

async fn exchange<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: T,
    answer: &[u8],
    close: bool,
) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => request.push(byte[0]),
            Ok(_) | Err(_) => break,
        }
    }
    // A client that has seen enough hangs up, and may do so while it is written to.
    let _ = stream.write_all(answer).await;
    if close {
        let _ = stream.shutdown().await;
    } else {
        let _ = stream.read(&mut [0]).await;
    }
    String::from_utf8(request).unwrap()
}

/// What is found where this is the answer.
async fn found(answer: &'static [u8], close: bool) -> Lookup {
    let (address, served) = serve(answer, close).await;
    let found = poller(RULES, address, None).look_up(&operation()).await;
    only_request(served).await;
    found
}

fn code(found: &Lookup) -> &str {
    match &found.result {
        LookupResult::Unclear(code)
        | LookupResult::Absent(code)
        | LookupResult::NeverCreated(code) => code.as_str(),
        LookupResult::Completed(_) => "completed",
    }
}

#[tokio::test]
async fn a_response_has_the_schema_of_the_route_and_no_body_that_is_reconstructed() {
    let route =
        "schema = 3\nreplay = \"reconstruct\"\nreconstruct.get = \"GET /x/{operation_id}\"\n";
    let rules = RULES.replace("[route.reconcile]", &format!("{route}[route.reconcile]"));
    for (answer, status, body) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npaid"[..],
            201,
            None,
        ),
        (
            b"HTTP/1.1 402 No\r\nContent-Length: 4\r\n\r\nbusy",
            402,
            Some("busy"),
        ),
    ] {
        let (address, served) = serve(answer, false).await;
        let found = poller(&rules, address, None).look_up(&operation()).await;
        only_request(served).await;
        let LookupResult::Completed(Completion { response, .. }) = found.result else {
            panic!("{found:?}");
        };
        assert_eq!((response.status, response.schema_version), (status, 3));
        assert_eq!(response.body.as_deref(), body.map(str::as_bytes));
    }
}

#[tokio::test]
async fn a_response_is_stored_as_the_layer_would_store_it() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Cost: 7\r\n\
        X-Other: 8\r\nSet-Cookie: a=b\r\nDate: now\r\nContent-Length: 14\r\n\r\n{\"id\":\"pay_1\"}";
    let (address, served) = serve(answer, false).await;
    let operation = operation();
    let found = poller(RULES, address, None).look_up(&operation).await;
    let LookupResult::Completed(completion) = &found.result else {
        panic!("{found:?}");
    };
    assert_eq!(completion.response.status, 201);
    assert_eq!(
        completion.response.headers,
        [
            ("content-type".into(), "application/json".into()),
            ("x-cost".into(), "7".into())
        ]
    );
    let body = completion.response.body.as_ref().unwrap();
    assert_eq!(body, r#"{"id":"pay_1"}"#);

    let request = only_request(served).await.to_lowercase();
    let id = operation.id;
    assert!(
        request.starts_with(&format!("get /by/{id} http/1.1\r\n")),
        "{request}"
    );
    for line in [
        format!("host: {address}"),
        format!("semel-operation-id: {id}"),
        "authorization: bearer s3cret-token".to_owned(),
        "accept-encoding: identity".to_owned(),
    ] {
        assert!(request.contains(&format!("\r\n{line}\r\n")), "{request}");
    }
    let evidence = String::from_utf8(found.evidence.to_vec()).unwrap();
    let expected = format!("GET http://{address}/by/{id} → 200 OK\n{{\"id\":\"pay_1\"}}");
    assert_eq!(evidence, expected);
}

#[tokio::test]
async fn a_decline_is_stored_under_its_own_status() {
    let found = found(b"HTTP/1.1 402 No\r\nContent-Length: 2\r\n\r\nno", false).await;
    let LookupResult::Completed(completion) = found.result else {
        panic!("{found:?}");
    };
    assert_eq!(completion.response.status, 402);
    assert_eq!(completion.response.body.unwrap(), "no");
}

#[tokio::test]
async fn only_configured_statuses_mean_anything() {
    for (answer, expected) in [
        (
            &b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"[..],
            "poll_status_404",
        ),
        (
            b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
            "poll_status_201",
        ),
        (
            b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
            "poll_status_202",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "poll_status_204"),
        (
            b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n",
            "poll_status_400",
        ),
        (
            b"HTTP/1.1 401 Who\r\nContent-Length: 0\r\n\r\n",
            "poll_status_401",
        ),
        (
            b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
            "poll_status_410",
        ),
        (
            b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n",
            "poll_status_429",
        ),
        (
            b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
            "poll_status_500",
        ),
        (
            b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n",
            "poll_status_503",
        ),
        // Not followed, wherever it leads.
        (
            b"HTTP/1.1 302 Found\r\nLocation: /by/another\r\nContent-Length: 0\r\n\r\n",
            "poll_status_302",
        ),
    ] {
        let found = found(answer, false).await;
        assert_eq!(code(&found), expected);
        let absent = matches!(found.result, LookupResult::Absent(_));
        assert_eq!(absent, expected == "poll_status_404");
        let seen = String::from_utf8_lossy(&found.evidence);
        assert!(
            seen.starts_with("GET http://127.0.0.1:") && seen.contains(" → "),
            "{seen}"
        );
        assert!(!seen.contains("s3cret"), "{seen}");
        assert_eq!(absent, seen.ends_with("\ngone"), "{seen}");
    }
}

#[tokio::test]
async fn incomplete_responses_are_unclear() {
    const LARGE: &[u8] = &[b'x'; 2000];
    let declared = [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"[..],
        LARGE,
    ]
    .concat();
    let chunked = [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n"[..],
        LARGE,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    for (answer, close, expected) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"[..],
            true,
            "poll_truncated",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            true,
            "poll_truncated",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nperhaps all", true, "poll_unframed"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", true, "poll_broke_off"),
        (b"", true, "poll_broke_off"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", true, "poll_broke_off"),
        (Vec::leak(declared), false, "poll_too_large"),
        (Vec::leak(chunked), false, "poll_too_large"),
    ] {
        let found = found(answer, close).await;
        assert!(
            matches!(found.result, LookupResult::Unclear(_)),
            "{found:?}"
        );
        assert_eq!(code(&found), expected);
    }
    let most = [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n"[..],
        &[b'x'; 1024],
    ]
    .concat();
    assert_eq!(code(&found(Vec::leak(most), false).await), "completed");
}

#[tokio::test]
async fn evidence_is_bounded() {
    let answer = [
        &b"HTTP/1.1 500 Oops\r\nContent-Length: 100000\r\n\r\n"[..],
        &vec![b'x'; 100_000],
    ]
    .concat();
    let found = found(Vec::leak(answer), false).await;
    assert_eq!(found.evidence.len(), MAX_EVIDENCE);
}

#[tokio::test]
async fn an_unreachable_server_is_unclear() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let found = poller(RULES, address, None).look_up(&operation()).await;
    assert_eq!(code(&found), "poll_unreachable");
}

/// Tokio's paused clock advances by itself when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            exchange(stream, answer, false).await
        });
        let start = tokio::time::Instant::now();
        let found = poller(RULES, address, None).look_up(&operation()).await;
        assert_eq!(code(&found), "poll_timed_out");
        assert_eq!(start.elapsed().as_secs(), 3);
        // The connection is closed, so the server comes to its end.
        served.await.unwrap();
    }
}

#[tokio::test]
async fn keys_and_tenants_cannot_change_the_path() {
    let rules = RULES.replace(
        "/by/{operation_id}",
        "/t/{tenant}/{key}?q={key}&d={downstream_key}",
    );
    for (tenant, key, expected) in [
        ("acme", "abc-_.~", "/t/acme/abc-_.~?q=abc-_.~&d="),
        (
            "a/../b",
            "x/../y?z#w&v=%2e ;\"\\",
            "/t/a%2F..%2Fb/x%2F..%2Fy%3Fz%23w%26v%3D%252e%20%3B%22%5C?q=",
        ),
        (
            "é\r\nX: y",
            "{tenant}",
            "/t/%C3%A9%0D%0AX%3A%20y/%7Btenant%7D?q=%7Btenant%7D&d=",
        ),
        ("a", "...", "/t/a/...?q="),
    ] {
        let answer = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
        let (address, served) = serve(answer, false).await;
        let operation = operation_of(tenant, key);
        let found = poller(&rules, address, None).look_up(&operation).await;
        assert!(matches!(found.result, LookupResult::Absent(_)), "{found:?}");
        let request = only_request(served).await;
        let line = request.lines().next().unwrap();
        assert!(line.starts_with(&format!("GET {expected}")), "{line}");
        let end = format!("&d={} HTTP/1.1", operation.id.downstream_key(""));
        assert!(line.ends_with(&end), "{line}");
    }
    for (tenant, key) in [("a", ".."), ("a", "."), ("..", "b")] {
        let found = poller(&rules, ([127, 0, 0, 1], 9).into(), None)
            .look_up(&operation_of(tenant, key))
            .await;
        assert_eq!(code(&found), "poll_unaskable");
    }
}

/// A server with a certificate of its own, and a client that believes it.
async fn secure(name: &str) -> (SocketAddr, Arc<ClientConfig>, JoinHandle<Option<String>>) {
    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let certificate = CertificateDer::from(certified.cert);
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let identified = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(identified));
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.ok()?;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        Some(exchange(stream, answer, false).await)
    });
    (
        address,
        Arc::new(client_tls::with_roots(roots).unwrap()),
        served,
    )
}

#[tokio::test]
async fn https_polls_require_a_matching_certificate() {
    for (name, fits) in [("localhost", true), ("elsewhere.example", false)] {
        let (address, tls, served) = secure(name).await;
        let port = address.port();
        let rules = RULES.replace("GET /by", &format!("GET https://localhost:{port}/by"));
        let operation = operation();
        let found = poller(&rules, address, Some(&tls))
            .look_up(&operation)
            .await;
        assert_eq!(code(&found) == "completed", fits, "{found:?}");
        let request = served.await.unwrap();
        assert_eq!(request.is_some(), fits, "no credential goes to a stranger");
        let seen = String::from_utf8_lossy(&found.evidence);
        assert!(
            seen.starts_with(&format!("GET https://localhost:{port}/by/")),
            "{seen}"
        );
    }
}

#[tokio::test]
async fn operations_are_polled_await_an_event_or_are_left_to_an_operator() {
    let webhook = |operation: &str| {
        format!(
            r#"
[[route]]
match = "POST /refunds"
operation = "create_refund"
[[route]]
match = "POST /orders"
operation = "create_order"
[[route]]
match = "POST /unnamed"
[[route]]
match = "POST /unnamed/{{id}}"
[[route]]
match = "POST /ignored"
key = "ignored"
[[webhook]]
source = "psp"
scheme = "stripe"
secret_env = "TOKEN"
operation_id = "/o"
completed = {{ pointer = "/type", equals = "paid" }}
{operation}
"#
        )
    };
    let address = ([127, 0, 0, 1], 9).into();
    for (more, reconciled, left) in [
        (String::new(), &["create_payment"][..], &[][..]),
        (
            webhook(""),
            &["create_order", "create_payment", "create_refund"],
            &["POST /unnamed"],
        ),
        (
            webhook("operation = \"create_refund\""),
            &["create_payment", "create_refund"],
            &["POST /unnamed", "create_order"],
        ),
    ] {
        let config = configured(&format!("{RULES}{more}"), address);
        let all = reconcilers(&config, semel_core::Memory::default()).unwrap();
        let waits = |operation: &&str| all.schedule(operation).unwrap().attempts > 0;
        let (found, others): (Vec<_>, Vec<_>) = all.operations().partition(waits);
        assert_eq!((&*found, &*others), (reconciled, left));
        for route in &config.routes {
            let name = route.operation.as_deref();
            let expected = name.is_some_and(|name| reconciled.contains(&name));
            assert_eq!(is_reconciled(&config, route), expected, "{}", route.pattern);
        }
        let schedule = all.schedule("create_payment").unwrap();
        assert!(!schedule.downstream_idempotent);
    }
}
