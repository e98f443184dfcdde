//! The processes of one world: gateways with the application in them, and workers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::Policy;
use semel_http::{Layer, tenant};
use semel_worker::{Reconcilers, Schedule, Worker};

use crate::Sabotage;
use crate::app::MAX_RESPONSE;
use crate::plan::{BOOK, Intent, PAY, RESUME_WITHIN, TRANSFER};
use crate::process::{Kind, Process};
use crate::provider::Looking;
use crate::store::Shared;
use crate::wire::Wire;
use crate::world::{World, lock};

/// Everything that runs, and what the clients know of it.
pub(crate) struct Town {
    pub(crate) world: Arc<World>,
    pub(crate) shared: Arc<Shared>,
    gateways: Mutex<Vec<Gateway>>,
    workers: Mutex<Vec<Arc<Process>>>,
    /// All that was ever sent.
    pub(crate) sent: Mutex<BTreeSet<Intent>>,
    lives: Mutex<u32>,
}

/// One life of a gateway.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) process: Arc<Process>,
    pub(crate) layer: Layer<Wire>,
}

impl Town {
    pub(crate) fn new(world: Arc<World>) -> anyhow::Result<Arc<Self>> {
        let town = Arc::new(Self {
            shared: Arc::new(Shared::new(Arc::clone(&world))),
            world,
            gateways: Mutex::default(),
            workers: Mutex::default(),
            sent: Mutex::default(),
            lives: Mutex::default(),
        });
        for _ in 0..town.world.plan.gateways {
            let gateway = town.open()?;
            lock(&town.gateways).push(gateway);
        }
        for _ in 0..town.world.plan.workers {
            let worker = town.hire()?;
            lock(&town.workers).push(worker);
        }
        Ok(town)
    }

    pub(crate) fn gateway(&self, at: usize) -> Option<Gateway> {
        let gateways = lock(&self.gateways);
        gateways.get(at % gateways.len().max(1)).cloned()
    }

    pub(crate) fn worker(&self, at: usize) -> Option<Arc<Process>> {
        let workers = lock(&self.workers);
        workers.get(at % workers.len().max(1)).cloned()
    }

    /// The one before is dead; this one knows nothing of it.
    pub(crate) fn restart_gateway(&self, at: usize) -> anyhow::Result<()> {
        let gateway = self.open()?;
        let mut gateways = lock(&self.gateways);
        let count = gateways.len().max(1);
        if let Some(place) = gateways.get_mut(at % count) {
            *place = gateway;
        }
        Ok(())
    }

    fn restart_worker(&self, at: usize) -> anyhow::Result<()> {
        let worker = self.hire()?;
        let mut workers = lock(&self.workers);
        let count = workers.len().max(1);
        if let Some(place) = workers.get_mut(at % count) {
            *place = worker;
        }
        Ok(())
    }

    /// Starts what died anew.
    pub(crate) fn restart_dead(&self) -> anyhow::Result<()> {
        for at in 0..self.world.plan.gateways {
            if self
                .gateway(at)
                .is_none_or(|gateway| gateway.process.is_dead())
            {
                self.restart_gateway(at)?;
            }
        }
        for at in 0..self.world.plan.workers {
            if self.worker(at).is_none_or(|worker| worker.is_dead()) {
                self.restart_worker(at)?;
            }
        }
        Ok(())
    }

    /// Every process runs again, and at once.
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
        let mut lives = lock(&self.lives);
        *lives += 1;
        Arc::new(Process::start(kind, *lives))
    }

    fn wire(&self, process: &Arc<Process>) -> Wire {
        Wire {
            world: Arc::clone(&self.world),
            process: Arc::clone(process),
            shared: Arc::clone(&self.shared),
        }
    }

    fn open(&self) -> anyhow::Result<Gateway> {
        let plan = &self.world.plan;
        let process = self.process(Kind::Gateway);
        let policy = Policy {
            lease: plan.lease,
            windows: plan.windows,
            on_expired: plan.on_expired,
            ..Policy::default()
        };
        let layer = Layer::new(self.wire(&process))
            .cache_bytes(plan.cache_bytes)
            .patience(plan.store_patience, plan.record_patience)
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

    /// A worker that does one round of everything, again and again, at its own pace.
    fn hire(&self) -> anyhow::Result<Arc<Process>> {
        let process = self.process(Kind::Worker);
        let wire = self.wire(&process);
        let world = Arc::clone(&self.world);
        let way = Looking {
            world: Arc::clone(&world),
            process: Arc::clone(&process),
        };
        let schedule = |downstream_idempotent| Schedule {
            every: Duration::from_secs(1),
            max_every: Duration::from_secs(4),
            attempts: 5,
            downstream_idempotent,
        };
        let trusts = world.sabotage == Sabotage::TrustsAbsence;
        let reconcilers = Reconcilers::new(wire.clone())
            .by_looking(PAY, schedule(true), way.clone())?
            .by_looking(BOOK, schedule(trusts), way.clone())?
            .by_looking(TRANSFER, schedule(trusts), way)?;
        let worker = Worker::new(wire).reconcilers(reconcilers);
        let living = Arc::clone(&process);
        tokio::spawn(async move {
            while !living.is_dead() {
                world.dawdle(300, 1500).await;
                living.step().await;
                // What failed comes due again; a look that panics does not end the round.
                drop(worker.sweep_once().await);
                drop(worker.reconcile_once().await);
                if world.draw(|rng| rng.in_thousand(150)) {
                    drop(worker.retain_once().await);
                }
            }
        });
        Ok(process)
    }
}
