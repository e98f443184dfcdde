//! HTTP clients of other languages, against requests that are refused while they are being sent.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::boundary::fixture::{EntryPoint, Fixture};

/// How often each client sends each request. All of them have to arrive.
const TRIES: usize = 100;

/// A body that is over the limit, and a request without the key that its route needs.
const REFUSALS: [(&str, Option<&str>); 2] = [("413", Some("k")), ("400", None)];

/// Runs a client for each refusal, and requires that every response arrived.
async fn receives_every_refusal(command: impl Fn() -> Command) {
    let fixture = Fixture::with(EntryPoint::Gateway, |layer| {
        layer.defaults(|route| route.max_request(1 << 20))
    })
    .await;
    for (status, key) in REFUSALS {
        let mut command = command();
        command
            .arg(format!("http://{}/do/x", fixture.address))
            .args([status, &TRIES.to_string()])
            .args(key);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = output.await.unwrap();
        let received = String::from_utf8_lossy(&output.stdout);
        let problems = String::from_utf8_lossy(&output.stderr);
        assert_eq!(received.trim(), TRIES.to_string(), "{status}: {problems}");
    }
    assert_eq!(fixture.app.executions(), 0);
}

fn script(name: &str) -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    tests.join(name)
}

/// Whether a program is there; without it the test is skipped.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--help").output().is_ok();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

#[tokio::test]
async fn go() {
    if !is_installed("go") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("refused");
    let mut compiler = Command::new("go");
    compiler
        .args(["build", "-o"])
        .arg(&program)
        .arg(script("refused.go"))
        .env("GOCACHE", directory.path().join("cache"))
        .env("GOFLAGS", "-mod=mod");
    assert!(compiler.status().unwrap().success(), "cannot be built");
    receives_every_refusal(|| Command::new(&program)).await;
}

#[tokio::test]
async fn node() {
    if !is_installed("node") {
        return;
    }
    receives_every_refusal(|| {
        let mut command = Command::new("node");
        command.arg(script("refused.mjs"));
        command
    })
    .await;
}

async fn python(variable: &str, module: &str) {
    let Some(interpreter) = env::var_os(variable).filter(|path| !path.is_empty()) else {
        println!("SKIPPED: {variable} is not set; `cargo xtask test` sets it");
        return;
    };
    receives_every_refusal(|| {
        let mut command = Command::new(&interpreter);
        command.arg(script("refused.py")).arg(module);
        command
    })
    .await;
}

#[tokio::test]
async fn python_requests() {
    // Stripe's SDK depends on it.
    python("SEMEL_STRIPE_PYTHON", "requests").await;
}

#[tokio::test]
async fn python_httpx() {
    python("SEMEL_PYTHON_WEB", "httpx").await;
}

#[tokio::test]
async fn curl() {
    if !is_installed("curl") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let body = directory.path().join("body");
    std::fs::write(&body, vec![b'x'; 4 << 20]).unwrap();
    receives_every_refusal(|| {
        let mut command = Command::new("sh");
        command
            .args(["-c", CURL, "sh"])
            .env("BODY", format!("@{}", body.display()));
        command
    })
    .await;
}

/// Without `Expect`, so that curl sends the body at once.
const CURL: &str = r#"
received=0
for _ in $(seq "$3"); do
    status=$(curl -sS -o /dev/null -w '%{http_code}' -H 'Expect:' -H 'X-Account: a' \
        ${4:+-H "Idempotency-Key: $4"} --data-binary "$BODY" "$1")
    if [ "$status" = "$2" ]; then received=$((received + 1)); fi
done
echo "$received"
"#;
