//! What is confirmed is kept, and what is not done comes again: with a real RabbitMQ.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::collections::HashSet;
use std::time::Duration;

use lapin::message::BasicGetMessage;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_brokers::rabbitmq::{Options, Sink, Subscription};
use semel_brokers::{CancellationToken, Delivery, Error, Retries, consume};
use semel_core::Backoff;
use semel_core::outbox::{Event, Refused, Sink as _};
use support::{
    Broker, LIMIT, RETRIES, event, eventually, given, next, publish_and_kill, publish_until_kept,
    reason, unique,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

const VARIABLE: &str = "SEMEL_TEST_RABBITMQ_URL";

/// Pauses that outlast any test.
const LONG: Retries = Retries {
    backoff: Backoff {
        every: Duration::from_hours(1),
        max_every: Duration::from_hours(1),
    },
    max_tries: 3,
};

fn sink(url: &str, exchange: &str) -> Sink {
    Options::new(url, exchange)
        .ensure_exchange()
        .open()
        .unwrap()
}

/// A connection of the test's own; the channel alone would close with it.
async fn connected(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// A durable queue that is bound to the exchange, as an operator would have made it.
async fn queue(channel: &Channel, exchange: &str, queue: &str, routing_key: &str) {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let (none, bound) = (FieldTable::default(), QueueBindOptions::default());
    channel
        .queue_declare(queue.into(), options, none.clone())
        .await
        .unwrap();
    channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            bound,
            none,
        )
        .await
        .unwrap();
}

/// All that a queue holds, taken out of it.
async fn all(channel: &Channel, queue: &str) -> Vec<BasicGetMessage> {
    let mut all = Vec::new();
    let options = BasicGetOptions { no_ack: true };
    while let Some(message) = channel.basic_get(queue.into(), options).await.unwrap() {
        all.push(message);
    }
    all
}

fn id(message: &BasicGetMessage) -> String {
    let id = message.delivery.properties.message_id().as_ref();
    id.map_or_else(String::new, ToString::to_string)
}

#[tokio::test]
async fn an_event_arrives_whole_and_what_no_queue_takes_is_not_published() {
    let Some(url) = given(VARIABLE) else { return };
    let exchange = unique("whole");
    let sink = sink(&url, &exchange);
    let event = Event::new("payment.created", "payment/é", r#"{"a":1}"#).unwrap();
    let refused = sink.publish(&event).await;
    assert!(reason(refused).contains("no queue is bound"));

    let (_connection, channel) = connected(&url).await;
    queue(&channel, &exchange, &exchange, "payment.*").await;
    sink.publish(&event).await.unwrap();
    let messages = all(&channel, &exchange).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].delivery.routing_key.as_str(), "payment.created");
    assert_eq!(messages[0].delivery.data, event.payload);
    assert_eq!(id(&messages[0]), event.id.to_string());
    let properties = &messages[0].delivery.properties;
    assert_eq!(
        properties.kind().as_ref().unwrap().as_str(),
        "payment.created"
    );
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let aggregate = properties
        .headers()
        .as_ref()
        .unwrap()
        .inner()
        .get("semel-aggregate");
    assert_eq!(aggregate, Some(&AMQPValue::LongString("payment/é".into())));
}

/// The broker confirms many at once, and sends back what no queue takes.
#[tokio::test]
async fn of_many_at_once_each_is_told_its_own_fate() {
    let Some(url) = given(VARIABLE) else { return };
    let exchange = unique("fates");
    let sink = sink(&url, &exchange);
    reason(sink.publish(&event("taken")).await);
    let (_connection, channel) = connected(&url).await;
    queue(&channel, &exchange, &exchange, "taken").await;

    let events: Vec<Event> = (0..400)
        .map(|n| event(if n % 3 == 0 { "lost" } else { "taken" }))
        .collect();
    let publishing = events.iter().map(|event| sink.publish(event));
    let fates = futures_util::future::join_all(publishing).await;
    for (event, fate) in events.iter().zip(fates) {
        assert_eq!(fate.is_ok(), &*event.kind == "taken", "{event:?}: {fate:?}");
    }
}

#[tokio::test]
async fn a_missing_exchange_is_nobodys_fault_and_a_long_routing_key_is_the_events() {
    let Some(url) = given(VARIABLE) else { return };
    let sink = Options::new(&*url, unique("missing"))
        .routing_key("semel.{kind}")
        .open()
        .unwrap();
    let refused = sink.publish(&event("k")).await;
    assert!(reason(refused).contains("no exchange"));
    let long = event(&"k".repeat(255));
    let refused = sink.publish(&long).await;
    assert!(matches!(refused, Err(Refused::Rejected(_))), "{refused:?}");
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    let wrong = Options::new("http://user:secret@127.0.0.1", "e").open();
    let Err(error @ Error::Address { .. }) = wrong else {
        panic!("{wrong:?}")
    };
    assert!(!error.to_string().contains("secret"), "{error}");
    let wrong = Options::new("amqp://127.0.0.1:1", "e")
        .routing_key("{king}")
        .open();
    assert!(matches!(wrong, Err(Error::Name { .. })), "{wrong:?}");

    let sink = sink("amqp://127.0.0.1:1", "e");
    reason(sink.publish(&event("k")).await);
    let nothing = async |_| Ok::<_, String>(());
    let wrong = Subscription::new("amqp://127.0.0.1:1", "q").in_flight(0);
    assert!(
        consume(wrong, nothing, CancellationToken::new())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn what_is_confirmed_survives_a_killed_broker_and_both_sides_recover() {
    let Some(mut broker) = Broker::rabbitmq().await else {
        return;
    };
    let url = broker.url();
    let sink = sink(&url, "events");
    reason(sink.publish(&event("k")).await);
    {
        let (_connection, channel) = connected(&url).await;
        queue(&channel, "events", "kept", "k").await;
    }
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let handler = move |delivery: Delivery| {
        sender.send(delivery.id).unwrap();
        std::future::ready(Ok::<_, String>(()))
    };
    let subscription = Subscription::new(&*url, "seen")
        .classic_queues()
        .ensure_bound("events", "seen");
    let running = tokio::spawn(consume(subscription, handler, shutdown.clone()));
    let before = event("seen");
    publish_until_kept(&sink, &before).await;
    assert_eq!(*next(&mut begun).await, before.id.to_string());

    let fates = publish_and_kill(&sink, &mut broker, "k").await;
    reason(sink.publish(&event("k")).await);
    broker.start().await;

    let after = event("seen");
    publish_until_kept(&sink, &after).await;
    let seen = async { while *next(&mut begun).await != after.id.to_string() {} };
    tokio::time::timeout(LIMIT, seen).await.unwrap();
    shutdown.cancel();
    running.await.unwrap().unwrap();

    let (_connection, channel) = connected(&url).await;
    let there: HashSet<String> = all(&channel, "kept").await.iter().map(id).collect();
    let lost = fates
        .kept
        .iter()
        .filter(|id| !there.contains(&id.to_string()))
        .count();
    assert_eq!(lost, 0, "of {} confirmed", fates.kept.len());
    println!("{} confirmed, {} unclear", fates.kept.len(), fates.unclear);
}

#[tokio::test]
async fn a_message_is_acknowledged_only_when_it_is_done() {
    let Some(url) = given(VARIABLE) else { return };
    let name = unique("done");
    let subscription = Subscription::new(&*url, &*name).ensure_bound(&*name, "#");
    let (sender, mut begun) = mpsc::unbounded_channel();
    let dies = tokio::spawn(consume(
        subscription.clone(),
        move |delivery: Delivery| {
            sender.send(delivery).unwrap();
            std::future::pending::<Result<(), String>>()
        },
        CancellationToken::new(),
    ));
    let sink = sink(&url, &name);
    let event = event("k");
    publish_until_kept(&sink, &event).await;
    let first = next(&mut begun).await;
    assert_eq!((&*first.id, first.tries), (&*event.id.to_string(), 1));
    assert_eq!(&*first.kind, "k");
    assert_eq!(first.aggregate.as_deref(), Some("payment/pay_789"));
    assert_eq!(first.payload, event.payload);
    dies.abort();
    assert!(dies.await.unwrap_err().is_cancelled());

    // A failure that is held when the consumer stops goes back at once.
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let stops = tokio::spawn(consume(
        subscription.clone().retries(LONG),
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            std::future::ready(Err("no"))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 2, "the queue counts");
    shutdown.cancel();
    tokio::time::timeout(LIMIT, stops)
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let lives = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            std::future::ready(Ok::<_, String>(()))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 3);
    shutdown.cancel();
    tokio::time::timeout(LIMIT, lives)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let (_connection, channel) = connected(&url).await;
    assert_eq!(
        all(&channel, &name).await,
        [],
        "what is done is acknowledged"
    );
}

#[tokio::test]
async fn what_fails_comes_again_after_growing_pauses_and_is_dead_in_the_end() {
    let Some(url) = given(VARIABLE) else { return };
    let name = unique("dead");
    let subscription = Subscription::new(&*url, &*name)
        .ensure_bound(&*name, "#")
        .retries(RETRIES);
    let (sender, mut attempts) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            let seen = (delivery.kind.clone(), delivery.tries, Instant::now());
            sender.send(seen).unwrap();
            async move {
                let panics = &*delivery.kind == "bad" && delivery.tries == 2;
                assert!(!panics, "a panic is a failure");
                if &*delivery.kind == "bad" {
                    Err("no")
                } else {
                    Ok(())
                }
            }
        },
        shutdown.clone(),
    ));
    let sink = sink(&url, &name);
    let (bad, good) = (event("bad"), event("good"));
    publish_until_kept(&sink, &bad).await;
    sink.publish(&good).await.unwrap();
    // Without an id, as somebody else may send it.
    let (_connection, channel) = connected(&url).await;
    channel
        .basic_publish(
            name.as_str().into(),
            "plain".into(),
            BasicPublishOptions::default(),
            b"{}",
            BasicProperties::default(),
        )
        .await
        .unwrap();

    let mut bad_tries = Vec::new();
    let mut seen = Vec::new();
    while bad_tries.len() < 3 {
        let (kind, tries, at) = next(&mut attempts).await;
        if &*kind == "bad" {
            bad_tries.push((tries, at));
        }
        seen.push(kind);
    }
    // Out of order, and one of them three times: what an inbox is for.
    assert_eq!(seen.iter().filter(|kind| &***kind == "good").count(), 1);
    assert_eq!(seen.last().map(|kind| &**kind), Some("bad"));
    let [(1, first), (2, second), (3, third)] = bad_tries[..] else {
        panic!("{bad_tries:?}")
    };
    assert!(
        second - first >= Duration::from_millis(150),
        "{:?}",
        second - first
    );
    assert!(
        third - second >= Duration::from_millis(300),
        "{:?}",
        third - second
    );

    let dead = format!("{name}.dead");
    let letters = tokio::sync::Mutex::new(Vec::new());
    eventually("both are dead", || async {
        let mut letters = letters.lock().await;
        letters.extend(all(&channel, &dead).await);
        letters.len() == 2
    })
    .await;
    let ids: HashSet<String> = letters.into_inner().iter().map(id).collect();
    assert_eq!(ids, HashSet::from([bad.id.to_string(), String::new()]));
    assert!(attempts.try_recv().is_err(), "a dead message came again");
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
