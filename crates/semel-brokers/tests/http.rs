//! What a receiver of webhooks sees, and what its answers mean.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use semel_brokers::http::{Options, Sink};
use semel_core::outbox::{Event, Refused, Sink as _};
use semel_core::{Clock, Timestamp};
use semel_worker::webhook::{Find, Refused as Forged, Rules, Scheme, Source};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_c2VtZWwtc2VtZWwtc2VtZWwtc2VtZWw=";
const OTHER: &str = "whsec_b3RoZXItb3RoZXItb3RoZXItb3RoZXI=";

const NOW: Timestamp = Timestamp::from_micros(1_614_265_330_500_000);

/// A clock that stands still.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        NOW
    }
}

/// A request as it came.
struct Seen {
    line: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// A receiver that says the same to all. Says where it is, and what came.
async fn receiver(answer: &'static str) -> (String, mpsc::UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?a=b", listener.local_addr().unwrap());
    let (sender, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(request) = read(&mut stream).await {
                    sender.send(request).unwrap();
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (url, seen)
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .await
        .ok()
        .filter(|read| *read > 0)?;
    let mut headers = HeaderMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let length = headers
        .get("content-length")
        .map_or("0", |length| length.to_str().unwrap());
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen {
        line,
        headers,
        body,
    })
}

fn sink(url: &str) -> Sink {
    Options::new(url).secret(OLD).clock(Still).open().unwrap()
}

fn event() -> Event {
    Event::new("payment.created", "payment/é", r#"{"amount":1}"#).unwrap()
}

/// What the worker, which receives such events, has to say to it.
fn verified(seen: &Seen, secret: &str) -> Result<(), Forged> {
    let rules = Rules::new(Find::Operation("/id".parse().unwrap()));
    let source = Source::new("semel", Scheme::Standard, [secret], rules).unwrap();
    source.verify(&seen.headers, &seen.body, NOW).map(|_| ())
}

async fn fate(answer: &'static str) -> Result<(), Refused> {
    let (url, _seen) = receiver(answer).await;
    sink(&url).publish(&event()).await
}

#[tokio::test]
async fn an_event_arrives_signed_by_every_secret() {
    let (url, mut seen) = receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
    let event = event();
    let sink = Options::new(&*url)
        .secret(OLD)
        .secret(NEW)
        .clock(Still)
        .open()
        .unwrap();
    sink.publish(&event).await.unwrap();

    let mut seen = seen.recv().await.unwrap();
    assert_eq!(seen.line, "POST /events?a=b HTTP/1.1\r\n");
    assert_eq!(seen.body, event.payload);
    let header = |name: &str| seen.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("webhook-id"), event.id.to_string());
    assert_eq!(header("webhook-timestamp"), "1614265330");
    assert_eq!(header("semel-event-kind"), "payment.created");
    assert_eq!(header("semel-aggregate"), "payment/%C3%A9");
    assert_eq!(header("content-type"), "application/json");

    assert_eq!(verified(&seen, OLD), Ok(()));
    assert_eq!(verified(&seen, NEW), Ok(()));
    assert_eq!(verified(&seen, OTHER), Err(Forged::Signature));
    seen.body[0] ^= 1;
    assert_eq!(verified(&seen, OLD), Err(Forged::Signature));
}

#[tokio::test]
async fn only_an_answer_about_the_event_rejects_it() {
    assert_eq!(
        fate("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await,
        Ok(())
    );
    for rejects in [
        "400 Bad Request",
        "401 No",
        "404 Not Found",
        "410 Gone",
        "422 No",
    ] {
        let answer = format!("HTTP/1.1 {rejects}\r\ncontent-length: 4\r\n\r\nnope");
        let refused = fate(answer.leak()).await;
        let Err(Refused::Rejected(reason)) = refused else {
            panic!("{rejects}: {refused:?}")
        };
        assert!(
            reason.contains("nope") && reason.contains(&rejects[..3]),
            "{reason}"
        );
    }
    for waits in [
        "301 Moved Permanently",
        "408 Request Timeout",
        "409 Conflict",
        "425 Too Early",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Service Unavailable",
    ] {
        let answer = format!("HTTP/1.1 {waits}\r\ncontent-length: 0\r\n\r\n");
        let refused = fate(answer.leak()).await;
        assert!(
            matches!(refused, Err(Refused::Unavailable(_))),
            "{waits}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (elsewhere, mut followed) = receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
    let answer =
        format!("HTTP/1.1 307 Moved\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n");
    let refused = fate(answer.leak()).await;
    assert!(
        matches!(refused, Err(Refused::Unavailable(_))),
        "{refused:?}"
    );
    assert!(followed.try_recv().is_err());
}

#[tokio::test]
async fn a_receiver_that_is_away_or_silent_is_unavailable() {
    // Port 1 is reserved, and nobody listens.
    let refused = sink("http://127.0.0.1:1").publish(&event()).await;
    assert!(
        matches!(refused, Err(Refused::Unavailable(_))),
        "{refused:?}"
    );

    let (url, _seen) = receiver("").await;
    let sink = Options::new(url)
        .secret(OLD)
        .patience(Duration::from_millis(50))
        .open()
        .unwrap();
    let Err(Refused::Unavailable(reason)) = sink.publish(&event()).await else {
        panic!("must be unavailable")
    };
    assert!(reason.contains("no answer within"), "{reason}");
}

#[tokio::test]
async fn a_status_counts_even_if_its_answer_never_ends() {
    let unended = fate("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok").await;
    assert_eq!(unended, Ok(()));
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    let endless = format!("HTTP/1.1 400 No\r\n\r\n{}", "x".repeat(1 << 20));
    let Err(Refused::Rejected(reason)) = fate(endless.leak()).await else {
        panic!("must be rejected")
    };
    assert!(reason.len() <= semel_core::outbox::MAX_REASON_BYTES);
}
