//! Handling a message once: a marker is committed with its effect. The stores have their own
//! `Inbox` for it, in their modules.

pub use semel_core::inbox::*;
