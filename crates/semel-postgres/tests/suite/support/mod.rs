//! Requests and answers that several test modules use.

#[cfg(feature = "sqlx")]
pub(crate) mod shop;

use semel_core::transition::{Completion, Decision, Grant};
use semel_core::{
    Fence, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Response, Store,
};

pub(crate) fn request(key: &str) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", Key::new(key).unwrap()).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "test".into(),
        policy: Policy::default(),
    }
}

pub(crate) async fn grant(store: &impl Store, request: Reserve) -> Grant {
    match store.reserve(request).await.unwrap() {
        Decision::Execute(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn granted(store: &impl Store, key: &str) -> Fence {
    grant(store, request(key)).await.fence
}

pub(crate) fn completion(body: &str) -> Completion {
    Completion {
        response: Response {
            status: 201,
            headers: vec![("content-type".into(), b"application/json".as_slice().into())],
            body: Some(body.as_bytes().to_vec().into()),
            schema_version: 0,
        },
        resource: None,
    }
}
