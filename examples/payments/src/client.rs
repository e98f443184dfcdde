//! Calling the provider, and telling apart the three ways in which that ends: it decided, it was
//! not reached, or nobody knows.

use std::time::Duration;

use axum::http::StatusCode;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::provider::{Charge, ChargeRequest, FAULT_HEADER, Refund, RefundRequest};

/// To a provider that is up, connecting takes milliseconds. One that is not should be found out
/// about while it is still certain that nothing was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A charge is a few hundred bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Called<T> {
    /// The provider decided, one way or the other.
    Decided(T),
    /// There was no connection: nothing was sent.
    NotSent(String),
    /// It was sent, or may have been, and there is no answer to go by.
    Unclear(String),
}

/// What the provider says about a key.
#[derive(Debug)]
pub(crate) enum Truth {
    /// There is a charge.
    Decided(Charge),
    /// There is none, and none is under way.
    Nothing,
    /// It is under way, or the provider cannot say.
    Undecided,
}

#[derive(Clone)]
pub(crate) struct Provider {
    client: Client,
    charges: Url,
    refunds: Url,
}

impl Provider {
    pub(crate) fn new(address: &str, timeout: Duration) -> Result<Self, Error> {
        let bad_url = || Error::ProviderUrl {
            url: address.to_owned(),
        };
        let url = |path: &str| {
            let url = format!("{}/{path}", address.trim_end_matches('/'));
            let url = Url::parse(&url).map_err(|_| bad_url())?;
            if url.scheme() != "http" || !url.has_host() {
                return Err(bad_url());
            }
            Ok(url)
        };
        let (charges, refunds) = (url("charges")?, url("refunds")?);
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT.min(timeout))
            .timeout(timeout)
            // A second charge is not for a library to decide about.
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // A connection for each call. On one that was kept, a provider that has gone away
            // shows only after the request is written, and "not reached" becomes "nobody knows".
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self {
            client,
            charges,
            refunds,
        })
    }

    /// Asks for a charge, once.
    pub(crate) async fn charge(
        &self,
        request: &ChargeRequest,
        key: Option<&str>,
        fault: Option<&str>,
    ) -> Called<Charge> {
        let mut call = self.client.post(self.charges.clone());
        if let Some(fault) = fault {
            call = call.header(FAULT_HEADER, fault);
        }
        ask(call, request, key).await
    }

    /// Asks for a refund, once.
    pub(crate) async fn refund(&self, request: &RefundRequest, key: &str) -> Called<Refund> {
        ask(self.client.post(self.refunds.clone()), request, Some(key)).await
    }

    /// Asks what became of a charge, by one of its names: `idempotency_key` or `operation_id`.
    pub(crate) async fn truth(&self, name: &str, value: &str) -> Truth {
        let mut url = self.charges.clone();
        url.query_pairs_mut().append_pair(name, value);
        match send(self.client.get(url)).await {
            Ok((StatusCode::OK, body)) => decided(&body).map_or(Truth::Undecided, Truth::Decided),
            Ok((StatusCode::NOT_FOUND, _)) => Truth::Nothing,
            Ok(_) => Truth::Undecided,
            Err(error) => {
                tracing::debug!(error = chain(&error), "the provider cannot be asked");
                Truth::Undecided
            }
        }
    }
}

async fn ask<T: DeserializeOwned>(
    call: RequestBuilder,
    request: &impl Serialize,
    key: Option<&str>,
) -> Called<T> {
    let body = match serde_json::to_vec(request) {
        Ok(body) => body,
        Err(error) => return Called::NotSent(error.to_string()),
    };
    let mut call = call.header(CONTENT_TYPE, "application/json").body(body);
    if let Some(key) = key {
        call = call.header("idempotency-key", key);
    }
    match send(call).await {
        Ok((StatusCode::CREATED | StatusCode::OK | StatusCode::PAYMENT_REQUIRED, body)) => {
            decided(&body).map_or_else(
                || Called::Unclear("the provider's answer makes no sense".to_owned()),
                Called::Decided,
            )
        }
        Ok((status, _)) => Called::Unclear(format!("the provider answered {status}")),
        Err(error) if error.is_connect() => Called::NotSent(chain(&error)),
        Err(error) => Called::Unclear(chain(&error)),
    }
}

async fn send(call: RequestBuilder) -> reqwest::Result<(StatusCode, Vec<u8>)> {
    let response = call.send().await?;
    Ok((response.status(), body(response).await?))
}

/// The body, or as much of it as shows that it is not a charge.
async fn body(mut response: Response) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER_BYTES {
            break;
        }
    }
    Ok(body)
}

fn decided<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// An error with its causes: `reqwest` alone says no more than that sending failed.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
