//! After the faults: every operation is brought to its end, by retries and by operators.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{Client, Shared};
use crate::http;
use crate::operation::{Operation, OperationIndex, Route};
use crate::random::Random;
use crate::record::Recorder;
use crate::test_bed::TestBed;

/// How long nothing must be in progress before an operator trusts the ledger: longer than a gateway
/// waits for the application, and the application for the provider.
const QUIET: Duration = Duration::from_secs(6);
const QUIET_PATIENCE: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(250);
/// How often operators and clients take turns.
const ROUNDS: usize = 4;
/// How long clients try in one round.
const PERSISTENCE: Duration = Duration::from_secs(12);
/// How many operations a page of the operators' list has.
const PAGE: usize = 1_000;
/// How the names of the operation begin whose provider gets no key.
const UNKEYED: &str = "create_unkeyed_payment";
/// How many decisions are taken at a time.
const OPERATORS: usize = 8;

/// Finishes the open operations, and lists those that could not be finished.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) test_bed: Arc<TestBed>,
    pub(crate) shared: Shared,
    pub(crate) clients: usize,
}

/// An operation in the operators' list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) status: String,
    /// As the history names it.
    route: &'static str,
}

/// A charge in the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Charge(Value);

impl Recovery {
    pub(crate) async fn heal(&self, random: &mut Random) -> Result<()> {
        self.test_bed.wait_until_up().await?;
        for _ in 0..ROUNDS {
            if let Some(dynamo) = &self.test_bed.dynamo {
                dynamo.catch_up().await?;
            }
            self.wait_until_quiet().await?;
            self.decide().await?;
            let open = self.shared.operations.open();
            if open.is_empty() {
                break;
            }
            let until = Instant::now() + PERSISTENCE;
            self.each(open, random, async |client, operation, index| {
                client.retry_until(operation, index, until).await;
            })
            .await;
            if self.shared.operations.open().is_empty() && self.waiting().await?.is_empty() {
                break;
            }
        }
        // Before the caches are emptied: what was erased may still be in them.
        self.each(
            self.shared.operations.erased(),
            random,
            async |client, operation, _| client.ask_again(operation).await,
        )
        .await;
        self.clear_caches().await?;
        self.each(
            self.shared.operations.ended(),
            random,
            async |client, operation, index| {
                let until = Instant::now() + PERSISTENCE;
                client.retry_until(operation, index, until).await;
            },
        )
        .await;
        self.read_statuses(random).await;
        if let Ok(broker) = &self.test_bed.broker {
            broker.settle(&self.shared.recorder).await?;
        }
        self.list_leftovers().await
    }

    /// Empties the caches: restarts every gateway, and flushes Redis.
    async fn clear_caches(&self) -> Result<()> {
        for gateway in self.test_bed.gateway_processes() {
            gateway.process.kill();
            gateway.process.start()?;
        }
        self.test_bed.redis().primary().flush()?;
        self.test_bed.wait_until_up().await
    }

    /// Reads the status of some operations, as their tenant and as another one.
    async fn read_statuses(&self, random: &mut Random) {
        let ended = self.shared.operations.ended();
        let by_name: HashMap<(String, String), &(Operation, OperationIndex)> = ended
            .iter()
            .map(|ended| {
                let line = ended.0.line(false);
                ((line.tenant, line.key), ended)
            })
            .collect();
        let mut ids = HashMap::new();
        let mut work = Vec::new();
        for seen in self.test_bed.chaos.witness().sample() {
            if let Some((operation, index)) = by_name.get(&(seen.tenant, seen.key))
                && ids.insert(operation.number, seen.id).is_none()
            {
                work.push((operation.clone(), *index));
            }
        }
        self.each(work, random, async |client, operation, _| {
            if let Some(id) = ids.get(&operation.number) {
                client.read_status(operation, id).await;
            }
        })
        .await;
    }

    /// Waits until nothing has been in progress for a while.
    async fn wait_until_quiet(&self) -> Result<()> {
        let patience = Instant::now() + QUIET_PATIENCE;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if self.test_bed.under_way().await.unwrap_or(1) > 0 {
                since = Instant::now();
            }
            anyhow::ensure!(Instant::now() < patience, "payments stay in progress");
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Resolves the dead-lettered operations by the ledger.
    async fn decide(&self) -> Result<()> {
        let waiting = self.waiting().await?;
        if waiting.is_empty() {
            return Ok(());
        }
        let ledger = self.ledger()?;
        for some in waiting.chunks(OPERATORS) {
            let decisions = some.iter().map(|(admin, listed)| {
                let charge = ledger.get(&listed.id);
                decide(&self.shared.recorder, *admin, listed, charge)
            });
            for decided in join_all(decisions).await {
                decided?;
            }
        }
        Ok(())
    }

    /// The dead-lettered operations, and the gateway that can resolve them.
    async fn waiting(&self) -> Result<Vec<(SocketAddr, Listed)>> {
        let mut waiting = Vec::new();
        for admin in self.stores() {
            let found = list(admin, "dead_lettered=true").await?;
            waiting.extend(found.into_iter().map(|listed| (admin, listed)));
        }
        Ok(waiting)
    }

    async fn list_leftovers(&self) -> Result<()> {
        for admin in self.stores() {
            for status in ["in_progress", "unknown"] {
                for left in list(admin, &format!("status={status}")).await? {
                    self.shared.recorder.leftover(&left.id, &left.status);
                }
            }
        }
        Ok(())
    }

    /// Where operators reach each of the stores.
    fn stores(&self) -> [SocketAddr; 2] {
        [self.test_bed.gateways[0].admin, self.test_bed.sqlite.admin]
    }

    /// Charges by the operation that they were made for.
    fn ledger(&self) -> Result<HashMap<String, Charge>> {
        charges(&self.test_bed.ledger)
    }

    /// Shares work among all clients.
    async fn each(
        &self,
        work: Vec<(Operation, OperationIndex)>,
        random: &mut Random,
        perform: impl AsyncFn(&mut Client, &Operation, OperationIndex),
    ) {
        each(&self.shared, self.clients, work, random, perform).await;
    }
}

/// Charges by the operation that they were made for.
pub(crate) fn charges(ledger: &Path) -> Result<HashMap<String, Charge>> {
    let text = fs::read_to_string(ledger).context("the ledger")?;
    let mut charges = HashMap::new();
    for line in text.lines() {
        let charge: Value = serde_json::from_str(line).context("a line of the ledger")?;
        if let Some(id) = charge["metadata"]["operation_id"].as_str() {
            charges.entry(id.to_owned()).or_insert(Charge(charge));
        }
    }
    Ok(charges)
}

/// Shares work among so many clients.
pub(crate) async fn each(
    shared: &Shared,
    clients: usize,
    work: Vec<(Operation, OperationIndex)>,
    random: &mut Random,
    perform: impl AsyncFn(&mut Client, &Operation, OperationIndex),
) {
    let work = Mutex::new(work);
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let clients = (0..clients).map(|_| {
        let mut client = Client::new(shared.clone(), random.fork());
        let (next, perform) = (&next, &perform);
        async move {
            while let Some((operation, index)) = next() {
                perform(&mut client, &operation, index).await;
            }
        }
    });
    join_all(clients).await;
}

/// All of a list, page by page.
pub(crate) async fn list(admin: SocketAddr, filter: &str) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/api/v1/operations?{filter}&limit={PAGE}{cursor}");
        let page = http::ask(admin, &path, None).await?;
        for operation in page["operations"].as_array().into_iter().flatten() {
            let text = |name: &str| operation[name].as_str().unwrap_or_default().to_owned();
            let route = if text("operation").starts_with(UNKEYED) {
                Route::Strict
            } else {
                Route::Keyed
            };
            found.push(Listed {
                id: text("id"),
                status: text("status"),
                route: route.name(),
            });
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(found),
        }
    }
}

pub(crate) async fn decide(
    recorder: &Recorder,
    admin: SocketAddr,
    listed: &Listed,
    charge: Option<&Charge>,
) -> Result<()> {
    let id = &listed.id;
    let (verdict, mut decision) = match charge {
        Some(charge) => ("completed", json!({ "response": charge.response(id) })),
        None => ("not_executed", json!({})),
    };
    decision["verdict"] = verdict.into();
    decision["reason"] = "looked in the provider's ledger while nothing was in progress".into();
    let path = format!("/api/v1/operations/{id}/resolve");
    match http::ask(admin, &path, Some(&decision)).await {
        Ok(_) => {
            recorder.decision(id, verdict, listed.route);
            Ok(())
        }
        // The reconciler resolved it in the meantime.
        Err(error) if format!("{error:#}").contains(" 409 ") => Ok(()),
        Err(error) => Err(error),
    }
}

impl Charge {
    /// The application's answer for this charge.
    fn response(&self, operation_id: &str) -> Value {
        let charge = &self.0;
        let declined = charge["status"] == "declined";
        json!({
            "status": if declined { 402 } else { 201 },
            "headers": [["content-type", "application/json"]],
            "json": {
                "id": format!("pay_by_operator_{operation_id}"),
                "status": charge["status"],
                "amount": charge["amount"],
                "currency": charge["currency"],
                "merchant_reference": charge["reference"],
                "operation_id": operation_id,
                "charge_id": charge["id"],
            },
        })
    }
}
