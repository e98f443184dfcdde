//! The same payments as behind the layer, with keys as most teams guard them.

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Hand;
use crate::serve::{created, payment_answer};

pub(crate) async fn service(url: &str) -> Result<Router> {
    let hand = Hand::open(url).await?;
    Ok(Router::new()
        .route("/payments", post(create_payment))
        .with_state((hand, payment_answer())))
}

async fn create_payment(
    State((hand, answer)): State<(Hand, Bytes)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(tenant), Some(key)) = (
        text(header::AUTHORIZATION.as_str()),
        text("idempotency-key"),
    ) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    guard(&hand, [tenant, "create_payment", key], &body, answer)
        .await
        .unwrap_or_else(|error| {
            eprintln!("{error:#}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        })
}

async fn guard(hand: &Hand, name: [&str; 3], body: &[u8], answer: Bytes) -> Result<Response> {
    let hash = Sha256::digest(body);
    if hand.reserve(name, &hash).await? {
        // The execution itself: as behind the layer, there is nothing to do but to answer.
        let status = StatusCode::CREATED;
        hand.complete(name, status.as_u16().into(), &answer).await?;
        return Ok(created("application/json", answer).into_response());
    }
    let Some(found) = hand.find(name).await? else {
        return Ok(StatusCode::CONFLICT.into_response());
    };
    if found.request_hash != hash[..] {
        return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response());
    }
    match (
        found.status.as_str(),
        found.response_status,
        found.response_body,
    ) {
        ("completed", Some(status), Some(body)) => {
            let status = StatusCode::from_u16(u16::try_from(status)?)?;
            let headers = [
                (header::CONTENT_TYPE.as_str(), "application/json"),
                ("idempotent-replayed", "true"),
            ];
            Ok((status, headers, body).into_response())
        }
        _ => Ok(StatusCode::CONFLICT.into_response()),
    }
}
