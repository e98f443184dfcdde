//! The choices that some settings have.

use std::time::Duration;

/// Whether a route's requests need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRule {
    /// A request without a key is refused.
    #[default]
    Required,
    /// A request without a key passes unguarded, and is counted.
    Optional,
    /// Every request passes unguarded, even with a key.
    Ignored,
}

/// What happens to a request whose key is [weak](semel_core::key::Weakness). It is counted in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeakKeys {
    /// The request is served.
    #[default]
    Warn,
    /// 400 `idempotency_key_malformed`.
    Refuse,
}

/// The response to a request while another with the same key executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// 409, at once.
    #[default]
    Reject,
    /// The stored response once it is there; 409 if that takes longer than `max`.
    Wait {
        /// The longest wait.
        max: Duration,
    },
    /// 202, with the place to ask for the status.
    Accept,
}
