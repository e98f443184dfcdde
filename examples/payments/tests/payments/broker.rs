//! The shop's consumers behind a real broker that delivers every event twice and in another order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_nats::jetstream::consumer::PullConsumer;
use payments::provider;
use payments::shop::{Config, Database, EventTransport, Summary};
use reqwest::StatusCode;
use semel::OperationId;
use semel::brokers::{CancellationToken, Delivery, consume, nats};
use semel::outbox::{Event, Sink as _};
use serde_json::{Value, json};

use crate::harness::{MAX_POLLS, Server, json_of, order, post, wait_for_books};

const PAYMENTS: i64 = 12;

#[tokio::test(flavor = "multi_thread")]
async fn events_delivered_twice_and_out_of_order_take_effect_once() {
    let Ok(url) = std::env::var("SEMEL_TEST_NATS_URL") else {
        println!("SKIPPED: SEMEL_TEST_NATS_URL is not set");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let provider = Server::provider(provider::Config::default()).await;
    let shop = |database: &str, stream: &str, name: &str| {
        let database = Database::Sqlite(directory.path().join(database));
        let mut config = Config::new(&provider.url, database);
        config.events = EventTransport::Nats {
            url: url.clone(),
            stream: stream.to_owned(),
        };
        config.name = name.to_owned();
        Server::shop(config)
    };
    let stream = |n: u8| format!("shop-{}-{n}", OperationId::generate());
    let (original, forwards, backwards) = (stream(1), stream(2), stream(3));

    // One shop sells and refunds, and its events go through the broker.
    let seller = shop("seller.db", &original, "seller").await;
    for n in 0..PAYMENTS {
        let paid = ask(
            &seller,
            "/payments",
            &format!("pay-{n}"),
            &order(&format!("i-{n}")),
        )
        .await;
        let path = format!("/payments/{}/refunds", paid["id"].as_str().unwrap());
        ask(
            &seller,
            &path,
            &format!("refund-{n}"),
            &json!({ "amount": 300 }),
        )
        .await;
    }
    let once = Summary {
        ledger_entries: 2 * PAYMENTS,
        ledger_total: 700 * PAYMENTS,
        receipts: PAYMENTS,
        ..Summary::default()
    };
    let sold = Summary {
        succeeded: PAYMENTS,
        refunded: PAYMENTS,
        ..once
    };
    wait_for_books(&seller, sold).await;
    let events = collect_events(&url, &original).await;

    // Two others share one set of books, and receive the same events in order and in reverse, where a
    // refund comes before its payment.
    let first = shop("books.db", &forwards, "first").await;
    let second = shop("books.db", &backwards, "second").await;
    // Both have begun, on a file that neither had opened before.
    for shop in [&first, &second] {
        wait_for_books(shop, Summary::default()).await;
    }
    publish(&url, &forwards, events.iter()).await;
    publish(&url, &backwards, events.iter().rev()).await;
    for stream in [&forwards, &backwards] {
        for consumer in ["ledger", "receipts"] {
            wait_for_acknowledgements(&url, stream, consumer).await;
        }
    }
    wait_for_books(&first, once).await;
    wait_for_books(&second, once).await;
    for stream in [&original, &forwards, &backwards] {
        jetstream(&url).await.delete_stream(stream).await.unwrap();
    }
}

async fn ask(shop: &Server, path: &str, key: &str, body: &Value) -> Value {
    let call = post(shop.url(path), body).header("x-account-id", "acc_1");
    let call = call.header("idempotency-key", format!("\"{key}\""));
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    json_of(answer).await
}

/// Every event of a stream, in the order of their ids.
async fn collect_events(url: &str, stream: &str) -> Vec<Event> {
    let received = Arc::new(Mutex::new(BTreeMap::new()));
    let stop = CancellationToken::new();
    let (all, enough) = (Arc::clone(&received), stop.clone());
    let handler = move |delivery: Delivery| {
        let event = Event {
            id: delivery.id.parse().unwrap(),
            kind: delivery.kind,
            aggregate: delivery.aggregate.unwrap(),
            payload: delivery.payload,
        };
        let mut all = all.lock().unwrap();
        all.insert(event.id, event);
        if all.len() == usize::try_from(2 * PAYMENTS).unwrap() {
            enough.cancel();
        }
        async { Ok::<_, std::io::Error>(()) }
    };
    let subscription = nats::Subscription::new(url, stream, "listener");
    consume(subscription, handler, stop).await.unwrap();
    let received = std::mem::take(&mut *received.lock().unwrap());
    received.into_values().collect()
}

/// Publishes these events in a stream.
async fn publish(url: &str, stream: &str, events: impl Iterator<Item = &Event>) {
    let options = nats::Options::new(url)
        .subject(format!("{stream}.{{kind}}"))
        .ensure_stream(nats::Stream::new(stream));
    let sink = options.open().await.unwrap();
    for event in events {
        sink.publish(event).await.unwrap();
    }
}

async fn wait_for_acknowledgements(url: &str, stream: &str, consumer: &str) {
    let jetstream = jetstream(url).await;
    let mut last = None;
    for _ in 0..MAX_POLLS {
        // The shop makes it when it first finds the stream.
        let stream = jetstream.get_stream(stream).await.unwrap();
        let Ok(mut consumer): Result<PullConsumer, _> = stream.get_consumer(consumer).await else {
            continue;
        };
        let info = consumer.info().await.unwrap();
        let delivered = info.delivered.consumer_sequence > 0;
        if delivered && info.num_pending == 0 && info.num_ack_pending == 0 {
            return;
        }
        last = Some(info.clone());
    }
    panic!("{consumer} never acknowledged all of {stream}: {last:?}");
}

async fn jetstream(url: &str) -> async_nats::jetstream::Context {
    async_nats::jetstream::new(async_nats::connect(url).await.unwrap())
}
