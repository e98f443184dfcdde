//! A sealed store writes only ciphertext, and refuses swapped and altered data.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use semel_core::history;
use semel_core::inbox::{Handling, Message};
use semel_core::{
    Actor, Backend as _, Backoff, Completion, Decision, Error, Fence, Fingerprint, Held, Identity,
    Key, Memory, OperationId, Policy, Reserve, Resolution, Resolve, Response, State, Store,
    Verdict,
};
use semel_seal::{Keyring, Sealed};
use semel_sqlite::Sqlite;
use semel_sqlite::rusqlite::Connection;

const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A text that must never appear in stored data.
const SECRET: &str = "4242-4242-4242-4242";

fn keys(text: &str) -> Keyring {
    text.parse().unwrap()
}

fn request(key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant", "pay", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::of(&1).unwrap().into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

fn paid(of: &str) -> Completion {
    Completion {
        response: Response {
            status: 201,
            headers: vec![
                ("location".into(), Bytes::from(format!("/cards/{SECRET}"))),
                ("link".into(), Bytes::from_static(b"\xff\0")),
                ("link".into(), Bytes::new()),
            ],
            body: Some(Bytes::from(format!("{of} paid with {SECRET}"))),
            schema_version: 3,
        },
        resource: None,
    }
}

async fn granted(store: &impl Store, key: &str) -> Fence {
    match store.reserve(request(key)).await.unwrap() {
        Decision::Execute(grant) => grant.fence,
        other => panic!("{other:?}"),
    }
}

async fn replayed(store: &impl Store, key: &str) -> Result<Response, Error> {
    match store.reserve(request(key)).await? {
        Decision::Replay(replay) => Ok(replay.response),
        other => panic!("{other:?}"),
    }
}

/// Whether any file in the directory contains the text.
fn directory_contains(directory: &Path, text: &str) -> bool {
    std::fs::read_dir(directory).unwrap().any(|file| {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}

#[tokio::test]
async fn answers_are_replayed_exactly_and_stored_encrypted() {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(directory.path().join("semel.db"))
        .await
        .unwrap();
    let store = Sealed::new(sqlite.clone(), Some(keys(NEW)));
    let fence = granted(&store, "a").await;
    assert_eq!(
        store.complete(fence, paid("a")).await.unwrap(),
        Held::Applied
    );
    assert_eq!(
        store.complete(fence, paid("a")).await.unwrap(),
        Held::Repeated,
        "a completion whose answer was lost is written again"
    );
    assert!(matches!(
        store.complete(fence, paid("b")).await.unwrap(),
        Held::Fenced(_)
    ));
    assert_eq!(replayed(&store, "a").await.unwrap(), paid("a").response);
    if let Some(decided) = store.try_decide(&request("a")) {
        assert!(
            matches!(decided, Decision::Replay(replay) if replay.response == paid("a").response)
        );
    }

    // The evidence of reconciliation, and a parked event.
    let fence = granted(&store, "b").await;
    store
        .mark_unknown(fence, "timeout".into(), None)
        .await
        .unwrap();
    let resolve = Resolve {
        fence,
        verdict: Verdict::Completed(paid("b")),
        by: "psp".into(),
        evidence: Some(Bytes::from(format!("{SECRET}{}", "x".repeat(10_000)))),
    };
    assert_eq!(store.resolve(resolve).await.unwrap(), Resolution::Applied);
    assert_eq!(replayed(&store, "b").await.unwrap(), paid("b").response);
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: Bytes::from_static(SECRET.as_bytes()),
    };
    let handling = Handling {
        look_after: Duration::ZERO,
        remember: Duration::from_hours(1),
    };
    store
        .receive_message(message.clone(), handling)
        .await
        .unwrap();

    assert!(
        directory_contains(directory.path(), "tenant"),
        "plain text is found"
    );
    assert!(!directory_contains(directory.path(), SECRET));

    let record = store.find(fence.id).await.unwrap().unwrap();
    let entries = store.history(fence.id).await.unwrap();
    assert_eq!(history::verify(&record, &entries), Ok(()));
    let evidence = entries.last().unwrap().note.evidence.clone().unwrap();
    assert!(evidence.len() <= history::MAX_EVIDENCE);
    let evidence = store.decrypt_evidence(fence.id, evidence).unwrap();
    assert!(evidence.starts_with(SECRET.as_bytes()));
    let backoff = Backoff {
        every: Duration::from_secs(1),
        max_every: Duration::from_secs(1),
    };
    let parked = store.claim_parked(backoff, 10).await.unwrap();
    assert_eq!(parked[0].message, message);

    assert!(
        store
            .erase(fence.id, Actor::person("op", "asked"))
            .await
            .unwrap()
    );
    let erased = replayed(&store, "b").await.unwrap();
    assert_eq!((erased.headers, erased.body), (vec![], None));
}

#[tokio::test]
async fn swapped_and_altered_ciphertexts_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Sealed::new(Sqlite::open(&path).await.unwrap(), Some(keys(NEW)));
    for key in ["a", "b", "c", "d", "e"] {
        let fence = granted(&store, key).await;
        store.complete(fence, paid(key)).await.unwrap();
    }
    let tamper = |statement: &str| {
        let changed = Connection::open(&path)
            .unwrap()
            .execute(statement, [])
            .unwrap();
        assert_eq!(changed, 1, "{statement}");
    };
    // The body of another row, its headers, both, and a flipped bit.
    tamper(
        "UPDATE semel_operations SET response_body =
            (SELECT response_body FROM semel_operations WHERE key = 'e') WHERE key = 'a'",
    );
    tamper(
        "UPDATE semel_operations SET response_headers =
            (SELECT response_headers FROM semel_operations WHERE key = 'e') WHERE key = 'b'",
    );
    tamper(
        "UPDATE semel_operations SET (response_headers, response_body) =
            (SELECT response_headers, response_body FROM semel_operations WHERE key = 'e')
         WHERE key = 'c'",
    );
    let connection = Connection::open(&path).unwrap();
    let read = "SELECT response_body FROM semel_operations WHERE key = 'd'";
    let mut body: Vec<u8> = connection.query_row(read, [], |row| row.get(0)).unwrap();
    *body.last_mut().unwrap() ^= 1;
    let write = "UPDATE semel_operations SET response_body = ?1 WHERE key = 'd'";
    assert_eq!(connection.execute(write, [body]).unwrap(), 1);
    for key in ["a", "b", "c", "d"] {
        let refused = replayed(&store, key).await.unwrap_err();
        assert!(matches!(refused, Error::Corrupt { .. }), "{key}: {refused}");
        assert!(!refused.to_string().contains(SECRET));
        assert_eq!(store.try_decide(&request(key)), None);
    }
    assert_eq!(replayed(&store, "e").await.unwrap(), paid("e").response);
}

#[tokio::test]
async fn answers_of_old_keys_open_and_a_missing_key_is_named() {
    let memory = Memory::default();
    let seal = |keyring| Sealed::new(memory.clone(), keyring);
    let plain = seal(None);
    plain
        .complete(granted(&plain, "plain").await, paid("plain"))
        .await
        .unwrap();
    let before = seal(Some(keys(OLD)));
    before
        .complete(granted(&before, "old").await, paid("old"))
        .await
        .unwrap();
    let after = seal(Some(keys(&format!("{NEW},{OLD}"))));
    let fence = granted(&after, "new").await;
    after.complete(fence, paid("new")).await.unwrap();
    for key in ["plain", "old", "new"] {
        assert_eq!(
            replayed(&after, key).await.unwrap(),
            paid(key).response,
            "{key}"
        );
    }
    let only_new = seal(Some(keys(NEW)));
    assert!(replayed(&only_new, "new").await.is_ok());
    let missing = replayed(&only_new, "old").await.unwrap_err().to_string();
    assert!(missing.contains("`old`"), "{missing}");
    assert!(replayed(&plain, "new").await.is_err(), "no keys at all");
    // Another key has the name of the old one.
    let renamed = seal(Some(keys(&NEW.replace("new:", "old:"))));
    assert!(replayed(&renamed, "old").await.is_err());
    let State::Completed(stored) = memory.find(fence.id).await.unwrap().unwrap().state else {
        panic!("not completed");
    };
    assert!(!format!("{:?}", stored.response.body).contains("paid"));
}
