use std::io;

use semel_http::route;

use crate::server::TlsError;
use crate::upstream::ConfigError;
use crate::{reconcile, telemetry};

/// Why the gateway could not start or continue. None of these errors executed a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is in use, or not an address of this host.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The store's file cannot be opened.
    #[error(transparent)]
    Sqlite(#[from] semel_sqlite::Error),
    /// The store's database cannot be used.
    #[error(transparent)]
    Postgres(#[from] semel_postgres::Error),
    /// The store's table cannot be used.
    #[cfg(feature = "dynamodb")]
    #[error(transparent)]
    Dynamodb(#[from] semel_dynamodb::Error),
    /// The cache's address cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] semel_redis::Error),
    /// The configuration asks for something that this binary was built without.
    #[error(
        "`{key}` needs a feature that this binary was built without: rebuild it with `--features {feature}`"
    )]
    NotBuilt {
        /// The configuration's key.
        key: &'static str,
        /// The cargo feature.
        feature: &'static str,
    },
    /// The routes contradict each other.
    #[error(transparent)]
    Route(#[from] route::Error),
    /// The store holds records that this configuration would not find.
    #[error(transparent)]
    Contract(#[from] semel_http::ContractError),
    /// A `[route.reconcile]` cannot be used as configured.
    #[error(transparent)]
    Reconcile(#[from] reconcile::Error),
    /// The `[outbox]` destination cannot be used.
    #[error("[outbox]: {0}")]
    Outbox(#[from] semel_brokers::Error),
    /// A gateway without an upstream.
    #[error("no upstream: set --upstream URL or `upstream` in the configuration")]
    NoUpstream,
    /// The upstream's address cannot be used.
    #[error("cannot use the upstream {address}: {source}")]
    Upstream {
        /// As configured.
        address: String,
        /// Why not.
        source: ConfigError,
    },
    /// The address of another region cannot be used.
    #[error("cannot use the address of region {name:?}: {source}")]
    Region {
        /// The region.
        name: String,
        /// Why not.
        source: ConfigError,
    },
    /// The list of regions contradicts what the store's processes use.
    #[error("[region]: {0}")]
    Regions(String),
    /// There are no root certificates to verify the upstream's certificate with.
    #[error("cannot verify the certificates of https servers: {0}")]
    RootCertificates(String),
    /// The certificate or its key cannot be used.
    #[error("cannot use the certificate in [tls]: {0}")]
    Tls(#[from] TlsError),
    /// A file that the configuration names cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The metrics cannot be started.
    #[error("cannot start the metrics: {0}")]
    Metrics(#[from] telemetry::Error),
    /// The operating system refused a thread, a signal or a socket.
    #[error("the operating system refused a resource: {0}")]
    System(#[from] io::Error),
}
