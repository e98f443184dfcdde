//! After the faults: does everything come to its end, and is it the right one?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::history;
use semel_core::store::Result;
use semel_core::{
    By, Inspect as _, Maintain as _, OperationId, Record, Resolve, State, Unresolved, Verdict,
};
use tokio::time::sleep;

use crate::client::{Told, send, slot};
use crate::plan::{Intent, LATEST};
use crate::provider::completion;
use crate::town::Town;
use crate::world::{lock, number};

/// How long it may take until nothing is unfinished any more, in pauses of [`PAUSE`].
const PAUSES: usize = 60;
const PAUSE: Duration = Duration::from_secs(3);

/// How often a client tries for a last time.
const TRIES: usize = 20;

/// Lets everything heal, and then asks after all there was.
pub(crate) async fn heal_and_judge(town: &Arc<Town>) -> anyhow::Result<()> {
    town.world.heal();
    town.revive()?;
    // What is late comes now.
    sleep(LATEST).await;
    let mut unfinished = Vec::new();
    for _ in 0..PAUSES {
        decide_dead_letters(town).await?;
        unfinished = find_unfinished(town).await?;
        if unfinished.is_empty() {
            break;
        }
        sleep(PAUSE).await;
    }
    for record in unfinished {
        let how = format!(
            "op{} is {} for ever",
            number(record.id),
            record.state.status()
        );
        town.world.violate("stuck_keys", how);
    }
    let answers = ask_for_the_last_time(town).await?;
    effects(town, &answers);
    histories(town).await?;
    Ok(())
}

async fn find_unfinished(town: &Town) -> Result<Vec<Record>> {
    let mut unfinished = Vec::new();
    for record in records(town).await? {
        match &record.state {
            State::InProgress(_) | State::Unknown(_) => unfinished.push(record),
            State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => {}
        }
    }
    Ok(unfinished)
}

async fn records(town: &Town) -> Result<Vec<Record>> {
    let ids = lock(&town.world.witness).ids();
    let mut records = Vec::new();
    for id in ids {
        records.extend(town.shared.find(id).await?);
    }
    Ok(records)
}

/// The person at the dead-letter queue: has the provider call it off, and says what is so.
async fn decide_dead_letters(town: &Town) -> Result<()> {
    for record in find_unfinished(town).await? {
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
        let verdict = match town.world.call_off(fence) {
            Some(entry) => Verdict::Completed(completion(&entry, "person")),
            None => Verdict::NotExecuted("called_off".into()),
        };
        let by = By::person("ops@example.com", "asked the provider");
        let resolve = Resolve {
            fence,
            verdict,
            by,
            evidence: None,
        };
        town.shared.resolve(resolve).await?;
        town.world.outcome("decided_by_a_person");
    }
    Ok(())
}

/// Every key is asked for once more, by each who ever used it. Somebody must be told the end.
async fn ask_for_the_last_time(town: &Arc<Town>) -> Result<BTreeMap<String, Told>> {
    let sent = lock(&town.sent).clone();
    let mut by_slot: BTreeMap<String, Vec<Intent>> = BTreeMap::new();
    for intent in sent {
        by_slot.entry(slot(town, &intent)).or_default().push(intent);
    }
    let mut answers = BTreeMap::new();
    for (slot, intents) in by_slot {
        let mut end = Told::Later;
        for intent in &intents {
            match ask_until_told(town, intent).await? {
                Told::Misuse => {}
                told @ (Told::Final(..) | Told::Over) => end = told,
                Told::Later => {
                    end = Told::Later;
                    break;
                }
            }
        }
        if end == Told::Later {
            town.world
                .violate("stuck_keys", format!("{slot} is never answered"));
        }
        answers.insert(slot, end);
    }
    Ok(answers)
}

async fn ask_until_told(town: &Arc<Town>, intent: &Intent) -> Result<Told> {
    for _ in 0..TRIES {
        let told = send(town, 0, intent, true).await;
        if told != Told::Later {
            return Ok(told);
        }
        // What was freed may be tried again and be unknown again, if it is made of phases.
        decide_dead_letters(town).await?;
        sleep(PAUSE).await;
    }
    Ok(Told::Later)
}

/// Every operation has one effect at most, and whoever asks is told of it.
fn effects(town: &Town, answers: &BTreeMap<String, Told>) {
    let world = &town.world;
    let eras = lock(&world.witness).eras();
    let entries = lock(&world.ledger).entries.clone();
    let charged = |ids: &[OperationId]| -> Vec<usize> {
        let ours = entries.iter().filter(|entry| ids.contains(&entry.id));
        ours.filter(|entry| entry.charged)
            .map(|entry| entry.number)
            .collect()
    };
    for (slot, ids) in &eras {
        let charged = charged(ids);
        if charged.len() > 1 {
            world.violate("duplicate_effects", format!("{slot}: entries {charged:?}"));
        }
        if let Some(Told::Final(entry, id)) = answers.get(slot)
            && ids.contains(id)
            && charged.iter().any(|other| other != entry)
        {
            let how = format!("{slot}: told of {entry}, and there are {charged:?}");
            world.violate("effects_never_surfaced", how);
        }
    }
    let witness = lock(&world.witness);
    let strays: Vec<_> = entries
        .iter()
        .filter(|entry| {
            witness.is_gone(entry.id) || !eras.iter().any(|(_, ids)| ids.contains(&entry.id))
        })
        .map(|entry| format!("{}: entry {}", entry.slot, entry.number))
        .collect();
    drop(witness);
    for stray in strays {
        world.violate("effects_of_what_was_not_granted", stray);
    }
}

/// What was told of each operation hangs together.
async fn histories(town: &Town) -> Result<()> {
    for record in records(town).await? {
        let entries = town.shared.history(record.id).await?;
        if let Err(error) = history::verify(&record, &entries) {
            let how = format!("op{}: {error:?}", number(record.id));
            town.world.violate("history_broken", how);
        }
    }
    Ok(())
}
