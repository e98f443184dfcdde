//! A PostgreSQL server that crashes under load, again and again, behind two gateways: no key is
//! charged twice, what a client was told stays told, and nothing is stuck.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly, and says when it skips"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use semel_testkit::postgres_server::Server;
use support::paying::{Sent, Tally, pay};
use support::shop::Shop;
use support::{PATIENCE, Place, Random};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

/// Clients at a time: enough that a crash meets several executions.
const CLIENTS: usize = 8;

/// Longer than a restart takes on a busy machine, so that most outcomes are written in time.
const CONFIG: &str = "[policy]\nlease = \"10s\"\n[[route]]\nmatch = \"POST /payments\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_crashes_loses_no_answer_and_repeats_no_charge() {
    let crashes: usize = std::env::var("SEMEL_CRASHES").map_or(30, |text| text.parse().unwrap());
    let Some(server) = block_in_place(Server::start) else {
        return;
    };
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let (one, other) = (Place::new(CONFIG), Place::new(CONFIG));
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
        // The last of these has just begun when the server dies.
        timeout(PATIENCE, shop.began(until)).await.expect("no load");
        block_in_place(|| {
            server.stop_immediate();
            server.start_again();
        });
    }

    done.store(true, SeqCst);
    let sent = timeout(PATIENCE, clients.join_all()).await;
    let sent: Vec<Sent> = sent
        .expect("a client is stuck")
        .into_iter()
        .flatten()
        .collect();
    let tally = Tally::of(&sent, &gateways, &shop).await;
    println!("{crashes} crashes, {tally:?}");
    assert_eq!(shop.executions(), shop.all_charges());
    // The run counts only if crashes came in the midst of work, and much was done besides.
    assert!(tally.keys >= 3 * crashes, "{tally:?}");
    assert!(tally.retried >= crashes / 3, "{tally:?}");
}
