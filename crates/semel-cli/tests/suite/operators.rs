//! Health, metrics, logs and startup errors of the gateway process.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tokio::task::block_in_place;

use crate::support::http::{ask, get, payment, request};
use crate::support::shop::Shop;
use crate::support::{Gateway, GatewayDirectory, semel};

const ROUTE: &str = "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n";

/// Neither may appear outside of the store, nor a part that identifies them.
const KEY: &str = "secretkey-5f1c2a9b7d";
const BODY: &str = "{\"reference\":\"privatebody-8842\"}";

/// A first request, two replays, a misuse, an execution, a request without a key.
async fn traffic(gateway: &Gateway) {
    for (body, status) in [
        (BODY, 201),
        (BODY, 201),
        (BODY, 201),
        ("{\"reference\":\"privatebody-9953\"}", 422),
    ] {
        let answer = ask(gateway.address, &request("/payments", KEY, body)).await;
        assert_eq!(answer.unwrap().status(), status);
    }
    let malformed = request("/payments", &format!("{KEY}\u{e9}"), BODY);
    assert_eq!(
        ask(gateway.address, &malformed).await.unwrap().status(),
        400
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_decisions_and_contain_no_key() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = get(gateway.admin, path).await.unwrap();
        assert_eq!((answer.status(), &*answer.text()), (200, body), "{path}");
    }
    traffic(&gateway).await;
    let metrics = get(gateway.admin, "/metrics").await.unwrap();
    assert_eq!(metrics.status(), 200);
    let metrics = metrics.text();
    for (name, count) in [("created", 1), ("replay", 2), ("key_misuse", 1)] {
        let line = format!(
            "api_idempotency_reserve_{name}_total{{operation=\"create_payment\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "no {line:?} in {metrics}");
    }
    for secret in ["secretkey", "privatebody"] {
        assert!(!metrics.contains(secret), "{metrics}");
    }
}

/// Includes failures, which log the most.
#[tokio::test(flavor = "multi_thread")]
async fn logs_contain_neither_key_nor_body() {
    const ALL: &str =
        "semel=trace,semel_gateway=trace,semel_http=trace,semel_core=trace,semel_sqlite=trace";
    for format in ["pretty", "json"] {
        let shop = Shop::open().await;
        let gateway_dir = GatewayDirectory::new(ROUTE);
        let mut command = gateway_dir.command(&shop.url());
        command.env("RUST_LOG", ALL).args(["--log-format", format]);
        let gateway = block_in_place(|| Gateway::start(command));
        traffic(&gateway).await;
        gateway.signal(Signal::TERM);
        let (_, mut log) = gateway.wait_for_exit().await;

        // The upstream is unreachable, and the route requires a longer key.
        gateway_dir.configure(&format!("{ROUTE}min_length = 30\n"));
        let mut command = gateway_dir.command("http://127.0.0.1:1");
        command.env("RUST_LOG", ALL).args(["--log-format", format]);
        let gateway = block_in_place(|| Gateway::start(command));
        for (key, status) in [(KEY, 400), (&*format!("{KEY}-and-some-more"), 502)] {
            let answer = ask(gateway.address, &request("/payments", key, BODY)).await;
            assert_eq!(answer.unwrap().status(), status);
        }
        gateway.signal(Signal::TERM);
        log.push_str(&gateway.wait_for_exit().await.1);

        assert!(
            log.contains("ready") && log.contains("cannot reach the upstream"),
            "{log}"
        );
        for secret in ["secretkey", "5f1c2a9b7d", "privatebody"] {
            assert!(!log.contains(secret), "{format}: {log}");
        }
    }
}

/// Runs a command that must fail to start, and returns the reason.
fn reason(mut command: Command) -> String {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A gateway that starts prints a line here and would not end by itself.
    let mut printed = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut printed).unwrap();
    if !printed.is_empty() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(printed, "", "{command:?} started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_is_named_in_the_error() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let running = block_in_place(|| gateway_dir.start(&shop.url()));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // By another program, and by another gateway: two gateways that share a port but not a store
    // would both execute a request.
    for taken in [other.local_addr().unwrap(), running.address, running.admin] {
        for flag in ["--listen", "--admin-listen"] {
            let mut command = semel(gateway_dir.path("").as_path());
            command.args(["--upstream", &shop.url(), "--store=sqlite:other.db"]);
            command.arg("--tenant=authorization");
            let (same, free) = match flag {
                "--listen" => ("--listen", "--admin-listen"),
                _ => ("--admin-listen", "--listen"),
            };
            command
                .arg(format!("{same}={taken}"))
                .arg(format!("{free}=127.0.0.1:0"));
            let reason = block_in_place(|| reason(command));
            let named = reason.contains(&format!("cannot listen on {taken}"));
            assert!(named, "{flag}={taken}: {reason}");
        }
    }
    assert_eq!(
        ask(running.address, &payment(KEY)).await.unwrap().status(),
        201
    );
}

#[test]
fn a_file_that_is_not_a_database_is_named_and_unchanged() {
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let text = "This is a letter, not a database. ".repeat(100);
    std::fs::write(gateway_dir.store(), &text).unwrap();
    let reason = reason(gateway_dir.command("http://127.0.0.1:1"));
    assert!(reason.contains("semel.db"), "{reason}");
    assert!(reason.contains("is not a SQLite database"), "{reason}");
    assert_eq!(std::fs::read_to_string(gateway_dir.store()).unwrap(), text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_store_requires_allow_volatile() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let command = || {
        let mut command = semel(gateway_dir.path("").as_path());
        command.args(["--upstream", &shop.url(), "--store=memory:"]);
        command.arg("--tenant=authorization");
        command.args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
        command
    };
    let reason = reason(command());
    assert!(reason.contains("--allow-volatile"), "{reason}");
    let mut allowed = command();
    allowed.arg("--allow-volatile");
    let gateway = block_in_place(|| Gateway::start(allowed));
    gateway.wait_for_log("all records are lost").await;
    assert_eq!(
        ask(gateway.address, &payment(KEY)).await.unwrap().status(),
        201
    );
}
