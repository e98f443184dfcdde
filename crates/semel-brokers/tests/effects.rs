//! From an outbox to an effect, with a broker that is killed again and again, and somebody who
//! tells everything twice and in another order: every effect is one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking"
)]

mod support;

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
use semel_core::Outbox as _;
use semel_core::inbox::Once;
use semel_core::outbox::{Event, Publishing, Sink};
use semel_sqlite::{Inbox, Sqlite};
use semel_worker::{Pace, Relay, Worker};
use support::{Broker, LIMIT, eventually};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const AGGREGATES: u64 = 6;
/// Events that each round writes for each aggregate.
const EACH: u64 = 10;
/// How many messages the consumer treats at once, and so how many can be held.
const IN_FLIGHT: u64 = 16;
/// How many are told again in a round.
const TOLD_AGAIN: usize = 60;
/// How many of them at once: nobody waits for the one before.
const TELLERS: usize = 4;
const SEED: u64 = 0x5e3e_1000;

/// What goes wrong in a round, after so many have got so far.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The broker dies while the relay publishes.
    Publishing,
    /// The broker dies with messages delivered, whose effects are not committed.
    BeforeCommit,
    /// The broker dies with effects committed, of which it was not told.
    AfterCommit,
    /// The consumer dies with messages delivered, whose effects are not committed.
    Consumer,
    /// The broker dies while events are told again.
    Telling,
}

/// The consumer dies last. What it acknowledged too soon, a NATS that is killed afterwards may
/// have forgotten, and would deliver again.
const FAULTS: [Fault; 5] = [
    Fault::Publishing,
    Fault::Telling,
    Fault::BeforeCommit,
    Fault::AfterCommit,
    Fault::Consumer,
];

/// Where the consumer waits before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Nowhere,
    BeforeCommit,
    AfterCommit,
}

/// What is particular to a broker.
trait Way: Send + Sync + 'static {
    type Subscription: Subscription;

    fn subscription(&self) -> Self::Subscription;

    /// Tells an event once more, so that the broker delivers it once more. Whether it will.
    fn tell(&self, event: &Event) -> impl Future<Output = bool> + Send;

    /// Whether nothing is left to be delivered.
    fn is_settled(&self) -> impl Future<Output = bool> + Send;

    /// How many messages nobody wanted.
    fn dead(&self) -> impl Future<Output = u64> + Send;
}

/// The application: its file, what it has heard, and where it stands still.
struct App {
    store: Sqlite,
    path: PathBuf,
    _directory: TempDir,
    /// The names of the events, in the order in which they were delivered.
    heard: Mutex<Vec<Box<str>>>,
    hold: watch::Sender<Hold>,
    held: watch::Sender<u64>,
    /// Events that had no effect, since they had had it.
    again: watch::Sender<u64>,
}

impl App {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let store = semel_sqlite::Options::new(&path).open().await.unwrap();
        // Nothing in these tables keeps an effect from being there twice.
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
            heard: Mutex::default(),
            hold: watch::channel(Hold::Nowhere).0,
            held: watch::channel(0).0,
            again: watch::channel(0).0,
        }
    }

    /// Writes the next events of every aggregate.
    async fn write(&self, round: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for n in round * EACH..(round + 1) * EACH {
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

    /// What the consumer does with a message.
    async fn treat(self: Arc<Self>, delivery: Delivery) -> Result<(), semel_core::Error> {
        self.heard.lock().unwrap().push(delivery.id.clone());
        self.pass(Hold::BeforeCommit).await;
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
            self.again.send_modify(|again| *again += 1);
        }
        self.pass(Hold::AfterCommit).await;
        Ok(())
    }

    /// Stands still for as long as it is told to.
    async fn pass(&self, at: Hold) {
        let mut hold = self.hold.subscribe();
        if *hold.borrow_and_update() == at {
            let _held = Held::new(&self.held);
            hold.wait_for(|hold| *hold != at).await.unwrap();
        }
    }

    fn effects(&self) -> Vec<String> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let mut select = connection.prepare("SELECT event FROM effects").unwrap();
        let effects = select.query_map([], |row| row.get(0)).unwrap();
        effects.map(Result::unwrap).collect()
    }

    fn totals(&self) -> Vec<(i64, i64)> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let sql = "SELECT effects, total FROM totals";
        let mut select = connection.prepare(sql).unwrap();
        let totals = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        totals.unwrap().map(Result::unwrap).collect()
    }

    /// How many deliveries were not the first of their event, and how many of the first came
    /// after a later event of their aggregate.
    fn disorder(&self, events: &[Event]) -> (usize, usize) {
        let places: BTreeMap<String, (usize, &Event)> = events
            .iter()
            .enumerate()
            .map(|(place, event)| (event.id.to_string(), (place, event)))
            .collect();
        let (mut seen, mut latest) = (HashSet::new(), BTreeMap::new());
        let (mut repeated, mut late) = (0, 0);
        for id in self.heard.lock().unwrap().iter() {
            let (place, event) = places[&**id];
            if !seen.insert(event.id) {
                repeated += 1;
                continue;
            }
            let latest = latest.entry(&event.aggregate).or_insert(place);
            late += usize::from(place < *latest);
            *latest = place.max(*latest);
        }
        (repeated, late)
    }
}

/// Counts one that stands still, until it goes on or is gone.
struct Held<'a>(&'a watch::Sender<u64>);

impl<'a> Held<'a> {
    fn new(held: &'a watch::Sender<u64>) -> Self {
        held.send_modify(|held| *held += 1);
        Self(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

/// A sink that says how much was confirmed.
struct Counting {
    sink: Box<dyn Sink>,
    confirmed: watch::Sender<u64>,
}

impl Sink for Counting {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            self.sink.publish(event).await?;
            self.confirmed.send_modify(|confirmed| *confirmed += 1);
            Ok(())
        })
    }
}

/// Waits until so many have got so far.
async fn reaches(counted: &watch::Sender<u64>, count: u64) {
    let mut counted = counted.subscribe();
    let reached = tokio::time::timeout(LIMIT, counted.wait_for(|counted| *counted >= count)).await;
    assert!(reached.is_ok(), "not {count} within {LIMIT:?}");
}

/// Numbers that are the same in every run (`SplitMix64`).
struct Dice(u64);

impl Dice {
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
    fn start(app: &Arc<App>, way: &impl Way) -> Self {
        let (app, shutdown) = (Arc::clone(app), CancellationToken::new());
        let handler = move |delivery| Arc::clone(&app).treat(delivery);
        let running = consume(way.subscription(), handler, shutdown.clone());
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
        stopped.expect("it stops").unwrap().unwrap();
    }
}

/// One scene: events, a relay, a broker, somebody who repeats, a consumer.
async fn every_effect_is_one(
    mut broker: Broker,
    sink: Box<dyn Sink>,
    way: impl Way,
    faults: impl Iterator<Item = Fault>,
) {
    let app = Arc::new(App::new().await);
    let way = Arc::new(way);
    let mut dice = Dice(SEED);
    let confirmed = watch::channel(0).0;
    let sink = Counting {
        sink,
        confirmed: confirmed.clone(),
    };
    let stop = CancellationToken::new();
    let relay = Relay::new(app.store.clone(), Arc::new(sink)).every(Duration::from_millis(20));
    let pace = Pace {
        outage: Duration::from_millis(200),
        ..Pace::default()
    };
    let worker = Worker::new(app.store.clone())
        .pace(pace)
        .also(Arc::new(relay));
    let relaying = tokio::spawn(worker.run(stop.clone()));
    let mut consumer = Consumer::start(&app, &*way);
    let mut events = Vec::new();

    for (round, fault) in (0..).zip(faults) {
        let is_consumers = matches!(fault, Fault::Consumer);
        if is_consumers {
            // What it is about to lose, nobody has told before.
            all_is_delivered(&app, &*way).await;
        }
        let many = 1 + dice.below(IN_FLIGHT);
        println!("round {round}: {fault:?} after {many}");
        let told = watch::channel(0).0;
        let before = *confirmed.borrow();
        match fault {
            Fault::BeforeCommit | Fault::Consumer => app.hold.send_replace(Hold::BeforeCommit),
            Fault::AfterCommit => app.hold.send_replace(Hold::AfterCommit),
            Fault::Publishing | Fault::Telling => app.hold.send_replace(Hold::Nowhere),
        };
        events.extend(app.write(round).await);
        // Those that the relay has not come to yet among them.
        let mut again = events.clone();
        dice.shuffle(&mut again);
        again.truncate(TOLD_AGAIN);
        let telling = tell(Arc::clone(&way), again, told.clone());
        if is_consumers {
            reaches(&app.held, many).await;
            // Long enough for a word to reach the broker, if one was said too soon.
            all_is_published(&app).await;
            consumer.kill().await;
            consumer = Consumer::start(&app, &*way);
            app.hold.send_replace(Hold::Nowhere);
            telling.await;
            continue;
        }
        let telling = tokio::spawn(telling);
        match fault {
            Fault::Publishing => reaches(&confirmed, before + many).await,
            Fault::Telling => reaches(&told, many).await,
            Fault::BeforeCommit | Fault::AfterCommit | Fault::Consumer => {
                reaches(&app.held, many).await;
            }
        }
        broker.kill().await;
        broker.start().await;
        app.hold.send_replace(Hold::Nowhere);
        telling.await.unwrap();
    }

    all_is_delivered(&app, &*way).await;
    consumer.stop().await;
    stop.cancel();
    relaying.await.unwrap();
    assert!(way.is_settled().await, "nothing came back");

    let (repeated, late) = app.disorder(&events);
    println!(
        "{} events, {} delivered, {repeated} of them not for the first time, {late} late, {} without effect",
        events.len(),
        app.heard.lock().unwrap().len(),
        *app.again.borrow(),
    );
    let effects = app.effects();
    let distinct: HashSet<&String> = effects.iter().collect();
    let is_lost = |event: &&Event| !distinct.contains(&event.id.to_string());
    let lost = events.iter().filter(is_lost).count();
    let twice = effects.len() - distinct.len();
    assert_eq!(
        (lost, twice),
        (0, 0),
        "effects that are lost, or there again"
    );
    let count = i64::try_from(events.len()).unwrap() / i64::try_from(AGGREGATES).unwrap();
    let totals = vec![(count, (0..count).sum()); usize::try_from(AGGREGATES).unwrap()];
    assert_eq!(app.totals(), totals);
    assert_eq!(way.dead().await, 0, "dead letters");
    assert_eq!(app.store.backlog().await.unwrap().dead, 0, "dead events");
    // Else nothing was tried.
    assert!(repeated > 0 && late > 0);
    assert!(*app.again.borrow() > 0, "an effect was asked for twice");
}

async fn all_is_published(app: &App) {
    eventually("everything is published", || async {
        app.store.backlog().await.unwrap().waiting == 0
    })
    .await;
}

async fn all_is_delivered(app: &App, way: &impl Way) {
    all_is_published(app).await;
    eventually("everything is delivered", || way.is_settled()).await;
}

/// Tells these events, until the broker has taken each.
async fn tell(way: Arc<impl Way>, events: Vec<Event>, told: watch::Sender<u64>) {
    let telling = futures_util::stream::iter(events);
    let telling = telling.for_each_concurrent(TELLERS, |event| {
        let (way, told) = (Arc::clone(&way), told.clone());
        async move {
            eventually("it is told again", || way.tell(&event)).await;
            told.send_modify(|told| *told += 1);
        }
    });
    telling.await;
}

/// How soon a stream forgets an id: the least that the server allows.
const FORGETS: Duration = Duration::from_millis(100);

struct Nats {
    url: String,
    jetstream: jetstream::Context,
}

impl Nats {
    async fn messages(&self, stream: &str) -> Option<u64> {
        let stream = self.jetstream.get_stream(stream).await.ok()?;
        Some(stream.get_info().await.ok()?.state.messages)
    }
}

impl Way for Nats {
    type Subscription = nats::Subscription;

    fn subscription(&self) -> nats::Subscription {
        nats::Subscription::new(&*self.url, "events", "ledger")
            .in_flight(usize::try_from(IN_FLIGHT).unwrap())
            // What was held by a consumer that died comes again after this.
            .ack_wait(Duration::from_secs(1))
            .dead_subject("dead")
    }

    /// Until the stream has forgotten the id.
    async fn tell(&self, event: &Event) -> bool {
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

    async fn is_settled(&self) -> bool {
        let Ok(stream) = self.jetstream.get_stream("events").await else {
            return false;
        };
        let consumer: Result<PullConsumer, _> = stream.get_consumer("ledger").await;
        let Ok(consumer) = consumer else { return false };
        let info = consumer.get_info().await;
        info.is_ok_and(|info| info.num_pending == 0 && info.num_ack_pending == 0)
    }

    async fn dead(&self) -> u64 {
        self.messages("dead").await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_nats_that_dies_and_repeats_every_effect_is_one() {
    let Some(broker) = Broker::nats().await else {
        return;
    };
    let url = broker.url();
    let mut jetstream = jetstream::new(async_nats::connect(&url).await.unwrap());
    // An answer that a killed server does not give is not waited for.
    jetstream.set_timeout(Duration::from_millis(500));
    let dead = stream::Config {
        name: "dead".into(),
        ..stream::Config::default()
    };
    jetstream.create_stream(dead).await.unwrap();
    let options = nats::Options::new(&*url)
        .ensure_stream(nats::Stream::new("events").duplicate_window(FORGETS));
    let sink = Box::new(options.open().await.unwrap());
    let way = Nats { url, jetstream };
    every_effect_is_one(broker, sink, way, FAULTS.into_iter().chain(FAULTS)).await;
}

struct RabbitMq {
    url: String,
    sink: rabbitmq::Sink,
}

impl RabbitMq {
    /// How many messages a queue would deliver.
    async fn messages(&self, queue: &str) -> u64 {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        // Not acknowledged, so that it goes back with the connection.
        let next = channel.basic_get(queue.into(), BasicGetOptions::default());
        let next = next.await.unwrap();
        next.map_or(0, |next| u64::from(next.message_count) + 1)
    }
}

impl Way for RabbitMq {
    type Subscription = rabbitmq::Subscription;

    fn subscription(&self) -> rabbitmq::Subscription {
        rabbitmq::Subscription::new(&*self.url, "ledger")
            .in_flight(usize::try_from(IN_FLIGHT).unwrap())
            .classic_queues()
            .ensure_bound("events", "#")
    }

    /// It knows no id again.
    async fn tell(&self, event: &Event) -> bool {
        self.sink.publish(event).await.is_ok()
    }

    async fn is_settled(&self) -> bool {
        self.messages("ledger").await == 0
    }

    async fn dead(&self) -> u64 {
        self.messages("ledger.dead").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_rabbitmq_that_dies_and_repeats_every_effect_is_one() {
    let Some(broker) = Broker::rabbitmq().await else {
        return;
    };
    let url = broker.url();
    let sink = || {
        let options = rabbitmq::Options::new(&*url, "events").ensure_exchange();
        options.open().unwrap()
    };
    let way = RabbitMq {
        sink: sink(),
        url: url.clone(),
    };
    // It takes its time to start: three times are enough.
    every_effect_is_one(broker, Box::new(sink()), way, FAULTS.into_iter().skip(1)).await;
}
