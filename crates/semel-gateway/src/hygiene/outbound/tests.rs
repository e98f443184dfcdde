use super::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use semel_core::Fence;

fn target(prefix: &str) -> Target {
    Target {
        prefix: prefix.to_owned(),
        host: HeaderValue::from_static("up.example"),
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
    }
}

fn pass<B: Body>(builder: request::Builder, body: B) -> (request::Parts, Tunnel) {
    let (mut parts, body) = builder.body(body).unwrap().into_parts();
    let tunnel = request(&mut parts, &body, &target("")).unwrap();
    (parts, tunnel)
}

fn nothing() -> Empty<Bytes> {
    Empty::new()
}

#[test]
fn hop_by_hop_and_our_own_headers_stop_here() {
    let mut builder = Request::get("/").header("host", "a").header("accept", "x");
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "content-length",
        "expect",
        "semel-operation-id",
        "semel-attempt",
        "semel-downstream-key",
        "semel-outcome",
        "semel-anything",
    ] {
        builder = builder.header(name, "x");
    }
    let (parts, tunnel) = pass(builder, nothing());
    let mut left: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["accept", "host"]);
    assert_eq!(tunnel, Tunnel::No);
}

#[test]
fn only_trailers_is_kept_of_te() {
    let (parts, _) = pass(Request::get("/").header("te", "gzip, Trailers"), nothing());
    assert_eq!(parts.headers["te"], "trailers");
}

#[test]
fn the_body_alone_says_its_framing() {
    let (parts, _) = pass(Request::post("/").header("content-length", "77"), nothing());
    assert_eq!(parts.headers["content-length"], "0");
    let (parts, _) = pass(Request::get("/"), nothing());
    assert!(!parts.headers.contains_key("content-length"));
    // hyper adds the length that it knows.
    let full = Full::new(Bytes::from_static(b"abc"));
    let (parts, _) = pass(
        Request::post("/").header("transfer-encoding", "chunked"),
        full,
    );
    assert!(!parts.headers.contains_key("transfer-encoding"));
    let stream = http_body_util::StreamBody::new(futures_util::stream::pending::<
        Result<http_body::Frame<Bytes>, std::io::Error>,
    >());
    let (parts, _) = pass(Request::get("/").header("content-length", "3"), stream);
    assert!(!parts.headers.contains_key("content-length"));
    assert_eq!(parts.headers["transfer-encoding"], "chunked");
}

#[test]
fn the_path_is_kept_byte_for_byte() {
    for (prefix, received, sent) in [
        ("", "/a%2Fb//c/../d?x=%7e&y", "/a%2Fb//c/../d?x=%7e&y"),
        ("/base", "/a?b", "/base/a?b"),
        ("", "http://a/x?y", "/x?y"),
        ("", "http://a", "/"),
        ("", "/?", "/?"),
    ] {
        let (mut parts, body) = Request::get(received).body(nothing()).unwrap().into_parts();
        request(&mut parts, &body, &target(prefix)).unwrap();
        assert_eq!(parts.uri.to_string(), sent);
    }
}

#[test]
fn the_host_is_the_callers() {
    let (parts, _) = pass(Request::get("/").header("host", "a.example"), nothing());
    assert_eq!(parts.headers["host"], "a.example");
    let http2 = Request::get("https://b.example/").version(Version::HTTP_2);
    let (parts, _) = pass(http2, nothing());
    assert_eq!(parts.headers["host"], "b.example");
    assert_eq!(parts.version, Version::HTTP_11);
    let (parts, _) = pass(Request::get("/").version(Version::HTTP_10), nothing());
    assert_eq!(parts.headers["host"], "up.example");
}

/// The forwarding headers of a request from `address` that came with `sent`.
fn forwarded(address: &str, secure: bool, sent: &[(&str, &str)]) -> Vec<String> {
    let peer = Peer::new(address.parse().unwrap(), secure);
    let builder = Request::get("/")
        .header("host", "a.example")
        .extension(peer);
    let builder = sent.iter().fold(builder, |builder, (name, value)| {
        builder.header(*name, *value)
    });
    let (parts, _) = pass(builder, nothing());
    let mut lines: Vec<_> = parts
        .headers
        .iter()
        .filter(|(name, _)| super::super::is_forwarding_header(name.as_str()))
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort_unstable();
    lines
}

const SENT: [(&str, &str); 7] = [
    ("x-forwarded-for", "9.9.9.9"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "b.example"),
    ("x-forwarded-port", "8443"),
    ("x-forwarded-user", "root"),
    ("forwarded", "for=9.9.9.9;proto=https"),
    ("forwarded", "for=8.8.8.8"),
];

#[test]
fn what_an_untrusted_client_forwards_is_replaced() {
    for sent in [&SENT[..], &[]] {
        assert_eq!(
            forwarded("192.0.2.7:5", false, sent),
            [
                "forwarded: for=192.0.2.7;proto=http",
                "x-forwarded-for: 192.0.2.7",
                "x-forwarded-host: a.example",
                "x-forwarded-port: 80",
                "x-forwarded-proto: http",
            ]
        );
    }
    let secure = forwarded("[2001:db8::1]:5", true, &SENT);
    assert_eq!(secure[0], "forwarded: for=\"[2001:db8::1]\";proto=https");
    assert_eq!(secure[1], "x-forwarded-for: 2001:db8::1");
    assert_eq!(secure[3], "x-forwarded-port: 443");
}

#[test]
fn what_a_trusted_proxy_forwards_is_kept_and_extended() {
    for address in ["10.1.2.3:5", "[::ffff:10.1.2.3]:5"] {
        assert_eq!(
            forwarded(address, false, &SENT),
            [
                "forwarded: for=9.9.9.9;proto=https, for=8.8.8.8, for=10.1.2.3;proto=http",
                "x-forwarded-for: 9.9.9.9, 10.1.2.3",
                "x-forwarded-host: b.example",
                "x-forwarded-port: 8443",
                "x-forwarded-proto: https",
                "x-forwarded-user: root",
            ]
        );
    }
    // `Forwarded` would say `http` about a client that came with https.
    assert_eq!(
        forwarded("10.1.2.3:5", false, &[("x-forwarded-proto", "https")]),
        [
            "x-forwarded-for: 10.1.2.3",
            "x-forwarded-host: a.example",
            "x-forwarded-port: 443",
            "x-forwarded-proto: https",
        ]
    );
    assert_eq!(
        forwarded("10.1.2.3:5", false, &[("forwarded", "for=9.9.9.9")]),
        ["forwarded: for=9.9.9.9, for=10.1.2.3;proto=http"]
    );
}

#[test]
fn headers_that_an_application_may_take_for_others_stop_here() {
    let mut builder = Request::post("/")
        .header("host", "a")
        .header("idempotency-key", "k")
        .header("api_key", "kept");
    for name in [
        "semel_operation_id",
        "Semel_Attempt",
        "semel.downstream-key",
        "x_forwarded_for",
        "x-forwarded_proto",
        "content_length",
        "transfer_encoding",
        "idempotency_key",
    ] {
        builder = builder.header(name, "x");
    }
    let (parts, _) = pass(builder, nothing());
    let mut left: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(
        left,
        ["api_key", "content-length", "host", "idempotency-key"]
    );
    assert_eq!(parts.headers["idempotency-key"], "k");
}

#[test]
fn cookies_of_http_2_become_one_line() {
    let builder = |version| {
        Request::get("http://a/")
            .version(version)
            .header("cookie", "a=1")
            .header("cookie", "b=2; c=3")
    };
    let (parts, _) = pass(builder(Version::HTTP_2), nothing());
    let lines: Vec<_> = parts.headers.get_all("cookie").iter().collect();
    assert_eq!(lines, ["a=1; b=2; c=3"]);
    let (parts, _) = pass(builder(Version::HTTP_11), nothing());
    assert_eq!(parts.headers.get_all("cookie").iter().count(), 2);
}

#[test]
fn a_redirect_to_the_same_path_under_another_scheme_is_recognised() {
    let path = PathAndQuery::from_static("/payments?a=b");
    for (location, expected) in [
        ("https://a.example/payments?a=b", true),
        ("https://a.example/payments", false),
        ("https://a.example/payments/?a=b", false),
        ("/payments?a=b", false),
        ("", false),
    ] {
        let value = HeaderValue::from_static(location);
        assert_eq!(changes_scheme_only(&path, &value), expected, "{location}");
    }
}

fn operation() -> Operation {
    Operation::new(Fence {
        id: "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap(),
        attempt: 2,
    })
}

#[test]
fn what_semel_says_replaces_what_came_from_outside() {
    let builder = [
        "semel-attempt",
        "semel-operation-id",
        "semel-downstream-key",
    ]
    .into_iter()
    .fold(
        Request::post("/").header("semel-new", "9"),
        |builder, name| builder.header(name, "9").header(name, "8"),
    );
    let (parts, _) = pass(builder.extension(operation()), nothing());
    let lines = |name: &str| -> Vec<_> { parts.headers.get_all(name).iter().collect() };
    assert_eq!(lines("semel-attempt"), ["2"]);
    let id = operation().id().to_string();
    assert_eq!(lines("semel-operation-id"), [id.as_str()]);
    let key = operation().downstream_key("");
    assert_eq!(lines("semel-downstream-key"), [key.as_str()]);
    assert!(lines("semel-new").is_empty());
}

#[test]
fn only_a_websocket_may_take_over() {
    let ask = |upgrade: &str, connection: &str| {
        Request::get("/")
            .header("upgrade", upgrade)
            .header("connection", connection)
    };
    assert_eq!(
        pass(ask("websocket", "Upgrade"), nothing()).1,
        Tunnel::Requested
    );
    assert_eq!(pass(ask("websocket", "close"), nothing()).1, Tunnel::No);
    assert_eq!(pass(ask("h2c", "Upgrade"), nothing()).1, Tunnel::No);
    assert_eq!(
        pass(ask("websocket, h2c", "Upgrade"), nothing()).1,
        Tunnel::No
    );
    let guarded = ask("websocket", "Upgrade").extension(operation());
    let (parts, tunnel) = pass(guarded, nothing());
    assert_eq!(tunnel, Tunnel::No);
    assert!(!parts.headers.contains_key("upgrade") && !parts.headers.contains_key("connection"));
}

#[test]
fn the_answer_loses_its_hop_by_hop_headers() {
    let (mut parts, ()) = Response::builder()
        .header("connection", "x-private, content-type, close")
        .header("x-private", "1")
        .header("keep-alive", "timeout=5")
        .header("transfer-encoding", "chunked")
        .header("proxy-authenticate", "x")
        .header("content-type", "text/plain")
        .header("semel-outcome", "completed")
        .body(())
        .unwrap()
        .into_parts();
    response(&mut parts);
    let mut left: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    // `Semel-Outcome` is for the layer, which strips it.
    assert_eq!(left, ["content-type", "semel-outcome"]);
}
