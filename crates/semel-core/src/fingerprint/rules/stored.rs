//! Rules as a store keeps them, for processes with another configuration.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Fallback, Options, Rules, ValueRule};
use crate::fingerprint::timestamp::Precision;
use crate::fingerprint::{Error, Hosts, Pointer};

/// Stands for one set of rules: the same options have the same id in every process.
///
/// A record keeps the id of the rules that its fingerprint was made by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RulesId(pub i64);

impl RulesId {
    /// No options at all: the path as it was sent, without the authority. Records of the first
    /// versions have it.
    pub const DEFAULT: Self = Self(0);

    /// The fingerprint of a validated command: see [`Fingerprint::of`](crate::Fingerprint::of).
    pub const COMMAND: Self = Self(1);

    /// The default of routes: the normalised path, and the authority.
    pub const WITH_HOST: Self = Self(2);

    /// Of rules in their stored form. Two sets with one id would be compared by the wrong one of
    /// them, so 63 bits: with eight sets an operation, a collision is not to be expected, and
    /// leads to a false mismatch.
    pub(super) fn of(text: &str) -> Self {
        let digest = Sha256::new()
            .chain_update(b"semel fingerprint rules")
            .chain_update(text.as_bytes())
            .finalize();
        let mut short = [0; 8];
        short.copy_from_slice(&digest[..8]);
        // Positive, and none of the constants.
        Self((i64::from_be_bytes(short) & i64::MAX).max(1 << 8))
    }
}

/// Rules with a target, as a store keeps them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRules {
    hosts: Hosts,
    #[serde(
        default,
        rename = "command",
        skip_serializing_if = "std::ops::Not::not"
    )]
    is_command: bool,
    options: Options,
}

impl Rules {
    /// Which rules these are.
    pub fn id(&self) -> RulesId {
        self.id
    }

    /// The rules as a store keeps them. The order in which options were written does not matter.
    pub fn to_text(&self) -> String {
        let sorted = |pointers: &[Pointer]| {
            let mut texts: Vec<_> = pointers.iter().map(Pointer::to_string).collect();
            texts.sort_unstable();
            texts.dedup();
            texts
        };
        let defaults = self.defaults.iter().map(|Fallback { pointer, canonical }| {
            let json = String::from_utf8_lossy(canonical).into_owned();
            (pointer.to_string(), json)
        });
        let valued = |admits: &dyn Fn(ValueRule) -> bool| {
            let pointers = self.values.iter().filter(|(_, rule)| admits(*rule));
            let pointers: Vec<_> = pointers.map(|(pointer, _)| pointer.clone()).collect();
            sorted(&pointers)
        };
        let mut timestamps: Vec<(String, Precision)> = self
            .values
            .iter()
            .filter_map(|(pointer, rule)| match rule {
                ValueRule::Timestamp(precision) => Some((pointer.to_string(), *precision)),
                ValueRule::Decimal | ValueRule::Enum => None,
            })
            .collect();
        timestamps.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        timestamps.dedup();
        let options = Options {
            headers: self.headers.clone(),
            ignore: sorted(&self.ignore),
            defaults: defaults.collect(),
            decimals: valued(&|rule| matches!(rule, ValueRule::Decimal)),
            fields: sorted(&self.fields),
            enums: valued(&|rule| matches!(rule, ValueRule::Enum)),
            timestamps,
        };
        // Strings and lists of them are always JSON.
        match self.hosts.clone() {
            None => serde_json::to_string(&options),
            Some(hosts) => serde_json::to_string(&StoredRules {
                hosts,
                is_command: self.is_command,
                options,
            }),
        }
        .unwrap_or_default()
    }

    /// The rules that [`to_text`](Rules::to_text) wrote.
    ///
    /// # Errors
    /// [`Error::Stored`] where another version wrote an option that this one does not have: its
    /// fingerprints cannot be computed.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let unreadable = |error: serde_json::Error| Error::Stored(error.to_string());
        // Rules of the first versions are the options alone.
        let Ok(stored) = serde_json::from_str::<StoredRules>(text) else {
            return Self::new(&serde_json::from_str(text).map_err(unreadable)?);
        };
        let rules = Self::new(&stored.options)?.with_hosts(&stored.hosts);
        Ok(if stored.is_command {
            rules.for_command()
        } else {
            rules
        })
    }

    /// The rules that every version knows, and that no store has to keep.
    pub fn well_known(id: RulesId) -> Option<Self> {
        match id {
            RulesId::DEFAULT => Some(Self::default()),
            RulesId::WITH_HOST => Some(Self::default().with_hosts(&Hosts::default())),
            RulesId::COMMAND => Some(Self {
                id,
                is_command: true,
                ..Self::default()
            }),
            RulesId(_) => None,
        }
    }

    /// These rules with the normalised path, and the authority as `hosts` says.
    #[must_use]
    pub fn with_hosts(&self, hosts: &Hosts) -> Self {
        let is_plain = *self == Self::default() && *hosts == Hosts::default();
        let mut rules = self.clone();
        rules.hosts = Some(hosts.clone());
        rules.id = if is_plain {
            RulesId::WITH_HOST
        } else {
            RulesId::of(&rules.to_text())
        };
        rules
    }

    /// These rules for a route that compares validated commands.
    #[must_use]
    pub fn for_command(&self) -> Self {
        let mut rules = self.clone();
        rules.is_command = true;
        rules.id = RulesId::of(&rules.to_text());
        rules
    }

    /// How the authority counts; `None`: not at all, and the path counts as it was sent.
    pub fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// Whether the body is compared as a validated command.
    pub fn is_command(&self) -> bool {
        self.is_command
    }

    /// These rules and further headers.
    #[must_use]
    pub fn with_headers(&self, more: &[&str]) -> Self {
        let mut rules = self.clone();
        rules
            .headers
            .extend(more.iter().map(|name| (*name).to_owned()));
        rules.headers.sort_unstable();
        rules.headers.dedup();
        rules.id = RulesId::of(&rules.to_text());
        rules
    }
}
