//! What a verified event says.

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
use crate::notice::{About, Notice, Says};

/// The most values that one rule compares with.
pub const MAX_EQUALS: usize = 64;

/// What the events of a source mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which operation an event is about.
    pub find: Find,
    /// Which events say that it happened, with success or with a final failure.
    pub completed: Option<Match>,
    /// Which events say that nothing happened, and nothing will.
    pub not_executed: Option<Match>,
    /// Where the answer for the client is. Without it the answer is not stored, and a retry is
    /// told so.
    pub response_body: Option<Pointer>,
    /// The answer's status.
    pub status: u16,
    /// The answer's status for some of the values of `completed`.
    pub statuses: Vec<(Box<str>, u16)>,
}

/// How an event names its operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// By the operation's id, which the application was given as `Semel-Operation-Id`.
    Operation(Pointer),
    /// By the client's key.
    Key {
        /// Where the key is.
        key: Pointer,
        /// Whose it is.
        tenant: TenantName,
        /// Of which commands it may be.
        operations: Vec<Box<str>>,
    },
    /// By what the operation created.
    Resource(Pointer),
}

/// Whose operation it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantName {
    /// As the event says.
    At(Pointer),
    /// Always the same.
    Fixed(Box<str>),
}

/// A value of the event that is one of several texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Where it is.
    pub pointer: Pointer,
    /// What it may be.
    pub equals: Vec<Box<str>>,
}

/// An event that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The sender's name for it.
    pub id: Box<str>,
    /// What it says.
    pub meaning: Meaning,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// How an operation ended.
    Notice(Box<Notice>),
    /// Nothing that the rules ask for.
    Nothing,
    /// It fits a rule, and yet nothing can be made of it; why not.
    Unusable(&'static str),
}

/// Why a verified event cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is not JSON, or not only one way to read it.
    #[error("the body is not JSON that can be read in one way only: {0}")]
    Json(Box<str>),
    /// An event without a name cannot be told from its repetition.
    #[error("the event has no id of 1 to {MAX_NAME_BYTES} bytes where it should be")]
    Id,
}

impl Rules {
    /// Rules that find an operation and say nothing of it yet.
    pub fn new(find: Find) -> Self {
        Self {
            find,
            completed: None,
            not_executed: None,
            response_body: None,
            status: 200,
            statuses: Vec::new(),
        }
    }
}

impl Source {
    /// What a verified event says.
    ///
    /// # Errors
    /// [`Unreadable`]; the sender made a mistake, and sending it again will not help.
    pub fn read(&self, event: &Verified<'_>) -> Result<Reading, Unreadable> {
        let json = |problem: &dyn ToString| Unreadable::Json(problem.to_string().into());
        // Two members of one name are refused here: which of them counts is anybody's guess.
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
        Ok(Reading { id, meaning })
    }

    fn meaning(&self, root: &RawValue, body: &[u8]) -> Meaning {
        let rules = &self.rules;
        let matched = |rule: &Option<Match>| rule.as_ref().and_then(|rule| rule.fits(root));
        let says = match (matched(&rules.completed), matched(&rules.not_executed)) {
            (None, None) => return Meaning::Nothing,
            (Some(_), Some(_)) => {
                return Meaning::Unusable("it says that it happened, and that it did not");
            }
            (None, Some(_)) => Says::NotExecuted,
            (Some(value), None) => match rules.response(root, &value) {
                Some(response) => Says::Completed(response),
                // An answer is stored for good, so a half of one is worse than none yet.
                None => return Meaning::Unusable("it has no answer where `response_body` is"),
            },
        };
        match rules.find.about(root) {
            Some(about) => Meaning::Notice(Box::new(Notice {
                about,
                says,
                evidence: Bytes::copy_from_slice(cut_evidence(body)),
            })),
            None => Meaning::Unusable("it names no operation"),
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
            // As it was sent, byte for byte: numbers keep their digits.
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
            schema_version: 0,
        })
    }
}

impl Match {
    /// The value, if it is one of those asked for.
    fn fits(&self, root: &RawValue) -> Option<Box<str>> {
        text(find(root, &self.pointer)?).filter(|value| self.equals.contains(value))
    }
}

impl Find {
    fn about(&self, root: &RawValue) -> Option<About> {
        let filled = |pointer| find(root, pointer).and_then(text);
        match self {
            Self::Operation(pointer) => {
                let id: OperationId = filled(pointer)?.parse().ok()?;
                Some(About::Operation(id))
            }
            Self::Key {
                key,
                tenant,
                operations,
            } => Some(About::Key {
                tenant: match tenant {
                    TenantName::At(pointer) => find(root, pointer).and_then(name),
                    TenantName::Fixed(name) => Some(name.clone()),
                }
                .filter(|tenant| (1..=MAX_TENANT_BYTES).contains(&tenant.len()))?,
                key: Key::new(filled(key)?).ok()?,
                operations: operations.clone(),
            }),
            Self::Resource(pointer) => find(root, pointer)
                .and_then(name)
                .filter(|id| !id.is_empty())
                .map(About::Resource),
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
                *items.get(place(token)?)?
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
fn place(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading = token.len() > 1 && token.starts_with('0');
    (digits && !leading).then(|| token.parse().ok()).flatten()
}

/// A string.
fn text(value: &RawValue) -> Option<Box<str>> {
    serde_json::from_str(value.get()).ok()
}

/// A string, or a whole number as it is written: some senders count.
fn name(value: &RawValue) -> Option<Box<str>> {
    let written = value.get();
    let whole = !written.is_empty() && written.bytes().all(|byte| byte.is_ascii_digit());
    text(value).or_else(|| whole.then(|| written.into()))
}
