//! A batch of reservations as the parameters of its statements.

use semel_core::time::micros;
use semel_core::{OnExpired, Reserve};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::Reservation;
use crate::row::uuid;
use crate::time::Time;

/// A batch as columns.
#[derive(Default)]
pub(super) struct Columns<'b> {
    now: Option<i64>,
    hashes: Vec<Uuid>,
    ids: Vec<Uuid>,
    scopes: Vec<&'b str>,
    tenants: Vec<&'b str>,
    operations: Vec<&'b str>,
    keys: Vec<&'b str>,
    digests: Vec<Vec<u8>>,
    versions: Vec<i32>,
    rules: Vec<i64>,
    owners: Vec<&'b str>,
    leases: Vec<i64>,
    replays: Vec<i64>,
    bodies: Vec<i64>,
    tombstones: Vec<Option<i64>>,
    resumes: Vec<Option<i64>>,
    anew: Vec<bool>,
    /// Fingerprints of the same requests by older rules, with the number of the request.
    older_nths: Vec<i64>,
    older_digests: Vec<Vec<u8>>,
    older_versions: Vec<i32>,
    older_rules: Vec<i64>,
}

impl<'b> Columns<'b> {
    pub(super) fn of(batch: impl Iterator<Item = &'b Reservation> + Clone, time: &Time) -> Self {
        let mut columns = Self {
            now: time.given(),
            hashes: hashes(batch.clone()),
            ..Self::default()
        };
        for (call, nth) in batch.zip(1..) {
            columns.add(&call.request, nth);
        }
        columns
    }

    fn add(&mut self, request: &'b Reserve, nth: i64) {
        let Reserve {
            id,
            identity,
            fingerprints,
            owner,
            policy,
        } = request;
        self.ids.push(uuid(*id));
        self.scopes.push(identity.scope().as_str());
        self.tenants.push(identity.tenant());
        self.operations.push(identity.operation());
        self.keys.push(identity.key().as_str());
        self.owners.push(owner.as_str());
        self.leases.push(micros(policy.lease));
        let (replay, body, tombstone) = policy.windows.as_micros();
        self.replays.push(replay);
        self.bodies.push(body);
        self.tombstones.push(tombstone);
        self.resumes.push(policy.resumes_within().map(micros));
        self.anew.push(policy.on_expired == OnExpired::Execute);
        for (order, fingerprint) in fingerprints.iter().enumerate() {
            let version = i32::from(fingerprint.version());
            if order == 0 {
                self.digests.push(fingerprint.digest().into());
                self.versions.push(version);
                self.rules.push(fingerprint.rules().0);
            } else {
                self.older_nths.push(nth);
                self.older_digests.push(fingerprint.digest().into());
                self.older_versions.push(version);
                self.older_rules.push(fingerprint.rules().0);
            }
        }
    }

    /// In the order of both statements.
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 21] {
        [
            &self.now,
            &self.hashes,
            &self.ids,
            &self.scopes,
            &self.tenants,
            &self.operations,
            &self.keys,
            &self.digests,
            &self.versions,
            &self.rules,
            &self.owners,
            &self.leases,
            &self.replays,
            &self.bodies,
            &self.tombstones,
            &self.resumes,
            &self.anew,
            &self.older_nths,
            &self.older_digests,
            &self.older_versions,
            &self.older_rules,
        ]
    }
}

/// Without the requests whose key an earlier one of the batch has: one statement cannot insert both.
pub(super) fn first_of_each_key(
    batch: &[Reservation],
) -> impl Iterator<Item = &Reservation> + Clone {
    batch
        .chunk_by(|one, next| one.hash == next.hash)
        .filter_map(<[Reservation]>::first)
}

pub(super) fn hashes<'b>(batch: impl IntoIterator<Item = &'b Reservation>) -> Vec<Uuid> {
    let hashes = batch.into_iter().map(|call| Uuid::from_bytes(call.hash.0));
    hashes.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::{Fingerprint, Identity, Key, OperationId, Policy};
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn requests_with_the_same_key_are_inserted_once() {
        let mut batch: Vec<_> = ["a", "b", "a", "a", "c"].map(reservation).into();
        batch.sort_unstable_by_key(|call| call.hash.0);
        let mut keys: Vec<_> = first_of_each_key(&batch)
            .map(|call| call.request.identity.key().as_str())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, ["a", "b", "c"]);
    }

    fn reservation(key: &str) -> Reservation {
        let identity = Identity::new("acme", "create_payment", Key::new(key).unwrap()).unwrap();
        Reservation {
            hash: identity.hash(),
            request: Arc::new(Reserve {
                id: OperationId::generate(),
                identity,
                fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
                owner: "owner".into(),
                policy: Policy::default(),
            }),
            reply: oneshot::channel().0,
            tries: 0,
        }
    }
}
