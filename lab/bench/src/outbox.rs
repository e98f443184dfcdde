//! The outbox: events that are written in transactions and relayed into NATS JetStream, beside
//! what JetStream takes from a client that does nothing else.
//!
//! Two results for each store. *Beside publishers*: 64 of them commit one event a transaction, as
//! fast as they can, while the relay runs; both share the machine with the broker and the
//! database. *Backlog*: what the relay does alone with what has piled up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use semel_brokers::nats;
use semel_core::Store;
use semel_core::outbox::{Event, Sink};
use semel_postgres::transaction::OpenTransaction;
use semel_sqlite::Sqlite;
use semel_worker::{CancellationToken, Relay, Worker};
use tokio::runtime::Runtime;

use crate::measure::middle;
use crate::postgres::{Server, connect};
use crate::store::scratch;
use crate::target::{Limit, Target, verdict};

/// Messages on their way to the broker at once, for the relay and for the client beside it.
const IN_FLIGHT: usize = 256;

/// Thousands of events a second, which is enough.
const ENOUGH: f64 = 10.0;

/// Events in one transaction while the backlog is made.
const BATCH: usize = 200;

/// What the issue of a payment says of it.
const PAYLOAD: &[u8] = br#"{"payment":"pay_01890a5dac96774bbcceb302099a8057","account":"acc_42","amount":1999,"currency":"EUR","merchant_reference":"order-20261116-000042"}"#;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// A NATS server with JetStream, on this machine. Streams that begin with `SEMEL_BENCH` are
    /// made and deleted, and no other is touched.
    #[arg(long)]
    nats: String,
    /// The Postgres server, on this machine; without it only the embedded store is measured.
    #[arg(long)]
    postgres: Option<String>,
    /// Transactions at once.
    #[arg(long, default_value_t = 64)]
    publishers: usize,
    /// Events of the backlog.
    #[arg(long, default_value_t = 100_000)]
    backlog: usize,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where the files are made; a directory on the disk in question.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Fails if a target is missed.
    #[arg(long)]
    check: bool,
}

/// What one round came to, in events a second.
struct Round {
    name: &'static str,
    written: f64,
    relayed: f64,
    backlog: f64,
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let runtime = Runtime::new()?;
    let directory = scratch(settings.directory.clone())?;
    let postgres = settings.postgres.as_deref().map(Server::connect);
    let postgres = postgres.transpose()?;
    println!(
        "outbox: {} publishers, {} bytes an event, {IN_FLIGHT} on their way at once",
        settings.publishers,
        PAYLOAD.len()
    );
    println!(
        "{:<16} {:>10} {:>10} {:>10} {:>12}",
        "", "written/s", "relayed/s", "backlog/s", "JetStream/s"
    );
    let mut rounds = Vec::new();
    for round in 0..settings.rounds {
        let path = directory.path().join(format!("outbox-{round}.db"));
        let broker = runtime.block_on(settings.broker_alone())?;
        let sqlite = runtime.block_on(settings.sqlite(&path))?;
        rounds.push((sqlite, broker));
        if let Some(server) = &postgres {
            let broker = runtime.block_on(settings.broker_alone())?;
            let database = server.fresh("outbox")?;
            let postgres = server.runtime.block_on(settings.postgres(&database.url))?;
            rounds.push((postgres, broker));
        }
    }
    for (round, broker) in &rounds {
        println!(
            "{:<16} {:>10.0} {:>10.0} {:>10.0} {:>12.0}",
            round.name, round.written, round.relayed, round.backlog, broker
        );
    }
    let kept = verdict(&targets(&rounds));
    ensure!(!settings.check || kept.holds(true), "a target is missed");
    Ok(())
}

fn targets(rounds: &[(Round, f64)]) -> Vec<Target> {
    let mut targets = Vec::new();
    for name in ["semel-sqlite", "semel-postgres"] {
        let of = |value: fn(&(Round, f64)) -> f64| {
            let mut of = rounds
                .iter()
                .filter(|(round, _)| round.name == name)
                .peekable();
            of.peek().is_some().then(|| middle(of.map(value)))
        };
        let thousands = of(|(round, _)| round.backlog / 1e3);
        // Where the broker is slower than that, it is the measure.
        targets.push(if thousands.is_none_or(|thousands| thousands >= ENOUGH) {
            Target::new(
                format!("{name}: backlog, thousands of events/s"),
                thousands,
                Limit::AtLeast(ENOUGH),
            )
        } else {
            Target::new(
                format!("{name}: backlog / JetStream alone"),
                of(|(round, broker)| round.backlog / broker),
                Limit::AtLeast(0.8),
            )
        });
        targets.push(Target::new(
            format!("{name}: relayed / written beside it"),
            of(|(round, _)| round.relayed / round.written),
            Limit::AtLeast(0.9),
        ));
    }
    targets
}

impl Settings {
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// A client that does nothing but publish, with as much on its way as the relay has.
    async fn broker_alone(&self) -> Result<f64> {
        let stream = Stream::make(&self.nats, "ALONE").await?;
        let context = &stream.context;
        let start = Instant::now();
        let end = start + self.time();
        let publishing = (0..IN_FLIGHT).map(|_| {
            let context = context.clone();
            tokio::spawn(async move {
                while Instant::now() < end {
                    let mut headers = async_nats::HeaderMap::new();
                    headers.insert(
                        "Nats-Msg-Id",
                        semel_core::outbox::EventId::generate().to_string(),
                    );
                    let ack = context.publish_with_headers(SUBJECT, headers, PAYLOAD.into());
                    ack.await?.await?;
                }
                anyhow::Ok(())
            })
        });
        for publisher in publishing.collect::<Vec<_>>() {
            publisher.await.context("a publisher panicked")??;
        }
        let elapsed = start.elapsed();
        let messages = stream.messages().await?;
        stream.delete().await?;
        Ok(messages as f64 / elapsed.as_secs_f64())
    }

    async fn sqlite(&self, path: &std::path::Path) -> Result<Round> {
        let store = Sqlite::open(path).await?;
        let write = |store: Sqlite, events: usize| async move {
            let outbox = store.outbox();
            let written = store.write(move |connection| {
                for _ in 0..events {
                    let event = event()?;
                    outbox.publish(connection, &event)?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            });
            Ok(written.await?)
        };
        let publishers = vec![store.clone(); self.publishers];
        self.measure("semel-sqlite", store, publishers, write).await
    }

    async fn postgres(&self, url: &str) -> Result<Round> {
        semel_postgres::migrate(url).await?;
        let store = semel_postgres::Postgres::open(url).await?;
        let mut publishers = Vec::new();
        for _ in 0..self.publishers {
            publishers.push(Arc::new(connect(url, "").await?));
        }
        let write = |client: Arc<tokio_postgres::Client>, events: usize| async move {
            let mut transaction = OpenTransaction::begin(client).await?;
            for _ in 0..events {
                semel_postgres::Outbox
                    .publish(&mut transaction, &event()?)
                    .await?;
            }
            transaction.commit().await?;
            Ok(())
        };
        self.measure("semel-postgres", store, publishers, write)
            .await
    }

    async fn measure<S, P, W, F>(
        &self,
        name: &'static str,
        store: S,
        publishers: Vec<P>,
        write: W,
    ) -> Result<Round>
    where
        S: Store + Clone,
        P: Clone + Send + 'static,
        W: Fn(P, usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<()>> + Send,
    {
        let stream = Stream::make(&self.nats, "RELAYED").await?;
        let options = nats::Options::new(&*self.nats).subject(SUBJECT);
        let sink: Arc<dyn Sink> = Arc::new(options.open().await?);

        let shutdown = CancellationToken::new();
        let relaying = relay(&store, &sink, &shutdown);
        let start = Instant::now();
        let end = start + self.time();
        let writing: Vec<_> = publishers
            .iter()
            .map(|publisher| {
                let (publisher, write) = (publisher.clone(), write.clone());
                tokio::spawn(async move {
                    let mut written = 0_u64;
                    while Instant::now() < end {
                        write(publisher.clone(), 1).await?;
                        written += 1;
                    }
                    anyhow::Ok(written)
                })
            })
            .collect();
        let mut written = 0;
        for publisher in writing {
            written += publisher.await.context("a publisher panicked")??;
        }
        let elapsed = start.elapsed().as_secs_f64();
        let relayed = stream.messages().await?;
        stream.wait_for(written).await?;
        shutdown.cancel();
        relaying.await.context("the relay panicked")?;

        // A backlog: the relay does not run while it is made.
        let making: Vec<_> = publishers
            .iter()
            .map(|publisher| {
                let (publisher, write) = (publisher.clone(), write.clone());
                let batches = self.backlog.div_ceil(BATCH).div_ceil(publishers.len());
                tokio::spawn(async move {
                    for _ in 0..batches {
                        write(publisher.clone(), BATCH).await?;
                    }
                    anyhow::Ok((batches * BATCH) as u64)
                })
            })
            .collect();
        let mut piled_up = 0;
        for publisher in making {
            piled_up += publisher.await.context("a publisher panicked")??;
        }
        let shutdown = CancellationToken::new();
        let start = Instant::now();
        let relaying = relay(&store, &sink, &shutdown);
        stream.wait_for(written + piled_up).await?;
        let backlog = piled_up as f64 / start.elapsed().as_secs_f64();
        shutdown.cancel();
        relaying.await.context("the relay panicked")?;
        let left = store.outbox_backlog().await?;
        ensure!(left.waiting == 0 && left.dead == 0, "left behind: {left:?}");
        stream.delete().await?;
        Ok(Round {
            name,
            written: written as f64 / elapsed,
            relayed: relayed as f64 / elapsed,
            backlog,
        })
    }
}

fn event() -> Result<Event, semel_core::outbox::Invalid> {
    let payment = uuid::Uuid::now_v7().simple();
    Event::new("payment.created", format!("payment/{payment}"), PAYLOAD)
}

fn relay<S>(
    store: &S,
    sink: &Arc<dyn Sink>,
    shutdown: &CancellationToken,
) -> tokio::task::JoinHandle<()>
where
    S: Store + Clone,
{
    let relay = Relay::new(store.clone(), Arc::clone(sink)).in_flight(IN_FLIGHT);
    let worker = Worker::new(store.clone()).with_job(Arc::new(relay));
    tokio::spawn(worker.run(shutdown.clone()))
}

const SUBJECT: &str = "semel_bench.events";

/// A stream in files, for one measurement.
struct Stream {
    context: jetstream::Context,
    name: String,
}

impl Stream {
    async fn make(url: &str, name: &str) -> Result<Self> {
        let client = async_nats::connect(url).await;
        let context = jetstream::new(client.context("cannot connect to NATS")?);
        let name = format!("SEMEL_BENCH_{name}");
        // One that an interrupted run left behind.
        let _ = context.delete_stream(&name).await;
        let config = jetstream::stream::Config {
            name: name.clone(),
            subjects: vec![SUBJECT.into()],
            storage: jetstream::stream::StorageType::File,
            duplicate_window: Duration::from_mins(2),
            ..Default::default()
        };
        context.create_stream(config).await?;
        Ok(Self { context, name })
    }

    async fn messages(&self) -> Result<u64> {
        let mut stream = self.context.get_stream(&self.name).await?;
        Ok(stream.info().await?.state.messages)
    }

    /// Waits until all have come, and no more than that.
    async fn wait_for(&self, messages: u64) -> Result<()> {
        let patience = Instant::now() + Duration::from_mins(2);
        while self.messages().await? < messages {
            ensure!(Instant::now() < patience, "events did not arrive");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let came = self.messages().await?;
        ensure!(
            came == messages,
            "{came} messages came of {messages} events"
        );
        Ok(())
    }

    async fn delete(self) -> Result<()> {
        self.context.delete_stream(&self.name).await?;
        Ok(())
    }
}
