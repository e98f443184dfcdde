//! What every adapter serves: `POST /work` makes one effect at the ledger and answers with about
//! 1 KiB. The header `X-Work` drives how it goes; `lab/peers/README.md` lists the ways.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use uuid::Uuid;

/// How large an answer is unless something else is asked for.
const ANSWER_BYTES: usize = 1024;

/// Where effects happen.
#[derive(Clone)]
pub struct Ledger {
    client: reqwest::Client,
    effects: Arc<str>,
}

impl Ledger {
    /// The one that `LEDGER_URL` names.
    ///
    /// # Errors
    /// The variable is not set.
    pub fn from_environment() -> Result<Self> {
        Ok(Self {
            client: reqwest::Client::new(),
            effects: format!("{}/effects", variable("LEDGER_URL")?).into(),
        })
    }

    /// `operation` is who a reconciler would ask by, where there is one.
    async fn add(&self, reference: &str, operation: Option<&str>, id: &str) -> Result<()> {
        let body = json!({ "reference": reference, "operation": operation, "id": id }).to_string();
        let request = self.client.post(&*self.effects).body(body);
        request.send().await?.error_for_status()?;
        Ok(())
    }

    /// The effect of an operation, if there was one.
    async fn find(&self, operation: &str) -> Result<Option<Value>> {
        let url = format!("{}/of/{operation}", self.effects);
        let answer = self.client.get(url).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let text = answer.error_for_status()?.bytes().await?;
        Ok(Some(serde_json::from_slice(&text)?))
    }
}

/// How a request wants to go.
#[derive(Clone, Copy)]
enum Work {
    /// One effect, and an answer.
    Usual,
    /// No effect: only the library is measured.
    Quick,
    /// Waits between the effect and the answer.
    Slow(Duration),
    /// The effect, and an answer of this size.
    Large(usize),
    /// The effect happened, and the provider's answer did not come in time.
    Timeout,
    /// The provider refused for good; no effect.
    Declined,
}

impl Work {
    fn of(headers: &HeaderMap) -> Self {
        let text = headers.get("x-work").and_then(|value| value.to_str().ok());
        let (name, number) = text.unwrap_or_default().split_once(':').map_or_else(
            || (text.unwrap_or_default(), 0),
            |(name, number)| (name, number.parse().unwrap_or_default()),
        );
        match name {
            "quick" => Self::Quick,
            "slow" => Self::Slow(Duration::from_millis(number)),
            "large" => Self::Large(usize::try_from(number).unwrap_or_default()),
            "timeout" => Self::Timeout,
            "declined" => Self::Declined,
            _ => Self::Usual,
        }
    }
}

/// The application without any guard.
pub fn router(ledger: Ledger) -> Router {
    Router::new()
        .route("/work", post(work))
        .route("/outcomes/{operation}", get(found))
        .with_state(ledger)
}

/// What became of an operation, for a reconciler: the answer that its caller would have been given.
async fn found(State(ledger): State<Ledger>, Path(operation): Path<String>) -> Response {
    match ledger.find(&operation).await {
        Ok(Some(effect)) => {
            let text = |name: &str| effect[name].as_str().unwrap_or_default().to_owned();
            let answer = paid(&text("reference"), &text("id"), ANSWER_BYTES);
            (StatusCode::OK, answer).into_response()
        }
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Does the work, and answers. For adapters whose guard is no layer.
pub async fn work(State(ledger): State<Ledger>, headers: HeaderMap, body: Bytes) -> Response {
    let work = Work::of(&headers);
    let reference = serde_json::from_slice::<Value>(&body)
        .ok()
        .and_then(|body| Some(body["merchant_reference"].as_str()?.to_owned()))
        .unwrap_or_default();
    // The name is new with every execution, so that an answer shows which one it comes from.
    let id = Uuid::new_v4().to_string();
    let operation = headers.get("semel-operation-id");
    let operation = operation.and_then(|value| value.to_str().ok());
    if !matches!(work, Work::Quick | Work::Declined)
        && let Err(error) = ledger.add(&reference, operation, &id).await
    {
        let answer = json!({ "error": format!("{error:#}") });
        return created(StatusCode::INTERNAL_SERVER_ERROR, &answer);
    }
    match work {
        Work::Usual | Work::Quick => paid(&reference, &id, ANSWER_BYTES),
        Work::Slow(pause) => {
            tokio::time::sleep(pause).await;
            paid(&reference, &id, ANSWER_BYTES)
        }
        Work::Large(bytes) => paid(&reference, &id, bytes),
        Work::Timeout => created(
            StatusCode::GATEWAY_TIMEOUT,
            &json!({ "error": "the provider did not answer in time" }),
        ),
        Work::Declined => created(
            StatusCode::PAYMENT_REQUIRED,
            &json!({ "id": id, "status": "declined" }),
        ),
    }
}

fn paid(reference: &str, id: &str, bytes: usize) -> Response {
    let mut answer = json!({
        "id": id,
        "status": "succeeded",
        "merchant_reference": reference,
        "note": "",
    });
    let filling = bytes.saturating_sub(answer.to_string().len());
    answer["note"] = "x".repeat(filling).into();
    created(StatusCode::CREATED, &answer)
}

fn created(status: StatusCode, answer: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, answer.to_string()).into_response()
}

/// Serves on the port that `PORT` names, until it is killed.
///
/// # Errors
/// The variable is not set, or the port is taken.
pub async fn serve(router: Router) -> Result<()> {
    let port: u16 = variable("PORT")?.parse().context("PORT is no port")?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let listener = listener.tap_io(|stream| {
        // It fails only where the client is gone.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router)
        .await
        .context("cannot serve any longer")
}

/// A setting of the harness.
///
/// # Errors
/// It is not set.
pub fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not set"))
}
