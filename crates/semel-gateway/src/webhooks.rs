//! `POST /.semel/webhooks/{source}`: events from providers, on the gateway's own listener.

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use semel_core::{Inbox, Inspect, Maintain, Store};
use semel_worker::webhook::{Answer, MAX_BODY, Sources, receive};

use crate::config::Config;

/// Where events are received.
pub const WEBHOOK_PATH: &str = "/.semel/webhooks/";

/// The sources that a configuration has.
pub fn sources(config: &Config) -> Sources {
    Sources::new(config.webhooks.iter().map(|hook| hook.source.clone()))
}

/// Answers a request below [`WEBHOOK_PATH`].
///
/// # Cancellation
/// Dropping the future loses nothing that the sender was told; see [`receive`].
pub async fn answer<S, B>(store: &S, sources: &Sources, request: Request<B>) -> Response<Bytes>
where
    S: Store + Inbox + Maintain + Inspect,
    B: Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let source = head.uri.path().strip_prefix(WEBHOOK_PATH).unwrap_or("");
    // Before a byte of the body is read: a stranger's is not.
    if sources.find(source).is_none() {
        return worded(Answer::UNKNOWN_SOURCE);
    }
    if head.method != Method::POST {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "events are sent by POST\n");
        let headers = refused.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
        return refused;
    }
    match read(body).await {
        Read::Whole(body) => {
            let now = store.clock().now();
            worded(receive(store, sources, source, &head.headers, &body, now).await)
        }
        Read::TooLarge => worded(Answer::TOO_LARGE),
        Read::Broken => plain(StatusCode::BAD_REQUEST, "the event broke off\n"),
    }
}

enum Read {
    Whole(Bytes),
    TooLarge,
    Broken,
}

async fn read<B: Body<Data = Bytes>>(body: B) -> Read {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Read::TooLarge;
    }
    let mut body = std::pin::pin!(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Read::Broken;
        };
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > MAX_BODY {
                return Read::TooLarge;
            }
            all.extend_from_slice(&data);
        }
    }
    Read::Whole(all.freeze())
}

fn worded(answer: Answer) -> Response<Bytes> {
    plain(answer.status, answer.text)
}

fn plain(status: StatusCode, text: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(text.as_bytes()));
    *response.status_mut() = status;
    if !text.is_empty() {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
    }
    response
}

#[cfg(test)]
mod tests;
