//! The process: both listeners, from their start to the last word of every execution.

mod reload;

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use semel_core::{Inspect, Memory, OperationId, Outbox, Store as _};
use semel_http::route;
use semel_postgres::Postgres;
use semel_seal::Sealed;
use semel_sqlite::Sqlite;
use semel_worker::{CensusTaker, Worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::Counts;
use crate::admin::{Api, Whole};
use crate::assemble::guard;
use crate::config::{CacheUrl, Config, Source, StoreUrl};
use crate::front::{Current, Front, Own};
use crate::observed::{Events, Observed};
use crate::server::{Limits, Tls, TlsError, Workers, bind};
use crate::upstream::{ConfigError, Forward};
use reload::reload;

use crate::{activity, admin, assemble, outbox, reconcile, telemetry, webhooks};

/// How long a stopping process tries to bring its last counts to the store.
const LAST_COUNTS: Duration = Duration::from_secs(2);

/// Where the listeners are, once both are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// For requests, where the process serves them.
    pub gateway: Option<String>,
    /// For operators.
    pub admin: String,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves requests, and does what happens out of band beside it.
    Gateway,
    /// Serves requests, and leaves the rest to others.
    GatewayOnly,
    /// Only does what happens out of band.
    Worker,
}

/// Why the gateway could not start, or could not go on. None of these has executed anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The store's file cannot be opened.
    #[error(transparent)]
    Sqlite(#[from] semel_sqlite::Error),
    /// The store's database cannot be used.
    #[error(transparent)]
    Postgres(#[from] semel_postgres::Error),
    /// The cache's address cannot be used.
    #[error(transparent)]
    Redis(#[from] semel_redis::Error),
    /// The routes contradict each other.
    #[error(transparent)]
    Route(#[from] route::Error),
    /// What is unknown cannot be found out as configured.
    #[error(transparent)]
    Reconcile(#[from] reconcile::Error),
    /// Events cannot go where they are to go.
    #[error("[outbox]: {0}")]
    Outbox(#[from] semel_brokers::Error),
    /// The upstream's address cannot be used.
    #[error("the upstream {address}: {source}")]
    Upstream {
        /// As configured.
        address: String,
        /// Why not.
        source: ConfigError,
    },
    /// Nobody's certificate would be believed.
    #[error("the upstream is at https, and {0}")]
    Untrusted(String),
    /// The certificate or its key cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Tls(#[from] TlsError),
    /// A file that the configuration names.
    #[error("cannot read {path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The metrics cannot be started.
    #[error("cannot start the metrics: {0}")]
    Metrics(#[from] telemetry::Error),
    /// The operating system refused a thread, a signal or a socket.
    #[error("the operating system: {0}")]
    System(#[from] io::Error),
}

/// Runs a process until `SIGTERM` or `SIGINT`, then drains it. `source` is read again at
/// `SIGHUP`. `ready` is called when the listeners accept.
///
/// # Errors
/// [`Error`], where it cannot start.
///
/// # Cancellation
/// Dropping the future ends the process's work without a drain: leases run out.
pub async fn run(
    config: Config,
    source: Source,
    role: Role,
    threads: Option<NonZeroUsize>,
    ready: impl FnOnce(&Listening),
) -> Result<(), Error> {
    let process = Process {
        role,
        threads,
        source,
    };
    match &config.store {
        StoreUrl::Sqlite(path) => {
            let store = Sqlite::open(path).await?;
            process.run(store.clone(), store, config, ready).await
        }
        StoreUrl::Postgres(url) => {
            let store = Postgres::open(url.expose()).await?;
            match &config.cache {
                Some(CacheUrl(cache)) => {
                    let cached = semel_redis::Options::new(cache.expose())
                        .open(store.clone())
                        .await?;
                    process.run(cached, store, config, ready).await
                }
                None => process.run(store.clone(), store, config, ready).await,
            }
        }
        StoreUrl::Memory => {
            tracing::warn!("the store is memory: everything is forgotten when the process ends");
            let store = Memory::default();
            process.run(store.clone(), store, config, ready).await
        }
    }
}

/// How this process runs.
struct Process {
    role: Role,
    threads: Option<NonZeroUsize>,
    source: Source,
}

impl Process {
    /// `outbox` is that of the store, with nothing around it: events are neither sealed nor cached.
    async fn run<S: Whole, O: Outbox + Clone>(
        self,
        store: S,
        outbox: O,
        config: Config,
        ready: impl FnOnce(&Listening),
    ) -> Result<(), Error> {
        // Asked for first: a signal that comes while starting must not end the process halfway.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let stop = CancellationToken::new();

        let (events, counts) = (Events::default(), Counts::default());
        let sealed = Sealed::new(store, config.encryption.clone());
        let store = Observed::new(sealed, events.clone(), counts.clone());
        let metrics = telemetry::install(counts.clone())?;
        tokio::spawn(telemetry::upkeep(metrics.clone()));
        let layer = guard(&config, store.clone())?;
        let current: Current<_> = Arc::new(ArcSwap::from_pointee(layer.clone()));

        let (admin_listener, admin_address) =
            listen(&config.admin.listen.address().to_string()).await?;
        let reconcilers = reconcile::reconcilers(&config, store.clone())?;
        let api = Api {
            store: store.clone(),
            reconcilers: reconcilers.clone(),
            events,
        };
        let asked = store.clone();
        let router = admin::router(
            config.admin.access(),
            move || ready_when_answering(asked.clone()),
            metrics,
            api,
            outbox.clone(),
        );
        let admin = tokio::spawn(admin::serve(
            admin_listener,
            router,
            stop.clone().cancelled_owned(),
        ));
        let worker = match self.role {
            Role::Gateway | Role::Worker => {
                let census = CensusTaker::new(store.clone(), store.clock());
                let mut worker = Worker::new(store.clone())
                    .reconcilers(reconcilers)
                    .also(Arc::new(census));
                if let Some(config) = &config.outbox {
                    for chore in outbox::chores(config, outbox, store.clock()).await? {
                        worker = worker.also(chore);
                    }
                }
                Some(tokio::spawn(worker.run(stop.clone())))
            }
            Role::GatewayOnly => None,
        };
        let keeping = tokio::spawn(activity::keep(counts, store.clone(), stop.clone()));
        let own = Arc::new(Own {
            store,
            sources: ArcSwap::from_pointee(webhooks::sources(&config)),
        });
        let serving = match self.role {
            Role::Gateway | Role::GatewayOnly => {
                Some(start(&config, &current, &own, self.threads, &stop)?)
            }
            Role::Worker => None,
        };
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let address = serving.as_ref().map(|(_, address)| address.clone());
        ready(&Listening {
            gateway: address.map(|address| format!("{scheme}://{address}")),
            admin: format!("http://{admin_address}"),
        });
        tracing::info!(%admin_address, "ready");

        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hang_up.recv() => reload(&self.source, &config, &layer, &current, &own),
            }
        }
        tracing::info!(running = layer.running(), "stopping: waiting for what runs");
        stop.cancel();
        if let Some(worker) = worker {
            // A look that is cut off is made again by whoever claims it next.
            let _ = tokio::time::timeout(config.drain, worker).await;
        }
        let cut = match serving {
            Some((workers, _)) => workers.stopped().await?.cut,
            None => 0,
        };
        // The last requests are counted before this.
        let _ = tokio::time::timeout(LAST_COUNTS, keeping).await;
        // The operators' listener has nothing to lose.
        admin.abort();
        tracing::info!(cut, "stopped");
        Ok(())
    }
}

async fn listen(address: &str) -> Result<(TcpListener, String), Error> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        Ok((listener, address))
    };
    bound.await.map_err(|source| Error::Listen {
        address: address.to_owned(),
        source,
    })
}

/// The workers, each with connections of its own to the upstream.
fn start<S: Whole>(
    config: &Config,
    current: &Current<S>,
    own: &Arc<Own<S>>,
    threads: Option<NonZeroUsize>,
    stop: &CancellationToken,
) -> Result<(Workers, String), Error> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?,
    };
    let requested = config.listen.address();
    let listeners = bind(requested, threads.get()).map_err(|source| Error::Listen {
        address: requested.to_string(),
        source,
    })?;
    let address = listeners
        .first()
        .map_or(Ok(requested), std::net::TcpListener::local_addr)?;
    let tls = match &config.tls {
        Some(files) => Some(Tls::from_pem(
            &read(&files.certificate)?,
            &read(&files.key)?,
        )?),
        None => None,
    };
    let upstream = assemble::upstream(config)?;

    let patience = config.policy.upstream_timeout;
    let (current, own) = (Arc::clone(current), Arc::clone(own));
    let deadline = Deadline::new(config.drain, stop.clone());
    let make = move |_worker| {
        let forward = Forward::new(upstream.apart(), patience);
        let front = Front::new(Arc::clone(&current), Arc::clone(&own), forward);
        let (layer, deadline) = (current.load_full(), deadline.clone());
        let rest = async move {
            layer.drain(deadline.left()).await;
        };
        (front, rest)
    };
    let workers = Workers::start(listeners, limits(config), tls, stop, make)?;
    Ok((workers, address.to_string()))
}

fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    limits.max_connections = config.limits.max_connections;
    limits.header_timeout = config.limits.header_timeout;
    limits.idle_timeout = config.limits.idle_timeout;
    limits.body_idle_timeout = config.limits.body_idle_timeout;
    limits.drain = config.drain;
    limits
}

/// Until when a stopping process waits: connections first, then executions whose clients are
/// gone, within one and the same time.
#[derive(Clone)]
struct Deadline {
    patience: Duration,
    at: Arc<OnceLock<Instant>>,
}

impl Deadline {
    fn new(patience: Duration, stop: CancellationToken) -> Self {
        let at = Arc::new(OnceLock::new());
        let deadline = Self { patience, at };
        let set = deadline.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            set.at.get_or_init(|| Instant::now() + set.patience);
        });
        deadline
    }

    fn left(&self) -> Duration {
        let at = self.at.get_or_init(|| Instant::now() + self.patience);
        at.saturating_duration_since(Instant::now())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        path: path.display().to_string(),
        source,
    })
}

/// Whether the store answers: it is asked for an operation that is not there.
async fn ready_when_answering<S: Inspect>(store: S) -> Result<(), String> {
    let found = store.find(OperationId::from_bytes([0; 16])).await;
    found.map(drop).map_err(|error| error.to_string())
}
