//! The status endpoint, and the headers that the gateway adds for the application.

use axum::http::Method;
use semel_core::Store as _;

use crate::boundary::fixture::{Answer, Call, EntryPoint, Fixture};

/// Gets the status of an operation as `tenant`.
async fn read_status(fixture: &Fixture, path: &str, tenant: Option<&str>) -> Answer {
    let mut call = Call::to(fixture.address, Method::GET, path);
    if let Some(tenant) = tenant {
        call = call.header("x-account", tenant);
    }
    call.send().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_visible_to_its_tenant_only() {
    let fixture = Fixture::new(EntryPoint::Gateway).await;
    for (key, path) in [("k1", "/do/status-201"), ("k2", "/do/status-503")] {
        fixture.post(path, key, "{}").await;
    }
    for record in fixture.records().await {
        let path = format!("/.semel/operations/{}", record.id);
        let own = read_status(&fixture, &path, Some("acme")).await;
        assert_eq!(own.status, 200);
        assert_eq!(own.json()["operation_id"], record.id.to_string());
        // Other tenants get the same response as for an operation that does not exist.
        let none = path.replace(
            &record.id.to_string(),
            "01890a5d-ac96-774b-bcce-b302099a8057",
        );
        let none = read_status(&fixture, &none, Some("acme")).await;
        assert_eq!(none.status, 404);
        for stranger in [Some("other"), None] {
            let response = read_status(&fixture, &path, stranger).await;
            assert_eq!((response.status, &response.body), (none.status, &none.body));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_downstream_key_is_the_same_on_every_attempt() {
    let fixture = Fixture::new(EntryPoint::Gateway).await;
    for key in ["k1", "k1", "k2"] {
        // Not begun: the next request with the key is another attempt.
        fixture.post("/do/status-408", key, "{}").await;
    }
    let values = |name: &str| -> Vec<String> {
        let lines =
            |seen: crate::boundary::app::Execution| seen.headers[name].to_str().unwrap().to_owned();
        fixture.app.seen().into_iter().map(lines).collect()
    };
    assert_eq!(values("semel-attempt"), ["1", "2", "1"]);
    let keys = values("semel-downstream-key");
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_dead_letter_has_a_longer_retry_after() {
    let fixture = Fixture::new(EntryPoint::Gateway).await;
    fixture.post("/do/status-503", "k1", "{}").await;
    let fence = fixture.records().await[0].fence();
    let path = format!("/.semel/operations/{}", fence.id);
    for (dead_lettered, seconds) in [(false, 1), (true, 300)] {
        if dead_lettered {
            let dead = fixture.store.dead_letter(fence, "exhausted".into());
            dead.await.unwrap();
        }
        let status = read_status(&fixture, &path, Some("acme")).await;
        assert_eq!(status.json()["retry_after"], seconds);
        let header = seconds.to_string();
        assert_eq!(status.header("retry-after"), Some(header.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_serves_the_pages_of_its_error_codes() {
    let fixture = Fixture::with(EntryPoint::Gateway, |layer| {
        layer.error_base(semel_gateway::ERROR_PATH)
    });
    let fixture = fixture.await;
    let refused = fixture.post("/do/status-201", "", "{}").await;
    let refused = refused.json();
    let page = refused["type"].as_str().unwrap();
    let answer = read_status(&fixture, page, None).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(answer.text().contains("idempotency_key_missing"));
    let none = read_status(&fixture, "/.semel/errors/no_such_code", None).await;
    assert_eq!(none.status, 404);
    assert_eq!(fixture.app.executions(), 0);
}
