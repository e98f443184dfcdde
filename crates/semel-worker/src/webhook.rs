//! Events that providers send: who sent them, and what they say of an operation.
//!
//! `verify → read → Inbox::receive → notice::apply → Inbox::settle`
//!
//! **Invariant:** nothing of a body is parsed before its signature was verified, over the bytes
//! as they came and in constant time.
//!
//! **Invariant:** a sender is told that its event arrived only after the event is durable.
//!
//! ```
//! use semel_core::Timestamp;
//! use semel_worker::webhook::{Find, Match, Rules, Scheme, Source};
//!
//! let rules = Rules {
//!     completed: Some(Match { pointer: "/type".parse()?, equals: vec!["payment.paid".into()] }),
//!     response_body: Some("/data/object".parse()?),
//!     ..Rules::new(Find::Operation("/data/metadata/operation_id".parse()?))
//! };
//! let source = Source::new("psp", Scheme::Stripe, ["whsec_0123456789abcdef"], rules)?;
//! let headers = http::HeaderMap::new();
//! let forged = source.verify(&headers, b"{}", Timestamp::from_micros(0));
//! assert!(forged.is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod event;
mod receive;
mod secret;
mod sign;
mod signature;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use semel_core::Timestamp;
use semel_core::fingerprint::Pointer;
use semel_core::inbox::MAX_NAME_BYTES;
use semel_core::time::micros;

pub use event::{Find, MAX_EQUALS, Match, Meaning, Reading, Rules, TenantName, Unreadable};
pub use receive::{Answer, LOOK_AFTER, RECEIVED, receive};
pub use secret::{MAX_SECRETS, MIN_SECRET_BYTES, SecretError};
pub use sign::Signer;
pub use signature::{MAX_SIGNATURES, Refused};

use secret::Secret;
use signature::Claim;

/// The largest body of an event. Senders keep theirs far below: most stop at 256 KiB.
pub const MAX_BODY: usize = 1 << 20;

/// How far the sender's clock and ours may differ, unless it is told: what Standard Webhooks and
/// Stripe recommend.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// How long an event's id is remembered, unless it is told. Standard Webhooks and Stripe repeat
/// an event for three days; somebody who presses a button does so for some weeks.
pub const REMEMBER: Duration = Duration::from_hours(30 * 24);

/// How the sender signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Standard Webhooks: id, time and body are signed, and the id is the event's.
    Standard,
    /// Stripe's: time and body are signed, and the event's id is in the body.
    Stripe,
    /// A plain HMAC-SHA256.
    Hmac {
        /// Where the signature is, in hexadecimal digits or base64.
        signature: HeaderName,
        /// Where the time is, in seconds; it is signed in front of the body then. Without one an
        /// old event that somebody kept is told from a new one by its id only.
        timestamp: Option<HeaderName>,
        /// Where the event's id is in the body.
        event_id: Pointer,
    },
}

/// Somebody who sends events. `Debug` does not show the secrets.
#[derive(Clone, Debug)]
pub struct Source {
    name: Box<str>,
    scheme: Scheme,
    secrets: Vec<Secret>,
    rules: Rules,
    tolerance: Duration,
    remember: Duration,
}

/// All sources, by name.
#[derive(Clone, Debug, Default)]
pub struct Sources(BTreeMap<Box<str>, Arc<Source>>);

/// A body whose signature was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<'a> {
    /// The event's id, where the scheme has it outside of the body.
    id: Option<&'a str>,
    body: &'a [u8],
}

/// What is wrong with a source. Found at start, never by an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A secret that cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Without a secret anybody could sign.
    #[error("a source needs 1 to {MAX_SECRETS} secrets, and this has {0}")]
    Secrets(usize),
    /// The name is part of a path, and of every event that is remembered.
    #[error(
        "{0:?} is no name of a source: write 1 to {MAX_NAME_BYTES} letters, digits, `-` and `_`"
    )]
    Name(String),
}

impl Scheme {
    /// Whether a secret can be used with this scheme.
    ///
    /// # Errors
    /// [`SecretError`]; its message does not repeat the secret.
    pub fn check(&self, secret: &str) -> Result<(), SecretError> {
        Secret::read(self, secret).map(drop)
    }
}

impl Source {
    /// A source that signs with any of these secrets; several are for the time in which one
    /// takes the place of another.
    ///
    /// # Errors
    /// [`Error`], where a secret is empty, short or malformed, or the name is none.
    pub fn new<'s>(
        name: &str,
        scheme: Scheme,
        secrets: impl IntoIterator<Item = &'s str>,
        rules: Rules,
    ) -> Result<Self, Error> {
        if !is_name(name) {
            return Err(Error::Name(name.to_owned()));
        }
        let secrets: Vec<Secret> = secrets
            .into_iter()
            .map(|text| Secret::read(&scheme, text))
            .collect::<Result<_, _>>()?;
        if secrets.is_empty() || secrets.len() > MAX_SECRETS {
            return Err(Error::Secrets(secrets.len()));
        }
        Ok(Self {
            name: name.into(),
            scheme,
            secrets,
            rules,
            tolerance: TOLERANCE,
            remember: REMEMBER,
        })
    }

    /// How far the sender's clock and ours may differ, in both directions.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// How long an event's id is remembered: longer than the sender repeats it.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// What it is called in paths, histories and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its events mean.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether this source signed the body, lately.
    ///
    /// # Errors
    /// [`Refused`], for the log. Whoever sent it is told only that it was refused.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &'a [u8],
        now: Timestamp,
    ) -> Result<Verified<'a>, Refused> {
        let claim = Claim::read(&self.scheme, headers)?;
        if !secret::signed(&self.secrets, &claim, body) {
            return Err(Refused::Signature);
        }
        // After the signature: what nobody signed is not told apart any further.
        if let Some(seconds) = claim.seconds() {
            let sent = seconds.saturating_mul(1_000_000);
            let tolerance = micros(self.tolerance);
            if now.as_micros().saturating_sub(sent) > tolerance {
                return Err(Refused::Old);
            }
            if sent.saturating_sub(now.as_micros()) > tolerance {
                return Err(Refused::Early);
            }
        }
        Ok(Verified {
            id: claim.id(),
            body,
        })
    }
}

impl Sources {
    /// These sources; of two with one name, the later.
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        Self(
            sources
                .into_iter()
                .map(|source| (source.name.clone(), Arc::new(source)))
                .collect(),
        )
    }

    /// The source of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<Source>> {
        self.0.get(name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.values().map(|source| &**source)
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests;
