//! Hostile responses: reports contain no secret of the caller, and large numbers do not overflow.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_check::{
    Address, BoxFuture, Case, Environment, Error, Header, Stream, Target, Verdict, check,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// More than any request here.
const PIPE: usize = 64 << 10;

/// A server that answers each request, the first with number 0, by itself.
struct Server<F> {
    answer: Arc<F>,
    number: Arc<AtomicUsize>,
}

impl<F: Fn(usize, &str) -> String> Server<F> {
    fn new(answer: F) -> Self {
        Self {
            answer: Arc::new(answer),
            number: Arc::default(),
        }
    }
}

impl<F: Fn(usize, &str) -> String + Send + Sync + 'static> Environment for Server<F> {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        let (client, mut server) = tokio::io::duplex(PIPE);
        let (answer, number) = (self.answer.clone(), self.number.clone());
        tokio::spawn(async move {
            // A client that sends nothing only checked that the server is up.
            if let Some(request) = request(&mut server).await {
                let text = answer(number.fetch_add(1, Ordering::Relaxed), &request);
                let _ = server.write_all(text.as_bytes()).await;
            }
        });
        Box::pin(async move { Ok(Box::new(client) as Box<dyn Stream>) })
    }

    fn output<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<String>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn run<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// The head of a request, when its body is there as well.
async fn request(stream: &mut DuplexStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = value(head, "Content-Length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(head.to_owned());
            }
        }
    }
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.strip_prefix(name)?.strip_prefix(": ");
    head.lines().find_map(line)
}

fn http_response(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} So\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
}

const TOKEN: &str = "3f9c2a71d0b84e65/QWxhZGRpbg";
const OTHER: &str = "8b1a9953c4611296a827abf8c47804d7";
const SIGNATURE: &str = "5d41402abc4b2a76";
const SLOW: &str = "e4da3b7fbbce2345d777";

fn target() -> Target {
    let header = |name: &str, value: String| Header {
        name: name.to_owned(),
        value,
    };
    let mut target = Target::new("http://shop/payments".parse().unwrap());
    target.headers = vec![
        header("Authorization", format!("Bearer {TOKEN}")),
        header("X-Signature", format!("{{reference}}:{SIGNATURE}:{{key}}")),
    ];
    target.other_headers = vec![header("Authorization", format!("Bearer {OTHER}"))];
    target.cases.slow = Some(Case::Header(header("X-Customer", SLOW.to_owned())));
    target.disruptive = true;
    target
}

/// Asserts that no eight characters of a secret occur in `text`.
fn assert_hidden(text: &str, context: &str) {
    for secret in [TOKEN, OTHER, SIGNATURE, SLOW] {
        for start in 0..=secret.len() - 8 {
            let part = &secret[start..start + 8];
            assert!(!text.contains(part), "{context}: {part} is in\n{text}");
        }
    }
}

/// Echoes the secret headers after `pad` characters, JSON-escaped or verbatim.
fn echo(number: usize, head: &str, pad: usize, escaped: bool) -> String {
    let sent = ["Authorization", "X-Signature", "X-Customer"];
    let sent: Vec<&str> = sent.iter().filter_map(|name| value(head, name)).collect();
    let mut sent = sent.join("|");
    if escaped {
        sent = sent.replace('/', "\\/");
    }
    // Different for each execution, so that every retry fails and the report quotes it.
    format!(
        "{{\"n\":{number},\"pad\":\"{}\",\"sent\":\"{sent}\"}}",
        "x".repeat(pad)
    )
}

#[tokio::test(start_paused = true)]
async fn reports_hide_secrets_echoed_by_the_server() {
    for pad in (0..=130).step_by(3) {
        let server = Server::new(move |number, head: &str| {
            http_response(201, "", &echo(number, head, pad, pad % 2 == 0))
        });
        let report = check(&target(), &server).await.unwrap();
        assert!(!report.passed(false), "it repeats every execution");
        let text = [report.table(None, false), report.json(), report.junit(true)].concat();
        assert_hidden(&text, &format!("after {pad}"));
        // The report still quotes the response.
        assert!(text.contains("[hidden]") || pad > 80, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn reports_hide_secrets_in_request_bodies() {
    for pad in (50..=120).step_by(3) {
        let server =
            Server::new(|number, _: &str| http_response(201, "", &format!("{{\"n\":{number}}}")));
        let mut target = target();
        let pad = "x".repeat(pad);
        target.body = format!("{{\"pad\":\"{pad}\",\"n\":1,\"token\":\"{TOKEN}\"}}");
        let report = check(&target, &server).await.unwrap();
        let text = [report.table(None, false), report.json(), report.junit(true)].concat();
        assert_hidden(&text, &format!("after {}", pad.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn setup_errors_hide_secrets_echoed_by_the_server() {
    for pad in (0..=130).step_by(3) {
        let server = Server::new(move |number, head: &str| {
            http_response(401, "", &echo(number, head, pad, false))
        });
        let target = target();
        let error = check(&target, &server).await.unwrap_err();
        assert!(matches!(error, Error::NotAccepted { .. }), "{error}");
        let (json, junit) = (error.json(&target.address), error.junit(&target.address));
        assert_hidden(
            &[error.to_string(), json, junit].concat(),
            &format!("after {pad}"),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_overflowing_retry_after_does_not_stop_the_check() {
    let forever = "Retry-After: 18446744073709551615\r\n";
    let server = Server::new(move |number, _: &str| match number {
        0 | 1 => http_response(201, "", &format!("{{\"n\":{number}}}")),
        _ => http_response(409, forever, "{}"),
    });
    let mut target = target();
    target.disruptive = false;
    let report = check(&target, &server).await.unwrap();
    assert!(
        report
            .probes
            .iter()
            .any(|probe| probe.verdict != Verdict::Pass)
    );
}
