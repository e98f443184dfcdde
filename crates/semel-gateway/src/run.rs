//! The process: starts both listeners and the worker, runs until a signal, then drains.

mod deadline;
mod error;
mod open;
mod readiness;
mod reload;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::Store;
use semel_core::store::AnyStore;
use semel_http::Layer;
use semel_seal::Sealed;
use semel_worker::{Reconcilers, RecordCountScan, Worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::activity::Counts;
use crate::admin::Api;
use crate::assemble::{admin_limits, build_layer, limits};
use crate::config::{Config, Source};
use crate::observed::{Events, Observed};
use crate::regions::Peers;
use crate::rollback::StoreWatch;
use crate::server::{Tls, Workers, bind};
use crate::service::{CurrentLayer, GatewayService, InternalRoutes};
use crate::upstream::Forward;
use crate::{activity, admin, assemble, outbox, reconcile, regions, telemetry, webhooks};
use deadline::Deadline;
use open::{Stores, open_stores};
use readiness::Readiness;
use reload::reload;

pub use error::Error;
pub use open::open_store;

/// How long a stopping process tries to write its last counts to the store.
const LAST_COUNTS_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a process makes sure that its contracts are in the store.
const REPUBLISH_EVERY: Duration = Duration::from_mins(1);

/// The addresses of the listeners, once both accept connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The gateway listener; `None` if the process does not serve requests.
    pub gateway: Option<String>,
    /// The admin listener.
    pub admin: String,
}

/// Which parts a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves requests and runs the worker.
    Gateway,
    /// Serves requests only; another process runs the worker.
    GatewayOnly,
    /// Runs the worker only.
    Worker,
    /// Serves the admin listener only: no requests and no background jobs.
    Console,
}

/// Runs the process until `SIGTERM` or `SIGINT`, then drains it. `SIGHUP` reloads the configuration
/// from `source`. `ready` is called once the listeners accept connections.
///
/// # Errors
/// [`Error`] if the process cannot start.
///
/// # Cancellation
/// Dropping the future stops without a drain: running executions keep their leases until they
/// expire.
pub async fn run(
    config: Config,
    source: Source,
    role: Role,
    threads: Option<NonZeroUsize>,
    ready: impl FnOnce(&Listening) + Send,
) -> Result<(), Error> {
    let process = Process {
        role,
        threads,
        source,
        // Before the store is opened, which may take long: an unhandled SIGHUP ends the process.
        reload: signal(SignalKind::hangup())?,
    };
    let stores = open_stores(&config).await?;
    process.run(stores, config, Box::new(ready)).await
}

/// What [`run`] was called with, besides the configuration.
struct Process {
    role: Role,
    threads: Option<NonZeroUsize>,
    source: Source,
    /// `SIGHUP`.
    reload: Signal,
}

impl Process {
    async fn run(
        mut self,
        stores: Stores,
        config: Config,
        ready: Box<dyn FnOnce(&Listening) + Send + '_>,
    ) -> Result<(), Error> {
        // Registered first: a signal during start-up must not kill the process halfway.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // First the servers are asked to stop, after `drain_delay` everything stops.
        let (stopping, stop) = (CancellationToken::new(), CancellationToken::new());

        let Stores { store, outbox, .. } = stores;
        let (events, counts) = (Events::default(), Counts::default());
        let sealed = Sealed::new(store, config.encryption.clone());
        let watch = StoreWatch::new(stores.postgres, config.region.is_some());
        let store = Observed::new(sealed, events.clone(), counts.clone(), watch.clone());
        let metrics = telemetry::install(counts.clone())?;
        tokio::spawn(telemetry::upkeep(metrics.clone()));
        let layer = build_layer(&config, store.clone())?;
        if matches!(self.role, Role::Gateway | Role::GatewayOnly) {
            regions::adopt(config.region.as_deref(), &layer).await?;
        }
        let current: CurrentLayer<_> = Arc::new(ArcSwap::from_pointee(layer.clone()));

        let (admin_listener, admin_address) = listen(&config)?;
        let reconcilers = reconcile::reconcilers(&config, store.clone())?;
        let api = Api {
            store: store.clone(),
            reconcilers: reconcilers.clone(),
            events,
            key_hasher: config.key_hasher.clone(),
            counts: counts.clone(),
            layer: Arc::clone(&current),
        };
        let health = (watch.clone(), stopping.clone());
        let router = admin_router(&config, metrics, api, outbox.clone(), health);
        tokio::spawn(watch.run(outbox.clone(), stop.clone()));
        let (limits, stopped) = (admin_limits(&config), stopping.clone());
        let admin = tokio::spawn(admin::serve(admin_listener, router, limits, stopped));
        let worker = match self.role {
            Role::Gateway | Role::Worker => {
                let worker = build_worker(&config, &store, reconcilers, outbox).await?;
                Some(tokio::spawn(worker.run(stop.clone())))
            }
            Role::GatewayOnly | Role::Console => None,
        };
        let count_writer = (self.role != Role::Console).then(|| {
            let writer = activity::write_periodically(counts, store.clone(), stop.clone());
            tokio::spawn(writer)
        });
        let internal = Arc::new(InternalRoutes {
            store,
            sources: ArcSwap::from_pointee(webhooks::sources(&config)),
        });
        let serving = match self.role {
            Role::Gateway | Role::GatewayOnly => Some(start_workers(
                &config,
                &current,
                &internal,
                self.threads,
                (&stopping, &stop),
            )?),
            Role::Worker | Role::Console => None,
        };
        let scheme = config.tls.as_ref().map_or("http", |_| "https");
        let address = serving.as_ref().map(|serving| serving.address.clone());
        ready(&Listening {
            gateway: address.map(|address| format!("{scheme}://{address}")),
            admin: format!("http://{admin_address}"),
        });
        tracing::info!(%admin_address, "ready");

        let signalled = pin!(async {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        });
        self.reload_until(signalled, &config, &layer, &current, &internal)
            .await;
        stopping.cancel();
        if !config.drain_delay.is_zero() {
            tracing::info!(delay = ?config.drain_delay, "stopping: not ready, and still accepting");
            tokio::time::sleep(config.drain_delay).await;
        }
        tracing::info!(
            running = layer.running(),
            "stopping: waiting for running executions"
        );
        stop.cancel();
        if let Some(worker) = worker {
            // A reconciliation that is cut off is claimed and run again by another worker.
            let _ = tokio::time::timeout(config.drain, worker).await;
        }
        let cut = match serving {
            Some(serving) => serving.workers.stopped().await?.cut,
            None => 0,
        };
        // After the drain, so that the last requests are included.
        if let Some(writer) = count_writer {
            let _ = tokio::time::timeout(LAST_COUNTS_TIMEOUT, writer).await;
        }
        // Admin requests need no drain: every decision is committed before its response is sent.
        admin.abort();
        tracing::info!(cut, "stopped");
        Ok(())
    }

    /// Reloads the configuration at each `SIGHUP`, until a signal to stop.
    async fn reload_until<S: Store>(
        &mut self,
        mut signalled: Pin<&mut impl Future<Output = ()>>,
        running: &Config,
        layer: &Layer<S>,
        current: &CurrentLayer<S>,
        internal: &InternalRoutes<S>,
    ) {
        loop {
            tokio::select! {
                () = &mut signalled => return,
                _ = self.reload.recv() => {}
            }
            let reload = reload(&self.source, self.role, running, layer, current, internal);
            tokio::select! { () = &mut signalled => return, () = reload => {} }
        }
    }
}

/// The routes of the admin listener.
fn admin_router<S: Store + Clone>(
    config: &Config,
    metrics: PrometheusHandle,
    api: Api<S>,
    outbox: AnyStore,
    (watch, stopping): (StoreWatch, CancellationToken),
) -> axum::Router {
    let readiness = Readiness {
        store: api.store.clone(),
        watch,
        stopping,
    };
    let is_ready = move || readiness.clone().check();
    admin::router(config.admin.access(), is_ready, metrics, api, outbox)
}

/// Publishes the contracts again where they are missing: a store that was restored, or a process
/// that made room for its own rules, may have dropped them.
async fn republish<S: Store>(current: CurrentLayer<S>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(REPUBLISH_EVERY) => {}
        }
        if let Err(error) = current.load_full().keep_published().await {
            tracing::warn!(%error, "the contracts could not be published again");
        }
    }
}

/// The worker with all jobs of the configuration.
async fn build_worker<S: Store + Clone>(
    config: &Config,
    store: &S,
    reconcilers: Reconcilers<S>,
    outbox: AnyStore,
) -> Result<Worker<S>, Error> {
    let scan = RecordCountScan::new(store.clone(), store.clock());
    let mut worker = Worker::new(store.clone())
        .reconcilers(reconcilers)
        .with_job(Arc::new(scan));
    if let Some(after) = config.dead_letter_unreconciled {
        worker = worker.dead_letter_unreconciled(after);
    }
    if let Some(config) = &config.outbox {
        let jobs = outbox::jobs(config, outbox, store.clock()).await?;
        worker = jobs.into_iter().fold(worker, Worker::with_job);
    }
    Ok(worker)
}

/// Binds the admin listener.
fn listen(config: &Config) -> Result<(TcpListener, String), Error> {
    let (listeners, address) = bind_all(config.admin.listen.address(), 1, config.reuse_port)?;
    let mut listeners = listeners.into_iter().map(TcpListener::from_std);
    let listener = listeners
        .next()
        .unwrap_or_else(|| Err(ErrorKind::Other.into()))?;
    Ok((listener, address.to_string()))
}

/// Binds listeners, and returns the address that they have.
fn bind_all(
    requested: SocketAddr,
    count: usize,
    reuse_port: bool,
) -> Result<(Vec<std::net::TcpListener>, SocketAddr), Error> {
    let listeners = bind(requested, count, reuse_port).map_err(|source| Error::Listen {
        address: requested.to_string(),
        source,
    })?;
    let first = listeners.first();
    let address = first.map_or(Ok(requested), std::net::TcpListener::local_addr)?;
    Ok((listeners, address))
}

/// A gateway that accepts connections.
struct Serving {
    workers: Workers,
    address: String,
    /// Ends the watch over the list of regions.
    _agreement: Option<DropGuard>,
}

/// Starts the worker threads, each with its own upstream connections.
fn start_workers<S: Store + Clone>(
    config: &Config,
    current: &CurrentLayer<S>,
    internal: &Arc<InternalRoutes<S>>,
    threads: Option<NonZeroUsize>,
    (stopping, stop): (&CancellationToken, &CancellationToken),
) -> Result<Serving, Error> {
    let threads = match threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?,
    };
    config.tenant.prefetch();
    let requested = config.listen.address();
    let (listeners, address) = bind_all(requested, threads.get(), config.reuse_port)?;
    let tls = match &config.tls {
        Some(files) => Some(Tls::from_pem(
            &read(&files.certificate)?,
            &read(&files.key)?,
        )?),
        None => None,
    };
    let upstream = assemble::upstream(config)?;
    let peers = config.region.as_ref();
    let peers = peers.map(|regions| Peers::new(regions, &config.trusted_proxies));
    let peers = peers.transpose()?;
    // Until the last request has ended, and so not until `stop`.
    let agreement = peers.clone().map(|peers| {
        let watching = CancellationToken::new();
        let store = internal.store.clone();
        tokio::spawn(regions::keep_agreed(peers, store, watching.clone()));
        watching.drop_guard()
    });

    let timeout = config.policy.upstream_timeout;
    tokio::spawn(republish(Arc::clone(current), stop.clone()));
    let (current, internal) = (Arc::clone(current), Arc::clone(internal));
    let deadline = Deadline::new(config.drain, stop.clone());
    let make = move |_worker| {
        let peers = peers.as_ref().map(Peers::with_own_pool);
        let forward = Forward::new(upstream.with_own_pool(), timeout).with_peers(peers);
        let service = GatewayService::new(Arc::clone(&current), Arc::clone(&internal), forward);
        let (layer, deadline) = (current.load_full(), deadline.clone());
        let drain = async move {
            layer.drain(deadline.remaining()).await;
        };
        (service, drain)
    };
    let workers = Workers::start(listeners, limits(config), tls, stopping, make)?;
    Ok(Serving {
        workers,
        address: address.to_string(),
        _agreement: agreement,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        path: path.display().to_string(),
        source,
    })
}
