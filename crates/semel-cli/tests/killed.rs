//! A gateway that is killed with SIGKILL under load, again and again over one store: no key is
//! charged twice, and what a client was told stays told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use support::http::{Message, ask, payment, settled};
use support::shop::Shop;
use support::{PATIENCE, Place, Random};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

/// Clients at a time: enough that a kill meets several executions.
const CLIENTS: usize = 8;

/// How often a client sends one key before it leaves it as it is.
const ATTEMPTS: usize = 4;

/// Short, since the end of the test waits for it; long beside an execution.
const CONFIG: &str = "[policy]\nlease = \"1s\"\n[[route]]\nmatch = \"POST /payments\"\n";

/// What one key came to.
struct Sent {
    key: String,
    /// The first answer that said it was done.
    acknowledged: Option<Message>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_gateway_charges_nobody_twice_and_forgets_no_answer() {
    let kills: usize = std::env::var("SEMEL_KILLS").map_or(100, |text| text.parse().unwrap());
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let place = Place::new(CONFIG);
    let done = Arc::new(AtomicBool::new(false));
    let (here, address) = watch::channel(None);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(number, address.clone(), done.clone()));
    }

    for _ in 0..kills {
        let gateway = block_in_place(|| place.start(&shop.url()));
        let until = shop.executions() + 1 + random.below(40);
        here.send_replace(Some(gateway.address));
        // The last of these has just begun when the process dies.
        timeout(PATIENCE, shop.began(until)).await.expect("no load");
        // Nobody is sent to an address that may soon be another's.
        here.send_replace(None);
        block_in_place(|| gateway.kill());
    }

    done.store(true, SeqCst);
    let gateway = block_in_place(|| place.start(&shop.url()));
    here.send_replace(Some(gateway.address));
    let sent: Vec<Sent> = clients.join_all().await.into_iter().flatten().collect();
    let mut seen = Seen::default();
    for sent in &sent {
        seen.verify(gateway.address, &shop, sent).await;
    }
    println!("{kills} kills, {} keys, {seen:?}", sent.len());
    assert_eq!(shop.executions(), shop.all_charges());
    // The run counts only if death came in the midst of executions, and much was done besides.
    assert!(seen.acknowledged >= 3 * kills, "{seen:?}");
    assert!(seen.unknown >= kills / 20, "{seen:?}");
}

/// Pays under one fresh key after another, and retries each as a client would.
async fn client(
    number: usize,
    mut address: watch::Receiver<Option<SocketAddr>>,
    done: Arc<AtomicBool>,
) -> Vec<Sent> {
    let mut all = Vec::new();
    while !done.load(SeqCst) {
        let key = format!("client-{number}-payment-{}", all.len());
        let mut acknowledged = None;
        for _ in 0..ATTEMPTS {
            let to = address.wait_for(Option::is_some).await.unwrap().unwrap();
            // No answer: the gateway was killed, before the request or after it.
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
        all.push(Sent { key, acknowledged });
    }
    all
}

#[derive(Debug, Default)]
struct Seen {
    acknowledged: usize,
    /// Of these, how many lost their first answer to a kill.
    acknowledged_by_replay: usize,
    /// Charged and recorded, and no attempt got the answer.
    recorded: usize,
    /// Never reserved, and executed by the last question.
    executed: usize,
    unknown: usize,
    /// Of these, how many were charged.
    unknown_charged: usize,
}

impl Seen {
    async fn verify(&mut self, address: SocketAddr, shop: &Shop, sent: &Sent) {
        let Sent { key, acknowledged } = sent;
        let before = shop.charges(key);
        let answer = settled(address, key).await;
        let after = shop.charges(key);
        assert!(after <= 1, "{key} was charged {after} times");
        if let Some(first) = acknowledged {
            assert_eq!(before, 1, "{key} was acknowledged and not charged");
            assert!(answer.is_replay(), "{key}: {answer:?}");
            assert_eq!(told(&answer), told(first), "{key}");
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
                assert_eq!((before, after), (0, 1), "{key} was executed anew");
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

/// What a replay repeats.
fn told(answer: &Message) -> (u16, &[u8], Option<&str>, Option<&str>) {
    (
        answer.status(),
        &answer.body,
        answer.header("content-type"),
        answer.header("location"),
    )
}
