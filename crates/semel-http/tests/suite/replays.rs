//! The replay cache outlives a reload of the configuration: what it holds is judged by the rules of
//! the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Answer, answer, send};
use http::Response;
use semel_core::Memory;
use semel_http::{Layer, OnSchemaChange, ReplayMode, Route, tenant};

fn rules(layer: &Layer<Memory>, change: impl FnOnce(Route) -> Route) -> Layer<Memory> {
    let layer = layer.with_new_rules(tenant::header("X-Account"));
    layer.route("POST /pay", |route| change(route.operation("pay")))
}

async fn pay(layer: &Layer<Memory>, executed: &Arc<AtomicUsize>) -> Answer {
    let executed = Arc::clone(executed);
    let handler = move |_| {
        executed.fetch_add(1, Ordering::SeqCst);
        std::future::ready(answer(201, "first"))
    };
    send(layer, "/pay", "k1", handler).await
}

#[tokio::test]
async fn a_cached_response_is_judged_by_the_rules_after_a_reload() {
    let executed = Arc::default();
    let base = Layer::new(Memory::default()).tenant(tenant::header("X-Account"));
    let stored = rules(&base, |route| route.schema(1));
    for replayed in [false, true, true] {
        assert_eq!(pay(&stored, &executed).await.is_replay(), replayed);
    }

    let disclosed = rules(&base, |route| route.schema(2));
    let again = pay(&disclosed, &executed).await;
    assert_eq!((again.text.as_str(), again.is_replay()), ("first", true));
    assert_eq!(again.headers["semel-schema-version"], "1");

    let refused = rules(&base, |route| {
        route.schema(2).on_schema_change(OnSchemaChange::Refuse)
    });
    let again = pay(&refused, &executed).await;
    again.refuses(410, "idempotency_response_not_stored");

    let reconstructed = rules(&base, |route| {
        let fetch = |_| async { Ok::<_, std::io::Error>(Response::new("current")) };
        route.replay(ReplayMode::Reconstruct).reconstruct(fetch)
    });
    assert_eq!(pay(&reconstructed, &executed).await.text, "current");

    let revoked = rules(&base, |route| {
        route.authorize(|_| async {
            let denied = Response::builder().status(403).body("revoked");
            denied.map_err(|_| std::io::Error::other("invalid"))
        })
    });
    let again = pay(&revoked, &executed).await;
    assert_eq!(
        (again.status.as_u16(), again.text.as_str()),
        (403, "revoked")
    );

    assert_eq!(pay(&stored, &executed).await.text, "first");
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}
