//! What the layer counts.

use std::sync::Arc;

use semel_core::{Memory, Policy};
use semel_http::{Layer, names, tenant};
use semel_testkit::ManualClock;
use tokio::sync::Notify;

use crate::support::{CounterRecorder, answer, send};

/// Two retries find an outcome unknown, and one of them an expired lease.
#[tokio::test(start_paused = true)]
async fn expired_lease_is_counted_by_the_retry_that_finds_it() {
    let counters = CounterRecorder::default();
    let _recording = metrics::set_default_local_recorder(&counters);
    let clock = ManualClock::default();
    let layer = Layer::new(Memory::new(Arc::new(clock.clone())))
        .tenant(tenant::only_one())
        .route("POST /payments", |route| route.operation("pay"));
    let began = Arc::new(Notify::new());
    let attempt = tokio::spawn({
        let (layer, began) = (layer.clone(), Arc::clone(&began));
        async move {
            send(&layer, "/payments", "k", move |_| {
                began.notify_one();
                std::future::pending()
            })
            .await
        }
    });
    began.notified().await;
    clock.advance(Policy::default().lease);
    for retry in 1..=2 {
        let refused = send(&layer, "/payments", "k", |_| async { answer(201, "paid") }).await;
        refused.refuses(409, "idempotency_outcome_unknown");
        assert_eq!(counters.count(names::UNKNOWN), retry);
        assert_eq!(counters.count(names::ZOMBIE_KEY), 1);
        assert_eq!(counters.count(names::BECAME_UNKNOWN), 1);
    }
    attempt.abort();
}
