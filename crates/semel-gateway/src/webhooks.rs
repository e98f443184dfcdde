//! `POST /.semel/webhooks/{source}`: receives events from providers on the gateway listener.

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use semel_core::Store;
use semel_worker::webhook::{Answer, MAX_BODY, Sources};

use crate::config::Config;
use crate::regions::{self, Sender};

/// Path prefix of the webhook endpoint.
pub const WEBHOOK_PATH: &str = "/.semel/webhooks/";

/// The configured sources.
pub fn sources(config: &Config) -> Sources {
    Sources::new(config.webhooks.iter().map(|hook| hook.source.clone()))
}

/// Answers a request below [`WEBHOOK_PATH`].
///
/// # Cancellation
/// Dropping the future never loses an event that was acknowledged; see [`receive`].
///
/// [`receive`]: semel_worker::webhook::receive
pub async fn answer<S, B>(store: &S, sources: &Sources, request: Request<B>) -> Response<Bytes>
where
    S: Store,
    B: Body<Data = Bytes>,
{
    regions::answer_webhook(store, sources, None, &Sender::Client, request).await
}

/// The name of the source that a request is for.
pub(crate) fn source_of(head: &Parts) -> &str {
    head.uri.path().strip_prefix(WEBHOOK_PATH).unwrap_or("")
}

/// Reads a request with an event, or refuses it.
pub(crate) async fn read<B: Body<Data = Bytes>>(
    sources: &Sources,
    request: Request<B>,
) -> Result<(Parts, Bytes), Response<Bytes>> {
    let (head, body) = request.into_parts();
    // Checked before the body is read.
    if sources.find(source_of(&head)).is_none() {
        return Err(to_response(Answer::UNKNOWN_SOURCE));
    }
    if head.method != Method::POST {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "send events with POST\n");
        let headers = refused.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(refused);
    }
    match read_body(body).await {
        BodyRead::Complete(body) => Ok((head, body)),
        BodyRead::TooLarge => Err(to_response(Answer::TOO_LARGE)),
        BodyRead::Broken => Err(plain(
            StatusCode::BAD_REQUEST,
            "the request body ended prematurely\n",
        )),
    }
}

enum BodyRead {
    Complete(Bytes),
    TooLarge,
    Broken,
}

async fn read_body<B: Body<Data = Bytes>>(body: B) -> BodyRead {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return BodyRead::TooLarge;
    }
    let mut body = std::pin::pin!(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return BodyRead::Broken;
        };
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > MAX_BODY {
                return BodyRead::TooLarge;
            }
            all.extend_from_slice(&data);
        }
    }
    BodyRead::Complete(all.freeze())
}

pub(crate) fn to_response(answer: Answer) -> Response<Bytes> {
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
