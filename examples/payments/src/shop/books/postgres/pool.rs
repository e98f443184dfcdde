//! A minimal connection pool. A real service uses an existing one: a pooled connection only has to
//! deref to a client.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use semel::postgres::OpenTransaction;
use tokio_postgres::{Client, NoTls};

/// How many idle connections are kept.
const MAX_IDLE: usize = 8;

#[derive(Clone)]
pub(super) struct Pool {
    url: Arc<str>,
    idle: Arc<Mutex<Vec<Arc<Client>>>>,
}

/// A connection that returns to the pool when it is dropped.
pub(super) struct PooledConnection {
    client: Arc<Client>,
    idle: Arc<Mutex<Vec<Arc<Client>>>>,
}

impl Pool {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            idle: Arc::default(),
        }
    }

    /// An idle or new connection.
    pub(super) async fn get(&self) -> Result<PooledConnection, tokio_postgres::Error> {
        let kept = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|client| !client.is_closed());
            idle.pop()
        };
        let client = match kept {
            Some(client) => client,
            None => Arc::new(connect(&self.url).await?),
        };
        Ok(PooledConnection {
            client,
            idle: Arc::clone(&self.idle),
        })
    }

    /// A connection in a new transaction.
    pub(super) async fn begin(
        &self,
    ) -> Result<OpenTransaction<PooledConnection>, tokio_postgres::Error> {
        OpenTransaction::begin(self.get().await?).await
    }
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(%error, "a connection to the books broke");
        }
    });
    Ok(client)
}

impl Deref for PooledConnection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && !self.client.is_closed() {
            idle.push(Arc::clone(&self.client));
        }
    }
}
