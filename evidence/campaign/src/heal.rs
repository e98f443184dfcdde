//! After the faults: every operation is brought to its end, by whoever can.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{Client, World};
use crate::ground::Ground;
use crate::http;
use crate::operation::{Operation, Place, Route};
use crate::random::Random;
use crate::record::Recorder;

/// How long nothing must be under way before an operator trusts the ledger: longer than a gateway
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
/// What the gateways' configuration calls payments whose provider is given no key.
const UNKEYED: &str = "create_unkeyed_payment";
/// How many decisions are taken at a time.
const OPERATORS: usize = 8;

/// Mends what is left, and lists what could not be mended.
#[derive(Debug)]
pub(crate) struct Healer {
    pub(crate) ground: Arc<Ground>,
    pub(crate) world: World,
    pub(crate) clients: usize,
}

/// An operation, as operators see it in a list.
#[derive(Clone, Debug)]
struct Listed {
    id: String,
    status: String,
    /// As the history names it.
    route: &'static str,
}

/// A charge in the ledger, as far as an operator looks at it.
#[derive(Clone, Debug)]
struct Charge(Value);

impl Healer {
    pub(crate) async fn heal(&self, random: &mut Random) -> Result<()> {
        self.ground.up().await?;
        for _ in 0..ROUNDS {
            self.quiet().await?;
            self.decide().await?;
            let open = self.world.operations.open();
            if open.is_empty() {
                break;
            }
            let until = Instant::now() + PERSISTENCE;
            self.each(open, random, async |client, operation, place| {
                client.persist(operation, place, until).await;
            })
            .await;
            if self.world.operations.open().is_empty() && self.waiting().await?.is_empty() {
                break;
            }
        }
        self.forget().await?;
        self.each(
            self.world.operations.ended(),
            random,
            async |client, operation, place| {
                let until = Instant::now() + PERSISTENCE;
                client.persist(operation, place, until).await;
            },
        )
        .await;
        self.peek(random).await;
        self.list_leftovers().await
    }

    /// Takes away whatever could answer in the place of a store: the memory of every gateway, and
    /// the cache.
    async fn forget(&self) -> Result<()> {
        for door in self.ground.doors() {
            door.process.kill();
            door.process.start()?;
        }
        self.ground.redis().flush()?;
        self.ground.up().await
    }

    /// Has some operations looked at by their callers, and by others.
    async fn peek(&self, random: &mut Random) {
        let ended = self.world.operations.ended();
        let by_name: HashMap<(String, String), &(Operation, Place)> = ended
            .iter()
            .map(|ended| {
                let line = ended.0.line(false);
                ((line.tenant, line.key), ended)
            })
            .collect();
        let mut ids = HashMap::new();
        let mut work = Vec::new();
        for seen in self.ground.chaos.witness().some() {
            if let Some((operation, place)) = by_name.get(&(seen.tenant, seen.key))
                && ids.insert(operation.number, seen.id).is_none()
            {
                work.push((operation.clone(), *place));
            }
        }
        self.each(work, random, async |client, operation, _| {
            if let Some(id) = ids.get(&operation.number) {
                client.peek(operation, id).await;
            }
        })
        .await;
    }

    /// Waits until nothing has been under way for a while.
    async fn quiet(&self) -> Result<()> {
        let patience = Instant::now() + QUIET_PATIENCE;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if self.ground.under_way().await.unwrap_or(1) > 0 {
                since = Instant::now();
            }
            anyhow::ensure!(Instant::now() < patience, "something is under way for ever");
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Decides, by the ledger, what became of the operations that wait for a person.
    async fn decide(&self) -> Result<()> {
        let waiting = self.waiting().await?;
        if waiting.is_empty() {
            return Ok(());
        }
        let ledger = self.ledger()?;
        for some in waiting.chunks(OPERATORS) {
            let decisions = some.iter().map(|(admin, listed)| {
                let charge = ledger.get(&listed.id);
                decide(&self.world.recorder, *admin, listed, charge)
            });
            for decided in join_all(decisions).await {
                decided?;
            }
        }
        Ok(())
    }

    /// The operations that wait for a person, and where they can be decided.
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
                    self.world.recorder.leftover(&left.id, &left.status);
                }
            }
        }
        Ok(())
    }

    /// Where operators reach each of the stores.
    fn stores(&self) -> [SocketAddr; 2] {
        [self.ground.gateways[0].admin, self.ground.sqlite.admin]
    }

    /// Charges by the operation that they were made for.
    fn ledger(&self) -> Result<HashMap<String, Charge>> {
        let text = fs::read_to_string(&self.ground.ledger).context("the ledger")?;
        let mut charges = HashMap::new();
        for line in text.lines() {
            let charge: Value = serde_json::from_str(line).context("a line of the ledger")?;
            if let Some(id) = charge["metadata"]["operation_id"].as_str() {
                charges.entry(id.to_owned()).or_insert(Charge(charge));
            }
        }
        Ok(charges)
    }

    /// Has all clients share some work.
    async fn each(
        &self,
        work: Vec<(Operation, Place)>,
        random: &mut Random,
        perform: impl AsyncFn(&mut Client, &Operation, Place),
    ) {
        let work = Mutex::new(work);
        let next = || work.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let clients = (0..self.clients).map(|_| {
            let mut client = Client::new(self.world.clone(), random.fork());
            let (next, perform) = (&next, &perform);
            async move {
                while let Some((operation, place)) = next() {
                    perform(&mut client, &operation, place).await;
                }
            }
        });
        join_all(clients).await;
    }
}

/// All of a list, page by page.
async fn list(admin: SocketAddr, filter: &str) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/api/v1/operations?{filter}&limit={PAGE}{cursor}");
        let page = http::ask(admin, &path, None).await?;
        for operation in page["operations"].as_array().into_iter().flatten() {
            let text = |name: &str| operation[name].as_str().unwrap_or_default().to_owned();
            let route = if operation["operation"] == UNKEYED {
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

async fn decide(
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
    decision["reason"] = "looked in the provider's ledger while nothing was under way".into();
    let path = format!("/api/v1/operations/{id}/resolve");
    match http::ask(admin, &path, Some(&decision)).await {
        Ok(_) => {
            recorder.decision(id, verdict, listed.route);
            Ok(())
        }
        // Somebody else found out in the meantime, which is as good.
        Err(error) if format!("{error:#}").contains(" 409 ") => Ok(()),
        Err(error) => Err(error),
    }
}

impl Charge {
    /// What the application would have answered.
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
