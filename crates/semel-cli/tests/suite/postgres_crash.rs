//! A PostgreSQL server that crashes repeatedly under load, behind two gateways: no key is charged
//! twice, every acknowledged answer is replayed, and no record stays in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use semel_testkit::postgres_server::Server;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use crate::support::retrying_client::{FinalResponse, Tally, pay};
use crate::support::shop::Shop;
use crate::support::{GatewayDirectory, Random, TEST_TIMEOUT};

/// Clients at a time: enough that a crash interrupts several executions.
const CLIENTS: usize = 8;

/// Longer than a restart takes on a busy machine, so that most outcomes are written in time.
const CONFIG: &str = "[policy]\nlease = \"10s\"\n[[route]]\nmatch = \"POST /payments\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn crashing_postgres_server_loses_no_answer_and_repeats_no_charge() {
    let crashes: usize = std::env::var("SEMEL_CRASHES").map_or(30, |text| text.parse().unwrap());
    let Some(server) = block_in_place(Server::start) else {
        return;
    };
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let (one, other) = (GatewayDirectory::new(CONFIG), GatewayDirectory::new(CONFIG));
    let one = block_in_place(|| one.start_on(&shop.url(), &server.url()));
    let other = block_in_place(|| other.start_on(&shop.url(), &server.url()));
    let gateways = [one.address, other.address];
    let done = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let done = Arc::clone(&done);
        clients.spawn(async move {
            let mut sent = Vec::new();
            while !done.load(SeqCst) {
                let key = format!("client-{number}-payment-{}", sent.len());
                sent.push(pay(&gateways, key).await);
            }
            sent
        });
    }

    for _ in 0..crashes {
        let until = shop.executions() + 1 + random.below(10);
        // The last of these executions has just begun when the server crashes.
        timeout(TEST_TIMEOUT, shop.wait_for_executions(until))
            .await
            .expect("no load");
        block_in_place(|| {
            server.stop_immediate();
            server.start_again();
        });
    }

    done.store(true, SeqCst);
    let sent = timeout(TEST_TIMEOUT, clients.join_all()).await;
    let sent: Vec<FinalResponse> = sent
        .expect("a client is stuck")
        .into_iter()
        .flatten()
        .collect();
    let tally = Tally::verify(&sent, &gateways, &shop).await;
    println!("{crashes} crashes, {tally:?}");
    assert_eq!(shop.executions(), shop.all_charges());
    // The run is valid only if crashes interrupted executions, and many others completed.
    assert!(tally.keys >= 3 * crashes, "{tally:?}");
    assert!(tally.retried >= crashes / 3, "{tally:?}");
}
