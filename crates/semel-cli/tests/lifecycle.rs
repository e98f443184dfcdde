//! How the gateway process stops, and how it takes a new configuration while it runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::io::ErrorKind;
use std::net::SocketAddr;

use rustix::process::Signal;
use semel_core::Status;
use support::http::{Connection, ask, payment, request};
use support::shop::Shop;
use support::{PATIENCE, Place};
use tokio::net::TcpStream;
use tokio::task::{block_in_place, yield_now};
use tokio::time::timeout;

const ROUTE: &str = "[[route]]\nmatch = \"POST /payments\"\n";

const KEY: &str = "lifecycle-1";

/// Both signals: an orchestrator's, and the one of Ctrl-C.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_gateway_finishes_what_it_began() {
    for signal in [Signal::TERM, Signal::INT] {
        let shop = Shop::open().await;
        let place = Place::new(ROUTE);
        let gateway = block_in_place(|| place.start(&shop.url()));
        shop.hold(true);
        let address = gateway.address;
        let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
        timeout(PATIENCE, shop.began(1)).await.unwrap();

        gateway.signal(signal);
        timeout(PATIENCE, refused(address))
            .await
            .expect("it still accepts");
        assert!(!client.is_finished(), "{signal:?} cut a client off");
        shop.hold(false);
        let answer = client.await.unwrap().unwrap();
        assert_eq!(answer.status(), 201, "{answer:?}");
        let (status, log) = gateway.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        let records = place.records(None).await;
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Status::Completed);
    }
}

/// Returns when nobody listens any more.
async fn refused(address: SocketAddr) {
    loop {
        match TcpStream::connect(address).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            // Taken before the listener was closed; another connection will tell.
            Ok(_) | Err(_) => yield_now().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_recorded_as_unknown() {
    for drain in ["0s", "100ms"] {
        let shop = Shop::open().await;
        let place = Place::new(&format!("[policy]\ndrain = \"{drain}\"\n{ROUTE}"));
        let gateway = block_in_place(|| place.start(&shop.url()));
        shop.hold(true);
        let address = gateway.address;
        let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
        timeout(PATIENCE, shop.began(1)).await.unwrap();

        gateway.signal(Signal::TERM);
        let (status, log) = gateway.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        // An answer that says it is done would be a lie; none, or one that does not, is not.
        if let Ok(answer) = client.await.unwrap() {
            assert_eq!(answer.status(), 504, "{answer:?}");
        }
        let records = place.records(None).await;
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].status, Status::Unknown, "{drain}: {records:?}");

        // It was charged, and the next process lets nobody charge again.
        shop.hold(false);
        let gateway = block_in_place(|| place.start(&shop.url()));
        let answer = ask(gateway.address, &payment(KEY)).await.unwrap();
        assert_eq!(
            (answer.status(), &*answer.code()),
            (409, "idempotency_outcome_unknown")
        );
        assert_eq!(shop.charges(KEY), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_route_takes_effect_on_connections_that_stay_open() {
    let shop = Shop::open().await;
    let place = Place::new(ROUTE);
    let gateway = block_in_place(|| place.start(&shop.url()));
    let mut connection = Connection::open(gateway.address).await.unwrap();
    let answer = connection.ask(&payment(KEY)).await.unwrap();
    assert_eq!(answer.status(), 201);

    place.configure(&format!("{ROUTE}min_length = 40\n"));
    gateway.signal(Signal::HUP);
    gateway.logged("the configuration was read again").await;
    // The key is too short now, and the connection is the same.
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
async fn a_request_under_way_outlives_a_new_configuration() {
    let shop = Shop::open().await;
    let place = Place::new(ROUTE);
    let gateway = block_in_place(|| place.start(&shop.url()));
    shop.hold(true);
    let address = gateway.address;
    let client = tokio::spawn(async move { ask(address, &payment(KEY)).await });
    timeout(PATIENCE, shop.began(1)).await.unwrap();
    gateway.signal(Signal::HUP);
    gateway.logged("the configuration was read again").await;
    // The new rules know of the execution that the old ones began.
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
async fn a_broken_file_is_refused_and_the_running_configuration_stays() {
    let shop = Shop::open().await;
    let place = Place::new(&format!("{ROUTE}min_length = 4\n"));
    let gateway = block_in_place(|| place.start(&shop.url()));
    place.configure(&format!("{ROUTE}min_lenth = 40\n"));
    gateway.signal(Signal::HUP);
    gateway.logged("the configuration is refused").await;
    gateway
        .logged("semel.toml:3:1: unknown key `min_lenth`")
        .await;
    for (key, status) in [("abc", 400), (KEY, 201)] {
        let answer = ask(gateway.address, &payment(key)).await.unwrap();
        assert_eq!(answer.status(), status, "{answer:?}");
    }
    // And the way back is open.
    place.configure(&format!("{ROUTE}min_length = 2\n"));
    gateway.signal(Signal::HUP);
    gateway.logged("the configuration was read again").await;
    let abc = request("/payments", "abc", "{\"reference\":\"abc\"}");
    assert_eq!(ask(gateway.address, &abc).await.unwrap().status(), 201);
}
