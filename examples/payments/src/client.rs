//! The client of the provider. A call has three outcomes: the provider decided, it was not reached,
//! or the outcome is unknown.

use std::time::Duration;

use axum::http::StatusCode;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::provider::{Charge, ChargeRequest, FAULT_HEADER, Refund, RefundRequest};

/// Connecting to a running provider takes milliseconds. Until it is connected, it is certain that
/// nothing was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A charge is a few hundred bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome<T> {
    /// The provider decided, one way or the other.
    Decided(T),
    /// There was no connection, so nothing was sent.
    NotSent(String),
    /// It was sent, or may have been, and there is no usable answer.
    Unknown(String),
}

/// What the provider knows about a charge.
#[derive(Debug)]
pub(crate) enum ChargeLookup {
    /// There is a charge.
    Decided(Charge),
    /// There is none, and none is under way.
    Nothing,
    /// It is under way, or the provider did not answer.
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
            // Whether to charge again is the decision of the caller.
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // A connection for each call: on a kept-alive connection the client notices only after
            // writing that the provider is gone, and "not sent" becomes "unknown".
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self {
            client,
            charges,
            refunds,
        })
    }

    /// Requests a charge, without retries.
    pub(crate) async fn charge(
        &self,
        request: &ChargeRequest,
        key: Option<&str>,
        fault: Option<&str>,
    ) -> CallOutcome<Charge> {
        let mut call = self.client.post(self.charges.clone());
        if let Some(fault) = fault {
            call = call.header(FAULT_HEADER, fault);
        }
        post(call, request, key).await
    }

    /// Requests a refund, without retries.
    #[cfg_attr(
        not(feature = "shop"),
        expect(dead_code, reason = "only the shop refunds")
    )]
    pub(crate) async fn refund(&self, request: &RefundRequest, key: &str) -> CallOutcome<Refund> {
        post(self.client.post(self.refunds.clone()), request, Some(key)).await
    }

    /// Looks up a charge by its `idempotency_key` or `operation_id`.
    pub(crate) async fn look_up(&self, name: &str, value: &str) -> ChargeLookup {
        let mut url = self.charges.clone();
        url.query_pairs_mut().append_pair(name, value);
        match send(self.client.get(url)).await {
            Ok((StatusCode::OK, body)) => {
                parse(&body).map_or(ChargeLookup::Undecided, ChargeLookup::Decided)
            }
            Ok((StatusCode::NOT_FOUND, _)) => ChargeLookup::Nothing,
            Ok(_) => ChargeLookup::Undecided,
            Err(error) => {
                tracing::debug!(error = chain(&error), "the charge could not be looked up");
                ChargeLookup::Undecided
            }
        }
    }
}

async fn post<T: DeserializeOwned>(
    call: RequestBuilder,
    request: &impl Serialize,
    key: Option<&str>,
) -> CallOutcome<T> {
    let body = match serde_json::to_vec(request) {
        Ok(body) => body,
        Err(error) => return CallOutcome::NotSent(error.to_string()),
    };
    let mut call = call.header(CONTENT_TYPE, "application/json").body(body);
    if let Some(key) = key {
        call = call.header("idempotency-key", key);
    }
    match send(call).await {
        Ok((StatusCode::CREATED | StatusCode::OK | StatusCode::PAYMENT_REQUIRED, body)) => {
            parse(&body).map_or_else(
                || CallOutcome::Unknown("the provider's answer cannot be read".to_owned()),
                CallOutcome::Decided,
            )
        }
        Ok((status, _)) => CallOutcome::Unknown(format!("the provider answered {status}")),
        Err(error) if error.is_connect() => CallOutcome::NotSent(chain(&error)),
        Err(error) => CallOutcome::Unknown(chain(&error)),
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

fn parse<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// An error with its causes: `reqwest` alone reports only that sending failed.
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
