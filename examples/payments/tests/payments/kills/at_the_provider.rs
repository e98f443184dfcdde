//! The shop is killed while the provider has the call: nobody can see then whether it happened.

use payments::provider::{self, Fault, Faults};
use reqwest::StatusCode;

use crate::harness::{Server, put_faults, read, read_until};
use crate::supervised::{Shop, charges, order};

/// The provider has read the call and not charged yet; it will, whether or not anybody waits.
#[tokio::test]
async fn a_charge_that_is_made_after_the_death_is_the_only_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let provider = Server::provider(provider::Config::default()).await;
    put_faults(&provider, Faults::next(1, Fault::Slow)).await;
    let shop = Shop::start(&store, &provider.url, &[]).await.unwrap();
    let order = order("invoice-1");
    let (url, body) = (shop.url("/payments"), order.clone());
    let waiting = tokio::spawn(async move {
        let call = crate::harness::post(url, &body);
        let call = call.header("x-account-id", "acc_1");
        call.header("idempotency-key", "\"key-of-invoice-1\"")
            .send()
            .await
    });
    let (held, pending) = (provider.url("/pending"), StatusCode::OK);
    while read_until(&held, pending).await != serde_json::json!(1) {}
    shop.kill().await;
    assert!(
        waiting.await.unwrap().is_err(),
        "it died before it could answer"
    );

    let shop = Shop::start(&store, &provider.url, &[]).await.unwrap();
    let answer = shop.insist("/payments", "key-of-invoice-1", &order).await;
    // The first call goes on, and finds that it was made.
    put_faults(&provider, Faults::default()).await;
    while read(&held).await.1 != serde_json::json!(0) {}
    assert_eq!(charges(&provider.url, "invoice-1").await, 1);
    let again = shop
        .ask("/payments", "key-of-invoice-1", &order)
        .await
        .unwrap();
    assert_eq!((again.replayed, again.body), (true, answer.body));
    let one = |summary: &payments::shop::Summary| {
        (summary.succeeded, summary.ledger_entries, summary.receipts) == (1, 1, 1)
    };
    shop.until(one).await.unwrap();
}

/// The provider has charged, and the answer was lost with the shop.
#[tokio::test]
async fn a_charge_whose_answer_was_lost_is_asked_for_again_and_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let provider = Server::provider(provider::Config::default()).await;
    // Whatever it is asked while this shop lives, it charges and says nothing.
    put_faults(&provider, Faults::every(Fault::ResetAfterSuccess)).await;
    let shop = Shop::start(&store, &provider.url, &[]).await.unwrap();
    let order = order("invoice-1");
    let (url, body) = (shop.url("/payments"), order.clone());
    let waiting = tokio::spawn(async move {
        let call = crate::harness::post(url, &body);
        let call = call.header("x-account-id", "acc_1");
        call.header("idempotency-key", "\"key-of-invoice-1\"")
            .send()
            .await
    });
    while charges(&provider.url, "invoice-1").await == 0 {}
    shop.kill().await;
    drop(waiting);

    put_faults(&provider, Faults::default()).await;
    let shop = Shop::start(&store, &provider.url, &[]).await.unwrap();
    // Nobody asks: the completer finds out by itself.
    let one = |summary: &payments::shop::Summary| {
        (summary.succeeded, summary.ledger_entries, summary.receipts) == (1, 1, 1)
    };
    shop.until(one).await.unwrap();
    let answer = shop
        .ask("/payments", "key-of-invoice-1", &order)
        .await
        .unwrap();
    assert_eq!(
        (answer.status, answer.replayed),
        (StatusCode::CREATED, true)
    );
    assert_eq!(charges(&provider.url, "invoice-1").await, 1);
}
