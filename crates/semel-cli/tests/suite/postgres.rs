//! Gateways that share a PostgreSQL database, and how they handle lost connections: during an
//! outage, after a commit, and at random.

use std::net::SocketAddr;
use std::time::Duration;

use semel_testkit::database::Database;
use semel_testkit::pg_proxy::{Proxy, Trigger};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

use crate::support::http::{Connection, Message, ask, get, payment, retry_until_settled};
use crate::support::retrying_client::{FinalResponse, Tally, pay, replayed_parts};
use crate::support::shop::Shop;
use crate::support::{Gateway, GatewayDirectory, Random, TEST_TIMEOUT};

/// The number of races, each for one key.
const ROUNDS: usize = 100;

/// Clients in a race, half of them at each gateway.
const RACERS: usize = 50;

/// Clients at a time, so that some share a statement.
const CLIENTS: usize = 8;

/// How many connections are cut at each statement.
const CUTS: usize = 12;

/// How many keys are paid while backends are terminated at random.
const KEYS: usize = 300;

/// Short compared to a request that waits, long compared to a statement.
const POLL: Duration = Duration::from_millis(20);

/// Far longer than a response takes during an outage of the database.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

/// The wait lasts as long as the test's timeout, so only a notification ends it.
const WAITING: &str =
    "[[route]]\nmatch = \"POST /payments\"\nin_flight = \"wait\"\nwait_max = \"60s\"\n";

/// A line that only the reserving statement has, and one that only the completing statement has.
const RESERVE: &str = "INSERT INTO semel.operations";
const COMPLETE: &str = "response_status = word.status";
/// The statement that the gateway sends after a lost reply to a reservation.
const EVICT: &str = "DELETE FROM semel.operations";

fn gateway(config: &str, shop: &Shop, store: &str) -> (Gateway, GatewayDirectory) {
    let gateway_dir = GatewayDirectory::new(config);
    (
        block_in_place(|| gateway_dir.start_on(&shop.url(), store)),
        gateway_dir,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_concurrent_requests_at_two_gateways_execute_once() {
    let Some(database) = Database::new().await else {
        return;
    };
    let shop = Shop::open().await;
    let (one, _one) = gateway(CONFIG, &shop, &database.url);
    let (other, _other) = gateway(CONFIG, &shop, &database.url);
    let gateways = [one.address, other.address];
    let mut connections = Vec::new();
    for racer in 0..RACERS {
        let connection = Connection::open(gateways[racer % 2]).await.unwrap();
        connections.push(connection);
    }
    let mut refused = 0;
    for round in 0..ROUNDS {
        let key = format!("race-{round}");
        let mut racing = JoinSet::new();
        for mut connection in connections.drain(..) {
            let request = payment(&key);
            racing.spawn(async move {
                let answer = connection.ask(&request).await.unwrap();
                (answer, connection)
            });
        }
        let raced = timeout(TEST_TIMEOUT, racing.join_all())
            .await
            .expect("no answer");
        let mut answers = Vec::new();
        for (answer, connection) in raced {
            connections.push(connection);
            answers.push(answer);
        }
        refused += verify_race(&key, answers, gateways, &shop).await;
    }
    println!("{ROUNDS} races of {RACERS}, {refused} refused as in progress");
    assert_eq!((shop.executions(), shop.all_charges()), (ROUNDS, ROUNDS));
}

/// Asserts one charge, one answer for all clients, and the same answer for retries. Returns how
/// many clients were refused as in progress.
async fn verify_race(
    key: &str,
    answers: Vec<Message>,
    gateways: [SocketAddr; 2],
    shop: &Shop,
) -> usize {
    assert_eq!(shop.charges(key), 1, "{key}");
    let (answered, refused): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|answer| answer.status() == 201);
    for refusal in &refused {
        assert_eq!(refusal.status(), 409, "{key}: {refusal:?}");
        assert_eq!(refusal.code(), "idempotency_key_in_progress", "{key}");
    }
    let executed = answered.iter().filter(|answer| !answer.is_replay());
    assert_eq!(executed.count(), 1, "{key}");
    for answer in &answered {
        assert_eq!(
            replayed_parts(answer),
            replayed_parts(&answered[0]),
            "{key}"
        );
    }
    for gateway in gateways {
        let again = retry_until_settled(gateway, key).await;
        assert!(again.is_replay(), "{key}: {again:?}");
        assert_eq!(
            replayed_parts(&again),
            replayed_parts(&answered[0]),
            "{key}"
        );
    }
    refused.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn completion_at_one_gateway_wakes_a_waiter_at_the_other() {
    let Some(database) = Database::new().await else {
        return;
    };
    let shop = Shop::open().await;
    let (one, _one) = gateway(CONFIG, &shop, &database.url);
    let (other, _other) = gateway(WAITING, &shop, &database.url);
    for nth in 1..=3 {
        let key = &*format!("payment-{nth}");
        shop.hold(true);
        let before = shop.executions();
        let executing = tokio::spawn(send(one.address, key.to_owned()));
        shop.wait_for_executions(before + 1).await;
        let asked = reservations(other.admin).await;
        let waiting = tokio::spawn(send(other.address, key.to_owned()));
        // The store has answered that the key is in progress, so the request is waiting now.
        let asking = async {
            while reservations(other.admin).await == asked {
                sleep(POLL).await; // sleeps because only the gateway's metrics show it
            }
        };
        timeout(TEST_TIMEOUT, asking)
            .await
            .expect("the request does not wait");
        assert!(!waiting.is_finished());
        shop.hold(false);
        let first = timeout(TEST_TIMEOUT, executing).await.unwrap().unwrap();
        let replay = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
        assert_eq!((first.status(), first.is_replay()), (201, false));
        assert!(replay.is_replay(), "{replay:?}");
        assert_eq!(replayed_parts(&replay), replayed_parts(&first));
        assert_eq!(shop.charges(key), 1);
    }
}

async fn send(gateway: SocketAddr, key: String) -> Message {
    ask(gateway, &payment(&key)).await.unwrap()
}

/// How many reservations of a gateway its store has answered.
async fn reservations(admin: SocketAddr) -> usize {
    let metrics = get(admin, "/metrics").await.unwrap().text();
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("api_idempotency_reserve_seconds_count"));
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn database_outage_refuses_new_requests_and_loses_none() {
    let Some(database) = Database::new().await else {
        return;
    };
    let proxy = Proxy::in_front_of(&database.url).await;
    let shop = Shop::open().await;
    let (gateway, _directory) = gateway(CONFIG, &shop, proxy.url());
    let ready = async |status: u16| {
        let asking = async {
            while get(gateway.admin, "/readyz").await.unwrap().status() != status {
                sleep(POLL).await; // sleeps because the gateway checks its store for each request
            }
        };
        timeout(TEST_TIMEOUT, asking)
            .await
            .expect("/readyz is wrong");
    };
    ready(200).await;
    let before = pay(&[gateway.address], "before".into()).await;
    // A payment that is charged before the outage and answered during it.
    shop.hold(true);
    let under_way = tokio::spawn(pay_one(gateway.address, "under-way"));
    shop.wait_for_executions(2).await;

    proxy.refuse();
    proxy.cut_all();
    shop.hold(false);
    ready(503).await;
    for key in ["during-1", "during-2", "before"] {
        let asking = send(gateway.address, key.to_owned());
        let answer = timeout(ANSWER_WITHIN, asking).await.expect("no answer");
        assert_eq!(answer.status(), 503, "{key}: {answer:?}");
        assert!(answer.header("retry-after").is_some(), "{key}: {answer:?}");
        assert_eq!(answer.code(), "idempotency_store_unavailable");
    }
    assert!(!under_way.is_finished(), "answered before it was stored");
    assert_eq!((shop.charges("during-1"), shop.charges("during-2")), (0, 0));

    proxy.heal();
    let mut sent = vec![before, under_way.await.unwrap()];
    for key in ["during-1", "during-2"] {
        sent.push(pay_one(gateway.address, key).await);
    }
    ready(200).await;
    let tally = Tally::verify(&sent, &[gateway.address], &shop).await;
    assert_eq!((tally.unknown, shop.executions()), (0, 4), "{tally:?}");
}

async fn pay_one(gateway: SocketAddr, key: &str) -> FinalResponse {
    pay(&[gateway], key.to_owned()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connection_lost_after_commit_neither_repeats_nor_loses_a_payment() {
    let Some(database) = Database::new().await else {
        return;
    };
    let proxy = Proxy::in_front_of(&database.url).await;
    let shop = Shop::open().await;
    let (cut_gateway, _one) = gateway(CONFIG, &shop, proxy.url());
    let (witness, _other) = gateway(CONFIG, &shop, &database.url);
    let mut sent = Vec::new();
    for moment in [&[RESERVE][..], &[COMPLETE], &[RESERVE, EVICT]] {
        for cut in 0..CUTS {
            let cuts: Vec<_> = moment
                .iter()
                .map(|statement| proxy.cut(Trigger::answered(*statement)))
                .collect();
            let mut clients = JoinSet::new();
            for client in 0..CLIENTS {
                let key = format!("{}-{cut}-{client}", moment.join("-").replace(' ', "_"));
                clients.spawn(async move { pay(&[cut_gateway.address], key).await });
            }
            let paid = timeout(TEST_TIMEOUT, clients.join_all()).await;
            sent.extend(paid.expect("a client is stuck"));
            for cut in cuts {
                let reached = timeout(TEST_TIMEOUT, cut.reached()).await;
                reached.unwrap_or_else(|_| panic!("{moment:?} was never cut"));
            }
        }
    }
    let gateways = [cut_gateway.address, witness.address];
    let tally = Tally::verify(&sent, &gateways, &shop).await;
    println!("{} cuts, {tally:?}", 3 * CUTS);
    assert_eq!(tally.unknown, 0, "{tally:?}");
    assert_eq!(shop.executions(), sent.len());
    assert_eq!(shop.all_charges(), sent.len());
    // Every client whose reservation was cut has retried.
    assert!(tally.retried >= 2 * CUTS, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn randomly_terminated_backends_neither_repeat_nor_lose_a_payment() {
    let Some(database) = Database::new().await else {
        return;
    };
    let mut random = Random::seeded();
    let shop = Shop::open().await;
    let (one, _one) = gateway(CONFIG, &shop, &database.url);
    let (other, _other) = gateway(CONFIG, &shop, &database.url);
    let gateways = [one.address, other.address];
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let mut sent = Vec::new();
            for nth in (client..KEYS).step_by(CLIENTS) {
                sent.push(pay(&gateways, format!("payment-{nth}")).await);
            }
            sent
        });
    }
    let killer = database.client().await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid() \
               ORDER BY random() LIMIT $1";
    let mut ended = 0;
    while shop.executions() < KEYS {
        let next = shop.executions() + 1 + random.below(6);
        timeout(TEST_TIMEOUT, shop.wait_for_executions(next.min(KEYS)))
            .await
            .expect("no load");
        let some = i64::try_from(1 + random.below(4)).unwrap();
        ended += killer.query(end, &[&some]).await.unwrap().len();
    }
    let sent = timeout(TEST_TIMEOUT, clients.join_all()).await;
    let sent: Vec<FinalResponse> = sent
        .expect("a client is stuck")
        .into_iter()
        .flatten()
        .collect();
    let tally = Tally::verify(&sent, &gateways, &shop).await;
    println!("{ended} backends ended, {tally:?}");
    assert_eq!((tally.keys, tally.unknown), (KEYS, 0), "{tally:?}");
    assert_eq!((shop.executions(), shop.all_charges()), (KEYS, KEYS));
    // The run is valid only if connections were lost during requests.
    assert!(ended >= 20 && tally.retried > 0, "{ended} ended, {tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lost_records_grants_nothing_until_a_person_accepts_it() {
    let Some(database) = Database::new().await else {
        return;
    };
    let shop = Shop::open().await;
    let (one, _one) = gateway(CONFIG, &shop, &database.url);
    let (other, _other) = gateway(CONFIG, &shop, &database.url);
    let answer = ask(one.address, &payment("lost")).await.unwrap();
    assert_eq!(answer.status(), 201, "{answer:?}");
    // sleeps because the gateway remembers a record once a second
    sleep(2 * Duration::from_secs(1)).await;
    let client = database.client().await;
    client
        .execute("TRUNCATE semel.operations", &[])
        .await
        .unwrap();
    for gateway in [&one, &other] {
        let waiting = async {
            loop {
                let ready = get(gateway.admin, "/readyz").await.unwrap();
                if ready.status() == 503 {
                    assert!(ready.text().contains("semel store accept"), "{ready:?}");
                    return;
                }
                // sleeps because another process looks at its store, without a notification.
                sleep(POLL).await;
            }
        };
        timeout(TEST_TIMEOUT, waiting).await.unwrap();
        let refused = ask(gateway.address, &payment("lost")).await.unwrap();
        assert_eq!(refused.status(), 503, "{refused:?}");
    }
    assert_eq!(shop.executions(), 1);

    let accepted = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["store", "accept", "--store", &database.url])
        .args(["--reason", "compared with the provider"])
        .output()
        .unwrap();
    assert!(accepted.status.success(), "{accepted:?}");
    for gateway in [&one, &other] {
        let waiting = async {
            while get(gateway.admin, "/readyz").await.unwrap().status() != 200 {
                // sleeps because another process looks at its store, without a notification.
                sleep(POLL).await;
            }
        };
        timeout(TEST_TIMEOUT, waiting).await.unwrap();
        let answer = ask(gateway.address, &payment("lost")).await.unwrap();
        assert_eq!(answer.status(), 201, "{answer:?}");
    }
}
