//! An operation that stops before its end, and what becomes of its record.

use std::fmt;

use http::Response;
use semel_core::Code;

use crate::outcome::Outcome;

/// Why an operation stopped. Return it from the handler, and the layer writes the record:
///
/// | what happened | the record | what continues |
/// |---|---|---|
/// | nothing outside of this database | `failed_retryable` | the client's retry, after the last phase that is over |
/// | an effect elsewhere, not completed yet | stays `in_progress` until its lease runs out | the client's retry, or the [`ResumeJob`](crate::ResumeJob) |
/// | not known | `unknown` | reconciliation |
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "return it, or the layer takes the operation for completed"]
pub struct Stopped {
    kind: StopKind,
    code: Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopKind {
    /// Nothing happened outside of this database.
    Released,
    /// The next attempt resumes it.
    Suspended,
    /// Not known.
    Unknown,
}

/// In a response's extensions: the record is left in progress, for the next attempt.
#[derive(Clone, Debug)]
pub(crate) struct Suspended(pub(crate) Code);

impl Stopped {
    pub(crate) fn released(code: impl Into<Code>) -> Self {
        Self {
            kind: StopKind::Released,
            code: code.into(),
        }
    }

    pub(crate) fn suspended(code: impl Into<Code>) -> Self {
        Self {
            kind: StopKind::Suspended,
            code: code.into(),
        }
    }

    pub(crate) fn unknown(code: impl Into<Code>) -> Self {
        Self {
            kind: StopKind::Unknown,
            code: code.into(),
        }
    }

    /// The reason, as a stable code.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The response that carries it to the layer.
    pub fn into_response<B: Default>(self) -> Response<B> {
        let Self { kind, code } = self;
        match kind {
            StopKind::Released => Outcome::not_executed(code).into_response(),
            StopKind::Unknown => Outcome::unknown(code).into_response(),
            StopKind::Suspended => {
                // Without a layer there is no attempt to resume it, and it may have happened.
                let mut response = Outcome::unknown(code.clone()).into_response();
                response.extensions_mut().insert(Suspended(code));
                response
            }
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = match self.kind {
            StopKind::Released => {
                "the operation stopped before any effect outside of this database"
            }
            StopKind::Suspended => "the operation stopped and will be resumed",
            StopKind::Unknown => "the operation stopped, and its effects are not known",
        };
        write!(f, "{summary}: {}", self.code)
    }
}

impl std::error::Error for Stopped {}
