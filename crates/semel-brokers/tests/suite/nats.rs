//! The sink and the consumer against a real NATS server: confirmed events are stored, and messages
//! that were not handled are redelivered.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use semel_brokers::nats::{Options, Sink, Stream, Subscription};
use semel_brokers::{CancellationToken, Delivery, Error, consume};
use semel_core::outbox::{Event, Refused, Sink as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::{
    Broker, LIMIT, RETRIES, broker_url, event, eventually, next, publish_and_kill,
    publish_until_confirmed, unavailable_reason, unique_name,
};

const VARIABLE: &str = "SEMEL_TEST_NATS_URL";

/// Opens a sink and creates a stream for it.
async fn open_sink(url: &str, stream: &str) -> Sink {
    Options::new(url)
        .subject(format!("{stream}.{{kind}}"))
        .ensure_stream(Stream::new(stream))
        .open()
        .await
        .unwrap()
}

async fn connect(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

/// Reads all messages of a stream.
async fn read_all(url: &str, stream: &str) -> Vec<jetstream::Message> {
    let stream = connect(url).await.get_stream(stream).await.unwrap();
    let count = stream.get_info().await.unwrap().state.messages;
    let count = usize::try_from(count).unwrap();
    let config = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::None,
        ..consumer::pull::Config::default()
    };
    let consumer: PullConsumer = stream.create_consumer(config).await.unwrap();
    let messages = consumer.messages().await.unwrap();
    messages.take(count).map(Result::unwrap).collect().await
}

fn message_id(message: &jetstream::Message) -> String {
    let headers = message.headers.as_ref().unwrap();
    headers.get("Nats-Msg-Id").unwrap().as_str().to_owned()
}

async fn message_ids(url: &str, stream: &str) -> HashSet<String> {
    read_all(url, stream).await.iter().map(message_id).collect()
}

/// Whether all messages are delivered and acknowledged.
async fn is_drained(url: &str, stream: &str, consumer: &str) -> bool {
    let stream = connect(url).await.get_stream(stream).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer(consumer).await.unwrap();
    let info = consumer.get_info().await.unwrap();
    info.num_pending == 0 && info.num_ack_pending == 0
}

#[tokio::test]
async fn event_published_repeatedly_is_stored_once_with_all_fields() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("fields");
    let sink = open_sink(&url, &stream).await;
    let event = Event::new(
        "payment.created",
        "payment/é",
        Bytes::from_static(b"{\"a\":1}"),
    )
    .unwrap();
    for _ in 0..3 {
        sink.publish(&event).await.unwrap();
    }
    let messages = read_all(&url, &stream).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(
        messages[0].subject.as_str(),
        format!("{stream}.payment.created")
    );
    assert_eq!(messages[0].payload, event.payload);
    assert_eq!(message_id(&messages[0]), event.id.to_string());
    let headers = messages[0].headers.as_ref().unwrap();
    assert_eq!(
        headers.get("Semel-Event-Kind").unwrap().as_str(),
        "payment.created"
    );
    assert_eq!(
        headers.get("Semel-Aggregate").unwrap().as_str(),
        "payment/é"
    );
}

#[tokio::test]
async fn missing_stream_is_unavailable_and_oversized_event_is_rejected() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("faults");
    let sink = Options::new(&*url)
        .subject(format!("{stream}.{{kind}}"))
        .open()
        .await
        .unwrap();
    let refused = sink.publish(&event("k")).await;
    assert!(unavailable_reason(refused).contains("no stream stores the subject"));

    let config = stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        max_message_size: 200,
        ..stream::Config::default()
    };
    connect(&url).await.create_stream(config).await.unwrap();
    sink.publish(&event("k")).await.unwrap();
    // Larger than the limit of the stream, and larger than that of the server.
    for bytes in [300, 1 << 20] {
        let large = Event::new("k", "a", vec![b'1'; bytes]).unwrap();
        let refused = sink.publish(&large).await;
        assert!(
            matches!(refused, Err(Refused::Rejected(_))),
            "{bytes}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn deleted_stream_is_created_again() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("again");
    let sink = open_sink(&url, &stream).await;
    sink.publish(&event("k")).await.unwrap();
    connect(&url).await.delete_stream(&stream).await.unwrap();
    unavailable_reason(sink.publish(&event("k")).await);
    sink.publish(&event("k")).await.unwrap();
}

#[tokio::test]
async fn confirmed_events_survive_a_broker_kill_and_the_sink_reconnects() {
    let Some(mut broker) = Broker::start_nats().await else {
        return;
    };
    let url = broker.url();
    let sink = open_sink(&url, "events").await;
    let results = publish_and_kill(&sink, &mut broker, "k").await;
    unavailable_reason(sink.publish(&event("k")).await);

    broker.start().await;
    let after = event("k");
    publish_until_confirmed(&sink, &after).await;

    let stored = message_ids(&url, "events").await;
    let lost = results
        .confirmed
        .iter()
        .filter(|id| !stored.contains(&id.to_string()))
        .count();
    assert_eq!(lost, 0, "of {} confirmed", results.confirmed.len());
    assert!(stored.contains(&after.id.to_string()));
    let (confirmed, unconfirmed) = (results.confirmed.len(), results.unconfirmed);
    println!("{confirmed} confirmed, {unconfirmed} unconfirmed");
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let open = async |url: &str, subject: &str| {
        Options::new(url).subject(subject).open().await.map(|_| ())
    };
    for subject in [
        "{kind}",
        "{kind}.x",
        "a{kind}",
        "$JS.{kind}",
        "_INBOX.{kind}",
        "a..{kind}",
        "a.*",
    ] {
        let opened = open("nats://127.0.0.1:1", subject).await;
        assert!(
            matches!(opened, Err(Error::Name { .. })),
            "{subject}: {opened:?}"
        );
    }
    let opened = open("ftp://user:secret@127.0.0.1", "a.{kind}").await;
    let Err(error @ Error::Address { .. }) = opened else {
        panic!("{opened:?}")
    };
    assert!(!error.to_string().contains("secret"), "{error}");

    let handler = async |_| Ok::<_, String>(());
    for (stream, in_flight) in [("a.b", 1), ("", 1), ("a", 0)] {
        let invalid = Subscription::new("nats://127.0.0.1:1", stream, "c").in_flight(in_flight);
        assert!(
            consume(invalid, handler, CancellationToken::new())
                .await
                .is_err()
        );
    }
}

#[tokio::test]
async fn message_is_redelivered_until_a_handler_succeeds() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("done");
    let sink = open_sink(&url, &stream).await;
    let event = event("k");
    sink.publish(&event).await.unwrap();

    let subscription =
        Subscription::new(&*url, &*stream, "ledger").ack_wait(Duration::from_secs(1));
    let (sender, mut begun) = mpsc::unbounded_channel();
    let aborted = tokio::spawn(consume(
        subscription.clone(),
        move |delivery: Delivery| {
            sender.send(delivery).unwrap();
            std::future::pending::<Result<(), String>>()
        },
        CancellationToken::new(),
    ));
    let first = next(&mut begun).await;
    assert_eq!((&*first.id, first.tries), (&*event.id.to_string(), 1));
    assert_eq!(&*first.kind, "k");
    assert_eq!(first.aggregate.as_deref(), Some("payment/pay_789"));
    assert_eq!(first.payload, event.payload);
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());

    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery).unwrap();
            std::future::ready(Ok::<_, String>(()))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await.tries, 2);
    eventually("the message is acknowledged", || {
        is_drained(&url, &stream, "ledger")
    })
    .await;
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn message_of_a_slow_handler_is_not_redelivered() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("long");
    let sink = open_sink(&url, &stream).await;
    sink.publish(&event("k")).await.unwrap();
    let subscription = Subscription::new(&*url, &*stream, "c").ack_wait(Duration::from_secs(1));
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            async {
                // sleeps because the broker's ack_wait is in real time
                tokio::time::sleep(Duration::from_millis(2500)).await;
                Ok::<_, String>(())
            }
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 1);
    eventually("the message is acknowledged", || {
        is_drained(&url, &stream, "c")
    })
    .await;
    assert!(
        begun.try_recv().is_err(),
        "delivered again while the handler was running"
    );
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn failing_message_is_retried_with_backoff_then_dead_lettered() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("dead");
    let sink = open_sink(&url, &stream).await;
    let (bad, good) = (event("bad"), event("good"));
    sink.publish(&bad).await.unwrap();
    sink.publish(&good).await.unwrap();
    // Without an id, as other publishers may send it.
    let plain = connect(&url).await;
    let sent = plain
        .publish(format!("{stream}.plain"), "{}".into())
        .await
        .unwrap();
    sent.await.unwrap();

    let dead = unique_name("letters");
    let letters = stream::Config {
        name: dead.clone(),
        ..stream::Config::default()
    };
    let subscription = Subscription::new(&*url, &*stream, "c")
        .retries(RETRIES)
        .dead_subject(&*dead);
    let (sender, mut attempts) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender
                .send((delivery.kind.clone(), delivery.tries, Instant::now()))
                .unwrap();
            async move {
                let panics = &*delivery.kind == "bad" && delivery.tries == 2;
                assert!(!panics, "a panic counts as a failure");
                if &*delivery.kind == "bad" {
                    Err("no\nnever")
                } else {
                    Ok(())
                }
            }
        },
        shutdown.clone(),
    ));
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

    // Until now no stream stores the dead-letter subject, so the messages were not terminated.
    plain.create_stream(letters).await.unwrap();
    eventually("all messages are settled", || {
        is_drained(&url, &stream, "c")
    })
    .await;
    let letters = read_all(&url, &dead).await;
    assert_eq!(letters.len(), 2);
    let reason = |letter: &jetstream::Message| {
        let headers = letter.headers.as_ref().unwrap();
        headers
            .get("Semel-Dead-Reason")
            .unwrap()
            .as_str()
            .to_owned()
    };
    let reasons: HashSet<String> = letters.iter().map(reason).collect();
    assert!(
        reasons
            .iter()
            .any(|reason| reason.starts_with("the message has no id")),
        "{reasons:?}"
    );
    assert!(
        reasons.contains("no never")
            || reasons.contains("delivered 4 times without an acknowledgement"),
        "{reasons:?}"
    );
    assert!(
        attempts.try_recv().is_err(),
        "a dead letter was delivered again"
    );
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn consumer_resumes_after_a_broker_kill() {
    let Some(mut broker) = Broker::start_nats().await else {
        return;
    };
    let url = broker.url();
    let sink = open_sink(&url, "events").await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let handler = move |delivery: Delivery| {
        sender.send(delivery.id).unwrap();
        std::future::ready(Ok::<_, String>(()))
    };
    // Before the stream exists.
    let subscription = Subscription::new(&*url, "events", "c");
    let running = tokio::spawn(consume(subscription, handler, shutdown.clone()));
    let before = event("k");
    publish_until_confirmed(&sink, &before).await;
    assert_eq!(*next(&mut begun).await, before.id.to_string());

    broker.kill().await;
    broker.start().await;
    let after = event("k");
    publish_until_confirmed(&sink, &after).await;
    // The server may redeliver what was acknowledged just before: it keeps that in memory at first.
    let seen = async { while *next(&mut begun).await != after.id.to_string() {} };
    tokio::time::timeout(LIMIT, seen).await.unwrap();
    shutdown.cancel();
    tokio::time::timeout(LIMIT, running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn shutdown_waits_for_running_handlers() {
    let Some(url) = broker_url(VARIABLE) else {
        return;
    };
    let stream = unique_name("drain");
    let sink = open_sink(&url, &stream).await;
    sink.publish(&event("k")).await.unwrap();
    let (sender, mut begun) = mpsc::unbounded_channel();
    let (release, released) = tokio::sync::watch::channel(false);
    let shutdown = CancellationToken::new();
    let handler = move |_| {
        let mut released = released.clone();
        sender.send(()).unwrap();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Ok::<_, String>(())
        }
    };
    let subscription = Subscription::new(&*url, &*stream, "c");
    let running = tokio::spawn(consume(subscription, handler, shutdown.clone()));
    next(&mut begun).await;
    shutdown.cancel();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!running.is_finished(), "it waits for the running handler");
    assert!(!is_drained(&url, &stream, "c").await);
    release.send(true).unwrap();
    tokio::time::timeout(LIMIT, running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    eventually("the message is acknowledged", || {
        is_drained(&url, &stream, "c")
    })
    .await;
}
