//! A Redis that is slow, empty, wrong or unreachable never changes an answer.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Memory, Store as _};
use semel_redis::{Cached, Error, Options};
use semel_testkit::faulty::{Fault, Verb};
use semel_testkit::{Faulty, ManualClock};
use support::{
    FakeRedis, FakeReply, LONG_TIMEOUT, UNREACHABLE_URL, completed, prefix, redis_url, replay,
    replayed_body, request, request_of,
};

type Store = Cached<Faulty<Memory>>;

/// The longest that all lookups of a silent Redis may take together: a few times 50 ms, with a
/// margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Store {
    open_with(Options::new(url).lookup_timeout(LONG_TIMEOUT)).await
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

/// A fake Redis, and a store whose three answers are all cached in it.
async fn filled_store() -> (FakeRedis, Store) {
    let fake = FakeRedis::start().await;
    let store = open(&fake.url).await;
    fill(&fake, &store).await;
    (fake, store)
}

async fn fill(fake: &FakeRedis, store: &Store) {
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

async fn assert_answers(store: &Store) {
    for (request, body) in [
        (request("a"), "answer a"),
        (request("b"), "answer b"),
        (request_of("tenant-2", "a"), "answer of tenant 2"),
    ] {
        let replayed = replayed_body(store, request).await;
        assert_eq!(replayed.as_deref(), Some(body.as_bytes()));
    }
}

/// Whether a request is answered while the inner store fails.
async fn redis_answers(store: &Store, key: &str) -> bool {
    store.inner().next(Verb::Reserve, Fault::FailBefore);
    let answered = store.reserve(request(key)).await.is_ok();
    store.inner().heal();
    answered
}

#[tokio::test]
async fn values_of_other_keys_are_not_replayed() {
    let (fake, store) = filled_store().await;
    assert!(redis_answers(&store, "a").await);
    for turn in 0..3 {
        let other = fake.written()[turn].value.clone();
        fake.script_gets(move |_, _| FakeReply::Value(Some(other.clone())));
        assert_answers(&store).await;
        assert_eq!(redis_answers(&store, "a").await, turn == 0);
    }
}

#[tokio::test]
async fn values_of_an_old_epoch_are_not_replayed() {
    let (fake, store) = filled_store().await;
    let old = fake.written()[0].value.clone();
    let id = replay(&store, request("a")).await.id;
    assert!(store.erase(id, "test".into()).await.unwrap());
    fake.script_gets(move |_, _| FakeReply::Value(Some(old.clone())));
    assert_eq!(replayed_body(&store, request("a")).await, None);
}

#[tokio::test]
async fn truncated_or_altered_values_are_not_replayed() {
    let (fake, store) = filled_store().await;
    let whole = fake.written()[0].value.clone();
    for cut in [0, 1, 7, 31, 32, 33, whole.len() / 2, whole.len() - 1] {
        let part = whole[..cut].to_vec();
        fake.script_gets(move |_, _| FakeReply::Value(Some(part.clone())));
        assert!(!redis_answers(&store, "a").await, "{cut}");
    }
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fake.script_gets(move |_, _| FakeReply::Value(Some(flipped.clone())));
        assert!(!redis_answers(&store, "a").await, "{at}");
    }
    fake.clear_get_script();
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn malformed_replies_fall_back_to_the_store() {
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
    for bytes in nonsense {
        let (fake, store) = filled_store().await;
        fake.script_gets(move |_, _| FakeReply::Raw(bytes.to_vec()));
        for _ in 0..3 {
            assert_answers(&store).await;
        }
    }
}

#[tokio::test]
async fn closed_connection_is_replaced() {
    for bytes in [
        &b""[..],
        b"$1",
        b"$100\r\nhalf of it",
        b"$-1",
        b"-ERR max number of clients reached\r\n",
    ] {
        let (fake, store) = filled_store().await;
        fake.script_gets(move |_, _| FakeReply::RawThenClose(bytes.to_vec()));
        assert_answers(&store).await;
        assert_answers(&store).await;
        fake.clear_get_script();
        let before = fake.connections();
        // One request notices the closed connection, and a later one finds the new connection.
        let mut tries = 0;
        while !redis_answers(&store, "a").await {
            tries += 1;
            assert!(tries < 1_000, "after {bytes:?}");
            // sleeps because the new connection is made in the background, by a real socket
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(fake.connections() > before || before > 1);
    }
}

/// Each lookup times out; after five in a row the store stops asking Redis.
#[tokio::test]
async fn silent_redis_is_skipped_after_five_lookups() {
    let fake = FakeRedis::start().await;
    let store = open_with(Options::new(fake.url.as_str())).await;
    fill(&fake, &store).await;
    fake.script_gets(|_, _| FakeReply::Silence);
    let asked = fake.gets();
    let asking = async {
        for _ in 0..20 {
            assert_answers(&store).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.unwrap();
    assert_eq!(fake.gets() - asked, 5);
}

#[tokio::test]
async fn redis_with_fewer_than_five_failures_in_a_row_is_still_asked() {
    let (fake, store) = filled_store().await;
    for _ in 0..3 {
        fake.script_gets(|_, _| FakeReply::Raw(b"-ERR not now\r\n".to_vec()));
        for _ in 0..4 {
            assert!(!redis_answers(&store, "a").await);
        }
        fake.clear_get_script();
        assert!(redis_answers(&store, "a").await);
    }
}

#[tokio::test]
async fn flushed_entry_is_filled_again() {
    let (fake, store) = filled_store().await;
    fake.flush();
    assert!(!redis_answers(&store, "a").await);
    assert_answers(&store).await;
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn redis_that_refuses_writes_is_still_read() {
    let (fake, store) = filled_store().await;
    fake.refuse_sets("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    for key in 0..10 {
        let key = key.to_string();
        completed(&store, request(&key), "paid").await;
        replay(&store, request(&key)).await;
    }
    assert!(redis_answers(&store, "a").await);
}

#[tokio::test]
async fn unreachable_redis_is_not_an_error() {
    // A server without TLS behind a `rediss://` address is unreachable, too.
    let plain = FakeRedis::start().await;
    for url in [
        UNREACHABLE_URL.into(),
        plain.url.replace("redis:", "rediss:"),
    ] {
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
async fn invalid_address_is_refused_without_repeating_it() {
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
            panic!("{url} was accepted");
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
    async fn entry_expires_and_is_refilled_after_deletion_or_type_change() {
        let Some(url) = redis_url() else { return };
        let prefix = prefix();
        let store: Store = Options::new(url.as_str())
            .prefix(prefix.as_str())
            .wait_for_fills()
            .lookup_timeout(LONG_TIMEOUT)
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
        // Writing the answer has replaced the list by a string.
        assert!(redis_answers(&store, "a").await);
        let gone: i64 = ask("DEL").query_async(&mut redis).await.unwrap();
        assert_eq!(gone, 1);
    }
}
