//! The provider, which executes effects, and its ledger, with which everything is compared. No part
//! of the product is in here.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::{Completion, Fence, OperationId, Record, Response};
use semel_worker::{Lookup, LookupResult, Reconcile};

use crate::app;
use crate::plan::PAY;
use crate::process::Process;
use crate::scenario::{Scenario, lock, number};
use crate::witness::{Slot, slot_of};

/// The provider's effects, in order. Entries never change.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
    /// The first entry of each key, where the provider supports keys.
    by_key: HashMap<String, usize>,
    /// The last attempt of each operation that was voided: none up to it will have an effect.
    voided: HashMap<OperationId, u32>,
}

/// One effect.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) number: usize,
    pub(crate) slot: Slot,
    pub(crate) tenant: String,
    pub(crate) command: String,
    pub(crate) amount: u64,
    pub(crate) id: OperationId,
    /// Whether money moved; if not, the charge was declined.
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

/// The provider's answer.
#[derive(Clone, Debug)]
pub(crate) enum Charge {
    /// The effect exists: it is new, or an earlier call with the same key caused it.
    Happened(Entry),
    /// The attempt was voided before.
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

impl Scenario {
    /// Charges, at the provider.
    pub(crate) fn charge(&self, call: Call) -> Charge {
        let (charge, new) = lock(&self.ledger).charge(call);
        match &charge {
            Charge::Happened(entry) => self.record_event(format_args!(
                "provider: entry {} for op{} ({} {} {}){}",
                entry.number,
                number(entry.id),
                entry.slot,
                entry.amount,
                if entry.charged { "charged" } else { "declined" },
                if new { "" } else { ", again" }
            )),
            Charge::Voided => self.record_event(format_args!("provider: refuses a voided attempt")),
        }
        charge
    }

    /// Finds the effect of an operation. If there is none, voids its attempts so far: only that proves
    /// that no effect follows.
    pub(crate) fn find_or_void(&self, fence: Fence) -> Option<Entry> {
        let mut ledger = lock(&self.ledger);
        let found = ledger.find(fence.id).cloned();
        if found.is_none() {
            let voided = ledger.voided.entry(fence.id).or_default();
            *voided = fence.attempt.max(*voided);
        }
        found
    }
}

/// The lookup of the reconcilers.
#[derive(Clone)]
pub(crate) struct ProviderLookup {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) process: Arc<Process>,
}

impl Reconcile for ProviderLookup {
    async fn look_up(&self, record: &Record) -> Lookup {
        let scenario = &self.scenario;
        self.process.step().await;
        scenario.sleep_random(1, 60).await;
        let (roll, healed) = (scenario.draw(|rng| rng.below(1000)), scenario.is_healed());
        let roll = if healed { 1000 } else { roll };
        if roll < 30 {
            scenario.fault("look_panicked");
            std::panic::resume_unwind(Box::new("a lookup that panics"));
        }
        if roll < 60 {
            scenario.fault("look_hung");
            // Longer than the timeout of a lookup.
            tokio::time::sleep(2 * semel_worker::reconcilers::LOOKUP_TIMEOUT).await;
        }
        self.process.step().await;
        if roll < 140 {
            scenario.fault("look_unclear");
            return LookupResult::unclear("provider_failed").into();
        }
        let found = if (300..400).contains(&roll) {
            match scenario.find_or_void(record.fence()) {
                Some(entry) => Some(entry),
                None => {
                    return self
                        .deliver(record, LookupResult::NeverCreated("called_off".into()))
                        .await;
                }
            }
        } else {
            lock(&scenario.ledger).find(record.id).cloned()
        };
        let result = match found {
            Some(entry) => LookupResult::Completed(completion(&entry, "reconciler")),
            None => LookupResult::Absent("not_found".into()),
        };
        self.deliver(record, result).await
    }
}

impl ProviderLookup {
    /// Delivers the result after a while: it may be stale when it arrives.
    async fn deliver(&self, record: &Record, result: LookupResult) -> Lookup {
        let summary = match &result {
            LookupResult::Completed(_) => "completed",
            LookupResult::NeverCreated(_) => "never created",
            LookupResult::Absent(_) => "absent",
            LookupResult::Unclear(_) => "unclear",
        };
        let (who, fence) = (&self.process.name, record.fence());
        self.scenario.record_event(format_args!(
            "{who}: looks up op{} attempt {} of {}: {summary}",
            number(fence.id),
            fence.attempt,
            slot_of(&record.identity)
        ));
        self.scenario.sleep_random(1, 60).await;
        self.scenario.inject_mishap(&self.process);
        self.process.step().await;
        result.into()
    }
}

/// The completion by a reconciler or an operator that found the entry.
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
