//! A gateway that is killed repeatedly with SIGKILL under load: no key is charged twice, and every
//! acknowledged answer is replayed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use crate::support::http::{Message, ask, payment, retry_until_settled};
use crate::support::retrying_client::replayed_parts;
use crate::support::shop::Shop;
use crate::support::{GatewayDirectory, Random, TEST_TIMEOUT};

/// Clients at a time: enough that a kill interrupts several executions.
const CLIENTS: usize = 8;

/// How often a client sends one key before it gives up.
const ATTEMPTS: usize = 4;

/// The lease is short, because the end of the test waits for it, and long compared to an execution.
const CONFIG: &str = "[policy]\nlease = \"1s\"\n[[route]]\nmatch = \"POST /payments\"\n";

/// A payment that a client sent.
struct SentPayment {
    key: String,
    /// The first answer that acknowledged the payment.
    acknowledged: Option<Message>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_gateway_repeats_no_charge_and_loses_no_answer() {
    let kills: usize = std::env::var("SEMEL_KILLS").map_or(100, |text| text.parse().unwrap());
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(CONFIG);
    let done = Arc::new(AtomicBool::new(false));
    let (address_sender, address) = watch::channel(None);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, address.clone(), done.clone()));
    }

    for _ in 0..kills {
        let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
        let until = shop.executions() + 1 + random.below(40);
        address_sender.send_replace(Some(gateway.address));
        // The last of these executions has just begun when the process is killed.
        timeout(TEST_TIMEOUT, shop.wait_for_executions(until))
            .await
            .expect("no load");
        // Another process may get this address soon, so clients must not use it.
        address_sender.send_replace(None);
        block_in_place(|| gateway.kill());
    }

    done.store(true, SeqCst);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    address_sender.send_replace(Some(gateway.address));
    let sent: Vec<SentPayment> = clients.join_all().await.into_iter().flatten().collect();
    let mut counts = OutcomeCounts::default();
    for sent in &sent {
        counts.verify(gateway.address, &shop, sent).await;
    }
    println!("{kills} kills, {} keys, {counts:?}", sent.len());
    assert_eq!(shop.executions(), shop.all_charges());
    // The run is valid only if kills interrupted executions, and many others completed.
    assert!(counts.acknowledged >= 3 * kills, "{counts:?}");
    assert!(counts.unknown >= kills / 20, "{counts:?}");
}

/// Sends payments with new keys, and retries each like a real client.
async fn client(
    number: usize,
    mut address: watch::Receiver<Option<SocketAddr>>,
    done: Arc<AtomicBool>,
) -> Vec<SentPayment> {
    let mut all = Vec::new();
    while !done.load(SeqCst) {
        let key = format!("client-{number}-payment-{}", all.len());
        let mut acknowledged = None;
        for _ in 0..ATTEMPTS {
            let to = address.wait_for(Option::is_some).await.unwrap().unwrap();
            // No answer: the gateway was killed before or after it got the request.
            let Ok(answer) = ask(to, &payment(&key)).await else {
                continue;
            };
            match answer.status() {
                201 => {
                    acknowledged = Some(answer);
                    break;
                }
                409 | 500.. => {}
                _ => panic!("{key}: {answer:?}"),
            }
        }
        all.push(SentPayment { key, acknowledged });
    }
    all
}

#[derive(Debug, Default)]
struct OutcomeCounts {
    acknowledged: usize,
    /// Of these, how many lost their first answer to a kill.
    acknowledged_by_replay: usize,
    /// Charged and recorded, without an answer to the client.
    recorded: usize,
    /// Never reserved, and executed by the last retry.
    executed: usize,
    unknown: usize,
    /// Of these, how many were charged.
    unknown_charged: usize,
}

impl OutcomeCounts {
    async fn verify(&mut self, address: SocketAddr, shop: &Shop, sent: &SentPayment) {
        let SentPayment { key, acknowledged } = sent;
        let before = shop.charges(key);
        let answer = retry_until_settled(address, key).await;
        let after = shop.charges(key);
        assert!(after <= 1, "{key} was charged {after} times");
        if let Some(first) = acknowledged {
            assert_eq!(before, 1, "{key} was acknowledged and not charged");
            assert!(answer.is_replay(), "{key}: {answer:?}");
            assert_eq!(replayed_parts(&answer), replayed_parts(first), "{key}");
            self.acknowledged += 1;
            self.acknowledged_by_replay += usize::from(first.is_replay());
            return;
        }
        match (answer.status(), &*answer.code()) {
            (201, _) if answer.is_replay() => {
                assert_eq!((before, after), (1, 1), "{key} was not charged once");
                self.recorded += 1;
            }
            (201, _) => {
                assert_eq!(
                    (before, after),
                    (0, 1),
                    "{key} was not executed exactly once"
                );
                self.executed += 1;
            }
            (409, "idempotency_outcome_unknown") => {
                assert_eq!(before, after, "{key} is unknown and was executed");
                self.unknown += 1;
                self.unknown_charged += after;
            }
            _ => panic!("{key}: {answer:?}"),
        }
    }
}
