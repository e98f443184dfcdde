//! Several regions: each has its own store, and each key has one home among them.
//!
//! A gateway elsewhere sends the request to the home, once, and returns that response. **Invariant:**
//! a key is reserved in its home only, and only while every region is known to use the same list. A
//! home that does not answer means 503, never an execution here.
//!
//! - [`list`]: the home of a key, a pure function.
//! - [`peers`]: the connections to the other regions.
//! - [`agreement`]: whether all regions use the same list.
//! - [`internal`]: the status resource and webhooks, whose record may be in another region.

mod agreement;
mod internal;
mod list;
mod peers;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::Identity;
use semel_core::contract::RegionList;
use semel_core::identity::IdentityHash;
use semel_http::{FromRegion, Home, Homes};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

pub use agreement::{adopt, check, keep_agreed, leave};
pub(crate) use internal::{answer_status, answer_webhook};
pub use list::{RegionTable, TenantHome};
pub use peers::Peers;
pub(crate) use peers::RegionRequest;

/// The region that sent a request.
const FROM: HeaderName = HeaderName::from_static("semel-region-from");
/// The region that it was sent to.
const TO: HeaderName = HeaderName::from_static("semel-region-to");
/// The fingerprint of the sender's list.
const LIST: HeaderName = HeaderName::from_static("semel-region-list");
/// The secret that all regions share.
const TOKEN: HeaderName = HeaderName::from_static("semel-region-token");
/// The sender's hash of the identity.
const IDENTITY: HeaderName = HeaderName::from_static("semel-region-identity");
/// What all of these begin with.
const PREFIX: &str = "semel-region-";
/// In a response: the region that took the request for one from another region.
const ANSWERED_BY: HeaderName = HeaderName::from_static("semel-region");

/// Where a gateway asks another one whether it uses the same list.
pub(crate) const CONFIRM_PATH: &str = "/.semel/region";

/// The regions as one of them sees them. A configuration that is loaded again keeps it.
#[derive(Debug)]
pub struct Regions {
    name: Arc<str>,
    table: RegionTable,
    /// See [`RegionTable::fingerprint`].
    fingerprint: HeaderValue,
    /// The first is sent, all are accepted.
    tokens: Vec<HeaderValue>,
    timeout: Duration,
    standing: Mutex<Standing>,
}

/// Whether this process may act on its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not every other region has confirmed the list.
    Unconfirmed,
    /// All have, and the store said so: it is asked again before this moment.
    Confirmed(Instant),
    /// Another process of this store uses another list.
    Superseded,
}

/// Where a request comes from.
#[derive(Debug)]
pub(crate) enum Sender {
    Client,
    Region(FromRegion),
    /// It claims to come from a region, and is refused.
    Refused {
        detail: &'static str,
        /// Whether its token is right: then the other region learns why.
        has_token: bool,
    },
}

impl Regions {
    /// `identity` is how a request becomes an identity, which has to be the same in all regions.
    pub fn new(
        name: Arc<str>,
        table: RegionTable,
        identity: &[&str],
        tokens: &[String],
        timeout: Duration,
    ) -> Self {
        let secret = |token: &String| {
            let mut value = HeaderValue::from_str(token).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        Self {
            name,
            fingerprint: header_value(&table.fingerprint(identity)),
            tokens: tokens.iter().filter_map(secret).collect(),
            table,
            timeout,
            standing: Mutex::new(Standing::Unconfirmed),
        }
    }

    /// This region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The list.
    pub fn table(&self) -> &RegionTable {
        &self.table
    }

    /// Whether both describe the same regions: only then a reload keeps the running one without a
    /// restart.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.table, &self.fingerprint, self.timeout)
            == (&other.name, &other.table, &other.fingerprint, other.timeout)
            && self.tokens == other.tokens
    }

    /// Whether both give every key the same home.
    pub fn is_same_list(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    fn fingerprint(&self) -> &str {
        self.fingerprint.to_str().unwrap_or_default()
    }

    fn others(&self) -> impl Iterator<Item = &Arc<str>> {
        self.table.regions.keys().filter(|name| **name != self.name)
    }

    fn standing(&self) -> Standing {
        let standing = self.standing.lock();
        *standing.unwrap_or_else(PoisonError::into_inner)
    }

    fn set_standing(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// Why nothing may be reserved or forwarded now.
    fn refusal(&self) -> Option<&'static str> {
        match self.standing() {
            Standing::Confirmed(until) if Instant::now() < until => None,
            Standing::Confirmed(_) => Some(
                "Nothing was executed: the store has not confirmed the list of regions in time. \
                 Retry with the same key.",
            ),
            Standing::Unconfirmed => Some(
                "Nothing was executed: not every region has confirmed the list of regions yet. \
                 Retry with the same key.",
            ),
            Standing::Superseded => Some(
                "Nothing was executed: another process of this region uses another list of \
                 regions. Retry with the same key.",
            ),
        }
    }

    /// Marks a response to another region as one from here.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        headers.insert(ANSWERED_BY, header_value(&self.name));
    }

    /// What a request to another region carries.
    fn sign(&self, headers: &mut HeaderMap, home: &str, identity: Option<IdentityHash>) {
        headers.insert(FROM, header_value(&self.name));
        headers.insert(TO, header_value(home));
        headers.insert(LIST, self.fingerprint.clone());
        if let Some(token) = self.tokens.first() {
            headers.insert(TOKEN, token.clone());
        }
        if let Some(identity) = identity {
            headers.insert(IDENTITY, header_value(&semel_core::hex(&identity.0)));
        }
    }

    /// Whether a request comes from another region. **Invariant:** a request with any of the headers
    /// is refused unless all of them are right, so none goes from region to region without end.
    pub(crate) fn sender(&self, headers: &mut HeaderMap) -> Sender {
        let names = headers.keys();
        let claims: Vec<HeaderName> = names
            .filter(|name| name.as_str().starts_with(PREFIX))
            .cloned()
            .collect();
        if claims.is_empty() {
            return Sender::Client;
        }
        let single = |name: &HeaderName| {
            let mut lines = headers.get_all(name).iter();
            let value = lines.next()?;
            lines.next().is_none().then_some(value)
        };
        let is_known = |token| self.tokens.iter().any(|known| is_equal(known, token));
        let has_token = single(&TOKEN).is_some_and(is_known);
        let sender = if has_token {
            self.check(single)
        } else {
            Err(
                "Nothing was executed: the request names a region, without the token of the regions.",
            )
        };
        let sender = sender.unwrap_or_else(|detail| Sender::Refused { detail, has_token });
        for name in claims {
            headers.remove(name);
        }
        sender
    }

    fn check<'h>(
        &self,
        single: impl Fn(&HeaderName) -> Option<&'h HeaderValue>,
    ) -> Result<Sender, &'static str> {
        let is_other = |from: &HeaderValue| self.others().any(|name| from == &**name);
        if !single(&FROM).is_some_and(is_other) {
            return Err("The sender is not another region of the list.");
        }
        if single(&TO).is_none_or(|to| to != &*self.name) {
            return Err("The request was sent to the address of another region.");
        }
        if single(&LIST) != Some(&self.fingerprint) {
            return Err(
                "Nothing was executed: two regions use different lists of regions, or find \
                 tenants or keys by different rules. Retry with the same key.",
            );
        }
        let identity = match single(&IDENTITY) {
            None => None,
            Some(text) => Some(parse_hash(text).ok_or("The identity is malformed.")?),
        };
        Ok(Sender::Region(FromRegion { identity }))
    }
}

impl Homes for Regions {
    fn find(&self, identity: &Identity) -> Home {
        if let Some(refusal) = self.refusal() {
            return Home::Undecided(refusal.into());
        }
        match self.table.home(identity) {
            Some(home) if *home == self.name => Home::Here,
            Some(home) => Home::Elsewhere(Arc::clone(home)),
            None => Home::Undecided("The list of regions is empty.".into()),
        }
    }

    fn list(&self) -> RegionList {
        self.table.published()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// Compares hashes in constant time, so that the timing reveals nothing.
fn is_equal(one: &HeaderValue, other: &HeaderValue) -> bool {
    let hash = |value: &HeaderValue| Sha256::digest(value.as_bytes());
    hash(one).ct_eq(&hash(other)).into()
}

fn parse_hash(text: &HeaderValue) -> Option<IdentityHash> {
    let text = text.to_str().ok().filter(|text| text.len() == 32)?;
    let number = u128::from_str_radix(text, 16).ok()?;
    Some(IdentityHash(number.to_be_bytes()))
}

/// The value of a header; names and hashes are always valid.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("invalid"))
}

#[cfg(test)]
mod tests;
