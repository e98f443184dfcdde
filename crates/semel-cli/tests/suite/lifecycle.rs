//! Shutdown of the gateway process, and reload of its configuration.

use std::io::ErrorKind;
use std::net::SocketAddr;

use rustix::process::Signal;
use semel_core::Status;
use tokio::net::TcpStream;
use tokio::task::{block_in_place, yield_now};
use tokio::time::timeout;

use crate::support::http::{Connection, ask, get, payment, request};
use crate::support::shop::Shop;
use crate::support::{GatewayDirectory, TEST_TIMEOUT};

const ROUTE: &str = "[[route]]\nmatch = \"POST /payments\"\n";

const KEY: &str = "lifecycle-1";

/// With SIGTERM, which orchestrators send, and SIGINT, which Ctrl-C sends.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_running_executions() {
    for signal in [Signal::TERM, Signal::INT] {
        let shop = Shop::open().await;
        let gateway_dir = GatewayDirectory::new(ROUTE);
        let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
        shop.hold(true);
        let address = gateway.address;
        let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
        timeout(TEST_TIMEOUT, shop.wait_for_executions(1))
            .await
            .unwrap();

        gateway.signal(signal);
        timeout(TEST_TIMEOUT, wait_until_refused(address))
            .await
            .expect("the gateway still accepts connections");
        assert!(
            !client.is_finished(),
            "{signal:?} closed the connection of a client"
        );
        shop.hold(false);
        let answer = client.await.unwrap().unwrap();
        assert_eq!(answer.status(), 201, "{answer:?}");
        let (status, log) = gateway.wait_for_exit().await;
        assert_eq!(status.code(), Some(0), "{log}");
        let records = gateway_dir.records(None).await;
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Status::Completed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_fails_before_the_listener_closes() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(&format!("[policy]\ndrain_delay = \"1h\"\n{ROUTE}"));
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    let ready = get(gateway.admin, "/readyz").await.unwrap();
    assert_eq!(ready.status(), 200);
    let mut kept = Connection::open(gateway.address).await.unwrap();
    let answer = kept.ask(&payment(KEY)).await.unwrap();
    assert_eq!(answer.header("connection"), None);

    gateway.signal(Signal::TERM);
    gateway.wait_for_log("still accepting").await;
    let ready = get(gateway.admin, "/readyz").await.unwrap();
    assert_eq!(
        (ready.status(), &*ready.text()),
        (503, "the process is stopping\n")
    );
    let new = ask(gateway.address, &payment("lifecycle-2")).await;
    for answer in [kept.ask(&payment(KEY)).await, new] {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 201, "{answer:?}");
        assert_eq!(answer.header("connection"), Some("close"));
    }
    assert_eq!(shop.executions(), 2);
}

/// Returns when the address refuses connections.
async fn wait_until_refused(address: SocketAddr) {
    loop {
        match TcpStream::connect(address).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            // Accepted before the listener closed; the next connection shows it.
            Ok(_) | Err(_) => yield_now().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn execution_that_outlasts_the_drain_is_recorded_as_unknown() {
    for drain in ["0s", "100ms"] {
        let shop = Shop::open().await;
        let gateway_dir = GatewayDirectory::new(&format!("[policy]\ndrain = \"{drain}\"\n{ROUTE}"));
        let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
        shop.hold(true);
        let address = gateway.address;
        let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
        timeout(TEST_TIMEOUT, shop.wait_for_executions(1))
            .await
            .unwrap();

        gateway.signal(Signal::TERM);
        let (status, log) = gateway.wait_for_exit().await;
        assert_eq!(status.code(), Some(0), "{log}");
        // The client gets no answer or an unknown outcome, never a success.
        if let Ok(answer) = client.await.unwrap() {
            assert_eq!(answer.status(), 504, "{answer:?}");
        }
        let records = gateway_dir.records(None).await;
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Status::Unknown, "{drain}: {records:?}");

        // The payment was charged, and the next process does not charge again.
        shop.hold(false);
        let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
        let answer = ask(gateway.address, &payment(KEY)).await.unwrap();
        assert_eq!(
            (answer.status(), &*answer.code()),
            (409, "idempotency_outcome_unknown")
        );
        assert_eq!(shop.charges(KEY), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloaded_route_applies_to_open_connections() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    let mut connection = Connection::open(gateway.address).await.unwrap();
    let answer = connection.ask(&payment(KEY)).await.unwrap();
    assert_eq!(answer.status(), 201);

    gateway_dir.configure(&format!("{ROUTE}min_length = 40\n"));
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("configuration reloaded").await;
    // The key is too short now, on the same connection.
    let answer = connection.ask(&payment("lifecycle-2")).await.unwrap();
    assert_eq!(
        (answer.status(), &*answer.code()),
        (400, "idempotency_key_malformed")
    );
    let long = "lifecycle-3-with-a-key-that-is-long-enough-for-both";
    let answer = connection.ask(&payment(long)).await.unwrap();
    assert_eq!(answer.status(), 201, "{answer:?}");
    assert_eq!(shop.executions(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn running_request_survives_a_reload() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    shop.hold(true);
    let address = gateway.address;
    let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
    timeout(TEST_TIMEOUT, shop.wait_for_executions(1))
        .await
        .unwrap();
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("configuration reloaded").await;
    // The execution that began before the reload is visible after it.
    let answer = ask(address, &payment(KEY)).await.unwrap();
    assert_eq!(
        (answer.status(), &*answer.code()),
        (409, "idempotency_key_in_progress")
    );
    shop.hold(false);
    assert_eq!(client.await.unwrap().unwrap().status(), 201);
    assert!(ask(address, &payment(KEY)).await.unwrap().is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_configuration_is_refused_and_the_current_one_stays() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(&format!("{ROUTE}min_length = 4\n"));
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    gateway_dir.configure(&format!("{ROUTE}min_lenth = 40\n"));
    gateway.signal(Signal::HUP);
    gateway
        .wait_for_log("the new configuration is invalid")
        .await;
    gateway
        .wait_for_log("semel.toml:3:1: unknown key `min_lenth`")
        .await;
    for (key, status) in [("abc", 400), (KEY, 201)] {
        let answer = ask(gateway.address, &payment(key)).await.unwrap();
        assert_eq!(answer.status(), status, "{answer:?}");
    }
    // A valid configuration is accepted afterwards.
    gateway_dir.configure(&format!("{ROUTE}min_length = 2\n"));
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("configuration reloaded").await;
    let abc = request("/payments", "abc", "{\"reference\":\"abc\"}");
    assert_eq!(ask(gateway.address, &abc).await.unwrap().status(), 201);
}
