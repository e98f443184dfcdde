//! An operation that stops before its end, and what becomes of it.

use std::fmt;

use http::Response;
use semel_core::Code;

use crate::outcome::Outcome;

/// Why an operation does not go on. Return it from the handler: the layer knows what to do.
///
/// | what happened | the record | who goes on |
/// |---|---|---|
/// | nothing outside of this database | `failed_retryable` | the client's retry, at the last phase that is over |
/// | a foreign effect that has not surfaced yet | stays `in_progress` until its lease is over | the next retry, or the completer |
/// | nobody knows | `unknown` | whoever reconciles |
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "return it, or the operation ends as if nothing were wrong"]
pub struct Stopped {
    how: How,
    code: Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Nothing happened outside of this database.
    Released,
    /// It is left to whoever resumes it.
    Suspended,
    /// Nobody knows.
    Unknown,
}

/// In a response's extensions: the record is left as it is, for somebody who resumes it.
#[derive(Clone, Debug)]
pub(crate) struct Suspended(pub(crate) Code);

impl Stopped {
    pub(crate) fn released(code: impl Into<Code>) -> Self {
        Self {
            how: How::Released,
            code: code.into(),
        }
    }

    pub(crate) fn suspended(code: impl Into<Code>) -> Self {
        Self {
            how: How::Suspended,
            code: code.into(),
        }
    }

    pub(crate) fn unknown(code: impl Into<Code>) -> Self {
        Self {
            how: How::Unknown,
            code: code.into(),
        }
    }

    /// The reason, for programs.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The response that says so to the layer.
    pub fn into_response<B: Default>(self) -> Response<B> {
        let Self { how, code } = self;
        match how {
            How::Released => Outcome::not_executed(code).into_response(),
            How::Unknown => Outcome::unknown(code).into_response(),
            How::Suspended => {
                // Without a layer nobody would go on, and it may have happened.
                let mut response = Outcome::unknown(code.clone()).into_response();
                response.extensions_mut().insert(Suspended(code));
                response
            }
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.how {
            How::Released => "the operation stopped, and nothing happened outside",
            How::Suspended => "the operation stopped, and will be resumed",
            How::Unknown => "the operation stopped, and nobody knows what happened outside",
        };
        write!(f, "{what}: {}", self.code)
    }
}

impl std::error::Error for Stopped {}
