//! A Redis that is slow, empty, wrong or gone: slower, never wrong.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Maintain as _, Memory, Store as _};
use semel_redis::{Cached, Error, Options};
use semel_testkit::faulty::{Fault, Verb};
use semel_testkit::{Faulty, ManualClock};
use support::{
    Fake, LONG, NOBODY, Say, completed, prefix, redis_url, replay, replayed_body, request,
    request_of,
};

type Store = Cached<Faulty<Memory>>;

/// Longest that waiting for a silent Redis may take in all, on a machine that does something
/// else: a few times 50 ms.
const LIMIT: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Store {
    open_with(Options::new(url).lookup_patience(LONG)).await
}

async fn open_with(options: Options) -> Store {
    let clock = ManualClock::default();
    options
        .prefix(prefix())
        .wait_for_fills()
        .open(Faulty::new(Memory::new(Arc::new(clock))))
        .await
        .unwrap()
}

/// A store with a few answers, all of them in Redis.
async fn world() -> (Fake, Store) {
    let fake = Fake::start().await;
    let store = open(&fake.url).await;
    fill(&fake, &store).await;
    (fake, store)
}

async fn fill(fake: &Fake, store: &Store) {
    for (request, body) in [
        (request("a"), "answer a"),
        (request("b"), "answer b"),
        (request_of("tenant-2", "a"), "answer of tenant 2"),
    ] {
        completed(store, request.clone(), body).await;
        replay(store, request).await;
    }
    assert_eq!(fake.written().len(), 3);
}

async fn answers_are_right(store: &Store) {
    for (request, body) in [
        (request("a"), "answer a"),
        (request("b"), "answer b"),
        (request_of("tenant-2", "a"), "answer of tenant 2"),
    ] {
        let replayed = replayed_body(store, request).await;
        assert_eq!(replayed.as_deref(), Some(body.as_bytes()));
    }
}

/// Whether `request` is answered while the store itself cannot.
async fn redis_answers(store: &Store, key: &str) -> bool {
    store.inner().next(Verb::Reserve, Fault::FailBefore);
    let answered = store.reserve(request(key)).await.is_ok();
    store.inner().heal();
    answered
}

#[tokio::test]
async fn the_values_of_others_are_not_given() {
    let (fake, store) = world().await;
    assert!(redis_answers(&store, "a").await);
    for turn in 0..3 {
        let other = fake.written()[turn].value.clone();
        fake.lie(move |_, _| Say::Value(Some(other.clone())));
        answers_are_right(&store).await;
        assert_eq!(redis_answers(&store, "a").await, turn == 0);
    }
}

#[tokio::test]
async fn values_of_an_old_epoch_are_not_given() {
    let (fake, store) = world().await;
    let old = fake.written()[0].value.clone();
    let id = replay(&store, request("a")).await.id;
    assert!(store.erase(id, "test".into()).await.unwrap());
    fake.lie(move |_, _| Say::Value(Some(old.clone())));
    assert_eq!(replayed_body(&store, request("a")).await, None);
}

#[tokio::test]
async fn values_that_are_cut_short_or_altered_are_not_given() {
    let (fake, store) = world().await;
    let whole = fake.written()[0].value.clone();
    for cut in [0, 1, 7, 31, 32, 33, whole.len() / 2, whole.len() - 1] {
        let part = whole[..cut].to_vec();
        fake.lie(move |_, _| Say::Value(Some(part.clone())));
        assert!(!redis_answers(&store, "a").await, "{cut}");
    }
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fake.lie(move |_, _| Say::Value(Some(flipped.clone())));
        assert!(!redis_answers(&store, "a").await, "{at}");
    }
    fake.repent();
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn nonsense_is_not_given_and_does_not_stick() {
    let nonsense: [&'static [u8]; 10] = [
        b"$5\r\nhello\r\n",
        b"+OK\r\n",
        b":42\r\n",
        b"*1\r\n$1\r\na\r\n",
        b"*-1\r\n",
        b"-ERR unknown command\r\n",
        b"-MOVED 3999 127.0.0.1:1\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"!?\r\n",
    ];
    for said in nonsense {
        let (fake, store) = world().await;
        fake.lie(move |_, _| Say::Raw(said.to_vec()));
        for _ in 0..3 {
            answers_are_right(&store).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_closes_is_replaced() {
    for said in [
        &b""[..],
        b"$1",
        b"$100\r\nhalf of it",
        b"$-1",
        b"-ERR max number of clients reached\r\n",
    ] {
        let (fake, store) = world().await;
        fake.lie(move |_, _| Say::Last(said.to_vec()));
        answers_are_right(&store).await;
        answers_are_right(&store).await;
        fake.repent();
        let before = fake.connections();
        // The next request notices, and another one finds the new connection.
        let mut tries = 0;
        while !redis_answers(&store, "a").await {
            tries += 1;
            assert!(tries < 1_000, "after {said:?}");
            // sleeps because the new connection is made in the background, by a real socket
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(fake.connections() > before || before > 1);
    }
}

/// Each question is waited for only so long; after a few in a row nobody asks any more.
#[tokio::test]
async fn a_redis_that_never_answers_is_left_alone() {
    let fake = Fake::start().await;
    let store = open_with(Options::new(fake.url.as_str())).await;
    fill(&fake, &store).await;
    fake.lie(|_, _| Say::Nothing);
    let asked = fake.gets();
    let asking = async {
        for _ in 0..20 {
            answers_are_right(&store).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.unwrap();
    assert_eq!(fake.gets() - asked, 5);
}

#[tokio::test]
async fn a_redis_that_fails_now_and_then_is_asked_on() {
    let (fake, store) = world().await;
    for _ in 0..3 {
        fake.lie(|_, _| Say::Raw(b"-ERR not now\r\n".to_vec()));
        for _ in 0..4 {
            assert!(!redis_answers(&store, "a").await);
        }
        fake.repent();
        assert!(redis_answers(&store, "a").await);
    }
}

#[tokio::test]
async fn what_is_flushed_or_evicted_is_read_again() {
    let (fake, store) = world().await;
    fake.flush();
    assert!(!redis_answers(&store, "a").await);
    answers_are_right(&store).await;
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn a_redis_that_refuses_writes_is_still_read() {
    let (fake, store) = world().await;
    fake.refuse_sets("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    for key in 0..10 {
        let key = key.to_string();
        completed(&store, request(&key), "paid").await;
        replay(&store, request(&key)).await;
    }
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn a_redis_that_is_away_is_no_error() {
    // A plain server at an address that wants TLS is as good as none.
    let plain = Fake::start().await;
    for url in [NOBODY.into(), plain.url.replace("redis:", "rediss:")] {
        let store = open(&url).await;
        let id = completed(&store, request("a"), "answer").await;
        for _ in 0..3 {
            let body = replayed_body(&store, request("a")).await;
            assert_eq!(body.as_deref(), Some(&b"answer"[..]));
        }
        assert!(store.erase(id, "test".into()).await.unwrap());
        assert_eq!(replayed_body(&store, request("a")).await, None);
    }
}

#[tokio::test]
async fn an_address_that_makes_no_sense_is_refused_without_repeating_it() {
    for url in [
        "",
        "secret",
        "http://:secret@127.0.0.1/",
        "redis://:secret@/",
        "redis://:secret@127.0.0.1/payments",
        "redis://:secret@127.0.0.1:port/",
        "redis://:secret@127.0.0.1/?protocol=9",
        "rediss://:secret@127.0.0.1/#insecure",
        "rediss://:secret@127.0.0.1/#secure",
    ] {
        let refused = Options::new(url).open(Memory::default()).await;
        let Err(error @ Error::Address { .. }) = refused else {
            panic!("{url} is taken");
        };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert!(!format!("{:?}", Options::new("redis://:secret@a/")).contains("secret"));
}

mod real {
    use super::*;

    async fn connection(url: &str) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(url).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    #[tokio::test]
    async fn an_entry_has_an_expiry_and_may_vanish_or_change_its_type() {
        let Some(url) = redis_url() else { return };
        let prefix = prefix();
        let store: Store = Options::new(url.as_str())
            .prefix(prefix.as_str())
            .wait_for_fills()
            .lookup_patience(LONG)
            .open(Faulty::new(Memory::default()))
            .await
            .unwrap();
        completed(&store, request("a"), "answer").await;
        replay(&store, request("a")).await;
        assert!(redis_answers(&store, "a").await);

        let key = format!("{prefix}0:{:?}", request("a").identity.hash());
        let mut redis = connection(&url).await;
        let ask = |command: &'static str| {
            let mut asked = redis::cmd(command);
            asked.arg(&key);
            asked
        };
        let left: i64 = ask("PTTL").query_async(&mut redis).await.unwrap();
        assert!((1..=3_600_000).contains(&left), "{left}");

        let gone: i64 = ask("DEL").query_async(&mut redis).await.unwrap();
        assert_eq!(gone, 1);
        assert!(!redis_answers(&store, "a").await);

        let pushed: i64 = ask("RPUSH").arg("x").query_async(&mut redis).await.unwrap();
        assert_eq!(pushed, 1);
        let body = replayed_body(&store, request("a")).await;
        assert_eq!(body.as_deref(), Some(&b"answer"[..]));
        // Writing the answer has mended the key.
        assert!(redis_answers(&store, "a").await);
        let gone: i64 = ask("DEL").query_async(&mut redis).await.unwrap();
        assert_eq!(gone, 1);
    }
}
