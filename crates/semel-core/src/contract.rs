//! What decides whether two requests are the same, as processes publish it in their store.
//!
//! A record outlives the configuration that it was made under. So every process publishes its
//! *contracts* before it serves requests: for each route, what identifies a record (the name, the
//! scope and carrier of the key, the tenant rule), and the fingerprint rules. A process with another
//! configuration finds them there: it refuses to start where it would take a retry for a new
//! request, and it compares a record under the rules that the record was made by.
//!
//! The store keeps one small document and replaces it as a whole. [`Contracts`] is the document;
//! comparing it with a configuration needs the routes, and is done by the HTTP layer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::fingerprint::{Rules, RulesId};

/// The most rule sets that one operation can have in a store. A request is hashed once for each
/// that a record was made by.
pub const MAX_RULE_SETS: usize = 9;

/// The latest acceptances that are kept.
pub const MAX_ACCEPTANCES: usize = 100;

/// The largest document, in bytes: some 1,000 routes with long rules.
pub const MAX_DOCUMENT: usize = 4 << 20;

/// Everything that processes have published in one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contracts {
    /// What identifies records, by route.
    #[serde(default)]
    pub routes: Vec<PublishedRoute>,
    /// Fingerprint rules, by operation.
    #[serde(default)]
    pub rule_sets: Vec<PublishedRules>,
    /// Changes that a person accepted, oldest first.
    #[serde(default)]
    pub acceptances: Vec<Acceptance>,
    /// Losses of records that processes noticed, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollbacks: Vec<Rollback>,
    /// The list of regions that the processes of this store use, and whether all regions have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionAgreement>,
}

/// What the processes of one store know about the other regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionAgreement {
    /// A hash of the list, and of what else has to be the same in all regions.
    pub list: Box<str>,
    /// The list's version. A store goes from one list only to one with a higher version, so that no
    /// earlier confirmation counts again.
    pub version: u32,
    /// How far the regions agree on it.
    pub state: AgreementState,
}

/// How far the regions agree on a list. Only in the last state anything executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgreementState {
    /// A process of this store may still rely on what was there before.
    Replacing,
    /// No process of this store relies on another list. Another region may be the home of the same
    /// keys.
    Unconfirmed,
    /// Every other region has confirmed that it uses this list.
    Confirmed,
}

/// The list that the homes of keys are chosen from. Another list may give a key another home, where
/// its record is not found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionList {
    /// Chosen by the operator; a changed list has another one.
    pub version: u32,
    /// The names of the regions, sorted.
    pub names: Vec<Box<str>>,
    /// A hash of the rules that give tenants a fixed home; `None` without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_homes: Option<Box<str>>,
}

impl RegionList {
    /// Why an operator has to accept a change of the list even where no records exist here.
    pub fn refusal(from: Option<&Self>, to: Option<&Self>) -> Option<String> {
        let from = from?;
        let is_kept = |name: &str| to.is_some_and(|to| to.names.iter().any(|kept| **kept == *name));
        if let Some(name) = from.names.iter().find(|name| !is_kept(name)) {
            return Some(format!(
                "region {name:?} is no longer in the list, and its records cannot be counted here: stop \
                 its gateways first"
            ));
        }
        let is_same_version = to.is_some_and(|to| to != from && to.version == from.version);
        is_same_version.then(|| "a changed list needs another `version`".to_owned())
    }
}

impl fmt::Display for RegionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "regions {} (version {}",
            self.names.join(", "),
            self.version
        )?;
        if let Some(rules) = &self.tenant_homes {
            write!(f, ", tenant_home {}", rules.get(..8).unwrap_or(rules))?;
        }
        f.write_str(")")
    }
}

/// The store lost a record within its replay window: it was restored from a backup, or its tables
/// were emptied. Keys that it forgot could execute again, so nothing is granted until a person
/// accepts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// When a process noticed it, in microseconds since the Unix epoch.
    pub noticed_at: i64,
    /// The record that is gone.
    pub record: Box<str>,
    /// Who accepted it.
    #[serde(default)]
    pub accepted: Option<AcceptedRollback>,
}

/// A person's decision to trust a store again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedRollback {
    /// When, in microseconds since the Unix epoch.
    pub at: i64,
    /// Who.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
}

/// The identity contract of one route, and when a process last published it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRoute {
    /// Method and path pattern, such as `POST /payments`; `POST *` for requests without a route.
    pub route: Box<str>,
    /// What identifies its records.
    pub identity: IdentityContract,
    /// When, in microseconds since the Unix epoch.
    pub published_at: i64,
}

/// What identifies the records of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityContract {
    /// The operation in the identity of a record; `None` where every path is its own operation.
    pub operation: Option<Box<str>>,
    /// `operation` or `tenant`: see [`KeyScope`](crate::KeyScope).
    pub key_scope: Box<str>,
    /// Where the key comes from and how it is read, such as `idempotency-key (ietf)`.
    pub key: Box<str>,
    /// How the tenant is found, such as `header:x-account-id`.
    pub tenant: Box<str>,
    /// Whether only the exact spelling of a path is matched: see [`path`](crate::path).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub match_exactly: bool,
    /// The list that decides in which region a record is; `None` where there is only one store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionList>,
}

/// One set of fingerprint rules of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRules {
    /// The operation in the identity of its records; `*` for all operations without a name.
    pub operation: Box<str>,
    /// Its [`RulesId`].
    pub id: i64,
    /// The rules, as [`Rules::to_text`] writes them.
    pub rules: Box<str>,
    /// When, in microseconds since the Unix epoch.
    pub published_at: i64,
}

/// A change that a person accepted although records exist under the old contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acceptance {
    /// When, in microseconds since the Unix epoch.
    pub at: i64,
    /// Who accepted it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// The route.
    pub route: Box<str>,
    /// What identified its records; `None` where the route is no longer guarded or was not.
    pub from: Option<IdentityContract>,
    /// What identifies them from now on.
    pub to: Option<IdentityContract>,
}

/// What [`Store::contracts`](crate::Store::contracts) returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Grows by one with every publication; 0 where there was none.
    pub revision: u64,
    /// What is published.
    pub contracts: Contracts,
}

/// Which records [`Store::count_records`](crate::Store::count_records) counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFilter {
    /// Their operations.
    pub operations: OperationMatch,
    /// Only those that were fingerprinted under these rules.
    pub rules: Option<RulesId>,
}

/// The operations of a [`RecordFilter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationMatch {
    /// The operation of this name.
    Exact(Box<str>),
    /// All operations whose names begin so.
    Prefix(Box<str>),
}

/// The number of records that a retry can still meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsInUse {
    /// In progress or unknown.
    pub unfinished: u64,
    /// Completed, within their replay window.
    pub replayable: u64,
    /// All, tombstones included.
    pub all: u64,
    /// When the last replay window ends.
    pub last_window_ends: Option<Timestamp>,
}

impl Contracts {
    /// The document as a store keeps it.
    pub fn to_text(&self) -> String {
        // Strings and numbers are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The document that [`to_text`](Contracts::to_text) wrote.
    ///
    /// # Errors
    /// A newer version wrote something that this one would lose.
    pub fn from_text(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The loss of records that no person has accepted, if there is one.
    pub fn unaccepted_rollback(&self) -> Option<&Rollback> {
        self.rollbacks.iter().find(|lost| lost.accepted.is_none())
    }

    /// The rules with that id, of any operation.
    pub fn rules(&self, id: RulesId) -> Option<&PublishedRules> {
        self.rule_sets.iter().find(|set| set.id == id.0)
    }

    /// Whether a person accepted that this change, or its reverse, leaves records behind.
    pub fn accepts(
        &self,
        route: &str,
        from: Option<&IdentityContract>,
        to: Option<&IdentityContract>,
    ) -> bool {
        self.acceptances.iter().any(|accepted| {
            let pair = (accepted.from.as_ref(), accepted.to.as_ref());
            *accepted.route == *route && (pair == (from, to) || pair == (to, from))
        })
    }
}

impl PublishedRules {
    /// The rules of an operation, published now.
    pub fn new(operation: &str, rules: &Rules, now: Timestamp) -> Self {
        Self {
            operation: operation.into(),
            id: rules.id().0,
            rules: rules.to_text().into(),
            published_at: now.as_micros(),
        }
    }
}

impl OperationMatch {
    /// Whether it includes the operation.
    pub fn admits(&self, operation: &str) -> bool {
        match self {
            Self::Exact(name) => **name == *operation,
            Self::Prefix(prefix) => operation.starts_with(&**prefix),
        }
    }
}

impl RecordsInUse {
    /// Whether a retry could execute again if these records were not found.
    pub fn protect_retries(&self) -> bool {
        self.unfinished + self.replayable > 0
    }
}

impl fmt::Display for IdentityContract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [operation, key_scope, key, tenant, spelling, regions] = self.parts();
        write!(f, "{operation}, {key_scope}, {key}, {tenant}")?;
        if self.match_exactly {
            write!(f, ", {spelling}")?;
        }
        if self.regions.is_some() {
            write!(f, ", {regions}")?;
        }
        Ok(())
    }
}

impl IdentityContract {
    /// What it consists of, each in a few words.
    pub fn parts(&self) -> [String; 6] {
        let Self {
            operation,
            key_scope,
            key,
            tenant,
            match_exactly,
            regions,
        } = self;
        let spelling = if *match_exactly {
            "matched exactly"
        } else {
            "matched in every spelling"
        };
        [
            match operation {
                Some(name) => format!("operation {name:?}"),
                None => "every path its own operation".to_owned(),
            },
            format!("key scope {key_scope}"),
            format!("key {key}"),
            format!("tenant {tenant}"),
            spelling.to_owned(),
            match regions {
                Some(list) => list.to_string(),
                None => "one region".to_owned(),
            },
        ]
    }
}

impl fmt::Display for OperationMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name:?}"),
            Self::Prefix(prefix) => write!(f, "\"{prefix}…\""),
        }
    }
}
