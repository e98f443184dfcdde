//! What the tests of this store have in common.
#![allow(dead_code, unreachable_pub, reason = "not every test needs all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

use bytes::Bytes;
use semel_core::transition::{Completion, Decision};
use semel_core::{
    Fence, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Response, Store,
};

/// A first request under `key`.
pub fn request(key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

/// Reserves `key`, which must be new.
pub async fn granted(store: &impl Store, key: &str) -> Fence {
    match store.reserve(request(key)).await {
        Ok(Decision::Execute(grant)) => grant.fence,
        other => panic!("{key} is not granted: {other:?}"),
    }
}

/// An answer whose body is `size` bytes that depend on `seed`.
pub fn completion(seed: &str, size: usize) -> Completion {
    let body: Bytes = seed.bytes().cycle().take(size).collect();
    let headers = vec![(
        "content-type".into(),
        Bytes::from_static(b"application/json"),
    )];
    Completion {
        response: Response {
            status: 201,
            headers,
            body: Some(body),
            schema_version: 0,
        },
        resource: None,
    }
}
