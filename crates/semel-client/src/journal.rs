//! Where intents, keys and final responses are.
//!
//! A journal is shared by any number of processes. Two that begin with one intent at once get one key, so the server
//! recognises their requests as one; the first final response is stored, and both return it.
//!
//! Finished intents are removed after [`DEFAULT_RETENTION`], unless the journal says otherwise. A call with a removed intent
//! is a new operation, so retention is how long a caller may repeat itself. Open intents stay until they are finished or
//! [forgotten](Journal::forget), and at most [`DEFAULT_MAX_OPEN`] may be open.

mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use semel_core::Timestamp;
use uuid::Uuid;

use crate::BoxFuture;
use crate::attempts::Note;
use crate::request::Request;
use crate::stored_headers::Pairs;

/// How long finished intents stay: a quarter, longer than any caller of ours repeats itself.
pub const DEFAULT_RETENTION: Duration = Duration::from_hours(90 * 24);

/// How many intents may be open: many times what one client has in flight, and little for a database.
pub const DEFAULT_MAX_OPEN: u32 = 50_000;

/// How many finished intents are removed with each one that finishes: more than one, so that it catches up.
const PRUNED_AT_ONCE: u32 = 10;

/// How many open intents are read at once.
const PAGE: u32 = 500;

/// What a journal failed at.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The intent is known with another request.
    #[error("the intent is known with another request")]
    Conflict,
    /// Too many intents are open.
    #[error("{0} intents are open, and no more may be: finish or forget some")]
    Full(u32),
    /// The file or database cannot be used.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// It holds what this version cannot read.
    #[error("the journal cannot be read: {0}")]
    Corrupt(Arc<str>),
}

/// An intent that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Open {
    /// Its name.
    pub intent: String,
    /// Its key, without quotes.
    pub key: String,
    /// The method of its request.
    pub method: String,
    /// The URL of its request.
    pub url: String,
    /// When it was stored.
    pub created_at: Timestamp,
    /// Until when the server knows the key.
    pub expires_at: Timestamp,
    /// Whether the server said that the outcome is unknown.
    pub is_unknown: bool,
    /// Of which operation.
    pub operation_id: Option<String>,
}

/// All that is known of an intent.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) intent: String,
    pub(crate) key: String,
    /// The header with the key, as it was first sent: in another form it would be another key. `None`: it was not sent.
    pub(crate) key_form: Option<String>,
    pub(crate) fingerprint: [u8; 32],
    /// `None` once it is finished.
    pub(crate) request: Option<Request>,
    pub(crate) expires_at: Timestamp,
    /// Whether it may have been sent before this call: by another one, or by a process that died.
    pub(crate) is_sent: bool,
    pub(crate) note: Note,
    pub(crate) response: Option<StoredResponse>,
}

#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// `None`: over the bound.
    pub(crate) body: Option<Bytes>,
}

/// What is stored before the first request.
#[derive(Clone, Debug)]
pub(crate) struct NewIntent {
    pub(crate) intent: String,
    pub(crate) key: Uuid,
    pub(crate) key_form: String,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) request: Request,
    /// Those of the request without credentials.
    pub(crate) headers: Pairs,
    pub(crate) created_at: Timestamp,
    pub(crate) lifetime: Duration,
}

/// The end of an intent.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub(crate) intent: String,
    pub(crate) key: String,
    pub(crate) response: StoredResponse,
    /// Whether the response ends the intent only if no other process may have sent it before: it says nothing of their requests.
    pub(crate) unless_shared: bool,
    pub(crate) now: Timestamp,
}

/// What bounds a journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) retention: Duration,
    pub(crate) max_open: u32,
}

/// What each journal does. A call returns when it is durable.
pub(crate) trait Backend: Send + Sync {
    /// Stores an intent, or finds it as it is stored. [`Error::Conflict`] if it is known with another fingerprint.
    fn intend(&self, new: NewIntent, bounds: Bounds) -> BoxFuture<'_, Result<Entry, Error>>;
    fn find(&self, intent: String) -> BoxFuture<'_, Result<Option<Entry>, Error>>;
    /// The entry of an intent that is about to be sent without a call. It is marked as shared, or, where an application can store
    /// intents that it does not send, as sent, with this form of the key.
    fn start(
        &self,
        intent: String,
        key: String,
        key_form: String,
    ) -> BoxFuture<'_, Result<Option<Entry>, Error>>;
    /// Expiry only becomes earlier, and an unknown outcome stays unknown.
    fn note(&self, intent: String, key: String, note: Note) -> BoxFuture<'_, Result<(), Error>>;
    /// Stores a response unless there is one, removes old ones, and returns what is stored. `None`: `unless_shared` kept it open.
    fn finish(
        &self,
        finish: Finish,
        bounds: Bounds,
    ) -> BoxFuture<'_, Result<Option<StoredResponse>, Error>>;
    fn list(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<Open>, Error>>;
    fn forget(&self, intent: String) -> BoxFuture<'_, Result<bool, Error>>;
}

/// A journal. Clones share it.
#[derive(Clone)]
pub struct Journal {
    backend: Arc<dyn Backend>,
    bounds: Bounds,
}

impl Journal {
    fn new(backend: impl Backend + 'static) -> Self {
        Self {
            backend: Arc::new(backend),
            bounds: Bounds {
                retention: DEFAULT_RETENTION,
                max_open: DEFAULT_MAX_OPEN,
            },
        }
    }

    /// In memory: everything but crash safety.
    pub fn memory() -> Self {
        Self::new(memory::Memory::default())
    }

    /// In a local SQLite file, which is created if it is missing, readable by its owner alone.
    ///
    /// # Errors
    /// Where the file cannot be opened, or is not a journal.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        sqlite::Sqlite::open(path.as_ref()).map(Self::new)
    }

    /// In the application's PostgreSQL, where [`postgres::SCHEMA`] is installed. Connects when it is first used.
    #[cfg(feature = "postgres")]
    pub fn postgres<T>(config: tokio_postgres::Config, tls: T) -> Self
    where
        T: tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>
            + Clone
            + Send
            + Sync
            + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as tokio_postgres::tls::TlsConnect<tokio_postgres::Socket>>::Future: Send,
    {
        Self::new(postgres::Postgres::new(config, tls))
    }

    /// Sets how long finished intents stay, instead of [`DEFAULT_RETENTION`].
    pub fn retention(mut self, retention: Duration) -> Self {
        self.bounds.retention = retention;
        self
    }

    /// Sets how many intents may be open, instead of [`DEFAULT_MAX_OPEN`].
    pub fn max_open(mut self, max_open: u32) -> Self {
        self.bounds.max_open = max_open;
        self
    }

    /// The intents that are not finished, in the order in which they were stored.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn list(&self) -> Result<Vec<Open>, Error> {
        let mut all: Vec<Open> = Vec::new();
        loop {
            let after = all.last().map(|open| open.intent.clone());
            let page = self.backend.list(after, PAGE).await?;
            let is_last = page.len() < PAGE as usize;
            all.extend(page);
            // The last one may have been forgotten meanwhile, and then a page begins anew.
            if is_last || all.len() > self.bounds.max_open as usize {
                return Ok(all);
            }
        }
    }

    /// Removes an intent, open or finished; `false` if it is not known. Its next call is a new operation with a new key, so
    /// this may make happen again what has happened. For a person who has looked the outcome up.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future may leave the intent removed.
    pub async fn forget(&self, intent: &str) -> Result<bool, Error> {
        self.backend.forget(intent.to_owned()).await
    }

    pub(crate) async fn intend(&self, new: NewIntent) -> Result<Entry, crate::Error> {
        self.backend
            .intend(new, self.bounds)
            .await
            .map_err(|error| match error {
                Error::Conflict => crate::Error::IntentConflict,
                Error::Full(_) | Error::Unavailable(_) | Error::Corrupt(_) => error.into(),
            })
    }

    pub(crate) async fn find(&self, intent: &str) -> Result<Option<Entry>, Error> {
        self.backend.find(intent.to_owned()).await
    }

    pub(crate) async fn start(
        &self,
        entry: &Entry,
        key_form: String,
    ) -> Result<Option<Entry>, Error> {
        self.backend
            .start(entry.intent.clone(), entry.key.clone(), key_form)
            .await
    }

    pub(crate) async fn note(&self, intent: &str, key: &str, note: Note) -> Result<(), Error> {
        self.backend
            .note(intent.to_owned(), key.to_owned(), note)
            .await
    }

    pub(crate) async fn finish(&self, finish: Finish) -> Result<Option<StoredResponse>, Error> {
        self.backend.finish(finish, self.bounds).await
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

/// The columns of a stored entry, as both databases have them.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
struct Row {
    intent: String,
    key: String,
    key_form: Option<String>,
    fingerprint: Vec<u8>,
    method: String,
    url: String,
    headers: Pairs,
    body: Option<Vec<u8>>,
    expires_at: i64,
    is_sent: bool,
    is_unknown: bool,
    operation_id: Option<String>,
    status: Option<i32>,
    response_headers: Option<Pairs>,
    response_body: Option<Vec<u8>>,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Row {
    fn entry(self) -> Result<Entry, Error> {
        let corrupt = |what: &str| Error::Corrupt(format!("{what} of {}", self.intent).into());
        let headers = crate::stored_headers::from_pairs(&self.headers);
        let request = match self.body {
            Some(body) => Some(Request {
                method: self.method.parse().map_err(|_| corrupt("the method"))?,
                url: self.url.parse().map_err(|_| corrupt("the URL"))?,
                headers: headers.ok_or_else(|| corrupt("the headers"))?,
                body: body.into(),
            }),
            None => None,
        };
        let response = match (self.status, self.response_headers) {
            (Some(status), Some(headers)) => Some(StoredResponse {
                status: u16::try_from(status).map_err(|_| corrupt("the status"))?,
                headers: crate::stored_headers::from_pairs(&headers)
                    .ok_or_else(|| corrupt("the response's headers"))?,
                body: self.response_body.map(Bytes::from),
            }),
            (None | Some(_), None) | (None, Some(_)) => None,
        };
        Ok(Entry {
            fingerprint: self.fingerprint.try_into().map_err(|_| {
                Error::Corrupt(format!("the fingerprint of {}", self.intent).into())
            })?,
            intent: self.intent,
            key: self.key,
            key_form: self.key_form,
            request,
            expires_at: Timestamp::from_micros(self.expires_at),
            is_sent: self.is_sent,
            note: Note {
                expires_at: None,
                is_unknown: self.is_unknown,
                operation_id: self.operation_id,
            },
            response,
        })
    }
}
