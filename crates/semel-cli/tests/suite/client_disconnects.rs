//! A thousand clients that disconnect at random moments: every execution that began is recorded, no
//! key is charged twice, and nothing is left running.

use std::net::SocketAddr;

use rustix::process::Signal;
use semel_core::Status;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{JoinSet, block_in_place, yield_now};
use tokio::time::timeout;

use crate::support::http::{Connection, payment, retry_until_settled};
use crate::support::shop::Shop;
use crate::support::{GatewayDirectory, Random, TEST_TIMEOUT};

const CLIENTS: usize = 1000;

/// Clients at a time, within the usual limit of open files.
const AT_ONCE: usize = 50;

/// The most polls between the request and the disconnect.
const POLLS: usize = 200;

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

/// When a client disconnects.
#[derive(Clone, Copy, Debug)]
enum DisconnectPoint {
    /// After this many bytes of its request, before the last one.
    DuringRequest(usize),
    /// As soon as the request is written.
    AfterRequest,
    /// This many polls after the request.
    AfterPolls(usize),
    /// After the first byte of the answer.
    DuringAnswer,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn disconnected_clients_lose_no_answer_and_repeat_no_charge() {
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(CONFIG);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));

    let plan: Vec<(String, DisconnectPoint)> = (0..CLIENTS)
        .map(|number| {
            let key = format!("client-{number}");
            let point = match random.below(4) {
                0 => DisconnectPoint::DuringRequest(random.below(payment(&key).len())),
                1 => DisconnectPoint::AfterRequest,
                2 => DisconnectPoint::AfterPolls(random.below(POLLS)),
                _ => DisconnectPoint::DuringAnswer,
            };
            (key, point)
        })
        .collect();
    let mut clients = JoinSet::new();
    for (key, point) in plan.clone() {
        if clients.len() == AT_ONCE {
            clients.join_next().await.unwrap().unwrap();
        }
        clients.spawn(client(gateway.address, key, point));
    }
    timeout(TEST_TIMEOUT, clients.join_all())
        .await
        .expect("a client is stuck");

    let mut replayed = 0;
    for (key, point) in &plan {
        let answer = retry_until_settled(gateway.address, key).await;
        assert_eq!(
            answer.status(),
            201,
            "{key} disconnected {point:?}: {answer:?}"
        );
        assert_eq!(answer.member("reference").as_ref(), Some(key));
        match point {
            DisconnectPoint::DuringRequest(_) => {
                assert!(!answer.is_replay(), "{key} disconnected {point:?} and ran");
            }
            // The client got the beginning of an answer, so the record is completed.
            DisconnectPoint::DuringAnswer => {
                assert!(answer.is_replay(), "{key} disconnected {point:?} and reran");
            }
            DisconnectPoint::AfterRequest | DisconnectPoint::AfterPolls(_) => {}
        }
        replayed += usize::from(answer.is_replay());
        let again = retry_until_settled(gateway.address, key).await;
        assert!(again.is_replay(), "{key}: {again:?}");
        assert_eq!(again.body, answer.body, "{key}");
    }
    for (key, point) in &plan {
        assert_eq!(shop.charges(key), 1, "{key} disconnected {point:?}");
    }
    assert_eq!((shop.executions(), shop.all_charges()), (CLIENTS, CLIENTS));

    gateway.signal(Signal::TERM);
    let (status, log) = gateway.wait_for_exit().await;
    assert!(status.success(), "{log}");
    let records = gateway_dir.records(None).await;
    assert_eq!(records.len(), CLIENTS);
    for record in &records {
        assert_eq!(record.status, Status::Completed, "{record:?}");
        assert_eq!(record.fence.attempt, 1, "{record:?}");
    }
    println!("{CLIENTS} clients disconnected, {replayed} of them after their execution had begun");
    // The run is valid only if many clients disconnected before the execution, and many after it.
    assert!((CLIENTS / 4..CLIENTS).contains(&replayed), "{replayed}");
}

async fn client(address: SocketAddr, key: String, point: DisconnectPoint) {
    let mut connection = Connection::open(address).await.unwrap();
    let stream = connection.stream();
    let request = payment(&key);
    let written = match point {
        DisconnectPoint::DuringRequest(length) => &request[..length],
        DisconnectPoint::AfterRequest
        | DisconnectPoint::AfterPolls(_)
        | DisconnectPoint::DuringAnswer => &request,
    };
    stream.write_all(written).await.unwrap();
    match point {
        DisconnectPoint::DuringRequest(_) | DisconnectPoint::AfterRequest => {}
        DisconnectPoint::AfterPolls(polls) => {
            for _ in 0..polls {
                yield_now().await;
            }
        }
        DisconnectPoint::DuringAnswer => {
            // The rest stays unread, so that closing sends a reset.
            stream.read_u8().await.unwrap();
        }
    }
}
