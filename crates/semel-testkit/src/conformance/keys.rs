//! Identity: which requests share a record.

use semel_core::identity::{MAX_OPERATION_BYTES, MAX_TENANT_BYTES};
use semel_core::{Decision, Identity, KeyScope};

use super::fixture::{again, completion, fingerprint, identity, key, request_for};
use super::{Fixture, Subject};

/// Every identity executes once, replays only its own answer, and is found only as itself.
async fn all_are_different<S: Subject>(f: &Fixture<S>, identities: Vec<Identity>) {
    let mut executed = Vec::new();
    for identity in identities {
        let asked = request_for(identity);
        let grant = f.execute(asked.clone()).await;
        assert_eq!(grant.fence.attempt, 1, "{:?}", asked.identity);
        let body = asked.id.to_string();
        f.complete(grant.fence, completion(&body)).await;
        executed.push(asked);
    }
    for asked in executed {
        let replay = f.replay(again(&asked)).await;
        assert_eq!(replay.id, asked.id);
        let body = asked.id.to_string();
        assert_eq!(replay.response.body, Some(body.into()));
        let found = f.find_identity(&asked.identity).await.expect("a record");
        assert_eq!((found.id, found.identity), (asked.id, asked.identity));
    }
}

/// One tenant cannot observe that another used a key.
pub async fn tenants_are_isolated<S: Subject>(f: Fixture<S>) {
    let tenants = ["tenant-1", "tenant-2", "Tenant-1", "tenant-1 ", "tenant"];
    all_are_different(&f, tenants.map(|t| identity(t, "pay", "k")).to_vec()).await;
    let scoped = tenants.map(|t| identity(t, "pay", "k").scoped(KeyScope::Tenant));
    all_are_different(&f, scoped.to_vec()).await;
}

/// Keys are compared byte for byte.
pub async fn keys_are_case_sensitive<S: Subject>(f: Fixture<S>) {
    let keys = ["abc", "ABC", "Abc", "abc1", "ab", "0123", "123"];
    all_are_different(&f, keys.map(|k| identity("t", "pay", k)).to_vec()).await;
}

/// In the default scope, a key belongs to one operation.
pub async fn operation_scoped_keys_are_separate_per_operation<S: Subject>(f: Fixture<S>) {
    let operations = ["pay", "Pay", "refund", "POST /orders/1", "POST /orders/2"];
    all_are_different(&f, operations.map(|o| identity("t", o, "k")).to_vec()).await;
}

/// The parts of an identity are delimited.
pub async fn identities_that_concatenate_alike_are_separate<S: Subject>(f: Fixture<S>) {
    let parts = [
        ("ab", "c", "d"),
        ("a", "bc", "d"),
        ("a", "b", "cd"),
        ("abc", "d", "d"),
    ];
    all_are_different(&f, parts.map(|(t, o, k)| identity(t, o, k)).to_vec()).await;
}

/// In the tenant scope, a key is one record across operations, so that the fingerprint catches its
/// reuse on another endpoint.
pub async fn a_tenant_scoped_key_is_one_record_across_operations<S: Subject>(f: Fixture<S>) {
    let [pay, refund] =
        ["pay", "refund"].map(|o| request_for(identity("t", o, "k").scoped(KeyScope::Tenant)));
    let refund = semel_core::Reserve {
        fingerprints: fingerprint(2).into(),
        ..refund
    };
    f.execute(pay.clone()).await;
    let decision = f.reserve(refund.clone()).await;
    assert_eq!(decision, Decision::KeyMisuse { id: pay.id });
    let found = f.find_identity(&refund.identity).await.expect("a record");
    assert_eq!((found.id, found.identity), (pay.id, pay.identity));
}

/// The two scopes do not share records.
pub async fn keys_of_different_scopes_are_separate<S: Subject>(f: Fixture<S>) {
    let base = identity("t", "pay", "k");
    all_are_different(&f, vec![base.clone(), base.scoped(KeyScope::Tenant)]).await;
}

/// Names in any script come back unchanged.
pub async fn unicode_names_are_accepted<S: Subject>(f: Fixture<S>) {
    let names = [
        "Zürich",
        "Zu\u{308}rich",
        "東京",
        "🦀",
        "a'b\"c;--",
        "%_\\",
        "tab\tnew\nline",
    ];
    let all = names.iter().flat_map(|name| {
        [
            identity(name, "pay", "k"),
            identity("t", name, "k"),
            identity(name, name, "k").scoped(KeyScope::Tenant),
        ]
    });
    all_are_different(&f, all.collect()).await;
}

/// The longest names are stored completely: a truncated name would match another.
pub async fn the_longest_names_are_not_truncated<S: Subject>(f: Fixture<S>) {
    let long = |length: usize, end: &str| "x".repeat(length - 1) + end;
    let mut all = Vec::new();
    for end in ["y", "z"] {
        all.push(identity(&long(MAX_TENANT_BYTES, end), "pay", "k"));
        all.push(identity("t", &long(MAX_OPERATION_BYTES, end), "k"));
        all.push(Identity::new("t", "pay", key(&long(255, end))).expect("an identity"));
    }
    all_are_different(&f, all).await;
}

/// An unused key and id are not found.
pub async fn an_unused_key_is_not_found<S: Subject>(f: Fixture<S>) {
    let asked = request_for(identity("t", "pay", "k"));
    assert_eq!(f.find(asked.id).await, None);
    assert_eq!(f.find_identity(&asked.identity).await, None);
    assert!(!f.erase(asked.id).await);
}
