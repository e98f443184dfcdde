//! Connections: which host, TLS, and session settings.
//!
//! The whole handshake with each host is bounded, and a host that says nothing does not keep the
//! store from the next one. Only a server that can be written to, and that keeps what it commits, is
//! used.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use semel_core::OperationId;
use tokio::net::lookup_host;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::address::{Location, address, each_host, locate};
use crate::driver::drive;
use crate::error::{Error, Failure, NoServer};
use crate::queries::{Queries, Statements};
use crate::server::{Description, Durability, Leader, Rejected, Unfit, no_server};
use crate::time::Time;
use crate::tls::{self, Trust};

/// How long the handshake with one of several hosts may take: connecting, TLS, authentication and
/// the first statement. `connect_timeout` in the URL replaces it.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(2);

/// The same for a single host, and how long setting up a session may take.
const SET_UP_WITHIN: Duration = Duration::from_secs(5);

/// How long the server lets one statement run. The store's statements take milliseconds; one that
/// takes longer waits for a lock or a disk, and its caller should get an error.
const STATEMENT_TIMEOUT: &str = "5s";

/// How long a statement waits for a row lock: only an application's transaction holds one for long,
/// and other calls share the statement.
const LOCK_TIMEOUT: &str = "250ms";

/// How long a host may take before the next one is asked too.
const ASK_NEXT_AFTER: Duration = Duration::from_millis(250);

/// While one host is silent, how soon the others are asked again: one of them may be promoted.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The settings of every session.
const SESSION: &str = include_str!("../queries/session.sql");
const HANDSHAKE: &str = include_str!("../queries/handshake.sql");
const BARRIER: &str = include_str!("../queries/barrier.sql");
const BACKEND: &str = include_str!("../queries/backend.sql");
const BEGIN: &str = include_str!("../queries/begin.sql");
const ROLLBACK: &str = include_str!("../queries/rollback.sql");

/// How often the store looks for a pooler before it opens: each look may miss one that is busy.
const POOLER_PROBES: usize = 3;

/// Opens connections.
pub(crate) struct Connector {
    /// One for each host of the URL.
    hosts: Vec<Config>,
    /// The address to begin with: the last one that could be used, or the next after a failure.
    first: AtomicUsize,
    at_random: bool,
    handshake_within: Duration,
    pub(crate) durability: Durability,
    tls: MakeRustlsConnect,
    queries: Queries,
    pub(crate) time: Arc<Time>,
    /// Hosts and database, for messages.
    pub(crate) address: Box<str>,
    leader: Mutex<Option<Leader>>,
    /// Connections of an earlier generation are opened again before they are used.
    generation: AtomicU64,
}

/// A connection with all statements prepared.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) sql: Statements,
    pub(crate) health: Health,
}

/// A connection to a server that may be written to.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) health: Health,
}

/// Whether a connection may be used.
pub(crate) struct Health {
    /// A commit on this connection did not wait for its standby.
    not_replicated: Arc<AtomicBool>,
    generation: u64,
}

impl Health {
    fn check_replicated(&self) -> Result<(), Failure> {
        if self.not_replicated.load(Ordering::SeqCst) {
            return Err(Failure::NotReplicated);
        }
        Ok(())
    }
}

impl Session {
    /// Whether everything that this session committed is as durable as the server promises. To be
    /// asked before a caller gets the answer of a write.
    pub(crate) fn check_replicated(&self) -> Result<(), Failure> {
        self.health.check_replicated()
    }
}

impl Connector {
    pub(crate) fn new(url: &str, queries: Queries, time: Arc<Time>) -> Result<Self, Error> {
        let Location {
            url,
            root,
            durability,
        } = locate(url)?;
        let config: Config = url
            .parse()
            .map_err(|error| Error::Address(crate::error::chain(&error).into()))?;
        let hosts = each_host(&config);
        if hosts.is_empty() {
            return Err(Error::Address(
                "it has no host; write postgres://user@host/database".into(),
            ));
        }
        let usual = if hosts.len() > 1 {
            HANDSHAKE_WITHIN
        } else {
            SET_UP_WITHIN
        };
        let trust = match (config.get_ssl_mode(), root) {
            (_, Some(file)) => Trust::File(file),
            (SslMode::Require, None) => Trust::System,
            // `prefer` or `disable`: nothing to verify against.
            (_, None) => Trust::AnyCertificate,
        };
        Ok(Self {
            address: address(&config).into(),
            tls: MakeRustlsConnect::new(tls::client(&trust)?),
            first: AtomicUsize::new(0),
            at_random: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
            handshake_within: config.get_connect_timeout().copied().unwrap_or(usual),
            durability,
            hosts,
            queries,
            time,
            leader: Mutex::default(),
            generation: AtomicU64::new(0),
        })
    }

    /// A connection to the first host that may be written to.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        self.connect_and_listen(None).await
    }

    /// The same; the server's notifications are sent to `notifications`.
    ///
    /// A host that is silent is passed over after a moment. Until it answers or its time is over, the
    /// others are asked again, so that one that is promoted meanwhile is found at once.
    pub(crate) async fn connect_and_listen(
        &self,
        notifications: Option<UnboundedSender<String>>,
    ) -> Result<Link, Failure> {
        let addresses = self.addresses().await;
        let count = addresses.len();
        let first = if self.at_random {
            usize::from(OperationId::generate().as_bytes()[15])
        } else {
            self.first.load(Ordering::Relaxed)
        };
        let ask = async |nth: usize, after| {
            sleep(after).await;
            let handshake = self.handshake(&addresses[nth], notifications.clone());
            let answer = timeout(self.handshake_within, handshake).await;
            (nth, answer.unwrap_or(Err(Rejected::Silent)))
        };
        let mut turns = (0..count).map(|turn| (first + turn) % count).peekable();
        let mut asked = FuturesUnordered::new();
        let mut rejected: Vec<Option<Rejected>> = addresses.iter().map(|_| None).collect();
        while rejected.iter().any(Option::is_none) {
            asked.extend(turns.next().map(|nth| ask(nth, Duration::ZERO)));
            let answer = if turns.peek().is_some() {
                timeout(ASK_NEXT_AFTER, asked.next()).await
            } else {
                Ok(asked.next().await)
            };
            match answer {
                Ok(Some((nth, Ok(link)))) => {
                    self.first.store(nth, Ordering::Relaxed);
                    return Ok(link);
                }
                Ok(Some((nth, Err(reason)))) => {
                    rejected[nth] = Some(reason);
                    asked.push(ask(nth, ASK_AGAIN_AFTER));
                }
                Ok(None) | Err(_) => {}
            }
        }
        self.first.store(first + 1, Ordering::Relaxed);
        Err(Failure::NoServer(Arc::new(no_server(&addresses, rejected))))
    }

    /// Whether a connection is to be used again: it is open, and no other connection of its age found
    /// the server silent, unfit or replaced.
    pub(crate) fn is_usable(&self, session: &Session) -> bool {
        !session.client.is_closed() && self.is_current(&session.health)
    }

    /// Whether no other connection of the same age found the server silent, unfit or replaced.
    pub(crate) fn is_current(&self, health: &Health) -> bool {
        health.generation == self.generation.load(Ordering::SeqCst)
    }

    /// Has this connection, and all others of its age, opened again, beginning with another host.
    pub(crate) fn retire(&self, health: &Health) {
        let next = self.generation.compare_exchange(
            health.generation,
            health.generation + 1,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        if next.is_ok() {
            self.first.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has all connections opened again, whatever their age.
    pub(crate) fn retire_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.first.fetch_add(1, Ordering::Relaxed);
    }

    /// All addresses of all hosts, at least one. A name may stand for several servers, each with a
    /// handshake of its own.
    async fn addresses(&self) -> Vec<Config> {
        let resolved = self.hosts.iter().map(|host| async move {
            let [Host::Tcp(name)] = host.get_hosts() else {
                return vec![host.clone()];
            };
            if !host.get_hostaddrs().is_empty() || name.parse::<IpAddr>().is_ok() {
                return vec![host.clone()];
            }
            let found = timeout(self.handshake_within, lookup_host((name.as_str(), 0))).await;
            let found = found.map(|found| found.map(Vec::from_iter));
            match found {
                Ok(Ok(found)) if !found.is_empty() => found
                    .into_iter()
                    .map(|address| {
                        let mut config = host.clone();
                        config.hostaddr(address.ip());
                        config
                    })
                    .collect(),
                // The connection attempt reports why.
                _ => vec![host.clone()],
            }
        });
        join_all(resolved).await.concat()
    }

    /// Connects to one server, and checks that it can be used.
    async fn handshake(
        &self,
        config: &Config,
        notifications: Option<UnboundedSender<String>>,
    ) -> Result<Link, Rejected> {
        let (client, driver) = config.connect(self.tls.clone()).await?;
        let not_replicated = Arc::new(AtomicBool::new(false));
        tokio::spawn(drive(driver, Arc::clone(&not_replicated), notifications));
        let sent = self.time.sending();
        let rows = client.query_typed(HANDSHAKE, &[]).await?;
        let found = Description::read(rows.first())?;
        if let Some(unfit) = found.unfit(self.durability) {
            return Err(Rejected::Unfit(unfit));
        }
        self.time.connected(sent, found.now, &address(config));
        let generation = self.follow(address(config), found.timeline);
        Ok(Link {
            client,
            health: Health {
                not_replicated,
                generation,
            },
        })
    }

    /// Remembers which server leads. Connections to the one before are not used again. Returns the
    /// generation of a new connection.
    fn follow(&self, address: String, timeline: String) -> u64 {
        let now = self.time.clock().now();
        let mut leader = self.leader();
        let is_another = leader
            .as_ref()
            .is_some_and(|known| !known.is(&address, &timeline));
        if is_another {
            tracing::warn!(%address, %timeline, "another PostgreSQL server leads");
        }
        // Only a promotion begins a timeline; one leader may be reached by several addresses.
        if leader
            .as_ref()
            .is_some_and(|known| *known.timeline != *timeline)
        {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
        if is_another || leader.is_none() {
            *leader = Some(Leader::new(address, timeline, now));
        }
        self.generation.load(Ordering::SeqCst)
    }

    /// A connection with all statements prepared.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let link = self.connect().await?;
        let session = self.set_up(link).await;
        if session.is_err() {
            // A former leader accepts connections, and cannot commit.
            self.first.fetch_add(1, Ordering::Relaxed);
        }
        session
    }

    /// Sets up a connection, and prepares the statements.
    pub(crate) async fn set_up(&self, link: Link) -> Result<Session, Failure> {
        let cancel = link.client.cancel_token();
        let set_up = timeout(SET_UP_WITHIN, self.begin(link)).await;
        set_up.unwrap_or_else(|_| {
            // A server process that waits for a standby does not notice that its client is gone.
            let tls = self.tls.clone();
            tokio::spawn(timeout(SET_UP_WITHIN, async move {
                let _ = cancel.cancel_query(tls).await;
            }));
            Err(Failure::Broken(None))
        })
    }

    async fn begin(&self, link: Link) -> Result<Session, Failure> {
        let Link { client, health } = link;
        client
            .query_one(SESSION, &[&STATEMENT_TIMEOUT, &LOCK_TIMEOUT])
            .await?;
        // What this session reads may have been committed just before the server restarted.
        client.query_one(BARRIER, &[]).await?;
        health.check_replicated()?;
        // Boxed: the future that prepares all statements at once is large.
        let sql = Box::pin(Statements::prepare(&client, &self.queries)).await?;
        Ok(Session {
            client,
            sql,
            health,
        })
    }

    /// Whether two connections share a server process, or one of them changes it: then a pooler
    /// gives each transaction another one, without our settings and prepared statements.
    pub(crate) async fn refuse_pooler(&self, one: &Link, other: &Link) -> Result<(), Failure> {
        for _ in 0..POOLER_PROBES {
            let before = backend(&one.client).await?;
            other.client.batch_execute(BEGIN).await?;
            let elsewhere = backend(&other.client).await?;
            let after = backend(&one.client).await?;
            other.client.batch_execute(ROLLBACK).await?;
            if before != after || before == elsewhere {
                return Err(Failure::NoServer(Arc::new(NoServer {
                    reason: Unfit::Pooler.to_string(),
                    unfit: Some(Unfit::Pooler),
                })));
            }
        }
        Ok(())
    }

    pub(crate) fn leader(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server process behind a connection, in one round trip without a prepared statement.
async fn backend(client: &Client) -> Result<i32, tokio_postgres::Error> {
    let rows = client.query_typed(BACKEND, &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

/// Shared by the connection workers.
pub(crate) type Shared = Arc<Connector>;
