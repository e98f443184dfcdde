//! A few connections, kept for the next one. A service of its own size would take a pool off the
//! shelf: whatever it lends derefs to a client, and that is all that is asked of it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use semel::Begun;
use tokio_postgres::{Client, NoTls};

/// Most connections that are kept.
const MAX_IDLE: usize = 8;

#[derive(Clone)]
pub(super) struct Pool {
    url: Arc<str>,
    idle: Arc<Mutex<Vec<Arc<Client>>>>,
}

/// A connection that goes back when it is dropped. In a transaction it is dropped after that is
/// over.
pub(super) struct Lent {
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

    /// A connection, kept or new.
    pub(super) async fn lend(&self) -> Result<Lent, tokio_postgres::Error> {
        let kept = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|client| !client.is_closed());
            idle.pop()
        };
        let client = match kept {
            Some(client) => client,
            None => Arc::new(connect(&self.url).await?),
        };
        Ok(Lent {
            client,
            idle: Arc::clone(&self.idle),
        })
    }

    /// A connection in a transaction.
    pub(super) async fn begin(&self) -> Result<Begun<Lent>, tokio_postgres::Error> {
        Begun::begin(self.lend().await?).await
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

impl Deref for Lent {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && !self.client.is_closed() {
            idle.push(Arc::clone(&self.client));
        }
    }
}
