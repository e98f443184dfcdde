//! What a server may say without harm: no secret of the caller's is in any report, and no number
//! is too large.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail loudly"
)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_check::{Address, Case, Error, Header, Pending, Stream, Target, Verdict, World, check};
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

impl<F: Fn(usize, &str) -> String + Send + Sync + 'static> World for Server<F> {
    fn connect<'a>(&'a self, _: &'a Address) -> Pending<'a, io::Result<Box<dyn Stream>>> {
        let (client, mut server) = tokio::io::duplex(PIPE);
        let (answer, number) = (self.answer.clone(), self.number.clone());
        tokio::spawn(async move {
            // A client that says nothing only looked whether somebody is there.
            if let Some(request) = request(&mut server).await {
                let text = answer(number.fetch_add(1, Ordering::Relaxed), &request);
                let _ = server.write_all(text.as_bytes()).await;
            }
        });
        Box::pin(async move { Ok(Box::new(client) as Box<dyn Stream>) })
    }

    fn ask<'a>(&'a self, _: &'a str) -> Pending<'a, io::Result<String>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn run<'a>(&'a self, _: &'a str) -> Pending<'a, io::Result<()>> {
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

fn says(status: u16, headers: &str, body: &str) -> String {
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

/// Eight characters of a secret are too many, wherever they stand.
fn assert_hidden(told: &str, context: &str) {
    for secret in [TOKEN, OTHER, SIGNATURE, SLOW] {
        for start in 0..=secret.len() - 8 {
            let part = &secret[start..start + 8];
            assert!(!told.contains(part), "{context}: {part} is in\n{told}");
        }
    }
}

/// All that it was sent, at a place that is given, as JSON or as it is.
fn echo(number: usize, head: &str, pad: usize, escaped: bool) -> String {
    let sent = ["Authorization", "X-Signature", "X-Customer"];
    let sent: Vec<&str> = sent.iter().filter_map(|name| value(head, name)).collect();
    let mut sent = sent.join("|");
    if escaped {
        sent = sent.replace('/', "\\/");
    }
    // New for each execution, so that every retry fails and is told at length.
    format!(
        "{{\"n\":{number},\"pad\":\"{}\",\"sent\":\"{sent}\"}}",
        "x".repeat(pad)
    )
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_any_report_wherever_the_server_repeats_it() {
    for pad in (0..=130).step_by(3) {
        let server = Server::new(move |number, head: &str| {
            says(201, "", &echo(number, head, pad, pad % 2 == 0))
        });
        let report = check(&target(), &server).await.unwrap();
        assert!(!report.passed(false), "it repeats every execution");
        let told = [report.table(None, false), report.json(), report.junit(true)].concat();
        assert_hidden(&told, &format!("after {pad}"));
        // What was seen is still told.
        assert!(told.contains("[hidden]") || pad > 80, "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_what_is_told_of_a_request() {
    for pad in (50..=120).step_by(3) {
        let server = Server::new(|number, _: &str| says(201, "", &format!("{{\"n\":{number}}}")));
        let mut target = target();
        let pad = "x".repeat(pad);
        target.body = format!("{{\"pad\":\"{pad}\",\"n\":1,\"token\":\"{TOKEN}\"}}");
        let report = check(&target, &server).await.unwrap();
        let told = [report.table(None, false), report.json(), report.junit(true)].concat();
        assert_hidden(&told, &format!("after {}", pad.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_the_reason_why_nothing_was_probed() {
    for pad in (0..=130).step_by(3) {
        let server =
            Server::new(move |number, head: &str| says(401, "", &echo(number, head, pad, false)));
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
async fn a_server_that_says_to_come_back_in_500_billion_years_is_probed_all_the_same() {
    let forever = "Retry-After: 18446744073709551615\r\n";
    let server = Server::new(move |number, _: &str| match number {
        0 | 1 => says(201, "", &format!("{{\"n\":{number}}}")),
        _ => says(409, forever, "{}"),
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
