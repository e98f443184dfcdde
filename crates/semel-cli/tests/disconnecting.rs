//! A thousand clients that leave at random moments: every execution that began ends recorded,
//! nobody is charged twice, and nothing is left running.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod support;

use std::net::SocketAddr;

use rustix::process::Signal;
use semel_core::Status;
use support::http::{Connection, payment, settled};
use support::shop::Shop;
use support::{PATIENCE, Place, Random};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{JoinSet, block_in_place, yield_now};
use tokio::time::timeout;

const CLIENTS: usize = 1000;

/// Clients at a time, within the usual limit of open files.
const AT_ONCE: usize = 50;

/// The most polls between the request and the leaving.
const POLLS: usize = 200;

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

/// When a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// After so many bytes of its request, and not the last one.
    Within(usize),
    /// When its request is written.
    AtOnce,
    /// Some polls after that.
    Later(usize),
    /// With the first byte of its answer.
    Answered,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_leave_lose_nothing_and_repeat_nothing() {
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let place = Place::new(CONFIG);
    let gateway = block_in_place(|| place.start(&shop.url()));

    let plan: Vec<(String, Leaves)> = (0..CLIENTS)
        .map(|number| {
            let key = format!("client-{number}");
            let leaves = match random.below(4) {
                0 => Leaves::Within(random.below(payment(&key).len())),
                1 => Leaves::AtOnce,
                2 => Leaves::Later(random.below(POLLS)),
                _ => Leaves::Answered,
            };
            (key, leaves)
        })
        .collect();
    let mut clients = JoinSet::new();
    for (key, leaves) in plan.clone() {
        if clients.len() == AT_ONCE {
            clients.join_next().await.unwrap().unwrap();
        }
        clients.spawn(client(gateway.address, key, leaves));
    }
    timeout(PATIENCE, clients.join_all())
        .await
        .expect("a client is stuck");

    let mut replayed = 0;
    for (key, leaves) in &plan {
        let answer = settled(gateway.address, key).await;
        assert_eq!(answer.status(), 201, "{key} left {leaves:?}: {answer:?}");
        assert_eq!(answer.member("reference").as_ref(), Some(key));
        match leaves {
            Leaves::Within(_) => assert!(!answer.is_replay(), "{key} left {leaves:?} and ran"),
            // It saw the beginning of an answer, so there is one.
            Leaves::Answered => assert!(answer.is_replay(), "{key} left {leaves:?} and reran"),
            Leaves::AtOnce | Leaves::Later(_) => {}
        }
        replayed += usize::from(answer.is_replay());
        let again = settled(gateway.address, key).await;
        assert!(again.is_replay(), "{key}: {again:?}");
        assert_eq!(again.body, answer.body, "{key}");
    }
    for (key, leaves) in &plan {
        assert_eq!(shop.charges(key), 1, "{key} left {leaves:?}");
    }
    assert_eq!((shop.executions(), shop.all_charges()), (CLIENTS, CLIENTS));

    gateway.signal(Signal::TERM);
    let (status, log) = gateway.ended().await;
    assert!(status.success(), "{log}");
    let records = place.records(None).await;
    assert_eq!(records.len(), CLIENTS);
    for record in &records {
        assert_eq!(record.status, Status::Completed, "{record:?}");
        assert_eq!(record.fence.attempt, 1, "{record:?}");
    }
    println!("{CLIENTS} clients left, {replayed} of them after their execution had begun");
    // The run counts only if leaving came before the execution often, and after it, too.
    assert!((CLIENTS / 4..CLIENTS).contains(&replayed), "{replayed}");
}

async fn client(address: SocketAddr, key: String, leaves: Leaves) {
    let mut connection = Connection::open(address).await.unwrap();
    let stream = connection.stream();
    let request = payment(&key);
    let written = match leaves {
        Leaves::Within(length) => &request[..length],
        Leaves::AtOnce | Leaves::Later(_) | Leaves::Answered => &request,
    };
    stream.write_all(written).await.unwrap();
    match leaves {
        Leaves::Within(_) | Leaves::AtOnce => {}
        Leaves::Later(polls) => {
            for _ in 0..polls {
                yield_now().await;
            }
        }
        Leaves::Answered => {
            // The rest stays unread, so that the close is a reset.
            stream.read_u8().await.unwrap();
        }
    }
}
