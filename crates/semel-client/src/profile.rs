//! What differs between providers: the form of the key, of refusals, and the delays.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

/// The dialect of a provider. Start from [`Profile::ietf`] or [`Profile::stripe`] and change fields for another provider.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The header with the key.
    pub header: HeaderName,
    /// Whether the key is sent as an RFC 9651 String, `"…"`.
    pub quoted: bool,
    /// Where a refusal has its code.
    pub refusals: RefusalForm,
    /// How `Retry-After` is read.
    pub retry_after: RetryAfter,
    /// Delays after failures, and while another request with the key is in progress.
    pub backoff: Backoff,
    /// Delays while the outcome is unknown.
    pub slow: Backoff,
    /// Statuses that mean: later, and nothing was executed.
    pub wait: &'static [u16],
    /// Whether a 409 means that a request with this key is in progress even without `Retry-After`.
    pub conflict_waits: bool,
    /// Whether a status is a failure that may pass.
    pub fails: fn(u16) -> bool,
    /// Whether a response with `Idempotent-Replayed: true` is final whatever its status: the server stored it.
    pub replayed_is_final: bool,
}

/// Where a refusal has its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalForm {
    /// The members `code` and `retryable` of an `application/problem+json` body.
    Problem,
    /// The members `code` and `type` of the member `error` of a JSON body.
    Stripe,
}

/// How `Retry-After` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// Seconds or a date, shortened to a bound.
    UpTo(Duration),
    /// Whole seconds, ignored where there are more.
    SecondsUnlessOver(Duration),
}

/// Exponential delays with jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The upper bound of the first delay.
    pub base: Duration,
    /// The upper bound of all delays.
    pub cap: Duration,
    /// The part of a delay that is not random: 0.0 is full jitter.
    pub fixed: f64,
    /// No delay is shorter.
    pub floor: Duration,
}

/// Semel's dead letters ask for five minutes, the longest delay that a well-behaved server has.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Reconciling takes seconds to minutes, and a person longer.
const SLOW: Backoff = Backoff {
    base: Duration::from_secs(5),
    cap: Duration::from_mins(1),
    fixed: 0.0,
    floor: Duration::ZERO,
};

impl Profile {
    /// Semel, and the IETF draft of the header `Idempotency-Key`.
    pub fn ietf() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            quoted: true,
            refusals: RefusalForm::Problem,
            retry_after: RetryAfter::UpTo(LONGEST_RETRY_AFTER),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(8),
                fixed: 0.0,
                floor: Duration::ZERO,
            },
            slow: SLOW,
            wait: &[408, 425, 429],
            conflict_waits: false,
            // Also those of proxies, such as 520 to 530. A server that implements no such method or version never will.
            fails: |status| status >= 500 && !matches!(status, 501 | 505),
            replayed_is_final: true,
        }
    }

    /// Stripe, with the retry rules of its SDKs: 409, 5xx and connection errors are retried, and
    /// `Stripe-Should-Retry` overrides that; delays from 0.5 to 5 seconds, at least half of each fixed.
    pub fn stripe() -> Self {
        Self {
            quoted: false,
            refusals: RefusalForm::Stripe,
            retry_after: RetryAfter::SecondsUnlessOver(Duration::from_mins(1)),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(5),
                fixed: 0.5,
                floor: Duration::from_millis(500),
            },
            // Stripe sends `Stripe-Should-Retry: true` with those that its clients should retry.
            wait: &[],
            conflict_waits: true,
            fails: |status| status >= 500,
            replayed_is_final: false,
            ..Self::ietf()
        }
    }

    /// The header with the key, as the journals store it.
    pub(crate) fn key_form(&self) -> String {
        let value = if self.quoted { "\"{key}\"" } else { "{key}" };
        format!("{}: {value}", self.header)
    }

    /// The profile with the form in which a key was first sent. `None`: it is none.
    pub(crate) fn with_key_form(&self, form: &str) -> Option<Self> {
        let (name, value) = form.split_once(": ")?;
        Some(Self {
            header: HeaderName::try_from(name).ok()?,
            quoted: value.starts_with('"'),
            ..self.clone()
        })
    }

    /// The header's value for a key, which is a UUID.
    pub(crate) fn key_value(&self, key: &str) -> Option<HeaderValue> {
        if self.quoted {
            HeaderValue::try_from(format!("\"{key}\"")).ok()
        } else {
            HeaderValue::try_from(key).ok()
        }
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::ietf()
    }
}
