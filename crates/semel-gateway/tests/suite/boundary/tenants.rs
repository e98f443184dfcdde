//! Callers that are not known, or not yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use semel_http::tenant::Tenant;

use crate::boundary::fixture::{Call, EntryPoint, Fixture};

crate::boundary::through_both_entry_points!(
    a_tenant_with_nul_is_refused,
    a_caller_that_cannot_be_verified_now_gets_503,
    a_request_waits_until_its_tenant_is_known,
);

async fn a_tenant_with_nul_is_refused(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| layer.with_new_rules(|_| Some("a\0b"))).await;
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses(403, "tenant_unresolved");
    assert_eq!(fixture.app.executions(), 0);
    assert!(fixture.records().await.is_empty());
}

async fn a_caller_that_cannot_be_verified_now_gets_503(entry: EntryPoint) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let tenant = move |_: &http::request::Parts| match counted.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Tenant::Unavailable {
            retry_after: Duration::from_secs(4),
        },
        _ => Tenant::Known("acme".into()),
    };
    let fixture = Fixture::with(entry, |layer| {
        let layer = layer.with_new_rules(tenant);
        layer.status_path("/.semel/operations/")
    })
    .await;
    if entry == EntryPoint::Gateway {
        let id = "0198a1b2-c3d4-7000-8000-00000000000a";
        let path = format!("/.semel/operations/{id}");
        let status = Call::to(fixture.address, Method::GET, &path).send().await;
        status.refuses(503, "tenant_unavailable");
    } else {
        calls.store(1, Ordering::SeqCst);
    }
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses(503, "tenant_unavailable");
    assert_eq!(answer.json()["retryable"], true);
    assert_eq!(answer.header("retry-after"), Some("5"));
    assert!(fixture.records().await.is_empty());
    assert_eq!(fixture.post("/do/status-201", "k1", "{}").await.status, 201);
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_request_waits_until_its_tenant_is_known(entry: EntryPoint) {
    let tenant = |_: &http::request::Parts| {
        Tenant::Pending(Box::pin(async {
            tokio::task::yield_now().await;
            Some("acme").into()
        }))
    };
    let fixture = Fixture::with(entry, |layer| layer.with_new_rules(tenant)).await;
    for replay in [false, true] {
        let answer = fixture.post("/do/status-201", "k1", "{}").await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, replay));
    }
    assert_eq!(fixture.records().await[0].identity.tenant(), "acme");
}
