//! What is asked for, under which key, and in what a request for it differs from the usual one.

use uuid::Uuid;

use crate::target::{Case, Dialect};
use crate::text::fill;

/// One thing to be done, under one key.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) reference: String,
    /// The key that is sent, as a counter would know it; none where no such key is sent.
    pub(crate) key: Option<String>,
    /// The values of the key's header lines, as they are sent.
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Operation {
    /// Something new under a new key.
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self::under(dialect, Uuid::new_v4().to_string())
    }

    /// Something new under this key.
    pub(crate) fn under(dialect: Dialect, key: String) -> Self {
        let lines = vec![line(dialect, &key)];
        Self {
            key: Some(key),
            ..Self::with_lines(lines)
        }
    }

    /// Something new with these lines for a key, which are none that a counter could look for.
    pub(crate) fn with_lines(lines: Vec<Vec<u8>>) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            key: None,
            lines,
        }
    }

    /// The same key for something else.
    pub(crate) fn another(&self) -> Self {
        Self {
            reference: Uuid::new_v4().to_string(),
            ..self.clone()
        }
    }

    /// A text with this operation in its places. Without a key the reference is as unique.
    pub(crate) fn fill(&self, template: &str) -> String {
        let key = self.key.as_ref().unwrap_or(&self.reference);
        fill(template, &self.reference, key)
    }
}

/// How a key goes on the wire.
pub(crate) fn line(dialect: Dialect, key: &str) -> Vec<u8> {
    match dialect {
        Dialect::Ietf => format!("\"{key}\"").into_bytes(),
        Dialect::Stripe => key.as_bytes().to_vec(),
    }
}

/// In what a request differs from the usual one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape<'a> {
    pub(crate) body: Option<&'a str>,
    pub(crate) case: Option<&'a Case>,
    pub(crate) other_tenant: bool,
}

impl<'a> Shape<'a> {
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

    /// As a retry has it: the same body, and without the header that asked for a behaviour.
    pub(crate) fn retry(self) -> Self {
        let case = match self.case {
            Some(Case::Body(_)) => self.case,
            Some(Case::Header(_)) | None => None,
        };
        Self { case, ..self }
    }
}
