//! A store in a temporary file, and requests and answers that several test modules use.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::Connection;
use semel_core::transition::{Completion, Decision};
use semel_core::{
    Fence, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Response, Store,
};
use semel_sqlite::{Options, Sqlite};
use semel_testkit::ManualClock;
use tempfile::TempDir;

/// A store in the application's own file, which has a table `rows`.
pub(crate) struct File {
    pub(crate) store: Sqlite,
    pub(crate) clock: ManualClock,
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl File {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("semel.db");
        let clock = ManualClock::default();
        let options = Options::new(&path).clock(Arc::new(clock.clone()));
        let store = options.open().await.unwrap();
        let file = Self {
            store,
            clock,
            path,
            _directory: directory,
        };
        file.open()
            .execute_batch("CREATE TABLE rows (name TEXT)")
            .unwrap();
        file
    }

    /// A connection of the application's own.
    pub(crate) fn open(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    /// What is committed in `rows`.
    pub(crate) fn rows(&self) -> Vec<String> {
        self.texts("SELECT name FROM rows ORDER BY rowid")
    }

    /// What is committed, one text a row.
    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        let connection = self.open();
        let mut select = connection.prepare(sql).unwrap();
        let texts = select.query_map([], |row| row.get(0)).unwrap();
        texts.map(Result::unwrap).collect()
    }
}

/// Adds to `rows`.
pub(crate) fn insert(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let inserted = connection.execute("INSERT INTO rows VALUES (?1)", [name]);
    inserted.map(|_| ())
}

/// A first request under `key`.
pub(crate) fn request(key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

/// Reserves `key`, which must be new.
pub(crate) async fn granted(store: &impl Store, key: &str) -> Fence {
    match store.reserve(request(key)).await {
        Ok(Decision::Execute(grant)) => grant.fence,
        other => panic!("{key} is not granted: {other:?}"),
    }
}

/// An answer whose body is `size` bytes that depend on `seed`.
pub(crate) fn completion(seed: &str, size: usize) -> Completion {
    let body: Bytes = seed.bytes().cycle().take(size).collect();
    let headers = vec![(
        "content-type".into(),
        Bytes::from_static(b"application/json"),
    )];
    Completion {
        response: Response {
            status: 201,
            headers,
            body: Some(body),
            schema_version: 0,
        },
        resource: None,
    }
}
