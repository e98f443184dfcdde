//! The provider when it works: keys, queries, the ledger and its file.

use payments::provider::{ChargeStatus, Config};
use reqwest::StatusCode;
use serde_json::json;

use crate::harness::{Server, charge, json_of, ledger, post, read, summary};

#[tokio::test]
async fn a_charge_can_be_found_by_id_and_by_key() {
    let provider = Server::provider(Config::default()).await;
    let made =
        post(provider.url("/charges"), &charge("invoice-1")).header("idempotency-key", "a b&c");
    let made = made.send().await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    let location = made.headers()["location"].to_str().unwrap().to_owned();
    let made = json_of(made).await;
    assert_eq!(made["idempotency_key"], "a b&c");
    assert_eq!(made["amount"], 1000);
    assert_eq!(made["status"], "succeeded");

    let found = (StatusCode::OK, made);
    assert_eq!(read(&provider.url(&location)).await, found);
    let by_key = provider.url("/charges?idempotency_key=a%20b%26c");
    assert_eq!(read(&by_key).await, found);

    for unknown in ["/charges/ch_0", "/charges?idempotency_key=other"] {
        let (status, problem) = read(&provider.url(unknown)).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("not_found"))
        );
    }
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let provider = Server::provider(Config::default()).await;
    let send = |body| {
        post(provider.url("/charges"), &body)
            .header("idempotency-key", "k")
            .send()
    };
    let first = send(charge("invoice-1")).await.unwrap();
    assert_eq!(first.headers().get("idempotent-replayed"), None);
    let again = send(charge("invoice-1")).await.unwrap();
    assert_eq!(again.status(), StatusCode::CREATED);
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(json_of(first).await, json_of(again).await);

    let other = send(charge("invoice-2")).await.unwrap();
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(json_of(other).await["code"], "idempotency_key_reused");
    assert_eq!(ledger(&provider).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_duplicates_at_once_are_one_charge() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::with_ledger(directory.path().join("ledger.jsonl"));
    let provider = Server::provider(config).await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let call = post(provider.url("/charges"), &charge("invoice-1"));
            tokio::spawn(call.header("idempotency-key", "k").send())
        })
        .collect();
    let mut ids = Vec::new();
    let mut replayed = 0;
    for call in calls {
        let response = call.await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        replayed += usize::from(response.headers().contains_key("idempotent-replayed"));
        ids.push(json_of(response).await["id"].clone());
    }
    ids.dedup();
    assert_eq!((ids.len(), replayed), (1, 49));
    assert_eq!(ledger(&provider).await.len(), 1);
}

#[tokio::test]
async fn without_a_key_every_request_is_a_charge_and_the_summary_counts_it() {
    let provider = Server::provider(Config::default()).await;
    for reference in ["invoice-1", "invoice-1", "invoice-2"] {
        let made = post(provider.url("/charges"), &charge(reference))
            .send()
            .await;
        assert_eq!(made.unwrap().status(), StatusCode::CREATED);
    }
    let summary = summary(&provider).await;
    assert_eq!(
        (summary.count, summary.succeeded, summary.declined),
        (3, 3, 0)
    );
    assert!(summary.duplicate_keys.is_empty());
    assert_eq!(
        summary.duplicate_references.into_iter().collect::<Vec<_>>(),
        [("invoice-1".to_owned(), 2)]
    );
}

#[tokio::test]
async fn an_invalid_charge_is_refused_and_not_written() {
    let provider = Server::provider(Config::default()).await;
    let with = |name: &str, value| {
        let mut body = charge("invoice-1");
        body[name] = value;
        body
    };
    for body in [
        with("amount", json!(0)),
        with("amount", json!(-1)),
        with("amount", json!(10.5)),
        with("amount", json!("10")),
        with("currency", json!("eur")),
        with("reference", json!("")),
        with("reference", json!("x".repeat(256))),
        with("surprise", json!(true)),
    ] {
        let refused = post(provider.url("/charges"), &body).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }
    let twice = post(provider.url("/charges"), &charge("invoice-1"))
        .header("idempotency-key", "a")
        .header("idempotency-key", "a");
    assert_eq!(
        twice.send().await.unwrap().status(),
        StatusCode::BAD_REQUEST
    );
    let torn = post(provider.url("/charges"), &json!(null)).body("{\"amount\":");
    assert_eq!(torn.send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    assert_eq!(ledger(&provider).await, []);
}

#[tokio::test]
async fn the_ledger_and_its_keys_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.jsonl");
    let provider = Server::provider(Config::with_ledger(&path)).await;
    let send = |url: String| {
        post(url, &charge("invoice-1"))
            .header("idempotency-key", "k")
            .send()
    };
    let first = json_of(send(provider.url("/charges")).await.unwrap()).await;
    let before = ledger(&provider).await;
    provider.stop().await;

    // As if it had died while it wrote the next one.
    let mut text = std::fs::read_to_string(&path).unwrap();
    let whole = text.clone();
    text.push_str("{\"id\":\"ch_torn\",\"idempot");
    std::fs::write(&path, text).unwrap();

    let provider = Server::provider(Config::with_ledger(&path)).await;
    assert_eq!(ledger(&provider).await, before);
    assert_eq!(before[0].status, ChargeStatus::Succeeded);
    let again = send(provider.url("/charges")).await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(json_of(again).await, first);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    let next = post(provider.url("/charges"), &charge("invoice-2"))
        .send()
        .await;
    assert_eq!(next.unwrap().status(), StatusCode::CREATED);
    provider.stop().await;
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn an_invalid_ledger_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.jsonl");
    std::fs::write(&path, "{}\n").unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::with_ledger(&path);
    let error = payments::provider::serve(listener, config, std::future::pending()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("line 1 of the ledger"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
}

#[tokio::test]
async fn a_refund_is_an_entry_of_its_own_and_never_more_than_was_charged() {
    let directory = tempfile::tempdir().unwrap();
    let config = || Config::with_ledger(directory.path().join("ledger.jsonl"));
    let provider = Server::provider(config()).await;
    let made = post(provider.url("/charges"), &charge("invoice-1"));
    let made = json_of(made.send().await.unwrap()).await;
    let refund = |provider: &Server, key: &str, amount: i64| {
        let body = serde_json::json!({ "charge_id": made["id"], "amount": amount });
        let call = post(provider.url("/refunds"), &body);
        call.header("idempotency-key", key.to_owned()).send()
    };
    let first = refund(&provider, "k1", 600).await.unwrap();
    assert_eq!(first.status(), StatusCode::CREATED);
    let first = json_of(first).await;
    assert_eq!(first["charge_id"], made["id"]);
    let again = refund(&provider, "k1", 600).await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(json_of(again).await, first);
    for (key, amount) in [("k1", 601), ("k2", 401)] {
        let refused = refund(&provider, key, amount).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{key}");
    }
    assert!(
        refund(&provider, "k2", 400)
            .await
            .unwrap()
            .status()
            .is_success()
    );
    let counted = summary(&provider).await;
    assert_eq!((counted.count, counted.refunds), (1, 2));
    assert_eq!(
        counted.refunded_more_than_once[made["id"].as_str().unwrap()],
        2
    );
    assert_eq!(counted.duplicate_refund_keys.len(), 0);

    // A ledger that was read again knows as much.
    provider.stop().await;
    let provider = Server::provider(config()).await;
    assert_eq!(summary(&provider).await, counted);
    let too_much = refund(&provider, "k3", 1).await.unwrap();
    assert_eq!(too_much.status(), StatusCode::UNPROCESSABLE_ENTITY);
}
