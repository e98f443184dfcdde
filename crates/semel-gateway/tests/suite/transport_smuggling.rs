//! Request smuggling: every case is one byte stream, generated from small parts, with a second
//! request behind it. A recorder behind the gateway, with a strict parser of its own, shows what an
//! application would see.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{connect, proxy_to};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What may reach the application.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    /// Nothing; the client gets a 400.
    Refused,
    /// This request with this body, and the one behind it.
    Understood(&'static str),
}
use Expected::{Refused, Understood};

/// A byte stream under a unique name.
type Cases = BTreeMap<Vec<u8>, Expected>;

/// The request behind each case.
const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn add(cases: &mut Cases, bytes: impl Into<Vec<u8>>, expected: Expected) {
    let bytes = bytes.into();
    let shown = bytes.escape_ascii().to_string();
    // Two groups may have a case in common.
    assert_eq!(cases.get(&bytes).unwrap_or(&expected), &expected, "{shown}");
    cases.insert(bytes, expected);
}

/// A request with these header lines, as they are, and this body.
fn post(lines: &str, body: &str) -> String {
    format!("POST /c HTTP/1.1\r\nHost: a\r\n{lines}\r\n{body}")
}

fn framing(cases: &mut Cases) {
    let chunked = "3\r\nabc\r\n0\r\n\r\n";
    // Two lengths.
    for first in ["0", "3", "30", "+3", "3,3"] {
        for second in ["0", "3", "30", "+3", "3,3"] {
            let lines = format!("Content-Length: {first}\r\nContent-Length: {second}\r\n");
            add(cases, post(&lines, "abc"), Refused);
        }
    }
    // A length and a coding, in both orders.
    for length in ["0", "3", "13", "30"] {
        for coding in [
            "chunked",
            "Chunked",
            "identity",
            "gzip",
            "gzip, chunked",
            "x",
            "",
        ] {
            let (length, coding) = (
                format!("Content-Length: {length}\r\n"),
                format!("Transfer-Encoding: {coding}\r\n"),
            );
            add(cases, post(&format!("{length}{coding}"), chunked), Refused);
            add(cases, post(&format!("{coding}{length}"), chunked), Refused);
        }
    }
    for second in ["chunked", "identity", "gzip", "x"] {
        let lines = format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: {second}\r\n");
        add(cases, post(&lines, chunked), Refused);
    }
}

fn framing_values(cases: &mut Cases) {
    let chunked = "3\r\nabc\r\n0\r\n\r\n";
    for value in [
        "",
        "+3",
        "-3",
        "0x3",
        "3.0",
        "3e0",
        "3 3",
        "3,3",
        "3, 3",
        "3;",
        "3;q=1",
        "\"3\"",
        "'3'",
        "three",
        "99999999999999999999",
        "18446744073709551616",
        "3\u{b}",
        "\u{c}3",
        "3_0",
        "\u{663}",
        "0 3",
        "3 \t 3",
    ] {
        add(
            cases,
            post(&format!("Content-Length: {value}\r\n"), "abc"),
            Refused,
        );
    }
    for value in [
        "",
        "identity",
        "gzip",
        "deflate",
        "compress",
        "x",
        "xchunked",
        "chunkedx",
        "chunk",
        "chunked,",
        ",chunked",
        "chunked, chunked",
        "chunked, identity",
        "identity, chunked",
        "gzip, chunked",
        "chunked;q=1",
        "chunked;a",
        "\"chunked\"",
        "'chunked'",
        "chunked chunked",
        "chun ked",
        "\u{b}chunked",
        "chunked\u{b}",
        "\u{c}chunked",
        "chunked\u{a0}",
        "ｃhunked",
        "chunked\u{1}",
        "trailers, chunked",
    ] {
        add(
            cases,
            post(&format!("Transfer-Encoding: {value}\r\n"), chunked),
            Refused,
        );
    }
}

fn understood_framing(cases: &mut Cases) {
    let chunked = "3\r\nabc\r\n0\r\n\r\n";
    for lines in [
        "Content-Length: 3\r\n",
        "content-length:3\r\n",
        "CONTENT-LENGTH: \t 3 \t\r\n",
        "Content-Length: 003\r\n",
        "Content-Length: 3\r\nX-Content-Length: 30\r\n",
        "Content-Length: 3\r\nX-Transfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\nContent_Length: 30\r\n",
        "Content-Length: 3\r\nTransfer_Encoding: chunked\r\n",
        "Content-Length: 3\r\nTE: chunked\r\n",
        "Content-Length: 3\r\nTrailer: Content-Length\r\n",
    ] {
        add(cases, post(lines, "abc"), Understood("abc"));
    }
    for lines in [
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:CHUNKED\r\n",
        "Transfer-Encoding: \t chunked \t\r\n",
        "Transfer-Encoding: chunked\r\nContent_Length: 30\r\n",
    ] {
        add(cases, post(lines, chunked), Understood("abc"));
    }
    // HTTP/1.0 has no chunks.
    for lines in [
        "Transfer-Encoding: chunked\r\n",
        "Host: a\r\nTransfer-Encoding: chunked\r\n",
    ] {
        add(
            cases,
            format!("POST /c HTTP/1.0\r\n{lines}\r\n{chunked}"),
            Refused,
        );
    }
}

fn field_lines(cases: &mut Cases) {
    for (name, value) in [
        ("Content-Length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("Host", "a"),
        ("X-Any", "y"),
    ] {
        for line in [
            format!("{name} : {value}\r\n"),
            format!("{name}\t: {value}\r\n"),
            format!(" {name}: {value}\r\n"),
            format!("\t{name}: {value}\r\n"),
            format!("{name}\0: {value}\r\n"),
            format!("{name}\u{b}: {value}\r\n"),
            format!("{name}\r: {value}\r\n"),
            format!("{name}: {value}\n"),
            format!("{name}: {value}\r"),
            format!("{name}: {value}\n\r"),
            format!("{name}: {value}\r\r\n"),
            format!("{name}: {value}\0\r\n"),
            format!("{name}: \r\n {value}\r\n"),
            format!("{name}: {value}\r\n \r\n"),
            format!("{name}: {value}\r\n\tmore\r\n"),
            format!("{name} {value}\r\n"),
            format!("{name}; x: {value}\r\n"),
            format!("({name}): {value}\r\n"),
            format!("\u{e9}{name}: {value}\r\n"),
            format!("X: y\n{name}: {value}\r\n"),
            format!("X: y\r{name}: {value}\r\n"),
            format!("X: y\r\n {name}: {value}\r\n"),
        ] {
            add(
                cases,
                format!("POST /c HTTP/1.1\r\nHost: a\r\n{line}\r\nabc"),
                Refused,
            );
        }
    }
    for line in [
        ": y\r\n",
        "\r\r\n",
        "X\r\n",
        "\0\r\n",
        "X: \u{1}y\r\n",
        "X: y\u{7f}\r\n",
    ] {
        add(
            cases,
            format!("POST /c HTTP/1.1\r\nHost: a\r\n{line}\r\n"),
            Refused,
        );
    }
}

fn request_lines(cases: &mut Cases) {
    for line in [
        "GET /c HTTP/1.1\n",
        "GET /c HTTP/1.1\r",
        "GET /c HTTP/1.1\n\r",
        "GET /c HTTP/1.1\r\r\n",
        "GET /c\r\n",
        "GET /c \r\n",
        "GET\r\n",
        "GET /c HTTP/1.1 \r\n",
        "GET /c HTTP/1.1\t\r\n",
        "GET /c  HTTP/1.1\r\n",
        "GET  /c HTTP/1.1\r\n",
        "GET\t/c HTTP/1.1\r\n",
        "GET /c\tHTTP/1.1\r\n",
        " GET /c HTTP/1.1\r\n",
        "\tGET /c HTTP/1.1\r\n",
        "\nGET /c HTTP/1.1\r\n",
        "\rGET /c HTTP/1.1\r\n",
        "\0GET /c HTTP/1.1\r\n",
        "GET /c\0 HTTP/1.1\r\n",
        "GET /c d HTTP/1.1\r\n",
        "GET /c#d HTTP/1.1\r\n",
        "GET # HTTP/1.1\r\n",
        "GET c HTTP/1.1\r\n",
        "GET * HTTP/1.1\r\n",
        "GET ?c HTTP/1.1\r\n",
        "GET /c HTTP/1.2\r\n",
        "GET /c HTTP/2\r\n",
        "GET /c HTTP/2.0\r\n",
        "GET /c HTTP/0.9\r\n",
        "GET /c HTTP/1\r\n",
        "GET /c HTTP/1.10\r\n",
        "GET /c HTTP/01.1\r\n",
        "GET /c HTTP/1.1.1\r\n",
        "GET /c HTTP/+1.1\r\n",
        "GET /c http/1.1\r\n",
        "GET /c HTTPS/1.1\r\n",
        "GET /c HTTP/1,1\r\n",
        "GET /c HTTP 1.1\r\n",
        "GET /c ICY\r\n",
        "G(T /c HTTP/1.1\r\n",
        "G\u{e9}T /c HTTP/1.1\r\n",
        "GET: /c HTTP/1.1\r\n",
        "GET\0 /c HTTP/1.1\r\n",
        "GET http:///c HTTP/1.1\r\n",
        "GET http://a b/c HTTP/1.1\r\n",
        "GET ftp://a/c HTTP/1.1\r\n",
        "GET a:80 HTTP/1.1\r\n",
        "CONNECT a:80 HTTP/1.1\r\n",
        "CONNECT /c HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
    ] {
        add(cases, format!("{line}Host: a\r\n\r\n"), Refused);
    }
    for line in [
        "GET /c HTTP/1.1\r\n",
        "\r\nGET /c HTTP/1.1\r\n",
        "\r\n\r\nGET /c HTTP/1.1\r\n",
        "GET http://a/c HTTP/1.1\r\n",
    ] {
        add(cases, format!("{line}Host: a\r\n\r\n"), Understood(""));
    }
}

fn hosts(cases: &mut Cases) {
    for lines in [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nHost: b\r\n",
        "Host: a\r\nhost: b\r\n",
        "Host:\r\n",
        "Host: a b\r\n",
        "Host: a,b\r\n",
        "Host: a, b\r\n",
        "Host: a/b\r\n",
        "Host: a?b\r\n",
        "Host: a#b\r\n",
        "Host: u@a\r\n",
        "Host: a\\b\r\n",
        "Host: http://a\r\n",
        "Host: a\u{e9}\r\n",
        "Host: a\"\r\n",
        "Host: a<b\r\n",
    ] {
        add(cases, format!("GET /c HTTP/1.1\r\n{lines}\r\n"), Refused);
    }
    for (target, host) in [
        ("http://b/c", "a"),
        ("http://a:80/c", "a"),
        ("http://a/c", "a:80"),
        ("http://u@a/c", "a"),
        ("http://u:p@a/c", "a"),
        ("https://b/c", "a"),
        ("http://a.b/c", "a"),
        ("http://[::1]/c", "a"),
        ("http://a%00/c", "a"),
    ] {
        add(
            cases,
            format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            Refused,
        );
    }
    for nominated in [
        "Host",
        "Content-Length",
        "Content-Type",
        "Authorization",
        "Cookie",
        "Idempotency-Key",
        "X-Forwarded-For",
        "X-Any",
    ] {
        for others in ["", "close, ", "keep-alive,", ",, "] {
            let mut lines = format!("Connection: {others}{nominated}\r\nContent-Length: 3\r\n");
            if !matches!(nominated, "Host" | "Content-Length") {
                lines.extend([nominated, ": v\r\n"]);
            }
            add(cases, post(&lines, "abc"), Refused);
        }
    }
}

fn chunks(cases: &mut Cases) {
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    for size in [
        "",
        " 3",
        "3 ",
        "\t3",
        "3\t",
        "0x3",
        "+3",
        "-3",
        "3g",
        "g",
        "\"3\"",
        "3,",
        "3:",
        "3.0",
        "3 ;x",
        "3\u{b}",
        "\u{c}3",
        "\u{663}",
        "3\0",
        "3;\0",
        "3;a\u{1}",
        "3;a\nb",
        "3;a\rb",
        "10000000000000003",
        "ffffffffffffffffff",
        "3\r",
        "3\n",
        "3_",
        "3 3",
    ] {
        add(
            cases,
            chunked(&format!("{size}\r\nabc\r\n0\r\n\r\n")),
            Refused,
        );
        add(
            cases,
            chunked(&format!("2\r\nab\r\n{size}\r\nabc\r\n0\r\n\r\n")),
            Refused,
        );
    }
    for body in [
        // The line end after a chunk.
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc\r0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\r\nabc \r\n0\r\n\r\n",
        "3\r\nabc\r\n\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        // The end of the body.
        "0\n\r\n",
        "0\r\n\n",
        "0\r\r\n\r\n",
        "0\n\n",
        "0\r\r",
        "0 \r\n\r\n",
        "-0\r\n\r\n",
        "0x0\r\n\r\n",
        "0\r\n\r\r\n",
        "0;\n\r\n\r\n",
        // Trailers.
        "0\r\nA: b\n\r\n",
        "0\r\nA: b\nC: d\r\n\r\n",
        "0\r\n A: b\r\n\r\n",
        "0\r\nA : b\r\n\r\n",
        "0\r\nA\r\n\r\n",
        "0\r\n: b\r\n\r\n",
        "0\r\nA: b\r\n c\r\n\r\n",
        "0\r\nA: b\rC: d\r\n\r\n",
        "0\r\nA\t: b\r\n\r\n",
    ] {
        add(cases, chunked(body), Refused);
    }
    for body in [
        "3\r\nabc\r\n0\r\n\r\n",
        "03\r\nabc\r\n0\r\n\r\n",
        "3;x\r\nabc\r\n0\r\n\r\n",
        "3;x=y\r\nabc\r\n0;z\r\n\r\n",
        "3;x=\"y z\"\r\nabc\r\n00\r\n\r\n",
        "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        // Trailers are not headers.
        "3\r\nabc\r\n0\r\nContent-Length: 30\r\n\r\n",
        "3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "3\r\nabc\r\n0\r\nHost: b\r\n\r\n",
        "3\r\nabc\r\n0\r\nIdempotency-Key: k\r\n\r\n",
        "3\r\nabc\r\n0\r\nAuthorization: b\r\n\r\n",
        "3\r\nabc\r\n0\r\nSemel-Attempt: 9\r\n\r\n",
    ] {
        add(cases, chunked(body), Understood("abc"));
    }
}

/// What the recorder read: the target, the header lines in lower case, and the body.
#[derive(Debug)]
struct Recorded {
    target: String,
    lines: Vec<String>,
    body: String,
}

type Recording = Arc<Mutex<Vec<Result<Recorded, String>>>>;

async fn recorder() -> (SocketAddr, Recording) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let recording = Recording::default();
    let shared = Arc::clone(&recording);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let recording = Arc::clone(&shared);
            tokio::spawn(async move {
                let mut unread = Vec::new();
                while let Some(request) = record(&mut stream, &mut unread).await {
                    recording.lock().unwrap().push(request);
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, recording)
}

/// Takes bytes up to and including `end`; `None` when the stream ends before.
async fn take_until(stream: &mut TcpStream, unread: &mut Vec<u8>, end: &[u8]) -> Option<String> {
    loop {
        if let Some(at) = unread.windows(end.len()).position(|part| part == end) {
            let taken: Vec<_> = unread.drain(..at + end.len()).take(at).collect();
            return Some(String::from_utf8_lossy(&taken).into_owned());
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
}

async fn take(stream: &mut TcpStream, unread: &mut Vec<u8>, length: usize) -> Option<String> {
    while unread.len() < length {
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    let taken: Vec<_> = unread.drain(..length).collect();
    Some(String::from_utf8_lossy(&taken).into_owned())
}

/// The next complete request; an error if it is not in the strictest form.
async fn record(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Result<Recorded, String>> {
    let head = take_until(stream, unread, b"\r\n\r\n").await?;
    let mut lines: Vec<_> = head.split("\r\n").map(str::to_ascii_lowercase).collect();
    if lines.iter().any(|line| line.contains(['\r', '\n', '\0'])) {
        return Some(Err(format!("an ambiguous line in {head:?}")));
    }
    let first = lines.remove(0);
    let values = |name: &str| -> Vec<_> {
        let values = lines.iter().filter_map(|line| line.strip_prefix(name));
        values.map(|value| value.trim().to_owned()).collect()
    };
    let (lengths, codings) = (values("content-length:"), values("transfer-encoding:"));
    let body = match (&lengths[..], &codings[..]) {
        ([], []) => String::new(),
        ([length], []) => take(stream, unread, length.parse().ok()?).await?,
        ([], [coding]) if coding == "chunked" => {
            let mut body = String::new();
            loop {
                let size = take_until(stream, unread, b"\r\n").await?;
                let size = usize::from_str_radix(&size, 16).ok()?;
                body += &take(stream, unread, size).await?;
                let end = take_until(stream, unread, b"\r\n").await?;
                if !end.is_empty() {
                    return Some(Err(format!("{end:?} behind a chunk")));
                }
                if size == 0 {
                    break body;
                }
            }
        }
        _ => return Some(Err(format!("two framings in {head:?}"))),
    };
    if values("host:").len() != 1 {
        return Some(Err(format!("not one host in {head:?}")));
    }
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    Some(Ok(Recorded {
        target,
        lines,
        body,
    }))
}

/// Sends a case, and returns everything that came back.
async fn send(address: SocketAddr, case: &[u8]) -> String {
    let mut client = connect(address).await;
    client.write_all(&[case, SMUGGLED].concat()).await.unwrap();
    let mut answer = Vec::new();
    let reading = client.read_to_end(&mut answer);
    let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert!(
        read.is_ok(),
        "no end of {:?}",
        String::from_utf8_lossy(&answer)
    );
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_application_sees_what_the_gateway_understood() {
    let mut cases = Cases::new();
    for add_group in [
        framing,
        framing_values,
        understood_framing,
        field_lines,
        request_lines,
        hosts,
        chunks,
    ] {
        add_group(&mut cases);
    }
    assert!(cases.len() >= 400, "{} cases", cases.len());
    let (address, recording) = recorder().await;
    let proxy = proxy_to(address).await;
    let mut wrong = Vec::new();
    for (case, expected) in &cases {
        let answer = send(proxy.address, case).await;
        let recorded = std::mem::take(&mut *recording.lock().unwrap());
        let seen: Result<Vec<_>, _> = recorded.into_iter().collect();
        let is_right = match (&seen, expected) {
            (Err(_), _) => false,
            (Ok(seen), Refused) => {
                seen.is_empty()
                    && answer.starts_with("HTTP/1.1 400")
                    && answer.matches("HTTP/1.1").count() == 1
            }
            (Ok(seen), Understood(body)) => {
                let own = |name: &str| {
                    seen.iter()
                        .any(|one| one.lines.iter().any(|line| line.starts_with(name)))
                };
                matches!(&seen[..], [first, second] if first.target == "/c"
                    && first.body == *body
                    && second.target == "/smuggled")
                    && answer.matches("HTTP/1.1 200 OK").count() == 2
                    && ![
                        "semel",
                        "idempotency-key",
                        "authorization",
                        "content_length",
                        "transfer_encoding",
                    ]
                    .into_iter()
                    .any(own)
            }
        };
        if !is_right {
            wrong.push(format!(
                "{}\n  expected {expected:?}, the application saw {seen:?}, the client {answer:?}",
                case.escape_ascii()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}
