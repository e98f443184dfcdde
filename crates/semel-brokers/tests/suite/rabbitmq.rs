//! The sink and the consumer against a real RabbitMQ: confirmed events are stored, and messages
//! that were not handled are redelivered.

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
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::{
    Broker, LIMIT, RETRIES, broker_url, event, eventually, next, publish_and_kill,
    publish_until_confirmed, unavailable_reason, unique_name,
};

const VARIABLE: &str = "SEMEL_TEST_RABBITMQ_URL";

/// A retry policy whose delays are longer than any test.
const LONG_DELAYS: Retries = Retries {
    backoff: Backoff {
        every: Duration::from_hours(1),
        max_every: Duration::from_hours(1),
    },
    max_tries: 3,
};

fn open_sink(url: &str, exchange: &str) -> Sink {
    Options::new(url, exchange)
        .ensure_exchange()
        .open()
        .unwrap()
}

/// Opens a connection for the test. The caller keeps it, because the channel closes with it.
async fn connect(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// Declares a durable queue and binds it to the exchange, as an operator would.
async fn bind_queue(channel: &Channel, exchange: &str, queue: &str, routing_key: &str) {
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

/// Reads all messages of a queue, and removes them from it.
async fn drain_queue(channel: &Channel, queue: &str) -> Vec<BasicGetMessage> {
    let mut messages = Vec::new();
    let options = BasicGetOptions { no_ack: true };
    while let Some(message) = channel.basic_get(queue.into(), options).await.unwrap() {
        messages.push(message);
    }
    messages
}

fn message_id(message: &BasicGetMessage) -> String {
    let id = message.delivery.properties.message_id().as_ref();
    id.map_or_else(String::new, ToString::to_string)
}

#[tokio::test]
async fn event_without_a_bound_queue_is_unavailable_and_then_published_with_all_fields() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let exchange = unique_name("fields");
    let sink = open_sink(&url, &exchange);
    let event = Event::new("payment.created", "payment/é", r#"{"a":1}"#).unwrap();
    let refused = sink.publish(&event).await;
    assert!(unavailable_reason(refused).contains("no queue is bound"));

    let (_connection, channel) = connect(&url).await;
    bind_queue(&channel, &exchange, &exchange, "payment.*").await;
    sink.publish(&event).await.unwrap();
    let messages = drain_queue(&channel, &exchange).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].delivery.routing_key.as_str(), "payment.created");
    assert_eq!(messages[0].delivery.data, event.payload);
    assert_eq!(message_id(&messages[0]), event.id.to_string());
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

/// The broker confirms several messages together, and returns those that no queue accepts.
#[tokio::test]
async fn concurrent_events_each_get_their_own_result() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let exchange = unique_name("results");
    let sink = open_sink(&url, &exchange);
    unavailable_reason(sink.publish(&event("bound")).await);
    let (_connection, channel) = connect(&url).await;
    bind_queue(&channel, &exchange, &exchange, "bound").await;

    let events: Vec<Event> = (0..400)
        .map(|n| event(if n % 3 == 0 { "unbound" } else { "bound" }))
        .collect();
    let publishing = events.iter().map(|event| sink.publish(event));
    let results = futures_util::future::join_all(publishing).await;
    for (event, result) in events.iter().zip(results) {
        let is_bound = &*event.kind == "bound";
        assert_eq!(result.is_ok(), is_bound, "{event:?}: {result:?}");
    }
}

#[tokio::test]
async fn missing_exchange_is_unavailable_and_long_routing_key_is_rejected() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let sink = Options::new(&*url, unique_name("missing"))
        .routing_key("semel.{kind}")
        .open()
        .unwrap();
    let refused = sink.publish(&event("k")).await;
    assert!(unavailable_reason(refused).contains("no exchange"));
    let long = event(&"k".repeat(255));
    let refused = sink.publish(&long).await;
    assert!(matches!(refused, Err(Refused::Rejected(_))), "{refused:?}");
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let invalid = Options::new("http://user:secret@127.0.0.1", "e").open();
    let Err(error @ Error::Address { .. }) = invalid else {
        panic!("{invalid:?}")
    };
    assert!(!error.to_string().contains("secret"), "{error}");
    let invalid = Options::new("amqp://127.0.0.1:1", "e")
        .routing_key("{king}")
        .open();
    assert!(matches!(invalid, Err(Error::Name { .. })), "{invalid:?}");

    let sink = open_sink("amqp://127.0.0.1:1", "e");
    unavailable_reason(sink.publish(&event("k")).await);
    let handler = async |_| Ok::<_, String>(());
    let invalid = Subscription::new("amqp://127.0.0.1:1", "q").in_flight(0);
    assert!(
        consume(invalid, handler, CancellationToken::new())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn confirmed_events_survive_a_broker_kill_and_both_sides_reconnect() {
    let Some(mut broker) = Broker::start_rabbitmq().await else {
        return;
    };
    let url = broker.url();
    let sink = open_sink(&url, "events");
    unavailable_reason(sink.publish(&event("k")).await);
    {
        let (_connection, channel) = connect(&url).await;
        bind_queue(&channel, "events", "unread", "k").await;
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
    publish_until_confirmed(&sink, &before).await;
    assert_eq!(*next(&mut begun).await, before.id.to_string());

    let results = publish_and_kill(&sink, &mut broker, "k").await;
    unavailable_reason(sink.publish(&event("k")).await);
    broker.start().await;

    let after = event("seen");
    publish_until_confirmed(&sink, &after).await;
    let seen = async { while *next(&mut begun).await != after.id.to_string() {} };
    tokio::time::timeout(LIMIT, seen).await.unwrap();
    shutdown.cancel();
    running.await.unwrap().unwrap();

    let (_connection, channel) = connect(&url).await;
    let stored: HashSet<String> = drain_queue(&channel, "unread")
        .await
        .iter()
        .map(message_id)
        .collect();
    let lost = results
        .confirmed
        .iter()
        .filter(|id| !stored.contains(&id.to_string()))
        .count();
    assert_eq!(lost, 0, "of {} confirmed", results.confirmed.len());
    let (confirmed, unconfirmed) = (results.confirmed.len(), results.unconfirmed);
    println!("{confirmed} confirmed, {unconfirmed} unconfirmed");
}

#[tokio::test]
async fn message_is_redelivered_until_a_handler_succeeds() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let name = unique_name("done");
    let subscription = Subscription::new(&*url, &*name).ensure_bound(&*name, "#");
    let (sender, mut begun) = mpsc::unbounded_channel();
    let aborted = tokio::spawn(consume(
        subscription.clone(),
        move |delivery: Delivery| {
            sender.send(delivery).unwrap();
            std::future::pending::<Result<(), String>>()
        },
        CancellationToken::new(),
    ));
    let sink = open_sink(&url, &name);
    let event = event("k");
    publish_until_confirmed(&sink, &event).await;
    let first = next(&mut begun).await;
    assert_eq!((&*first.id, first.tries), (&*event.id.to_string(), 1));
    assert_eq!(&*first.kind, "k");
    assert_eq!(first.aggregate.as_deref(), Some("payment/pay_789"));
    assert_eq!(first.payload, event.payload);
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());

    // A message that is held when the consumer stops is requeued at once.
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let stopping = tokio::spawn(consume(
        subscription.clone().retries(LONG_DELAYS),
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            std::future::ready(Err("no"))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 2, "the queue counts deliveries");
    shutdown.cancel();
    tokio::time::timeout(LIMIT, stopping)
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            std::future::ready(Ok::<_, String>(()))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 3);
    shutdown.cancel();
    tokio::time::timeout(LIMIT, running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let (_connection, channel) = connect(&url).await;
    assert_eq!(
        drain_queue(&channel, &name).await,
        [],
        "the message is acknowledged"
    );
}

#[tokio::test]
async fn failing_message_is_retried_with_backoff_then_dead_lettered() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let name = unique_name("dead");
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
                assert!(!panics, "a panic counts as a failure");
                if &*delivery.kind == "bad" {
                    Err("no")
                } else {
                    Ok(())
                }
            }
        },
        shutdown.clone(),
    ));
    let sink = open_sink(&url, &name);
    let (bad, good) = (event("bad"), event("good"));
    publish_until_confirmed(&sink, &bad).await;
    sink.publish(&good).await.unwrap();
    // Without an id, as other publishers may send it.
    let (_connection, channel) = connect(&url).await;
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
    // Messages are out of order, and one is delivered three times. Consumers need an inbox.
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
    eventually("both messages are dead letters", || async {
        let mut letters = letters.lock().await;
        letters.extend(drain_queue(&channel, &dead).await);
        letters.len() == 2
    })
    .await;
    let ids: HashSet<String> = letters.into_inner().iter().map(message_id).collect();
    assert_eq!(ids, HashSet::from([bad.id.to_string(), String::new()]));
    assert!(
        attempts.try_recv().is_err(),
        "a dead letter was delivered again"
    );
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
