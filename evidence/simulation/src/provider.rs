//! The provider: where effects happen, and the ledger in which they stand. No line of the product
//! is in here; what is in the ledger is the truth that all else is held against.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::{Completion, Fence, OperationId, Record, Response};
use semel_worker::{Finding, Found, Reconcile};

use crate::app;
use crate::plan::PAY;
use crate::process::Process;
use crate::witness::{Slot, slot_of};
use crate::world::{World, lock, number};

/// What was done, in order, and never changed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
    /// The first entry of each key, where the provider knows keys.
    by_key: HashMap<String, usize>,
    /// Up to which attempt an operation was called off: none of these will ever happen.
    voided: HashMap<OperationId, u32>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) number: usize,
    pub(crate) slot: Slot,
    pub(crate) tenant: String,
    pub(crate) command: String,
    pub(crate) amount: u64,
    pub(crate) id: OperationId,
    /// Whether money moved; else it was declined, for good.
    pub(crate) charged: bool,
}

/// A call to the provider.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) fence: Fence,
    pub(crate) slot: Slot,
    pub(crate) tenant: String,
    pub(crate) command: String,
    pub(crate) amount: u64,
    pub(crate) decline: bool,
}

/// What the provider answers.
#[derive(Clone, Debug)]
pub(crate) enum Charge {
    /// It happened; or it had happened before, under the same key.
    Happened(Entry),
    /// It was called off before.
    Voided,
}

impl Ledger {
    fn charge(&mut self, call: Call) -> (Charge, bool) {
        let voided = self.voided.get(&call.fence.id).copied();
        if voided.is_some_and(|attempt| call.fence.attempt <= attempt) {
            return (Charge::Voided, false);
        }
        let key = (call.command == PAY).then(|| call.fence.id.downstream_key("charge"));
        if let Some(&at) = key.as_ref().and_then(|key| self.by_key.get(key))
            && let Some(entry) = self.entries.get(at)
        {
            return (Charge::Happened(entry.clone()), false);
        }
        let entry = Entry {
            number: self.entries.len() + 1,
            slot: call.slot,
            tenant: call.tenant,
            command: call.command,
            amount: call.amount,
            id: call.fence.id,
            charged: !call.decline,
        };
        if let Some(key) = key {
            self.by_key.insert(key, self.entries.len());
        }
        self.entries.push(entry.clone());
        (Charge::Happened(entry), true)
    }

    fn find(&self, id: OperationId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    pub(crate) fn entry(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number.checked_sub(1)?)
    }
}

impl World {
    /// The provider does what it is told.
    pub(crate) fn charge(&self, call: Call) -> Charge {
        let (charge, new) = lock(&self.ledger).charge(call);
        match &charge {
            Charge::Happened(entry) => self.tell(format_args!(
                "provider: entry {} for op{} ({} {} {}){}",
                entry.number,
                number(entry.id),
                entry.slot,
                entry.amount,
                if entry.charged { "charged" } else { "declined" },
                if new { "" } else { ", again" }
            )),
            Charge::Voided => self.tell(format_args!("provider: refuses what was called off")),
        }
        charge
    }

    /// Looks, and makes sure that what is not there will not come: the one proof there is.
    pub(crate) fn call_off(&self, fence: Fence) -> Option<Entry> {
        let mut ledger = lock(&self.ledger);
        let found = ledger.find(fence.id).cloned();
        if found.is_none() {
            let voided = ledger.voided.entry(fence.id).or_default();
            *voided = fence.attempt.max(*voided);
        }
        found
    }
}

/// How the worker asks the provider.
#[derive(Clone)]
pub(crate) struct Looking {
    pub(crate) world: Arc<World>,
    pub(crate) process: Arc<Process>,
}

impl Reconcile for Looking {
    async fn look(&self, record: &Record) -> Found {
        let world = &self.world;
        self.process.step().await;
        world.dawdle(1, 60).await;
        let (roll, healed) = (world.draw(|rng| rng.below(1000)), world.is_healed());
        let roll = if healed { 1000 } else { roll };
        if roll < 30 {
            world.fault("look_panicked");
            std::panic::resume_unwind(Box::new("a look that panics"));
        }
        if roll < 60 {
            world.fault("look_hung");
            // Longer than any look may take.
            tokio::time::sleep(2 * semel_worker::reconcilers::LOOK_MAX).await;
        }
        self.process.step().await;
        if roll < 140 {
            world.fault("look_unclear");
            return Finding::unclear("provider_failed").into();
        }
        let found = if (300..400).contains(&roll) {
            match world.call_off(record.fence()) {
                Some(entry) => Some(entry),
                None => {
                    return self
                        .found(record, Finding::NeverCreated("called_off".into()))
                        .await;
                }
            }
        } else {
            lock(&world.ledger).find(record.id).cloned()
        };
        let finding = match found {
            Some(entry) => Finding::Completed(completion(&entry, "reconciler")),
            None => Finding::Absent("not_found".into()),
        };
        self.found(record, finding).await
    }
}

impl Looking {
    /// The answer is on its way for a while, and what it says may be old when it comes.
    async fn found(&self, record: &Record, finding: Finding) -> Found {
        let word = match &finding {
            Finding::Completed(_) => "it happened",
            Finding::NeverCreated(_) => "it never will",
            Finding::Absent(_) => "it is not there",
            Finding::Unclear(_) => "nothing",
        };
        let (who, fence) = (&self.process.name, record.fence());
        self.world.tell(format_args!(
            "{who}: looks for op{} attempt {} of {}: {word}",
            number(fence.id),
            fence.attempt,
            slot_of(&record.identity)
        ));
        self.world.dawdle(1, 60).await;
        self.world.mishap(&self.process);
        self.process.step().await;
        finding.into()
    }
}

/// What a client is told of an entry that somebody else than the application found.
pub(crate) fn completion(entry: &Entry, by: &str) -> Completion {
    let answer = app::final_answer(entry, by, 0);
    let header = |name: &str, value: &str| (name.into(), Bytes::copy_from_slice(value.as_bytes()));
    Completion {
        response: Response {
            status: answer.status,
            headers: vec![
                header("content-type", "text/plain"),
                header("etag", &answer.etag),
                header(app::MARK, app::FINAL),
            ],
            body: Some(answer.body),
            schema_version: 0,
        },
        resource: None,
    }
}
