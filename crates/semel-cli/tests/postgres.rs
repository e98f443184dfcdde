//! Gateways that share a PostgreSQL database, and what they do when it goes away: at once, at
//! the worst moment, or again and again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly, and says when it skips"
)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use semel_testkit::database::Database;
use semel_testkit::pg_proxy::{Proxy, When};
use support::http::{Connection, Message, ask, get, payment, settled};
use support::paying::{Sent, Tally, pay, told};
use support::shop::Shop;
use support::{Gateway, PATIENCE, Place, Random};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

/// Races for one key each.
const ROUNDS: usize = 100;

/// Clients in a race, half of them at each gateway.
const RACERS: usize = 50;

/// Clients at a time, so that some share a statement.
const CLIENTS: usize = 8;

/// Connections that are cut at each moment.
const CUTS: usize = 12;

/// Keys that are paid while connections end at random.
const KEYS: usize = 300;

/// Often beside a request that waits, seldom beside a statement.
const POLL: Duration = Duration::from_millis(20);

/// Far above what an answer takes when the database is away, and far below for ever.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

const CONFIG: &str = "[[route]]\nmatch = \"POST /payments\"\n";

/// As long as the test has patience: no clock ends the wait.
const WAITING: &str =
    "[[route]]\nmatch = \"POST /payments\"\nin_flight = \"wait\"\nwait_max = \"60s\"\n";

/// The statement that reserves, and the one that completes, each by a line of its own.
const RESERVE: &str = "INSERT INTO semel.operations";
const COMPLETE: &str = "response_status = word.status";
/// What is said when the answer to a reservation was lost.
const EVICT: &str = "DELETE FROM semel.operations";

fn gateway(config: &str, shop: &Shop, store: &str) -> (Gateway, Place) {
    let place = Place::new(config);
    (block_in_place(|| place.start_on(&shop.url(), store)), place)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_racers_at_two_gateways_one_executes() {
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
        let raced = timeout(PATIENCE, racing.join_all()).await.expect("a hang");
        let mut answers = Vec::new();
        for (answer, connection) in raced {
            connections.push(connection);
            answers.push(answer);
        }
        refused += verify_race(&key, answers, gateways, &shop).await;
    }
    println!("{ROUNDS} races of {RACERS}, {refused} told that it is in progress");
    assert_eq!((shop.executions(), shop.all_charges()), (ROUNDS, ROUNDS));
}

/// One charge, one answer for all who got one, and the same from now on. Returns how many were
/// told to come back.
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
        assert_eq!(told(answer), told(&answered[0]), "{key}");
    }
    for gateway in gateways {
        let again = settled(gateway, key).await;
        assert!(again.is_replay(), "{key}: {again:?}");
        assert_eq!(told(&again), told(&answered[0]), "{key}");
    }
    refused.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_waits_at_one_gateway_is_woken_by_the_other() {
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
        shop.began(before + 1).await;
        let asked = reservations(other.admin).await;
        let waiting = tokio::spawn(send(other.address, key.to_owned()));
        // Asked, and told that the other executes: it can only wait now.
        let asking = async {
            while reservations(other.admin).await == asked {
                sleep(POLL).await; // sleeps because only the gateway's metrics know
            }
        };
        timeout(PATIENCE, asking).await.expect("nobody waits");
        assert!(!waiting.is_finished());
        shop.hold(false);
        let first = timeout(PATIENCE, executing).await.unwrap().unwrap();
        let replay = timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert_eq!((first.status(), first.is_replay()), (201, false));
        assert!(replay.is_replay(), "{replay:?}");
        assert_eq!(told(&replay), told(&first));
        assert_eq!(shop.charges(key), 1);
    }
}

async fn send(gateway: SocketAddr, key: String) -> Message {
    ask(gateway, &payment(&key)).await.unwrap()
}

/// How often a gateway was answered by its store when it wanted to execute.
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
async fn without_the_database_nothing_is_charged_and_afterwards_everything_goes_on() {
    let Some(database) = Database::new().await else {
        return;
    };
    let proxy = Proxy::in_front_of(&database.url).await;
    let shop = Shop::open().await;
    let (gateway, _place) = gateway(CONFIG, &shop, proxy.url());
    let ready = async |status: u16| {
        let asking = async {
            while get(gateway.admin, "/readyz").await.unwrap().status() != status {
                sleep(POLL).await; // sleeps because the gateway looks when it is asked
            }
        };
        timeout(PATIENCE, asking).await.expect("/readyz is wrong");
    };
    ready(200).await;
    let before = pay(&[gateway.address], "before".into()).await;
    // One whose charge is made before the outage, and whose answer comes in the midst of it.
    shop.hold(true);
    let under_way = tokio::spawn(pay_one(gateway.address, "under-way"));
    shop.began(2).await;

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
    let tally = Tally::of(&sent, &[gateway.address], &shop).await;
    assert_eq!((tally.unknown, shop.executions()), (0, 4), "{tally:?}");
}

async fn pay_one(gateway: SocketAddr, key: &str) -> Sent {
    pay(&[gateway], key.to_owned()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_lost_between_commit_and_client_costs_nothing() {
    let Some(database) = Database::new().await else {
        return;
    };
    let proxy = Proxy::in_front_of(&database.url).await;
    let shop = Shop::open().await;
    let (cut_off, _one) = gateway(CONFIG, &shop, proxy.url());
    let (witness, _other) = gateway(CONFIG, &shop, &database.url);
    let mut sent = Vec::new();
    for moment in [&[RESERVE][..], &[COMPLETE], &[RESERVE, EVICT]] {
        for cut in 0..CUTS {
            let cuts: Vec<_> = moment
                .iter()
                .map(|statement| proxy.cut(When::answered(*statement)))
                .collect();
            let mut clients = JoinSet::new();
            for client in 0..CLIENTS {
                let key = format!("{}-{cut}-{client}", moment.join("-").replace(' ', "_"));
                clients.spawn(async move { pay(&[cut_off.address], key).await });
            }
            let paid = timeout(PATIENCE, clients.join_all()).await;
            sent.extend(paid.expect("a client is stuck"));
            for cut in cuts {
                let reached = timeout(PATIENCE, cut.reached()).await;
                reached.unwrap_or_else(|_| panic!("{moment:?} was never cut"));
            }
        }
    }
    let gateways = [cut_off.address, witness.address];
    let tally = Tally::of(&sent, &gateways, &shop).await;
    println!("{} cuts, {tally:?}", 3 * CUTS);
    assert_eq!(tally.unknown, 0, "{tally:?}");
    assert_eq!(shop.executions(), sent.len());
    assert_eq!(shop.all_charges(), sent.len());
    // Each reservation that was cut off was tried again.
    assert!(tally.retried >= 2 * CUTS, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn backends_that_end_at_random_cost_nothing() {
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
        timeout(PATIENCE, shop.began(next.min(KEYS)))
            .await
            .expect("no load");
        let some = i64::try_from(1 + random.below(4)).unwrap();
        ended += killer.query(end, &[&some]).await.unwrap().len();
    }
    let sent = timeout(PATIENCE, clients.join_all()).await;
    let sent: Vec<Sent> = sent
        .expect("a client is stuck")
        .into_iter()
        .flatten()
        .collect();
    let tally = Tally::of(&sent, &gateways, &shop).await;
    println!("{ended} backends ended, {tally:?}");
    assert_eq!((tally.keys, tally.unknown), (KEYS, 0), "{tally:?}");
    assert_eq!((shop.executions(), shop.all_charges()), (KEYS, KEYS));
    // The run counts only if connections were lost while they were needed.
    assert!(ended >= 20 && tally.retried > 0, "{ended} ended, {tally:?}");
}
