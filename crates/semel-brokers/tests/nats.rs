//! What is confirmed is kept, and what is not done comes again: with a real NATS.
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

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use semel_brokers::nats::{Options, Sink, Stream, Subscription};
use semel_brokers::{CancellationToken, Delivery, Error, consume};
use semel_core::outbox::{Event, Refused, Sink as _};
use support::{
    Broker, LIMIT, RETRIES, event, eventually, given, next, publish_and_kill, publish_until_kept,
    reason, unique,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

const VARIABLE: &str = "SEMEL_TEST_NATS_URL";

/// A sink with a stream of its own.
async fn sink(url: &str, stream: &str) -> Sink {
    Options::new(url)
        .subject(format!("{stream}.{{kind}}"))
        .ensure_stream(Stream::new(stream))
        .open()
        .await
        .unwrap()
}

async fn jetstream(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

/// All that a stream holds.
async fn all(url: &str, stream: &str) -> Vec<jetstream::Message> {
    let stream = jetstream(url).await.get_stream(stream).await.unwrap();
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

fn id(message: &jetstream::Message) -> String {
    let headers = message.headers.as_ref().unwrap();
    headers.get("Nats-Msg-Id").unwrap().as_str().to_owned()
}

async fn ids(url: &str, stream: &str) -> HashSet<String> {
    all(url, stream).await.iter().map(id).collect()
}

/// Whether the broker waits for no news of any message.
async fn is_settled(url: &str, stream: &str, consumer: &str) -> bool {
    let stream = jetstream(url).await.get_stream(stream).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer(consumer).await.unwrap();
    let info = consumer.get_info().await.unwrap();
    info.num_pending == 0 && info.num_ack_pending == 0
}

#[tokio::test]
async fn an_event_arrives_whole_and_once_however_often_it_is_published() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("whole");
    let sink = sink(&url, &stream).await;
    let event = Event::new(
        "payment.created",
        "payment/é",
        Bytes::from_static(b"{\"a\":1}"),
    )
    .unwrap();
    for _ in 0..3 {
        sink.publish(&event).await.unwrap();
    }
    let messages = all(&url, &stream).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(
        messages[0].subject.as_str(),
        format!("{stream}.payment.created")
    );
    assert_eq!(messages[0].payload, event.payload);
    assert_eq!(id(&messages[0]), event.id.to_string());
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
async fn no_stream_is_nobodys_fault_and_a_large_event_is_its_own() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("faults");
    let sink = Options::new(&*url)
        .subject(format!("{stream}.{{kind}}"))
        .open()
        .await
        .unwrap();
    let refused = sink.publish(&event("k")).await;
    assert!(reason(refused).contains("no stream takes the subject"));

    let config = stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        max_message_size: 200,
        ..stream::Config::default()
    };
    jetstream(&url).await.create_stream(config).await.unwrap();
    sink.publish(&event("k")).await.unwrap();
    // More than the stream takes, and more than the server takes.
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
async fn a_stream_that_was_deleted_is_created_again() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("again");
    let sink = sink(&url, &stream).await;
    sink.publish(&event("k")).await.unwrap();
    jetstream(&url).await.delete_stream(&stream).await.unwrap();
    reason(sink.publish(&event("k")).await);
    sink.publish(&event("k")).await.unwrap();
}

#[tokio::test]
async fn what_is_confirmed_survives_a_killed_broker_and_the_sink_recovers() {
    let Some(mut broker) = Broker::nats().await else {
        return;
    };
    let url = broker.url();
    let sink = sink(&url, "events").await;
    let fates = publish_and_kill(&sink, &mut broker, "k").await;
    reason(sink.publish(&event("k")).await);

    broker.start().await;
    let after = event("k");
    publish_until_kept(&sink, &after).await;

    let there = ids(&url, "events").await;
    let lost = fates
        .kept
        .iter()
        .filter(|id| !there.contains(&id.to_string()))
        .count();
    assert_eq!(lost, 0, "of {} confirmed", fates.kept.len());
    assert!(there.contains(&after.id.to_string()));
    println!("{} confirmed, {} unclear", fates.kept.len(), fates.unclear);
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
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

    let nothing = async |_| Ok::<_, String>(());
    for (stream, in_flight) in [("a.b", 1), ("", 1), ("a", 0)] {
        let wrong = Subscription::new("nats://127.0.0.1:1", stream, "c").in_flight(in_flight);
        assert!(
            consume(wrong, nothing, CancellationToken::new())
                .await
                .is_err()
        );
    }
}

#[tokio::test]
async fn a_message_is_acknowledged_only_when_it_is_done() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("done");
    let sink = sink(&url, &stream).await;
    let event = event("k");
    sink.publish(&event).await.unwrap();

    let subscription =
        Subscription::new(&*url, &*stream, "ledger").ack_wait(Duration::from_secs(1));
    let (sender, mut begun) = mpsc::unbounded_channel();
    let dies = tokio::spawn(consume(
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
    dies.abort();
    assert!(dies.await.unwrap_err().is_cancelled());

    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let lives = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery).unwrap();
            std::future::ready(Ok::<_, String>(()))
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await.tries, 2);
    eventually("it is acknowledged", || is_settled(&url, &stream, "ledger")).await;
    shutdown.cancel();
    lives.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_long_handler_keeps_its_message() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("long");
    let sink = sink(&url, &stream).await;
    sink.publish(&event("k")).await.unwrap();
    let subscription = Subscription::new(&*url, &*stream, "c").ack_wait(Duration::from_secs(1));
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consume(
        subscription,
        move |delivery: Delivery| {
            sender.send(delivery.tries).unwrap();
            async {
                // sleeps because the broker's patience is in real time
                tokio::time::sleep(Duration::from_millis(2500)).await;
                Ok::<_, String>(())
            }
        },
        shutdown.clone(),
    ));
    assert_eq!(next(&mut begun).await, 1);
    eventually("it is acknowledged", || is_settled(&url, &stream, "c")).await;
    assert!(
        begun.try_recv().is_err(),
        "delivered again while it was treated"
    );
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_fails_comes_again_after_growing_pauses_and_is_dead_in_the_end() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("dead");
    let sink = sink(&url, &stream).await;
    let (bad, good) = (event("bad"), event("good"));
    sink.publish(&bad).await.unwrap();
    sink.publish(&good).await.unwrap();
    // Without an id, as somebody else may send it.
    let plain = jetstream(&url).await;
    let sent = plain
        .publish(format!("{stream}.plain"), "{}".into())
        .await
        .unwrap();
    sent.await.unwrap();

    let dead = unique("letters");
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
                assert!(!panics, "a panic is a failure");
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

    // Nobody takes dead letters yet, so they are kept where they are.
    plain.create_stream(letters).await.unwrap();
    eventually("all is settled", || is_settled(&url, &stream, "c")).await;
    let letters = all(&url, &dead).await;
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
            .any(|reason| reason.starts_with("it has no id")),
        "{reasons:?}"
    );
    assert!(
        reasons.contains("no never") || reasons.contains("delivered 4 times, and never done"),
        "{reasons:?}"
    );
    assert!(attempts.try_recv().is_err(), "a dead message came again");
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_consumer_outlives_its_broker() {
    let Some(mut broker) = Broker::nats().await else {
        return;
    };
    let url = broker.url();
    let sink = sink(&url, "events").await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let handler = move |delivery: Delivery| {
        sender.send(delivery.id).unwrap();
        std::future::ready(Ok::<_, String>(()))
    };
    // Before the stream is there.
    let subscription = Subscription::new(&*url, "events", "c");
    let running = tokio::spawn(consume(subscription, handler, shutdown.clone()));
    let before = event("k");
    publish_until_kept(&sink, &before).await;
    assert_eq!(*next(&mut begun).await, before.id.to_string());

    broker.kill().await;
    broker.start().await;
    let after = event("k");
    publish_until_kept(&sink, &after).await;
    // What was acknowledged just before may come again: the server keeps that in memory first.
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
async fn what_is_under_way_is_finished_before_the_end() {
    let Some(url) = given(VARIABLE) else { return };
    let stream = unique("drain");
    let sink = sink(&url, &stream).await;
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
    assert!(!running.is_finished(), "it waits for what is under way");
    assert!(!is_settled(&url, &stream, "c").await);
    release.send(true).unwrap();
    tokio::time::timeout(LIMIT, running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    eventually("what is done is acknowledged", || {
        is_settled(&url, &stream, "c")
    })
    .await;
}
