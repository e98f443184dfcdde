//! The list of regions, and the home that it gives to a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use semel_core::contract::RegionList;
use semel_core::identity::IdentityHash;
use semel_core::{Identity, hex};
use sha2::{Digest as _, Sha256};

use crate::config::Upstream;

/// The regions and the rules by which each key has one home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTable {
    /// Another list has another version.
    pub version: u32,
    /// Each region's gateways, by its name.
    pub regions: BTreeMap<Arc<str>, Upstream>,
    /// Tenants with a fixed home.
    pub tenant_homes: Vec<TenantHome>,
}

/// A rule that gives tenants a fixed home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantHome {
    /// The tenant, or what its name begins with.
    pub tenant: Box<str>,
    /// Whether `tenant` is a beginning: it was written with a `*` at its end.
    pub is_prefix: bool,
    /// The name of the region.
    pub home: Arc<str>,
}

impl RegionTable {
    /// The home of a key: that of its tenant where there is a rule, else by rendezvous hashing.
    pub fn home(&self, identity: &Identity) -> Option<&Arc<str>> {
        self.tenant_home(identity.tenant())
            .or_else(|| rendezvous(self.regions.keys(), identity.hash()))
    }

    /// The rule for exactly this tenant, else that with the longest beginning.
    fn tenant_home(&self, tenant: &str) -> Option<&Arc<str>> {
        let matches = |rule: &&TenantHome| {
            *rule.tenant == *tenant || (rule.is_prefix && tenant.starts_with(&*rule.tenant))
        };
        let rules = self.tenant_homes.iter().filter(matches);
        let best = rules.max_by_key(|rule| (!rule.is_prefix, rule.tenant.len()));
        best.map(|rule| &rule.home)
    }

    /// The part of it that decides about homes, as it is published.
    pub fn published(&self) -> RegionList {
        RegionList {
            version: self.version,
            names: self.regions.keys().map(|name| (&**name).into()).collect(),
            tenant_homes: (!self.tenant_homes.is_empty()).then(|| self.hash_of_rules().into()),
        }
    }

    fn hash_of_rules(&self) -> String {
        let mut rules: Vec<_> = self.tenant_homes.iter().collect();
        rules.sort_by_key(|rule| (&rule.tenant, rule.is_prefix));
        let mut hasher = Sha256::new();
        for rule in rules {
            let kind = if rule.is_prefix { "*" } else { "=" };
            frame(&mut hasher, &[&rule.tenant, kind, &rule.home]);
        }
        hex(&hasher.finalize())
    }

    /// A hash of all that has to be the same in every region: the list, and `identity`, which says
    /// how a request becomes an identity.
    pub fn fingerprint(&self, identity: &[&str]) -> String {
        let mut hasher = Sha256::new();
        frame(&mut hasher, &["semel regions 1", &self.version.to_string()]);
        frame(&mut hasher, &[&self.regions.len().to_string()]);
        for name in self.regions.keys() {
            frame(&mut hasher, &[name]);
        }
        frame(&mut hasher, &[&self.hash_of_rules()]);
        frame(&mut hasher, identity);
        hex(&hasher.finalize())
    }
}

/// The region with the highest hash of its name and the identity. A region that is added takes keys
/// from all others, and no key moves between those.
fn rendezvous<'n>(
    names: impl Iterator<Item = &'n Arc<str>>,
    identity: IdentityHash,
) -> Option<&'n Arc<str>> {
    names.max_by_key(|name| weight(name, identity))
}

fn weight(name: &str, identity: IdentityHash) -> [u8; 32] {
    let mut hasher = Sha256::new();
    frame(&mut hasher, &["semel home 1", name]);
    hasher.update(identity.0);
    hasher.finalize().into()
}

/// Framed, or ("ab", "c") and ("a", "bc") would meet.
fn frame(hasher: &mut Sha256, parts: &[&str]) {
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Key, KeyScope};

    use super::*;

    fn table(names: &[&str], rules: &[(&str, &str)]) -> RegionTable {
        let upstream: Upstream = "http://127.0.0.1:1".parse().unwrap();
        RegionTable {
            version: 7,
            regions: names
                .iter()
                .map(|name| (Arc::from(*name), upstream.clone()))
                .collect(),
            tenant_homes: rules
                .iter()
                .map(|(tenant, home)| TenantHome {
                    tenant: tenant.trim_end_matches('*').into(),
                    is_prefix: tenant.ends_with('*'),
                    home: Arc::from(*home),
                })
                .collect(),
        }
    }

    fn identity(tenant: &str, key: usize) -> Identity {
        let key = Key::new(format!("key-{key}")).unwrap();
        Identity::new(tenant, "pay", key).unwrap()
    }

    fn home<'t>(table: &'t RegionTable, identity: &Identity) -> &'t str {
        table.home(identity).unwrap()
    }

    /// Fixed: another result would give the keys of every running service another home.
    #[test]
    fn the_home_of_a_key_is_the_same_in_every_version() {
        let table = table(&["ap", "eu", "us"], &[]);
        let homes: Vec<_> = (0..12)
            .map(|key| home(&table, &identity("acme", key)))
            .collect();
        assert_eq!(
            homes,
            [
                "ap", "us", "us", "us", "ap", "ap", "ap", "ap", "ap", "eu", "ap", "us"
            ]
        );
    }

    #[test]
    fn a_region_that_is_added_takes_its_share_and_moves_no_other_key() {
        const KEYS: usize = 9_000;
        let (two, three) = (table(&["eu", "us"], &[]), table(&["ap", "eu", "us"], &[]));
        let mut taken = 0;
        for key in 0..KEYS {
            let identity = identity("acme", key);
            let (before, after) = (home(&two, &identity), home(&three, &identity));
            if after == "ap" {
                taken += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        assert!((KEYS / 3 - 300..KEYS / 3 + 300).contains(&taken), "{taken}");
    }

    #[test]
    fn operations_of_a_key_with_the_scope_of_its_tenant_have_one_home() {
        let table = table(&["ap", "eu", "us"], &[]);
        for key in 0..50 {
            let key = Key::new(format!("key-{key}")).unwrap();
            let homes = ["pay", "refund"].map(|operation| {
                let identity = Identity::new("acme", operation, key.clone()).unwrap();
                table.home(&identity.scoped(KeyScope::Tenant))
            });
            assert_eq!(homes[0], homes[1]);
        }
    }

    #[test]
    fn the_most_specific_rule_decides_for_a_tenant() {
        let rules = [
            ("acct_*", "us"),
            ("acct_eu_*", "eu"),
            ("acct_eu_7", "ap"),
            ("acct_eu_7*", "us"),
        ];
        let table = table(&["ap", "eu", "us"], &rules);
        for (tenant, expected) in [
            ("acct_1", "us"),
            ("acct_eu_1", "eu"),
            ("acct_eu_7", "ap"),
            ("acct_eu_77", "us"),
        ] {
            for key in 0..20 {
                assert_eq!(home(&table, &identity(tenant, key)), expected, "{tenant}");
            }
        }
    }

    #[test]
    fn whatever_moves_a_key_changes_the_fingerprint() {
        let base = table(&["eu", "us"], &[("acme", "eu")]);
        let fingerprint = |table: &RegionTable| table.fingerprint(&["header:x"]);
        let mut newer = base.clone();
        newer.version = 8;
        let others = [
            newer,
            table(&["eu", "us", "ap"], &[("acme", "eu")]),
            table(&["eu", "us"], &[("acme", "us")]),
            table(&["eu", "us"], &[("acme*", "eu")]),
            table(&["eu", "us"], &[]),
        ];
        for other in &others {
            assert_ne!(fingerprint(other), fingerprint(&base), "{other:?}");
            assert_ne!(other.published(), base.published(), "{other:?}");
        }
        assert_ne!(base.fingerprint(&["jwt:sub"]), fingerprint(&base));
        let mut moved = base.clone();
        let elsewhere: Upstream = "https://eu.example".parse().unwrap();
        moved.regions.insert("eu".into(), elsewhere);
        assert_eq!(fingerprint(&moved), fingerprint(&base), "a URL may change");
        assert_eq!(moved.published(), base.published());
    }
}
