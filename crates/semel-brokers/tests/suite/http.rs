//! The requests that a webhook receiver gets, and how the sink interprets its responses.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use semel_brokers::http::{Options, Sink};
use semel_core::outbox::{Event, Refused, Sink as _};
use semel_core::{Clock, Timestamp};
use semel_worker::webhook::{RecordSelector, Refused as VerifyError, Rules, Scheme, Source};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const OLD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW_SECRET: &str = "whsec_c2VtZWwtc2VtZWwtc2VtZWwtc2VtZWw=";
const OTHER_SECRET: &str = "whsec_b3RoZXItb3RoZXItb3RoZXItb3RoZXI=";

const NOW: Timestamp = Timestamp::from_micros(1_614_265_330_500_000);

/// A clock that always returns [`NOW`].
#[derive(Debug)]
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        NOW
    }
}

/// A request as it arrived.
struct ReceivedRequest {
    request_line: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Starts a receiver that sends the same response to every request. Returns its URL and the
/// requests that it gets.
async fn start_receiver(
    response: &'static str,
) -> (String, mpsc::UnboundedReceiver<ReceivedRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events?a=b", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(request) = read_request(&mut stream).await {
                    sender.send(request).unwrap();
                    stream.write_all(response.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (url, requests)
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut request_line = String::new();
    stream
        .read_line(&mut request_line)
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
    Some(ReceivedRequest {
        request_line,
        headers,
        body,
    })
}

fn open_sink(url: &str) -> Sink {
    Options::new(url)
        .secret(OLD_SECRET)
        .clock(FixedClock)
        .open()
        .unwrap()
}

fn event() -> Event {
    Event::new("payment.created", "payment/é", r#"{"amount":1}"#).unwrap()
}

/// Verifies the request as the worker does, which receives such webhooks.
fn verify(request: &ReceivedRequest, secret: &str) -> Result<(), VerifyError> {
    let rules = Rules::new(RecordSelector::Operation("/id".parse().unwrap()));
    let source = Source::new("semel", Scheme::Standard, [secret], rules).unwrap();
    source
        .verify(&request.headers, &request.body, NOW)
        .map(|_| ())
}

async fn publish_to(response: &'static str) -> Result<(), Refused> {
    let (url, _requests) = start_receiver(response).await;
    open_sink(&url).publish(&event()).await
}

#[tokio::test]
async fn event_is_signed_with_every_secret() {
    let (url, mut requests) = start_receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
    let event = event();
    let sink = Options::new(&*url)
        .secret(OLD_SECRET)
        .secret(NEW_SECRET)
        .clock(FixedClock)
        .open()
        .unwrap();
    sink.publish(&event).await.unwrap();

    let mut request = requests.recv().await.unwrap();
    assert_eq!(request.request_line, "POST /events?a=b HTTP/1.1\r\n");
    assert_eq!(request.body, event.payload);
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("webhook-id"), event.id.to_string());
    assert_eq!(header("webhook-timestamp"), "1614265330");
    assert_eq!(header("semel-event-kind"), "payment.created");
    assert_eq!(header("semel-aggregate"), "payment/%C3%A9");
    assert_eq!(header("content-type"), "application/json");

    assert_eq!(verify(&request, OLD_SECRET), Ok(()));
    assert_eq!(verify(&request, NEW_SECRET), Ok(()));
    assert_eq!(verify(&request, OTHER_SECRET), Err(VerifyError::Signature));
    request.body[0] ^= 1;
    assert_eq!(verify(&request, OLD_SECRET), Err(VerifyError::Signature));
}

#[tokio::test]
async fn permanent_4xx_rejects_the_event_and_other_errors_are_retried() {
    assert_eq!(
        publish_to("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await,
        Ok(())
    );
    // Permanent errors.
    for status in [
        "400 Bad Request",
        "401 No",
        "404 Not Found",
        "410 Gone",
        "422 No",
    ] {
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nnope");
        let refused = publish_to(response.leak()).await;
        let Err(Refused::Rejected(reason)) = refused else {
            panic!("{status}: {refused:?}")
        };
        assert!(
            reason.contains("nope") && reason.contains(&status[..3]),
            "{reason}"
        );
    }
    // Temporary errors.
    for status in [
        "301 Moved Permanently",
        "408 Request Timeout",
        "409 Conflict",
        "425 Too Early",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Service Unavailable",
    ] {
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let refused = publish_to(response.leak()).await;
        assert!(
            matches!(refused, Err(Refused::Unavailable(_))),
            "{status}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let (target, mut followed) = start_receiver("HTTP/1.1 204 No Content\r\n\r\n").await;
    let response = format!("HTTP/1.1 307 Moved\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
    let refused = publish_to(response.leak()).await;
    assert!(
        matches!(refused, Err(Refused::Unavailable(_))),
        "{refused:?}"
    );
    assert!(followed.try_recv().is_err());
}

#[tokio::test]
async fn unreachable_or_unresponsive_receiver_is_unavailable() {
    // Port 1 is reserved: no process listens on it.
    let refused = open_sink("http://127.0.0.1:1").publish(&event()).await;
    assert!(
        matches!(refused, Err(Refused::Unavailable(_))),
        "{refused:?}"
    );

    let (url, _requests) = start_receiver("").await;
    let sink = Options::new(url)
        .secret(OLD_SECRET)
        .timeout(Duration::from_millis(50))
        .open()
        .unwrap();
    let Err(Refused::Unavailable(reason)) = sink.publish(&event()).await else {
        panic!("must be unavailable")
    };
    assert!(reason.contains("no response within"), "{reason}");
}

#[tokio::test]
async fn success_status_counts_if_the_body_is_incomplete() {
    let published = publish_to("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok").await;
    assert_eq!(published, Ok(()));
}

#[tokio::test]
async fn large_response_body_is_truncated() {
    let large = format!("HTTP/1.1 400 No\r\n\r\n{}", "x".repeat(1 << 20));
    let Err(Refused::Rejected(reason)) = publish_to(large.leak()).await else {
        panic!("must be rejected")
    };
    assert!(reason.len() <= semel_core::outbox::MAX_REASON_BYTES);
}
