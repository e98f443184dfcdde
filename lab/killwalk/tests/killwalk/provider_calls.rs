//! The shop is killed while the provider has the call. Neither the shop nor its client can know
//! then whether the charge was made.

use payments::provider::{Fault, Faults};
use payments::shop::Summary;
use reqwest::StatusCode;

use crate::harness::{Provider, post};
use crate::shop_process::{ShopProcess, order};

const KEY: &str = "key-of-invoice-1";

fn paid_once(summary: &Summary) -> bool {
    (summary.succeeded, summary.ledger_entries, summary.receipts) == (1, 1, 1)
}

/// The provider has read the call and charges later, although its client is gone.
#[tokio::test]
async fn a_charge_made_after_the_shop_died_is_the_only_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let provider = Provider::start().await;
    provider.put_faults(Faults::next(1, Fault::Slow)).await;
    let shop = ShopProcess::start(&store, &provider.url).await.unwrap();
    let order = order("invoice-1");
    let call = post(shop.url("/payments"), KEY, &order);
    let waiting = tokio::spawn(call.send());
    while provider.pending().await != 1 {}
    shop.kill().await;
    assert!(
        waiting.await.unwrap().is_err(),
        "it died before it could answer"
    );

    let shop = ShopProcess::start(&store, &provider.url).await.unwrap();
    let answer = shop.retry_until_created("/payments", KEY, &order).await;
    // Ends the delay of the first call, which then finds that the charge exists.
    provider.put_faults(Faults::default()).await;
    while provider.pending().await != 0 {}
    assert_eq!(provider.charges("invoice-1").await, 1);
    let again = shop.send("/payments", KEY, &order).await.unwrap();
    assert_eq!((again.replayed, again.body), (true, answer.body));
    shop.wait_for(paid_once).await.unwrap();
}

/// The provider has charged, and its answer was lost with the shop.
#[tokio::test]
async fn a_charge_whose_answer_was_lost_is_requested_again_and_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("shop.db").display());
    let provider = Provider::start().await;
    // While this shop lives, the provider charges and never answers.
    let no_answers = Faults::every(Fault::ResetAfterSuccess);
    provider.put_faults(no_answers).await;
    let shop = ShopProcess::start(&store, &provider.url).await.unwrap();
    let order = order("invoice-1");
    let call = post(shop.url("/payments"), KEY, &order);
    let waiting = tokio::spawn(call.send());
    while provider.charges("invoice-1").await == 0 {}
    shop.kill().await;
    drop(waiting);

    provider.put_faults(Faults::default()).await;
    let shop = ShopProcess::start(&store, &provider.url).await.unwrap();
    // The client does not retry: the completer finishes the payment.
    shop.wait_for(paid_once).await.unwrap();
    let answer = shop.send("/payments", KEY, &order).await.unwrap();
    assert_eq!(
        (answer.status, answer.replayed),
        (StatusCode::CREATED, true)
    );
    assert_eq!(provider.charges("invoice-1").await, 1);
}
