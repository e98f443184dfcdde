//! The service: its three outcomes, and the lookup of unknown ones.

use std::time::Duration;

use payments::app::{Config, PaymentStatus, Summary};
use payments::provider::{self, Fault, Faults};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::harness::{
    Server, json_of, ledger, payment, post, put_faults, read, read_until, summary,
};

async fn both() -> (Server, Server) {
    let provider = Server::provider(provider::Config::default()).await;
    let app = Server::app(Config::new(&provider.url)).await;
    (provider, app)
}

fn pay(app: &Server, operation: &str) -> RequestBuilder {
    post(app.url("/payments"), &payment("invoice-1"))
        .header("semel-operation-id", operation)
        .header("semel-downstream-key", format!("dk-{operation}"))
}

fn outcome(response: &Response) -> (u16, Option<&str>) {
    let outcome = response.headers().get("semel-outcome");
    (
        response.status().as_u16(),
        outcome.map(|value| value.to_str().unwrap()),
    )
}

async fn executions(app: &Server) -> (u32, u32) {
    let (_, body) = read(&app.url("/summary")).await;
    let summary: Summary = serde_json::from_value(body).unwrap();
    (summary.payments, summary.executions)
}

#[tokio::test]
async fn a_payment_is_charged_and_shown() {
    let (provider, app) = both().await;
    let created = pay(&app, "op-1").send().await.unwrap();
    assert_eq!(outcome(&created), (201, None));
    let location = created.headers()["location"].to_str().unwrap().to_owned();
    let created = json_of(created).await;
    assert_eq!(created["status"], "succeeded");
    assert_eq!(created["operation_id"], "op-1");
    assert_eq!(created["amount"], 1000);

    let entries = ledger(&provider).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(created["charge_id"], entries[0].id.as_str());
    assert_eq!(entries[0].idempotency_key.as_deref(), Some("dk-op-1"));
    assert_eq!(entries[0].reference, "invoice-1");

    assert_eq!(
        read(&app.url(&location)).await,
        (StatusCode::OK, created.clone())
    );
    let by_operation = read(&app.url("/payments/by-operation/op-1")).await;
    assert_eq!(by_operation, (StatusCode::OK, created));
    for unknown in ["/payments/pay_0", "/payments/by-operation/op-2"] {
        assert_eq!(read(&app.url(unknown)).await.0, StatusCode::NOT_FOUND);
    }
    assert_eq!(read(&app.url("/healthz")).await.0, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn without_a_gateway_every_request_is_a_payment() {
    let (provider, app) = both().await;
    for _ in 0..2 {
        let created = post(app.url("/payments"), &payment("invoice-1"))
            .send()
            .await;
        assert_eq!(created.unwrap().status(), StatusCode::CREATED);
    }
    assert_eq!(
        summary(&provider).await.duplicate_references["invoice-1"],
        2
    );
}

#[tokio::test]
async fn a_service_that_ignores_the_gateway_charges_every_request() {
    let provider = Server::provider(provider::Config::default()).await;
    let mut config = Config::new(&provider.url);
    config.heeds_gateway = false;
    let app = Server::app(config).await;
    for _ in 0..2 {
        assert_eq!(
            outcome(&pay(&app, "op-1").send().await.unwrap()),
            (201, None)
        );
    }
    assert_eq!(ledger(&provider).await.len(), 2);
    assert_eq!(executions(&app).await, (2, 2));
}

#[tokio::test]
async fn a_decline_is_402_and_final() {
    let (provider, app) = both().await;
    put_faults(&provider, Faults::next(1, Fault::Decline)).await;
    for _ in 0..2 {
        let declined = pay(&app, "op-1").send().await.unwrap();
        assert_eq!(outcome(&declined), (402, None));
        assert_eq!(json_of(declined).await["status"], "declined");
    }
    // A reconciler gets the same answer as the caller.
    let (status, payment) = read(&app.url("/payments/by-operation/op-1")).await;
    assert_eq!(
        (status.as_u16(), &payment["status"]),
        (402, &"declined".into())
    );
    assert_eq!(ledger(&provider).await.len(), 1);
    assert_eq!(executions(&app).await, (1, 2));
}

#[tokio::test]
async fn an_unreachable_provider_is_not_executed_and_may_be_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.jsonl");
    let provider = Server::provider(provider::Config::with_ledger(&path)).await;
    let app = Server::app(Config::new(&provider.url)).await;
    let address = provider.url.strip_prefix("http://").unwrap().to_owned();
    assert_eq!(
        outcome(&pay(&app, "op-0").send().await.unwrap()),
        (201, None)
    );
    provider.stop().await;

    let refused = pay(&app, "op-1").send().await.unwrap();
    assert_eq!(outcome(&refused), (503, Some("not-executed")));
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    assert_eq!(json_of(refused).await["code"], "provider_unreachable");
    let by_operation = app.url("/payments/by-operation/op-1");
    assert_eq!(read(&by_operation).await.0, StatusCode::NOT_FOUND);

    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let config = provider::Config::with_ledger(&path);
    tokio::spawn(provider::serve(listener, config, std::future::pending()));
    assert_eq!(
        outcome(&pay(&app, "op-1").send().await.unwrap()),
        (201, None)
    );
    assert_eq!(read(&by_operation).await.0, StatusCode::OK);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn after_a_reset_the_outcome_is_looked_up_at_the_provider() {
    let (provider, app) = both().await;
    let broken = pay(&app, "op-1").header("x-demo-fault", "reset_after_success");
    let broken = broken.send().await.unwrap();
    assert_eq!(outcome(&broken), (504, Some("unknown")));
    assert_eq!(broken.headers()["content-type"], "application/problem+json");
    let location = broken.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(json_of(broken).await["code"], "payment_outcome_unknown");
    assert_eq!(read(&app.url(&location)).await.1["status"], "unknown");

    let (status, truth) = read(&app.url("/payments/by-operation/op-1")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(truth["status"], "succeeded");
    assert_eq!(truth["charge_id"], ledger(&provider).await[0].id.as_str());
    // Written down, too: the provider need not be asked again.
    provider.stop().await;
    assert_eq!(
        read(&app.url(&location)).await,
        (StatusCode::OK, truth.clone())
    );
    let by_operation = read(&app.url("/payments/by-operation/op-1")).await;
    assert_eq!(by_operation, (StatusCode::OK, truth));
}

#[tokio::test]
async fn a_lookup_of_an_unexecuted_unknown_returns_not_found() {
    let (provider, app) = both().await;
    for fault in ["reset_before", "error_500", "error_503"] {
        let broken = pay(&app, fault).header("x-demo-fault", fault).send().await;
        assert_eq!(outcome(&broken.unwrap()), (504, Some("unknown")), "{fault}");
        let by_operation = app.url(&format!("/payments/by-operation/{fault}"));
        assert_eq!(
            read(&by_operation).await.0,
            StatusCode::NOT_FOUND,
            "{fault}"
        );
    }
    assert_eq!(ledger(&provider).await, []);
}

#[tokio::test]
async fn a_second_execution_is_the_same_payment_and_charge() {
    let (provider, app) = both().await;
    let broken = pay(&app, "op-1").header("x-demo-fault", "reset_after_success");
    assert_eq!(
        outcome(&broken.send().await.unwrap()),
        (504, Some("unknown"))
    );
    let created = pay(&app, "op-1").send().await.unwrap();
    assert_eq!(outcome(&created), (201, None));
    assert_eq!(ledger(&provider).await.len(), 1);
    assert_eq!(executions(&app).await, (1, 2));

    // An operation is one payment; the gateway would have had to mix up two.
    let mut other = payment("invoice-1");
    other["amount"] = json!(1);
    let mixed_up = post(app.url("/payments"), &other).header("semel-operation-id", "op-1");
    let mixed_up = mixed_up.send().await.unwrap();
    assert_eq!(mixed_up.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn a_timeout_is_unknown_then_undecided_then_decided() {
    let provider = Server::provider(provider::Config::default()).await;
    let mut config = Config::new(&provider.url);
    config.provider_timeout = Duration::from_secs(1);
    let app = Server::app(config).await;
    let late = pay(&app, "op-1").header("x-demo-fault", "slow:600000");
    assert_eq!(outcome(&late.send().await.unwrap()), (504, Some("unknown")));
    let by_operation = app.url("/payments/by-operation/op-1");
    let undecided = read_until(&by_operation, StatusCode::ACCEPTED).await;
    assert_eq!(undecided["status"], "unknown");

    put_faults(&provider, Faults::default()).await;
    let truth = read_until(&by_operation, StatusCode::OK).await;
    assert_eq!(truth["status"], "succeeded");
    assert_eq!(ledger(&provider).await.len(), 1);
}

#[tokio::test]
async fn a_client_disconnect_does_not_stop_its_payment() {
    let (provider, app) = both().await;
    let call = pay(&app, "op-1")
        .header("x-demo-fault", "slow:600000")
        .send();
    let call = tokio::spawn(call);
    let by_operation = app.url("/payments/by-operation/op-1");
    let undecided = read_until(&by_operation, StatusCode::ACCEPTED).await;
    assert_eq!(undecided["status"], "processing");
    call.abort();
    let by_key = provider.url("/charges?idempotency_key=dk-op-1");
    read_until(&by_key, StatusCode::ACCEPTED).await;
    put_faults(&provider, Faults::default()).await;
    read_until(&by_operation, StatusCode::OK).await;
    assert_eq!(ledger(&provider).await.len(), 1);
}

#[tokio::test]
async fn a_key_of_another_charge_is_not_matched() {
    let (provider, app) = both().await;
    let other = json!({ "amount": 1, "currency": "EUR", "reference": "other" });
    let other = post(provider.url("/charges"), &other).header("idempotency-key", "dk-op-1");
    assert_eq!(other.send().await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(
        outcome(&pay(&app, "op-1").send().await.unwrap()),
        (504, Some("unknown"))
    );
    let (status, body) = read(&app.url("/payments/by-operation/op-1")).await;
    assert_eq!(
        (status, &body["status"]),
        (StatusCode::ACCEPTED, &json!("unknown"))
    );
}

#[tokio::test]
async fn an_invalid_request_is_refused_before_anything_happens() {
    let (provider, app) = both().await;
    let with = |name: &str, value: Value| {
        let mut body = payment("invoice-1");
        body[name] = value;
        body
    };
    for body in [
        with("amount", json!(0)),
        with("amount", json!("10.00")),
        with("amount", json!(10.5)),
        with("currency", json!("euro")),
        with("account", json!("")),
        with("account", Value::Null),
    ] {
        let refused = post(app.url("/payments"), &body).send().await.unwrap();
        assert_eq!(outcome(&refused), (422, None), "{body}");
    }
    let torn = post(app.url("/payments"), &json!(null)).body("{");
    assert_eq!(outcome(&torn.send().await.unwrap()), (400, None));
    let fault = pay(&app, "op-1").header("x-demo-fault", "explode");
    assert_eq!(outcome(&fault.send().await.unwrap()), (400, None));
    let twice = pay(&app, "op-1").header("semel-operation-id", "op-2");
    assert_eq!(outcome(&twice.send().await.unwrap()), (400, None));
    assert_eq!(executions(&app).await, (0, 0));
    assert_eq!(ledger(&provider).await, []);
}

#[tokio::test]
async fn payments_in_progress_at_a_restart_become_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("payments.db");
    let provider = Server::provider(provider::Config::default()).await;
    let mut config = Config::new(&provider.url);
    config.database = Some(path);
    let first = Server::app(config.clone()).await;
    let call = pay(&first, "op-1")
        .header("x-demo-fault", "slow:600000")
        .send();
    let call = tokio::spawn(call);
    let by_key = provider.url("/charges?idempotency_key=dk-op-1");
    read_until(&by_key, StatusCode::ACCEPTED).await;

    // A second process on the file while the first still calls, as after a kill.
    let app = Server::app(config).await;
    let by_operation = app.url("/payments/by-operation/op-1");
    let undecided = read_until(&by_operation, StatusCode::ACCEPTED).await;
    let status: PaymentStatus = serde_json::from_value(undecided["status"].clone()).unwrap();
    assert_eq!(status, PaymentStatus::Unknown);
    put_faults(&provider, Faults::default()).await;
    read_until(&by_operation, StatusCode::OK).await;
    // The first finds the row decided, and agrees.
    assert_eq!(outcome(&call.await.unwrap().unwrap()), (201, None));
}
