//! The admin API against its own description: schemathesis generates valid and invalid requests from
//! `/openapi.json` and compares the responses with it.

use std::env;

use semel_core::{
    Completion, Decision, Fence, Fingerprint, Identity, Key, OperationId, Policy, Reserve,
    Response, Store as _,
};
use semel_sqlite::Sqlite;
use tokio::process::Command;

use crate::support::{Gateway, GatewayDirectory};

const TOKEN: &str = "a-token-that-is-hard-to-guess";

/// Names the Python interpreter with schemathesis. `cargo xtask test` sets it.
const VARIABLE: &str = "SEMEL_SCHEMATHESIS";

/// Requests of each kind to each path. More take longer and found nothing else.
const EXAMPLES: &str = "20";

/// A fixed seed makes runs repeatable.
const SEED: &str = "7";

/// Records in the states that the API treats differently.
struct SeedRecords {
    unknown: OperationId,
    completed: OperationId,
}

async fn seed(gateway_dir: &GatewayDirectory) -> SeedRecords {
    let store = Sqlite::open(gateway_dir.store()).await.unwrap();
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
    SeedRecords {
        unknown: unknown.id,
        completed: completed.id,
    }
}

/// Tests all paths but the event stream, which does not end.
async fn run_schemathesis(
    python: &str,
    gateway_dir: &GatewayDirectory,
    gateway: &Gateway,
    settings: &str,
) {
    let config = gateway_dir.path("schemathesis.toml");
    std::fs::write(&config, settings).unwrap();
    let mut command = Command::new(python);
    command
        .args(["-m", "schemathesis.cli"])
        .arg("--config-file")
        .arg(config)
        .args(["run", "--checks=all", "--continue-on-failure", "--no-color"])
        // The stateful phase takes minutes and finds the same.
        .arg("--phases=coverage,fuzzing")
        .args(["--exclude-path=/api/v1/events", "--workers=1"])
        .args(["--max-examples", EXAMPLES, "--seed", SEED])
        // A busy machine is not a defect of the API.
        .args(["--suppress-health-check=all", "--request-timeout=60"])
        .arg("--header")
        .arg(format!("Authorization: Bearer {TOKEN}"))
        .arg(format!("http://{}/openapi.json", gateway.admin))
        .current_dir(gateway_dir.path(""))
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings}\n{stdout}\n{stderr}");
}

#[tokio::test]
async fn the_admin_api_matches_its_openapi_document() {
    let python = env::var(VARIABLE).unwrap_or_default();
    if python.is_empty() {
        println!("SKIPPED: {VARIABLE} is not set; `cargo xtask test` installs it");
        return;
    }
    let gateway_dir = GatewayDirectory::new("");
    let seeds = seed(&gateway_dir).await;
    let mut command = gateway_dir.command("http://127.0.0.1:9");
    command.arg("--no-worker").env("SEMEL_ADMIN_TOKEN", TOKEN);
    let gateway = Gateway::start(command);
    // Generated ids do not exist, so every path also runs with existing ones.
    let with_id = |id: OperationId| format!("[parameters]\n\"path.id\" = \"{id}\"\n");
    run_schemathesis(&python, &gateway_dir, &gateway, "").await;
    run_schemathesis(&python, &gateway_dir, &gateway, &with_id(seeds.unknown)).await;
    run_schemathesis(&python, &gateway_dir, &gateway, &with_id(seeds.completed)).await;
}
