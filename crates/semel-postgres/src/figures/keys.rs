//! Operations by their key alone: under everybody who is known to call.

use std::collections::{BTreeMap, HashSet};

use semel_core::figures::Caller;
use semel_core::identity::IdentityHash;
use semel_core::store::{MAX_BATCH, Summary};
use semel_core::{Identity, Key};
use uuid::Uuid;

use super::counts::can_be_kept;
use crate::connection::Session;
use crate::errand::Command;
use crate::error::Failure;
use crate::row::figures as row;
use crate::time::Time;

/// How many hashes are looked for at once: each is a seek, and others wait meanwhile.
const MOST_AT_ONCE: usize = 5_000;

/// The operations under a key.
pub(super) struct FindKey(pub(super) Key, pub(super) fn(&Identity) -> IdentityHash);

impl Command for FindKey {
    type Answer = Vec<Summary>;
    const WRITES: bool = false;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<Vec<Summary>, Failure> {
        let Self(key, hash_of) = self;
        let (client, sql) = (&session.client, &session.sql);
        let mut sought = BTreeMap::new();
        for known in client.query(&sql.callers, &[]).await? {
            let Caller {
                scope,
                tenant,
                operation,
            } = row::caller(&known)?;
            // Callers are made of identities, so each makes one.
            if let Ok(identity) = Identity::new(tenant, operation, key.clone()) {
                let identity = identity.scoped(scope);
                sought.insert(Uuid::from_bytes(hash_of(&identity).0), identity);
            }
        }
        let hashes: Vec<Uuid> = sought.keys().copied().collect();
        let mut found = BTreeMap::new();
        for some in hashes.chunks(MOST_AT_ONCE) {
            for row in client.query(&sql.find_keys, &[&some]).await? {
                let (hash, summary) = row::hashed(&row)?;
                let same = sought
                    .get(&hash)
                    .is_some_and(|identity| identity.names_same_record(&summary.identity));
                if !same {
                    return Err(Failure::Corrupt("two identities have one hash".into()));
                }
                found.insert(summary.fence.id, summary);
            }
        }
        Ok(found.into_values().rev().take(MAX_BATCH).collect())
    }
}

/// The same without those who were there before, in their order: the first of them find room.
pub(super) fn each_once(mut callers: Vec<Caller>) -> Vec<Caller> {
    let mut seen = HashSet::new();
    callers.retain(|caller| {
        can_be_kept(&caller.tenant) && can_be_kept(&caller.operation) && seen.insert(caller.clone())
    });
    callers
}
