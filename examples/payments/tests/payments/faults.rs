//! The faults of the provider: what the client sees, and what is in the ledger.

use payments::provider::{ChargeStatus, Config, Fault, Faults};
use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Server, charge, client, json_of, ledger, post, put_faults, read, read_until};

/// Sends a charge over a bare socket, and returns every byte of the answer.
async fn raw_charge(provider: &Server, fault: &str) -> (Vec<u8>, Option<std::io::ErrorKind>) {
    let address = provider.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = charge("invoice-1").to_string();
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: {address}\r\nidempotency-key: k\r\n\
         x-provider-fault: {fault}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer).await;
    (answer, ended.err().map(|error| error.kind()))
}

#[tokio::test]
async fn reset_after_success_charges_without_an_answer() {
    let provider = Server::provider(Config::default()).await;
    let (answer, error) = raw_charge(&provider, "reset_after_success").await;
    assert_eq!(answer, b"");
    assert_eq!(error, Some(std::io::ErrorKind::ConnectionReset));
    let entries = ledger(&provider).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].status, ChargeStatus::Succeeded);

    // The retry finds that charge.
    let (answer, error) = raw_charge(&provider, "none").await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(answer.contains(&entries[0].id), "{answer}");
    assert_eq!(error, None);
    assert_eq!(ledger(&provider).await, entries);
}

#[tokio::test]
async fn reset_before_charges_nothing() {
    let provider = Server::provider(Config::default()).await;
    let (answer, error) = raw_charge(&provider, "reset_before").await;
    assert_eq!(answer, b"");
    assert_eq!(error, Some(std::io::ErrorKind::ConnectionReset));
    assert_eq!(ledger(&provider).await, []);
}

#[tokio::test]
async fn a_client_library_sees_a_broken_connection() {
    let provider = Server::provider(Config::default()).await;
    put_faults(&provider, Faults::next(1, Fault::ResetAfterSuccess)).await;
    let send = || post(provider.url("/charges"), &charge("invoice-1")).send();
    let error = send().await.unwrap_err();
    assert!(error.is_request() && !error.is_connect(), "{error:?}");
    assert_eq!(send().await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(ledger(&provider).await.len(), 2);
}

#[tokio::test]
async fn a_decline_is_an_entry_and_stays_declined() {
    let provider = Server::provider(Config::default()).await;
    put_faults(&provider, Faults::next(1, Fault::Decline)).await;
    for _ in 0..2 {
        let call = post(provider.url("/charges"), &charge("invoice-1"));
        let declined = call.header("idempotency-key", "k").send().await.unwrap();
        assert_eq!(declined.status(), StatusCode::PAYMENT_REQUIRED);
        assert_eq!(json_of(declined).await["status"], "declined");
    }
    let entries = ledger(&provider).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].status, ChargeStatus::Declined);
}

#[tokio::test]
async fn server_errors_charge_nothing() {
    let provider = Server::provider(Config::default()).await;
    for (fault, status) in [("error_500", 500), ("error_503", 503)] {
        let call = post(provider.url("/charges"), &charge("invoice-1"));
        let broken = call.header("x-provider-fault", fault).send().await.unwrap();
        assert_eq!(broken.status().as_u16(), status);
    }
    assert_eq!(ledger(&provider).await, []);
}

#[tokio::test]
async fn slow_is_pending_and_charges_after_the_client_disconnects() {
    let provider = Server::provider(Config::default()).await;
    let held = Faults {
        delay_ms: 600_000,
        ..Faults::every(Fault::Slow)
    };
    put_faults(&provider, held).await;
    let call = post(provider.url("/charges"), &charge("invoice-1"));
    let call = tokio::spawn(call.header("idempotency-key", "k").send());
    let by_key = provider.url("/charges?idempotency_key=k");
    let pending = read_until(&by_key, StatusCode::ACCEPTED).await;
    assert_eq!(pending, json!({ "status": "pending" }));
    assert_eq!(ledger(&provider).await, []);

    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    put_faults(&provider, Faults::default()).await;
    read_until(&by_key, StatusCode::OK).await;
    assert_eq!(ledger(&provider).await.len(), 1);
}

#[tokio::test]
async fn a_delay_ends_by_itself() {
    let provider = Server::provider(Config::default()).await;
    let call = post(provider.url("/charges"), &charge("invoice-1"));
    let made = call.header("x-provider-fault", "slow:1").send().await;
    assert_eq!(made.unwrap().status(), StatusCode::CREATED);
}

#[tokio::test]
async fn stopping_closes_held_requests_without_a_charge() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.jsonl");
    let provider = Server::provider(Config::with_ledger(&path)).await;
    let call = post(provider.url("/charges"), &charge("invoice-1"))
        .header("idempotency-key", "k")
        .header("x-provider-fault", "slow:600000");
    let call = tokio::spawn(call.send());
    let by_key = provider.url("/charges?idempotency_key=k");
    read_until(&by_key, StatusCode::ACCEPTED).await;
    provider.stop().await;
    assert!(call.await.unwrap().is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
}

#[tokio::test]
async fn faults_are_listed_as_set_and_invalid_faults_are_refused() {
    let provider = Server::provider(Config::default()).await;
    let put = |body: &'static str| client().put(provider.url("/faults")).body(body).send();
    let accepted = put(r#"{"fault":"slow","next":3,"delay_ms":20,"probability":0.5}"#).await;
    assert_eq!(accepted.unwrap().status(), StatusCode::OK);
    let shown = json!({ "fault": "slow", "next": 3, "delay_ms": 20, "probability": 0.5 });
    let faults = provider.url("/faults");
    assert_eq!(read(&faults).await, (StatusCode::OK, shown.clone()));
    for body in [
        r#"{"fault":"explode"}"#,
        r#"{"fault":"slow","delay_ms":600001}"#,
        r#"{"fault":"slow","probability":1.1}"#,
        r#"{"fault":"slow","often":true}"#,
        r#"{"next":1}"#,
    ] {
        let refused = put(body).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }
    assert_eq!(read(&faults).await, (StatusCode::OK, shown));

    let call = post(provider.url("/charges"), &charge("invoice-1"));
    let refused = call.header("x-provider-fault", "explode").send().await;
    assert_eq!(refused.unwrap().status(), StatusCode::BAD_REQUEST);
}
