//! Parses the signature headers of an event.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};

use super::Scheme;

/// The most signatures of one event: senders add one per secret during rotation.
pub const MAX_SIGNATURES: usize = 16;

/// The most digits of a time in seconds; enough beyond the year 30,000.
const MAX_DIGITS: usize = 12;

pub(super) const ID: HeaderName = HeaderName::from_static("webhook-id");
pub(super) const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(super) const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const STRIPE: HeaderName = HeaderName::from_static("stripe-signature");

/// Why an event was refused. For the log; the response does not contain it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A header is missing.
    #[error("the header {0} is missing")]
    Missing(HeaderName),
    /// A header is repeated, even if identically: an intermediary may have added one.
    #[error("the header {0} occurs more than once")]
    Repeated(HeaderName),
    /// A header is malformed.
    #[error("the header {0} is malformed: {1}")]
    Malformed(HeaderName, &'static str),
    /// No secret produces one of the signatures: wrong sender, or altered content.
    #[error("no secret of this source produces one of its signatures")]
    Signature,
    /// Signed, but too old: a wrong clock, or a replayed event.
    #[error("it was signed too long ago")]
    Old,
    /// Signed, but in the future: a wrong clock.
    #[error("it was signed in the future")]
    Early,
}

/// The unverified content of the signature headers.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    id: Option<&'a str>,
    timestamp: Option<(&'a str, i64)>,
    signatures: Vec<[u8; 32]>,
}

impl<'a> Claim<'a> {
    pub(super) fn read(scheme: &Scheme, headers: &'a HeaderMap) -> Result<Self, Refused> {
        match scheme {
            Scheme::Standard => Self::standard(headers),
            Scheme::Stripe => Self::stripe(headers),
            Scheme::Hmac {
                signature,
                timestamp,
                ..
            } => {
                let claimed = one(headers, signature)?;
                let claimed = claimed.strip_prefix("sha256=").unwrap_or(claimed);
                let wrong = "it is neither 64 hexadecimal digits nor 32 bytes in base64";
                let tag = hexadecimal(claimed)
                    .or_else(|| in_base64(claimed))
                    .ok_or_else(|| Refused::Malformed(signature.clone(), wrong))?;
                Ok(Self {
                    id: None,
                    timestamp: timestamp
                        .as_ref()
                        .map(|name| seconds(name, one(headers, name)?))
                        .transpose()?,
                    signatures: vec![tag],
                })
            }
        }
    }

    /// `webhook-signature: v1,<base64> v1,<base64>`; other versions are ignored.
    fn standard(headers: &'a HeaderMap) -> Result<Self, Refused> {
        let malformed = |problem| Refused::Malformed(SIGNATURE, problem);
        let id = one(headers, &ID)?;
        if id.is_empty() {
            return Err(Refused::Malformed(ID, "it is empty"));
        }
        let timestamp = seconds(&TIMESTAMP, one(headers, &TIMESTAMP)?)?;
        let mut signatures = Vec::new();
        for entry in one(headers, &SIGNATURE)?.split(' ') {
            let (version, text) = entry
                .split_once(',')
                .ok_or_else(|| malformed("an entry has no version"))?;
            if version == "v1" {
                let tag = in_base64(text)
                    .ok_or_else(|| malformed("a signature is not 32 bytes in base64"))?;
                push(&mut signatures, tag, malformed)?;
            }
        }
        bounded(Some(id), timestamp, signatures, malformed)
    }

    /// `Stripe-Signature: t=<seconds>,v1=<hex>,v1=<hex>`; other entries are ignored.
    fn stripe(headers: &'a HeaderMap) -> Result<Self, Refused> {
        let malformed = |problem| Refused::Malformed(STRIPE, problem);
        let mut timestamp = None;
        let mut signatures = Vec::new();
        for entry in one(headers, &STRIPE)?.split(',') {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| malformed("an entry has no value"))?;
            match name {
                "t" if timestamp.is_some() => return Err(malformed("it has two times")),
                "t" => timestamp = Some(seconds(&STRIPE, value)?),
                "v1" => {
                    let tag = hexadecimal(value)
                        .ok_or_else(|| malformed("a signature is not 64 hexadecimal digits"))?;
                    push(&mut signatures, tag, malformed)?;
                }
                _ => {}
            }
        }
        let timestamp = timestamp.ok_or_else(|| malformed("it has no time"))?;
        bounded(None, timestamp, signatures, malformed)
    }

    pub(super) fn id(&self) -> Option<&'a str> {
        self.id
    }

    /// The time of signing by the sender's clock.
    pub(super) fn seconds(&self) -> Option<i64> {
        self.timestamp.map(|(_, seconds)| seconds)
    }

    pub(super) fn signatures(&self) -> &[[u8; 32]] {
        &self.signatures
    }

    /// The received parts that are signed in front of the body.
    pub(super) fn signed_prefix(&self) -> Vec<&'a [u8]> {
        let time = self.timestamp.map(|(text, _)| text);
        [self.id, time]
            .into_iter()
            .flatten()
            .flat_map(|part| [part.as_bytes(), b"."])
            .collect()
    }
}

fn push(
    signatures: &mut Vec<[u8; 32]>,
    tag: [u8; 32],
    malformed: impl Fn(&'static str) -> Refused,
) -> Result<(), Refused> {
    if signatures.len() == MAX_SIGNATURES {
        return Err(malformed("it has too many signatures"));
    }
    signatures.push(tag);
    Ok(())
}

fn bounded<'a>(
    id: Option<&'a str>,
    timestamp: (&'a str, i64),
    signatures: Vec<[u8; 32]>,
    malformed: impl Fn(&'static str) -> Refused,
) -> Result<Claim<'a>, Refused> {
    if signatures.is_empty() {
        return Err(malformed("it has no signature `v1`"));
    }
    Ok(Claim {
        id,
        timestamp: Some(timestamp),
        signatures,
    })
}

/// The value of a header that must occur once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, Refused> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or_else(|| Refused::Missing(name.clone()))?;
    if lines.next().is_some() {
        return Err(Refused::Repeated(name.clone()));
    }
    line.to_str()
        .map_err(|_| Refused::Malformed(name.clone(), "it is not visible ASCII"))
}

fn seconds<'a>(name: &HeaderName, text: &'a str) -> Result<(&'a str, i64), Refused> {
    let digits = (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .map(|seconds| (text, seconds))
        .ok_or_else(|| Refused::Malformed(name.clone(), "the time is not in whole seconds"))
}

fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut tag = [0; 32];
    for (byte, pair) in tag.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? << 4 | low?).ok()?;
    }
    Some(tag)
}

fn in_base64(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}
