//! Connections: which host, TLS, and session settings.
//!
//! The whole handshake with each host is bounded, so that a host that accepts connections and says
//! nothing does not keep the store from the next one. Only a server that can be written to, and
//! that keeps what it commits, is used.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use semel_core::OperationId;
use tokio::net::lookup_host;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::address::{Location, address, each_host, locate};
use crate::error::{Error, Failure, NoServer};
use crate::queries::{Queries, Statements};
use crate::server::{Description, Durability, Leader, Unfit};
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
    /// The server stopped being fit while it was connected: all connections are opened again.
    unfit: AtomicBool,
}

/// A connection with all statements prepared.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) sql: Statements,
    not_replicated: Arc<AtomicBool>,
}

/// A connection to a server that may be written to.
pub(crate) struct Link {
    pub(crate) client: Client,
    /// A commit on this connection did not wait for its standby.
    not_replicated: Arc<AtomicBool>,
}

impl Session {
    /// Whether everything that this session committed is as durable as the server promises. To be
    /// asked before a caller gets the answer of a write.
    pub(crate) fn check_replicated(&self) -> Result<(), Failure> {
        check_replicated(&self.not_replicated)
    }
}

fn check_replicated(not_replicated: &AtomicBool) -> Result<(), Failure> {
    if not_replicated.load(Ordering::SeqCst) {
        return Err(Failure::NotReplicated);
    }
    Ok(())
}

/// Drives a connection.
type Driver =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

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
            unfit: AtomicBool::new(false),
        })
    }

    /// A connection to the first host that may be written to.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        self.connect_and_listen(None).await
    }

    /// The same; the server's notifications are sent to `notifications`.
    pub(crate) async fn connect_and_listen(
        &self,
        notifications: Option<UnboundedSender<String>>,
    ) -> Result<Link, Failure> {
        let addresses = self.addresses().await;
        let count = addresses.len().max(1);
        let first = if self.at_random {
            usize::from(OperationId::generate().as_bytes()[15]) % count
        } else {
            self.first.load(Ordering::Relaxed)
        };
        let mut reasons = Vec::new();
        let mut unfit = None;
        for nth in (0..count).map(|nth| (first + nth) % count) {
            let Some(config) = addresses.get(nth) else {
                continue;
            };
            let handshake = self.handshake(config, notifications.clone());
            let reason = match timeout(self.handshake_within, handshake).await {
                Ok(Ok(link)) => {
                    self.first.store(nth, Ordering::Relaxed);
                    self.unfit.store(false, Ordering::SeqCst);
                    return Ok(link);
                }
                Ok(Err(Rejected::Unfit(found))) => {
                    unfit = unfit.max(Some(found));
                    found.to_string()
                }
                Ok(Err(Rejected::Failed(error))) => crate::error::chain(&error),
                Err(_) => "it does not answer".to_owned(),
            };
            reasons.push(if count > 1 {
                format!("{}: {reason}", address(config))
            } else {
                reason
            });
        }
        self.first.store((first + 1) % count, Ordering::Relaxed);
        let reason = if reasons.is_empty() {
            "no host name could be resolved".to_owned()
        } else {
            reasons.join("; ")
        };
        Err(Failure::NoServer(Arc::new(NoServer { reason, unfit })))
    }

    /// The next connection begins with another host.
    pub(crate) fn avoid_current_host(&self) {
        self.first.fetch_add(1, Ordering::Relaxed);
    }

    /// All addresses of all hosts. A name may stand for several servers, each with a handshake of
    /// its own.
    async fn addresses(&self) -> Vec<Config> {
        let resolved = self.hosts.iter().map(|host| async move {
            let [Host::Tcp(name)] = host.get_hosts() else {
                return vec![host.clone()];
            };
            if !host.get_hostaddrs().is_empty() || name.parse::<IpAddr>().is_ok() {
                return vec![host.clone()];
            }
            let found = timeout(self.handshake_within, lookup_host((name.as_str(), 0))).await;
            let Ok(Ok(found)) = found else {
                // The connection attempt reports why.
                return vec![host.clone()];
            };
            found
                .map(|address| {
                    let mut config = host.clone();
                    config.hostaddr(address.ip());
                    config
                })
                .collect()
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
        let mut leader = self.leader();
        let since = self.time.clock().now();
        *leader = Some(Leader::next(
            leader.take(),
            address(config),
            found.timeline,
            since,
        ));
        drop(leader);
        Ok(Link {
            client,
            not_replicated,
        })
    }

    /// A connection with all statements prepared.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let link = self.connect().await?;
        self.set_up(link).await
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
        let Link {
            client,
            not_replicated,
        } = link;
        client
            .query_one(SESSION, &[&STATEMENT_TIMEOUT, &LOCK_TIMEOUT])
            .await?;
        // What this session reads may have been committed just before the server restarted.
        client.query_one(BARRIER, &[]).await?;
        check_replicated(&not_replicated)?;
        // Boxed: the future that prepares all statements at once is large.
        let sql = Box::pin(Statements::prepare(&client, &self.queries)).await?;
        Ok(Session {
            client,
            sql,
            not_replicated,
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

    /// Drops all connections: this server stopped being fit.
    pub(crate) fn mark_unfit(&self) {
        self.unfit.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_unfit(&self) -> bool {
        self.unfit.load(Ordering::SeqCst)
    }

    pub(crate) fn leader(&self) -> MutexGuard<'_, Option<Leader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a host was passed over.
enum Rejected {
    Unfit(Unfit),
    Failed(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Rejected {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

/// The server process behind a connection, in one round trip without a prepared statement.
async fn backend(client: &Client) -> Result<i32, tokio_postgres::Error> {
    let rows = client.query_typed(BACKEND, &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

/// Drives a connection until it ends. The callers that wait for an answer get the error.
///
/// A notice is handled before the end of its statement is passed on, so that a caller that has its
/// rows sees it.
async fn drive(
    mut driver: Driver,
    not_replicated: Arc<AtomicBool>,
    notifications: Option<UnboundedSender<String>>,
) {
    let mut messages = futures_util::stream::poll_fn(move |context| driver.poll_message(context));
    while let Some(Ok(message)) = messages.next().await {
        match message {
            AsyncMessage::Notice(notice) if ends_wait_for_standby(&notice) => {
                tracing::error!(
                    "PostgreSQL committed without its standby: {}",
                    notice.message()
                );
                not_replicated.store(true, Ordering::SeqCst);
            }
            AsyncMessage::Notification(note) => {
                let is_heard = notifications
                    .as_ref()
                    .is_none_or(|listener| listener.send(note.payload().to_owned()).is_ok());
                if !is_heard {
                    return;
                }
            }
            AsyncMessage::Notice(_) | _ => {}
        }
    }
}

/// Whether a warning says that a commit did not wait for its standby. The message may be translated;
/// the place in the server's source is not.
fn ends_wait_for_standby(notice: &DbError) -> bool {
    notice.parsed_severity() == Some(Severity::Warning)
        && (notice.routine() == Some("SyncRepWaitForLSN")
            || notice.file() == Some("syncrep.c")
            || notice.message().contains("synchronous replication"))
}

/// Shared by the connection workers.
pub(crate) type Shared = Arc<Connector>;
