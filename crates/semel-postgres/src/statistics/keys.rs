//! Records by their key alone: looks under every known caller.

use std::collections::{BTreeMap, HashSet};

use semel_core::identity::IdentityHash;
use semel_core::statistics::Caller;
use semel_core::store::{MAX_BATCH, Summary};
use semel_core::{Identity, Key};
use uuid::Uuid;

use super::columns::can_be_stored;
use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::row::statistics as row;
use crate::time::Time;

/// Hashes per statement. Each is an index seek, and other commands wait for the statement.
const HASHES_PER_QUERY: usize = 5_000;

/// The records with a key, of all callers.
pub(crate) struct FindKey(pub(crate) Key, pub(crate) fn(&Identity) -> IdentityHash);

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
            // A caller was recorded from a valid identity, so this succeeds.
            if let Ok(identity) = Identity::new(tenant, operation, key.clone()) {
                let identity = identity.scoped(scope);
                sought.insert(Uuid::from_bytes(hash_of(&identity).0), identity);
            }
        }
        let hashes: Vec<Uuid> = sought.keys().copied().collect();
        let mut found = BTreeMap::new();
        for chunk in hashes.chunks(HASHES_PER_QUERY) {
            for row in client.query(&sql.find_keys, &[&chunk]).await? {
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

/// Removes repeated callers and those that cannot be stored. Keeps the order: the first ones get the
/// room that is left.
pub(crate) fn deduplicate(mut callers: Vec<Caller>) -> Vec<Caller> {
    let mut seen = HashSet::new();
    callers.retain(|caller| {
        can_be_stored(&caller.tenant)
            && can_be_stored(&caller.operation)
            && seen.insert(caller.clone())
    });
    callers
}
