//! Webhooks: verifies the events that providers send, and reads what they report about a record.
//!
//! `verify → read → Inbox::receive → notice::apply → Inbox::settle`
//!
//! **Invariant:** no part of a body is parsed before its signature was verified, over the received
//! bytes and in constant time.
//!
//! **Invariant:** a sender gets a 2xx only after the event is durable.
//!
//! ```
//! use semel_core::Timestamp;
//! use semel_worker::webhook::{RecordSelector, Match, Rules, Scheme, Source};
//!
//! let rules = Rules {
//!     completed: Some(Match { pointer: "/type".parse()?, equals: vec!["payment.paid".into()] }),
//!     response_body: Some("/data/object".parse()?),
//!     ..Rules::new(RecordSelector::Operation("/data/metadata/operation_id".parse()?))
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

pub use event::{
    MAX_EQUALS, Match, Meaning, ParsedEvent, RecordSelector, Rules, TenantSelector, Unreadable,
};
pub use receive::{Answer, LOOK_AFTER, RECEIVED, find_elsewhere, receive};
pub use secret::{MAX_SECRETS, MIN_SECRET_BYTES, SecretError};
pub use sign::Signer;
pub use signature::{MAX_SIGNATURES, Refused};

use secret::Secret;
use signature::Claim;

/// The largest body of an event. Most senders stop at 256 KiB.
pub const MAX_BODY: usize = 1 << 20;

/// The default clock difference between sender and receiver: what Standard Webhooks and Stripe
/// recommend.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// How long an event's id is remembered by default. Standard Webhooks and Stripe retry for three
/// days; operators resend events by hand for some weeks.
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
        /// The header of the signature, in hexadecimal or base64.
        signature: HeaderName,
        /// The header of the time in seconds, which is signed in front of the body. Without it,
        /// only the event's id protects against a replayed event.
        timestamp: Option<HeaderName>,
        /// The event's id in the body.
        event_id: Pointer,
    },
}

/// A sender of events. `Debug` does not show the secrets.
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

/// A body with a valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<'a> {
    /// The event's id, if the scheme sends it in a header.
    id: Option<&'a str>,
    body: &'a [u8],
}

/// Why a source is invalid. Reported at start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A secret is invalid.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// There are no secrets, or too many.
    #[error("a source needs 1 to {MAX_SECRETS} secrets, and this one has {0}")]
    Secrets(usize),
    /// The name is part of a path, and of every event in the inbox.
    #[error("invalid source name {0:?}: use 1 to {MAX_NAME_BYTES} letters, digits, `-` and `_`")]
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
    /// A source that signs with any of these secrets; use several while a secret is rotated.
    ///
    /// # Errors
    /// [`Error`] if a secret is empty, short or malformed, or the name is invalid.
    pub fn new<'s>(
        name: &str,
        scheme: Scheme,
        secrets: impl IntoIterator<Item = &'s str>,
        rules: Rules,
    ) -> Result<Self, Error> {
        if !is_valid_name(name) {
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

    /// Sets the allowed clock difference, in both directions.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets how long an event's id is remembered: longer than the sender retries.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// The name in paths, histories and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rules that interpret its events.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Verifies that this source signed the body, within the tolerance.
    ///
    /// # Errors
    /// [`Refused`], for the log. The response to the sender does not contain the reason.
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
        // After the signature: an unsigned event gets the same answer whatever its time.
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
    /// These sources; of two with the same name, the later one.
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        Self(
            sources
                .into_iter()
                .map(|source| (source.name.clone(), Arc::new(source)))
                .collect(),
        )
    }

    /// The source with this name.
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

fn is_valid_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests;
