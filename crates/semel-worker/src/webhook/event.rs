//! Reads a verified event with the rules of its source.

use std::collections::HashMap;

use bytes::Bytes;
use semel_core::canonical;
use semel_core::fingerprint::Pointer;
use semel_core::history::cut_evidence;
use semel_core::identity::MAX_TENANT_BYTES;
use semel_core::inbox::MAX_NAME_BYTES;
use semel_core::{Key, OperationId, Response};
use serde_json::value::RawValue;

use super::{Scheme, Source, Verified};
use crate::notice::{Notice, NoticeTarget, NoticeVerdict};

/// The most values of one rule.
pub const MAX_EQUALS: usize = 64;

/// How the events of a source are interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How an event identifies its record.
    pub selector: RecordSelector,
    /// The events that report an execution, with success or with a final failure.
    pub completed: Option<Match>,
    /// The events that report that nothing was executed, and nothing will be.
    pub not_executed: Option<Match>,
    /// Where the response for the client is. Without it no body is stored, and a retry is answered
    /// accordingly.
    pub response_body: Option<Pointer>,
    /// The status of the stored response.
    pub status: u16,
    /// The status for particular values of `completed`.
    pub statuses: Vec<(Box<str>, u16)>,
    /// The schema version of the stored response.
    pub schema_version: u16,
}

/// How an event identifies its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordSelector {
    /// By the record's id, which the application received as `Semel-Operation-Id`.
    Operation(Pointer),
    /// By the client's key.
    Key {
        /// Where the key is.
        key: Pointer,
        /// The tenant of the key.
        tenant: TenantSelector,
        /// The operations that the key may belong to.
        operations: Vec<Box<str>>,
    },
    /// By the resource that the operation created.
    Resource(Pointer),
}

/// The tenant of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantSelector {
    /// At this place in the event.
    At(Pointer),
    /// Always the same.
    Fixed(Box<str>),
}

/// A rule: a value of the event equals one of several strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Where the value is.
    pub pointer: Pointer,
    /// The matching strings.
    pub equals: Vec<Box<str>>,
}

/// A parsed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedEvent {
    /// The sender's id of the event.
    pub id: Box<str>,
    /// What it reports.
    pub meaning: Meaning,
}

/// What an event reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The outcome of a record.
    Notice(Box<Notice>),
    /// No rule matches.
    Nothing,
    /// A rule matches, but the event cannot be used, for this reason.
    Unusable(&'static str),
}

/// Why a verified event cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The body is not JSON, or ambiguous JSON.
    #[error("the body is not valid I-JSON: {0}")]
    Json(Box<str>),
    /// Without an id, a repeated event cannot be recognized.
    #[error("the event has no id of 1 to {MAX_NAME_BYTES} bytes at the expected place")]
    Id,
}

impl Rules {
    /// Rules with this selector that match no event yet.
    pub fn new(selector: RecordSelector) -> Self {
        Self {
            selector,
            completed: None,
            not_executed: None,
            response_body: None,
            status: 200,
            statuses: Vec::new(),
            schema_version: 0,
        }
    }
}

impl Source {
    /// Parses a verified event.
    ///
    /// # Errors
    /// [`Unreadable`]; sending the event again does not help.
    pub fn read(&self, event: &Verified<'_>) -> Result<ParsedEvent, Unreadable> {
        let json = |problem: &dyn ToString| Unreadable::Json(problem.to_string().into());
        // Refuses duplicate member names, which parsers resolve differently.
        canonical::pure(event.body).map_err(|problem| json(&problem))?;
        let root: &RawValue =
            serde_json::from_slice(event.body).map_err(|problem| json(&problem))?;
        let id: Option<Box<str>> = match (&self.scheme, event.id) {
            (Scheme::Standard, id) => id.map(Into::into),
            (Scheme::Stripe, _) => member(root, "id").and_then(name),
            (Scheme::Hmac { event_id, .. }, _) => find(root, event_id).and_then(name),
        };
        let id = id
            .filter(|id| (1..=MAX_NAME_BYTES).contains(&id.len()))
            .ok_or(Unreadable::Id)?;
        let meaning = self.meaning(root, event.body);
        Ok(ParsedEvent { id, meaning })
    }

    fn meaning(&self, root: &RawValue, body: &[u8]) -> Meaning {
        let rules = &self.rules;
        let matched =
            |rule: &Option<Match>| rule.as_ref().and_then(|rule| rule.matched_value(root));
        let verdict = match (matched(&rules.completed), matched(&rules.not_executed)) {
            (None, None) => return Meaning::Nothing,
            (Some(_), Some(_)) => {
                return Meaning::Unusable("it matches both `completed` and `not_executed`");
            }
            (None, Some(_)) => NoticeVerdict::NotExecuted,
            (Some(value), None) => match rules.response(root, &value) {
                Some(response) => NoticeVerdict::Completed(response),
                // A stored response is final, so an incomplete one must not be stored.
                None => return Meaning::Unusable("it has no value at `response_body`"),
            },
        };
        match rules.selector.target(root) {
            Some(target) => Meaning::Notice(Box::new(Notice {
                target,
                verdict,
                evidence: Bytes::copy_from_slice(cut_evidence(body)),
            })),
            None => Meaning::Unusable("it identifies no record"),
        }
    }
}

impl Rules {
    fn response(&self, root: &RawValue, matched: &str) -> Option<Response> {
        let status = self
            .statuses
            .iter()
            .find(|(value, _)| **value == *matched)
            .map_or(self.status, |(_, status)| *status);
        let (headers, body) = match &self.response_body {
            // The received bytes: numbers keep their digits.
            Some(pointer) => {
                let body = find(root, pointer).filter(|value| value.get() != "null")?;
                let json = Bytes::from_static(b"application/json");
                let headers = vec![("content-type".into(), json)];
                (headers, Some(Bytes::copy_from_slice(body.get().as_bytes())))
            }
            None => (Vec::new(), None),
        };
        Some(Response {
            status,
            headers,
            body,
            schema_version: self.schema_version,
        })
    }
}

impl Match {
    /// The value, if it is one of [`equals`](Match::equals).
    fn matched_value(&self, root: &RawValue) -> Option<Box<str>> {
        text(find(root, &self.pointer)?).filter(|value| self.equals.contains(value))
    }
}

impl RecordSelector {
    fn target(&self, root: &RawValue) -> Option<NoticeTarget> {
        let string = |pointer| find(root, pointer).and_then(text);
        match self {
            Self::Operation(pointer) => {
                let id: OperationId = string(pointer)?.parse().ok()?;
                Some(NoticeTarget::Operation(id))
            }
            Self::Key {
                key,
                tenant,
                operations,
            } => Some(NoticeTarget::Key {
                tenant: match tenant {
                    TenantSelector::At(pointer) => find(root, pointer).and_then(name),
                    TenantSelector::Fixed(name) => Some(name.clone()),
                }
                .filter(|tenant| (1..=MAX_TENANT_BYTES).contains(&tenant.len()))?,
                key: Key::new(string(key)?).ok()?,
                operations: operations.clone(),
            }),
            Self::Resource(pointer) => find(root, pointer)
                .and_then(name)
                .filter(|id| !id.is_empty())
                .map(NoticeTarget::Resource),
        }
    }
}

/// The value that a pointer leads to.
fn find<'a>(root: &'a RawValue, pointer: &Pointer) -> Option<&'a RawValue> {
    let mut value = root;
    for token in pointer.tokens() {
        value = match value.get().as_bytes().first() {
            Some(b'{') => member(value, token)?,
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
                *items.get(array_index(token)?)?
            }
            Some(_) | None => return None,
        };
    }
    Some(value)
}

fn member<'a>(value: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
    members.get(name).copied()
}

/// RFC 6901 has no leading zeros and no signs.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading = token.len() > 1 && token.starts_with('0');
    (digits && !leading).then(|| token.parse().ok()).flatten()
}

/// A string.
fn text(value: &RawValue) -> Option<Box<str>> {
    serde_json::from_str(value.get()).ok()
}

/// A string, or an integer as written: some senders use numbers as ids.
fn name(value: &RawValue) -> Option<Box<str>> {
    let written = value.get();
    let whole = !written.is_empty() && written.bytes().all(|byte| byte.is_ascii_digit());
    text(value).or_else(|| whole.then(|| written.into()))
}
