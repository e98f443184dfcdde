//! An operation under a key, and variants of its request.

use uuid::Uuid;

use crate::target::{Case, Dialect};
use crate::text::fill;

/// One logical operation under one key.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) reference: String,
    /// The key as a counter knows it; `None` where no such key is sent.
    pub(crate) key: Option<String>,
    /// The values of the key's header lines, as they are sent.
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Operation {
    /// A new operation under a new key.
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self::under(dialect, Uuid::new_v4().to_string())
    }

    /// A new operation under this key.
    pub(crate) fn under(dialect: Dialect, key: String) -> Self {
        let lines = vec![line(dialect, &key)];
        Self {
            key: Some(key),
            ..Self::with_lines(lines)
        }
    }

    /// A new operation with these raw header lines, which a counter cannot look up.
    pub(crate) fn with_lines(lines: Vec<Vec<u8>>) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            key: None,
            lines,
        }
    }

    /// The same key for another operation.
    pub(crate) fn another(&self) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            ..self.clone()
        }
    }

    /// Fills the placeholders of a text. Without a key, the reference is as unique.
    pub(crate) fn fill(&self, template: &str) -> String {
        let key = self.key.as_ref().unwrap_or(&self.reference);
        fill(template, &self.reference, key)
    }
}

/// A key as a header value.
pub(crate) fn line(dialect: Dialect, key: &str) -> Vec<u8> {
    match dialect {
        Dialect::Ietf => format!("\"{key}\"").into_bytes(),
        Dialect::Stripe => key.as_bytes().to_vec(),
    }
}

/// How a request differs from the default one.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestVariant<'a> {
    pub(crate) body: Option<&'a str>,
    pub(crate) case: Option<&'a Case>,
    pub(crate) other_tenant: bool,
}

impl<'a> RequestVariant<'a> {
    pub(crate) fn body(body: &'a str) -> Self {
        Self {
            body: Some(body),
            ..Self::default()
        }
    }

    pub(crate) fn case(case: Option<&'a Case>) -> Self {
        Self {
            case,
            ..Self::default()
        }
    }

    /// The variant for a retry: the same body, without the header of the case.
    pub(crate) fn retry(self) -> Self {
        let case = match self.case {
            Some(Case::Body(_)) => self.case,
            Some(Case::Header(_)) | None => None,
        };
        Self { case, ..self }
    }
}
