//! What every journal guarantees, and what only PostgreSQL does.

mod in_transactions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::HeaderValue;
use semel_client::{Client, Error, Journal, Options, QuotaOptions, Request, journal};
use tokio::sync::Semaphore;

use crate::world::{Clock, Place, Scripted, payment, response};

/// One test over each journal.
macro_rules! over_each_journal {
    ($($scenario:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(crate::world::Place::memory()).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(crate::world::Place::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $scenario() {
                if let Some(place) = crate::world::Place::postgres().await {
                    super::$scenario(place).await;
                }
            })+
        }
    };
}

over_each_journal!(
    two_processes_send_one_key_and_return_the_first_response,
    another_request_under_a_known_intent_sends_nothing,
    open_intents_are_listed_in_order_until_they_are_finished,
    a_forgotten_intent_gets_a_new_key,
    finished_intents_are_removed_after_their_retention_and_open_ones_stay,
    no_more_intents_are_open_than_allowed,
    credentials_are_not_stored_and_are_added_when_an_intent_is_resumed,
    a_content_type_of_the_client_is_no_credential,
    a_response_survives_with_every_byte,
    many_intents_at_once_have_a_key_each,
    a_dropped_call_leaves_its_followers_a_response,
);

fn no_retries() -> Options {
    Options {
        quota: QuotaOptions {
            capacity: 0.0,
            cost: 1.0,
            refill_per_second: 0.0,
        },
        ..Options::default()
    }
}

fn client(journal: Journal, transport: &Scripted) -> Client {
    client_at(journal, transport, &Arc::new(Clock::default()))
}

fn client_at(journal: Journal, transport: &Scripted, clock: &Arc<Clock>) -> Client {
    Client::builder(journal)
        .options(no_retries())
        .environment(Arc::clone(clock) as Arc<_>)
        .build_with(transport.clone())
}

async fn two_processes_send_one_key_and_return_the_first_response(place: Place) {
    let mut transports = ["first", "second"].map(|body| Scripted::new([response(201, body)]));
    let gates = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    for (transport, gate) in transports.iter_mut().zip(&gates) {
        transport.gate = Some(Arc::clone(gate));
    }
    let clients = [0, 1].map(|nth: usize| client(place.open(), &transports[nth]));
    let second = tokio::spawn({
        let client = clients[1].clone();
        async move { client.call("invoice-1", payment()).await }
    });
    let first = tokio::spawn({
        let client = clients[0].clone();
        async move { client.call("invoice-1", payment()).await }
    });
    while transports
        .iter()
        .any(|transport| transport.keys().is_empty())
    {
        tokio::task::yield_now().await;
    }
    gates[0].add_permits(1);
    assert_eq!(first.await.unwrap().unwrap().body, "first");
    gates[1].add_permits(1);
    assert_eq!(second.await.unwrap().unwrap().body, "first");
    assert_eq!(transports[0].keys(), transports[1].keys());
}

async fn another_request_under_a_known_intent_sends_nothing(place: Place) {
    let transport = Scripted::new([response(201, "done")]);
    let client = client(place.open(), &transport);
    client.call("invoice-1", payment()).await.unwrap();
    let other = payment().body("{\"amount\":2}");
    let refused = client.call("invoice-1", other).await;
    assert!(matches!(refused, Err(Error::IntentConflict)), "{refused:?}");
    assert_eq!(transport.keys().len(), 1);
}

async fn open_intents_are_listed_in_order_until_they_are_finished(place: Place) {
    let transport = Scripted::new([response(503, "")]);
    let client = client(place.open(), &transport);
    for intent in ["b", "a", "c"] {
        client.call(intent, payment()).await.unwrap_err();
    }
    let open = place.open().list().await.unwrap();
    let names: Vec<&str> = open.iter().map(|open| &*open.intent).collect();
    assert_eq!(names, ["b", "a", "c"]);
    assert_eq!(open[0].method, "POST");
    assert_eq!(open[0].url, "http://api.example/payments");
    assert_eq!(format!("\"{}\"", open[0].key), transport.keys()[0]);
    assert!(!open[0].is_unknown);

    let works = Scripted::new([response(201, "done")]);
    let resumed = super::journals::client(place.open(), &works).resume().await;
    assert_eq!(resumed.unwrap().len(), 3);
    assert_eq!(works.keys(), transport.keys());
    assert_eq!(place.open().list().await.unwrap(), []);
}

async fn a_forgotten_intent_gets_a_new_key(place: Place) {
    let transport = Scripted::new([response(201, "done")]);
    let client = client(place.open(), &transport);
    client.call("invoice-1", payment()).await.unwrap();
    assert!(place.open().forget("invoice-1").await.unwrap());
    assert!(!place.open().forget("invoice-1").await.unwrap());
    client.call("invoice-1", payment()).await.unwrap();
    let keys = transport.keys();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
}

async fn finished_intents_are_removed_after_their_retention_and_open_ones_stay(place: Place) {
    let day = Duration::from_hours(24);
    let clock = Arc::new(Clock::default());
    let works = Scripted::new([response(201, "done")]);
    let fails = Scripted::new([response(503, "")]);
    let journal = place.open().retention(day);
    let client = client_at(journal.clone(), &works, &clock);
    client_at(journal, &fails, &clock)
        .call("open", payment())
        .await
        .unwrap_err();
    client.call("old", payment()).await.unwrap();
    clock.advance(day.saturating_sub(Duration::from_secs(1)));
    client.call("other", payment()).await.unwrap();
    let kept = client.call("old", payment()).await.unwrap();
    assert!(kept.replayed_from_journal);
    clock.advance(Duration::from_secs(1));
    client.call("another", payment()).await.unwrap();
    let again = client.call("old", payment()).await.unwrap();
    assert!(!again.replayed_from_journal);
    clock.advance(100 * day);
    client.call("last", payment()).await.unwrap();
    let open = place.open().list().await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].intent, "open");
}

async fn no_more_intents_are_open_than_allowed(place: Place) {
    let transport = Scripted::new([response(503, "")]);
    let client = client(place.open().max_open(2), &transport);
    for intent in ["a", "b"] {
        client.call(intent, payment()).await.unwrap_err();
    }
    let refused = client.call("c", payment()).await;
    let Err(Error::Journal(journal::Error::Full(2))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(transport.keys().len(), 2);
    // A known one goes on.
    client.call("a", payment()).await.unwrap_err();
    assert_eq!(transport.keys().len(), 3);
}

async fn credentials_are_not_stored_and_are_added_when_an_intent_is_resumed(place: Place) {
    let fails = Scripted::new([response(503, "")]);
    let secret = |value| HeaderValue::from_static(value);
    let request = payment()
        .header(http::header::AUTHORIZATION, secret("Bearer secret"))
        .header("api-version".parse().unwrap(), secret("7"));
    client(place.open(), &fails)
        .call("invoice-1", request)
        .await
        .unwrap_err();
    assert_eq!(
        fails.sent.lock().unwrap()[0].headers["authorization"],
        "Bearer secret"
    );

    let works = Scripted::new([response(201, "done")]);
    // Without the credential it would get a 401, which would end the intent.
    let without = client(place.open(), &works).resume().await.unwrap();
    assert!(
        matches!(without[0].1, Err(Error::Request(_))),
        "{without:?}"
    );
    assert_eq!(works.keys().len(), 0);
    let resumed = Client::builder(place.open())
        .header(http::header::AUTHORIZATION, secret("Bearer new"))
        .environment(Arc::new(Clock::default()))
        .build_with(works.clone());
    resumed.resume().await.unwrap();
    let sent = works.sent.lock().unwrap();
    assert_eq!(sent[0].headers["authorization"], "Bearer new");
    assert_eq!(sent[0].headers["api-version"], "7");
    assert_eq!(sent[0].headers.get_all("authorization").iter().count(), 1);
}

async fn a_content_type_of_the_client_is_no_credential(place: Place) {
    let client = |transport: &Scripted| {
        let mut options = no_retries();
        options.secret_headers.push(http::header::CONTENT_TYPE);
        Client::builder(place.open())
            .options(options)
            .header(
                http::header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )
            .environment(Arc::new(Clock::default()))
            .build_with(transport.clone())
    };
    let fails = Scripted::new([response(503, "")]);
    let open = client(&fails).call("invoice-1", payment()).await;
    assert!(matches!(open, Err(Error::GaveUp { .. })), "{open:?}");
    let works = Scripted::new([response(201, "done")]);
    let finished = client(&works).call("invoice-1", payment()).await.unwrap();
    assert_eq!(finished.body, "done");
    assert_eq!(works.keys(), fails.keys());
}

async fn a_response_survives_with_every_byte(place: Place) {
    let mut answer = http::Response::new(Bytes::from_static(b"\x00\xff\x80{}"));
    let headers = answer.headers_mut();
    headers.append("link", HeaderValue::from_static("<a>"));
    headers.append("link", HeaderValue::from_static("<b>"));
    headers.append(
        "x-name",
        HeaderValue::from_bytes(b"caf\xc3\xa9\xff").unwrap(),
    );
    let transport = Scripted::new([answer]);
    let first = client(place.open(), &transport)
        .call("invoice-1", payment())
        .await
        .unwrap();
    let mut again = client(place.open(), &transport)
        .call("invoice-1", payment())
        .await
        .unwrap();
    assert!(again.replayed_from_journal);
    again.replayed_from_journal = false;
    assert_eq!(first, again);
    assert_eq!(&first.body[..], b"\x00\xff\x80{}");
}

async fn many_intents_at_once_have_a_key_each(place: Place) {
    let transport = Scripted::new([response(201, "done")]);
    let client = client(place.open(), &transport);
    let names: Vec<String> = (0..300).map(|nth| format!("invoice-{nth}")).collect();
    let calls = names.iter().map(|name| client.call(name, payment()));
    for ended in join_all(calls).await {
        ended.unwrap();
    }
    let mut keys = transport.keys();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 300);
}

async fn a_dropped_call_leaves_its_followers_a_response(place: Place) {
    let gate = Arc::new(Semaphore::new(0));
    let mut transport = Scripted::new([response(201, "done")]);
    transport.gate = Some(Arc::clone(&gate));
    let client = client(place.open(), &transport);
    let leader = tokio::spawn({
        let client = client.clone();
        async move { client.call("invoice-1", payment()).await }
    });
    while transport.keys().is_empty() {
        tokio::task::yield_now().await;
    }
    let follower = tokio::spawn(async move { client.call("invoice-1", payment()).await });
    tokio::task::yield_now().await;
    leader.abort();
    let _ = leader.await;
    gate.add_permits(2);
    assert_eq!(follower.await.unwrap().unwrap().body, "done");
    let keys = transport.keys();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_request_that_cannot_be_repeated_is_refused_before_it_is_stored() {
    let journal = Journal::memory();
    let transport = Scripted::new([response(201, "done")]);
    let client = client(journal.clone(), &transport);
    let with_key = payment().header(
        "idempotency-key".parse().unwrap(),
        HeaderValue::from_static("mine"),
    );
    let too_long = payment().body(vec![0; 9 * 1024 * 1024]);
    let name = "x".repeat(256);
    for (intent, request) in [
        ("a", with_key),
        ("b", too_long),
        ("", payment()),
        (name.as_str(), payment()),
    ] {
        let refused = client.call(intent, request).await;
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    }
    assert!(Request::post("payments").is_err());
    assert!(Request::post("file:///etc/passwd").is_err());
    assert_eq!(journal.list().await.unwrap(), []);
    assert_eq!(transport.keys().len(), 0);
}

#[tokio::test]
async fn a_file_of_another_program_is_not_used_as_a_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.db");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    let refused = Journal::sqlite(&path).unwrap_err();
    assert!(refused.to_string().contains("another program"), "{refused}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_journal_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    let _journal = Journal::sqlite(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
