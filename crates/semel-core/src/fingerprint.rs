//! What a request *is*, in 32 bytes: the same key with another fingerprint is misuse.
//!
//! ```
//! use semel_core::fingerprint::{Request, Rules};
//!
//! let request = |body: &'static str| {
//!     Request::new("create_payment", "POST", "/payments")
//!         .content_type("application/json")
//!         .body(body)
//! };
//! let rules = Rules::default();
//! let first = request(r#"{"amount":100,"currency":"EUR"}"#).fingerprint(&rules);
//! let retry = request(r#"{ "currency": "EUR", "amount": 1e2 }"#).fingerprint(&rules);
//! let other = request(r#"{"amount":101,"currency":"EUR"}"#).fingerprint(&rules);
//! assert_eq!(first, retry);
//! assert_ne!(first, other);
//! ```
//!
//! A false mismatch is an error message, a false match is a wrong payment: whatever could be
//! understood in two ways is hashed byte for byte. Every input has a fingerprint.

mod command;
mod form;
mod frame;
mod hosts;
mod media;
mod multipart;
mod pointer;
mod request;
mod rules;
mod timestamp;

use std::fmt;
use std::str::FromStr;

use crate::canonical::{MAX_DEPTH, NotIJson};
use frame::{Domain, Frame, Tag};

pub use hosts::{Authority, Hosts, MAX_HOSTS};
pub use pointer::Pointer;
pub use request::{Request, Rule};
pub use rules::{MAX_DEFAULT, MAX_RULES, Options, Rules, RulesId};
pub use timestamp::Precision;

/// Whether a `Content-Type` is JSON in UTF-8.
pub fn is_json(content_type: &[u8]) -> bool {
    media::Media::parse(content_type).is_some_and(|media| media.is_json() && media.is_utf8())
}

/// The version that new records get.
pub const VERSION: u16 = 1;

/// A SHA-256 over length-framed fields, the version of the algorithm, and the rules of the route
/// that it was made by.
///
/// A record is always compared with fingerprints of *its* version and rules, so that a deploy
/// never turns an honest retry into misuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u16,
    rules: RulesId,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Of a command, after the app's own validation: what the app *understood*.
    ///
    /// ```
    /// # use semel_core::Fingerprint;
    /// #[derive(serde::Serialize)]
    /// struct Pay<'a> { amount: u64, currency: &'a str }
    ///
    /// let first = Fingerprint::of(&Pay { amount: 9_007_199_254_740_993, currency: "EUR" })?;
    /// let other = Fingerprint::of(&Pay { amount: 9_007_199_254_740_992, currency: "EUR" })?;
    /// assert_ne!(first, other);
    /// # Ok::<(), semel_core::fingerprint::Error>(())
    /// ```
    ///
    /// Integers of any size are exact. Fields and map entries are sorted, so their order does
    /// not matter; their names do: renaming a field, or adding one that is always written,
    /// changes the fingerprint, and a retry across that deploy is refused as misuse. A new
    /// optional field with `skip_serializing_if` is safe. The name of the type itself is not
    /// part of it: see [`Fingerprint::of_operation`].
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::DuplicateName`], [`Error::NameType`],
    /// [`Error::TooDeep`], or [`Error::Command`] from the command's own `Serialize`.
    pub fn of<T: serde::Serialize + ?Sized>(command: &T) -> Result<Self, Error> {
        Self::command(None, command)
    }

    /// As [`Fingerprint::of`], for keys that are shared by several operations: the same fields
    /// under another operation are another command.
    ///
    /// # Errors
    /// As [`Fingerprint::of`].
    pub fn of_operation<T: serde::Serialize + ?Sized>(
        operation: &str,
        command: &T,
    ) -> Result<Self, Error> {
        Self::command(Some(operation), command)
    }

    /// As a store kept it, under the default rules.
    pub const fn from_parts(version: u16, digest: [u8; 32]) -> Self {
        Self {
            version,
            rules: RulesId::DEFAULT,
            digest,
        }
    }

    /// The same fingerprint, made by these rules.
    pub const fn under(self, rules: RulesId) -> Self {
        Self { rules, ..self }
    }

    /// The version of the algorithm.
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// The rules that it was made by.
    pub const fn rules(&self) -> RulesId {
        self.rules
    }

    /// The hash.
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn command<T: serde::Serialize + ?Sized>(
        operation: Option<&str>,
        command: &T,
    ) -> Result<Self, Error> {
        let bytes = command::write(command)?;
        let mut frame = Frame::new(Domain::Command);
        if let Some(operation) = operation {
            frame.field(Tag::Operation, operation.as_bytes());
        }
        frame.field(Tag::Command, &bytes);
        Ok(frame.finish().under(RulesId::COMMAND))
    }
}

/// `1:` and 64 hexadecimal digits, as `semel fingerprint` prints it.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.version)?;
        self.digest
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let (version, hex) = text.split_once(':')?;
            let digits: Vec<u8> = hex
                .bytes()
                .map(|digit| match digit {
                    b'0'..=b'9' => Some(digit - b'0'),
                    b'a'..=b'f' => Some(digit - b'a' + 10),
                    _ => None,
                })
                .collect::<Option<_>>()?;
            let (pairs, []) = digits.as_chunks::<2>() else {
                return None;
            };
            let digest: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
            let fingerprint = Self::from_parts(version.parse().ok()?, digest.try_into().ok()?);
            // One spelling only: `01:…` and `+1:…` parse as numbers, too.
            (fingerprint.to_string() == text).then_some(fingerprint)
        };
        parsed().ok_or(Error::Syntax)
    }
}

/// The fingerprints of one request: the one that a new record gets, and those under the versions
/// and rules of older records.
///
/// ```
/// # use semel_core::{Fingerprint, Fingerprints};
/// let stored = Fingerprint::from_parts(1, [7; 32]);
/// let request = Fingerprints::from(Fingerprint::from_parts(2, [9; 32])).with_older(stored);
/// assert!(request.matches(stored));
/// // A version from the future, or one given up: nothing can be said, so it is no match.
/// assert!(!request.matches(Fingerprint::from_parts(3, [9; 32])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints {
    newest: Fingerprint,
    /// Descending versions, each version and rules once.
    older: Vec<Fingerprint>,
}

impl Fingerprints {
    /// What a new record gets.
    pub fn newest(&self) -> Fingerprint {
        self.newest
    }

    /// Whether the stored fingerprint is that of this request, by the stored one's version and
    /// rules.
    pub fn matches(&self, stored: Fingerprint) -> bool {
        self.iter().any(|ours| ours == stored)
    }

    /// Whether the stored fingerprint has rules that none of these was made by, in a version that
    /// this build computes: then it cannot be said yet whether it matches.
    pub fn lacks_rules_of(&self, stored: Fingerprint) -> bool {
        let of_version = |ours: &Fingerprint| ours.version == stored.version;
        self.iter().any(|ours| of_version(&ours))
            && !self
                .iter()
                .any(|ours| of_version(&ours) && ours.rules == stored.rules)
    }

    /// Newest first.
    pub fn iter(&self) -> impl Iterator<Item = Fingerprint> {
        std::iter::once(self.newest).chain(self.older.iter().copied())
    }

    /// Adds the fingerprint of another version or other rules; one of the same version and rules
    /// is replaced, so that there is always one for each.
    pub fn with_older(self, older: Fingerprint) -> Self {
        let scheme = |of: &Fingerprint| (of.version, of.rules);
        let mut all: Vec<_> = self
            .iter()
            .filter(|ours| scheme(ours) != scheme(&older))
            .collect();
        all.push(older);
        // Stable: among fingerprints of one version the first stays what a new record gets.
        all.sort_by_key(|ours| std::cmp::Reverse(ours.version));
        let newest = all.remove(0);
        Self { newest, older: all }
    }
}

impl From<Fingerprint> for Fingerprints {
    fn from(newest: Fingerprint) -> Self {
        Self {
            newest,
            older: Vec::new(),
        }
    }
}

/// What is wrong with rules, with a command, or with the text of a fingerprint. Requests
/// never fail. None of these has executed anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Configuration: not a usable JSON Pointer (RFC 6901).
    #[error("JSON Pointer {pointer:?}: {problem}")]
    Pointer {
        /// As configured.
        pointer: String,
        /// And the way out.
        problem: &'static str,
    },
    /// Configuration: two rules speak of the same value.
    #[error(
        "the rules for {one:?} and {other:?} overlap, so their order would matter; keep one of them"
    )]
    Overlap {
        /// As configured.
        one: String,
        /// As configured.
        other: String,
    },
    /// Configuration: an allow-list together with something that is ignored.
    #[error(
        "`fields` lists all that counts, so `ignore` with {pointer:?} contradicts it; keep one of them"
    )]
    FieldsAndIgnore {
        /// As configured.
        pointer: String,
    },
    /// Configuration: a rule about a value that the allow-list leaves out.
    #[error(
        "the rule for {pointer:?} has no effect, because `fields` does not contain it; add it to `fields`, or remove the rule"
    )]
    OutsideFields {
        /// As configured.
        pointer: String,
    },
    /// Configuration: a default that is not JSON, or that a double cannot hold.
    #[error("the default for {pointer:?} has no canonical JSON: {reason}")]
    Default {
        /// Of which member.
        pointer: String,
        /// Why not.
        reason: NotIJson,
    },
    /// Configuration: a header that cannot be part of a fingerprint.
    #[error("header {name:?}: {problem}")]
    Header {
        /// As configured.
        name: String,
        /// And the way out.
        problem: &'static str,
    },
    /// Configuration: not a list of equivalent hosts.
    #[error("host {name:?}: {problem}")]
    Host {
        /// As configured.
        name: String,
        /// And the way out.
        problem: &'static str,
    },
    /// Configuration: more than [`MAX_RULES`] rules, or a default over [`MAX_DEFAULT`] bytes.
    #[error(
        "too many rules, or too long: at most {MAX_RULES} per route, defaults up to {MAX_DEFAULT} bytes"
    )]
    TooLarge,
    /// Configuration: the text of a stored rule set that this build cannot read.
    #[error("the stored fingerprint rules cannot be read: {0}")]
    Stored(String),
    /// Command: a float that is infinite or not a number, and so equals nothing.
    #[error("the command has a float that is not finite; validate it before")]
    NonFinite,
    /// Command: a map with the same name twice.
    #[error("the command has the member name {0:?} twice; `flatten` can do this")]
    DuplicateName(String),
    /// Command: a map key that is not a string, an integer, a boolean or a unit variant.
    #[error("the command has a map key of type {0}; use strings or integers")]
    NameType(&'static str),
    /// Command: nested too deeply.
    #[error("the command is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Command: its own `Serialize` failed.
    #[error("the command cannot be serialised: {0}")]
    Command(String),
    /// Text: not the text of a fingerprint.
    #[error("not a fingerprint: expected a version, `:`, and 64 lowercase hexadecimal digits")]
    Syntax,
}

#[cfg(test)]
mod tests;
