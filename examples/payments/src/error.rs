//! Errors at the start of a server. A failure after that is a response to a request.

use std::io;
use std::path::PathBuf;

/// Why the provider, the service or the shop could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ledger's file cannot be opened, read or repaired.
    #[error("the ledger {path} cannot be used: {source}")]
    Ledger {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line of the ledger is not a charge. The provider does not start with an incomplete ledger.
    #[error("line {line} of the ledger {path} is not a charge: {source}")]
    LedgerLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parse error.
        source: serde_json::Error,
    },
    /// The service's database cannot be opened.
    #[error("the database cannot be used: {0}")]
    Database(#[from] rusqlite::Error),
    /// The address of the provider is not a URL.
    #[error("the provider's address {url:?} is not an http:// URL")]
    ProviderUrl {
        /// The configured address.
        url: String,
    },
    /// The HTTP client for the provider cannot be built.
    #[error("the client for the provider cannot be built: {0}")]
    Client(#[from] reqwest::Error),
    /// The secret has no key, so events could not be signed.
    #[error("the webhook secret is not whsec_ and a key in base64")]
    WebhookSecret,
    /// The shop's database cannot be opened.
    #[error("the database cannot be opened: {0}")]
    Open(Box<dyn std::error::Error + Send + Sync>),
    /// A route of the shop cannot be guarded.
    #[cfg(feature = "shop")]
    #[error(transparent)]
    Route(#[from] semel::route::Error),
    /// The broker's settings are invalid.
    #[cfg(feature = "shop")]
    #[error(transparent)]
    Broker(#[from] semel::brokers::Error),
    /// The thread that opens files panicked.
    #[error("opening was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl Error {
    #[cfg(feature = "shop")]
    pub(crate) fn open(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Open(error.into())
    }
}
