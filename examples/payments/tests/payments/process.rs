//! The binary: its output, its exit codes, and restarts.

use std::path::Path;
use std::process::Stdio;

use reqwest::StatusCode;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{charge, json_of, payment, post, read};

async fn start(arguments: &[&str], name: &str) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_payments"))
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().expect("a line");
    let url = line
        .strip_prefix(&format!("listening {name} "))
        .expect(&line);
    (child, url.to_owned())
}

async fn start_provider(ledger: &Path) -> (Child, String) {
    let ledger = ledger.to_str().unwrap();
    let arguments = ["provider", "--listen", "127.0.0.1:0", "--ledger", ledger];
    start(&arguments, "provider").await
}

#[tokio::test]
async fn a_killed_provider_keeps_acknowledged_charges() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger.jsonl");
    let (mut child, url) = start_provider(&ledger).await;
    let send = |url: &str| {
        let call = post(format!("{url}/charges"), &charge("invoice-1"));
        call.header("idempotency-key", "k").send()
    };
    let made = json_of(send(&url).await.unwrap()).await;
    child.kill().await.unwrap();

    let (_child, url) = start_provider(&ledger).await;
    assert_eq!(json_of(send(&url).await.unwrap()).await, made);
    let (_, entries) = read(&format!("{url}/ledger")).await;
    assert_eq!(entries, serde_json::json!([made]));
}

#[tokio::test]
async fn the_service_ends_cleanly_on_sigterm_and_keeps_its_payments() {
    let directory = tempfile::tempdir().unwrap();
    let (_provider, provider_url) = start_provider(&directory.path().join("ledger.jsonl")).await;
    let database = directory.path().join("payments.db");
    let arguments = [
        "app",
        "--listen",
        "127.0.0.1:0",
        "--provider",
        &provider_url,
        "--database",
        database.to_str().unwrap(),
    ];
    let (mut child, url) = start(&arguments, "app").await;
    let created = post(format!("{url}/payments"), &payment("invoice-1"));
    let created = created
        .header("semel-operation-id", "op-1")
        .send()
        .await
        .unwrap();
    assert_eq!(created.status(), StatusCode::CREATED);
    let created = json_of(created).await;

    let pid = child.id().unwrap().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(killed.unwrap().success());
    assert!(child.wait().await.unwrap().success());

    let (_child, url) = start(&arguments, "app").await;
    let found = read(&format!("{url}/payments/by-operation/op-1")).await;
    assert_eq!(found, (StatusCode::OK, created));
}

#[tokio::test]
async fn usage_errors_end_with_2_and_failures_with_1() {
    let run = |arguments: &'static [&'static str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(arguments).output()
    };
    let usage = run(&["provider", "--listen", "nowhere"]).await.unwrap();
    assert_eq!(usage.status.code(), Some(2));
    let failure = run(&["app", "--listen", "127.0.0.1:0", "--provider", "ftp://x"]);
    let failure = failure.await.unwrap();
    assert_eq!(failure.status.code(), Some(1));
    let reason = String::from_utf8(failure.stderr).unwrap();
    assert!(reason.contains("is not an http:// URL"), "{reason}");
}
