use std::fmt;

/// Any error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How much of a request was written.
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
            Stage::NothingSent => "cannot reach the upstream; nothing was sent",
            Stage::Sent => "the connection to the upstream failed after the request was sent; the upstream may have executed it",
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
    /// TLS without root certificates.
    #[error("an https:// upstream needs root certificates to verify it")]
    NoRootCertificates,
    /// Neither `http` nor `https`.
    #[error("the upstream must begin with http:// or https://")]
    Scheme,
    /// There is no host to connect to.
    #[error("the upstream has no valid host")]
    Host,
    /// A query in the base would be dropped or duplicated.
    #[error("the upstream must not contain a query")]
    Query,
}
