use std::fmt;

/// Any error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How far a request got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Not a byte of it was written: the application cannot have seen it.
    NothingSent,
    /// At least one byte was handed to the kernel: the application may have acted on it.
    Sent,
}

/// An exchange that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// How far the request got, by the count of bytes written for it.
    pub stage: Stage,
    /// What happened.
    pub source: BoxError,
}

impl Error {
    pub(crate) fn nothing_sent(source: impl Into<BoxError>) -> Self {
        Self {
            stage: Stage::NothingSent,
            source: source.into(),
        }
    }

    pub(crate) fn sent(source: impl Into<BoxError>) -> Self {
        Self {
            stage: Stage::Sent,
            source: source.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            Stage::NothingSent => "the upstream was not reached; nothing was sent",
            Stage::Sent => "the exchange with the upstream broke off; it may have acted",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// Why an upstream address cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// TLS without anybody to believe.
    #[error("an https:// upstream needs certificates to believe")]
    Untrusting,
    /// Neither `http` nor `https`.
    #[error("the upstream must begin with http:// or https://")]
    Scheme,
    /// Nobody to connect to.
    #[error("the upstream names no valid host")]
    Host,
    /// A query would be lost or doubled.
    #[error("the upstream must not contain a query")]
    Query,
}
