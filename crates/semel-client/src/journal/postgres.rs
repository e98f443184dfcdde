//! The journal in the application's PostgreSQL.
//!
//! An application stores the intent in the transaction of the row that caused it, in any language:
//!
//! ```sql
//! INSERT INTO invoices (id, total) VALUES (7781, 1000);
//! SELECT semel.intend('invoice-7781', 'POST', 'https://api.example/payments',
//!                     '{"content-type": "application/json"}', '{"amount":1000}');
//! ```
//!
//! After the commit, [`Client::finish`](crate::Client::finish) or [`Client::resume`](crate::Client::resume) sends it,
//! in this process or in another one. If the transaction is rolled back, nothing is sent.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use semel_core::Timestamp;
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{Json, ToSql};
use tokio_postgres::{Client, Config, GenericClient, Socket};

use super::{Backend, Bounds, Entry, Error, Finish, NewIntent, Open, Row, StoredResponse};
use crate::BoxFuture;
use crate::attempts::Note;
use crate::builder::SECRET_HEADERS;
use crate::request::Request;
use crate::stored_headers::{Pairs, to_pairs};

/// Creates the tables and functions in the schema `semel`, and is safe to run again. For PostgreSQL 13 or newer.
pub const SCHEMA: &str = include_str!("../../migrations/postgres.sql");

const INTEND: &str = include_str!("../../queries/postgres/intend.sql");
const FIND: &str = include_str!("../../queries/postgres/find.sql");
const START: &str = include_str!("../../queries/postgres/start.sql");
const NOTE: &str = include_str!("../../queries/postgres/note.sql");
const FINISH: &str = include_str!("../../queries/postgres/finish.sql");
const LIST_OPEN: &str = include_str!("../../queries/postgres/list_open.sql");
const FORGET: &str = include_str!("../../queries/postgres/forget.sql");

/// What `semel.intend` raises where the intent is known with another request.
const CONFLICT: &str = "SEM03";
/// What it raises where too many are open.
const FULL: &str = "SEM04";

type Connect = dyn Fn() -> BoxFuture<'static, Result<Client, tokio_postgres::Error>> + Send + Sync;

pub(super) struct Postgres {
    connect: Box<Connect>,
    client: Mutex<Option<Arc<Client>>>,
}

/// Stores an intent in a transaction of the application. The key is random, and [`Client::finish`](crate::Client::finish)
/// sends the request with it after the commit. Credentials in its headers, by the names in the default
/// [`Options`](crate::Options), are not stored: the client has them.
///
/// # Errors
/// What PostgreSQL says; `SEM03` where the intent is known with another request, and `SEM05` where the URL has credentials or the headers
/// have a key.
///
/// # Cancellation
/// Dropping the future leaves the transaction in an unknown state: roll it back.
pub async fn intend(
    transaction: &(impl GenericClient + Sync),
    intent: &str,
    request: &Request,
    lifetime: Duration,
) -> Result<(), tokio_postgres::Error> {
    let (method, url) = (request.method.as_str(), request.url.as_str());
    let secret = |name: &HeaderName| SECRET_HEADERS.contains(&name.as_str());
    let headers = Json(to_pairs(&request.headers, secret));
    let (body, seconds) = (&request.body[..], lifetime.as_secs_f64());
    let max_open = i64::from(super::DEFAULT_MAX_OPEN);
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &intent,
        &method,
        &url,
        &headers,
        &body,
        &seconds,
        &max_open,
        &None::<i64>,
        &false,
        &None::<&str>,
    ];
    transaction.query(INTEND, &parameters).await.map(drop)
}

impl Postgres {
    pub(super) fn new<T>(config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let connect = move || -> BoxFuture<'static, _> {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, driver) = config.connect(tls).await?;
                tokio::spawn(driver);
                Ok(client)
            })
        };
        Self {
            connect: Box::new(connect),
            client: Mutex::new(None),
        }
    }

    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut shared = self.client.lock().await;
        if let Some(client) = shared.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new((self.connect)().await.map_err(|error| failed(&error))?);
        *shared = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn drop_client(&self, lost: &Arc<Client>) {
        let mut shared = self.client.lock().await;
        if shared
            .as_ref()
            .is_some_and(|client| Arc::ptr_eq(client, lost))
        {
            *shared = None;
        }
    }

    /// Each statement may be repeated, so one on a connection that turns out to be closed is.
    async fn query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let client = self.client().await?;
        match client.query(sql, parameters).await {
            Err(error) if is_lost(&error) => {
                self.drop_client(&client).await;
                let client = self.client().await?;
                client.query(sql, parameters).await
            }
            answered => answered,
        }
        .map_err(|error| failed(&error))
    }
}

impl Backend for Postgres {
    fn intend(&self, new: NewIntent, bounds: Bounds) -> BoxFuture<'_, Result<Entry, Error>> {
        Box::pin(async move {
            let request = &new.request;
            let (method, url) = (request.method.as_str(), request.url.as_str());
            let (headers, body) = (Json(&new.headers), &request.body[..]);
            let seconds = new.lifetime.as_secs_f64();
            let (max_open, now) = (i64::from(bounds.max_open), new.created_at.as_micros());
            let parameters: [&(dyn ToSql + Sync); 10] = [
                &new.intent,
                &method,
                &url,
                &headers,
                &body,
                &seconds,
                &max_open,
                &now,
                &true,
                &new.key_form,
            ];
            let answered = self.query(INTEND, &parameters).await;
            let rows = match answered {
                Err(Error::Full(_)) => return Err(Error::Full(bounds.max_open)),
                answered => answered?,
            };
            entry(&rows)?.ok_or_else(|| Error::Corrupt("the intent vanished".into()))
        })
    }

    fn find(&self, intent: String) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        Box::pin(async move { entry(&self.query(FIND, &[&intent]).await?) })
    }

    fn start(
        &self,
        intent: String,
        key: String,
        key_form: String,
    ) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        Box::pin(async move { entry(&self.query(START, &[&intent, &key, &key_form]).await?) })
    }

    fn note(&self, intent: String, key: String, note: Note) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let expires_at = note.expires_at.map_or(i64::MAX, Timestamp::as_micros);
            let parameters: [&(dyn ToSql + Sync); 5] = [
                &intent,
                &key,
                &expires_at,
                &note.is_unknown,
                &note.operation_id,
            ];
            self.query(NOTE, &parameters).await.map(drop)
        })
    }

    fn finish(
        &self,
        finish: Finish,
        bounds: Bounds,
    ) -> BoxFuture<'_, Result<Option<StoredResponse>, Error>> {
        Box::pin(async move {
            let response = finish.response;
            let status = i32::from(response.status);
            let headers = Json(to_pairs(&response.headers, |_| false));
            let (body, now) = (response.body.as_deref(), finish.now.as_micros());
            let before = finish.now.saturating_sub(bounds.retention).as_micros();
            let parameters: [&(dyn ToSql + Sync); 8] = [
                &finish.intent,
                &finish.key,
                &status,
                &headers,
                &body,
                &before,
                &now,
                &finish.unless_shared,
            ];
            let rows = self.query(FINISH, &parameters).await?;
            // Without a row it was forgotten meanwhile.
            Ok(entry(&rows)?.map_or(Some(response), |entry| entry.response))
        })
    }

    fn list(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<Open>, Error>> {
        Box::pin(async move {
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            let rows = self.query(LIST_OPEN, &[&after, &limit]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Open {
                        intent: row.try_get(0)?,
                        key: row.try_get(1)?,
                        method: row.try_get(2)?,
                        url: row.try_get(3)?,
                        created_at: Timestamp::from_micros(row.try_get(4)?),
                        expires_at: Timestamp::from_micros(row.try_get(5)?),
                        is_unknown: row.try_get(6)?,
                        operation_id: row.try_get(7)?,
                    })
                })
                .collect::<Result<_, _>>()
                .map_err(|error: tokio_postgres::Error| failed(&error))
        })
    }

    fn forget(&self, intent: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let rows = self.query(FORGET, &[&intent]).await?;
            Ok(rows.first().is_some_and(|row| row.get(0)))
        })
    }
}

/// `None`: no row, or a function that returned no row, which is one of nulls.
fn entry(rows: &[tokio_postgres::Row]) -> Result<Option<Entry>, Error> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let known: Option<String> = row.try_get("intent").map_err(|error| failed(&error))?;
    let Some(intent) = known else {
        return Ok(None);
    };
    read(row, intent)
        .map_err(|error| failed(&error))?
        .entry()
        .map(Some)
}

fn read(row: &tokio_postgres::Row, intent: String) -> Result<Row, tokio_postgres::Error> {
    // A request without its headers would be another one: what is no list of pairs is an error.
    let headers: Json<Pairs> = row.try_get("headers")?;
    let response_headers: Option<Json<Pairs>> = row.try_get("response_headers")?;
    let pairs = |Json(pairs)| pairs;
    Ok(Row {
        intent,
        key: row.try_get("key")?,
        key_form: row.try_get("key_form")?,
        fingerprint: row.try_get("fingerprint")?,
        method: row.try_get("method")?,
        url: row.try_get("url")?,
        headers: pairs(headers),
        body: row.try_get("body")?,
        expires_at: row.try_get("expires_at")?,
        is_sent: row.try_get("is_sent")?,
        is_unknown: row.try_get("is_unknown")?,
        operation_id: row.try_get("operation_id")?,
        status: row.try_get("status")?,
        response_headers: response_headers.map(pairs),
        response_body: row.try_get("response_body")?,
    })
}

/// Whether the connection ended, by itself or because the server shuts down.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.is_closed()
        || error
            .code()
            .is_none_or(|code| code.code().starts_with("57P"))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    match error.code().map(SqlState::code) {
        Some(CONFLICT) => Error::Conflict,
        Some(FULL) => Error::Full(0),
        Some(_) | None => {
            let reason = error
                .as_db_error()
                .map_or_else(|| error.to_string(), ToString::to_string);
            Error::Unavailable(reason.into())
        }
    }
}
