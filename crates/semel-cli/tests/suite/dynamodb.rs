//! Gateways that share a DynamoDB table: created by `semel migrate`, raced, and killed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use crate::support::http::{Message, ask, payment, retry_until_settled};
use crate::support::retrying_client::replayed_parts;
use crate::support::shop::Shop;
use crate::support::{Gateway, GatewayDirectory, TEST_TIMEOUT};

/// The servers that `cargo xtask test` starts.
const SERVERS: [&str; 2] = ["SEMEL_TEST_EXTENDDB_URL", "SEMEL_TEST_DYNOXIDE_URL"];

/// The access key of the documentation of AWS, which the servers accept.
const ACCESS_KEY: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
    (
        "AWS_SECRET_ACCESS_KEY",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ),
];

const ROUNDS: usize = 5;
const RACERS: usize = 16;

/// The sweep is due at once after the lease, which is short and lasts the margin longer.
const CONFIG: &str = "[policy]\nlease = \"1s\"\n[[route]]\nmatch = \"POST /payments\"\n";

/// Addresses of tables that do not exist yet, one on each server.
fn unused_tables() -> Vec<String> {
    let servers = SERVERS.map(|variable| {
        let endpoint = std::env::var(variable);
        let endpoint = endpoint.unwrap_or_else(|_| panic!("no {variable}: run `cargo xtask test`"));
        let name = uuid::Uuid::new_v4();
        format!("dynamodb://semel-{name}?region=us-east-1&shards=2&endpoint={endpoint}")
    });
    servers.into()
}

fn migrate(store: &str, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["migrate", "--store", store])
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_TARGET_TMPDIR")))
        .env_clear()
        .envs(ACCESS_KEY)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    String::from_utf8(output.stdout).unwrap()
}

fn gateway(directory: &GatewayDirectory, shop: &Shop, store: &str) -> Gateway {
    let mut command = directory.command_on(&shop.url(), store);
    command.envs(ACCESS_KEY);
    block_in_place(|| Gateway::start(command))
}

#[test]
fn migrate_prints_definitions_and_creates_the_table_once() {
    for store in unused_tables() {
        let printed = migrate(&store, &["--print"]);
        for part in [
            "AWS::DynamoDB::Table",
            "PointInTimeRecoveryEnabled: true",
            "aws_dynamodb_table",
            "billing_mode                = \"PAY_PER_REQUEST\"",
        ] {
            assert!(printed.contains(part), "{printed}");
        }
        let created = migrate(&store, &[]);
        assert!(created.contains("was created"), "{created}");
        let again = migrate(&store, &[]);
        assert!(again.contains("is up to date"), "{again}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_gateways_on_a_table_execute_each_key_once() {
    for store in unused_tables() {
        block_in_place(|| migrate(&store, &[]));
        let shop = Shop::open().await;
        let (one_dir, other_dir) = (GatewayDirectory::new(CONFIG), GatewayDirectory::new(CONFIG));
        let one = gateway(&one_dir, &shop, &store);
        let other = gateway(&other_dir, &shop, &store);
        let gateways = [one.address, other.address];
        for round in 0..ROUNDS {
            let key = format!("race-{round}");
            let mut racing = JoinSet::new();
            for racer in 0..RACERS {
                let (request, gateway) = (payment(&key), gateways[racer % 2]);
                racing.spawn(async move { ask(gateway, &request).await.unwrap() });
            }
            let raced = timeout(TEST_TIMEOUT, racing.join_all()).await;
            let answers: Vec<Message> = raced.expect("no answer");
            let executed: Vec<_> = answers
                .iter()
                .filter(|answer| answer.status() == 201 && !answer.is_replay())
                .collect();
            assert_eq!(executed.len(), 1, "{key}: {answers:?}");
            for gateway in gateways {
                let again = retry_until_settled(gateway, &key).await;
                assert!(again.is_replay(), "{again:?}");
                assert_eq!(replayed_parts(&again), replayed_parts(executed[0]));
            }
        }
        assert_eq!((shop.executions(), shop.all_charges()), (ROUNDS, ROUNDS));
        kill_during_an_execution(one, &other, &shop).await;
    }
}

/// The killed gateway's execution becomes unknown, and the other one does not repeat it.
async fn kill_during_an_execution(one: Gateway, other: &Gateway, shop: &Shop) {
    shop.hold(true);
    let (address, request) = (one.address, payment("killed"));
    let asked = tokio::spawn(async move { ask(address, &request).await });
    shop.wait_for_executions(ROUNDS + 1).await;
    block_in_place(|| one.kill());
    assert!(asked.await.unwrap().is_err(), "it was not answered");
    shop.hold(false);
    let unknown = async {
        loop {
            let answer = ask(other.address, &payment("killed")).await.unwrap();
            match answer.code().as_str() {
                "idempotency_key_in_progress" => {
                    // sleeps because the lease of another process ends by the clock
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                code => return (answer.status(), code.to_owned()),
            }
        }
    };
    let (status, code) = timeout(TEST_TIMEOUT, unknown).await.expect("no end");
    assert_eq!((status, &*code), (409, "idempotency_outcome_unknown"));
    assert_eq!(shop.charges("killed"), 1);
}
