//! Messages from the outbox through a broker to their effects, while broker, relay and consumer are
//! killed.
//!
//! Publishers write into the database of the shared store, as an application does; the relays of the
//! first gateway and of the worker publish to NATS, and the consumer of `semel-brokers` handles what
//! NATS delivers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_brokers::{CancellationToken, Delivery, consume, nats};
use semel_campaign_checker::history::Message;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{Client, NoTls};

use crate::faults::FaultInjector;
use crate::process::{Process, free_address};
use crate::random::Random;
use crate::record::{Recorder, lock};
use crate::tls::Tls;

const CREATE: &str = include_str!("../queries/messages_create.sql");
const PUBLISH: &str = include_str!("../queries/message_publish.sql");
const HANDLE: &str = include_str!("../queries/message_handle.sql");
const COUNT: &str = include_str!("../queries/messages_count.sql");

const PROGRAM: &str = "nats-server";
/// Where Debian has it, which is not in the path of every user.
const DAEMONS: &str = "/usr/sbin";
const STREAM: &str = "campaign";
const PUBLISHERS: u64 = 2;
/// The pause of a publisher.
const PAUSE: Duration = Duration::from_millis(10);
/// One transaction in so many is rolled back.
const ROLL_BACK_ONE_IN: u64 = 8;
/// One message in so many is handled, and its consumer does not say so.
const UNACKNOWLEDGED_ONE_IN: u64 = 12;
/// Events are spread over so many aggregates; those of one are published one after the other.
const AGGREGATES: u64 = 16;
/// How soon NATS delivers what a killed consumer had.
const ACK_WAIT: Duration = Duration::from_secs(5);
/// How long the last message may take: the lease of a killed relay is 30 seconds, and so is the longest
/// backoff of one whose broker was gone.
const SETTLED_WITHIN: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(250);

/// The broker with its consumer. Dropping it kills both.
#[derive(Debug)]
pub(crate) struct Broker {
    process: Process,
    url: String,
    tls: Tls,
    /// The database of the shared store.
    store: String,
    consumer: Mutex<Option<JoinHandle<()>>>,
    log: Arc<MessageLog>,
    _data: TempDir,
}

/// What cannot be read from the database.
#[derive(Debug, Default)]
struct MessageLog {
    deliveries: Mutex<BTreeMap<String, u64>>,
    rolled_back: Mutex<BTreeSet<String>>,
}

impl Broker {
    /// Starts one, unless it is not installed.
    pub(crate) fn start(place: &Path, tls: &Tls, store: &str) -> Result<Self> {
        let program = find_program()
            .with_context(|| format!("{PROGRAM} is missing: install the package `{PROGRAM}`"))?;
        let data = tempfile::tempdir()?;
        let address = free_address()?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut arguments = ["--jetstream", "--tls", "--addr", "127.0.0.1"]
            .map(str::to_owned)
            .to_vec();
        arguments.extend(["--port".to_owned(), address.port().to_string()]);
        arguments.extend(["--store_dir".to_owned(), text(data.path())]);
        arguments.extend(["--tlscert".to_owned(), text(&tls.certificate)]);
        arguments.extend(["--tlskey".to_owned(), text(&tls.key)]);
        let log = place.join("nats.log");
        let trusted = tls.certificate.clone();
        let process = Process::new("nats", program, arguments, log, trusted);
        process.start()?;
        Ok(Self {
            process,
            url: format!("tls://{address}"),
            tls: tls.clone(),
            store: store.to_owned(),
            consumer: Mutex::default(),
            log: Arc::default(),
            _data: data,
        })
    }

    /// The `[outbox]` table of the processes with a relay.
    pub(crate) fn table(&self) -> String {
        let url = &self.url;
        format!("\n[outbox]\nto = \"{url}\"\nstream = \"{STREAM}\"\n")
    }

    /// Starts a consumer. Ends the one that runs, with all that it has in hand.
    fn start_consumer(&self, recorder: &Recorder, random: &mut Random) {
        let (store, log, recorder) = (self.store.clone(), Arc::clone(&self.log), recorder.clone());
        let random = Arc::new(Mutex::new(random.fork()));
        let trusted =
            nats::ConnectOptions::new().add_root_certificates(self.tls.certificate.clone());
        let subscription = nats::Subscription::new(&*self.url, STREAM, "campaign")
            .ack_wait(ACK_WAIT)
            .connect_with(trusted);
        let handle = move |delivery: Delivery| {
            let (store, log, recorder) = (store.clone(), Arc::clone(&log), recorder.clone());
            let is_acknowledged = !lock(&random).one_in(UNACKNOWLEDGED_ONE_IN);
            async move {
                *lock(&log.deliveries)
                    .entry(delivery.id.to_string())
                    .or_default() += 1;
                let client = connect(&store).await?;
                client.execute(HANDLE, &[&&*delivery.id]).await?;
                if !is_acknowledged {
                    recorder.fault("lose_acknowledgement", "consumer");
                    anyhow::bail!("the acknowledgement is lost on purpose");
                }
                Ok(())
            }
        };
        let task = tokio::spawn(async move {
            // Fails only for settings that make no sense.
            let _ = consume(subscription, handle, CancellationToken::new()).await;
        });
        if let Some(running) = lock(&self.consumer).replace(task) {
            running.abort();
        }
    }

    /// Waits until every committed message has had its effect, and records what became of all.
    pub(crate) async fn settle(&self, recorder: &Recorder) -> Result<()> {
        if lock(&self.consumer).is_none() {
            return Ok(());
        }
        let until = Instant::now() + SETTLED_WITHIN;
        let client = connect(&self.store).await?;
        let messages = loop {
            let rows = client.query(COUNT, &[]).await?;
            let messages: Vec<(String, i64, i64)> = rows
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect();
            if messages.iter().all(|(_, _, effects)| *effects > 0) || Instant::now() > until {
                break messages;
            }
            sleep(POLL).await;
        };
        let deliveries = lock(&self.log.deliveries).clone();
        let rolled_back = lock(&self.log.rolled_back).clone();
        let read: BTreeSet<&String> = messages.iter().map(|(id, ..)| id).collect();
        let unread = rolled_back.iter().chain(deliveries.keys());
        let unread = unread
            .filter(|id| !read.contains(id))
            .collect::<BTreeSet<_>>();
        let unread = unread.into_iter().map(|id| (id.clone(), 0, 0));
        for (id, committed, effects) in messages.iter().cloned().chain(unread) {
            recorder.message(Message {
                is_committed: committed > 0,
                deliveries: deliveries.get(&id).copied().unwrap_or_default(),
                effects: u64::try_from(effects).unwrap_or_default(),
                id,
            });
        }
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(running) = lock(&self.consumer).take() {
            running.abort();
        }
    }
}

impl FaultInjector {
    /// Publishes messages until the phase ends.
    pub(crate) async fn publish(&self, seed: u64, ends: Instant) -> Result<()> {
        let Ok(broker) = &self.test_bed.broker else {
            return Ok(());
        };
        connect(&broker.store).await?.execute(CREATE, &[]).await?;
        let mut random = Random::new(seed);
        broker.start_consumer(&self.recorder, &mut random);
        let publishers = (0..PUBLISHERS).map(|_| {
            let mut random = random.fork();
            async move {
                while Instant::now() < ends {
                    // Wherever it fails or waits, the database knows what was committed.
                    let _ = timeout_at(ends, self.publish_some(broker, &mut random)).await;
                    sleep(POLL).await;
                }
            }
        });
        futures_util::future::join_all(publishers).await;
        Ok(())
    }

    async fn publish_some(&self, broker: &Broker, random: &mut Random) -> Result<()> {
        let mut client = connect(&broker.store).await?;
        loop {
            let transaction = client.transaction().await?;
            let aggregate = i64::try_from(random.below(AGGREGATES)).unwrap_or_default();
            let row = transaction.query_one(PUBLISH, &[&aggregate]).await?;
            if random.one_in(ROLL_BACK_ONE_IN) {
                lock(&broker.log.rolled_back).insert(row.get(0));
                transaction.rollback().await?;
                self.recorder.fault("roll_back", "publisher");
            } else {
                transaction.commit().await?;
            }
            sleep(PAUSE).await;
        }
    }

    /// Kills the broker, and starts it again with its files.
    pub(crate) async fn kill_broker(&self, ms: u64) -> Result<()> {
        let Ok(broker) = &self.test_bed.broker else {
            return Ok(());
        };
        broker.process.kill();
        self.recorder.fault("kill_broker", "nats");
        sleep(Duration::from_millis(ms)).await;
        broker.process.start()
    }

    /// Ends the consumer with all that it has in hand, and starts another one.
    pub(crate) fn kill_consumer(&self, seed: u64) {
        if let Ok(broker) = &self.test_bed.broker {
            broker.start_consumer(&self.recorder, &mut Random::new(seed));
            self.recorder.fault("kill_consumer", "consumer");
        }
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from(DAEMONS)]);
    let mut programs = places.map(|place| place.join(PROGRAM));
    programs.find(|program| program.is_file())
}
