//! A stub of the API behind the gateway. It ignores keys and executes every request.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How the stub handles every payment of a test.
#[derive(Clone, Copy)]
pub(crate) enum Behaviour {
    Create,
    /// Refuses amounts below the minimum with 400, and creates the others.
    Validate,
    /// Creates, but answers only when released.
    Hold,
    /// Creates, and answers with this status nevertheless.
    Fail(StatusCode),
}

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    executions: watch::Receiver<u32>,
    released: watch::Sender<bool>,
}

struct Shared {
    behaviour: Behaviour,
    executions: watch::Sender<u32>,
    released: watch::Receiver<bool>,
}

impl Upstream {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        let (counted, executions) = watch::channel(0);
        let (released, wait) = watch::channel(false);
        let shared = Arc::new(Shared {
            behaviour,
            executions: counted,
            released: wait,
        });
        let app = axum::Router::new()
            .route("/v1/payment_intents", post(create_payment_intent))
            .with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            executions,
            released,
        }
    }

    pub(crate) fn executions(&self) -> u32 {
        *self.executions.borrow()
    }

    /// Waits until a payment has arrived.
    pub(crate) async fn wait_for_execution(&self) {
        self.executions.clone().wait_for(|n| *n > 0).await.unwrap();
    }

    /// Releases the held answers.
    pub(crate) fn release(&self) {
        self.released.send(true).unwrap();
    }
}

async fn create_payment_intent(
    State(shared): State<Arc<Shared>>,
    form: String,
) -> (StatusCode, Json<Value>) {
    if let Behaviour::Validate = shared.behaviour
        && form.split('&').any(|pair| pair == "amount=10")
    {
        let error = json!({
            "type": "invalid_request_error",
            "code": "amount_too_small",
            "message": "The amount must be at least 50.",
        });
        return (StatusCode::BAD_REQUEST, Json(json!({ "error": error })));
    }
    let mut number = 0;
    shared.executions.send_modify(|executions| {
        *executions += 1;
        number = *executions;
    });
    match shared.behaviour {
        Behaviour::Create | Behaviour::Validate => (StatusCode::OK, intent(number, &form)),
        Behaviour::Hold => {
            // Fails when the test has ended, which does not matter.
            let _ = shared.released.clone().wait_for(|yes| *yes).await;
            (StatusCode::OK, intent(number, &form))
        }
        Behaviour::Fail(status) => {
            let error = json!({"type": "api_error", "message": "Something went wrong."});
            (status, Json(json!({ "error": error })))
        }
    }
}

/// A payment intent whose id contains the number of the execution.
fn intent(number: u32, form: &str) -> Json<Value> {
    let amount = form
        .split('&')
        .find_map(|pair| pair.strip_prefix("amount="))
        .and_then(|text| text.parse::<u64>().ok());
    Json(json!({
        "id": format!("pi_{number}"),
        "object": "payment_intent",
        "amount": amount.unwrap(),
        "currency": "eur",
        "status": "requires_payment_method",
    }))
}
