//! The admin API against its own description: schemathesis makes requests of `/openapi.json`, right
//! and wrong ones, and compares the answers with what is promised there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail loudly, and says when it skips"
)]

mod support;

use std::env;

use semel_core::{
    Completion, Decision, Fence, Fingerprint, Identity, Key, OperationId, Policy, Reserve,
    Response, Store as _,
};
use semel_sqlite::Sqlite;
use support::{Gateway, Place};
use tokio::process::Command;

const TOKEN: &str = "a-token-that-nobody-guesses";

/// Names the interpreter that has it. `cargo xtask test` sets it.
const VARIABLE: &str = "SEMEL_SCHEMATHESIS";

/// Requests of each kind to each path. More find nothing else, and take longer than a test may.
const EXAMPLES: &str = "20";

/// A run is repeatable. Another seed is tried by changing it.
const SEED: &str = "7";

/// One operation of each kind that can be told apart by the API.
struct Seeds {
    unknown: OperationId,
    completed: OperationId,
}

async fn seed(place: &Place) -> Seeds {
    let store = Sqlite::open(place.store()).await.unwrap();
    let grant = async |key: &str| -> Fence {
        let reserve = Reserve {
            id: OperationId::generate(),
            identity: Identity::new("acme", "pay", Key::new(key).unwrap()).unwrap(),
            fingerprints: Fingerprint::of(&1).unwrap().into(),
            owner: "host/1".into(),
            policy: Policy::default(),
        };
        match store.reserve(reserve).await.unwrap() {
            Decision::Execute(grant) => grant.fence,
            other => panic!("{other:?}"),
        }
    };
    grant("running").await;
    let (unknown, completed) = (grant("unknown").await, grant("completed").await);
    let marked = store.mark_unknown(unknown, "timeout".into(), None);
    marked.await.unwrap();
    let completion = Completion {
        response: Response {
            status: 201,
            headers: vec![("content-type".into(), "text/html".into())],
            body: Some("<script>alert(1)</script>\u{1b}[2J".into()),
            schema_version: 0,
        },
        resource: None,
    };
    store.complete(completed, completion).await.unwrap();
    Seeds {
        unknown: unknown.id,
        completed: completed.id,
    }
}

/// Everything but the stream of events, which has no end.
async fn tried(python: &str, place: &Place, gateway: &Gateway, about: &str) {
    let config = place.path("schemathesis.toml");
    std::fs::write(&config, about).unwrap();
    let mut command = Command::new(python);
    command
        .args(["-m", "schemathesis.cli"])
        .arg("--config-file")
        .arg(config)
        .args(["run", "--checks=all", "--continue-on-failure", "--no-color"])
        // Calls one after another, which would be the next phase, take minutes and find the same.
        .arg("--phases=coverage,fuzzing")
        .args(["--exclude-path=/api/v1/events", "--workers=1"])
        .args(["--max-examples", EXAMPLES, "--seed", SEED])
        // A machine that is busy is no defect of the API.
        .args(["--suppress-health-check=all", "--request-timeout=60"])
        .arg("--header")
        .arg(format!("Authorization: Bearer {TOKEN}"))
        .arg(format!("http://{}/openapi.json", gateway.admin))
        .current_dir(place.path(""))
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{about}\n{said}\n{complained}");
}

#[tokio::test]
async fn the_admin_api_is_as_it_is_described() {
    let python = env::var(VARIABLE).unwrap_or_default();
    if python.is_empty() {
        println!("SKIPPED: {VARIABLE} is not set; `cargo xtask test` installs it");
        return;
    }
    let place = Place::new("");
    let seeds = seed(&place).await;
    let mut command = place.command("http://127.0.0.1:9");
    command.arg("--no-worker").env("SEMEL_ADMIN_TOKEN", TOKEN);
    let gateway = Gateway::start(command);
    // Ids that are made up are found nowhere, so each is tried with one that is there, too.
    let about = |id: OperationId| format!("[parameters]\n\"path.id\" = \"{id}\"\n");
    tried(&python, &place, &gateway, "").await;
    tried(&python, &place, &gateway, &about(seeds.unknown)).await;
    tried(&python, &place, &gateway, &about(seeds.completed)).await;
}
