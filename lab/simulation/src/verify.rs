//! After the faults: checks that every operation ends, and with the right result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::history;
use semel_core::store::Result;
use semel_core::{Actor, OperationId, Record, Resolve, State, Store as _, Unresolved, Verdict};
use tokio::time::sleep;

use crate::client::{ClientResult, send, slot};
use crate::cluster::Cluster;
use crate::plan::{Intent, LATEST};
use crate::provider::completion;
use crate::scenario::{lock, number};

/// How many [`PAUSE`]s it may take until every operation is finished.
const PAUSES: usize = 60;
const PAUSE: Duration = Duration::from_secs(3);

/// How often a client retries at the end.
const TRIES: usize = 20;

/// Ends all faults, and checks every operation.
pub(crate) async fn heal_and_verify(cluster: &Arc<Cluster>) -> anyhow::Result<()> {
    cluster.scenario.heal();
    cluster.revive()?;
    // Late calls land now.
    sleep(LATEST).await;
    let mut unfinished = Vec::new();
    for _ in 0..PAUSES {
        decide_dead_letters(cluster).await?;
        unfinished = find_unfinished(cluster).await?;
        if unfinished.is_empty() {
            break;
        }
        sleep(PAUSE).await;
    }
    for record in unfinished {
        let how = format!("op{} stays {}", number(record.id), record.state.status());
        cluster.scenario.violate("stuck_keys", how);
    }
    let answers = retry_every_key(cluster).await?;
    check_effects(cluster, &answers);
    check_histories(cluster).await?;
    Ok(())
}

async fn find_unfinished(cluster: &Cluster) -> Result<Vec<Record>> {
    let mut unfinished = Vec::new();
    for record in records(cluster).await? {
        match &record.state {
            State::InProgress(_) | State::Unknown(_) => unfinished.push(record),
            State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {}
        }
    }
    Ok(unfinished)
}

async fn records(cluster: &Cluster) -> Result<Vec<Record>> {
    let ids = lock(&cluster.scenario.witness).ids();
    let mut records = Vec::new();
    for id in ids {
        records.extend(cluster.shared.find(id).await?);
    }
    Ok(records)
}

/// The operator: cancels dead-lettered operations at the provider, and resolves them.
async fn decide_dead_letters(cluster: &Cluster) -> Result<()> {
    for record in find_unfinished(cluster).await? {
        match &record.state {
            State::Unknown(Unresolved {
                dead_lettered_at: Some(_),
                ..
            }) => {}
            State::Unknown(_)
            | State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => continue,
        }
        let fence = record.fence();
        let verdict = match cluster.scenario.find_or_void(fence) {
            Some(entry) => Verdict::Completed(completion(&entry, "person")),
            None => Verdict::NotExecuted("called_off".into()),
        };
        let by = Actor::person("ops@example.com", "asked the provider");
        let resolve = Resolve {
            fence,
            verdict,
            by,
            evidence: None,
        };
        cluster.shared.resolve(resolve).await?;
        cluster.scenario.outcome("decided_by_a_person");
    }
    Ok(())
}

/// Retries every key with every request that used it. One of them must get the final answer.
async fn retry_every_key(cluster: &Arc<Cluster>) -> Result<BTreeMap<String, ClientResult>> {
    let sent = lock(&cluster.sent).clone();
    let mut by_slot: BTreeMap<String, Vec<Intent>> = BTreeMap::new();
    for intent in sent {
        by_slot
            .entry(slot(cluster, &intent))
            .or_default()
            .push(intent);
    }
    let mut answers = BTreeMap::new();
    for (slot, intents) in by_slot {
        let mut end = ClientResult::Later;
        for intent in &intents {
            match retry_until_final(cluster, intent).await? {
                ClientResult::Misuse => {}
                result @ (ClientResult::Final(..) | ClientResult::Expired) => end = result,
                ClientResult::Later => {
                    end = ClientResult::Later;
                    break;
                }
            }
        }
        if end == ClientResult::Later {
            cluster
                .scenario
                .violate("stuck_keys", format!("{slot} is never answered"));
        }
        answers.insert(slot, end);
    }
    Ok(answers)
}

async fn retry_until_final(cluster: &Arc<Cluster>, intent: &Intent) -> Result<ClientResult> {
    for _ in 0..TRIES {
        let result = send(cluster, 0, intent, true).await;
        if result != ClientResult::Later {
            return Ok(result);
        }
        // A released operation with phases may become unknown again.
        decide_dead_letters(cluster).await?;
        sleep(PAUSE).await;
    }
    Ok(ClientResult::Later)
}

/// Checks that every operation has at most one effect, and that a retry reports it.
fn check_effects(cluster: &Cluster, answers: &BTreeMap<String, ClientResult>) {
    let scenario = &cluster.scenario;
    let groups = lock(&scenario.witness).effect_groups();
    let entries = lock(&scenario.ledger).entries.clone();
    let charged = |ids: &[OperationId]| -> Vec<usize> {
        let ours = entries.iter().filter(|entry| ids.contains(&entry.id));
        ours.filter(|entry| entry.charged)
            .map(|entry| entry.number)
            .collect()
    };
    for (slot, ids) in &groups {
        let charged = charged(ids);
        if charged.len() > 1 {
            scenario.violate("duplicate_effects", format!("{slot}: entries {charged:?}"));
        }
        if let Some(ClientResult::Final(entry, id)) = answers.get(slot)
            && ids.contains(id)
            && charged.iter().any(|other| other != entry)
        {
            let how = format!("{slot}: the answer names {entry}, and there are {charged:?}");
            scenario.violate("effects_never_surfaced", how);
        }
    }
    let witness = lock(&scenario.witness);
    let strays: Vec<_> = entries
        .iter()
        .filter(|entry| {
            witness.is_evicted(entry.id) || !groups.iter().any(|(_, ids)| ids.contains(&entry.id))
        })
        .map(|entry| format!("{}: entry {}", entry.slot, entry.number))
        .collect();
    drop(witness);
    for stray in strays {
        scenario.violate("effects_of_what_was_not_granted", stray);
    }
}

/// Checks the history of every record.
async fn check_histories(cluster: &Cluster) -> Result<()> {
    for record in records(cluster).await? {
        let entries = cluster.shared.history(record.id).await?;
        if let Err(error) = history::verify(&record, &entries) {
            let how = format!("op{}: {error:?}", number(record.id));
            cluster.scenario.violate("history_broken", how);
        }
    }
    Ok(())
}
