//! Opens the store of a configuration.

use std::path::Path;

use semel_core::Memory;
use semel_core::store::AnyStore;
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;

use super::Error;
#[cfg(feature = "redis")]
use crate::config::CacheUrl;
use crate::config::{Config, StoreUrl};

/// Opens a store. Its type is erased: the rest of the process is compiled once, not once for each
/// kind of store.
///
/// # Errors
/// The store cannot be opened.
pub async fn open_store(store: &StoreUrl) -> Result<AnyStore, Error> {
    Ok(match store {
        StoreUrl::Sqlite(path) => {
            warn_if_readable(path);
            AnyStore::new(Sqlite::open(path).await?)
        }
        StoreUrl::Postgres(url) => AnyStore::new(Postgres::open(url.expose()).await?),
        StoreUrl::Memory => {
            tracing::warn!("the store is `memory:`: all records are lost when the process ends");
            AnyStore::new(Memory::default())
        }
        StoreUrl::Dynamodb(url) => open_dynamodb(url).await?,
    })
}

#[cfg(feature = "dynamodb")]
async fn open_dynamodb(url: &str) -> Result<AnyStore, Error> {
    Ok(AnyStore::new(semel_dynamodb::Dynamo::open(url).await?))
}

#[cfg(not(feature = "dynamodb"))]
#[allow(clippy::unused_async, reason = "it waits where the feature is there")]
async fn open_dynamodb(_: &str) -> Result<AnyStore, Error> {
    Err(Error::NotBuilt {
        key: "store",
        feature: "dynamodb",
    })
}

/// A file that this process creates is private; one that exists may not be.
fn warn_if_readable(path: &Path) {
    #[cfg(unix)]
    if let Ok(found) = std::fs::metadata(path) {
        use std::os::unix::fs::MetadataExt as _;
        if found.mode() & 0o077 != 0 {
            let path = path.display();
            tracing::warn!(
                "other users may open {path}, which holds keys and responses: `chmod 600 {path}*`"
            );
        }
    }
}

/// The store of a configuration.
pub(super) struct Stores {
    pub(super) store: AnyStore,
    /// The same without its cache: events are neither encrypted nor cached.
    pub(super) outbox: AnyStore,
    /// The same, if it is PostgreSQL.
    pub(super) postgres: Option<Postgres>,
}

pub(super) async fn open_stores(config: &Config) -> Result<Stores, Error> {
    let (outbox, postgres) = match &config.store {
        StoreUrl::Postgres(url) => {
            let postgres = Postgres::open(url.expose()).await?;
            (AnyStore::new(postgres.clone()), Some(postgres))
        }
        StoreUrl::Sqlite(_) | StoreUrl::Memory | StoreUrl::Dynamodb(_) => {
            (open_store(&config.store).await?, None)
        }
    };
    #[cfg(feature = "redis")]
    if let Some(CacheUrl(cache)) = &config.cache {
        let cached = semel_redis::Options::new(cache.expose());
        let cached = cached.open(outbox.clone()).await?;
        return Ok(Stores {
            store: AnyStore::new(cached),
            outbox,
            postgres,
        });
    }
    #[cfg(not(feature = "redis"))]
    if config.cache.is_some() {
        return Err(Error::NotBuilt {
            key: "cache",
            feature: "redis",
        });
    }
    Ok(Stores {
        store: outbox.clone(),
        outbox,
        postgres,
    })
}
