//! Time without waiting, and the journals that a test runs over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_client::{BoxFuture, Environment, Journal, Received, Request, Transport, TransportError};
use semel_core::Timestamp;
use semel_testkit::database::Database;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

/// A clock that only sleeping and tests move. Starts at a whole second, because HTTP dates have no fractions.
#[derive(Debug)]
pub(crate) struct Clock(AtomicI64);

impl Default for Clock {
    fn default() -> Self {
        Self(AtomicI64::new(1_767_225_600_000_000))
    }
}

impl Clock {
    pub(crate) fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap();
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Environment for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()> {
        self.advance(delay);
        Box::pin(async {})
    }

    fn random(&self) -> f64 {
        1.0
    }
}

/// Where a journal is kept between restarts.
pub(crate) enum Place {
    Memory(Journal),
    Sqlite(TempDir),
    Postgres(Database),
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::Memory(Journal::memory())
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    /// `None` without a server.
    pub(crate) async fn postgres() -> Option<Self> {
        let database = Database::new().await?;
        let client = database.client().await;
        client
            .batch_execute(semel_client::journal::postgres::SCHEMA)
            .await
            .unwrap();
        Some(Self::Postgres(database))
    }

    /// The journal as a new process finds it.
    pub(crate) fn open(&self) -> Journal {
        match self {
            Self::Memory(journal) => journal.clone(),
            Self::Sqlite(directory) => {
                Journal::sqlite(directory.path().join("journal.db")).unwrap()
            }
            Self::Postgres(database) => Journal::postgres(database.url.parse().unwrap(), NoTls),
        }
    }

    /// Removes everything, which is quicker than a new database.
    pub(crate) async fn clear(&mut self) {
        match self {
            Self::Memory(_) => *self = Self::memory(),
            Self::Sqlite(_) => *self = Self::sqlite(),
            Self::Postgres(database) => {
                let client = database.client().await;
                client
                    .batch_execute("TRUNCATE semel.intents RESTART IDENTITY")
                    .await
                    .unwrap();
            }
        }
    }
}

/// What a transport under test was asked to send.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) key: Option<String>,
    pub(crate) headers: http::HeaderMap,
}

/// A transport that responds from a list, and repeats its last response.
#[derive(Clone, Default)]
pub(crate) struct Scripted {
    responses: Arc<Mutex<VecDeque<http::Response<Bytes>>>>,
    pub(crate) sent: Arc<Mutex<Vec<Sent>>>,
    /// Responses wait for it.
    pub(crate) gate: Option<Arc<Semaphore>>,
}

impl Scripted {
    pub(crate) fn new(responses: impl IntoIterator<Item = http::Response<Bytes>>) -> Self {
        Self {
            responses: Arc::new(Mutex::new(responses.into_iter().collect())),
            ..Self::default()
        }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter_map(|sent| sent.key.clone()).collect()
    }
}

impl Transport for Scripted {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        let key = request.headers().get("idempotency-key");
        self.sent.lock().unwrap().push(Sent {
            key: key.map(|key| key.to_str().unwrap().to_owned()),
            headers: request.headers().clone(),
        });
        Box::pin(async move {
            if let Some(gate) = &self.gate {
                gate.acquire().await.unwrap().forget();
            }
            let mut responses = self.responses.lock().unwrap();
            if responses.len() > 1 {
                return Ok(responses.pop_front().unwrap());
            }
            let last = responses.front();
            last.cloned()
                .ok_or_else(|| TransportError::Failed("no response".to_owned()))
        })
    }
}

pub(crate) fn response(status: u16, body: &'static str) -> http::Response<Bytes> {
    let mut response = http::Response::new(Bytes::from_static(body.as_bytes()));
    *response.status_mut() = status.try_into().unwrap();
    response
}

pub(crate) fn payment() -> Request {
    Request::post("http://api.example/payments")
        .unwrap()
        .json("{\"amount\":1}")
}
