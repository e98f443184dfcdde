//! From an outbox to the effect in a consumer, while the broker is killed repeatedly and events are
//! republished in another order: every effect happens exactly once.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use lapin::options::BasicGetOptions;
use lapin::{Connection, ConnectionProperties};
use rusqlite::params;
use semel_brokers::{CancellationToken, Delivery, Subscription, consume, nats, rabbitmq};
use semel_core::Store as _;
use semel_core::inbox::Once;
use semel_core::outbox::{Event, Publishing, Sink};
use semel_sqlite::{Inbox, Sqlite};
use semel_worker::{Pace, Relay, Worker};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{Broker, LIMIT, eventually};

const AGGREGATES: u64 = 6;
/// The number of events that each round writes for each aggregate.
const EVENTS_PER_AGGREGATE: u64 = 10;
/// How many messages the consumer handles concurrently, and so how many can be held.
const IN_FLIGHT: u64 = 16;
/// How many events are republished in a round.
const REPUBLISHED: usize = 60;
/// How many of them are republished concurrently.
const REPUBLISHERS: usize = 4;
const SEED: u64 = 0x5e3e_1000;

/// The fault of a round. It happens when a random number of events has reached a certain point.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The broker is killed while the relay publishes.
    Publishing,
    /// The broker is killed with messages delivered whose effects are not committed.
    BeforeCommit,
    /// The broker is killed with effects committed that are not acknowledged.
    AfterCommit,
    /// The consumer is killed with messages delivered whose effects are not committed.
    Consumer,
    /// The broker is killed while events are republished.
    Republishing,
}

/// The consumer is killed last. A NATS server that is killed afterwards could lose a premature
/// acknowledgement and redeliver the message, which would hide the fault.
const FAULTS: [Fault; 5] = [
    Fault::Publishing,
    Fault::Republishing,
    Fault::BeforeCommit,
    Fault::AfterCommit,
    Fault::Consumer,
];

/// The point at which the handlers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldPoint {
    None,
    BeforeCommit,
    AfterCommit,
}

/// The parts of the scenario that depend on the broker.
trait BrokerAdapter: Send + Sync + 'static {
    type Subscription: Subscription;

    fn subscription(&self) -> Self::Subscription;

    /// Publishes an event again, so that the broker delivers it again. Returns whether the broker
    /// accepted it.
    fn republish(&self, event: &Event) -> impl Future<Output = bool> + Send;

    /// Whether all messages are delivered and acknowledged.
    fn is_drained(&self) -> impl Future<Output = bool> + Send;

    /// Counts the dead letters.
    fn count_dead_letters(&self) -> impl Future<Output = u64> + Send;
}

/// The application: its database, the deliveries that it got, and where its handlers wait.
struct App {
    store: Sqlite,
    path: PathBuf,
    _directory: TempDir,
    /// The ids of the events, in the order of their deliveries.
    deliveries: Mutex<Vec<Box<str>>>,
    hold: watch::Sender<HoldPoint>,
    held: watch::Sender<u64>,
    /// The number of deliveries that the inbox recognised as duplicates.
    duplicates: watch::Sender<u64>,
}

impl App {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let store = semel_sqlite::Options::new(&path).open().await.unwrap();
        // No constraint in these tables prevents a duplicate effect.
        let tables = store.write(|connection| {
            connection.execute_batch(
                "CREATE TABLE effects (event TEXT NOT NULL);
                 CREATE TABLE totals (aggregate TEXT PRIMARY KEY, effects INTEGER, total INTEGER);",
            )
        });
        tables.await.unwrap();
        Self {
            store,
            path,
            _directory: directory,
            deliveries: Mutex::default(),
            hold: watch::channel(HoldPoint::None).0,
            held: watch::channel(0).0,
            duplicates: watch::channel(0).0,
        }
    }

    /// Writes the next events of every aggregate.
    async fn write_events(&self, round: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for n in round * EVENTS_PER_AGGREGATE..(round + 1) * EVENTS_PER_AGGREGATE {
            for aggregate in 0..AGGREGATES {
                let aggregate = format!("account/{aggregate}");
                events.push(Event::new("account.moved", aggregate, n.to_string()).unwrap());
            }
        }
        let (outbox, written) = (self.store.outbox(), events.clone());
        let writing = self.store.write(move |connection| {
            written
                .iter()
                .try_for_each(|event| outbox.publish(connection, event))
        });
        writing.await.unwrap();
        events
    }

    /// The handler of the consumer.
    async fn handle(self: Arc<Self>, delivery: Delivery) -> Result<(), semel_core::Error> {
        self.deliveries.lock().unwrap().push(delivery.id.clone());
        self.wait_at(HoldPoint::BeforeCommit).await;
        let inbox = self.store.inbox(Inbox::REMEMBER);
        let effect = self.store.write(move |connection| {
            inbox.once(connection, "ledger", &delivery.id, |connection| {
                connection.execute("INSERT INTO effects VALUES (?1)", [&delivery.id])?;
                let number: i64 = std::str::from_utf8(&delivery.payload)?.parse()?;
                connection.execute(
                    "INSERT INTO totals VALUES (?1, 1, ?2) ON CONFLICT (aggregate) DO UPDATE
                     SET effects = effects + 1, total = total + excluded.total",
                    params![delivery.aggregate, number],
                )?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        });
        if let Once::Again = effect.await? {
            self.duplicates.send_modify(|count| *count += 1);
        }
        self.wait_at(HoldPoint::AfterCommit).await;
        Ok(())
    }

    /// Waits while the handlers are held at this point.
    async fn wait_at(&self, point: HoldPoint) {
        let mut hold = self.hold.subscribe();
        if *hold.borrow_and_update() == point {
            let _held = HeldGuard::new(&self.held);
            hold.wait_for(|hold| *hold != point).await.unwrap();
        }
    }

    fn read_effects(&self) -> Vec<String> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let mut select = connection.prepare("SELECT event FROM effects").unwrap();
        let effects = select.query_map([], |row| row.get(0)).unwrap();
        effects.map(Result::unwrap).collect()
    }

    fn read_totals(&self) -> Vec<(i64, i64)> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let sql = "SELECT effects, total FROM totals";
        let mut select = connection.prepare(sql).unwrap();
        let totals = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        totals.unwrap().map(Result::unwrap).collect()
    }

    /// Counts the deliveries that were not the first of their event, and the first deliveries that
    /// came after a later event of their aggregate.
    fn count_disorder(&self, events: &[Event]) -> (usize, usize) {
        let positions: BTreeMap<String, (usize, &Event)> = events
            .iter()
            .enumerate()
            .map(|(position, event)| (event.id.to_string(), (position, event)))
            .collect();
        let (mut seen, mut latest) = (HashSet::new(), BTreeMap::new());
        let (mut repeated, mut late) = (0, 0);
        for id in self.deliveries.lock().unwrap().iter() {
            let (position, event) = positions[&**id];
            if !seen.insert(event.id) {
                repeated += 1;
                continue;
            }
            let latest = latest.entry(&event.aggregate).or_insert(position);
            late += usize::from(position < *latest);
            *latest = position.max(*latest);
        }
        (repeated, late)
    }
}

/// Counts a handler as held, until it continues or is dropped.
struct HeldGuard<'a>(&'a watch::Sender<u64>);

impl<'a> HeldGuard<'a> {
    fn new(held: &'a watch::Sender<u64>) -> Self {
        held.send_modify(|held| *held += 1);
        Self(held)
    }
}

impl Drop for HeldGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

/// A sink that counts the confirmed events.
struct CountingSink {
    sink: Box<dyn Sink>,
    confirmed: watch::Sender<u64>,
}

impl Sink for CountingSink {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            self.sink.publish(event).await?;
            self.confirmed.send_modify(|confirmed| *confirmed += 1);
            Ok(())
        })
    }
}

/// Waits until the counter has reached `count`.
async fn wait_for_count(counter: &watch::Sender<u64>, count: u64) {
    let mut counter = counter.subscribe();
    let reached = tokio::time::timeout(LIMIT, counter.wait_for(|value| *value >= count)).await;
    assert!(
        reached.is_ok(),
        "the counter did not reach {count} within {LIMIT:?}"
    );
}

/// Random numbers that are the same in every run (`SplitMix64`).
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u64::try_from(last + 1).unwrap();
            items.swap(last, usize::try_from(self.below(bound)).unwrap());
        }
    }
}

/// A consumer that can be killed.
struct Consumer {
    running: JoinHandle<Result<(), semel_brokers::Error>>,
    shutdown: CancellationToken,
}

impl Consumer {
    fn start(app: &Arc<App>, adapter: &impl BrokerAdapter) -> Self {
        let (app, shutdown) = (Arc::clone(app), CancellationToken::new());
        let handler = move |delivery| Arc::clone(&app).handle(delivery);
        let running = consume(adapter.subscription(), handler, shutdown.clone());
        Self {
            running: tokio::spawn(running),
            shutdown,
        }
    }

    async fn kill(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
    }

    async fn stop(self) {
        self.shutdown.cancel();
        let stopped = tokio::time::timeout(LIMIT, self.running).await;
        stopped.expect("the consumer stops").unwrap().unwrap();
    }
}

/// Runs the scenario: the application writes events, a relay publishes them, a consumer handles
/// them, some are republished, and every round has a fault.
async fn assert_effects_happen_once(
    mut broker: Broker,
    sink: Box<dyn Sink>,
    adapter: impl BrokerAdapter,
    faults: impl Iterator<Item = Fault>,
) {
    let app = Arc::new(App::new().await);
    let adapter = Arc::new(adapter);
    let mut random = SeededRandom(SEED);
    let confirmed = watch::channel(0).0;
    let sink = CountingSink {
        sink,
        confirmed: confirmed.clone(),
    };
    let stop = CancellationToken::new();
    let relay = Relay::new(app.store.clone(), Arc::new(sink)).every(Duration::from_millis(20));
    let pace = Pace {
        max_backoff: Duration::from_millis(200),
        ..Pace::default()
    };
    let worker = Worker::new(app.store.clone())
        .pace(pace)
        .with_job(Arc::new(relay));
    let relaying = tokio::spawn(worker.run(stop.clone()));
    let mut consumer = Consumer::start(&app, &*adapter);
    let mut events = Vec::new();

    for (round, fault) in (0..).zip(faults) {
        let is_consumer_fault = matches!(fault, Fault::Consumer);
        if is_consumer_fault {
            // So that no message that the consumer could lose in this round was republished before.
            wait_until_delivered(&app, &*adapter).await;
        }
        let many = 1 + random.below(IN_FLIGHT);
        println!("round {round}: {fault:?} after {many}");
        let republished = watch::channel(0).0;
        let before = *confirmed.borrow();
        match fault {
            Fault::BeforeCommit | Fault::Consumer => app.hold.send_replace(HoldPoint::BeforeCommit),
            Fault::AfterCommit => app.hold.send_replace(HoldPoint::AfterCommit),
            Fault::Publishing | Fault::Republishing => app.hold.send_replace(HoldPoint::None),
        };
        events.extend(app.write_events(round).await);
        // This includes events that the relay has not published yet.
        let mut selected = events.clone();
        random.shuffle(&mut selected);
        selected.truncate(REPUBLISHED);
        let republishing = republish_all(Arc::clone(&adapter), selected, republished.clone());
        if is_consumer_fault {
            wait_for_count(&app.held, many).await;
            // Long enough for a premature acknowledgement to reach the broker.
            wait_until_published(&app).await;
            consumer.kill().await;
            consumer = Consumer::start(&app, &*adapter);
            app.hold.send_replace(HoldPoint::None);
            republishing.await;
            continue;
        }
        let republishing = tokio::spawn(republishing);
        match fault {
            Fault::Publishing => wait_for_count(&confirmed, before + many).await,
            Fault::Republishing => wait_for_count(&republished, many).await,
            Fault::BeforeCommit | Fault::AfterCommit | Fault::Consumer => {
                wait_for_count(&app.held, many).await;
            }
        }
        broker.kill().await;
        broker.start().await;
        app.hold.send_replace(HoldPoint::None);
        republishing.await.unwrap();
    }

    wait_until_delivered(&app, &*adapter).await;
    consumer.stop().await;
    stop.cancel();
    relaying.await.unwrap();
    assert!(adapter.is_drained().await, "no message was requeued");

    let (repeated, late) = app.count_disorder(&events);
    println!(
        "{} events, {} deliveries, {repeated} of them repeated, {late} out of order, {} ignored as duplicates",
        events.len(),
        app.deliveries.lock().unwrap().len(),
        *app.duplicates.borrow(),
    );
    let effects = app.read_effects();
    let distinct: HashSet<&String> = effects.iter().collect();
    let is_lost = |event: &&Event| !distinct.contains(&event.id.to_string());
    let lost = events.iter().filter(is_lost).count();
    let duplicate = effects.len() - distinct.len();
    assert_eq!((lost, duplicate), (0, 0), "lost effects, duplicate effects");
    let count = i64::try_from(events.len()).unwrap() / i64::try_from(AGGREGATES).unwrap();
    let totals = vec![(count, (0..count).sum()); usize::try_from(AGGREGATES).unwrap()];
    assert_eq!(app.read_totals(), totals);
    assert_eq!(adapter.count_dead_letters().await, 0, "dead letters");
    assert_eq!(
        app.store.outbox_backlog().await.unwrap().dead,
        0,
        "dead events"
    );
    // Otherwise the scenario has tested nothing.
    assert!(repeated > 0 && late > 0);
    assert!(*app.duplicates.borrow() > 0, "the inbox ignored duplicates");
}

async fn wait_until_published(app: &App) {
    eventually("all events are published", || async {
        app.store.outbox_backlog().await.unwrap().waiting == 0
    })
    .await;
}

async fn wait_until_delivered(app: &App, adapter: &impl BrokerAdapter) {
    wait_until_published(app).await;
    eventually("all messages are delivered", || adapter.is_drained()).await;
}

/// Republishes each of these events until the broker has accepted it.
async fn republish_all(
    adapter: Arc<impl BrokerAdapter>,
    events: Vec<Event>,
    republished: watch::Sender<u64>,
) {
    let events = futures_util::stream::iter(events);
    let republishing = events.for_each_concurrent(REPUBLISHERS, |event| {
        let (adapter, republished) = (Arc::clone(&adapter), republished.clone());
        async move {
            eventually("the event is republished", || adapter.republish(&event)).await;
            republished.send_modify(|count| *count += 1);
        }
    });
    republishing.await;
}

/// The window in which the stream detects duplicates: the minimum that the server allows.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);

struct NatsAdapter {
    url: String,
    jetstream: jetstream::Context,
}

impl NatsAdapter {
    async fn count_messages(&self, stream: &str) -> Option<u64> {
        let stream = self.jetstream.get_stream(stream).await.ok()?;
        Some(stream.get_info().await.ok()?.state.messages)
    }
}

impl BrokerAdapter for NatsAdapter {
    type Subscription = nats::Subscription;

    fn subscription(&self) -> nats::Subscription {
        nats::Subscription::new(&*self.url, "events", "ledger")
            .in_flight(usize::try_from(IN_FLIGHT).unwrap())
            // The messages of a killed consumer are redelivered after this time.
            .ack_wait(Duration::from_secs(1))
            .dead_subject("dead")
    }

    /// Not accepted while the stream detects the id as a duplicate.
    async fn republish(&self, event: &Event) -> bool {
        let message = PublishMessage::build()
            .payload(event.payload.clone())
            .message_id(event.id.to_string())
            .header("Semel-Event-Kind", &*event.kind)
            .header("Semel-Aggregate", &*event.aggregate);
        let subject = format!("semel.{}", event.kind);
        let Ok(confirmed) = self.jetstream.send_publish(subject, message).await else {
            return false;
        };
        confirmed.await.is_ok_and(|confirmed| !confirmed.duplicate)
    }

    async fn is_drained(&self) -> bool {
        let Ok(stream) = self.jetstream.get_stream("events").await else {
            return false;
        };
        let consumer: Result<PullConsumer, _> = stream.get_consumer("ledger").await;
        let Ok(consumer) = consumer else { return false };
        let info = consumer.get_info().await;
        info.is_ok_and(|info| info.num_pending == 0 && info.num_ack_pending == 0)
    }

    async fn count_dead_letters(&self) -> u64 {
        self.count_messages("dead").await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_although_nats_is_killed_and_events_are_republished() {
    let Some(broker) = Broker::start_nats().await else {
        return;
    };
    let url = broker.url();
    let mut jetstream = jetstream::new(async_nats::connect(&url).await.unwrap());
    // A killed server sends no reply, so the test does not wait long for one.
    jetstream.set_timeout(Duration::from_millis(500));
    let dead = stream::Config {
        name: "dead".into(),
        ..stream::Config::default()
    };
    jetstream.create_stream(dead).await.unwrap();
    let options = nats::Options::new(&*url)
        .ensure_stream(nats::Stream::new("events").duplicate_window(DUPLICATE_WINDOW));
    let sink = Box::new(options.open().await.unwrap());
    let adapter = NatsAdapter { url, jetstream };
    assert_effects_happen_once(broker, sink, adapter, FAULTS.into_iter().chain(FAULTS)).await;
}

struct RabbitMqAdapter {
    url: String,
    sink: rabbitmq::Sink,
}

impl RabbitMqAdapter {
    /// Counts the messages that a queue could deliver.
    async fn count_messages(&self, queue: &str) -> u64 {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        // Not acknowledged, so that the message is requeued when the connection closes.
        let next = channel.basic_get(queue.into(), BasicGetOptions::default());
        let next = next.await.unwrap();
        next.map_or(0, |next| u64::from(next.message_count) + 1)
    }
}

impl BrokerAdapter for RabbitMqAdapter {
    type Subscription = rabbitmq::Subscription;

    fn subscription(&self) -> rabbitmq::Subscription {
        rabbitmq::Subscription::new(&*self.url, "ledger")
            .in_flight(usize::try_from(IN_FLIGHT).unwrap())
            .classic_queues()
            .ensure_bound("events", "#")
    }

    /// RabbitMQ does not detect duplicates.
    async fn republish(&self, event: &Event) -> bool {
        self.sink.publish(event).await.is_ok()
    }

    async fn is_drained(&self) -> bool {
        self.count_messages("ledger").await == 0
    }

    async fn count_dead_letters(&self) -> u64 {
        self.count_messages("ledger.dead").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_although_rabbitmq_is_killed_and_events_are_republished() {
    let Some(broker) = Broker::start_rabbitmq().await else {
        return;
    };
    let url = broker.url();
    let sink = || {
        let options = rabbitmq::Options::new(&*url, "events").ensure_exchange();
        options.open().unwrap()
    };
    let adapter = RabbitMqAdapter {
        sink: sink(),
        url: url.clone(),
    };
    // RabbitMQ starts slowly, so the test kills it three times only.
    assert_effects_happen_once(
        broker,
        Box::new(sink()),
        adapter,
        FAULTS.into_iter().skip(1),
    )
    .await;
}
