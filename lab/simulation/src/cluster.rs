//! The processes of one scenario: gateways with the application, and workers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::Policy;
use semel_http::{Layer, tenant};
use semel_worker::{Reconcilers, Schedule, Worker};

use crate::Sabotage;
use crate::app::MAX_RESPONSE;
use crate::connection::StoreConnection;
use crate::plan::{BOOK, Intent, PAY, RESUME_WITHIN, TRANSFER};
use crate::process::{Kind, Process};
use crate::provider::ProviderLookup;
use crate::scenario::{Scenario, lock};
use crate::store::SharedStore;

/// The gateways and workers, and the requests that clients have sent.
pub(crate) struct Cluster {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) shared: Arc<SharedStore>,
    gateways: Mutex<Vec<Gateway>>,
    workers: Mutex<Vec<Arc<Process>>>,
    /// Every request that was sent.
    pub(crate) sent: Mutex<BTreeSet<Intent>>,
    /// The number of processes that were started.
    started: Mutex<u32>,
}

/// One process of a gateway.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) process: Arc<Process>,
    pub(crate) layer: Layer<StoreConnection>,
}

impl Cluster {
    pub(crate) fn new(scenario: Arc<Scenario>) -> anyhow::Result<Arc<Self>> {
        let cluster = Arc::new(Self {
            shared: Arc::new(SharedStore::new(Arc::clone(&scenario))),
            scenario,
            gateways: Mutex::default(),
            workers: Mutex::default(),
            sent: Mutex::default(),
            started: Mutex::default(),
        });
        for _ in 0..cluster.scenario.plan.gateways {
            let gateway = cluster.start_gateway()?;
            lock(&cluster.gateways).push(gateway);
        }
        for _ in 0..cluster.scenario.plan.workers {
            let worker = cluster.start_worker()?;
            lock(&cluster.workers).push(worker);
        }
        Ok(cluster)
    }

    pub(crate) fn gateway(&self, at: usize) -> Option<Gateway> {
        let gateways = lock(&self.gateways);
        gateways.get(at % gateways.len().max(1)).cloned()
    }

    pub(crate) fn worker(&self, at: usize) -> Option<Arc<Process>> {
        let workers = lock(&self.workers);
        workers.get(at % workers.len().max(1)).cloned()
    }

    /// Replaces a gateway by a new process.
    pub(crate) fn restart_gateway(&self, at: usize) -> anyhow::Result<()> {
        let gateway = self.start_gateway()?;
        let mut gateways = lock(&self.gateways);
        let count = gateways.len().max(1);
        if let Some(slot) = gateways.get_mut(at % count) {
            *slot = gateway;
        }
        Ok(())
    }

    fn restart_worker(&self, at: usize) -> anyhow::Result<()> {
        let worker = self.start_worker()?;
        let mut workers = lock(&self.workers);
        let count = workers.len().max(1);
        if let Some(slot) = workers.get_mut(at % count) {
            *slot = worker;
        }
        Ok(())
    }

    /// Replaces dead processes.
    pub(crate) fn restart_dead(&self) -> anyhow::Result<()> {
        for at in 0..self.scenario.plan.gateways {
            if self
                .gateway(at)
                .is_none_or(|gateway| gateway.process.is_dead())
            {
                self.restart_gateway(at)?;
            }
        }
        for at in 0..self.scenario.plan.workers {
            if self.worker(at).is_none_or(|worker| worker.is_dead()) {
                self.restart_worker(at)?;
            }
        }
        Ok(())
    }

    /// Replaces dead processes, and continues stopped ones.
    pub(crate) fn revive(&self) -> anyhow::Result<()> {
        self.restart_dead()?;
        for gateway in lock(&self.gateways).iter() {
            gateway.process.stop_for(Duration::ZERO);
        }
        for worker in lock(&self.workers).iter() {
            worker.stop_for(Duration::ZERO);
        }
        Ok(())
    }

    fn process(&self, kind: Kind) -> Arc<Process> {
        let mut started = lock(&self.started);
        *started += 1;
        Arc::new(Process::start(kind, *started))
    }

    fn connect(&self, process: &Arc<Process>) -> StoreConnection {
        StoreConnection {
            scenario: Arc::clone(&self.scenario),
            process: Arc::clone(process),
            shared: Arc::clone(&self.shared),
        }
    }

    fn start_gateway(&self) -> anyhow::Result<Gateway> {
        let plan = &self.scenario.plan;
        let process = self.process(Kind::Gateway);
        let policy = Policy {
            lease: plan.lease,
            windows: plan.windows,
            on_expired: plan.on_expired,
            ..Policy::default()
        };
        let layer = Layer::new(self.connect(&process))
            .cache_bytes(plan.cache_bytes)
            .store_timeouts(plan.store_patience, plan.record_patience)
            .tenant(tenant::header("x-account"))
            .dialect(plan.dialect)
            .status_path("/operations/")
            .try_defaults(|route| {
                route
                    .policy(policy)
                    .in_flight(plan.in_flight)
                    .execute_max(plan.execute_max)
                    .max_response(MAX_RESPONSE)
                    .store_header(crate::app::MARK)
            })?
            .try_route("POST /payments", |route| route.operation(PAY))?
            .try_route("POST /transfers", |route| route.operation(TRANSFER))?
            .try_route("POST /bookings", |route| {
                let route = route.operation(BOOK).phases();
                route.resume_within(RESUME_WITHIN)
            })?;
        Ok(Gateway { process, layer })
    }

    /// Starts a worker that runs its jobs one round at a time.
    fn start_worker(&self) -> anyhow::Result<Arc<Process>> {
        let process = self.process(Kind::Worker);
        let connection = self.connect(&process);
        let scenario = Arc::clone(&self.scenario);
        let lookup = ProviderLookup {
            scenario: Arc::clone(&scenario),
            process: Arc::clone(&process),
        };
        let schedule = |downstream_idempotent| Schedule {
            every: Duration::from_secs(1),
            max_every: Duration::from_secs(4),
            attempts: 5,
            downstream_idempotent,
        };
        let trusts = scenario.sabotage == Sabotage::TrustsAbsence;
        let reconcilers = Reconcilers::new(connection.clone())
            .poll_with(PAY, schedule(true), lookup.clone())?
            .poll_with(BOOK, schedule(trusts), lookup.clone())?
            .poll_with(TRANSFER, schedule(trusts), lookup)?;
        let worker = Worker::new(connection).reconcilers(reconcilers);
        let running = Arc::clone(&process);
        tokio::spawn(async move {
            while !running.is_dead() {
                scenario.sleep_random(300, 1500).await;
                running.step().await;
                // A job that fails is due again later; a lookup that panics does not end the round.
                drop(worker.sweep_once().await);
                drop(worker.reconcile_once().await);
                if scenario.draw(|rng| rng.in_thousand(150)) {
                    drop(worker.retain_once().await);
                }
            }
        });
        Ok(process)
    }
}
