//! The region that a record is in.
//!
//! With several regions every key has one home, and only there is it reserved. A request for
//! another home is handed to the inner service with a [`Relay`], which sends it there; its response
//! is the client's.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use semel_core::Identity;
use semel_core::contract::RegionList;
use semel_core::identity::IdentityHash;

/// Where the record of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// In this store.
    Here,
    /// In the store of the region with this name.
    Elsewhere(Arc<str>),
    /// It cannot be decided now, for this reason: the request is refused, and may be sent again.
    Undecided(Cow<'static, str>),
}

/// The regions, each with its own store, and the home of each key.
pub trait Homes: Send + Sync + 'static {
    /// The home of a key. Every region has to find the same one.
    fn find(&self, identity: &Identity) -> Home;

    /// The list that homes are chosen from, for the contracts.
    fn list(&self) -> RegionList;

    /// How long a forwarded request may take: longer than it may take at its home.
    fn timeout(&self) -> Duration;
}

/// An extension of a request that the inner service has to send to another region.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The region.
    pub home: Arc<str>,
    /// What identifies the record here; the other region compares it. `None` where the request has
    /// no key.
    pub identity: Option<IdentityHash>,
}

/// An extension of a request that another region has sent, and that was authenticated as such. It
/// is never sent on.
#[derive(Clone, Debug)]
pub struct FromRegion {
    /// What identifies the record in the region that sent it.
    pub identity: Option<IdentityHash>,
}
