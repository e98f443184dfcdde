//! Background jobs: sweeping, reconciling, the outbox relay, retention; and webhooks.

pub use semel_worker::*;
