//! Events that are committed with the change that they report. The stores have their own `Outbox`
//! for it, in their modules; the relay is in the module `worker`.

pub use semel_core::outbox::*;
#[cfg(feature = "worker")]
pub use semel_worker::Relay;
