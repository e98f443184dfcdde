//! The journal in a SQLite file.
//!
//! One thread writes. Calls that arrive while it commits share the next commit, so that many intents
//! cost one `fsync`.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use semel_core::Timestamp;
use tokio::sync::oneshot;

use super::{
    Backend, Bounds, Entry, Error, Finish, NewIntent, Open, PRUNED_AT_ONCE, Row, StoredResponse,
};
use crate::BoxFuture;
use crate::attempts::Note;
use crate::stored_headers::{Pairs, to_pairs};

const SCHEMA: &str = include_str!("../../migrations/sqlite.sql");
const INTEND: &str = include_str!("../../queries/sqlite/intend.sql");
const FIND: &str = include_str!("../../queries/sqlite/find.sql");
const SHARE: &str = include_str!("../../queries/sqlite/share.sql");
const NOTE: &str = include_str!("../../queries/sqlite/note.sql");
const FINISH: &str = include_str!("../../queries/sqlite/finish.sql");
const LIST_OPEN: &str = include_str!("../../queries/sqlite/list_open.sql");
const PRUNE: &str = include_str!("../../queries/sqlite/prune.sql");
const FORGET: &str = include_str!("../../queries/sqlite/forget.sql");

/// Marks a file as a journal: "SEMJ".
const APPLICATION_ID: i32 = 0x5345_4D4A;
const SCHEMA_VERSION: i32 = 1;

/// How long another process may hold the file: it writes a few rows at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How many calls share a commit at most.
const MAX_GROUP: usize = 256;

/// One call, as a function on the open transaction, or on the reason why there is none.
type Work = Box<dyn FnOnce(Result<&Connection, Error>) -> Reply + Send>;
/// Sends the result after the commit, or the commit's error.
type Reply = Box<dyn FnOnce(Option<Error>) + Send>;

pub(super) struct Sqlite {
    queue: Sender<Work>,
    /// The process that opened it. One that was forked later has no such thread.
    process: u32,
}

impl Sqlite {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let connection = connect(path).map_err(|error| {
            Error::Unavailable(format!("cannot open {}: {error}", path.display()).into())
        })?;
        let (queue, calls) = channel();
        thread::Builder::new()
            .name("semel-journal".to_owned())
            .spawn(move || write_groups(connection, &calls))
            .map_err(|error| Error::Unavailable(error.to_string().into()))?;
        Ok(Self {
            queue,
            process: std::process::id(),
        })
    }

    /// Runs `call` in a transaction that it may share, and returns when that is committed.
    fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        if std::process::id() != self.process {
            let reason = "it was opened before a fork: open it in the process that uses it";
            return Box::pin(async move { Err(Error::Unavailable(reason.into())) });
        }
        let (sender, receiver) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            let result = connection.and_then(call);
            Box::new(move |failed| {
                let _ = sender.send(failed.map_or(result, Err));
            })
        });
        let is_queued = self.queue.send(work).is_ok();
        Box::pin(async move {
            let ended = || Error::Unavailable("the journal's thread ended".into());
            if !is_queued {
                return Err(ended());
            }
            receiver.await.map_err(|_| ended())?
        })
    }
}

/// Ends when the journal is dropped.
fn write_groups(mut connection: Connection, calls: &Receiver<Work>) {
    while let Ok(first) = calls.recv() {
        let mut group = vec![first];
        while group.len() < MAX_GROUP
            && let Ok(next) = calls.try_recv()
        {
            group.push(next);
        }
        let mut replies = Vec::with_capacity(group.len());
        let committed = write_group(&mut connection, group, &mut replies);
        let failed = committed.err().map(|error| sqlite(&error));
        for reply in replies {
            reply(failed.clone());
        }
    }
}

fn write_group(
    connection: &mut Connection,
    group: Vec<Work>,
    replies: &mut Vec<Reply>,
) -> rusqlite::Result<()> {
    // Not deferred: that fails at once where another process wrote in between.
    let transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(transaction) => transaction,
        Err(error) => {
            let failed = sqlite(&error);
            replies.extend(group.into_iter().map(|work| work(Err(failed.clone()))));
            return Err(error);
        }
    };
    replies.extend(group.into_iter().map(|work| work(Ok(&transaction))));
    transaction.commit()
}

fn connect(path: &Path) -> Result<Connection, Box<dyn std::error::Error>> {
    create_private(path)?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(format!("the file system does not support a write-ahead log ({mode})").into());
    }
    // A commit returns when the log is on the disk, not only in the system's cache.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.set_prepared_statement_cache_capacity(16);

    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let application: i32 =
        transaction.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let schema: i64 = transaction.pragma_query_value(None, "schema_version", |row| row.get(0))?;
    match (application, version, schema) {
        (APPLICATION_ID, SCHEMA_VERSION, _) => {}
        (APPLICATION_ID, newer, _) => {
            return Err(
                format!("it has version {newer}, and this program knows {SCHEMA_VERSION}").into(),
            );
        }
        (0, 0, 0) => {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        _ => return Err("it is the database of another program".into()),
    }
    transaction.commit()?;
    Ok(connection)
}

/// For this user alone: it holds requests and responses. The directory is synced, so that the file is there after a
/// loss of power, like the keys in it.
fn create_private(path: &Path) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            #[cfg(unix)]
            fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn intend(connection: &Connection, new: &NewIntent, bounds: Bounds) -> Result<Entry, Error> {
    if let Some(known) = share(connection, &new.intent)? {
        return known;
    }
    let request = &new.request;
    let expires_at = new.created_at.saturating_add(new.lifetime);
    let mut insert = connection.prepare_cached(INTEND).map_err(|e| sqlite(&e))?;
    let stored = insert
        .execute(params![
            new.intent,
            new.key.to_string(),
            new.fingerprint,
            request.method.as_str(),
            request.url.as_str(),
            to_text(&new.headers)?,
            &request.body[..],
            new.created_at.as_micros(),
            expires_at.as_micros(),
            bounds.max_open,
            new.key_form,
        ])
        .map_err(|e| sqlite(&e))?;
    if stored == 0 {
        return Err(Error::Full(bounds.max_open));
    }
    let entry = find(connection, &new.intent)?
        .unwrap_or_else(|| Err(Error::Corrupt("the intent vanished".into())))?;
    Ok(Entry {
        is_sent: false,
        ..entry
    })
}

/// Finds an intent for a process that is about to send it.
fn share(connection: &Connection, intent: &str) -> Result<Option<Result<Entry, Error>>, Error> {
    connection
        .prepare_cached(SHARE)
        .and_then(|mut update| update.execute([intent]))
        .map_err(|e| sqlite(&e))?;
    find(connection, intent)
}

fn find(connection: &Connection, intent: &str) -> Result<Option<Result<Entry, Error>>, Error> {
    let mut statement = connection.prepare_cached(FIND).map_err(|e| sqlite(&e))?;
    let row = statement
        .query_row([intent], |row| {
            let pairs = |text: Option<String>| text.map(|text| from_text(&text));
            let row = (
                pairs(Some(row.get(5)?)),
                pairs(row.get(12)?),
                Row {
                    intent: row.get(0)?,
                    key: row.get(1)?,
                    key_form: row.get(14)?,
                    fingerprint: row.get(2)?,
                    method: row.get(3)?,
                    url: row.get(4)?,
                    headers: Pairs::new(),
                    body: row.get(6)?,
                    expires_at: row.get(8)?,
                    // A call stored it, and then sent it.
                    is_sent: true,
                    is_unknown: row.get(9)?,
                    operation_id: row.get(10)?,
                    status: row.get(11)?,
                    response_headers: None,
                    response_body: row.get(13)?,
                },
            );
            Ok(row)
        })
        .optional()
        .map_err(|e| sqlite(&e))?;
    let Some((headers, response_headers, mut row)) = row else {
        return Ok(None);
    };
    row.headers = headers.transpose()?.unwrap_or_default();
    row.response_headers = response_headers.transpose()?;
    Ok(Some(row.entry()))
}

fn finish(
    connection: &Connection,
    finish: &Finish,
    bounds: Bounds,
) -> Result<Option<StoredResponse>, Error> {
    let response = &finish.response;
    let body = response.body.as_deref();
    connection
        .prepare_cached(FINISH)
        .and_then(|mut update| {
            update.execute(params![
                finish.intent,
                finish.key,
                finish.now.as_micros(),
                response.status,
                to_text(&to_pairs(&response.headers, |_| false)).unwrap_or_default(),
                body,
                finish.unless_shared,
            ])
        })
        .map_err(|e| sqlite(&e))?;
    let before = finish.now.saturating_sub(bounds.retention);
    let known = find(connection, &finish.intent)?.transpose()?;
    let stored = match known.filter(|known| known.key == finish.key) {
        Some(known) => known.response,
        // Forgotten meanwhile.
        None => Some(response.clone()),
    };
    connection
        .prepare_cached(PRUNE)
        .and_then(|mut prune| prune.execute(params![before.as_micros(), PRUNED_AT_ONCE]))
        .map_err(|e| sqlite(&e))?;
    Ok(stored)
}

fn list(connection: &Connection, after: Option<&str>, limit: u32) -> rusqlite::Result<Vec<Open>> {
    let mut statement = connection.prepare_cached(LIST_OPEN)?;
    let rows = statement.query_map(params![after, limit], |row| {
        Ok(Open {
            intent: row.get(0)?,
            key: row.get(1)?,
            method: row.get(2)?,
            url: row.get(3)?,
            created_at: Timestamp::from_micros(row.get(4)?),
            expires_at: Timestamp::from_micros(row.get(5)?),
            is_unknown: row.get(6)?,
            operation_id: row.get(7)?,
        })
    })?;
    rows.collect()
}

impl Backend for Sqlite {
    fn intend(&self, new: NewIntent, bounds: Bounds) -> BoxFuture<'_, Result<Entry, Error>> {
        self.run(move |connection| {
            let entry = intend(connection, &new, bounds)?;
            if entry.fingerprint == new.fingerprint {
                Ok(entry)
            } else {
                Err(Error::Conflict)
            }
        })
    }

    fn find(&self, intent: String) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        self.run(move |connection| find(connection, &intent)?.transpose())
    }

    fn start(
        &self,
        intent: String,
        _: String,
        _: String,
    ) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        self.run(move |connection| share(connection, &intent)?.transpose())
    }

    fn note(&self, intent: String, key: String, note: Note) -> BoxFuture<'_, Result<(), Error>> {
        let expires_at = note.expires_at.map_or(i64::MAX, Timestamp::as_micros);
        self.run(move |connection| {
            connection
                .prepare_cached(NOTE)
                .and_then(|mut update| {
                    update.execute(params![
                        intent,
                        key,
                        expires_at,
                        note.is_unknown,
                        note.operation_id
                    ])
                })
                .map(drop)
                .map_err(|e| sqlite(&e))
        })
    }

    fn finish(
        &self,
        end: Finish,
        bounds: Bounds,
    ) -> BoxFuture<'_, Result<Option<StoredResponse>, Error>> {
        self.run(move |connection| finish(connection, &end, bounds))
    }

    fn list(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<Open>, Error>> {
        self.run(move |connection| {
            list(connection, after.as_deref(), limit).map_err(|e| sqlite(&e))
        })
    }

    fn forget(&self, intent: String) -> BoxFuture<'_, Result<bool, Error>> {
        self.run(move |connection| {
            let removed = connection.execute(FORGET, [&intent]);
            removed.map(|rows| rows > 0).map_err(|e| sqlite(&e))
        })
    }
}

fn sqlite(error: &rusqlite::Error) -> Error {
    Error::Unavailable(error.to_string().into())
}

fn to_text(headers: &Pairs) -> Result<String, Error> {
    serde_json::to_string(headers).map_err(|error| Error::Corrupt(error.to_string().into()))
}

fn from_text(text: &str) -> Result<Pairs, Error> {
    serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_forked_process_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Sqlite::open(&directory.path().join("journal.db")).unwrap();
        assert!(journal.find("a".to_owned()).await.unwrap().is_none());
        // Without a fork, which is unsafe.
        journal.process += 1;
        let refused = journal.find("a".to_owned()).await.unwrap_err();
        assert!(refused.to_string().contains("fork"), "{refused}");
    }
}
