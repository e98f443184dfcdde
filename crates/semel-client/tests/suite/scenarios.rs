//! Every scenario of `packages/scenarios/client.json`, over each journal.

mod file;
mod run;
mod server;

use file::File;

use crate::world::Place;

const SCENARIOS: &str = include_str!("../../../../packages/scenarios/client.json");

async fn run_all(mut place: Place) {
    let file: File = serde_json::from_str(SCENARIOS).unwrap();
    assert!(file.scenarios.len() > 100, "the file is nearly empty");
    let mut failures = Vec::new();
    for scenario in &file.scenarios {
        place.clear().await;
        if let Err(failure) = run::run(scenario, &place).await {
            failures.push(format!("{}: {failure}", scenario.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn all_scenarios_hold_in_memory() {
    run_all(Place::memory()).await;
}

#[tokio::test]
async fn all_scenarios_hold_on_sqlite() {
    run_all(Place::sqlite()).await;
}

#[tokio::test]
async fn all_scenarios_hold_on_postgres() {
    if let Some(place) = Place::postgres().await {
        run_all(place).await;
    }
}
